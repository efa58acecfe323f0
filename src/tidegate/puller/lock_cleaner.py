"""Clears the locks of dead transactions that hold a resolved ts back.

A client that dies leaves its locks behind. If no client reads those keys, the locks are never resolved, and
the region's resolved ts stays at their start ts. Therefore the cleaner checks the locks of ranges that are
live but have not moved and lag PD's time, as a reader would: it resolves expired locks and leaves live ones
alone. If a live lock explains why a range does not move, the cleaner reports this through `Behind.alive`;
the range then does not count as forgotten by its store (`silence`). (Source: tiflow
`cdc/kv/shared_client.go`.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from tidegate.errors import Retryable, TidegateError
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.lock_resolver import LiveTransactions, LockResolver
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.model import timestamp
from tidegate.model.key_range import keyspace_of
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp

STUCK_S: Final = 4.0
"""The locks of a span are checked if it has not moved for this long and lags PD's time by as much."""
BUDGET_MS: Final = 5_000
"""The time limit for resolving the locks of one range."""
REST_ROUNDS: Final = 5
"""A range is checked once in this many rounds. A round is half of STUCK_S, so a range with live locks is
checked every 10 s at most."""

FRUITLESS_MAX: Final = 64
"""A round ends for a span after it has checked this many ranges without a lock. So a span of 100,000 regions
whose marks come late, or that is only being opened, does not cost a request for each region."""


class Behind(NamedTuple):
    """A live range whose resolved ts is `resolved`; `alive` is called if a live lock holds it back."""

    bounds: Span
    resolved: Timestamp
    alive: Callable[[], None]


class Stuck(NamedTuple):
    """A span that has not moved from `resolved`; `behind(target)` returns its live ranges below `target`."""

    resolved: Timestamp
    behind: Callable[[Timestamp], list[Behind]]


class Rests:
    """The ranges that were checked in the last REST_ROUNDS rounds."""

    def __init__(self) -> None:
        self._round = 0
        self._looked: dict[Span, int] = {}

    def next_round(self) -> None:
        """Begin a round; forget the ranges that may be checked again."""
        self._round += 1
        self._looked = {each: at for each, at in self._looked.items() if self._round - at < REST_ROUNDS}

    def take(self, bounds: Span) -> bool:
        """Whether the range may be checked now; if so, this records the check."""
        if bounds in self._looked:
            return False
        self._looked[bounds] = self._round
        return True


def clean(pd: PdClient, stuck: Callable[[], list[Stuck]], closing: threading.Event) -> None:
    """Until `closing` is set, clear the locks that hold back the spans from `stuck`, the oldest span first.

    Each round asks PD for at most one timestamp, whatever the number of spans.
    """
    rests = Rests()
    while not closing.wait(STUCK_S / 2):
        rests.next_round()
        now = 0
        for span in sorted(stuck(), key=lambda each: each.resolved):
            try:
                # Inside the `try`: PD may be unreachable, and that must not end the thread.
                now = now or pd.tso()
                _unstick(pd, span, now, rests, closing)
            except TidegateError:
                continue  # PD or a store is unreachable: the next round retries, and the streams report it


def _unstick(pd: PdClient, span: Stuck, now: Timestamp, rests: Rests, closing: threading.Event) -> None:
    # It has not moved because PD's time has not, for example at an upstream whose timestamps are set by hand.
    if timestamp.physical_ms(now) - timestamp.physical_ms(span.resolved) < STUCK_S * 1000:
        return
    # Only locks near the resolved ts can hold it there. Younger ones belong to transactions that have had no
    # time to end.
    target = min(now, span.resolved + timestamp.compose(int(STUCK_S * 1000)))
    fruitless = 0
    # The lowest first, because it alone decides the span's resolved ts.
    for bounds, resolved, alive in sorted(span.behind(target), key=lambda each: each.resolved):
        if closing.is_set() or fruitless == FRUITLESS_MAX:
            return
        if rests.take(bounds):
            found = _resolve(pd, bounds, target, now)
            fruitless += not found.locks_found
            # A resolved ts stops at the oldest lock of its region, so this lock explains it.
            if 0 < found.oldest <= resolved:
                alive()


def _resolve(pd: PdClient, bounds: Span, target: Timestamp, now: Timestamp) -> LiveTransactions:
    """Resolve the locks of a range.

    Keys that look like a keyspace's may be plain keys of API V1 with the same first bytes. A store rejects a
    request with the wrong API version; then the request is repeated without the keyspace.
    """
    keyspace = keyspace_of(bounds)
    if keyspace >= 0:
        with suppress(Retryable):
            resolver = LockResolver(RegionRequester(pd, keyspace))
            return resolver.resolve_span(bounds, target, Backoff(BUDGET_MS), now)
    return LockResolver(RegionRequester(pd)).resolve_span(bounds, target, Backoff(BUDGET_MS), now)
