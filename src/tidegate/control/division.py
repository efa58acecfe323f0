"""Divides weighted pieces among captures, by number: no keys, no names. Pure.

`control.share` translates keys and captures into numbers and back, and has the promises. The least possible
move is a bin-packing problem, which is hard. `divide` therefore makes two divisions. One moves only what
exceeds the bound (`Moves`), the other does not look at the present holding (`_fresh`). It returns the one
that moves less. `docs/internals/sharing.md` has an example.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

import numpy as np

from tidegate.control.holding import NOBODY, Holding
from tidegate.control.partition import Part, Weights, even_cuts, optimum

RANGES_PER_CAPTURE: Final = 8
"""The most ranges for each capture, on average, that moves may leave; beyond it, all is divided from scratch.
"""
RANGE_WORTH: Final = 0.05
"""A move that adds a range to a capture is made only if it saves more than this share of the bound."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The loads to reach, as integers of `Weights`."""

    optimum: int
    """The least possible greatest load if each capture has one contiguous range."""
    low: int
    """1 + tolerance times the lower bound. It may be out of reach."""
    high: int
    """1 + tolerance times the optimum, not less than `low`."""
    light: int
    """Below a bound of `low` there is always a capture with room for a piece of this weight."""
    idle: int
    """A capture with less is idle."""

    @classmethod
    def of(cls, weights: Weights, captures: int, tolerance: float) -> Goal:
        best = optimum(weights, min(captures, len(weights)))
        lower_bound = max(int(weights.each.max()), -(-weights.total // captures))
        light = int(lower_bound * tolerance)
        idle = max(1, int(weights.total / captures * tolerance))
        return cls(best, lower_bound + light, best + int(best * tolerance), light, idle)


def divide(now: Holding, tolerance: float) -> Holding:
    """Make a division with few moves and a fresh one; returns the one that moves less.

    If a load is above `high` now, a division within `low` is preferred: then much moves once, instead of more
    later. An attempt to come within `low` may fail although it is possible. To return a fixpoint, such an
    attempt is the last thing done with each division: in the next call it fails in the same way, and nothing
    moves.
    """
    goal = Goal.of(now.weights, now.captures, tolerance)
    # The tighter bound first. It may be out of reach, because heavy pieces cannot be cut.
    kept = _moved_below(now, goal.low, goal.idle) or _moved_below(now, goal.high, goal.idle)
    divisions = [] if kept is None else [kept]
    # Nothing moves less than nothing, so a fresh division is not needed for comparison.
    if kept is None or not kept.is_same(now):
        divisions.insert(0, _assigned(_fresh(now.weights, now.captures, goal), now))
    tried = [_moved_below(one, goal.low, goal.idle) or one for one in divisions]
    above = max(now.loads) > goal.high
    # The first of equals wins. Both terms depend on the holding alone, so equal arguments give equal
    # results.
    return max(tried, key=lambda one: (above and max(one.loads) <= goal.low, one.kept_from(now)))


def _moved_below(now: Holding, bound: int, idle: int) -> Holding | None:
    """A division that moves little and has no load above the bound; None if none is found.

    Meanwhile captures are numbered by their pieces, so that the result does not depend on the order in which
    the caller lists them, which may change from call to call.
    """
    if all(holder == NOBODY for holder in now.holders):
        return None  # there is nothing to keep
    order = now.by_first_piece()
    moves = Moves(now.renumbered({old: new for new, old in enumerate(order)}), bound, idle)
    moves.assign_unheld()
    if not moves.shed():
        return None
    moves.assign_to_idle()
    # Many small moves would cut the key space into more and more ranges; then dividing from scratch is
    # better.
    few = len(moves.holding.firsts) <= RANGES_PER_CAPTURE * now.captures
    return moves.holding.renumbered(dict(enumerate(order))) if few else None


def _fresh(weights: Weights, captures: int, goal: Goal) -> Holding:
    """A division that ignores the present holding.

    It has contiguous ranges if they are within `low`; otherwise heavy pieces are assigned one by one if that
    is within `low`; otherwise it has the contiguous ranges with the optimum.
    """
    cuts = even_cuts(weights, min(captures, len(weights)), goal.optimum)
    ranges = Moves(Holding(weights, captures, cuts, list(range(len(cuts)))), goal.optimum, goal.idle)
    ranges.assign_to_idle()
    if goal.optimum <= goal.low:
        return ranges.holding
    return (
        _moved_below(ranges.holding, goal.low, goal.idle)
        or _packed(weights, captures, goal)
        or ranges.holding
    )


def _packed(weights: Weights, captures: int, goal: Goal) -> Holding | None:
    """Assign each heavy piece, the heaviest first, to the capture with the least load; then the light ones.

    None: the heavy ones exceed `low`, or are too many. If they fit, the light ones fit as well: some capture
    always has at most the mean load, and a light piece does not bring it above `low`.
    """
    each = weights.each
    heavy = np.flatnonzero(each > goal.light)
    if len(heavy) > RANGES_PER_CAPTURE * captures:
        return None
    holders = np.full(len(each), NOBODY)
    loads = [(0, capture) for capture in range(captures)]
    for piece in heavy[np.argsort(-each[heavy], kind="stable")].tolist():
        load, capture = loads[0]
        load += int(each[piece])
        if load > goal.low:
            return None
        # The heap's first has the least load, so if this piece does not fit there, it fits nowhere.
        heapreplace(loads, (load, capture))
        holders[piece] = capture
    return _moved_below(Holding.of(weights, captures, holders), goal.low, goal.idle)


def _assigned(fresh: Holding, now: Holding) -> Holding:
    """The same division with each share assigned to the capture that has most of it now, largest first."""
    common: dict[tuple[int, int], tuple[int, int]] = {}
    for (first, end), part, holder in fresh.common_parts(now):
        if holder != NOBODY:
            weight, pieces = common.get((part, holder), (0, 0))
            common[part, holder] = weight + now.weights.of_part(first, end), pieces + end - first
    takers: dict[int, int] = {}
    free = set(range(now.captures))
    for part, holder in sorted(common, key=lambda pair: (*(-one for one in common[pair]), pair)):
        # Largest common part first: a greedy choice, which need not be the best one. It only decides how
        # much moves.
        if part not in takers and holder in free:
            takers[part] = holder
            free.remove(holder)
    for part in dict.fromkeys(fresh.holders):
        if part not in takers:
            takers[part] = min(free)
            free.remove(takers[part])
    return Holding(now.weights, now.captures, fresh.firsts, [takers[part] for part in fresh.holders])


class Moves:
    """Moves on a holding that bring each load below a bound.

    Call `assign_unheld`, `shed` and `assign_to_idle` in this order. Ties are broken by number, so that the
    moves depend on the holding alone.
    """

    def __init__(self, holding: Holding, bound: int, idle: int) -> None:
        """`bound`: no load may exceed it. `idle`: a capture with less is idle."""
        self.holding, self._bound, self._idle = holding, bound, idle

    def assign_unheld(self) -> None:
        """Assign the pieces that no capture has, the heaviest run first. A load may exceed the bound
        afterwards.
        """
        holding, weight = self.holding, self.holding.weights.of_part
        for first, end in sorted(holding.runs_of(NOBODY), key=lambda run: (-weight(*run), run)):
            while first < end:
                part = first, self._unheld_end(first, end)
                holding.give(part, self._taker(part))
                first = part[1]

    def _unheld_end(self, first: int, end: int) -> int:
        """The end of what one capture takes of an unheld run: all of it, or one of as few equal parts as
        needed.
        """
        sums = self.holding.weights.sums
        weight = sums[end] - sums[first]
        takers = self._takers(weight)
        if takers <= 1:
            return end
        room = self._bound - min(self.holding.loads)
        # At least one piece, so the loop of the caller ends.
        to = min(max(bisect_left(sums, sums[first] + weight // takers, first), first + 1), end)
        return to - 1 if to > first + 1 and sums[to] - sums[first] > room else to

    def _takers(self, weight: int) -> int:
        """The number of captures needed for a weight; more if more are idle and the weight is enough for
        them.
        """
        loads = sorted(self.holding.loads)
        found, left = 0, weight
        while left > 0 and found < len(loads) and loads[found] < self._bound:
            left -= self._bound - loads[found]
            found += 1
        idle = bisect_left(loads, self._idle)
        # `_idle` is at least 1 (`Goal.of`).
        return max(found, min(idle, weight // self._idle))

    def _taker(self, part: Part) -> int:
        """The capture to take a part: an idle one if the part is enough work for it, otherwise a neighbour
        with room, otherwise the one with the least load.
        """
        loads = self.holding.loads
        least = min(loads)
        if least < self._idle <= self.holding.weights.of_part(*part):
            return loads.index(least)
        return min(self._near(part), key=lambda one: (loads[one], one), default=loads.index(least))

    def _near(self, part: Part) -> list[int]:
        """The neighbours of a part that have room for it; never a capture above the bound."""
        room = self._bound - self.holding.weights.of_part(*part)
        return [one for one in self.holding.neighbours(part) if self.holding.loads[one] <= room]

    def shed(self) -> bool:
        """Move from each capture what exceeds the bound, and little more. False: it does not fit anywhere."""
        loads = self.holding.loads
        # The busiest first, while the others have most room. A taker never rises above the bound, so no
        # giver is added.
        for giver in sorted(range(len(loads)), key=lambda one: (-loads[one], one)):
            while loads[giver] > self._bound:
                part = self._surplus(giver)
                if part is None:
                    return False
                self.holding.give(part, self._taker(part))
        return True

    def _surplus(self, giver: int) -> Part | None:
        """The next part to move from a capture above the bound. None: no capture has room for any.

        If one capture has room for everything above the bound, it is one part. Otherwise all captures that
        are needed get about the same.
        """
        loads = self.holding.loads
        excess, room = loads[giver] - self._bound, self._bound - min(loads)
        if excess <= room and (part := self._lightest_part(giver, excess, room)) is not None:
            return part
        even = -(-excess // max(1, self._takers(excess)))
        return self._heaviest_end(giver, min(even, room)) or self._heaviest_end(giver, room)

    def _lightest_part(self, giver: int, least: int, most: int) -> Part | None:
        """The lightest part of a capture with a weight of least..most. Within RANGE_WORTH, an end that a
        neighbour can take is preferred to another end, and an end to a part inside a range.
        """
        weights, runs = self.holding.weights, self.holding.runs_of(giver)
        slack = int(RANGE_WORTH * self._bound)

        def fitting(parts: list[Part]) -> list[Part]:
            return sorted((part for part in parts if weights.of_part(*part) <= most), key=by_weight)

        def by_weight(part: Part) -> tuple[int, Part]:
            return weights.of_part(*part), part

        ends = fitting([part for run in runs for part in weights.ends_of_at_least(*run, least)])
        if ends and weights.of_part(*ends[0]) <= least + slack:
            inside = []  # it could not save more than RANGE_WORTH
        else:
            found = [weights.lightest_inside(*run, least) for run in runs]
            inside = fitting([part for part in found if part is not None])
        candidates = [*(part for part in ends if self._near(part)), *ends, *inside]
        lightest = min((weights.of_part(*part) for part in candidates), default=0)
        return next((part for part in candidates if weights.of_part(*part) <= lightest + slack), None)

    def _heaviest_end(self, giver: int, most: int) -> Part | None:
        """The heaviest end of a capture's ranges with a weight of 1..most. None: there is none."""
        weights = self.holding.weights
        runs = self.holding.runs_of(giver)
        ends = [part for run in runs for part in weights.ends_of_at_most(*run, most)]
        best = max(ends, key=lambda part: (weights.of_part(*part), -part[0]), default=None)
        return best if best is not None and weights.of_part(*best) > 0 else None

    def assign_to_idle(self) -> None:
        """Give idle captures up to half of what the busiest have, as long as that is enough for them.

        A part weighs more than everything that the idle capture had before, and the giver keeps at least as
        much. So the greatest load does not rise, and no giver becomes idle.
        """
        loads = self.holding.loads
        idle = [(load, one) for one, load in enumerate(loads) if load < self._idle]
        busy = [(-load, one) for one, load in enumerate(loads) if load >= 2 * self._idle]
        # The busiest gives to the most idle. No entry is stale: both are taken out, and both go back among
        # the busy with their new loads.
        heapify(idle)
        heapify(busy)
        while idle and busy:
            _, giver = heappop(busy)
            part = self._heaviest_end(giver, loads[giver] // 2)
            if part is None or self.holding.weights.of_part(*part) < self._idle:
                continue  # it cannot give, and never will: that does not depend on other captures
            _, taker = heappop(idle)
            self.holding.give(part, taker)
            for one in (giver, taker):
                heappush(busy, (-loads[one], one))
