"""The process that runs the control machines: every edge of the control plane.

Reading order: capture (a node), reactor (one feed's loop), schema_tracker, supervisor (child processes and
the socket between them), puller_process, metadata_sqlite.
"""
