"""What a capture does for one feed: follows its spans, runs its pipeline, tells the owner how far it is.

    Dispatch --> rest | prepare: spans are pulled | run: and an incarnation of the pipeline delivers them

`control.processor` decides; this file performs. The owner is known by its messages alone, wherever it runs.
Everything goes on in the control process's asyncio loop; what blocks goes to threads. A tick happens as soon
as the pipeline or the owner says something, or floors have moved (`server.pulse`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final, assert_never

from tidegate import __version__, metrics
from tidegate.control.load import LoadPlan
from tidegate.control.messages import FROM_OWNER, Dispatch, Header, ProcessorStatus, Wish, parse
from tidegate.control.metadata import FeedId, FeedInfo, Grant, feed_key
from tidegate.control.processor import Goal, Processor
from tidegate.disk import DiskFull
from tidegate.errors import Retryable, TidegateError
from tidegate.log import event
from tidegate.model.progress import load_key
from tidegate.model.reports import (
    Durable,
    Failed,
    FromPipeline,
    Gone,
    Loaded,
    LoadState,
    PipelineHello,
    Started,
)
from tidegate.pipeline.feed import BEATS, LOAD_FILE
from tidegate.server import initial_load
from tidegate.server.application import Running
from tidegate.server.catalogues import DDL_SPAN, DDL_SPAN_ID
from tidegate.server.feed_plan import FeedPlan, write_spec
from tidegate.server.feed_watch import PipelineWatch
from tidegate.server.feed_words import words_of_load
from tidegate.server.jobs import to_its_end, unexpected
from tidegate.server.making_way import MakingWay
from tidegate.server.node import Node
from tidegate.server.opening import Opening
from tidegate.server.post import Box
from tidegate.server.processor_words import words_of_slowest, words_of_undelivered
from tidegate.server.reader_bounds import ReaderBounds
from tidegate.server.span_loads import SpanLoads
from tidegate.server.totals import Totals

LOG: Final = logging.getLogger(__name__)

TICK_S: Final = 0.02
"""Between two ticks while DDL that has come waits for the catalogue, which another thread may have."""
RETRY_S: Final = 1.0
"""How long a feed that is to be prepared waits after a failure."""
TELL_S: Final = 0.5
"""How often the owner is told what is waited for."""
PIPELINE_STARTS: Final = "pipeline"
"""What a feed waits for until its pipeline says that it has started."""
LAST_WORDS_S: Final = 5.0
"""How long is waited for the reason when a pipeline has ended."""


class FeedProcessor:
    """A feed on this capture, from its owner's first word on."""

    def __init__(self, node: Node, feed: FeedId, sequence: int = 0) -> None:
        """`sequence`: of the last message that was sent for the feed by this process."""
        self.node, self.id = node, feed
        header = Header(node.cluster, str(feed), "", 0, node.capture, node.epoch, sequence)
        self.machine = Processor(header, __version__, os.cpu_count() or 1)
        self.totals = Totals()
        self.last_synced_ts = 0
        self.waits = ""
        """What the work under way waits for, in words."""
        self._wake = asyncio.Event()
        self.box = Box(self._wake.set)
        self._task: asyncio.Task[None] | None = None
        self._goal: Goal | None = None
        self._work: asyncio.Task[None] | None = None
        self._failure: TidegateError | None = None
        self._over = False
        """Whether the goal's failure was said: nothing happens until the owner wants something else."""
        self._ready = False
        """Whether what the goal needs is open."""
        self._opening: Opening | None = None
        """What it holds; None: nothing."""
        self._bounds = ReaderBounds(node, self.machine)
        self._pipeline: Pipeline | None = None
        self._load = LoadState()
        self._loaded = False
        self._load_plan: LoadPlan | None = None
        self._way = MakingWay(feed)
        self._reported_at = float("-inf")
        self.received_at = node.clock.monotonic()
        """When its owner has spoken to it last."""
        self._span_loads = SpanLoads()

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.create_task(self._run(), name=f"processor of {self.id}")

    async def stop(self) -> None:
        """End it with everything it started; what is kept stays."""
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
                except Exception as error:
                    LOG.exception("changefeed %s: unexpected error", self.id)
                    self._fail(unexpected(error))
                    await asyncio.sleep(RETRY_S)
                await self._pause()
        finally:
            await to_its_end(self._end())

    async def _end(self) -> None:
        await self._end_work()
        await self._end_pipeline()
        self._close()

    async def _pause(self) -> None:
        """Until the next tick: at once when something happened."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rest_s()):
                await self._wake.wait()
        self._wake.clear()

    def _rest_s(self) -> float:
        """How long nothing is to be done if nothing happens."""
        if not self.machine.is_open:
            return RETRY_S
        opening = self._opened
        if opening.is_behind:
            return TICK_S
        starts_or_loads = self.waits == PIPELINE_STARTS or self._load_plan is not None
        has_work = starts_or_loads or bool(opening.arrivals.undelivered)
        return self.node.pulse.rest_s(opening.plan.paths.store, watched=has_work)

    # --- what the owner wants ------------------------------------------------------------------------

    async def _step(self) -> None:
        for message in self.box.take():
            try:
                if self.machine.receive(parse(json.loads(message), FROM_OWNER)):
                    self.received_at = self.node.clock.monotonic()
                    if self._opening is not None:
                        self._opening.note_history()
            except ValueError as error:
                event(LOG, logging.ERROR, "no message of an owner", changefeed=str(self.id), why=str(error))
        dispatch = self.machine.dispatch
        if dispatch is not None and (goal := Goal.of(dispatch)) != self._goal:
            await self._end_work()
            self._goal, self._failure, self._over, self._ready = goal, None, False, False
            self._work = asyncio.create_task(self._reach(dispatch), name=f"{goal.wish} {self.id}")
        try:
            if self._ready and self._failure is None:
                self._tick()
        except TidegateError as error:
            self._fail(error)
        except Exception as error:
            LOG.exception("changefeed %s: unexpected error", self.id)
            self._fail(unexpected(error))
        self._look_around()
        if self._failure is not None and not self._over:
            await self._end_work()
            await to_its_end(self._end_pipeline())
            self.machine.failed(Failed.of(self._failure))
            self._over = True
        if self._way.is_due and self._over:
            self._way.done()
            self._close(but={DDL_SPAN_ID})
        self._tell()
        self.machine.ready = self.node.application.working.workers > 0
        self._weigh()
        for said in self.machine.tick(self.node.clock.monotonic()):
            self.node.post.to_owner(said)

    async def _reach(self, dispatch: Dispatch) -> None:
        """Do what is wanted now, whatever was done before."""
        try:
            if self._pipeline is not None:
                await to_its_end(self._end_pipeline())
            match dispatch.wish:
                case Wish.REST | Wish.DELETE:
                    # The owner may go on, and reads DDL from the same span; it lets go of that itself.
                    opening = self._opening
                    kept = {opening.ddl.span_id} if self.node.is_owner and opening is not None else set()
                    self._close(forget=dispatch.wish is Wish.DELETE, but=kept)
                    self._way.over()  # it holds nothing now, and may prepare again
                    self.machine.given_up()
                case Wish.PREPARE:
                    self.machine.given_up()
                    if not self._way.is_done:
                        await self._prepare(dispatch)
                case Wish.RUN:
                    self._way.over()
                    await self._open(dispatch)
                    await self._start(dispatch)
                case _:
                    assert_never(dispatch.wish)
        except TidegateError as error:
            self._fail(error)
        except Exception as error:
            LOG.exception("changefeed %s: unexpected error", self.id)
            self._fail(unexpected(error))
        self._wake.set()

    async def _prepare(self, dispatch: Dispatch) -> None:
        """Have the spans pulled; what stands against it is said when the feed is to run."""
        while True:
            try:
                return await self._open(self.machine.dispatch or dispatch)
            except Retryable as error:
                self.waits = error.what
                await asyncio.sleep(RETRY_S)

    async def _end_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await to_its_end(_over(work))
        self.waits = ""

    def _fail(self, error: TidegateError) -> None:
        """The first failure of an incarnation is the one that is told."""
        if self._failure is None:
            self._failure = error
        self._wake.set()

    # --- spans ---------------------------------------------------------------------------------------

    async def _open(self, dispatch: Dispatch) -> None:
        """Catalogue and spans at the stored checkpoint, unless they are open."""
        info = await self._info(dispatch)
        node, opening = self.node, self._opening
        plan = FeedPlan.of(node.cluster, self.id, info, node.paths, node.capture, node.shared)
        captured = node.captured(plan.config.tidegate.kv_mode)
        plan = replace(plan, paths=replace(plan.paths, store=captured.store))
        ranges = tuple(one.id for one in dispatch.ranges)
        same = opening is not None and (opening.plan, opening.ranges) == (plan, ranges)
        is_open = opening is not None and same and self.machine.is_open and opening.ddl.is_open
        if opening is not None and is_open and self.machine.known >= dispatch.checkpoint:
            opening.raise_to(dispatch.checkpoint)
            self._ready = True
            return
        if opening is not None and not same:
            # Of other ranges of the same changefeed what it keeps is not pulled again.
            kept = captured.spans.within(self.id, (DDL_SPAN, *ranges)) if opening.plan == plan else ()
            self._close(but=kept)
        self._shut()
        checkpoint = dispatch.checkpoint
        self._opening = opening = Opening(
            node, self.id, self.machine, plan, ranges, checkpoint, self._wake.set
        )

        def waits(what: str) -> None:
            self.waits = what

        await opening.open(dispatch, waits)
        self.waits, self._ready = "", True

    async def _info(self, dispatch: Dispatch) -> FeedInfo:
        """What the feed is, as it is stored; its owner has stored it before it sent this."""
        stored = await self.node.read(feed_key(self.node.cluster, self.id, "info"))
        info = FeedInfo.from_bytes(stored) if stored is not None else None
        if info is None or info.instance != dispatch.header.instance:
            raise Retryable("The changefeed is not stored as its owner says.", where=f"changefeed {self.id}")
        return info

    @property
    def _opened(self) -> Opening:
        assert self._opening is not None
        return self._opening

    def _shut(self) -> None:
        """Forget what is known, to open it again; the spans stay held."""
        self.machine.close()
        self._opening = None
        self._bounds.reset()
        self._span_loads.reset()
        self.machine.received, self.machine.coming = 0, ()
        self._load, self._loaded, self._load_plan = LoadState(), False, None
        self.machine.status, self.machine.loads = ProcessorStatus(), {}

    def _close(self, *, forget: bool = False, but: Collection[str] = ()) -> None:
        """Let go of catalogue and spans, `but` some; `forget`: for ever."""
        if self._opening is not None:
            self._opening.close(forget=forget, but=but)
        self._shut()

    def _look_around(self) -> None:
        """While the event store fills up: does this feed stand still, and is it in the way of others?"""
        opening, dispatch = self._opening, self.machine.dispatch
        if opening is None or dispatch is None or self._way.is_due or self._begins:
            return
        now, checkpoint = self.node.clock.monotonic(), dispatch.checkpoint
        beats = self._pipeline.watch.beats if self._pipeline is not None else {}
        loads = self._load_plan is not None
        failure = self._way.look(now, opening.spans, checkpoint, beats, loads=loads)
        if failure is not None:
            self._fail(failure)

    @property
    def _begins(self) -> bool:
        """Whether the pipeline is being started: that takes longer than one that runs may stand still."""
        wanted = self._goal is not None and self._goal.wish is Wish.RUN and self._failure is None
        return wanted and (not self._ready or self.waits == PIPELINE_STARTS)

    # --- the pipeline --------------------------------------------------------------------------------

    async def _start(self, dispatch: Dispatch) -> None:
        """Files, then the application is told."""
        self._load, self._loaded, self._load_plan = LoadState(), False, None
        node, opening = self.node, self._opened
        plan = replace(opening.plan, load=dispatch.load)
        grant = await node.read_grant(self.id)
        if grant is None or (grant.instance, grant.incarnation) != (plan.instance, dispatch.incarnation):
            raise Retryable(
                "The changefeed's grant is not the dispatched one.", where=f"changefeed {self.id}"
            )
        plan.folder.mkdir(parents=True, exist_ok=True)  # another capture may have made the changefeed
        self._bounds.begin(plan, grant, opening)
        if dispatch.load:
            self.waits = "regions from PD"
            tables = filter(self.machine.holds, opening.ddl.tracker.initial)
            self._load_plan = await asyncio.to_thread(
                initial_load.plan_load, node.pd, dispatch.checkpoint, list(tables), plan.folder
            )
            self._load = replace(self._load, ranges=len(self._load_plan.ranges))
        own, beats = plan.config.tidegate, plan.folder / grant.work_folder / BEATS
        watch = PipelineWatch(node.clock, beats, own.stall_timeout, own.start_timeout)
        spec = await asyncio.to_thread(write_spec, plan, grant)
        self.waits = PIPELINE_STARTS
        running = node.application.run(str(self.id), grant.incarnation, spec)
        self._pipeline = Pipeline(grant, running, watch)
        self._pipeline.ended.add_done_callback(self._on_exit)
        self.totals.starts += 1

    async def _end_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        self._bounds.end()
        if pipeline is not None:
            await self.node.application.end(pipeline.running)

    @property
    def pipeline_pid(self) -> int:
        """Of the process that delivers, once it has said who it is; 0: there is none."""
        return self._pipeline.pid if self._pipeline is not None else 0

    def _on_exit(self, ended: asyncio.Task[bool]) -> None:
        """Nobody works for it any more: its last words tell why, else what became of the application does."""
        pipeline = self._pipeline
        if pipeline is not None and pipeline.ended is ended and not ended.cancelled():
            pipeline.last_words = asyncio.create_task(self._receive_last_words(pipeline))

    async def _receive_last_words(self, pipeline: Pipeline) -> None:
        """Of its connection and the application, which ends is first is chance."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await pipeline.gone.wait()
                await pipeline.running.gone.wait()
        if self._pipeline is pipeline:
            where = str(self.node.application.log)
            why = pipeline.running.how or "its connection has ended"
            self._fail(Retryable("The pipeline has ended.", where=where, why=why))

    def _look_out(self) -> None:
        """Notice when the pipeline stands still."""
        pipeline = self._pipeline
        hung = pipeline.watch.look(self._to_do, self.node.application.pid) if pipeline is not None else None
        if hung is not None:
            metrics.restarts.labels("pipeline").inc()
            self._fail(hung)

    def _to_do(self) -> str:
        """What the pipeline has to do now, in words; empty: nothing."""
        if self.waits == PIPELINE_STARTS:
            return "its start"
        if self._load_plan is not None:
            return "" if self._load.finished and self._load.ranges else self._words()
        return words_of_undelivered(self.machine, self._opening) if self._opening is not None else ""

    def receive(self, incarnation: int, report: FromPipeline) -> None:
        """What this feed's pipeline says; what one of an old incarnation says changes nothing."""
        pipeline, machine = self._pipeline, self.machine
        if pipeline is None or incarnation != pipeline.grant.incarnation:
            return
        pipeline.watch.received()
        match report:
            case PipelineHello(_, _, pid):
                pipeline.pid = pid
            case Started(spans, outlived):
                # Where it begins: the sink's own progress may be ahead of what was told.
                if machine.started(incarnation, spans, outlived):
                    self.waits = ""
                    assert machine.dispatch is not None
                    self._opened.has_begun_at(machine.dispatch.checkpoint)
                    self._opened.spans.went_on(self.id, self.node.clock.monotonic())
                    event(LOG, logging.INFO, "pipeline started", changefeed=str(self.id))
            case Durable(token, spans, stats):
                machine.report(token, incarnation, spans)
                if stats:  # a task that goes on counts at its end
                    self._count(stats)
                if stats.get("rows"):
                    self.last_synced_ts = max(self.last_synced_ts, *spans.values())
            case Loaded(state, stats):
                self._load, self._loaded = state, state.finished
                self._count(stats)
            case Failed():
                self._fail(report.error())
            case Gone():
                pipeline.gone.set()
                pipeline.last_words = asyncio.create_task(self._receive_last_words(pipeline))
            case _:
                assert_never(report)
        self._wake.set()

    def _count(self, stats: Any) -> None:
        self.totals.count(self.id, stats, self._opened.plan.folder)
        self._reported_at = float("-inf")

    # --- the tick ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Read what has arrived, advance what is idle, tell the pipeline its bound."""
        opening, dispatch = self._opened, self.machine.dispatch
        assert dispatch is not None
        opening.look(dispatch)
        self._end_load()
        self._bounds.move_floor(opening, dispatch.checkpoint)
        with contextlib.suppress(DiskFull):  # then the pipeline keeps to the bound it was told before
            self._bounds.write(opening)
        self._look_out()

    def _end_load(self) -> None:
        """The owner has stored that the initial load is durable."""
        dispatch, plan = self.machine.dispatch, self._load_plan
        if plan is not None and dispatch is not None and dispatch.wish is Wish.RUN and not dispatch.load:
            self._load_plan = None
            (self._opened.plan.folder / LOAD_FILE).unlink(missing_ok=True)
            self.machine.over(load_key(one.id) for one in plan.ranges)

    def _weigh(self) -> None:
        """Now and then, how many bytes of changes come for each span."""
        now, machine, opening = self.node.clock.monotonic(), self.machine, self._opening
        if self.node.shared and opening is not None and self._span_loads.is_due(now):
            lines = opening.spans.status
            machine.loads = self._span_loads.measure(now, machine.span_ids, lines, machine.loads)

    # --- what upstream has to keep -----------------------------------------------------------------

    @property
    def kv_mode(self) -> str:
        """What it captures; empty while it works at nothing."""
        return self._opening.plan.config.tidegate.kv_mode if self._opening is not None else ""

    @property
    def instance(self) -> str:
        """Of the changefeed that it works for, by what its owner has said last."""
        return self.machine.instance

    @property
    def begins_at(self) -> int:
        """Where the changefeed would begin again, as far as is known here."""
        return self.machine.dispatch.checkpoint if self.machine.dispatch is not None else 0

    @property
    def needs(self) -> tuple[int, int]:
        """The least ts from which rows, and DDL, would be read upstream if all that is stored were lost."""
        return self._opening.needs if self._opening is not None else (self.begins_at, self.begins_at)

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing, and is not about to."""
        return self._opening is None and self.is_settled

    @property
    def prepares(self) -> bool:
        """Whether it has opened spans of which it delivers nothing yet."""
        opening = self._opening
        return opening is not None and (opening.coming.since_ts is not None or not self.machine.is_running)

    @property
    def is_settled(self) -> bool:
        """Whether it holds the spans that it is to hold now."""
        dispatch = self.machine.dispatch
        return self._ready or dispatch is None or dispatch.wish in (Wish.REST, Wish.DELETE)

    @property
    def drop_below(self) -> tuple[int, int] | None:
        """Up to where rows, and DDL entries, may go: delivered, past every reader, not retained.

        None: it is not open, and needs what its checkpoint says.
        """
        if not self.machine.is_open:
            return None
        return self._bounds.passed(self._opened.plan)

    # --- for people ----------------------------------------------------------------------------------

    def _tell(self) -> None:
        now = self.node.clock.monotonic()
        if now - self._reported_at < TELL_S and self._loaded == self.machine.status.loaded:
            return
        self._reported_at = now
        totals = self.totals
        self.machine.status = ProcessorStatus(
            waits=self._words(),
            last_synced_ts=self.last_synced_ts,
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
            load=self._load,
            loaded=self._loaded,
        )

    def _words(self) -> str:
        """What the least checkpoint waits for."""
        if self.waits or not self.machine.is_open:
            return self.waits
        if self._load_plan is not None:
            return words_of_load(self._load)
        return words_of_slowest(self.machine, self._opened)

    @property
    def pulled(self) -> dict[str, int]:
        """Rows and bytes the puller has received for its spans since it started."""
        if self._opening is None:
            return {"rows": 0, "bytes": 0}
        names = self.machine.spans
        lines = [line for line in self._opening.spans.status if line.get("span") in names]
        return {kind: sum(int(line.get(kind, 0)) for line in lines) for kind in ("rows", "bytes")}


class Pipeline:
    """An incarnation that the application has, and how one looks after it."""

    def __init__(self, grant: Grant, running: Running, watch: PipelineWatch) -> None:
        self.grant, self.running, self.watch = grant, running, watch
        self.ended = asyncio.create_task(running.gone.wait())
        self.gone = asyncio.Event()
        """Set when its connection has ended: all that it said was heard."""
        self.last_words: asyncio.Task[None] | None = None
        self.pid = 0


async def _over(work: asyncio.Task[None]) -> None:
    """Until it has ended, however."""
    await asyncio.wait({work})
