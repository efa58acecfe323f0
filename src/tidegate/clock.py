"""The clock: the only place that reads the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time as the edges pass it to pure code."""

    def now_ms(self) -> int:
        """Wall clock in milliseconds since 1970 (UTC); may jump either way."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back. For ages, back-offs and leases."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
