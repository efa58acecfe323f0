"""The bytes that the streams of one process may hold in memory: one budget for all of them.

A stream may hold its equal share of the total, or the part that the others leave, whichever is more. So one
busy store gets nearly everything, no store can starve another one, and the bound does not depend on the
number of stores. If a stream holds more than its share when another one begins to fill, it returns the excess
at its next message, which arrives about every second; only until then can the sum exceed the total.

The member decides what happens at the limit: open transactions are spilled to disk, or without a folder they
are forgotten and scanned again (`block_matcher`); a full queue stops its sender (`event_feed`).
"""

from __future__ import annotations

import threading
from typing import Final

from tidegate.puller.match.recycler import Recycler

OPEN_BYTES_MAX: Final = 256 << 20
"""The most bytes of open transactions that a process keeps in memory."""
QUEUE_BYTES_MAX: Final = 64 << 20
"""The most bytes of received messages that wait to be matched."""


class Budget:
    """`total` bytes, shared by all members that `join`. Thread-safe."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._lock = threading.Lock()  # guards the members' bytes and their sum
        self._held = 0
        self._sizes: dict[Share, int] = {}
        """The bytes that each member holds."""

    @property
    def members(self) -> int:
        """The number of streams that have a share."""
        return len(self._sizes)

    @property
    def held(self) -> int:
        """The bytes that all members hold together, as last reported."""
        return self._held

    def join(self) -> Share:
        """Add a member; its share is valid until `Share.leave`."""
        share = Share(self)
        with self._lock:
            self._sizes[share] = 0
        return share

    def limit_of(self, share: Share) -> int:
        """The bytes that a member may hold now."""
        with self._lock:
            # docs/guarantees.md#memory-is-bounded: a stream may hold what the others leave.
            # The equal share even if the others hold more than theirs: otherwise a store that fills later
            # would get nothing.
            others = self._held - self._sizes.get(share, 0)
            return max(self.total // max(len(self._sizes), 1), self.total - others)

    def held_by(self, share: Share) -> int:
        """The bytes that a member holds, as last reported; 0 after it has left."""
        return self._sizes.get(share, 0)

    def hold(self, share: Share, size: int) -> None:
        """Note the bytes that a member holds now."""
        with self._lock:
            # A report that comes after `leave` would be counted forever, because nobody would take it back.
            if share in self._sizes:
                self._held += size - self._sizes[share]
                self._sizes[share] = size

    def leave(self, share: Share) -> None:
        """Release what a member holds, and its share. May be repeated."""
        with self._lock:
            self._held -= self._sizes.pop(share, 0)


class Share:
    """One stream's share of a budget."""

    def __init__(self, budget: Budget) -> None:
        """Made by `Budget.join`."""
        self._budget = budget

    @property
    def limit(self) -> int:
        """The bytes that this stream may hold now."""
        return self._budget.limit_of(self)

    @property
    def held(self) -> int:
        """The bytes that this stream holds, as last reported."""
        return self._budget.held_by(self)

    def hold(self, size: int) -> None:
        """Report the bytes that this stream holds now."""
        self._budget.hold(self, size)

    def leave(self) -> None:
        """Release the share, because the stream ends. May be repeated."""
        self._budget.leave(self)


class StreamMemory:
    """The memory that all streams of one process share, whatever the number of stores and pullers."""

    def __init__(self, open_bytes_max: int = OPEN_BYTES_MAX, queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        """`open_bytes_max`: of open transactions; `queue_bytes_max`: of messages not yet matched."""
        self.open_rows = Budget(open_bytes_max)
        self.queued = Budget(queue_bytes_max)
        self.slabs = Recycler()
