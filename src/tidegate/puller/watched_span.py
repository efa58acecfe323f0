"""The puller's nouns: a watched span, a registered range of it, and a range to be located at PD.

Owned by the puller's coordinator; other threads only read some of their numbers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.reports import SpanStatus
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp
from tidegate.puller.event_feed import Stream
from tidegate.puller.match.matched import Registration
from tidegate.puller.range_lock import RangeLock
from tidegate.puller.region_feed import History, Reason, RegionFeed
from tidegate.puller.store_protocol import SpanChanges


@dataclass(eq=False, slots=True)
class WatchedSpan:
    """A watched span. `number` identifies it in the frontier's minima and in the matchers' blocks."""

    number: int
    request_id: int
    span: Span
    changes: SpanChanges
    lock: RangeLock
    free_mark: int
    gone: bool = False
    records: bool = False
    """Whether the span holds several tables; then only keys of records are taken."""
    guarded: bool = True
    """Whether ranges of the span are refused below the safe point."""
    paused: bool = False
    """The span was given up because there was no room; nothing of it is pulled."""
    refused: str = ""
    """Why a part of the span is not registered: GC may have removed versions that its scan needs. Otherwise
    empty."""
    rows: int = 0
    bytes: int = 0
    moved_at: float = 0.0
    feeds: dict[int, RegisteredRange] = field(default_factory=dict)
    """The locked ranges by their mark."""
    scanning: set[RegisteredRange] = field(default_factory=set)
    """Those of `feeds` whose incremental scan has not ended, or not begun."""
    request_ids: set[int] = field(default_factory=set)
    regions: Counter[int] = field(default_factory=Counter)
    """The number of registrations by region id: a second one in a region needs its own request id."""
    errors: Counter[Reason] = field(default_factory=Counter)

    def status(self, kv_mode: str, waiting: str) -> SpanStatus:
        """The span's status. `waiting`: why the puller takes no rows in; empty if it does."""
        scanning = len(self.scanning)
        holes = self.lock.holes
        # The first reason in this order is shown. Without room nothing is registered, and a refused range
        # waits for a person.
        waiting = waiting or self.refused
        waiting = waiting or (f"{holes} ranges without a region" if holes else "")
        waiting = waiting or (f"{scanning} regions being scanned" if scanning else "")
        return SpanStatus(
            span_id(self.span, kv_mode),
            resolved=self.changes.resolved,
            rows=self.rows,
            bytes=self.bytes,
            regions=len(self.feeds),
            errors={str(reason): count for reason, count in self.errors.items()},
            waiting_for=waiting or "the upstream's resolved ts",
        )


@dataclass(eq=False, slots=True)
class RegisteredRange:
    """A locked range with its registration."""

    watched_span: WatchedSpan
    feed: RegionFeed
    stream: Stream
    mark: int
    request_id: int
    resolved: Timestamp
    registration: Registration | None = None
    """None while it waits to be admitted."""
    moved_at: float = 0.0
    """When `silence.look` last saw progress, in monotonic seconds; 0: not checked yet."""
    locked_at: float = 0.0
    """When a live lock that holds back its resolved ts was last seen, in monotonic seconds."""


@dataclass(frozen=True, slots=True)
class Locate:
    """A range to be located. `region`: the region and leader that a store named, which PD may not know yet.

    `fresh`: register it with a new request id, because a store may still send events for the last one.
    """

    watched_span: WatchedSpan
    bounds: Span
    history: History
    region: RegionInfo | None = None
    fresh: bool = False
