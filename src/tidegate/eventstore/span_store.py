"""The changes of one span: what waits in memory, its segments and runs, and its manifest.

`store` is the whole of which this is a part: memory and disk budgets, the floors, the lock on the folder.

Threads: `append` may be called while another thread seals; whatever changes the manifest waits for each
other. The caller appends every row <= R before it seals R.

No room on the disk (DiskFull) leaves everything as it was: rows stay in memory, files that no manifest names
any more are removed with the next manifest that can be written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from tidegate.config.values import TABLE_MODE
from tidegate.disk import DiskFull, writing
from tidegate.errors import Fatal, Retryable
from tidegate.eventstore import damage, directory_kernels, kernels, reader, segment
from tidegate.eventstore.manifest import (
    MANIFEST,
    Manifest,
    ManifestFile,
    RegionRange,
    highest,
    joined,
    load_manifest,
    span_folder,
)
from tidegate.eventstore.records import Torn
from tidegate.eventstore.segment import DamagedSegment, Durability, Segment, SegmentInfo
from tidegate.model import timestamp
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp

MERGE_COUNT: Final = 16
"""So many small neighbours are merged into one segment."""

MERGE_BELOW: Final = 4 << 20
"""Segments of at least so many bytes are never merged: a merge holds up one seal by well under 0.1 s."""

FOLLOW_MS: Final = 60_000
"""So far, of upstream's time, and up to twice as far, the floor of an idle span's manifest may be behind."""

_FIXED_BYTES: Final = 29
"""What a row takes beside its keys and values: two timestamps, the operation, three offsets."""


class Whole(Protocol):
    """What a span needs of its store: `store.EventStore`."""

    folder: Path
    durable: Durability
    kv_mode: str

    def charge(self, memory: int = 0, disk: int = 0) -> None:
        """Count bytes that came (or went)."""
        ...

    def relieve(self) -> None:
        """Keep to the memory budget."""
        ...

    def scratch(self) -> kernels.Scratch:
        """The calling thread's memory for one block."""
        ...

    def published(self, span_id: str) -> tuple[Timestamp, int]:
        """What readers were told, and of which version of the manifest."""
        ...

    def moved(self, span: SpanStore) -> None:
        """Readers are to be told of its claim."""
        ...

    def pulled_again(self, notice: Retryable) -> None:
        """Files of a span do not add up: it begins again from what is left of it."""
        ...

    def withdraw(self, span_id: str) -> None:
        """Readers are to forget it."""
        ...

    def forget(self, span: SpanStore) -> None:
        """It was closed."""
        ...

    def admit(self) -> None:
        """Raises DiskFull while no segment may be written."""
        ...

    def filled(self, error: DiskFull) -> None:
        """A write found no room."""
        ...

    def small(self, write: Callable[[], None]) -> None:
        """Write a small file by which others go."""
        ...


@dataclass(frozen=True, slots=True)
class Damage:
    """Batches of a segment that cannot be read, and the commits to be pulled again: (after, upto].

    Without `batches` it is the directory that is damaged: nothing is to be pulled.
    """

    span: Span
    file: str
    batches: frozenset[int]
    after: Timestamp
    upto: Timestamp


@dataclass(slots=True)
class _Pending:
    """A block that holds rows above the resolved ts, some of which may already be sealed."""

    batch: pa.RecordBatch
    line: kernels.I64
    min_ts: Timestamp
    max_ts: Timestamp
    rows: int
    bytes: int

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Pending:
        """A block just arrived."""
        low, high = kernels.commit_range(batch)
        size = segment.data_bytes(batch) + _FIXED_BYTES * batch.num_rows
        return cls(batch, kernels.describe(batch), low, high, batch.num_rows, size)


class SpanStore:
    """The changes of one span. Made by `EventStore.open_span`."""

    def __init__(self, store: Whole, span: Span) -> None:
        """Open or create the span's folder; finish what a crash left.

        What the files do not prove is not resolved, and so pulled again.
        """
        self.span, self.id = span, span_id(span, store.kv_mode)
        self._store, self._folder = store, span_folder(store.folder, span, store.kv_mode)
        self._durable: Durability = store.durable
        self._pending: list[_Pending] = []
        self._pending_lock = threading.Lock()  # guards _pending; held briefly
        self._seal_lock = threading.Lock()  # guards manifest and files; held while writing
        self._dirty = False  # the manifest on disk lacks something
        self._old: list[SegmentInfo] = []  # to be removed once a manifest without them is on disk
        self._closed = False
        self._unmerged: set[str] = set()  # segments that could not be read when they were to be merged
        self.rows_sealed = 0
        self.disk_bytes = 0
        """Of the segments and runs that count."""
        self._file = ManifestFile(self._folder, self._durable)
        # Spread over the spans, or all that were idle since the same tick would write in the same tick.
        self._follow_ms = FOLLOW_MS + crc32c(self.id.encode()) % FOLLOW_MS
        self._manifest, self._claim = self._recover()
        self._recorded = self._manifest.resolved
        self._measure()
        store.moved(self)

    def _recover(self) -> tuple[Manifest, tuple[Timestamp, int]]:
        """The manifest to go on from, as a new base, and what may be published of it."""
        with writing(self._folder, keep=True):
            self._folder.mkdir(parents=True, exist_ok=True)
        manifest = self._proven()
        if self._store.published(self.id)[0] > manifest.resolved:
            # Readers must not take for complete what is pulled again.
            self._store.withdraw(self.id)
        # Rows of a run that its range pulls again, below what other ranges have reached, come twice:
        # readers take each change once.
        last = max(r.resolved for r in manifest.ranges)
        clipped = [replace(s, valid_to=last) if s.last_ts > last else s for s in manifest.segments]
        manifest = replace(manifest, segments=tuple(clipped))
        version = self._file.write(manifest)
        known = {s.file for s in manifest.segments} | {MANIFEST}
        for path in self._folder.iterdir():
            if path.name not in known:
                path.unlink()
        return manifest, (manifest.resolved, version)

    def _proven(self) -> Manifest:
        """What the files on disk prove to be there; what they do not is said, and pulled again."""
        empty = Manifest(self.span, (RegionRange(self.span.start, self.span.end, 0),))
        try:
            manifest = load_manifest(self._folder)
        except FileNotFoundError:
            if self._store.published(self.id)[0]:
                self._say_again("its manifest is not there", 0)
            return empty
        except Torn as error:
            self._say_again(f"its manifest is torn: {error.why}", 0)
            return empty
        if manifest.span != self.span:
            self._say_again(f"its manifest is that of {manifest.span}", 0)
            return empty
        published, version = self._store.published(self.id)
        reach = manifest.resolved
        if version == manifest.version:
            reach = max(reach, published)
        if reach < published:
            self._say_again("its manifest is older than what was published of it", reach)
        manifest = manifest.with_resolved(reach)
        bad = [s for s in manifest.segments if not self._is_whole(s)]
        if bad:
            reach = min(reach, *(s.min_ts - 1 for s in bad))
            self._say_again(f"{len(bad)} segments are missing or cut off, the first is {bad[0].file}", reach)
            manifest = manifest.cut_back(reach)
        return manifest

    def _is_whole(self, info: SegmentInfo) -> bool:
        """By its size; whether its bytes are those that were written is seen when they are read."""
        try:
            return (self._folder / info.file).stat().st_size == info.bytes
        except FileNotFoundError:
            return False

    def _say_again(self, why: str, reach: Timestamp) -> None:
        self._store.pulled_again(
            Retryable(
                "Files of the event store do not add up: a span is pulled again.",
                where=f"{self._folder}, span {self.id}, complete to ts {reach}",
                why=f"{why}; the machine may have lost power",
                fix="nothing to do: it is pulled from TiKV again from where it is needed",
            )
        )

    @property
    def resolved(self) -> Timestamp:
        """Every commit <= this is in the span's segments (0: nothing is known)."""
        return self._claim[0]

    @property
    def claim(self) -> tuple[Timestamp, int]:
        """What may be published: the resolved ts, and the version of the manifest on disk it speaks of.

        One tuple, replaced as one: `publish` runs in another thread than what changes it.
        """
        return self._claim

    @property
    def complete_from(self) -> Timestamp:
        """Rows with commit_ts <= this may be missing: never pulled, or dropped."""
        return self._manifest.dropped_to

    @property
    def manifest(self) -> Manifest:
        """What is sealed, for status."""
        return self._manifest.with_resolved(self.resolved)

    @property
    def ranges(self) -> tuple[tuple[Span, Timestamp], ...]:
        """How far each part of the span is on disk, in key order; the least is `resolved`."""
        ranges = self._manifest.with_resolved(self.resolved).ranges
        return tuple((Span(r.start, r.end), r.resolved) for r in ranges)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the blocks that wait in memory."""
        with self._pending_lock:
            return sum(p.bytes for p in self._pending)

    def begin(self, start_ts: Timestamp) -> None:
        """Make the span ready for a reader at `start_ts`: complete from there on once it is resolved.

        Nothing happens when the store covers `start_ts`. A start beyond the resolved ts leaves a hole, so
        what lies before is dropped, and ranges that are further stay so; a start below what the store still
        has drops everything and starts over.
        """
        if self.complete_from <= start_ts <= self.resolved:
            return
        # First, or who publishes for the other spans would tell of it once more.
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
        """Hold a block of ENTRY_SCHEMA in any order. Its rows must lie above the resolved ts.

        Beyond the store's memory budget this call writes a run and so takes as long as the disk.
        """
        if block.num_rows == 0 or self._closed:
            return
        held = _Pending.of(block)
        if held.min_ts <= self.resolved:
            raise Fatal(
                "a change arrived at or below the resolved ts of its span",
                where=f"span {self.id}, commit_ts {held.min_ts}, resolved {self.resolved}",
                why="the matcher let a late row through; readers may have passed it",
                fix="restart the capture; it pulls from the resolved ts again. Please report this",
            )
        with self._pending_lock:
            self._pending.append(held)
        self._store.charge(memory=held.bytes)
        self._store.relieve()

    def seal(self, resolved: Timestamp) -> None:
        """Make every change up to `resolved` durable and let `resolved` say so. Never goes back.

        Without rows in the range this costs a number in memory, which the next `publish` puts on the page of
        floors; once the manifest's own floor is `FOLLOW_MS` behind or a little more it says the new one too.
        Raises DiskFull; then nothing is promised and nothing lost.
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
        """Write all that waits in memory as a run beyond the resolved ts."""
        with self._seal_lock:
            if not self._closed:
                self._write_waiting(timestamp.MAX)

    def keep(self, ranges: Sequence[tuple[Span, Timestamp]]) -> None:
        """Let the manifest say how far each part of the span is: a restart pulls only what is missing, and
        who wants nothing of a part that is behind need not wait for it (`store_view.reach_of`).

        `ranges` tile the span in key order; every row up to their ts was appended before this call. What
        waits in memory becomes a run. A part never goes back: what was said of its rows stays true, though
        they be pulled again because regions were merged.
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
        """Forget what lies beyond the resolved ts, in memory and on disk; the caller will append it again."""
        with self._seal_lock:
            self._clear()
            ahead = [s for s in self._manifest.segments if s.min_ts > self.resolved]
            self._let_go(self._manifest.cut_back(self.resolved), ahead)

    def drop_below(self, ts: Timestamp) -> None:
        """Remove the segments that hold nothing above `ts`. `ts` above the resolved ts counts as that."""
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

        False, and no effect, unless this one is complete from `upto` on: more was let go meanwhile, or it was
        begun from elsewhere. Nothing more is appended to the other one, and its folder lies on the same disk.
        Only the names of files change, so what is appended meanwhile hardly waits. After DiskFull the files
        are the other one's again.
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
        """Forget what waits in memory; later calls of this object do nothing. `open_span` opens anew."""
        with self._seal_lock:
            self._closed = True
            self._clear()
        self._store.forget(self)

    # --- damaged files -------------------------------------------------------------------------------

    def rewrite(self) -> None:
        """Write the manifest once more: what is on disk is not what was written. Raises DiskFull."""
        with self._seal_lock:
            if not self._closed:
                self._replace_manifest(self._manifest, (), whole=True)

    def assess(self, file: str) -> Damage | None:
        """What is wrong with a segment; None when nothing is, or the manifest does not name it any more."""
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

    def mend(self, damage: Damage, pulled: Sequence[Segment]) -> int:
        """Put a segment in the place of a damaged one: its good batches and what was pulled; rows it lacks.

        Not 0: TiKV no longer has all that was there, and nothing was changed.
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
        with self._pending_lock:
            freed = sum(p.bytes for p in self._pending)
            self._pending.clear()
        self._store.charge(memory=-freed)

    def _write_waiting(self, upto: Timestamp) -> None:
        """Write the waiting rows <= upto as one segment; they leave memory."""
        after = self.resolved
        if not self._pending:  # what is appended meanwhile lies above `upto`, or waits for the next call
            return
        with self._pending_lock:
            chosen = [p for p in self._pending if p.min_ts <= upto]
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
        self._forget_taken(chosen, taken, upto)

    def _forget_taken(self, chosen: list[_Pending], taken: kernels.I64, upto: Timestamp) -> None:
        """Drop blocks without rows above `upto`; rewrite those that are mostly taken."""
        gone, fresh, freed = set(), [], 0
        for held, count in zip(chosen, taken.tolist(), strict=True):
            held.rows -= count
            if held.rows * 2 < held.batch.num_rows:
                gone.add(id(held))
                freed += held.bytes
            if 0 < held.rows * 2 < held.batch.num_rows:
                fresh += [_Pending.of(batch) for batch in _beyond(held, upto)]
        with self._pending_lock:
            self._pending = [p for p in self._pending if id(p) not in gone] + fresh
        self._store.charge(memory=sum(p.bytes for p in fresh) - freed)

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
        """Merge small neighbours when they are many; returns those segments, their files still there.

        Without room for the merged one they stay, as they do when one of them is damaged.
        """
        chosen = _mergeable(self._manifest.segments, resolved, self._unmerged)
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
        """Replace the manifest by one that names fewer files, even on a full disk."""
        self._store.small(lambda: self._replace_manifest(manifest, old))

    def _replace_manifest(
        self, manifest: Manifest, old: Iterable[SegmentInfo], *, whole: bool = False
    ) -> None:
        """Make it the span's, on disk first; then remove the files it no longer names.

        It says how far the span is by now, so that no version says less than a floor that was told. `whole`:
        as a new base.
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


def _beyond(held: _Pending, after: Timestamp) -> list[pa.RecordBatch]:
    """Copies of a block's rows above `after`."""
    table = kernels.table_of([held.line])
    refs, _, _ = kernels.order_rows(table, after, timestamp.MAX, np.zeros(1, dtype=np.int64))
    return list(kernels.take_all(table, refs, kernels.allocate))


def _mergeable(
    segments: tuple[SegmentInfo, ...], resolved: Timestamp, but: Container[str] = ()
) -> list[SegmentInfo]:
    """The newest small resolved neighbours, MERGE_COUNT or more; empty when they are fewer. `but`: files that
    are left alone.

    One that outweighs all younger ones together is left out: a byte is rewritten a few times, not often.
    """
    chosen: list[SegmentInfo] = []
    for info in reversed(segments):
        if info.bytes < MERGE_BELOW and info.last_ts <= resolved and info.file not in but:
            chosen.append(info)
        elif chosen:
            break
    weight = sum(s.bytes for s in chosen)
    while len(chosen) >= MERGE_COUNT and 2 * chosen[-1].bytes > weight:
        weight -= chosen.pop().bytes
    return chosen[::-1] if len(chosen) >= MERGE_COUNT else []
