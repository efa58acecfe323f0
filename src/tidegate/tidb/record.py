"""Whole records: key and value of one table's row, both directions.

Decoding adds what the value does not contain: columns of an integer or clustered key come from the key,
others are their origin default, NULL or zero. Encoding stores what a TiDB user session stores: no key
columns, except if the collation loses something, and no NULL that the default would give anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, tzinfo

from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb import datum, keys, row, value
from tidegate.tidb.types import string


def decode(
    table: TableSchema, key: keys.RecordKey, data: bytes, time_zone: tzinfo = UTC
) -> tuple[Value, ...]:
    """The plain values of a row, aligned with `table.columns`; errors name table, column and offset."""
    where = table.name
    try:
        fields = row.split(data)
        in_key = _key_values_needed(table, key, fields)
        out: list[Value] = []
        for at, column in enumerate(table.columns):
            where = f"{table.name}.{column.name}"
            if column.id in fields.starts:
                where += f", byte {fields.starts[column.id]} of the row"
            out.append(_cell(fields, in_key, at, column, time_zone))
        return tuple(out)
    except Undecodable as error:
        raise Undecodable(error.what, where=where, why=error.why, fix=error.fix) from None


def _key_values_needed(table: TableSchema, key: keys.RecordKey, fields: row.Fields) -> dict[int, row.Stored]:
    if any(table.columns[at].id not in fields.cells for at in table.handle_columns):
        return key_values(table, key)
    return {}


def _cell(
    fields: row.Fields,
    in_key: dict[int, row.Stored],
    at: int,
    column: Column,
    time_zone: tzinfo,
) -> Value:
    # The value before the key: a column that is in both has only a prefix or a sort key in the key.
    if column.id in fields.cells:
        stored = fields.stored(column.id, column.kind)
    elif at in in_key:
        stored = in_key[at]
    else:
        stored = value.missing(column)
    return value.present(column, stored, time_zone)


def key_values(table: TableSchema, key: keys.RecordKey) -> dict[int, row.Stored]:
    """The stored values of the columns in a record key, by position in `table.columns`."""
    if not table.handle_columns:
        return {}
    if table.pk_is_handle:
        if not key.is_int:
            raise Undecodable("a record key has the wrong handle", why="not an integer")
        at = table.handle_columns[0]
        # A key has an unsigned handle from 2**63 on as a negative number.
        unsigned = table.columns[at].kind is Kind.UINT
        return {at: key.int_handle & (1 << 64) - 1 if unsigned else key.int_handle}
    stored: dict[int, row.Stored] = {}
    offset = 0
    for at in table.handle_columns:
        item, offset = datum.read(key.handle, offset)
        stored[at] = row.from_datum(item, table.columns[at].kind)
    # A short handle is padded with zeros (`keys.common_record`).
    if key.handle[offset:].strip(b"\0"):
        raise Undecodable("a record key has bytes after its handle", why=key.handle[offset:].hex())
    return stored


def encode(
    table: TableSchema,
    values: Sequence[Value],
    *,
    physical_id: int | None = None,
    row_id: int | None = None,
    time_zone: tzinfo = UTC,
    checksum: bool = False,
) -> tuple[bytes, bytes]:
    """Record key and v2 value of a row with plain `values` aligned with `table.columns`.

    physical_id: the partition's id; None: the table's. row_id: the `_tidb_rowid` of a table without a
    clustered key. checksum: add the row checksum of version 2.
    """
    stored = [
        value.parse(column, item, time_zone) for column, item in zip(table.columns, values, strict=True)
    ]
    key = _record_key(table, stored, table.id if physical_id is None else physical_id, row_id)
    cells = [
        (column.id, column.kind, item)
        for at, (column, item) in enumerate(zip(table.columns, stored, strict=True))
        if _is_stored(table, at, item)
    ]
    return key, row.encode_v2(cells, key[11:] if checksum else None)


def _record_key(
    table: TableSchema,
    stored: Sequence[row.Stored],
    physical_id: int,
    row_id: int | None,
) -> bytes:
    if not table.handle_columns:
        if row_id is None:
            raise InvalidInput(f"a row of {table.name} needs its _tidb_rowid")
        return keys.int_record(physical_id, row_id)
    if table.pk_is_handle:
        handle = stored[table.handle_columns[0]]
        if not isinstance(handle, int):
            raise InvalidInput(f"the key of {table.name} must be an integer", why=repr(handle))
        return keys.int_record(physical_id, handle)
    parts = []
    for at, length in zip(table.handle_columns, _key_lengths(table), strict=True):
        column, item = table.columns[at], stored[at]
        if item is None:
            raise InvalidInput(f"the key column {column.name} of {table.name} is NULL")
        part = prefix(item, column.kind, length) if isinstance(item, bytes) else item
        parts.append(key_datum(table, column, part))
    return keys.common_record(physical_id, datum.encode_key(parts))


def prefix(stored: bytes, kind: Kind, length: int) -> bytes:
    """The part of a string in a key: `length` characters, or bytes if it is binary; -1: all of it."""
    if length < 0 or kind not in (Kind.STRING, Kind.BYTES):
        return stored
    if kind is Kind.BYTES or len(stored) <= length:
        return stored[:length]
    # Bytes that are not UTF-8 count as one character each, and come back unchanged.
    return stored.decode(errors="surrogateescape")[:length].encode(errors="surrogateescape")


def key_datum(table: TableSchema, column: Column, stored: int | float | bytes) -> datum.Datum:
    """The datum of a column's value in a key. InvalidInput, naming the column, if it cannot be made."""
    if isinstance(stored, bytes) and column.kind in (Kind.STRING, Kind.BYTES):
        stored = string.sort_key(stored, column.collate, where=f"{table.name}.{column.name}")
    return row.to_key_datum(stored, column.kind)


def _key_lengths(table: TableSchema) -> tuple[int, ...]:
    primary = next((index for index in table.indexes if index.primary), None)
    return primary.lengths if primary else (-1,) * len(table.handle_columns)


def _is_stored(table: TableSchema, at: int, stored: row.Stored) -> bool:
    """Whether a user session writes this column into the value (TiDB `tables.CanSkip`)."""
    column = table.columns[at]
    if at in table.handle_columns:
        if table.pk_is_handle:
            return False
        length = _key_lengths(table)[table.handle_columns.index(at)]
        return length >= 0 or (
            column.kind is Kind.STRING
            and string.needs_restored_data(column.mysql_type, column.charset, column.collate)
        )
    # A NULL may be left out only if a row without the column means NULL, too.
    return stored is not None or column.default is not None or column.origin_default is not None
