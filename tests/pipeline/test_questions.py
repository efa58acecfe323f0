"""The questions of a worker elsewhere, and the answers, are the same after their way over the network."""

from __future__ import annotations

import json

import pytest

from tidegate.model.reports import Failed
from tidegate.model.span import Span
from tidegate.mounter.bases import Base
from tidegate.pipeline.exchange.feed import DurableBefore
from tidegate.pipeline.exchange.questions import (
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
    SpecContent({"sink_uri": "x", "ranges": [["", ""]]}),
    DurableRows(None),
    DurableRows(DurableBefore()),
    BoundsContent({"bound": 1}),
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
