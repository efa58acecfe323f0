"""The spans of a changefeed that alone are more than a capture's fair share of its load, and what helps.

One capture has a span as a whole, so no division among captures makes the load even while there is such a
span. Only other cuts do. A changefeed gets those by itself if its configuration allows it (`recuts`),
otherwise from its configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from tidegate.config.settings import ReplicaConfig
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
BY_ITSELF: Final = (
    "it is cut by itself if it stays hot for a minute, and 10 minutes after the last cuts at the earliest; "
    "later if tables were cut by themselves before"
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
    by_itself: str = ""
    """The owner's plan for it, or why it has none; empty: it may cut no tables."""


@dataclass(frozen=True, slots=True)
class HotSpans:
    """The hot spans of a changefeed, the hottest first."""

    spans: Sequence[HotSpan] = ()
    more: int = 0
    """The number of those that are not in `spans`."""


@dataclass(frozen=True, slots=True)
class Hottest:
    """The hot spans of a changefeed in key order, each with its load in bytes per second."""

    spans: Sequence[tuple[SpanTask, float]] = ()
    mean: float = 0.0
    """The mean load of a capture."""


def hottest(feed: Feed) -> Hottest:
    """The hot spans of a changefeed now. None without several captures, or without load to speak of."""
    shares = feed.replication.shares
    sharing = shares.sharing
    captures = len(sharing.captures.able())
    if captures < 2 or sharing.stays or not shares.may_be_shared:
        return Hottest()
    pieces, in_bytes = sharing.spans.pieces
    if not in_bytes:
        return Hottest()
    mean = sum(piece.weight for piece in pieces) / captures
    both = zip(pieces, sharing.spans.in_order, strict=True)
    return Hottest([(task, piece.weight) for piece, task in both if piece.weight > HOT * mean], mean)


def hot_spans(feed: Feed) -> HotSpans:
    """The same for people: the hottest first, with the names of their tables, and what helps."""
    found = hottest(feed)
    shown = nlargest(SPANS_NAMED, found.spans, key=lambda one: one[1])
    named = [_named(feed, task, load, load / found.mean) for task, load in shown]
    return HotSpans(named, len(found.spans) - len(named))


def cuts_itself(config: ReplicaConfig) -> bool:
    """Whether the owner may cut hot tables of a changefeed."""
    return config.has_tables and config.scheduler.enable_table_across_nodes and config.tidegate.cut_hot_tables


def summary(feed: Feed, spans: Sequence[tuple[SpanTask, float]], mean: float) -> str:
    """Why these spans are cut, in words: the hottest one, and the number of the others."""
    task, load = max(spans, key=lambda one: one[1])
    (table, *_) = named_tables(feed, task.span, ids_of(task))
    more = len(spans) - 1
    others = f", and {more} more span{'s' if more > 1 else ''}" if more else ""
    what = table.name if table.is_whole and not task.wanted else f"a span of {table.name}"
    return f"{what} had {load / (1 << 20):,.1f} MiB/s, {load / mean:.1f} times the mean of a capture{others}"


def _named(feed: Feed, task: SpanTask, load: float, times_mean: float) -> HotSpan:
    tables = ids_of(task)
    first = named_tables(feed, task.span, tables)
    by_itself = (feed.hot_watch.said(task.id) or BY_ITSELF) if cuts_itself(feed.record.config) else ""
    return HotSpan(load, times_mean, len(tables), first, _remedy(task), by_itself)


def _remedy(task: SpanTask) -> str:
    if task.wanted:
        return OF_A_STRIPE
    return OF_A_TABLE if task.span.covers(keys.record_span(task.physical_id)) else OF_A_PIECE
