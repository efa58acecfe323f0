"""Spans in key order, against comparisons of each span with each other."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.span import Span
from tidegate.model.spans_in_order import SpansInOrder, joined

KEYS = st.binary(max_size=2)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start, end = sorted((draw(KEYS), draw(KEYS)))
    return Span(start, end if start < end else b"")


@st.composite
def without_overlaps(draw: st.DrawFn) -> list[Span]:
    """Pieces of the keys, with gaps between some, in any order."""
    edges = [b"", *sorted(draw(st.sets(st.binary(min_size=1, max_size=2), max_size=8))), b""]
    found = [Span(start, end) for start, end in pairwise(edges)]
    return draw(st.permutations([span for span in found if draw(st.booleans())]))


@given(held=without_overlaps(), other=spans())
def test_the_spans_that_a_span_meets_are_those_that_share_a_key(held: list[Span], other: Span) -> None:
    order = SpansInOrder(held)
    met = [order.spans[place] for place in order.met_by(other)]
    assert met == [span for span in sorted(held) if span.intersect(other) is not None]


@given(found=st.lists(spans(), max_size=8), key=st.binary(max_size=3))
def test_joined_spans_have_the_same_keys(found: list[Span], key: bytes) -> None:
    assert any(span.contains(key) for span in joined(found)) is any(span.contains(key) for span in found)


@given(found=st.lists(spans(), max_size=8))
def test_between_joined_spans_there_are_keys_that_none_has(found: list[Span]) -> None:
    assert all(before.end and before.end < after.start for before, after in pairwise(joined(found)))
