"""Where the buffers of a table's record batches lie: an Arrow IPC message, filled in place.

A batch is read back from its message by `pa.ipc.read_record_batch`, which makes the arrays of all columns in
one call; made one by one they cost more than their values do. The message's head is that of a batch of one
row, written by pyarrow once a table version; of it only numbers change: the rows, each array's length and
NULLs, each buffer's place and extent (Arrow columnar format, "Encapsulated message format"; Message.fbs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.kernel import address
from tidegate.model.schema import Column
from tidegate.tidb.arrow_kernels import LINE_WORDS, TILE, Fill, Word
from tidegate.tidb.json_kernels import JSON_GROWTH
from tidegate.tidb.kernels import DECIMAL_TEXT, DURATION_TEXT, SLACK
from tidegate.tidb.value import fsp

Int64s = npt.NDArray[np.int64]

_WIDTHS: Final = {
    Fill.WORD1: 1,
    Fill.WORD2: 2,
    Fill.WORD4: 4,
    Fill.WORD8: 8,
    Fill.WIDE: 16,
    Fill.SINGLE: 4,
    Fill.DECIMAL: 16,
    Fill.DAYS: 4,
    Fill.MICROS: 8,
}
_ALIGNMENT: Final = 64
_SPARE: Final = max(SLACK, 64)
"""Bytes that `fill` may write after the end of a text."""
_VALIDITY, _VALUES, _TEXTS, _NOTHING = range(4)


class Layout:
    """The layout of one table version's batches."""

    def __init__(self, schema: pa.Schema, columns: Sequence[Column], fills: Sequence[Fill]) -> None:
        self.schema = schema
        self.lines = np.zeros((len(columns), LINE_WORDS), dtype=np.int64)
        """int64[columns, LINE_WORDS], for `arrow_kernels`; to be copied for each batch."""
        self._held: list[npt.NDArray[np.generic]] = []
        for at, (column, fill) in enumerate(zip(columns, fills, strict=True)):
            line = self.lines[at]
            line[Word.FILL], line[Word.CELL] = fill, at
            if fill in (Fill.ENUM, Fill.SET):
                line[Word.ARGUMENT], line[Word.ELEMENTS] = self._elements(column.elems), len(column.elems)
            elif fill is Fill.DECIMAL:
                line[Word.ARGUMENT] = schema.field(at).type.scale
            elif fill is Fill.DURATION:
                line[Word.ARGUMENT] = fsp(column)
        self._head = _Head.of(schema)
        self._growth = np.array([JSON_GROWTH if fill is Fill.JSON else 1 for fill in fills], dtype=np.int64)
        self._longest = np.array(list(map(_longest, columns, fills)), dtype=np.int64)
        self._widths = np.array([_WIDTHS.get(fill, 0) for fill in fills], dtype=np.int64)
        nodes: list[tuple[int, bool]] = []
        buffers: list[tuple[int, int]] = []
        for at, fill in enumerate(fills):
            nodes.append((at, False))
            buffers += [(at, _VALIDITY), (at, _VALUES)]
            if fill is Fill.VECTOR:
                nodes.append((at, True))
                buffers += [(at, _NOTHING), (at, _TEXTS)]
            elif fill >= Fill.BYTES:
                buffers.append((at, _TEXTS))
        self.nodes = np.array(nodes, dtype=np.int64).reshape(-1, 2)
        """int64[arrays, 2] in the message's order: the column, and whether these are a vector's elements."""
        self.buffers = np.array(buffers, dtype=np.int64).reshape(-1, 2)
        """int64[buffers, 2] in the message's order: the column, and which of its buffers."""

    def _elements(self, names: Sequence[str]) -> int:
        """The address of the elements' addresses and lengths."""
        texts = [name.encode() for name in names]
        data = np.frombuffer(b"".join(texts) + b"\0", dtype=np.uint8)
        sizes = np.array([len(text) for text in texts], dtype=np.int64)
        pairs = np.stack([address(data) + np.cumsum(sizes) - sizes, sizes], axis=1)
        self._held += [data, pairs]
        return address(pairs)

    def draft(self, rows: int, lines: Int64s) -> Draft:
        """Room for a batch whose texts `measure` has measured; writes the addresses into `lines`."""
        text = self.lines[:, Word.FILL] >= Fill.BYTES
        sizes = np.zeros((len(lines), 4), dtype=np.int64)
        sizes[:, _VALIDITY] = (rows + TILE - 1) // TILE * (TILE // 8)
        sizes[:, _VALUES] = np.where(text, 4 * (rows + 1), self._widths * rows)
        longest = lines[:, Word.NEEDED] * self._growth + rows * self._longest
        sizes[:, _TEXTS] = np.where(text, longest + _SPARE, 0)
        room = (sizes.ravel() + _ALIGNMENT - 1) & -_ALIGNMENT
        ends = np.cumsum(room)
        places = (ends - room).reshape(sizes.shape)
        body = int(ends[-1]) if len(ends) else 0
        head = self._head.template
        lead = -len(head) % _ALIGNMENT
        whole = pa.allocate_buffer(lead + len(head) + body)
        raw = np.frombuffer(whole, dtype=np.uint8)[lead:]
        raw[: len(head)] = head
        lines[:, Word.VALID : Word.TEXT + 1] = places[:, :_NOTHING] + (address(raw) + len(head))
        return Draft(self, self._head, rows, raw, whole.slice(lead), places, sizes)


def _longest(column: Column, fill: Fill) -> int:
    """The longest text of a value whose length does not follow from its slot's."""
    match fill:
        case Fill.DECIMAL_TEXT:
            return DECIMAL_TEXT
        case Fill.DURATION:
            return DURATION_TEXT
        case Fill.ENUM:
            return max((len(name.encode()) for name in column.elems), default=0)
        case Fill.SET:
            return sum(len(name.encode()) + 1 for name in column.elems)
        case _:
            return 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A message that is being filled."""

    layout: Layout
    head: _Head
    rows: int
    raw: npt.NDArray[np.uint8]
    message: pa.Buffer
    """The same bytes as `raw`."""
    places: Int64s
    """int64[columns, 4]: where in the body each buffer begins."""
    sizes: Int64s
    """int64[columns, 4]: how long each is, text at its longest."""

    def finish(self, lines: Int64s) -> pa.RecordBatch:
        """The batch, after `fill` has run."""
        raw, sizes, layout = self.raw, self.sizes, self.layout
        sizes[:, _TEXTS] = lines[:, Word.USED]
        column, elements = layout.nodes.T
        nodes = self.head.nodes(raw, len(column))
        nodes[:, 0] = np.where(elements, lines[column, Word.USED] // 4, self.rows)
        nodes[:, 1] = np.where(elements, 0, lines[column, Word.NULLS])
        column, which = layout.buffers.T
        buffers = self.head.buffers(raw, len(column))
        buffers[:, 0] = self.places[column, which]
        buffers[:, 1] = sizes[column, which]
        self.head.number(raw, self.head.rows_at)[0] = self.rows
        self.head.number(raw, self.head.body_at)[0] = len(raw) - len(self.head.template)
        return pa.ipc.read_record_batch(self.message, layout.schema)


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a message of a schema, and where in it the numbers stand."""

    template: npt.NDArray[np.uint8]
    rows_at: int
    body_at: int
    nodes_at: int
    buffers_at: int

    @classmethod
    def of(cls, schema: pa.Schema) -> _Head:
        """Of a batch of one row of NULLs, as pyarrow writes it."""
        message = pa.record_batch([pa.nulls(1, field.type) for field in schema], schema=schema).serialize()
        raw = np.frombuffer(message, dtype=np.uint8)
        size = 8 + _Flat(raw).u32(4)
        flat = _Flat(raw[:size])
        root = flat.follow(8)
        batch = flat.follow(flat.field(root, 2))
        nodes, buffers = flat.follow(flat.field(batch, 1)), flat.follow(flat.field(batch, 2))
        return cls(raw[:size].copy(), flat.field(batch, 0), flat.field(root, 3), nodes + 4, buffers + 4)

    def nodes(self, raw: npt.NDArray[np.uint8], count: int) -> Int64s:
        """The FieldNodes: length and NULLs of each array."""
        return raw[self.nodes_at :][: 16 * count].view(np.int64).reshape(-1, 2)

    def buffers(self, raw: npt.NDArray[np.uint8], count: int) -> Int64s:
        """The Buffers: offset and length of each."""
        return raw[self.buffers_at :][: 16 * count].view(np.int64).reshape(-1, 2)

    def number(self, raw: npt.NDArray[np.uint8], at: int) -> Int64s:
        """One int64."""
        return raw[at:][:8].view(np.int64)


class _Flat:
    """Just as much of FlatBuffers as finds a table's fields."""

    def __init__(self, raw: npt.NDArray[np.uint8]) -> None:
        self._raw = raw.tobytes()

    def u32(self, at: int) -> int:
        """An unsigned number of four bytes."""
        return int.from_bytes(self._raw[at : at + 4], "little")

    def follow(self, at: int) -> int:
        """Where the offset at `at` points to."""
        return at + self.u32(at)

    def field(self, table: int, number: int) -> int:
        """Where a table's field is, which must be there."""
        vtable = table - int.from_bytes(self._raw[table : table + 4], "little", signed=True)
        at = vtable + 4 + 2 * number
        return table + int.from_bytes(self._raw[at : at + 2], "little")
