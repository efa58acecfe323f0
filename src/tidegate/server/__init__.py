"""The control process: it runs the control machines and has every edge of the control plane.

Reading order: capture (a node), reactor (its changefeeds, with feed_creation, feed_updates, feed_removal,
placement, held_history and housekeeping), feed (one changefeed), schema_tracker, supervisor (child processes
and the socket between them), puller_process, metadata_sqlite.
"""
