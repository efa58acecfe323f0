"""The state of a transaction, from its primary or from all keys of an async commit; and its heartbeat.

A later commit must not contradict the answer. Therefore the request's timestamps raise max_ts first, and a
commit that chooses its ts later is above them. (TiKV: storage/txn/commands/{check_txn_status,
check_secondary_locks,txn_heart_beat}.rs.)
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Change, Lock
from tidegate.tikv.percolator.commit import is_expired, make_rollback, rollback_lock
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.percolator.outcome import CommandOutcome, RefusedError, lock_info
from tidegate.tikv.reader import MvccReader


def check_txn_status(
    reader: MvccReader,
    request: pb.CheckTxnStatusRequest,
    encoded: Sequence[bytes] | None = None,
    concurrency: ConcurrencyManager | None = None,
) -> CommandOutcome[pb.CheckTxnStatusResponse]:
    """The state of a transaction, from its primary key; rolls it back if it has expired."""
    # Before the lock is read: a transaction that chooses its commit ts from here on gets one above these.
    if concurrency is not None:
        for ts in (request.lock_ts, request.caller_start_ts, request.current_ts):
            concurrency.update_max_ts(ts)
    changes: list[Change] = []
    key = keys.encode(request.primary_key)
    lock = reader.lock(key)
    try:
        if lock is not None and lock.start_ts == request.lock_ts:
            response = _check_lock(reader, request, key, lock, changes)
        else:
            response = _check_record(reader, request, key, lock, changes)
    except RefusedError as refused:
        return CommandOutcome(pb.CheckTxnStatusResponse(error=refused.error))
    return CommandOutcome(response, changes)


def _check_lock(
    reader: MvccReader, request: pb.CheckTxnStatusRequest, key: bytes, lock: Lock, changes: list[Change]
) -> pb.CheckTxnStatusResponse:
    raw: bytes = request.primary_key
    if request.verify_is_primary and lock.primary != raw:
        raise RefusedError(pb.KeyError(primary_mismatch=pb.PrimaryMismatch(lock_info=lock_info(raw, lock))))
    # The primary alone does not decide an async commit; the caller must check the secondaries.
    if lock.secondaries is not None and not request.force_sync_commit:
        return pb.CheckTxnStatusResponse(lock_ttl=lock.ttl, lock_info=lock_info(raw, lock))
    if is_expired(lock, request.current_ts):
        # Without a record of a rollback, the transaction can lock the key again.
        if lock.kind == mvcc.KIND_PESSIMISTIC and request.resolving_pessimistic_lock:
            changes.append((mvcc.LOCK, key, None))
            return pb.CheckTxnStatusResponse(action=pb.TTLExpirePessimisticRollback)
        rollback_lock(reader, key, lock, changes, True)
        return pb.CheckTxnStatusResponse(action=pb.TTLExpireRollback)
    action = pb.NoAction
    if lock.min_commit_ts:
        # A read without a ts of its own, so there is nothing above which the commit could be pushed.
        if request.caller_start_ts == keys.TS_MAX:
            action = pb.MinCommitTSPushed
        elif request.caller_start_ts:
            if request.caller_start_ts >= lock.min_commit_ts:
                lock = lock._replace(min_commit_ts=max(request.caller_start_ts + 1, request.current_ts))
                changes.append((mvcc.LOCK, key, mvcc.encode_lock(lock)))
            # Also if another reader has pushed it that far: the caller may pass over the lock.
            action = pb.MinCommitTSPushed
    return pb.CheckTxnStatusResponse(lock_ttl=lock.ttl, action=action, lock_info=lock_info(raw, lock))


def _check_record(
    reader: MvccReader,
    request: pb.CheckTxnStatusRequest,
    key: bytes,
    other: Lock | None,
    changes: list[Change],
) -> pb.CheckTxnStatusResponse:
    record = reader.record_of(key, request.lock_ts)
    if record.is_committed():
        return pb.CheckTxnStatusResponse(commit_version=record.commit_ts)
    if record.is_rolled_back():
        return pb.CheckTxnStatusResponse(action=pb.NoAction)
    if not request.rollback_if_not_exist:
        missing = pb.TxnNotFound(start_ts=request.lock_ts, primary_key=request.primary_key)
        raise RefusedError(pb.KeyError(txn_not_found=missing))
    if request.resolving_pessimistic_lock:
        return pb.CheckTxnStatusResponse(action=pb.LockNotExistDoNothing)
    # The record is for a prewrite that is still under way: without it that prewrite would bring the
    # transaction back.
    make_rollback(reader, key, request.lock_ts, record, other, changes, True)
    return pb.CheckTxnStatusResponse(action=pb.LockNotExistRollback)


def check_secondary_locks(
    reader: MvccReader,
    request: pb.CheckSecondaryLocksRequest,
    encoded: Sequence[bytes] | None = None,
    concurrency: ConcurrencyManager | None = None,
) -> CommandOutcome[pb.CheckSecondaryLocksResponse]:
    """Whether all secondaries of an async-commit transaction are locked. If one is not, its record decides
    the transaction; if it has no record, it is rolled back.
    """
    if concurrency is not None:
        concurrency.update_max_ts(request.start_version)
    changes: list[Change] = []
    locks = []
    for raw in request.keys:
        key = keys.encode(raw)
        lock = reader.lock(key)
        own = lock is not None and lock.start_ts == request.start_version
        if own and lock is not None and lock.kind != mvcc.KIND_PESSIMISTIC:
            locks.append(lock_info(raw, lock))
            continue
        record = reader.record_of(key, request.start_version)
        # A pessimistic lock: the key was never prewritten, so the transaction cannot have committed here.
        if own:
            changes.append((mvcc.LOCK, key, None))
        if record.is_committed():
            return CommandOutcome(pb.CheckSecondaryLocksResponse(commit_ts=record.commit_ts), changes)
        # The rollback is protected: it decides the transaction, as the answer says, and no later rollback may
        # collapse it.
        if not record.is_rolled_back():
            make_rollback(reader, key, request.start_version, record, None if own else lock, changes, True)
        return CommandOutcome(pb.CheckSecondaryLocksResponse(), changes)
    return CommandOutcome(pb.CheckSecondaryLocksResponse(locks=locks), changes)


def heart_beat(
    reader: MvccReader, request: pb.TxnHeartBeatRequest, encoded: Sequence[bytes] | None = None
) -> CommandOutcome[pb.TxnHeartBeatResponse]:
    """Extend the TTL of the primary lock to advise_lock_ttl; never shorten it. A heartbeat may also raise the
    min_commit_ts of a lock that has one, or of a pipelined transaction.
    """
    key = keys.encode(request.primary_lock)
    lock = reader.lock(key)
    if lock is None or lock.start_ts != request.start_version:
        missing = pb.TxnNotFound(start_ts=request.start_version, primary_key=request.primary_lock)
        return CommandOutcome(pb.TxnHeartBeatResponse(error=pb.KeyError(txn_not_found=missing)))
    pushes = lock.min_commit_ts or lock.generation
    longer = lock._replace(
        ttl=max(lock.ttl, request.advise_lock_ttl),
        min_commit_ts=max(lock.min_commit_ts, request.min_commit_ts) if pushes else 0,
    )
    changes: list[Change] = [] if longer == lock else [(mvcc.LOCK, key, mvcc.encode_lock(longer))]
    return CommandOutcome(pb.TxnHeartBeatResponse(lock_ttl=longer.ttl), changes)
