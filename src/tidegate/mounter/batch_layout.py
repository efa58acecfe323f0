"""The layout of a table's record batches in memory: an Arrow IPC message that kernels fill in place.

`pa.ipc.read_record_batch` reads a batch from its message and makes the arrays of all columns in one call. To
make them one by one would cost more than their values. The head of the message is that of a batch of one row,
which pyarrow writes once for each table version. Only numbers in it change: the row count, the length and
NULLs of each array, the offset and size of each buffer (Arrow columnar format, "Encapsulated message format";
Message.fbs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack_into
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.kernel import address
from tidegate.model.schema import Column
from tidegate.tidb.kernels.arrow_lines import LINE_WORDS, Fill, Word
from tidegate.tidb.kernels.json import JSON_GROWTH
from tidegate.tidb.kernels.text import DECIMAL_TEXT, DURATION_TEXT
from tidegate.tidb.value import fsp

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
_GROWTH: Final = {Fill.BYTES: 1, Fill.VECTOR: 1, Fill.JSON: JSON_GROWTH}
ALIGNMENT: Final = 64


class Layout:
    """The layout of one table version's batches."""

    def __init__(self, schema: pa.Schema, columns: Sequence[Column], fills: Sequence[Fill]) -> None:
        self.schema = schema
        self.lines = np.zeros((len(columns), LINE_WORDS), dtype=np.int64)
        """int64[columns, LINE_WORDS], for `tidb.kernels.arrow`. Each batch needs a copy."""
        self._held: list[npt.NDArray[np.generic]] = []
        for at, (column, fill) in enumerate(zip(columns, fills, strict=True)):
            line = self.lines[at]
            line[Word.FILL], line[Word.CELL] = fill, at
            line[Word.WIDTH] = _WIDTHS.get(fill, 0)
            line[Word.GROWTH], line[Word.LONGEST] = _GROWTH.get(fill, 0), _longest(column, fill)
            if fill in (Fill.ENUM, Fill.SET):
                line[Word.ARGUMENT], line[Word.ELEMENTS] = self._elements(column.elems), len(column.elems)
            elif fill is Fill.DECIMAL:
                line[Word.ARGUMENT] = schema.field(at).type.scale
            elif fill is Fill.DURATION:
                line[Word.ARGUMENT] = fsp(column)
        self._head = _Head.of(schema)

    def _elements(self, names: Sequence[str]) -> int:
        """The address of the elements' addresses and lengths."""
        texts = [name.encode() for name in names]
        data = np.frombuffer(b"".join(texts) + b"\0", dtype=np.uint8)
        sizes = np.array([len(text) for text in texts], dtype=np.int64)
        pairs = np.stack([address(data) + np.cumsum(sizes) - sizes, sizes], axis=1)
        self._held += [data, pairs]
        return address(pairs)

    def message(self, rows: int, body: int) -> Message:
        """A message for a batch of `rows` rows, with an empty body of `body` bytes."""
        head = self._head
        # The body follows the head at once, and its buffers must be aligned.
        lead = -len(head.template) % ALIGNMENT
        whole = pa.allocate_buffer(lead + len(head.template) + body)
        start = int(whole.address) + lead
        raw = memoryview(whole).cast("B")
        raw[lead : lead + len(head.template)] = head.template
        pack_into("<q", raw, lead + head.rows_at, rows)
        pack_into("<q", raw, lead + head.body_at, body)
        return Message(
            whole.slice(lead), start + len(head.template), start + head.nodes_at, start + head.buffers_at
        )


class Message(NamedTuple):
    """A message to fill, and the addresses of its parts."""

    buffer: pa.Buffer
    body: int
    nodes: int
    buffers: int


def _longest(column: Column, fill: Fill) -> int:
    """The longest text of a value, if its length does not follow from the length of its cell. Otherwise 0."""
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
class _Head:
    """The head of a message of a schema, and the offsets of the numbers in it."""

    template: bytes
    rows_at: int
    body_at: int
    nodes_at: int
    buffers_at: int

    @classmethod
    def of(cls, schema: pa.Schema) -> _Head:
        """The head of a batch with one row of NULLs, as pyarrow writes it."""
        message = pa.record_batch([pa.nulls(1, field.type) for field in schema], schema=schema).serialize()
        flat = _Flat(message.to_pybytes())
        # Arrow's IPC format: a message begins with 0xFFFFFFFF and the size of its head.
        size = 8 + flat.u32(4)
        root = flat.follow(8)
        batch = flat.follow(flat.field(root, 2))
        nodes, buffers = flat.follow(flat.field(batch, 1)), flat.follow(flat.field(batch, 2))
        head = message.to_pybytes()[:size]
        # The elements of a FlatBuffers vector follow its length, which has four bytes.
        return cls(head, flat.field(batch, 0), flat.field(root, 3), nodes + 4, buffers + 4)


class _Flat:
    """A reader for the part of FlatBuffers that is needed to find a table's fields."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def u32(self, at: int) -> int:
        """An unsigned number of four bytes."""
        return int.from_bytes(self._raw[at : at + 4], "little")

    def follow(self, at: int) -> int:
        """The position to which the offset at `at` points."""
        return at + self.u32(at)

    def field(self, table: int, number: int) -> int:
        """The position of a table's field, which must exist."""
        # A table begins with the distance back to its vtable, which has the offsets of its fields from the
        # third u16 on.
        vtable = table - int.from_bytes(self._raw[table : table + 4], "little", signed=True)
        at = vtable + 4 + 2 * number
        return table + int.from_bytes(self._raw[at : at + 2], "little")
