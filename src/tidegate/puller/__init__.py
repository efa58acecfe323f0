"""Capture: follow the changes of key spans over TiKV's change data streams.

Reading order: `range_lock` (each key belongs to one region feed at a time), `region_feed` (one range's life,
a state machine), `matcher` (pairs each commit with its prewrite; the plain twin), `kernels` (the compiled
wire scan and matcher), `block_matcher` (the matcher of one stream, over the kernels), `budget` (what
all streams share), `frontier` (the smallest resolved ts), `event_feed` (the gRPC edge: one stream per store),
`puller` (spans in; sealed spans in the event store out; the threads).
"""
