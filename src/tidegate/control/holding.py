"""Which capture has which pieces of a key space: runs of pieces, and the load of each capture. Pure.

    piece     0  1  2  3  4  5  6
    holder    a  a  a  b  b  -  a        runs (0, 3) a, (3, 5) b, (5, 6) NOBODY, (6, 7) a

Captures and pieces are numbers here. `share.py` knows their names and keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.control.partition import Part, Weights

NOBODY: Final = -1


class Holding:
    """Each piece has one holder: a capture or NOBODY. Runs are in order; neighbours have
    different holders.
    """

    def __init__(self, weights: Weights, captures: int, firsts: list[int], holders: list[int]) -> None:
        """`firsts`: the first piece of each run, from 0 on. `holders`: the holder of each run."""
        self.weights, self.captures = weights, captures
        self.firsts, self.holders = firsts, holders
        self.loads = [0] * captures
        """The weight of each capture's pieces."""
        for first, end, holder in self.runs():
            if holder != NOBODY:
                self.loads[holder] += weights.of_part(first, end)

    @classmethod
    def of(cls, weights: Weights, captures: int, holders: npt.NDArray[np.int64]) -> Holding:
        """`holders`: the holder of each piece."""
        firsts = [0, *(np.flatnonzero(np.diff(holders)) + 1).tolist()]
        return cls(weights, captures, firsts, holders[firsts].tolist())

    def by_first_piece(self) -> list[int]:
        """All captures: first those with pieces, in the order of their first pieces, then the others."""
        having = dict.fromkeys(holder for holder in self.holders if holder != NOBODY)
        return [*having, *(one for one in range(self.captures) if one not in having)]

    def renumbered(self, numbers: Mapping[int, int]) -> Holding:
        """A copy with other numbers for the captures: `numbers` maps old to new."""
        holders = [numbers.get(holder, NOBODY) for holder in self.holders]
        return Holding(self.weights, self.captures, self.firsts[:], holders)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """(first piece, end, holder) in order."""
        return zip(self.firsts, [*self.firsts[1:], len(self.weights)], self.holders, strict=True)

    def runs_of(self, holder: int) -> list[Part]:
        """The runs of a capture, or of NOBODY."""
        return [(first, end) for first, end, one in self.runs() if one == holder]

    def holder(self, piece: int) -> int:
        """The holder of a piece."""
        return self.holders[bisect_right(self.firsts, piece) - 1]

    def neighbours(self, part: Part) -> list[int]:
        """The captures that have the piece before a part, and the piece after it."""
        first, end = part
        found = [self.holder(at) for at in (first - 1, end) if 0 <= at < len(self.weights)]
        return [holder for holder in found if holder != NOBODY]

    def give(self, part: Part, taker: int) -> None:
        """Give a part of another holder's run to a capture."""
        first, end = part
        at = bisect_right(self.firsts, first) - 1
        since, giver = self.firsts[at], self.holders[at]
        to = self.firsts[at + 1] if at + 1 < len(self.firsts) else len(self.weights)
        assert since <= first < end <= to, "a part is within one run"
        assert giver != taker
        runs = [(since, first, giver), (first, end, taker), (end, to, giver)]
        left = [(low, holder) for low, high, holder in runs if low < high]
        self.firsts[at : at + 1] = [low for low, _ in left]
        self.holders[at : at + 1] = [holder for _, holder in left]
        # Only around the change: elsewhere neighbours have different holders already.
        self._join(max(at - 1, 0), at + len(left) + 1)
        weight = self.weights.of_part(first, end)
        self.loads[taker] += weight
        if giver != NOBODY:
            self.loads[giver] -= weight

    def _join(self, low: int, high: int) -> None:
        """Join neighbouring runs with the same holder, among the runs low..high-1."""
        # From the back, because deleting moves the later ones.
        for at in range(min(high, len(self.firsts)) - 1, low, -1):
            if self.holders[at] == self.holders[at - 1]:
                del self.firsts[at], self.holders[at]

    def is_same(self, other: Holding) -> bool:
        """Whether each piece has the same holder."""
        return (self.firsts, self.holders) == (other.firsts, other.holders)

    def common_parts(self, other: Holding) -> Iterator[tuple[Part, int, int]]:
        """The largest parts with one holder in each of the two, in order: (part, holder here,
        holder there).
        """
        for first, end in pairwise(sorted({*self.firsts, *other.firsts, len(self.weights)})):
            yield (first, end), self.holder(first), other.holder(first)

    def kept_from(self, before: Holding) -> int:
        """The weight of the pieces whose holder has not changed."""
        parts = self.common_parts(before)
        return sum(self.weights.of_part(*part) for part, mine, theirs in parts if mine == theirs)
