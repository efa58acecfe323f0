"""The puller's nouns: a span that is watched, a range of it that is registered, a range to be found at PD.

Owned by the puller's coordinator; other threads read numbers of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp
from tidegate.puller.event_feed import Stream
from tidegate.puller.match.matched import Registration
from tidegate.puller.range_lock import RangeLock
from tidegate.puller.region_feed import History, Reason, RegionFeed, State
from tidegate.puller.store_protocol import SpanSink


@dataclass(eq=False, slots=True)
class Watched:
    """One span. `number` indexes the frontier's minima and the blocks of matchers."""

    number: int
    request_id: int
    span: Span
    sink: SpanSink
    lock: RangeLock
    free_mark: int
    gone: bool = False
    records: bool = False
    """Whether it holds several tables: then only their records count."""
    guarded: bool = True
    """Whether nothing of it is registered below the safe point."""
    paused: bool = False
    """Given up for want of room; nothing of it is asked for."""
    refused: str = ""
    """What a part waits for that is not registered, as that could miss what GC has taken."""
    rows: int = 0
    bytes: int = 0
    moved_at: float = 0.0
    feeds: set[RegisteredRange] = field(default_factory=set)
    request_ids: set[int] = field(default_factory=set)
    regions: Counter[int] = field(default_factory=Counter)
    """Registrations by region id: a second one needs a request id of its own."""
    errors: Counter[Reason] = field(default_factory=Counter)

    def line(self, kv_mode: str, waiting: str) -> dict[str, Any]:
        """For the status; `waiting`: why nothing is taken in, empty when that is not so."""
        scanning = sum(1 for h in list(self.feeds) if h.feed.state is State.SCANNING)
        holes = self.lock.holes
        waiting = waiting or self.refused
        waiting = waiting or (f"{holes} ranges without a region" if holes else "")
        waiting = waiting or (f"{scanning} regions being scanned" if scanning else "")
        return {
            "span": span_id(self.span, kv_mode),
            "start": self.span.start.hex(),
            "end": self.span.end.hex(),
            "resolved": self.sink.resolved,
            "rows": self.rows,
            "bytes": self.bytes,
            "regions": len(self.feeds),
            "errors": {str(reason): count for reason, count in self.errors.items()},
            "waiting_for": waiting or "the upstream's resolved ts",
        }


@dataclass(eq=False, slots=True)
class RegisteredRange:
    """A locked range with its registration."""

    watched: Watched
    feed: RegionFeed
    stream: Stream
    mark: int
    request_id: int
    resolved: Timestamp
    registration: Registration | None = None
    """None while it waits to be admitted."""
    moved_at: float = 0.0
    """When it was last heard of, as far as `silence.look` has looked."""
    locked_at: float = 0.0
    """When a live lock was last seen that explains why its resolved ts stands."""


@dataclass(frozen=True, slots=True)
class Locate:
    """A range to be found at PD. `region`: where a store said that it is, which PD may not know yet.

    `fresh`: under a request id of its own, because a store may still send for its last registration.
    """

    watched: Watched
    bounds: Span
    history: History
    region: RegionInfo | None = None
    fresh: bool = False
