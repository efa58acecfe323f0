"""Changes of the number of partitions over which a changefeed's rows are spread.

    requested: stored --> all earlier rows are sent --> the sink changes it --> the next incarnation stores it

A request is durable before it is carried out, by the current incarnation or a later one. The sink has the
authoritative number, because the change happens in the sink's own transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tidegate.control.owner import Owner
from tidegate.errors import TidegateError
from tidegate.log import event
from tidegate.server.delivery.sink_thread import OpenedSink
from tidegate.server.owner.record import FeedRecord

LOG: Final = logging.getLogger(__name__)


class FeedLayout:
    """The layout of one changefeed. Lives in one asyncio loop."""

    def __init__(
        self,
        record: FeedRecord,
        running: Callable[[], tuple[Owner, OpenedSink] | None],
        wake: Callable[[], None],
    ) -> None:
        """`running`: owner and sink of the current incarnation, if there is one. `wake`: is called after a
        request that the incarnation may carry out.
        """
        self._record, self._running, self._wake = record, running, wake

    async def take_up(self, owner: Owner, sink: OpenedSink) -> None:
        """Continue a requested change, or store it as done if the sink has it. Raises DiskFull."""
        info, partitions = self._record.info, sink.partitions
        changed = partitions if sink.is_repartitioned else 0
        wanted = 0 if info.repartition == partitions else info.repartition
        if (wanted, changed) != (info.repartition, info.partitions):
            # Also if another number was requested meanwhile: the stored layout must follow the sink.
            event(LOG, logging.INFO, "repartitioned", changefeed=str(self._record.id), partitions=partitions)
            await self._record.store_layout(wanted, changed)
        if wanted:
            owner.ask_repartition(wanted)

    async def ask(self, partitions: int) -> None:
        """Spread rows over this many partitions as soon as all earlier rows are sent; durable on return.

        The current number withdraws an earlier request. Raises DiskFull.
        """
        record, running = self._record, self._running()
        if running is None:
            await record.store_layout(partitions, record.info.partitions)
            return
        owner, sink = running
        if sink.partitions == partitions and not owner.repartitions:
            before = record.info.repartition
            owner.ask_repartition(0)  # before the write, during which a tick could carry out the old request
            try:
                await record.store_layout(0, record.info.partitions)
            except TidegateError:
                if before and self._is_still(sink):
                    owner.ask_repartition(before)
                raise
            partitions = 0
        else:
            await record.store_layout(partitions, record.info.partitions)
        # If the incarnation has ended meanwhile, the next one finds the stored request.
        if self._is_still(sink):
            if partitions or not owner.repartitions:
                owner.ask_repartition(partitions)
            self._wake()

    def _is_still(self, sink: OpenedSink) -> bool:
        running = self._running()
        return running is not None and running[1] is sink
