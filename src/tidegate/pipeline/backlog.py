"""What of a feed waits in the event store, handed out as workers become free.

    floors, manifests, bounds.json  ->  Backlog.take  ->  shares of (span, after, upto), one a worker
                                         Backlog.done  <-  those that are durable

Lives in the application. It reads no rows and opens no segment: whoever gets a range does. With the puller
and the control process it shares only files, read anew at every look. Of a span one range is out at a time:
its rows are written in order, whoever writes them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Set
from typing import Final, NamedTuple

from tidegate.eventstore import store_view
from tidegate.eventstore.manifest import Manifest, ManifestReader
from tidegate.pipeline.feed import Bounds, FeedSpec
from tidegate.pipeline.ranges import Range, deliverable, due, share, waits

SMALL_BYTES: Final = 1 << 20
"""As much as one worker delivers in a moment."""
KEPT: Final = 2
"""Manifests that are remembered, for each span that is followed."""


class Share(NamedTuple):
    """What one worker gets."""

    ranges: list[Range]
    bytes: int
    """About so many, of entries."""


class Backlog:
    """One incarnation's. For one thread, but for `done`, which any may call."""

    def __init__(self, spec: FeedSpec, begun: Mapping[str, int]) -> None:
        """`begun`: up to where each span is durable."""
        self._spec = spec
        self._bounds_file = str(spec.feed_dir / "bounds.json")
        self._begun = dict(begun)
        """How far each span was taken."""
        self._out: set[str] = set()
        """Spans of which a worker has a range."""
        self._taken_at = float("-inf")
        self.spans: Set[str] = frozenset()
        """Those that the bounds file named at the last look."""
        self.gathers = False
        """Whether the last look found rows, and left them to be more."""
        self._manifests: dict[str, ManifestReader] = {}
        """Of spans that were looked at: only what was appended is read again."""

    def take(self, workers: int, at_most: int = 0) -> list[Share]:
        """What is due now, shared among so many workers; empty if nothing is, or too little under heavy load
        (`gathers`). Not much more than `at_most` bytes in all, since others wait, too; 0: as many as the
        settings say. A look costs a reading of the bounds file and a pass over the spans.
        """
        own = self._spec.config.tidegate.max_batch_bytes
        budget = min(own, at_most) if at_most else own
        found, sizes, waiting = self.look(budget)
        now = time.monotonic()
        self.gathers = bool(found) and waits(waiting, budget, now - self._taken_at)
        if not found or self.gathers:
            return []
        self._taken_at = now
        self._begun |= {one.span: one.upto for one in found}
        self._out.update([one.span for one in found])
        if at_most:  # another writer is worth its price for much work only
            workers = min(workers, 1 + sum(sizes.values()) // SMALL_BYTES)
        shares = share(found, sizes, workers)
        return [Share(ranges, sum(sizes.get(one.span, 0) for one in ranges)) for ranges in shares]

    def done(self, ranges: Iterable[Range]) -> None:
        """They are durable: what comes after them may be taken."""
        self._out.difference_update([one.span for one in ranges])

    def give_back(self, ranges: Iterable[Range]) -> None:
        """No worker has had them after all: they are due again. By the thread that took them."""
        for one in ranges:
            self._begun[one.span] = one.after
            self._out.discard(one.span)

    def bounds_mark(self) -> object:
        """Another one, whenever the control process has told another bound or other spans."""
        found = os.stat(self._bounds_file)  # noqa: PTH116 - half the price, and a hundred a second
        return found.st_ino, found.st_mtime_ns

    def look(self, at_most: int = 0) -> tuple[list[Range], dict[str, int], int]:
        """The ranges that are due now, about how many bytes each has, and how many wait in all."""
        bounds = Bounds.load(self._spec.feed_dir / "bounds.json")
        self.spans = frozenset(bounds.spans)
        # The frontier first: every row below it is in a manifest by then.
        floors = store_view.read_frontier(self._spec.store_dir)
        ddl = floors.get(bounds.ddl_span, 0)
        frontier = store_view.lifted(floors, bounds.wanted, ddl, self._manifest)
        if len(self._manifests) > KEPT * len(bounds.spans):
            self._manifests.clear()  # tables come and go
        if len(self._begun) > KEPT * len(bounds.spans):
            self._begun = {span: ts for span, ts in self._begun.items() if span in bounds.spans}
        sizes = self._sizes(bounds, frontier)
        budget = (at_most or self._spec.config.tidegate.max_batch_bytes) // max(1, len(sizes))

        def cut(span: str, since: int, upto: int) -> int:
            if span not in sizes:
                return since
            return store_view.cut(self._manifest(span), since, upto, budget)

        found = due(self._begun, bounds, frontier, cut)
        return found, {span: min(size, budget) for span, size in sizes.items()}, sum(sizes.values())

    def _sizes(self, bounds: Bounds, frontier: Mapping[str, int]) -> dict[str, int]:
        """Bytes that wait per span, of the spans that have rows to deliver and are with nobody."""
        found = {}
        for span, start_ts in bounds.spans.items():
            if span in self._out:
                continue
            after, upto = max(self._begun.get(span, 0), start_ts), deliverable(bounds, frontier, span)
            size = self._pending(span, after, upto, bounds) if upto > after else 0
            if size:
                found[span] = size
        return found

    def _manifest(self, span: str) -> Manifest:
        known = self._manifests.get(span)
        if known is None:
            known = self._manifests[span] = ManifestReader(self._spec.store_dir / span)
        return store_view.read_manifest(self._spec.store_dir, span, known)

    def _pending(self, span: str, after: int, upto: int, bounds: Bounds) -> int:
        """Bytes in (after, upto]; 0: no row there is of a table that is wanted."""
        manifest = self._manifest(span)
        if manifest.dropped_to > after:
            return 0  # the puller was told to begin the span anew, from `after` or before, and has not yet
        rows, size, _, _ = store_view.pending(manifest, after, upto)
        if rows and span in bounds.wanted:
            folder = self._spec.store_dir / span
            rows = store_view.has_any(folder, manifest, after, upto, *bounds.wanted[span])
        return max(size, 1) if rows else 0
