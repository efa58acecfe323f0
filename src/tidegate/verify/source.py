"""The source side: tasks that read a table's rows, and where those rows are in TiKV."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.tables.catalogue import SourceTable
from tidegate.tables.reader import SpanReader
from tidegate.tidb import keys
from tidegate.verify.ranges import END, Cuts, in_order
from tidegate.verify.side import Shape, chosen, marked, marks, summed


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one task at the source."""

    value: Any
    """The answer: a list of Ordered, Sums, words and fingerprints, or an Arrow stream."""
    undecodable: int
    """Rows that cannot be decoded; no sum contains them."""


def ordered_sums(source: SourceTable, rows_a_range: int, pieces: Sequence[tuple[int, int]]) -> Found:
    """Ranges of so many rows, with sums, for pieces [low, end) of words; each is scanned in key order."""
    with PdClient(source.pd) as pd:
        reader = SpanReader(source, pd)
        shape, prefix = Shape.of(reader.table), keys.record_prefix(reader.table.id)

        def rows(span: Span) -> Iterator[tuple[Any, Any]]:
            for batch in reader.batches([span]):
                yield shape.words(batch.select(shape.key_columns)), marks(batch)

        made = [in_order(low, end, rows(span_of(prefix, low, end)), rows_a_range) for low, end in pieces]
        return Found(made, reader.undecodable)


def sums(source: SourceTable, cuts: Cuts, spans: Sequence[Span]) -> Found:
    """The sums over all rows of the spans."""
    return _asked(source, spans, lambda shape, batches: summed(shape, cuts, batches))


def fingerprints(source: SourceTable, cuts: Cuts, spans: Sequence[Span]) -> Found:
    """Words and fingerprints of the rows of the spans that are in wanted ranges."""
    return _asked(source, spans, lambda shape, batches: marked(shape, cuts, batches))


def rows(source: SourceTable, cuts: Cuts, spans: Sequence[Span]) -> Found:
    """The rows of the spans that are in wanted ranges, as an Arrow stream."""
    return _asked(source, spans, lambda shape, batches: chosen(shape, cuts, batches))


def _asked(
    source: SourceTable,
    spans: Sequence[Span],
    question: Callable[[Shape, Iterator[pa.RecordBatch]], Any],
) -> Found:
    with PdClient(source.pd) as pd:
        reader = SpanReader(source, pd)
        return Found(question(Shape.of(reader.table), reader.batches(spans)), reader.undecodable)


# --- where rows lie: asked by the driver ---------------------------------------------------------------


def span_of(prefix: bytes, low: int, end: int) -> Span:
    """The span of record keys for the words [low, end) of a table with this record prefix."""
    # A record prefix ends with `r`, so its last byte can be increased.
    stop = prefix + end.to_bytes(8, "big") if end < END else prefix[:-1] + bytes([prefix[-1] + 1])
    return Span(prefix + low.to_bytes(8, "big"), stop)


def words_at(bounds: Sequence[bytes], prefix: bytes) -> list[int]:
    """The first word of each region; `bounds`: the raw keys at which the regions of a prefix begin."""
    found = []
    for key in bounds:
        handle = key[len(prefix) :]
        # A region that begins with more than 8 bytes begins after the row of that word.
        found.append(int.from_bytes(handle[:8].ljust(8, b"\0"), "big") + (len(handle) > 8))
    return found


def pieces_of(runs: Sequence[tuple[int, int]], bounds: Sequence[int]) -> list[tuple[int, int]]:
    """Split runs [low, end) of words where regions begin; `bounds` ascend."""
    found: list[tuple[int, int]] = []
    for low, end in runs:
        # Strictly inside, so that no piece is empty.
        inside = bounds[bisect_right(bounds, low) : bisect_left(bounds, end)]
        edges = [low, *inside, end]
        found += pairwise(edges)
    return found
