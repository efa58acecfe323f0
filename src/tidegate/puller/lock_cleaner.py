"""Clears the locks of dead transactions where they hold a resolved ts back.

A client that dies leaves locks; nobody may ever read those keys, and the region's resolved ts stays at their
start. So ranges that are in step, yet stand still and lag PD's time, have their locks looked at, as a reader
would: expired ones are resolved, live ones left alone. That a range has a live lock as old as it stands is
said: its store has not forgotten it (`silence`). (Source: tiflow `cdc/kv/shared_client.go`.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from tidegate.errors import Retryable, TidegateError
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.lock_resolver import Living, LockResolver
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.model import timestamp
from tidegate.model.key_range import keyspace_of
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp

STUCK_S: Final = 4.0
"""A span that has not moved for so long, and lags PD's time by as much, has its locks looked at."""
BUDGET_MS: Final = 5_000
"""For the locks of one range."""
REST_ROUNDS: Final = 5
"""A round is half of STUCK_S: a range whose locks are alive is asked for them every 10 s at most."""


class Behind(NamedTuple):
    """A range in step that stands at `resolved`; `alive` is called when a live lock holds it there."""

    bounds: Span
    resolved: Timestamp
    alive: Callable[[], None]


class Stuck(NamedTuple):
    """A span that stands still at `resolved`; `behind(target)`: its ranges in step that are below a ts."""

    resolved: Timestamp
    behind: Callable[[Timestamp], list[Behind]]


class Rests:
    """Which ranges were looked at a short while ago. Holds those of the last rounds only."""

    def __init__(self) -> None:
        self._round = 0
        self._looked: dict[Span, int] = {}

    def next_round(self) -> None:
        """Time has passed; forget those that have rested."""
        self._round += 1
        self._looked = {each: at for each, at in self._looked.items() if self._round - at < REST_ROUNDS}

    def take(self, bounds: Span) -> bool:
        """Whether it may be looked at now; if so, it rests from now on."""
        if bounds in self._looked:
            return False
        self._looked[bounds] = self._round
        return True


def clean(pd: PdClient, stuck: Callable[[], list[Stuck]], closing: threading.Event) -> None:
    """Until `closing` is set, clear what holds back the spans that `stuck` names, the oldest first.

    PD is asked for one timestamp a round, however many spans stand still.
    """
    rests = Rests()
    while not closing.wait(STUCK_S / 2):
        rests.next_round()
        now = 0
        for span in sorted(stuck(), key=lambda each: each.resolved):
            try:
                now = now or pd.tso()
                _unstick(pd, span, now, rests, closing)
            except TidegateError:
                continue  # PD or store away: the next round tries again, and the streams report it


def _unstick(pd: PdClient, span: Stuck, now: Timestamp, rests: Rests, closing: threading.Event) -> None:
    if timestamp.physical_ms(now) - timestamp.physical_ms(span.resolved) < STUCK_S * 1000:
        return
    target = min(now, span.resolved + timestamp.compose(int(STUCK_S * 1000)))
    for bounds, resolved, alive in span.behind(target):
        if closing.is_set():
            return
        if rests.take(bounds):
            oldest = _resolve(pd, bounds, target, now).oldest
            if 0 < oldest <= resolved:
                alive()


def _resolve(pd: PdClient, bounds: Span, target: Timestamp, now: Timestamp) -> Living:
    """A keyspace's keys may be plain ones of API V1 that begin alike: the store tells by its refusal."""
    keyspace = keyspace_of(bounds)
    if keyspace >= 0:
        with suppress(Retryable):
            resolver = LockResolver(RegionRequester(pd, keyspace))
            return resolver.resolve_span(bounds, target, Backoff(BUDGET_MS), now)
    return LockResolver(RegionRequester(pd)).resolve_span(bounds, target, Backoff(BUDGET_MS), now)
