"""Partition specs of Iceberg tables: pyiceberg's form of a spec, and the partition values of rows.

pyiceberg 0.12 computes the values of most transforms for whole columns only with a package of its own, in
Rust. Here they are computed once for each distinct value of a column, by the functions that define them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.transforms import Transform as IcebergTransform
from pyiceberg.typedef import Record

from tidegate.consumer.applying.net_effect import factorize
from tidegate.consumer.table.partition_spec import PartitionField, Spec, Transform, field_name

_PLAIN: Final = {
    Transform.IDENTITY: IdentityTransform(),
    Transform.YEAR: YearTransform(),
    Transform.MONTH: MonthTransform(),
    Transform.DAY: DayTransform(),
    Transform.HOUR: HourTransform(),
}


def iceberg_spec(spec: Spec, schema: Schema) -> PartitionSpec:
    """The spec of a new table with these columns."""
    if not spec:
        return UNPARTITIONED_PARTITION_SPEC
    fields = [
        IcebergField(
            schema.find_field(field.column).field_id,
            PARTITION_FIELD_ID_START + at,
            _transform(field),
            field_name(field),
        )
        for at, field in enumerate(spec)
    ]
    return PartitionSpec(*fields)


def spec_of(metadata: TableMetadata) -> Spec:
    """The spec of a table, with the present names of its columns."""
    return tuple(
        _field(metadata.schema().find_column_name(field.source_id) or field.name, field.transform)
        for field in metadata.spec().fields
    )


def _transform(field: PartitionField) -> IcebergTransform[Any, Any]:
    match field.transform:
        case Transform.BUCKET:
            return BucketTransform(field.width)
        case Transform.TRUNCATE:
            return TruncateTransform(field.width)
    return _PLAIN[field.transform]


def _field(column: str, transform: IcebergTransform[Any, Any]) -> PartitionField:
    match transform:
        case BucketTransform():
            return PartitionField(column, Transform.BUCKET, transform.num_buckets)
        case TruncateTransform():
            return PartitionField(column, Transform.TRUNCATE, transform.width)
    return PartitionField(column, Transform(str(transform)))


def split(rows: pa.Table, metadata: TableMetadata) -> Iterator[tuple[Record, pa.Table]]:
    """The rows of each partition, with its values. The order of rows within a partition stays."""
    found = _values(rows, metadata.spec().fields, metadata.schema())
    codes = factorize(found)
    # A stable sort, because compaction has ordered the rows by their key.
    order = np.argsort(codes, kind="stable")
    # Rows of one partition are neighbours now, and each begins where the code changes.
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ends = [*begins[1:].tolist(), len(order)]
    for begin, end in zip(begins.tolist(), ends, strict=True):
        at = order[begin:end]
        values = (column[int(at[0])].as_py() for column in found.columns)
        yield Record(*values), rows.take(pa.array(at))


def _values(rows: pa.Table, fields: Sequence[IcebergField], schema: Schema) -> pa.Table:
    """The partition values of each row as manifests have them: moments and dates are integers."""
    columns = [_value(rows[schema.find_column_name(field.source_id)], field, schema) for field in fields]
    return pa.table(columns, names=[str(at) for at in range(len(columns))])


def _value(column: pa.ChunkedArray, field: IcebergField, schema: Schema) -> pa.Array:
    distinct = _physical(column.combine_chunks()).dictionary_encode()
    # Python's integers do not wrap around, so pyiceberg's function would give the least numbers a value that
    # does not fit their type.
    if isinstance(field.transform, TruncateTransform) and pa.types.is_integer(distinct.dictionary.type):
        # The least numbers wrap around, as they do in Iceberg's own library.
        held = distinct.dictionary.to_numpy()
        return pa.array(held - held % field.transform.width).take(distinct.indices)
    apply = field.transform.transform(schema.find_field(field.source_id).field_type)
    values = [apply(value) for value in distinct.dictionary.to_pylist()]
    of_type = distinct.dictionary.type if _keeps_type(field) else pa.int32()
    return pa.array(values, of_type).take(distinct.indices)


def _physical(column: pa.Array) -> pa.Array:
    """Dates and moments as the integers that Iceberg stores; other values as they are."""
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _keeps_type(field: IcebergField) -> bool:
    return isinstance(field.transform, IdentityTransform | TruncateTransform)


class KeyPartitions:
    """The partitions in which rows with some keys can be, as far as keys determine them.

    A field of the spec whose column is not in the key excludes no partition: the row may be in any.
    """

    def __init__(self, keys: pa.Table, metadata: TableMetadata) -> None:
        schema, named = metadata.schema(), set(keys.column_names)
        fields = metadata.spec().fields
        self._places = [
            at for at, field in enumerate(fields) if schema.find_column_name(field.source_id) in named
        ]
        self._found = set[tuple[Any, ...]]()
        if self._places:
            values = _values(keys, [fields[at] for at in self._places], schema)
            distinct = values.group_by(values.column_names).aggregate([])
            self._found = set(zip(*(column.to_pylist() for column in distinct.columns), strict=True))

    def may_be_in(self, file: DataFile) -> bool:
        """Whether one of the keys can be in a file."""
        return not self._places or tuple(file.partition[at] for at in self._places) in self._found


def values_of(file: DataFile) -> tuple[Any, ...]:
    """The values of a file's partition. Not their text, in which NULL and 'None' would be one partition."""
    return tuple(file.partition[at] for at in range(len(file.partition)))
