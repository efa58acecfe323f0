"""A changefeed that is open on this capture: its catalogue, its spans, and what it needs from upstream.

    history is held --> catalogue --> spans are held --> look: floors, DDL and rows that have come --> close

An opening is for one state of the changefeed and for certain ranges. Other ranges need a new opening, which
takes over the spans that are still held. The history that an opening needs from upstream goes to the owner
with each Sync, also if the owner is on this capture. It is reported before anything is read, and rises only
when none of its spans can still be registered below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.gc import History
from tidegate.control.messages import Dispatch
from tidegate.control.metadata import FeedId
from tidegate.control.processor import Processor
from tidegate.eventstore import store_view
from tidegate.filter.feed import FeedFilter
from tidegate.model.ts_by_span import SpanOrder
from tidegate.server.delivery.plan import FeedPlan
from tidegate.server.feed_ddl import FeedDdl
from tidegate.server.node import Node
from tidegate.server.processor.arrivals import Arrivals
from tidegate.server.processor.coming_ranges import ComingRanges

NEEDS_S: Final = 1.0
"""How often its needs are worked out again, and the coming ranges are looked at."""


class Opening:
    """One opening of one changefeed. Lives in one asyncio loop."""

    def __init__(
        self,
        node: Node,
        feed: FeedId,
        machine: Processor,
        plan: FeedPlan,
        dispatch: Dispatch,
        wake: Callable[[], None],
    ) -> None:
        """`dispatch`: it is opened for its ranges, at its checkpoint. `wake`: is called when floors move."""
        self._node, self._feed, self._machine, self._wake = node, feed, machine, wake
        self.plan = plan
        self.ranges = ranges = tuple(one.id for one in dispatch.ranges)
        self.spans = node.captured(plan.config.tidegate.kv_mode).spans
        """All spans that the changefeeds of its kv mode hold."""
        self._since_ts = dispatch.checkpoint
        """The checkpoint from which its spans are pulled."""
        self._held_from = min(dispatch.needed, dispatch.checkpoint)
        """The ts from which history is held while it opens."""
        self.ddl = ddl = FeedDdl(node, plan, FeedFilter.of(plan.config), feed)
        self._is_open = False
        """Whether it is known from which base the catalogue is read."""
        self.is_behind = False
        """Whether more DDL had arrived at the last look than the catalogue returned."""
        guarded, store = plan.config.check_gc_safe_point, plan.paths.store
        self.arrivals = Arrivals(machine, store, ddl.span_id, node.manifest)
        self.coming = ComingRanges(feed, machine, self.arrivals, ddl, self.spans, ranges, guarded=guarded)
        self._concerned: SpanOrder | None = None
        """The order of the spans whose rows wake it at once; None: those of any span."""
        self._needs_at = float("-inf")

    # --- open and closed -----------------------------------------------------------------------------

    async def open(self, dispatch: Dispatch, waits: Callable[[str], None]) -> None:
        """Read the catalogue at the stored checkpoint, and hold the spans. Raises as `FeedDdl.open`."""
        machine, ddl, store = self._machine, self.ddl, self.plan.paths.store
        # History first: nothing may be registered before it is known from where it is complete.
        self.receive_history()
        self.say_needs(store_view.read_frontier(store))
        # Before the catalogue is read, so that no change of a floor is missed in between.
        self._node.pulse.follow(store, self._feed, self._wake)
        batches, known = await ddl.open(dispatch.checkpoint, waits, self._held_from)
        self._is_open = True
        self.coming.open(ddl.initial, batches)
        machine.open(dispatch.checkpoint, ddl.initial, batches, known)
        tasks = [*ddl.initial, *(task for batch in batches for task in batch.added)]
        self._hold(tasks)
        # Spans that an earlier opening held, and that have ended since.
        for name in self.spans.within(self._feed, self.ranges) - {ddl.span_id, *(task.id for task in tasks)}:
            self.spans.drop(self._feed, name)
        self._report_needs()
        self.arrivals.check_beginning_of(machine.spans.ids)

    def serves(self, checkpoint: int) -> bool:
        """Whether it need not be opened again to begin at this checkpoint: it knows the DDL up to there, and
        wants the tables that the owner wants. The owner opens its view again if it has passed over a job
        below the checkpoint (`Replication`), so a processor does that, too.
        """
        return self._machine.ddl.known >= checkpoint and not self.ddl.has_passed_over(checkpoint)

    def raise_to(self, checkpoint: int) -> None:
        """Raise its spans to the stored checkpoint, because it may have been opened long before."""
        machine = self._machine
        for batch in machine.passed():
            self._pass_ddl(batch)
        # After the DDLs that were passed, so that spans they add are raised, too.
        machine.raise_to(checkpoint)
        self._report_needs()
        self.spans.try_again(self._feed, checkpoint)
        # Last: from here on the spans are reported under the new Dispatch.
        machine.confirm()

    def close(self, *, forget: bool, but: Collection[str]) -> None:
        """Release the spans except those in `but`. `forget`: the changefeed is removed for good."""
        store = self.plan.paths.store
        self._node.pulse.concern(store, self._feed, None)
        self._node.pulse.leave(store, self._feed, self._wake)
        self.spans.release(self._feed, forget=forget, but=but)

    def _hold(self, tasks: Iterable[SpanTask]) -> None:
        guarded = self.plan.config.check_gc_safe_point
        for task in filter(self._machine.holds, tasks):
            self.spans.hold(self._feed, task.span, task.start_ts, guarded=guarded)

    # --- what has come -------------------------------------------------------------------------------

    def look(self, dispatch: Dispatch) -> None:
        """Read what has arrived, and advance idle spans. Raises Fatal if history that it needs is gone."""
        machine, ddl, arrivals, node = self._machine, self.ddl, self.arrivals, self._node
        ddl.check_history(dispatch.checkpoint)
        if machine.is_running:  # its spans have been registered and need nothing below
            self.has_begun_at(dispatch.checkpoint)
        frontier = arrivals.frontier()
        # From the same frontier as the rows below: rows up to a later floor could follow a DDL that was not
        # read.
        resolved = frontier.get(ddl.span_id, 0)
        if resolved > machine.ddl.known:
            batches, known = ddl.look(resolved, machine.ddl.waiting)
            machine.learn(batches, known)
            self.coming.learn(batches)
            # New tables are pulled from now on, and delivered from the DDL on.
            self._hold(task for batch in batches for task in batch.added)
        self.is_behind = resolved > machine.ddl.known
        for batch in machine.passed():
            self._pass_ddl(batch)
        # Only when it changes: `look` runs many times a second.
        if (order := machine.spans.order) is not self._concerned:
            self._concerned = order
            node.pulse.concern(self.plan.paths.store, self._feed, frozenset(order.names) | {ddl.span_id})
        reached = arrivals.lifted(frontier)
        arrivals.advance_idle(frontier, reached)
        machine.resolve(reached, arrivals.lacking)
        if (now := node.clock.monotonic()) - self._needs_at >= NEEDS_S:
            self._needs_at = now
            if self.coming.take(dispatch):
                self.say_needs(frontier)
            self.coming.look(frontier, dispatch.checkpoint)
            if self.spans.have_begun(self._feed, frontier):
                # Now each span holds history from where it is, and no longer from where it was opened.
                self.has_begun_at(dispatch.checkpoint)
                self.coming.have_begun(dispatch.checkpoint)
            self.say_needs(frontier)

    def _pass_ddl(self, batch: DdlBatch) -> None:
        """End and begin spans as a passed DDL says; another DDL may bring one back (a recovered table)."""
        for name in batch.removed:
            self.spans.drop(self._feed, name, again_from=self._machine.ddl.start_of(name))
        self.arrivals.check_beginning_of(task.id for task in batch.added)

    # --- what upstream has to keep -------------------------------------------------------------------

    def has_begun_at(self, checkpoint: int) -> None:
        """Note that its ranges are delivered from here on, so that its spans need no earlier history."""
        self._since_ts = max(self._since_ts, checkpoint)

    @property
    def needs(self) -> tuple[int, int]:
        """The least ts from which rows, and DDL, would be read from upstream if the event store were lost."""
        machine = self._machine
        begins_at = machine.dispatch.checkpoint if machine.dispatch is not None else 0
        if not machine.is_running:
            begins_at = min(begins_at, self._since_ts)  # regions may still be registered from there
        if (since_ts := self.coming.since_ts) is not None:
            begins_at = min(begins_at, since_ts)
        if not self._is_open:
            # DDL will be read from some base, which `FeedDdl.open` has not chosen yet. It chooses none below
            # what is held, so all of that is needed until then.
            return begins_at, min(begins_at, self._held_from)
        return begins_at, min(begins_at, self.ddl.base_ts(begins_at))

    def say_needs(self, floors: Mapping[str, int]) -> None:
        """Have the needs reported to the owner, at once if they are less than before.

        The spans are raised first. As soon as the owner has the report, history below may go, and a puller
        that lost its event store would otherwise register them there.
        """
        machine = self._machine
        rows, ddl = self.needs
        self.spans.needed(self._feed, rows, ddl)
        before, machine.needs = machine.needs, min(rows, ddl, self.spans.behind(self._feed, floors))
        # Less than before means that history must be held that upstream may give up at any moment.
        if machine.needs < before:
            machine.sync_soon()
            self._wake()

    def _report_needs(self) -> None:
        """Report the needs at once: until then the owner holds what it held at the Dispatch."""
        self.say_needs(store_view.read_frontier(self.plan.paths.store))
        self._machine.sync_soon()

    def receive_history(self) -> None:
        """Take what the owner says about upstream's history. An owner on this capture has said it already, in
        the same order.
        """
        dispatch = self._machine.dispatch
        if dispatch is not None:
            scope = self.plan.config.tidegate.keyspace_id
            history = History(dispatch.needed, dispatch.safe_point)
            order = dispatch.header.owner_rev, dispatch.header.sequence
            if self._node.receive_history(scope, order, history):
                self.spans.keep_above(history.safe_point, scope)
