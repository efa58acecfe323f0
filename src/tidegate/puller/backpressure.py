r"""Backpressure while the event store has no room: the puller waits, or discards data that it can pull again.

```
          pressure              SHED_AFTER_S, over quota               has room
 FLOWING ----------> WAITING ----------------------------> SHEDDING ------------> FLOWING
    | ^                 |                                     ^
    | |__ pressure goes |                                     |
    |_________________ crowded for CROWDED_S _________________|
```

WAITING: the streams pass nothing on, so HTTP/2 flow control stops the TiKV stores. Nothing is lost, and
usually readers free space meanwhile. They cannot if all stored data is above the resolved ts: the marks that
would raise it arrive on the streams that wait, and so does the end of an open transaction whose spilled rows
use the space.

SHEDDING resolves this: the puller gives up spans one by one, first the one that uses most space. It discards
the data of these spans above their resolved ts, including spilled rows; the streams flow again for the other
spans. When there is room, the spans are pulled again from their resolved ts. A span that uses less than half
of an equal share of the quota is never given up. If the disk is full for other reasons, the puller only
waits.

If there are several spans, the largest is given up even before the quota is reached, when the store is
crowded: otherwise all spans would have to wait because the reader of one of them has stopped. If there is
only one span, giving it up early helps no other span, so it waits. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

T = TypeVar("T")

CROWDED_S: Final = 0.2
"""A store that is crowded for this long is shed early. Short, because a store that fills quickly is full soon
after it is crowded; long enough to exclude a single peak."""
SHED_AFTER_S: Final = 5.0
STEP_S: Final = 1.0
"""The time between giving up two spans."""
REST_S: Final = 5.0
REST_MAX_S: Final = 60.0
"""Spans that were given up stay paused for at least REST_S; each time the puller sheds again soon, the pause
doubles, up to REST_MAX_S."""
CALM_S: Final = 120.0
"""After this long without shedding, the pause is REST_S again."""


class Action(StrEnum):
    """The action that the puller takes now."""

    NOTHING = "nothing"
    SHED = "shed"
    RESUME = "resume"


def greediest(taken: Mapping[T, int], quota: int, count: int) -> T | None:
    """The running span to give up next, the one that uses most bytes; None if no span uses much.

    `taken`: the bytes that each running span uses. `count`: the number of all spans, including those already
    given up. A span that uses at most half of an equal share is kept, because it is not the cause, and all
    such spans together use at most half of the quota.
    """
    most = max(taken, key=lambda span: taken[span], default=None)
    return most if most is not None and taken[most] > quota // (2 * count) else None


class Backpressure:
    """The state machine of the module's diagram. `look` is called at intervals with the store's state."""

    def __init__(self) -> None:
        self.words = ""
        """The reason why the puller waits; empty while it does not."""
        self.shedding = False
        self._since = self._stepped = self._resumed = 0.0
        self._crowded_since: float | None = None
        self._rest = 0.0
        self._used = 0

    @property
    def waits(self) -> bool:
        """Whether streams must stop passing messages on."""
        return self.words != "" and not self.shedding

    def look(
        self, pressure: str, *, crowded: str, has_room: bool, over_quota: bool, used: int, now: float
    ) -> Action:
        """Update the state and return the next action. SHED: give up the span that uses most space.

        `pressure`: the reason why there is no room; empty if there is. `crowded`: the reason why there will
        soon be none; empty if there is enough, or if giving up a span early would help no other span. `used`:
        bytes on disk. `now`: monotonic seconds.
        """
        if not crowded:
            self._crowded_since = None
        elif self._crowded_since is None:
            self._crowded_since = now
        # The wait counts from its beginning, also if its reason changes meanwhile.
        if self.words == "" and pressure:
            self._since = now
        if self.shedding:
            if has_room and now - self._stepped >= self._rest:
                self._resumed = now
                self.words, self.shedding = "", False
                return Action.RESUME
            # Another span only if the last step did not help: its space may be freed a moment later.
            if (over_quota or crowded) and used > self._used and now - self._stepped >= STEP_S:
                self._stepped, self._used = now, used
                return Action.SHED
            return Action.NOTHING
        self.words = pressure
        early = self._crowded_since is not None and now - self._crowded_since >= CROWDED_S
        if early or (pressure and over_quota and now - self._since >= SHED_AFTER_S):
            self.words = pressure or crowded
            self.shedding, self._stepped, self._used = True, now, used
            # A puller that sheds soon after it resumed would pull the same data again and again; each time
            # it waits longer.
            soon = self._rest > 0 and now - self._resumed < CALM_S
            self._rest = min(2 * self._rest, REST_MAX_S) if soon else REST_S
            return Action.SHED
        return Action.NOTHING
