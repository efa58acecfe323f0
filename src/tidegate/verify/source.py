"""The source side: rows as TiKV holds them at a ts, read by tasks along regions, decoded by the mounter."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.kvclient.pages import pages
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.model.block import ENTRY_SCHEMA, PUT
from tidegate.model.schema import TableSchema
from tidegate.model.span import Span
from tidegate.mounter.columns import to_arrow
from tidegate.mounter.decode import MountOptions, Quarantined, columns_of, decode_group
from tidegate.tidb import keys, table_info
from tidegate.tidb.memcomparable import decode_bytes
from tidegate.verify.ranges import END, Cuts, in_order
from tidegate.verify.side import Shape, chosen, marked, marks, summed


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of a cluster at a ts; small, and sent to every task."""

    pd: str
    ts: int
    schema: str
    info: dict[str, Any]

    def parsed(self) -> TableSchema:
        """As decoders take it."""
        return table_info.table_schema(self.schema, self.info, self.ts)


@dataclass(frozen=True, slots=True)
class Found:
    """What a task found of the source."""

    value: Any
    """Of the question asked: a list of Ordered, Sums, words and fingerprints, or an Arrow stream."""
    undecodable: int
    """Rows that no decoder understands; they count in no sum."""


class _Reader:
    """Rows of spans as typed batches, within one task."""

    def __init__(self, source: SourceTable, pd: PdClient) -> None:
        self._table = source.parsed()
        self._pd, self._snapshot = pd, Snapshot(pd, source.ts)
        self.shape = Shape.of(self._table)
        self.undecodable = 0

    def batches(self, spans: Sequence[Span]) -> Iterator[pa.RecordBatch]:
        """All rows of the spans, in key order within each."""
        for span in spans:
            for page in pages(self._pd, self._snapshot, span):
                yield self._decoded(page)

    def _decoded(self, page: pa.RecordBatch) -> pa.RecordBatch:
        n = page.num_rows
        stamp, put = pa.array(np.zeros(n, np.uint64)), pa.array(np.full(n, PUT, np.uint8))
        old = pa.array([b""], pa.binary()).take(pa.array(np.zeros(n, np.int8)))
        entries = [stamp, stamp, put, page.column(0), page.column(1), old]
        block = columns_of(pa.RecordBatch.from_arrays(entries, schema=ENTRY_SCHEMA))
        records = np.flatnonzero(block.lengths >= 0)
        failed: list[Quarantined] = []
        group = decode_group(block, self._table, records, MountOptions(), failed)
        self.undecodable += len(failed)
        return to_arrow(group).cast(self.shape.schema)


def ordered_sums(source: SourceTable, rows_a_range: int, pieces: Sequence[tuple[int, int]]) -> Found:
    """Ranges of so many rows, and their sums, of pieces [low, end) of words, each scanned in key order."""
    with PdClient(source.pd) as pd:
        reader = _Reader(source, pd)
        prefix = keys.record_prefix(reader._table.id)

        def rows(span: Span) -> Iterator[tuple[Any, Any]]:
            for batch in reader.batches([span]):
                yield reader.shape.words(batch.select(reader.shape.key_columns)), marks(batch)

        made = [in_order(low, end, rows(span_of(prefix, low, end)), rows_a_range) for low, end in pieces]
        return Found(made, reader.undecodable)


def sums(source: SourceTable, cuts: Cuts, spans: Sequence[Span]) -> Found:
    """The sums over all rows of the spans."""
    return _asked(source, spans, lambda shape, batches: summed(shape, cuts, batches))


def fingerprints(source: SourceTable, cuts: Cuts, spans: Sequence[Span]) -> Found:
    """Words and fingerprints of the rows in the wanted ranges among those of the spans."""
    return _asked(source, spans, lambda shape, batches: marked(shape, cuts, batches))


def rows(source: SourceTable, cuts: Cuts, spans: Sequence[Span]) -> Found:
    """The rows of the wanted ranges among those of the spans."""
    return _asked(source, spans, lambda shape, batches: chosen(shape, cuts, batches))


def _asked(
    source: SourceTable,
    spans: Sequence[Span],
    question: Callable[[Shape, Iterator[pa.RecordBatch]], Any],
) -> Found:
    with PdClient(source.pd) as pd:
        reader = _Reader(source, pd)
        return Found(question(reader.shape, reader.batches(spans)), reader.undecodable)


# --- where rows lie: asked by the driver ---------------------------------------------------------------


def span_of(prefix: bytes, low: int, end: int) -> Span:
    """The record keys of words [low, end) of a table with this record prefix."""
    stop = prefix + end.to_bytes(8, "big") if end < END else prefix[:-1] + bytes([prefix[-1] + 1])
    return Span(prefix + low.to_bytes(8, "big"), stop)


def spans_of(pd: PdClient, table: TableSchema) -> list[Span]:
    """The table's record keys, cut where regions end."""
    found: list[Span] = []
    for physical_id in table.physical_ids:
        found += cut_at(region_starts(pd, keys.record_span(physical_id)), keys.record_span(physical_id))
    return found


def cut_at(bounds: Sequence[bytes], span: Span) -> list[Span]:
    """A span cut at raw keys inside it."""
    edges = [span.start, *(key for key in bounds if span.start < key < span.end), span.end]
    return [Span(low, end) for low, end in pairwise(edges)]


def region_starts(pd: PdClient, span: Span) -> list[bytes]:
    """The raw keys inside a span at which regions begin."""
    found: list[bytes] = []
    region = pd.regions.locate_start(span.start)
    while region.end_key:
        end = decode_bytes(region.end_key)[0]
        if end >= span.end:
            break
        found.append(end)
        region = pd.regions.locate_start(end)
    return found


def words_at(bounds: Sequence[bytes], prefix: bytes) -> list[int]:
    """The first word of each region, of the raw keys at which regions of a record prefix begin."""
    found = []
    for key in bounds:
        handle = key[len(prefix) :]
        found.append(int.from_bytes(handle[:8].ljust(8, b"\0"), "big") + (len(handle) > 8))
    return found


def pieces_of(runs: Sequence[tuple[int, int]], bounds: Sequence[int]) -> list[tuple[int, int]]:
    """Runs [low, end) of words, cut where regions begin; `bounds` ascend."""
    found: list[tuple[int, int]] = []
    for low, end in runs:
        inside = bounds[bisect_right(bounds, low) : bisect_left(bounds, end)]
        edges = [low, *inside, end]
        found += pairwise(edges)
    return found
