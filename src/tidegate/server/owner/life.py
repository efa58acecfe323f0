"""Runs a changefeed on this node as its life says: started, paused, failed, tried again.

    start -> [replicate -> back-off] ... -> ended

`control.changefeed` decides whether it runs, `server.owner.record` stores that, and
`server.owner.replication` replicates. This module knows neither spans nor pipelines.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import random
import re
from typing import Final

from tidegate.control.changefeed import Command, Life, State
from tidegate.control.metadata import FeedError
from tidegate.disk import DiskFull
from tidegate.errors import Fatal, Fenced, Retryable, TidegateError
from tidegate.log import event, redact
from tidegate.server.node import Node
from tidegate.server.owner.record import FeedRecord
from tidegate.server.owner.replication import Replication
from tidegate.server.supervision.jobs import to_its_end, unexpected

LOG: Final = logging.getLogger(__name__)


class FeedLife:
    """The task of one changefeed. Lives in one asyncio loop; concurrent stops run one after the other."""

    def __init__(self, node: Node, record: FeedRecord, replication: Replication) -> None:
        self._node, self._record, self._replication = node, record, replication
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Lock()

    def start(self) -> None:
        """Run the loop, unless the life has ended, it runs already, or another capture is the owner."""
        if self._node.over() is not None:  # the request began before the capture was lost
            return
        if not self._record.life.ended and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name=f"feed {self._record.id}")

    async def stop(self, *, forget: bool = False) -> None:
        """End the loop and everything it started; the stored state stays. `forget`: the feed is removed."""
        # A second cancellation would interrupt the end of the incarnation, and leave its processes running.
        async with self._stopping:
            if self._task is not None:
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task
                self._task = None
            if forget:
                self._record.life = Life(State.REMOVED)
            await self._leave(forget=forget)

    async def _leave(self, *, forget: bool = False) -> None:
        await self._replication.wait_for_tasks()
        await self._replication.close(forget=forget)

    async def command(self, command: Command) -> None:
        """Pause or resume, durably. Raises InvalidInput when the feed's state does not allow it."""
        record = self._record
        life = record.life.commanded(command)
        if life is record.life:
            return
        if life.ended:
            # An ended life may still have a task that leaves. A new one must not run at the same time.
            await self.stop()
        try:
            await record.become(life)
        finally:
            self.start()  # if the new state could not be stored, the feed continues

    async def _run(self) -> None:
        record = self._record
        try:
            while not record.life.ended:
                try:
                    if record.life.runs:
                        await self._try()
                    await self._back_off()
                    if record.life.ended:  # inside the loop, so that a resume meanwhile finds it running
                        await to_its_end(self._leave())
                except Retryable as error:
                    feed = str(record.id)
                    event(LOG, logging.ERROR, "metadata store failed", changefeed=feed, error=str(error))
                    await asyncio.sleep(1.0)
        except Fenced:
            event(LOG, logging.ERROR, "changefeed stops: not the owner", changefeed=str(record.id))
        finally:
            if record.life.ended:
                await to_its_end(self._leave())

    async def _back_off(self) -> None:
        record, clock = self._record, self._node.clock
        while record.life.state is State.PENDING:
            self._replication.waiting_for = "back-off"
            await asyncio.sleep(max(0.0, record.life.retry_at - clock.monotonic()))
            await record.become(record.life.ticked(clock.monotonic()))

    async def _try(self) -> None:
        """Replicate until something fails or the target is reached."""
        node, record = self._node, self._record
        try:
            await self._replication.replicate()
            await record.become(record.life.finished())
        except Exception as error:
            shown = error if isinstance(error, TidegateError) else unexpected(error)
            event(LOG, logging.WARNING, "changefeed failed", changefeed=str(record.id), error=str(shown))
            # Wait for disk space without a time limit: a full disk is not the changefeed's own failure.
            full = isinstance(shown, DiskFull) or bool(node.ballast.trouble)
            now = node.clock.monotonic()
            life = record.life.failed(
                self._feed_error(shown),
                retry=isinstance(shown, Retryable | Fenced),
                now=now,
                stuck_s=math.inf if full else record.config.error_stuck_s,
                jitter=random.random(),
            )
            if life.state is State.PENDING and not self._replication.had_rows_lately():
                life = dataclasses.replace(life, retry_at=node.retry_turns.take(life.retry_at, now))
            await record.become(dataclasses.replace(life, stuck_since=None) if full else life)

    def _feed_error(self, error: TidegateError) -> FeedError:
        code = {Retryable: "CDC:ErrRetryable", Fatal: "CDC:ErrFatal"}.get(type(error), "CDC:ErrChangefeed")
        named = re.match(r"\[(CDC:\w+)\]", error.what)
        code = named[1] if named else code
        return FeedError(redact(str(error)), code, self._node.clock.now_ms(), self._node.address)
