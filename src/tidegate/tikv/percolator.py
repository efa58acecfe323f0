"""Percolator transactions: a request and a reader in, a response and a write batch out. Pure.

The caller holds latches on all keys of a writing command from before the read until its batch is applied,
so that what was read still holds when the batch lands. Each function returns an `Outcome`; an outcome
with errors has no changes. Rules and names are TiKV's (storage/txn/actions, storage/txn/commands);
`use_async_commit` and `try_one_pc` are answered without a min_commit_ts, which makes clients fall back
to two-phase commit. Locks and records written by others with those features are still understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from tidegate.model import timestamp
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Change, Lock, Reader, Record, Write

_KINDS: Final = {pb.Put: mvcc.PUT, pb.Insert: mvcc.PUT, pb.Del: mvcc.DELETE, pb.Lock: mvcc.LOCK_ONLY}
_NO_ASSERTION: Final = pb.Assertion.Value("None")
Action = int
"""A pb.PrewriteRequest.PessimisticAction."""
_OPS: Final = {
    mvcc.PUT: pb.Put,
    mvcc.DELETE: pb.Del,
    mvcc.LOCK_ONLY: pb.Lock,
    mvcc.PESSIMISTIC: pb.PessimisticLock,
}


Response = TypeVar("Response")


class Outcome(NamedTuple, Generic[Response]):
    """What a command answers, what it writes, and the values its prewritten keys had before.

    `old_values` (encoded key -> value, None when there was none) is filled by a prewrite that was asked to.
    """

    response: Response
    changes: list[Change]
    old_values: dict[bytes, bytes | None]


class RefusedError(Exception):
    """A rule of the protocol stops the command; carries the error for the client."""

    def __init__(self, error: pb.KeyError) -> None:
        super().__init__(error)
        self.error = error


# --- errors -------------------------------------------------------------------------------------


def lock_info(key: bytes, lock: Lock) -> pb.LockInfo:
    """A lock as clients see it; `key` is raw."""
    return pb.LockInfo(
        primary_lock=lock.primary,
        lock_version=lock.start_ts,
        key=key,
        lock_ttl=lock.ttl,
        txn_size=lock.txn_size,
        lock_type=_OPS[lock.kind],
        lock_for_update_ts=lock.for_update_ts,
        use_async_commit=lock.secondaries is not None,
        min_commit_ts=lock.min_commit_ts,
        secondaries=lock.secondaries or (),
    )


def _locked(key: bytes, lock: Lock) -> RefusedError:
    return RefusedError(pb.KeyError(locked=lock_info(key, lock)))


def _conflict(
    request: pb.PrewriteRequest | pb.PessimisticLockRequest,
    key: bytes,
    commit_ts: int,
    write: Write,
    reason: pb.WriteConflict.Reason.ValueType,
) -> RefusedError:
    conflict = pb.WriteConflict(
        start_ts=request.start_version,
        conflict_ts=write.start_ts,
        conflict_commit_ts=commit_ts,
        key=key,
        primary=request.primary_lock,
        reason=reason,
    )
    return RefusedError(pb.KeyError(conflict=conflict))


def _abort(text: str) -> RefusedError:
    return RefusedError(pb.KeyError(abort=text))


# --- prewrite -----------------------------------------------------------------------------------


def prewrite(
    reader: Reader, request: pb.PrewriteRequest, want_old_values: bool = False
) -> Outcome[pb.PrewriteResponse]:
    """Lock all keys of the request, or none and say which stand in the way.

    `want_old_values`: somebody observes the region; tell what a reader at max(start_ts, for_update_ts)
    saw in each key, which the check has mostly read anyway.
    """
    writer = _Prewriter(reader, request, want_old_values)
    blocked = []
    try:
        for index, mutation in enumerate(request.mutations):
            try:
                writer.mutate(index, mutation)
            except RefusedError as refused:
                if not refused.error.HasField("locked"):
                    raise
                blocked.append(refused.error)
    except RefusedError as refused:
        return Outcome(pb.PrewriteResponse(errors=[refused.error]), [], {})
    if blocked:
        return Outcome(pb.PrewriteResponse(errors=blocked), [], {})
    return Outcome(pb.PrewriteResponse(), writer.changes, writer.old_values)


class _Prewriter:
    """One prewrite request. Heads and tails of its locks are the same for all keys: built once."""

    def __init__(self, reader: Reader, request: pb.PrewriteRequest, want_old_values: bool) -> None:
        self.changes: list[Change] = []
        self.old_values: dict[bytes, bytes | None] = {}
        self._want_old_values = want_old_values
        self._reader = reader
        self._request = request
        self._start_ts: int = request.start_version
        self._for_update_ts: int = request.for_update_ts
        self._actions = list(request.pessimistic_actions)
        self._is_retry: bool = request.context.is_retry_request
        self._strict = request.assertion_level != pb.Off
        self._common = Lock(
            mvcc.PUT,
            request.primary_lock,
            request.start_version,
            request.lock_ttl,
            for_update_ts=request.for_update_ts,
            txn_size=request.txn_size,
            min_commit_ts=request.min_commit_ts,
            txn_source=request.context.txn_source,
        )
        self._tail = mvcc.lock_tail(self._common)
        self._heads: dict[int, bytes] = {}

    def mutate(self, index: int, mutation: pb.Mutation) -> None:
        """Check one key and add its lock to the changes; raises `RefusedError`."""
        raw: bytes = mutation.key
        key = keys.encode(raw)
        action = (
            self._actions[index] if index < len(self._actions) else pb.PrewriteRequest.SKIP_PESSIMISTIC_CHECK
        )
        tail, upgraded, ttl = self._tail, False, self._common.ttl
        lock = self._reader.lock(key)
        if lock is not None:
            if lock.start_ts != self._start_ts:
                if action == pb.PrewriteRequest.DO_PESSIMISTIC_CHECK:
                    raise _abort(f"pessimistic lock not found: {raw.hex()} is locked by {lock.start_ts}")
                raise _locked(raw, lock)
            if lock.kind != mvcc.PESSIMISTIC:
                return  # a retry of a prewrite that was applied
            upgraded, ttl = True, max(lock.ttl, ttl)
            if lock.min_commit_ts > self._common.min_commit_ts:
                tail = mvcc.lock_tail(self._common._replace(min_commit_ts=lock.min_commit_ts))
        elif action == pb.PrewriteRequest.DO_PESSIMISTIC_CHECK:
            self._amend(raw, key)
        self._check(raw, key, mutation, action, upgraded)
        if mutation.op != pb.CheckNotExists:
            self._put_lock(key, mutation, tail, ttl)

    def _amend(self, raw: bytes, key: bytes) -> None:
        """A pessimistic lock that got lost may be replaced while nobody has written the key since."""
        newest = self._reader.newest_write(key)
        if newest is not None and newest[0] >= self._start_ts:
            raise _abort(f"pessimistic lock not found: {raw.hex()} was written at {newest[0]}")

    def _check(self, raw: bytes, key: bytes, mutation: pb.Mutation, action: Action, upgraded: bool) -> None:
        """Conflicts, constraints and assertions; a key that was locked pessimistically has passed them."""
        checked = not upgraded and not self._skips_constraints(action)
        asserted = self._strict and mutation.assertion != _NO_ASSERTION
        if not (checked or asserted or self._want_old_values):
            return
        newest = self._reader.newest_write(key)
        if checked and newest is not None:
            self._check_newer(raw, newest, action)
        must_be_new = checked and mutation.op in (pb.Insert, pb.CheckNotExists)
        if not (must_be_new or asserted or self._want_old_values):
            return
        found = self._seen(key, newest)
        exists = found is not None and found[1].kind == mvcc.PUT
        if must_be_new and exists:
            raise RefusedError(pb.KeyError(already_exist=pb.AlreadyExist(key=raw)))
        if asserted and exists != (mutation.assertion == pb.Exist):
            raise self._assertion_failed(raw, mutation, found)
        if self._want_old_values:
            self.old_values[key] = None if found is None else self._reader.value_of(key, found[1])

    def _seen(self, key: bytes, newest: tuple[int, Write] | None) -> tuple[int, Write] | None:
        """The version this transaction saw, mostly the newest record itself."""
        at = max(self._start_ts, self._for_update_ts)
        if newest is None or (newest[0] <= at and newest[1].is_data() and not newest[1].gc_fence):
            return newest
        return self._reader.newest_data(key, at)

    def _skips_constraints(self, action: Action) -> bool:
        if not self._for_update_ts:
            return bool(self._request.skip_constraint_check)
        return action == pb.PrewriteRequest.SKIP_PESSIMISTIC_CHECK and not self._is_retry

    def _check_newer(self, raw: bytes, newest: tuple[int, Write], action: Action) -> None:
        commit_ts, write = newest
        reasons = pb.WriteConflict
        if commit_ts == self._start_ts and (write.kind == mvcc.ROLLBACK or write.overlapped_rollback):
            raise _conflict(self._request, raw, commit_ts, write, reasons.SelfRolledBack)
        if not self._for_update_ts:
            if commit_ts > self._start_ts:
                raise _conflict(self._request, raw, commit_ts, write, reasons.Optimistic)
            return
        if action == pb.PrewriteRequest.DO_CONSTRAINT_CHECK and commit_ts > self._start_ts:
            raise _conflict(self._request, raw, commit_ts, write, reasons.LazyUniquenessCheck)
        if commit_ts > self._for_update_ts and write.kind != mvcc.ROLLBACK:
            raise _conflict(self._request, raw, commit_ts, write, reasons.NotLockedKeyConflict)

    def _assertion_failed(
        self, raw: bytes, mutation: pb.Mutation, found: tuple[int, Write] | None
    ) -> RefusedError:
        failed = pb.AssertionFailed(
            start_ts=self._start_ts,
            key=raw,
            assertion=mutation.assertion,
            existing_start_ts=found[1].start_ts if found else 0,
            existing_commit_ts=found[0] if found else 0,
        )
        return RefusedError(pb.KeyError(assertion_failed=failed))

    def _put_lock(self, key: bytes, mutation: pb.Mutation, tail: bytes, ttl: int) -> None:
        kind = _KINDS[mutation.op]
        head = self._heads.get(kind) if ttl == self._common.ttl else None
        if head is None:
            head = mvcc.lock_head(kind, self._common.primary, self._start_ts, ttl)
            if ttl == self._common.ttl:
                self._heads[kind] = head
        if kind == mvcc.PUT:
            value: bytes = mutation.value
            if len(value) <= mvcc.SHORT_VALUE_MAX:
                head = b"%bv%c%b" % (head, len(value), value)
            else:
                self.changes.append((mvcc.DEFAULT, keys.versioned(key, self._start_ts), value))
        self.changes.append((mvcc.LOCK, key, head + tail))


# --- pessimistic locks --------------------------------------------------------------------------


def pessimistic_lock(
    reader: Reader, request: pb.PessimisticLockRequest
) -> Outcome[pb.PessimisticLockResponse]:
    """Lock keys against other writers at for_update_ts; readers and CDC do not see these locks."""
    changes: list[Change] = []
    response = pb.PessimisticLockResponse()
    try:
        for mutation in request.mutations:
            value = _lock_pessimistically(reader, request, mutation, changes)
            if request.return_values:
                response.values.append(value or b"")
            if request.return_values or request.check_existence:
                response.not_founds.append(value is None)
    except RefusedError as refused:
        return Outcome(pb.PessimisticLockResponse(errors=[refused.error]), [], {})
    return Outcome(response, changes, {})


def _lock_pessimistically(
    reader: Reader, request: pb.PessimisticLockRequest, mutation: pb.Mutation, changes: list[Change]
) -> bytes | None:
    key = keys.encode(mutation.key)
    start_ts, for_update_ts = request.start_version, request.for_update_ts
    must_be_new = mutation.assertion == pb.NotExist or mutation.op == pb.Insert
    wants_value = request.return_values or request.check_existence or must_be_new
    lock = reader.lock(key)
    if lock is not None:
        if lock.start_ts != start_ts:
            raise _locked(mutation.key, lock)
        if lock.kind != mvcc.PESSIMISTIC:
            raise _abort(f"{mutation.key.hex()} is prewritten already by {start_ts}")
    else:
        _check_lockable(reader, request, mutation.key, key)
    value = reader.value_at(key, for_update_ts) if wants_value else None
    if must_be_new and value is not None:
        raise RefusedError(pb.KeyError(already_exist=pb.AlreadyExist(key=mutation.key)))
    if lock is None or lock.for_update_ts < for_update_ts:
        wanted = Lock(
            mvcc.PESSIMISTIC,
            request.primary_lock,
            start_ts,
            max(request.lock_ttl, lock.ttl if lock else 0),
            for_update_ts=for_update_ts,
            min_commit_ts=max(request.min_commit_ts, lock.min_commit_ts if lock else 0),
        )
        changes.append((mvcc.LOCK, key, mvcc.encode_lock(wanted)))
    return value


def _check_lockable(reader: Reader, request: pb.PessimisticLockRequest, raw: bytes, key: bytes) -> None:
    newest = reader.newest_write(key)
    if newest is None:
        return
    commit_ts, write = newest
    if commit_ts > request.for_update_ts:
        raise _conflict(request, raw, commit_ts, write, pb.WriteConflict.PessimisticRetry)
    if commit_ts >= request.start_version:
        record = reader.record_of(key, request.start_version)
        if record.is_rolled_back():
            raise _abort(f"pessimistic lock rolled back: {raw.hex()} at {request.start_version}")
        if record.is_committed():
            raise _conflict(request, raw, commit_ts, write, pb.WriteConflict.PessimisticRetry)


def pessimistic_rollback(
    reader: Reader, request: pb.PessimisticRollbackRequest
) -> Outcome[pb.PessimisticRollbackResponse]:
    """Drop the transaction's pessimistic locks up to for_update_ts; other locks stay. Leaves no record."""
    changes: list[Change] = []
    for raw in request.keys:
        key = keys.encode(raw)
        lock = reader.lock(key)
        if (
            lock is not None
            and lock.kind == mvcc.PESSIMISTIC
            and lock.start_ts == request.start_version
            and lock.for_update_ts <= request.for_update_ts
        ):
            changes.append((mvcc.LOCK, key, None))
    return Outcome(pb.PessimisticRollbackResponse(), changes, {})


# --- commit -------------------------------------------------------------------------------------


Announced = Callable[[bytes], int]
"""Encoded key -> the highest resolved ts CDC has announced to anybody who observes the key."""


def _nothing_announced(key: bytes) -> int:
    return 0


def commit(
    reader: Reader, request: pb.CommitRequest, announced: Announced = _nothing_announced
) -> Outcome[pb.CommitResponse]:
    """Turn the transaction's locks into write records at commit_ts.

    A commit_ts must be above what is `announced` for the key. A right client's commit_ts on a data
    lock is always above it, since it took the ts after its locks were there and these hold the resolved ts
    down; a wrong one is refused, never sent too late. Other locks are none of CDC's business.
    """
    changes: list[Change] = []
    try:
        for raw in request.keys:
            _commit_key(reader, raw, request.start_version, request.commit_version, announced, changes)
    except RefusedError as refused:
        return Outcome(pb.CommitResponse(error=refused.error), [], {})
    return Outcome(pb.CommitResponse(commit_version=request.commit_version), changes, {})


def _commit_key(
    reader: Reader, raw: bytes, start_ts: int, commit_ts: int, announced: Announced, changes: list[Change]
) -> None:
    key = keys.encode(raw)
    lock = reader.lock(key)
    if lock is None or lock.start_ts != start_ts:
        if reader.record_of(key, start_ts).is_committed():
            return
        raise RefusedError(
            pb.KeyError(txn_lock_not_found=pb.TxnLockNotFound(key=raw), retryable=_lost(raw, start_ts))
        )
    floor = max(lock.min_commit_ts, announced(key) + 1 if lock.is_data() else 0, start_ts + 1)
    if commit_ts < floor:
        expired = pb.CommitTsExpired(
            start_ts=start_ts, attempted_commit_ts=commit_ts, key=raw, min_commit_ts=floor
        )
        raise RefusedError(pb.KeyError(commit_ts_expired=expired))
    _commit_lock(key, lock, commit_ts, changes)


def _lost(raw: bytes, start_ts: int) -> str:
    return f"the lock of {start_ts} on {raw.hex()} is gone: rolled back, or never there"


def _commit_lock(key: bytes, lock: Lock, commit_ts: int, changes: list[Change]) -> None:
    """A pessimistic lock at commit was never prewritten: it is only dropped."""
    if lock.kind != mvcc.PESSIMISTIC:
        write = Write(
            lock.kind,
            lock.start_ts,
            lock.short_value,
            overlapped_rollback=commit_ts in lock.rollback_ts,
            last_change_ts=lock.last_change_ts,
            last_change_versions=lock.last_change_versions,
            txn_source=lock.txn_source,
        )
        changes.append((mvcc.WRITE, keys.versioned(key, commit_ts), mvcc.encode_write(write)))
    changes.append((mvcc.LOCK, key, None))


# --- rollback -----------------------------------------------------------------------------------


def batch_rollback(reader: Reader, request: pb.BatchRollbackRequest) -> Outcome[pb.BatchRollbackResponse]:
    """Roll the transaction back on these keys, so that a late prewrite of it fails."""
    changes: list[Change] = []
    try:
        for raw in request.keys:
            _rollback_key(reader, raw, request.start_version, changes)
    except RefusedError as refused:
        return Outcome(pb.BatchRollbackResponse(error=refused.error), [], {})
    return Outcome(pb.BatchRollbackResponse(), changes, {})


def cleanup(reader: Reader, request: pb.CleanupRequest) -> Outcome[pb.CleanupResponse]:
    """Roll one key back unless its lock is still alive at current_ts (0: whatever its age)."""
    changes: list[Change] = []
    try:
        _rollback_key(reader, request.key, request.start_version, changes, request.current_ts)
    except _CommittedError as committed:
        return Outcome(pb.CleanupResponse(commit_version=committed.commit_ts), [], {})
    except RefusedError as refused:
        return Outcome(pb.CleanupResponse(error=refused.error), [], {})
    return Outcome(pb.CleanupResponse(), changes, {})


class _CommittedError(RefusedError):
    """A rollback met the commit record of its transaction."""

    def __init__(self, commit_ts: int) -> None:
        super().__init__(pb.KeyError(abort=f"committed already at {commit_ts}"))
        self.commit_ts = commit_ts


def _rollback_key(
    reader: Reader,
    raw: bytes,
    start_ts: int,
    changes: list[Change],
    current_ts: int = 0,
    protect: bool = False,
) -> None:
    key = keys.encode(raw)
    lock = reader.lock(key)
    if lock is not None and lock.start_ts == start_ts:
        if current_ts and not is_expired(lock, current_ts):
            raise _locked(raw, lock)
        _rollback_lock(reader, key, lock, changes, protect or lock.primary == raw or lock.generation > 0)
        return
    record = reader.record_of(key, start_ts)
    if record.is_committed():
        raise _CommittedError(record.commit_ts)
    if not record.is_rolled_back():
        _make_rollback(reader, key, start_ts, record, lock, changes, protect)


def _rollback_lock(reader: Reader, key: bytes, lock: Lock, changes: list[Change], protect: bool) -> None:
    if lock.kind == mvcc.PUT and lock.short_value is None:
        changes.append((mvcc.DEFAULT, keys.versioned(key, lock.start_ts), None))
    changes.append((mvcc.LOCK, key, None))
    _make_rollback(reader, key, lock.start_ts, reader.record_of(key, lock.start_ts), None, changes, protect)


def _make_rollback(
    reader: Reader,
    key: bytes,
    start_ts: int,
    record: Record,
    other: Lock | None,
    changes: list[Change],
    protect: bool,
) -> None:
    """Leave a mark that `start_ts` is rolled back, where it must be left.

    Another transaction's commit may sit at exactly start_ts: then a protected rollback flags that record, an
    unprotected one writes nothing. An async-commit lock that could still commit at start_ts takes the mark.
    """
    if other is not None and other.secondaries is not None and other.min_commit_ts <= start_ts:
        if protect and start_ts not in other.rollback_ts:
            marked = other._replace(rollback_ts=(*other.rollback_ts, start_ts))
            changes.append((mvcc.LOCK, key, mvcc.encode_lock(marked)))
        return
    overlap = record.overlap
    if overlap is not None:
        if protect:
            flagged = overlap._replace(overlapped_rollback=True, gc_fence=record.next_data_ts)
            changes.append((mvcc.WRITE, keys.versioned(key, start_ts), mvcc.encode_write(flagged)))
        return
    mark = Write(mvcc.ROLLBACK, start_ts, mvcc.PROTECTED if protect else None)
    changes.append((mvcc.WRITE, keys.versioned(key, start_ts), mvcc.encode_write(mark)))
    _collapse(reader, key, start_ts, changes)


def _collapse(reader: Reader, key: bytes, start_ts: int, changes: list[Change]) -> None:
    """An unprotected rollback right below a newer one says nothing more: drop it."""
    below = reader.newest_write(key, start_ts - 1)
    if below is not None and below[1].kind == mvcc.ROLLBACK and not below[1].is_protected():
        changes.append((mvcc.WRITE, keys.versioned(key, below[0]), None))


def is_expired(lock: Lock, current_ts: int) -> bool:
    """Whether a lock's time to live has passed at PD's time `current_ts`."""
    return timestamp.physical_ms(lock.start_ts) + lock.ttl < timestamp.physical_ms(current_ts)


# --- what became of a transaction ---------------------------------------------------------------


def check_txn_status(reader: Reader, request: pb.CheckTxnStatusRequest) -> Outcome[pb.CheckTxnStatusResponse]:
    """The state of a transaction by its primary key; rolls it back when its time has passed."""
    changes: list[Change] = []
    key = keys.encode(request.primary_key)
    lock = reader.lock(key)
    try:
        if lock is not None and lock.start_ts == request.lock_ts:
            response = _check_lock(reader, request, key, lock, changes)
        else:
            response = _check_record(reader, request, key, lock, changes)
    except RefusedError as refused:
        return Outcome(pb.CheckTxnStatusResponse(error=refused.error), [], {})
    return Outcome(response, changes, {})


def _check_lock(
    reader: Reader, request: pb.CheckTxnStatusRequest, key: bytes, lock: Lock, changes: list[Change]
) -> pb.CheckTxnStatusResponse:
    raw: bytes = request.primary_key
    if request.verify_is_primary and lock.primary != raw:
        raise RefusedError(pb.KeyError(primary_mismatch=pb.PrimaryMismatch(lock_info=lock_info(raw, lock))))
    if lock.secondaries is not None and not request.force_sync_commit:
        return pb.CheckTxnStatusResponse(lock_ttl=lock.ttl, lock_info=lock_info(raw, lock))
    if is_expired(lock, request.current_ts):
        if lock.kind == mvcc.PESSIMISTIC and request.resolving_pessimistic_lock:
            changes.append((mvcc.LOCK, key, None))
            return pb.CheckTxnStatusResponse(action=pb.TTLExpirePessimisticRollback)
        _rollback_lock(reader, key, lock, changes, True)
        return pb.CheckTxnStatusResponse(action=pb.TTLExpireRollback)
    action = pb.NoAction
    if lock.min_commit_ts:
        if request.caller_start_ts == keys.TS_MAX:
            action = pb.MinCommitTSPushed
        elif request.caller_start_ts >= lock.min_commit_ts:
            lock = lock._replace(min_commit_ts=max(request.caller_start_ts + 1, request.current_ts))
            changes.append((mvcc.LOCK, key, mvcc.encode_lock(lock)))
            action = pb.MinCommitTSPushed
    return pb.CheckTxnStatusResponse(lock_ttl=lock.ttl, action=action, lock_info=lock_info(raw, lock))


def _check_record(
    reader: Reader, request: pb.CheckTxnStatusRequest, key: bytes, other: Lock | None, changes: list[Change]
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
    _make_rollback(reader, key, request.lock_ts, record, other, changes, True)
    return pb.CheckTxnStatusResponse(action=pb.LockNotExistRollback)


def check_secondary_locks(
    reader: Reader, request: pb.CheckSecondaryLocksRequest
) -> Outcome[pb.CheckSecondaryLocksResponse]:
    """Whether all secondaries of an async-commit transaction are locked; a missing one decides its fate."""
    changes: list[Change] = []
    locks = []
    for raw in request.keys:
        key = keys.encode(raw)
        lock = reader.lock(key)
        own = lock is not None and lock.start_ts == request.start_version
        if own and lock is not None and lock.kind != mvcc.PESSIMISTIC:
            locks.append(lock_info(raw, lock))
            continue
        record = reader.record_of(key, request.start_version)
        if own:
            changes.append((mvcc.LOCK, key, None))
        if record.is_committed():
            return Outcome(pb.CheckSecondaryLocksResponse(commit_ts=record.commit_ts), changes, {})
        if not record.is_rolled_back():
            _make_rollback(reader, key, request.start_version, record, None if own else lock, changes, True)
        return Outcome(pb.CheckSecondaryLocksResponse(), changes, {})
    return Outcome(pb.CheckSecondaryLocksResponse(locks=locks), changes, {})


def heart_beat(reader: Reader, request: pb.TxnHeartBeatRequest) -> Outcome[pb.TxnHeartBeatResponse]:
    """Prolong the primary lock to advise_lock_ttl; never shorten it."""
    key = keys.encode(request.primary_lock)
    lock = reader.lock(key)
    if lock is None or lock.start_ts != request.start_version:
        missing = pb.TxnNotFound(start_ts=request.start_version, primary_key=request.primary_lock)
        return Outcome(pb.TxnHeartBeatResponse(error=pb.KeyError(txn_not_found=missing)), [], {})
    longer = lock._replace(
        ttl=max(lock.ttl, request.advise_lock_ttl),
        min_commit_ts=max(lock.min_commit_ts, request.min_commit_ts) if lock.min_commit_ts else 0,
    )
    changes: list[Change] = [] if longer == lock else [(mvcc.LOCK, key, mvcc.encode_lock(longer))]
    return Outcome(pb.TxnHeartBeatResponse(lock_ttl=longer.ttl), changes, {})


def resolve_locks(
    reader: Reader, found: Iterable[bytes], fates: dict[int, int], announced: Announced = _nothing_announced
) -> Outcome[pb.ResolveLockResponse]:
    """Commit or roll back (fate 0) the locks on these raw keys by their transaction's fate.

    Keys whose lock went away meanwhile, or belongs to another transaction, are left alone.
    """
    changes: list[Change] = []
    try:
        for raw in found:
            lock = reader.lock(keys.encode(raw))
            if lock is None or lock.start_ts not in fates:
                continue
            commit_ts = fates[lock.start_ts]
            if commit_ts:
                _commit_key(reader, raw, lock.start_ts, commit_ts, announced, changes)
            else:
                _rollback_key(reader, raw, lock.start_ts, changes)
    except RefusedError as refused:
        return Outcome(pb.ResolveLockResponse(error=refused.error), [], {})
    return Outcome(pb.ResolveLockResponse(), changes, {})
