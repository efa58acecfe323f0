"""Index entries: key and value of one row under one index, both directions.

    key     't' table id '_i' index id, a flagged datum per column [, handle]   the handle unless *distinct*
    value   of a table without clustered key (version 0)
              '0'                                            not distinct
              handle, 8 bytes                                distinct
              tail length u8, restored row [, handle, 8 bytes | zeros up to 10 bytes in all]
            of a clustered table (version 1)
              0, 0x7d, 1 [, 0x7f, length u16 BE, handle] [, restored row]

An entry is *distinct* if the index is unique and none of the values is NULL: then the value identifies the
row. The *restored row* is a row value of format v2 with what the sort keys have lost. In version 0 it has
every column of the index if one of them lost something. In version 1 it has only the columns that did,
including those of the primary key; if only trailing spaces were lost, it has their number. Entries of global
indexes have the segment 0x7e and the partition's id: they can be read, but not written. Source: TiDB
`pkg/tablecodec/tablecodec.go` (GenIndexValuePortal), `pkg/table/tables/tables.go`
(TryGetHandleRestoredDataWrapper). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Final
from weakref import WeakKeyDictionary

from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.row import Value
from tidegate.model.schema import Column, Index, Kind, TableSchema
from tidegate.tidb import datum, keys, memcomparable, record, row, table_info
from tidegate.tidb import value as values_of
from tidegate.tidb.datum import Datum, Flag
from tidegate.tidb.row import Stored
from tidegate.tidb.types import string

_COLUMNS_AT: Final = 19
_VERSION: Final = 0x7D
_PARTITION: Final = 0x7E
_COMMON_HANDLE: Final = 0x7F
_SHORT: Final = 9
"""Values up to this length contain only an integer handle, or nothing."""
_PADDED: Final = 10
_PRIMARY: Final = 2
"""TiDB's flag of a column of the primary key."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A decoded index entry: the key of its row, and the values in it."""

    index: Index
    values: tuple[Stored, ...]
    """Stored values (see `row`) of the index's columns; for a prefix column its first characters.

    Spaces at the end of the prefix of a `char` under a `_bin` collation may be missing: TiDB drops them."""
    record: bytes
    """The record key of the row."""


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """The parts of a table that entries need, including virtual columns and intermediate DDL states."""

    columns: dict[int, Column]
    """By offset."""
    indexes: dict[int, Index]
    """By id."""
    primary: Index | None


_layouts: WeakKeyDictionary[TableSchema, _Layout] = WeakKeyDictionary()


def _layout(table: TableSchema) -> _Layout:
    if table not in _layouts:
        indexes = {index.id: index for index in table_info.every_index(table.info)}
        _layouts[table] = _Layout(
            columns={column.offset: column for column in table_info.every_column(table.info, table.version)},
            indexes=indexes,
            primary=next((index for index in indexes.values() if index.primary), None),
        )
    return _layouts[table]


def _loses(column: Column) -> bool:
    """Whether a column's value cannot be restored from its form in a key."""
    return column.kind is Kind.STRING and string.needs_restored_data(
        column.mysql_type, column.charset, column.collate
    )


def _is_version_1(table: TableSchema) -> bool:
    return table.is_common_handle and table.info.get("common_handle_version") == 1


# --- reading --------------------------------------------------------------------------------------------


def decode(table: TableSchema, key: bytes, value: bytes) -> Entry:
    """Decode the entry of an index of `table`, in its version at that time. Undecodable names table and
    index.
    """
    where = table.name
    try:
        if len(key) < _COLUMNS_AT or key[:1] != b"t" or key[9:11] != b"_i":
            raise Undecodable("a key is not the key of an index entry", why=key[:32].hex())
        index_id = memcomparable.decode_int(key, 11)
        index = _layout(table).indexes.get(index_id)
        if index is None:
            raise Undecodable("an entry is of an index that the table does not have", why=f"index {index_id}")
        where = f"{table.name}, index {index.name}"
        return _decode(table, index, key, value)
    except Undecodable as error:
        raise Undecodable(error.what, where=where, why=error.why, fix=error.fix) from None


def _decode(table: TableSchema, index: Index, key: bytes, value: bytes) -> Entry:
    columns = [_layout(table).columns[offset] for offset in index.columns]
    at, found = _COLUMNS_AT, []
    for column in columns:
        item, at = datum.read(key, at)
        found.append(row.from_datum(item, column.kind))
    parts = _split(value)
    if parts.restored:
        lost = row.split(parts.restored)
        found = [
            _restored(table, column, length, of_key, lost)
            for column, length, of_key in zip(columns, index.lengths, found, strict=True)
        ]
    physical_id = parts.partition if parts.partition is not None else memcomparable.decode_int(key, 1)
    return Entry(index, tuple(found), keys.record_prefix(physical_id) + _handle(table, key[at:], parts))


def _restored(table: TableSchema, column: Column, length: int, of_key: Stored, lost: row.Fields) -> Stored:
    if column.id not in lost.cells or of_key is None:
        return of_key
    if _is_version_1(table) and string.only_pads(column.collate) and isinstance(of_key, bytes):
        spaces = lost.stored(column.id, Kind.UINT)
        # Checked before so many spaces are made: a damaged number must not take the memory.
        if not isinstance(spaces, int) or spaces > 0xFFFFFF:
            raise Undecodable("an index entry has no plausible number of spaces", why=f"{spaces!r}")
        return record.prefix(of_key + b" " * spaces, column.kind, length)
    stored = lost.stored(column.id, column.kind)
    return record.prefix(stored, column.kind, length) if isinstance(stored, bytes) else stored


@dataclass(frozen=True, slots=True)
class _Parts:
    """The segments of an index value."""

    handle: bytes = b""
    """In the form of a record key."""
    partition: int | None = None
    restored: bytes = b""


def _split(value: bytes) -> _Parts:
    # A value of version 1 may be as short; only its second byte shows the version.
    if len(value) <= _SHORT and value[1:2] != bytes([_VERSION]):
        return _Parts(_from_plain(value)) if len(value) >= 8 else _Parts()
    tail = value[0]
    # In version 1 the marker and the number of the version follow the size of the tail.
    head = 3 if value[1] == _VERSION else 1
    if head + tail > len(value):
        raise Undecodable("an index value is cut", why=f"{len(value)} bytes, a tail of {tail}")
    body, handle = value[head : len(value) - tail], b""
    if head == 1 and tail >= 8:
        handle = _from_plain(value[len(value) - tail :])
    if body[:1] == bytes([_COMMON_HANDLE]):
        end = 3 + int.from_bytes(body[1:3], "big")
        handle, body = _whole(body[3:end], end - 3), body[end:]
    partition = None
    if body[:1] == bytes([_PARTITION]):
        partition, body = memcomparable.decode_int(_whole(body[1:9], 8)), body[9:]
    if body and body[0] != row.V2:
        raise Undecodable("an index value has a segment of no known kind", why=f"{body[0]:#x}")
    return _Parts(handle, partition, body)


def _whole(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise Undecodable("an index value is cut", why=f"{len(data)} of {size} bytes")
    return data


def _from_plain(data: bytes) -> bytes:
    """A handle in the form of a record key, from a plain 64-bit number."""
    return memcomparable.encode_int(int.from_bytes(data[:8], "big", signed=True))


def _handle(table: TableSchema, suffix: bytes, parts: _Parts) -> bytes:
    if not suffix:
        if not parts.handle:
            raise Undecodable("an index entry names no row")
        return parts.handle
    if table.is_common_handle:
        return suffix
    if suffix[0] != Flag.INT or len(suffix) != 9:
        raise Undecodable("an index key has bytes after its columns that are no handle", why=suffix.hex())
    return suffix[1:]


# --- writing --------------------------------------------------------------------------------------------


def encode(
    table: TableSchema, index: Index, values: Sequence[Value], record_key: bytes, time_zone: tzinfo = UTC
) -> tuple[bytes, bytes]:
    """Key and value of the entry for the row under `record_key`, as a user session writes it.

    values: the row's plain values, aligned with `table.columns`. Raises InvalidInput for global indexes, for
    indexes on virtual columns (rows do not contain their values), and for texts without a known sort key.
    """
    where = f"{table.name}, index {index.name}"
    _refuse_what_is_not_written(table, index, where)
    parsed = keys.parse_record(record_key)
    row_cells = {
        column.offset: values_of.parse(column, item, time_zone)
        for column, item in zip(table.columns, values, strict=True)
    }
    columns = _layout(table).columns
    cells = [
        _cut(row_cells[offset], columns[offset], length)
        for offset, length in zip(index.columns, index.lengths, strict=True)
    ]
    # NULLs are not equal to each other, so a unique index needs the handle in the key of such an entry.
    distinct = index.unique and all(cell is not None for cell in cells)
    datums = [
        datum.NULL if cell is None else record.key_datum(table, columns[offset], cell)
        for offset, cell in zip(index.columns, cells, strict=True)
    ]
    key = keys.index_prefix(parsed.table_id, index.id, datum.encode_key(datums))
    if not distinct:
        key += datum.encode(Datum(Flag.INT, parsed.int_handle)) if parsed.is_int else parsed.handle
    if not _is_version_1(table):
        return key, _value_0(table, index, cells, parsed, distinct)
    lost = [*_lost_of_index(table, index, cells), *_lost_of_handle(table, index, row_cells)]
    value = bytes([0, _VERSION, 1]) + (_common_handle(parsed.handle) if distinct else b"")
    return key, value + row.encode_v2(lost) if lost else value


def _refuse_what_is_not_written(table: TableSchema, index: Index, where: str) -> None:
    entry = next(one for one in table.info["index_info"] if one["id"] == index.id)
    if entry.get("is_global"):
        raise InvalidInput("entries of a global index are not written here", where=where)
    stored = {column.offset for column in table.columns}
    for offset in index.columns:
        if offset not in stored:
            name = _layout(table).columns[offset].name
            raise InvalidInput(
                f"entries of an index on the virtual column {name} cannot be made",
                where=where,
                why="rows do not hold its value",
            )


def _cut(stored: Stored, column: Column, length: int) -> Stored:
    return record.prefix(stored, column.kind, length) if isinstance(stored, bytes) else stored


def _value_0(
    table: TableSchema, index: Index, cells: Sequence[Stored], parsed: keys.RecordKey, distinct: bool
) -> bytes:
    columns = [_layout(table).columns[offset] for offset in index.columns]
    plain = memcomparable.decode_int(parsed.handle).to_bytes(8, "big", signed=True) if parsed.is_int else b""
    body = b"" if parsed.is_int or not distinct else _common_handle(parsed.handle)
    if any(map(_loses, columns)):
        # Every column, including those that lose nothing.
        body += row.encode_v2([(c.id, c.kind, cell) for c, cell in zip(columns, cells, strict=True)])
    if not body:
        return plain if distinct else b"0"
    # Without a handle the tail is filled up, so that the value is longer than a short one.
    tail = plain if distinct and plain else bytes(max(_PADDED - 1 - len(body), 0))
    return bytes([len(tail)]) + body + tail


def _common_handle(handle: bytes) -> bytes:
    return bytes([_COMMON_HANDLE]) + len(handle).to_bytes(2, "big") + handle


def _lost_of_index(
    table: TableSchema, index: Index, cells: Sequence[Stored]
) -> Iterator[tuple[int, Kind, Stored]]:
    """The data that the datums of the index lose, except for columns of the primary key."""
    for offset, cell in zip(index.columns, cells, strict=True):
        column = _layout(table).columns[offset]
        if not column.flag & _PRIMARY and _loses(column):
            yield _lost(column, cell, Kind.UINT)


def _lost_of_handle(
    table: TableSchema, index: Index, row_cells: dict[int, Stored]
) -> Iterator[tuple[int, Kind, Stored]]:
    """The data that the handle loses. For a prefix column, as much as the longer of the two prefixes has."""
    layout = _layout(table)
    if layout.primary is None:
        return
    lengths = dict(zip(index.columns, index.lengths, strict=True))
    for offset, length in zip(layout.primary.columns, layout.primary.lengths, strict=True):
        column = layout.columns[offset]
        if _loses(column):
            mine = lengths.get(offset, length)
            longer = -1 if -1 in (mine, length) else max(mine, length)
            yield _lost(column, _cut(row_cells[offset], column, longer), Kind.INT)


def _lost(column: Column, cell: Stored, number: Kind) -> tuple[int, Kind, Stored]:
    if not string.only_pads(column.collate):
        return column.id, column.kind, cell
    text = cell if isinstance(cell, bytes) else b""
    return column.id, number, len(text) - len(text.rstrip(b" "))
