"""How much a transactional producer may have under way, and when its transaction is to end. Pure.

The broker ends a transaction by its clock, whatever was sent meanwhile. So what waits for an acknowledgement
is bounded by what was acknowledged lately: what is under way when a transaction is to be committed is then
taken in about half a second, also by a broker that is throttled to a megabyte a second. A broker that was
fast until now and is throttled at once has a few times as much to take.
"""

from __future__ import annotations

from collections import deque
from typing import Final

LOOK_S: Final = 10.0
"""What was acknowledged in so many seconds counts. Kafka's quotas look as far back: what they let through at
once, after a rest, is then not taken for the broker's pace."""
SHARE: Final = 0.05
"""So much of that may be under way: half a second's."""
WINDOW_MIN: Final = 256 << 10
WINDOW_MAX: Final = 8 << 20
"""More makes a broker at hand no faster."""
PIECE_MAX: Final = 32 << 20
TRANSACTION_S: Final = 2.0
TRANSACTION_BYTES: Final = 64 << 20


class Pace:
    """One producer's. Times are monotonic seconds, sizes bytes of messages."""

    def __init__(self) -> None:
        self._acknowledged: deque[tuple[float, int]] = deque()
        self._sum = 0
        self._began: float | None = None
        self._sent = 0

    def begin(self, now: float) -> None:
        """A transaction begins."""
        self._began, self._sent = now, 0

    def sent(self, size: int) -> None:
        """So much was handed to the client."""
        self._sent += size

    def acknowledged(self, size: int, now: float) -> None:
        """The broker has taken so much."""
        self._acknowledged.append((now, size))
        self._sum += size
        self._forget(now)

    def ended(self) -> None:
        """The transaction is over."""
        self._began = None

    def slowed(self) -> None:
        """What was is no measure any more: start small."""
        self._acknowledged.clear()
        self._sum = 0

    def is_due(self, now: float) -> bool:
        """Whether the transaction should end now."""
        if self._began is None:
            return False
        return self._sent >= TRANSACTION_BYTES or now - self._began >= TRANSACTION_S

    def window(self, now: float) -> int:
        """How much may be under way."""
        return min(self.piece(now), WINDOW_MAX)

    def piece(self, now: float) -> int:
        """How much may be produced before one looks at the clock again."""
        self._forget(now)
        return min(max(int(self._sum * SHARE), WINDOW_MIN), PIECE_MAX)

    def _forget(self, now: float) -> None:
        while self._acknowledged and self._acknowledged[0][0] < now - LOOK_S:
            self._sum -= self._acknowledged.popleft()[1]
