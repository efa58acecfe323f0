"""The service GC safepoint: which history upstream must keep for the feeds, and when to renew it.

TiKV drops old versions below the safepoint. A registration at ts R needs all versions from R on, otherwise
its scan would miss deletes. So the safepoint is held below the least ts from which anything may still be
read: for each feed, its checkpoint, and the ts of its saved catalogue, from which DDL is read again. PD holds
it for `ttl_s` seconds. It is renewed at most once a minute, and at once for a new feed. See
docs/formats/change-feed.md#safepoint.

PD refuses a safepoint below its own least safepoint, and then holds nothing for us. So if that one has passed
what a feed needs, we hold the history that is left. Whether the feed can work without the rest is known only
when it registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedId
from tidegate.model.timestamp import MAX

TTL_S: Final = 86_400
"""`gc-ttl`: how long PD keeps a hold that is not renewed, and for how long a stopped feed is held."""
REFRESH_S: Final = 60.0
HELD: Final = frozenset({State.NORMAL, State.WARNING, State.PENDING, State.STOPPED, State.FAILED})
"""States in which a feed's history is kept. A failed feed can be resumed, so it is one of them."""


def service_id(cluster: int, identity: str, keyspace: int = -1) -> str:
    """The service id for PD. `identity`: that of the metadata store; without it, stores would share one hold.

    Each keyspace has a hold of its own, because it may have its own GC.
    """
    return f"tidegate-{cluster}-{identity}" + (f"-keyspace-{keyspace}" if keyspace >= 0 else "")


def creating_id(cluster: int, identity: str, feed: FeedId) -> str:
    """The service id of a temporary hold while a feed is created, until the owner's hold covers it."""
    return f"{service_id(cluster, identity)}-creating-{feed.namespace}_{feed.name}"


@dataclass(frozen=True, slots=True)
class Hold:
    """Ask PD to keep everything above `safe_point` for `ttl_s` seconds. 0 seconds: release the hold."""

    safe_point: int
    ttl_s: int
    needed: int = MAX
    """The least ts from which anything may still be read. MAX: nothing is read any more."""


@dataclass(frozen=True, slots=True)
class History:
    """The history that PD keeps for us, by its last answer."""

    needed: int = MAX
    """We have asked for the history from this ts on."""
    safe_point: int = MAX
    """Nothing may be read or registered below it: our hold, or PD's least safepoint if that is higher."""


class GcGuard:
    """Decides when to renew the safepoint, and at which ts."""

    def __init__(self, ttl_s: int = TTL_S) -> None:
        self._ttl_s = ttl_s
        self._last = float("-inf")
        self._held = True  # an earlier process may have left a hold
        self._least = 0

    def is_due(self, now: float) -> bool:
        """Whether it is time to renew it."""
        return now - self._last >= REFRESH_S

    def tick(self, needs: Mapping[FeedId, int], now: float, *, force: bool = False) -> Hold | None:
        """The call to PD to make now, if any. `needs`: the least ts from which each feed may still read."""
        if not force and not self.is_due(now):
            return None
        if needs:
            self._last, self._held = now, True
            # docs/guarantees.md#nothing-is-lost: PD keeps the history of the changefeed that needs the
            # earliest.
            needed = min(needs.values())
            # One below, because the earliest start is one above the safepoint (`earliest_start`). Not below
            # PD's own, because PD would refuse it and hold nothing.
            return Hold(max(needed - 1, self._least), self._ttl_s, needed)
        if self._held:
            # Released once, not at each tick.
            self._last, self._held = now, False
            return Hold(0, 0)
        return None

    def answered(self, hold: Hold, min_safe_point: int) -> bool:
        """PD has answered with its least safepoint. Returns False if PD did not accept ours: call again."""
        self._least = max(self._least, min_safe_point)
        return hold.ttl_s == 0 or hold.safe_point >= min_safe_point

    def failed(self) -> None:
        """The call failed: it is due again at once."""
        # Whether the call took effect is unknown, so a hold may be there.
        self._last, self._held = float("-inf"), True


def earliest_start(min_safe_point: int) -> int:
    """The least start ts for which the history is complete."""
    return min_safe_point + 1
