"""Garbage collection: removes versions that no reader may read any more, in the background.

Only the newest Put of a key at or below the safepoint stays. If the newest data record is a
Delete, it is removed with everything that it hides. Rollback and Lock records are removed, and long values
together with their records. The same holds for raw versions of API V2, where a tombstone or an expired value
is removed even if it is the newest version. The collector stays below the oldest lock: a lock below the
safepoint should have been resolved before the safepoint was raised, and until it is, the records that decide
its transaction must stay. Removals are separate commands, which observers do not see. After a kill the
collection starts over. (TiKV: server/gc_worker/compaction_filter.rs, gc_worker.rs.)
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
from tidegate.tikv.raw.raw_pairs import decode_value
from tidegate.tikv.reader import MvccReader
from tidegate.tikv.txn import snapshot

POLL_S: Final = 1.0
BATCH_CHANGES: Final = 4096
"""The most removals in one command. If a key has more, they are in several commands, oldest version first.
Otherwise, after a kill between two commands, versions that a removed Delete had hidden would be visible."""
DONE_KEY: Final = b"gc/collected"

_log = logging.getLogger(__name__)


class Collector:
    """Follows the cluster's safepoint in its own thread."""

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
        """The safepoint up to which the collection is complete."""
        return self._done

    def start(self) -> None:
        """Begin to follow the safepoint."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current batch."""
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
        """Remove what the current safepoint allows; returns the number of removed entries."""
        allowed = self._safe_points.safe_point
        # An open transaction still reads at its start_ts.
        oldest = min((lock.start_ts for _, lock in snapshot.locks_in(self._engine, b"", b"")), default=0)
        safe_point = min(allowed, oldest - 1) if oldest else allowed
        removed = 0
        for batch in _batches(self._obsolete(safe_point)):
            if self._stopping.is_set():
                return removed
            self._remove(batch)
            removed += len(batch)
        # Not if an open lock held the collection back: what is above it must still be collected once the lock
        # is gone. Stored last, because after a kill the collection starts over.
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
        # One command at a time: after a failure nothing newer may be removed, because of the order in
        # `_obsolete_writes`.
        applied.wait()
        if failed[0] is not None:
            raise failed[0]

    def _obsolete(self, safe_point: int) -> Iterator[Change]:
        yield from self._obsolete_writes(safe_point)
        if self._api_version == 2:
            yield from self._obsolete_raw(safe_point)

    def _obsolete_writes(self, safe_point: int) -> Iterator[Change]:
        reader = MvccReader(self._engine)
        cursor = self._engine.cursor(mvcc.WRITE)
        cursor.seek(b"")
        now, kept = b"", False
        found: list[Change] = []
        while cursor.valid():
            stored = cursor.key()
            key = stored[: -keys.TS_BYTES]
            if key != now:
                # Oldest first. If the newest version went first and the process stopped, an older value
                # would be visible again.
                yield from reversed(found)
                now, kept, found = key, False, []
            if keys.version_of(stored) <= safe_point:
                write = mvcc.decode_write(cursor.value())
                # The newest data at or below the safepoint is what its readers see. A deletion can go with
                # what is below it.
                if not kept and write.is_data():
                    kept = True
                    # A Put behind a gc_fence whose next version is gone is hidden by that version, although
                    # it is the newest.
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
                # Oldest first, as above: without its tombstone an older pair would be seen again.
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
