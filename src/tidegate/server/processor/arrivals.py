"""The rows that the event store has received for the spans that a changefeed delivers on this capture.

    floors and manifests --> begins too late | rows to deliver | nothing up to the bound: idle

A manifest is read only if the floor names another version of it than the one that was read last, or if it
names rows that are not delivered (`eventstore.last_rows`).

A span without rows advances without the pipeline. That is safe only if the store has everything of the span
since the changefeed's checkpoint. A floor says up to which ts a span is complete, but not from which ts. So
the beginning is checked in the manifest before a floor counts. Idle spans are looked up in the frontier
again after their manifests were read, because a span may have been restarted in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.control.open_spans import Received
from tidegate.control.processor import Processor
from tidegate.eventstore import store_view
from tidegate.eventstore.last_rows import LastRows
from tidegate.eventstore.manifest import Manifest, StoreFrontier
from tidegate.model.ts_by_span import TsBySpan, ts_of
from tidegate.tidb import keys

ReadManifest = Callable[[Path, str], Manifest | None]
"""The manifest of a span in a store; None while it has none."""


class Arrivals:
    """The arrivals for one opening of a changefeed. Lives in one asyncio loop."""

    def __init__(
        self, machine: Processor, store: Path, ddl_span_id: str, read_manifest: ReadManifest
    ) -> None:
        """`store`: the folder of the event store. `ddl_span_id`: the span that bounds all others."""
        self._machine, self._ddl_span_id = machine, ddl_span_id
        self._read_manifest: Final = read_manifest
        self.store = store
        self.undelivered: list[str] = []
        """Spans with rows that the pipeline may deliver now."""
        self.lacking: set[str] = set()
        """Spans whose stored part begins above the checkpoint; the puller is asked for the missing part."""
        self.all_idle = False
        """Whether every row at or below the bound is durable."""
        self._unchecked: set[str] = set()
        """Spans whose beginning has not been checked yet."""
        self._last_rows = LastRows(machine.spans.order)

    def check_beginning_of(self, spans: Iterable[str]) -> None:
        """Check later whether these spans, which were just added, begin early enough."""
        self._unchecked |= set(spans)

    def manifest(self, span: str) -> Manifest | None:
        """A span's manifest; None while it has none."""
        return self._read_manifest(self.store, span)

    def frontier(self) -> StoreFrontier:
        """Up to which ts each span is complete in the store."""
        return store_view.read_frontier(self.store)

    def lifted(self, frontier: StoreFrontier) -> TsBySpan:
        """The frontier for this changefeed: tables of a stripe that it does not want do not hold it back."""
        ddl_ts = frontier.get(self._ddl_span_id, 0)
        return store_view.lifted(frontier, self._machine.spans.stripes, ddl_ts, self.manifest)

    def advance_idle(self, frontier: StoreFrontier, reached: Mapping[str, int]) -> None:
        """Find the spans with rows to deliver, and report to the machine those that have none.

        `reached`: the frontier as this changefeed sees it (`lifted`).
        """
        undelivered: list[str] = []
        lacking = self._begin_late()
        moved = self._machine.spans.beyond(reached, self._machine.bound)
        is_idle = self._known_idle(frontier, moved)
        for at in np.flatnonzero(~is_idle).tolist():
            is_idle[at] = self._is_idle(frontier, moved, at, undelivered, lacking)
        self.undelivered, self.lacking, self.all_idle = undelivered, lacking, bool(is_idle.all())
        if not is_idle.any():
            return
        # Check again: a span that was restarted meanwhile left the frontier before its rows were dropped.
        again = ts_of(self.lifted(self.frontier()), moved.order)[moved.places]
        self._machine.idle(moved.only(is_idle & (again >= moved.upto)))

    def _known_idle(self, frontier: StoreFrontier, moved: Received) -> npt.NDArray[np.bool_]:
        """Whether the manifest that was read last shows that a span is idle, for each of some spans."""
        order, places = moved.order, moved.places
        self._last_rows = self._last_rows.in_order(order)
        # Not beyond the floor itself: a ts to which it was lifted is from the manifest's ranges.
        within = frontier.ts_of(order)[places] >= moved.upto
        return within & self._last_rows.without_rows(frontier, places, moved.after)

    def _is_idle(
        self, frontier: StoreFrontier, moved: Received, at: int, undelivered: list[str], lacking: set[str]
    ) -> bool:
        """Whether one of some spans is idle, by its manifest as it is now. Otherwise it may be added to
        those that are undelivered, or lack a part.
        """
        place, after, upto = (int(one[at]) for one in (moved.places, moved.after, moved.upto))
        span = moved.order.names[place]
        manifest = self.manifest(span)
        if manifest is None or manifest.dropped_to > after:
            # Rows above `after` may be among those that were dropped.
            lacking.add(span)
            return False
        self._last_rows.note(place, manifest)
        if max(frontier.reach(span, manifest), self._reach_of(span, manifest)) < upto:
            return False
        if store_view.pending(manifest, after, upto)[0] and self._has_rows(span, manifest, after, upto):
            undelivered.append(span)
            return False
        return True

    def _reach_of(self, span: str, manifest: Manifest) -> int:
        """Up to which ts all wanted tables of a stripe are complete; 0 if the whole span is wanted."""
        bounds, wanted = self._machine.spans.wanted(span)
        return store_view.reach_of(manifest, (keys.stripe_ids(bounds).start, wanted)) if wanted else 0

    def _begin_late(self) -> set[str]:
        """Spans that do not count as received, whatever their floor says, because their stored part begins
        above the checkpoint.

        A span that once began early enough is not checked again. The store drops rows only up to where the
        feed no longer needs them, and `advance_idle` sees a restarted span in its manifest.
        """
        if not self._unchecked:
            return set()
        spans = self._machine.spans
        late = set()
        for span in self._unchecked & spans.ids:
            manifest = self.manifest(span)
            if manifest is None or manifest.dropped_to > spans.durable(span):
                late.add(span)
        self._unchecked = late
        # A copy, because the caller adds to it.
        return set(late)

    def _has_rows(self, span: str, manifest: Manifest, after: int, upto: int) -> bool:
        """Whether (after, upto] may contain a change of a wanted table."""
        bounds, wanted = self._machine.spans.wanted(span)
        folder, first = self.store / span, keys.stripe_ids(bounds).start if wanted else 0
        return not wanted or store_view.has_any(folder, manifest, after, upto, first, wanted)
