"""Ranges that a capture prepares to take over while it delivers others: their spans are pulled before.

    Dispatch names ranges --> their spans are held --> received up to a ts --> the owner divides again

The owner moves a range only when its taker has received it, because otherwise the checkpoint would stand
while upstream scans. What is held for ranges that no longer come is dropped, unless it is delivered here.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.control.messages import Dispatch
from tidegate.control.metadata import FeedId
from tidegate.control.processor import Processor
from tidegate.model.span import Span
from tidegate.server.arrivals import Arrivals
from tidegate.server.feed_ddl import FeedDdl
from tidegate.server.spans import SpanRegistry


class ComingRanges:
    """Of one opening of a changefeed. One asyncio loop."""

    def __init__(
        self,
        feed: FeedId,
        machine: Processor,
        arrivals: Arrivals,
        ddl: FeedDdl,
        spans: SpanRegistry,
        delivered: tuple[Span, ...],
        *,
        guarded: bool,
    ) -> None:
        """`delivered`: the ranges for which the changefeed is open here. `guarded`: see `SpanRegistry`."""
        self._feed, self._machine, self._arrivals, self._ddl = feed, machine, arrivals, ddl
        self._spans, self._delivered, self._guarded = spans, delivered, guarded
        self._ranges: tuple[Span, ...] = ()
        self._since_ts = 0
        """The checkpoint from which on spans are held for them."""
        self._span_ids: frozenset[str] = frozenset()

    @property
    def since_ts(self) -> int | None:
        """From where on their history is needed; None: no range is coming."""
        return self._since_ts if self._ranges else None

    def take(self, dispatch: Dispatch) -> bool:
        """Hold the spans of the ranges that a Dispatch names, and no others. True: they have changed."""
        ranges, machine = tuple(dispatch.coming), self._machine
        if ranges == self._ranges:
            return False
        before, self._ranges, self._since_ts = self._ranges, ranges, dispatch.checkpoint
        kept = self._spans.within(self._feed, (self._ddl.span, *self._delivered, *ranges))
        for name in self._spans.within(self._feed, before) - kept:
            self._spans.drop(self._feed, name)
        wanted = [
            task
            for task in self._ddl.initial
            if not machine.holds(task) and any(one.intersect(task.span) is not None for one in ranges)
        ]
        self._span_ids = frozenset(task.id for task in wanted)
        for task in wanted:
            start_ts = max(task.start_ts, dispatch.checkpoint)
            self._spans.hold(self._feed, task.span, start_ts, guarded=self._guarded)
        machine.received, machine.coming = 0, ranges
        return True

    def look(self, frontier: Mapping[str, int], checkpoint: int) -> None:
        """Say in the next Sync how far their spans are received."""
        if self._ranges:
            received = (self._received(name, frontier, checkpoint) for name in self._span_ids)
            self._machine.received = min(received, default=self._machine.known)

    def have_begun(self, checkpoint: int) -> None:
        """Each of their spans now holds upstream's history by itself: it is needed from here on."""
        self._since_ts = max(self._since_ts, checkpoint)

    def _received(self, span: str, frontier: Mapping[str, int], checkpoint: int) -> int:
        """Up to where a span is there from where it is wanted on; 0: its beginning is missing."""
        manifest = self._arrivals.manifest(span)
        begins_late = manifest is None or manifest.dropped_to > max(self._since_ts, checkpoint)
        return 0 if begins_late else frontier.get(span, 0)
