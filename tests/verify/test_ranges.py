"""Sums over ranges find the ranges that differ, whatever the order and the parts they are made in."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.verify.ranges import END, Cuts, Sums, differing_words, in_order, tally, tiled, windows

WORDS = st.one_of(st.integers(0, 40), st.integers(0, END - 1))


def u64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_runs_are_the_unbroken_stretches_of_wanted_ranges() -> None:
    cuts = Cuts(u64(0, 10, 20, 30), np.array([True, True, False, True]))
    assert cuts.runs() == [(0, 20), (30, END)]
    assert Cuts.whole(5, 9).runs() == [(5, 9)]
    assert Cuts.whole().runs() == [(0, END)]


def test_a_word_is_placed_in_its_wanted_range() -> None:
    cuts = Cuts(u64(5, 10, 20), np.array([True, False, True]))
    assert cuts.place(u64(0, 5, 9, 10, 19, 20, END - 1)).tolist() == [-1, 0, 0, -1, -1, 2, 2]


def test_ranges_are_split_evenly_as_far_as_they_have_words() -> None:
    cuts = Cuts(u64(0, 4, 8, 9), np.array([True, True, False, True])).split(3)
    assert cuts.starts.tolist()[:8] == [0, 1, 2, 4, 5, 6, 8, 9]
    assert cuts.runs() == [(0, 8), (9, END)]
    assert Cuts.whole(7, 8).split(100).runs() == [(7, 8)]


@given(st.lists(WORDS, max_size=60), st.lists(WORDS, max_size=60), st.integers(1, 9), st.randoms())
def test_what_differs_is_found_and_nothing_else(
    here: list[int], there: list[int], pieces: int, chance: object
) -> None:
    cuts = Cuts.whole().split(pieces).only(np.ones(pieces, np.bool_))
    bounds = [*cuts.starts.tolist(), END]

    def sums(words: list[int]) -> Sums:
        # Marks may be any numbers; each word is a row of its own here.
        halves = words[::2], words[1::2]
        parts = [tally(cuts, u64(*half), u64(*((w * 31 + 7) % END for w in half))) for half in halves]
        return parts[1] + parts[0]

    wanted = [
        sorted(w for w in here if low <= w < end) != sorted(w for w in there if low <= w < end)
        for low, end in pairwise(bounds)
    ]
    found = sums(here).differs(sums(there)).tolist()
    assert [f for f, w in zip(found, wanted, strict=True) if not w] == [False] * wanted.count(False)
    counts = [sum(low <= w < end for w in here) for low, end in pairwise(bounds)]
    assert sums(here).counts.tolist() == counts


@given(st.lists(st.integers(0, 1000), max_size=80), st.integers(1, 7), st.integers(1, 20), st.integers(1, 30))
def test_ranges_made_in_order_tile_the_words_and_agree_with_a_tally(
    words: list[int], rows: int, batch: int, most: int
) -> None:
    ordered = sorted(words)
    marks = [(w * 77 + 5) % END for w in ordered]
    pieces = []
    for low, end in ((0, 300), (300, 700), (700, 1001)):
        mine = [(w, m) for w, m in zip(ordered, marks, strict=True) if low <= w < end]
        batches = [mine[at : at + batch] for at in range(0, len(mine), batch)]
        pairs = ((u64(*(w for w, _ in b)), u64(*(m for _, m in b))) for b in batches)
        pieces.append(in_order(low, end, pairs, rows))
    cuts, sums = tiled(pieces[::-1], most)
    assert cuts.runs() == [(0, 1001)]
    assert int(sums.counts.sum()) == len(words)
    # Equal words may lie on both sides of a cut: a key is there once.
    if len(set(words)) == len(words):
        assert not sums.differs(tally(cuts, u64(*words), u64(*((w * 77 + 5) % END for w in words)))).any()


MARKED = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=12)


@given(MARKED, MARKED)
def test_odd_words_are_those_of_rows_that_one_side_has_more_often(
    here: list[tuple[int, int]], there: list[tuple[int, int]]
) -> None:
    sides = [(u64(*(w for w, _ in side)), u64(*(m for _, m in side))) for side in (here, there)]
    wanted = sorted({row[0] for row in {*here, *there} if here.count(row) != there.count(row)})
    found = differing_words(*sides)
    assert found.tolist() == wanted
    if wanted:
        cuts = Cuts.around(found)
        assert [w for w in range(8) if cuts.place(u64(w))[0] >= 0] == wanted
    assert Cuts.around(u64(3, END - 1)).runs() == [(3, 4), (END - 1, END)]


def test_a_gap_between_pieces_is_not_wanted() -> None:
    pieces = [in_order(low, end, iter(()), 5) for low, end in ((10, 20), (40, 50), (20, 30))]
    cuts, sums = tiled(pieces, 100)
    assert cuts.runs() == [(10, 30), (40, 50)]
    assert len(sums.counts) == len(cuts)


@pytest.mark.parametrize(
    ("rows", "groups"),
    [([3, 3, 3, 3], [[0, 1], [2, 3]]), ([9, 1, 9, 1], [[0], [1], [2], [3]]), ([0, 0, 0, 0], [[0, 1, 2, 3]])],
)
def test_differing_ranges_come_in_groups_of_bounded_size(rows: list[int], groups: list[list[int]]) -> None:
    found = windows(np.ones(4, np.bool_), np.array(rows), 6)
    assert [np.flatnonzero(group).tolist() for group in found] == groups
    assert list(windows(np.zeros(4, np.bool_), np.array(rows), 6)) == []
