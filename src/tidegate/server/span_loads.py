"""How many bytes of changes come for each span of a changefeed, as the owner needs it to divide the load.

The puller counts bytes for each span since its process started. The difference of two counts, averaged with
the rates found before, is the load that a capture reports: a single burst moves no ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

WEIGH_S: Final = 10.0
"""How often the load of spans is measured."""
LOADS_MAX: Final = 256
"""Spans whose load is reported; the others have less."""


class SpanLoads:
    """Of one changefeed on one capture. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._weighed_at = float("-inf")
        self._received: dict[str, int] = {}
        """Bytes that the puller had received for each span at the last measurement."""

    def is_due(self, now: float) -> bool:
        """Whether it is time to measure."""
        return now - self._weighed_at >= WEIGH_S

    def measure(
        self,
        now: float,
        spans: Collection[str],
        lines: Iterable[Mapping[str, Any]],
        earlier: Mapping[str, int],
    ) -> dict[str, int]:
        """The loads of `spans`, in bytes per second. `lines`: what the puller says of each span that it has.
        `earlier`: the loads that were found last.
        """
        since_s, self._weighed_at, before = now - self._weighed_at, now, self._received
        self._received = {
            str(line["span"]): int(line.get("bytes", 0)) for line in lines if line.get("span") in spans
        }
        return heaviest(earlier, before, self._received, since_s)

    def reset(self) -> None:
        """What was received before does not count; the next measurement keeps its time."""
        self._received = {}


def heaviest(
    earlier: Mapping[str, int], before: Mapping[str, int], now: Mapping[str, int], since_s: float
) -> dict[str, int]:
    """The spans with the most bytes per second, at most `LOADS_MAX`, averaged with what was found earlier.

    `before`, `now`: bytes received in all; a count that has fallen is that of another puller's process.
    """
    rates = {
        name: (earlier.get(name, 0) + max(0, count - before[name]) / since_s) / 2
        for name, count in now.items()
        if name in before
    }
    most = sorted(rates, key=rates.__getitem__, reverse=True)[:LOADS_MAX]
    return {name: round(rates[name]) for name in most if rates[name] >= 1}
