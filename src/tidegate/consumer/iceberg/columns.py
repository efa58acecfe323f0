"""Arrow's types as Iceberg's, and which changes of columns Iceberg makes without new files. Pure.

Iceberg has no integers of 8 and 16 bits: they are stored with 32. All columns are optional. A table's
definition has the narrower types, and rows are returned in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from tidegate.consumer.ddl.ddl_steps import Source
from tidegate.consumer.table.definition import ROWID
from tidegate.errors import Fatal

_NARROW: Final = (pa.int8(), pa.int16())
_TYPES: Final = {
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.bool_(): BooleanType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
}


def stored(columns: pa.Schema) -> pa.Schema:
    """The columns with the types that data files have."""
    return pa.schema([pa.field(f.name, pa.int32() if f.type in _NARROW else f.type) for f in columns])


def iceberg_type(of_type: pa.DataType, element_id: int = 0) -> IcebergType:
    """Iceberg's type for one of Arrow's; `element_id`: the id of a list's elements."""
    if pa.types.is_decimal(of_type):
        return DecimalType(of_type.precision, of_type.scale)
    if pa.types.is_list(of_type):
        element = iceberg_type(of_type.value_type)
        return ListType(element_id=element_id, element_type=element, element_required=False)
    if of_type not in _TYPES:
        raise Fatal(f"Iceberg has no type for {of_type}", fix="report it: the target's types are fixed")
    return _TYPES[of_type]


def iceberg_schema(columns: pa.Schema) -> Schema:
    """The columns of a new table."""
    # The elements of lists have ids of their own, which come after those of all columns.
    fields = [
        NestedField(at + 1, field.name, iceberg_type(field.type, len(columns) + at + 1), required=False)
        for at, field in enumerate(columns)
    ]
    return Schema(*fields)


def same_type(one: IcebergType, other: IcebergType) -> bool:
    """Whether two types are equal, except for the ids of their elements."""
    if isinstance(one, ListType) and isinstance(other, ListType):
        return same_type(one.element_type, other.element_type)
    return bool(one == other)


def holds(schema: Schema, columns: pa.Schema) -> bool:
    """Whether a table has exactly these columns, in this order."""
    return len(schema.fields) == len(columns) and all(
        held.name == field.name and same_type(held.field_type, iceberg_type(field.type))
        for held, field in zip(schema.fields, columns, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Evolution:
    """Changes of a table's columns, made in this order; data files stay."""

    drops: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    widened: tuple[tuple[str, pa.DataType], ...] = ()
    """Columns by their new names, with their new types."""
    adds: tuple[tuple[str, pa.DataType], ...] = ()
    """New columns, NULL in all rows."""


def replaced(schema: Schema, columns: pa.Schema) -> Evolution:
    """The changes to `columns` if all rows are rewritten: a column of another type is dropped and added."""
    held = {field.name: field.field_type for field in schema.fields}
    wanted = {field.name: field.type for field in columns}
    stay = {name for name in held if name in wanted and same_type(held[name], iceberg_type(wanted[name]))}
    drops = tuple(name for name in held if name not in stay)
    return Evolution(drops, adds=tuple(one for one in wanted.items() if one[0] not in stay))


def evolution(schema: Schema, columns: pa.Schema, sources: Sequence[Source]) -> Evolution | None:
    """The changes that a DDL makes, if Iceberg can make them without new files; otherwise None."""
    held = {field.name: field.field_type for field in schema.fields}
    kept, renames, widened, adds = set[str](), [], [], []
    for source in sources:
        name, taken = source.column.name, source.taken
        if taken is None:
            # Old files have no such column, so readers would see NULL. Iceberg has defaults for old rows only
            # from version 3 of its format on.
            if source.fill is not None and source.fill.is_valid:
                return None
            adds.append((name, source.column.type))
            continue
        if not _keeps_rows(source):
            return None
        kept.add(taken.name)
        if taken.name != name:
            renames.append((taken.name, name))
        if not same_type(held[taken.name], iceberg_type(source.column.type)):
            widened.append((name, source.column.type))
    if ROWID in columns.names:
        # The rows have no ids yet: they must be made, so all files are rewritten.
        if ROWID not in held:
            return None
        kept.add(ROWID)
    drops = tuple(name for name in held if name not in kept)
    return Evolution(drops, tuple(renames), tuple(widened), tuple(adds))


def _keeps_rows(source: Source) -> bool:
    """Whether the values of an existing column stay as they are."""
    assert source.taken is not None
    # An enum that was guessed as a number: its rows must be written again with the names that the DDL brings.
    numbers_get_names = bool(source.column.elems) and not source.taken.elems
    return source.change is None and not numbers_get_names and _widens(source.taken.type, source.column.type)


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether Iceberg can read old files in the new type (its rules of type promotion)."""
    before, after = iceberg_type(old), iceberg_type(new)
    match before, after:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return bool(before.scale == after.scale and before.precision <= after.precision)
    return same_type(before, after)
