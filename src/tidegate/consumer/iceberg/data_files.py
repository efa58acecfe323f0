"""Data files of a table: written, read, and selected by the keys that they may hold.

A file has at most about `FILE_BYTES` of rows in memory when it is written here, and is read whole. So a merge
needs the memory of its changes and of one file, regardless of the size of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
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

from tidegate.consumer.iceberg.partitions import KeyPartitions, split
from tidegate.consumer.lakehouse.changed_keys import ChangedKeys
from tidegate.consumer.lakehouse.compaction import FILE_BYTES

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


class Touched(ChangedKeys):
    """The keys that a merge changes, and a test which files may hold them."""

    def __init__(self, keys: pa.Table, metadata: TableMetadata) -> None:
        """`keys`: distinct, in the types of data files, with names of the table's columns."""
        super().__init__(keys)
        schema = metadata.schema()
        self._fields = [schema.find_field(name) for name in keys.column_names]
        self._partitions = KeyPartitions(keys, metadata)

    def may_be_in(self, file: DataFile) -> bool:
        """Whether some key is within the bounds of a file's columns, and in the file's partition as far as
        the key determines that.
        """
        return self._partitions.may_be_in(file) and self.may_be_within(partial(self._bounds, file))

    def _bounds(self, file: DataFile, at: int) -> tuple[Any, Any]:
        field = self._fields[at]
        if not isinstance(field.field_type, _ORDERED):
            return None, None
        ends = [(bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds)]
        low, high = (None if end is None else from_bytes(field.field_type, end) for end in ends)
        return low, high


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
