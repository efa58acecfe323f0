"""The questions of a worker elsewhere, and the answers, are the same after their way over the network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.model.reports import Failed
from tidegate.model.span import Span
from tidegate.mounter.bases import Base
from tidegate.pipeline.exchange.feed import Bounds, DurableBefore, FeedSpec
from tidegate.pipeline.exchange.questions import (
    NOWHERE,
    QUESTIONS,
    Answer,
    BaseFound,
    BoundsContent,
    DurableRows,
    Fetch,
    GetBase,
    GetBegun,
    GetBounds,
    GetDurable,
    GetGranted,
    GetSpan,
    GetSpec,
    Granted,
    Kept,
    Question,
    ReadBase,
    ReadEvents,
    SetAside,
    SpanKeys,
    SpecContent,
    parse,
    parse_answer,
    to_json,
)
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Begun, Lease, LoadedRange

URI = parse_sink_uri("kafka://127.0.0.1:1/t?protocol=canal-json&sasl-password=pw")
A_SPEC = FeedSpec(
    cluster_id=7,
    namespace="default",
    name="one",
    sink_uri=URI,
    config=merge_config({"filter": {"rules": ["bank.*"]}}, URI),
    token=(1, 2),
    instance="f00d",
    incarnation=3,
    slots=4,
    capture="here",
    ranges=(Span(b"", b"m"), Span(b"m", b"")),
    givers={"there": 2},
    store_dir=Path("/data/events/7/tidb"),
    feed_dir=NOWHERE,
    metadata="etcd:127.0.0.1:2379",
    socket_path=Path("/data/control.sock"),
    loads=True,
)
BOUNDS = Bounds(9, "0" * 16, {"a": 5, "b": 6}, {"a": (4096, 1 | 1 << 4095)})
ASKED: tuple[Question, ...] = (
    GetSpec(),
    GetDurable(),
    GetBounds(),
    GetSpan("0" * 16),
    GetBase(7),
    SetAside(({"why": "it is", "where": {"span": "1"}, "key": b"\xff"},)),
    GetGranted(Lease(3, 4)),
    GetBegun({"span/1": b"\x00\xff", "span/2": b""}),
)
FETCHED: tuple[Fetch, ...] = (
    ReadEvents((Range("a", 1, 2), Range("b", 3, 1 << 62)), None, None),
    ReadEvents((), (1, 2, 3), ()),
    ReadEvents((Range("a", 1, 2),), (1, 2, 3, b"key"), (5, 6)),
    ReadBase(Base(3, 9), 1 << 40),
)
ANSWERED: tuple[Answer, ...] = (
    SpecContent(A_SPEC),
    DurableRows(None),
    DurableRows(DurableBefore()),
    BoundsContent(BOUNDS),
    SpanKeys(Span(b"a", b""), 7),
    BaseFound(None),
    BaseFound(Base(3, 9)),
    Kept(),
    Granted((Span(b"", b"m"), Span(b"m", b""))),
    Begun({"a": 1}, {"b": 2}, (LoadedRange("x", 3, None), LoadedRange("y", 0, "ff"))),
)


@pytest.mark.parametrize("question", ASKED, ids=lambda one: type(one).__name__)
def test_a_question_is_the_same_after_its_way(question: Question) -> None:
    assert parse(json.loads(json.dumps(to_json(question))), QUESTIONS) == question


@pytest.mark.parametrize("fetch", FETCHED)
def test_a_fetch_is_the_same_after_its_way(fetch: Fetch) -> None:
    assert parse(json.loads(json.dumps(to_json(fetch))), [type(fetch)]) == fetch


@pytest.mark.parametrize("answer", ANSWERED)
def test_an_answer_is_the_same_after_its_way(answer: Answer) -> None:
    assert parse_answer(json.loads(json.dumps(to_json(answer))), type(answer)) == answer


def test_each_question_is_tried_here() -> None:
    assert {type(one) for one in ASKED} == set(QUESTIONS)


def test_an_error_may_take_the_place_of_each_answer() -> None:
    failed = Failed("it is over", "here", "", "", retry=False)
    assert parse_answer(to_json(failed), Granted) == failed
    with pytest.raises(ValueError, match="'kept' does not belong"):
        parse_answer(to_json(Kept()), Granted)
    with pytest.raises(ValueError, match="durable has another form"):
        parse_answer({"type": "durable-rows", "durable": {"positions": 3}}, DurableRows)


@pytest.mark.parametrize("member", sorted(A_SPEC.to_json().keys() - {"load"}))
def test_a_spec_without_one_of_its_members_is_refused(member: str) -> None:
    message = to_json(SpecContent(A_SPEC))
    del message["spec"][member]
    with pytest.raises(ValueError, match=f"the spec has another form: .*{member}"):
        parse_answer(message, SpecContent)


@pytest.mark.parametrize(
    ("member", "value", "why"),
    [
        ("bound", "9", "'9' is not int"),
        ("spans", {"a": None}, "None is not int"),
        ("wanted", {"a": 3}, "wanted tables are"),
        ("wanted", {"a": [4096, "x"]}, "invalid literal"),
    ],
)
def test_bounds_of_another_form_are_refused(member: str, value: object, why: str) -> None:
    message = to_json(BoundsContent(BOUNDS))
    message["bounds"][member] = value
    with pytest.raises(ValueError, match=why):
        parse_answer(message, BoundsContent)
