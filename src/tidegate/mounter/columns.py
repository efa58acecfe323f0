"""A `RowBlock`'s image as typed Arrow columns: slots in, the Delta types of the target out.

Types are those of `target_type` (the same as the consumer's): unsigned bigint decimal(20,0), decimal up to 38
digits decimal128 and text above, time, enum, set and JSON canonical text, timestamps in UTC. Rows that lack
the image (an insert's old one) are null in every column. What the target's types cannot hold becomes null
and is counted in `Losses`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import Undecodable
from tidegate.kernel import address, buffer
from tidegate.model.schema import Column, Kind
from tidegate.model.slots import DELETE, INSERT, NULL, RowBlock
from tidegate.tidb import column_kernels
from tidegate.tidb.column_kernels import WIDTH, Text
from tidegate.tidb.json_kernels import JSON_GROWTH, STACK_WORDS
from tidegate.tidb.types import enum
from tidegate.tidb.value import fsp

Bools = npt.NDArray[np.bool_]

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


@dataclass(slots=True)
class Losses:
    """Values that the target's types cannot hold."""

    bad_dates: int = 0
    """Zero dates and days of no calendar: null."""
    bad_decimals: int = 0
    """Decimals with more digits than their column declares: null."""
    bad_texts: int = 0
    """Text that is not UTF-8: kept, with U+FFFD for the bad bytes."""
    bad_members: int = 0
    """Enum or set numbers without such an element: null."""


def target_type(column: Column) -> pa.DataType:
    """The Delta type of a column."""
    match column.kind:
        case Kind.INT:
            return _SIGNED[column.mysql_type]
        case Kind.UINT:
            return _UNSIGNED[column.mysql_type]
        case Kind.DECIMAL:
            known = 0 < column.flen <= _DECIMAL_DIGITS
            return pa.decimal128(column.flen, max(column.decimal, 0)) if known else pa.string()
        case Kind.BIT:
            return pa.decimal128(20, 0) if column.flen >= 64 else pa.int64()
        case kind:
            return _FIXED[kind]


def to_arrow(
    block: RowBlock, image: Literal["new", "old"] = "new", losses: Losses | None = None
) -> pa.RecordBatch:
    """One image of a block as a record batch of `len(block)` rows, a column per table column.

    Values are copied: the batch outlives the block. `losses` is added to.
    """
    counted = Losses() if losses is None else losses
    slots, lacking = (block.new, DELETE) if image == "new" else (block.old, INSERT)
    absent = block.op == lacking
    arrays = []
    for at, column in enumerate(block.table.columns):
        sizes = np.ascontiguousarray(slots.l[:, at])
        if absent.any():
            sizes[absent] = NULL
        cells = _Cells(column, np.ascontiguousarray(slots.a[:, at]), sizes, counted)
        arrays.append(_CONVERTERS[column.kind](cells))
    names = [column.name for column in block.table.columns]
    return pa.record_batch(arrays, names=names)


@dataclass(frozen=True, slots=True)
class _Cells:
    """One column's slots: `a` int64[n], `sizes` int32[n] with NULL where there is no value."""

    column: Column
    a: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    losses: Losses

    def __len__(self) -> int:
        return len(self.a)

    @property
    def nulls(self) -> Bools:
        return np.equal(self.sizes, NULL)

    @property
    def words(self) -> tuple[int, int, int]:
        """Arguments of a column kernel: rows, address of a, address of l."""
        return len(self.a), address(self.a), address(self.sizes)


def _array(of_type: pa.DataType, valid: npt.NDArray[np.uint8] | Bools, *buffers: Any) -> pa.Array:
    """An Arrow array over numpy buffers."""
    bits = pa.py_buffer(np.packbits(valid.astype(bool), bitorder="little"))
    held = [pa.py_buffer(data) for data in buffers]
    return pa.Array.from_buffers(of_type, len(valid), [bits, *held])


def _integers(cells: _Cells) -> pa.Array:
    of_type = target_type(cells.column)
    if pa.types.is_decimal(of_type):
        wide = np.zeros((len(cells), 2), dtype=np.int64)
        wide[:, 0] = cells.a
        return _array(of_type, ~cells.nulls, wide)
    return _array(of_type, ~cells.nulls, cells.a.astype(of_type.to_pandas_dtype()))


def _floats(cells: _Cells) -> pa.Array:
    numbers = cells.a.view(np.float64)
    if cells.column.kind is Kind.DOUBLE:
        return _array(pa.float64(), ~cells.nulls, numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.where(cells.nulls, 0, numbers).astype(np.float32)
    return _array(pa.float32(), ~cells.nulls, narrow)


def _decimals(cells: _Cells) -> pa.Array:
    of_type = target_type(cells.column)
    if pa.types.is_string(of_type):
        return _texts(cells)
    numbers, valid = buffer(16 * len(cells)), np.empty(len(cells), dtype=np.uint8)
    cells.losses.bad_decimals += column_kernels.decimals(
        *cells.words, of_type.scale, address(numbers), address(valid)
    )
    return _array(of_type, valid, numbers)


def _moments(cells: _Cells) -> pa.Array:
    of_type = _FIXED[cells.column.kind]
    days = cells.column.kind is Kind.DATE
    moments = np.empty(len(cells), dtype=np.int32 if days else np.int64)
    valid = np.empty(len(cells), dtype=np.uint8)
    cells.losses.bad_dates += column_kernels.moments(*cells.words, days, address(moments), address(valid))
    return _array(of_type, valid, moments)


_TEXTS: Final = {
    Kind.DECIMAL: Text.DECIMAL,
    Kind.TIME: Text.DURATION,
    Kind.JSON: Text.JSON,
    Kind.STRING: Text.BYTES,
    Kind.BYTES: Text.BYTES,
}


def _texts(cells: _Cells) -> pa.Array:
    what = _TEXTS[cells.column.kind]
    room = WIDTH[what] * len(cells)
    if room == 0:
        room = int(cells.sizes[~cells.nulls].sum(dtype=np.int64)) * (JSON_GROWTH if what is Text.JSON else 1)
    if room > np.iinfo(np.int32).max:
        raise Undecodable(
            "a column's text is too long for one batch", where=cells.column.name, why=f"{room} B"
        )
    out, ends = buffer(room), np.empty(len(cells) + 1, dtype=np.int32)
    valid, stack = np.empty(len(cells), dtype=np.uint8), np.empty(STACK_WORDS, dtype=np.int64)
    n, a, sizes = cells.words
    used = column_kernels.texts(
        int(what),
        fsp(cells.column),
        n,
        a,
        sizes,
        1,
        address(out),
        address(ends),
        address(valid),
        address(stack),
        0,
    )
    data = out[:used].copy() if used < room else out
    array = _array(pa.binary(), valid, ends, data)
    return array if cells.column.kind is Kind.BYTES else _utf8(array, cells.losses)


def _utf8(array: pa.Array, losses: Losses) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        pass  # some text is not UTF-8: rare enough for Python
    out = []
    for raw in array.to_pylist():
        text = None if raw is None else raw.decode(errors="replace")
        losses.bad_texts += text is not None and text.encode() != raw
        out.append(text)
    return pa.array(out, pa.string())


def _names(cells: _Cells) -> pa.Array:
    """Enum and set: each distinct number once."""
    elems = cells.column.elems
    name_of: Callable[[int, tuple[str, ...]], str] = (
        enum.enum_name if cells.column.kind is Kind.ENUM else enum.set_names
    )
    filled = ~cells.nulls
    numbers, at = np.unique(cells.a[filled].view(np.uint64), return_inverse=True)
    names: list[str | None] = []
    for number, times in zip(numbers, np.bincount(at, minlength=len(numbers)), strict=True):
        try:
            names.append(name_of(int(number), elems))
        except Undecodable:
            names.append(None)
            cells.losses.bad_members += int(times)
    indices = np.full(len(cells), len(names), dtype=np.int32)
    indices[filled] = at
    return pa.array([*names, None], pa.string()).take(pa.array(indices))


def _vectors(cells: _Cells) -> pa.Array:
    size = int(cells.sizes[~cells.nulls].sum(dtype=np.int64))
    out, ends = buffer(size), np.empty(len(cells) + 1, dtype=np.int32)
    valid = np.empty(len(cells), dtype=np.uint8)
    total = column_kernels.vectors(*cells.words, address(out), address(ends), address(valid))
    elements = pa.array(out[: 4 * total].view(np.float32))
    bits = pa.py_buffer(np.packbits(valid.astype(bool), bitorder="little"))
    return pa.ListArray.from_buffers(
        pa.list_(pa.float32()), len(cells), [bits, pa.py_buffer(ends)], children=[elements]
    )


_CONVERTERS: Final[dict[Kind, Callable[[_Cells], pa.Array]]] = {
    Kind.INT: _integers,
    Kind.UINT: _integers,
    Kind.YEAR: _integers,
    Kind.BIT: _integers,
    Kind.FLOAT: _floats,
    Kind.DOUBLE: _floats,
    Kind.DECIMAL: _decimals,
    Kind.DATE: _moments,
    Kind.DATETIME: _moments,
    Kind.TIMESTAMP: _moments,
    Kind.TIME: _texts,
    Kind.STRING: _texts,
    Kind.BYTES: _texts,
    Kind.JSON: _texts,
    Kind.ENUM: _names,
    Kind.SET: _names,
    Kind.VECTOR: _vectors,
}
