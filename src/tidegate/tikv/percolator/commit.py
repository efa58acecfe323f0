"""Commit, rollback, and the resolution of locks of transactions whose result is known.

(TiKV: storage/txn/actions/{commit,cleanup,check_txn_status}.rs, storage/mvcc/txn.rs.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.model import timestamp
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Change, Lock, Write
from tidegate.tikv.percolator.outcome import Announced, CommandOutcome, RefusedError, locked
from tidegate.tikv.reader import MvccReader, Record


class _Silence:
    """No resolved ts was announced."""

    highest = 0

    def __call__(self, key: bytes, /) -> int:
        return 0


_SILENCE: Final = _Silence()


def commit(
    reader: MvccReader,
    request: pb.CommitRequest,
    announced: Announced = _SILENCE,
    encoded: Sequence[bytes] | None = None,
) -> CommandOutcome[pb.CommitResponse]:
    """Turn the transaction's locks into write records at commit_ts.

    The commit_ts must be above the resolved ts `announced` for the key. For a data lock this always holds for
    a correct client: it gets its commit_ts after its locks were written, and the locks limit the resolved ts.
    A wrong commit_ts is refused, because its change would be sent too late. Other locks do not matter to CDC.
    """
    if encoded is None:
        encoded = [keys.encode(raw) for raw in request.keys]
    changes: list[Change] = []
    start_ts, commit_ts = request.start_version, request.commit_version
    committer = _Committer(commit_ts, announced, changes)
    stored_lock = reader.stored_lock
    try:
        for index, key in enumerate(encoded):
            stored = stored_lock(key)
            # A commit that is repeated finds no lock, or that of a later transaction. Only the record says
            # whether the first attempt succeeded.
            if stored is None or not committer.commit(key, stored, start_ts):
                _check_committed(reader, request.keys[index], key, start_ts)
    except RefusedError as refused:
        return CommandOutcome(pb.CommitResponse(error=refused.error))
    return CommandOutcome(pb.CommitResponse(commit_version=commit_ts), changes)


def _check_committed(reader: MvccReader, raw: bytes, key: bytes, start_ts: int) -> None:
    """Check that a key without its lock was committed by the transaction; otherwise raise RefusedError."""
    if not reader.record_of(key, start_ts).is_committed():
        text = f"the lock of {start_ts} on {raw.hex()} is gone: rolled back, or never there"
        raise RefusedError(pb.KeyError(txn_lock_not_found=pb.TxnLockNotFound(key=raw), retryable=text))


class _Committer:
    """Turns locks into write records at one commit_ts. The parts that the locks share are encoded once."""

    def __init__(self, commit_ts: int, announced: Announced, changes: list[Change]) -> None:
        self._commit_ts = commit_ts
        self._announced = announced
        # One comparison for the whole request; only if it fails is each key asked.
        self._is_above_all = commit_ts > announced.highest
        self._changes = changes
        self._shapes = mvcc.LockShapes()
        self._last: Lock | None = None
        self._head = self._tail = b""

    def commit(self, key: bytes, stored: bytes, start_ts: int) -> bool:
        """Commit a lock, and return whether it belongs to the transaction. A pessimistic lock is only
        removed, because its key was not prewritten.
        """
        lock, short = self._shapes.split(stored)
        if lock.start_ts != start_ts:
            return False
        # By identity: `LockShapes` returns the same object while only keys and short values differ.
        if lock is not self._last:
            self._begin(key, lock)
        if not self._is_above_all and lock.is_data() and self._commit_ts <= self._announced(key):
            raise _expired(keys.decode(key), start_ts, self._commit_ts, self._announced(key) + 1)
        if lock.kind != mvcc.KIND_PESSIMISTIC:
            record = self._head + self._tail
            if short is not None:
                record = b"%bv%c%b%b" % (self._head, len(short), short, self._tail)
            self._changes.append((mvcc.WRITE, keys.versioned(key, self._commit_ts), record))
        self._changes.append((mvcc.LOCK, key, None))
        return True

    def _begin(self, key: bytes, lock: Lock) -> None:
        """Check and encode the parts that locks like this one share."""
        floor = max(lock.min_commit_ts, lock.start_ts + 1)
        # A reader at a ts below min_commit_ts has passed the lock. A commit at or below that ts would change
        # what it has read.
        if self._commit_ts < floor:
            raise _expired(keys.decode(key), lock.start_ts, self._commit_ts, floor)
        self._last = lock
        self._head = mvcc.write_head(lock.kind, lock.start_ts)
        self._tail = mvcc.write_tail(
            Write(
                lock.kind,
                lock.start_ts,
                None,
                self._commit_ts in lock.rollback_ts,
                None,
                lock.last_change_ts,
                lock.last_change_versions,
                lock.txn_source,
            )
        )


def _expired(raw: bytes, start_ts: int, commit_ts: int, floor: int) -> RefusedError:
    expired = pb.CommitTsExpired(
        start_ts=start_ts, attempted_commit_ts=commit_ts, key=raw, min_commit_ts=floor
    )
    return RefusedError(pb.KeyError(commit_ts_expired=expired))


def batch_rollback(
    reader: MvccReader, request: pb.BatchRollbackRequest, encoded: Sequence[bytes] | None = None
) -> CommandOutcome[pb.BatchRollbackResponse]:
    """Roll the transaction back on these keys, so that its late prewrites fail."""
    changes: list[Change] = []
    try:
        for raw in request.keys:
            _rollback_key(reader, raw, request.start_version, changes)
    except RefusedError as refused:
        return CommandOutcome(pb.BatchRollbackResponse(error=refused.error))
    return CommandOutcome(pb.BatchRollbackResponse(), changes)


def cleanup(
    reader: MvccReader, request: pb.CleanupRequest, encoded: Sequence[bytes] | None = None
) -> CommandOutcome[pb.CleanupResponse]:
    """Roll one key back, unless its lock has not expired at current_ts (0: in any case)."""
    changes: list[Change] = []
    try:
        _rollback_key(reader, request.key, request.start_version, changes, request.current_ts)
    except CommittedError as committed:
        return CommandOutcome(pb.CleanupResponse(commit_version=committed.commit_ts))
    except RefusedError as refused:
        return CommandOutcome(pb.CleanupResponse(error=refused.error))
    return CommandOutcome(pb.CleanupResponse(), changes)


class CommittedError(RefusedError):
    """A rollback found the commit record of its transaction."""

    def __init__(self, commit_ts: int) -> None:
        super().__init__(pb.KeyError(abort=f"committed already at {commit_ts}"))
        self.commit_ts = commit_ts


def _rollback_key(
    reader: MvccReader, raw: bytes, start_ts: int, changes: list[Change], current_ts: int = 0
) -> None:
    key = keys.encode(raw)
    lock = reader.lock(key)
    if lock is not None and lock.start_ts == start_ts:
        if current_ts and not is_expired(lock, current_ts):
            raise locked(raw, lock)
        # The rollback of a primary decides the transaction, so no later rollback may collapse it.
        rollback_lock(reader, key, lock, changes, lock.primary == raw or lock.generation > 0)
        return
    record = reader.record_of(key, start_ts)
    if record.is_committed():
        raise CommittedError(record.commit_ts)
    if not record.is_rolled_back():
        make_rollback(reader, key, start_ts, record, lock, changes, False)


def rollback_lock(reader: MvccReader, key: bytes, lock: Lock, changes: list[Change], protect: bool) -> None:
    """Remove a lock and its value, and write the rollback."""
    if lock.kind == mvcc.KIND_PUT and lock.short_value is None:
        changes.append((mvcc.DEFAULT, keys.versioned(key, lock.start_ts), None))
    changes.append((mvcc.LOCK, key, None))
    # None for the other lock: a key has one lock, and it is the one that is removed here.
    make_rollback(reader, key, lock.start_ts, reader.record_of(key, lock.start_ts), None, changes, protect)


def make_rollback(
    reader: MvccReader,
    key: bytes,
    start_ts: int,
    record: Record,
    other: Lock | None,
    changes: list[Change],
    protect: bool,
) -> None:
    """Record that `start_ts` is rolled back.

    If another transaction's commit record has exactly this ts, a protected rollback sets a flag in that
    record, and an unprotected one writes nothing. Otherwise a rollback record is written. If another
    transaction's async-commit lock could still commit at start_ts, and so replace that record, a protected
    rollback is noted in the lock, too. (TiKV: check_txn_status_missing_lock in actions/check_txn_status.rs.)
    """
    overlap = record.overlap
    if overlap is None and protect and other is not None and _may_commit_at(other, start_ts):
        marked = other._replace(rollback_ts=(*other.rollback_ts, start_ts))
        changes.append((mvcc.LOCK, key, mvcc.encode_lock(marked)))
    if overlap is not None:
        if protect:
            # The fence names the next version. If GC has removed that one, a record that is written again
            # here could be read as the newest (`MvccReader.is_valid`).
            flagged = overlap._replace(overlapped_rollback=True, gc_fence=record.next_data_ts)
            changes.append((mvcc.WRITE, keys.versioned(key, start_ts), mvcc.encode_write(flagged)))
        return
    mark = Write(mvcc.KIND_ROLLBACK, start_ts, mvcc.PROTECTED if protect else None)
    changes.append((mvcc.WRITE, keys.versioned(key, start_ts), mvcc.encode_write(mark)))
    _collapse(reader, key, start_ts, changes)


def _may_commit_at(lock: Lock, ts: int) -> bool:
    """Whether a lock's transaction may choose `ts` itself, and no rollback at it is noted yet."""
    return lock.secondaries is not None and lock.min_commit_ts <= ts and ts not in lock.rollback_ts


def _collapse(reader: MvccReader, key: bytes, start_ts: int, changes: list[Change]) -> None:
    """Remove an unprotected rollback record directly below the new one, because it is redundant."""
    # There is no ts below 0.
    if not start_ts:
        return
    below = reader.newest_write(key, start_ts - 1)
    if below is not None and below[1].kind == mvcc.KIND_ROLLBACK and not below[1].is_protected():
        changes.append((mvcc.WRITE, keys.versioned(key, below[0]), None))


def is_expired(lock: Lock, current_ts: int) -> bool:
    """Whether a lock's time to live has passed at PD's time `current_ts`."""
    return timestamp.physical_ms(lock.start_ts) + lock.ttl < timestamp.physical_ms(current_ts)


def resolve_locks(
    reader: MvccReader,
    encoded: Sequence[bytes],
    txn_statuses: dict[int, int],
    announced: Announced = _SILENCE,
) -> CommandOutcome[pb.ResolveLockResponse]:
    """Commit or roll back the locks on these encoded keys. `txn_statuses`: start_ts -> commit_ts; 0: rolled
    back.

    Keys without a lock, or with a lock of another transaction, stay as they are.
    """
    changes: list[Change] = []
    committers = {ts: _Committer(ts, announced, changes) for ts in set(txn_statuses.values()) if ts}
    try:
        for key in encoded:
            stored = reader.stored_lock(key)
            if stored is None:
                continue
            start_ts = mvcc.decode_lock(stored).start_ts
            if txn_statuses.get(start_ts):
                committers[txn_statuses[start_ts]].commit(key, stored, start_ts)
            elif start_ts in txn_statuses:
                _rollback_key(reader, keys.decode(key), start_ts, changes)
    except RefusedError as refused:
        return CommandOutcome(pb.ResolveLockResponse(error=refused.error))
    return CommandOutcome(pb.ResolveLockResponse(), changes)
