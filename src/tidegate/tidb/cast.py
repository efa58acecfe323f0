"""A stored value converted to another column type, as MODIFY COLUMN does with existing rows. Pure.

Values are plain (`tidb.value`), before and after. TiDB rewrites the rows without row events, so a consumer
that has a copy must convert its rows in the same way. In strict SQL mode TiDB refuses the statement if a
value does not fit; otherwise it stores the nearest value that fits. If the statement succeeded, always using
the nearest value therefore gives the same rows. Source: TiDB `pkg/types/datum.go` (`ConvertTo`),
`pkg/table/column.go` (`CastColumnValue`), `pkg/ddl/column.go` (`updateColumnWorker`).

| from | to | rule |
|---|---|---|
| decimal, text | integer, decimal | rounded half away from zero |
| float | integer | rounded half to even |
| any number | narrower | the nearest bound; below zero in UNSIGNED: 0 |
| text | number | the longest prefix that is a number, otherwise 0 |
| date, time | number | its digits: `20240229`, `101010` |
| date with time | fewer digits of the second | rounded half up; to DATE: cut |
| enum, set | number | index, mask; to text its names |
| text | enum, set | by name under the column's collation, otherwise as a number |
| text | JSON | parsed; numbers and dates become JSON numbers and strings |
| text, number | text | cut to the length; CHAR loses spaces at the end, BINARY is filled with zeros |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

import orjson

from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.tidb import time_text
from tidegate.tidb.types import enum, json, temporal
from tidegate.tidb.types import float as floats
from tidegate.tidb.types.string import sort_key
from tidegate.tidb.value import fsp

_INTEGER_BITS: Final = {1: 8, 2: 16, 9: 24, 3: 32, 8: 64}
"""Width of tinyint, smallint, mediumint, int and bigint by MySQL's type code."""
_CHAR: Final = 254
_BLOBS: Final = frozenset({249, 250, 251, 252})
_MAX_FLOAT: Final = 3.4028234663852886e38
_HUGE: Final = 1 << 70
"""Represents every number beyond the range of all integer types."""
_YEARS: Final = (1901, 2155)
_EXACT: Final = Context(prec=200)
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WHOLE: Final = frozenset({Kind.INT, Kind.UINT, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET})
_REAL: Final = frozenset({Kind.FLOAT, Kind.DOUBLE})
_TEXT: Final = frozenset({Kind.STRING, Kind.BYTES})
_DATES: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})


def refusal(before: Column, after: Column, time_zone: tzinfo | None) -> str:
    """Why values of one column cannot be converted to the other; empty if they can.

    `time_zone`: that of the session that changed the column, None if it is not known.
    """
    if Kind.VECTOR in (before.kind, after.kind) and before.kind != after.kind:
        return "TiDB converts no vectors"
    if before.kind is Kind.TIME and after.kind in _DATES:
        return "TiDB adds the day on which it converts a row, and no message has that day"
    if time_zone is None and (before.kind is Kind.TIMESTAMP) != (after.kind is Kind.TIMESTAMP):
        return "the result depends on the session's time zone, which the DDL message does not have"
    return ""


def cast(value: Value, before: Column, after: Column, time_zone: tzinfo = UTC) -> Value:
    """The value as TiDB stores it after the change. TIMESTAMP texts are in UTC, before and after.

    Raises Undecodable if no rule gives the result: a NULL that becomes the time at which TiDB converted the
    row, or bits that no JSON text can hold. The caller has checked that `refusal(before, after)` is empty.
    """
    if value is None:
        if after.kind is Kind.TIMESTAMP and not after.nullable and before.kind is not Kind.TIMESTAMP:
            raise Undecodable(
                "a NULL becomes the current time",
                where=f"column {after.name}",
                why="TiDB fills a NOT NULL TIMESTAMP with the time at which it converts the row",
            )
        return None
    if before.kind is Kind.TIMESTAMP and after.kind is not Kind.TIMESTAMP:
        # TiDB converts the local time that the session sees, not the stored one.
        value = _moved(str(value), fsp(before), UTC, time_zone)
    return _CASTS[after.kind](value, before, after, time_zone)


# --- numbers


def _to_signed(value: Value, before: Column, after: Column, zone: tzinfo) -> int:
    half = 1 << _INTEGER_BITS[after.mysql_type] - 1
    return _clip(_whole(value, before, signed=True), -half, half - 1)


def _to_unsigned(value: Value, before: Column, after: Column, zone: tzinfo) -> int:
    return _clip(_whole(value, before, signed=False), 0, (1 << _INTEGER_BITS[after.mysql_type]) - 1)


def _to_bit(value: Value, before: Column, after: Column, zone: tzinfo) -> int:
    number = _whole(value, before, signed=False)
    if number < 0 and before.kind is Kind.INT:
        number += 1 << 64  # TiDB uses the bits of a signed integer
    return _clip(number, 0, (1 << max(after.flen, 1)) - 1)


def _to_year(value: Value, before: Column, after: Column, zone: tzinfo) -> int:
    if before.kind in _DATES:
        year = int(str(value)[:4])
    else:
        year = _clip(_whole(value, before, signed=True), -(1 << 63), (1 << 63) - 1)
    short = before.kind in _TEXT and len(_text(value)) != 4 and _text(value).strip().startswith("0")
    if year == 0 and not short:
        return 0
    # A year of two digits is one of 1970 to 2069, as in MySQL.
    year = year + 2000 if 0 <= year <= 69 else year + 1900 if 70 <= year <= 99 else year
    return _clip(year, *_YEARS) if year >= 0 else 0


def _to_decimal(value: Value, before: Column, after: Column, zone: tzinfo) -> str:
    number = _exact(value, before)
    if after.flen > 0:
        scale = max(after.decimal, 0)
        most = Decimal((0, (9,) * after.flen, -scale))
        number = max(min(number, most), -most)
        number = number.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP, _EXACT)
        # Again, because rounding may have carried the number over the limit.
        number = max(min(number, most), -most)
    if number < 0 and after.unsigned:
        # Zero with the same digits after the point.
        number = number - number
    return f"{abs(number) if number.is_zero() else number:f}"


def _to_float(value: Value, before: Column, after: Column, zone: tzinfo) -> float:
    number = _real(value, before)
    if after.flen >= 0 and after.decimal >= 0:
        most = 10.0 ** (after.flen - after.decimal) - 10.0**-after.decimal
        scaled = number * 10.0**after.decimal
        if math.isfinite(scaled):
            # `round` takes halves to the even digit, as TiDB's types.RoundFloat (math.RoundToEven) does.
            number = round(scaled) / 10.0**after.decimal
        number = max(min(number, most), -most)
    if after.unsigned and number < 0:
        return 0.0
    if after.kind is Kind.FLOAT:
        return floats.to_float32(max(min(number, _MAX_FLOAT), -_MAX_FLOAT))
    return number


def _whole(value: Value, before: Column, *, signed: bool) -> int:
    """The integer of a value, before it is fitted into a type."""
    match before.kind, value:
        case kind, int(number) if kind in _WHOLE:
            return number
        case kind, float(number) if kind in _REAL:
            return round(number) if math.isfinite(number) else int(math.copysign(_HUGE, number))
        case ((Kind.DATETIME | Kind.TIMESTAMP), str(text)) if signed:
            # For a signed integer TiDB rounds the time; otherwise it rounds the number made of its digits.
            return int(time_text.digits(time_text.rounded(text, 0)))
        case Kind.TIME, str(text) if signed or before.decimal <= 0:
            return int(time_text.digits(time_text.rounded_duration(text, 0)))
        case Kind.JSON, str(text):
            return _whole_of_json(text, signed=signed)
        case _:
            return _rounded(_exact(value, before))


def _whole_of_json(text: str, *, signed: bool) -> int:
    match orjson.loads(text):
        case bool(truth):
            return int(truth)
        case int(number):
            return number
        case float(number):
            return round(number)
        case str(inner):
            number = _rounded(_number_at(inner))
            # TiDB parses a negative text as signed, and keeps its bits if the column is unsigned.
            return number if signed or number >= 0 else number + (1 << 64)
        case _:
            return 0


def _exact(value: Value, before: Column) -> Decimal:
    """The value as an exact decimal number."""
    match before.kind, value:
        case _, int(number):
            return Decimal(number)
        case _, float(number):
            return Decimal(repr(number)) if math.isfinite(number) else Decimal(0)
        case Kind.DECIMAL, str(text):
            return Decimal(text)
        case ((Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME), str(text)):
            return Decimal(time_text.digits(text))
        case Kind.JSON, str(text):
            return _exact_of_json(text)
        case _:
            return _number_at(_text(value))


def _exact_of_json(text: str) -> Decimal:
    match orjson.loads(text):
        case bool() | int() as number:
            return Decimal(int(number))
        case float(number):
            return Decimal(repr(number))
        case str(inner):
            return _number_at(inner)
        case _:
            return Decimal(0)


def _real(value: Value, before: Column) -> float:
    if isinstance(value, float):
        return value
    number = float(_exact(value, before))
    return math.copysign(1.7976931348623157e308, number) if math.isinf(number) else number


def _number_at(text: str) -> Decimal:
    """The number at the beginning of a text; 0 if there is none."""
    found = _NUMBER.match(text.strip())
    return Decimal(found[0]) if found else Decimal(0)


def _rounded(number: Decimal) -> int:
    # Beyond every integer type. With a large exponent the number would also have more digits than the
    # context.
    if number.adjusted() > 20 and number:
        return -_HUGE if number < 0 else _HUGE
    return int(number.quantize(Decimal(1), ROUND_HALF_UP, _EXACT)) if number.adjusted() >= -1 else 0


def _clip(number: int, least: int, most: int) -> int:
    return max(least, min(number, most))


# --- text


def _to_text(value: Value, before: Column, after: Column, zone: tzinfo) -> bytes:
    data = _charset_text(value, before, after)
    binary = after.kind is Kind.BYTES
    if after.flen >= 0:
        data = _cut(data, after.flen, by_bytes=binary, whole=after.mysql_type in _BLOBS)
    if after.mysql_type != _CHAR:
        return data
    return data.ljust(after.flen, b"\0") if binary else data.rstrip(b" ")


def _charset_text(value: Value, before: Column, after: Column) -> bytes:
    """The text's bytes: UTF-8 for a text column, the text's own charset for a binary column."""
    if before.kind is Kind.STRING and after.kind is Kind.BYTES and before.charset in ("gbk", "gb18030"):
        return _text(value).encode("gb18030", "replace")
    if before.kind is Kind.BYTES and after.kind is Kind.STRING and after.charset in ("gbk", "gb18030"):
        assert isinstance(value, bytes)
        return value.decode("gb18030", "replace").encode()
    return value if isinstance(value, bytes) else shown(value, before).encode()


def shown(value: Value, column: Column) -> str:
    """A value that is neither text nor NULL, as TiDB writes it into a text column."""
    match column.kind, value:
        case Kind.ENUM, int(index):
            return enum.enum_name(index, column.elems)
        case Kind.SET, int(mask):
            return enum.set_names(mask, column.elems)
        case kind, float(number):
            return floats.fixed_text(number, single=kind is Kind.FLOAT)
        case _:
            return _text(value)


def _cut(data: bytes, length: int, *, by_bytes: bool, whole: bool) -> bytes:
    """At most `length` bytes, or characters; `whole`: bytes, but no character is cut in two."""
    if len(data) <= length:
        return data
    if by_bytes:
        return data[:length]
    if whole:
        return data[:length].decode(errors="ignore").encode()
    return data.decode(errors="replace")[:length].encode()


def _text(value: Value) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# --- enum, set, JSON


def _to_enum(value: Value, before: Column, after: Column, zone: tzinfo) -> int:
    """The element's number; 0, the empty element, if the column has no such element."""
    if before.kind not in _TEXT | {Kind.ENUM, Kind.SET}:
        number = _whole(value, before, signed=False)
        return number if 0 < number <= len(after.elems) else 0
    if before.kind is Kind.ENUM and value == 0:
        return 0
    name = shown(value, before)
    key = _collated(name, after.collate)
    for index, elem in enumerate(after.elems, start=1):
        if elem == name or _collated(elem, after.collate) == key:
            return index
    # As in TiDB: a text that is no element may be the number of one.
    number = _as_written(name)
    return number if 0 < number <= len(after.elems) else 0


def _to_set(value: Value, before: Column, after: Column, zone: tzinfo) -> int:
    """The mask; the empty set if the column cannot hold the value."""
    every = (1 << len(after.elems)) - 1
    if before.kind not in _TEXT | {Kind.ENUM, Kind.SET}:
        number = _whole(value, before, signed=False)
        return number if 0 <= number <= every else 0
    names = shown(value, before)
    if not names:
        return 0
    keys = [_collated(elem, after.collate) for elem in after.elems]
    wanted = [_collated(name, after.collate) for name in names.split(",")]
    if all(key in keys for key in wanted):
        # A set, because a name that comes twice in the text counts once.
        return sum({1 << keys.index(key) for key in wanted})
    number = _as_written(names)
    return number if 0 <= number <= every else 0


def _collated(text: str, collate: str) -> bytes:
    try:
        return sort_key(text.encode(), collate)
    except InvalidInput:  # we lack this collation's weights: only equal texts count as equal
        return text.encode()


def _as_written(text: str) -> int:
    """A number in a program's notation (octal, hexadecimal, ...); -1 for anything else."""
    try:
        return int(text, 8 if re.fullmatch("0[0-7]+", text) else 0)
    except ValueError:
        return -1


def _to_json(value: Value, before: Column, after: Column, zone: tzinfo) -> str:
    match before.kind, value:
        case Kind.BIT, int(bits):
            return _bits_as_json(bits, before)
        case ((Kind.STRING | Kind.BYTES | Kind.ENUM | Kind.SET), _):
            return _parsed_json(shown(value, before), after)
        case _, int(number):
            return str(number)
        case _, float(number):
            return json.double_text(number)
        case Kind.DECIMAL, str(text):
            return json.double_text(float(text))
        case ((Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME), str(text)):
            whole, _, micro = text.partition(".")
            return f'"{whole}.{micro.ljust(6, "0")}"'
        case Kind.DATE, str(text):
            return f'"{text}"'
        case _:
            return _text(value)


def _bits_as_json(bits: int, before: Column) -> str:
    """A JSON string with the column's bytes."""
    try:
        return json.quote(bits.to_bytes((before.flen + 7) // 8, "big").decode())
    except UnicodeDecodeError as error:
        raise Undecodable(
            "bits are not JSON text", where=f"column {before.name}", why=f"{bits:#x} is not UTF-8"
        ) from error


def _parsed_json(text: str, after: Column) -> str:
    try:
        return json.decode(json.encode(text))
    except InvalidInput as error:
        raise Undecodable("a text is not JSON", where=f"column {after.name}", why=error.why) from error


# --- time


def _to_date(value: Value, before: Column, after: Column, zone: tzinfo) -> str:
    return _day_and_time(value, before, 0, whole_day=True)[:10]


def _to_datetime(value: Value, before: Column, after: Column, zone: tzinfo) -> str:
    return _day_and_time(value, before, fsp(after))


def _to_timestamp(value: Value, before: Column, after: Column, zone: tzinfo) -> str:
    if before.kind is Kind.TIMESTAMP:
        return time_text.rounded(str(value), fsp(after))
    local = _day_and_time(value, before, fsp(after))
    moved = local if local.startswith("0000") else _moved(local, fsp(after), zone, UTC)
    in_range = time_text.TIMESTAMPS[0] <= moved[:19] <= time_text.TIMESTAMPS[1]
    return moved if in_range else time_text.ZERO


def _day_and_time(value: Value, before: Column, digits: int, *, whole_day: bool = False) -> str:
    """Date and time of a value; the zero time if it contains none."""
    match before.kind, value:
        case kind, str(text) if kind in _DATES:
            text = text if len(text) > 10 else f"{text} 00:00:00"
            return text if whole_day else time_text.rounded(text, digits)
        case kind, int(number) if kind in _WHOLE:
            found = time_text.of_number(number)
        case Kind.JSON, str(text):
            found = time_text.parse(_unquoted(text), digits)
        case _:
            found = time_text.parse(_text(value), digits)
    return found or time_text.ZERO


def _moved(text: str, digits: int, source: tzinfo, target: tzinfo) -> str:
    if text.startswith("0000-00-00") or source is target:
        return text
    packed = temporal.pack(temporal.to_utc(temporal.parse(text), source))
    return temporal.datetime_text(temporal.in_zone(packed, target), digits)


def _to_time(value: Value, before: Column, after: Column, zone: tzinfo) -> str:
    match before.kind, value:
        case Kind.TIME, str(text):
            return time_text.rounded_duration(text, fsp(after))
        case kind, str(text) if kind in _DATES:
            return time_text.rounded_duration(text[11:] or "00:00:00", fsp(after))
        case Kind.JSON, str(text):
            return time_text.parse_duration(_unquoted(text), fsp(after))
        case kind, _ if kind in _TEXT:
            return time_text.parse_duration(_text(value), fsp(after))
        case _:
            return time_text.duration_of_number(shown(value, before), fsp(after))


def _unquoted(text: str) -> str:
    inner = orjson.loads(text)
    return inner if isinstance(inner, str) else text


_Cast = Callable[[Value, Column, Column, tzinfo], Value]
_CASTS: Final[dict[Kind, _Cast]] = {
    Kind.INT: _to_signed,
    Kind.UINT: _to_unsigned,
    Kind.YEAR: _to_year,
    Kind.BIT: _to_bit,
    Kind.FLOAT: _to_float,
    Kind.DOUBLE: _to_float,
    Kind.DECIMAL: _to_decimal,
    Kind.STRING: _to_text,
    Kind.BYTES: _to_text,
    Kind.ENUM: _to_enum,
    Kind.SET: _to_set,
    Kind.JSON: _to_json,
    Kind.DATE: _to_date,
    Kind.DATETIME: _to_datetime,
    Kind.TIMESTAMP: _to_timestamp,
    Kind.TIME: _to_time,
    Kind.VECTOR: lambda value, before, after, zone: value,
}
