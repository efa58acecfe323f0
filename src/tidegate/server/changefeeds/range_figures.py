"""The figures of ranges and tables for metrics: the busiest of them one by one, the others summed.

    changefeeds --> their ranges, tables with load --> bounded --> `metrics.PartGauges`

An owner may have ten thousand ranges. The `PARTS_MAX` with the most bytes a second, of all its changefeeds
together, have samples of their own, and so do as many tables. Those that are left of a changefeed are one
part named `others`: its bytes are summed, and its lags are the greatest ones, so that a range that is late is
never hidden. Which ranges are shown changes with their loads; of equal loads the first ones are shown.

A table has figures if spans are of that table alone. Tables that share a stripe also share its load, which
counts for the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest

from tidegate.metrics import OTHERS, PARTS_MAX, FeedFigures, PartFigures
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import physical_ms
from tidegate.server.owner.feed import Feed
from tidegate.server.owner.range_facts import ShownRange


@dataclass(frozen=True, slots=True)
class SeenFeed:
    """A changefeed, as far as its figures need it."""

    feed: tuple[str, str]
    """Its namespace and name."""
    ranges: Sequence[ShownRange]
    """In key order."""
    captures: Sequence[str]
    """The captures of the ranges, as people know them."""
    tables: Sequence[tuple[str, Span, int]]
    """(name, span, bytes a second) of the spans of single tables with a load."""


@dataclass(slots=True)
class TableFigures:
    """The sum of a table's spans."""

    load: int
    slowest: int
    """The lowest checkpoint of its ranges."""
    received: int
    """The lowest resolved ts of its ranges."""


def figures_of(feeds: Iterable[Feed], now_ms: int) -> list[FeedFigures]:
    """The figures of an owner's changefeeds at upstream's time `now_ms`."""
    return bounded([_seen(feed) for feed in feeds], now_ms, PARTS_MAX)


def _seen(feed: Feed) -> SeenFeed:
    ranges, replication = feed.ranges(), feed.replication
    there = {feed.node.capture: feed.node.address, **feed.node.others()}
    names = [there.get(one.owned.capture) or one.owned.capture for one in ranges]
    loads = replication.shares.sharing.spans.tables_with_load if feed.record.config.has_tables else []
    ddl = replication.ddl
    tables = [(ddl.name_of(table) or f"id {table}", span, load) for table, span, load in loads]
    return SeenFeed((feed.id.namespace, feed.id.name), ranges, names, tables)


def bounded(feeds: Sequence[SeenFeed], now_ms: int, most: int) -> list[FeedFigures]:
    """The figures, with at most `most` ranges and as many tables of their own in all changefeeds together."""
    tables = [_tables(feed) for feed in feeds]
    own_ranges = _busiest([[one.load for one in feed.ranges] for feed in feeds], most)
    own_tables = _busiest([[one.load for one in each.values()] for each in tables], most)
    return [
        FeedFigures(
            feed.feed,
            sum(one.load for one in feed.ranges),
            Counter(str(one.why.delivery) for one in feed.ranges),
            _of_ranges(feed, own_ranges[number], now_ms),
            _of_tables(feed, tables[number], own_tables[number], now_ms),
        )
        for number, feed in enumerate(feeds)
    ]


def _busiest(loads: Sequence[Sequence[int]], most: int) -> list[set[int]]:
    """For each changefeed, which of its parts are among the `most` with the greatest loads of all."""
    each = [(load, feed, part) for feed, its in enumerate(loads) for part, load in enumerate(its)]
    found: list[set[int]] = [set() for _ in loads]
    for _, feed, part in nlargest(most, each, key=lambda one: one[0]):
        found[feed].add(part)
    return found


def _of_ranges(feed: SeenFeed, own: set[int], now_ms: int) -> list[PartFigures]:
    found = [
        PartFigures(
            (span_id(one.owned.span), feed.captures[number]),
            _lag_s(one.owned.checkpoint, now_ms),
            _lag_s(one.owned.resolved, now_ms),
            one.load,
            str(one.why.delivery),
        )
        for number, one in enumerate(feed.ranges)
        if number in own
    ]
    rest = [one for number, one in enumerate(feed.ranges) if number not in own]
    return [*found, _rest((OTHERS, ""), rest, sum(one.load for one in rest), now_ms)] if rest else found


def _of_tables(
    feed: SeenFeed, tables: dict[str, TableFigures], own: set[int], now_ms: int
) -> list[PartFigures]:
    found = [
        PartFigures((name,), _lag_s(one.slowest, now_ms), _lag_s(one.received, now_ms), one.load)
        for number, (name, one) in enumerate(tables.items())
        if number in own
    ]
    left = sum(one.load for one in feed.ranges) - sum(round(one.bytes_per_s) for one in found)
    # Any of the ranges may hold tables without figures.
    return [*found, _rest((OTHERS,), feed.ranges, left, now_ms)] if left > 0 else found


def _rest(labels: Sequence[str], ranges: Sequence[ShownRange], load: int, now_ms: int) -> PartFigures:
    checkpoint = min(one.owned.checkpoint for one in ranges)
    resolved = min(one.owned.resolved for one in ranges)
    return PartFigures(labels, _lag_s(checkpoint, now_ms), _lag_s(resolved, now_ms), load)


def _tables(feed: SeenFeed) -> dict[str, TableFigures]:
    """The tables with a load, by name."""
    found: dict[str, TableFigures] = {}
    starts = [one.owned.span.start for one in feed.ranges]
    for name, span, load in feed.tables:
        # A span is in one range, because ranges are cut only where spans begin.
        owned = feed.ranges[max(0, bisect_right(starts, span.start) - 1)].owned
        known = found.setdefault(name, TableFigures(0, owned.checkpoint, owned.resolved))
        known.load += load
        known.slowest = min(known.slowest, owned.checkpoint)
        known.received = min(known.received, owned.resolved)
    return found


def _lag_s(ts: int, now_ms: int) -> float:
    return max(0, now_ms - physical_ms(ts)) / 1000
