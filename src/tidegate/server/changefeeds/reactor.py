"""The changefeeds of a node: what users may request of them, and how they start and end with the capture.

The API calls these methods; each returns when its effect is durable. `Refused` carries TiCDC's error code.

Each subject that concerns several changefeeds has an object of its own: creating (`creation`) and changing
(`updates`) them, which capture delivers what (`placement`), what upstream must hold (`history`), and the work
of every second (`housekeeping`). They share `feeds`. A request that changes a feed first waits for its turn,
so that each request sees the result of the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tidegate import metrics
from tidegate.control.changefeed import Command
from tidegate.control.metadata import (
    Delete,
    FeedError,
    FeedId,
    FeedInfo,
    FeedStatus,
    Put,
    feed_key,
    feed_of_key,
    holder_key,
)
from tidegate.errors import Fatal, TidegateError
from tidegate.log import event
from tidegate.server.changefeeds.creation import FeedCreation
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.changefeeds.held_history import HeldHistory
from tidegate.server.changefeeds.housekeeping import Housekeeping
from tidegate.server.changefeeds.new_feed import NewFeed
from tidegate.server.changefeeds.placement import Placement
from tidegate.server.changefeeds.range_figures import figures_of
from tidegate.server.changefeeds.recuts import Recuts
from tidegate.server.changefeeds.removal import fenced_for_good
from tidegate.server.changefeeds.repartition import check_repartition
from tidegate.server.changefeeds.unreadable import UnreadableFeed
from tidegate.server.changefeeds.updates import FeedUpdates, refuse_reader
from tidegate.server.node import Node
from tidegate.server.owner.feed import Feed
from tidegate.sink.base import PartitionedSink

LOG: Final = logging.getLogger(__name__)

FORGET_S: Final = 5.0


class Reactor:
    """All feeds of a node. Lives in one asyncio loop."""

    def __init__(self, node: Node, clear: Callable[[FeedId], Awaitable[None]]) -> None:
        """`clear`: ends this capture's processor of a changefeed that is not stored, and removes its files,
        so that a changefeed of the same name can be created at once. Other captures find this out themselves.
        """
        self.node, self._clear = node, clear
        self.feeds = Feeds()
        """The changefeeds that this capture owns."""
        node.ended = self._on_end
        self.history = HeldHistory(node, self.feeds)
        self.creation = FeedCreation(node, self.feeds, self.history, clear)
        self.updates = FeedUpdates(node, self.feeds, self.history, self.creation)
        self.placement = Placement(node, self.feeds)
        self.housekeeping = Housekeeping(node, self.feeds, self.history, self.placement, self.creation)
        self.recuts = Recuts(node, self.feeds)
        self.clock_watch = self.housekeeping.clock_watch
        node.upstream_ms = self.clock_watch.now_ms
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Continue every stored feed from its stored state."""
        node, prefix = self.node, f"/tidegate/{self.node.cluster}/"
        node.checkpoints, node.burdens = self.housekeeping.checkpoints, self.placement.burdens
        node.histories.clear()  # received from the owner before us
        stored = {kv.key: kv for kv in await node.under(prefix)}
        for key, found in stored.items():
            named = feed_of_key(key)
            if named is None or named[1] != "info":
                continue
            status = stored.get(feed_key(node.cluster, named[0], "status"))
            self._take_up(named[0], found.value, status.value if status is not None else None)
        # Only now that all changefeeds are known: it decides which files of the event stores may be removed.
        node.owned = self.housekeeping.owned
        if node.shared:
            # Before the first hold: if this owner dies after that, the next one finds which term may have
            # held.
            await node.write(Put(holder_key(node.cluster, node.term), b"{}"))
            await self.placement.read_drained()
        # Before anything is registered: if a hold expired while no owner ran, history may be lost.
        await self.history.tend(force=True)
        for feed in self.feeds.values():
            feed.start()
        metrics.parts.sources[self] = self._figures
        self._tasks = [
            asyncio.create_task(self.housekeeping.run(), name="housekeeping"),
            asyncio.create_task(self.clock_watch.run(), name="clock watch"),
            asyncio.create_task(self.recuts.run(), name="cuts of hot tables"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_end)

    def _take_up(self, feed: FeedId, stored: bytes, status: bytes | None) -> None:
        """Make the object of a stored feed. A feed that cannot be read for any reason is set aside: otherwise
        every capture that is elected would end because of it.
        """
        try:
            info = FeedInfo.from_bytes(stored)
            known = FeedStatus.from_bytes(status) if status is not None else FeedStatus(info.start_ts)
            self.feeds[feed] = Feed(self.node, feed, info, known)
        except Exception as error:
            # The object that failed may have registered its box, and messages would go there.
            self.node.router.owners.pop(str(feed), None)
            found = self.feeds.unreadable[feed] = UnreadableFeed.of(feed, stored, status, error)
            event(LOG, logging.ERROR, "changefeed cannot be read", changefeed=str(feed), why=found.why)

    async def stop(self) -> None:
        """End all feeds. Their stored state stays, and other captures continue their parts."""
        # First, so that the feeds end only this capture's processors (`ProcessorLink.reachable`).
        self.node.leaving = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        metrics.parts.sources.pop(self, None)
        for feed in self.feeds.values():
            metrics.forget_feed(feed.id.namespace, feed.id.name)  # another capture may report them now
        for name in self.feeds.unreadable:
            metrics.forget_feed(name.namespace, name.name)
        await asyncio.gather(*(feed.stop() for feed in self.feeds.values()))

    async def resign(self, take_ownership: Callable[[], int]) -> None:
        """End all feeds, take ownership again, and start the feeds under the new ownership."""
        async with contextlib.AsyncExitStack() as turns:
            feeds = list(self.feeds.values())
            for feed in feeds:
                await turns.enter_async_context(feed.turn)
            await asyncio.gather(*(feed.stop() for feed in feeds))
            # This blocks the loop: a write in between, under the old revision, would look like a loss.
            self.node.owner_rev = self.node.disk.submit(take_ownership).result()
            for feed in feeds:
                if self.feeds.get(feed.id) is feed:
                    feed.replication.shares.forget_grant()
                    feed.start()
        event(LOG, logging.INFO, "ownership taken again", owner_rev=self.node.owner_rev)

    def _figures(self) -> list[metrics.FeedFigures]:
        return figures_of(self.feeds.values(), self.clock_watch.now_ms())

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """End the capture if a task has failed: otherwise nothing would hold upstream's history."""
        if not task.cancelled() and (error := task.exception()) is not None:
            why = f"{type(error).__name__}: {error}"
            self.node.lost(
                Fatal(f"the capture's {task.get_name()} has failed", why=why, fix="start it again")
            )

    # --- what a user may ask -------------------------------------------------------------------------

    async def create(self, new: NewFeed) -> Feed:
        """Check a changefeed against upstream, hold its history, store it, start it."""
        return await self.creation.create(new)

    async def command(self, feed: FeedId, command: Command) -> None:
        """Pause or resume a feed."""
        async with self.feeds.in_turn(feed) as found, self.history.held_again(found):
            await found.command(command)
        self.housekeeping.wake()

    async def resume(self, feed: FeedId, overwrite_ts: int = 0) -> None:
        """Start a stopped or failed feed again, at `overwrite_ts` unless that is 0.

        Raises Refused for a ts without history upstream, in the future, or at the target.
        """
        async with self.feeds.in_turn(feed) as found:
            if overwrite_ts:
                refuse_reader(found, "its place is in its query's checkpoint")
                found = await self.updates.move_checkpoint(found, overwrite_ts)
            async with self.history.held_again(found):
                await found.command(Command.RESUME)
        self.housekeeping.wake()

    async def update(
        self, feed: FeedId, sink_uri: str = "", config: Mapping[str, Any] | None = None, target_ts: int = 0
    ) -> Feed:
        """Change the settings of a stopped or failed feed; arguments that are empty, None or 0 change
        nothing.

        Raises Refused while it runs, for a target that it has passed, and for all that `create` refuses.
        """
        async with self.feeds.in_turn(feed) as found, self.history.held_again(found):
            await self.updates.update(found, sink_uri, config, target_ts)
        event(LOG, logging.INFO, "changefeed updated", changefeed=str(feed))
        return found

    async def repartition(self, feed: FeedId, partitions: int) -> Feed:
        """Spread a running feed's rows over this many partitions of its topic from some ts on.

        On return the topic has them, and the request is stored. Raises Refused as `check_repartition`, and
        the errors of `PartitionedSink.widen`.
        """
        async with self.feeds.in_turn(feed) as found:
            refuse_reader(found, "what it reads is in its query's options")
            check_repartition(found, partitions)
            sink = found.record.plan.sink
            assert isinstance(sink, PartitionedSink), "a request for another sink is refused"
            await asyncio.to_thread(sink.widen, partitions)
            await found.replication.layout.ask(partitions)
        event(LOG, logging.INFO, "repartition asked for", changefeed=str(feed), partitions=partitions)
        return found

    async def remove(self, feed: FeedId) -> None:
        """End a feed and delete its stored state.

        Its grants are deleted, too, if captures share an etcd and the sink has fenced all its writers.
        Otherwise they stay, and the next feed of this name fences those writers.
        """
        node = self.node
        if feed in self.feeds.unreadable:
            await self._remove_unreadable(feed)
            return
        async with self.feeds.in_turn(feed) as found:
            await found.stop(forget=True)
            # Before its other keys: they say where its sink is, which must fence before grants are deleted.
            if node.shared and (grants := await fenced_for_good(node, found.record.plan)):
                await node.forget_grants(feed, grants)
            await self._delete(feed)
            await self._forget_progress(found)
            # Last, because a feed of the same name has its folder and progress in the same places.
            del self.feeds[feed]
            node.router.owners.pop(str(feed), None)
        await self.history.tend(force=True)
        event(LOG, logging.INFO, "changefeed removed", changefeed=str(feed))

    async def _remove_unreadable(self, feed: FeedId) -> None:
        """Remove a feed that cannot be read. Its sink is not known, so its progress stays there.

        Its grants stay as well, because its writers cannot be fenced. A changefeed of the same name has
        another `FeedInfo.instance`. That distinguishes its records from these, and fences writers under a
        grant of this one. Other captures end its processors because it is not stored any more.
        """
        await self._delete(feed)
        self.feeds.unreadable.pop(feed, None)
        metrics.forget_feed(feed.namespace, feed.name)
        await self.history.tend(force=True)
        event(LOG, logging.WARNING, "changefeed removed", changefeed=str(feed), why="it could not be read")

    async def _delete(self, feed: FeedId) -> None:
        """Delete its definition and status, and its processor and folder on this capture."""
        node = self.node
        # First. If this process dies before the rest is done, the folder is found without a definition, and
        # is removed after the next start (`ProcessorRegistry`).
        await node.write(
            Delete(feed_key(node.cluster, feed, "info")), Delete(feed_key(node.cluster, feed, "status"))
        )
        await self._clear(feed)

    async def _forget_progress(self, feed: Feed) -> None:
        try:
            async with asyncio.timeout(FORGET_S):
                await asyncio.to_thread(feed.record.plan.sink.forget)
        except (TidegateError, TimeoutError) as error:
            event(
                LOG,
                logging.WARNING,
                "progress at the sink not deleted",
                changefeed=str(feed.id),
                error=str(error),
            )

    async def now(self) -> int:
        """Upstream's time."""
        return await asyncio.to_thread(self.node.pd.tso)

    def puller_error(self, error: FeedError) -> None:
        """Show a puller error as a warning of every running feed until it makes progress again."""
        for feed in self.feeds.values():
            feed.replication.warn(error)
