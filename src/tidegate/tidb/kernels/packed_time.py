"""The bits of a packed time, the form of DATE, DATETIME and TIMESTAMP (`tidegate.tidb.types.temporal`).

From the highest bit: year * 13 + month (18 bits), day (5), hour (5), minute (6), second (6), microsecond
(24). Months and day together are the *date*, hour, minute and second the *clock*. Months count from 1, and
each year has thirteen, so a month 0 stays in its year.
"""

from __future__ import annotations

from typing import Final

MONTHS_AT: Final = 46
DATE_AT: Final = 41
HOUR_AT: Final = 36
MINUTE_AT: Final = 30
CLOCK_AT: Final = 24
"""Where the fields begin: the seconds are the lowest part of the clock."""

MONTHS_MASK: Final = 0x3FFFF
DATE_MASK: Final = 0x7FFFFF
CLOCK_MASK: Final = 0x1FFFF
MICRO_MASK: Final = 0xFFFFFF
"""The bits of a field after the shift."""

DATE_MONTHS_AT: Final = 5
DAY_MASK: Final = 31
"""Months and day within a date."""

CLOCK_HOUR_AT: Final = 12
CLOCK_MINUTE_AT: Final = 6
SIXTY_MASK: Final = 63
"""Hour and minute within a clock; the bits of a minute or of a second."""

CLOCK_DAY: Final = 24 << CLOCK_HOUR_AT
"""Higher than every valid clock: hours are below 24."""
CLOCK_IN_HOUR_MASK: Final = (1 << CLOCK_HOUR_AT) - 1
"""The bits of minute and second within a clock."""
CLOCK_HOUR: Final = 60 << CLOCK_MINUTE_AT
"""Higher than every valid minute with its second: minutes are below 60."""

CORE_YEAR_AT: Final = 50
CORE_MONTH_AT: Final = 46
CORE_MICRO_AT: Final = 4
"""Core time, the form of times inside JSON: day, hour, minute and second are where a packed time has them."""

CORE_YEAR_MASK: Final = 0x3FFF
CORE_MONTH_MASK: Final = 15
CORE_MICRO_MASK: Final = 0xFFFFF
HOUR_MASK: Final = 31
"""The bits of a field after the shift; days and hours have five."""
