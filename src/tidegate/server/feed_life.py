"""A changefeed's life on this node: started, paused, failed, tried again; state and error stored durably.

    start -> [replicate -> back-off] ... -> ended

`control.changefeed` says whether to run; `feed.Feed` says how to replicate. This part knows neither spans nor
pipelines.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Final

from tidegate.config.reading import config_from_json
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.changefeed import Command, Life, State
from tidegate.control.metadata import FeedError, FeedId, FeedInfo, FeedStatus, Put, feed_key
from tidegate.disk import DiskFull
from tidegate.errors import Fatal, Fenced, Retryable, TidegateError
from tidegate.filter.feed import FeedFilter
from tidegate.log import event, redact
from tidegate.server.feed_ddl import LOST
from tidegate.server.node import Node
from tidegate.sink.reader.sink import SILENT_CODE

LOG: Final = logging.getLogger(__name__)


class FeedLife(ABC):
    """What a changefeed is, and its state; a subclass replicates."""

    def __init__(self, node: Node, feed: FeedId, info: FeedInfo, status: FeedStatus) -> None:
        self.node, self.id, self.info = node, feed, info
        self.uri = parse_sink_uri(info.sink_uri)
        self.config = config_from_json(info.config)
        self.life = Life.restored(info.state, info.error)
        self.persisted = status.checkpoint_ts
        """Durable in the metadata store: where a restart begins; never above what is durable downstream."""
        self.waiting_for = ""
        self.turn = asyncio.Lock()
        """Held by whoever asks something of the feed, from the first look at its state to the last write."""
        if self.life.ended and not info.ended_ms:
            self.info = dataclasses.replace(info, ended_ms=node.now_ms())  # stored by an earlier version
        self._filter = FeedFilter.of(self.config)
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Lock()
        self.left_behind = False
        """Whether something that was to end has not: it may still write the feed's files."""

    @abstractmethod
    async def _replicate(self) -> None:
        """Replicate until the target is reached; raises what goes wrong. Cancelled by `stop`."""

    @abstractmethod
    async def _settle(self) -> None:
        """Wait for what runs beside the loop, once that has ended."""

    @abstractmethod
    async def _close(self, *, forget: bool = False) -> None:
        """Let go of all that `_replicate` opened; `forget`: for ever."""

    def start(self) -> None:
        """Run the loop, unless the feed's life has ended, it runs already, or another capture is to do so."""
        if self.node.over() is not None:  # a request that was under way when that began
            return
        if not self.life.ended and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name=f"feed {self.id}")

    async def stop(self, *, forget: bool = False) -> None:
        """End the loop and everything it started; the stored state stays. `forget`: for ever."""
        # A second cancellation would cut off the end of the incarnation: its process would live on.
        async with self._stopping:
            if self._task is not None:
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task
                self._task = None
            if forget:
                self.life = Life(State.REMOVED)
            await self._leave(forget=forget)

    async def _leave(self, *, forget: bool = False) -> None:
        await self._settle()
        await self._close(forget=forget)

    async def command(self, command: Command) -> None:
        """Pause or resume, durably. Raises InvalidInput when the feed's state does not allow it."""
        life = self.life.commanded(command)
        if life is self.life:
            return
        if life.ended:
            await self.stop()
        try:
            await self._become(life)
        finally:
            self.start()  # the feed goes on when it could not be stored that it stops

    async def update(self, info: FeedInfo) -> None:
        """Take on other settings, durably; the feed must not run. They are in force when it is resumed."""
        await self.stop()
        self.check_ended()
        await self.node.write(Put(feed_key(self.node.cluster, self.id, "info"), info.to_bytes()))
        self.info, self.uri = info, parse_sink_uri(info.sink_uri)
        self.config = config_from_json(info.config)
        self._filter = FeedFilter.of(self.config)

    def check_ended(self) -> None:
        """Raises Retryable while something of the feed goes on that was to end."""
        if self.left_behind:
            raise Retryable(
                "The changefeed has not ended yet.",
                where=f"changefeed {self.id}",
                why="its processor was asked to stop and has not answered",
                fix="retry the request; if this lasts, check that the disk answers, and restart the server",
            )

    async def _become(self, life: Life) -> None:
        """Take on a new life; state and error are stored when they changed.

        When they cannot be stored the feed keeps the life it had: what is shown is what a restart finds.
        """
        changed = (life.state, life.error) != (self.life.state, self.life.error)
        (before, known), self.life = (self.life, self.info), life
        if not changed:
            return
        ended = known.ended_ms or self.node.now_ms() if life.ended else 0
        self.info = info = dataclasses.replace(known, state=str(life.state), error=life.error, ended_ms=ended)
        key = feed_key(self.node.cluster, self.id, "info")
        try:
            await self.node.write(Put(key, info.to_bytes()))
        except TidegateError:
            if self.life is life and self.info is info:
                self.life, self.info = before, known
            raise
        if before.state is not life.state:
            event(LOG, logging.INFO, "changefeed state", changefeed=str(self.id), state=str(life.state))

    async def _run(self) -> None:
        try:
            while not self.life.ended:
                try:
                    if self.life.runs:
                        await self._try()
                    await self._back_off()
                    if self.life.ended:  # a resume that comes meanwhile finds the loop running
                        await to_its_end(self._leave())
                except Retryable as error:
                    event(
                        LOG, logging.ERROR, "metadata store failed", changefeed=str(self.id), error=str(error)
                    )
                    await asyncio.sleep(1.0)
        except Fenced:
            event(LOG, logging.ERROR, "changefeed stops: not the owner", changefeed=str(self.id))
        finally:
            if self.life.ended:
                await to_its_end(self._leave())

    async def _back_off(self) -> None:
        while self.life.state is State.PENDING:
            self.waiting_for = "back-off"
            await asyncio.sleep(max(0.0, self.life.retry_at - self.node.clock.monotonic()))
            await self._become(self.life.ticked(self.node.clock.monotonic()))

    async def _try(self) -> None:
        """Replicate until something fails or the target is reached."""
        try:
            await self._replicate()
            await self._become(self.life.finished())
        except Exception as error:
            shown = error if isinstance(error, TidegateError) else unexpected(error)
            event(LOG, logging.WARNING, "changefeed failed", changefeed=str(self.id), error=str(shown))
            # A full disk is waited for however long: it is nobody's failure to get on.
            full = isinstance(shown, DiskFull) or bool(self.node.ballast.trouble)
            life = self.life.failed(
                self._feed_error(shown),
                retry=isinstance(shown, Retryable | Fenced),
                now=self.node.clock.monotonic(),
                stuck_s=math.inf if full else self.config.error_stuck_s,
                jitter=random.random(),
            )
            await self._become(dataclasses.replace(life, stuck_since=None) if full else life)

    def _feed_error(self, error: TidegateError) -> FeedError:
        code = {Retryable: "CDC:ErrRetryable", Fatal: "CDC:ErrFatal"}.get(type(error), "CDC:ErrChangefeed")
        named = re.match(r"\[(CDC:\w+)\]", error.what)
        code = named[1] if named else code
        return FeedError(redact(str(error)), code, self.node.clock.now_ms(), self.node.address)

    @property
    def released(self) -> bool:
        """Whether nothing is held for it, upstream or here: stopped for too long, or its history is gone."""
        since_ms = self.node.now_ms() - self.info.ended_ms
        return self.life.ended and (self.lost or since_ms > self.node.gc_ttl_s * 1000)

    @property
    def lost(self) -> bool:
        """Whether it has failed because neither upstream nor the event store has what it needs; or because a
        reader's changes were let go.
        """
        error = self.life.error
        return self.life.state is State.FAILED and error is not None and error.code in (LOST, SILENT_CODE)

    @property
    def shown_state(self) -> State:
        """As TiCDC shows it: waiting for a retry is a warning."""
        return State.WARNING if self.life.state is State.PENDING else self.life.state


def unexpected(error: Exception) -> TidegateError:
    """What no code of ours raised on purpose, as a failure that is tried again."""
    return Retryable("An unexpected error stopped the changefeed.", why=f"{type(error).__name__}: {error}")


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that must not be cut off; a cancellation that comes meanwhile is passed on afterwards."""
    task, cancelled = asyncio.create_task(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
