"""The frontier's answer is the least mark of each span, and rises only."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model import timestamp
from tidegate.puller.frontier import Frontier


def advance(frontier: Frontier, moves: dict[int, int]) -> None:
    frontier.advance(np.array(list(moves), dtype=np.int64), np.array(list(moves.values()), dtype=np.uint64))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 99), st.integers(1, 99)), max_size=200))
def test_the_minimum_of_each_span_is_that_of_a_plain_dictionary(moves: list[tuple[int, int, int]]) -> None:
    frontier = Frontier()
    plain: dict[int, tuple[int, int]] = {}
    for number, ts, higher in moves:
        mark = frontier.hold(number, ts)
        plain[mark] = number, max(ts, higher)
        advance(frontier, {mark: higher})
    least = [min((ts for n, ts in plain.values() if n == s), default=timestamp.MAX) for s in range(4)]
    assert frontier.minima(4).tolist() == least
    for mark, (_, ts) in plain.items():
        assert frontier.release(mark) == ts
    assert frontier.minima(4).tolist() == [timestamp.MAX] * 4


def test_a_lower_ts_does_not_count_and_a_released_mark_stays_released() -> None:
    frontier = Frontier()
    first, second = frontier.hold(0, 10), frontier.hold(0, 20)
    advance(frontier, {first: 5})
    assert frontier.minima(1).tolist() == [10]
    frontier.release(first)
    advance(frontier, {first: 7, second: 30})
    assert frontier.minima(1).tolist() == [30]


def test_a_mark_that_holds_nothing_back_is_left_out() -> None:
    frontier = Frontier()
    free = frontier.hold(0, 10)
    frontier.hold(0, 20)
    frontier.put(free, None)
    assert frontier.minima(1).tolist() == [20]
