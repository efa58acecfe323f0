"""The progress of open spans: against plain steps span by span, and by example."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.control.plain_open_spans import PlainOpenSpans

from tidegate.control.barrier import SpanTask
from tidegate.control.open_spans import OpenSpans, Received
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX
from tidegate.tidb import keys

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


A, B, C = (SpanTask(name, Span(name.encode(), name.encode() + b"z"), 1, 10) for name in "abc")


def test_a_span_that_a_ddl_adds_begins_where_it_was_reported_before() -> None:
    """The pipeline may be ahead of the processor's tick. Below it, the rows would be delivered twice."""
    spans = OpenSpans()
    spans.open(10, [A])
    spans.take({A.id: 20, B.id: 15})
    spans.change([((), [B])])
    assert (spans.durable(A.id), spans.durable(B.id)) == (20, 15)
    spans.change([([B.id], ())])
    spans.forget_reports()
    spans.change([((), [B])])
    assert (spans.durable(A.id), spans.durable(B.id)) == (20, 10), "under another goal it counts no more"


def test_spans_are_arranged_once_for_all_ddls_that_have_come() -> None:
    """Hundreds may wait, and each would pass over all spans."""
    spans = OpenSpans()
    spans.open(10, [A])
    with patch.object(spans, "_begin", wraps=spans._begin) as begin:
        spans.change([({B.id}, ())] * 100)
        assert begin.call_count == 0, "none concerns an open span"
        spans.change([((), [B]), ({B.id}, ())] * 50 + [((), [B])])
        assert begin.call_count == 1
    assert list(spans.ids) == [A.id, B.id]


def test_what_was_found_before_a_ddl_counts_for_the_same_spans() -> None:
    """Rows were looked for outside, in the order of the spans at that time."""
    spans = OpenSpans()
    spans.open(10, [A, B])
    found = spans.beyond({A.id: 20, B.id: 30}, 40)
    spans.change([({A.id}, [C])])
    spans.idle(found)
    assert (spans.durable(B.id), spans.durable(C.id)) == (30, 10)


def test_a_span_does_not_advance_over_what_was_not_looked_for() -> None:
    """The checkpoint was replaced by a lower one meanwhile."""
    spans = OpenSpans()
    spans.open(10, [A, B])
    spans.idle(Received.by_name([(A.id, 11, 20), (B.id, 10, 20)]))
    assert (spans.durable(A.id), spans.durable(B.id)) == (10, 20)


def test_the_resolved_ts_never_falls_while_spans_are_open() -> None:
    """A DDL may add spans that have received less, and rows above the known DDL do not count."""
    spans = OpenSpans()
    spans.open(10, [A])
    spans.resolve({A.id: 40}, lacking=(), known=30)
    assert spans.resolved == 30
    spans.change([((), [B])])
    spans.resolve({A.id: 40, B.id: 12}, lacking=(), known=50)
    assert spans.resolved == 30
    spans.resolve({A.id: 40, B.id: 45}, lacking=(), known=50)
    assert spans.resolved == 40
    spans.open(10, [A])
    spans.resolve({A.id: 40}, lacking={A.id}, known=50)
    assert spans.resolved == 10, "of a span whose rows begin too late, only what is durable counts"


NAMES = "abcdef"
TASKS = {
    name: SpanTask(name, keys.stripe_span(4 * at, 4), 4 * at, 10 + at, at % 2 * 5)
    for at, name in enumerate(NAMES)
}
EDGES_OF = (b"", keys.table_prefix(8), keys.table_prefix(14), b"")
RANGES = tuple(Span(*edges) for edges in pairwise(EDGES_OF))
SOME = st.sets(st.sampled_from(NAMES))
TS = st.one_of(st.integers(0, 60), st.just(MAX))
FRONTIER = st.dictionaries(st.sampled_from(NAMES), TS)
STEP = st.one_of(
    st.tuples(st.just("raise_to"), TS),
    st.tuples(st.just("take"), FRONTIER),
    st.tuples(st.just("idle"), st.sampled_from(NAMES), TS, TS),
    st.tuples(st.just("forget_reports")),
    st.tuples(st.just("resolve"), FRONTIER, SOME, TS),
    st.tuples(st.just("change"), st.lists(st.tuples(SOME, SOME), max_size=3)),
    st.tuples(st.just("advance"), FRONTIER, TS, SOME, st.booleans()),
)


@given(first=SOME, checkpoint=st.integers(0, 30), steps=st.lists(STEP, max_size=12))
def test_arrays_say_the_same_as_steps_span_by_span(
    first: set[str], checkpoint: int, steps: list[tuple[Any, ...]]
) -> None:
    spans, plain = OpenSpans(), PlainOpenSpans()
    for one in (spans, plain):
        one.open(checkpoint, [TASKS[name] for name in sorted(first)])
    for what, *given_to in steps:
        match what, given_to:
            case "change", (ddls,):
                order = spans.order
                found = [
                    (gone, [replace(TASKS[name], wanted=3) for name in sorted(new)]) for gone, new in ddls
                ]
                spans.change(found)
                has_changed = False
                for gone, fresh in found:
                    has_changed |= bool(fresh or gone & plain.tasks.keys())
                    for name in sorted(gone):
                        plain.remove(name)
                    for task in fresh:
                        plain.add(task)
                assert (spans.order is not order) == has_changed
            case "advance", (frontier, bound, chosen, ends):
                found = spans.beyond(frontier, bound)
                assert list(found) == plain.beyond(frontier, bound)
                idle = found.only(np.array([name in chosen for name, _, _ in found], bool))
                assert [one[0] for one in idle] == [name for name, _, _ in found if name in chosen]
                if ends:  # meanwhile
                    spans.change([({NAMES[0]}, ())])
                    plain.remove(NAMES[0])
                spans.idle(idle)
                for one in idle:
                    plain.idle(*one)
            case "idle", one:
                spans.idle(Received.by_name([(one[0], one[1], one[2])]))
                plain.idle(*one)
            case _:
                getattr(spans, what)(*given_to)
                getattr(plain, what)(*given_to)
        tasks = plain.tasks
        assert (list(spans.tasks.items()), spans.resolved) == (list(tasks.items()), plain.resolved)
        assert (spans.slowest(), spans.stripes) == (plain.slowest(), plain.stripes)
        assert list(spans.ids) == list(spans.order.names) == list(tasks)
        assert [spans.durable(name) for name in tasks] == [task.start_ts for task in tasks.values()]
        assert spans.durable_in(RANGES, 7) == plain.durable_in(RANGES, 7)
