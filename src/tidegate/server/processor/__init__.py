"""The processors of a capture: each has spans pulled and rows delivered for one changefeed.

`registry` (all of them), `processor` (one), `openings` and `opening` (a changefeed open on this
capture), `coming_ranges` and `arrivals` (ranges that it takes over), `pipeline` (the incarnation that
delivers), `reader_bounds` and `reader_floor` (what workers may and do read), `span_loads`, `status`
and `words` (for users), `space_release` and `upkeep` (what leaves the event stores). An owner is known
only by its messages.
"""
