"""Which spans the puller must follow, for which feeds, from where; and what it has said about them.

The registry outlives the puller's process: when a new one introduces itself, it is told everything again.
A span is followed while any feed holds it, from the least start any of them asked for.
"""

from __future__ import annotations

from typing import Any

from tidegate.control.metadata import FeedId
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import MAX
from tidegate.server.schema_tracker import DDL_SPAN_ID, span_message
from tidegate.server.supervisor import Connection


class SpanRegistry:
    """Spans held by feeds; talks to the puller of the moment. One asyncio loop."""

    def __init__(self) -> None:
        self._spans: dict[str, Span] = {}
        self._holders: dict[str, dict[FeedId, int]] = {}
        self._puller: Connection | None = None
        self._dropped: dict[str, int] = {}
        self.status: list[dict[str, Any]] = []
        """What the puller last said about its spans."""

    def connect(self, puller: Connection) -> None:
        """A puller has introduced itself: tell it everything."""
        self._puller = puller
        self._dropped.clear()
        for name, span in self._spans.items():
            self._tell("watch", span, start_ts=min(self._holders[name].values()))

    def disconnect(self, puller: Connection) -> None:
        """A puller is gone."""
        if self._puller is puller:
            self._puller = None

    def hold(self, feed: FeedId, span: Span, start_ts: int) -> None:
        """Follow a span for a feed from `start_ts` on."""
        name = span_id(span)
        holders = self._holders.setdefault(name, {})
        before = min(holders.values(), default=None)
        holders[feed] = start_ts
        self._spans[name] = span
        if before is None or start_ts < before:
            self._tell("watch", span, start_ts=start_ts)

    def drop(self, feed: FeedId, name: str, *, forget: bool = False) -> None:
        """A feed no longer needs a span; with `forget` its segments go too, when nobody else holds it."""
        holders = self._holders.get(name, {})
        holders.pop(feed, None)
        if not holders and name in self._spans:
            span = self._spans.pop(name)
            del self._holders[name]
            if forget:
                self._tell("drop_below", span, ts=MAX)
            self._tell("unwatch", span)

    def release(self, feed: FeedId, *, forget: bool = False) -> None:
        """A feed needs nothing now; `forget`: nor later."""
        for name in [n for n, holders in self._holders.items() if feed in holders]:
            self.drop(feed, name, forget=forget)

    def drop_below(self, limits: dict[FeedId, tuple[int, int]]) -> None:
        """Let segments go that no holder needs; `limits`: where each feed is done with rows, with DDL."""
        for name, holders in self._holders.items():
            ddl = int(name == DDL_SPAN_ID)
            limit = min(limits[feed][ddl] if feed in limits else 0 for feed in holders)
            if limit > self._dropped.get(name, 0):
                self._dropped[name] = limit
                self._tell("drop_below", self._spans[name], ts=limit)

    def _tell(self, kind: str, span: Span, **more: int) -> None:
        if self._puller is not None:
            self._puller.send(span_message(kind, span, **more))
