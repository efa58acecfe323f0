"""Measures how many bytes of changes arrive for each span of a changefeed; the owner divides the load by it.

The puller counts bytes for each span since its process started. The difference of two counts, averaged with
the earlier rates, is the load that a capture reports. Because of the average a single burst moves no ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tidegate.model.reports import SpanStatus

WEIGH_S: Final = 10.0
"""How often the load of spans is measured."""
LOADS_MAX: Final = 256
"""The most spans whose load is reported: those with the greatest load."""


class SpanLoads:
    """The loads of one changefeed on one capture. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._weighed_at = float("-inf")
        self._received: dict[str, int] = {}
        """The bytes that the puller had received for each span at the last measurement."""

    def is_due(self, now: float) -> bool:
        """Whether it is time to measure."""
        return now - self._weighed_at >= WEIGH_S

    def measure(
        self,
        now: float,
        spans: Collection[str],
        lines: Iterable[SpanStatus],
        earlier: Mapping[str, int],
    ) -> dict[str, int]:
        """The loads of `spans`, in bytes per second. `lines`: the puller's status of each span. `earlier`:
        the loads of the last measurement.
        """
        since_s, self._weighed_at, before = now - self._weighed_at, now, self._received
        self._received = {line.span: line.bytes for line in lines if line.span in spans}
        return heaviest(earlier, before, self._received, since_s)

    def reset(self) -> None:
        """Forget earlier counts; the time of the next measurement is unchanged."""
        self._received = {}


def heaviest(
    earlier: Mapping[str, int], before: Mapping[str, int], now: Mapping[str, int], since_s: float
) -> dict[str, int]:
    """The spans with the most bytes per second, at most `LOADS_MAX`, averaged with the earlier rates.

    `before`, `now`: all bytes received; a count that has fallen is from a new puller process.
    """
    rates = {
        name: (earlier.get(name, 0) + max(0, count - before[name]) / since_s) / 2
        for name, count in now.items()
        # There may be a thousand spans, and most receive nothing for long.
        if name in before and (count != before[name] or name in earlier)
    }
    most = sorted(rates, key=rates.__getitem__, reverse=True)[:LOADS_MAX]
    return {name: round(rates[name]) for name in most if rates[name] >= 1}
