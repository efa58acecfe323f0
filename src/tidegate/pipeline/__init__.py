"""The application of a capture: it delivers from the event stores to the sinks, for all changefeeds.

Start with application.py. Then read incarnation, backlog and due_scan (what is due), timetable (which
changefeed gets a worker next), host (which puts its parts together: incarnations, supply, placement,
signs_of_life), conversation and worker (both ends of a connection; the messages are in work), begin, deliver
and load_task (what a worker does), stages (pure functions from block to block). Outside this folder, only
spark/, consumer/, tables/, verify/ and two commands of cli/ use Spark.
"""
