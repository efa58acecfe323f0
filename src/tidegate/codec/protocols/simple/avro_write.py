"""Writes simple's Avro encoding: the twin of `avro`, which reads it and describes its bytes.

`message` writes the owner's messages from the object that their JSON encoding would be; `row` writes rows
from their values. TiCDC writes the members of `data` and `old` in random order, because they are Go's maps;
ours are ordered by the names' bytes, as in JSON. Source: tiflow
`pkg/sink/codec/simple/{avro.go,message.json}`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from tidegate.codec.formats.avro_binary import sized, varint
from tidegate.codec.formats.mysql_type import is_binary
from tidegate.codec.protocols.simple.avro import DDL_TYPES, MESSAGE
from tidegate.model.row import RowChange, RowChecksum, Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb.text import value_text

WATERMARK, BOOTSTRAP, DDL, DML = (bytes([MESSAGE, 2 * kind, 2 * kind]) for kind in range(4))
"""The beginnings of messages: the last of the twelve types, the message's type, its payload's branch."""
NULL: Final = varint(0)
PRESENT: Final = varint(1)
"""The branches of a union of null and one type."""
LONG, FLOAT, DOUBLE, STRING, BYTES, TIMESTAMP, UNSIGNED = (varint(branch) for branch in range(1, 8))
"""The branches of a value that is not NULL."""
BIGINT: Final = 8
_NUMERIC: Final = frozenset(
    ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit", "float", "double", "decimal")
)
"""Types that state whether they are unsigned and filled with zeros."""
_INTEGERS: Final = (Kind.INT, Kind.UINT, Kind.YEAR, Kind.ENUM, Kind.SET)
NEW: Final = "new"
"""The flavour of TiCDC's new architecture."""


# --- rows


def bits_of(flavour: str) -> bytes:
    """The branch of a BIT's values. TiCDC's new architecture writes a BIT as text, its digits."""
    return STRING if flavour == NEW else LONG


def branch_of(column: Column, bits: bytes) -> bytes:
    """The branch of a column's values in their union; `bits`: the result of `bits_of`."""
    if column.kind is Kind.BIT:
        return bits
    if column.kind is Kind.UINT and column.mysql_type == BIGINT:
        return UNSIGNED
    if column.kind in _INTEGERS:
        return LONG
    if column.kind is Kind.FLOAT or column.kind is Kind.DOUBLE:
        return FLOAT if column.kind is Kind.FLOAT else DOUBLE
    if column.kind is Kind.TIMESTAMP:
        return TIMESTAMP
    return BYTES if is_binary(column) else STRING


def row_head(table: TableSchema) -> bytes:
    """A row's message up to the table id."""
    return DML + varint(1) + sized(table.schema.encode()) + sized(table.table.encode())


def row(
    change: RowChange,
    build_ms: int,
    version: int,
    order: Sequence[int],
    zone: str,
    *,
    summed: bool,
    bits: bytes,
) -> bytes:
    """A row's message. `order`: the columns' positions, sorted by name. `summed`: with a checksum."""
    table = change.table
    kind = 2 if change.is_delete else 0 if change.is_insert else 1
    parts = [
        row_head(table),
        varint(change.physical_id),
        varint(kind),
        varint(change.commit_ts),
        varint(build_ms),
        varint(version),
        NULL,  # claimCheckLocation
        NULL,  # handleKeyOnly
        checksum(change.upstream_checksum if summed else None),
    ]
    for cells in (change.new, change.old):
        parts.append(NULL if cells is None else PRESENT + image(table, cells, order, zone, bits))
    return b"".join(parts)


def checksum(found: RowChecksum | None) -> bytes:
    """A row's checksum: a union of null and a record."""
    if found is None:
        return NULL
    return (
        PRESENT
        + varint(found.version)
        + bytes([found.corrupted])
        + varint(found.current)
        + varint(found.previous)
    )


def image(table: TableSchema, cells: Sequence[Value], order: Sequence[int], zone: str, bits: bytes) -> bytes:
    """A map of the columns, in `order`."""
    entries = (
        sized(table.columns[i].name.encode()) + _cell(table.columns[i], cells[i], zone, bits) for i in order
    )
    return varint(len(order)) + b"".join(entries) + varint(0)


def _cell(column: Column, value: Value, zone: str, bits: bytes) -> bytes:
    if value is None:
        return NULL
    branch = branch_of(column, bits)
    if branch in (LONG, UNSIGNED):
        assert isinstance(value, int)
        return branch + varint(value)
    if branch == FLOAT:
        # Rounded by numpy, because struct refuses a double above the range of a float.
        return branch + struct.pack("<f", np.float32(value))
    if branch == DOUBLE:
        return branch + struct.pack("<d", value)
    text = sized(value_text(column.kind, value))
    return branch + (sized(zone.encode()) + text if branch == TIMESTAMP else text)


# --- the owner's messages


def message(body: dict[str, Any]) -> bytes:
    """A watermark, definition or DDL, from the members of its JSON."""
    version, build = varint(body["version"]), varint(body["buildTs"])
    if body["type"] == "WATERMARK":
        return WATERMARK + version + varint(body["commitTs"]) + build
    if body["type"] == "BOOTSTRAP":
        return BOOTSTRAP + version + build + _table(body["tableSchema"])
    kind, sql = varint(DDL_TYPES.index(body["type"])), sized(_text(body["sql"]))
    sides = (_optional(body.get(name), _table) for name in ("tableSchema", "preTableSchema"))
    return DDL + version + kind + sql + varint(body["commitTs"]) + build + b"".join(sides)


def _text(text: str) -> bytes:
    return text.encode(errors="replace")


def _optional(value: Any, write: Callable[[Any], bytes]) -> bytes:
    return NULL if value is None else PRESENT + write(value)


def _array(items: Iterable[bytes]) -> bytes:
    found = list(items)
    # A count of 0 ends an array, so an empty array is that count alone.
    return varint(len(found)) + b"".join(found) + varint(0) if found else varint(0)


def _boolean(value: bool) -> bytes:
    return bytes([value])


def _table(stated: dict[str, Any]) -> bytes:
    return (
        sized(_text(stated["schema"]))
        + sized(_text(stated["table"]))
        + varint(stated["tableID"])
        + varint(stated["version"])
        + _array(map(_column, stated["columns"]))
        + _array(map(_index, stated["indexes"]))
    )


def _column(stated: dict[str, Any]) -> bytes:
    described, default = stated["dataType"], stated["default"]
    name = described["mysqlType"]
    numeric = name in _NUMERIC
    if isinstance(default, int):  # only the default of a bit column, which Avro has as bytes
        default = default.to_bytes(max(1, (default.bit_length() + 7) // 8), "big")
    elements = described.get("elements")
    return b"".join(
        (
            sized(_text(stated["name"])),
            *(sized(_text(described[member])) for member in ("mysqlType", "charset", "collate")),
            varint(described.get("length", 0)),
            _optional(described.get("decimal", 0) if name == "decimal" else None, varint),
            _optional(elements, lambda found: _array(sized(_text(one)) for one in found)),
            _optional(described.get("unsigned", False) if numeric else None, _boolean),
            _optional(described.get("zerofill", False) if numeric else None, _boolean),
            _boolean(stated["nullable"]),
            _optional(default, lambda found: sized(found if isinstance(found, bytes) else _text(found))),
        )
    )


def _index(stated: dict[str, Any]) -> bytes:
    flags = bytes([stated["unique"], stated["primary"], stated["nullable"]])
    return sized(_text(stated["name"])) + flags + _array(sized(_text(name)) for name in stated["columns"])
