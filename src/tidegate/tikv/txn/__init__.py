"""Transactional requests: scheduling of writes, waiting for locks, and reads at a timestamp.

Reading order: `call` (how a request type is served), `latches`, `deadlock`, `lock_waiting`, `scheduler` (runs
writes in order), `snapshot` (reads), `status_cache` (large transactions), `max_ts` (of a new leader),
`flashback_requests`; then `read_calls`, `write_calls`, `range_calls` (the requests). `percolator/` decides
which records a command writes.
"""
