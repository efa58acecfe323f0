"""How many bytes a transactional producer may have under way, and when its transaction must end. Pure.

The broker aborts a transaction that is open too long by its own clock. So the bytes that wait for an
acknowledgement are bounded by what was acknowledged recently: when a transaction is to be committed, the
broker accepts what is under way in about half a second, even if it is throttled to a megabyte a second. Only
a broker that was fast and is suddenly throttled needs a few times as long.
"""

from __future__ import annotations

from collections import deque
from typing import Final

LOOK_S: Final = 10.0
"""Only what was acknowledged in the last 10 s counts. Kafka's quotas look back as far, so a burst that they
allow after a rest is not mistaken for the broker's pace."""
SHARE: Final = 0.05
"""The share of that which may be under way: half a second's worth."""
WINDOW_MIN: Final = 256 << 10
WINDOW_MAX: Final = 8 << 20
"""A larger window does not make a nearby broker faster."""
PIECE_MAX: Final = 32 << 20
TRANSACTION_S: Final = 2.0
TRANSACTION_BYTES: Final = 64 << 20


class Pace:
    """The pace of one producer. Times are monotonic seconds, sizes bytes of messages."""

    def __init__(self) -> None:
        self._acknowledged: deque[tuple[float, int]] = deque()
        self._sum = 0
        self._began: float | None = None
        self._sent = 0

    def begin(self, now: float) -> None:
        """A transaction begins."""
        self._began, self._sent = now, 0

    def sent(self, size: int) -> None:
        """`size` bytes were handed to the client."""
        self._sent += size

    def acknowledged(self, size: int, now: float) -> None:
        """The broker has acknowledged `size` bytes."""
        self._acknowledged.append((now, size))
        self._sum += size
        self._forget(now)

    def ended(self) -> None:
        """The transaction is over."""
        self._began = None

    def slowed(self) -> None:
        """The broker has slowed down: discard the history and start with the smallest window."""
        self._acknowledged.clear()
        self._sum = 0

    def is_due(self, now: float) -> bool:
        """Whether the transaction should end now."""
        if self._began is None:
            return False
        return self._sent >= TRANSACTION_BYTES or now - self._began >= TRANSACTION_S

    def window(self, now: float) -> int:
        """How many bytes may be under way."""
        # docs/guarantees.md#a-transaction-of-any-size-gets-through: a slow broker gets less at a time, so
        # that the transaction ends before the broker's timeout.
        return min(self.piece(now), WINDOW_MAX)

    def piece(self, now: float) -> int:
        """How many bytes may be produced before the caller asks `is_due` again."""
        self._forget(now)
        # Never 0, because without bytes under way nothing would be acknowledged and the pace never known.
        return min(max(int(self._sum * SHARE), WINDOW_MIN), PIECE_MAX)

    def _forget(self, now: float) -> None:
        while self._acknowledged and self._acknowledged[0][0] < now - LOOK_S:
            self._sum -= self._acknowledged.popleft()[1]
