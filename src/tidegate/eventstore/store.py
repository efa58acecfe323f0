"""The writing edge of the event store: append, seal, drop, publish.

`STORE/` belongs to one process at a time (a lock on `STORE/lock`). Rows wait in memory until a resolved ts
covers them; `seal(R)` writes those with commit_ts <= R as one sorted segment, names it in the span's manifest
and only then lets `resolved` say R; `publish` then tells readers. Rows above R stay; when all spans together
hold more than `memory_bytes`, the span that holds most is sorted and written as a run: a segment beyond R
that readers merge in as the resolved ts reaches its rows.

Crash: `durable="process"` (default) leaves files in the page cache and survives kill -9 of the process at any
moment; `durable="fsync"` forces each file to disk before the file that names it, and survives the machine.
What was not published is pulled again; what a run held beyond the resolved ts is hidden by `valid_to`.

Small segments are merged when `MERGE_COUNT` of like size lie together, so the number of files grows with the
data, not with the number of seals. A reader that meets a merged-away file reads the manifest again.

Threads: `append` may be called while another thread seals; `seal`, `drop_below` and spills of one span wait
for each other. The caller appends every row <= R before it seals R.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.errors import Fatal, Retryable
from tidegate.eventstore import kernels, reader, segment
from tidegate.eventstore.manifest import (
    MANIFEST,
    Manifest,
    RegionRange,
    load_frontier,
    load_manifest,
    span_folder,
    write_frontier,
    write_manifest,
)
from tidegate.eventstore.segment import Durability, Segment, SegmentInfo
from tidegate.model import timestamp
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp

MERGE_COUNT: Final = 16
"""So many small neighbours are merged into one segment."""

MERGE_BELOW: Final = 4 << 20
"""Segments of at least so many bytes are never merged: a merge holds up one seal by well under 0.1 s."""

_FIXED_BYTES: Final = 29
"""What a row takes beside its keys and values: two timestamps, the operation, three offsets."""


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

    def __init__(self, store: EventStore, span: Span) -> None:
        """Open or create the span's folder; finish what a crash left. Raises Fatal when it is corrupt."""
        self.span, self.id = span, span_id(span, store.kv_mode)
        self._store, self._folder = store, span_folder(store.folder, span, store.kv_mode)
        self._durable: Durability = store.durable
        self._pending: list[_Pending] = []
        self._pending_lock = threading.Lock()  # guards _pending; held briefly
        self._seal_lock = threading.Lock()  # guards manifest and files; held while writing
        self._manifest_dirty = False
        self._closed = False
        self.rows_sealed = 0
        self._manifest = self._recover()
        self._resolved = self._manifest.resolved

    def _recover(self) -> Manifest:
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / MANIFEST).exists():
            manifest = Manifest(self.span, (RegionRange(self.span.start, self.span.end, 0),))
        else:
            manifest = load_manifest(self._folder)
            assert manifest.span == self.span, f"{self._folder} holds {manifest.span}, not {self.span}"
            resolved = max(manifest.resolved, self._store.published(self.id))
            clipped = [
                replace(s, valid_to=resolved) if s.last_ts > resolved else s for s in manifest.segments
            ]
            manifest = replace(manifest, segments=tuple(clipped)).with_resolved(resolved)
        write_manifest(self._folder, manifest, self._durable)
        known = {s.file for s in manifest.segments} | {MANIFEST}
        for path in self._folder.iterdir():
            if path.name not in known:
                path.unlink()
        return manifest

    @property
    def resolved(self) -> Timestamp:
        """Every commit <= this is in the span's segments (0: nothing is known)."""
        return self._resolved

    @property
    def complete_from(self) -> Timestamp:
        """Rows with commit_ts <= this may be missing: never pulled, or dropped."""
        return self._manifest.dropped_to

    @property
    def manifest(self) -> Manifest:
        """What is sealed, for status."""
        return self._manifest

    @property
    def pending_bytes(self) -> int:
        """Bytes of the blocks that wait in memory."""
        with self._pending_lock:
            return sum(p.bytes for p in self._pending)

    def begin(self, start_ts: Timestamp) -> None:
        """Make the span ready for a reader at `start_ts`: complete from there on once it is resolved.

        Nothing happens when the store covers `start_ts`. A start beyond the resolved ts leaves a hole, so
        what lies before is dropped; a start below what the store still has drops everything and starts over.
        """
        if self.complete_from <= start_ts <= self._resolved:
            return
        self._store.withdraw(self.id)
        with self._seal_lock:
            self._clear()
            old = self._manifest.segments
            fresh = replace(self._manifest, segments=(), dropped_to=start_ts)
            self._replace_manifest(fresh.with_resolved(start_ts), old)
            self._resolved = start_ts

    def append(self, block: pa.RecordBatch) -> None:
        """Hold a block of ENTRY_SCHEMA in any order. Its rows must lie above the resolved ts.

        Beyond the store's memory budget this call writes a run and so takes as long as the disk.
        """
        if block.num_rows == 0 or self._closed:
            return
        held = _Pending.of(block)
        if held.min_ts <= self._resolved:
            raise Fatal(
                "a change arrived at or below the resolved ts of its span",
                where=f"span {self.id}, commit_ts {held.min_ts}, resolved {self._resolved}",
                why="the matcher let a late row through; readers may have passed it",
                fix="restart the capture; it pulls from the resolved ts again. Please report this",
            )
        with self._pending_lock:
            self._pending.append(held)
        self._store.charge(held.bytes)
        self._store.relieve()

    def seal(self, resolved: Timestamp) -> None:
        """Make every change up to `resolved` durable and let `resolved` say so. Never goes back.

        Without rows in the range this costs no file: the frontier alone carries the new ts.
        """
        if resolved <= self._resolved:
            return
        with self._seal_lock:
            if self._closed:
                return
            written = self._write_waiting(resolved)
            old: list[SegmentInfo] = []
            if written or self._manifest_dirty:
                old = self._merge_small(resolved)
                self._replace_manifest(self._manifest.with_resolved(resolved), old)
                self._manifest_dirty = False
            self._manifest = self._manifest.with_resolved(resolved)
            self._resolved = resolved

    def spill(self) -> None:
        """Write all that waits in memory as a run beyond the resolved ts."""
        with self._seal_lock:
            if not self._closed and self._write_waiting(timestamp.MAX):
                self._manifest_dirty = True

    def drop_below(self, ts: Timestamp) -> None:
        """Remove the segments that hold nothing above `ts`. `ts` above the resolved ts counts as that."""
        limit = min(ts, self._resolved)
        with self._seal_lock:
            old = [s for s in self._manifest.segments if s.last_ts <= limit]
            if not old:
                return
            kept = tuple(s for s in self._manifest.segments if s.last_ts > limit)
            dropped = max(self._manifest.dropped_to, *(s.last_ts for s in old))
            self._replace_manifest(replace(self._manifest, segments=kept, dropped_to=dropped), tuple(old))

    def close(self) -> None:
        """Forget what waits in memory; later calls of this object do nothing. `open_span` opens anew."""
        with self._seal_lock:
            self._closed = True
            self._clear()
        self._store.forget(self)

    def _clear(self) -> None:
        with self._pending_lock:
            freed = sum(p.bytes for p in self._pending)
            self._pending.clear()
        self._store.charge(-freed)

    def _write_waiting(self, upto: Timestamp) -> bool:
        """Write the waiting rows <= upto as one segment; they leave memory. False: there were none."""
        after = self._resolved
        with self._pending_lock:
            chosen = [p for p in self._pending if p.min_ts <= upto]
        if not chosen:
            return False
        table = kernels.table_of([p.line for p in chosen])
        taken = np.zeros(len(chosen), dtype=np.int64)
        refs, low, high = kernels.order_rows(table, after, upto, taken)
        if len(refs):
            batches = kernels.take_all(table, refs, self._store.scratch())
            info = self._write(batches, len(refs), low, high)
            self._manifest = replace(self._manifest, segments=(*self._manifest.segments, info))
            self.rows_sealed += len(refs)
        self._forget_taken(chosen, taken, upto)
        return len(refs) > 0

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
        self._store.charge(sum(p.bytes for p in fresh) - freed)

    def _write(
        self, batches: Iterable[pa.RecordBatch], rows: int, low: Timestamp, high: Timestamp
    ) -> SegmentInfo:
        number = self._manifest.next_file
        self._manifest = replace(self._manifest, next_file=number + 1)
        facts = segment.Facts(self.id, rows, low, high)
        return segment.write(self._folder, f"{number:012d}.arrow", facts, batches, self._durable)

    def _merge_small(self, resolved: Timestamp) -> list[SegmentInfo]:
        """Merge small neighbours when they are many; returns those segments, their files still there."""
        chosen = _mergeable(self._manifest.segments, resolved)
        if chosen:
            batches = list(reader.merged([Segment(self._folder, s) for s in chosen], 0, resolved))
            low, high = segment.ends(batches[0])[0], segment.ends(batches[-1])[1]
            info = self._write(batches, sum(b.num_rows for b in batches), low, high)
            place = self._manifest.segments.index(chosen[0])
            kept = [s for s in self._manifest.segments if s not in chosen]
            self._manifest = replace(self._manifest, segments=(*kept[:place], info, *kept[place:]))
        return chosen

    def _replace_manifest(self, manifest: Manifest, old: Iterable[SegmentInfo]) -> None:
        write_manifest(self._folder, manifest, self._durable)
        self._manifest = manifest
        for info in old:
            (self._folder / info.file).unlink(missing_ok=True)


def _beyond(held: _Pending, after: Timestamp) -> list[pa.RecordBatch]:
    """Copies of a block's rows above `after`."""
    table = kernels.table_of([held.line])
    refs, _, _ = kernels.order_rows(table, after, timestamp.MAX, np.zeros(1, dtype=np.int64))
    return list(kernels.take_all(table, refs, kernels.allocate))


def _mergeable(segments: tuple[SegmentInfo, ...], resolved: Timestamp) -> list[SegmentInfo]:
    """The newest small resolved neighbours, MERGE_COUNT or more; empty when they are fewer.

    One that outweighs all younger ones together is left out: a byte is rewritten a few times, not often.
    """
    chosen: list[SegmentInfo] = []
    for info in reversed(segments):
        if info.bytes < MERGE_BELOW and info.last_ts <= resolved:
            chosen.append(info)
        elif chosen:
            break
    weight = sum(s.bytes for s in chosen)
    while len(chosen) >= MERGE_COUNT and 2 * chosen[-1].bytes > weight:
        weight -= chosen.pop().bytes
    return chosen[::-1] if len(chosen) >= MERGE_COUNT else []


class EventStore:
    """All spans of one (cluster, kv mode), in one folder, written by one process."""

    def __init__(
        self,
        folder: Path | str,
        *,
        durable: Durability = "process",
        memory_bytes: int = 512 << 20,
        kv_mode: str = "tidb",
    ) -> None:
        """Open or create the folder. Raises Retryable while another process has it, Fatal when corrupt."""
        self.folder, self.durable = Path(folder), durable
        self.memory_bytes, self.kv_mode = memory_bytes, kv_mode
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock(self.folder / "lock")
        self._spans: dict[str, SpanStore] = {}
        self._lock = threading.Lock()  # guards _spans, _published and _held
        self._open_lock = threading.Lock()
        self._publish_lock = threading.Lock()
        self._held = 0
        self._thread = threading.local()
        self._published = load_frontier(self.folder)
        self._clear_remains()

    def _clear_remains(self) -> None:
        """Folders that lost their manifest when a removal was cut off hold nothing anybody knows of."""
        for folder in self.folder.iterdir():
            if folder.is_dir() and not (folder / MANIFEST).exists():
                shutil.rmtree(folder, ignore_errors=True)

    def open_span(self, span: Span) -> SpanStore:
        """The span's store, opened once. Raises Fatal when its manifest is corrupt."""
        name = span_id(span, self.kv_mode)
        with self._open_lock:
            found = self._spans.get(name)
            if found is None:
                found = SpanStore(self, span)
                with self._lock:
                    self._spans[name] = found
            return found

    def remove_span(self, span: Span) -> None:
        """Delete all that is kept of a span; opened again it begins empty. Nobody may be reading it."""
        name = span_id(span, self.kv_mode)
        with self._open_lock:
            found = self._spans.get(name)
            if found is not None:
                found.close()
            # Readers first; then the manifest, so that what a crash leaves behind is known as remains.
            self.withdraw(name)
            folder = span_folder(self.folder, span, self.kv_mode)
            (folder / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self) -> None:
        """Tell readers how far each open span is sealed. Costs nothing when no span moved."""
        with self._publish_lock:
            with self._lock:
                spans = list(self._spans.values())
                fresh = self._published | {s.id: s.resolved for s in spans if s.resolved > 0}
            self._write_frontier(fresh)

    def withdraw(self, span_id: str) -> None:
        """Take a span's ts back before its data goes, so that a crash cannot leave a ts without data."""
        with self._publish_lock:
            with self._lock:
                fresh = {k: v for k, v in self._published.items() if k != span_id}
            self._write_frontier(fresh)

    def _write_frontier(self, fresh: dict[str, Timestamp]) -> None:
        if fresh != self._published:
            write_frontier(self.folder, fresh, self.durable)
            self._published = fresh

    def published(self, span_id: str) -> Timestamp:
        """What readers were last told about a span; 0 for nothing."""
        return self._published.get(span_id, 0)

    def scratch(self) -> kernels.Scratch:
        """The calling thread's memory for one block at a time; used again for the next."""
        if not hasattr(self._thread, "scratch"):
            self._thread.scratch = kernels.Scratch()
        found: kernels.Scratch = self._thread.scratch
        return found

    def charge(self, size: int) -> None:
        """Count bytes that spans hold in memory."""
        with self._lock:
            self._held += size

    @property
    def held_bytes(self) -> int:
        """Bytes that wait in memory over all spans."""
        return self._held

    def relieve(self) -> None:
        """While more than `memory_bytes` wait in memory, write the largest span's rows as a run."""
        while self._held > self.memory_bytes:
            with self._lock:
                spans = list(self._spans.values())
            largest = max(spans, key=lambda s: s.pending_bytes)
            if largest.pending_bytes == 0:
                return
            largest.spill()

    def forget(self, span: SpanStore) -> None:
        """A span was closed; what was published of it stays published."""
        with self._lock:
            if self._spans.get(span.id) is span:
                del self._spans[span.id]

    def close(self) -> None:
        """Close every span and give the folder free. Nothing is published."""
        for span in list(self._spans.values()):
            span.close()
        os.close(self._lock_file)


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise Retryable(
            "the event store is in use",
            where=str(path.parent),
            why="another process holds its lock",
            fix="stop the other capture, or give this one a data folder of its own",
        ) from error
    return descriptor
