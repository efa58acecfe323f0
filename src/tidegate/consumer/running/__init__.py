"""One run of the consumer: where it begins, its rounds, its checks, and what it reports.

`beginning` (the stored position), `rounds` (of fetching), `membership` (which partitions), `checks` (what
must hold), `attempts` (after failures), `stall_detector`, `notices`, `progress`, `lag`, `gauges`, `status`.
"""
