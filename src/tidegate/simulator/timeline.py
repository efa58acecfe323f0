"""What happened in a simulation, as lines for people and as counts."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

LAST: Final = 40
"""Lines that are kept, to be shown with a violation."""


class Timeline:
    """Lines with the virtual time, the speaker and the event; all of them, or the last few."""

    def __init__(self, *, whole: bool = False) -> None:
        """`whole`: keep every line, those of messages included."""
        self.whole = whole
        self.lines: deque[str] = deque(maxlen=None if whole else LAST)
        self.counts: Counter[str] = Counter()
        """How often something happened, by its name."""
        self.faults: Counter[str] = Counter()
        """Faults injected, by kind."""

    def note(self, now: float, who: str, what: str) -> None:
        """One line."""
        self.lines.append(f"{now:9.3f}  {who:<7}  {what}")
