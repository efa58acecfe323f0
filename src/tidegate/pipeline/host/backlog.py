"""The part of a feed that waits in the event store, given out as workers become free.

    floors, manifests, bounds       ->  Backlog.take  ->  shares of (span, after, upto), one for each worker
                                         Backlog.done  <-  those that are durable

It belongs to the application. It reads no rows and opens no segment; the worker that gets a range does. It
shares only files with the puller and the control process, and reads them again at every look. At most one
range of a span is out at a time, so the rows of a span are written in order by any worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from tidegate.eventstore import store_view
from tidegate.eventstore.last_rows import LastRows
from tidegate.eventstore.manifest import Manifest, ManifestReader, StoreFrontier
from tidegate.model.ts_by_span import SpanOrder, TsArray, TsBySpan
from tidegate.pipeline.exchange.feed import Bounds, BoundsReader, FeedSpec
from tidegate.pipeline.exchange.ranges import Range, due, share, waits

SMALL_BYTES: Final = 1 << 20
"""So little that one worker delivers it in a moment."""
KEPT: Final = 2
"""How many manifests are kept for each span that is followed, at most."""


class Share(NamedTuple):
    """The ranges that one worker gets."""

    ranges: list[Range]
    bytes: int
    """About how many bytes of entries they have."""


@dataclass(frozen=True, slots=True, eq=False)
class _Followed:
    """The spans of a bounds file in an order: a look compares them as arrays, because there may be a
    thousand.
    """

    spans: Mapping[str, int]
    """As in `Bounds.spans`."""
    order: SpanOrder
    places: Mapping[str, int]
    """The place of each in the order."""
    begins: TsArray
    """[spans]: the ts from which each is to be given out next."""
    last_rows: LastRows

    @classmethod
    def of(cls, spans: Mapping[str, int], begun: Mapping[str, int], before: _Followed | None) -> _Followed:
        """`begun`: the ts up to which each was given out. `before`: those of the last file."""
        # The start in the bounds may be higher, because the control process advances spans that have no
        # rows.
        at = (max(begun.get(span, 0), start_ts) for span, start_ts in spans.items())
        begins = np.fromiter(at, np.uint64, len(spans))
        # Most files have the same spans from a later start on: their manifests need not be read again.
        if before is not None and before.order.names == tuple(spans):
            return replace(before, spans=spans, begins=begins)
        order = SpanOrder(spans)
        places = {span: place for place, span in enumerate(order.names)}
        # Nor need those of the spans that stay, if a DDL has added some or ended others.
        last_rows = LastRows(order) if before is None else before.last_rows.in_order(order)
        return cls(spans, order, places, begins, last_rows)


class Backlog:
    """The backlog of one incarnation. For one thread, except `done`, which any thread may call."""

    def __init__(self, spec: FeedSpec, begun: Mapping[str, int]) -> None:
        """`begun`: the ts up to which each span is durable."""
        self._spec = spec
        self._bounds = BoundsReader(spec.feed_dir / "bounds.json")
        self._begun = dict(begun)
        """The ts up to which each span was given out."""
        self._out: set[str] = set()
        """Spans of which a worker has a range now."""
        self._followed = _Followed.of({}, {}, None)
        self._taken_at = float("-inf")
        self.spans: Set[str] = frozenset()
        """The spans in the bounds file at the last look."""
        self.gathers = False
        """Whether the last look found rows and left them, to wait for more."""
        self.is_cut = False
        """Whether more rows are due than the last `take` has taken."""
        self._manifests: dict[str, ManifestReader] = {}
        """Readers of the manifests looked at so far: each reads only what was appended since its last
        read."""

    def take(self, workers: int, at_most: int = 0) -> list[Share]:
        """Take the ranges that are due now, shared among at most `workers` workers. Empty if nothing is due,
        or if there is too little under heavy load (`gathers`).

        `at_most`: bytes in all, about; it is small when other changefeeds wait; 0: the bound of the settings.
        A look reads the bounds file, the floors, and the manifests of spans that may have rows.
        """
        own = self._spec.config.tidegate.max_batch_bytes
        budget = min(own, at_most) if at_most else own
        found, sizes, waiting = self.look(budget)
        now = time.monotonic()
        self.gathers = bool(found) and waits(waiting, budget, now - self._taken_at)
        self.is_cut = waiting > sum(sizes.values())
        if not found or self.gathers:
            return []
        self._taken_at = now
        # Noted when they are given out, not when they are durable: the next look must not find the same rows.
        # `give_back` undoes it.
        for one in found:
            self._begin_at(one.span, one.upto)
        self._out.update([one.span for one in found])
        if at_most:  # another worker has to open a writer, which costs more than a small share gains
            workers = min(workers, 1 + sum(sizes.values()) // SMALL_BYTES)
        shares = share(found, sizes, workers)
        return [Share(ranges, sum(sizes.get(one.span, 0) for one in ranges)) for ranges in shares]

    def done(self, ranges: Iterable[Range]) -> None:
        """These ranges are durable: the next ones of their spans may be taken."""
        self._out.difference_update([one.span for one in ranges])

    def give_back(self, ranges: Iterable[Range]) -> None:
        """No worker got these ranges: they are due again. Called by the thread that took them."""
        for one in ranges:
            # No later range of this span was taken meanwhile, because at most one is out.
            self._begin_at(one.span, one.after)
            self._out.discard(one.span)

    def _begin_at(self, span: str, ts: int) -> None:
        self._begun[span] = ts
        followed = self._followed
        if (place := followed.places.get(span)) is not None:
            followed.begins[place] = max(ts, followed.spans[span])

    def bounds_mark(self) -> object:
        """A mark that changes whenever the control process has replaced bounds."""
        return self._bounds.mark

    def look(self, at_most: int = 0) -> tuple[list[Range], dict[str, int], int]:
        """The ranges that are due now, about how many bytes each has, and how many wait in all."""
        bounds = self._bounds.read()
        if bounds.spans is not self._followed.spans:  # the file was replaced
            self._followed = _Followed.of(bounds.spans, self._begun, self._followed)
            self.spans = frozenset(bounds.spans)
        # Read the frontier before the manifests: every row at or below it is in a manifest by then.
        floors = store_view.read_frontier(self._spec.store_dir)
        ddl = floors.get(bounds.ddl_span, 0)
        frontier = store_view.lifted(floors, bounds.wanted, ddl, self._manifest)
        if len(self._manifests) > KEPT * len(bounds.spans):
            self._manifests.clear()  # most are of spans that were dropped
        if len(self._begun) > KEPT * len(bounds.spans):
            self._begun = {span: ts for span, ts in self._begun.items() if span in bounds.spans}
        sizes = self._sizes(bounds, floors, frontier)
        # Each span gets an equal part. Otherwise a span with a long backlog would keep the others waiting.
        # Rounded up, so that a full piece has all of `at_most`.
        budget = -(-(at_most or self._spec.config.tidegate.max_batch_bytes) // max(1, len(sizes)))

        def cut(span: str, since: int, upto: int) -> int:
            return store_view.cut(self._manifest(span), since, upto, budget)

        # docs/guarantees.md#changes-of-a-row-are-on-one-partition-in-commit-order:
        # No other: its range is out, or it has no rows. A second range of it must not be out, because two
        # workers would write its rows in any order.
        some = replace(bounds, spans={span: bounds.spans[span] for span in sizes})
        found = due(self._begun, some, frontier, cut)
        return found, {span: min(size, budget) for span, size in sizes.items()}, sum(sizes.values())

    def _sizes(self, bounds: Bounds, floors: StoreFrontier, frontier: TsBySpan) -> dict[str, int]:
        """Bytes that wait in each span, for the spans that have rows to deliver and no range out.

        `frontier`: the floors as this changefeed sees them (`store_view.lifted`).
        """
        followed, found = self._followed, {}
        # A row beyond the resolved ts of the DDL span might be decoded with an old schema.
        limit = np.uint64(min(frontier.get(bounds.ddl_span, 0), bounds.bound))
        upto = np.minimum(frontier.ts_of(followed.order), limit)
        some = np.flatnonzero(upto > followed.begins)
        # Not beyond the floor itself: a ts to which it was lifted is from the manifest's ranges.
        is_quiet = floors.ts_of(followed.order)[some] >= upto[some]
        is_quiet &= followed.last_rows.without_rows(floors, some, followed.begins[some])
        for place in some[~is_quiet].tolist():
            span = followed.order.names[place]
            if span in self._out:
                continue
            size = self._pending(place, int(followed.begins[place]), int(upto[place]), bounds)
            if size:
                found[span] = size
        return found

    def _manifest(self, span: str) -> Manifest:
        known = self._manifests.get(span)
        if known is None:
            known = self._manifests[span] = ManifestReader(self._spec.store_dir / span)
        return store_view.read_manifest(self._spec.store_dir, span, known)

    def _pending(self, place: int, after: int, upto: int, bounds: Bounds) -> int:
        """Bytes of a span in (after, upto]. 0 if no row there belongs to a table that is wanted."""
        span = self._followed.order.names[place]
        manifest = self._manifest(span)
        self._followed.last_rows.note(place, manifest)
        if manifest.dropped_to > after:
            return 0  # the puller has not yet started to pull the span again from `after` or before
        rows, size, _, _ = store_view.pending(manifest, after, upto)
        if rows and span in bounds.wanted:
            folder = self._spec.store_dir / span
            rows = store_view.has_any(folder, manifest, after, upto, *bounds.wanted[span])
        # At least 1, because `_sizes` leaves out spans with 0, and their rows would never be delivered.
        return max(size, 1) if rows else 0
