"""Converts columns, as a protocol decodes them, to the target's types. Pure.

`wire` arrays have the types of `codec.base.DecodedTable` (numbers, text, bytes); `TargetColumn.type` is the
target's type (docs/delta.md). Conversions work on whole columns. Values that no calendar knows (zero dates,
31 February) become null and are counted; only columns that hold such a value are converted value by value. In
a key such values must stay distinct, so a date, datetime or timestamp that identifies rows is stored as text:
`YYYY-MM-DD`, or `YYYY-MM-DD HH:MM:SS.ffffff` regardless of the column's precision, timestamps in UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import Undecodable
from tidegate.tidb.types.float import fixed_text

YEAR, BIT, JSON, DECIMAL, ENUM, SET, VECTOR = 13, 16, 245, 246, 247, 248, 225
FLOAT, DOUBLE, TIMESTAMP, DATE, TIME, DATETIME, NEWDATE = 4, 5, 7, 10, 11, 12, 14
TINY, SHORT, LONG, LONGLONG, INT24 = 1, 2, 3, 8, 9
MOMENTS: Final = frozenset({DATE, NEWDATE, DATETIME, TIMESTAMP})
"""Types of which the target's calendar has fewer values than TiDB."""
_DAY, _SECONDS = len("YYYY-MM-DD"), len("YYYY-MM-DD HH:MM:SS")
_MICROSECONDS = len("YYYY-MM-DD HH:MM:SS.ffffff")
STRINGS: Final = frozenset({15, 249, 250, 251, 252, 253, 254})

_SIGNED: Final = {
    TINY: pa.int8(),
    SHORT: pa.int16(),
    INT24: pa.int32(),
    LONG: pa.int32(),
    LONGLONG: pa.int64(),
}
_UNSIGNED: Final = {
    TINY: pa.int16(),
    SHORT: pa.int32(),
    INT24: pa.int32(),
    LONG: pa.int64(),
    LONGLONG: pa.decimal128(20, 0),
}
_FIXED: Final = {
    FLOAT: pa.float32(),
    DOUBLE: pa.float64(),
    YEAR: pa.int32(),
    DATE: pa.date32(),
    NEWDATE: pa.date32(),
    DATETIME: pa.timestamp("us"),
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
    TIME: pa.string(),
    ENUM: pa.string(),
    SET: pa.string(),
    JSON: pa.string(),
    VECTOR: pa.list_(pa.float32()),
}


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """One column of a target table."""

    name: str
    mysql_type: int
    type: pa.DataType
    elems: tuple[str, ...] = ()
    """Names of an enum's or set's elements; empty when unknown: the number is then stored as text."""
    id: int = 0
    """TiDB's column id, 0 when guessed."""
    collation: str = ""
    """The collation by which TiDB compares its text; empty when unknown or not text."""


def target_type(mysql_type: int, *, unsigned: bool, binary: bool, flen: int, decimal: int) -> pa.DataType:
    """The Delta type of a MySQL type; decimals with unknown precision, or over 38 digits, are text."""
    if mysql_type in _SIGNED:
        return (_UNSIGNED if unsigned else _SIGNED)[mysql_type]
    if mysql_type in (DECIMAL, 0):
        # 38 digits are the most of a Delta decimal, and TiDB has up to 65. Text keeps the value exact.
        return pa.decimal128(flen, max(decimal, 0)) if 0 < flen <= 38 else pa.string()
    if mysql_type == BIT:
        # 64 bits do not fit a signed integer, and Delta has no unsigned ones.
        return pa.decimal128(20, 0) if flen >= 64 else pa.int64()
    if mysql_type in STRINGS:
        return pa.binary() if binary else pa.string()
    if mysql_type in _FIXED:
        return _FIXED[mysql_type]
    raise Undecodable(
        "a column's type is not known", why=f"MySQL type code {mysql_type}", fix="leave the table out"
    )


def in_key(column: TargetColumn) -> TargetColumn:
    """The column as part of a key: an exact type, so that two different rows never get the same key."""
    return replace(column, type=pa.string()) if column.mysql_type in MOMENTS else column


def on_calendar(column: TargetColumn) -> TargetColumn:
    """The column of a date, datetime or timestamp as it is outside of a key."""
    return replace(
        column, type=target_type(column.mysql_type, unsigned=False, binary=False, flen=0, decimal=0)
    )


def moments(texts: pa.Array, of_type: pa.DataType) -> pa.Array:
    """The moments that a key's texts mean; null for those that no calendar knows."""
    if pa.types.is_date(of_type):
        return _calendar(texts, of_type, date.fromisoformat, Losses())
    return _calendar(texts, pa.timestamp("us"), datetime.fromisoformat, Losses()).cast(of_type)


def key_texts(typed: pa.Array) -> pa.Array:
    """Dates or timestamps as texts of a key."""
    return typed.cast(pa.timestamp("us") if pa.types.is_timestamp(typed.type) else typed.type).cast(
        pa.string()
    )


def unknown_members(wire: pa.Array, column: TargetColumn) -> pa.Array | None:
    """True for numbers without an element in their enum or set; None when there is no such number."""
    if column.mysql_type not in (ENUM, SET) or not column.elems or not pa.types.is_integer(wire.type):
        return None
    count = len(column.elems)
    # Each of the 64 bits has an element then.
    if column.mysql_type == SET and count >= 64:
        return None
    most = count if column.mysql_type == ENUM else (1 << count) - 1
    # A NULL is no member, so it is no unknown one either.
    found = pc.fill_null(pc.greater(wire, pa.scalar(most, wire.type)), False)
    return found if pc.any(found).as_py() else None


@dataclass(slots=True)
class Losses:
    """Values that the target's types cannot hold."""

    bad_dates: int = 0
    bad_texts: int = 0
    """Texts that are not UTF-8: stored with U+FFFD in place of the bad bytes."""


def to_target(wire: pa.Array, column: TargetColumn, time_zone: str, losses: Losses) -> pa.Array:
    """Convert a decoded column to its target's type; Undecodable when a value does not fit."""
    try:
        return _converted(wire, column, time_zone, losses)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, IndexError) as error:
        raise Undecodable(
            "a column's values do not fit the target's type",
            where=f"column {column.name}: {wire.type} to {column.type}",
            why=str(error)[:200],
            fix="compare the table's definition at the source with the target's",
        ) from error


def _converted(wire: pa.Array, column: TargetColumn, time_zone: str, losses: Losses) -> pa.Array:
    kind, target = column.mysql_type, column.type
    # docs/guarantees.md#a-row-of-the-source-is-one-row-at-the-target: a date that no calendar has would
    # become NULL, and two rows would get one key.
    # Looked at first: text on the wire has the target's type, but not yet the form that a key's text has.
    if kind in MOMENTS and pa.types.is_string(target):
        return _key_texts(wire, kind, time_zone)
    if wire.type == target or pa.types.is_null(wire.type):
        return wire.cast(target)
    if kind in (ENUM, SET) and pa.types.is_integer(wire.type):
        return _names(wire, column) if column.elems else wire.cast(pa.string())
    if pa.types.is_string(wire.type) and pa.types.is_date(target):
        return _calendar(wire, target, date.fromisoformat, losses)
    if pa.types.is_string(wire.type) and pa.types.is_timestamp(target):
        naive = _calendar(wire, pa.timestamp("us"), datetime.fromisoformat, losses)
        return naive if target.tz is None else _utc(naive, time_zone)
    if pa.types.is_list(target) and pa.types.is_string(wire.type):
        return _by_distinct(wire, lambda text: [float(part) for part in orjson.loads(text)], target)
    if pa.types.is_binary(wire.type) and pa.types.is_string(target):
        return _as_text(wire, losses)
    if pa.types.is_string(target) and pa.types.is_floating(wire.type):
        single = wire.type == pa.float32()
        return _by_distinct(wire, lambda value: fixed_text(value, single=single), target)
    if pa.types.is_string(target) and pa.types.is_timestamp(wire.type):
        return _by_distinct(wire, lambda moment: str(moment.isoformat(" ")), target)
    return wire.cast(target)


def _names(wire: pa.Array, column: TargetColumn) -> pa.Array:
    if column.mysql_type == ENUM:
        # Number 0 is the empty text, which MySQL keeps for a value that is no element.
        # A number beyond the elements raises IndexError, which `to_target` reports with the column.
        return pa.array(["", *column.elems]).take(wire.cast(pa.int64()))
    elems = column.elems

    def members(mask: int) -> str:
        if mask >> len(elems):
            raise ValueError(f"set {mask} has more members than there are elements")
        return ",".join(name for bit, name in enumerate(elems) if mask >> bit & 1)

    return _by_distinct(wire, members, pa.string())


def _by_distinct(wire: pa.Array, convert: Callable[[Any], Any], target: pa.DataType) -> pa.Array:
    """Convert each distinct value once."""
    encoded = pc.dictionary_encode(wire)
    values = pa.array([None if v is None else convert(v) for v in encoded.dictionary.to_pylist()], target)
    return values.take(encoded.indices)


def _calendar(wire: pa.Array, target: pa.DataType, parse: Callable[[str], Any], losses: Losses) -> pa.Array:
    try:
        return wire.cast(target)
    except pa.ArrowInvalid:
        pass  # at least one value is not on the calendar: parse each distinct one

    def known(text: str) -> Any:
        try:
            return parse(text)
        except ValueError:
            return None

    converted = _by_distinct(wire, known, target)
    losses.bad_dates += converted.null_count - wire.null_count
    return converted


def _key_texts(wire: pa.Array, kind: int, time_zone: str) -> pa.Array:
    if not pa.types.is_string(wire.type):
        # A typed moment is in UTC already, so it must not be converted once more below.
        wire, time_zone = key_texts(wire), "UTC"
    if kind in (DATE, NEWDATE):
        return wire
    day = pc.equal(pc.utf8_length(wire), _DAY)  # the column was a date before
    wire = pc.if_else(day, pc.binary_join_element_wise(wire, " 00:00:00", ""), wire)
    if kind == TIMESTAMP and time_zone != "UTC":
        return utc_texts(wire, time_zone)
    whole = pc.equal(pc.utf8_length(wire), _SECONDS)
    dotted = pc.if_else(whole, pc.binary_join_element_wise(wire, ".", ""), wire)
    return pc.utf8_rpad(dotted, _MICROSECONDS, "0")


def utc_texts(wire: pa.Array, time_zone: str) -> pa.Array:
    """Convert texts of moments in a zone to texts in UTC, with microseconds."""
    try:
        naive = wire.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:  # at least one value is not on the calendar: parse each distinct one
        return _by_distinct(wire, lambda text: _utc_text(text, time_zone), pa.string())
    return key_texts(_utc(naive, time_zone))


def _utc_text(text: str, time_zone: str) -> str:
    """A moment of the feed's zone in UTC; text that no calendar knows (the zero timestamp) is only padded."""
    padded = (text if len(text) > _SECONDS else f"{text}.").ljust(_MICROSECONDS, "0")
    try:
        naive = pa.array([datetime.fromisoformat(padded)], pa.timestamp("us"))
    except ValueError:
        return padded
    return str(key_texts(_utc(naive, time_zone))[0])


def _utc(naive: pa.Array, time_zone: str) -> pa.Array:
    if time_zone == "UTC":
        return naive.cast(pa.timestamp("us", tz="UTC"))
    # An hour that a zone has twice or not at all must not stop the consumer. The text alone does not say
    # which moment was meant.
    zoned = pc.assume_timezone(naive, time_zone, ambiguous="earliest", nonexistent="latest")
    return zoned.cast(pa.timestamp("us", tz="UTC"))


def _as_text(wire: pa.Array, losses: Losses) -> pa.Array:
    try:
        return wire.cast(pa.string())
    except pa.ArrowInvalid:
        pass  # some text is not UTF-8

    def readable(raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            # Once for each distinct text of a batch, because each is converted once.
            losses.bad_texts += 1
            return raw.decode(errors="replace")

    return _by_distinct(wire, readable, pa.string())
