"""A changefeed on the node that owns it, as the rest of the node sees it: its commands and its parts.

    record        FeedRecord: what is stored: info, status, life; what must be held of upstream's history
    replication   Replication: the owner's work while the feed runs, incarnation after incarnation
    FeedLife      the task that runs the replication as the life in the record says

The API, the reactor and housekeeping read the parts. A caller that starts, stops, pauses, resumes or updates
the feed uses the commands here, because these involve several parts. A change that concerns one part, such as
the number of partitions, is asked of that part. This class makes no decisions itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.control.changefeed import Command, State
from tidegate.control.metadata import FeedId, FeedInfo, FeedStatus
from tidegate.model.timestamp import physical_ms
from tidegate.server.catalogue.hot_cuts import HotWatch
from tidegate.server.delivery.initial_load import words_of_load
from tidegate.server.node import Node
from tidegate.server.owner.life import FeedLife
from tidegate.server.owner.range_facts import ShownRange, shown_ranges
from tidegate.server.owner.record import FeedRecord
from tidegate.server.owner.replication import PIPELINE_STARTS, Replication
from tidegate.server.owner.words import (
    words_of_first,
    words_of_history,
    words_of_owner,
    words_of_release,
)


class Feed:
    """Lives in one asyncio loop. A caller that changes something holds `turn` from its first read on."""

    def __init__(self, node: Node, feed: FeedId, info: FeedInfo, status: FeedStatus) -> None:
        self.node, self.id = node, feed
        self.turn = asyncio.Lock()
        """Held by the caller of a command, from its first read of the feed's state to its last write."""
        self.record = FeedRecord(node, feed, info, status)
        self.replication = Replication(node, self.record)
        self._life = FeedLife(node, self.record, self.replication)
        self.hot_watch = HotWatch()
        """Its spans that are too hot for one capture (`changefeeds.recuts`)."""

    def start(self) -> None:
        """Run the feed, unless its life has ended, it runs already, or another capture is the owner."""
        self._life.start()

    async def stop(self, *, forget: bool = False) -> None:
        """End everything that it started; the stored state stays. `forget`: the feed is removed for good."""
        await self._life.stop(forget=forget)

    async def command(self, command: Command) -> None:
        """Pause or resume, durably. Raises InvalidInput when its state does not allow it."""
        await self._life.command(command)

    async def update(self, info: FeedInfo) -> None:
        """Store other settings durably; the feed must not run. They take effect when it is resumed."""
        await self.stop()
        self.replication.check_ended()
        await self.record.update(info)

    async def recut(self, changed: Callable[[FeedInfo], FeedInfo]) -> None:
        """Change the settings of a running feed: it ends, they are stored, and it starts again.

        It starts also if they could not be stored, with the earlier ones. Its stored state does not change.
        """
        try:
            await self.stop()
            self.replication.check_ended()
            if self.record.life.runs:  # it may have ended by itself meanwhile
                # From the info as it is now: a warning may have been stored while it ended.
                await self.record.update(changed(self.record.info))
        finally:
            self.start()

    def lag_ms(self, now_ms: int) -> int:
        """PD's time minus the physical time of the checkpoint."""
        return max(0, now_ms - physical_ms(self.replication.checkpoint))

    def ranges(self) -> list[ShownRange]:
        """Its ranges in key order, with the reason why each that is not delivered is not."""
        return shown_ranges(self.node, self.record, self.replication)

    def waits_for(self) -> str:
        """Describes what the checkpoint waits for; empty when nothing is known."""
        record, replication = self.record, self.replication
        if record.life.state in (State.STOPPED, State.FAILED):
            return self._words_of_history()
        if replication.waiting_for == PIPELINE_STARTS:
            running = replication.peers.running
            return words_of_first(running, among=len(running)) or replication.waiting_for
        if replication.waiting_for or replication.owner is None:
            return replication.waiting_for
        if record.loading:
            return words_of_load(replication.reports.load)
        partitions = replication.sink.partitions
        return words_of_owner(replication.owner, replication.peers, record.info.repartition, partitions)

    def _words_of_history(self) -> str:
        record = self.record
        if record.lost:
            return ""  # its error says so
        needed = min(record.needs)
        if record.released:
            return words_of_release(record.life.state, needed, self.node.gc_ttl_s)
        return words_of_history(needed, record.history)
