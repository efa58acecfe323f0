"""Cuts waiting entries into pieces that are encoded one by one. A delivery may stop after each piece. Pure.

A piece is a slice of entries in the store's order, of about as many bytes as the caller asks for, with the
position of its end. Usually it ends between two transactions. A transaction that does not fit is *large*: it
is emitted in several pieces, but in the same order as a whole transaction. In that order, an update that
changes a unique key is split into a delete before all other updates of the transaction, and an insert after
them (`dispatcher.split`). So the updates of a large transaction are read up to three times:

    deletes | updates: old halves | updates: those that stay | updates: new halves | inserts

They are read for new halves only if the pass for old halves found such an update, which the caller counts
(`Cutter.met`). The order does not depend on where pieces end, nor on the position at which a later delivery
resumes.

Memory: two blocks of the store in addition to the piece, and the rows of a transaction that crosses the end
of a block. The store ends blocks between transactions if these are small, so that few are joined; but not
those that have the most rows allowed, of which there is one in 65,536 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.dispatcher.split import Part
from tidegate.eventstore.seek import classes, place_of, sizes
from tidegate.eventstore.segment import data_bytes
from tidegate.model.position import DELETE_CLASS, INSERT_CLASS, UPDATE_CLASS, Place, Position, Rank

ROW_BYTES: Final = 32
"""Bytes that an entry counts in addition to its key and values."""
Group: TypeAlias = tuple[int, int]
"""A transaction: commit ts and start ts."""
Read: TypeAlias = Callable[[Place | None], Iterable[pa.RecordBatch]]
"""Reads the range's blocks after a place; None: from its start."""
Int64s: TypeAlias = npt.NDArray[np.int64]
_SPLITTING: Final = (Rank.OLD_HALVES, Rank.UPDATES, Rank.NEW_HALVES)


@dataclass(frozen=True, slots=True)
class EncodePiece:
    """Entries that are encoded together."""

    block: pa.RecordBatch
    part: Part
    end: Position
    """The position after this piece: everything up to it was emitted."""
    again: bool = False
    """Whether these entries were in an earlier piece, for another part. Their damage was reported then."""


class Cutter:
    """Cuts one range. Call `run` once.

    `budget`: how many bytes the next piece may have; a single entry may have more. `splits`: whether updates
    of unique keys are split. `apart`: transactions that are emitted as large ones even if they are small. An
    earlier incarnation has emitted a part of them, and the caller leaves that part out. If that incarnation
    split updates, the rest of the transaction is split as well, as in `_resume`.
    """

    def __init__(
        self, read: Read, budget: Callable[[], int], *, splits: bool, apart: frozenset[Group] = frozenset()
    ) -> None:
        self._read, self._budget, self._splits, self._apart = read, budget, splits, apart
        self.met = 0
        """Updates of unique keys in the pieces so far. The caller adds them before it asks for the next."""

    def run(self, past: Position | None = None) -> Iterator[EncodePiece]:
        """The pieces after a position, in order."""
        if past is None:
            source = _Source(self._read(None))
        elif past.rank in _SPLITTING or (self._splits and past.rank in (Rank.DELETES, Rank.INSERTS)):
            source = yield from self._resume(past)
        else:
            source = _Source(self._read(past.place))
            if past.rank is Rank.WHOLE_UPDATES:
                # This transaction was begun by a feed that split no updates. Even if this feed splits them,
                # the rest of this transaction is not: old halves would come after updates that are out.
                yield from self._plain(source.rest((past.commit_ts, past.start_ts)))
        if self._splits:
            yield from self._grouped(source)
        else:
            yield from self._ungrouped(source)

    def _plain(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[EncodePiece]:
        """Pieces of entries whose updates are not split. They may end anywhere."""
        for block in blocks:
            for rows in self._slices(block):
                yield EncodePiece(rows, Part.WHOLE, _end(rows, Rank.WHOLE_UPDATES))

    def _ungrouped(self, source: _Source) -> Iterator[EncodePiece]:
        """Pieces of a feed that splits no updates, except in the transactions that are `apart`."""
        while self._apart and (block := source.peek()) is not None:
            if (group := _group(block)) in self._apart:
                yield from self._large(group, source.rest(group))
            else:
                ends = _group_ends(block)
                next_apart = self._next_apart(block, ends)
                rows = source.take(block.num_rows if next_apart is None else int(ends[next_apart]))
                yield from self._plain(iter([rows]))
        yield from self._plain(source.rest(None))

    def _grouped(self, source: _Source) -> Iterator[EncodePiece]:
        """Pieces of whole transactions, as many as fit; a transaction that does not fit gets its own."""
        while (block := source.peek()) is not None:
            if (group := _group(block)) in self._apart:
                yield from self._large(group, source.rest(group))
                continue
            # The usual case, without a look at each row: the block fits, and ends between two transactions.
            if not self._apart and weight(block) <= self._budget() and not source.continues():
                rows = source.take(block.num_rows)
                yield EncodePiece(rows, Part.SPLIT, _behind(rows))
                continue
            ends = _group_ends(block)
            next_apart = self._next_apart(block, ends) if self._apart else None
            if next_apart is not None:
                ends = ends[: next_apart + 1]
            fits = ends[_weights(block)[ends - 1] <= self._budget()]
            # The last transaction of the block may continue in the next block.
            if len(fits) and fits[-1] == block.num_rows and source.continues():
                fits = fits[:-1]
            if len(fits):
                rows = source.take(int(fits[-1]))
                yield EncodePiece(rows, Part.SPLIT, _behind(rows))
            else:
                yield from self._one(source, _group(block))

    def _next_apart(self, block: pa.RecordBatch, ends: Int64s) -> int | None:
        """The index in `ends` of the end after which a transaction begins that is `apart`; None: no such."""
        commits, starts = block.column(0), block.column(1)
        for i, first in enumerate(ends[:-1].tolist()):
            if (commits[first].as_py(), starts[first].as_py()) in self._apart:
                return i
        return None

    def _one(self, source: _Source, group: Group) -> Iterator[EncodePiece]:
        """One transaction, joined if it crosses the ends of blocks; if it does not fit, as a large one."""
        held: list[pa.RecordBatch] = []
        size = 0
        for rows in source.rest(group):
            held.append(rows)
            size += weight(rows)
            # A single entry cannot be cut, so it is not large however many bytes it has.
            if size > self._budget() and sum(part.num_rows for part in held) > 1:
                yield from self._large(group, chain(held, source.rest(group)))
                return
        rows = held[0] if len(held) == 1 else pa.concat_batches(held)
        yield EncodePiece(rows, Part.SPLIT, _behind(rows))

    # --- large transactions ------------------------------------------------------------------------------

    def _large(
        self, group: Group, parts: Iterable[pa.RecordBatch], *, met: bool = False, owed: bool = False
    ) -> Iterator[EncodePiece]:
        """A transaction in pieces. `met`: its old halves are out; `owed`: its new halves may be due."""
        for part in parts:
            for kind, rows in _by_class(part):
                if kind == UPDATE_CLASS and not met:
                    before = self.met
                    yield from self._halves(group, Rank.OLD_HALVES, (*group, UPDATE_CLASS))
                    # The caller has added what the last piece met before it asked on, so the difference is
                    # complete.
                    met, owed = True, self.met > before
                if kind == INSERT_CLASS and owed:
                    yield from self._halves(group, Rank.NEW_HALVES, (*group, UPDATE_CLASS))
                    owed = False
                for some in self._slices(rows):
                    yield EncodePiece(
                        some, Part.UPDATES, _end(some, Rank.UPDATES), again=kind == UPDATE_CLASS
                    )
        # A transaction without inserts has not passed the branch above.
        if owed:
            yield from self._halves(group, Rank.NEW_HALVES, (*group, UPDATE_CLASS))

    def _halves(self, group: Group, rank: Rank, past: Place) -> Iterator[EncodePiece]:
        """The transaction's updates after a place, read again, for the halves of those that are split."""
        part = Part.OLD_HALVES if rank is Rank.OLD_HALVES else Part.NEW_HALVES
        for block in _Source(self._read(past)).rest(group):
            updates = int(np.searchsorted(classes(block), UPDATE_CLASS, side="right"))
            for some in self._slices(block.slice(0, updates)):
                yield EncodePiece(some, part, _end(some, rank), again=rank is Rank.NEW_HALVES)
            # Rows are sorted by class, so inserts follow: there are no more updates.
            if updates < block.num_rows:
                return

    def _resume(self, past: Position) -> Generator[EncodePiece, None, _Source]:
        """The rest of a transaction that an earlier incarnation began. Returns the source after it."""
        group, place = (past.commit_ts, past.start_ts), past.place
        if past.rank in (Rank.OLD_HALVES, Rank.NEW_HALVES):
            yield from self._halves(group, past.rank, past.place)
            place = (*group, UPDATE_CLASS if past.rank is Rank.OLD_HALVES else INSERT_CLASS)
        source = _Source(self._read(place))
        # It is not known any more whether any of its updates was split, so they are read again.
        owed = past.rank in (Rank.OLD_HALVES, Rank.UPDATES)
        met = past.rank is not Rank.DELETES
        yield from self._large(group, source.rest(group), met=met, owed=owed)
        return source

    def _slices(self, block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return slices(block, self._budget)


def slices(block: pa.RecordBatch, budget: Callable[[], int]) -> Iterator[pa.RecordBatch]:
    """The rows of a block in slices of at most `budget` bytes each, or of one row."""
    while block.num_rows:
        count, limit = block.num_rows, budget()
        if weight(block) > limit:
            # At least one row. Otherwise an entry above the budget would never be passed.
            count = max(1, int(np.searchsorted(_weights(block), limit, side="right")))
        yield block.slice(0, count)
        block = block.slice(count)


def weight(block: pa.RecordBatch) -> int:
    """The bytes that a block counts. Takes the same time for any number of rows."""
    total: int = data_bytes(block) + ROW_BYTES * block.num_rows
    return total


class _Source:
    """Blocks from which a caller may take a part and leave the rest."""

    def __init__(self, blocks: Iterable[pa.RecordBatch]) -> None:
        self._blocks = iter(blocks)
        self._head: pa.RecordBatch | None = None
        self._second: pa.RecordBatch | None = None
        """The block after `_head`, if it was looked at."""

    def peek(self) -> pa.RecordBatch | None:
        """The next block or the rest of it, which is not empty; None at the end."""
        if self._head is None or self._head.num_rows == 0:
            head = self._second if self._second is not None else next(self._blocks, None)
            self._head, self._second = head, None
        return self._head

    def continues(self) -> bool:
        """Whether the last transaction of `peek` has rows in the block after it."""
        block = self.peek()
        assert block is not None
        if self._second is None:
            self._second = next(self._blocks, None)
        return self._second is not None and _group(block.slice(block.num_rows - 1)) == _group(self._second)

    def take(self, count: int) -> pa.RecordBatch:
        """The first rows of `peek`."""
        block = self.peek()
        assert block is not None
        self._head = block.slice(count)
        return block.slice(0, count)

    def rest(self, group: Group | None) -> Iterator[pa.RecordBatch]:
        """The next rows while they belong to a transaction, block by block; None: all rows."""
        while (block := self.peek()) is not None:
            if group is None:
                yield self.take(block.num_rows)
            elif _group(block) == group:
                yield self.take(int(_group_ends(block)[0]))
            else:
                return


def _group(block: pa.RecordBatch) -> Group:
    """The transaction of the first row."""
    return block.column(0)[0].as_py(), block.column(1)[0].as_py()


def _group_ends(block: pa.RecordBatch) -> Int64s:
    """The number of rows up to the end of each transaction of a block."""
    commits, starts = block.column(0).to_numpy(), block.column(1).to_numpy()
    inner = np.flatnonzero((commits[1:] != commits[:-1]) | (starts[1:] != starts[:-1])) + 1
    return np.append(inner, block.num_rows)


def _weights(block: pa.RecordBatch) -> Int64s:
    """The bytes that all rows up to each one count, itself included."""
    return np.cumsum(sizes(block) + ROW_BYTES)


def _by_class(block: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows of one transaction by their class of operation."""
    found = classes(block)
    first = 0
    for kind in (DELETE_CLASS, UPDATE_CLASS, INSERT_CLASS):
        end = int(np.searchsorted(found, kind, side="right"))
        if end > first:
            yield kind, block.slice(first, end - first)
        first = end


def _end(block: pa.RecordBatch, updates: Rank) -> Position:
    """The position of the last row. If it is an update, it has the rank `updates`."""
    commit_ts, start_ts, kind, key = place_of(block, block.num_rows - 1)
    rank = (Rank.DELETES, updates, Rank.INSERTS)[kind]
    return Position(commit_ts, start_ts, rank, key)


def _behind(block: pa.RecordBatch) -> Position:
    """The position after the transaction of the last row."""
    last = block.num_rows - 1
    return Position(block.column(0)[last].as_py(), block.column(1)[last].as_py(), Rank.DONE, b"")
