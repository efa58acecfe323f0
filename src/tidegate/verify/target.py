"""The target side: tasks that read a Delta table at a snapshot's version from its Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.consumer.table.convert import moments
from tidegate.errors import Fatal
from tidegate.sink.lakehouse.deletion_vectors import Positions, without
from tidegate.verify.fingerprint import order_words
from tidegate.verify.ranges import Cuts, Sums, U64s
from tidegate.verify.side import Shape, chosen, marked, summed

BATCH_ROWS: Final = 65_536
NO_VALUES: Final[Mapping[str, Any]] = {}
NO_ROWS: Final[Mapping[str, Positions]] = {}
_NONE: Final = np.array([], np.uint32)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a data file."""

    file: str
    group: int
    rows: int
    words: tuple[int, int] | None
    """The least and the greatest order word; None if the file's statistics do not have them."""
    values: tuple[tuple[str, Any], ...] = ()
    """The partition columns, which the file does not have, with the value of all its rows."""
    dead: bytes = b""
    """The numbers of the deleted rows, counted from the beginning of the group: 32 bits each."""


def pieces_of(
    files: Sequence[Path],
    shape: Shape,
    partitions: Mapping[str, Mapping[str, Any]],
    deleted: Mapping[str, Positions] = NO_ROWS,
) -> list[RowGroup]:
    """Every row group of the files; reads their footers.

    `partitions`, `deleted`: see `TableSnapshot.partition_values`, `TableSnapshot.deleted_rows`.
    """
    found: list[RowGroup] = []
    for file in files:
        held, values = _opened(str(file)).metadata, tuple(partitions.get(file.name, {}).items())
        dead, begin = deleted.get(file.name, _NONE), 0
        for group in range(held.num_row_groups):
            part = held.row_group(group)
            end = begin + part.num_rows
            here = dead[np.searchsorted(dead, begin) : np.searchsorted(dead, end)] - np.uint32(begin)
            rows = part.num_rows - len(here)
            found.append(RowGroup(str(file), group, rows, _bounds(part, shape), values, here.tobytes()))
            begin = end
    return found


def _bounds(group: pq.RowGroupMetaData, shape: Shape) -> tuple[int, int] | None:
    """Order words of the least and the greatest key in a row group of an ordered table."""
    # An unsigned bigint is a decimal at the target, and its statistics are no integers.
    if not shape.ordered or not pa.types.is_integer(shape.schema.field(shape.key[0]).type):
        return None
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == shape.key[0] and column.is_stats_set and column.statistics.has_min_max:
            ends = pa.array([column.statistics.min, column.statistics.max], pa.int64())
            low, high = order_words(ends).tolist()
            return low, high
    return None


def near(pieces: Sequence[RowGroup], runs: Sequence[tuple[int, int]]) -> list[RowGroup]:
    """The pieces that may hold rows of these runs [low, end) of words."""
    return [
        piece
        for piece in pieces
        if piece.words is None or any(low <= piece.words[1] and piece.words[0] < end for low, end in runs)
    ]


def batches(pieces: Sequence[RowGroup], shape: Shape, cuts: Cuts) -> Iterator[pa.RecordBatch]:
    """The rows of the pieces in the shape's types. Groups without a row in a wanted range may be left out."""
    # All ranges may be wanted while words below the first one are in no range.
    everything = bool(cuts.wanted.all()) and int(cuts.starts[0]) == 0
    for piece in pieces:
        file = _opened(piece.file)
        if not everything and not _holds(file, piece, shape, cuts):
            continue
        # A file that is older than a column lacks it; `conformed` adds it.
        known = set(file.schema_arrow.names)
        names = [name for name in shape.schema.names if name in known]
        dead, begin = np.frombuffer(piece.dead, np.uint32), 0
        for rows in file.iter_batches(BATCH_ROWS, row_groups=[piece.group], columns=names):
            alive = without(rows, dead, begin)
            begin += rows.num_rows
            yield conformed(alive, shape.schema, piece.file, dict(piece.values))


def _holds(file: pq.ParquetFile, piece: RowGroup, shape: Shape, cuts: Cuts) -> bool:
    """Whether a row of a wanted range is in the row group. Reads only the key's columns."""
    if not shape.key or not set(shape.key) <= set(file.schema_arrow.names):
        return True
    schema = pa.schema([shape.schema.field(name) for name in shape.key])
    keys = file.iter_batches(BATCH_ROWS, row_groups=[piece.group], columns=list(shape.key))
    return any((cuts.place(shape.words(conformed(k, schema, piece.file))) >= 0).any() for k in keys)


def conformed(
    rows: pa.RecordBatch, schema: pa.Schema, where: str, values: Mapping[str, Any] = NO_VALUES
) -> pa.RecordBatch:
    """The columns of `schema`, cast to its types; null for columns that an older file does not have.

    `values`: of columns that have one value in all rows of the file.
    """
    columns: list[Any] = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        if at < 0 and values.get(field.name) is None:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        try:
            column = rows.column(at) if at >= 0 else pa.array([values[field.name]])
            # docs/guarantees.md#a-row-of-the-source-is-one-row-at-the-target: dates in a key are text at the
            # target.
            keyed = pa.types.is_string(column.type) and pa.types.is_temporal(field.type)
            column = moments(column, field.type) if keyed else column.cast(field.type)
            columns.append(column if at >= 0 else pa.repeat(column[0], rows.num_rows))
        except pa.ArrowInvalid as error:
            raise Fatal(
                f"the target's column {field.name} holds a value that is not a {field.type}",
                where=where,
                why=str(error)[:200],
                fix="start a new target: the column's type was guessed from the first rows",
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _opened(file: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise Fatal(
            "a data file of the target cannot be read",
            where=file,
            why=str(error)[:200],
            fix="verify a newer snapshot; files older than the target's retention are deleted",
        ) from None


def sums(shape: Shape, cuts: Cuts, pieces: Sequence[RowGroup]) -> Sums:
    """The sums over the rows of the pieces."""
    return summed(shape, cuts, batches(pieces, shape, cuts))


def fingerprints(shape: Shape, cuts: Cuts, pieces: Sequence[RowGroup]) -> tuple[U64s, U64s]:
    """Words and fingerprints of the rows in the wanted ranges."""
    return marked(shape, cuts, batches(pieces, shape, cuts))


def rows(shape: Shape, cuts: Cuts, pieces: Sequence[RowGroup]) -> bytes:
    """The rows of the wanted ranges, as an Arrow stream."""
    return chosen(shape, cuts, batches(pieces, shape, cuts))
