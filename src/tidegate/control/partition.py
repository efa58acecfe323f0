"""Cuts a row of weights into contiguous parts whose heaviest is as light as possible, exactly. Pure.

    index    0   1   2   3   4          the parts [0, 2) and [2, 5) weigh 5 and 9
    weight   4   1   1   6   2
    sums   0   4   5   6  12  14        one more than there are weights

A part is a pair (first, end) of indices. `share.py` knows which capture has a part, and the keys of it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

WEIGHT_BITS: Final = 60
"""The sum of all weights has this many bits as an integer, so each sum is exact and fits into an int64."""

Part = tuple[int, int]
"""The weights from the first index to the one before the second."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights as integers, by their running sums. Comparisons of sums are exact, unlike those of floats."""

    sums: list[int]
    """sums[i] is the sum of the first i weights."""
    array: npt.NDArray[np.int64]
    """The same sums as an array, for searches of many values at once."""

    @classmethod
    def of(cls, weights: npt.NDArray[np.float64]) -> Weights:
        """From weights that are finite and not negative: each times a power of two. If all are 0, each counts
        1.

        Weights with few digits stay exact. Otherwise each is rounded by at most 2^-60 of their sum.
        """
        assert np.isfinite(weights).all(), "weights are finite"
        assert (weights >= 0).all(), "weights are not negative"
        if not weights.any():
            weights = np.ones_like(weights)
        _, exponent = math.frexp(float(weights.sum()))
        # The sum of the floats is below 2**exponent, so the sum of the integers is about 2**60 at most, and
        # rounding cannot bring it to 2**63.
        scaled = np.rint(np.ldexp(weights, WEIGHT_BITS - exponent)).astype(np.int64)
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(scaled)])
        return cls(sums.tolist(), sums)

    def __len__(self) -> int:
        return len(self.sums) - 1

    def of_part(self, first: int, end: int) -> int:
        """The sum of the weights of a part."""
        return self.sums[end] - self.sums[first]

    @property
    def total(self) -> int:
        """The sum of all weights."""
        return self.sums[-1]

    @property
    def each(self) -> npt.NDArray[np.int64]:
        """The weights themselves."""
        return np.diff(self.array)

    def ends_of_at_least(self, first: int, end: int, least: int) -> Iterator[Part]:
        """The shortest beginning and the shortest end of a part that weigh at least `least`. Nothing if the
        whole part is lighter.
        """
        sums = self.sums
        if self.of_part(first, end) >= least:
            yield first, bisect_left(sums, sums[first] + least, first, end)
            yield bisect_right(sums, sums[end] - least, first, end) - 1, end

    def ends_of_at_most(self, first: int, end: int, most: int) -> Iterator[Part]:
        """The longest beginning and the longest end of a part that weigh at most `most`, if not empty."""
        sums = self.sums
        to = bisect_right(sums, sums[first] + most, first, end + 1) - 1
        since = bisect_left(sums, sums[end] - most, first, end + 1)
        if first < to:
            yield first, to
        if since < end:
            yield since, end

    def lightest_inside(self, first: int, end: int, least: int) -> Part | None:
        """The lightest part inside a part that weighs at least `least`. None if the whole part is lighter.

        `least`: from 1 to the sum of all weights.
        """
        sums = self.array[first : end + 1]
        # For each start the shortest part that is heavy enough. The sums are ascending and at most 2**60,
        # so adding `least` does not overflow.
        # All starts at once: one search for each start would be a Python step for each stripe of a table.
        ends = np.searchsorted(sums, sums + least)
        starts = np.flatnonzero(ends < len(sums))
        if not len(starts):
            return None
        at = starts[np.argmin(sums[ends[starts]] - sums[starts])]
        return first + int(at), first + int(ends[at])


def optimum(weights: Weights, parts: int) -> int:
    """The least that the heaviest of at most `parts` contiguous parts can weigh.

    It bisects over the bound, with a greedy fill for each bound. A fill returns whether the bound is enough,
    and also the next value of the bound that matters on its side. So few fills are needed, and the result is
    exact.
    """
    heaviest, mean = int(weights.each.max()), weights.total // parts
    # `high` always fits: a greedy part ends only if the next weight does not fit, so it weighs more than
    # `mean`.
    low, high = max(heaviest, mean), heaviest + mean + 1
    while low < high:
        fits, value = _fill(weights, parts, (low + high) // 2)
        # `value` is at most the bound that was tried if it fits, and above it otherwise. So the interval
        # always shrinks.
        low, high = (low, value) if fits else (value, high)
    return high


def _fill(weights: Weights, parts: int, bound: int) -> tuple[bool, int]:
    """Fill one part after another up to `bound`, which is not less than the heaviest weight.

    Returns (True, the weight of the heaviest part), or if `parts` parts are not enough (False, the least
    greater bound at which some part would be longer).
    """
    sums, count = weights.sums, len(weights)
    at, heaviest, longer = 0, 0, weights.total
    for _ in range(parts):
        end = bisect_right(sums, sums[at] + bound, at) - 1
        heaviest = max(heaviest, sums[end] - sums[at])
        if end == count:
            return True, heaviest
        longer = min(longer, sums[end + 1] - sums[at])
        at = end
    return False, longer


def even_cuts(weights: Weights, parts: int, bound: int) -> list[int]:
    """The first index of each of `parts` parts: none is empty, none is heavier than `bound`.

    There are as many weights as parts, and `bound` is not less than the optimum. A greedy fill would leave
    only a rest to the last part. Instead, each part ends as near as possible to the mean of what is left,
    within the limits that leave the later parts possible.
    """
    sums, count = weights.sums, len(weights)
    from_here = [count]
    """from_here[n] is the least index from which n parts can hold all the rest."""
    for _ in range(parts):
        # From the end backwards: how much the last n parts can hold at most.
        from_here.append(bisect_left(sums, sums[from_here[-1]] - bound, 0, from_here[-1]))
    cuts = [0]
    for later in range(parts - 1, 0, -1):
        at = cuts[-1]
        mean = (sums[-1] - sums[at]) // (later + 1)
        low = max(at + 1, from_here[later])
        # `count - later` leaves at least one weight to each later part.
        high = min(bisect_right(sums, sums[at] + bound, at) - 1, count - later)
        cuts.append(min(max(_nearest(sums, sums[at] + mean, at), low), high))
    return cuts


def _nearest(sums: list[int], goal: int, at: int) -> int:
    """The index from `at` on whose sum is nearest to a goal. The goal is not above the last sum."""
    end = bisect_left(sums, goal, at)
    return end - 1 if end > at and goal - sums[end - 1] <= sums[end] - goal else end
