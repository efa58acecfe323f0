"""The common part of both sides of a comparison: a table's shape, and work on batches of typed rows. Pure.

A side reads its rows in parts, each by one task, as record batches of `Shape.schema`. This module computes
their words and fingerprints, sums over ranges, or selects the rows of some ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.schema import TableSchema
from tidegate.tables.reader import schema_of
from tidegate.verify.fingerprint import KEY, ROW, fingerprints, order_words
from tidegate.verify.ranges import Cuts, Sums, tally

U64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows of a table are compared."""

    schema: pa.Schema
    """All columns in the target's types."""
    key: tuple[str, ...]
    """The columns that identify a row; empty: only its whole content identifies it."""
    ordered: bool
    """Whether words follow the order of the record keys: one integer key, clustered, not partitioned."""

    @classmethod
    def of(cls, table: TableSchema) -> Shape:
        """The shape of a table."""
        key = tuple(table.columns[at].name for at in table.handle_key)
        ordered = table.pk_is_handle and not table.partitions and len(table.handle_columns) == 1
        return cls(schema_of(table), key, ordered)

    def words(self, keys: pa.RecordBatch) -> U64s:
        """Order words of rows; `keys` has their `key_columns`."""
        return order_words(keys.column(0)) if self.ordered else fingerprints(keys, KEY)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns from which words are computed."""
        return self.key or tuple(self.schema.names)


def marks(rows: pa.RecordBatch) -> U64s:
    """Fingerprints of whole rows."""
    return fingerprints(rows, ROW)


def summed(shape: Shape, cuts: Cuts, batches: Iterator[pa.RecordBatch]) -> Sums:
    """The sums over all rows."""
    total = Sums.zero(len(cuts))
    for rows in batches:
        total += tally(cuts, shape.words(rows.select(shape.key_columns)), marks(rows))
    return total


def marked(shape: Shape, cuts: Cuts, batches: Iterator[pa.RecordBatch]) -> tuple[U64s, U64s]:
    """Words and fingerprints of the rows in the wanted ranges."""
    words, found = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for rows in batches:
        at = shape.words(rows.select(shape.key_columns))
        inside = cuts.place(at) >= 0
        if inside.any():
            words.append(at[inside])
            found.append(marks(rows)[inside])
    return np.concatenate(words), np.concatenate(found)


def chosen(shape: Shape, cuts: Cuts, batches: Iterator[pa.RecordBatch]) -> bytes:
    """The rows of the wanted ranges, as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, shape.schema) as out:
        for rows in batches:
            inside = cuts.place(shape.words(rows.select(shape.key_columns))) >= 0
            if inside.any():
                out.write_batch(rows if inside.all() else rows.filter(pa.array(inside)))
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def rows_of(streams: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """The rows of Arrow streams."""
    tables = [pa.ipc.open_stream(stream).read_all() for stream in streams]
    return pa.concat_tables(tables) if tables else schema.empty_table()
