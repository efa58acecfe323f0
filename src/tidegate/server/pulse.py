"""Wakes the changefeeds that follow a store of events: one look at its page of floors for all of a capture.

    page of floors --look every LOOK_S--> has it changed? --> wake those whom it concerns

A changefeed that has rows to deliver, or may have, is woken by each change: for EAGER_S after the manifest of
one of its spans has changed, which is how rows come to light (`eventstore.manifest`). For the others floors
only follow the time, and they are woken by a change four times a second at most, and once a second when no
rows of theirs have come for LONG_S. So a hundred changefeeds of a table each, beside tables that others
follow, cost their own rows and a little. A look wakes only a few of those who follow the time, in turn:
if it woke all of them, those with rows would wait for a hundred ticks. All pauses grow with the crowd, up to
some seconds: 300 changefeeds together tick no more often than 60 did.

While nothing changes a look costs some microseconds, and the followers nothing. No change is missed: a
follower begins to follow, and only then reads the page. A change after that differs from what the last look
saw, unless that look came after the change, and then it has woken the follower, or remembers to. Its event
stays set until it is waited for, and is cleared before the page is read again. Looks and followers share one
asyncio loop, so nothing comes between these steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Final

from tidegate.clock import Clock, SystemClock
from tidegate.control.metadata import FeedId
from tidegate.eventstore import store_view
from tidegate.eventstore.floors import PageMark
from tidegate.log import event

LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 0.02
EAGER_S: Final = 2.0
"""For so long after rows have come every change counts: the floors that they wait for follow soon."""
CALM_S: Final = 0.25
"""Otherwise so much lies between two wake-ups at least."""
LONG_S: Final = 10.0
CALMER_S: Final = 1.0
"""And so much when it has not been eager for LONG_S."""
CALM_WAKES_A_S: Final = 60
"""How many wake-ups there are in a second, of all followers without rows for LONG_S together. Beyond 60
followers the pause of each grows with their number.
"""
CALMEST_S: Final = 5.0
"""The longest such pause: half of what makes a changefeed count as standing still (`spans.STANDS_S`)."""
EAGER_WAKES_A_S: Final = 400
"""The same for eager followers: up to eight are woken at each look, twenty at every second look."""
RESTS: Final = 1.5
"""A changefeed that was not woken for so many pauses looks for itself: a missed wake-up costs no more."""
SPREAD: Final = 1.5
"""How many times as many of those at a look as would have their turn on an average: looks come late, too."""
RETRY_S: Final = 1.0
"""After a look that failed; followers look for themselves now and then, too."""

Wake = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many follow a store, and how many of them are eager."""

    all: int
    eager: int


def calmer_s(followers: int) -> float:
    """Between two wake-ups of a changefeed without rows, when so many follow a store."""
    return min(CALMEST_S, max(CALMER_S, followers / CALM_WAKES_A_S))


@dataclass(slots=True)
class _Follower:
    """What one changefeed waits for at one store."""

    wakes: dict[Wake, bool] = field(default_factory=dict)
    """Each with whether it comes first."""
    spans: Set[str] | None = None
    """Those whose rows it delivers; None: not known, so that any rows may be its own."""
    eager_until: float = float("inf")
    woken_at: float = float("-inf")
    owed: bool = False
    """Whether the page has changed since it was woken."""

    def is_eager(self, now: float) -> bool:
        """Whether each change wakes it."""
        return now < self.eager_until

    def pause_s(self, now: float, crowd: Crowd) -> float:
        """Between two wake-ups at least."""
        if self.is_eager(now):
            # Less half a look: followers are woken only at looks, so the pause is rounded to whole ones.
            return crowd.eager / EAGER_WAKES_A_S - LOOK_S / 2
        if now < self.eager_until + LONG_S:
            return min(CALMEST_S / 2, max(CALM_S, crowd.all / (2 * CALM_WAKES_A_S)))
        return calmer_s(crowd.all)

    def wake(self, now: float) -> None:
        """Call all, first those that come first."""
        self.owed, self.woken_at = False, now
        for wake in sorted(self.wakes, key=self.wakes.__getitem__, reverse=True):
            wake()

    def rows_came(self, stirred: Set[str] | None) -> bool:
        """Whether that may be so where the manifests of these spans have changed (None: of any)."""
        return stirred is None or (
            bool(stirred) and (self.spans is None or not stirred.isdisjoint(self.spans))
        )


class Pulse:
    """Who follows which store. One asyncio loop."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._followers: dict[Path, dict[FeedId, _Follower]] = {}
        self._seen: dict[Path, PageMark | None] = {}
        self._looked_at = 0.0

    def follow(self, store: Path, feed: FeedId, wake: Wake, *, first: bool = False) -> None:
        """Call `wake` when the page of a store has changed, until `leave`. Read what it holds after this.

        `first`: before the feed's others. Owners are: what they dispatch is there when their processor ticks.
        """
        self._followers.setdefault(store, {}).setdefault(feed, _Follower()).wakes[wake] = first

    def leave(self, store: Path, feed: FeedId, wake: Wake) -> None:
        """The inverse of `follow`; nothing where that was not called."""
        followers = self._followers.get(store, {})
        if feed in followers:
            followers[feed].wakes.pop(wake, None)
            if not followers[feed].wakes:
                del followers[feed]
        if not followers:
            self._followers.pop(store, None)
            self._seen.pop(store, None)

    def concern(self, store: Path, feed: FeedId, spans: Set[str] | None) -> None:
        """Whose rows a feed delivers from now on, its DDL among them; None: not known.

        Rows of a span that is new to it may have come before: it is eager for a while.
        """
        follower = self._followers.get(store, {}).get(feed)
        if follower is not None and spans != follower.spans:
            follower.spans = spans
            follower.eager_until = float("inf") if spans is None else self._clock.monotonic() + EAGER_S

    def calmer_s(self, store: Path) -> float:
        """Between two wake-ups of a changefeed without rows."""
        return calmer_s(len(self._followers.get(store, ())))

    def rest_s(self, store: Path, *, watched: bool = False) -> float:
        """After so long without a wake-up a changefeed looks for itself.

        `watched`: it waits for something that may hang. Then the pause does not grow with the number of
        changefeeds: of each pause a watchdog counts `STEP_MAX_S` at most, so its patience would grow with it.
        """
        return RESTS * (CALMER_S if watched else self.calmer_s(store))

    def look(self) -> None:
        """One look at all pages."""
        now = self._clock.monotonic()
        for store, followers in self._followers.items():
            mark, seen = store_view.page_mark(store), self._seen.get(store)
            changed = mark != seen
            if changed:
                self._seen[store] = mark
            stirred = mark.stirred_since(seen) if changed and mark is not None else frozenset[str]()
            for follower in followers.values():
                follower.owed = follower.owed or changed
                if changed and follower.rows_came(stirred):
                    follower.eager_until = now + EAGER_S
            eager = sum(follower.is_eager(now) for follower in followers.values())
            crowd = Crowd(len(followers), eager)
            calm, a_second = [], 0.0
            for follower in followers.values():
                pause_s = follower.pause_s(now, crowd)
                is_due = follower.owed and now >= follower.woken_at + pause_s
                if follower.is_eager(now):
                    if is_due:
                        follower.wake(now)
                    continue
                a_second += 1 / pause_s
                if is_due:
                    calm.append(follower)
            calm.sort(key=attrgetter("woken_at"))
            for follower in calm[: 1 + int(SPREAD * a_second * (now - self._looked_at))]:
                follower.wake(now)
        self._looked_at = now

    async def run(self) -> None:
        """Look for ever."""
        while True:
            pause_s = LOOK_S
            try:
                self.look()
            except OSError as error:
                event(LOG, logging.WARNING, "page of floors not read", why=str(error))
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)
