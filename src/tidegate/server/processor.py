"""Works for one feed on a capture: has its spans pulled, runs its pipeline, reports progress to the owner.

    Dispatch --> rest | prepare: spans are pulled | run: and an incarnation of the pipeline delivers them

`control.processor` decides; this file performs. It is composed of the catalogue and spans that are open
(`opening`), the pipeline (`feed_pipeline`) and what workers may read (`reader_bounds`). It knows the owner
only by its messages, wherever that runs. It runs in the control process's asyncio loop, and blocking work in
threads. A tick follows each message of the owner or the pipeline, and each rise of floors (`server.pulse`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Collection
from dataclasses import replace
from typing import Final, assert_never

from tidegate import __version__
from tidegate.control.messages import FROM_OWNER, Dispatch, Header, ProcessorStatus, Wish, parse
from tidegate.control.metadata import FeedId, FeedInfo, feed_key
from tidegate.control.processor import Goal, Processor
from tidegate.disk import DiskFull
from tidegate.errors import Retryable, TidegateError
from tidegate.log import event
from tidegate.model.reports import Failed, FromPipeline
from tidegate.model.timestamp import MAX
from tidegate.server.catalogues import DDL_SPAN
from tidegate.server.feed_pipeline import FeedPipeline
from tidegate.server.feed_plan import FeedPlan
from tidegate.server.initial_load import words_of_load
from tidegate.server.jobs import to_its_end, unexpected
from tidegate.server.message_router import Box
from tidegate.server.node import Node
from tidegate.server.opening import Opening
from tidegate.server.processor_words import words_of_slowest
from tidegate.server.reader_bounds import ReaderBounds
from tidegate.server.space_release import SpaceRelease
from tidegate.server.span_loads import SpanLoads

LOG: Final = logging.getLogger(__name__)

TICK_S: Final = 0.02
"""Seconds between two ticks while new DDL waits for the catalogue, which another thread may be using."""
RETRY_S: Final = 1.0
"""Seconds after which a failed preparation is tried again."""
TELL_S: Final = 0.5
"""Seconds between two reports of status to the owner."""


class FeedProcessor:
    """A feed on this capture, from the first message of its owner on."""

    def __init__(self, node: Node, feed: FeedId, sequence: int = 0) -> None:
        """`sequence`: the number of the last message that this process sent for the feed."""
        self.node, self.id = node, feed
        header = Header(node.cluster, str(feed), "", 0, node.capture, node.epoch, sequence)
        self.machine = Processor(header, __version__, os.cpu_count() or 1)
        self._waits = ""
        """Describes what the work under way waits for, except for the pipeline."""
        self._wake = asyncio.Event()
        self.box = Box(self._wake.set)
        self._task: asyncio.Task[None] | None = None
        self._goal: Goal | None = None
        self._work: asyncio.Task[None] | None = None
        self._failure: TidegateError | None = None
        self._over = False
        """Whether the failure of the goal was reported: nothing happens until the owner has another goal."""
        self._ready = False
        """Whether what the goal needs is open."""
        self._opening: Opening | None = None
        """The open catalogue and spans; None: it holds nothing."""
        self._bounds = ReaderBounds(node, self.machine)
        self.pipeline = FeedPipeline(node, feed, self.machine, self._bounds, self._fail, self._wake.set)
        self._space_release = SpaceRelease(feed)
        self._reported_at = float("-inf")
        self.received_at = node.clock.monotonic()
        """When the last message of its owner came."""
        self._span_loads = SpanLoads()

    def start(self) -> None:
        """Start the task that reads messages."""
        self._task = asyncio.create_task(self._run(), name=f"processor of {self.id}")

    async def stop(self) -> None:
        """End the task and everything it has started; stored state stays."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._step()
                # The task continues after a defect, because only it can report the failure to the owner.
                except Exception as error:
                    LOG.exception("changefeed %s: unexpected error", self.id)
                    self._fail(unexpected(error))
                    await asyncio.sleep(RETRY_S)
                await self._pause()
        finally:
            await to_its_end(self._end())

    async def _end(self) -> None:
        await self._end_work()
        await self.pipeline.end()
        self._close()

    async def _pause(self) -> None:
        """Wait until the next tick, which comes at once if something has happened."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rest_s()):
                await self._wake.wait()
        # After the wait: what comes during a step ends the next wait at once.
        self._wake.clear()

    def _rest_s(self) -> float:
        """Seconds until the next tick if nothing happens."""
        if not self.machine.spans.is_open:
            return RETRY_S
        opening = self._opened
        if opening.is_behind:
            return TICK_S
        starts_or_loads = self.pipeline.is_starting or self.pipeline.load_plan is not None
        has_work = starts_or_loads or bool(opening.arrivals.undelivered)
        return self.node.pulse.rest_s(opening.plan.paths.store, watched=has_work)

    # --- what the owner wants ------------------------------------------------------------------------

    async def _step(self) -> None:
        for message in self.box.take():
            try:
                if self.machine.receive(parse(json.loads(message), FROM_OWNER)):
                    self.received_at = self.node.clock.monotonic()
                    if self._opening is not None:
                        self._opening.receive_history()
            except ValueError as error:
                event(
                    LOG,
                    logging.ERROR,
                    "an owner's message cannot be read",
                    changefeed=str(self.id),
                    why=str(error),
                )
        dispatch = self.machine.dispatch
        if dispatch is not None and (goal := Goal.of(dispatch)) != self._goal:
            await self._end_work()
            self._goal, self._failure, self._over, self._ready = goal, None, False, False
            if dispatch.wish in (Wish.PREPARE, Wish.RUN):
                # Before the next Sync, with which the owner takes this Dispatch as received. From then on it
                # holds only what we report, and what we will read is not known before the catalogue is open.
                self.machine.needs = min(self.machine.needs, dispatch.needed, dispatch.checkpoint)
            self._work = asyncio.create_task(self._reach(dispatch), name=f"{goal.wish} {self.id}")
        try:
            if self._ready and self._failure is None:
                self._tick()
        except TidegateError as error:
            self._fail(error)
        except Exception as error:
            LOG.exception("changefeed %s: unexpected error", self.id)
            self._fail(unexpected(error))
        self._check_space()
        if self._failure is not None and not self._over:
            await self._end_work()
            # Before the report, because the owner may give the ranges to others as soon as it has it.
            await to_its_end(self.pipeline.end())
            self.machine.failed(Failed.of(self._failure))
            self._over = True
        if self._space_release.is_due and self._over:
            self._space_release.done()
            self._close()
        self._send_report()
        self.machine.ready = self.node.application.working.workers > 0
        self._measure_loads()
        for said in self.machine.tick(self.node.clock.monotonic()):
            self.node.router.to_owner(said)

    async def _reach(self, dispatch: Dispatch) -> None:
        """Reach the goal of a Dispatch, whatever was done before."""
        try:
            if self.pipeline.is_there:
                await to_its_end(self.pipeline.end())
            match dispatch.wish:
                case Wish.REST | Wish.DELETE:
                    # Before the answer: the owner takes it to mean that nothing is held or written here.
                    self._close(forget=dispatch.wish is Wish.DELETE)
                    self.machine.needs = MAX
                    self._space_release.over()  # it holds nothing now, and may prepare again
                    self.machine.given_up()
                case Wish.PREPARE:
                    # Before the spans are opened. The pipeline has ended, and the owner waits for nothing
                    # else.
                    self.machine.given_up()
                    if not self._space_release.is_done:
                        await self._prepare(dispatch)
                case Wish.RUN:
                    self._space_release.over()
                    await self._open(dispatch)
                    await self.pipeline.start(dispatch, self._opened)
                case _:
                    assert_never(dispatch.wish)
        except TidegateError as error:
            self._fail(error)
        except Exception as error:
            LOG.exception("changefeed %s: unexpected error", self.id)
            self._fail(unexpected(error))
        self._wake.set()

    async def _prepare(self, dispatch: Dispatch) -> None:
        """Have the spans pulled. A Retryable is shown and tried again; it fails the feed when it must run."""
        while True:
            try:
                # The latest Dispatch of this goal, whose checkpoint may have risen since the last attempt.
                return await self._open(self.machine.dispatch or dispatch)
            except Retryable as error:
                self._waits = error.what
                await asyncio.sleep(RETRY_S)

    async def _end_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await to_its_end(_over(work))
        self._waits = self.pipeline.waits = ""

    def _fail(self, error: TidegateError) -> None:
        """Remember the first failure of an incarnation: later ones are its consequences."""
        if self._failure is None:
            self._failure = error
        self._wake.set()

    # --- spans ---------------------------------------------------------------------------------------

    async def _open(self, dispatch: Dispatch) -> None:
        """Open catalogue and spans at the stored checkpoint, unless they are open already."""
        info = await self._info(dispatch)
        node, opening = self.node, self._opening
        plan = FeedPlan.of(node.cluster, self.id, info, node.paths, node.capture, node.shared)
        captured = node.captured(plan.config.tidegate.kv_mode)
        plan = replace(plan, paths=replace(plan.paths, store=captured.store))
        ranges = tuple(one.id for one in dispatch.ranges)
        same = opening is not None and (opening.plan, opening.ranges) == (plan, ranges)
        is_open = opening is not None and same and self.machine.spans.is_open and opening.ddl.is_open
        if opening is not None and is_open and self.machine.ddl.known >= dispatch.checkpoint:
            opening.raise_to(dispatch.checkpoint)
            self._ready = True
            return
        if opening is not None and not same:
            # If only the ranges differ, spans that are in the new ones stay, so that they are not pulled
            # again.
            kept = captured.spans.within(self.id, (DDL_SPAN, *ranges)) if opening.plan == plan else ()
            self._close(but=kept)
        self._shut()
        self._opening = opening = Opening(node, self.id, self.machine, plan, dispatch, self._wake.set)

        def waits(what: str) -> None:
            self._waits = what

        await opening.open(dispatch, waits)
        self._waits, self._ready = "", True

    async def _info(self, dispatch: Dispatch) -> FeedInfo:
        """The feed's settings as stored; its owner stored them before it sent the Dispatch."""
        stored = await self.node.read(feed_key(self.node.cluster, self.id, "info"))
        info = FeedInfo.from_bytes(stored) if stored is not None else None
        if info is None or info.instance != dispatch.header.instance:
            raise Retryable("the changefeed is not stored as its owner says", where=f"changefeed {self.id}")
        return info

    @property
    def _opened(self) -> Opening:
        assert self._opening is not None
        return self._opening

    def _shut(self) -> None:
        """Forget catalogue and spans, to open them again; the spans stay held."""
        self.machine.close()
        self._opening = None
        self._bounds.reset()
        self._span_loads.reset()
        self.machine.received, self.machine.coming = 0, ()
        self.pipeline.reset()
        self.machine.status, self.machine.loads = ProcessorStatus(), {}

    def _close(self, *, forget: bool = False, but: Collection[str] = ()) -> None:
        """Close the catalogue and release the spans except `but`; `forget`: they will not be needed again."""
        if self._opening is not None:
            self._opening.close(forget=forget, but=but)
        self._shut()

    def _check_space(self) -> None:
        """Fail if the event store fills up, this feed makes no progress, and others need its space."""
        opening, dispatch = self._opening, self.machine.dispatch
        if opening is None or dispatch is None or self._space_release.is_due or self._begins:
            return
        now, checkpoint = self.node.clock.monotonic(), dispatch.checkpoint
        loads = self.pipeline.load_plan is not None
        failure = self._space_release.look(now, opening.spans, checkpoint, self.pipeline.beats, loads=loads)
        if failure is not None:
            self._fail(failure)

    @property
    def _begins(self) -> bool:
        """Whether the pipeline is being started: that takes longer than a running one may be silent."""
        wanted = self._goal is not None and self._goal.wish is Wish.RUN and self._failure is None
        return wanted and (not self._ready or self.pipeline.is_starting)

    # --- the tick ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Read what has arrived, advance idle spans, write the bound for the pipeline."""
        opening, dispatch = self._opened, self.machine.dispatch
        assert dispatch is not None
        opening.look(dispatch)
        self.pipeline.end_load()
        self._bounds.move_floor(opening, dispatch.checkpoint)
        with contextlib.suppress(DiskFull):  # the pipeline keeps its earlier bound then
            self._bounds.write(opening)
        self.pipeline.look()

    def _measure_loads(self) -> None:
        """Measure from time to time how many bytes of changes arrive for each span."""
        now, machine, opening = self.node.clock.monotonic(), self.machine, self._opening
        if self.node.shared and opening is not None and self._span_loads.is_due(now):
            lines = opening.spans.status
            machine.loads = self._span_loads.measure(now, machine.spans.ids, lines, machine.loads)

    # --- for the upkeep of this capture's event stores (`server.upkeep`) -----------------------------

    @property
    def kv_mode(self) -> str:
        """The mode of the rows it captures; empty while nothing is open."""
        return self._opening.plan.config.tidegate.kv_mode if self._opening is not None else ""

    @property
    def instance(self) -> str:
        """The instance of the changefeed in the owner's last message."""
        return self.machine.instance

    @property
    def begins_at(self) -> int:
        """The ts from which the changefeed would start again, as far as is known here."""
        return self.machine.dispatch.checkpoint if self.machine.dispatch is not None else 0

    @property
    def is_settled(self) -> bool:
        """Whether it holds the spans that the owner wants it to hold."""
        dispatch = self.machine.dispatch
        return self._ready or dispatch is None or dispatch.wish in (Wish.REST, Wish.DELETE)

    @property
    def drop_below(self) -> tuple[int, int] | None:
        """The ts up to which rows, and DDL entries, may be dropped: delivered, read by all, not retained.

        None: nothing is open, and everything from its checkpoint on is needed.
        """
        if not self.machine.spans.is_open:
            return None
        return self._bounds.passed(self._opened.plan)

    # --- the pipeline --------------------------------------------------------------------------------

    @property
    def pipeline_pid(self) -> int:
        """The process id of the pipeline, once it has reported it; 0: there is none."""
        return self.pipeline.pid

    def receive(self, incarnation: int, report: FromPipeline) -> None:
        """Take a report of this feed's pipeline."""
        self.pipeline.receive(incarnation, report)

    # --- for people ----------------------------------------------------------------------------------

    def _send_report(self) -> None:
        now = self.node.clock.monotonic()
        pipeline, totals = self.pipeline, self.pipeline.totals
        is_recent = now - self._reported_at < TELL_S and not pipeline.has_news
        if is_recent and pipeline.loaded == self.machine.status.loaded:
            return
        self._reported_at, pipeline.has_news = now, False
        self.machine.status = ProcessorStatus(
            waits=self._words(),
            last_synced_ts=pipeline.last_synced_ts,
            rows=totals.rows,
            messages=totals.messages,
            bytes=totals.bytes,
            quarantined=totals.quarantined,
            matched=totals.matched,
            unchecked=totals.unchecked,
            excused=totals.excused,
            mismatched=totals.mismatched,
            misencoded=totals.misencoded,
            batches=totals.batches,
            batch_ms=totals.batch_ms,
            lag_ms=totals.lag_ms,
            load=pipeline.load,
            loaded=pipeline.loaded,
        )

    @property
    def waits(self) -> str:
        """Describes what the work under way waits for; empty: nothing."""
        return self._waits or self.pipeline.waits

    def _words(self) -> str:
        """Describe what the least checkpoint waits for."""
        if self.waits or not self.machine.spans.is_open:
            return self.waits
        if self.pipeline.load_plan is not None:
            return words_of_load(self.pipeline.load)
        return words_of_slowest(self.machine, self._opened)

    @property
    def pulled(self) -> dict[str, int]:
        """Rows and bytes that the puller has received for its spans since it started."""
        if self._opening is None:
            return {"rows": 0, "bytes": 0}
        names = self.machine.spans.ids
        lines = [line for line in self._opening.spans.status if line.span in names]
        return {"rows": sum(line.rows for line in lines), "bytes": sum(line.bytes for line in lines)}


async def _over(work: asyncio.Task[None]) -> None:
    """Wait until it has ended, however it ends."""
    await asyncio.wait({work})
