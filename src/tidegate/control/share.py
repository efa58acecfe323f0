"""Which capture has which ranges of a changefeed's keys. Pure.

    wanted   |----------------------------------------------------------------)
    pieces      [ 4 )[ 1 )    [ 1 )     [   6   )[ 2 )     [ 1 )[ 1 )
    edges            ^        ^         ^        ^         ^    ^
    shares   |--- a, 6 -----------------|--- b, 10 ---------------------------)

`share` divides `wanted` among captures. A cut may lie only where a piece starts. Today a piece is a stripe of
tables, so no table has two writers. With smaller pieces there are more edges; nothing else here would change.

Promises:
 - the ranges tile `wanted`, and every inner edge is the start of a piece;
 - no load exceeds 1 + `tolerance` times the optimum: the least greatest load that one contiguous range for
   each capture can have. If no capture of `before` is left, none exceeds the optimum itself;
 - if loads within 1 + `tolerance` times the lower bound are found, they stay within that. The lower bound is
   the mean load, or the heaviest piece if that is more: no division can be below it. A capture then has
   several ranges if one is not enough;
 - nothing moves but ranges without a capture, while the others are within these bounds and no capture is
   idle that could get work;
 - with the result as `before`, and all else equal but the order of captures, the result is the same: it is a
   fixpoint;
 - equal arguments give equal results.

The least possible move is a bin-packing problem, which is hard. `_divide` therefore makes two divisions. One
moves only what exceeds the bound (`_Moves`), the other does not look at `before` (`_fresh`). It returns the
one that moves less. `docs/internals/sharing.md` has an example.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice, pairwise
from operator import le
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.control.holding import NOBODY, Holding
from tidegate.control.partition import Part, Weights, even_cuts, optimum
from tidegate.model.span import Span

RANGES_PER_CAPTURE: Final = 8
"""Ranges that moves may leave for each capture on average. Beyond it, all is divided from scratch."""
RANGE_WORTH: Final = 0.05
"""A move that adds a range to somebody is made only if it saves more than this share of the bound."""

Shares = dict[str, tuple[Span, ...]]
"""By capture, its ranges in key order, neighbours joined. A capture without work is absent."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the key space that one capture must have as a whole."""

    span: Span
    weight: float
    """Its load in bytes per second, or 1.0 for each piece if loads are unknown. Finite, not negative."""


@dataclass(frozen=True, slots=True)
class Move:
    """A range that changes hands."""

    span: Span
    giver: str
    """Empty: nobody had it."""
    taker: str
    weight: float
    """The weights of the pieces in it."""


def share(
    wanted: Span,
    pieces: Sequence[Piece],
    captures: Sequence[str],
    before: Mapping[str, Sequence[Span]],
    *,
    at_most: int = 0,
    tolerance: float = 0.2,
) -> Shares:
    """Divide `wanted` among captures by the weights of its pieces, and move little.

    `pieces`: in key order, without overlaps; gaps are allowed. Those outside `wanted` do not count.
    `captures`: those that may work, at least one, each once. Their order decides between equals.
    `before`: who has which ranges now. It may name captures that are gone, and have edges that are none now.
    `at_most`: how many captures may get work, 0: all. Those that have most of `wanted` stay.
    `tolerance`: by how much a load may exceed the optimum, as a share of it. A capture with less than this
    share of the mean load is idle. It gets work if a busy capture can give so much and keep as much.

    If all weights are 0, each piece counts 1.
    """
    assert captures, "a capture is needed"
    assert len(set(captures)) == len(captures), "captures are named once each"
    assert at_most >= 0
    assert tolerance >= 0
    keys, weights = _inside(wanted, pieces)
    chosen = _chosen(wanted, keys, weights, captures, before, at_most)
    if not keys:
        return {chosen[0]: (wanted,)}
    found = _divide(_held(keys, weights, chosen, before), tolerance)
    return _spans(wanted, keys, chosen, found)


def handed(
    wanted: Span,
    pieces: Sequence[Piece],
    before: Mapping[str, Sequence[Span]],
    given: Sequence[Piece],
    taker: str,
) -> Shares:
    """`before`, with some of the pieces given to a capture, and nothing else changed.

    `before` covers `wanted`; a piece that nobody has goes to the taker, too.
    """
    keys, weights = _inside(wanted, pieces)
    captures = list({**before, taker: ()})
    held, number = _holders(keys, captures, before), captures.index(taker)
    held[[bisect_right(keys, max(piece.span.start, wanted.start)) - 1 for piece in given]] = number
    held[held == NOBODY] = number
    return _spans(wanted, keys, captures, Holding.of(weights, len(captures), held))


def load_of(shares: Mapping[str, Sequence[Span]], pieces: Sequence[Piece]) -> dict[str, float]:
    """The sum of weights that each capture of `shares` has. A piece counts where its first key lies."""
    counter = _Counter(pieces, [span for spans in shares.values() for span in spans])
    return {name: sum(map(counter.weight, spans)) for name, spans in shares.items()}


def moved(
    before: Mapping[str, Sequence[Span]], after: Mapping[str, Sequence[Span]], pieces: Sequence[Piece]
) -> list[Move]:
    """What captures of `after` have that they did not have `before`, in key order. Neither has overlaps.

    A range that nobody has in `after` is no move. A piece counts where its first key lies.
    """
    old, new = _by_start(before), _by_start(after)
    counter = _Counter(pieces, [span for span, _ in (*old, *new)])
    found: list[Move] = []
    for span, taker in new:
        for part, giver in _givers(span, old):
            if giver == taker:
                continue
            last = found[-1] if found else None
            if last and (last.giver, last.taker, last.span.end) == (giver, taker, part.start):
                part = Span(found.pop().span.start, part.end)
            found.append(Move(part, giver, taker, counter.weight(part)))
    return found


def _by_start(shares: Mapping[str, Sequence[Span]]) -> list[tuple[Span, str]]:
    return sorted((span, name) for name, spans in shares.items() for span in spans)


def _givers(span: Span, old: Sequence[tuple[Span, str]]) -> Iterator[tuple[Span, str]]:
    """The parts of a span by who had them, "" if nobody had, in key order."""
    at = span.start
    first = max(0, bisect_right(old, at, key=lambda one: one[0].start) - 1)
    for had, giver in islice(old, first, None):
        part = had.intersect(span)
        if part is None:
            if had.start >= span.start:
                break
            continue
        if at < part.start:
            yield Span(at, part.start), ""
        yield part, giver
        if part.end == span.end:
            return
        at = part.end
    yield Span(at, span.end), ""


class _Counter:
    """Weights of ranges as people see them: sums of floats."""

    def __init__(self, pieces: Sequence[Piece], ranges: Sequence[Span]) -> None:
        """`ranges`: all that will be asked for. A piece that begins before the first of them counts there."""
        low = min((span.start for span in ranges), default=b"")
        reaching = [piece for piece in pieces if piece.span.end == b"" or piece.span.end > low]
        self._keys = [max(piece.span.start, low) for piece in reaching]
        self._sums: list[float] = [0.0, *np.cumsum([piece.weight for piece in reaching]).tolist()]

    def weight(self, span: Span) -> float:
        first, end = _within(self._keys, span)
        return self._sums[end] - self._sums[first]


def _within(keys: Sequence[bytes], span: Span) -> Part:
    """Which of some ascending keys lie in a span."""
    return bisect_left(keys, span.start), bisect_left(keys, span.end) if span.end else len(keys)


def _inside(wanted: Span, pieces: Sequence[Piece]) -> tuple[list[bytes], Weights]:
    """The pieces with keys in `wanted`: the first such key of each, and the weights."""
    starts = [piece.span.start for piece in pieces]
    ends = [piece.span.end for piece in pieces]
    in_order = b"" not in ends[:-1] and all(map(le, ends, starts[1:]))
    assert in_order, "pieces are in key order and do not overlap"
    first, end = _within(starts, wanted)
    if first and (ends[first - 1] == b"" or ends[first - 1] > wanted.start):
        first -= 1  # it begins before `wanted` and ends inside
    keys = starts[first:end]
    if keys:
        keys[0] = max(keys[0], wanted.start)
    return keys, Weights.of(np.array([piece.weight for piece in pieces[first:end]], np.float64))


def _chosen(
    wanted: Span,
    keys: Sequence[bytes],
    weights: Weights,
    captures: Sequence[str],
    before: Mapping[str, Sequence[Span]],
    at_most: int,
) -> list[str]:
    """The captures that may get work: all, or those with most weight, then those with any key."""
    if keys and (at_most == 0 or at_most >= len(captures)):
        return list(captures)

    def rank(name: str) -> tuple[int, bool]:
        held = [part for span in before.get(name, ()) if (part := span.intersect(wanted)) is not None]
        return -sum(weights.of_part(*_within(keys, part)) for part in held), not held

    return sorted(captures, key=rank)[: at_most or None]


def _held(
    keys: Sequence[bytes], weights: Weights, captures: Sequence[str], before: Mapping[str, Sequence[Span]]
) -> Holding:
    """Who has which piece now."""
    return Holding.of(weights, len(captures), _holders(keys, captures, before))


def _holders(
    keys: Sequence[bytes], captures: Sequence[str], before: Mapping[str, Sequence[Span]]
) -> npt.NDArray[np.int64]:
    """By piece, the number of the capture with its first key, otherwise of one with any key of it."""
    holders = np.full(len(keys), NOBODY)
    ranges = [(number, span) for number, name in enumerate(captures) for span in before.get(name, ())]
    for number, span in ranges:
        first, end = _within(keys, span)
        holders[first:end] = number
    for number, span in ranges:
        piece = bisect_right(keys, span.start) - 1
        if piece >= 0 and holders[piece] == NOBODY:
            holders[piece] = number
    return holders


def _spans(wanted: Span, keys: Sequence[bytes], captures: Sequence[str], holding: Holding) -> Shares:
    """The ranges of a holding: from the first key of a run to that of the next."""
    cuts = [wanted.start, *(keys[first] for first in holding.firsts[1:]), wanted.end]
    ranges: dict[int, list[Span]] = {}
    for (start, end), holder in zip(pairwise(cuts), holding.holders, strict=True):
        ranges.setdefault(holder, []).append(Span(start, end))
    return {captures[holder]: tuple(ranges[holder]) for holder in sorted(ranges)}


@dataclass(frozen=True, slots=True)
class _Goal:
    """The loads that are aimed at, as integers of `Weights`."""

    optimum: int
    """The least greatest load of one contiguous range for each capture."""
    low: int
    """1 + tolerance times the lower bound. It may be out of reach."""
    high: int
    """1 + tolerance times the optimum, not less than `low`."""
    light: int
    """Below a bound of `low` there is always a capture with room for a piece of this weight."""
    idle: int
    """A capture with less is idle."""

    @classmethod
    def of(cls, weights: Weights, captures: int, tolerance: float) -> _Goal:
        best = optimum(weights, min(captures, len(weights)))
        lower_bound = max(int(weights.each.max()), -(-weights.total // captures))
        light = int(lower_bound * tolerance)
        idle = max(1, int(weights.total / captures * tolerance))
        return cls(best, lower_bound + light, best + int(best * tolerance), light, idle)


def _divide(now: Holding, tolerance: float) -> Holding:
    """The division that moves less, of one with few moves and a fresh one.

    If a load is above `high` now, a division within `low` is preferred: then much moves once, instead of more
    later. An attempt to come within `low` may fail although it is possible. To return a fixpoint, the last
    thing done with each division is such an attempt: in the next call it fails in the same way, and nothing
    moves.
    """
    goal = _Goal.of(now.weights, now.captures, tolerance)
    kept = _moved_below(now, goal.low, goal.idle) or _moved_below(now, goal.high, goal.idle)
    divisions = [] if kept is None else [kept]
    if kept is None or not kept.is_same(now):
        divisions.insert(0, _assigned(_fresh(now.weights, now.captures, goal), now))
    tried = [_moved_below(one, goal.low, goal.idle) or one for one in divisions]
    above = max(now.loads) > goal.high
    return max(tried, key=lambda one: (above and max(one.loads) <= goal.low, one.kept_from(now)))


def _moved_below(now: Holding, bound: int, idle: int) -> Holding | None:
    """A division with no load above the bound that moves little, or None if none is found.

    Captures are numbered by their pieces meanwhile. So whether one is found does not depend on the order in
    which the caller lists them, which may change from call to call.
    """
    if all(holder == NOBODY for holder in now.holders):
        return None  # there is nothing to keep
    order = now.by_first_piece()
    moves = _Moves(now.renumbered({old: new for new, old in enumerate(order)}), bound, idle)
    moves.assign_unheld()
    if not moves.shed():
        return None
    moves.assign_to_idle()
    few = len(moves.holding.firsts) <= RANGES_PER_CAPTURE * now.captures
    return moves.holding.renumbered(dict(enumerate(order))) if few else None


def _fresh(weights: Weights, captures: int, goal: _Goal) -> Holding:
    """A division that does not look at who has what now.

    It has contiguous ranges if they come within `low`; otherwise heavy pieces apart if that does; otherwise
    the contiguous ranges with the optimum.
    """
    cuts = even_cuts(weights, min(captures, len(weights)), goal.optimum)
    ranges = _Moves(Holding(weights, captures, cuts, list(range(len(cuts)))), goal.optimum, goal.idle)
    ranges.assign_to_idle()
    if goal.optimum <= goal.low:
        return ranges.holding
    return (
        _moved_below(ranges.holding, goal.low, goal.idle)
        or _packed(weights, captures, goal)
        or ranges.holding
    )


def _packed(weights: Weights, captures: int, goal: _Goal) -> Holding | None:
    """Heavy pieces first, each to the capture with the least load, the heaviest first; then light ones.

    None: the heavy ones exceed `low`, or are too many. If they fit, the light ones fit, too: there is always
    a capture with at most the mean load, and a light piece does not bring it above `low`.
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
        heapreplace(loads, (load, capture))
        holders[piece] = capture
    return _moved_below(Holding.of(weights, captures, holders), goal.low, goal.idle)


def _assigned(fresh: Holding, now: Holding) -> Holding:
    """The same division, but each share goes to the capture that has most of it now, the greatest first."""
    common: dict[tuple[int, int], tuple[int, int]] = {}
    for (first, end), part, holder in fresh.common_parts(now):
        if holder != NOBODY:
            weight, pieces = common.get((part, holder), (0, 0))
            common[part, holder] = weight + now.weights.of_part(first, end), pieces + end - first
    takers: dict[int, int] = {}
    free = set(range(now.captures))
    for part, holder in sorted(common, key=lambda pair: (*(-one for one in common[pair]), pair)):
        if part not in takers and holder in free:
            takers[part] = holder
            free.remove(holder)
    for part in dict.fromkeys(fresh.holders):
        if part not in takers:
            takers[part] = min(free)
            free.remove(takers[part])
    return Holding(now.weights, now.captures, fresh.firsts, [takers[part] for part in fresh.holders])


class _Moves:
    """Moves on a holding that bring each load below a bound.

    Call `assign_unheld`, `shed` and `assign_to_idle` in this order. Equals are decided by number, so that the
    moves follow from the holding alone.
    """

    def __init__(self, holding: Holding, bound: int, idle: int) -> None:
        """`bound`: no load is to exceed it. `idle`: a capture with less is idle."""
        self.holding, self._bound, self._idle = holding, bound, idle

    def assign_unheld(self) -> None:
        """Give away what nobody has, the heaviest run first. A load may exceed the bound afterwards."""
        holding, weight = self.holding, self.holding.weights.of_part
        for first, end in sorted(holding.runs_of(NOBODY), key=lambda run: (-weight(*run), run)):
            while first < end:
                part = first, self._unheld_end(first, end)
                holding.give(part, self._taker(part))
                first = part[1]

    def _unheld_end(self, first: int, end: int) -> int:
        """Up to where one capture takes what nobody has: all, or one of as few equal parts as will do."""
        sums = self.holding.weights.sums
        weight = sums[end] - sums[first]
        takers = self._takers(weight)
        if takers <= 1:
            return end
        room = self._bound - min(self.holding.loads)
        to = min(max(bisect_left(sums, sums[first] + weight // takers, first), first + 1), end)
        return to - 1 if to > first + 1 and sums[to] - sums[first] > room else to

    def _takers(self, weight: int) -> int:
        """How many captures are needed for a weight; more, if more are idle and it is enough for them."""
        loads = sorted(self.holding.loads)
        found, left = 0, weight
        while left > 0 and found < len(loads) and loads[found] < self._bound:
            left -= self._bound - loads[found]
            found += 1
        idle = bisect_left(loads, self._idle)
        return max(found, min(idle, weight // self._idle))

    def _taker(self, part: Part) -> int:
        """Who is to take a part: an idle capture if it is enough for that, otherwise a neighbour with room,
        otherwise the capture with the least load.
        """
        loads = self.holding.loads
        least = min(loads)
        if least < self._idle <= self.holding.weights.of_part(*part):
            return loads.index(least)
        return min(self._near(part), key=lambda one: (loads[one], one), default=loads.index(least))

    def _near(self, part: Part) -> list[int]:
        """The neighbours of a part that have room for it. A capture with too much is none of them."""
        room = self._bound - self.holding.weights.of_part(*part)
        return [one for one in self.holding.neighbours(part) if self.holding.loads[one] <= room]

    def shed(self) -> bool:
        """Take from each capture what exceeds the bound, and little more. False: it does not fit anywhere."""
        loads = self.holding.loads
        for giver in sorted(range(len(loads)), key=lambda one: (-loads[one], one)):
            while loads[giver] > self._bound:
                part = self._surplus(giver)
                if part is None:
                    return False
                self.holding.give(part, self._taker(part))
        return True

    def _surplus(self, giver: int) -> Part | None:
        """Which part of a capture with too much is to go next. None: nobody has room for any.

        If one capture has room for all that exceeds the bound, it is one part. Otherwise each of the
        captures that are needed gets about the same.
        """
        loads = self.holding.loads
        excess, room = loads[giver] - self._bound, self._bound - min(loads)
        if excess <= room and (part := self._lightest_part(giver, excess, room)) is not None:
            return part
        even = -(-excess // max(1, self._takers(excess)))
        return self._heaviest_end(giver, min(even, room)) or self._heaviest_end(giver, room)

    def _lightest_part(self, giver: int, least: int, most: int) -> Part | None:
        """The lightest part of a capture's that weighs least..most. If the difference is within RANGE_WORTH,
        an end that a neighbour can take is preferred to another end, and that to a part inside a range.
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
        """The heaviest end of one of a capture's ranges that weighs 1..most. None: there is none."""
        weights = self.holding.weights
        runs = self.holding.runs_of(giver)
        ends = [part for run in runs for part in weights.ends_of_at_most(*run, most)]
        best = max(ends, key=lambda part: (weights.of_part(*part), -part[0]), default=None)
        return best if best is not None and weights.of_part(*best) > 0 else None

    def assign_to_idle(self) -> None:
        """Give idle captures up to half of what the busiest have, while that is enough for them.

        A part is heavier than all that the idle capture had before, and the giver keeps as much. So the
        greatest load does not rise, and no giver becomes idle.
        """
        loads = self.holding.loads
        idle = [(load, one) for one, load in enumerate(loads) if load < self._idle]
        busy = [(-load, one) for one, load in enumerate(loads) if load >= 2 * self._idle]
        heapify(idle)
        heapify(busy)
        while idle and busy:
            _, giver = heappop(busy)
            part = self._heaviest_end(giver, loads[giver] // 2)
            if part is None or self.holding.weights.of_part(*part) < self._idle:
                continue  # it cannot give, and that does not depend on others: do not try it again
            _, taker = heappop(idle)
            self.holding.give(part, taker)
            for one in (giver, taker):
                heappush(busy, (-loads[one], one))
