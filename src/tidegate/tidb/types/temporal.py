"""Dates, times of day and timestamps.

Packed time, u64, 0 for the zero time: `((year*13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 |
second`, then `<< 24 | microsecond`. DATE, DATETIME and TIMESTAMP are stored in this form, TIMESTAMP in UTC.
TIME is signed nanoseconds. Core time, u64, only inside JSON: year 14 bits at 50, month 4 at 46, day 5 at 41,
hour 5 at 36, minute 6 at 30, second 6 at 24, microsecond 20 at 4. Source: TiDB `pkg/types/time.go`,
`core_time.go`.

Zero months and days are valid (`2020-00-00`). Hours, minutes, seconds and microseconds out of range and
years beyond 9999 are not.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidegate.errors import InvalidInput, Undecodable

DURATION_MAX_NS: Final = (838 * 3600 + 59 * 60 + 59) * 10**9 + 999_999_999
"""838:59:59 and the largest fraction of a second, which rounding may have left."""

_TIME: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")
_DURATION: Final = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


class Parts(NamedTuple):
    """The parts of a packed time."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    micro: int


def zone(name: str) -> tzinfo:
    """The time zone of an IANA name; `UTC` works without a time zone database."""
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInput(
            f"there is no time zone {name!r}",
            why=str(error),
            fix="use an IANA name such as Asia/Shanghai",
        ) from None


def unpack(packed: int) -> Parts:
    """The parts of a packed time; every field is checked."""
    if not 0 <= packed < 1 << 64:
        raise Undecodable("a time does not fit 64 bits", why=str(packed))
    micro, clock, ymd = packed & 0xFFFFFF, packed >> 24 & 0x1FFFF, packed >> 41
    # 13 and not 12: a month may be zero.
    year, month = divmod(ymd >> 5, 13)
    parts = Parts(year, month, ymd & 31, clock >> 12, clock >> 6 & 63, clock & 63, micro)
    _check(parts)
    return parts


def pack(parts: Parts) -> int:
    """The packed form of valid parts."""
    ymd = (parts.year * 13 + parts.month) << 5 | parts.day
    clock = parts.hour << 12 | parts.minute << 6 | parts.second
    return (ymd << 17 | clock) << 24 | parts.micro


def unpack_core(core: int) -> Parts:
    """The parts of a core time, as in binary JSON."""
    parts = Parts(
        core >> 50 & 0x3FFF,
        core >> 46 & 15,
        core >> 41 & 31,
        core >> 36 & 31,
        core >> 30 & 63,
        core >> 24 & 63,
        # The lowest 4 bits are the number of digits of the second and the type (TiDB `core_time.go`,
        # fspTt).
        core >> 4 & 0xFFFFF,
    )
    _check(parts)
    return parts


def _check(parts: Parts) -> None:
    # A day has 5 bits, so none is beyond 31 here; `parse` checks that itself.
    if (
        parts.year > 9999
        or parts.month > 12
        or parts.hour > 23
        or parts.minute > 59
        or parts.second > 59
        or parts.micro > 999_999
    ):
        raise Undecodable("a time is out of range", why=str(tuple(parts)))


def date_text(parts: Parts) -> str:
    """`YYYY-MM-DD`."""
    return f"{parts.year:04d}-{parts.month:02d}-{parts.day:02d}"


def datetime_text(parts: Parts, fsp: int) -> str:
    """`YYYY-MM-DD hh:mm:ss` and exactly `fsp` digits of the second; further digits are cut off."""
    text = f"{date_text(parts)} {parts.hour:02d}:{parts.minute:02d}:{parts.second:02d}"
    return f"{text}.{parts.micro:06d}"[: 20 + fsp] if fsp > 0 else text


def in_zone(packed: int, time_zone: tzinfo) -> Parts:
    """A TIMESTAMP (packed in UTC) in the local time of that zone; the zero time stays zero."""
    parts = unpack(packed)
    if packed == 0 or time_zone is UTC:
        return parts
    return _shift(parts, UTC, time_zone)


def to_utc(parts: Parts, time_zone: tzinfo, *, fold: int = 0) -> Parts:
    """The inverse of `in_zone`. For an hour that occurs twice: the first one, or with `fold` 1 the second."""
    if time_zone is UTC or not any(parts):
        return parts
    return _shift(parts, time_zone, UTC, fold)


def _shift(parts: Parts, source: tzinfo, target: tzinfo, fold: int = 0) -> Parts:
    try:
        moved = datetime(*parts, tzinfo=source, fold=fold).astimezone(target)
    except (ValueError, OverflowError) as error:
        raise Undecodable("a timestamp has no such day", why=f"{tuple(parts)}: {error}") from None
    return Parts(
        moved.year,
        moved.month,
        moved.day,
        moved.hour,
        moved.minute,
        moved.second,
        moved.microsecond,
    )


def parse(text: str) -> Parts:
    """The parts of `YYYY-MM-DD[ hh:mm:ss[.ffffff]]`."""
    match = _TIME.fullmatch(text)
    if match is None or not text.isascii():
        raise InvalidInput(f"{text!r} is not a date or time in canonical text")
    *clock, micro = (group or "0" for group in match.groups())
    year, month, day, hour, minute, second = (int(group) for group in clock)
    parts = Parts(year, month, day, hour, minute, second, int(micro.ljust(6, "0")))
    _check(parts)
    if parts.day > 31:
        raise InvalidInput(f"{text!r} has no such day")
    return parts


def duration_text(nanoseconds: int, fsp: int) -> str:
    """`[-]hh:mm:ss` and exactly `fsp` digits of the second; further digits are cut off."""
    if abs(nanoseconds) > DURATION_MAX_NS:
        raise Undecodable("a time of day is out of range", why=f"{nanoseconds} ns")
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if fsp > 0:
        text += f".{rest // 1000:06d}"[: 1 + fsp]
    return "-" + text if nanoseconds < 0 else text


def parse_duration(text: str) -> int:
    """The nanoseconds of `[-]hh:mm:ss[.ffffff]`."""
    match = _DURATION.fullmatch(text)
    if match is None or not text.isascii():
        raise InvalidInput(f"{text!r} is not a time in canonical text")
    sign, hours, minutes, seconds, micro = match.groups()
    total = (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 10**6 + int((micro or "0").ljust(6, "0"))
    return -total * 1000 if sign else total * 1000
