"""Works for one feed on a capture: has its spans pulled, runs its pipeline, reports progress to the owner.

    Dispatch --> rest | prepare: spans are pulled | run: and an incarnation of the pipeline delivers them

`control.processor` decides; this file performs. It is composed of the catalogue and spans that are open
(`openings`), the pipeline (`pipeline`), what workers may read (`reader_bounds`), and what it reports for
people (`status`). It knows the owner only by its messages, wherever that runs. It runs in the
control process's asyncio loop, and blocking work in threads. A tick follows each message of the owner or the
pipeline, and each rise of floors (`server.pulling.pulse`). While the file of the last tick is being written,
only what an owner waits for has another one at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Final, assert_never

import orjson

from tidegate import __version__
from tidegate.control.messages import FROM_OWNER, Dispatch, Header, Wish, parse
from tidegate.control.metadata import FeedId
from tidegate.control.processor import Goal, Processor
from tidegate.errors import TidegateError
from tidegate.log import event
from tidegate.model.reports import Failed
from tidegate.model.timestamp import MAX
from tidegate.server.captures.message_router import Box
from tidegate.server.node import Node
from tidegate.server.processor.openings import Openings
from tidegate.server.processor.pipeline import FeedPipeline
from tidegate.server.processor.reader_bounds import ReaderBounds
from tidegate.server.processor.space_release import SpaceRelease
from tidegate.server.processor.status import StatusReports
from tidegate.server.supervision.jobs import to_its_end, unexpected

LOG: Final = logging.getLogger(__name__)

TICK_S: Final = 0.02
"""Seconds between two ticks while new DDL waits for the catalogue, which another thread may be using."""
RETRY_S: Final = 1.0
"""Seconds until the next look while nothing is open, or after a defect."""


class FeedProcessor:
    """A feed on this capture, from the first message of its owner on."""

    def __init__(self, node: Node, feed: FeedId, sequence: int = 0) -> None:
        """`sequence`: the number of the last message that this process sent for the feed."""
        self.node, self.id = node, feed
        header = Header(node.cluster, str(feed), "", 0, node.capture, node.epoch, sequence)
        self.machine = Processor(header, __version__, os.cpu_count() or 1)
        self._wake = asyncio.Event()
        self.box = Box(self._wake.set)
        self._task: asyncio.Task[None] | None = None
        self._goal: Goal | None = None
        self._work: asyncio.Task[None] | None = None
        self._failure: TidegateError | None = None
        self._over = False
        """Whether the failure of the goal was reported: nothing happens until the owner has another goal."""
        self._says_it_runs = False
        """Whether the owner was sent that an incarnation runs here."""
        wake = self._wake.set
        self._bounds = ReaderBounds(node, self.machine, self._fail, wake)
        self.pipeline = FeedPipeline(node, feed, self.machine, self._bounds, self._fail, wake)
        self.openings = Openings(node, feed, self.machine, self._bounds, self.pipeline, wake)
        self._status = StatusReports(self.machine, self.pipeline, self.openings)
        self._space_release = SpaceRelease(feed)
        self.received_at = node.clock.monotonic()
        """When the last message of its owner came."""

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
        await self._bounds.written()  # its folder may be removed next
        self.openings.close()

    async def _pause(self) -> None:
        """Wait until the next tick, which comes at once if something has happened.

        During a write nothing more can be let through to workers. So what comes then waits for its end and is
        taken together, which costs less on a busy machine. But an owner's messages, and that ranges run or
        were given up, are not held back: in a round all captures wait for them.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rest_s()):
                await self._wake.wait()
        while (writing := self._bounds.writing) is not None and not self._is_waited_for:
            self._wake.clear()
            woken = asyncio.create_task(self._wake.wait())
            try:
                await asyncio.wait({writing, woken}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()
        # After the wait: what comes during a step ends the next wait at once.
        self._wake.clear()

    @property
    def _is_waited_for(self) -> bool:
        """Whether the next messages say more than progress, or an owner has sent some."""
        says_more = self.machine.outbox.has_response or self.machine.is_running != self._says_it_runs
        has_failed = self._failure is not None and not self._over
        return says_more or has_failed or not self.box.is_empty

    def _rest_s(self) -> float:
        """Seconds until the next tick if nothing happens."""
        if not self.machine.spans.is_open:
            return RETRY_S
        opening = self.openings.opened
        if opening.is_behind:
            return TICK_S
        starts_or_loads = self.pipeline.is_starting or self.pipeline.load_plan is not None
        has_work = starts_or_loads or bool(opening.arrivals.undelivered)
        return self.node.pulse.rest_s(opening.plan.paths.store, watched=has_work)

    # --- what the owner wants ------------------------------------------------------------------------

    async def _step(self) -> None:
        for message in self.box.take():
            try:
                if self.machine.receive(parse(orjson.loads(message), FROM_OWNER)):
                    self.received_at = self.node.clock.monotonic()
                    if self.openings.current is not None:
                        self.openings.current.receive_history()
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
            self._goal, self._failure, self._over = goal, None, False
            self.openings.is_ready = False
            if dispatch.wish in (Wish.PREPARE, Wish.RUN):
                # Before the next Sync, with which the owner takes this Dispatch as received. From then on it
                # holds only what we report, and what we will read is not known before the catalogue is open.
                self.machine.needs = min(self.machine.needs, dispatch.needed, dispatch.checkpoint)
            self._work = asyncio.create_task(self._reach(dispatch), name=f"{goal.wish} {self.id}")
        try:
            if self.openings.is_ready and self._failure is None:
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
            self.openings.close()
        now = self.node.clock.monotonic()
        self._status.take(now)
        self.machine.ready = self.node.application.working.workers > 0
        self.openings.measure_loads()
        for answer in self.machine.tick(now):
            self.node.router.to_owner(answer)
        self._says_it_runs = self.machine.is_running

    async def _reach(self, dispatch: Dispatch) -> None:
        """Reach the goal of a Dispatch, whatever was done before."""
        try:
            if self.pipeline.is_there:
                await to_its_end(self.pipeline.end())
            match dispatch.wish:
                case Wish.REST | Wish.DELETE:
                    # Before the answer: the owner takes it to mean that nothing is held or written here.
                    self.openings.close(forget=dispatch.wish is Wish.DELETE)
                    self.machine.needs = MAX
                    self._space_release.over()  # it holds nothing now, and may prepare again
                    self.machine.given_up()
                case Wish.PREPARE:
                    # Before the spans are opened. The pipeline has ended, and the owner waits for nothing
                    # else.
                    self.machine.given_up()
                    self._wake.set()  # now: to open takes a while, and no range moves before this answer
                    if not self._space_release.is_done:
                        await self.openings.prepare(dispatch)
                case Wish.RUN:
                    self._space_release.over()
                    since = self.node.clock.monotonic()
                    # Meanwhile: nothing of the changefeed is delivered, and neither needs the other.
                    granted = asyncio.create_task(self.pipeline.granted(dispatch))
                    try:
                        await self.openings.open(dispatch)
                        opened_ms = round(1000 * (self.node.clock.monotonic() - since))
                        grant = await granted
                    finally:
                        if not granted.cancel():
                            granted.exception()  # taken, also if the opening has failed before
                    await self.pipeline.start(dispatch, self.openings.opened, grant, opened_ms)
                case _:
                    assert_never(dispatch.wish)
        except TidegateError as error:
            self._fail(error)
        except Exception as error:
            LOG.exception("changefeed %s: unexpected error", self.id)
            self._fail(unexpected(error))
        self._wake.set()

    async def _end_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await to_its_end(_over(work))
        self.openings.waits = self.pipeline.waits = ""

    def _fail(self, error: TidegateError) -> None:
        """Remember the first failure of an incarnation: later ones are its consequences."""
        if self._failure is None:
            self._failure = error
        self._wake.set()

    # --- room for others ------------------------------------------------------------------------------

    def _check_space(self) -> None:
        """Fail if the event store fills up, this feed makes no progress, and others need its space."""
        opening, dispatch = self.openings.current, self.machine.dispatch
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
        return wanted and (not self.openings.is_ready or self.pipeline.is_starting)

    # --- the tick ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Read what has arrived, advance idle spans, have the bound written for the pipeline."""
        opening, dispatch = self.openings.opened, self.machine.dispatch
        assert dispatch is not None
        opening.look(dispatch)
        self.pipeline.end_load()
        self._bounds.follow(opening, dispatch.checkpoint)
        self.pipeline.look()


async def _over(work: asyncio.Task[None]) -> None:
    """Wait until it has ended, however it ends."""
    await asyncio.wait({work})
