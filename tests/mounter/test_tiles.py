"""Tiles: all rows once and in order, as large as allowed, and no transaction is cut where that matters."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.kernel import buffer
from tidegate.mounter.tiles import Tiling, empty_images, tiles

CELL_PAIRS = 24
"""The bytes of a cell in both images."""


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=30),
    st.integers(1, 5),
    st.integers(0, 12),
    st.booleans(),
)
def test_rows_are_cut_as_late_as_allowed(
    stamps: list[tuple[int, int]], stride: int, most: int, whole: bool
) -> None:
    stamps = sorted(stamps)
    commits, starts = (np.array(column, dtype=np.uint64) for column in zip(*stamps, strict=True))
    rows = np.arange(0, len(stamps), 2)
    tiling = Tiling(whole, buffer, CELL_PAIRS * stride * most)
    found = [tile.tolist() for tile in tiles(rows, stride, tiling, commits, starts)]
    assert list(chain(*found)) == rows.tolist()
    transactions = [[r for r in rows.tolist() if stamps[r] == one] for one in sorted(set(stamps))]
    units = [unit for unit in transactions if unit] if whole else [[r] for r in rows.tolist()]
    expected: list[list[int]] = []
    for unit in units:
        if expected and len(expected[-1]) + len(unit) <= max(most, 1):
            expected[-1] += unit
        else:
            expected.append(list(unit))
    assert found == expected


def test_images_share_no_cell_and_lie_in_the_memory_that_is_given() -> None:
    memory = buffer(1000)
    new, old = empty_images(3, 5, lambda size: memory)
    arrays = (new.words, new.sizes, old.words, old.sizes)
    for number, each in enumerate(arrays):
        each.fill(number + 1)
    assert [np.unique(each).tolist() for each in arrays] == [[1], [2], [3], [4]]
    assert all(each.shape == (3, 5) and np.shares_memory(each, memory) for each in arrays)
    assert all(each.flags.c_contiguous for each in arrays)
