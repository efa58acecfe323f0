"""The frontier's answer is the least mark of each span, and rises only."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model import timestamp
from tidegate.puller.frontier import Frontier


def advance(frontier: Frontier, moves: dict[int, int]) -> None:
    frontier.advance(np.array(list(moves), dtype=np.int64), np.array(list(moves.values()), dtype=np.uint64))


@settings(deadline=None)
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


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 30), st.integers(1, 5))
def test_any_mix_of_moves_is_answered_as_a_plain_dictionary_does(seed: int, spans: int) -> None:
    """Hundreds of marks of few spans, so that chunks fill, empty, and serve other spans."""
    random = Random(seed)
    frontier = Frontier()
    plain: dict[int, tuple[int, int]] = {}
    gone: list[int] = []
    for _ in range(random.randint(50, 600)):
        match random.randint(0, 9):
            case 0 | 1 | 2 | 3:
                span, ts = random.randrange(spans), random.randint(1, 50)
                plain[frontier.hold(span, ts)] = span, ts
            case 4 | 5 | 6 if plain:
                moves = {m: random.randint(1, 60) for m in random.sample(sorted(plain), min(len(plain), 9))}
                late = dict.fromkeys(random.sample(gone, min(len(gone), 3)), 99)
                advance(frontier, moves | late)
                plain |= {m: (plain[m][0], max(plain[m][1], ts)) for m, ts in moves.items()}
            case 7 if plain:
                mark = random.choice(sorted(plain))
                ts = random.randint(1, 60)
                frontier.put(mark, ts)
                plain[mark] = plain[mark][0], ts
            case 8 if plain and random.random() < 0.2:
                for mark in random.sample(sorted(plain), random.randint(1, len(plain))):
                    assert frontier.release(mark) == plain.pop(mark)[1]
                    gone.append(mark)
        least = [min((ts for n, ts in plain.values() if n == s), default=timestamp.MAX) for s in range(spans)]
        assert frontier.minima(spans).tolist() == least
        limit = random.randint(1, 70)
        below = [{mark for mark, (n, ts) in plain.items() if n == s and ts < limit} for s in range(spans)]
        assert [set(frontier.below(s, limit).tolist()) for s in range(spans)] == below


def test_a_batch_for_a_released_mark_does_not_move_the_mark_in_its_place() -> None:
    frontier = Frontier()
    old = frontier.hold(0, 10)
    frontier.release(old)
    new = frontier.hold(0, 20)
    advance(frontier, {old: 90})
    assert frontier.minima(1).tolist() == [20]
    assert (frontier.at(new), frontier.at(old)) == (20, timestamp.MAX)


def test_a_mark_that_holds_nothing_back_is_left_out() -> None:
    frontier = Frontier()
    free = frontier.hold(0, 10)
    frontier.hold(0, 20)
    frontier.put(free, None)
    assert frontier.minima(1).tolist() == [20]
