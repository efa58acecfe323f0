"""How exactly the rows of a protocol carry their commit ts."""

from __future__ import annotations

from enum import Enum

from tidegate.codec.entry import Loss
from tidegate.model.timestamp import physical_ms


class Clock(Enum):
    """The unit in which rows carry their commit ts."""

    EXACT = 0
    MILLISECONDS = 1
    SECONDS = 1000
    NONE = -1

    def tick(self, ts: int) -> int:
        """A ts in the unit in which rows carry it."""
        return ts if self is Clock.EXACT else physical_ms(ts) // abs(self.value)


def clock_of(lost: frozenset[Loss]) -> Clock:
    """The clock of a protocol with these losses."""
    if lost & {Loss.COMMIT_TS, Loss.DELETED_TS}:
        return Clock.NONE
    if Loss.SECONDS in lost:
        return Clock.SECONDS
    return Clock.MILLISECONDS if Loss.LOGICAL_TS in lost else Clock.EXACT
