"""The work that the owner of the changefeeds repeats every second.

It knows changefeeds, and no processor. The event stores of this capture have their own upkeep
(`server.processor.upkeep`), which asks for what the owners keep (`owned`).

Renewing the holds of upstream's history comes first in a round, because a late renewal can cost history. The
other steps do not depend on each other. A step that fails is logged and repeated in a later round, so that no
step keeps the holds from being renewed. A defect ends the rounds and with them the capture (`Reactor`), which
would otherwise continue without holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from typing import Final

from tidegate import metrics
from tidegate.control.changefeed import State
from tidegate.control.gc import HELD
from tidegate.control.metadata import FeedError, FeedId
from tidegate.log import event
from tidegate.model.timestamp import physical_ms
from tidegate.server.changefeeds.clock_watch import ClockWatch
from tidegate.server.changefeeds.creation import FeedCreation
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.changefeeds.held_history import HeldHistory
from tidegate.server.changefeeds.placement import Placement
from tidegate.server.node import Node, Owned

LOG: Final = logging.getLogger(__name__)

HOUSEKEEPING_S: Final = 1.0
STATUS_CODES: Final = {state: code for code, state in enumerate(State)}


class Housekeeping:
    """The housekeeping for all feeds of a node while it is the owner. Lives in one asyncio loop."""

    def __init__(
        self,
        node: Node,
        feeds: Feeds,
        history: HeldHistory,
        placement: Placement,
        creation: FeedCreation,
    ) -> None:
        self.node, self._feeds = node, feeds
        self._history, self._placement, self._creation = history, placement, creation
        self._woken = asyncio.Event()
        self.clock_watch = ClockWatch(node.pd, node.clock, self.wake)

    def wake(self) -> None:
        """Begin the next round now, and renew the holds in it even if they are not due."""
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled."""
        began = self.node.clock.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOUSEKEEPING_S):
                    await self._woken.wait()
            # Read and cleared before the round, so that a request during it begins the next round at once.
            force = self._woken.is_set()
            self._woken.clear()
            if await self._history.tend(force=force):
                await self._history.release_predecessors(self.node.clock.monotonic() - began)
            self._history.report_needs()
            self._tend_catalogues()
            await self._placement.end_drains()
            await self._look_at_disk()
            self._measure()

    def owned(self) -> Owned:
        """The part that the owners here keep of this capture's event stores."""
        feeds = list(self._feeds.values())
        held = [feed.record for feed in feeds if self._history.is_held(feed)]
        done: dict[FeedId, int] | None = {one.id: max(0, one.persisted - one.retained) for one in held}
        if self._creation.creating or self._history.unreadable_held:
            # The needs of a feed that is being created are not stored yet, and the retention of an unreadable
            # one is among the settings that cannot be read.
            done = None
        reading = {feed.id: feed.record.needs[1] for feed in feeds if feed.replication.owner is not None}
        return Owned(self._feeds.kv_modes(), reading, done)

    def _tend_catalogues(self) -> None:
        for captured in self.node.stores(self._feeds.kv_modes()):
            if captured.catalogues is not None:
                feeds = (f for f in self._feeds.values() if f.replication.owner)
                running = [f.record.persisted for f in feeds if f.record.config.has_tables]
                captured.catalogues.tend(self.checkpoints(), running)

    def checkpoints(self) -> list[int]:
        """Where each changefeed of tables would begin again, and each unreadable one that may have any."""
        readable = [
            record.persisted
            for record in (feed.record for feed in self._feeds.values())
            if record.config.has_tables and record.life.state in HELD
        ]
        return [*readable, *(one.checkpoint for one in self._feeds.unreadable.values() if not one.is_over)]

    async def _look_at_disk(self) -> None:
        """Show a full disk as a warning of every running feed, with the time since when it is full."""
        ballast = self.node.ballast
        before = ballast.trouble
        trouble = await asyncio.to_thread(ballast.keep, self.node.clock.now_ms())
        # Once for each change, not once a second.
        if trouble != before:
            level = logging.WARNING if trouble else logging.INFO
            event(LOG, level, "disk full" if trouble else "disk has room again", why=trouble or before)
        if trouble:
            since = datetime.fromtimestamp(ballast.full_since_ms / 1000, UTC).isoformat(timespec="seconds")
            text = f"{trouble}, since {since}\n  to do: free disk space; delivery resumes by itself"
            error = FeedError(text, "CDC:ErrDiskFull", ballast.full_since_ms, self.node.address)
            for feed in self._feeds.values():
                feed.replication.warn(error)

    def _measure(self) -> None:
        now_ms = self.clock_watch.now_ms()
        for feed in self._feeds.values():
            labels = (feed.id.namespace, feed.id.name)
            metrics.checkpoint_ts.labels(*labels).set(physical_ms(feed.replication.checkpoint))
            metrics.checkpoint_lag_s.labels(*labels).set(feed.lag_ms(now_ms) / 1000)
            metrics.resolved_ts.labels(*labels).set(physical_ms(feed.record.resolved_ts))
            metrics.status.labels(*labels).set(STATUS_CODES[feed.record.life.state])
        for name in self._feeds.unreadable:
            metrics.status.labels(name.namespace, name.name).set(STATUS_CODES[State.FAILED])
