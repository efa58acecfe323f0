"""The pipeline of a changefeed on this capture, from incarnation to incarnation: started, watched, ended.

    start: grant, bounds, spec --> the application runs it --> reports --> it has ended, or hangs: `fail`

`server.processor.processor` says when. The pipeline's reports go to the machine (`control.processor`) and to
the totals. Reports of an earlier incarnation change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, assert_never

from tidegate import metrics
from tidegate.control.grants import Grant
from tidegate.control.load import LoadPlan
from tidegate.control.messages import Dispatch, Wish
from tidegate.control.metadata import FeedId
from tidegate.control.processor import Processor
from tidegate.errors import Retryable, TidegateError
from tidegate.log import event
from tidegate.model.progress import load_key
from tidegate.model.reports import (
    ConnectionClosed,
    Durable,
    Failed,
    FromPipeline,
    Loaded,
    LoadState,
    PipelineHello,
    Started,
)
from tidegate.pipeline.exchange.feed import BEATS, LOAD_FILE
from tidegate.server.delivery import initial_load
from tidegate.server.delivery.application import Running
from tidegate.server.delivery.initial_load import words_of_load
from tidegate.server.delivery.plan import write_spec
from tidegate.server.delivery.totals import Totals
from tidegate.server.delivery.watch import PipelineWatch
from tidegate.server.node import Node
from tidegate.server.processor.opening import Opening
from tidegate.server.processor.reader_bounds import ReaderBounds
from tidegate.server.processor.words import words_of_undelivered

LOG: Final = logging.getLogger(__name__)

PIPELINE_STARTS: Final = "pipeline"
"""The text of `waits` until the pipeline reports that it has started."""
LAST_WORDS_S: Final = 5.0
"""How long we wait for the reason when a pipeline has ended."""


class FeedPipeline:
    """One asyncio loop. After `end` it can be started again."""

    def __init__(
        self,
        node: Node,
        feed: FeedId,
        machine: Processor,
        bounds: ReaderBounds,
        fail: Callable[[TidegateError], None],
        wake: Callable[[], None],
    ) -> None:
        """`fail` gets why an incarnation has ended; `wake`: a report has changed something."""
        self._node, self._id, self._machine, self._bounds = node, feed, machine, bounds
        self._fail, self._wake = fail, wake
        self.totals = Totals()
        self.last_synced_ts = 0
        self.has_news = False
        """Whether rows were reported since the owner was sent the totals."""
        self.waits = ""
        """Describes what a start waits for."""
        self.load = LoadState()
        self.loaded = False
        self.load_plan: LoadPlan | None = None
        """The initial load that is under way."""
        self._opening: Opening | None = None
        """The catalogue and the spans with which it was started."""
        self._incarnation: Incarnation | None = None
        self._opened_ms = 0
        """How long the catalogue and the spans of the last start took to open, for the log."""
        self._asked_at = 0.0
        """When the application was last asked to run an incarnation."""

    @property
    def is_there(self) -> bool:
        """Whether an incarnation was started and not ended."""
        return self._incarnation is not None

    @property
    def is_starting(self) -> bool:
        """Whether the application was asked to run it, and it has not reported that it has started."""
        return self.waits == PIPELINE_STARTS

    @property
    def pid(self) -> int:
        """The process id of the pipeline, once it has reported it; 0: there is none."""
        return self._incarnation.pid if self._incarnation is not None else 0

    @property
    def beats(self) -> Mapping[str, int]:
        """The beats of its processes as read last."""
        return self._incarnation.watch.beats if self._incarnation is not None else {}

    def reset(self) -> None:
        """Forget the initial load: the catalogue and the spans are closed."""
        self.load, self.loaded, self.load_plan, self._opening = LoadState(), False, None, None

    async def granted(self, dispatch: Dispatch) -> Grant:
        """The grant that the owner has stored for a Dispatch. Raises Retryable if there is another one."""
        grant, instance = await self._node.read_grant(self._id), dispatch.header.instance
        if grant is None or (grant.instance, grant.incarnation) != (instance, dispatch.incarnation):
            raise Retryable(
                "the changefeed's grant is not the dispatched one", where=f"changefeed {self._id}"
            )
        return grant

    async def start(self, dispatch: Dispatch, opening: Opening, grant: Grant, opened_ms: int = 0) -> None:
        """Write its files, then ask the application to run it. Raises Retryable and DiskFull.

        `grant`: the one of this Dispatch. If it is replaced meanwhile, the workers' own proof fails.
        `opened_ms`: how long the opening took, for the log.
        """
        self._opened_ms = opened_ms
        self.load, self.loaded, self.load_plan = LoadState(), False, None
        node, self._opening = self._node, opening
        plan = replace(opening.plan, load=dispatch.load)
        plan.folder.mkdir(parents=True, exist_ok=True)  # another capture may have created the changefeed
        # Before the application is asked to run it, because its workers read the bounds as they begin.
        self._bounds.begin(plan, grant, opening)
        if dispatch.load:
            self.waits = "regions from PD"
            tables = filter(self._machine.holds, opening.ddl.tracker.initial)
            self.load_plan = await asyncio.to_thread(
                initial_load.plan_load, node.pd, dispatch.checkpoint, list(tables), plan.folder
            )
            self.load = replace(self.load, ranges=len(self.load_plan.ranges))
        own, beats = plan.config.tidegate, plan.folder / grant.work_folder / BEATS
        watch = PipelineWatch(node.clock, beats, own.stall_timeout, own.start_timeout)
        # Last of the files: a process that finds the spec must find all others.
        spec = await asyncio.to_thread(write_spec, plan, grant)
        self.waits, self._asked_at = PIPELINE_STARTS, node.clock.monotonic()
        running = node.application.run(str(self._id), grant.incarnation, spec)
        self._incarnation = Incarnation(grant, running, watch)
        self._incarnation.ended.add_done_callback(self._on_exit)
        self.totals.starts += 1

    async def end(self) -> None:
        """End the incarnation, and wait until the application has released it."""
        # Forgotten before the wait, so that reports and errors that still come change nothing.
        incarnation, self._incarnation = self._incarnation, None
        self._bounds.end()
        if incarnation is not None:
            await self._node.application.end(incarnation.running)

    def _on_exit(self, ended: asyncio.Task[bool]) -> None:
        """No process works for the incarnation any more: find out why."""
        current = self._incarnation
        if current is not None and current.ended is ended and not ended.cancelled():
            current.last_words = asyncio.create_task(self._receive_last_words(current))

    async def _receive_last_words(self, current: Incarnation) -> None:
        """Fail with the reason for the end.

        Its connection and its work in the application end in any order, and either may have the reason: a
        Failed that is still on the way is better than "its connection has ended". So we wait for both, but
        not for ever.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await current.gone.wait()
                await current.running.gone.wait()
        # Another one may have begun during the wait.
        if self._incarnation is current:
            where = str(self._node.application.log)
            why = current.running.how or "its connection has ended"
            self._fail(Retryable("the pipeline has ended", where=where, why=why))

    def look(self) -> None:
        """Fail if the pipeline makes no progress although it has work."""
        current = self._incarnation
        hung = current.watch.look(self._to_do, self._node.application.pid) if current is not None else None
        if hung is not None:
            metrics.restarts.labels("pipeline").inc()
            self._fail(hung)

    def _to_do(self) -> str:
        """The work that the pipeline has now, in words; empty: none."""
        if self.is_starting:
            return "its start"
        if self.load_plan is not None:
            is_done = self.load.finished and self.load.ranges
            return words_of_load(self.load) if self._machine.spans.is_open and not is_done else ""
        return words_of_undelivered(self._machine, self._opening) if self._opening is not None else ""

    def receive(self, incarnation: int, report: FromPipeline) -> None:
        """Take a report of this feed's pipeline; one of an earlier incarnation changes nothing."""
        current, machine = self._incarnation, self._machine
        if current is None or incarnation != current.grant.incarnation:
            return
        # Any report counts, not only progress: a slow sink is not a hang
        # (docs/guarantees.md#a-hang-never-goes-unnoticed).
        current.watch.received()
        match report:
            case PipelineHello(_, _, pid):
                current.pid = pid
            case Started(spans, outlived):
                # It says where it begins, because the sink's own progress may be ahead of the checkpoint.
                if machine.started(incarnation, spans, outlived):
                    self.waits = ""
                    assert machine.dispatch is not None
                    self._opened.has_begun_at(machine.dispatch.checkpoint)
                    self._opened.spans.note_progress(self._id, self._node.clock.monotonic())
                    began_ms = round(1000 * (self._node.clock.monotonic() - self._asked_at))
                    took = {"opened_ms": self._opened_ms, "began_ms": began_ms}
                    event(LOG, logging.INFO, "pipeline started", changefeed=str(self._id), **took)
            case Durable(token, spans, stats):
                machine.report(token, incarnation, spans)
                if stats:  # a task that is not finished reports its counts at its end
                    self._count(stats)
                if stats.get("rows"):
                    self.last_synced_ts = max(self.last_synced_ts, *spans.values())
            case Loaded(state, stats):
                self.load, self.loaded = state, state.finished
                self._count(stats)
            case Failed():
                self._fail(report.error())
            case ConnectionClosed():
                current.gone.set()
                current.last_words = asyncio.create_task(self._receive_last_words(current))
            case _:
                assert_never(report)
        self._wake()

    def _count(self, stats: Mapping[str, int]) -> None:
        self.totals.count(self._id, stats, self._opened.plan.folder)
        self.has_news = True

    def end_load(self) -> None:
        """End the initial load once the owner has stored that it is durable."""
        dispatch, plan = self._machine.dispatch, self.load_plan
        if plan is not None and dispatch is not None and dispatch.wish is Wish.RUN and not dispatch.load:
            self.load_plan = None
            # Before the records are deleted: a plan without them would load everything a second time.
            (self._opened.plan.folder / LOAD_FILE).unlink(missing_ok=True)
            self._machine.over(load_key(one.id) for one in plan.ranges)

    @property
    def _opened(self) -> Opening:
        assert self._opening is not None
        return self._opening


class Incarnation:
    """An incarnation that the application runs, and what watches it."""

    def __init__(self, grant: Grant, running: Running, watch: PipelineWatch) -> None:
        self.grant, self.running, self.watch = grant, running, watch
        self.ended = asyncio.create_task(running.gone.wait())
        self.gone = asyncio.Event()
        """Set when its connection has ended: all its reports have been read."""
        self.last_words: asyncio.Task[None] | None = None
        self.pid = 0
