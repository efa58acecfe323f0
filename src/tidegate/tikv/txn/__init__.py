"""Requests of transactions: who may write when, who waits for whom, and reads at a timestamp.

Reading order: `call` (how a request type is served), `latches`, `deadlock`, `lock_waiting`, `scheduler` (who
may write when), `snapshot` (reads), `status_cache` (large transactions), `max_ts` (a new leader's),
`flashback_requests`. Which records a command writes is decided in `percolator/`.
"""
