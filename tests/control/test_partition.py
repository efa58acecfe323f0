"""A row of weights cut into contiguous parts, against the plain way to find the best cut."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.partition import Weights, even_cuts, optimum

NUMBERS = st.lists(st.integers(0, 20), min_size=1, max_size=12)


def row(numbers: Sequence[float]) -> Weights:
    return Weights.of(np.array(numbers, np.float64))


def best(numbers: Sequence[int], parts: int) -> int:
    """The slow twin: every place of the first cut, and the best of the rest."""

    @cache
    def of(first: int, parts: int) -> int:
        if parts == 1:
            return sum(numbers[first:])
        ends = range(first, len(numbers) + 1)
        return min(max(sum(numbers[first:end]), of(end, parts - 1)) for end in ends)

    return of(0, parts)


@given(numbers=NUMBERS, parts=st.integers(1, 6))
def test_the_optimum_is_that_of_all_ways_to_cut(numbers: list[int], parts: int) -> None:
    weights = row(numbers)
    unit = weights.total // (sum(numbers) or len(numbers))
    assert optimum(weights, parts) == best(numbers if any(numbers) else [1] * len(numbers), parts) * unit


@given(numbers=NUMBERS, parts=st.integers(1, 6))
def test_an_even_cut_has_no_empty_part_and_none_above_the_optimum(numbers: list[int], parts: int) -> None:
    weights, parts = row(numbers), min(parts, len(numbers))
    bound = optimum(weights, parts)
    cuts = even_cuts(weights, parts, bound)
    assert len(cuts) == parts
    edges = [*cuts, len(numbers)]
    assert edges == sorted(set(edges))
    assert max(weights.of_part(first, end) for first, end in pairwise(edges)) == bound


def test_an_even_cut_does_not_leave_a_rest_to_the_last_part() -> None:
    weights = row([1.0] * 10)
    assert even_cuts(weights, 4, optimum(weights, 4)) == [0, 2, 5, 7]


@given(numbers=NUMBERS, bounds=st.tuples(st.integers(0, 11), st.integers(1, 12)), limit=st.integers(1, 60))
def test_parts_within_a_part_are_found_as_by_looking_at_all(
    numbers: list[int], bounds: tuple[int, int], limit: int
) -> None:
    first, end = min(bounds[0], len(numbers) - 1), min(bounds[1], len(numbers))
    if first >= end or not any(numbers):
        return
    weights, limit = row(numbers), min(limit, sum(numbers))
    unit = weights.total // sum(numbers)

    def of(low: int, high: int) -> int:
        return sum(numbers[low:high])

    inside = [(low, high) for low in range(first, end) for high in range(low + 1, end + 1)]
    enough = [of(*part) for part in inside if of(*part) >= limit]
    found = weights.lightest_inside(first, end, limit * unit)
    assert (of(*found) if found else None) == min(enough, default=None)
    longest = [part for part in inside if of(*part) <= limit and (part[0] == first or part[1] == end)]
    ends = list(weights.ends_of_at_most(first, end, limit * unit))
    assert max((of(*part) for part in ends), default=None) == max((of(*p) for p in longest), default=None)
    whole = of(first, end) >= limit
    ends = list(weights.ends_of_at_least(first, end, limit * unit))
    assert len(ends) == (2 if whole else 0)
    assert all(of(*part) >= limit for part in ends)
    assert all(of(low, high - 1) < limit or of(low + 1, high) < limit for low, high in ends)


@pytest.mark.parametrize("numbers", [[5e-324], [1e300, 1e300], [1e-300, 1.0], [0.0], [3.0] * 1000])
def test_any_finite_weights_fit_an_integer(numbers: list[float]) -> None:
    weights = row(numbers)
    assert len(weights) == len(numbers)
    assert 0 < weights.total < 2**61
    assert (weights.each >= 0).all()


def test_weights_with_few_digits_stay_exact() -> None:
    weights = row([1, 2, 4.5, 0])
    assert (weights.each * 2 // weights.each[0]).tolist() == [2, 4, 9, 0]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
def test_other_weights_are_refused(number: float) -> None:
    with pytest.raises(AssertionError, match="weights are"):
        row([1.0, number])
