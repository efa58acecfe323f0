"""The incremental scan that brings a new downstream up to date from a snapshot.

First the data locks of the range, each a PREWRITE (whatever its start_ts: it may commit above the
checkpoint); then per key every Put and Delete with commit_ts > checkpoint_ts, newest first, each COMMITTED
with the value before it; last the empty INITIALIZED row, always. Live rows run beside: what was committed
before the snapshot comes only from here, what was committed after it only live. Rows go out in events of
about 32 KiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidegate.tikv import keys, mvcc, snapshot
from tidegate.tikv.api_version import RAW_PREFIX
from tidegate.tikv.cdc import wire
from tidegate.tikv.cdc.delegate import Downstream, committed_row, prewrite_row, raw_row
from tidegate.tikv.engine import EngineSnapshot
from tidegate.tikv.mvcc import Reader, Write

EVENT_BYTES: Final = 32 << 10
_AFTER_RAW: Final = bytes([RAW_PREFIX[0] + 1])


class StoppedError(Exception):
    """The downstream ended while it was scanned; nobody is left to tell."""


def scan_locks(downstream: Downstream, view: EngineSnapshot) -> dict[bytes, int]:
    """Send the open locks; returns all data locks of the range (key -> start_ts). Raises `StoppedError`."""
    found: dict[bytes, int] = {}
    if downstream.raw:
        return found
    reader = Reader(view)

    def rows() -> Iterator[bytes]:
        for key, lock in snapshot.locks_in(view, downstream.start, downstream.end):
            if not lock.is_data():
                continue
            found[key] = lock.start_ts
            if downstream.wants(lock.txn_source):
                value = b""
                if lock.kind == mvcc.PUT:
                    short = lock.short_value
                    value = reader.long_value(key, lock.start_ts) if short is None else short
                old = reader.value_at(key, max(lock.start_ts, lock.for_update_ts)) or b""
                yield prewrite_row(key, lock, value, old)

    _send(downstream, rows())
    return found


def scan_versions(downstream: Downstream, view: EngineSnapshot) -> None:
    """Send the committed versions above the checkpoint, then INITIALIZED. Raises `StoppedError`."""
    _send(downstream, _raw(downstream, view) if downstream.raw else _committed(downstream, view))
    _send(downstream, iter([wire.INITIALIZED]))


def _send(downstream: Downstream, rows: Iterator[bytes]) -> None:
    batch: list[bytes] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row)
        if size >= EVENT_BYTES:
            _put(downstream, batch)
            batch, size = [], 0
    if batch:
        _put(downstream, batch)


def _put(downstream: Downstream, rows: list[bytes]) -> None:
    if not downstream.channel.put_scanned(downstream, downstream.event(rows)):
        raise StoppedError


def _committed(downstream: Downstream, view: EngineSnapshot) -> Iterator[bytes]:
    """One walk over the write column family: a version's row waits for the next older one, its old value."""
    checkpoint, end = downstream.checkpoint_ts, downstream.end
    reader = Reader(view)
    cursor = view.cursor(mvcc.WRITE)
    cursor.seek(downstream.start)
    waiting: tuple[bytes, int, Write, bytes] | None = None
    done = b""
    while cursor.valid():
        versioned = cursor.key()
        key = versioned[: -keys.TS_BYTES]
        if end and key >= end:
            break
        if key == done:
            cursor.next()
            continue
        if waiting is not None and waiting[0] != key:
            yield committed_row(*waiting, b"")
            waiting = None
        commit_ts = keys.version_of(versioned)
        if waiting is None and commit_ts <= checkpoint:
            done = key
            cursor.next()
            continue
        write = mvcc.decode_write(cursor.value())
        if write.is_data():
            old = b""
            if waiting is not None:
                old = _visible(reader, view, key, write, waiting[1] - 1)
                yield committed_row(*waiting, old)
                waiting = None
            if commit_ts > checkpoint:
                value = reader.value_of(key, write) or b""
                waiting = (key, commit_ts, write, value)
            else:
                done = key
        cursor.next()
    if waiting is not None:
        yield committed_row(*waiting, b"")


def _raw(downstream: Downstream, view: EngineSnapshot) -> Iterator[bytes]:
    """Raw versions above the checkpoint, newest first within a key. TiKV sends those outside the range,
    too.
    """
    start = max(downstream.start, RAW_PREFIX)
    end = min(downstream.end or _AFTER_RAW, _AFTER_RAW)
    cursor = view.cursor(mvcc.DEFAULT)
    cursor.seek(start)
    while cursor.valid():
        versioned = cursor.key()
        if versioned >= end:
            return
        ts = keys.version_of(versioned)
        if ts > downstream.checkpoint_ts:
            yield raw_row(versioned[: -keys.TS_BYTES], ts, cursor.value())
        cursor.next()


def _visible(reader: Reader, view: EngineSnapshot, key: bytes, write: Write, ts: int) -> bytes:
    """The value of an older version to a reader at `ts`; none when it is a leftover of GC (fence gone)."""
    fence = write.gc_fence
    if fence and fence <= ts and view.get(mvcc.WRITE, keys.versioned(key, fence)) is None:
        return b""
    return reader.value_of(key, write) or b""
