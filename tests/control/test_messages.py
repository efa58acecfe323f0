"""The messages between owner and processors as JSON: columns of ranges, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.grants import GrantedRange
from tidegate.control.messages import (
    FROM_OWNER,
    FROM_PROCESSOR,
    Checkpoint,
    Dispatch,
    Header,
    ProcessorStatus,
    RangeColumns,
    RangeProgress,
    RangeState,
    RangeStatus,
    Sync,
    Wish,
    parse,
    to_json,
)
from tidegate.model.span import Span

HEADER = Header(1, "default/one", "i", 7, "a", 1, 1)
NUMBERS = st.integers(0, 1 << 63)
TOKENS = st.tuples(NUMBERS, NUMBERS)


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    edges = [b"", *sorted(draw(st.sets(st.binary(min_size=1, max_size=3), max_size=6))), b""]
    return [Span(start, end) for start, end in pairwise(edges) if draw(st.booleans())]


def sent(message: Any) -> Any:
    """The message as it arrives."""
    return parse(orjson.loads(orjson.dumps(to_json(message))), (*FROM_OWNER, *FROM_PROCESSOR))


@given(found=spans(), data=st.data())
def test_ranges_arrive_as_they_were_sent(found: list[Span], data: st.DataObject) -> None:
    granted = tuple(GrantedRange(span, data.draw(TOKENS)) for span in found)
    progress = tuple(
        RangeProgress(one.id, one.token, data.draw(NUMBERS), data.draw(NUMBERS)) for one in granted
    )
    states = tuple(RangeStatus(one.id, one.token, data.draw(st.sampled_from(RangeState))) for one in granted)
    for message in (
        Dispatch(HEADER, Wish.RUN, 3, granted, 5, 4, False),
        Sync(HEADER, "1", 2, 3, states, progress, coming=tuple(found)),
        Checkpoint(HEADER, 3, progress, ProcessorStatus()),
    ):
        assert sent(message) == message
    columns = sent(Checkpoint(HEADER, 3, progress, ProcessorStatus())).ranges
    assert isinstance(columns, RangeColumns)
    assert (len(columns), list(columns), hash(columns)) == (len(progress), list(progress), hash(progress))
    assert [columns[at] for at in range(len(progress))] == list(progress)


def test_the_same_range_is_the_same_object_in_all_messages() -> None:
    """An owner compares the ranges of a report with those granted: without it, that takes most of a tick."""
    message = Checkpoint(HEADER, 3, [RangeProgress(Span(b"a", b"b"), (7, 1), 5, 5)], ProcessorStatus())
    assert sent(message).ranges.granted[0] is sent(message).ranges.granted[0]


def checkpoint(**ranges: Any) -> Any:
    form: dict[str, Any] = to_json(Checkpoint(HEADER, 3, (), ProcessorStatus()))
    return parse({**form, "ranges": ranges}, FROM_PROCESSOR)


@pytest.mark.parametrize(
    "text",
    [
        *("", "61-62-7", "61-62-7-1-1", "61-61-7-1", "62-61-7-1", "6-62-7-1", "61-62-07-1", "61-62-+7-1"),
        *("6A-62-7-1", "61-62-7-x", "61-62- 7-1", " 61-62-7-1", "61-62-1_0-1", "61-62--7-1"),
    ],
)
def test_a_range_that_is_written_in_another_way_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="checkpoint"):
        checkpoint(ranges=[text], checkpoints=[5], resolved=[5])


@pytest.mark.parametrize(
    "columns",
    [
        {"ranges": ["61-62-7-1"], "checkpoints": [5]},
        {"ranges": ["61-62-7-1"], "checkpoints": [5], "resolved": [5], "more": []},
        {"ranges": ["61-62-7-1"], "checkpoints": [], "resolved": [5]},
        {"ranges": ["61-62-7-1"], "checkpoints": [5], "resolved": [5, 5]},
        {"ranges": ["61-62-7-1"], "checkpoints": [True], "resolved": [5]},
        {"ranges": ["61-62-7-1"], "checkpoints": ["5"], "resolved": [5]},
        {"ranges": ["61-62-7-1"], "checkpoints": 5, "resolved": [5]},
        {"ranges": "61-62-7-1", "checkpoints": [5], "resolved": [5]},
        {"ranges": [7], "checkpoints": [5], "resolved": [5]},
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="checkpoint"):
        checkpoint(**columns)


@pytest.mark.parametrize(
    "states",
    [
        {"ranges": ["61-62-7-1"], "states": []},
        {"ranges": ["61-62-7-1"], "states": ["running", "running"]},
        {"ranges": ["61-62-7-1"], "states": ["walking"]},
        {"ranges": ["61-62-7-1"], "states": [1]},
        {"ranges": ["61-62-7-1"], "states": [["running"]]},
        {"ranges": ["61-62-7-1"]},
        [],
    ],
)
def test_states_that_do_not_fit_are_refused(states: Any) -> None:
    form: dict[str, Any] = to_json(Sync(HEADER, "1", 2, 3, (), ()))
    with pytest.raises(ValueError, match="sync"):
        parse({**form, "ranges": states}, FROM_PROCESSOR)


@pytest.mark.parametrize(
    "ranges", [["61-63-7-1", "62-64-7-1"], ["-61-7-1", "--7-1"], ["62--7-1", "61-63-7-1"]]
)
def test_a_dispatch_of_ranges_that_overlap_is_refused(ranges: list[str]) -> None:
    """Progress is looked up by bisection, which would leave spans of an overlap out."""
    form: dict[str, Any] = to_json(Dispatch(HEADER, Wish.RUN, 3, (), 5, 4, False))
    with pytest.raises(ValueError, match="overlap"):
        parse({**form, "ranges": ranges}, FROM_OWNER)
