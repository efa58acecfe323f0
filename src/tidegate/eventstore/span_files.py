"""The files of one span: segments and runs, the manifest that names them, and the claim for readers.

Files are written in the order segment, manifest, claim, and removed after the manifest no longer names them.
`recovery` decides what to keep after a restart, `merging` which segments become one.

If the disk is full (DiskFull) nothing changes. Files that no manifest names any more are removed with the
next manifest that can be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
from crc32c import crc32c

from tidegate.config.values import TABLE_MODE
from tidegate.disk import DiskFull, writing
from tidegate.eventstore import damage, directory_kernels, reader, recovery, segment
from tidegate.eventstore.damage import Damage
from tidegate.eventstore.manifest import MANIFEST, Manifest, ManifestFile, span_folder
from tidegate.eventstore.merging import mergeable
from tidegate.eventstore.removed_files import RemovedFiles
from tidegate.eventstore.segment import DamagedSegment, Durability, Segment, SegmentInfo
from tidegate.model import timestamp
from tidegate.model.block import MAX_BLOCK_BYTES
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp

FOLLOW_MS: Final = 60_000
"""Milliseconds of upstream's time by which the manifest of an idle span may be behind; at most twice that."""


class Disk(recovery.Publisher, Protocol):
    """The members that the files of a span need of their store: a part of `store.EventStore`."""

    folder: Path
    durable: Durability
    kv_mode: str
    removed: RemovedFiles

    def charge(self, memory: int = 0, disk: int = 0) -> None:
        """Count bytes that were added or (if negative) removed."""
        ...

    def withdraw(self, span_id: str) -> None:
        """Withdraw what was published of a span."""
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


class SpanFiles:
    """The files of one span. One call at a time: `SpanStore` holds its lock; any thread may read `claim`."""

    def __init__(self, store: Disk, span: Span, span_id: str, moved: Callable[[], None]) -> None:
        """Open or create the folder of the span, and clean up after a crash.

        `moved`: called when the claim has another version.
        """
        self._store, self._span, self._id, self._moved = store, span, span_id, moved
        self._folder = span_folder(store.folder, span, store.kv_mode)
        self._durable: Durability = store.durable
        self._file = ManifestFile(self._folder, self._durable)
        self._old: list[SegmentInfo] = []  # removed once a manifest without them is on disk
        self._unmerged: set[str] = set()  # segments that no merge could read
        self.is_dirty = False
        """Whether the manifest on disk lacks something."""
        self.disk_bytes = 0
        """Bytes of the segments and runs that the manifest names."""
        # Spread over the spans: otherwise all spans that became idle together would write at the same time.
        self._follow_ms: int = FOLLOW_MS + crc32c(span_id.encode()) % FOLLOW_MS
        self.manifest, self.claim = self._recover()
        """The claim: the resolved ts, and the version of the manifest on disk that it belongs to. It is one
        tuple, because `publish` reads it in another thread than the one that replaces it."""
        self._recorded = self.manifest.resolved
        self._measure()

    def _recover(self) -> tuple[Manifest, tuple[Timestamp, int]]:
        """Write the manifest to start with, as a new base; returns it with the first claim."""
        with writing(self._folder, keep=True):
            self._folder.mkdir(parents=True, exist_ok=True)
        manifest = recovery.proven(self._store, self._folder, self._span, self._id)
        if self._store.published(self._id)[0] > manifest.resolved:
            # Otherwise readers would take the range that is pulled again for complete.
            self._store.withdraw(self._id)
        # A run may have rows that its range pulls again, below the resolved ts of other ranges. They come
        # twice then; readers take each change once.
        last = max(r.resolved for r in manifest.ranges)
        # docs/guarantees.md#a-restart-pulls-what-is-missing-and-no-more: each range continues at its own ts.
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
        """The resolved ts of the claim."""
        return self.claim[0]

    def resolve(self, resolved: Timestamp) -> None:
        """Claim another resolved ts, with the manifest on disk."""
        # Last, because readers that see the new claim must find its rows in the manifest.
        self.claim = (resolved, self.claim[1])

    def is_behind(self, resolved: Timestamp) -> bool:
        """Whether the manifest on disk is too far behind `resolved`, though it lacks no rows."""
        behind = timestamp.physical_ms(resolved) - timestamp.physical_ms(self._recorded)
        return behind > self._follow_ms

    def add(self, batches: Iterable[pa.RecordBatch], rows: int, low: Timestamp, high: Timestamp) -> None:
        """Write a segment or run; the next manifest names it."""
        info = self._write(batches, rows, low, high)
        self.manifest = replace(self.manifest, segments=(*self.manifest.segments, info))
        self.is_dirty = True
        self._measure()

    def merge_small(self, resolved: Timestamp) -> list[SegmentInfo]:
        """Merge small neighbours if there are many; returns the old segments, whose files the caller removes.

        They stay if the disk is full or one of them is damaged.
        """
        chosen = mergeable(self.manifest.segments, resolved, self._unmerged)
        if not chosen:
            return []
        try:
            batches = _joined([Segment(self._folder, s) for s in chosen], 0, resolved)
            low, high = segment.ends(batches[0])[0], segment.ends(batches[-1])[1]
            info = self._write(batches, sum(b.num_rows for b in batches), low, high)
        # A merge needs space before it frees any; until then the small files serve as well.
        except DiskFull:
            return []
        except DamagedSegment as found:
            damage.met(self._store.folder, self._id, found)
            # Otherwise every seal would read the damaged file again.
            self._unmerged = {s.file for s in chosen}
            return []
        place = self.manifest.segments.index(chosen[0])
        kept = [s for s in self.manifest.segments if s not in chosen]
        self.manifest = replace(self.manifest, segments=(*kept[:place], info, *kept[place:]))
        return chosen

    def unload(self, manifest: Manifest, old: Sequence[SegmentInfo]) -> None:
        """Replace the manifest by one that names fewer files; works on a full disk, too."""
        self._store.small(lambda: self.write_manifest(manifest, old))

    def write_manifest(self, manifest: Manifest, old: Iterable[SegmentInfo], *, whole: bool = False) -> None:
        """Write a new manifest, use it, then remove the files that it no longer names.

        It gets the present resolved ts, so that no version has a lower one than the published floor. `whole`:
        write it as a new base.
        """
        manifest = manifest.with_resolved(self.resolved)
        self._old += old
        self.is_dirty = True
        try:
            version = self._file.rewrite(manifest) if whole else self._file.write(manifest)
        except DiskFull as error:
            # docs/guarantees.md#too-little-disk-space-delays-delivery-but-never-loses-data: the same content
            # is written later.
            self._store.filled(error)
            known = {s.file for s in self.manifest.segments}
            # The manifest on disk still names the others, so their files stay.
            self._old = [s for s in self._old if s.file not in known]
            raise
        # The files go last: until the new manifest is on disk, readers and a restart use the old one.
        self.manifest, self.is_dirty = manifest, False
        self._recorded = manifest.resolved
        self.claim = (self.claim[0], version)
        self._moved()
        for info in self._old:
            self._store.removed.remove(self._folder / info.file, info.bytes)
        self._old = []
        self._measure()

    def rewrite(self) -> None:
        """Write the manifest again, because the file on disk is damaged. Raises DiskFull."""
        self.write_manifest(self.manifest, (), whole=True)

    def take_over(self, pulled: SpanFiles, after: Timestamp, upto: Timestamp) -> bool:
        """`SpanStore.prepend`."""
        if self.manifest.dropped_to != upto:
            return False
        taken = [info for info in pulled.manifest.segments if info.overlaps(after, upto)]
        first = self.manifest.next_file
        named = [replace(info, file=_file_name(first + i)) for i, info in enumerate(taken)]
        for old, new in zip(taken, named, strict=True):
            # Before the manifest names them. After a crash in between `_recover` removes them, because
            # no manifest does.
            (pulled._folder / old.file).rename(self._folder / new.file)
        if self._durable == "fsync":
            segment.sync(self._folder)
        manifest = replace(
            self.manifest,
            segments=(*named, *self.manifest.segments),
            dropped_to=after,
            next_file=first + len(named),
        )
        try:
            self.write_manifest(manifest, ())
        # No manifest names the new names, so a restart would remove the files under them.
        except DiskFull:
            for old, new in zip(taken, named, strict=True):
                (self._folder / new.file).rename(pulled._folder / old.file)
            raise
        return True

    # --- damaged files -------------------------------------------------------------------------------

    def assess(self, file: str) -> Damage | None:
        """The damage of a segment; None if it has none, or the manifest no longer names it."""
        info = self._info(file)
        if info is None:
            return None
        try:
            found = Segment(self._folder, info)
            bad = found.damaged()
            if not bad:
                nothing = Damage(self._span, file, frozenset(), info.last_ts, info.last_ts)
                # No block is bad but its directory is: readers of some tables would miss rows, so it counts
                # as damaged.
                return nothing if found.misplaced(directory_kernels.tables_of) else None
        except (DamagedSegment, FileNotFoundError):
            bad = list(range(len(info.blocks)))
        low = min(info.blocks[i].min_ts for i in bad)
        high = min(max(info.blocks[i].max_ts for i in bad), info.last_ts)
        return Damage(self._span, file, frozenset(bad), low - 1, high)

    def repair(self, damage: Damage, pulled: Sequence[Segment]) -> int:
        """Replace a damaged segment by its good batches and the pulled ones; returns how many rows it lacks.

        If it lacks rows, because TiKV no longer has all of them, nothing is changed.
        """
        info = self._info(damage.file)
        if info is None:
            return 0
        parts = [*self._good(info, damage.batches), *pulled]
        batches = _joined(parts, info.min_ts - 1, info.last_ts)
        rows: int = sum(b.num_rows for b in batches)
        # With `valid_to` the number of rows that count is not known, so it cannot be compared.
        if info.valid_to is None and rows < info.rows:
            return info.rows - rows
        fresh: tuple[SegmentInfo, ...] = ()
        if batches:
            low, high = segment.ends(batches[0])[0], segment.ends(batches[-1])[1]
            fresh = (self._write(batches, rows, low, high),)
        known = self.manifest.segments
        place = known.index(info)
        segments = (*known[:place], *fresh, *known[place + 1 :])
        self.write_manifest(replace(self.manifest, segments=segments), [info])
        return 0

    def _info(self, file: str) -> SegmentInfo | None:
        return next((s for s in self.manifest.segments if s.file == file), None)

    def _good(self, info: SegmentInfo, bad: frozenset[int]) -> list[Segment]:
        if len(bad) == len(info.blocks):
            return []
        return [Segment(self._folder, info, bad)]

    def _write(
        self, batches: Iterable[pa.RecordBatch], rows: int, low: Timestamp, high: Timestamp
    ) -> SegmentInfo:
        number = self.manifest.next_file
        # Before the write: if it fails, the name is not used again, and what was written is no segment.
        self.manifest = replace(self.manifest, next_file=number + 1)
        facts = segment.Facts(self._id, rows, low, high)
        try:
            self._store.admit()
            index = directory_kernels.tables_of if self._store.kv_mode == TABLE_MODE else None
            info = segment.write(self._folder, _file_name(number), facts, batches, self._durable, index)
        except DiskFull as error:
            self._store.filled(error)
            raise
        self._store.removed.written(info.bytes)
        return info

    def _measure(self) -> None:
        size = sum(s.bytes for s in self.manifest.segments)
        self._store.charge(disk=size - self.disk_bytes)
        self.disk_bytes = size


def _file_name(number: int) -> str:
    return f"{number:012d}.arrow"


def _joined(parts: Sequence[Segment], after: Timestamp, upto: Timestamp) -> list[pa.RecordBatch]:
    """The rows of segments in whole blocks: they are copied into a file anyway, and readers pay for each."""
    return list(reader.merged(parts, after, upto, joined_below=MAX_BLOCK_BYTES))
