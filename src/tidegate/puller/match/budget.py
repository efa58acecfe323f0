"""How many bytes the streams of one process may hold in memory: one budget for all of them.

A stream may hold its equal share of the total, or what the others leave of it, whichever is more. So one
busy store gets nearly everything, no store can starve another one, and the number of stores does not
multiply the bound. A stream that holds more than its share when another one begins to fill gives it back
with its next message, which comes about every second; only until then can the sum exceed the total.

What happens at the limit is up to the member: open transactions are spilled to disk, or without a folder for
that forgotten and scanned again (`block_matcher`); a queue makes its reader wait (`event_feed`).
"""

from __future__ import annotations

import threading
from typing import Final

from tidegate.puller.match.recycler import Recycler

OPEN_BYTES_MAX: Final = 256 << 20
"""Bytes of open transactions that a process keeps in memory."""
QUEUE_BYTES_MAX: Final = 64 << 20
"""Bytes of received messages that wait to be matched."""


class Budget:
    """`total` bytes for all who `join`, in any thread."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._lock = threading.Lock()  # guards the members' numbers and their sum
        self._members = self._held = 0

    @property
    def members(self) -> int:
        """Streams that have a share."""
        return self._members

    @property
    def held(self) -> int:
        """Bytes that all of them hold together, as they said last."""
        return self._held

    def join(self) -> Share:
        """A part of it, until `leave`."""
        with self._lock:
            self._members += 1
        return Share(self)


class Share:
    """What one stream holds of a budget."""

    def __init__(self, budget: Budget) -> None:
        """Made by `Budget.join`."""
        self._budget = budget
        self._held = 0
        self._left = False

    @property
    def limit(self) -> int:
        """How many bytes this stream may hold now."""
        budget = self._budget
        with budget._lock:
            others = budget._held - self._held
            return max(budget.total // max(budget._members, 1), budget.total - others)

    @property
    def held(self) -> int:
        """Bytes that this stream holds, as it said last."""
        return self._held

    def hold(self, size: int) -> None:
        """Say how many bytes this stream holds now."""
        budget = self._budget
        with budget._lock:
            if not self._left:
                budget._held += size - self._held
                self._held = size

    def leave(self) -> None:
        """The stream ends and holds nothing any more. Harmless when repeated."""
        budget = self._budget
        with budget._lock:
            if not self._left:
                budget._held -= self._held
                budget._members -= 1
                self._held, self._left = 0, True


class StreamMemory:
    """What all streams of one process share; there is one, whatever the number of stores and pullers."""

    def __init__(self, open_bytes_max: int = OPEN_BYTES_MAX, queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        """`open_bytes_max`: of open transactions; `queue_bytes_max`: of messages not yet matched."""
        self.open_rows = Budget(open_bytes_max)
        self.queued = Budget(queue_bytes_max)
        self.slabs = Recycler()
