"""Carries out what a changefeed's owner asks for: DDL and Resolved go to the sink, checkpoints are stored.

    Effect --> performed at the sink, or stored --> the owner learns that it is done

The owner (`control.owner`) decides the order, and asks for no effect of a kind while one is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidegate import metrics
from tidegate.control.owner import Effect, Finish, Owner, Persist, SendDdl, SendRepartition, SendResolved
from tidegate.disk import DiskFull
from tidegate.errors import Retryable
from tidegate.log import event
from tidegate.pipeline.feed import rules_of
from tidegate.server.ended_spans import EndedSpans
from tidegate.server.feed_record import FeedRecord
from tidegate.server.feed_sink import FeedSink
from tidegate.server.node import Node
from tidegate.server.sharing import Sharing
from tidegate.server.totals import Totals

LOG: Final = logging.getLogger(__name__)

FULL_S: Final = 0.5
"""Between two attempts to store a checkpoint that must be stored, on a full disk."""


class OwnerEffects:
    """Of one changefeed. One asyncio loop; several effects may be under way."""

    def __init__(
        self,
        node: Node,
        record: FeedRecord,
        sink: FeedSink,
        sharing: Sharing,
        totals: Totals,
        wake: Callable[[], None],
    ) -> None:
        """`sharing`: is given each DDL that is delivered. `wake`: is called if the owner may go on."""
        self._node, self._record, self._sink = node, record, sink
        self._sharing, self._totals, self._wake = sharing, totals, wake
        self._ended = EndedSpans()
        self.is_target_reached = False
        """Whether the changefeed is done."""
        self.is_repartitioned = False
        """Whether the sink has another number of partitions than this incarnation began with."""

    def begin(self) -> None:
        """An incarnation begins."""
        self.is_target_reached = self.is_repartitioned = False

    async def perform(self, owner: Owner, effect: Effect) -> None:
        """Carry out one effect and tell the owner. Raises what the sink or the metadata store raises."""
        sink = self._sink.opened
        assert sink is not None
        match effect:
            case SendDdl(batch):
                if batch.error is not None:
                    raise batch.error
                # Whatever becomes of the call: the next incarnation makes them.
                self._sink.topics |= batch.topics
                if batch.added and not batch.events:
                    # The sink's journal will have no trace of it. After a change of settings the feed must
                    # not begin below: older rows of a table would follow those that are sent from here on.
                    await self._store_when_there_is_room(owner.checkpoint)
                await sink.send_ddl(batch)
                passed = owner.ddl_done(batch.finished_ts)
                self._sharing.passed(passed)
                self._ended.take(passed, rules_of(self._record.config), owner.barrier.start_of)
                self._count_ddl(batch.finished_ts, len(batch.events))
            case SendResolved(ts):
                await sink.send_resolved(ts)
                owner.resolved_done(ts)
                if not self._node.ballast.trouble:
                    await self._record.become_if_there_is_room(self._record.life.progressed())
            case SendRepartition(ts, partitions):
                await sink.repartition(ts, partitions)
                owner.repartition_done(ts)
                self.is_repartitioned = True  # what it is now is noted by the next incarnation
            case Persist(ts):
                await self._persist(owner, ts)
                if not owner.barrier.target_ts and owner.due_in(self._node.clock.monotonic()) > 0:
                    return  # nothing waits for it, and a tick costs as much as any other
            case Finish():
                self.is_target_reached = True
        self._wake()

    def records_over(self, owner: Owner) -> list[str]:
        """Now and then, the sink's records of spans that no restart can want any more."""
        return self._ended.over(self._node.clock.monotonic(), owner.persisted_ts)

    def _count_ddl(self, ts: int, count: int) -> None:
        feed = self._record.id
        self._totals.ddl_events += count
        metrics.ddl_events.labels(feed.namespace, feed.name).inc(count)
        event(LOG, logging.INFO, "ddl delivered", changefeed=str(feed), finished_ts=ts, count=count)

    async def _persist(self, owner: Owner, ts: int) -> None:
        try:
            await self._record.store(ts)
        except DiskFull:
            owner.persist_failed()  # and asks for it again
            return
        except Retryable:
            owner.persist_failed()
            raise
        owner.persisted(ts)

    async def _store_when_there_is_room(self, ts: int) -> None:
        while True:
            try:
                return await self._record.store(ts)
            except DiskFull:
                await asyncio.sleep(FULL_S)
