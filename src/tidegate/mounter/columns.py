"""Converts an image of a `RowBlock` to typed Arrow columns, with the Delta types of the target.

The types are those of `target_type`, which are also the consumer's. Unsigned bigint becomes decimal(20,0). A
decimal of up to 38 digits becomes decimal128, a longer one text. Time, enum, set and JSON become canonical
text. Timestamps are in UTC. A row without the image (the old image of an insert) is null in every column. A
value that the target's type cannot hold becomes null and is counted in `Losses`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import Undecodable
from tidegate.kernel import address
from tidegate.model.cells import DELETE, INSERT, RowBlock
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.mounter.batch_layout import Layout
from tidegate.tidb.kernels import arrow as arrow_kernels
from tidegate.tidb.kernels.arrow_lines import Fill, Word
from tidegate.tidb.kernels.json import STACK_WORDS
from tidegate.tidb.kernels.text import CellWords
from tidegate.tidb.kernels.zone import month_lines

Int64s = npt.NDArray[np.int64]

_TINY, _SHORT, _LONG, _LONGLONG, _INT24 = 1, 2, 3, 8, 9
_SIGNED: Final = {
    _TINY: pa.int8(),
    _SHORT: pa.int16(),
    _INT24: pa.int32(),
    _LONG: pa.int32(),
    _LONGLONG: pa.int64(),
}
_UNSIGNED: Final = {
    _TINY: pa.int16(),
    _SHORT: pa.int32(),
    _INT24: pa.int32(),
    _LONG: pa.int64(),
    _LONGLONG: pa.decimal128(20, 0),
}
_FIXED: Final = {
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.YEAR: pa.int32(),
    Kind.DATE: pa.date32(),
    Kind.DATETIME: pa.timestamp("us"),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.TIME: pa.string(),
    Kind.ENUM: pa.string(),
    Kind.SET: pa.string(),
    Kind.JSON: pa.string(),
    Kind.STRING: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.VECTOR: pa.list_(pa.float32()),
}
_DECIMAL_DIGITS: Final = 38

_FILLS: Final = {
    Kind.FLOAT: Fill.SINGLE,
    Kind.DOUBLE: Fill.WORD8,
    Kind.YEAR: Fill.WORD4,
    Kind.DATE: Fill.DAYS,
    Kind.DATETIME: Fill.MICROS,
    Kind.TIMESTAMP: Fill.MICROS,
    Kind.TIME: Fill.DURATION,
    Kind.ENUM: Fill.ENUM,
    Kind.SET: Fill.SET,
    Kind.JSON: Fill.JSON,
    Kind.STRING: Fill.BYTES,
    Kind.BYTES: Fill.BYTES,
    Kind.VECTOR: Fill.VECTOR,
}
_WORDS: Final = {1: Fill.WORD1, 2: Fill.WORD2, 4: Fill.WORD4, 8: Fill.WORD8}
_LOSSES: Final = {
    Fill.DAYS: "bad_dates",
    Fill.MICROS: "bad_dates",
    Fill.DECIMAL: "bad_decimals",
    Fill.ENUM: "bad_members",
    Fill.SET: "bad_members",
}


@dataclass(slots=True)
class Losses:
    """Values that the target's types cannot hold."""

    bad_dates: int = 0
    """Zero dates and dates that do not exist: they become null."""
    bad_decimals: int = 0
    """Decimals with more digits than their column declares: they become null."""
    bad_texts: int = 0
    """Text that is not UTF-8: it is kept, with U+FFFD in place of the bad bytes."""
    bad_members: int = 0
    """Enum or set values without such an element: they become null."""


def target_type(column: Column) -> pa.DataType:
    """The Delta type of a column."""
    match column.kind:
        case Kind.INT:
            return _SIGNED[column.mysql_type]
        case Kind.UINT:
            return _UNSIGNED[column.mysql_type]
        case Kind.DECIMAL:
            known = 0 < column.flen <= _DECIMAL_DIGITS
            # More digits than 38 do not fit Arrow's decimal128. As a text no digit is lost, and it still can
            # be compared.
            return pa.decimal128(column.flen, max(column.decimal, 0)) if known else pa.string()
        case Kind.BIT:
            # Delta has no unsigned types. A BIT(64) needs 20 digits; a shorter one fits into a signed word.
            return pa.decimal128(20, 0) if column.flen >= 64 else pa.int64()
        case kind:
            return _FIXED[kind]


def fill_of(column: Column) -> Fill:
    """The conversion of a column's cells to values of its `target_type`."""
    of_type = target_type(column)
    if column.kind is Kind.DECIMAL:
        return Fill.DECIMAL if pa.types.is_decimal(of_type) else Fill.DECIMAL_TEXT
    if column.kind in _FILLS:
        return _FILLS[column.kind]
    return Fill.WIDE if pa.types.is_decimal(of_type) else _WORDS[of_type.bit_width // 8]


_layouts: WeakKeyDictionary[TableSchema, Layout] = WeakKeyDictionary()


def _layout_of(table: TableSchema) -> Layout:
    """The layout of a table version's batches. It is made once and cached."""
    if table not in _layouts:
        schema = pa.schema([(column.name, target_type(column)) for column in table.columns])
        _layouts[table] = Layout(schema, table.columns, [fill_of(column) for column in table.columns])
    return _layouts[table]


def to_arrow(
    block: RowBlock, image: Literal["new", "old"] = "new", losses: Losses | None = None
) -> pa.RecordBatch:
    """One image of a block as a record batch of `len(block)` rows, with a column for each table column.

    Values are copied, so the batch stays valid without the block. Adds to `losses`. Raises Undecodable if a
    column's text has more bytes than one batch can hold (2 GiB).
    """
    counted = Losses() if losses is None else losses
    cells, lacking = (block.new, DELETE) if image == "new" else (block.old, INSERT)
    layout = _layout_of(block.table)
    # The kernels count in these lines, and the layout serves all batches of the table version.
    lines = layout.lines.copy()
    ops, stack, months = np.ascontiguousarray(block.op), np.empty(STACK_WORDS, np.int64), month_lines()
    n, first_words, sizes = len(block), np.ascontiguousarray(cells.words), np.ascontiguousarray(cells.sizes)
    head = (n, address(lines), len(lines))
    tail = (address(sizes), first_words.shape[1], address(ops), lacking)
    # All columns are measured before one is written, because they share one allocation.
    message = layout.message(n, arrow_kernels.measure(*head, *tail))
    safe = _readable(block, image)
    words = CellWords(address(first_words), address(sizes), first_words.shape[1])
    memory = arrow_kernels.Memory(message.body, address(stack), address(months), *safe)
    arrow_kernels.fill(*head, arrow_kernels.Source(words, address(ops), lacking), memory)
    arrow_kernels.seal(*head, message.nodes, message.buffers)
    longest = int(lines[:, Word.USED].max(initial=0))
    if longest > np.iinfo(np.int32).max:
        column = block.table.columns[int(lines[:, Word.USED].argmax())].name
        raise Undecodable("a column's text is too long for one batch", where=column, why=f"{longest} B")
    batch = pa.ipc.read_record_batch(message.buffer, layout.schema)
    for at in np.flatnonzero(lines[:, Word.LOST]).tolist():
        name = _LOSSES[Fill(lines[at, Word.FILL])]
        setattr(counted, name, getattr(counted, name) + int(lines[at, Word.LOST]))
    for at in np.flatnonzero(lines[:, Word.HIGH]).tolist():
        array = batch.column(at)
        # Only columns with bytes above ASCII are looked at, since ASCII is always UTF-8.
        if pa.types.is_string(array.type) and not _is_utf8(array):
            batch = batch.set_column(at, batch.schema.field(at), _with_replacements(array, counted))
    return batch


def _readable(block: RowBlock, image: Literal["new", "old"]) -> tuple[int, int]:
    """The first and the last address at which a read of 64 bytes stays inside the image's values. (1, 0):
    none.
    """
    entries = block.owners[0] if block.owners else None
    if not isinstance(entries, pa.RecordBatch):
        return 1, 0
    data = entries.column("value" if image == "new" else "old_value").buffers()[2]
    # The kernel reads 64 bytes at a time. Outside these addresses it must copy byte by byte, because the page
    # after the buffer may not be mapped.
    return (1, 0) if data is None or data.size < 64 else (data.address, data.address + data.size - 64)


def _is_utf8(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _with_replacements(array: pa.Array, losses: Losses) -> pa.Array:
    """The texts with U+FFFD in place of bytes that are not UTF-8."""
    out = []
    for raw in array.cast(pa.binary()).to_pylist():
        text = None if raw is None else raw.decode(errors="replace")
        losses.bad_texts += text is not None and text.encode() != raw
        out.append(text)
    return pa.array(out, pa.string())
