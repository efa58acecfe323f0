"""The service GC safepoint: which history upstream must keep for the feeds, and when to say so again.

TiKV drops old versions below the safepoint; whoever registers at ts R needs them from R on, else the scan
would miss deletes. So the safepoint is held below the least ts that anything may still be read from: of each
feed its checkpoint, and the ts of its saved catalogue, from which DDL is read again. It is held for `ttl_s`
seconds at a time, renewed at most once a minute, at once for a new feed. See
docs/formats/change-feed.md#safepoint.

PD refuses a safepoint below its least one, and then holds nothing for us. So when that has passed what a feed
needs, what is left of the history is held; whether the feed can do without the rest shows when it registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedId
from tidegate.model.timestamp import MAX

TTL_S: Final = 86_400
"""`gc-ttl`: how long PD keeps a hold that is not renewed, and how long a feed that is stopped has one."""
REFRESH_S: Final = 60.0
HELD: Final = frozenset({State.NORMAL, State.WARNING, State.PENDING, State.STOPPED, State.FAILED})
"""States whose history is kept; a failed feed can be resumed."""


def service_id(cluster: int, identity: str, keyspace: int = -1) -> str:
    """Under which PD knows us. `identity`: the metadata store's; another capture's holds are not ours.

    A keyspace has a hold of its own: its GC may be its own, too.
    """
    return f"tidegate-{cluster}-{identity}" + (f"-keyspace-{keyspace}" if keyspace >= 0 else "")


def creating_id(cluster: int, identity: str, feed: FeedId) -> str:
    """A temporary hold while a feed is being created, before the owner takes over."""
    return f"{service_id(cluster, identity)}-creating-{feed.namespace}_{feed.name}"


@dataclass(frozen=True, slots=True)
class Hold:
    """Ask PD to keep everything above `safe_point` for `ttl_s` seconds; 0 seconds: let go."""

    safe_point: int
    ttl_s: int
    needed: int = MAX
    """The least ts that anything may still be read from; MAX: nothing is."""


@dataclass(frozen=True, slots=True)
class History:
    """What PD has said it keeps for us."""

    needed: int = MAX
    """Asked for from this ts on."""
    safe_point: int = MAX
    """Nothing may be read or registered below: what is held, or PD's least safepoint if that is above it."""


class GcGuard:
    """Decides when the safepoint is to be renewed, and at what."""

    def __init__(self, ttl_s: int = TTL_S) -> None:
        self._ttl_s = ttl_s
        self._last = float("-inf")
        self._held = True  # an earlier process may have left a hold
        self._least = 0

    def tick(self, needs: Mapping[FeedId, int], now: float, *, force: bool = False) -> Hold | None:
        """The call to make now, if any. `needs`: the least ts that each feed may still read from."""
        if not force and now - self._last < REFRESH_S:
            return None
        if needs:
            self._last, self._held = now, True
            needed = min(needs.values())
            return Hold(max(needed - 1, self._least), self._ttl_s, needed)
        if self._held:
            self._last, self._held = now, False
            return Hold(0, 0)
        return None

    def answered(self, hold: Hold, min_safe_point: int) -> bool:
        """What PD said to the call: its least safepoint now. False: it has not taken ours; call again."""
        self._least = max(self._least, min_safe_point)
        return hold.ttl_s == 0 or hold.safe_point >= min_safe_point

    def failed(self) -> None:
        """The call did not succeed: it is due again at once."""
        self._last, self._held = float("-inf"), True


def earliest_start(min_safe_point: int) -> int:
    """The least start-ts whose history is complete."""
    return min_safe_point + 1
