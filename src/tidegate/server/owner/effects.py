"""Performs the effects of a changefeed's owner: sends DDL and Resolved to the sink, stores checkpoints.

    Effect --> performed at the sink, or stored --> the owner learns that it is done

The owner (`control.owner`) decides the order. It asks for no effect of a kind while one of that kind is under
way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import isinf
from typing import Final

from tidegate import metrics
from tidegate.control.owner import Effect, Finish, Owner, Persist, SendDdl, SendRepartition, SendResolved
from tidegate.disk import DiskFull
from tidegate.errors import Retryable
from tidegate.log import event
from tidegate.pipeline.exchange.feed import rules_of
from tidegate.server.delivery.totals import Totals
from tidegate.server.node import Node
from tidegate.server.owner.ended_spans import EndedSpans
from tidegate.server.owner.record import FeedRecord
from tidegate.server.owner.sharing import Sharing
from tidegate.server.owner.sink_lifetime import SinkLifetime

LOG: Final = logging.getLogger(__name__)

PATIENCE_S: Final = 0.25
"""For how long a checkpoint that may wait is held back. With hundreds of changefeeds without rows, one commit
then stores the checkpoints of many.
"""
FULL_S: Final = 0.5
"""The pause between attempts to store, on a full disk, a checkpoint that must be stored."""


class OwnerEffects:
    """The effects of one changefeed. Lives in one asyncio loop; several effects may be under way."""

    def __init__(
        self,
        node: Node,
        record: FeedRecord,
        sink: SinkLifetime,
        sharing: Sharing,
        totals: Totals,
        wake: Callable[[], None],
    ) -> None:
        """`sharing`: gets each delivered DDL. `wake`: is called when the owner may continue."""
        self._node, self._record, self._sink = node, record, sink
        self._sharing, self._totals, self._wake = sharing, totals, wake
        self._ended = EndedSpans()
        self.is_target_reached = False
        """Whether the target ts is reached, so that the changefeed is finished."""
        self.is_repartitioned = False
        """Whether the sink has another number of partitions than when this incarnation began."""

    def begin(self) -> None:
        """Reset the flags for a new incarnation."""
        self.is_target_reached = self.is_repartitioned = False

    async def perform(self, owner: Owner, effect: Effect) -> None:
        """Perform one effect and report it to the owner. Raises the errors of sink and metadata store."""
        sink = self._sink.opened
        assert sink is not None
        match effect:
            case SendDdl(batch):
                if batch.error is not None:
                    raise batch.error
                # Even if the call fails: the next incarnation then creates the topics.
                self._sink.topics |= batch.topics
                if batch.added and not batch.events:
                    # Tables appear without a DDL for the sink, so its journal does not show the batch. After
                    # a change of settings the feed must not begin below it: older rows of a table would
                    # follow the rows that are sent from here on.
                    await self._store_when_there_is_room(owner.checkpoint)
                await sink.send_ddl(batch)
                passed = owner.ddl_done(batch.finished_ts)
                self._sharing.spans.passed(passed)
                self._ended.take(passed, rules_of(self._record.config), owner.barrier.start_of)
                self._count_ddl(batch.finished_ts, len(batch.events))
            case SendResolved(ts):
                await sink.send_resolved(ts)
                owner.resolved_done(ts)
                if not self._node.ballast.trouble:
                    await self._record.become_if_there_is_room(self._record.life.progressed())
                if not owner.barrier.target_ts and isinf(owner.due_in(self._node.clock.monotonic())):
                    return  # as below; if another Resolved is due later, a tick must set the time for it
            case SendRepartition(ts, partitions):
                await sink.repartition(ts, partitions)
                owner.repartition_done(ts)
                self.is_repartitioned = True  # the next incarnation stores the new number
            case Persist(ts, may_wait):
                await self._persist(owner, ts, PATIENCE_S if may_wait else 0.0)
                if not owner.barrier.target_ts and owner.due_in(self._node.clock.monotonic()) > 0:
                    return  # nothing waits for this checkpoint, so the cost of a tick is saved
            case Finish():
                self.is_target_reached = True
        self._wake()

    def records_over(self, owner: Owner) -> list[str]:
        """From time to time: the sink's records of ended spans that no restart needs any more."""
        return self._ended.over(self._node.clock.monotonic(), owner.persisted_ts)

    def _count_ddl(self, ts: int, count: int) -> None:
        feed = self._record.id
        self._totals.ddl_events += count
        metrics.ddl_events.labels(feed.namespace, feed.name).inc(count)
        event(LOG, logging.INFO, "ddl delivered", changefeed=str(feed), finished_ts=ts, count=count)

    async def _persist(self, owner: Owner, ts: int, patience_s: float) -> None:
        try:
            await self._record.store(ts, patience_s=patience_s)
        except DiskFull:
            owner.persist_failed()  # it asks for it again
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
