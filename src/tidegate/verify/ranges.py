"""Ranges of rows, the sums over them, and the ranges in which two sides differ. Pure.

Every row has an *order word* (uint64) that both sides compute from its key. For a table clustered on an
integer it is the key itself, so that a range of words is a range of keys in TiKV. For other tables it is a
fingerprint of the key, which distributes rows evenly. `Cuts` divide the words into ranges. A side folds its
rows into one count and one sum of fingerprints for each range, in any order and in any number of parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

U64s = npt.NDArray[np.uint64]
I64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

END: Final = 1 << 64
"""One more than the last word."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Ranges [starts[i], starts[i + 1]), the last one up to END; words below the first are in no range."""

    starts: U64s
    """Ascending."""
    wanted: Bools
    """Ranges that are compared; the others fill the gaps between them."""

    @classmethod
    def whole(cls, low: int = 0, end: int = END) -> Cuts:
        """One range [low, end)."""
        if end == END:
            return cls(np.array([low], np.uint64), np.array([True]))
        return cls(np.array([low, end], np.uint64), np.array([True, False]))

    @classmethod
    def around(cls, words: U64s) -> Cuts:
        """A range for each of these words alone. There must be at least one; they are distinct and ascend."""
        # The last word has no successor: with 1 added it would wrap around to 0.
        after = words[words < np.uint64(END - 1)] + np.uint64(1)
        starts = np.unique(np.concatenate([words, after]))
        return cls(starts, np.isin(starts, words))

    def __len__(self) -> int:
        return len(self.starts)

    def runs(self) -> list[tuple[int, int]]:
        """[low, end) of each run of adjacent wanted ranges."""
        starts, wanted = self.starts.tolist(), self.wanted.tolist()
        found: list[tuple[int, int]] = []
        for at, (low, taken) in enumerate(zip(starts, wanted, strict=True)):
            end = starts[at + 1] if at + 1 < len(starts) else END
            if taken and found and found[-1][1] == low:
                found[-1] = found[-1][0], end
            elif taken:
                found.append((low, end))
        return found

    def only(self, wanted: Bools) -> Cuts:
        """The same ranges, of which only `wanted` are compared."""
        return Cuts(self.starts, wanted)

    def split(self, pieces: int) -> Cuts:
        """Split every wanted range into `pieces` even ones, if it has enough words; join the others."""
        starts: list[int] = []
        wanted: list[bool] = []
        for low, end in self._ranges():
            # The gap after the range before has no words if this range follows at once.
            if wanted and not wanted[-1] and starts[-1] == low:
                starts.pop()
                wanted.pop()
            count = min(pieces, end - low)
            # In Python's integers, because the product has more than 64 bits.
            starts += [low + (end - low) * i // count for i in range(count)]
            wanted += [True] * count
            if end < END:
                starts.append(end)
                wanted.append(False)
        return Cuts(np.array(starts, np.uint64), np.array(wanted, np.bool_))

    def _ranges(self) -> Iterator[tuple[int, int]]:
        ends = [*self.starts[1:].tolist(), END]
        for low, end, taken in zip(self.starts.tolist(), ends, self.wanted.tolist(), strict=True):
            if taken:
                yield low, end

    def place(self, words: U64s) -> I64s:
        """The index of each word's range; -1 if it is in no wanted range."""
        at = np.searchsorted(self.starts, words, side="right") - 1
        # For -1 this reads the last entry, which is then not used.
        found: I64s = np.where((at >= 0) & self.wanted[at], at, -1)
        return found


@dataclass(frozen=True, slots=True)
class Sums:
    """The rows of a side in each range: their number, and the sum of their fingerprints modulo 2**64."""

    counts: I64s
    sums: U64s

    @classmethod
    def zero(cls, ranges: int) -> Sums:
        """The sums of no rows."""
        return cls(np.zeros(ranges, np.int64), np.zeros(ranges, np.uint64))

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.counts + other.counts, self.sums + other.sums)

    def differs(self, other: Sums) -> Bools:
        """The ranges in which two sides differ."""
        found: Bools = (self.counts != other.counts) | (self.sums != other.sums)
        return found


def tally(cuts: Cuts, words: U64s, marks: U64s) -> Sums:
    """The sums over rows with these order words and fingerprints; rows in no wanted range do not count."""
    at = cuts.place(words)
    inside = at >= 0
    if not inside.all():
        at, marks = at[inside], marks[inside]
    sums = np.zeros(len(cuts), np.uint64)
    # Several rows share a range, and `sums[at] += marks` would add only one of them.
    np.add.at(sums, at, marks)
    return Sums(np.bincount(at, minlength=len(cuts)).astype(np.int64), sums)


@dataclass(frozen=True, slots=True)
class Ordered:
    """The ranges and sums of rows that were read in order, for one piece of the words."""

    starts: U64s
    """The first one is the beginning of the piece, even without a row there."""
    end: int
    sums: Sums


def in_order(low: int, end: int, rows: Iterator[tuple[U64s, U64s]], rows_a_range: int) -> Ordered:
    """Fold rows that come in order of their words into ranges of `rows_a_range` rows each.

    `rows`: batches of words and fingerprints, all words in [low, end).
    """
    starts: list[U64s] = []
    counts: list[I64s] = []
    sums: list[U64s] = []
    for words, marks in rows:
        if not len(words):
            continue
        first = np.arange(0, len(words), rows_a_range)
        starts.append(words[first])
        counts.append(np.diff(np.append(first, len(words))))
        # These sums wrap around, and so they are the same in any order and any number of parts.
        sums.append(np.add.reduceat(marks, first))
    if not starts:
        return Ordered(np.array([low], np.uint64), end, Sums.zero(1))
    begun = np.concatenate(starts)
    # Rows of the other side between the beginning of the piece and the first row here must count as well.
    begun[0] = low
    return Ordered(begun, end, Sums(np.concatenate(counts), np.concatenate(sums)))


def tiled(pieces: Sequence[Ordered], ranges_max: int) -> tuple[Cuts, Sums]:
    """The ranges of many pieces as cuts; neighbours are joined until about `ranges_max` are left at most."""
    total = sum(len(piece.starts) for piece in pieces)
    # Rounded up: rounded down, up to twice as many would be left.
    joined = -(-total // ranges_max)
    starts: list[U64s] = []
    wanted: list[Bools] = []
    counts: list[I64s] = []
    sums: list[U64s] = []
    ordered = sorted(pieces, key=lambda piece: int(piece.starts[0]))
    for at, piece in enumerate(ordered):
        first = np.arange(0, len(piece.starts), joined)
        starts.append(piece.starts[first])
        counts.append(np.add.reduceat(piece.sums.counts, first))
        sums.append(np.add.reduceat(piece.sums.sums, first))
        wanted.append(np.ones(len(first), np.bool_))
        following = int(ordered[at + 1].starts[0]) if at + 1 < len(ordered) else END
        # A gap is a range that is not compared, so that the rows of the other side in it do not count for its
        # neighbour.
        if piece.end < following:
            starts.append(np.array([piece.end], np.uint64))
            counts.append(np.zeros(1, np.int64))
            sums.append(np.zeros(1, np.uint64))
            wanted.append(np.zeros(1, np.bool_))
    cuts = Cuts(np.concatenate(starts), np.concatenate(wanted))
    return cuts, Sums(np.concatenate(counts), np.concatenate(sums))


def differing_words(here: tuple[U64s, U64s], there: tuple[U64s, U64s]) -> U64s:
    """The words, ascending, for which two sides do not have the same fingerprints equally often.

    `here`, `there`: the words and fingerprints of a side's rows.
    """
    words, marks = (np.concatenate([one, other]) for one, other in zip(here, there, strict=True))
    if not len(words):
        return words
    # A fingerprint that both sides have equally often adds up to 0.
    balance = np.where(np.arange(len(words)) < len(here[0]), 1, -1)
    order = np.lexsort((marks, words))
    words, marks, balance = words[order], marks[order], balance[order]
    first = np.flatnonzero(np.append(True, (words[1:] != words[:-1]) | (marks[1:] != marks[:-1])))
    differing = np.add.reduceat(balance, first) != 0
    found: U64s = np.unique(words[first][differing])
    return found


def windows(differing: Bools, rows: I64s, rows_max: int) -> Iterator[Bools]:
    """The differing ranges in groups of at most `rows_max` rows; a larger range is a group of its own."""
    group, held = np.zeros(len(differing), np.bool_), 0
    for at in np.flatnonzero(differing).tolist():
        if held and held + int(rows[at]) > rows_max:
            yield group
            group, held = np.zeros(len(differing), np.bool_), 0
        group[at] = True
        held += int(rows[at])
    if group.any():
        yield group
