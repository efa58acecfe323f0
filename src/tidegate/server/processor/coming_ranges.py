"""Ranges that a capture prepares to take over while it delivers others: it pulls their spans in advance.

    Dispatch names ranges --> their spans are held --> received up to a ts --> the owner divides again

The owner moves a range only when its taker has received it. Otherwise the checkpoint would not move while
upstream scans. Spans of ranges that are no longer coming are dropped, unless they are delivered here.

A taker may have opened the changefeed long before. So it also prepares the tables that DDL has added since
then, and waits for dropped tables only until the checkpoint has passed the drop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.messages import Dispatch
from tidegate.control.metadata import FeedId
from tidegate.control.processor import Processor
from tidegate.model.span import Span
from tidegate.server.feed_ddl import FeedDdl
from tidegate.server.processor.arrivals import Arrivals
from tidegate.server.pulling.spans import SpanRegistry


class ComingRanges:
    """The coming ranges for one opening of a changefeed. Lives in one asyncio loop."""

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
        """The checkpoint from which spans are held for the coming ranges."""
        self._starts: dict[str, int] = {}
        """The spans held for the coming ranges, each with the ts from which it is held."""
        self._tasks: dict[str, SpanTask] = {}
        """The spans that the changefeed wants at the last checkpoint or later, as far as DDL is known."""
        self._ended: dict[str, int] = {}
        """Spans that DDL has removed and not added again; the ts of each removal, in ascending order."""
        self._has_new = False
        """Whether tasks were added since spans were last held."""

    @property
    def since_ts(self) -> int | None:
        """The ts from which upstream's history is needed for them; None: no range is coming."""
        return self._since_ts if self._ranges else None

    def open(self, initial: Iterable[SpanTask], batches: Iterable[DdlBatch]) -> None:
        """Take the spans wanted at the checkpoint of the opening, and the DDL above it, if known already."""
        self._tasks = {task.id: task for task in initial}
        self.learn(batches)

    def learn(self, batches: Iterable[DdlBatch]) -> None:
        """Take more DDL, in order."""
        for batch in batches:
            self._ended |= dict.fromkeys(batch.removed, batch.finished_ts)
            for task in batch.added:
                # A span that is added again, such as a larger stripe, is needed from its first start.
                self._ended.pop(task.id, None)
                self._has_new = task.id not in self._tasks or self._has_new
                self._tasks.setdefault(task.id, task)

    def take(self, dispatch: Dispatch) -> bool:
        """Hold the spans of the ranges that a Dispatch names, and no others. True: they have changed."""
        ranges, machine = tuple(dispatch.coming), self._machine
        has_ended = self._pass(dispatch.checkpoint)
        if ranges == self._ranges and not (ranges and (self._has_new or has_ended)):
            return False
        if ranges != self._ranges:
            before, self._ranges, self._since_ts = self._ranges, ranges, dispatch.checkpoint
            # Neither the spans that are delivered here nor the DDL span may go with the ranges that are not
            # coming any more.
            kept = self._spans.within(self._feed, (self._ddl.span, *self._delivered, *ranges))
            for name in self._spans.within(self._feed, before) - kept:
                self._spans.drop(self._feed, name)
            machine.received, machine.coming, self._starts = 0, ranges, {}
        self._has_new = False
        wanted = [
            task
            for task in self._tasks.values()
            if not machine.holds(task) and any(one.intersect(task.span) is not None for one in ranges)
        ]
        held = self._starts
        self._starts = {
            task.id: held.get(task.id, max(task.start_ts, dispatch.checkpoint)) for task in wanted
        }
        # Spans that are delivered here stay, because the feed has one hold of each.
        for name in held.keys() - self._starts.keys() - machine.spans.ids:
            self._spans.drop(self._feed, name)
        for task in wanted:
            self._spans.hold(self._feed, task.span, self._starts[task.id], guarded=self._guarded)
        return True

    def look(self, frontier: Mapping[str, int], checkpoint: int) -> None:
        """Note how far their spans are received, for the next Sync."""
        if self._ranges:
            received = (self._received(name, frontier, checkpoint) for name in self._starts)
            self._machine.received = min(received, default=self._machine.ddl.known)

    def _pass(self, checkpoint: int) -> bool:
        """Forget spans that have ended at the stored checkpoint; True if one of them was held here."""
        found = False
        for name, ts in list(self._ended.items()):
            # The stored checkpoint counts, because a restart begins there and needs the spans that end above
            # it.
            if ts > checkpoint:
                break
            del self._ended[name]
            self._tasks.pop(name, None)
            found = name in self._starts or found
        return found

    def have_begun(self, checkpoint: int) -> None:
        """Each of their spans now holds upstream's history itself, so history is needed only from here on."""
        self._since_ts = max(self._since_ts, checkpoint)

    def _received(self, span: str, frontier: Mapping[str, int], checkpoint: int) -> int:
        """Up to which ts a span is received from where it is wanted; 0: its beginning is missing."""
        manifest = self._arrivals.manifest(span)
        begins = max(self._since_ts, checkpoint, self._starts[span])
        begins_late = manifest is None or manifest.dropped_to > begins
        return 0 if begins_late else frontier.get(span, 0)
