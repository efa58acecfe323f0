"""Reads at a timestamp: get, batch get, scan, scan of locks. Pure.

If a read finds a lock whose transaction may commit at or below its ts, the result is not known yet: the
answer is the lock, and the client checks the transaction's state. Locks are read before versions, so a commit
between the two reads is seen either as a lock or as a version. Before both, the reader raises max_ts and
checks the in-memory locks, so no one-phase or async commit can get a ts at or below the read's ts afterwards.
(TiKV: storage/txn/store.rs, storage/mod.rs, txn_types/src/lock.rs `check_ts_conflict`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Lock
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.percolator.outcome import lock_info, op_of
from tidegate.tikv.reader import Cursor, MvccReader, View

SCAN_BYTES_MAX: Final = 32 << 20
"""A scan returns fewer pairs than requested if they would exceed this size; clients request the next page."""
_STEPS_BEFORE_SEEK: Final = 8


class Found(NamedTuple):
    """A value (None: no such key), or the lock that blocks the read."""

    value: bytes | None
    lock: Lock | None


Walk: TypeAlias = Iterator[tuple[bytes, Found]]
"""Raw keys that have a version or a lock, and what was found there, in the order of a scan."""


class SnapshotReader:
    """Reads a view at `ts` with the options of a request's context. Making it raises max_ts to `ts`."""

    def __init__(
        self, view: View, ts: int, context: pb.Context, concurrency: ConcurrencyManager | None = None
    ) -> None:
        # Before anything is read: a transaction that chooses its commit ts from here on gets a higher one.
        if concurrency is not None:
            concurrency.update_max_ts(ts)
        self._concurrency = concurrency
        self._view = view
        self._reader = MvccReader(view)
        self._ts = ts
        self._bypass = frozenset(context.resolved_locks)
        self._access = frozenset(context.committed_locks)
        self._ignore_locks = context.isolation_level == pb.RC

    def get(self, raw: bytes) -> Found:
        """Read one raw key."""
        key = keys.encode(raw)
        # The lock in memory first: it is released only when the stored lock or record can be read.
        held = None if self._concurrency is None else self._concurrency.lock(key)
        if held is not None and self._meets(raw, held):
            return Found(None, held)
        return self._read(raw, key, None if self._ignore_locks else self._reader.lock(key))

    def _read(self, raw: bytes, key: bytes, lock: Lock | None) -> Found:
        if lock is not None and lock.start_ts <= self._ts and lock.is_data() and not self._passes(raw, lock):
            # The client knows that a transaction in `committed_locks` is committed, so its lock counts as its
            # value.
            if lock.start_ts not in self._access:
                return Found(None, lock)
            if lock.kind == mvcc.KIND_DELETE:
                return Found(None, None)
            short = lock.short_value
            return Found(self._reader.long_value(key, lock.start_ts) if short is None else short, None)
        return Found(self._reader.value_at(key, self._ts), None)

    def in_memory(self, start: bytes, end: bytes) -> tuple[bytes, Lock] | None:
        """The first in-memory lock, with its raw key, that blocks a read of encoded [start, end)."""
        if self._concurrency is not None:
            for key, held in self._concurrency.locks_in(start, end):
                raw = keys.decode(key)
                if self._meets(raw, held):
                    return raw, held
        return None

    def _meets(self, raw: bytes, held: Lock) -> bool:
        """Whether an in-memory lock blocks the read."""
        blocks = not self._ignore_locks and held.start_ts <= self._ts and held.is_data()
        return blocks and not self._passes(raw, held)

    def _passes(self, raw: bytes, lock: Lock) -> bool:
        """Whether the read may ignore the lock: it commits above ts, or the client knows its state."""
        if lock.min_commit_ts > self._ts or lock.start_ts in self._bypass:
            return True
        # A point get of an autocommit statement reads at TS_MAX. While the primary is locked, its transaction
        # is not committed. An async commit is, as soon as all its locks exist.
        return self._ts == keys.TS_MAX and lock.primary == raw and lock.secondaries is None

    def scan(self, start: bytes, end: bytes) -> Walk:
        """The raw keys in encoded [start, end) and what was found, ascending; also those without a value."""
        locks = self._view.cursor(mvcc.LOCK)
        locks.seek(start)
        versions = self._view.cursor(mvcc.WRITE)
        versions.seek(start)
        while True:
            locked = locks.key() if locks.valid() else b""
            written = versions.key()[: -keys.TS_BYTES] if versions.valid() else b""
            # A key may have only a lock, if its first write is under way, or only versions: both are walked
            # together.
            key = min(locked, written) if locked and written else locked or written
            if not key or (end and key >= end):
                return
            lock = None
            if key == locked:
                lock = None if self._ignore_locks else mvcc.decode_lock(locks.value())
                locks.next()
            raw = keys.decode(key)
            yield raw, self._read(raw, key, lock)
            if key == written:
                _next_key(versions, key)

    def scan_back(self, start: bytes, end: bytes) -> Walk:
        """As `scan`, descending."""
        locks = self._view.cursor(mvcc.LOCK)
        versions = self._view.cursor(mvcc.WRITE)
        _seek_before(locks, end)
        _seek_before(versions, end)
        while True:
            locked = locks.key() if locks.valid() else b""
            written = versions.key()[: -keys.TS_BYTES] if versions.valid() else b""
            # An exhausted cursor has b"", which is below every key, so `max` ignores it.
            key = max(locked, written)
            if not key or key < start:
                return
            lock = None
            if key == locked:
                lock = None if self._ignore_locks else mvcc.decode_lock(locks.value())
                _seek_before(locks, key)
            raw = keys.decode(key)
            yield raw, self._read(raw, key, lock)
            if key == written:
                _seek_before(versions, key)


def _next_key(cursor: Cursor, key: bytes) -> None:
    # Most keys have few versions, for which steps cost less than a seek.
    for _ in range(_STEPS_BEFORE_SEEK):
        cursor.next()
        if not cursor.valid() or cursor.key()[: -keys.TS_BYTES] != key:
            return
    # Version 0 sorts last, so this is after all versions of the key.
    cursor.seek(keys.versioned(key, 0) + b"\0")


def _seek_before(cursor: Cursor, bound: bytes) -> None:
    """Move the cursor to the last entry below `bound`; an empty bound is infinity."""
    if bound:
        cursor.seek_for_prev(bound)
        if cursor.valid() and cursor.key() == bound:
            cursor.prev()
    else:
        cursor.seek_to_last()


def _pair(raw: bytes, found: Found, key_only: bool = False) -> pb.KvPair:
    if found.lock is not None:
        return pb.KvPair(key=raw, error=pb.KeyError(locked=lock_info(raw, found.lock)))
    return pb.KvPair(key=raw, value=b"" if key_only else found.value)


def get(view: View, request: pb.GetRequest, concurrency: ConcurrencyManager | None = None) -> pb.GetResponse:
    """The value of one key at the request's version."""
    found = SnapshotReader(view, request.version, request.context, concurrency).get(request.key)
    if found.lock is not None:
        return pb.GetResponse(error=pb.KeyError(locked=lock_info(request.key, found.lock)))
    if found.value is None:
        return pb.GetResponse(not_found=True)
    return pb.GetResponse(value=found.value)


def batch_get(
    view: View, request: pb.BatchGetRequest, concurrency: ConcurrencyManager | None = None
) -> pb.BatchGetResponse:
    """The keys that have a value, in the requested order; locked keys have an error."""
    reader = SnapshotReader(view, request.version, request.context, concurrency)
    found = ((raw, reader.get(raw)) for raw in request.keys)
    pairs = [_pair(raw, each) for raw, each in found if each.value is not None or each.lock is not None]
    return pb.BatchGetResponse(pairs=pairs)


def scan(
    view: View,
    request: pb.ScanRequest,
    start: bytes,
    end: bytes,
    concurrency: ConcurrencyManager | None = None,
    paced: Callable[[Walk], Walk] = iter,
) -> pb.ScanResponse:
    """Up to `limit` pairs of encoded [start, end) in key order, descending if requested. `paced`: pauses
    between pairs.
    """
    reader = SnapshotReader(view, request.version, request.context, concurrency)
    # Before the cursors are made: a lock that is released afterwards is in them, as a lock or as a version.
    if (held := reader.in_memory(start, end)) is not None:
        return pb.ScanResponse(error=pb.KeyError(locked=lock_info(*held)))
    walk = reader.scan_back(start, end) if request.reverse else reader.scan(start, end)
    response = pb.ScanResponse()
    size = 0
    for raw, found in paced(walk):
        if found.value is None and found.lock is None:
            continue  # after the pause: a page may pass many deleted rows before it finds one
        response.pairs.append(_pair(raw, found, request.key_only))
        size += len(raw) + len(found.value or b"")
        if len(response.pairs) >= request.limit or size >= SCAN_BYTES_MAX:
            break
    return response


def locks_in(view: View, start: bytes, end: bytes) -> Iterable[tuple[bytes, Lock]]:
    """Encoded keys in [start, end) and their locks, ascending."""
    cursor = view.cursor(mvcc.LOCK)
    cursor.seek(start)
    while cursor.valid():
        key = cursor.key()
        if end and key >= end:
            return
        yield key, mvcc.decode_lock(cursor.value())
        cursor.next()


def scan_locks(
    view: View,
    request: pb.ScanLockRequest,
    start: bytes,
    end: bytes,
    concurrency: ConcurrencyManager | None = None,
) -> pb.ScanLockResponse:
    """Locks with start_ts <= max_version in key order, at most `limit` (0: all)."""
    response = pb.ScanLockResponse()
    if concurrency is not None:
        # Before the locks are looked at. A transaction that chooses its min_commit_ts later finds this max_ts
        # and commits above it; one that chose it earlier has its locks in memory, where they are found.
        concurrency.update_max_ts(request.max_version)
        for key, lock in concurrency.locks_in(start, end):
            if lock.start_ts <= request.max_version:
                response.error.locked.CopyFrom(lock_info(keys.decode(key), lock))
                return response
    for key, lock in locks_in(view, start, end):
        if lock.start_ts <= request.max_version:
            response.locks.append(lock_info(keys.decode(key), lock))
            if len(response.locks) == request.limit:
                break
    return response


def mvcc_info(view: View, raw: bytes) -> pb.MvccInfo:
    """All records of a key: its lock, write records and long values, newest first."""
    key = keys.encode(raw)
    reader = MvccReader(view)
    info = pb.MvccInfo()
    lock = reader.lock(key)
    if lock is not None:
        info.lock.CopyFrom(
            pb.MvccLock(
                type=op_of(lock.kind),
                start_ts=lock.start_ts,
                primary=lock.primary,
                short_value=lock.short_value or b"",
                ttl=lock.ttl,
                for_update_ts=lock.for_update_ts,
                txn_size=lock.txn_size,
                use_async_commit=lock.secondaries is not None,
                secondaries=lock.secondaries or (),
                rollback_ts=lock.rollback_ts,
                last_change_ts=lock.last_change_ts,
                versions_to_last_change=lock.last_change_versions,
            )
        )
    for commit_ts, write in reader.writes(key):
        info.writes.add(
            type=op_of(write.kind),
            start_ts=write.start_ts,
            commit_ts=commit_ts,
            short_value=write.short_value or b"",
            has_overlapped_rollback=write.overlapped_rollback,
            has_gc_fence=write.gc_fence is not None,
            gc_fence=write.gc_fence or 0,
            last_change_ts=write.last_change_ts,
            versions_to_last_change=write.last_change_versions,
        )
    values = view.cursor(mvcc.DEFAULT)
    values.seek(key)
    while values.valid() and values.key()[: -keys.TS_BYTES] == key:
        info.values.add(start_ts=keys.version_of(values.key()), value=values.value())
        values.next()
    return info
