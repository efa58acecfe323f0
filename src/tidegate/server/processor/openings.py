"""The openings of a changefeed on this capture, one after the other: opened, kept, measured, closed.

    open | prepare --> current --> the same state and ranges are wanted: kept | others: opened again --> close

`server.processor.processor` says when. An `Opening` (`server.processor.opening`) is for one state of the
changefeed and certain ranges, and another one takes over the spans that both want. `server.processor.upkeep`
reads here which part of this capture's event stores the changefeed still needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from tidegate.control.messages import Dispatch, ProcessorStatus, Wish
from tidegate.control.metadata import FeedId, FeedInfo, feed_key
from tidegate.control.processor import Processor
from tidegate.errors import Retryable
from tidegate.server.catalogue.catalogues import DDL_SPAN
from tidegate.server.delivery.plan import FeedPlan
from tidegate.server.node import Node
from tidegate.server.processor.opening import Opening
from tidegate.server.processor.pipeline import FeedPipeline
from tidegate.server.processor.reader_bounds import ReaderBounds
from tidegate.server.processor.span_loads import SpanLoads

RETRY_S: Final = 1.0
"""Seconds after which a failed preparation is tried again."""


class Openings:
    """The openings of one changefeed on one capture. Lives in one asyncio loop."""

    def __init__(
        self,
        node: Node,
        feed: FeedId,
        machine: Processor,
        bounds: ReaderBounds,
        pipeline: FeedPipeline,
        wake: Callable[[], None],
    ) -> None:
        """`bounds` and `pipeline` are reset when an opening ends. `wake`: is called when floors move."""
        self._node, self._feed, self._machine = node, feed, machine
        self._bounds, self._pipeline, self._wake = bounds, pipeline, wake
        self.current: Opening | None = None
        """The open catalogue and spans; None: it holds nothing."""
        self.is_ready = False
        """Whether what the present goal needs is open."""
        self.waits = ""
        """Describes what the opening under way waits for."""
        self._span_loads = SpanLoads()

    @property
    def opened(self) -> Opening:
        """The current opening, which there must be."""
        assert self.current is not None
        return self.current

    async def prepare(self, dispatch: Dispatch) -> None:
        """Have the spans pulled. A Retryable is shown and tried again; it fails the feed when it must run."""
        while True:
            try:
                # The latest Dispatch of this goal, whose checkpoint may have risen since the last attempt.
                return await self.open(self._machine.dispatch or dispatch)
            except Retryable as error:
                self.waits = error.what
                await asyncio.sleep(RETRY_S)

    async def open(self, dispatch: Dispatch) -> None:
        """Open catalogue and spans at the stored checkpoint, unless they are open already."""
        info = await self._info(dispatch)
        node, machine, opening = self._node, self._machine, self.current
        plan = FeedPlan.of(node.cluster, self._feed, info, node.paths, node.capture, node.shared)
        captured = node.captured(plan.config.tidegate.kv_mode)
        plan = replace(plan, paths=replace(plan.paths, store=captured.store))
        ranges = tuple(one.id for one in dispatch.ranges)
        same = opening is not None and (opening.plan, opening.ranges) == (plan, ranges)
        is_open = opening is not None and same and machine.spans.is_open and opening.ddl.is_open
        if opening is not None and is_open and opening.serves(dispatch.checkpoint):
            opening.raise_to(dispatch.checkpoint)
            self.is_ready = True
            return
        if opening is not None and not same:
            # If only the ranges differ, spans that are in the new ones stay, so that they are not pulled
            # again.
            kept = captured.spans.within(self._feed, (DDL_SPAN, *ranges)) if opening.plan == plan else ()
            self.close(but=kept)
        self._shut()
        self.current = opening = Opening(node, self._feed, machine, plan, dispatch, self._wake)

        def waits(what: str) -> None:
            self.waits = what

        await opening.open(dispatch, waits)
        self.waits, self.is_ready = "", True

    async def _info(self, dispatch: Dispatch) -> FeedInfo:
        """The feed's settings as stored; its owner stored them before it sent the Dispatch."""
        stored = await self._node.read(feed_key(self._node.cluster, self._feed, "info"))
        info = FeedInfo.from_bytes(stored) if stored is not None else None
        if info is None or info.instance != dispatch.header.instance:
            raise Retryable(
                "the changefeed is not stored as its owner says", where=f"changefeed {self._feed}"
            )
        return info

    def _shut(self) -> None:
        """Forget catalogue and spans, to open them again; the spans stay held."""
        machine = self._machine
        machine.close()
        self.current = None
        self._bounds.reset()
        self._span_loads.reset()
        machine.received, machine.coming = 0, ()
        self._pipeline.reset()
        machine.status, machine.loads = ProcessorStatus(), {}

    def close(self, *, forget: bool = False, but: Collection[str] = ()) -> None:
        """Close the catalogue and release the spans except `but`; `forget`: they will not be needed again."""
        if self.current is not None:
            self.current.close(forget=forget, but=but)
        self._shut()

    def measure_loads(self) -> None:
        """Measure from time to time how many bytes of changes arrive for each span."""
        now, machine = self._node.clock.monotonic(), self._machine
        if self.current is not None and self._span_loads.is_due(now):
            lines = self.current.spans.status
            machine.loads = self._span_loads.measure(now, machine.spans.ids, lines, machine.loads)

    # --- what this capture needs of its event stores -------------------------------------------------

    @property
    def kv_mode(self) -> str:
        """The mode of the rows it captures; empty while nothing is open."""
        return self.current.plan.config.tidegate.kv_mode if self.current is not None else ""

    @property
    def begins_at(self) -> int:
        """The ts from which the changefeed would start again, as far as is known here."""
        return self._machine.dispatch.checkpoint if self._machine.dispatch is not None else 0

    @property
    def is_settled(self) -> bool:
        """Whether it holds the spans that the owner wants it to hold."""
        dispatch = self._machine.dispatch
        return self.is_ready or dispatch is None or dispatch.wish in (Wish.REST, Wish.DELETE)

    @property
    def drop_below(self) -> tuple[int, int] | None:
        """The ts up to which rows, and DDL entries, may be dropped: delivered, read by all, not retained.

        None: nothing is open, and everything from its checkpoint on is needed.
        """
        if not self._machine.spans.is_open:
            return None
        return self._bounds.passed(self.opened.plan)

    @property
    def pulled(self) -> dict[str, int]:
        """Rows and bytes that the puller has received for its spans since it started."""
        if self.current is None:
            return {"rows": 0, "bytes": 0}
        names = self._machine.spans.ids
        lines = [line for line in self.current.spans.status if line.span in names]
        return {"rows": sum(line.rows for line in lines), "bytes": sum(line.bytes for line in lines)}
