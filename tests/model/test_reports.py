"""Messages between processes: each comes out as it went in, and nothing else comes in."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Fatal, Retryable
from tidegate.model import reports
from tidegate.model.reports import (
    HELLOS,
    REPORTS_AFTER,
    TO_APPLICATION,
    TO_PULLER,
    ApplicationHello,
    AtWork,
    ConnectionClosed,
    Durable,
    Failed,
    FromApplication,
    FromPipeline,
    FromPuller,
    Loaded,
    LoadState,
    PipelineHello,
    PullerHello,
    Report,
    SpanStatus,
    Started,
    ToApplication,
    ToPuller,
    Watch,
    parse,
    to_json,
)
from tidegate.model.span import Span

ON_THE_SOCKET = tuple(kind for kind in get_args(Report) if kind is not ConnectionClosed)
TS = st.integers(0, (1 << 64) - 1)
SPANS = st.builds(lambda key, more: Span(key, key + more), st.binary(), st.binary(min_size=1)) | st.builds(
    lambda key: Span(key, b""), st.binary()
)
NUMBERS = st.dictionaries(st.text(), TS)
VALUES = {
    "int": st.integers(-1, (1 << 64) - 1),
    "Timestamp": TS,
    "bool": st.booleans(),
    "str": st.text(),
    "float": st.floats(allow_nan=False),
    "Span": SPANS,
    "tuple[int, int]": st.tuples(TS, TS),
    "Mapping[str, Timestamp]": NUMBERS,
    "Mapping[str, int]": NUMBERS,
    "tuple[str, ...]": st.lists(st.text()).map(tuple),
    "tuple[AtWork, ...]": st.lists(st.builds(AtWork, TS, st.text(), st.text(), TS, st.text())).map(tuple),
    "Sequence[SpanStatus]": st.lists(st.builds(SpanStatus, st.text(), TS, TS, TS, TS, NUMBERS, st.text())),
}


def made(kind: type) -> st.SearchStrategy[Any]:
    return st.builds(
        kind,
        **{
            each.name: made(LoadState) if each.type == "LoadState" else VALUES[str(each.type)]
            for each in fields(kind)
        },
    )


@given(st.one_of(*(made(kind) for kind in ON_THE_SOCKET)))
def test_a_message_comes_out_as_it_went_in(report: Any) -> None:
    assert parse(json.loads(json.dumps(to_json(report))), ON_THE_SOCKET) == report


def test_who_may_say_what_is_what_the_types_say() -> None:
    """So that a `match` that mypy finds closed is closed for what comes in."""
    assert set(TO_PULLER) == set(get_args(ToPuller))
    assert set(TO_APPLICATION) == set(get_args(ToApplication))
    said = (PullerHello, FromPuller), (PipelineHello, FromPipeline), (ApplicationHello, FromApplication)
    for hello, union in said:
        assert {hello, *REPORTS_AFTER[hello], ConnectionClosed} == set(get_args(union))
    assert set(REPORTS_AFTER) == set(HELLOS)


GOOD = to_json(Durable((3, 4), {"a": 5}, {"rows": 6}))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({}, "type None"),
        (GOOD | {"type": "watch"}, "'watch' does not belong here"),
        (GOOD | {"type": ["durable"]}, "does not belong"),
        (GOOD | {"more": 1}, "members"),
        ({name: value for name, value in GOOD.items() if name != "token"}, "members"),
        (GOOD | {"token": [3]}, "durable: a pair"),
        (GOOD | {"token": [3, 4.0]}, "durable: 4.0 is not int"),
        (GOOD | {"token": [3, True]}, "durable: True is not int"),
        (GOOD | {"spans": [["a", 5]]}, "durable: an object of numbers"),
        (GOOD | {"spans": {"a": None}}, "durable: None is not int"),
        (to_json(Loaded(LoadState(), {})) | {"state": {"ranges": 1}}, "loaded: load_state has the members"),
        (to_json(Loaded(LoadState(), {})) | {"state": 7}, "load_state is no object"),
        (to_json(Failed("w", "", "", "", True)) | {"retry": 1}, "failed: 1 is not bool"),
        (to_json(Failed("w", "", "", "", True)) | {"what": None}, "failed: None is not str"),
    ],
)
def test_what_is_no_message_of_a_pipeline_is_refused_with_the_reason(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(bad, REPORTS_AFTER[PipelineHello])


@pytest.mark.parametrize(
    "span", [["62", "61"], ["61", "61"], ["6", ""], ["zz", ""], ["61"], "6162", [97, 98], None]
)
def test_a_span_that_is_none_is_refused(span: Any) -> None:
    with pytest.raises(ValueError, match="watch"):
        parse(to_json(Watch(Span(b"a", b""), 1, True)) | {"span": span}, TO_PULLER)


def test_an_error_is_the_same_where_it_is_received() -> None:
    for error in (Retryable("what", where="where", why="why", fix="fix"), Fatal("what")):
        received = Failed.of(error).error()
        assert type(received) is type(error)
        assert received.render() == error.render()


def test_each_message_has_a_name_of_its_own() -> None:
    names = [reports._WIRE._layout(kind).word for kind in ON_THE_SOCKET]
    assert len(set(names)) == len(names)
    assert to_json(Started({}))["type"] == "started"
