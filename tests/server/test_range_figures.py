"""Metrics of ranges and tables are bounded, and their sums stay those of the changefeed."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tidegate.control.range_reasons import RUNS, Delivery, OwnedRange, Reason, Why
from tidegate.metrics import OTHERS, PARTS_MAX, FeedFigures, PartGauges
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.server.changefeeds.range_figures import SeenFeed, bounded
from tidegate.server.owner.range_facts import ShownRange, gaps, loads_in

NOW_MS = 1_000_000
SILENT = Why(Delivery.NOT_RUNNING, Reason.SILENT, "it is silent")


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def seen(loads: list[int], *, name: str = "one", late: int = -1) -> SeenFeed:
    """A changefeed with a range for each load, and a table in each range. `late`: a range that is silent."""
    ranges = [
        ShownRange(
            OwnedRange(
                Span(key(at), key(at + 1)),
                "c",
                True,
                compose(NOW_MS - (90_000 if at == late else 1_000)),
                compose(NOW_MS),
            ),
            SILENT if at == late else RUNS,
            load,
        )
        for at, load in enumerate(loads)
    ]
    tables = [(f"s.t{at}", Span(key(at), key(at) + b"z"), load) for at, load in enumerate(loads)]
    return SeenFeed(("default", name), ranges, ["10.0.0.1:8300"] * len(loads), tables)


def rendered(figures: list[FeedFigures]) -> bytes:
    registry, gauges = CollectorRegistry(), PartGauges()
    gauges.sources["owner"] = lambda: figures
    registry.register(gauges)
    return bytes(generate_latest(registry))


def test_the_busiest_have_figures_and_the_others_are_summed() -> None:
    (found,) = bounded([seen([5, 1, 9, 7], late=1)], NOW_MS, 2)
    assert [(one.labels, one.bytes_per_s) for one in found.ranges[:-1]] == [
        (found.ranges[0].labels, 9),
        (found.ranges[1].labels, 7),
    ]
    rest = found.ranges[-1]
    assert (rest.labels, rest.bytes_per_s, rest.state) == ((OTHERS, ""), 6, "")
    assert rest.checkpoint_lag_s == 90.0, "a range that is late is not hidden"
    assert found.states == {"running": 3, "not running": 1}
    assert [(one.labels, one.bytes_per_s) for one in found.tables] == [
        (("s.t2",), 9),
        (("s.t3",), 7),
        ((OTHERS,), 6),
    ]
    assert sum(one.bytes_per_s for one in found.ranges) == found.bytes_per_s == 22
    assert sum(one.bytes_per_s for one in found.tables) == found.bytes_per_s


def test_the_bound_holds_for_all_changefeeds_together() -> None:
    found = bounded([seen([3, 8], name="x"), seen([9, 1], name="y"), seen([], name="z")], NOW_MS, 2)
    assert [[one.bytes_per_s for one in each.ranges] for each in found] == [[8, 3], [9, 1], []]
    assert [each.ranges[-1].labels[0] for each in found[:2]] == [OTHERS, OTHERS]
    (alone,) = bounded([seen([0, 0])], NOW_MS, 2)
    assert len(alone.ranges) == 2, "nothing is summed if all are shown"


def test_a_table_in_several_ranges_is_one_table() -> None:
    feed = seen([4, 6], late=1)
    both = SeenFeed(feed.feed, feed.ranges, feed.captures, [("s.t", one[1], one[2]) for one in feed.tables])
    (found,) = bounded([both], NOW_MS, 5)
    assert [(one.labels, one.bytes_per_s, one.checkpoint_lag_s) for one in found.tables] == [
        (("s.t",), 10, 90.0)
    ]


def test_ten_thousand_ranges_make_a_small_page() -> None:
    page = rendered(bounded([seen(list(range(10_000)), late=3)], NOW_MS, PARTS_MAX))
    assert len(page.splitlines()) < 8 * PARTS_MAX
    assert len(page) < 150_000
    text = page.decode()
    assert 'tidegate_changefeed_ranges{changefeed="one",namespace="default",state="not running"} 1.0' in text
    others = 'tidegate_range_checkpoint_ts_lag_seconds{capture="",changefeed="one",namespace="default",range'
    assert f'{others}="others"}} 90.0' in text


def test_an_owner_that_is_gone_has_no_figures() -> None:
    assert b"{" not in rendered([])


def test_a_load_counts_in_the_range_in_which_its_span_begins() -> None:
    ranges = [Span(b"b", b"m"), Span(b"m", b"")]
    spans = {Span(b"a", b"c"): 1, Span(b"c", b"d"): 2, Span(b"m", b"n"): 4, Span(b"z", b""): 8}
    assert loads_in(ranges, spans) == [3, 12]
    assert loads_in(ranges, {Span(b"a", b"b"): 1}) == [0, 0], "it is in no range"
    assert loads_in([], spans) == []


@pytest.mark.parametrize(
    ("spans", "lacking"),
    [
        ([], [("b", "y")]),
        ([("b", "y")], []),
        ([("a", "")], []),
        ([("b", "k"), ("k", "y")], []),
        ([("b", "k"), ("m", "y")], [("k", "m")]),
        ([("c", "k"), ("m", "p")], [("b", "c"), ("k", "m"), ("p", "y")]),
        ([("b", "p"), ("k", "m")], [("p", "y")]),
    ],
)
def test_keys_without_a_range_are_found(spans: list[tuple[str, str]], lacking: list[tuple[str, str]]) -> None:
    there = [Span(start.encode(), end.encode()) for start, end in spans]
    found = gaps(Span(b"b", b"y"), there)
    assert [(one.start.decode(), one.end.decode()) for one in found] == lacking


def test_a_key_space_without_an_end_lacks_all_behind_its_last_range() -> None:
    assert gaps(Span(b"", b""), [Span(b"", b"k")]) == [Span(b"k", b"")]
    assert gaps(Span(b"", b""), [Span(b"", b"k"), Span(b"k", b"")]) == []
