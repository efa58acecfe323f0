"""How exactly the rows of a protocol say when they were committed."""

from __future__ import annotations

from enum import Enum

from tidegate.codec.entry import Loss
from tidegate.model.timestamp import physical_ms


class Clock(Enum):
    """What rows say of their commit ts."""

    EXACT = 0
    MILLISECONDS = 1
    SECONDS = 1000
    NONE = -1

    def tick(self, ts: int) -> int:
        """A ts in the unit in which rows say it."""
        return ts if self is Clock.EXACT else physical_ms(ts) // abs(self.value)


def clock_of(lost: frozenset[Loss]) -> Clock:
    """That of a protocol that loses so much."""
    if lost & {Loss.COMMIT_TS, Loss.DELETED_TS}:
        return Clock.NONE
    if Loss.SECONDS in lost:
        return Clock.SECONDS
    return Clock.MILLISECONDS if Loss.LOGICAL_TS in lost else Clock.EXACT
