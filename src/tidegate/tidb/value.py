"""Converts a column's value between its stored form (`tidb.row`) and the plain form of codecs (`model.row`).

Plain: INT, UINT, YEAR, ENUM, SET, BIT int; FLOAT, DOUBLE float; STRING, BYTES bytes; all others canonical
text (docs/formats/columns.md#canonical-text). TIMESTAMP text is in the given time zone. Also gives the value
of a column that a row lacks: the origin default, otherwise NULL, otherwise the type's zero.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import Final

from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.tidb.row import Stored
from tidegate.tidb.types import decimal, enum, json, temporal, vector
from tidegate.tidb.types import float as floats

_INTEGERS: Final = frozenset({Kind.INT, Kind.UINT, Kind.YEAR, Kind.ENUM, Kind.SET, Kind.BIT})
ZERO_JSON: Final = b"\x04\x00"
"""JSON null: the value of a NOT NULL JSON column without default in rows that are older than the column."""


def fsp(column: Column) -> int:
    """The digits of the second of a temporal column: 0 if not declared."""
    return max(column.decimal, 0)


def present(column: Column, stored: Stored, time_zone: tzinfo = UTC) -> Value:
    """The plain form of a stored value."""
    match column.kind, stored:
        case _, None:
            return None
        case Kind.DECIMAL, bytes(data):
            return decimal.decode(data)
        case Kind.JSON, bytes(data):
            return json.decode(data)
        case Kind.VECTOR, bytes(data):
            return vector.decode(data)
        case Kind.DATE, int(packed):
            return temporal.date_text(temporal.unpack(packed))
        case Kind.DATETIME, int(packed):
            return temporal.datetime_text(temporal.unpack(packed), fsp(column))
        case Kind.TIMESTAMP, int(packed):
            return temporal.datetime_text(temporal.in_zone(packed, time_zone), fsp(column))
        case Kind.TIME, int(nanoseconds):
            return temporal.duration_text(nanoseconds, fsp(column))
        case _:
            return stored


def parse(column: Column, value: Value, time_zone: tzinfo = UTC) -> Stored:
    """The stored form of a plain value. InvalidInput if the column cannot hold it."""
    match column.kind, value:
        case _, None:
            return None
        case kind, int(number) if kind in _INTEGERS:
            return number
        # Rounded to 32 bits, as in rows: otherwise it would differ from the same value that was read from
        # one.
        case Kind.FLOAT, int() | float():
            return floats.to_float32(float(value))
        case Kind.DOUBLE, int() | float():
            return float(value)
        case Kind.STRING | Kind.BYTES, bytes(data):
            return data
        case Kind.STRING | Kind.BYTES, str(text):
            return text.encode()
        case kind, str(text):
            return _parse_text(column, text, time_zone)
        case _:
            raise InvalidInput(f"column {column.name} ({column.kind.name}) cannot hold {value!r}")


def _parse_text(column: Column, text: str, time_zone: tzinfo) -> Stored:
    match column.kind:
        case Kind.DECIMAL:
            size = (column.flen, max(column.decimal, 0)) if column.flen > 0 else (0, 0)
            return decimal.encode(text, *size)
        case Kind.JSON:
            return json.encode(text)
        case Kind.VECTOR:
            return vector.encode(text)
        case Kind.DATE | Kind.DATETIME:
            return temporal.pack(temporal.parse(text))
        case Kind.TIMESTAMP:
            return temporal.pack(temporal.to_utc(temporal.parse(text), time_zone))
        case Kind.TIME:
            return temporal.parse_duration(text)
        case _:
            raise InvalidInput(f"column {column.name} ({column.kind.name}) cannot hold the text {text!r}")


def missing(column: Column) -> Stored:
    """The value of a column that a row does not store: origin default, NULL, or the type's zero."""
    if column.origin_default is not None:
        return _from_default(column)
    return None if column.nullable else zero(column)


def _from_default(column: Column) -> Stored:
    default = column.origin_default
    try:
        if isinstance(default, bytes):
            number = int.from_bytes(default, "big")
            return _in_word(column, number) if column.kind is Kind.BIT else _cut(column, default)
        return _in_word(column, _cut(column, _parse_default(column, str(default))))
    except (ValueError, InvalidInput, Undecodable) as error:
        raise Undecodable(
            "a column's origin default cannot be read",
            where=column.name,
            why=f"{default!r}: {error}",
        ) from None


def _in_word(column: Column, stored: Stored) -> Stored:
    """A number that fits the word of a cell; ValueError for another."""
    if isinstance(stored, int):
        signed = column.kind in (Kind.INT, Kind.TIME, Kind.YEAR)
        least, most = (-(1 << 63), (1 << 63) - 1) if signed else (0, (1 << 64) - 1)
        if not least <= stored <= most:
            raise ValueError("it has more than 64 bits")
    return stored


def _cut(column: Column, stored: Stored) -> Stored:
    """A binary column's default within its declared length, in bytes, as TiDB reads it.

    In the catalogue's JSON each byte that is not UTF-8 has become U+FFFD, of three bytes.
    """
    too_long = column.kind is Kind.BYTES and isinstance(stored, bytes) and 0 < column.flen < len(stored)
    return stored[: column.flen] if too_long and isinstance(stored, bytes) else stored


def _parse_default(column: Column, text: str) -> Stored:
    match column.kind:
        case Kind.INT | Kind.UINT | Kind.YEAR:
            return int(text)
        case Kind.BIT:
            return int.from_bytes(text.encode("latin-1"), "big")
        case Kind.FLOAT:
            return floats.to_float32(float(text))
        case Kind.DOUBLE:
            return float(text)
        case Kind.ENUM:
            return enum.enum_index(text, column.elems)
        case Kind.SET:
            return enum.set_mask(text, column.elems)
        case _:
            return parse(column, text)


def zero(column: Column) -> Stored:
    """The zero of a NOT NULL column's type; the first element for enum."""
    match column.kind:
        case Kind.ENUM:
            return 1
        case Kind.FLOAT | Kind.DOUBLE:
            return 0.0
        case Kind.STRING | Kind.BYTES:
            return b""
        case Kind.DECIMAL:
            return parse(column, "0")
        case Kind.JSON:
            return ZERO_JSON
        case Kind.VECTOR:
            return bytes(4)
        case _:
            return 0
