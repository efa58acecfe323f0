"""Garbage collection: removes versions that nobody may read any more, in the background.

Below the safepoint of a key stay: the newest Put at or below it (a Delete goes with all that it hides),
nothing else. Rollback and Lock records at or below it go, long values go with their records. Raw versions
of API V2 likewise; a tombstone or an expired value at the top goes, too. The collector stops short of the
oldest lock: whoever moves the safepoint resolves locks first, and what became of a transaction must be
readable till then. Removals are commands of their own; observers never hear of them. After a kill the walk
begins anew. (TiKV: server/gc_worker/compaction_filter.rs, gc_worker.rs.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Final

from tidegate.clock import Clock
from tidegate.errors import Retryable
from tidegate.tikv import keys, mvcc
from tidegate.tikv.api_version import RAW_PREFIX
from tidegate.tikv.engine import META
from tidegate.tikv.mvcc import Change
from tidegate.tikv.pd.gc import SafePoints
from tidegate.tikv.raft.raftstore import Command, Raftstore
from tidegate.tikv.raw.rawkv import decode_value
from tidegate.tikv.reader import Reader
from tidegate.tikv.txn import snapshot

POLL_S: Final = 1.0
BATCH_CHANGES: Final = 4096
"""Removals in one command; a key with more has them in several, oldest first."""
DONE_KEY: Final = b"gc/collected"

_log = logging.getLogger(__name__)


class Collector:
    """Follows the cluster's safepoint on a thread of its own."""

    def __init__(
        self,
        raftstore: Raftstore,
        safe_points: SafePoints,
        api_version: int,
        clock: Clock,
        poll_s: float = POLL_S,
    ) -> None:
        self._raftstore = raftstore
        self._engine = raftstore.engine
        self._safe_points = safe_points
        self._api_version = api_version
        self._clock = clock
        self._poll_s = poll_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gc", daemon=True)
        self._done = int.from_bytes(self._engine.get(META, DONE_KEY) or b"", "big")

    @property
    def done(self) -> int:
        """The safepoint up to which everything is removed."""
        return self._done

    def start(self) -> None:
        """Begin to follow the safepoint."""
        self._thread.start()

    def stop(self) -> None:
        """End after the batch under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._poll_s):
            if self._safe_points.safe_point > self._done:
                try:
                    self.collect()
                except Retryable:
                    return  # the upstream is stopping
                except Exception:
                    _log.exception("garbage collection failed, trying again")

    def collect(self) -> int:
        """Remove what the present safepoint allows; how many entries went."""
        allowed = self._safe_points.safe_point
        oldest = min((lock.start_ts for _, lock in snapshot.locks_in(self._engine, b"", b"")), default=0)
        safe_point = min(allowed, oldest - 1) if oldest else allowed
        removed = 0
        for batch in _batches(self._obsolete(safe_point)):
            if self._stopping.is_set():
                return removed
            self._remove(batch)
            removed += len(batch)
        if safe_point == allowed:
            self._remove([(META, DONE_KEY, safe_point.to_bytes(8, "big"))])
            self._done = safe_point
        return removed

    def _remove(self, batch: list[Change]) -> None:
        applied = threading.Event()
        failed: list[Exception | None] = []

        def then(error: Exception | None) -> None:
            failed.append(error)
            applied.set()

        self._raftstore.propose(Command(0, batch, on_applied=then))
        applied.wait()
        if failed[0] is not None:
            raise failed[0]

    def _obsolete(self, safe_point: int) -> Iterator[Change]:
        yield from self._obsolete_writes(safe_point)
        if self._api_version == 2:
            yield from self._obsolete_raw(safe_point)

    def _obsolete_writes(self, safe_point: int) -> Iterator[Change]:
        reader = Reader(self._engine)
        cursor = self._engine.cursor(mvcc.WRITE)
        cursor.seek(b"")
        now, kept = b"", False
        found: list[Change] = []
        while cursor.valid():
            stored = cursor.key()
            key = stored[: -keys.TS_BYTES]
            if key != now:
                yield from reversed(found)
                now, kept, found = key, False, []
            if keys.version_of(stored) <= safe_point:
                write = mvcc.decode_write(cursor.value())
                if not kept and write.is_data():
                    kept = True
                    keep = write.kind == mvcc.KIND_PUT and reader.is_valid(key, write, safe_point)
                else:
                    keep = False
                if not keep:
                    found.append((mvcc.WRITE, stored, None))
                    if write.kind == mvcc.KIND_PUT and write.short_value is None:
                        found.append((mvcc.DEFAULT, keys.versioned(key, write.start_ts), None))
            cursor.next()
        yield from reversed(found)

    def _obsolete_raw(self, safe_point: int) -> Iterator[Change]:
        now_s = self._clock.now_ms() // 1000
        cursor = self._engine.cursor(mvcc.DEFAULT, upper=bytes([RAW_PREFIX[0] + 1]))
        cursor.seek(RAW_PREFIX)
        now, kept = b"", False
        found: list[Change] = []
        while cursor.valid():
            stored = cursor.key()
            key = stored[: -keys.TS_BYTES]
            if key != now:
                yield from reversed(found)
                now, kept, found = key, False, []
            if keys.version_of(stored) <= safe_point:
                if kept or not decode_value(cursor.value()).is_seen(now_s):
                    found.append((mvcc.DEFAULT, stored, None))
                kept = True
            cursor.next()
        yield from reversed(found)


def _batches(changes: Iterator[Change]) -> Iterator[list[Change]]:
    batch: list[Change] = []
    for change in changes:
        batch.append(change)
        if len(batch) >= BATCH_CHANGES:
            yield batch
            batch = []
    if batch:
        yield batch
