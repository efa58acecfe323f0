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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, assert_never

from tidegate import __version__, metrics
from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.gc import History
from tidegate.control.load import LoadPlan
from tidegate.control.messages import FROM_OWNER, Dispatch, Header, ProcessorStatus, Wish, parse
from tidegate.control.metadata import FeedId, FeedInfo, Grant, feed_key
from tidegate.control.processor import Goal, Processor
from tidegate.disk import DiskFull
from tidegate.errors import Retryable, TidegateError
from tidegate.eventstore import store_view
from tidegate.filter.feed import FeedFilter
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
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX, compose
from tidegate.pipeline.feed import BEATS, LOAD_FILE
from tidegate.server import initial_load
from tidegate.server.application import Running
from tidegate.server.arrivals import Arrivals
from tidegate.server.catalogues import DDL_SPAN, DDL_SPAN_ID
from tidegate.server.coming_ranges import ComingRanges
from tidegate.server.feed_ddl import FeedDdl
from tidegate.server.feed_plan import BoundsFile, FeedPlan, write_spec
from tidegate.server.feed_watch import PipelineWatch
from tidegate.server.jobs import to_its_end, unexpected
from tidegate.server.node import Node
from tidegate.server.post import Box
from tidegate.server.reader_floor import ReaderFloor
from tidegate.server.span_loads import SpanLoads
from tidegate.server.spans import SpanRegistry
from tidegate.server.stripes import ids_of
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
OTHERS_SHOWN: Final = 3
NEEDS_S: Final = 1.0
"""How often is looked how far behind regions are that nobody here wants."""
NAMES_TRIED: Final = 8
"""Of how many tables of a stripe the name is looked up, until one has a name."""
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
        self._plan: FeedPlan | None = None
        self._ranges: tuple[Span, ...] = ()
        """Those for which it is open."""
        self._ddl: FeedDdl | None = None
        self._bounds: BoundsFile | None = None
        self._pipeline: Pipeline | None = None
        self._load = LoadState()
        self._loaded = False
        self._load_plan: LoadPlan | None = None
        self._arrivals: Arrivals | None = None
        self._coming: ComingRanges | None = None
        self._concerned: frozenset[str] | None = None
        """The spans whose rows wake it at once; None: any."""
        self._passed: tuple[int, Mapping[str, int]] = (0, {})
        """Checkpoint, and the beats of a pipeline that has delivered: either changes while it goes on."""
        self._makes_way = False
        """Whether it is to let go of its spans for others."""
        self._made_way = False
        """Whether it has: it holds none until it is to run again."""
        self._behind = False
        """Whether DDL has come that the catalogue did not hand out at the last tick."""
        self._reported_at = float("-inf")
        self._opened_at = 0
        """The checkpoint at which its spans were opened."""
        self._needs_at = float("-inf")
        self.received_at = node.clock.monotonic()
        """When its owner has spoken to it last."""
        self._span_loads = SpanLoads()
        self._floor = ReaderFloor()

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
        if self._behind:
            return TICK_S
        has_work = self.waits == PIPELINE_STARTS or self._load_plan is not None or self._has_undelivered
        return self.node.pulse.rest_s(self._opened.paths.store, watched=has_work)

    # --- what the owner wants ------------------------------------------------------------------------

    async def _step(self) -> None:
        for message in self.box.take():
            try:
                if self.machine.receive(parse(json.loads(message), FROM_OWNER)):
                    self.received_at = self.node.clock.monotonic()
                    self._note_history()
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
        if self._makes_way and self._over:
            self._makes_way, self._made_way = False, True
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
                    kept = {self._ddl.span_id} if self.node.is_owner and self._ddl is not None else set()
                    self._close(forget=dispatch.wish is Wish.DELETE, but=kept)
                    self._makes_way = self._made_way = False  # it holds nothing now, and may prepare again
                    self.machine.given_up()
                case Wish.PREPARE:
                    self.machine.given_up()
                    if not self._made_way:
                        await self._prepare(dispatch)
                case Wish.RUN:
                    self._makes_way = self._made_way = False
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
        node = self.node
        plan = FeedPlan.of(node.cluster, self.id, info, node.paths, node.capture, node.shared)
        captured = self.node.captured(plan.config.tidegate.kv_mode)
        plan = replace(plan, paths=replace(plan.paths, store=captured.store))
        ranges = tuple(one.id for one in dispatch.ranges)
        same = (self._plan, self._ranges) == (plan, ranges)
        opened = self.machine.is_open and same and self._ddl is not None and self._ddl.is_open
        if opened and self.machine.known >= dispatch.checkpoint:
            # It may have been opened long before: nothing is to begin below the stored checkpoint.
            for batch in self.machine.passed():
                self._pass_ddl(batch)
            self.machine.raise_to(dispatch.checkpoint)
            self._spans.try_again(self.id, dispatch.checkpoint)
            self.machine.confirm()
            self._ready = True
            return
        if self._plan is not None and not same:
            # Of other ranges of the same changefeed what it keeps is not pulled again.
            kept = captured.spans.within(self.id, (DDL_SPAN, *ranges)) if self._plan == plan else ()
            self._close(but=kept)
        self._shut()
        self._plan, self._ranges, self._opened_at = plan, ranges, dispatch.checkpoint
        self._note_history()
        self._say_needs()
        self.node.pulse.follow(plan.paths.store, self.id, self._wake.set)
        self._ddl = ddl = FeedDdl(self.node, plan, FeedFilter.of(plan.config))
        guarded, store = plan.config.check_gc_safe_point, plan.paths.store
        self._arrivals = arrivals = Arrivals(self.machine, store, ddl.span_id, self.node.manifest)
        self._coming = ComingRanges(
            self.id, self.machine, arrivals, ddl, captured.spans, ranges, guarded=guarded
        )

        def waits(what: str) -> None:
            self.waits = what

        batches, known = await ddl.open(dispatch.checkpoint, waits)
        self._coming.open(ddl.initial, batches)
        self.machine.open(dispatch.checkpoint, ddl.initial, batches, known)
        tasks = [*ddl.initial, *(task for batch in batches for task in batch.added)]
        self._hold(tasks)
        # What was kept of an earlier opening, and has ended since.
        for name in self._spans.within(self.id, ranges) - {ddl.span_id, *(task.id for task in tasks)}:
            self._spans.drop(self.id, name)
        self._say_needs()
        arrivals.check_beginning_of(self.machine.spans)
        self.waits, self._ready = "", True

    def _note_history(self) -> None:
        """Where another capture is the owner, it says what PD keeps."""
        plan, dispatch = self._plan, self.machine.dispatch
        if plan is not None and dispatch is not None and not self.node.is_owner:
            scope = plan.config.tidegate.keyspace_id
            said = History(dispatch.needed, dispatch.safe_point)
            order = dispatch.header.owner_rev, dispatch.header.sequence
            if self.node.receive_history(scope, order, said):
                self.node.captured(plan.config.tidegate.kv_mode).spans.keep_above(said.safe_point, scope)

    async def _info(self, dispatch: Dispatch) -> FeedInfo:
        """What the feed is, as it is stored; its owner has stored it before it sent this."""
        stored = await self.node.read(feed_key(self.node.cluster, self.id, "info"))
        info = FeedInfo.from_bytes(stored) if stored is not None else None
        if info is None or info.instance != dispatch.header.instance:
            raise Retryable("The changefeed is not stored as its owner says.", where=f"changefeed {self.id}")
        return info

    def _hold(self, tasks: Iterable[SpanTask]) -> None:
        guarded = self._opened.config.check_gc_safe_point
        for task in filter(self.machine.holds, tasks):
            self._spans.hold(self.id, task.span, task.start_ts, guarded=guarded)

    @property
    def _opened(self) -> FeedPlan:
        assert self._plan is not None
        return self._plan

    @property
    def _spans(self) -> SpanRegistry:
        return self.node.captured(self._opened.config.tidegate.kv_mode).spans

    def _shut(self) -> None:
        """Forget what is known, to open it anew; the spans stay held."""
        self.machine.close()
        self._ddl = self._bounds = None
        self._arrivals = self._coming = None
        self._behind = False
        self._concerned = None
        self._floor.reset()
        self._span_loads.reset()
        self.machine.received, self.machine.coming = 0, ()
        self._load, self._loaded, self._load_plan = LoadState(), False, None
        self.machine.status, self.machine.loads = ProcessorStatus(), {}

    def _close(self, *, forget: bool = False, but: Collection[str] = ()) -> None:
        """Let go of catalogue and spans, `but` some; `forget`: for ever."""
        plan, self._plan = self._plan, None
        if plan is not None:
            self.node.pulse.concern(plan.paths.store, self.id, None)
            self.node.pulse.leave(plan.paths.store, self.id, self._wake.set)
            self.node.captured(plan.config.tidegate.kv_mode).spans.release(self.id, forget=forget, but=but)
        self._shut()

    def _look_around(self) -> None:
        """While the event store fills up: does this feed stand still, and is it in the way of others?

        Then it lets go of its spans, which would else be given up for all. When it runs again, what it lacks
        is pulled again.
        """
        plan, dispatch = self._plan, self.machine.dispatch
        if plan is None or dispatch is None or self._makes_way or self._begins:
            return
        spans, now = self._spans, self.node.clock.monotonic()
        beats = self._pipeline.watch.beats if self._pipeline is not None else {}
        before, self._passed = self._passed, (dispatch.checkpoint, beats or self._passed[1])
        if self._passed != before or self._load_plan is not None:
            spans.went_on(self.id, now)
        elif others := spans.in_the_way_of(self.id, now):
            names = ", ".join(map(str, others[:OTHERS_SHOWN])) + (
                ", ..." if len(others) > OTHERS_SHOWN else ""
            )
            event(LOG, logging.WARNING, "changefeed makes way", changefeed=str(self.id), of=names)
            self._makes_way = True
            self._fail(
                Retryable(
                    "[CDC:ErrEventStoreQuota]the changefeed stands still and makes way for others.",
                    where=f"others that follow its tables: {names}",
                    why=spans.filling,
                    fix="see what it waits for; it is started again by itself, and what it has not "
                    "delivered is pulled again. That must fit --event-store-quota",
                )
            )

    @property
    def _begins(self) -> bool:
        """Whether the pipeline is being started: that takes longer than one that runs may stand still."""
        wanted = self._goal is not None and self._goal.wish is Wish.RUN and self._failure is None
        return wanted and (not self._ready or self.waits == PIPELINE_STARTS)

    # --- the pipeline --------------------------------------------------------------------------------

    async def _start(self, dispatch: Dispatch) -> None:
        """Files, then the application is told."""
        self._load, self._loaded, self._load_plan = LoadState(), False, None
        node, plan = self.node, replace(self._opened, load=dispatch.load)
        grant = await node.read_grant(self.id)
        if grant is None or (grant.instance, grant.incarnation) != (plan.instance, dispatch.incarnation):
            raise Retryable(
                "The changefeed's grant is not the dispatched one.", where=f"changefeed {self.id}"
            )
        assert self._ddl is not None
        plan.folder.mkdir(parents=True, exist_ok=True)  # another capture may have made the changefeed
        self._bounds = BoundsFile(plan.folder / "bounds.json", grant.token, self._ddl.span_id)
        self._write_bounds()
        if dispatch.load:
            self.waits = "regions from PD"
            tables = filter(self.machine.holds, self._ddl.tracker.initial)
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
        self._bounds = None
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
        spans = self._arrivals.undelivered if self._arrivals is not None else ()
        if not spans or not self.machine.is_open:
            return ""
        slowest = self.machine.spans[min(spans, key=self.machine.durable)]
        return f"rows of {self._named(slowest)}" + (f" and {len(spans) - 1} more" if len(spans) > 1 else "")

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
                    self._opened_at = machine.dispatch.checkpoint
                    self._spans.went_on(self.id, self.node.clock.monotonic())
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
        self.totals.count(self.id, stats, self._opened.folder)
        self._reported_at = float("-inf")

    # --- the tick ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Read what has arrived, advance what is idle, tell the pipeline its bound."""
        machine, ddl, arrivals, coming = self.machine, self._ddl, self._arrivals, self._coming
        assert ddl is not None
        assert arrivals is not None
        assert coming is not None
        assert machine.dispatch is not None
        ddl.check_history(machine.dispatch.checkpoint)
        if machine.is_running:  # nothing of its spans is below that any more
            self._opened_at = max(self._opened_at, machine.dispatch.checkpoint)
        frontier = arrivals.frontier()
        resolved = frontier.get(ddl.span_id, 0)
        if resolved > machine.known:
            batches, known = ddl.look(resolved, machine.waiting)
            machine.learn(batches, known)
            if self.node.shared:
                coming.learn(batches)
            # Pulled from now on, delivered from the DDL on.
            self._hold(task for batch in batches for task in batch.added)
        self._behind = resolved > machine.known
        for batch in machine.passed():
            self._pass_ddl(batch)
        if machine.span_ids != self._concerned:
            self._concerned = frozenset(machine.span_ids)
            self.node.pulse.concern(self._opened.paths.store, self.id, self._concerned | {ddl.span_id})
        reached = arrivals.lifted(frontier)
        arrivals.advance_idle(frontier, reached)
        machine.resolve(reached, arrivals.lacking)
        if self.node.shared and (now := self.node.clock.monotonic()) - self._needs_at >= NEEDS_S:
            self._needs_at = now
            if coming.take(machine.dispatch):
                self._say_needs()
            coming.look(frontier, machine.dispatch.checkpoint)
            if self._spans.have_begun(self.id, frontier):
                # From here on each span holds history as far as it is, and not from where it was opened.
                self._opened_at = max(self._opened_at, machine.dispatch.checkpoint)
                coming.have_begun(machine.dispatch.checkpoint)
            self._say_needs()
        self._end_load()
        self._move_floor()
        with contextlib.suppress(DiskFull):  # then the pipeline keeps to the bound it was told before
            self._write_bounds()
        self._look_out()

    @property
    def _has_undelivered(self) -> bool:
        return self._arrivals is not None and bool(self._arrivals.undelivered)

    def _write_bounds(self, *, raise_starts: bool = False) -> None:
        bounds, machine = self._bounds, self.machine
        if bounds is not None:
            bound, spans = machine.reach, machine.spans
            idle = self._arrivals is not None and self._arrivals.all_idle
            self.node.ballast.small(lambda: bounds.write(bound, spans, raise_starts=raise_starts, idle=idle))

    def _pass_ddl(self, batch: DdlBatch) -> None:
        """Spans have ended, and others begin; a DDL that waits may bring one back (a recovered table)."""
        assert self._arrivals is not None
        for name in batch.removed:
            self._spans.drop(self.id, name, again_from=self.machine.start_of(name))
        self._arrivals.check_beginning_of(task.id for task in batch.added)

    def _end_load(self) -> None:
        """The owner has stored that the initial load is durable."""
        dispatch, plan = self.machine.dispatch, self._load_plan
        if plan is not None and dispatch is not None and dispatch.wish is Wish.RUN and not dispatch.load:
            self._load_plan = None
            (self._opened.folder / LOAD_FILE).unlink(missing_ok=True)
            self.machine.over(load_key(one.id) for one in plan.ranges)

    def _weigh(self) -> None:
        """Now and then, how many bytes of changes come for each span."""
        now, machine = self.node.clock.monotonic(), self.machine
        if self.node.shared and self._plan is not None and self._span_loads.is_due(now):
            machine.loads = self._span_loads.measure(now, machine.span_ids, self._spans.status, machine.loads)

    # --- what upstream has to keep -----------------------------------------------------------------

    @property
    def kv_mode(self) -> str:
        """What it captures; empty while it works at nothing."""
        return self._plan.config.tidegate.kv_mode if self._plan is not None else ""

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
        begins_at = self.begins_at
        if self._plan is not None and not self.machine.is_running:
            begins_at = min(begins_at, self._opened_at)  # its regions may still wait to be registered there
        if self._coming is not None and (since_ts := self._coming.since_ts) is not None:
            begins_at = min(begins_at, since_ts)
        return begins_at, min(begins_at, self._ddl.base_ts(begins_at)) if self._ddl is not None else begins_at

    def _say_needs(self) -> None:
        """Tell the owner, at once if it is less than what was said before."""
        if self.node.is_owner:
            self.machine.needs = MAX  # the reactor sees it; what was said before its election holds nothing
            return
        if self._plan is None:
            return
        behind = self._spans.behind(
            store_view.read_frontier(self._opened.paths.store), only=self.id, every=True
        ).get(self.id, MAX)
        before, self.machine.needs = self.machine.needs, min(*self.needs, behind)
        if self.machine.needs < before:
            self.machine.sync_soon()
            self._wake.set()

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing, and is not about to."""
        return self._plan is None and self.is_settled

    @property
    def prepares(self) -> bool:
        """Whether it has opened spans of which it delivers nothing yet."""
        return self._plan is not None and (self._expects_ranges or not self.machine.is_running)

    @property
    def _expects_ranges(self) -> bool:
        return self._coming is not None and self._coming.since_ts is not None

    @property
    def is_settled(self) -> bool:
        """Whether it holds the spans that it is to hold now."""
        dispatch = self.machine.dispatch
        return self._ready or dispatch is None or dispatch.wish in (Wish.REST, Wish.DELETE)

    # --- letting go of old segments ------------------------------------------------------------------

    def _move_floor(self) -> None:
        """Now and then move what readers start from, so that old segments can be dropped a while later."""
        now, dispatch, ddl = self.node.clock.monotonic(), self.machine.dispatch, self._ddl
        assert dispatch is not None
        assert ddl is not None
        if self._bounds is None or not self._floor.is_due(now):
            return
        try:
            self._write_bounds(raise_starts=True)
        except DiskFull:
            return  # readers may still start from below: nothing is let go
        self._floor.move(now, dispatch.checkpoint, ddl.base_ts(dispatch.checkpoint))

    @property
    def drop_below(self) -> tuple[int, int] | None:
        """Up to where rows, and DDL entries, may go: delivered, past every reader, not retained.

        None: it is not open, and needs what its checkpoint says.
        """
        if not self.machine.is_open:
            return None
        return self._floor.passed(compose(round(self._opened.config.tidegate.retention * 1000)))

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
        machine = self.machine
        if self.waits or not machine.is_open:
            return self.waits
        if self._load_plan is not None:
            return f"initial load: {self._load.done} of {self._load.ranges} ranges"
        slowest = machine.slowest()
        if slowest is None or machine.durable(slowest.id) >= machine.bound:
            return "resolved ts of the DDL span"
        lacks = self._arrivals is not None and slowest.id in self._arrivals.lacking
        return ("rows from before what the event store has of " if lacks else "") + self._named(slowest)

    def _named(self, task: SpanTask) -> str:
        """A span, with its table's name where that is known."""
        ids, ddl = ids_of(task), self._ddl
        # The first of a stripe may have been dropped since; looking at all of them would cost too much.
        known = (ddl.tracker.name_of(id_) for id_ in ids[:NAMES_TRIED]) if ddl is not None else ()
        name = next(filter(None, known), "")
        more = len(ids) - 1
        others = f" and {more} more tables" if more else ""
        return f"span {task.id} ({name or f'table id {task.physical_id}'}{others})"

    @property
    def pulled(self) -> dict[str, int]:
        """Rows and bytes the puller has received for its spans since it started."""
        if self._plan is None:
            return {"rows": 0, "bytes": 0}
        names = self.machine.spans
        lines = [line for line in self._spans.status if line.get("span") in names]
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
