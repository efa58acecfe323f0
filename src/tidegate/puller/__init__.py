"""The puller: follow the changes of key spans over TiKV's change data streams.

Reading order: `range_lock` (each key belongs to one region feed at a time), `region_feed` (the states of a
range's registration, a state machine), `match/` (pairs each commit with its prewrite, in kernels), `frontier`
(the smallest resolved ts), `event_feed` (the gRPC edge: one stream per store), `span_table` (spans, with
their marks and locks), `registrar` (which range is registered at which store), `upkeep` (disk space, silent
ranges, restarts), `puller` (the threads, and the interface: spans in, sealed spans in the event store out).
"""
