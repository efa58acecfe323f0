"""The processors of a capture, for changefeeds of any owner, and the upkeep of the capture's event stores.

A processor runs from its owner's first message. While this capture owns the changefeeds, the reactor does the
housekeeping, because it knows all of them. While it stands by, the crew does it, and knows only the
changefeeds it works for.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from tidegate.config.values import TABLE_MODE
from tidegate.control import trace
from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedId, FeedInfo, feed_key
from tidegate.errors import TidegateError
from tidegate.eventstore import store_view
from tidegate.log import event
from tidegate.model.timestamp import MAX
from tidegate.server.courier import Courier
from tidegate.server.node import Captured, Node
from tidegate.server.post import Post, nowhere
from tidegate.server.processor import FeedProcessor

LOG: Final = logging.getLogger(__name__)

HOUSEKEEPING_S: Final = 1.0
RUNS: Final = (State.NORMAL, State.WARNING, State.PENDING)
SWEEP_S: Final = 600.0
"""How often files of spans that nobody here follows are looked for. Not at once: a capture that has lost its
session may deliver the same tables again in a moment.
"""
LAST_WORDS: Final = 1000
"""How many messages a processor may send while it ends: its successor's sequence begins above them."""
RETIRE_S: Final = 10.0
"""How often processors without an owner are looked for."""
SILENT_S: Final = 60.0
"""A processor without messages for this long has no owner: an owner sends some every few seconds."""


class Crew:
    """The processors of one capture. Lives in one asyncio loop."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.processors: dict[FeedId, FeedProcessor] = {}
        self._courier: Courier | None = None
        self._sequences: dict[FeedId, int] = {}
        """The sequences of processors that have ended. An owner drops messages with a lower sequence."""
        self._pulse: asyncio.Task[None] | None = None
        self._housekeeping: asyncio.Task[None] | None = None
        self._swept_at = node.clock.monotonic() if node.clock is not None else 0.0
        self._retiring: asyncio.Task[None] | None = None
        node.post = Post(self.begin, node.capture, self._send)

    def start(self, courier: Courier | None = None) -> None:
        """Begin to wake processors when rows arrive. `courier`: sends to other captures, if there are any."""
        self._courier = courier
        self._pulse = asyncio.create_task(self.node.pulse.run(), name="pulse")
        self._pulse.add_done_callback(self.node.ended)
        self._retiring = asyncio.create_task(self._retire(), name="processors without an owner")
        self._retiring.add_done_callback(self.node.ended)

    def stand_by(self) -> None:
        """Do the housekeeping here until `take_over`."""
        self.node.checkpoints = self._checkpoints
        self._housekeeping = asyncio.create_task(self._keep_house(), name="housekeeping of a standby")
        self._housekeeping.add_done_callback(self.node.ended)

    def take_over(self) -> None:
        """This capture owns the changefeeds from now on, so the reactor does the housekeeping."""
        if self._housekeeping is not None:
            self._housekeeping.cancel()

    async def stop(self) -> None:
        """End the processors and all tasks; stored data stays."""
        tasks = [task for task in (self._pulse, self._housekeeping, self._retiring) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(processor.stop() for processor in self.processors.values()))
        if self._courier is not None:
            await self._courier.stop()

    def _send(self, capture: str, message: bytes) -> None:
        send = self._courier.send if self._courier is not None else nowhere
        send(capture, message)

    def begin(self, changefeed: str) -> None:
        """Start the processor of a changefeed, unless this capture may not work any more."""
        if self.node.over() is not None:
            return
        feed = FeedId.parse(changefeed)
        if feed in self.processors:
            return  # it is ending, and must release its spans first; the owner repeats the message
        processor = FeedProcessor(self.node, feed, self._sequences.pop(feed, 0))
        self.node.follow(trace.PROCESSOR, str(feed), processor.machine)
        self.processors[feed] = processor
        self.node.post.processors[changefeed] = processor.box
        processor.start()

    async def end(self, feed: FeedId) -> None:
        """End the processor of a changefeed, because the changefeed is removed or has no owner."""
        self.node.post.processors.pop(str(feed), None)
        if (processor := self.processors.get(feed)) is None:
            return
        self._sequences[feed] = processor.machine.sequence + LAST_WORDS
        try:
            await processor.stop()
        finally:
            self.processors.pop(feed, None)

    async def _retire(self) -> None:
        """End processors whose changefeed does not run any more, and whose owner could not tell them so."""
        while True:
            await asyncio.sleep(RETIRE_S)
            now = self.node.clock.monotonic()
            for feed, processor in list(self.processors.items()):
                if now - processor.received_at < SILENT_S or str(feed) in self.node.post.owners:
                    continue
                try:
                    stored = await self.node.read(feed_key(self.node.cluster, feed, "info"))
                    info = FeedInfo.from_bytes(stored) if stored is not None else None
                except TidegateError as error:
                    event(LOG, logging.WARNING, "changefeed not read", changefeed=str(feed), error=str(error))
                    continue
                if info is not None and State(info.state) in RUNS and info.instance == processor.instance:
                    continue  # its owner may be about to send a message
                event(
                    LOG, logging.INFO, "processor ends: no owner sends messages to it", changefeed=str(feed)
                )
                await self.end(feed)
                if info is None:
                    await asyncio.to_thread(shutil.rmtree, self.node.paths.feed(feed), True)

    def captured(self, modes: Iterable[str] = ()) -> list[Captured]:
        """The tables' event store, and those of the other kv modes that changefeeds use."""
        return [self.node.captured(mode) for mode in sorted({TABLE_MODE, *modes})]

    def let_go(
        self, stores: Iterable[Captured], done: Mapping[FeedId, tuple[int, int]] = MappingProxyType({})
    ) -> None:
        """Drop segments that no processor needs. `done`: the ts of rows and of DDL that are not needed any
        more, for changefeeds that this capture owns but delivers nothing of.
        """
        limits = {name: one.drop_below or (0, 0) for name, one in self.processors.items()}
        limits |= done
        for captured in stores:
            captured.spans.drop_below(limits)

    # --- while another capture is the owner ----------------------------------------------------------

    def _checkpoints(self) -> list[int]:
        """Where each changefeed of tables that works here would begin again."""
        return [one.begins_at for one in self.processors.values() if one.kv_mode == TABLE_MODE]

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            stores = self.captured(one.kv_mode for one in self.processors.values() if one.kv_mode)
            needs = {name: one.needs for name, one in self.processors.items() if one.kv_mode}
            for captured in stores:
                captured.spans.needed(needs)
                if captured.catalogues is not None:
                    captured.catalogues.tend(self._checkpoints(), self._checkpoints())
            await asyncio.to_thread(self.node.ballast.keep, self.node.clock.now_ms())
            self.let_go(stores)
            await self._sweep(stores)

    async def _sweep(self, stores: Iterable[Captured]) -> None:
        """Remove files of spans that nobody here follows. A span that is wanted again is pulled again."""
        now = self.node.clock.monotonic()
        if now - self._swept_at < SWEEP_S:
            return
        self._swept_at = now
        for captured in stores:
            try:
                idle = await asyncio.to_thread(store_view.spans, captured.store, captured.spans.held)
            except (TidegateError, OSError) as error:
                event(LOG, logging.WARNING, "event store not swept", error=str(error))
                continue
            if all(one.is_settled for one in self.processors.values()):
                floors = (one.drop_below or (0, 0) for one in self.processors.values() if one.kv_mode)
                for span in captured.spans.sweep(idle, min((rows for rows, _ in floors), default=MAX)):
                    self.node.manifests.pop(span, None)
