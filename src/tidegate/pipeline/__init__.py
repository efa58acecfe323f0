"""The application of a capture: event stores in, sinks out, for all its changefeeds.

Start reading at application.py. Then: incarnation, backlog and glance (what is due), timetable (who gets a
worker next), host (which puts its parts together: incarnations, supply, placement, signs_of_life),
conversation and worker (both ends, whose messages are in work), begin, deliver and load_task (what a worker
does), stages (pure functions from block to block). Besides this folder, only spark/, consumer/, tables/,
verify/ and two commands of cli/ use Spark.
"""
