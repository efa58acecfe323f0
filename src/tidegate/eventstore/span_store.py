"""The changes of one span: rows that wait in memory (`waiting`), and its files (`span_files`).

`store` has what all spans share: the budgets for memory and disk, the floors, the lock on the folder.

Threads: `append` may run while another thread seals; calls that change the manifest exclude each other. The
caller appends every row <= R before it seals R.

If the disk is full (DiskFull) nothing changes: rows stay in memory, and files that no manifest names any more
are removed with the next manifest that can be written.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidegate.errors import Fatal
from tidegate.eventstore import kernels
from tidegate.eventstore.damage import Damage
from tidegate.eventstore.manifest import Manifest, RegionRange, highest, joined
from tidegate.eventstore.segment import Segment
from tidegate.eventstore.span_files import Disk, SpanFiles
from tidegate.eventstore.waiting import Block, Waiting
from tidegate.model import timestamp
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp


class StoreServices(Disk, Protocol):
    """The parts of `store.EventStore` that a span needs."""

    def relieve(self) -> None:
        """Write runs until memory is within its budget."""
        ...

    def scratch(self) -> kernels.Scratch:
        """The calling thread's memory for one block."""
        ...

    def moved(self, span: SpanStore) -> None:
        """Publish the span's claim to readers."""
        ...

    def forget(self, span: SpanStore) -> None:
        """Forget a span that was closed."""
        ...


class SpanStore:
    """The changes of one span. Made by `EventStore.open_span`."""

    def __init__(self, store: StoreServices, span: Span) -> None:
        """Open or create the folder of the span, and clean up after a crash.

        Rows that the files do not prove count as not resolved, and are pulled again.
        """
        self.span, self.id = span, span_id(span, store.kv_mode)
        self._store = store
        self._waiting = Waiting()
        self._seal_lock = threading.Lock()  # guards the files; held while they are written
        self._closed = False
        self.rows_sealed = 0
        self._files = SpanFiles(store, span, self.id, lambda: store.moved(self))
        store.moved(self)

    @property
    def resolved(self) -> Timestamp:
        """Every commit <= this is in the span's segments (0: nothing is known)."""
        return self._files.claim[0]

    @property
    def claim(self) -> tuple[Timestamp, int]:
        """The resolved ts that may be published, and the version of the manifest that it belongs to."""
        return self._files.claim

    @property
    def disk_bytes(self) -> int:
        """Bytes of the segments and runs that the manifest names."""
        return self._files.disk_bytes

    @property
    def complete_from(self) -> Timestamp:
        """Rows with commit_ts <= this may be missing, because they were never pulled or were dropped."""
        return self._files.manifest.dropped_to

    @property
    def manifest(self) -> Manifest:
        """The manifest with the present resolved ts, for status."""
        return self._files.manifest.with_resolved(self.resolved)

    @property
    def ranges(self) -> tuple[tuple[Span, Timestamp], ...]:
        """The resolved ts of each part of the span on disk, in key order; the least of them is `resolved`."""
        ranges = self._files.manifest.with_resolved(self.resolved).ranges
        return tuple((Span(r.start, r.end), r.resolved) for r in ranges)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the blocks that wait in memory."""
        return self._waiting.bytes

    def begin(self, start_ts: Timestamp) -> None:
        """Make the span ready for a reader that starts at `start_ts`.

        Nothing happens if the store covers `start_ts`. A start beyond the resolved ts leaves a gap: rows
        before it are dropped, and ranges that are further keep their resolved ts. A start below what the
        store still has drops everything and begins again.
        """
        if self.complete_from <= start_ts <= self.resolved:
            return
        # Before the withdrawal: otherwise the thread that publishes other spans would publish the old claim
        # again.
        files = self._files
        files.resolve(0)
        self._store.withdraw(self.id)
        with self._seal_lock:
            self._clear()
            before = files.manifest.segments
            if self.complete_from <= start_ts:
                kept = tuple(s for s in before if s.last_ts > start_ts)
                fresh = files.manifest.with_resolved(start_ts)
            else:
                kept, fresh = (), files.manifest.restarted(start_ts)
            fresh = replace(fresh, segments=kept, dropped_to=start_ts)
            files.unload(fresh, [s for s in before if s not in kept])
            files.resolve(start_ts)
        self._store.moved(self)

    def append(self, block: pa.RecordBatch) -> None:
        """Hold a block of ENTRY_SCHEMA in any order. Its rows must be above the resolved ts.

        If memory is over the store's budget, this call writes a run and waits for the disk.
        """
        if block.num_rows == 0 or self._closed:
            return
        held = Block.of(block)
        if held.min_ts <= self.resolved:
            raise Fatal(
                "a change arrived at or below the resolved ts of its span",
                where=f"span {self.id}, commit_ts {held.min_ts}, resolved {self.resolved}",
                why="the matcher let a late row through; readers may have passed it",
                fix="restart the capture; it pulls from the resolved ts again; report this",
            )
        self._waiting.add(held)
        self._store.charge(memory=held.bytes)
        self._store.relieve()

    def seal(self, resolved: Timestamp) -> None:
        """Make every change up to `resolved` durable, then raise the span's resolved ts. It never falls.

        Without rows in the range only a number in memory changes, which the next `publish` writes to the page
        of floors; the manifest is written once its own floor is `FOLLOW_MS` to twice `FOLLOW_MS` behind.
        Raises DiskFull; then the resolved ts stays, and no row is lost.
        """
        if resolved <= self.resolved:
            return
        with self._seal_lock:
            if self._closed:
                return
            self._write_waiting(resolved)
            files = self._files
            if files.is_dirty:
                old = files.merge_small(resolved)
                files.write_manifest(files.manifest.with_resolved(resolved), old)
            elif files.is_behind(resolved):
                files.write_manifest(files.manifest.with_resolved(resolved), ())
            files.resolve(resolved)
        self._store.moved(self)

    def spill(self) -> None:
        """Write all rows that wait in memory as a run beyond the resolved ts."""
        with self._seal_lock:
            if not self._closed:
                self._write_waiting(timestamp.MAX)

    def keep(self, ranges: Sequence[tuple[Span, Timestamp]]) -> None:
        """Store the resolved ts of each part of the span, so that a restart pulls only what is missing.

        A reader of other parts then need not wait for one that is behind (`store_view.reach_of`). `ranges`
        cover the span in key order; the caller has appended every row up to their ts. Rows in memory become a
        run. The ts of a part never falls, even if its rows are pulled again because regions were merged.
        """
        with self._seal_lock:
            if self._closed:
                return
            # Also the rows above the span's resolved ts: a part of the span may be complete far above it.
            self._write_waiting(timestamp.MAX)
            files = self._files
            parts = highest(
                [RegionRange(span.start, span.end, ts) for span, ts in ranges], files.manifest.ranges
            )
            old = files.merge_small(timestamp.MAX) if files.is_dirty else []
            fresh = replace(files.manifest, ranges=joined(parts)).with_resolved(self.resolved)
            if files.is_dirty or fresh != files.manifest:
                files.write_manifest(fresh, old)

    def shed(self) -> None:
        """Forget all rows beyond the resolved ts, in memory and on disk; the caller appends them again."""
        with self._seal_lock:
            self._clear()
            manifest = self._files.manifest
            ahead = [s for s in manifest.segments if s.min_ts > self.resolved]
            self._files.unload(manifest.cut_back(self.resolved), ahead)

    def drop_below(self, ts: Timestamp) -> None:
        """Remove the segments without rows above `ts`, or above the resolved ts if that is lower."""
        limit = min(ts, self.resolved)
        # Sealing replaces the manifest, too. Without the lock one of both changes would be lost.
        with self._seal_lock:
            manifest = self._files.manifest
            old = [s for s in manifest.segments if s.last_ts <= limit]
            if not old:
                return
            kept = tuple(s for s in manifest.segments if s.last_ts > limit)
            dropped = max(manifest.dropped_to, *(s.last_ts for s in old))
            self._files.unload(replace(manifest, segments=kept, dropped_to=dropped), old)

    def prepend(self, pulled: SpanStore, after: Timestamp, upto: Timestamp) -> bool:
        """Take over the segments of another store of the same span, which has all commits in (after, upto].

        Returns False and does nothing unless this store is complete exactly from `upto` on: meanwhile it may
        have dropped more rows, or begun at another ts. The caller appends nothing more to the other store;
        its folder is on the same disk. Files are only renamed, so appends hardly wait. After DiskFull the
        files belong to the other store again.
        """
        with self._seal_lock:
            return not self._closed and self._files.take_over(pulled._files, after, upto)

    def close(self) -> None:
        """Forget the rows in memory; later calls do nothing. `open_span` opens the span again."""
        with self._seal_lock:
            self._closed = True
            self._clear()
        self._store.forget(self)

    # --- damaged files -------------------------------------------------------------------------------

    def rewrite(self) -> None:
        """Write the manifest again, because the file on disk is damaged. Raises DiskFull."""
        with self._seal_lock:
            if not self._closed:
                self._files.rewrite()

    def assess(self, file: str) -> Damage | None:
        """The damage of a segment; None if it has none, or the manifest no longer names it."""
        with self._seal_lock:
            return self._files.assess(file)

    def repair(self, damage: Damage, pulled: Sequence[Segment]) -> int:
        """Replace a damaged segment by its good batches and the pulled ones; returns how many rows it lacks.

        If it lacks rows, because TiKV no longer has all of them, nothing is changed.
        """
        with self._seal_lock:
            return self._files.repair(damage, pulled)

    # --- within the seal lock ------------------------------------------------------------------------

    def _clear(self) -> None:
        self._store.charge(memory=-self._waiting.clear())

    def _write_waiting(self, upto: Timestamp) -> None:
        """Write the waiting rows <= upto as one segment, and release their memory."""
        after = self.resolved
        chosen = self._waiting.upto(upto)
        if not chosen:
            return
        table = kernels.table_of([p.line for p in chosen])
        taken = np.zeros(len(chosen), dtype=np.int64)
        refs, low, high = kernels.order_rows(table, after, upto, taken)
        if len(refs):
            blocks = [held.batch for held in chosen]
            batches = kernels.take_or_share(blocks, table, refs, self._store.scratch())
            self._files.add(batches, len(refs), low, high)
            self.rows_sealed += len(refs)
        # docs/guarantees.md#too-little-disk-space-delays-delivery-but-never-loses-data: rows
        # leave memory only after they are written. If the disk is full, the next call writes them.
        self._store.charge(memory=self._waiting.forget(chosen, taken, upto))
