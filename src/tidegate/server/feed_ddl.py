"""A feed's view of upstream's catalogue and DDL on one capture. The owner has a view, and each processor.

    open   the catalogue at the checkpoint, and the DDL since then
    look   the DDL that has come since the last look

All views use the capture's one catalogue (`server.catalogue.catalogues`) as a library. The DDL span of its
event store keeps it current, and base files save it. The workers start from the same files. Owner and
processor have each a view and a hold of the DDL span of their own, on one capture too, so neither depends on
the other's.

Upstream's history is held for the base from which the *owner* builds its catalogue (`FeedRecord.needs`). A
processor must not rely on an older base of its capture, because DDL after that base may be gone upstream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.gc import History
from tidegate.errors import Fatal, Retryable
from tidegate.eventstore import store_view
from tidegate.filter.feed import FeedFilter
from tidegate.log import event
from tidegate.model.key_range import KeyRange
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import MAX
from tidegate.server.catalogue.catalogues import DDL_SPAN
from tidegate.server.catalogue.key_tracker import KeyTracker
from tidegate.server.catalogue.schema_tracker import SchemaTracker
from tidegate.server.catalogue.stripes import SPANS_MAX, Stripes
from tidegate.server.delivery.plan import FeedPlan
from tidegate.server.node import Node
from tidegate.server.pulling.spans import Holder, OwnerOf

P = ParamSpec("P")
T = TypeVar("T")

LOG: Final = logging.getLogger(__name__)

LOST: Final = "CDC:ErrSnapshotLostByGC"
LOOK_S: Final = 0.02


class FeedDdl:
    """The view of one owner or processor. Not thread-safe; lives in one asyncio loop."""

    def __init__(self, node: Node, plan: FeedPlan, feed_filter: FeedFilter, holder: Holder) -> None:
        """`holder`: the owner or the processor whose view it is."""
        self._node, self._plan, self._filter, self._holder = node, plan, feed_filter, holder
        captured = node.captured(plan.config.tidegate.kv_mode)
        self._store, self._spans = captured.store, captured.spans
        self._catalogues = captured.catalogues if plan.config.has_tables else None
        self._tracker: SchemaTracker | KeyTracker | None = None
        own = plan.config.tidegate
        self._stripes = Stripes(max(1, own.ids_per_stripe), own.cuts)
        self.initial: tuple[SpanTask, ...] = ()
        """The spans wanted at the checkpoint that was passed to `open`."""
        self._has_warned = False

    @property
    def span(self) -> Span:
        """The span whose resolved ts bounds all others: that of DDL; for a feed of keys, its only span."""
        config = self._plan.config
        return DDL_SPAN if config.has_tables else KeyRange.of(config).span

    @property
    def span_id(self) -> str:
        """The id of `span` in the event store."""
        return span_id(self.span, self._plan.config.tidegate.kv_mode)

    @property
    def tracker(self) -> SchemaTracker | KeyTracker:
        """The tables and DDL that are known; the view must be open."""
        assert self._tracker is not None
        return self._tracker

    @property
    def is_open(self) -> bool:
        """Whether `open` was successful and the catalogue is not broken."""
        return self._tracker is not None and not self._tracker.broken

    def has_passed_over(self, checkpoint: int) -> bool:
        """Whether a view that is opened at the checkpoint would differ from this one, which must be open:
        this one has passed over a job at or below it, as `ignore-txn-start-ts` says.
        """
        return self.tracker.has_passed_over(checkpoint)

    async def open(
        self, checkpoint: int, waits: Callable[[str], None], held_from: int = 0
    ) -> tuple[list[DdlBatch], int]:
        """The DDL above a checkpoint as far as it is known, and up to which ts that is.

        `waits` is called with what it waits for, in words. Raises as `check_held` and `check_history`.
        """
        self.check_held(checkpoint)
        tracker = await self._open_tracker(checkpoint, waits, held_from)
        # After the tracker is open, which may have read or saved another base. The DDL span is needed from
        # the base on, to build the catalogue again after a restart.
        kept_from = self.base_ts(checkpoint)
        self.hold(kept_from)
        waits("DDL puller" if self._plan.config.has_tables else "puller")
        while not (resolved := self._resolved_from(checkpoint, kept_from)):
            self.check_history(checkpoint)
            await asyncio.sleep(LOOK_S)
        batches, known = await self.run(tracker.begin, checkpoint, resolved)
        # Only now: until the view has begun at its checkpoint, it is not open.
        self._tracker = tracker
        self.initial = self._stripes.begin(tracker.initial)
        return self._followed(batches), known

    @property
    def resolved(self) -> int:
        """Up to which ts the event store has the DDL span now."""
        return store_view.read_frontier(self._store).get(self.span_id, 0)

    def base_ts(self, checkpoint: int) -> int:
        """The ts from which DDL is read to build the catalogue at a checkpoint."""
        base = self._catalogues.base_ts(checkpoint) if self._catalogues is not None else None
        return checkpoint if base is None else base

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work on the catalogue in its thread, because it may block; a feed of keys has no such work."""
        if self._catalogues is None:
            return work(*args, **kwargs)
        return await self._catalogues.run(work, *args, **kwargs)

    def hold(self, start_ts: int) -> None:
        """Have the puller pull the DDL span from a ts on."""
        guarded = self._plan.config.check_gc_safe_point
        self._spans.hold(self._holder, self.span, start_ts, guarded=guarded)

    def look(self, resolved: int, waiting: int) -> tuple[list[DdlBatch], int]:
        """The new DDL, and up to which ts all DDL is known. `waiting`: the number of batches not done yet."""
        batches, known = self.tracker.catch_up(resolved, waiting)
        return self._followed(batches), known

    def _followed(self, batches: list[DdlBatch]) -> list[DdlBatch]:
        followed = self._stripes.follow(batches)
        if self._stripes.count > SPANS_MAX and self._is_owners and not self._has_warned:
            self._has_warned = True
            event(
                LOG,
                logging.WARNING,
                "changefeed has many spans by now, and each costs CPU all the time; to have wider stripes "
                "chosen, pause it, set `ids-per-stripe = 0` with `tidegate changefeed update`, and resume it",
                changefeed=str(self._plan.feed),
                spans=self._stripes.count,
            )
        return followed

    def check_held(self, checkpoint: int) -> None:
        """Raises Retryable until PD holds what the feed needs; upstream must not be read before."""
        # A processor's base that is too old is left out when its view is opened, so it may be older.
        needed, history = checkpoint, self.history
        if self._is_owners:
            # docs/guarantees.md#nothing-is-lost: the saved catalogue is continued by DDL from its base on,
            # which is below the checkpoint.
            needed = min(checkpoint, self.base_ts(checkpoint))
        if self._plan.config.check_gc_safe_point and needed < history.needed:
            held = f"from {history.needed} on" if history.needed < MAX else "nothing"
            raise Retryable(
                "upstream's history is not held yet from where the changefeed needs it",
                where=f"changefeed {self._plan.feed}",
                why=f"it needs it from {needed} on, PD has been asked for {held}",
                fix="nothing while PD answers: it is asked again every second",
            )

    @property
    def _is_owners(self) -> bool:
        return isinstance(self._holder, OwnerOf)

    @property
    def history(self) -> History:
        """The hold at PD on the history of the part of upstream that the feed follows."""
        return self._node.histories.get(self._plan.config.tidegate.keyspace_id, History())

    def check_history(self, checkpoint: int) -> None:
        """Raises Fatal if neither upstream nor the event store has what the feed needs."""
        refusal = self._spans.refusal(self._holder)
        if refusal is not None:
            what = f"span {span_id(refusal.span, self._plan.config.tidegate.kv_mode)}"
            raise self.history_gone(checkpoint, refusal.start_ts, refusal.safe_point, what)

    def history_gone(self, checkpoint: int, ts: int, safe_point: int, what: str) -> Fatal:
        """The error for history that neither upstream nor the event store has."""
        passed = "the checkpoint" if safe_point > checkpoint else "the saved catalogue"
        return Fatal(
            f"[{LOST}]upstream's GC safepoint {safe_point} has passed {passed}",
            where=f"changefeed {self._plan.feed}, checkpoint {checkpoint}, "
            f"catalogue of {self.base_ts(checkpoint)}",
            why=f"{what} has to be read from {ts} on, and the event store does not have it from there either",
            fix="remove the changefeed and create it again from a later start-ts",
        )

    def _resolved_from(self, checkpoint: int, start: int) -> int:
        """Up to which ts the DDL span is complete from `start` on; 0: not up to the checkpoint, or not from
        there.

        The stored part may begin later until the puller has restarted from the requested ts.
        """
        # Before the manifest: everything that a floor covers is in each manifest that is read after it.
        frontier = store_view.read_frontier(self._store)
        manifest = self._node.manifest(self._store, self.span_id)
        if manifest is None or manifest.dropped_to > start:
            return 0
        resolved = frontier.reach(self.span_id, manifest)
        return resolved if resolved >= max(checkpoint, start) else 0

    async def _open_tracker(
        self, checkpoint: int, waits: Callable[[str], None], held_from: int
    ) -> SchemaTracker | KeyTracker:
        config = self._plan.config
        if not config.has_tables:
            return KeyTracker(self.span, config.tidegate.kv_mode, checkpoint)
        catalogues = self._catalogues
        assert catalogues is not None
        waits("catalogue from upstream")
        if not self._is_owners and config.check_gc_safe_point:
            # The hold may be lower by now for another changefeed. It is not ours, and may rise again.
            await catalogues.run(catalogues.leave_out, checkpoint, max(self.history.needed, held_from))
        safe_point = self.history.safe_point if config.check_gc_safe_point else MAX
        gone = checkpoint < safe_point < MAX
        if gone and not await catalogues.run(catalogues.serves, checkpoint, safe_point):
            raise self.history_gone(checkpoint, checkpoint, safe_point, "the catalogue")
        known = catalogues, self._filter, checkpoint, safe_point, self._node.checkpoints()
        return await catalogues.run(SchemaTracker.open, *known)
