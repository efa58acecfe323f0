"""Data files of a table: written, read, and selected by the keys that they may hold.

A file has at most about `FILE_BYTES` of rows in memory when it is written here, and is read whole. So a merge
needs the memory of its changes and of one file, regardless of the size of the table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC as UNPARTITIONED
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
)

from tidegate.consumer.applying.net_effect import factorize
from tidegate.consumer.iceberg.partitions import KeyPartitions, split

FILE_BYTES: Final = 64 << 20
"""Bytes of a data file's rows in memory."""
Numbers = npt.NDArray[np.int64]
_PARTITION: Final = 3
"""The place of the partition values in a `DataFile`."""
_ORDERED: Final = (IntegerType, LongType, StringType, BinaryType, DecimalType)
"""Types of keys whose bounds in manifests are used: Python orders their values as Iceberg does."""


def written(metadata: TableMetadata, io: FileIO, batches: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
    """Write rows, in the types of data files, into as many files as needed; one at a time is in memory."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        for piece in _pieces(batch):
            held.append(piece)
            size += piece.nbytes
            if size >= FILE_BYTES:
                yield from _data_files(metadata, pa.Table.from_batches(held), io)
                held, size = [], 0
    if size or any(batch.num_rows for batch in held):
        yield from _data_files(metadata, pa.Table.from_batches(held), io)


def _data_files(metadata: TableMetadata, rows: pa.Table, io: FileIO) -> Iterator[DataFile]:
    """Write rows, at least one file for each partition among them."""
    if metadata.spec().is_unpartitioned():
        yield from _whole_files(metadata, rows, io)
        return
    # pyiceberg writes the files as if the table were not partitioned, and so puts them into one folder: a
    # value may have any characters and any length. Readers take the values from the manifests.
    plain = metadata.model_copy(update={"partition_specs": [UNPARTITIONED], "default_spec_id": 0})
    for values, part in split(rows, metadata):
        for file in _whole_files(plain, part, io):
            file[_PARTITION] = values
            yield file


def _whole_files(metadata: TableMetadata, rows: pa.Table, io: FileIO) -> list[DataFile]:
    try:
        return list(_dataframe_to_data_files(metadata, rows, io))
    except UnicodeEncodeError:
        # pyiceberg shortens a long text that bounds a file and adds 1 to its last character. After U+D7FF no
        # character follows that can be encoded. Such a file gets no bounds, so each merge must read it.
        properties = {**metadata.properties, "write.metadata.metrics.default": "counts"}
        return list(
            _dataframe_to_data_files(metadata.model_copy(update={"properties": properties}), rows, io)
        )


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = max(1, -(-batch.nbytes // FILE_BYTES))
    step = max(1, -(-batch.num_rows // count))
    return (batch.slice(at, step) for at in range(0, batch.num_rows, step))


def read(table: Table, task: FileScanTask, columns: pa.Schema) -> pa.Table:
    """The rows of one file, in these types; columns that the file does not have are NULL."""
    schema = table.schema().select(*columns.names)
    rows = ArrowScan(table.metadata, table.io, schema, AlwaysTrue()).to_table([task])
    return rows.select(columns.names).cast(columns)


class Touched:
    """The keys that a merge changes, and a test which files may hold them."""

    def __init__(self, keys: pa.Table, metadata: TableMetadata) -> None:
        """`keys`: distinct, in the types of data files, with names of the table's columns."""
        schema = metadata.schema()
        self._fields = [schema.find_field(name) for name in keys.column_names]
        self._keys = keys
        self._partitions = KeyPartitions(keys, metadata)
        first = keys[0]
        self._numbers: Numbers | None = None
        """The sorted keys, if the first column has numbers of at most 64 bits."""
        self._sorted: Sequence[Any] | Numbers
        if pa.types.is_integer(first.type):
            values = first.to_numpy().astype(np.int64)
            self._order = np.argsort(values, kind="stable")
            self._sorted = self._numbers = values[self._order]
        else:
            values = first.to_pylist()
            self._order = np.array(sorted(range(len(values)), key=values.__getitem__), np.int64)
            self._sorted = [values[at] for at in self._order]

    @property
    def columns(self) -> pa.Schema:
        """The columns of the key."""
        return self._keys.schema

    def may_be_in(self, file: DataFile) -> bool:
        """Whether some key is within the bounds of a file's columns, and in the file's partition as far as
        the key determines that.
        """
        if not self._partitions.may_be_in(file):
            return False
        low, high = self._bounds(file, 0)
        begin = 0 if low is None else bisect_left(self._sorted, low)
        end = len(self._sorted) if high is None else bisect_right(self._sorted, high)
        if begin >= end:
            return False
        if len(self._fields) == 1:
            return True
        # Only keys within the bounds of the first column are compared in the others.
        near = self._keys.take(pa.array(self._order[begin:end]))
        within = np.ones(near.num_rows, np.bool_)
        for at in range(1, len(self._fields)):
            low, high = self._bounds(file, at)
            column = near[at]
            if low is not None:
                within &= pc.greater_equal(column, pa.scalar(low, column.type)).to_numpy()
            if high is not None:
                within &= pc.less_equal(column, pa.scalar(high, column.type)).to_numpy()
        return bool(within.any())

    def _bounds(self, file: DataFile, at: int) -> tuple[Any, Any]:
        field = self._fields[at]
        if not isinstance(field.field_type, _ORDERED):
            return None, None
        ends = [(bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds)]
        low, high = (None if end is None else from_bytes(field.field_type, end) for end in ends)
        return low, high

    def found_in(self, rows: pa.Table) -> Numbers:
        """For each row, the index of its key; -1: its key is not among them."""
        held = rows.select(self._keys.column_names)
        if len(self._fields) == 1:
            if self._numbers is not None and rows.num_rows and not held[0].null_count:
                return self._number_found_in(held[0].to_numpy().astype(np.int64, copy=False), self._numbers)
            found = pc.index_in(held[0], value_set=self._keys[0].combine_chunks())
            return np.asarray(pc.fill_null(found, -1).to_numpy(), np.int64)
        codes = factorize(pa.concat_tables([self._keys, held]))
        mine = codes[: self._keys.num_rows]
        place = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
        place[mine] = np.arange(len(mine))
        return place[codes[self._keys.num_rows :]]

    def _number_found_in(self, held: Numbers, keys: Numbers) -> Numbers:
        """The same for a key of one number. Compares only keys within the bounds of the rows."""
        begin, end = np.searchsorted(keys, held.min()), np.searchsorted(keys, held.max(), side="right")
        near, order = keys[begin:end], self._order[begin:end]
        found = np.full(len(held), -1, np.int64)
        # Compacted files are sorted by the key. A search for each key is cheaper there than for each row.
        if (held[1:] > held[:-1]).all():
            place = np.searchsorted(held, near)
            same = held[place] == near
            found[place[same]] = order[same]
        elif len(near):
            at = pc.fill_null(pc.index_in(pa.array(held), value_set=pa.array(near)), -1).to_numpy()
            found[at >= 0] = order[at[at >= 0]]
        return found


def by_key(tasks: Sequence[FileScanTask], schema: Schema, keys: Sequence[str]) -> list[FileScanTask]:
    """The files by their first keys, if manifests have them, so that neighbours are merged into one file."""
    field = schema.find_field(keys[0]) if keys else None
    if field is None or not isinstance(field.field_type, _ORDERED):
        return list(tasks)
    bounds = [(task.file.lower_bounds or {}).get(field.field_id) for task in tasks]
    if any(bound is None for bound in bounds):
        return list(tasks)
    low = [from_bytes(field.field_type, bound) for bound in bounds if bound is not None]
    return [tasks[at] for at in sorted(range(len(tasks)), key=low.__getitem__)]
