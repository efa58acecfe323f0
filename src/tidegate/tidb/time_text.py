"""Dates and times in the many forms that users write and TiDB accepts, as canonical text. Pure.

`2024-2-9`, `24/02/29 1.2.3`, `20240229101010.5`, `240229`, `101010`, `1 10:11` ... For a form that TiDB does
not accept, the result is None (a date) or the zero time (a time of day), which TiDB stores if its SQL mode is
not strict. Source: TiDB `pkg/types/time.go` (`parseDatetime`, `parseDateTimeFromNum`, `ParseDuration`).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb.types import temporal

ZERO: Final = "0000-00-00 00:00:00"
TIMESTAMPS: Final = ("1970-01-01 00:00:01", "2038-01-19 03:14:07")
"""The range of a TIMESTAMP in UTC, both ends included."""
_LONGEST: Final = (838 * 3600 + 59 * 60 + 59) * 10**6
"""Microseconds of the greatest TIME."""
_MAX_COMPACT: Final = 8385959
_PARTED: Final = re.compile(r"(\d+)[^\w\s]+(\d+)[^\w\s]+(\d+)(?:(?:[T\s]+|[^\w\s]+)(\d.*))?", re.ASCII)
_ZONE: Final = re.compile(r"(?<=[\d.])(Z|[+-]\d\d(?::?\d\d)?)$", re.ASCII)
_RUN: Final = re.compile(r"(\d+)(?:\.(\d*))?", re.ASCII)
_CLOCK: Final = re.compile(
    r"(-?)\s*(?:(\d+)\s+)?(\d+)(?:\s*:\s*(\d+))?(?:\s*:\s*(\d+))?\s*(?:\.(\d*))?", re.ASCII
)
_WITH_DATE: Final = re.compile(r"\d{12}(?:\d\d)?(?!\d)|\d+[^\w\s]\d+[^\w\s]\d+[ T]", re.ASCII)
_COMPACT: Final = {
    14: (4, 2, 2, 2, 2, 2),
    12: (2, 2, 2, 2, 2, 2),
    11: (2, 2, 2, 2, 2, 1),
    10: (2, 2, 2, 2, 2),
    9: (2, 2, 2, 2, 1),
    8: (4, 2, 2),
    7: (2, 2, 2, 1),
    6: (2, 2, 2),
    5: (2, 2, 1),
}
"""The number of digits of each part, by the total number of digits without separators."""


def digits(text: str) -> str:
    """The number into which TiDB converts a date or time: `20240229`, `20240229101010.5`, `-101010`."""
    sign = "-" if text.startswith("-") else ""
    return sign + re.sub(r"[^\d.]", "", text)


def rounded(text: str, fsp: int) -> str:
    """Date and time with `fsp` digits of the second, half rounded up; cut if the day does not exist."""
    whole, _, micro = text.partition(".")
    kept = micro[:fsp].ljust(fsp, "0")
    if micro[fsp : fsp + 1] >= "5":
        try:
            moment = datetime.fromisoformat(whole) + timedelta(microseconds=int(kept.ljust(6, "0") or 0))
            text = (moment + timedelta(microseconds=10 ** (6 - fsp))).isoformat(" ", "microseconds")
        except (ValueError, OverflowError):
            return f"{whole}.{kept}" if fsp else whole
        whole, _, micro = text.partition(".")
        kept = micro[:fsp]
    return f"{whole}.{kept}" if fsp else whole


def rounded_duration(text: str, fsp: int) -> str:
    """A time of day in canonical text with `fsp` digits of the second, half rounded away from zero."""
    return _duration(temporal.parse_duration(text) // 1000, fsp)


def _duration(micros: int, fsp: int) -> str:
    unit = 10 ** (6 - fsp)
    whole = (abs(micros) + unit // 2) // unit * unit
    whole = min(whole, _LONGEST)
    return temporal.duration_text((-whole if micros < 0 else whole) * 1000, fsp)


def parse(text: str, fsp: int) -> str | None:
    """The date and time of a text with `fsp` digits of the second; None if TiDB does not accept it."""
    text = text.strip()
    found = _parted(text) or _run_of_digits(text)
    return _valid(found, fsp) if found is not None else None


_Parts = tuple[list[int], str]
"""The parts from year to second, and the digits after the second."""


def _parted(text: str) -> _Parts | None:
    found = _PARTED.match(text)
    if found is None:
        return None
    year, month, day, clock = found.groups()
    parts = [_year(year), int(month), int(day)]
    whole, frac = (clock or ""), ""
    pieces = re.split(r"[^\w]+", whole.rstrip(), flags=re.ASCII) if whole else []
    if any(not piece.isdigit() for piece in pieces if piece):
        return None
    pieces = [piece for piece in pieces if piece]
    if len(pieces) > 3:
        frac = pieces[3] if re.search(rf"\.{pieces[3]}", whole) else ""
    return [*parts, *(int(piece) for piece in pieces[:3])], frac


def _run_of_digits(text: str) -> _Parts | None:
    found = _RUN.match(text)
    if found is None or found.end() != len(text):
        return None
    run, frac = found[1], found[2] or ""
    widths = _COMPACT.get(len(run))
    if widths is None:
        return None
    parts, at = [], 0
    for width in widths:
        parts.append(int(run[at : at + width]))
        at += width
    if widths[0] == 2:
        parts[0] = _year(run[:2])
    if len(run) in (5, 6, 8) and frac:
        # '20170118.123423' is a day followed by its time.
        parts += [int(frac[at : at + 2]) for at in (0, 2, 4) if frac[at : at + 2]]
        frac = ""
    elif len(run) in (9, 10) and frac:
        parts += [0] * (5 - len(parts)) + [int(frac[:2])]
        frac = ""
    return parts, frac


def _year(written: str) -> int:
    year = int(written)
    if len(written) > 2:
        return year
    return year + 2000 if year <= 69 else year + 1900


def _valid(found: _Parts, fsp: int) -> str | None:
    parts, frac = found
    year, month, day, hour, minute, second = [*parts, 0, 0, 0][:6]
    if not (year <= 9999 and 1 <= month <= 12 and day and hour < 24 and minute < 60 and second < 60):
        return None
    try:
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    return rounded(f"{moment.isoformat(' ')}.{frac}" if frac else moment.isoformat(" "), fsp)


def of_number(number: int) -> str | None:
    """The date and time of `YYYYMMDD`, `YYMMDD` or either with `hhmmss`; None if it is not valid."""
    if number <= 0:
        return None
    # As in MySQL's `number_to_datetime`: a year of two digits below 70 is of this century, others of the
    # last.
    if 101 <= number <= 691231:
        number = (number + 20000000) * 10**6
    elif 700101 <= number <= 991231:
        number = (number + 19000000) * 10**6
    elif 991231 < number <= 99991231:
        number *= 10**6
    elif 101000000 <= number <= 691231235959:
        number += 20000000000000
    elif 700101000000 <= number <= 991231235959:
        number += 19000000000000
    elif number < 10000101000000:
        return None
    run = f"{number:014d}"
    return (
        _valid(([int(run[:4]), *(int(run[at : at + 2]) for at in range(4, 14, 2))], ""), 0)
        if (len(run) == 14)
        else None
    )


def parse_duration(text: str, fsp: int) -> str:
    """The time of day of a text; of a date with time, its time. The zero time if TiDB does not accept it."""
    text = text.strip()
    found = _CLOCK.match(text)
    # Twelve or fourteen digits would also pass as a time of day, but are a date with its time.
    if found is not None and found.end() == len(text) and not _is_compact_date(text):
        micros = _clock(found)
        if micros is not None:
            return _duration(micros, fsp)
    if _WITH_DATE.match(text):
        moment = parse(text, 6)
        if moment is not None:
            return rounded_duration(moment[11:], fsp)
    return _duration(0, fsp)


def _is_compact_date(text: str) -> bool:
    return re.match(r"\d{12}(?:\d\d)?(?:\.|$)", text, re.ASCII) is not None


def _clock(found: re.Match[str]) -> int | None:
    sign, days, first, minutes, seconds, frac = found.groups()
    if days is None and minutes is None:
        number = int(first)
        hour, minute, second = number // 10000, number // 100 % 100, number % 100
    else:
        hour, minute, second = int(first) + 24 * int(days or 0), int(minutes or 0), int(seconds or 0)
    if minute > 59 or second > 59:
        return None
    # The seventh digit decides whether the microseconds are rounded up.
    tail = (frac or "").ljust(7, "0")
    micros = (hour * 3600 + minute * 60 + second) * 10**6 + int(tail[:6]) + (tail[6] >= "5")
    micros = min(micros, _LONGEST)
    return -micros if sign else micros


def duration_of_number(text: str, fsp: int) -> str:
    """The time of day of a number in canonical text: `101010.5` is 10:10:10.5."""
    try:
        whole = int(text.partition(".")[0] or 0)
    except ValueError as error:
        raise Undecodable("a number is not in canonical text", why=text[:40]) from error
    if _MAX_COMPACT < whole < 10**10:
        return _duration(_LONGEST, fsp)
    if whole < -_MAX_COMPACT:
        return _duration(0, fsp)
    try:
        return parse_duration(text, fsp)
    except InvalidInput:
        return _duration(0, fsp)
