"""Percolator transactions: functions from a request and a reader to a response and a write batch. Pure.

The caller holds latches on all keys of a writing command from before the read until its batch is applied, so
the records that were read cannot change in between. Each function returns an `Outcome`; an outcome with
errors has no changes. Rules and names are TiKV's (storage/txn/actions, storage/txn/commands).
"""

from tidegate.tikv.percolator.commit import batch_rollback, cleanup, commit, is_expired, resolve_locks
from tidegate.tikv.percolator.outcome import Announced, Blocked, Outcome, lock_info, op_of
from tidegate.tikv.percolator.pessimistic import pessimistic_lock, pessimistic_rollback
from tidegate.tikv.percolator.prewrite import buffer_batch_get, flush, prewrite
from tidegate.tikv.percolator.status import check_secondary_locks, check_txn_status, heart_beat

__all__ = [
    "Announced",
    "Blocked",
    "Outcome",
    "batch_rollback",
    "buffer_batch_get",
    "check_secondary_locks",
    "check_txn_status",
    "cleanup",
    "commit",
    "flush",
    "heart_beat",
    "is_expired",
    "lock_info",
    "op_of",
    "pessimistic_lock",
    "pessimistic_rollback",
    "prewrite",
    "resolve_locks",
]
