"""Constants of expressions: numbers, dates and times from their texts, also for comparisons with a column.

Raises Refusal if a text has not the type with which it is compared. TiDB would treat it as NULL, so that the
expression would drop nothing.
"""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from typing import Final

from tidegate.filter.expression.syntax import Literal, Refusal
from tidegate.filter.expression.typed import BOOLEAN, INT64, UINT64, Domain, Typed
from tidegate.tidb.types import temporal

CONNECTION_COLLATE: Final = "utf8mb4_bin"
"""The collation of constant texts, if no column's collation applies."""

_DATE: Final = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?", re.ASCII
)
_COMPACT: Final = re.compile(r"(\d{4})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d)(?:\.(\d*))?)?", re.ASCII)
_TIME: Final = re.compile(r"(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)", re.ASCII)
_INTEGER: Final = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)


def typed(literal: Literal) -> Typed:
    """A constant with its own type."""
    text, at = literal.text, literal.at
    match literal.kind:
        case "null":
            return Typed("const", Domain.INT, at)
        case "true" | "false":
            return integer(int(literal.kind == "true"), at)
        case "int":
            return integer(int(text), at) if int(text) <= UINT64[1] else decimal(Decimal(text), at)
        case "decimal":
            return decimal(Decimal(text), at)
        case "real":
            if abs(number := float(text)) == float("inf"):
                raise Refusal("the number is too large", at)
            return Typed("const", Domain.REAL, at, value=number)
        case "bits":
            return integer(_word(text, 2, at), at)
        case "bytes":
            data = bytes.fromhex(text.rjust(len(text) + len(text) % 2, "0"))
            return Typed("const", Domain.STRING, at, value=data, collate="binary")
        case "date" | "timestamp":
            return moment(text, at)
        case "time":
            return duration(text, at)
        case _:
            return Typed("const", Domain.STRING, at, value=text.encode(), collate=CONNECTION_COLLATE)


def _word(digits: str, base: int, at: int) -> int:
    number = int(digits or "0", base)
    if number > UINT64[1]:
        raise Refusal("the number has more than 64 bits", at)
    return number


def integer(number: int, at: int) -> Typed:
    """An integer constant."""
    wide = number > INT64[1]
    return Typed("const", Domain.INT, at, value=number, low=number, high=number, unsigned=wide)


def boolean(value: bool | None, at: int) -> Typed:
    """TRUE, FALSE or NULL."""
    known = None if value is None else int(value)
    return Typed("const", Domain.INT, at, value=known, low=BOOLEAN[0], high=BOOLEAN[1])


def decimal(number: Decimal, at: int) -> Typed:
    """A decimal constant."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "a finite number"
    scale = max(-exponent, 0)
    units = int("".join(map(str, digits)) or "0") * 10 ** max(exponent, 0)
    units = -units if sign else units
    return Typed("const", Domain.DECIMAL, at, value=number, low=units, high=units, scale=scale)


def whole_number(constant: Typed) -> int | None:
    """The integer that a whole constant text is. None if it is not an integer of 64 bits."""
    text = constant.value.decode(errors="replace")
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if INT64[0] <= number <= UINT64[1] else None


def whole_decimal(constant: Typed) -> Decimal | None:
    """The decimal that a whole constant text is. None if it is not one, or has an exponent."""
    text = constant.value.decode(errors="replace").strip()
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def year(number: int) -> int:
    """A constant compared with a YEAR column, as in TiDB: 1 to 69 mean 2001 to 2069, 70 to 99
    1970 to 1999.
    """
    if 1 <= number <= 69:
        return number + 2000
    return number + 1900 if 70 <= number <= 99 else number


def moment(text: str, at: int) -> Typed:
    """A date, with or without time of day. The fraction of a second is rounded to six digits."""
    match = _DATE.fullmatch(text.strip()) or _COMPACT.fullmatch(text.strip())
    if match is None:
        raise Refusal(f"{text!r} is not a date: write 'YYYY-MM-DD' or 'YYYY-MM-DD hh:mm:ss'", at)
    *clock, fraction = match.groups()
    y, month, day, hour, minute, second = (int(part or 0) for part in clock)
    if not _is_day(y, month, day) or hour > 23 or minute > 59 or second > 59:
        raise Refusal(f"{text!r} is no date of the calendar", at)
    micro = _micro(fraction)
    if micro == 1_000_000:
        raise Refusal(f"{text!r} has more than six digits of the second", at)
    packed = temporal.pack(temporal.Parts(y, month, day, hour, minute, second, micro))
    return Typed("const", Domain.DATETIME, at, value=packed)


def _is_day(y: int, month: int, day: int) -> bool:
    """Whether a date exists. TiDB also allows zero months and days."""
    if month == 0 or day == 0 or y == 0:
        return month <= 12 and day <= 31
    try:
        date(y, month, day)
    except ValueError:
        return False
    return True


def _micro(fraction: str | None) -> int:
    digits = (fraction or "").ljust(7, "0")
    return int(digits[:6]) + (digits[6] >= "5")


def duration(text: str, at: int) -> Typed:
    """A time of day or a span of time."""
    match = _TIME.fullmatch(text.strip())
    if match is None or int(match[3]) > 59 or int(match[4] or 0) > 59:
        raise Refusal(f"{text!r} is not a time: write 'hh:mm:ss'", at)
    sign, hours, minutes, seconds, fraction = match.groups()
    total = (int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)) * 10**6 + _micro(fraction)
    nanoseconds = -total * 1000 if sign else total * 1000
    if abs(nanoseconds) > temporal.DURATION_MAX_NS:
        raise Refusal(f"{text!r} is beyond 838:59:59", at)
    return Typed("const", Domain.TIME, at, value=nanoseconds)


def moment_of_number(number: int, with_clock: bool, at: int) -> Typed:
    """A date written as a number: YYYYMMDD, or YYYYMMDDhhmmss for columns with a time of day."""
    digits = str(number)
    if len(digits) == 8 or (len(digits) == 14 and with_clock):
        return moment(digits, at)
    raise Refusal(f"{number} is not a date: write it as a text, 'YYYY-MM-DD'", at)
