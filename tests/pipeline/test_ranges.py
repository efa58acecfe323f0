"""How far a batch may go, and how it is shared among tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.pipeline.exchange.feed import Bounds
from tidegate.pipeline.exchange.ranges import HEAVY_BYTES, HEAVY_S, Range, deliverable, due, share, waits


def everything(span: str, after: int, upto: int) -> int:
    return upto


def test_a_span_stops_at_the_least_of_resolved_bound_and_ddl_resolved() -> None:
    bounds = Bounds(bound=50, ddl_span="ddl", spans={"a": 0})
    assert deliverable(bounds, {"a": 40, "ddl": 60}, "a") == 40
    assert deliverable(bounds, {"a": 70, "ddl": 60}, "a") == 50
    assert deliverable(bounds, {"a": 70, "ddl": 45}, "a") == 45
    assert deliverable(bounds, {"ddl": 45}, "a") == 0


def test_where_no_rows_are_nothing_is_due() -> None:
    bounds = Bounds(100, "ddl", {"a": 5, "b": 5})
    frontier = {"a": 90, "b": 90, "ddl": 90}
    assert due({"a": 10, "b": 20}, bounds, frontier, lambda span, after, upto: after) == []


def test_a_new_span_begins_after_its_start_and_a_removed_one_is_forgotten() -> None:
    found = due({"gone": 10}, Bounds(100, "ddl", {"new": 30}), {"new": 80, "ddl": 90}, everything)
    assert found == [Range("new", 30, 80)]


def test_a_batch_waits_only_under_heavy_load_and_for_a_bounded_time() -> None:
    budget = 16 * HEAVY_BYTES
    assert not waits(HEAVY_BYTES - 1, budget, 0.0)
    assert waits(HEAVY_BYTES, budget, 0.0)
    assert not waits(HEAVY_BYTES, budget, HEAVY_S)
    assert not waits(budget, budget, 0.0)


names = st.text("abcdef", min_size=1, max_size=2)


@given(
    st.dictionaries(names, st.integers(0, 100)),
    st.dictionaries(names, st.integers(0, 100)),
    st.dictionaries(names, st.integers(0, 100)),
    st.integers(0, 100),
)
def test_no_range_passes_a_bound_or_goes_back(
    begun: dict[str, int], spans: dict[str, int], resolved: dict[str, int], bound: int
) -> None:
    bounds = Bounds(bound, "ddl", spans)
    frontier = resolved | {"ddl": 70}
    for one in due(begun, bounds, frontier, everything):
        assert one.after == max(begun.get(one.span, 0), spans[one.span])
        assert one.after < one.upto <= min(resolved[one.span], bound, 70)


@given(st.dictionaries(names, st.integers(0, 1000), min_size=1), st.integers(1, 4))
def test_sharing_loses_and_doubles_no_range(sizes: dict[str, int], tasks: int) -> None:
    found = [Range(span, 0, 1) for span in sizes]
    shares = share(found, sizes, tasks)
    assert sorted(r.span for members in shares for r in members) == sorted(sizes)
    assert len(shares) <= tasks
    assert all(shares)
