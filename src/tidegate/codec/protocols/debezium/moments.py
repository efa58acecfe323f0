"""Dates and times as debezium counts them, in both directions; the plain twin of `codec.epoch_kernels`.

    date       days since 1970-01-01
    datetime   milliseconds since then if the column has at most 3 digits of a second, otherwise microseconds
    timestamp  text in UTC, `YYYY-MM-DDThh:mm:ss[.f..]Z`
    time       microseconds

A year below 70 counts as one after 2000, a year from 70 to 99 as one after 1900. A date that does not exist
in the calendar has no number. Converted back to text, a moment of whole seconds has no fraction; any other
has 3 or 6 digits, because messages do not contain the column's number of digits.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Final

from tidegate.tidb.types.temporal import Parts

UNIX_DAY: Final = date(1970, 1, 1).toordinal()
EPOCH: Final = b"1970-01-01T00:00:00Z"
"""Written for a timestamp of zero."""
DAY_SECONDS: Final = 86_400
FIRST_DAY: Final = date(1, 1, 1).toordinal() - UNIX_DAY
LAST_DAY: Final = date(9999, 12, 31).toordinal() - UNIX_DAY
TIME_LIMIT: Final = 839 * 3600 * 1_000_000
"""Every TIME has fewer microseconds than this."""
ZONED: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z")


def days(parts: Parts) -> int | None:
    """The day's number; None for a date that does not exist in the calendar."""
    # As Debezium's `enable.time.adjuster`: a year of one or two digits is one of 1970 to 2069.
    year = parts.year + (2000 if parts.year < 70 else 1900 if parts.year < 100 else 0)
    try:
        return date(year, parts.month, parts.day).toordinal() - UNIX_DAY
    except ValueError:
        return None


def epoch(parts: Parts, fsp: int) -> int | None:
    """Milliseconds, or microseconds for more than 3 digits; None for a date that does not exist."""
    day = days(parts)
    if day is None:
        return None
    seconds = day * DAY_SECONDS + parts.hour * 3600 + parts.minute * 60 + parts.second
    return seconds * 1_000_000 + parts.micro if fsp > 3 else seconds * 1000 + parts.micro // 1000


def zoned(parts: Parts, fsp: int) -> bytes:
    """A timestamp in UTC; for zero, the text of the epoch."""
    if not any(parts):
        return EPOCH
    text = f"{parts.year:04d}-{parts.month:02d}-{parts.day:02d}T"
    text += f"{parts.hour:02d}:{parts.minute:02d}:{parts.second:02d}"
    return (text + (f".{parts.micro:06d}"[: 1 + fsp] if fsp > 0 else "") + "Z").encode()


def date_of(number: int) -> str:
    """The text of a day; ValueError outside of the years 1 to 9999."""
    if not FIRST_DAY <= number <= LAST_DAY:
        raise ValueError(f"day {number} is out of range")
    return date.fromordinal(number + UNIX_DAY).isoformat()


def datetime_of(number: int, digits: int) -> str:
    """The text of milliseconds (3 digits) or microseconds (6)."""
    seconds, fraction = divmod(number, 10**digits)
    day, clock = divmod(seconds, DAY_SECONDS)
    text = f"{date_of(day)} {clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}"
    return f"{text}.{fraction:0{digits}d}" if fraction else text


def time_of(number: int) -> str:
    """The text of microseconds; ValueError for more than a TIME can have."""
    if abs(number) >= TIME_LIMIT:
        raise ValueError(f"a time of {number} microseconds is out of range")
    seconds, fraction = divmod(abs(number), 1_000_000)
    sign = "-" if number < 0 else ""
    text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}" if fraction else text


def timestamp_of(text: str) -> str:
    """The text of a timestamp in UTC; ValueError if it is not valid."""
    found = ZONED.fullmatch(text)
    if found is None or not text.isascii():
        raise ValueError(f"{text[:100]!r} is no timestamp in UTC")
    return f"{found[1]} {found[2]}"
