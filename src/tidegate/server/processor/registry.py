"""The processors of a capture, for changefeeds of any owner.

A processor runs from its owner's first message. Owners reach it by `server.captures.message_router` only. The
capture starts and ends the registry, and its event stores are looked after by `server.processor.upkeep`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from typing import Final
from weakref import WeakValueDictionary

from tidegate.control import trace
from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedId, FeedInfo, feed_key
from tidegate.errors import TidegateError
from tidegate.log import event
from tidegate.server.captures.message_client import MessageClient
from tidegate.server.captures.message_router import MessageRouter, nowhere
from tidegate.server.delivery.plan import folders_used
from tidegate.server.node import Node
from tidegate.server.processor.processor import FeedProcessor
from tidegate.server.processor.upkeep import Upkeep

LOG: Final = logging.getLogger(__name__)

RUNS: Final = (State.NORMAL, State.WARNING, State.PENDING)
LAST_WORDS: Final = 1000
"""How many messages a processor may send while it ends: its successor's sequence begins above them."""
RETIRE_S: Final = 10.0
"""How often processors without an owner are looked for."""
SILENT_S: Final = 60.0
"""A processor without messages for this long has no owner: an owner sends some every few seconds."""


class ProcessorRegistry:
    """The processors of one capture. Lives in one asyncio loop."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.processors: dict[FeedId, FeedProcessor] = {}
        self._message_client: MessageClient | None = None
        self._sequences: dict[FeedId, int] = {}
        """The sequences of processors that have ended. An owner drops messages with a lower sequence."""
        self._turns: WeakValueDictionary[FeedId, asyncio.Lock] = WeakValueDictionary()
        """Held while a changefeed's folder is being removed."""
        self._cleared: set[FeedId] = set()
        """Changefeeds whose folders were removed, or are being removed, until `_remove_folders` has ended."""
        self._upkeep = Upkeep(node, self.processors)
        self._tasks: list[asyncio.Task[None]] = []
        node.router = MessageRouter(self.begin, node.capture, self._send)

    def start(self, message_client: MessageClient | None = None) -> None:
        """Begin to wake processors when rows arrive. `message_client`: sends to other captures, if any."""
        self._message_client = message_client
        self._tasks = [
            asyncio.create_task(self.node.pulse.run(), name="pulse"),
            asyncio.create_task(self._upkeep.run(), name="upkeep of the event stores"),
            asyncio.create_task(self._retire(), name="processors without an owner"),
        ]
        for task in self._tasks:
            task.add_done_callback(self.node.ended)

    def stand_by(self) -> None:
        """Work for owners on other captures until `take_over`."""
        self._upkeep.stand_by()

    def take_over(self) -> None:
        """This capture owns the changefeeds from now on."""
        self._upkeep.is_standby = False

    async def stop(self) -> None:
        """End the processors and all tasks; stored data stays."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(processor.stop() for processor in self.processors.values()))
        if self._message_client is not None:
            await self._message_client.stop()

    def _send(self, capture: str, message: bytes) -> None:
        send = self._message_client.send if self._message_client is not None else nowhere
        send(capture, message)

    def begin(self, changefeed: str) -> None:
        """Start the processor of a changefeed, unless this capture may not work any more."""
        if self.node.over() is not None:
            return
        feed = FeedId.parse(changefeed)
        if feed in self.processors or feed in self._turns:
            # It is ending, and must release its spans and its folder first; the owner repeats the message.
            return
        processor = FeedProcessor(self.node, feed, self._sequences.pop(feed, 0))
        self.node.follow(trace.PROCESSOR, str(feed), processor.machine)
        self.processors[feed] = processor
        self.node.router.processors[changefeed] = processor.box
        processor.start()

    async def end(self, feed: FeedId) -> None:
        """End the processor of a changefeed that does not run here any more, or has no owner."""
        self.node.router.processors.pop(str(feed), None)
        if (processor := self.processors.get(feed)) is None:
            return
        self._sequences[feed] = processor.machine.sequence + LAST_WORDS
        try:
            await processor.stop()
        finally:
            # Only now: while it ends, `begin` must start no second one on the same spans.
            self.processors.pop(feed, None)

    async def clear(self, feed: FeedId) -> None:
        """End the processor of a changefeed that is not stored, and remove the changefeed's folder.

        When it returns, nobody else removes files there: a creation writes into the folder next, before its
        changefeed is stored.
        """
        self._cleared.add(feed)
        turn = self._turns.setdefault(feed, asyncio.Lock())
        async with turn:
            await self.end(feed)
            await asyncio.to_thread(shutil.rmtree, self.node.paths.feed(feed), True)

    async def _remove_folders(self) -> None:
        """Remove the folders of changefeeds that were removed while this capture was away.

        Called once, after the start: later a removed changefeed has a processor here (`_retire`).
        """
        node = self.node
        metadata = node.shared or str(node.paths.metadata)
        for feed in await asyncio.to_thread(lambda: set(folders_used(node.paths, node.cluster, metadata))):
            try:
                stored = await node.read(feed_key(node.cluster, feed, "info"))
            except TidegateError as error:
                event(LOG, logging.WARNING, "changefeed not read", changefeed=str(feed), error=str(error))
                continue
            # If it was cleared, the folder is of a changefeed of the same name, which is stored only after
            # files that it needs are in there.
            is_used = feed in self._cleared or feed in self.processors or str(feed) in node.router.owners
            if stored is None and not is_used:
                event(LOG, logging.INFO, "folder of a removed changefeed removed", changefeed=str(feed))
                await self.clear(feed)

    async def _retire(self) -> None:
        """End processors whose changefeed does not run any more, and whose owner could not tell them so."""
        await self._remove_folders()
        while True:
            self._cleared.clear()
            await asyncio.sleep(RETIRE_S)
            now = self.node.clock.monotonic()
            for feed, processor in list(self.processors.items()):
                if now - processor.received_at < SILENT_S or str(feed) in self.node.router.owners:
                    continue
                try:
                    stored = await self.node.read(feed_key(self.node.cluster, feed, "info"))
                    info = FeedInfo.from_bytes(stored) if stored is not None else None
                except TidegateError as error:
                    event(LOG, logging.WARNING, "changefeed not read", changefeed=str(feed), error=str(error))
                    continue
                if (
                    info is not None
                    and State(info.state) in RUNS
                    and info.instance == processor.machine.instance
                ):
                    continue  # its owner may be about to send a message
                if self.node.router.processors.get(str(feed)) is not processor.box:
                    continue  # it ends already, and its folder may belong to the next one of this name
                event(
                    LOG, logging.INFO, "processor ends: no owner sends messages to it", changefeed=str(feed)
                )
                await (self.clear(feed) if info is None else self.end(feed))
