"""Blocks of a span between two timestamps: sorted, each change once, every byte verified.

Reading is safe while another process writes: a reader takes the frontier first, then the manifest, reads only
up to that frontier, and then checks that the frontier was not withdrawn (`store_view.check`). If a segment
was merged away in between, `read` reads the manifest again; a segment that is already open stays readable.
Spark's tasks, the control process and the store's own merging use this module; it keeps nothing open between
calls.

A reader of some `tables` finds their rows by the segments' directories. If they are only a small part of a
batch, the other rows are not read, so the batch's CRC cannot be checked; the directory's sums verify the
rows instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.eventstore import damage, directory_kernels, kernels, store_view
from tidegate.eventstore.seek import beyond
from tidegate.eventstore.segment import UNLOAD_BYTES, DamagedSegment, Segment
from tidegate.model.block import MAX_BLOCK_BYTES, MAX_BLOCK_ROWS
from tidegate.model.position import Place
from tidegate.model.timestamp import Timestamp

JOINED_BYTES: Final = 2 << 20
"""Pieces of at least so many bytes are not joined with others: a copy would cost more than another block."""
SCATTERED: Final = 8
"""If fewer than one in this many rows of a batch is wanted, the rows' sums are verified, not the CRC."""


def read(
    store: Path | str,
    span_id: str,
    after: Timestamp,
    upto: Timestamp,
    max_rows: int = MAX_BLOCK_ROWS,
    past: Place | None = None,
    tables: Collection[int] | None = None,
    wanted: Callable[[str], store_view.Wanted | None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The span's changes with after < commit_ts <= upto as sorted blocks of at most `max_rows`.

    `past`: leave out all changes up to and including that place. It is found by reading rows, because the
    index resolves only commit ts. `tables`: only the rows (`t{id}_r` keys) of these ids; not for keys without
    tables. `wanted`: returns which tables of a stripe must be complete (`store_view.check`). Raises Retryable
    if the span has no manifest or a torn one, if the store does not hold the whole range (any more, or not
    yet: `store_view.check`), or if a segment is damaged and will be repaired (`damage`; Fatal if it cannot
    be). Blocks may be views of mapped files.
    """
    try:
        segments = _open_segments(Path(store), span_id, after, upto, wanted)
    except DamagedSegment as found:
        raise damage.met(Path(store), span_id, found) from None
    blocks = merged(segments, after, upto, max_rows, tables)
    return _reporting(Path(store), span_id, blocks if past is None else beyond(blocks, past))


def read_together(
    store: Path | str,
    spans: Sequence[tuple[str, Timestamp, Timestamp]],
    max_rows: int = MAX_BLOCK_ROWS,
    past: Place | None = None,
    tables: Collection[int] | None = None,
    wanted: Callable[[str], store_view.Wanted | None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The changes of several spans, each (id, after, upto), merged in the store's order. See `read`."""
    sources = [read(store, *span, max_rows, past, tables, wanted) for span in spans]
    return sources[0] if len(sources) == 1 else _merge(sources, max_rows)


def _reporting(store: Path, span_id: str, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from blocks
    except DamagedSegment as found:
        raise damage.met(store, span_id, found) from None


def _open_segments(
    store: Path,
    span_id: str,
    after: Timestamp,
    upto: Timestamp,
    wanted: Callable[[str], store_view.Wanted | None] | None,
) -> list[Segment]:
    missing = ""
    for attempt in range(1, store_view.READ_ATTEMPTS + 1):
        manifest = store_view.read_manifest(store, span_id)
        opened = []
        for info in manifest.segments:
            if info.overlaps(after, upto):
                try:
                    opened.append(Segment(store / span_id, info))
                except FileNotFoundError:
                    missing = info.file
                    break
        else:
            try:
                # After all files are open: the check reads the floor, and a floor that was withdrawn before
                # the files were opened is noticed.
                store_view.check(store, span_id, manifest, after, upto, wanted)
            except store_view.Unresolved:
                if attempt == store_view.READ_ATTEMPTS:
                    raise
                continue  # perhaps only because the manifest was replaced in between
            return opened
    raise DamagedSegment(
        store / span_id / missing, "all of it", "the manifest names it and the file is not there"
    )


def merged(
    segments: Sequence[Segment],
    after: Timestamp,
    upto: Timestamp,
    max_rows: int = MAX_BLOCK_ROWS,
    tables: Collection[int] | None = None,
    joined_below: int = JOINED_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The rows of open segments in (after, upto], sorted; smaller pieces are joined into blocks.

    `tables`: as in `read`. `joined_below`: so many bytes.
    """
    wanted = None if tables is None else np.array(sorted(tables), dtype=np.int64)
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in _pieces(segments, after, upto, max_rows, wanted):
        added = piece.nbytes
        is_large = added >= joined_below
        if held and (is_large or rows + piece.num_rows > max_rows or size + added > MAX_BLOCK_BYTES):
            yield _joined(held)
            held, rows, size = [], 0, 0
        if is_large:
            yield piece
            continue
        held.append(piece)
        rows, size = rows + piece.num_rows, size + added
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _pieces(
    segments: Sequence[Segment], after: Timestamp, upto: Timestamp, max_rows: int, wanted: kernels.I64 | None
) -> Iterator[pa.RecordBatch]:
    behind: Sequence[Segment] = ()
    for group in _overlapping(segments):
        sources = [_ranged(one, after, upto, wanted) for one in group]
        parts: Iterable[pa.RecordBatch] = sources[0]
        if len(group) > 1:
            heads = [_unloaded(*each) for each in zip(sources, group, strict=True)]
            parts = _merge(heads, max_rows, group)
        for part in parts:
            for first in range(0, part.num_rows, max_rows):
                yield part.slice(first, max_rows)
        # Otherwise the last batch of each segment would stay mapped until the end of the read. Not those of
        # this group: a caller that looks one piece ahead has yet to read them.
        for segment in behind:
            segment.unload()
        behind = group


def _overlapping(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Groups of segments with overlapping ts ranges, in ts order; only these need to be merged."""
    group: list[Segment] = []
    reach = -1
    for segment in sorted(segments, key=lambda s: s.info.min_ts):
        # Equal ts overlap, because the rows of one commit_ts may be in both.
        if group and segment.info.min_ts > reach:
            yield group
            group = []
        group.append(segment)
        reach = max(reach, segment.info.last_ts)
    if group:
        yield group


def _ranged(
    segment: Segment, after: Timestamp, upto: Timestamp, wanted: kernels.I64 | None
) -> Iterator[pa.RecordBatch]:
    """The parts of a segment's batches with commit_ts in (after, upto], verified and not empty."""
    limit = min(upto, segment.info.last_ts)
    indexes = segment.indexes(after, limit)
    batches = (segment.batch(i) for i in indexes) if wanted is None else _of_tables(segment, indexes, wanted)
    for batch in batches:
        commits = batch.column(0).to_numpy()
        first = int(np.searchsorted(commits, np.uint64(after), side="right"))
        end = int(np.searchsorted(commits, np.uint64(limit), side="right"))
        if end > first:
            yield batch.slice(first, end - first)


def _unloaded(source: Iterator[pa.RecordBatch], segment: Segment) -> Iterator[pa.RecordBatch]:
    """A segment's batches for a merge, each without the pages that its CRC has touched.

    The merge needs a few rows of each head at a time. The heads of one large transaction run out at nearly
    the same row, so their next batches would all be mapped at once.
    """
    for batch in source:
        segment.unload()
        yield batch


def _of_tables(segment: Segment, indexes: Iterable[int], wanted: kernels.I64) -> Iterator[pa.RecordBatch]:
    """The wanted tables' rows of some batches, verified; a batch with a single table is not copied."""
    directory = segment.directory
    entries = directory.entries_of(wanted)
    # Entries are numbered batch after batch, so `first` cuts the wanted ones by batch, too.
    cuts = np.searchsorted(entries, directory.first).tolist()
    for index in indexes:
        chosen = entries[cuts[index] : cuts[index + 1]]
        if not len(chosen):
            continue
        if directory.is_all(int(chosen[0])):
            yield segment.batch(index)
            continue
        rows = int((directory.starts[chosen + 1] - directory.starts[chosen]).sum())
        # Every byte that goes out is verified by one of the two: the batch's CRC, or the sums of its
        # entries.
        proved = rows * SCATTERED >= segment.info.blocks[index].rows
        batch = segment.batch(index) if proved else segment.unproved(index)
        refs = directory_kernels.rows_of(batch, directory, chosen, proved=proved)
        if refs is None:
            raise segment.not_written(index)
        yield from kernels.take_all(kernels.table_of([kernels.describe(batch)]), refs, kernels.allocate)
        if segment.info.blocks[index].bytes >= UNLOAD_BYTES:
            segment.unload()


def _merge(
    sources: Sequence[Iterator[pa.RecordBatch]], max_rows: int, segments: Sequence[Segment] = ()
) -> Iterator[pa.RecordBatch]:
    """Merge sorted sources. `segments`: the segments they read, whose mapped pages are released.

    One batch of each source is open as a view, and only the rows of one block are copied into memory.
    """
    heads: list[tuple[Iterator[pa.RecordBatch], pa.RecordBatch]] = []
    for source in sources:
        heads += [(source, batch) for batch in [next(source, None)] if batch is not None]
    cursors = np.zeros(len(heads), dtype=np.int64)
    while heads:
        ends = np.array([batch.num_rows for _, batch in heads], dtype=np.int64)
        table = kernels.table_of([kernels.describe(batch) for _, batch in heads])
        refs = np.empty(max_rows, dtype=np.int64)
        # It stops as soon as one source needs its next batch, even if `refs` is not full.
        count = kernels.merge(table, cursors, ends, refs)
        first = 0
        while first < count:
            block, first = kernels.take(table, refs[:count], first, max_rows)
            if block.nbytes >= UNLOAD_BYTES:
                for segment in segments:
                    segment.unload()
            yield block
            del block  # free its memory before the next block is made
        heads, cursors = _refilled(heads, cursors, ends)


def _refilled(
    heads: list[tuple[Iterator[pa.RecordBatch], pa.RecordBatch]], cursors: kernels.I64, ends: kernels.I64
) -> tuple[list[tuple[Iterator[pa.RecordBatch], pa.RecordBatch]], kernels.I64]:
    """Advance the sources whose batch is used up; remove those that have no more batches."""
    fresh, at = [], []
    for (source, batch), cursor, end in zip(heads, cursors.tolist(), ends.tolist(), strict=True):
        following: pa.RecordBatch | None = batch
        if cursor >= end:
            following, cursor = next(source, None), 0
        if following is not None:
            fresh.append((source, following))
            at.append(cursor)
    return fresh, np.array(at, dtype=np.int64)
