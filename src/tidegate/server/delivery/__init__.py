"""How rows and DDL of a changefeed reach its sink; what owner and processor share.

`plan` (what all incarnations have in common, and the files for them), `application` (the process that
delivers rows), `sink_thread` (the thread that sends DDL and Resolved), `watch` (notices when either
makes no progress), `initial_load` with `create_statement`, `totals` (what was delivered).
"""
