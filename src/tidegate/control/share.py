"""Which capture has which ranges of a changefeed's keys. Pure.

    wanted   |----------------------------------------------------------------)
    pieces      [ 4 )[ 1 )    [ 1 )     [   6   )[ 2 )     [ 1 )[ 1 )
    edges            ^        ^         ^        ^         ^    ^
    shares   |--- a, 6 -----------------|--- b, 10 ---------------------------)

`share` divides `wanted` among captures. A cut may lie only where a piece starts. A piece is a stripe of
tables, or a part of a table if the changefeed cuts it (`enable-table-across-nodes`). Only such a table may
have two writers.

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

This file translates keys and captures into numbers and back; `control.division` divides.
`docs/internals/sharing.md` has an example.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import le

import numpy as np
import numpy.typing as npt

from tidegate.control.division import divide
from tidegate.control.holding import NOBODY, Holding
from tidegate.control.partition import Part, Weights
from tidegate.model.span import Span
from tidegate.model.spans_in_order import joined

Shares = dict[str, tuple[Span, ...]]
"""The ranges of each capture in key order, neighbours joined. A capture without work is absent."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the key space that one capture must have as a whole."""

    span: Span
    weight: float
    """Its load in bytes per second, or 1.0 for each piece if loads are unknown. Finite, not negative."""


@dataclass(frozen=True, slots=True)
class Move:
    """A range that moves from one capture to another."""

    span: Span
    giver: str
    """Empty: no capture had it."""
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
    `captures`: those that may work, at least one, each once. Their order breaks ties.
    `before`: the present ranges of captures. It may name captures that are gone, and have edges that are not
    edges any more.
    `at_most`: how many captures may get work; 0: all. Those that have most of `wanted` stay.
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
    found = divide(_held(keys, weights, chosen, before), tolerance)
    return _spans(wanted, keys, chosen, found)


def handed(
    wanted: Span,
    pieces: Sequence[Piece],
    before: Mapping[str, Sequence[Span]],
    given: Sequence[Piece],
    taker: str,
) -> Shares:
    """`before` with some pieces given to a capture, and nothing else changed.

    `before` covers `wanted`; a piece that no capture has goes to the taker as well.
    """
    keys, weights = _inside(wanted, pieces)
    captures = list({**before, taker: ()})
    held, number = _holders(keys, captures, before), captures.index(taker)
    # A piece that begins before `wanted` is known by the first key of `wanted`, as in `_inside`.
    held[[bisect_right(keys, max(piece.span.start, wanted.start)) - 1 for piece in given]] = number
    held[held == NOBODY] = number
    return _spans(wanted, keys, captures, Holding.of(weights, len(captures), held))


def load_of(shares: Mapping[str, Sequence[Span]], pieces: Sequence[Piece]) -> dict[str, float]:
    """The sum of weights of each capture in `shares`. A piece counts in the range of its first key."""
    counter = _Counter(pieces, [span for spans in shares.values() for span in spans])
    return {name: sum(map(counter.weight, spans)) for name, spans in shares.items()}


def moved(
    before: Mapping[str, Sequence[Span]], after: Mapping[str, Sequence[Span]], pieces: Sequence[Piece]
) -> list[Move]:
    """The ranges that captures in `after` did not have `before`, in key order. Neither has overlaps.

    A range that no capture has in `after` is no move. A piece counts in the range of its first key.
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
    found = [(span, name) for name, spans in shares.items() for span in spans]
    return sorted(found, key=lambda one: one[0].start)


def _givers(span: Span, old: Sequence[tuple[Span, str]]) -> Iterator[tuple[Span, str]]:
    """The parts of a span with the capture that had each ("": none), in key order."""
    at = span.start
    first = max(0, bisect_right(old, at, key=lambda one: one[0].start) - 1)
    for place in range(first, len(old)):
        had, giver = old[place]
        part = had.intersect(span)
        if part is None:
            # The ranges are in order, so no later one can meet the span. An earlier one may only end before
            # it.
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
    """Weights of ranges for people: sums of floats."""

    def __init__(self, pieces: Sequence[Piece], ranges: Sequence[Span]) -> None:
        """`ranges`: all that will be asked for. A piece that begins before the first of them counts in it."""
        low = min((span.start for span in ranges), default=b"")
        reaching = [piece for piece in pieces if piece.span.end == b"" or piece.span.end > low]
        self._keys = [max(piece.span.start, low) for piece in reaching]
        self._sums: list[float] = [0.0, *np.cumsum([piece.weight for piece in reaching]).tolist()]

    def weight(self, span: Span) -> float:
        first, end = _within(self._keys, span)
        return self._sums[end] - self._sums[first]


def _within(keys: Sequence[bytes], span: Span) -> Part:
    """The numbers (first, end) of those of some ascending keys that are in a span."""
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

    # Those with most weight keep it, so that as little as possible moves. `not held` sorts captures without
    # any key last.
    def rank(name: str) -> tuple[int, bool]:
        held = [part for span in before.get(name, ()) if (part := span.intersect(wanted)) is not None]
        return -sum(weights.of_part(*_within(keys, part)) for part in held), not held

    return sorted(captures, key=rank)[: at_most or None]


def _held(
    keys: Sequence[bytes], weights: Weights, captures: Sequence[str], before: Mapping[str, Sequence[Span]]
) -> Holding:
    """The present holding of pieces."""
    return Holding.of(weights, len(captures), _holders(keys, captures, before))


def _holders(
    keys: Sequence[bytes], captures: Sequence[str], before: Mapping[str, Sequence[Span]]
) -> npt.NDArray[np.int64]:
    """For each piece, the number of the capture with its first key, otherwise of one with any of its keys."""
    holders = np.full(len(keys), NOBODY)
    # Joined, because a capture may have thousands of neighbouring ranges.
    ranges = [(number, span) for number, name in enumerate(captures) for span in joined(before.get(name, ()))]
    for number, span in ranges:
        first, end = _within(keys, span)
        holders[first:end] = number
    # Second, because a capture with the first key of a piece goes before one with another part of it.
    for number, span in ranges:
        piece = bisect_right(keys, span.start) - 1
        if piece >= 0 and holders[piece] == NOBODY:
            holders[piece] = number
    return holders


def _spans(wanted: Span, keys: Sequence[bytes], captures: Sequence[str], holding: Holding) -> Shares:
    """The ranges of a holding: each from the first key of a run to the first key of the next run."""
    # The first run begins at the first wanted key, even if no piece does. So the ranges leave no gap.
    cuts = [wanted.start, *(keys[first] for first in holding.firsts[1:]), wanted.end]
    ranges: dict[int, list[Span]] = {}
    for (start, end), holder in zip(pairwise(cuts), holding.holders, strict=True):
        ranges.setdefault(holder, []).append(Span(start, end))
    return {captures[holder]: tuple(ranges[holder]) for holder in sorted(ranges)}
