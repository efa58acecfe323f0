"""The control plane as state machines: no I/O, no clock, no threads.

Reading order: metadata (what is stored), changefeed (a feed's life), barrier, owner (checkpoint, DDL order,
Resolved), gc. `tidegate.server` runs them.
"""
