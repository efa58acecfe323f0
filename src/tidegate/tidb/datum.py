"""Datum flags and values: one byte with the type, then the value.

In keys every value has its comparable form; in old rows (v1) integers are varints and bytes compact. A time
is a packed unsigned number, TIME a duration or integer; enum, set and bit are unsigned. Source: TiDB
`pkg/util/codec/codec.go`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb import memcomparable
from tidegate.tidb.types import decimal
from tidegate.tidb.types import float as floats


class Flag(IntEnum):
    """The byte before a value."""

    NULL = 0
    BYTES = 1
    COMPACT_BYTES = 2
    INT = 3
    UINT = 4
    FLOAT = 5
    DECIMAL = 6
    DURATION = 7
    VARINT = 8
    UVARINT = 9
    JSON = 10
    VECTOR = 20
    MAX = 250


@dataclass(frozen=True, slots=True)
class Datum:
    """A flagged value: int, float, bytes (DECIMAL: codec form; JSON: type code and value), None for NULL."""

    flag: Flag
    value: int | float | bytes | None


NULL = Datum(Flag.NULL, None)

_COMPARABLE = {Flag.BYTES, Flag.INT, Flag.UINT, Flag.FLOAT, Flag.DECIMAL, Flag.DURATION}


def encode_key(datums: Iterable[Datum]) -> bytes:
    """The flagged comparable forms in sequence; strings must already be sort keys."""
    out = b""
    for datum in datums:
        if datum.flag not in _COMPARABLE and datum.flag != Flag.NULL:
            raise InvalidInput(f"a datum with flag {datum.flag.name} has no place in a key")
        out += encode(datum)
    return out


def encode(datum: Datum) -> bytes:
    """The bytes of a datum: its flag, then its value."""
    return bytes([datum.flag]) + _encode_value(datum)


def _encode_value(datum: Datum) -> bytes:
    match datum.flag, datum.value:
        case Flag.NULL | Flag.MAX, None:
            return b""
        case Flag.BYTES, bytes(data):
            return memcomparable.encode_bytes(data)
        case Flag.COMPACT_BYTES, bytes(data):
            return memcomparable.encode_compact(data)
        case Flag.INT | Flag.DURATION, int(number):
            return memcomparable.encode_int(number)
        case Flag.UINT, int(number):
            return memcomparable.encode_uint(number)
        case Flag.VARINT, int(number):
            return memcomparable.encode_varint(number)
        case Flag.UVARINT, int(number):
            return memcomparable.encode_uvarint(number)
        case Flag.FLOAT, float(number):
            return floats.encode(number)
        case Flag.DECIMAL | Flag.JSON | Flag.VECTOR, bytes(data):
            return data
        case _:
            raise InvalidInput(f"no datum {datum.flag.name} of {type(datum.value).__name__}")


def read(data: bytes, start: int) -> tuple[Datum, int]:
    """The datum at `start`, and its end."""
    if start >= len(data):
        raise Undecodable("a datum is cut", why=f"nothing at {start}")
    try:
        flag = Flag(data[start])
    except ValueError:
        raise Undecodable("a datum has an unknown flag", why=f"{data[start]} at {start}") from None
    value, end = _read_value(flag, data, start + 1)
    return Datum(flag, value), end


def _read_value(flag: Flag, data: bytes, at: int) -> tuple[int | float | bytes | None, int]:
    match flag:
        case Flag.NULL | Flag.MAX:
            return None, at
        case Flag.BYTES:
            return memcomparable.decode_bytes(data, at)
        case Flag.COMPACT_BYTES:
            return memcomparable.read_compact(data, at)
        case Flag.INT | Flag.DURATION:
            return memcomparable.decode_int(data, at), at + 8
        case Flag.UINT:
            return memcomparable.decode_uint(data, at), at + 8
        case Flag.FLOAT:
            return floats.decode(data[at : at + 8]), at + 8
        case Flag.DECIMAL:
            return _slice(data, at, decimal.size_at(data, at))
        case Flag.VARINT:
            return memcomparable.read_varint(data, at)
        case Flag.UVARINT:
            return memcomparable.read_uvarint(data, at)
        case Flag.JSON:
            return _slice(data, at, _json_size(data, at))
        case Flag.VECTOR:
            return _slice(data, at, 4 + 4 * int.from_bytes(data[at : at + 4], "little"))


def _slice(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise Undecodable("a datum is cut", why=f"{size} bytes at {at} of {len(data)}")
    return data[at : at + size], at + size


def _json_size(data: bytes, at: int) -> int:
    """Bytes of type code and value, from the lengths in the value itself (TiDB `types.PeekBytesAsJSON`)."""
    match data[at] if at < len(data) else -1:
        case 1 | 3:
            return 1 + int.from_bytes(data[at + 5 : at + 9], "little")
        case 4:
            return 2
        case 9 | 10 | 11 | 14 | 15 | 16:
            return 9
        case 17:
            return 13
        case 12:
            size, end = memcomparable.read_uvarint(data, at + 1)
            return end - at + size
        case 13:
            size, end = memcomparable.read_uvarint(data, at + 2)
            return end - at + size
        case code:
            raise Undecodable("a JSON value has an unknown type", why=f"type code {code} at {at}")


def read_all(data: bytes, limit: int = 1024) -> list[Datum]:
    """All datums of a key or index value; Undecodable if there are more than `limit`."""
    out: list[Datum] = []
    at = 0
    while at < len(data):
        if len(out) == limit:
            raise Undecodable("a key has too many datums", why=f"more than {limit}")
        datum, at = read(data, at)
        out.append(datum)
    return out
