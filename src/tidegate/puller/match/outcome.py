"""The results of a call: changes to be gathered into blocks, notes, and resolved ts that rose.

A matched change is not copied: a line of `out` points into a message or an arena. `blocks` copies all changes
at once, column by column, span by span. Until then neither messages nor arenas may be freed.
"""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.kernel import address
from tidegate.model.block import ENTRY_SCHEMA, MAX_BLOCK_BYTES, MAX_BLOCK_ROWS
from tidegate.puller.match import gather_kernels
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.addresses import longer
from tidegate.puller.match.matched import Happening, Note
from tidegate.puller.match.matcher import Violation
from tidegate.puller.match.recycler import Recycler
from tidegate.puller.match.registrations import Registrations

_TYPES: Final = [field.type for field in ENTRY_SCHEMA]


class MatchOutcome:
    """The output tables. `counts`: the kernels' counters. `slabs`: allocates the memory of blocks."""

    def __init__(self, registrations: Registrations, counts: k.I64, slabs: Recycler) -> None:
        self._registrations, self._counts, self._slabs = registrations, counts, slabs
        self.out = np.zeros((1024, k.OUT_WORDS), dtype=np.uint64)
        self.notes = np.zeros((256, k.NOTE_WORDS), dtype=np.uint64)
        self.moved = np.zeros(k.MOVED_ROOM, dtype=np.int64)

    @property
    def changes(self) -> int:
        """The number of changes completed since `clear`."""
        return int(self._counts[k.C_OUT])

    def clear(self) -> None:
        """Empty the tables at the beginning of a call."""
        counts = self._counts
        counts[k.C_OUT] = counts[k.C_NOTES] = counts[k.C_MOVED] = 0

    def make_room(self, events: int, rows: int) -> None:
        """Make room for the results of a portion. Waiting rows count, too, because INITIALIZED emits them."""
        counts, table = self._counts, self._registrations.table
        waiting = int(table[:, k.REG_WAITING].sum())
        self.out = longer(self.out, int(counts[k.C_OUT]) + rows + waiting)
        # An event makes at most one note of an error. A registration makes at most two more: INITIALIZED
        # and one violation.
        self.notes = longer(self.notes, int(counts[k.C_NOTES]) + events + 2 * len(table))

    def blocks(self) -> list[tuple[int, pa.RecordBatch]]:
        """The changes as blocks, each with its span's number.

        In a span they are in the order they were completed, those of a transaction that follow one another by
        class.
        """
        count = self.changes
        blocks: list[tuple[int, pa.RecordBatch]] = []
        if count == 0:
            return blocks
        out = self.out
        # A stable sort, because the changes of a span must keep their order.
        if not gather_kernels.one_span(address(out), count):
            out = out[np.argsort(out[:count, k.O_SPAN], kind="stable")]
        numbers = np.empty(count, dtype=np.int64)
        first, at, order, sizes = 0, address(out), address(numbers), np.zeros(3, dtype=np.int64)
        gather_kernels.by_class(at, count, order)
        while first < count:
            most = MAX_BLOCK_ROWS, MAX_BLOCK_BYTES
            end = gather_kernels.measure(at, order, first, count, *most, address(sizes))
            span = int(out[numbers[first], k.O_SPAN])
            blocks.append((span, self._gather(at, order, first, end, sizes.tolist())))
            first = end
        return blocks

    def _gather(self, out: int, order: int, first: int, end: int, sizes: list[int]) -> pa.RecordBatch:
        rows = end - first
        widths = [8 * rows, 8 * rows, rows]
        for size in sizes:
            widths += [4 * (rows + 1), size]
        buffers = self._slabs.buffers(widths)
        columns = np.array([b.address for b in buffers], dtype=np.int64)
        gather_kernels.gather(out, order, first, end, address(columns))
        arrays = [pa.Array.from_buffers(_TYPES[i], rows, [None, buffers[i]]) for i in range(3)]
        for i in range(3, 6):
            arrays.append(pa.Array.from_buffers(_TYPES[i], rows, [None, *buffers[2 * i - 3 : 2 * i - 1]]))
        return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)

    def read_notes(self) -> list[Note]:
        """The notes in the order of arrival. Notes of errors copy the message's bytes."""
        notes = []
        for kind, number, a, b in self.notes[: self._counts[k.C_NOTES]].tolist():
            owner = self._registrations.owner(number)
            assert owner is not None, "a number is freed only between two calls"
            if kind == k.NOTE_INITIALIZED:
                notes.append(Note(Happening.INITIALIZED, owner))
            elif kind == k.NOTE_ERROR:
                # A copy, because the address is valid only while the caller holds the messages.
                notes.append(Note(Happening.FAILED, owner, event=ctypes.string_at(a, b)))
            else:
                notes.append(Note(Happening.VIOLATED, owner, violation=Violation(a), commit_ts=b))
        return notes

    def read_moved(self) -> tuple[k.I64, k.U64]:
        """Marks and ts of registrations whose resolved ts rose; if the list overflowed, of all live ones."""
        count = int(self._counts[k.C_MOVED])
        table = self._registrations.table
        # The list has wrapped around. A mark that did not rise repeats its ts, which does no harm.
        if count > k.MOVED_ROOM:
            numbers = np.flatnonzero(table[:, k.REG_STATE] == k.LIVE)
        else:
            numbers = self.moved[:count]
        lines = table[numbers]
        return lines[:, k.REG_MARK].astype(np.int64), lines[:, k.REG_RESOLVED]
