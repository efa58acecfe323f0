"""The upkeep of a capture's event stores: segments that nobody needs any more, and files of spans that ended.

    processors of this capture --+
    owners of this capture ------+--> Upkeep, each second --> spans: drop below a ts, remove

This belongs to the capture and not to any owner: it reads the processors that run here. The owners of
changefeeds, if they are on this capture, are a second kind of holder of its stores. Upkeep has no object of
theirs. It asks `Node.owned` for what they keep, and they get nothing back.

On a standby nobody knows all changefeeds. So it also saves catalogues and keeps ballast here, which the
owner otherwise does (`server.changefeeds.housekeeping`), and it removes files much later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from tidegate.config.values import TABLE_MODE
from tidegate.control.metadata import FeedId
from tidegate.errors import TidegateError
from tidegate.eventstore import store_view
from tidegate.log import event
from tidegate.model.timestamp import MAX
from tidegate.server.node import Node, Owned
from tidegate.server.processor.openings import Openings
from tidegate.server.processor.processor import FeedProcessor
from tidegate.server.pulling.spans import Captured, Holder, OwnerOf

LOG: Final = logging.getLogger(__name__)

UPKEEP_S: Final = 1.0
SWEEP_S: Final = 30.0
"""How often files of spans that nobody follows are looked for."""
STANDBY_SWEEP_S: Final = 600.0
"""The same while this capture is a standby, and first after this time: a capture that has lost its session
may deliver the same tables again in a moment.
"""


class Upkeep:
    """The upkeep of one capture. Lives in one asyncio loop."""

    def __init__(self, node: Node, processors: Mapping[FeedId, FeedProcessor]) -> None:
        self._node, self._processors = node, processors
        self.is_standby = False
        """Whether another capture owns the changefeeds for which this one works."""
        self._swept_at = float("-inf")

    def stand_by(self) -> None:
        """Do also the owner's part, as far as the changefeeds are known here."""
        self.is_standby, self._swept_at = True, self._node.clock.monotonic()
        self._node.checkpoints = self._checkpoints

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(UPKEEP_S)
            owned = self._node.owned()
            if owned is None and not self.is_standby:
                continue  # the changefeeds are being read, and until all are known any file may be needed
            modes = {one.kv_mode for one in self._openings() if one.kv_mode}
            stores = self._node.stores(modes.union(owned.kv_modes if owned is not None else ()))
            if self.is_standby:
                self._tend_catalogues(stores)
                await asyncio.to_thread(self._node.ballast.keep, self._node.clock.now_ms())
            self._drop_segments(stores, owned)
            await self._sweep(stores)

    def _openings(self) -> list[Openings]:
        return [one.openings for one in self._processors.values()]

    def _checkpoints(self) -> list[int]:
        """Where each changefeed of tables that works here would begin again."""
        return [one.begins_at for one in self._openings() if one.kv_mode == TABLE_MODE]

    def _tend_catalogues(self, stores: Iterable[Captured]) -> None:
        for captured in stores:
            if captured.catalogues is not None:
                captured.catalogues.tend(self._checkpoints(), self._checkpoints())

    def _drop_segments(self, stores: Iterable[Captured], owned: Owned | None) -> None:
        """Drop segments that neither a processor nor an owner needs."""
        # A processor that has nothing open may need everything, so nothing is dropped for it.
        limits: dict[Holder, tuple[int, int]] = {
            name: one.openings.drop_below or (0, 0) for name, one in self._processors.items()
        }
        if owned is not None:
            # An owner reads the DDL span alone, so no rows are kept for it.
            limits |= {OwnerOf(name): (0, ts) for name, ts in owned.ddl.items()}
        for captured in stores:
            captured.spans.drop_below(limits)

    async def _sweep(self, stores: Iterable[Captured]) -> None:
        """From time to time, remove the files of spans that no feed follows or will need."""
        now = self._node.clock.monotonic()
        if now - self._swept_at < (STANDBY_SWEEP_S if self.is_standby else SWEEP_S):
            return
        self._swept_at = now
        for captured in stores:
            try:
                idle = await asyncio.to_thread(store_view.spans, captured.store, captured.spans.held)
            except (TidegateError, OSError) as error:
                event(LOG, logging.WARNING, "event store not swept", error=str(error))
                continue
            # After the wait: a changefeed may have been created meanwhile, and need what looked idle.
            if (floor := self._finished()) is not None:
                for span in captured.spans.sweep(idle, floor):
                    # A span of the same keys may be followed again later, with a new manifest.
                    self._node.manifests.pop(span, None)

    def _finished(self) -> int | None:
        """The ts up to which every changefeed is finished with rows, even if files were removed at once.

        None: it is not known. A changefeed that does not run here needs what is above its checkpoint if it is
        resumed here. A standby does not know it; there a span that is wanted again is pulled again.
        """
        if self.is_standby:
            if not all(one.is_settled for one in self._openings()):
                return None
            works = [one for one in self._openings() if one.kv_mode]
            return min(((one.drop_below or (0, 0))[0] for one in works), default=MAX)
        owned = self._node.owned()
        if owned is None or owned.done is None:
            return None
        return min((self._finished_with(*one) for one in owned.done.items()), default=MAX)

    def _finished_with(self, feed: FeedId, done: int) -> int:
        """The same for one changefeed: what its processor here says, otherwise `done`."""
        processor = self._processors.get(feed)
        passed = processor.openings.drop_below if processor is not None else None
        return passed[0] if passed is not None else done
