"""The service GC safepoint: which history upstream must keep for the feeds, and when to say so again.

TiKV drops old versions below the safepoint; a feed at checkpoint C needs them from C on, else a new
incremental scan would miss deletes. So C - 1 of the slowest feed is held, for `TTL_S` seconds at a time,
renewed at most once a minute, at once for a new feed (facts: TiKV CDC 4.9).

PD refuses a safepoint below its least one, and then holds nothing for us. So a feed whose history is gone is
left out from then on (as TiCDC leaves out those that failed for it): the others' would go, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedId

TTL_S: Final = 86_400
REFRESH_S: Final = 60.0
HELD: Final = frozenset({State.NORMAL, State.WARNING, State.PENDING, State.STOPPED, State.FAILED})
"""States whose history is kept; a failed feed can be resumed."""


def service_id(cluster: int, identity: str) -> str:
    """Under which PD knows us. `identity`: the metadata store's; another capture's holds are not ours."""
    return f"tidegate-{cluster}-{identity}"


def creating_id(cluster: int, identity: str, feed: FeedId) -> str:
    """A temporary hold while a feed is being created, before the owner takes over."""
    return f"{service_id(cluster, identity)}-creating-{feed.namespace}_{feed.name}"


@dataclass(frozen=True, slots=True)
class Hold:
    """Ask PD to keep everything above `safe_point` for `ttl_s` seconds; 0 seconds: let go."""

    safe_point: int
    ttl_s: int


class GcGuard:
    """Decides when the safepoint is to be renewed, and which feeds have lost their history."""

    def __init__(self) -> None:
        self._last = float("-inf")
        self._held = False
        self._least = 0

    def tick(
        self, feeds: Mapping[FeedId, tuple[State, int]], now: float, *, force: bool = False
    ) -> Hold | None:
        """The call to make now, if any. `feeds`: state and checkpoint of each."""
        if not force and now - self._last < REFRESH_S:
            return None
        wanted = [checkpoint for state, checkpoint in feeds.values() if state in HELD]
        needed = [checkpoint for checkpoint in wanted if checkpoint - 1 >= self._least]
        if needed:
            self._last, self._held = now, True
            return Hold(min(needed) - 1, TTL_S)
        if wanted or self._held:
            self._last, self._held = now, False
            return Hold(0, 0)
        return None

    def answered(self, hold: Hold, min_safe_point: int) -> bool:
        """What PD said to the call: its least safepoint now. False: it has not taken ours; call again."""
        self._least = max(self._least, min_safe_point)
        return hold.ttl_s == 0 or hold.safe_point >= min_safe_point

    def failed(self) -> None:
        """The call did not succeed: it is due again at once."""
        self._last = float("-inf")

    def lost(self, feeds: Mapping[FeedId, tuple[State, int]], min_safe_point: int) -> list[FeedId]:
        """Feeds whose history is gone: PD's least safepoint lies above what they need."""
        return sorted(f for f, (state, ts) in feeds.items() if state in HELD and ts - 1 < min_safe_point)


def earliest_start(min_safe_point: int) -> int:
    """The least start-ts whose history is complete."""
    return min_safe_point + 1
