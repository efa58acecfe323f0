"""Binary JSON: type code u8, then the value; containers address their parts by offset.

    object 1, array 3   count u32, size u32, [key entries: offset u32, length u16], value entries: type u8 and
                        offset u32 (or the literal itself), keys, values; offsets from the container's start
    literal 4           0 null, 1 true, 2 false
    int64 9, uint64 10, double 11   8 bytes
    string 12           uvarint length, bytes
    opaque 13           MySQL type u8, uvarint length, bytes
    date 14, datetime 15, timestamp 16   core time u64
    duration 17         nanoseconds i64, digits of the second u32

All little-endian. Text: separators `", "` and `": "`, members in stored order (sorted by key bytes). Source:
TiDB `pkg/types/json_binary.go`. A document whose parts overlap is refused, so that reading it takes time
and memory linear in its bytes.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Iterator
from typing import Any, Final

from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb.memcomparable import encode_uvarint, read_uvarint
from tidegate.tidb.types import float as floats
from tidegate.tidb.types import temporal

KEY_MAX: Final = 0xFFFF
"""A key's length has two bytes."""
MAX_DEPTH: Final = 100
"""The deepest nesting that TiDB accepts."""

OBJECT, ARRAY, LITERAL, INT64, UINT64, DOUBLE, STRING, OPAQUE = (
    1,
    3,
    4,
    9,
    10,
    11,
    12,
    13,
)
DATE, DATETIME, TIMESTAMP, DURATION = 14, 15, 16, 17

_LITERALS: Final = ("null", "true", "false")
_ESCAPE: Final = re.compile(r'[\x00-\x1f"\\\u2028\u2029]')
_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}


def decode(data: bytes) -> str:
    """The canonical text of type code and value, as rows contain them."""
    if not data:
        raise Undecodable("a JSON value is cut", why="no type code")
    return "".join(_JsonReader(data).value(data[0], 1, 0))


class _JsonReader:
    """Reads one document; `left` is the number of bytes that its parts may still claim."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = len(data)

    def claim(self, start: int, size: int) -> bytes:
        """The bytes of a part; every byte of a document belongs to one part only."""
        part = self.data[start : start + size]
        # `left` is the budget of the whole document, so parts that overlap run out of it.
        self.left -= size
        if len(part) != size or self.left < 0:
            raise Undecodable("a JSON value is cut", why=f"a part of {size} bytes at {start}")
        return part

    def value(self, code: int, start: int, depth: int) -> Iterator[str]:
        if code in (OBJECT, ARRAY):
            yield from self.container(code, start, depth + 1)
        else:
            yield self.scalar(code, start)

    def scalar(self, code: int, start: int) -> str:
        match code:
            case 4:
                return _literal(self.claim(start, 1)[0])
            case 9:
                return str(int.from_bytes(self.claim(start, 8), "little", signed=True))
            case 10:
                return str(int.from_bytes(self.claim(start, 8), "little"))
            case 11:
                return double_text(struct.unpack("<d", self.claim(start, 8))[0])
            case 12:
                return quote(self.sized(start).decode(errors="replace"))
            case 13:
                opaque_type = self.claim(start, 1)[0]
                content = base64.b64encode(self.sized(start + 1)).decode()
                return f'"base64:type{opaque_type}:{content}"'
            case 14:
                return f'"{temporal.date_text(self.time(start))}"'
            case 15 | 16:
                return f'"{temporal.datetime_text(self.time(start), 6)}"'
            case 17:
                nanoseconds = int.from_bytes(self.claim(start, 12)[:8], "little", signed=True)
                return f'"{temporal.duration_text(nanoseconds, 6)}"'
            case _:
                raise Undecodable("a JSON value has an unknown type", why=f"type code {code}")

    def sized(self, start: int) -> bytes:
        size, at = read_uvarint(self.data, start)
        self.claim(start, at - start)
        return self.claim(at, size)

    def time(self, start: int) -> temporal.Parts:
        return temporal.unpack_core(int.from_bytes(self.claim(start, 8), "little"))

    def container(self, code: int, start: int, depth: int) -> Iterator[str]:
        if depth > MAX_DEPTH:
            raise Undecodable(
                "a JSON document is nested too deeply",
                why=f"more than {MAX_DEPTH} levels",
            )
        count, size = struct.unpack("<II", self.claim(start, 8))
        # Not claimed as a whole: the keys and values within it claim their own bytes.
        if size > len(self.data) - start:
            raise Undecodable("a JSON value is cut", why=f"a container of {size} bytes at {start}")
        named = code == OBJECT
        keys = self.claim(start + 8, 6 * count) if named else b""
        values = self.claim(start + 8 + len(keys), 5 * count)
        yield "{" if named else "["
        for i in range(count):
            yield ", " if i else ""
            if named:
                offset, length = struct.unpack_from("<IH", keys, 6 * i)
                yield (quote(self.claim(start + offset, length).decode(errors="replace")) + ": ")
            kind, offset = struct.unpack_from("<BI", values, 5 * i)
            if kind == LITERAL:
                # A literal is in the first of the entry's four bytes, instead of an offset.
                yield _literal(offset & 0xFF)
            else:
                # A container cannot contain itself: its bytes would be claimed twice.
                yield from self.value(kind, start + offset, depth)
        yield "}" if named else "]"


def _literal(code: int) -> str:
    if code >= len(_LITERALS):
        raise Undecodable("a JSON literal is unknown", why=f"code {code}")
    return _LITERALS[code]


def double_text(value: float) -> str:
    """A double as TiDB's JSON prints it: with a point, or an exponent below 1e-15 and from 1e15."""
    if not math.isfinite(value):
        raise Undecodable("a JSON number is not finite", why=repr(value))
    if value and not 1e-15 <= abs(value) < 1e15:
        return floats.exponent_text(value, single=False)
    text = floats.fixed_text(value, single=False)
    return text if "." in text else text + ".0"


def quote(text: str) -> str:
    """A JSON string as TiDB prints it: only control characters, quotes, backslashes and U+2028/9 escaped."""
    return '"' + _ESCAPE.sub(lambda hit: _SHORT.get(hit[0]) or f"\\u{ord(hit[0]):04x}", text) + '"'


def encode(text: str) -> bytes:
    """Type code and value of a JSON text, as TiDB parses it: the last of equal keys wins, keys are sorted."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("a text is not JSON", why=str(error)) from None
    code, data = _encode(value, 0)
    return bytes([code]) + data


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _encode(value: Any, depth: int) -> tuple[int, bytes]:
    if depth > MAX_DEPTH:
        raise InvalidInput("a JSON document is nested too deeply", why=f"more than {MAX_DEPTH} levels")
    match value:
        case None | True | False:
            return LITERAL, bytes([_LITERALS.index(json.dumps(value))])
        case int() if -(1 << 63) <= value < 1 << 63:
            return INT64, value.to_bytes(8, "little", signed=True)
        case int() if 0 <= value < 1 << 64:
            return UINT64, value.to_bytes(8, "little")
        case int() | float():
            return DOUBLE, struct.pack("<d", _finite(value))
        case str():
            data = value.encode(errors="replace")
            return STRING, encode_uvarint(len(data)) + data
        case list():
            return ARRAY, _container([], [_encode(item, depth + 1) for item in value])
        case _:
            members = sorted(map(_member, _items(value)), key=lambda member: member[0])
            return OBJECT, _container(
                [key for key, _ in members],
                [_encode(item, depth + 1) for _, item in members],
            )


def _items(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(value.items())


def _member(item: tuple[str, Any]) -> tuple[bytes, Any]:
    key = item[0].encode(errors="replace")
    if len(key) > KEY_MAX:
        raise InvalidInput(
            "a key of a JSON document is too long", why=f"{len(key)} bytes of at most {KEY_MAX}"
        )
    return key, item[1]


def _finite(value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise InvalidInput("a JSON number is too large", why=str(value)[:40])
    return number


def _container(keys: list[bytes], values: list[tuple[int, bytes]]) -> bytes:
    head = 8 + 6 * len(keys) + 5 * len(values)
    key_entries, value_entries, body = b"", b"", b""
    for key in keys:
        key_entries += struct.pack("<IH", head + len(body), len(key))
        body += key
    for code, data in values:
        inline = code == LITERAL
        value_entries += struct.pack("<BI", code, data[0] if inline else head + len(body))
        body += b"" if inline else data
    return struct.pack("<II", len(values), head + len(body)) + key_entries + value_entries + body
