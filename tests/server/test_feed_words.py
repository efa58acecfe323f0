"""The texts that users get about a checkpoint that does not advance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.test_peers import ALL, dispatched

from tidegate.control.barrier import Barrier
from tidegate.control.ddl_log import KnownDdl
from tidegate.control.gc import History
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import ProcessorStatus, RangeProgress, Wish
from tidegate.control.owner import Owner
from tidegate.model.reports import LoadState, SpanStatus
from tidegate.model.timestamp import MAX, compose
from tidegate.server.catalogue.stripes import table_task
from tidegate.server.delivery.initial_load import words_of_load
from tidegate.server.owner.peers import Peers
from tidegate.server.owner.words import (
    words_of_disagreement,
    words_of_first,
    words_of_history,
    words_of_owner,
)
from tidegate.server.processor.words import SOURCE_LATE_MS, words_of_slowest


def delivering(**waits: str) -> Peers:
    peers = Peers()
    for capture, what in waits.items():
        peers[capture].asked, peers[capture].status = dispatched(Wish.RUN, 1), ProcessorStatus(waits=what)
    return peers


def test_a_capture_is_named_only_among_several() -> None:
    alone, both = delivering(a="its start"), delivering(a="", b="span 7")
    assert words_of_first(alone.running, among=1) == "its start"
    assert words_of_first(both.running, among=2) == "capture b: span 7"
    assert words_of_first(delivering(a="").running, among=1) == ""


def test_an_owner_whose_ranges_are_at_the_bound_waits_for_ddl() -> None:
    owner, peers = Owner(90, Barrier(90), ALL), delivering(a="span 7")
    owner.learn([], 100)
    owner.grant("a", 3, [GrantedRange(ALL, (7, 1))])
    assert words_of_owner(owner, peers, 0, 0) == "span 7"
    owner.report("a", 3, [RangeProgress(ALL, (7, 1), 100, 100)])
    assert words_of_owner(owner, peers, 0, 0) == "resolved ts of the DDL span"
    assert words_of_disagreement(None) == ""
    assert "capture b knows other DDL up to ts 9" in words_of_disagreement(("b", KnownDdl(5, 9, 1)))


def test_history_is_shown_as_lost_only_below_the_safe_point() -> None:
    assert "safepoint 80 has passed ts 70" in words_of_history(70, History(70, 80))
    assert words_of_history(80, History(80, 80)) == ""
    assert words_of_history(70, History(70, MAX)) == "", "PD has not said any"
    assert words_of_load(LoadState(ranges=5, done=2)) == "initial load: 2 of 5 ranges"
    slowed = words_of_load(LoadState(ranges=5, done=2, slowed=1))
    assert slowed == "initial load: 2 of 5 ranges, slower because changefeeds with rows come first"


@pytest.mark.parametrize(
    ("late_ms", "received", "words"),
    [
        (SOURCE_LATE_MS, 0, ": 1 ranges without a region (errors so far: not_leader 3)"),
        (SOURCE_LATE_MS - 1, 0, ""),
        (SOURCE_LATE_MS, 1, ""),
    ],
    ids=["nothing comes", "it is not late", "there are changes to deliver"],
)
def test_the_obstacle_of_the_source_is_shown_when_a_span_is_late(
    late_ms: int, received: int, words: str
) -> None:
    durable = compose(1000)
    task = table_task(7, durable)
    line = SpanStatus(
        task.id, durable + received, errors={"not_leader": 3}, waiting_for="1 ranges without a region"
    )
    spans = SimpleNamespace(slowest=lambda: task, durable=lambda name: durable)
    machine: Any = SimpleNamespace(spans=spans, bound=compose(1000 + late_ms))
    tracker = SimpleNamespace(name_of=lambda table: "shop.orders")
    opening: Any = SimpleNamespace(
        arrivals=SimpleNamespace(lacking=set()),
        ddl=SimpleNamespace(tracker=tracker),
        spans=SimpleNamespace(status=[SpanStatus("another"), line]),
    )
    assert words_of_slowest(machine, opening) == f"span {task.id} (shop.orders){words}"
