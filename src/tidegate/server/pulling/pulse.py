"""Wakes the changefeeds that follow an event store, with one look at its page of floors for all of a capture.

    page of floors --look every LOOK_S--> has it changed? --> wake the changefeeds that it concerns

A changefeed that has or may have rows to deliver is woken by each change, for EAGER_S after the manifest of
one of its spans names other segments; new rows always do that (`eventstore.manifest`). If more than a few
have had rows for longer than that, each has a pause between two wake-ups (`pipeline.exchange.pace`), because
of what follows a wake-up. The puller also writes the manifest of a span without rows, every one or two
minutes; then nothing but a floor has risen. That of the DDL span concerns all changefeeds, and would make
them all eager at the same time. For changefeeds without rows floors only follow the time. A change wakes each
of them at most four times a second, and at most once a second after LONG_S without rows. So a hundred
changefeeds of one table each, in a store with the tables of others, cost little more than their own rows. A
look wakes only a few of the changefeeds without rows, in turn. If it woke all of them, those with rows would
wait for a hundred ticks. All pauses grow with the number of followers, up to some seconds: 200 changefeeds
together tick no more often than 40.

While nothing changes, a look costs some microseconds, and the followers cost nothing. No change is missed,
because a follower first calls `follow` and then reads the page. A change after its reading differs from what
the last look saw, unless that look came after the change; then that look has woken the follower, or has noted
that it owes it a wake-up. The follower's event stays set until it is waited for, and is cleared before the
page is read again. Looks and followers share one asyncio loop, so nothing happens between these steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Final

from tidegate.clock import Clock, SystemClock
from tidegate.control.metadata import FeedId
from tidegate.errors import TidegateError
from tidegate.eventstore import store_view
from tidegate.eventstore.floors import ENTRY_BYTES, PageMark
from tidegate.eventstore.manifest import Manifest
from tidegate.log import event
from tidegate.pipeline.exchange import pace

LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 0.02
EAGER_S: Final = 2.0
"""For this long after rows have arrived every change wakes, because the floors of these rows follow soon."""
CALM_S: Final = 0.25
"""Otherwise at least this much time passes between two wake-ups."""
LONG_S: Final = 10.0
CALMER_S: Final = 1.0
"""At least this much time passes between two wake-ups after LONG_S without rows."""
CALM_WAKES_A_S: Final = 40
"""The most wake-ups in a second of up to 200 followers without rows for LONG_S together. With more than 40
followers the pause of each grows with their number, up to CALMEST_S: 300 followers have 60 wake-ups a second.
Each wake-up costs a tick of a processor, two of an owner, and a transaction at the sink.
"""
CALMEST_S: Final = 5.0
"""The longest such pause. Twice that, without progress, means that a changefeed hangs (`spans.STALLED_S`)."""
RESOLVED_SHARE: Final = 0.9
"""The least pause between two Resolved of a changefeed without rows, as a share of that between two wake-ups.
Each Resolved follows a wake-up by some milliseconds. If both pauses were the same, the next wake-up would
often come before a Resolved is due, and the owner would tick once more for it.
"""
EAGER_WAKES_A_S: Final = 400
"""The same for followers that became eager less than EAGER_S ago: each look wakes all of up to eight of them;
of twenty, every second look.
"""
RESTS: Final = 1.5
"""A changefeed that was not woken for this many pauses looks itself, so a missed wake-up only costs time."""
SPREAD: Final = 1.5
"""A look wakes this many times the followers whose turn it is on average, because looks may be late."""
RETRY_S: Final = 1.0
"""The pause after a look that failed. Followers also look themselves from time to time."""

Wake = Callable[[], None]
ManifestOf = Callable[[Path, str], Manifest | None]
"""The manifest of a span in a store; None while it has none. Raises TidegateError and OSError."""


def eager_s(eager: int) -> float:
    """The pause between two wake-ups of a follower that became eager lately, for this many of them."""
    # Minus half a look, because followers are woken only at looks, which rounds the pause.
    return eager / EAGER_WAKES_A_S - LOOK_S / 2


def steady_s(eager: int) -> float:
    """The same for one that has been eager for EAGER_S."""
    return pace.pause_s(eager) - LOOK_S / 2


def waning_s(followers: int) -> float:
    """The same for a follower that was eager until lately, for this many followers of its store."""
    return min(CALMEST_S / 2, max(CALM_S, followers / (2 * CALM_WAKES_A_S)))


def calmer_s(followers: int) -> float:
    """The pause between two wake-ups of a changefeed without rows, for this many followers of its store."""
    return min(CALMEST_S, max(CALMER_S, followers / CALM_WAKES_A_S))


@dataclass(slots=True)
class _Follower:
    """One changefeed's wake-ups at one store."""

    wakes: dict[Wake, bool] = field(default_factory=dict)
    """The functions to call, each with whether it comes first."""
    spans: Set[str] | None = None
    """The spans whose rows it delivers; None: not known, so any rows may be its own."""
    eager_until: float = float("inf")
    fresh_until: float = float("inf")
    """Until when it counts as one that has become eager lately."""
    woken_at: float = float("-inf")
    is_pending: bool = False
    """Whether the page has changed since it was last woken."""

    def wake(self, now: float) -> None:
        """Call all functions, those first that come first."""
        self.is_pending, self.woken_at = False, now
        for wake in sorted(self.wakes, key=self.wakes.__getitem__, reverse=True):
            wake()

    def take_rows(self, now: float) -> None:
        """Rows of it may have come: it is eager for a while."""
        if now >= self.eager_until:
            self.fresh_until = now + EAGER_S
        self.eager_until = now + EAGER_S

    def rows_came(self, changed_spans: Set[str] | None) -> bool:
        """Whether its rows may have come, if manifests of spans have changed. None: those of any span."""
        return changed_spans is None or self.spans is None or not changed_spans.isdisjoint(self.spans)


def _due(followers: Iterable[_Follower], now: float, pause_s: float) -> list[_Follower]:
    """Those that are owed a wake-up, and whose last one is this long ago."""
    return [one for one in followers if one.is_pending and now >= one.woken_at + pause_s]


class Pulse:
    """The followers of all stores. Lives in one asyncio loop."""

    def __init__(self, clock: Clock | None = None, manifest_of: ManifestOf | None = None) -> None:
        """`manifest_of`: None takes each new manifest for rows that have come."""
        self._clock, self._manifest_of = clock or SystemClock(), manifest_of
        self._followers: dict[Path, dict[FeedId, _Follower]] = {}
        self._seen: dict[Path, PageMark | None] = {}
        self._named: dict[Path, dict[str, object]] = {}
        """By store and span: what the manifest named when it was read last (`_contents`)."""
        self._looked_at = 0.0

    def follow(self, store: Path, feed: FeedId, wake: Wake, *, first: bool = False) -> None:
        """Call `wake` when the page of a store has changed, until `leave`. Read the page only after this
        call.

        `first`: call it before the feed's others. Owners do so: their dispatches are then there when their
        processor ticks.
        """
        self._followers.setdefault(store, {}).setdefault(feed, _Follower()).wakes[wake] = first

    def leave(self, store: Path, feed: FeedId, wake: Wake) -> None:
        """The inverse of `follow`; without an earlier `follow` it does nothing."""
        followers = self._followers.get(store, {})
        if feed in followers:
            followers[feed].wakes.pop(wake, None)
            if not followers[feed].wakes:
                del followers[feed]
        if not followers:
            self._followers.pop(store, None)
            self._seen.pop(store, None)
            self._named.pop(store, None)

    def concern(self, store: Path, feed: FeedId, spans: Set[str] | None) -> None:
        """Set the spans whose rows a feed delivers from now on, including its DDL span; None: not known.

        Rows of a span that is new to it may have come before, so it is eager for a while.
        """
        follower = self._followers.get(store, {}).get(feed)
        if follower is not None and spans != follower.spans:
            self._remember(store, (spans or set()) - (follower.spans or set()))
            follower.spans = spans
            until = float("inf") if spans is None else self._clock.monotonic() + EAGER_S
            follower.eager_until = follower.fresh_until = until

    def calmer_s(self, store: Path) -> float:
        """The pause between two wake-ups of a changefeed without rows."""
        return calmer_s(len(self._followers.get(store, ())))

    def quiet_s(self, store: Path) -> float:
        """The least pause between two Resolved, or two stored checkpoints, of a changefeed without rows."""
        return RESOLVED_SHARE * self.calmer_s(store)

    def rest_s(self, store: Path, *, watched: bool = False) -> float:
        """The time without a wake-up after which a changefeed looks itself.

        `watched`: it waits for something that may hang. Then the pause does not grow with the number of
        changefeeds. A watchdog counts at most `STEP_MAX_S` of each pause, so longer pauses would make it
        slower.
        """
        return RESTS * (CALMER_S if watched else self.calmer_s(store))

    def look(self) -> None:
        """Look once at all pages."""
        now = self._clock.monotonic()
        for store, followers in self._followers.items():
            self._note_changes(store, followers.values(), now)
            # One pass over all followers, fifty times a second: most looks find nobody who is due.
            fresh, steady = list[_Follower](), list[_Follower]()
            waning, calm = list[_Follower](), list[_Follower]()
            for follower in followers.values():
                if now < follower.eager_until:
                    (fresh if now < follower.fresh_until else steady).append(follower)
                elif now < follower.eager_until + LONG_S:
                    waning.append(follower)
                else:
                    calm.append(follower)
            # Without the pause of `steady`: a new changefeed is woken several times until its first row.
            for follower in _due(fresh, now, eager_s(len(fresh))):
                follower.wake(now)
            pause_s = steady_s(len(steady))
            self._wake_some(_due(steady, now, pause_s), len(steady) / max(LOOK_S, pause_s), now)
            waning_pause_s, calm_pause_s = waning_s(len(followers)), calmer_s(len(followers))
            due = [*_due(waning, now, waning_pause_s), *_due(calm, now, calm_pause_s)]
            self._wake_some(due, len(waning) / waning_pause_s + len(calm) / calm_pause_s, now)
        self._looked_at = now

    def _wake_some(self, due: list[_Follower], a_second: float, now: float) -> None:
        """Wake those that have waited longest, about `a_second` in a second: each has its turn, and what they
        do is spread over their pause.
        """
        due.sort(key=attrgetter("woken_at"))
        # At least one at each look, because the number may round to 0 again and again.
        for follower in due[: 1 + int(SPREAD * a_second * (now - self._looked_at))]:
            follower.wake(now)

    def _note_changes(self, store: Path, followers: Collection[_Follower], now: float) -> None:
        """Note whom the changes of a page since the last look concern."""
        mark, seen = store_view.page_mark(store), self._seen.get(store)
        if mark == seen:
            return
        self._seen[store] = mark
        for follower in followers:
            follower.is_pending = True
        changed_spans: Set[str] | None
        changed_spans = mark.changed_since(seen) if mark is not None else frozenset[str]()
        if changed_spans and mark is not None:
            changed_spans = self._with_news(store, changed_spans, len(mark.entries) // ENTRY_BYTES)
        if changed_spans is None or changed_spans:
            for follower in followers:
                if follower.rows_came(changed_spans):
                    follower.take_rows(now)

    def _with_news(self, store: Path, spans: Set[str], at_most: int) -> Set[str]:
        """Those of `spans` whose manifest does not name the same as when it was read last.

        `at_most`: the number of spans that the store has, at most.
        """
        if self._manifest_of is None:
            return spans
        named, found = self._named.setdefault(store, {}), set[str]()
        if len(named) > at_most:
            named.clear()  # most are of spans that were removed
        for span in spans:
            contents = self._contents(store, span)
            if contents is None or contents != named.get(span):
                found.add(span)
            named[span] = contents
        return found

    def _remember(self, store: Path, spans: Set[str]) -> None:
        """Note what the manifests of spans that are new to a feed name, so that the next one shows news."""
        if self._manifest_of is not None:
            named = self._named.setdefault(store, {})
            for span in spans - named.keys():
                named[span] = self._contents(store, span)

    def _contents(self, store: Path, span: str) -> object:
        """The contents of a manifest, without the ts up to which it is complete. None: not known."""
        assert self._manifest_of is not None
        try:
            manifest = self._manifest_of(store, span)
        except (TidegateError, OSError):
            return None
        # Parts that differ are written for readers that want only some of them, and wait for that.
        if manifest is None or len(manifest.ranges) > 1:
            return None
        return manifest.dropped_to, manifest.segments

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            pause_s = LOOK_S
            try:
                self.look()
            except OSError as error:
                event(LOG, logging.WARNING, "page of floors not read", why=str(error))
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)
