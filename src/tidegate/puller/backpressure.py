r"""What the puller does while its store has no room: wait, or let go of what it can pull again.

```
          pressure              SHED_AFTER_S, over quota               has room
 FLOWING ----------> WAITING ----------------------------> SHEDDING ------------> FLOWING
    | ^                 |                                     ^
    | |__ pressure goes |                                     |
    |_________________ crowded for CROWDED_S _________________|
```

WAITING: streams hand nothing on, so that HTTP/2 flow control holds the stores back; nothing is lost and
mostly readers free room meanwhile. They cannot when all that is kept lies beyond a resolved ts that comes
on the very streams that wait, as does the end of an open transaction that is spilled and takes the room. So
then SHEDDING: spans are given up one by one, the one that takes most first, as it would be spilled first;
what they hold beyond their resolved ts is forgotten, spilled or not, streams flow for the others, and all
are pulled again from their resolved ts when there is room. Those that take little of the room go on: the
puller gives up none that takes less than half of an equal share. A disk that is full for other reasons is
only waited for.

With other spans beside the one that takes most, it is given up before the quota is reached, when the store is
crowded: in WAITING they would all stand still because one of them has a reader that has stopped. A span that
is alone has nobody to make way for, and waits. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

T = TypeVar("T")

CROWDED_S: Final = 0.2
"""A store that fills quickly is full soon after it is crowded; one look more, and it was no passing peak."""
SHED_AFTER_S: Final = 5.0
STEP_S: Final = 1.0
"""Between two spans that are given up."""
REST_S: Final = 5.0
REST_MAX_S: Final = 60.0
"""What was given up rests so long at least, and twice as long each time it happens again soon."""
CALM_S: Final = 120.0
"""After so long without shedding the first rest is a short one again."""


class Action(StrEnum):
    """What is to be done now."""

    NOTHING = "nothing"
    SHED = "shed"
    RESUME = "resume"


def greediest(taken: Mapping[T, int], quota: int, count: int) -> T | None:
    """Which of the spans that run to give up next, from the bytes each has taken; None: none takes much.

    `count`: of all spans, those that were given up as well. Half of an equal share is left to each: what
    takes less is not why there is no room, and all of these together take half a quota more at most.
    """
    most = max(taken, key=lambda span: taken[span], default=None)
    return most if most is not None and taken[most] > quota // (2 * count) else None


class Backpressure:
    """Looked at every so often with the store's own words."""

    def __init__(self) -> None:
        self.words = ""
        """Why the puller waits; empty when it does not."""
        self.shedding = False
        self._since = self._stepped = self._resumed = 0.0
        self._crowded_since: float | None = None
        self._rest = 0.0
        self._used = 0

    @property
    def waits(self) -> bool:
        """Whether streams are to hand nothing on."""
        return self.words != "" and not self.shedding

    def look(
        self, pressure: str, *, crowded: str, has_room: bool, over_quota: bool, used: int, now: float
    ) -> Action:
        """SHED: give up the span that takes most.

        `pressure`: why nothing more fits; `crowded`: why soon nothing will, empty while nobody would gain by
        an early end; `used`: bytes on disk; `now`: monotonic seconds.
        """
        if not crowded:
            self._crowded_since = None
        elif self._crowded_since is None:
            self._crowded_since = now
        if self.words == "" and pressure:
            self._since = now
        if self.shedding:
            if has_room and now - self._stepped >= self._rest:
                self._resumed = now
                self.words, self.shedding = "", False
                return Action.RESUME
            if (over_quota or crowded) and used > self._used and now - self._stepped >= STEP_S:
                self._stepped, self._used = now, used
                return Action.SHED
            return Action.NOTHING
        self.words = pressure
        early = self._crowded_since is not None and now - self._crowded_since >= CROWDED_S
        if early or (pressure and over_quota and now - self._since >= SHED_AFTER_S):
            self.words = pressure or crowded
            self.shedding, self._stepped, self._used = True, now, used
            soon = self._rest > 0 and now - self._resumed < CALM_S
            self._rest = min(2 * self._rest, REST_MAX_S) if soon else REST_S
            return Action.SHED
        return Action.NOTHING
