"""How far the spans in ranges are durable, against a comparison of each span with each range, and reports."""

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


A, B = (SpanTask(name, Span(name.encode(), name.encode() + b"z"), 1, 10) for name in "ab")


def test_a_span_that_a_ddl_adds_begins_where_it_was_reported_before() -> None:
    """The pipeline may be ahead of the processor's tick. Below it, the rows would be delivered twice."""
    spans = OpenSpans()
    spans.open(10, [A])
    spans.take({A.id: 20, B.id: 15})
    spans.add(B)
    assert (spans.durable(A.id), spans.durable(B.id)) == (20, 15)
    spans.remove(B.id)
    spans.forget_reports()
    spans.add(B)
    assert (spans.durable(A.id), spans.durable(B.id)) == (20, 10), "under another goal it counts no more"


def test_the_resolved_ts_never_falls_while_spans_are_open() -> None:
    """A DDL may add spans that have received less, and rows above the known DDL do not count."""
    spans = OpenSpans()
    spans.open(10, [A])
    spans.resolve({A.id: 40}, lacking=(), known=30)
    assert spans.resolved == 30
    spans.add(B)
    spans.resolve({A.id: 40, B.id: 12}, lacking=(), known=50)
    assert spans.resolved == 30
    spans.resolve({A.id: 40, B.id: 45}, lacking=(), known=50)
    assert spans.resolved == 40
    spans.open(10, [A])
    spans.resolve({A.id: 40}, lacking={A.id}, known=50)
    assert spans.resolved == 10, "of a span whose rows begin too late, only what is durable counts"
