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

from tidegate.proto import cdcpb_pb2 as pb
from tidegate.tikv import keys, mvcc, snapshot
from tidegate.tikv.cdc.delegate import Downstream, Row, committed_row, prewrite_row
from tidegate.tikv.engine import EngineSnapshot
from tidegate.tikv.mvcc import Reader, Write

EVENT_BYTES: Final = 32 << 10
ROW_OVERHEAD: Final = 48


class StoppedError(Exception):
    """The downstream ended while it was scanned; nobody is left to tell."""


def scan_locks(downstream: Downstream, view: EngineSnapshot) -> dict[bytes, int]:
    """Send the open locks; returns all data locks of the range (key -> start_ts). Raises `StoppedError`."""
    found: dict[bytes, int] = {}
    reader = Reader(view)

    def rows() -> Iterator[pb.Event.Row]:
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
    _send(downstream, _committed(downstream, view))
    _send(downstream, iter([Row(type=pb.Event.INITIALIZED)]))


def _send(downstream: Downstream, rows: Iterator[pb.Event.Row]) -> None:
    batch: list[pb.Event.Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += ROW_OVERHEAD + len(row.key) + len(row.value) + len(row.old_value)
        if size >= EVENT_BYTES:
            _put(downstream, batch)
            batch, size = [], 0
    if batch:
        _put(downstream, batch)


def _put(downstream: Downstream, rows: list[pb.Event.Row]) -> None:
    if not downstream.channel.put_scanned(downstream, downstream.event(rows)):
        raise StoppedError


def _committed(downstream: Downstream, view: EngineSnapshot) -> Iterator[pb.Event.Row]:
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


def _visible(reader: Reader, view: EngineSnapshot, key: bytes, write: Write, ts: int) -> bytes:
    """The value of an older version to a reader at `ts`; none when it is a leftover of GC (fence gone)."""
    fence = write.gc_fence
    if fence and fence <= ts and view.get(mvcc.WRITE, keys.versioned(key, fence)) is None:
        return b""
    return reader.value_of(key, write) or b""
