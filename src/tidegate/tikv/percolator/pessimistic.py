"""Pessimistic locks: claims on keys before they are prewritten. Readers and CDC do not see them.

If a lock of another transaction blocks the request, the outcome is a refusal with the lock to wait for. With
WakeUpModeForceLock (one key) a newer commit is not a conflict: the key is locked at that commit's ts, and the
response says so. (TiKV: storage/txn/actions/acquire_pessimistic_lock.rs.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Change, Lock, Write
from tidegate.tikv.percolator.outcome import Blocked, CommandOutcome, RefusedError, abort, conflict, locked
from tidegate.tikv.reader import MvccReader


class _LockedKey(NamedTuple):
    """A locked key: its value if requested, and the ts of the newer commit that was accepted (0: none)."""

    value: bytes | None
    conflict_ts: int = 0


class _BlockedError(RefusedError):
    def __init__(self, key: bytes, raw: bytes, lock: Lock) -> None:
        super().__init__(locked(raw, lock).error)
        self.blocked = Blocked(key, raw, lock)


def pessimistic_lock(
    reader: MvccReader, request: pb.PessimisticLockRequest, encoded: Sequence[bytes] | None = None
) -> CommandOutcome[pb.PessimisticLockResponse]:
    """Lock all keys against other writers at for_update_ts, or none."""
    if encoded is None:
        encoded = [keys.encode(mutation.key) for mutation in request.mutations]
    force = request.wake_up_mode == pb.WakeUpModeForceLock
    changes: list[Change] = []
    response = pb.PessimisticLockResponse()
    try:
        if force and len(request.mutations) > 1:
            raise abort("only a request for one key may lock in spite of a conflict")
        if request.lock_only_if_exists and not request.return_values:
            raise abort("lock_only_if_exists needs return_values")
        for mutation, key in zip(request.mutations, encoded, strict=True):
            held = _lock(reader, request, mutation, key, changes, force)
            if force:
                response.results.append(_result(request, held))
                continue
            if request.return_values:
                response.values.append(held.value or b"")
            if request.return_values or request.check_existence:
                response.not_founds.append(held.value is None)
    # The outcome has no changes: the locks of earlier keys are dropped with the list, so all keys are locked
    # or none.
    except _BlockedError as blocked:
        return CommandOutcome(_refusal(blocked, force), blocked=blocked.blocked)
    except RefusedError as refused:
        return CommandOutcome(_refusal(refused, force))
    return CommandOutcome(response, changes)


def _refusal(refused: RefusedError, force: bool) -> pb.PessimisticLockResponse:
    response = pb.PessimisticLockResponse(errors=[refused.error])
    if force:
        response.results.add(type=pb.LockResultFailed)
    return response


def _result(request: pb.PessimisticLockRequest, held: _LockedKey) -> pb.PessimisticLockKeyResult:
    result = pb.PessimisticLockKeyResult(existence=held.value is not None)
    if request.return_values or held.conflict_ts:
        result.value = held.value or b""
    if held.conflict_ts:
        result.type = pb.LockResultLockedWithConflict
        result.locked_with_conflict_ts = held.conflict_ts
    return result


def _lock(
    reader: MvccReader,
    request: pb.PessimisticLockRequest,
    mutation: pb.Mutation,
    key: bytes,
    changes: list[Change],
    force: bool,
) -> _LockedKey:
    raw: bytes = mutation.key
    start_ts, at = request.start_version, request.for_update_ts
    must_be_new = mutation.assertion == pb.NotExist or mutation.op == pb.Insert
    before = reader.lock(key)
    conflict_ts = 0
    if before is None:
        conflict_ts = _check_newer(reader, request, raw, key, force)
        # The value is read, and the lock is written, as of the commit that is accepted. Otherwise the client
        # would continue with a value that is outdated.
        at = max(at, conflict_ts)
    elif before.start_ts != start_ts:
        raise _BlockedError(key, raw, before)
    elif before.kind != mvcc.KIND_PESSIMISTIC:
        raise abort(f"{raw.hex()} is prewritten already by {start_ts}")
    elif before.locked_with_conflict and before.for_update_ts > at:
        conflict_ts = at = before.for_update_ts  # a retry of a request that locked over a conflict
    wants_value = request.return_values or request.check_existence or must_be_new or conflict_ts
    value = reader.value_at(key, at) if wants_value else None
    if must_be_new and value is not None:
        raise RefusedError(pb.KeyError(already_exist=pb.AlreadyExist(key=raw)))
    if request.lock_only_if_exists and value is None:
        return _LockedKey(None, conflict_ts)
    if before is None or before.for_update_ts < at:
        wanted = Lock(
            mvcc.KIND_PESSIMISTIC,
            request.primary_lock,
            start_ts,
            max(request.lock_ttl, before.ttl if before else 0),
            for_update_ts=at,
            min_commit_ts=max(request.min_commit_ts, before.min_commit_ts if before else 0),
            locked_with_conflict=bool(conflict_ts),
        )
        changes.append((mvcc.LOCK, key, mvcc.encode_lock(wanted)))
    return _LockedKey(value, conflict_ts)


def _check_newer(
    reader: MvccReader, request: pb.PessimisticLockRequest, raw: bytes, key: bytes, force: bool
) -> int:
    """The ts of a commit above for_update_ts that `force` accepts; 0 if there is none."""
    newest = reader.newest_write(key)
    if newest is None:
        return 0
    commit_ts, write = newest
    # The records of a transaction are at its start_ts or above. If the newest one is below, it has none.
    if commit_ts >= request.start_version:
        record = reader.record_of(key, request.start_version)
        if record.is_rolled_back():
            raise abort(f"pessimistic lock rolled back: {raw.hex()} at {request.start_version}")
        if record.is_committed():
            raise _retry(request, raw, commit_ts, write)
    if commit_ts <= request.for_update_ts:
        return 0
    if not force:
        raise _retry(request, raw, commit_ts, write)
    return commit_ts


def _retry(request: pb.PessimisticLockRequest, raw: bytes, commit_ts: int, write: Write) -> RefusedError:
    return conflict(request, raw, commit_ts, write, pb.WriteConflict.PessimisticRetry)


def pessimistic_rollback(
    reader: MvccReader, request: pb.PessimisticRollbackRequest, encoded: Sequence[bytes] | None = None
) -> CommandOutcome[pb.PessimisticRollbackResponse]:
    """Remove the transaction's pessimistic locks up to for_update_ts, without a record. Other locks stay."""
    changes: list[Change] = []
    for key in encoded if encoded is not None else map(keys.encode, request.keys):
        lock = reader.lock(key)
        # A later statement may have taken the lock once more, at a higher for_update_ts.
        if (
            lock is not None
            and lock.kind == mvcc.KIND_PESSIMISTIC
            and lock.start_ts == request.start_version
            and lock.for_update_ts <= request.for_update_ts
        ):
            changes.append((mvcc.LOCK, key, None))
    return CommandOutcome(pb.PessimisticRollbackResponse(), changes)
