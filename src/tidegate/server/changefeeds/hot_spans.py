"""The spans of a changefeed that alone are more than a capture's fair share of its load, and what helps.

One capture has a span as a whole, so no division among captures makes the load even while there is such a
span. Only other cuts do, and a changefeed gets those from its configuration, never by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from tidegate.control.barrier import SpanTask
from tidegate.server.catalogue.stripes import ids_of
from tidegate.server.changefeeds.planned_moves import NamedTable, named_tables
from tidegate.server.owner.feed import Feed
from tidegate.tidb import keys

HOT: Final = 1.2
"""A span is hot if its load is more than this times the mean load of a capture."""
SPANS_NAMED: Final = 5
"""The most hot spans that are shown one by one. There are always fewer than captures."""

OF_A_TABLE: Final = (
    "cut it: [scheduler] enable-table-across-nodes = true, and a region-threshold and a "
    "region-count-per-span below its number of regions"
)
OF_A_PIECE: Final = "cut its table into more pieces: a smaller [scheduler] region-count-per-span"
OF_A_STRIPE: Final = (
    "take narrower stripes: a smaller [tidegate] ids-per-stripe; if one of its tables is large, cut that: "
    "[scheduler] enable-table-across-nodes = true, and a region-threshold and a region-count-per-span below "
    "its number of regions"
)


@dataclass(frozen=True, slots=True)
class HotSpan:
    """A span that is too much for one capture, as long as the others have less."""

    load: float
    """Bytes of changes per second."""
    times_mean: float
    """The load by the mean load of a capture."""
    tables: int
    first: Sequence[NamedTable]
    """The first of them in the order of keys."""
    remedy: str
    """The setting that cuts it, for `tidegate changefeed update`."""


@dataclass(frozen=True, slots=True)
class HotSpans:
    """The hot spans of a changefeed, the hottest first."""

    spans: Sequence[HotSpan] = ()
    more: int = 0
    """The number of those that are not in `spans`."""


def hot_spans(feed: Feed) -> HotSpans:
    """The hot spans of a changefeed now. None without several captures, or without load to speak of."""
    shares = feed.replication.shares
    sharing = shares.sharing
    captures = len(sharing.captures.able())
    if captures < 2 or sharing.stays or not shares.may_be_shared:
        return HotSpans()
    pieces, in_bytes = sharing.spans.pieces
    if not in_bytes:
        return HotSpans()
    mean = sum(piece.weight for piece in pieces) / captures
    hot = [
        (piece.weight, task)
        for piece, task in zip(pieces, sharing.spans.in_order, strict=True)
        if piece.weight > HOT * mean
    ]
    shown = nlargest(SPANS_NAMED, hot, key=lambda one: one[0])
    return HotSpans([_named(feed, task, load, load / mean) for load, task in shown], len(hot) - len(shown))


def _named(feed: Feed, task: SpanTask, load: float, times_mean: float) -> HotSpan:
    tables = ids_of(task)
    first = named_tables(feed, task.span, tables)
    return HotSpan(load, times_mean, len(tables), first, _remedy(task))


def _remedy(task: SpanTask) -> str:
    if task.wanted:
        return OF_A_STRIPE
    return OF_A_TABLE if task.span.covers(keys.record_span(task.physical_id)) else OF_A_PIECE
