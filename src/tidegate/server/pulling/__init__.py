"""The control process's side of the event stores: which spans are pulled, and by which process.

`spans` (what is followed, for whom and from which ts), `pullers` (a puller for each kv mode),
`puller_process` (their process, with `backfill` and `segment_repairs`), `pulse` (wakes changefeeds
when rows have come).
"""
