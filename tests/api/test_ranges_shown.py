"""For each range of a changefeed, API and metrics show whether it is delivered, and otherwise why not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from tests.api.test_list_of_changefeeds import capture_with
from tidegate.api.changefeeds import show_status
from tidegate.api.moves_json import moves_json
from tidegate.cli.changefeed_moves import described
from tidegate.control.barrier import Barrier, SpanTask
from tidegate.control.changefeed import Life, State
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.messages import Dispatch, Header, ProcessorStatus, RangeProgress, Wish
from tidegate.control.metadata import FeedError, FeedId
from tidegate.control.owner import Owner
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.server.capture import Capture
from tidegate.server.catalogue.stripes import Stripes, table_task
from tidegate.server.changefeeds.hot_spans import OF_A_PIECE, OF_A_STRIPE, OF_A_TABLE
from tidegate.server.changefeeds.placement import Placement
from tidegate.server.changefeeds.range_figures import figures_of
from tidegate.server.owner.feed import Feed
from tidegate.server.owner.peers import SILENT_S, Peer
from tidegate.server.owner.processor_reports import RangesRun
from tidegate.server.owner.replication import PIPELINE_STARTS
from tidegate.tidb import keys

NOW_MS = 10_000_000
CHECKPOINT = compose(NOW_MS - 4_000)
TABLES = [table_task(table, CHECKPOINT) for table in (10, 20, 30)]
TOKEN = (7, 1)


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    """An owner `a` of a changefeed that it shares with a capture `b`, which has the tables from 20 on."""

    async def made() -> Capture:  # parts of it want a loop
        return capture_with(1, tmp_path, Counter())

    found = asyncio.run(made())
    processors: Any = SimpleNamespace(processors={})
    found.processor_registry = processors
    node, feed = found.node, feed_of(found)
    node.address, node.upstream_ms = "10.0.0.1:8300", lambda: NOW_MS
    node.others = lambda: {"b": "10.0.0.2:8300"}
    replication, wanted = feed.replication, feed.record.wanted
    replication.checkpoint = CHECKPOINT
    replication.shares.sharing.begin(TABLES)
    replication.owner = owner = Owner(CHECKPOINT, Barrier(CHECKPOINT), wanted)
    opened: Any = SimpleNamespace(partitions=3)
    replication.sink.opened = opened
    cut = TABLES[1].span.start
    for name, span in (("a", Span(wanted.start, cut)), ("b", Span(cut, wanted.end))):
        ranges = [GrantedRange(span, TOKEN)]
        owner.grant(name, 1, ranges)
        owner.running(name, 1, ranges)
        peer = replication.peers[name]
        peer.met_rev, peer.met_at, peer.received_at, peer.ready = (
            node.owner_rev,
            0.0,
            node.clock.monotonic(),
            True,
        )
        header = Header(1, str(feed.id), "i", 1, name, 1, 1)
        peer.asked = Dispatch(header, Wish.RUN, 1, ranges, 1, 1, False)
        peer.grant = Grant("i", TOKEN, 1, 4, tuple(ranges))
    progress = RangeProgress(Span(cut, wanted.end), TOKEN, compose(NOW_MS - 500), compose(NOW_MS - 100))
    owner.report("b", 1, [progress])
    replication.shares.sharing.spans.loads["b"] = {TABLES[1].id: 3000, TABLES[2].id: 500}
    return found


def feed_of(capture: Capture) -> Feed:
    return capture.reactor.feeds[FeedId("default", "f0")]


def other(capture: Capture) -> Peer:
    return feed_of(capture).replication.peers["b"]


def shown(capture: Capture) -> dict[str, Any]:
    """The answer of GET /changefeeds/f0/status, its own part."""
    app = Starlette()
    app.state.capture = capture
    scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "app": app}
    answer = asyncio.run(show_status(Request({**scope, "path_params": {"name": "f0"}})))
    found: dict[str, Any] = json.loads(bytes(answer.body))["tidegate"]
    return found


def reasons(capture: Capture) -> list[tuple[str, str, int]]:
    return [(one["state"], one["reason"], one["ranges"]) for one in shown(capture)["ranges"]["reasons"]]


def test_keys_that_no_capture_has_are_shown(capture: Capture) -> None:
    owner = feed_of(capture).replication.owner
    assert owner is not None
    owner.grant("b", 2, ())
    assert ("not running", "not granted", 1) in reasons(capture)
    assert [one["capture"] for one in shown(capture)["captures"]] == ["a"]
    assert shown(capture)["ranges"]["total"] == 2


def test_each_range_has_its_capture_progress_load_and_state(capture: Capture) -> None:
    first, second = shown(capture)["captures"]
    assert (first["address"], first["tables"], first["state"]) == ("10.0.0.1:8300", 1, "running")
    assert first["checkpoint_ts"] == CHECKPOINT, "it has not reported, and is not below the checkpoint"
    assert (first["checkpoint_lag_ms"], first["bytes_per_second"]) == (4000, 0)
    assert (second["capture"], second["address"], second["tables"]) == ("b", "10.0.0.2:8300", 2)
    assert (second["checkpoint_lag_ms"], second["resolved_lag_ms"]) == (500, 100)
    assert (second["bytes_per_second"], second["why"]) == (3500, "")
    found = shown(capture)["ranges"]
    assert found == {
        "total": 2,
        "states": {"running": 2, "held": 0, "not running": 0},
        "reasons": [],
        "more": 0,
    }


def test_reasons_follow_from_what_the_owner_knows_of_its_captures(capture: Capture) -> None:
    peer, node = other(capture), capture.node
    peer.received_at = node.clock.monotonic() - SILENT_S + 8
    (silent,) = shown(capture)["ranges"]["reasons"]
    assert (silent["state"], silent["reason"]) == ("not running", "capture silent")
    assert silent["example"]["capture"] == "b"
    peer.received_at = node.clock.monotonic()
    node.drained.add("b")
    assert reasons(capture) == [("running", "drains", 1)]
    feed_of(capture).replication.peers["a"].coming = (feed_of(capture).record.wanted,)
    (moves,) = shown(capture)["ranges"]["reasons"]
    assert moves["reason"] == "moves"
    assert "10.0.0.1:8300" in moves["why"]
    node.others = dict
    assert reasons(capture) == [("not running", "capture gone", 1)]


def test_a_range_that_starts_shows_the_obstacle_of_its_capture(capture: Capture) -> None:
    feed = feed_of(capture)
    replication, owner = feed.replication, feed.replication.owner
    assert owner is not None
    replication.waiting_for = PIPELINE_STARTS
    ranges = [GrantedRange(Span(TABLES[1].span.start, feed.record.wanted.end), (7, 2))]
    owner.grant("b", 2, ranges)
    other(capture).ready = False
    assert reasons(capture) == [("not running", "no application", 1)]
    other(capture).ready = True
    other(capture).status = ProcessorStatus(waits="catalogue from upstream")
    assert reasons(capture) == [("not running", "definitions", 1)]
    replication.shares.reason = "capture c is gone"
    assert reasons(capture) == [("not running", "divided again", 2)]
    replication.shares.reason, replication.waiting_for = "", ""
    replication.sink.opened = None
    assert reasons(capture) == [("not running", "divided again", 2)], "grants are being stored"


def test_a_changefeed_that_does_not_run_has_one_range_with_the_reason(capture: Capture) -> None:
    feed = feed_of(capture)
    feed.replication.owner = None
    assert reasons(capture) == [("not running", "owner starts", 1)]
    feed.record.life = Life(State.FAILED, FeedError("no such topic\n  why: it was deleted", "c", 1, "a"))
    (failed,) = shown(capture)["ranges"]["reasons"]
    assert (failed["reason"], failed["why"]) == ("failed", "it has failed: no such topic")
    assert shown(capture)["captures"] == [], "nobody has a range"


def test_cut_tables_name_their_cost_and_those_with_several_captures(capture: Capture) -> None:
    assert shown(capture)["cut_tables"] is None
    feed = feed_of(capture)
    owner, record, middle = feed.replication.owner, feed.record, keys.int_record(20, 500)
    assert owner is not None
    record.config = replace(
        record.config, tidegate=replace(record.config.tidegate, table_cuts=(middle.hex(),))
    )
    whole = shown(capture)["cut_tables"]
    assert whole["tables"] == [], "one capture has both pieces"
    assert "a transaction's rows of a cut table may come apart, until Resolved" in whole["cost"]
    for name, span in (("a", Span(record.wanted.start, middle)), ("b", Span(middle, record.wanted.end))):
        owner.grant(name, 2, [GrantedRange(span, (7, 2))])
    assert shown(capture)["cut_tables"]["tables"] == [{"table": "id 20", "captures": 2}]


def test_metrics_have_the_same_figures_by_range_and_by_table(capture: Capture) -> None:
    (found,) = figures_of([feed_of(capture)], NOW_MS)
    assert (found.feed, found.bytes_per_s, found.states) == (("default", "f0"), 3500, {"running": 2})
    assert [(one.labels[1], one.checkpoint_lag_s, one.bytes_per_s) for one in found.ranges] == [
        ("10.0.0.1:8300", 4.0, 0),
        ("10.0.0.2:8300", 0.5, 3500),
    ]
    assert [(one.labels, one.checkpoint_lag_s, one.bytes_per_s) for one in found.tables] == [
        (("id 20",), 0.5, 3000),
        (("id 30",), 0.5, 500),
    ]


def test_a_rebalance_is_estimated_by_the_pause_of_the_last_division(capture: Capture) -> None:
    feed, node = feed_of(capture), capture.node
    replication = feed.replication
    node.shared = "etcd:x"
    placement = Placement(node, capture.reactor.feeds)

    def estimate() -> dict[str, Any]:
        planned = asyncio.run(placement.rebalance(feed.id, dry_run=True))
        assert not replication.shares.sharing.aim, "it is only shown"
        return moves_json(planned)

    node.drained.add("b")
    typical = estimate()
    assert [(one["from"], one["tables"]) for one in typical["moves"]] == [("b", 2)]
    names = [("id 20", True), ("id 30", True)]
    assert [(one["table"], one["is_whole"]) for one in typical["moves"][0]["first_tables"]] == names
    assert typical["other_moves"] == {"moves": 0, "tables": 0, "load": 0}
    assert typical["cost"] == {
        "moves": 1,
        "tables": 2,
        "received_again": None,
        "gap_ms": 1000,
        "is_gap_measured": False,
    }
    assert typical["gain"]["before"] == {"max": 2, "mean": 2, "max_over_mean": 1.33}
    replication.shares.sharing.spans.loads["b"] = {TABLES[1].id: 2 << 20}
    assert estimate()["cost"]["received_again"] == 4 * ((2 << 20) + 2 * 512), "4 s of two tables"
    replication.waiting_for = PIPELINE_STARTS
    replication.steps._paused_at = node.clock.monotonic() - 0.5
    replication._act_on(RangesRun())
    measured = estimate()["cost"]
    assert measured["is_gap_measured"]
    assert 500 <= measured["gap_ms"] < 60_000
    replication.waiting_for = PIPELINE_STARTS
    replication._act_on(RangesRun())
    assert estimate()["cost"]["gap_ms"] == measured["gap_ms"], "a start for another reason is no division"


def test_a_move_of_a_cut_table_counts_the_ranges_that_move(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, node = feed_of(capture), capture.node
    replication, wanted = feed.replication, feed.record.wanted
    node.shared, node.capture = "etcd:x", "a"
    cuts = [keys.int_record(20, 100), keys.int_record(20, 200)]
    replication.shares.sharing.begin(Stripes(1, cuts).begin(TABLES))
    for name, spans in (
        ("a", [Span(wanted.start, cuts[0]), Span(cuts[1], wanted.end)]),
        ("b", [Span(*cuts)]),
    ):
        ranges = tuple(GrantedRange(span, TOKEN) for span in spans)
        replication.peers[name].grant = Grant("i", TOKEN, 1, 4, ranges)
    table: Any = SimpleNamespace(schema="bank", table="accounts", id=20, physical_ids=(20,))

    async def known(*_: Any) -> tuple[list[Any], list[Any]]:
        return [table], []

    monkeypatch.setattr("tidegate.server.changefeeds.placement.tables_at", known)
    placement = Placement(node, capture.reactor.feeds)
    found = moves_json(asyncio.run(placement.move(feed.id, ["bank.accounts"], "b")))
    assert [(one["from"], one["to"], one["load"]) for one in found["moves"]] == [("a", "b", 1), ("a", "b", 1)]
    assert (found["cost"]["moves"], found["cost"]["tables"]) == (2, 1)
    first = [{"table": "id 20", "is_whole": False}]
    assert [(one["tables"], one["first_tables"]) for one in found["moves"]] == [(1, first), (1, first)]
    text = described(found)
    assert "2 ranges are moving, with 2 of the load" in text
    assert "2 of 1 table" in text


def test_the_heaviest_moves_are_named_and_the_others_summed(capture: Capture) -> None:
    feed, node = feed_of(capture), capture.node
    replication, wanted = feed.replication, feed.record.wanted
    node.shared = "etcd:x"
    tasks = [table_task(table, CHECKPOINT) for table in range(2, 62)]
    replication.shares.sharing.begin(tasks)
    # `b` has each second table, and `a` is alone after it.
    cuts = [wanted.start, *(task.span.start for task in tasks[1:]), wanted.end]
    spans = list(map(Span, cuts, cuts[1:]))
    for name, its in (("a", spans[::2]), ("b", spans[1::2])):
        ranges = tuple(GrantedRange(span, TOKEN) for span in its)
        replication.peers[name].grant = Grant("i", TOKEN, 1, 4, ranges)
    node.drained.add("b")
    loads = {task.id: (1 << 20) + at for at, task in enumerate(tasks)}
    replication.shares.sharing.spans.loads["b"] = loads
    found = moves_json(asyncio.run(Placement(node, capture.reactor.feeds).rebalance(feed.id, dry_run=True)))
    names = [one["first_tables"][0]["table"] for one in found["moves"]]
    assert names == [f"id {table}" for table in range(61, 21, -2)], "the heaviest first"
    others = sum((1 << 20) + at + 512 for at in range(1, 20, 2))
    assert found["other_moves"] == {"moves": 10, "tables": 10, "load": others}
    assert (found["cost"]["moves"], found["cost"]["tables"]) == (30, 30)


@pytest.mark.parametrize(
    ("spans", "hot", "remedy"),
    [
        (Stripes(1).begin(TABLES), [("id 20", True)], OF_A_TABLE),
        (Stripes(1, [keys.int_record(20, 100)]).begin(TABLES), [("id 20", False)], OF_A_PIECE),
        (Stripes(16).begin(TABLES), [("id 20", True), ("id 30", True)], OF_A_STRIPE),
    ],
)
def test_a_span_that_is_too_much_for_a_capture_is_named_with_a_remedy(
    capture: Capture, spans: Sequence[SpanTask], hot: list[tuple[str, bool]], remedy: str
) -> None:
    sharing = feed_of(capture).replication.shares.sharing
    sharing.begin(spans)
    loads = {task.id: 1 << 10 for task in spans} | {spans[1].id: 8 << 20, spans[0].id: 1 << 20}
    sharing.spans.loads["b"] = loads
    assert shown(capture)["hot_spans"] == {"spans": [], "more": 0}, (
        "captures without a shared etcd divide nothing"
    )
    capture.node.shared = "etcd:x"
    (found,) = shown(capture)["hot_spans"]["spans"]
    assert [(one["table"], one["is_whole"]) for one in found["first_tables"]] == hot
    assert (found["load"], found["tables"], found["remedy"]) == ((8 << 20) + 512, len(hot), remedy)
    assert 1.7 < found["times_mean"] < 1.8, "eight ninths of the load, and two captures"
    sharing.spans.loads["b"] = loads | {spans[0].id: 6 << 20}
    assert not shown(capture)["hot_spans"]["spans"], "1.14 times the mean can be divided well enough"
    sharing.spans.loads["b"] = {name: load >> 6 for name, load in loads.items()}
    assert not shown(capture)["hot_spans"]["spans"], "there is hardly any load"


def test_hot_spans_are_bounded_and_the_hottest_come_first(capture: Capture) -> None:
    feed, node = feed_of(capture), capture.node
    node.shared = "etcd:x"
    node.others = lambda: {f"c{at}": "" for at in range(20)}
    sharing = feed.replication.shares.sharing
    sharing.captures.able = lambda **_: [f"c{at}" for at in range(20)]  # type: ignore[method-assign]
    tasks = [table_task(table, CHECKPOINT) for table in range(10, 17)]
    sharing.begin(tasks)
    sharing.spans.loads["b"] = {task.id: (at + 7) << 20 for at, task in enumerate(tasks)}
    found = shown(capture)["hot_spans"]
    names = [one["first_tables"][0]["table"] for one in found["spans"]]
    assert (names, found["more"]) == ([f"id {table}" for table in (16, 15, 14, 13, 12)], 2)
