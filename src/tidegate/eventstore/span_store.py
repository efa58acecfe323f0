"""The changes of one span: rows that wait in memory (`waiting`), segments and runs, and the manifest.

`store` has what all spans share: the budgets for memory and disk, the floors, the lock on the folder.
`recovery` decides what to keep after a restart, `merging` which segments become one.

Threads: `append` may run while another thread seals; calls that change the manifest exclude each other. The
caller appends every row <= R before it seals R.

If the disk is full (DiskFull) nothing changes: rows stay in memory, and files that no manifest names any more
are removed with the next manifest that can be written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from tidegate.config.values import TABLE_MODE
from tidegate.disk import DiskFull, writing
from tidegate.errors import Fatal
from tidegate.eventstore import damage, directory_kernels, kernels, reader, recovery, segment
from tidegate.eventstore.damage import Damage
from tidegate.eventstore.manifest import (
    MANIFEST,
    Manifest,
    ManifestFile,
    RegionRange,
    highest,
    joined,
    span_folder,
)
from tidegate.eventstore.merging import mergeable
from tidegate.eventstore.segment import DamagedSegment, Durability, Segment, SegmentInfo
from tidegate.eventstore.waiting import Block, Waiting
from tidegate.model import timestamp
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp

FOLLOW_MS: Final = 60_000
"""Milliseconds of upstream's time by which the manifest of an idle span may be behind; at most twice that."""


class Whole(recovery.Publisher, Protocol):
    """What a span needs of its store: `store.EventStore`."""

    folder: Path
    durable: Durability
    kv_mode: str

    def charge(self, memory: int = 0, disk: int = 0) -> None:
        """Count bytes that were added or (if negative) removed."""
        ...

    def relieve(self) -> None:
        """Write runs until memory is within its budget."""
        ...

    def scratch(self) -> kernels.Scratch:
        """The calling thread's memory for one block."""
        ...

    def moved(self, span: SpanStore) -> None:
        """Publish the span's claim to readers."""
        ...

    def withdraw(self, span_id: str) -> None:
        """Withdraw what was published of a span."""
        ...

    def forget(self, span: SpanStore) -> None:
        """Forget a span that was closed."""
        ...

    def admit(self) -> None:
        """Raise DiskFull while no segment may be written."""
        ...

    def filled(self, error: DiskFull) -> None:
        """Note that a write found the disk full."""
        ...

    def small(self, write: Callable[[], None]) -> None:
        """Perform a small write after which other files can be removed; allowed on a full disk."""
        ...


class SpanStore:
    """The changes of one span. Made by `EventStore.open_span`."""

    def __init__(self, store: Whole, span: Span) -> None:
        """Open or create the folder of the span, and clean up after a crash.

        Rows that the files do not prove count as not resolved, and are pulled again.
        """
        self.span, self.id = span, span_id(span, store.kv_mode)
        self._store, self._folder = store, span_folder(store.folder, span, store.kv_mode)
        self._durable: Durability = store.durable
        self._waiting = Waiting()
        self._seal_lock = threading.Lock()  # guards the manifest and files; held while they are written
        self._dirty = False  # the manifest on disk lacks something
        self._old: list[SegmentInfo] = []  # removed once a manifest without them is on disk
        self._closed = False
        self._unmerged: set[str] = set()  # segments that no merge could read
        self.rows_sealed = 0
        self.disk_bytes = 0
        """Bytes of the segments and runs that the manifest names."""
        self._file = ManifestFile(self._folder, self._durable)
        # Spread over the spans: otherwise all spans that became idle together would write at the same time.
        self._follow_ms = FOLLOW_MS + crc32c(self.id.encode()) % FOLLOW_MS
        self._manifest, self._claim = self._recover()
        self._recorded = self._manifest.resolved
        self._measure()
        store.moved(self)

    def _recover(self) -> tuple[Manifest, tuple[Timestamp, int]]:
        """Write the manifest to start with, as a new base; returns it with the first claim."""
        with writing(self._folder, keep=True):
            self._folder.mkdir(parents=True, exist_ok=True)
        manifest = recovery.proven(self._store, self._folder, self.span, self.id)
        if self._store.published(self.id)[0] > manifest.resolved:
            # Otherwise readers would take the range that is pulled again for complete.
            self._store.withdraw(self.id)
        # A run may have rows that its range pulls again, below the resolved ts of other ranges. They come
        # twice then; readers take each change once.
        last = max(r.resolved for r in manifest.ranges)
        clipped = [replace(s, valid_to=last) if s.last_ts > last else s for s in manifest.segments]
        manifest = replace(manifest, segments=tuple(clipped))
        version = self._file.write(manifest)
        known = {s.file for s in manifest.segments} | {MANIFEST}
        for path in self._folder.iterdir():
            if path.name not in known:
                path.unlink()
        return manifest, (manifest.resolved, version)

    @property
    def resolved(self) -> Timestamp:
        """Every commit <= this is in the span's segments (0: nothing is known)."""
        return self._claim[0]

    @property
    def claim(self) -> tuple[Timestamp, int]:
        """What may be published: the resolved ts, and the version of the manifest on disk that it belongs to.

        It is one tuple, because `publish` reads it in another thread than the one that replaces it.
        """
        return self._claim

    @property
    def complete_from(self) -> Timestamp:
        """Rows with commit_ts <= this may be missing, because they were never pulled or were dropped."""
        return self._manifest.dropped_to

    @property
    def manifest(self) -> Manifest:
        """The manifest with the present resolved ts, for status."""
        return self._manifest.with_resolved(self.resolved)

    @property
    def ranges(self) -> tuple[tuple[Span, Timestamp], ...]:
        """The resolved ts of each part of the span on disk, in key order; the least of them is `resolved`."""
        ranges = self._manifest.with_resolved(self.resolved).ranges
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
        self._claim = (0, self._claim[1])
        self._store.withdraw(self.id)
        with self._seal_lock:
            self._clear()
            before = self._manifest.segments
            if self.complete_from <= start_ts:
                kept = tuple(s for s in before if s.last_ts > start_ts)
                fresh = self._manifest.with_resolved(start_ts)
            else:
                kept, fresh = (), self._manifest.restarted(start_ts)
            fresh = replace(fresh, segments=kept, dropped_to=start_ts)
            self._let_go(fresh, [s for s in before if s not in kept])
            self._claim = (start_ts, self._claim[1])
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
                fix="restart the capture; it pulls from the resolved ts again. Please report this",
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
            if self._dirty:
                old = self._merge_small(resolved)
                self._replace_manifest(self._manifest.with_resolved(resolved), old)
            elif timestamp.physical_ms(resolved) - timestamp.physical_ms(self._recorded) > self._follow_ms:
                self._replace_manifest(self._manifest.with_resolved(resolved), ())
            self._claim = (resolved, self._claim[1])
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
            self._write_waiting(timestamp.MAX)
            parts = highest(
                [RegionRange(span.start, span.end, ts) for span, ts in ranges], self._manifest.ranges
            )
            old = self._merge_small(timestamp.MAX) if self._dirty else []
            fresh = replace(self._manifest, ranges=joined(parts)).with_resolved(self.resolved)
            if self._dirty or fresh != self._manifest:
                self._replace_manifest(fresh, old)

    def shed(self) -> None:
        """Forget all rows beyond the resolved ts, in memory and on disk; the caller appends them again."""
        with self._seal_lock:
            self._clear()
            ahead = [s for s in self._manifest.segments if s.min_ts > self.resolved]
            self._let_go(self._manifest.cut_back(self.resolved), ahead)

    def drop_below(self, ts: Timestamp) -> None:
        """Remove the segments without rows above `ts`, or above the resolved ts if that is lower."""
        limit = min(ts, self.resolved)
        with self._seal_lock:
            old = [s for s in self._manifest.segments if s.last_ts <= limit]
            if not old:
                return
            kept = tuple(s for s in self._manifest.segments if s.last_ts > limit)
            dropped = max(self._manifest.dropped_to, *(s.last_ts for s in old))
            self._let_go(replace(self._manifest, segments=kept, dropped_to=dropped), old)

    def prepend(self, pulled: SpanStore, after: Timestamp, upto: Timestamp) -> bool:
        """Take over the segments of another store of the same span, which has all commits in (after, upto].

        Returns False and does nothing unless this store is complete exactly from `upto` on: meanwhile it may
        have dropped more rows, or begun at another ts. The caller appends nothing more to the other store;
        its folder is on the same disk. Files are only renamed, so appends hardly wait. After DiskFull the
        files belong to the other store again.
        """
        taken = [info for info in pulled._manifest.segments if info.overlaps(after, upto)]
        with self._seal_lock:
            if self._closed or self._manifest.dropped_to != upto:
                return False
            first = self._manifest.next_file
            named = [replace(info, file=_file_name(first + i)) for i, info in enumerate(taken)]
            for old, new in zip(taken, named, strict=True):
                (pulled._folder / old.file).rename(self._folder / new.file)
            if self._durable == "fsync":
                segment.sync(self._folder)
            manifest = replace(
                self._manifest,
                segments=(*named, *self._manifest.segments),
                dropped_to=after,
                next_file=first + len(named),
            )
            try:
                self._replace_manifest(manifest, ())
            except DiskFull:
                for old, new in zip(taken, named, strict=True):
                    (self._folder / new.file).rename(pulled._folder / old.file)
                raise
            return True

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
                self._replace_manifest(self._manifest, (), whole=True)

    def assess(self, file: str) -> Damage | None:
        """The damage of a segment; None if it has none, or the manifest no longer names it."""
        with self._seal_lock:
            info = self._info(file)
            if info is None:
                return None
            try:
                found = Segment(self._folder, info)
                bad = found.damaged()
                if not bad:
                    nothing = Damage(self.span, file, frozenset(), info.last_ts, info.last_ts)
                    return nothing if found.misplaced(directory_kernels.tables_of) else None
            except (DamagedSegment, FileNotFoundError):
                bad = list(range(len(info.blocks)))
        low = min(info.blocks[i].min_ts for i in bad)
        high = min(max(info.blocks[i].max_ts for i in bad), info.last_ts)
        return Damage(self.span, file, frozenset(bad), low - 1, high)

    def repair(self, damage: Damage, pulled: Sequence[Segment]) -> int:
        """Replace a damaged segment by its good batches and the pulled ones; returns how many rows it lacks.

        If it lacks rows, because TiKV no longer has all of them, nothing is changed.
        """
        with self._seal_lock:
            info = self._info(damage.file)
            if info is None:
                return 0
            parts = [*self._good(info, damage.batches), *pulled]
            batches = list(reader.merged(parts, info.min_ts - 1, info.last_ts))
            rows: int = sum(b.num_rows for b in batches)
            if info.valid_to is None and rows < info.rows:
                return info.rows - rows
            fresh: tuple[SegmentInfo, ...] = ()
            if batches:
                low, high = segment.ends(batches[0])[0], segment.ends(batches[-1])[1]
                fresh = (self._write(batches, rows, low, high),)
            known = self._manifest.segments
            place = known.index(info)
            segments = (*known[:place], *fresh, *known[place + 1 :])
            self._replace_manifest(replace(self._manifest, segments=segments), [info])
            return 0

    def _info(self, file: str) -> SegmentInfo | None:
        return next((s for s in self._manifest.segments if s.file == file), None)

    def _good(self, info: SegmentInfo, bad: frozenset[int]) -> list[Segment]:
        if len(bad) == len(info.blocks):
            return []
        return [Segment(self._folder, info, bad)]

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
            batches = kernels.take_all(table, refs, self._store.scratch())
            info = self._write(batches, len(refs), low, high)
            self._manifest = replace(self._manifest, segments=(*self._manifest.segments, info))
            self._dirty = True
            self._measure()
            self.rows_sealed += len(refs)
        self._store.charge(memory=self._waiting.forget(chosen, taken, upto))

    def _write(
        self, batches: Iterable[pa.RecordBatch], rows: int, low: Timestamp, high: Timestamp
    ) -> SegmentInfo:
        number = self._manifest.next_file
        self._manifest = replace(self._manifest, next_file=number + 1)
        facts = segment.Facts(self.id, rows, low, high)
        try:
            self._store.admit()
            index = directory_kernels.tables_of if self._store.kv_mode == TABLE_MODE else None
            return segment.write(self._folder, _file_name(number), facts, batches, self._durable, index)
        except DiskFull as error:
            self._store.filled(error)
            raise

    def _merge_small(self, resolved: Timestamp) -> list[SegmentInfo]:
        """Merge small neighbours if there are many; returns the old segments, whose files the caller removes.

        They stay if the disk is full or one of them is damaged.
        """
        chosen = mergeable(self._manifest.segments, resolved, self._unmerged)
        if not chosen:
            return []
        try:
            batches = list(reader.merged([Segment(self._folder, s) for s in chosen], 0, resolved))
            low, high = segment.ends(batches[0])[0], segment.ends(batches[-1])[1]
            info = self._write(batches, sum(b.num_rows for b in batches), low, high)
        except DiskFull:
            return []
        except DamagedSegment as found:
            damage.met(self._store.folder, self.id, found)
            self._unmerged = {s.file for s in chosen}
            return []
        place = self._manifest.segments.index(chosen[0])
        kept = [s for s in self._manifest.segments if s not in chosen]
        self._manifest = replace(self._manifest, segments=(*kept[:place], info, *kept[place:]))
        return chosen

    def _let_go(self, manifest: Manifest, old: Sequence[SegmentInfo]) -> None:
        """Replace the manifest by one that names fewer files; works on a full disk, too."""
        self._store.small(lambda: self._replace_manifest(manifest, old))

    def _replace_manifest(
        self, manifest: Manifest, old: Iterable[SegmentInfo], *, whole: bool = False
    ) -> None:
        """Write a new manifest, use it, then remove the files that it no longer names.

        It gets the present resolved ts, so that no version has a lower one than the published floor. `whole`:
        write it as a new base.
        """
        manifest = manifest.with_resolved(self.resolved)
        self._old += old
        self._dirty = True
        try:
            version = self._file.rewrite(manifest) if whole else self._file.write(manifest)
        except DiskFull as error:
            self._store.filled(error)
            known = {s.file for s in self._manifest.segments}
            self._old = [s for s in self._old if s.file not in known]
            raise
        self._manifest, self._dirty = manifest, False
        self._recorded = manifest.resolved
        self._claim = (self._claim[0], version)
        self._store.moved(self)
        for info in self._old:
            (self._folder / info.file).unlink(missing_ok=True)
        self._old = []
        self._measure()

    def _measure(self) -> None:
        size = sum(s.bytes for s in self._manifest.segments)
        self._store.charge(disk=size - self.disk_bytes)
        self.disk_bytes = size


def _file_name(number: int) -> str:
    return f"{number:012d}.arrow"
