"""Replicates a changefeed as its owner: one incarnation after the other, until it ends.

    meet processors -> open catalogue -> [share -> grant -> sink -> dispatch -> tick ... -> end] -> [...]

Everything runs in the control process's asyncio loop; blocking calls run in threads. A tick happens when a
processor reports, floors have moved (`server.pulling.pulse`), a call has ended or something is due by time
(`tick_pause`).
The owner (`control.owner`) decides, and this file performs. Rows, spans and the pipeline belong to the
processors (`server.processor.processor`). This file knows them only by their messages, whichever captures
they are on (`server.owner.peers`). To divide the key space in another way, all incarnations end and new ones
begin.

A failure ends the incarnation and is raised to the life (`server.owner.life`), which tries again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from typing import Final, assert_never

from tidegate.control.messages import FromProcessor, Wish
from tidegate.control.metadata import FeedError
from tidegate.control.owner import Owner
from tidegate.control.retry_turns import had_rows_lately
from tidegate.log import event
from tidegate.server.delivery.sink_thread import OpenedSink
from tidegate.server.delivery.watch import LOOK_S
from tidegate.server.node import Node
from tidegate.server.owner.ddl import OwnerDdl
from tidegate.server.owner.effects import OwnerEffects
from tidegate.server.owner.hand_over import HandOver, Step
from tidegate.server.owner.layout import FeedLayout
from tidegate.server.owner.load_end import LoadEnd
from tidegate.server.owner.peers import Peer, Peers
from tidegate.server.owner.processor_link import ProcessorLink, Terms
from tidegate.server.owner.processor_reports import (
    CannotPrepare,
    Finding,
    LoadDurable,
    MayHaveLeftovers,
    PartFailed,
    ProcessorReports,
    RangesRun,
    RecordsOver,
    Restarted,
)
from tidegate.server.owner.record import FeedRecord
from tidegate.server.owner.shares import FeedShares
from tidegate.server.owner.sink_lifetime import SinkLifetime
from tidegate.server.owner.tick_pause import TickPause
from tidegate.server.supervision.jobs import Jobs, to_its_end

LOG: Final = logging.getLogger(__name__)

PIPELINE_STARTS: Final = "pipeline"
"""The text of `waiting_for` until processors deliver, as shown to users."""


class Replication:
    """The replication of one changefeed, while its life runs. Lives in one asyncio loop."""

    def __init__(self, node: Node, record: FeedRecord) -> None:
        self._node, self._record = node, record
        self.checkpoint = record.persisted
        """Everything up to here is durable downstream; never below the stored checkpoint."""
        self.owner: Owner | None = None
        """The owner machine; None while the catalogue is not open."""
        self.waiting_for = ""
        """Describes what must happen before anything can be delivered."""
        self.ddl = OwnerDdl(node, record)
        self.sink = SinkLifetime(node, record)
        self._pause = TickPause(node, record, self.ddl, self._check_sink, self._is_any_call)
        wake = self._pause.wake
        self._jobs = Jobs(record.id, wake)
        self.peers = Peers()
        self._link = ProcessorLink(node, record.id, self.peers, self._terms, self._take_message, wake)
        self.reports = ProcessorReports(node.capture, self.peers, self._set_loads)
        self.shares = FeedShares(node, record, self.peers, self._link, self.reports, wake)
        self.layout = FeedLayout(record, self._running, wake)
        self._effects = OwnerEffects(node, record, self.sink, self.shares.sharing, self.reports.totals, wake)
        self._load_end = LoadEnd(record, self.reports)
        self.steps = HandOver(node.clock)

    def _set_loads(self, capture: str, loads: Mapping[str, int]) -> None:
        self.shares.sharing.spans.loads[capture] = loads

    def _running(self) -> tuple[Owner, OpenedSink] | None:
        owner, sink = self.owner, self.sink.opened
        return (owner, sink) if owner is not None and sink is not None else None

    # --- from start to end ---------------------------------------------------------------------------

    async def replicate(self) -> None:
        """Replicate until the target is reached. Raises the failure; a stop cancels it."""
        self._jobs.begin()
        self._effects.begin()
        self.shares.ahead.begin()  # an owner that was just elected fences the writers of the earlier one
        try:
            await self._replicate()
        finally:
            await to_its_end(self.shares.ahead.drop())

    async def _replicate(self) -> None:
        node, record = self._node, self._record
        await self._meet()
        if self.owner is None or not self.ddl.is_open:
            await self._open()
        store = record.captured.store
        node.pulse.follow(store, record.id, self._on_floors, first=True)
        self.ddl.floors_have_moved()  # what has changed while it did not follow
        try:
            while not self._effects.is_target_reached:
                await self._renew_view()
                await self._start_incarnation()
                await self._deliver()
                if not self._effects.is_target_reached:  # the next one has other shares, or another layout
                    self.steps.pause(divides=bool(self.shares.reason))
                    await to_its_end(self._end_incarnation())
        finally:
            node.pulse.leave(store, record.id, self._on_floors)
            self.steps.pause(divides=False)
            await to_its_end(self._end_incarnation())  # shielded: a pause must not leave its processes

    async def wait_for_tasks(self) -> None:
        """Wait for background tasks, after the loop has ended."""
        await self._jobs.wait_for_tasks()

    async def close(self, *, forget: bool = False) -> None:
        """Release catalogue and spans; the next start opens them at the stored checkpoint.

        `forget`: the changefeed is removed, so processors delete what they keep for it.
        """
        owner = self.owner
        if owner is not None and owner.checkpoint > self._record.persisted and not forget:
            await self._record.store_last(owner.checkpoint)
        await self.shares.ahead.drop()
        self.owner = None
        self.ddl.close(forget=forget)
        self.waiting_for = ""
        # A Dispatch must name the epoch of the processor's process, which only its answer to us says. A feed
        # that has not run has met nobody.
        if forget:
            await self._meet()
        await self._link.release(forget=forget)

    def had_rows_lately(self) -> bool:
        """Whether rows wait for it, or were delivered in the last seconds."""
        record, last_synced = self._record, self.reports.last_synced_ts
        return record.loading or had_rows_lately(self.checkpoint, record.resolved_ts, last_synced)

    def check_ended(self) -> None:
        """Raises Retryable while work of the feed is still ending."""
        self._link.check_ended()

    def warn(self, error: FeedError) -> None:
        """Show an error that does not stop the pipeline."""
        # Not while the capture resigns: the write would come after the last one of this term.
        if self._record.life.runs and not self._node.steps_down:
            self._jobs.spawn(self._show(error))

    async def _show(self, error: FeedError) -> None:
        await self._record.become_if_there_is_room(self._record.life.warned(error))

    async def _open(self) -> None:
        """Open catalogue and owner at the stored checkpoint, while our processor prepares."""
        view = self.ddl.view()
        if not self._node.others():  # with other captures it is not known yet which one gets what
            self._link.dispatch(self.peers[self._node.capture], Wish.PREPARE)

        def waits(what: str) -> None:
            self.waiting_for = what

        self.owner = await self.ddl.open(view, waits)
        self.sink.topics = self.ddl.topics
        self.shares.sharing.begin(self.ddl.initial)

    async def _renew_view(self) -> None:
        """Open the catalogue again if this view has passed over a job below the checkpoint.

        Processors do the same when they begin (`Openings.open`). A processor that opens its catalogue behind
        the job sees what it did, and wants other tables than a view that has passed over it.
        """
        owner, record = self.owner, self._record
        assert owner is not None
        if not self.ddl.has_passed_over(owner.checkpoint):
            return
        # The new machine begins at the stored checkpoint, and users must not see the checkpoint fall.
        await record.store_last(owner.checkpoint)
        if self.ddl.has_passed_over(record.persisted):
            await self._open()

    # --- an incarnation ------------------------------------------------------------------------------

    async def _start_incarnation(self) -> None:
        """Raise grants, fence and open the sink, dispatch to the processors: in this order.

        A processor may begin only when its grant is stored and earlier writers are fenced.
        """
        owner, record = self.owner, self._record
        assert owner is not None
        self._jobs.begin()
        self._effects.begin()
        self.shares.reason = ""
        self._pause.begin()
        grants = await self.shares.raise_grants(owner)
        self.steps.reached(Step.GRANTED)
        lead = self.shares.lead(grants)
        plan = dataclasses.replace(record.plan, capture=lead)
        first = await self.ddl.definitions() if record.loading else []
        thread = self.sink.begin()
        self.waiting_for = "sink"
        # No tick runs until the sink is open, so a call that hangs is looked for here.
        async with self._jobs.watched(self._check_sink, LOOK_S):
            await self.shares.fence_all(plan, grants, thread)
            self.steps.reached(Step.FENCED)
            settling = asyncio.create_task(self.shares.settle(grants))  # the sink need not wait for it
            try:
                sink = await self.sink.open(plan, grants[lead], thread, first)
            finally:
                await settling
        self.steps.reached(Step.SINK_OPEN)
        if await record.adopt_settings(sink.delivered_to):
            await self._begin_again()
            return
        owner.sink_open(sink.resolved_journal, sink.ddl_journal)
        await self.layout.take_up(owner, sink)
        self.ddl.try_again()
        self.waiting_for = PIPELINE_STARTS
        self.reports.totals.starts += 1
        for name in grants:
            self._link.dispatch(self.peers[name], Wish.RUN)

    async def _begin_again(self) -> None:
        """Begin once more, because the stored checkpoint was raised above the one that this began at."""
        try:
            await self._end_incarnation()
        finally:  # even after a failure nothing may continue from below
            await self.close()
        self.check_ended()
        await self._open()
        await self._start_incarnation()

    async def _end_incarnation(self) -> None:
        """Stop processors and sink. A sink call that does not end is abandoned; the next sink fences it."""
        self.steps.begin()
        if self.owner is not None:
            # First, so that the owner machine emits nothing more for a sink that is being given up.
            self.owner.sink_lost()
        # Meanwhile, because the checkpoint waits for both. Neither needs the other.
        closing = asyncio.create_task(self._close(self.sink.release()))
        try:
            await self._link.ask_to_end(Wish.PREPARE, [peer for peer in self._link.reachable() if peer.runs])
        finally:
            await closing
        self.steps.reached(Step.GIVEN_UP)

    async def _close(self, sink: OpenedSink | None) -> None:
        await self._jobs.end()
        if sink is not None:
            await sink.close()

    # --- the loop ------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        """Tick until the incarnation has nothing more to do. Raises its failure."""
        effects = self._effects
        while not (effects.is_target_reached or effects.is_repartitioned or self.shares.may_hand_over()):
            self._tick()
            self._check_sink()
            self.shares.check_shares(self.owner, is_starting=self.waiting_for == PIPELINE_STARTS)
            if self._jobs.failure is not None:
                raise self._jobs.failure
            if self.shares.may_hand_over():
                return  # a pause would hold the checkpoint, because nothing ticks after it
            await self._pause.until_next(self.owner)

    def _on_floors(self) -> None:
        self.ddl.floors_have_moved()
        self._pause.wake()

    def _tick(self) -> None:
        """Read new DDL, perform the owner's effects, send the processors their bound."""
        node, record, owner = self._node, self._record, self.owner
        assert owner is not None
        now = node.clock.monotonic()
        # Without rows there is nothing to announce between two wake-ups, and each Resolved is a transaction.
        owner.quiet_interval_s = node.pulse.quiet_s(record.captured.store)
        self.ddl.read(owner, now)
        for effect in owner.tick(now):
            self._jobs.spawn(self._effects.perform(owner, effect))
        self.checkpoint = owner.checkpoint
        # Rows above the known DDL may be of tables that are not known yet.
        record.resolved_ts = max(record.resolved_ts, min(owner.ranges.resolved, owner.barrier.resolved))
        self._link.repeat()
        sink = self.sink.opened
        if sink is not None and (over := self._effects.records_over(owner)):
            self._jobs.spawn(sink.forget(over))

    def _check_sink(self) -> None:
        """Notice if the sink hangs."""
        hung = self.sink.look()
        if hung is not None:
            self._jobs.fail(hung)

    def _is_any_call(self) -> bool:
        """Whether a call is under way. One that was only just spawned does not show in `sink.is_called`."""
        return self._jobs.are_any or self.sink.is_called

    # --- the processors ------------------------------------------------------------------------------

    def _terms(self) -> Terms:
        record = self._record
        bound = self.owner.barrier.bound if self.owner is not None else record.persisted
        return Terms(
            record.info.instance, record.wanted, bound, record.persisted, record.loading, record.history
        )

    async def _meet(self) -> None:
        def waits() -> None:
            self.waiting_for = self.waiting_for or "processor"

        await self._link.meet(waits)
        if self.waiting_for == "processor":
            self.waiting_for = ""

    def _take_message(self, peer: Peer, message: FromProcessor) -> None:
        now, loading = self._node.clock.monotonic(), self._record.loading
        for finding in self.reports.take(peer, message, self.owner, now, loading=loading):
            self._act_on(finding)

    def _act_on(self, finding: Finding) -> None:
        """Act on a report's consequence for the incarnation."""
        owner, sink = self.owner, self.sink.opened
        match finding:
            case Restarted(capture):
                self.shares.reason = self.shares.reason or f"capture {capture} has started again"
            case PartFailed(error):
                self._jobs.fail(error)
            case CannotPrepare(peer):
                self._link.dispatch(peer, Wish.REST)
            case RangesRun():
                if self.waiting_for == PIPELINE_STARTS and owner is not None and owner.ranges.are_running:
                    self.waiting_for = ""
                    took, feed = self.steps.end(), str(self._record.id)
                    event(LOG, logging.INFO, "all ranges are delivered", changefeed=feed, **took)
            case MayHaveLeftovers(peer):
                if sink is not None:  # before the sink is open, what it holds may belong to the coming grants
                    self._link.end_leftover(peer)
            case RecordsOver(keys):
                if sink is not None:
                    self._jobs.spawn(sink.forget(keys))
            case LoadDurable():
                if owner is not None and self._load_end.begin():
                    self._jobs.spawn(self._end_load(owner))
            case _:
                assert_never(finding)

    async def _end_load(self, owner: Owner) -> None:
        await self._load_end.store(owner)
        self.waiting_for = ""
        self._pause.wake()
