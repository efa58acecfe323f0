"""Where a span is cut that has become too hot for one capture, and when. Pure.

    hot --> its keys are sampled --> hot at LOOKS_HOT looks in a row --> sampled again --> cuts | why not

The cuts are chosen from the first sample, and must even out the second one. So a table whose changes move on
to other keys within a minute, such as one with ascending keys, is not cut: each cut would be behind its
changes. Nor is one whose changes are of one row. A table is cut again and again only until it has `PIECES`
pieces.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from tidegate.config.values import TABLE_CUTS_MAX
from tidegate.eventstore.key_loads import KeyLoads
from tidegate.server.catalogue.table_cuts import PIECES
from tidegate.tidb import keys, memcomparable

LOOK_S: Final = 10.0
"""How often the owner looks. Captures measure loads as often (`server.processor.span_loads`)."""
LOOKS_HOT: Final = 7
"""A span is cut if it is hot at so many looks in a row: for a minute."""
COOL_DOWN_S: Final = 600.0
"""The time from one choice of cuts to the first one by load, and until a span that was not cut is tried
again.
"""
COOL_DOWN_MAX_S: Final = 86_400.0
"""The longest time from one choice by load to the next one. After twice this time they are not in a row."""
PIECES_PER_MEAN: Final = 2
"""A hot span is cut into pieces of the mean load of a capture divided by this."""
TABLE_EDGE: Final = 0.25
"""The edge of a table is chosen if it is closer than the best place and this share of a piece."""
HELPS: Final = 0.75
"""The greatest share of the span's changes that one of its pieces may have; otherwise no cut is made."""
ROWS_MIN: Final = 100
"""Fewer rows say nothing about keys."""
RESTS_MAX: Final = 60
"""The most looks from one try to sample a span in vain to the next one: 10 minutes. The first is one look."""
FEW_ROWS: Final = "too few of its rows are in the event store at a time"


@dataclass(frozen=True, slots=True)
class Choice:
    """New cuts inside a span, or a reason why there are none, in words."""

    cuts: Sequence[bytes] = ()
    why_not: str = ""


def chosen(
    first: KeyLoads,
    last: KeyLoads,
    pieces: int,
    tables: Collection[int],
    near: Callable[[bytes], Sequence[bytes]],
) -> Choice:
    """The cuts of a span into at most `pieces` pieces.

    `first` and `last`: two samples, at least a minute apart. `tables`: those that are wanted of the span.
    `near`: the edges of the region that holds a key.
    """
    if min(first.rows, last.rows) < ROWS_MIN:
        return Choice(why_not=FEW_ROWS)
    cuts = even_cuts(first, pieces, tables, near)
    if not cuts:
        return Choice(why_not="its changes are of one row, or of tables that nobody follows")
    if (share := greatest_share(first, cuts)) > HELPS:
        return Choice(
            why_not=f"one row, or few rows, have {share:.0%} of its changes, and no cut divides a row"
        )
    if (share := greatest_share(last, cuts)) > HELPS:
        why = f"by the later sample one piece would have {share:.0%}"
        return Choice(why_not=f"its changes move on to other keys, so no cut helps for long: {why}")
    return Choice(cuts)


def even_cuts(
    loads: KeyLoads, pieces: int, tables: Collection[int], near: Callable[[bytes], Sequence[bytes]]
) -> list[bytes]:
    """The keys that cut a span into pieces of loads as equal as possible; `pieces` - 1 or fewer, ascending.

    The edge of a table is preferred, because a table that is whole keeps its atomicity. So is the edge of a
    region if it is not further away than a bucket, because a region in two pieces is registered twice.
    """
    starts, below = loads.starts, list(accumulate(loads.weights, initial=0))
    wanted = frozenset(tables)
    places = [
        place
        for place, start in enumerate(starts)
        if place and keys.is_record(start) and _table(start) in wanted
    ]
    piece = below[-1] / pieces
    chosen: set[int] = set()
    for number in range(1, pieces if places else 1):

        def distance(place: int, goal: float = number * piece) -> float:
            bonus = TABLE_EDGE * piece if _begins_table(starts, place) else 0.0
            return abs(below[place] - goal) - bonus

        chosen.add(min(places, key=distance))
    # A set, because two places next to each other may be close to one edge.
    return sorted({_cut(starts, place, near) for place in chosen})


def _begins_table(starts: Sequence[bytes], place: int) -> bool:
    return _table(starts[place - 1]) != _table(starts[place])


def _cut(starts: Sequence[bytes], place: int, near: Callable[[bytes], Sequence[bytes]]) -> bytes:
    """The key of a cut at the start of a bucket, or close to it."""
    start, table = starts[place], _table(starts[place])
    if _begins_table(starts, place):
        return keys.record_prefix(table) + bytes(8)  # below all its rows
    end = starts[place + 1] if place + 1 < len(starts) else keys.record_span(table).end
    inside = [
        edge
        for edge in near(start)
        if starts[place - 1] < edge < end and keys.is_record(edge) and _table(edge) == table
    ]
    return min(inside, default=start)


def _table(key: bytes) -> int:
    return memcomparable.decode_int(key, 1)


def greatest_share(loads: KeyLoads, cuts: Sequence[bytes]) -> float:
    """The share of the changes that the heaviest piece has; `cuts` ascending."""
    pieces = Counter[int]()
    for start, weight in zip(loads.starts, loads.weights, strict=True):
        pieces[bisect_right(cuts, start)] += weight
    return max(pieces.values()) / pieces.total()


def kept_cuts(cuts: Sequence[bytes], tables: Collection[int]) -> list[bytes]:
    """Those of tables that are still there; a table that was dropped or truncated needs none."""
    wanted = frozenset(tables)
    return [cut for cut in cuts if _table(cut) in wanted]


def pieces_of(times_mean: float, cuts: Sequence[bytes], tables: Collection[int]) -> int:
    """Into how many pieces a hot span is cut: as its load demands and the bounds allow; 1: into none.

    `times_mean`: its load by the mean load of a capture. `cuts`: those that there are. `tables`: the span's.
    """
    by_table = Counter(map(_table, cuts))
    room = min(TABLE_CUTS_MAX - len(cuts), PIECES - 1 - max(by_table[table] for table in tables))
    return max(1, min(math.ceil(PIECES_PER_MEAN * times_mean), room + 1))


def cool_down_s(recuts: int) -> float:
    """The time from one choice of cuts to the next one by load. It doubles with each choice in a row.

    Changes that move through a table in some minutes, as those of a queue do, pass both samples. Without this
    each such cut would cost a restart, every `COOL_DOWN_S`, until the table has `PIECES` cold pieces.
    """
    return float(min(COOL_DOWN_MAX_S, COOL_DOWN_S * 2 ** min(max(0, recuts), 20)))


def in_a_row(recuts: int, since_s: float) -> int:
    """The number of choices in a row with one that comes `since_s` after the last."""
    return recuts + 1 if since_s < 2 * COOL_DOWN_MAX_S else 1


@dataclass(slots=True)
class _Hot:
    looks: int = 0
    """The looks in a row at which it was hot, from its first sample on."""
    first: KeyLoads | None = None
    tries: int = 0
    """How often it was sampled in vain."""
    rests: int = 0
    """The looks until it is sampled again."""
    why_not: str = ""
    """Why the last try was in vain."""


@dataclass(slots=True)
class HotWatch:
    """The spans of one changefeed that are hot, from look to look. Times are monotonic, in seconds."""

    words: dict[str, str] = field(default_factory=dict)
    """By span: why its last choice has cut nothing, for people."""
    not_before: float = float("-inf")
    """The next cuts may be chosen then."""
    failures: int = 0
    """The errors since the last cuts. The next try is later after each."""
    _not_now: str = ""
    """Why no span could be cut at the last look."""
    _hot: dict[str, _Hot] = field(default_factory=dict)

    def look(self, hot: Collection[str]) -> list[str]:
        """Note which spans are hot now. Returns those of which a first sample is missing."""
        self._hot = {name: self._hot.get(name, _Hot()) for name in hot}
        self.words = {name: self.words[name] for name in hot if name in self.words}
        self._not_now = ""
        for one in self._hot.values():
            one.looks += one.first is not None
            one.rests = max(0, one.rests - 1)
        return [name for name, one in self._hot.items() if one.first is None and not one.rests]

    def cannot(self, hot: Collection[str], why: str) -> None:
        """Note why none of the spans that are hot now can be cut. Each begins again when that is over."""
        self.look(hot)
        self._hot, self._not_now = {name: _Hot() for name in hot}, why

    def sampled(self, name: str, loads: KeyLoads, why_not: str = "") -> None:
        """Take the first sample of a hot span. One of few rows does not count. `why_not`: there is none."""
        one = self._hot.get(name)
        if one is None:
            return
        if loads.rows >= ROWS_MIN:
            self._hot[name] = _Hot(1, loads)
        else:
            one.rests = min(RESTS_MAX, 2 ** min(one.tries, 20))
            one.tries, one.why_not = one.tries + 1, why_not or FEW_ROWS

    def said(self, name: str) -> str:
        """Why a hot span is not cut, for people; empty: nothing is known that prevents it."""
        one = self._hot.get(name)
        if why := self._not_now or (one.why_not if one is not None else ""):
            return f"it is not cut by itself now: {why}"
        return self.words.get(name, "")

    def due(self, now: float) -> Mapping[str, KeyLoads]:
        """The spans that have been hot for long enough, each with its first sample."""
        if now < self.not_before:
            return {}
        return {
            name: one.first
            for name, one in self._hot.items()
            if one.first is not None and one.looks >= LOOKS_HOT
        }

    def done(self, now: float) -> None:
        """Begin again after a choice, whatever it was."""
        self.not_before = now + COOL_DOWN_S
        self._hot = {name: _Hot() for name in self._hot}

    def failed(self, now: float, why: str) -> None:
        """Begin again after an error. Each may have restarted the changefeed in vain, so the wait doubles."""
        wait_s, self.failures = cool_down_s(self.failures), self.failures + 1
        self.done(now)
        self.not_before = now + wait_s
        again = f"this is tried again after {wait_s / 60:.0f} minutes"
        self.words = dict.fromkeys(self._hot, f"it was not cut by itself: {why}; {again}")
