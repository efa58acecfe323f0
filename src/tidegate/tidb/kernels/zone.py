"""Calendar kernels: packed times as days and microseconds, and TIMESTAMPs in the local time of a zone.

    packed = in_zone(packed, zone)      # zone: address of `zone_table(name)`; 0: UTC, nothing to do
    out = put_datetime(out, packed, fsp)

A zone is a table of its transitions. It is made once from the system's time zone data: plain `zoneinfo` gives
the offset for every day of TIMESTAMP's range (1970 to 2038, with a margin), and a bisection finds each change
to the second. Outside that range, where no TIMESTAMP can be, the nearest offset is used.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.kernel import inline, load_i64
from tidegate.kernel_layout import Layout, signed
from tidegate.tidb.kernels.packed_time import (
    CLOCK_AT,
    CLOCK_HOUR_AT,
    CLOCK_MASK,
    CLOCK_MINUTE_AT,
    DATE_AT,
    DATE_MASK,
    DATE_MONTHS_AT,
    DAY_MASK,
    HOUR_AT,
    MICRO_MASK,
    MINUTE_AT,
    MONTHS_AT,
    MONTHS_MASK,
    SIXTY_MASK,
)
from tidegate.tidb.types import temporal

_DAY: Final = 86_400
# Days since 1970: a year before the range of TIMESTAMP, and two after it ends in 2038.
_FIRST_DAY: Final = -365
_LAST_DAY: Final = 70 * 366
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS: Final = 10_000 * 13
PERIOD: Final = Layout(
    "zone period", "PERIOD_", "A run of time with one offset; a zone is their number (i64), then these.",
    start=signed("the first second, UTC", "s"),
    offset=signed("what the zone's clock is ahead of UTC", "s"),
)  # fmt: skip
PERIOD_START, PERIOD_OFFSET = PERIOD.offsets()
_PERIOD: Final = PERIOD.size
_PERIODS: Final = 8
"""The offset of the periods in a zone's table."""
_MONTH_DAYS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)


@cache
def zone_table(name: str) -> npt.NDArray[np.int64]:
    """A zone for `in_zone`: the number of its periods, then the first second (UTC) and the offset of each.

    The caller keeps the array alive while kernels have its address. InvalidInput for unknown names.
    """
    zone = temporal.zone(name)
    before = _offset(zone, _FIRST_DAY * _DAY)
    periods = [(-(1 << 62), before)]
    # At most one change of offset a day is assumed, so the ends of a day show whether it has one.
    for day in range(_FIRST_DAY, _LAST_DAY):
        after = _offset(zone, (day + 1) * _DAY)
        if after != before:
            periods.append((_change(zone, day * _DAY, (day + 1) * _DAY), after))
            before = after
    return np.array([len(periods), *(word for period in periods for word in period)], dtype=np.int64)


def _offset(zone: tzinfo, seconds: int) -> int:
    offset = (_EPOCH + timedelta(seconds=seconds)).astimezone(zone).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _change(zone: tzinfo, low: int, high: int) -> int:
    """The first second in (low, high] with the same offset as `high`."""
    after = _offset(zone, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _offset(zone, middle) == after else (middle, high)
    return high


@inline
def calendar_ok(packed: int) -> bool:
    """Whether a packed time's date exists in the calendar, in the years 1 to 9999."""
    days = (packed >> DATE_AT) & DATE_MASK
    # 13 months of 32 days.
    year = days // 416
    month = (days >> DATE_MONTHS_AT) - year * 13
    # The month is 0 to 12 whatever the bits are, so the index is inside the array.
    last = _MONTH_DAYS[month]
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        last = 29
    return 0 < year <= 9999 and 0 < days & DAY_MASK <= last


@inline
def epoch_days(packed: int) -> int:
    """Days from 1970-01-01 to the date of a packed time that is `calendar_ok`."""
    days = (packed >> DATE_AT) & DATE_MASK
    months = days >> DATE_MONTHS_AT
    year = months // 13
    month = months - year * 13
    # Years from March on, as in `packed_of_seconds`.
    if month <= 2:
        year -= 1
        month += 12
    return (
        year * 365
        + year // 4
        - year // 100
        + year // 400
        + (153 * (month - 3) + 2) // 5
        + (days & DAY_MASK)
        - 719469
    )


@inline
def epoch_seconds(packed: int) -> int:
    """Seconds from 1970-01-01 00:00:00 to a packed time that is `calendar_ok`, without its fraction."""
    return epoch_days(packed) * 86400 + clock_seconds(packed)


@cache
def month_lines() -> npt.NDArray[np.int64]:
    """By year * 13 + month (how a packed time counts months): the days from 1970 to its first day, times 256,
    plus its number of days; 0 for a month that does not exist.
    """
    lines = np.zeros((10_000, 13), dtype=np.int64)
    firsts = np.arange("0001-01", "10000-02", dtype="datetime64[M]").astype("datetime64[D]").astype(np.int64)
    lines[1:, 1:] = ((firsts[:-1] << 8) + np.diff(firsts))[: 9_999 * 12].reshape(-1, 12)
    return lines.ravel()


@inline
def month_line(packed: int, months: int) -> int:
    """The line of a packed time's month; months: address of `month_lines()`."""
    month = (packed >> MONTHS_AT) & MONTHS_MASK
    # Line 0 is that of a month that does not exist, so no day is in it.
    return load_i64(months + 8 * (month if month < _MONTHS else 0))


@inline
def day_of(packed: int, line: int) -> int:
    """A packed time's day, from 0 on; -1 if its month has no such day."""
    day = ((packed >> DATE_AT) & DAY_MASK) - 1
    return day if day < (line & 0xFF) else -1


@inline
def clock_seconds(packed: int) -> int:
    """A packed time's seconds since midnight."""
    clock = (packed >> CLOCK_AT) & CLOCK_MASK
    return (
        (clock >> CLOCK_HOUR_AT) * 3600
        + ((clock >> CLOCK_MINUTE_AT) & SIXTY_MASK) * 60
        + (clock & SIXTY_MASK)
    )


@inline
def packed_clock(seconds: int) -> int:
    """The clock of a packed time, from seconds since midnight; the other bits are 0."""
    return ((seconds // 3600) << HOUR_AT) | ((seconds // 60 % 60) << MINUTE_AT) | ((seconds % 60) << CLOCK_AT)


@inline
def packed_of_seconds(seconds: int, micros: int) -> int:
    """The packed time of a number of seconds since 1970 and a fraction, years 0 to 9999."""
    days = seconds // 86400
    clock = seconds - days * 86400
    days += 719468
    # Years from March on, so that the leap day is the last one (Howard Hinnant's civil_from_days).
    era = days // 146097
    day = days - era * 146097
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= year * 365 + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    year += era * 400
    month += 3
    if month > 12:
        month -= 12
        year += 1
    hour = clock // 3600
    minute = (clock - hour * 3600) // 60
    second = clock - hour * 3600 - minute * 60
    date = ((year * 13 + month) << DATE_MONTHS_AT) | day
    return (
        ((date << (DATE_AT - CLOCK_AT)) | (hour << CLOCK_HOUR_AT) | (minute << CLOCK_MINUTE_AT) | second)
        << CLOCK_AT
    ) | micros


@inline
def in_zone(packed: int, zone: int) -> int:
    """A TIMESTAMP cell (UTC) in the local time of a zone; unchanged if it is zero, or the zone is 0."""
    if zone == 0 or packed == 0 or not calendar_ok(packed):
        return packed
    seconds = epoch_seconds(packed)
    # The first period begins before any time, so it is right if no other one is.
    low = 0
    high = load_i64(zone)
    while high - low > 1:
        middle = (low + high) >> 1
        if load_i64(zone + _PERIODS + _PERIOD * middle + PERIOD_START) <= seconds:
            low = middle
        else:
            high = middle
    return packed_of_seconds(
        seconds + load_i64(zone + _PERIODS + _PERIOD * low + PERIOD_OFFSET), packed & MICRO_MASK
    )
