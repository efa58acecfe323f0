"""Capture: follow the changes of key spans over TiKV's change data streams.

Reading order: `range_lock` (each key belongs to one region feed at a time), `region_feed` (one range's
life, a state machine), `match/` (pairs each commit with its prewrite, in kernels), `frontier` (the smallest
resolved ts), `event_feed` (the gRPC edge: one stream per store), `puller` (spans in; sealed spans in the
event store out; the threads).
"""
