"""The control plane as state machines: no I/O, no clock, no threads.

Reading order: metadata (what is kept), changefeed (a feed's life), barrier, owner (checkpoint, DDL order,
Resolved), gc. The edges that run them live in `tidegate.server`.
"""
