"""The incremental scan that brings a new downstream up to date from a snapshot.

It first sends the data locks of the range, each as PREWRITE (whatever its start_ts, because it may commit
above the checkpoint). Then it sends for each key every Put and Delete with commit_ts > checkpoint_ts, newest
first, each as COMMITTED with the value before it (of a raw key only the newest version). The empty
INITIALIZED row is always last. Live rows are sent at the same time: changes committed before the snapshot
come only from the scan, later ones only as live rows. Rows are sent in events of about 32 KiB.

Scans wait for their clients at the same time, but only one of them computes (`_TURN`), and it pauses while
clients wait for a commit or a tick (`tikv.precedence`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidegate.tikv import keys, mvcc
from tidegate.tikv.api_version import RAW_PREFIX
from tidegate.tikv.cdc import wire
from tidegate.tikv.cdc.delegate import Downstream, committed_row, prewrite_row, raw_row
from tidegate.tikv.cdc.limiter import Limiter
from tidegate.tikv.cdc.old_value import ScannedOldValues
from tidegate.tikv.cdc.resolver import LOCK_OVERHEAD, LOCKS_BYTES_MAX
from tidegate.tikv.engine import EngineSnapshot, Range
from tidegate.tikv.faults import Faults
from tidegate.tikv.mvcc import Write
from tidegate.tikv.precedence import Pauses, pausing
from tidegate.tikv.reader import MvccReader
from tidegate.tikv.txn import snapshot

EVENT_BYTES: Final = 32 << 10
LOOK_S: Final = 0.2
"""The interval at which a scan that pauses checks whether it was stopped."""
_AFTER_RAW: Final = bytes([RAW_PREFIX[0] + 1])
_TURN: Final = threading.Lock()
"""Held by the scan of this process that computes. Several that compute are not faster, because they share the
interpreter, but each would delay every thread that serves live changes by one more turn."""
_WAIT_S: Final = 0.2
"""A scan waits this long for its turn. Another may keep it for longer, if it finds nothing to send."""
_USUAL_S: Final = sys.getswitchinterval()
TURN_S: Final = 0.0002
"""While a scan computes, a thread that waits for the interpreter gets it after this time, instead of 5 ms.
Two threads pass a request on before the scan pauses for it. Where the bound of pauses is reached, a commit
passes through several more; with 5 ms each it took 100 to 300 ms longer (`python -m benchmarks.neighbours`).
Only meanwhile, because it makes commits without a scan more expensive.
"""


class CongestedError(Exception):
    """The range has more locks than a downstream may track."""


class StoppedError(Exception):
    """The downstream ended during its scan, so there is no receiver for an error."""


def scan_locks(
    downstream: Downstream, view: EngineSnapshot, faults: Faults, limiter: Limiter
) -> tuple[dict[bytes, int], set[int]]:
    """Send the open locks. Returns all data locks of the range (key -> start_ts), and the start_ts of large
    transactions among them. Raises `StoppedError`, `CongestedError`.
    """
    found: dict[bytes, int] = {}
    large: set[int] = set()
    if downstream.raw:
        return found, large
    reader = MvccReader(view)
    old_values = ScannedOldValues(view)
    size = 0

    def rows() -> Iterator[bytes]:
        nonlocal size
        for key, lock in snapshot.locks_in(view, downstream.start, downstream.end):
            if not lock.is_data():
                continue
            # Before the filter: a lock whose row is not sent holds the resolved ts back as well.
            found[key] = lock.start_ts
            size += len(key) + LOCK_OVERHEAD
            # The limit of the resolver, which would refuse these locks after the whole scan.
            if size > LOCKS_BYTES_MAX:
                raise CongestedError
            if lock.generation:
                large.add(lock.start_ts)
            if downstream.wants(lock.txn_source):
                value = b""
                if lock.kind == mvcc.KIND_PUT:
                    short = lock.short_value
                    value = reader.long_value(key, lock.start_ts) if short is None else short
                old = old_values.before(key, max(lock.start_ts, lock.for_update_ts))
                yield prewrite_row(key, lock, value, old)

    _send(downstream, rows(), faults, limiter)
    return found, large


def scan_versions(downstream: Downstream, view: EngineSnapshot, faults: Faults, limiter: Limiter) -> None:
    """Send the committed versions above the checkpoint, then INITIALIZED. Raises `StoppedError`."""
    rows = _raw(downstream, view) if downstream.raw else _committed(downstream, view)
    _send(downstream, rows, faults, limiter)
    _send(downstream, iter([wire.INITIALIZED]), faults, limiter)


def _send(downstream: Downstream, rows: Iterator[bytes], faults: Faults, limiter: Limiter) -> None:
    while batch := _next_event(rows):
        _put(downstream, batch, faults, limiter)


def _next_event(rows: Iterator[bytes]) -> list[bytes]:
    """About EVENT_BYTES of rows; empty after the last one."""
    batch: list[bytes] = []
    size = 0
    # Not held while the event is put: a client that does not read must not delay the scans of others.
    with _turn():
        for row in rows:
            batch.append(row)
            size += len(row)
            if size >= EVENT_BYTES:
                break
    return batch


@contextmanager
def _turn() -> Iterator[None]:
    """Compute now; usually no other scan does."""
    if not _TURN.acquire(timeout=_WAIT_S):
        yield  # the scan that holds the turn has already shortened the turns of all threads
        return
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(_USUAL_S)
        _TURN.release()


def _put(downstream: Downstream, rows: list[bytes], faults: Faults, limiter: Limiter) -> None:
    faults.before_scan_event()
    event = downstream.event(rows)
    if not downstream.channel.put_scanned(downstream, event):
        raise StoppedError
    pause_s = limiter.charge(len(event))
    while pause_s > 0 and not downstream.stopped and not faults.stopping.wait(min(pause_s, LOOK_S)):
        pause_s -= LOOK_S


def scanned(downstream: Downstream) -> Range:
    """The column family and range that the scan of a downstream reads."""
    if not downstream.raw:
        return mvcc.WRITE, downstream.start, downstream.end
    start = max(downstream.start, RAW_PREFIX)
    return mvcc.DEFAULT, start, max(start, min(downstream.end or _AFTER_RAW, _AFTER_RAW))


def _committed(downstream: Downstream, view: EngineSnapshot) -> Iterator[bytes]:
    """The rows from one pass over the write column family. A version's row waits for the next older version,
    which is its old value.
    """
    checkpoint = downstream.checkpoint_ts
    reader = MvccReader(view)
    split = mvcc.WriteShapes().split
    waiting: tuple[int, Write, bytes] | None = None
    now, done = b"", False
    stamp, commit_ts = b"", 0
    for stored, record in pausing(view.entries, Pauses()):
        key = stored[: -keys.TS_BYTES]
        if key != now:
            if waiting is not None:
                yield committed_row(now, *waiting, b"")
                waiting = None
            now, done = key, False
        elif done:
            continue
        if stored[-keys.TS_BYTES :] != stamp:  # decoded once, because the keys of a transaction share it
            stamp, commit_ts = stored[-keys.TS_BYTES :], keys.version_of(stored)
        # Versions of a key come from the newest on. No row waits for an old value, so the rest of the key
        # is not needed.
        if waiting is None and commit_ts <= checkpoint:
            done = True
            continue
        write, short = split(record)
        kind = write.kind
        # A Lock or Rollback record changes no value, so the old value of the version above is further down.
        if kind != mvcc.KIND_PUT and kind != mvcc.KIND_DELETE:
            continue
        if short is None and kind == mvcc.KIND_PUT:
            short = reader.long_value(key, write.start_ts)
        if waiting is not None:
            old = short if _is_visible(view, key, write, waiting[0] - 1) else b""
            yield committed_row(key, *waiting, old or b"")
            waiting = None
        # It was read only as the old value of the version above it.
        if commit_ts <= checkpoint:
            done = True
        elif not write.txn_source or downstream.wants(write.txn_source):
            waiting = (commit_ts, write, short or b"")
    if waiting is not None:
        yield committed_row(now, *waiting, b"")


def _raw(downstream: Downstream, view: EngineSnapshot) -> Iterator[bytes]:
    """The newest version of each raw key, if it is above the checkpoint; older versions are not sent.

    (TiKV: do_scan in cdc/src/initializer.rs walks a RawMvccIterator; it even does so beyond the range.)
    """
    now = b""
    for versioned, stored in pausing(view.entries, Pauses()):
        key = versioned[: -keys.TS_BYTES]
        if key == now:
            continue
        now = key
        ts = keys.version_of(versioned)
        if ts > downstream.checkpoint_ts:
            yield raw_row(key, ts, stored)


def _is_visible(view: EngineSnapshot, key: bytes, write: Write, ts: int) -> bool:
    """Whether a reader at `ts` sees an older version. It does not if the version at its gc_fence is gone."""
    fence = write.gc_fence
    return not fence or fence > ts or view.get(mvcc.WRITE, keys.versioned(key, fence)) is not None
