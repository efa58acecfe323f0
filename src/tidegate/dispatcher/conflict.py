"""Dispatch by conflict: where readers must align their partitions before a row takes a unique value. Pure.

A row goes to the partition that its handle key selects, as with `index-value`, so all changes of one row are
in order. But when one row gives up a unique value and another row takes it, the two changes may be on two
partitions, and neither partition shows which came first. This module finds such places. There the writer puts
an *alignment mark* on every partition (`docs/formats/contract.md`).

    delete A (u = 1)   partition 0      u = 1 was freed on partition 0
    ---- mark ----     all partitions   because
    insert B (u = 1)   partition 2      takes it on partition 2

Only a delete frees a value and only an insert takes one, because `split` has turned every update that changes
a key into a delete and an insert. So the tracker remembers what was freed since its last mark, and checks
inserts against it. It also asks for a mark before the next row if it does not know what was freed: at its
beginning, which is where a restarted writer begins, and after it was full.

Values that are taken are not remembered: before another row can take one, a delete must free it again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.kernels import partition_block
from tidegate.dispatcher.unique_keys import (
    HASHES,
    NO_VALUE,
    UniqueKey,
    compared,
    is_bytes,
    tracked_keys,
)
from tidegate.kernel import PAD, address
from tidegate.model.cells import DELETE, INSERT, NULL, UPDATE, Image, RowBlock, take
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb.types import collation

KEYS_MAX: Final = 1 << 17
"""Values that a table's tracker remembers, about 100 bytes each; if there are more it forgets all of them."""
TOTAL_MAX: Final = 1 << 20
"""Values that a writer's trackers remember for committed ranges; the range in delivery may add as many."""
TABLES_MAX: Final = 10_000
"""Tables for which a writer has trackers."""
_SEVERAL: Final = -1
"""Instead of a partition: the value was freed on more than one partition."""

Int64s = npt.NDArray[np.int64]


class Tracker:
    """The unique values that one table's rows have freed since its last mark."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._freed: dict[int, int] = {}
        """By hash, the partition of the delete."""
        self._unknown = True
        """Whether values may have been freed that are not in `_freed`."""

    def __len__(self) -> int:
        return len(self._freed)

    def forget(self) -> None:
        """Forget everything: the next row needs a mark before it."""
        self._freed.clear()
        self._unknown = True

    def row(self, op: int, partition: int, hashes: Sequence[int]) -> bool:
        """Track the next row; True: a mark must precede it. The plain twin of `places`.

        `hashes`: one per key, of the row's value in the old image for a delete, otherwise in the new image.
        """
        # docs/guarantees.md#with-the-dispatcher-conflict-no-unique-value-is-taken-before-it-is-free: a mark
        # too many only makes readers wait; one too few breaks the promise.
        marks = self._unknown or (op == INSERT and self._conflicts(partition, hashes))
        if marks:
            self._mark()
        if op == DELETE:
            self._free(partition, hashes)
        return marks

    def places(
        self,
        block: RowBlock,
        partition: npt.NDArray[np.int32],
        keys: Sequence[UniqueKey],
        blind_upto: int = 0,
    ) -> list[int]:
        """Track the next rows, in their order; returns the rows that a mark must precede, ascending.

        `blind_upto`: deletes up to this commit ts may be missing from the rows, because they were delivered
        before.
        """
        blind = int((block.commit_ts <= np.uint64(blind_upto)).sum()) if keys else 0
        if blind:
            found = self._blind(block.op[:blind], block.commit_ts[:blind])
            rest = take(block, np.arange(blind, len(block)))
            return found + [blind + at for at in self.places(rest, partition[blind:], keys)]
        found = [0] if self._unknown and len(block) else []
        if found:
            self._mark()
        if not keys:
            return found
        # An update neither frees nor takes a value: `split` has made those that would into a delete and an
        # insert.
        rows = np.flatnonzero(block.op != UPDATE)
        if not self._freed and not (block.op[rows] == DELETE).any():
            return found  # without any delete, an insert cannot take a value that another row has freed
        ops, where = block.op[rows], partition[rows]
        hashes = key_hashes(take(block, rows), keys)
        # Without a possible conflict no row needs a step of Python.
        if self._is_quiet(ops, where, hashes):
            deletes = ops == DELETE
            for at, values in zip(where[deletes].tolist(), hashes[deletes].tolist(), strict=True):
                self._free(at, values)
            return found
        values_of = dict(zip(rows.tolist(), hashes.tolist(), strict=True))
        each = enumerate(zip(block.op.tolist(), partition.tolist(), strict=True))
        return found + [at for at, (op, here) in each if self.row(op, here, values_of.get(at, ()))]

    def _blind(self, op: npt.NDArray[np.uint8], commit_ts: npt.NDArray[np.uint64]) -> list[int]:
        """Marks among rows whose deletes may be missing: one before the first insert of each commit ts."""
        self.forget()
        inserts = np.flatnonzero(op == INSERT)
        _, first = np.unique(commit_ts[inserts], return_index=True)
        return sorted({0, *inserts[first].tolist()})

    def _conflicts(self, partition: int, hashes: Sequence[int]) -> bool:
        return any(self._freed.get(value, partition) != partition for value in hashes)

    def _mark(self) -> None:
        self._freed.clear()
        self._unknown = False

    def _free(self, partition: int, hashes: Sequence[int]) -> None:
        for value in hashes:
            # A value that was freed on several partitions is in conflict with an insert on any of them.
            if value != NO_VALUE and self._freed.setdefault(value, partition) != partition:
                self._freed[value] = _SEVERAL
        # The bound. With everything forgotten, the next row gets a mark, which is always right.
        if len(self._freed) > self._keys_max:
            self.forget()

    def _is_quiet(self, op: npt.NDArray[np.uint8], partition: npt.NDArray[np.int32], hashes: Int64s) -> bool:
        """Whether none of these rows can need a mark, in whatever order they come.

        This holds if each value that is both freed (here or before) and taken here occurs on one partition
        only.
        """
        deletes = op == DELETE
        # `_free` may then forget everything on the way, and a mark depends on the order of the rows.
        if len(self._freed) + int(deletes.sum()) * hashes.shape[1] > self._keys_max:
            return False
        freed, taken = hashes[deletes].ravel(), hashes[~deletes].ravel()
        shared = set(taken.tolist()) & (self._freed.keys() | set(freed.tolist()))
        # A value with a NULL equals no other value.
        shared.discard(NO_VALUE)
        if not shared:
            return True
        values, where = hashes.ravel(), np.repeat(partition, hashes.shape[1])
        concerned = np.isin(values, np.fromiter(shared, np.int64, len(shared)))
        known = {value: self._freed[value] for value in shared if value in self._freed}
        return all(
            known.setdefault(value, at) == at
            for value, at in zip(values[concerned].tolist(), where[concerned].tolist(), strict=True)
        )


def key_hashes(block: RowBlock, keys: Sequence[UniqueKey]) -> Int64s:
    """int64[rows, keys]: the hash of each row's value of each key, or NO_VALUE.

    A delete's value comes from the old image, any other from the new. Twin: `unique_keys.value_hashes`.
    """
    found = np.empty((len(block), len(keys)), np.int64)
    deletes = block.op == DELETE
    for number, key in enumerate(keys):
        lengths = np.where(deletes[:, None], block.old.sizes[:, key.columns], block.new.sizes[:, key.columns])
        null = (lengths == NULL).any(axis=1)
        made, kept = _compared(block, key, deletes)
        names = tuple(block.table.columns[position].name for position in key.columns)
        hashes = partition_block(made, DispatchRule(partition="columns", columns=names), HASHES)
        del kept  # alive until here: cells point into it
        # A range of hashes for each key: equal values of two keys are no conflict.
        found[:, number] = np.where(null, NO_VALUE, hashes.astype(np.int64) + number * HASHES)
    return found


def _compared(block: RowBlock, key: UniqueKey, deletes: npt.NDArray[np.bool_]) -> tuple[RowBlock, list[Any]]:
    """The block with the key's texts and binaries in the form that is compared, and their buffers."""
    bytes_like = [
        (position, length)
        for position, length in zip(key.columns, key.lengths, strict=True)
        if is_bytes(block.table, position)
        and (length >= 0 or block.table.columns[position].kind is Kind.STRING)
    ]
    if not bytes_like:
        return block, []
    # Copies, because the block's own cells are encoded afterwards: messages carry the values as they are.
    new, old = (Image(image.words.copy(), image.sizes.copy()) for image in (block.new, block.old))
    kept: list[Any] = []
    for position, length in bytes_like:
        for image, rows in ((new, np.flatnonzero(~deletes)), (old, np.flatnonzero(deletes))):
            kept.append(_rewrite(block, image, rows, position, length))
    return replace(block, new=new, old=old), kept


def _rewrite(
    block: RowBlock, image: Image, rows: Int64s, position: int, length: int
) -> npt.NDArray[np.uint8]:
    """Replace the values of an image's column by the parts that count under the key; returns their buffer.

    The rewritten cells point into the buffer. Cells of values that count in full stay as they are.
    """
    rows = rows[image.sizes[rows, position] > 0]
    rows = rows[
        _differ(
            block.table.columns[position], image.words[rows, position], image.sizes[rows, position], length
        )
    ]
    cells = zip(image.words[rows, position].tolist(), image.sizes[rows, position].tolist(), strict=True)
    texts = [compared(ctypes.string_at(at, size), block.table, position, length) for at, size in cells]
    data = np.frombuffer(b"".join(texts) + bytes(PAD), np.uint8).copy()
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    image.words[rows, position] = address(data) + np.cumsum(sizes) - sizes
    image.sizes[rows, position] = sizes
    return data


def _differ(column: Column, at: Int64s, sizes: npt.NDArray[np.int32], length: int) -> npt.NDArray[np.bool_]:
    """Which values, all of them not empty, `compared` may change."""
    if not len(at) or (column.kind is Kind.STRING and not collation.is_bytewise(column.collate)):
        return np.ones(len(at), np.bool_)
    found = sizes > length if length >= 0 else np.zeros(len(at), np.bool_)
    if column.kind is Kind.STRING and collation.pads(column.collate):
        last, first = at + sizes - 1, int(at.min())
        # Read only the last byte of each value: the bytes between two values may not be mapped memory.
        memory = np.frombuffer(pa.foreign_buffer(first, int(last.max()) - first + 1), np.uint8)
        found = found | (memory[last - first] == ord(" "))
    return found


class Conflicts:
    """The trackers of one writer, by span and table. A table is in one span, which has one writer at a time.

    Another writer may have delivered the span in between. So the trackers of a span are valid only if the
    next range begins where the last range that this writer committed ended.
    """

    def __init__(self, keys_max: int = KEYS_MAX, total_max: int = TOTAL_MAX) -> None:
        self._keys_max, self._total_max = keys_max, total_max
        self._upto: dict[str, int] = {}
        """By span, the commit ts up to which its trackers have tracked rows that are durable."""
        self._known: dict[str, SpanConflicts] = {}
        """By span, the trackers as of that ts."""
        self._open: dict[str, SpanConflicts] = {}
        """By span, the trackers of a range that was begun and is not committed."""

    def begin(self, span: str, after: int, blind_upto: int = 0) -> SpanConflicts:
        """The trackers for a span's rows above `after`. They are lost unless `commit` follows.

        `blind_upto`: rows up to this commit ts may have been delivered before, so that not all of them are
        tracked.
        """
        # Taken out until `commit`: if the range fails, its rows are not durable, and what was tracked of them
        # must not be used.
        known = self._known.pop(span, None)
        is_next = self._upto.pop(span, None) == after
        trackers = known.trackers if known is not None and is_next else {}
        self._open.pop(span, None)
        self._make_room(trackers)
        self._open[span] = SpanConflicts(trackers, self._keys_max, self._total_max, blind_upto)
        return self._open[span]

    def commit(self, span: str, upto: int, conflicts: SpanConflicts) -> None:
        """Keep the trackers: all rows of the span up to `upto` are durable."""
        self._open.pop(span, None)
        if not len(conflicts):
            return
        self._make_room(conflicts.trackers)
        self._upto[span], self._known[span] = upto, conflicts

    def _make_room(self, trackers: dict[int, tuple[int, Tracker]]) -> None:
        """Forget all other spans if they and these trackers together exceed the limits."""
        held = [*self._known.values(), *self._open.values()]
        values = sum(one.values for one in held) + count_of(trackers)
        if sum(map(len, held)) + len(trackers) > TABLES_MAX or values > self._total_max:
            self._upto.clear()
            self._known.clear()
            for one in self._open.values():
                one.forget()


class SpanConflicts:
    """The trackers of one span's tables while a range of it is delivered."""

    def __init__(
        self,
        trackers: dict[int, tuple[int, Tracker]],
        keys_max: int = KEYS_MAX,
        total_max: int = TOTAL_MAX,
        blind_upto: int = 0,
    ) -> None:
        self.trackers, self._keys_max, self._total_max = trackers, keys_max, total_max
        self._blind_upto = blind_upto
        self.values = count_of(trackers)
        """The number of unique values in all trackers."""

    def __len__(self) -> int:
        return len(self.trackers)

    def forget(self) -> None:
        """Forget everything: the next row of each table needs a mark before it."""
        self.trackers.clear()
        self.values = 0

    def places(self, block: RowBlock, partition: npt.NDArray[np.int32]) -> list[int]:
        """Track the next rows of a table; returns the rows that a mark must precede, ascending.

        A table without tracked keys has a mark only before its first row: under another version or rule its
        rows may have gone to other partitions. A partitioned table has several writers, and no marks.
        """
        if block.table.partitions:
            return []
        tracker = self._tracker(block.table)
        before = len(tracker)
        found = tracker.places(block, partition, tracked_keys(block.table), self._blind_upto)
        self.values += len(tracker) - before
        while self.values > self._total_max:
            # The largest alone, because each tracker that forgets costs its table a mark.
            largest = max((one for _, one in self.trackers.values()), key=len)
            self.values -= len(largest)
            largest.forget()
        return found

    def _tracker(self, table: TableSchema) -> Tracker:
        """The tracker of the table's version; a new one if the version has changed."""
        version, tracker = self.trackers.get(table.id, (0, None))
        if tracker is not None and version == table.version:
            return tracker
        if tracker is not None:
            self.values -= len(tracker)
        elif len(self.trackers) >= TABLES_MAX:
            # Each table gets a mark before its next row, which is always right.
            self.forget()
        made = Tracker(self._keys_max)
        self.trackers[table.id] = table.version, made
        return made


def count_of(trackers: dict[int, tuple[int, Tracker]]) -> int:
    """The number of unique values in some trackers."""
    return sum(len(tracker) for _, tracker in trackers.values())
