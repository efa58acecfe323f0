"""The Spark job of one changefeed: event store in, sink out.

Start reading at job.py, which is one page. Then: feed (what the job is told), offsets (pure), source
(Spark's side of the event store), stages (pure functions from block to block), deliver (the task),
session and daemon (Spark itself). Only this folder and consumer/ import pyspark.
"""
