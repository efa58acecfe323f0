"""The changefeeds that a capture owns, and what users may request of them.

`reactor` (all requests), `feeds` (by name), `new_feed` (checks a request), `creation`, `updates`,
`removal`, `placement`, `hot_spans` and `recuts` (of hot tables), `repartition`, `unreadable` (stored by a
later version), `housekeeping` with
`held_history` and `clock_watch` (every second), `range_figures` (metrics), `readers` and
`reader_history` (Spark queries).
"""
