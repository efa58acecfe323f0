"""How far the spans in ranges are durable, against a comparison of each span with each range."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.barrier import SpanTask
from tidegate.control.open_spans import OpenSpans
from tidegate.model.span import Span

EDGES = st.sets(st.binary(min_size=1, max_size=1), max_size=6)


@st.composite
def pieces(draw: st.DrawFn) -> list[Span]:
    found = [Span(*edges) for edges in pairwise([b"", *sorted(draw(EDGES)), b""])]
    return draw(st.permutations([span for span in found if draw(st.booleans())]))


@given(ranges=pieces(), held=pieces(), data=st.data())
def test_a_range_is_durable_up_to_the_least_of_its_spans(
    ranges: list[Span], held: list[Span], data: st.DataObject
) -> None:
    """Also if a span is in several ranges."""
    tasks = [SpanTask(str(at), span, at, data.draw(st.integers(10, 20))) for at, span in enumerate(held)]
    spans = OpenSpans()
    spans.open(10, tasks)
    plain = [
        min((task.start_ts for task in tasks if one.intersect(task.span) is not None), default=99)
        for one in ranges
    ]
    assert spans.durable_in(ranges, otherwise=99) == plain
