"""Who tries again first when many changefeeds fail at once, as when the application dies. Pure.

    it had rows lately, or is behind -->  tries again at the end of its back-off
    it had none                      -->  at its turn after that; each turn belongs to one changefeed

Otherwise all of them would start evenly, and those with rows would deliver when nearly all have started. A
changefeed that fails alone has its turn at once.
"""

from __future__ import annotations

import math
from typing import Final

from tidegate.model.timestamp import physical_ms

TURN_S: Final = 0.2
"""Two turns are this far apart. Meanwhile those with rows start, and the application itself. With 200
changefeeds, 20 of them with rows, the 20 delivered again 19 s after its death with turns 0.1 s apart, and 14
to 17 s after it with 0.2 s (`benchmarks.feeds --only active death`, two cores).
"""
LATER_S: Final = 30.0
"""No turn comes later than this after the back-off; if all are taken until then, some start together."""
LATELY_MS: Final = 10_000


def had_rows_lately(checkpoint: int, resolved: int, last_synced: int) -> bool:
    """Whether rows may be waiting for the changefeed, or were delivered in the last seconds.

    All are timestamps: everything up to `checkpoint` is durable downstream, everything up to `resolved` has
    been received, and `last_synced` is that of the last row delivered; 0: none was.
    """
    lately_ms = physical_ms(max(resolved, checkpoint)) - LATELY_MS
    return physical_ms(checkpoint) < lately_ms or physical_ms(last_synced) >= lately_ms


class RetryTurns:
    """The turns of a capture's changefeeds without rows. Times are monotonic seconds, given by the caller."""

    def __init__(self) -> None:
        self._taken = set[int]()

    def take(self, due: float, now: float) -> float:
        """The first free turn of a changefeed whose back-off is over at `due`."""
        self._taken = {turn for turn in self._taken if turn * TURN_S > now}
        first = math.ceil(due / TURN_S)
        last = first + round(LATER_S / TURN_S)
        turn = next((one for one in range(first, last) if one not in self._taken), last)
        self._taken.add(turn)
        return turn * TURN_S
