"""What has arrived in this capture's event store of the spans that a changefeed delivers here.

    floors and manifests --> begins too late | rows to deliver | nothing up to the bound: idle

A span without rows advances without the pipeline. That is safe only if the store has the span from the
changefeed's checkpoint on: a floor says up to where a span is known, and not from where. So the beginning is
checked before a floor counts, and idle spans are looked up in the frontier once more after their manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from tidegate.control.processor import Processor
from tidegate.eventstore import store_view
from tidegate.eventstore.manifest import Frontier, Manifest
from tidegate.tidb import keys

ReadManifest = Callable[[Path, str], Manifest | None]
"""The manifest of a span in a store; None while it has none."""


class Arrivals:
    """Of one opening of a changefeed. One asyncio loop."""

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
        """Spans that do not begin early enough yet: the puller is asked for what is missing."""
        self.all_idle = False
        """Whether no row that is not durable is below the bound."""
        self._unchecked: set[str] = set()
        """Spans of which it is not known yet whether they begin early enough."""

    def check_beginning_of(self, spans: Iterable[str]) -> None:
        """These spans have just become ours: whether they begin early enough is to be looked up."""
        self._unchecked |= set(spans)

    def manifest(self, span: str) -> Manifest | None:
        """A span's manifest; None while it has none."""
        return self._read_manifest(self.store, span)

    def frontier(self) -> Frontier:
        """Up to where each span is in the store."""
        return store_view.read_frontier(self.store)

    def lifted(self, frontier: Frontier) -> Mapping[str, int]:
        """As it is for us: parts of stripes may be behind of which we want nothing."""
        ddl_ts = frontier.get(self._ddl_span_id, 0)
        return store_view.lifted(frontier, self._machine.stripes, ddl_ts, self.manifest)

    def advance_idle(self, frontier: Frontier, reached: Mapping[str, int]) -> None:
        """Find what is to be delivered, and tell the machine of spans that have nothing.

        `reached`: the frontier as it is for us (`lifted`).
        """
        idle = []
        undelivered = []
        lacking = self._begin_late()
        moved = self._machine.idle_ranges(reached)
        for span, after, upto in moved:
            manifest = self.manifest(span)
            if manifest is None or manifest.dropped_to > after:
                lacking.add(span)
                continue
            if max(frontier.reach(span, manifest), self._reach_of(span, manifest)) < upto:
                continue
            if store_view.pending(manifest, after, upto)[0] and self._has_rows(span, manifest, after, upto):
                undelivered.append(span)
            else:
                idle.append((span, after, upto))
        self.undelivered, self.lacking, self.all_idle = undelivered, lacking, len(idle) == len(moved)
        if not idle:
            return
        # Once more: a span that was begun again meanwhile left the frontier before its rows were dropped.
        again = self.lifted(self.frontier())
        for span, after, upto in idle:
            if again.get(span, 0) >= upto:
                self._machine.idle(span, after, upto)

    def _reach_of(self, span: str, manifest: Manifest) -> int:
        """Up to where all that we want of a stripe is there; 0 for a span that is wanted as a whole."""
        bounds, wanted = self._machine.wanted(span)
        return store_view.reach_of(manifest, (keys.stripe_ids(bounds).start, wanted)) if wanted else 0

    def _begin_late(self) -> set[str]:
        """Spans of which nothing is received yet, whatever their floor says: the store's part of them begins
        above the checkpoint. One that begins early enough is looked at no more: it is let go only up to where
        the feed is done with it, and a span that is begun again shows when it has something to deliver.
        """
        if not self._unchecked:
            return set()
        spans = self._machine.spans
        late = set()
        for span in self._unchecked & spans.keys():
            manifest = self.manifest(span)
            if manifest is None or manifest.dropped_to > spans[span].start_ts:
                late.add(span)
        self._unchecked = late
        return set(late)

    def _has_rows(self, span: str, manifest: Manifest, after: int, upto: int) -> bool:
        """Whether a change in (after, upto] may be of a table that is wanted."""
        bounds, wanted = self._machine.wanted(span)
        folder, first = self.store / span, keys.stripe_ids(bounds).start if wanted else 0
        return not wanted or store_view.has_any(folder, manifest, after, upto, first, wanted)
