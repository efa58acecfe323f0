"""The runs of a partition, for changes of a table without a key that are read piece by piece.

A producer that was restarted repeats changes: their commit ts falls, and a new run begins. Rows without a key
are counted by run (`net_effect`), so runs must be known before the rows are cut into parts: a part has only
some of the rows, and does not show where the ts fell.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidegate.consumer.applying.changes import Staged
from tidegate.consumer.applying.net_effect import Changes, Ints
from tidegate.consumer.engine.assembler import StagedPiece
from tidegate.consumer.reading.staging import CARRIED_TS


@dataclass(frozen=True, slots=True)
class Places:
    """Where the rows of one piece are on their partition, and when they were committed; in any order."""

    offset: Ints
    seq: npt.NDArray[np.int32]
    commit_ts: npt.NDArray[np.uint64]

    def before(self, offset: int) -> tuple[Places, Places]:
        """The rows with a smaller offset, and the others."""
        below = self.offset < offset
        return self._at(below), self._at(~below)

    def joined(self, other: Places) -> Places:
        """These and the others."""
        return Places(
            np.concatenate([self.offset, other.offset]),
            np.concatenate([self.seq, other.seq]),
            np.concatenate([self.commit_ts, other.commit_ts]),
        )

    def _at(self, chosen: npt.NDArray[np.bool_]) -> Places:
        return Places(self.offset[chosen], self.seq[chosen], self.commit_ts[chosen])


_NOWHERE = Places(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint64))


class _Begins:
    """Where runs begin on one partition: each place is above the ones before it."""

    def __init__(self, pieces: Iterable[tuple[int, Places]]) -> None:
        self._begins: list[tuple[int, int]] = []
        self._newest = np.uint64(0)
        # Pieces of one fetch may lie within each other, because a piece has only rows of the same columns.
        waiting = _NOWHERE
        for first_offset, places in pieces:
            complete, waiting = waiting.before(first_offset)
            self._add(complete)
            waiting = waiting.joined(places)
        self._add(waiting)
        self._offsets = np.array([offset for offset, _ in self._begins], np.int64)

    def _add(self, places: Places) -> None:
        order = np.lexsort((places.seq, places.offset))
        ts = places.commit_ts[order]
        falls = order[ts < np.concatenate([[self._newest], ts[:-1]])] if len(ts) else order
        self._begins += zip(places.offset[falls].tolist(), places.seq[falls].tolist(), strict=True)
        self._newest = ts[-1] if len(ts) else self._newest

    def of(self, offset: Ints, seq: npt.NDArray[np.int32]) -> Ints:
        """For each place, how many runs have begun up to it."""
        run = np.searchsorted(self._offsets, offset, side="left")
        # A run may begin in the midst of a message; only there the offset alone does not tell.
        for at in np.flatnonzero(run != np.searchsorted(self._offsets, offset, side="right")):
            run[at] = bisect_right(self._begins, (int(offset[at]), int(seq[at])))
        return run.astype(np.int64)


class RowRuns:
    """The number of each change's run. Memory holds the places where runs begin, and a few pieces' places."""

    def __init__(self, pieces: Mapping[int, Iterable[tuple[int, Places]]]) -> None:
        """`pieces`: by partition, all pieces in the order of their first offset, each with that offset."""
        self._begins = {partition: _Begins(held) for partition, held in pieces.items()}

    def of(self, changes: Changes) -> Ints:
        """The number of each change's run on its partition, from 0 on."""
        run = np.zeros(len(changes), np.int64)
        for partition, begins in self._begins.items():
            mine = np.flatnonzero(changes.partition == partition)
            run[mine] = begins.of(changes.offset[mine], changes.seq[mine])
        return run


def runs_of(pieces: Sequence[StagedPiece], rows: Callable[[StagedPiece], Sequence[Staged]]) -> RowRuns:
    """The runs of a table's changes; `rows` reads those of a piece."""
    found: dict[int, list[StagedPiece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.segment.first_offset):
        found.setdefault(piece.segment.partition, []).append(piece)
    # Generators: the places of a piece are in memory only until those of the next ones follow.
    return RowRuns({partition: _places(held, rows) for partition, held in found.items()})


def _places(
    pieces: Sequence[StagedPiece], rows: Callable[[StagedPiece], Sequence[Staged]]
) -> Iterable[tuple[int, Places]]:
    for piece in pieces:
        for one in rows(piece):
            ts = CARRIED_TS if CARRIED_TS in one.rows.schema.names else "_commit_ts"
            offset, seq, commit_ts = (one.rows.column(name).to_numpy() for name in ("_offset", "_seq", ts))
            yield one.segment.first_offset, Places(offset, seq, commit_ts)
