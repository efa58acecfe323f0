"""The events of a simulation, as lines for people and as counts."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

LAST: Final = 40
"""How many lines are kept to be shown with a violation."""


class Timeline:
    """Lines with the virtual time, the actor and the event. Keeps all lines, or only the last ones."""

    def __init__(self, *, whole: bool = False) -> None:
        """`whole`: keep every line, and also write lines for messages."""
        self.whole = whole
        self.lines: deque[str] = deque(maxlen=None if whole else LAST)
        self.counts: Counter[str] = Counter()
        """The number of events of each name."""
        self.faults: Counter[str] = Counter()
        """The number of injected faults of each kind."""

    def note(self, now: float, who: str, what: str) -> None:
        """Add one line."""
        self.lines.append(f"{now:9.3f}  {who:<7}  {what}")
