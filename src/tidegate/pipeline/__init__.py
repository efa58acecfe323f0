"""The application of a capture: it delivers from the event stores to the sinks, for all changefeeds.

At the top: `application` (the process), `job` (one incarnation alone, for tests and benchmarks), `daemon` (of
Spark's workers).

Rooms, in reading order: `host` (which work is due, and which worker gets it), `worker` (what a worker does;
`stages` has the pure functions from block to block), `exchange` (messages and files between control process,
host and workers), `remote` (workers on other machines). Outside this folder, only spark/, consumer/, tables/,
verify/ and one command of cli/ use Spark.
"""
