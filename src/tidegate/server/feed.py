"""One changefeed's loop: opens its catalogue, starts incarnations, ticks the owner, carries out its effects.

    open catalogue -> [grant -> barrier.json -> sink -> pipeline -> tick, tick, ...] -> back-off -> [...]

Everything runs in the control process's asyncio loop; what blocks goes to threads. A tick happens every
`TICK_S` and as soon as the pipeline reports. The life (`control.changefeed`) says whether to run, and the
owner (`control.owner`) what to do; this file only performs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from typing import Any, Final, assert_never

from tidegate import metrics
from tidegate.control.barrier import Barrier, SpanTask
from tidegate.control.changefeed import Life, State
from tidegate.control.gc import History
from tidegate.control.load import LoadPlan
from tidegate.control.metadata import FeedError, FeedId, FeedInfo, FeedStatus, Grant, Put, feed_key
from tidegate.control.owner import Effect, Finish, Owner, Persist, SendDdl, SendResolved
from tidegate.disk import DiskFull
from tidegate.errors import Fatal, Retryable, TidegateError, Undecodable
from tidegate.eventstore import outlook
from tidegate.eventstore.manifest import Frontier
from tidegate.filter.tables import why_ineligible
from tidegate.log import event
from tidegate.model.ddl import DdlEvent
from tidegate.model.key_range import KeyRange
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
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import MAX, compose, physical_ms
from tidegate.mounter.schema_image import Image, saved_ts
from tidegate.pipeline.feed import BEATS, LOAD_FILE
from tidegate.server import initial_load, processor
from tidegate.server.feed_life import LOST, FeedLife, to_its_end, unexpected
from tidegate.server.feed_watch import LOOK_S, FeedWatch
from tidegate.server.key_tracker import KeyTracker
from tidegate.server.node import Node
from tidegate.server.processor import BarrierFile, FeedPlan, Incarnation, SinkThread
from tidegate.server.schema_tracker import DDL_SPAN, SNAPSHOT, SchemaTracker, save_catalogue, save_image
from tidegate.server.totals import Totals

LOG: Final = logging.getLogger(__name__)

TICK_S: Final = 0.02
FLOOR_S: Final = 10.0
"""How often the barrier file's start ts and `schema.bin` follow the checkpoint, so that segments can go."""
SAVE_REST: Final = 50
"""A catalogue is saved again after so many times what saving it took, at the earliest."""
SAVE_IDLE_S: Final = 60.0
"""And after so long without DDL: upstream's history is held from the saved catalogue on."""
DROP_AFTER_S: Final = 60.0
"""Segments go this long after the barrier file has moved past them: no batch planned before still runs."""
PIPELINE_STARTS: Final = "pipeline process"
"""What a feed waits for until its pipeline process says that it has started."""
STOP_S: Final = 2.0
"""Grace for a pipeline process; it has nothing to save."""
JOBS_S: Final = 2.0
"""How long calls under way are waited for when an incarnation ends."""
LAST_WORDS_S: Final = 0.5
"""How long the socket of a dead pipeline is still read for the reason."""


class Feed(FeedLife):
    """A changefeed on this node."""

    def __init__(self, node: Node, feed: FeedId, info: FeedInfo, status: FeedStatus) -> None:
        super().__init__(node, feed, info, status)
        self.captured = node.captured(self.config.tidegate.kv_mode)
        self.checkpoint = self.resolved_ts = status.checkpoint_ts
        """`checkpoint`: durable downstream; never below `persisted`."""
        self.loading = self.config.tidegate.initial_load and not status.loaded
        """Whether the rows there are at `checkpoint` are still to be delivered; nothing above it is then."""
        self.load = LoadState()
        """How far that is, or was."""
        self._load_plan: LoadPlan | None = None
        self.totals = Totals()
        self.last_synced_ts = 0
        """No row above this was delivered since the control process started; 0: none at all."""
        self.owner: Owner | None = None
        self._drop_rows = self._drop_ddl = 0
        self._tracker: SchemaTracker | KeyTracker | None = None
        self._barrier: BarrierFile | None = None
        self._incarnation: Incarnation | None = None
        self._sink_thread: SinkThread | None = None
        self._watch: FeedWatch | None = None
        self._undelivered: list[str] = []
        """Spans with rows that the pipeline may deliver now."""
        self._grant: Grant | None = None
        self._failure: TidegateError | None = None
        self._reached = False
        self._wake = asyncio.Event()
        self._jobs: set[asyncio.Task[None]] = set()
        self._floors: list[tuple[float, int, int]] = []
        self._floor_at = 0.0
        self._catalogue_to = self._saved_catalogue() or status.checkpoint_ts
        """The ts of `schema.bin`: from there on DDL is read when the feed is opened."""
        self._ended: dict[str, int] = {}
        """Spans whose progress is still kept at the sink, and the ts at which they ended."""
        self._saving: asyncio.Task[None] | None = None
        self._save_at = 0.0
        self._gone = asyncio.Event()

    @property
    def plan(self) -> FeedPlan:
        """What the incarnations have in common."""
        node, info = self.node, self.info
        paths = dataclasses.replace(node.paths, store=self.captured.store)
        return FeedPlan(node.cluster, self.id, self.uri, self.config, info.instance, paths, self.loading)

    @property
    def _ddl_span(self) -> Span:
        """Whose resolved ts bounds all others': that of DDL, or of a feed of keys the only one there is."""
        return DDL_SPAN if self.config.has_tables else KeyRange.of(self.config).span

    @property
    def _ddl_span_id(self) -> str:
        return span_id(self._ddl_span, self.config.tidegate.kv_mode)

    def forget_grant(self) -> None:
        """The next incarnation runs under a token of its own; the feed must not run."""
        self._grant = None

    def _saved_catalogue(self) -> int | None:
        """The ts of `schema.bin`; None when there is none to read, so that upstream is asked."""
        if not self.config.has_tables:
            return None
        return saved_ts(self.node.paths.feed(self.id) / SNAPSHOT)

    @property
    def needs(self) -> tuple[int, int]:
        """The least ts from which rows, and DDL, may still be read of upstream, were all that is stored gone.

        Upstream's history must be held from there on.
        """
        return self.persisted, min(
            self.persisted, self._catalogue_to
        ) if self.config.has_tables else self.persisted

    @property
    def scope(self) -> int:
        """The keyspace whose history it needs; -1: that of the cluster."""
        return self.config.tidegate.keyspace_id

    @property
    def history(self) -> History:
        """What PD keeps for us of what the feed follows."""
        return self.node.histories.get(self.scope, History())

    async def _settle(self) -> None:
        while beside := [job for job in (*self._jobs, self._saving) if job is not None and not job.done()]:
            await asyncio.wait(beside)

    def _close(self, *, forget: bool = False) -> None:
        """Let go of catalogue and spans; the next start opens them at the stored checkpoint."""
        self.captured.spans.release(self.id, forget=forget)
        self.owner = self._tracker = self._barrier = None
        self.waiting_for = ""

    def warn(self, error: FeedError) -> None:
        """Show a trouble that does not stop the pipeline."""
        if self.life.runs:
            self._spawn(self._show(error))

    async def _show(self, error: FeedError) -> None:
        await self._become_if_there_is_room(self.life.warned(error))

    async def _become_if_there_is_room(self, life: Life) -> None:
        """On a full disk the new state is shown, and not stored: a restart finds the one before."""
        before = self.life
        try:
            await self._become(life)
        except DiskFull:
            if self.life is before:
                self.life = life

    # --- replication ---------------------------------------------------------------------------------

    async def _replicate(self) -> None:
        if self.owner is None or self._tracker is None or self._tracker.broken:
            await self._open()
        if self.loading:
            await self._plan_load()
        try:
            await self._start_incarnation()
            while not self._reached:
                self._tick()
                self._look_out()
                if self._failure is not None:
                    raise self._failure
                await self._pause()
        finally:
            await to_its_end(self._end_incarnation())  # else a pause would save its process

    async def _pause(self) -> None:
        """Until the next tick: at once when something happened, else TICK_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK_S):
                await self._wake.wait()
        self._wake.clear()

    async def _open(self) -> None:
        """Catalogue, spans and owner at the stored checkpoint."""
        self._check_held()
        tracker = await self._open_tracker()
        ddl_span = self._ddl_span_id
        self._catalogue_to = tracker.resolved_ts
        self._hold(self._ddl_span, tracker.resolved_ts)
        self.waiting_for = "DDL puller" if self.config.has_tables else "puller"
        while not (resolved := self._resolved_from(ddl_span, tracker.resolved_ts)):
            self._check_history()
            await asyncio.sleep(TICK_S)
        batches, known = await asyncio.to_thread(tracker.begin, self.persisted, resolved)
        barrier = Barrier(self.persisted, self.info.target_ts, held_at=self.persisted if self.loading else 0)
        barrier.learn(batches, known)
        self._tracker, self._save_at = tracker, self.node.clock.monotonic()
        interval = self.config.tidegate.resolved_interval
        self.owner = Owner(self.persisted, tracker.initial, barrier, resolved_interval_s=interval)
        for task in (*tracker.initial, *(task for batch in batches for task in batch.added)):
            self._hold(task.span, task.start_ts)

    def _hold(self, span: Span, start_ts: int) -> None:
        self.captured.spans.hold(self.id, span, start_ts, guarded=self.config.check_gc_safe_point)

    def _check_held(self) -> None:
        """Raises Retryable until PD has been asked to hold what the feed needs: nothing is read before."""
        needed, history = min(self.needs), self.history
        if self.config.check_gc_safe_point and needed < history.needed:
            held = f"from {history.needed} on" if history.needed < MAX else "nothing"
            raise Retryable(
                "Upstream's history is not held yet from where the changefeed needs it.",
                where=f"changefeed {self.id}",
                why=f"it needs it from {needed} on, PD has been asked for {held}",
                fix="nothing while PD answers: it is asked again every second",
            )

    def _check_history(self) -> None:
        """Raises Fatal when neither upstream nor the event store has what the feed needs."""
        refusal = self.captured.spans.refusal(self.id)
        if refusal is not None:
            name = span_id(refusal.span, self.config.tidegate.kv_mode)
            raise self._history_gone(refusal.start_ts, refusal.safe_point, f"span {name}")

    def _history_gone(self, ts: int, safe_point: int, what: str) -> Fatal:
        passed = "the checkpoint" if safe_point > self.persisted else "the saved catalogue"
        return Fatal(
            f"[{LOST}]upstream's GC safepoint {safe_point} has passed {passed}.",
            where=f"changefeed {self.id}, checkpoint {self.persisted}, catalogue of {self._catalogue_to}",
            why=f"{what} has to be read from {ts} on, and the event store does not have it from there either",
            fix="remove the changefeed and create it again from a later start-ts",
        )

    def _resolved_from(self, span: str, start: int) -> int:
        """How far a span is resolved that is kept from `start` on; 0: not to the checkpoint, or not so.

        What is kept may begin later, until the puller has begun anew from where it was told.
        """
        frontier = self._frontier()
        manifest = self.node.manifest(self.captured.store, span)
        if manifest is None or manifest.dropped_to > start:
            return 0
        resolved = frontier.reach(span, manifest)
        return resolved if resolved >= max(self.persisted, start) else 0

    async def _open_tracker(self) -> SchemaTracker | KeyTracker:
        if not self.config.has_tables:
            return KeyTracker(self._ddl_span, self.config.tidegate.kv_mode, self.persisted)
        snapshot = self.plan.folder / SNAPSHOT
        self.waiting_for = "catalogue from upstream"
        if not snapshot.exists():
            safe_point = self.history.safe_point
            if self.config.check_gc_safe_point and self.persisted < safe_point:
                raise self._history_gone(self.persisted, safe_point, "the catalogue")
            await asyncio.to_thread(save_catalogue, self.node.pd, self.persisted, snapshot)
        try:
            return await asyncio.to_thread(SchemaTracker.load, snapshot, self.captured.store, self._filter)
        except Undecodable as error:
            event(LOG, logging.WARNING, "catalogue is read again", where=str(snapshot), why=error.what)
            await asyncio.to_thread(save_catalogue, self.node.pd, self.persisted, snapshot)
            return await asyncio.to_thread(SchemaTracker.load, snapshot, self.captured.store, self._filter)

    async def _plan_load(self) -> None:
        """The ranges of the initial load, of the tables there are at the checkpoint, or of the keys."""
        assert self._tracker is not None
        self.waiting_for = "regions from PD"
        tables = self._tracker.initial
        self._load_plan = await asyncio.to_thread(
            initial_load.plan_load, self.node.pd, self.persisted, tables, self.plan.folder
        )
        self.load = dataclasses.replace(self.load, ranges=len(self._load_plan.ranges))

    def _definitions(self) -> list[DdlEvent]:
        """What is told of the tables before their rows; keys need no telling."""
        if not isinstance(self._tracker, SchemaTracker):
            return []
        return initial_load.definitions(self._tracker.followed(self.persisted), self._filter, self.persisted)

    def _frontier(self) -> Frontier:
        return outlook.read_frontier(self.captured.store)

    async def _start_incarnation(self) -> None:
        """Grant, files, sink, process: in this order."""
        assert self.owner is not None
        self._failure, self._reached = None, False
        self._wake.clear()
        self._gone.clear()
        token = self._grant.token if self._grant else self.node.token()
        grant = await self.node.raise_grant(self.id, self.info.instance, token, self.plan.slots)
        self._grant = grant
        self.owner.granted(grant.token, grant.incarnation)
        path = self.plan.folder / "barrier.json"
        self._barrier = BarrierFile(path, grant.token, self.info.target_ts, self._ddl_span_id)
        self._write_barrier(self._barrier, self.owner)
        first = await asyncio.to_thread(self._definitions) if self.loading else []
        own, beats = self.config.tidegate, self.plan.folder / grant.work_folder / BEATS
        self._watch = FeedWatch(self.node.clock, beats, own.stall_timeout, own.start_timeout)
        self._sink_thread = thread = SinkThread(self.id)
        self.waiting_for = "sink"
        async with self._watched_start():
            self._incarnation = await processor.start(
                self.plan, grant, self.node.pipeline_command, self.node.open_sink, thread, first
            )
        self.waiting_for = PIPELINE_STARTS
        self._incarnation.ended.add_done_callback(self._on_exit)
        self.totals.starts += 1

    @contextlib.asynccontextmanager
    async def _watched_start(self) -> AsyncIterator[None]:
        """Interrupts the start within when the sink stands still in it, and raises that."""
        loop = asyncio.get_running_loop()

        async def watch(limit: asyncio.Timeout) -> None:
            while self._failure is None:
                await asyncio.sleep(LOOK_S)
                self._look_out()
            limit.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as limit:
                watching = asyncio.create_task(watch(limit))
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError:
            if self._failure is None:
                raise
            raise self._failure from None

    def _look_out(self) -> None:
        """Notice what stands still."""
        watch, thread, incarnation = self._watch, self._sink_thread, self._incarnation
        if watch is None or thread is None:
            return
        if incarnation is None:
            hung = watch.look(str, 0, thread)
        else:
            hung = watch.look(self._work, incarnation.child.pid, thread)
        if hung is not None:
            metrics.restarts.labels("pipeline").inc()
            self._fail(hung)

    def _work(self) -> str:
        """What the pipeline has to do now, in words; empty: nothing."""
        if self.waiting_for == PIPELINE_STARTS:
            return "its start"
        if self.loading:
            return "" if self.load.finished and self.load.ranges else self.waits_for()
        owner, spans = self.owner, self._undelivered
        if owner is None or not spans:
            return ""
        slowest = owner.spans[min(spans, key=owner.durable)]
        return f"rows of {self._named(slowest)}" + (f" and {len(spans) - 1} more" if len(spans) > 1 else "")

    async def _end_incarnation(self) -> None:
        """Stop process and sink. A sink call that does not end is left behind: the next sink fences it."""
        if self.owner is not None:
            self.owner.sink_lost()
        incarnation, self._incarnation = self._incarnation, None
        self._watch = self._sink_thread = None
        if self._jobs:
            _, late = await asyncio.wait(self._jobs, timeout=JOBS_S)
            for job in late:
                job.cancel()
        if incarnation is not None:
            await incarnation.stop(STOP_S)

    def _on_exit(self, ended: asyncio.Task[int]) -> None:
        """The process is gone: its last words tell why, else its exit code does."""
        if self._incarnation is not None and self._incarnation.ended is ended and not ended.cancelled():
            self._spawn(self._hear_last_words(ended.result()))

    async def _hear_last_words(self, code: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._gone.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._fail(Retryable("The pipeline process has ended.", where=str(self.plan.folder / "log"), why=how))

    def _fail(self, error: TidegateError) -> None:
        """The first failure of an incarnation is the one that is shown."""
        if self._failure is None:
            self._failure = error
        self._wake.set()

    # --- what the pipeline says ----------------------------------------------------------------------

    def hear(self, incarnation: int, report: FromPipeline) -> None:
        """What a pipeline process of this feed says; one of an old incarnation changes nothing."""
        owner, grant, current = self.owner, self._grant, self._incarnation
        if owner is None or grant is None or incarnation != grant.incarnation:
            return
        if self._watch is not None:
            self._watch.heard()
        match report:
            case PipelineHello():
                pass
            case Started(spans):
                if current is not None:
                    # Where it begins: the sink's own progress may be ahead of what was told.
                    owner.report(grant.token, grant.incarnation, spans)
                    owner.sink_open(current.resolved_journal)
                    self.waiting_for = ""
                    event(LOG, logging.INFO, "pipeline started", changefeed=str(self.id))
            case Durable(token, spans, stats):
                owner.report(token, incarnation, spans)
                if stats:  # a task that goes on counts at its end
                    self.totals.count(self.id, stats, self.plan.folder)
                if stats.get("rows"):
                    self.last_synced_ts = max(self.last_synced_ts, *spans.values())
            case Loaded(state, stats):
                self.totals.count(self.id, stats, self.plan.folder)
                self._hear_load(owner, state)
            case Failed():
                self._fail(report.error())
            case Gone():
                self._gone.set()
            case _:
                assert_never(report)
        self._wake.set()

    def _hear_load(self, owner: Owner, state: LoadState) -> None:
        self.load = state
        if self.loading and state.finished:
            self._spawn(self._end_load(owner))

    async def _end_load(self, owner: Owner) -> None:
        """The load is durable downstream: store that, then let the stream go on."""
        ts, plan = self.persisted, self._load_plan
        assert plan is not None
        status = FeedStatus(ts, self.resolved_ts, loaded=True)
        await self.node.write(Put(feed_key(self.node.cluster, self.id, "status"), status.to_bytes()))
        self.loading, self.waiting_for = False, ""
        owner.load_done()
        event(LOG, logging.INFO, "initial load done", changefeed=str(self.id), ts=ts, rows=self.load.rows)
        (self.plan.folder / LOAD_FILE).unlink(missing_ok=True)
        if self._incarnation is not None:
            await self._incarnation.forget(load_key(one.id) for one in plan.ranges)

    # --- the tick ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Read what has arrived, advance what is idle, obey the owner, tell the pipeline its bound."""
        owner, tracker, barrier = self.owner, self._tracker, self._barrier
        assert owner is not None
        assert tracker is not None
        assert barrier is not None
        self._check_history()
        frontier = self._frontier()
        ddl_resolved = frontier.get(self._ddl_span_id, 0)
        if ddl_resolved > owner.barrier.resolved:
            batches, known = tracker.catch_up(ddl_resolved, len(owner.barrier.waiting))
            owner.barrier.learn(batches, known)
            for batch in batches:
                # Pulled from now on, delivered from the DDL on.
                for task in batch.added:
                    self._hold(task.span, task.start_ts)
        self._advance_idle(owner, frontier)
        for effect in owner.tick(self.node.clock.monotonic()):
            self._spawn(self._perform(owner, effect))
        self.checkpoint = owner.checkpoint
        self._move_floor(owner, tracker, barrier)
        with contextlib.suppress(DiskFull):  # then the pipeline keeps to the bound it was told before
            self._write_barrier(barrier, owner)
        self._note(owner, frontier)

    def _write_barrier(self, barrier: BarrierFile, owner: Owner, *, raise_starts: bool = False) -> None:
        bound, spans = owner.barrier.bound, owner.spans
        self.node.ballast.small(lambda: barrier.write(bound, spans, raise_starts=raise_starts))

    def _advance_idle(self, owner: Owner, frontier: Frontier) -> None:
        idle = []
        undelivered = []
        for span, after, upto in owner.idle_ranges(frontier):
            manifest = self.node.manifest(self.captured.store, span)
            if manifest is None or manifest.dropped_to > after or frontier.reach(span, manifest) < upto:
                continue
            if outlook.pending(manifest, after, upto)[0]:
                undelivered.append(span)
            else:
                idle.append((span, after, upto))
        self._undelivered = undelivered
        if not idle:
            return
        # Once more: a span that was begun anew meanwhile has left the frontier before its rows were dropped.
        frontier = self._frontier()
        for span, after, upto in idle:
            if frontier.get(span, 0) >= upto:
                owner.idle(span, after, upto)

    def _note(self, owner: Owner, frontier: Mapping[str, int]) -> None:
        resolved = min((frontier.get(name, 0) for name in owner.spans), default=owner.barrier.resolved)
        self.resolved_ts = max(self.resolved_ts, min(resolved, owner.barrier.resolved))

    async def _perform(self, owner: Owner, effect: Effect) -> None:
        """Carry out one effect and tell the owner."""
        incarnation = self._incarnation
        assert incarnation is not None
        match effect:
            case SendDdl(batch):
                if batch.error is not None:
                    raise batch.error
                await incarnation.send_ddl(batch)
                _, removed = owner.ddl_done(batch.finished_ts)
                for name in removed:
                    self._let_go(owner, name, batch.finished_ts)
                self._log_ddl(batch.finished_ts, [e.query for e in batch.events])
            case SendResolved(ts):
                await incarnation.send_resolved(ts)
                owner.resolved_done(ts)
                if not self.node.ballast.trouble:
                    await self._become_if_there_is_room(self.life.progressed())
            case Persist(ts):
                await self._persist(owner, ts)
            case Finish():
                self._reached = True
        self._wake.set()

    def _let_go(self, owner: Owner, span: str, ended: int) -> None:
        """A span has ended; a DDL that waits may bring it back (a table that is recovered)."""
        again = owner.barrier.start_of(span)
        self.captured.spans.drop(self.id, span, again_from=again)
        if again is None:
            self._ended[span] = ended

    def _log_ddl(self, ts: int, queries: list[str]) -> None:
        self.totals.ddl_events += len(queries)
        metrics.ddl_events.labels(self.id.namespace, self.id.name).inc(len(queries))
        event(LOG, logging.INFO, "ddl delivered", changefeed=str(self.id), finished_ts=ts, count=len(queries))

    async def _persist(self, owner: Owner, ts: int) -> None:
        loaded = self.config.tidegate.initial_load and not self.loading
        status = FeedStatus(ts, self.resolved_ts, loaded)
        try:
            await self.node.write(Put(feed_key(self.node.cluster, self.id, "status"), status.to_bytes()))
        except DiskFull:
            owner.persist_failed()  # and asks for it again
            return
        except Retryable:
            owner.persist_failed()
            raise
        owner.persisted(ts)
        self.persisted = ts

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the loop; its failure is the incarnation's."""
        task = asyncio.create_task(self._guard(work))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _guard(self, work: Awaitable[None]) -> None:
        try:
            await work
        except TidegateError as error:
            self._fail(error)
        except Exception as error:
            LOG.exception("changefeed %s: unexpected error", self.id)
            self._fail(unexpected(error))

    # --- letting go of old segments ------------------------------------------------------------------

    def _move_floor(self, owner: Owner, tracker: SchemaTracker | KeyTracker, barrier: BarrierFile) -> None:
        """Now and then move what readers start from, so that old segments can be dropped a while later."""
        now = self.node.clock.monotonic()
        if now - self._floor_at < FLOOR_S:
            return
        self._floor_at = now
        if self._save_due(owner.persisted_ts, now):
            image = tracker.image(owner.persisted_ts)
            self._saving = asyncio.create_task(self._save(image), name=f"catalogue of {self.id}")
        self._forget_progress(owner.persisted_ts)
        try:
            self._write_barrier(barrier, owner, raise_starts=True)
        except DiskFull:
            return  # readers may still start from below: nothing is let go
        self._floors.append((now, owner.persisted_ts, self._catalogue_to))
        while self._floors and now - self._floors[0][0] >= DROP_AFTER_S:
            _, self._drop_rows, self._drop_ddl = self._floors.pop(0)

    def _forget_progress(self, checkpoint: int) -> None:
        """Of spans that a restart cannot want any more."""
        incarnation, gone = self._incarnation, [s for s, ts in self._ended.items() if ts <= checkpoint]
        if gone and incarnation is not None:
            for span in gone:
                del self._ended[span]
            self._spawn(incarnation.forget(gone))

    def _save_due(self, checkpoint: int, now: float) -> bool:
        """When DDL has passed the checkpoint; else seldom, so that the catalogue is not far behind."""
        if not self.config.has_tables or (self._saving is not None and not self._saving.done()):
            return False
        ddl = self.node.manifest(self.captured.store, self._ddl_span_id)
        passed = ddl is not None and outlook.pending(ddl, self._catalogue_to, checkpoint)[0] > 0
        return now >= (self._save_at if passed else self._save_at + SAVE_IDLE_S)

    async def _save_last(self) -> None:
        """Before the spans are released: upstream need not be asked again for the DDL that was delivered."""
        tracker = self._tracker
        if not isinstance(tracker, SchemaTracker) or tracker.broken or self._catalogue_to >= self.persisted:
            return
        try:
            image = tracker.image(self.persisted)
            await asyncio.to_thread(save_image, self.plan.folder / SNAPSHOT, image)
            self._catalogue_to = image.ts
        except (OSError, DiskFull) as error:
            # Not needed: upstream's history is held from where the older one stands.
            event(LOG, logging.WARNING, "catalogue not saved", changefeed=str(self.id), why=str(error))

    async def _save(self, image: Image) -> None:
        """Write `schema.bin` beside the loop; the larger it is, the longer the rest after it."""
        clock = self.node.clock
        began = clock.monotonic()
        try:
            await asyncio.to_thread(save_image, self.plan.folder / SNAPSHOT, image)
        except DiskFull as error:
            event(LOG, logging.WARNING, "catalogue not saved", changefeed=str(self.id), why=error.why)
            self._save_at = clock.monotonic() + FLOOR_S
            return
        except OSError as error:
            self._fail(
                Retryable("The catalogue cannot be saved.", where=str(self.plan.folder), why=str(error))
            )
            return
        self._catalogue_to = image.ts
        self._save_at = clock.monotonic() + SAVE_REST * (clock.monotonic() - began)

    @property
    def floor(self) -> int:
        """What lies at or below this nobody needs for the feed any more, were a span's files to go at once.

        A feed that does not run needs what is above its checkpoint when it is resumed.
        """
        return self.drop_below[0] if self.owner is not None else max(0, self.persisted - self._retained)

    @property
    def drop_below(self) -> tuple[int, int]:
        """Up to where rows, and DDL entries, may go: delivered, past every reader, not retained."""
        kept = self._retained
        return max(0, self._drop_rows - kept), max(0, self._drop_ddl - kept)

    @property
    def _retained(self) -> int:
        return compose(round(self.config.tidegate.retention * 1000))

    # --- for people ----------------------------------------------------------------------------------

    def waits_for(self) -> str:
        """What the checkpoint waits for, in words; empty when nothing is known."""
        if self.life.state in (State.STOPPED, State.FAILED):
            return self._words_of_history()
        if self.waiting_for or self.owner is None or self._tracker is None:
            return self.waiting_for
        if self.loading:
            return f"initial load: {self.load.done} of {self.load.ranges} ranges"
        batch = self.owner.barrier.next
        slowest = self.owner.slowest()
        if batch is not None and batch.events:
            return f"DDL at {batch.finished_ts}: {batch.events[0].query[:80]}"
        if slowest is None or self.owner.durable(slowest.id) >= self.owner.barrier.bound:
            return "resolved ts of the DDL span"
        return self._named(slowest)

    def _named(self, task: SpanTask) -> str:
        """A span, with its table's name where that is known."""
        name = self._tracker.name_of(task.physical_id) if self._tracker is not None else ""
        return f"span {task.id} ({name or f'table id {task.physical_id}'})"

    def _words_of_history(self) -> str:
        """Whether a feed that does not run can go on later."""
        needed, safe_point = min(self.needs), self.history.safe_point
        if self.lost:
            return ""  # its error says so
        if self.released:
            return (
                f"a resume: it was {self.life.state} for longer than gc-ttl ({self.node.gc_ttl_s} s), so "
                "nothing is held for it any more; it goes on if upstream or the event store still has what "
                f"came after ts {needed}"
            )
        if needed < safe_point < MAX:
            return (
                f"a resume: upstream's GC safepoint {safe_point} has passed ts {needed}, where it reads on; "
                "it goes on if the event store still has what lies between"
            )
        return ""

    def left_out(self, limit: int) -> tuple[int, list[tuple[str, str]]]:
        """Tables that pass the rules and cannot be replicated: how many, and of some (name, reason)."""
        tables = self._tracker.left_out if self._tracker else ()
        return len(tables), [(table.name, why_ineligible(table)) for table in tables[:limit]]

    def lag_ms(self, now_ms: int) -> int:
        """PD's time minus the checkpoint's."""
        return max(0, now_ms - physical_ms(self.checkpoint))
