"""Partition numbers of whole blocks, compiled; the plain twin is `dispatcher.partitions`.

Dispatch by table gives one number for the block, by ts one vector operation. By values, CRC-32 runs over the
canonical text of each hashed column of each row. It continues from the register after the column's name,
which is computed once.
"""

from __future__ import annotations

import ctypes
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.partitions import hashed_columns, table_hash
from tidegate.kernel import (
    PAD,
    address,
    buffer,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    same_bytes,
    store_u8,
    store_u32,
)
from tidegate.kernel_layout import Layout, signed
from tidegate.model.cells import DELETE, NULL, UPDATE, Image, RowBlock
from tidegate.model.schema import Kind, TableSchema
from tidegate.tidb.kernels.crc import FULL, crc_bytes
from tidegate.tidb.kernels.float import FIXED_TEXT, put_double_fixed, put_float_fixed
from tidegate.tidb.kernels.json import JSON_GROWTH, STACK_WORDS, put_json
from tidegate.tidb.kernels.text import (
    I64,
    SLACK,
    U64,
    put_date,
    put_datetime,
    put_decimal,
    put_duration,
    put_i64,
    put_u64,
)
from tidegate.tidb.local_time import localised
from tidegate.tidb.types import vector

_RAW, _INT, _UINT, _DECIMAL, _DATETIME, _DATE, _TIME, _FLOAT, _DOUBLE, _JSON = range(10)
_FORMS: Final = {
    Kind.INT: _INT, Kind.YEAR: _INT, Kind.UINT: _UINT, Kind.ENUM: _UINT, Kind.SET: _UINT, Kind.BIT: _UINT,
    Kind.FLOAT: _FLOAT, Kind.DOUBLE: _DOUBLE, Kind.DECIMAL: _DECIMAL, Kind.DATE: _DATE,
    Kind.DATETIME: _DATETIME,
    Kind.TIMESTAMP: _DATETIME, Kind.TIME: _TIME, Kind.JSON: _JSON, Kind.STRING: _RAW, Kind.BYTES: _RAW,
    Kind.VECTOR: _RAW,
}  # fmt: skip
COLUMN: Final = Layout(
    "hashed column", "C_", "A column whose value takes part in a row's hash.",
    position=signed("its cell"),
    form=signed("how its text is made, see _FORMS"),
    fsp=signed("digits of a time's fraction"),
    register=signed("of CRC-32, after the column's name"),
    null=signed("the hash of its NULL"),
    _5=signed("unused"),
)  # fmt: skip
C_POSITION, C_FORM, C_FSP, C_REGISTER, C_NULL, _ = COLUMN.offsets()
_COLUMN: Final = COLUMN.size
KEY_COLUMN: Final = Layout(
    "compared column", "K_", "A column that `keys_differ` compares.",
    position=signed("its cell"),
    pointers=signed("1: its cells hold addresses"),
)  # fmt: skip
K_POSITION, K_POINTERS = KEY_COLUMN.offsets()
_KEY_COLUMN: Final = KEY_COLUMN.size


class Rows(NamedTuple):
    """Rows of a block: operations (uint8), and the cells of both images."""

    op: int
    new_words: int
    new_sizes: int
    old_words: int
    old_sizes: int
    stride: int
    """Cells per row."""


class Hashing(NamedTuple):
    """The columns and buffers with which `hash_rows` works."""

    columns: int
    """An array of COLUMN."""
    column_count: int
    seed: int
    scratch: int
    """Space for the longest text and SLACK."""
    stack: int
    """For binary JSON."""


@inline
def put_text(out: int, form: int, fsp: int, word: int, size: int, stack: int) -> int:
    """Write the canonical text of a value whose kind is not text or bytes."""
    if form == _INT:
        return put_i64(out, word)
    if form == _UINT:
        return put_u64(out, U64(word))
    if form == _DECIMAL:
        return put_decimal(out, word, size)
    if form == _DATETIME:
        return put_datetime(out, word, fsp)
    if form == _DATE:
        return put_date(out, word)
    if form == _TIME:
        return put_duration(out, word, fsp)
    if form == _DOUBLE:
        return put_double_fixed(out, word)
    if form == _FLOAT:
        return put_float_fixed(out, word)
    return put_json(out, word, size, stack)


@kernel
def hash_rows(row_count: int, rows: Rows, by: Hashing, out: int) -> int:
    """u32[row_count] hashes of rows by the columns of `by`; returns the number of rows.

    Reads cells and the bytes they point to. Writes `out`, and `scratch` on the way. Bound: one text at a time
    in `scratch`, which has space for the longest. Twin: `tidegate.dispatcher.partitions.row_hash`. Trick: the
    CRC continues from the register after the column's name.
    """
    for row in range(row_count):
        deleted = load_u8(rows.op + row) == DELETE
        # A delete has no new image.
        words = (rows.old_words if deleted else rows.new_words) + 8 * row * rows.stride
        sizes = (rows.old_sizes if deleted else rows.new_sizes) + 4 * row * rows.stride
        state = by.seed
        for i in range(by.column_count):
            entry = by.columns + _COLUMN * i
            position = load_i64(entry + C_POSITION)
            size = I64(load_i32(sizes + 4 * position))
            if size < 0:
                # XOR, as in TiCDC: the order of columns does not matter.
                state ^= load_i64(entry + C_NULL)
                continue
            form = load_i64(entry + C_FORM)
            start = load_i64(words + 8 * position)
            if form != _RAW:
                end = put_text(by.scratch, form, load_i64(entry + C_FSP), start, size, by.stack)
                start = by.scratch
                size = end - by.scratch
            # The registers lack CRC-32's final inversion, which is done here.
            state ^= crc_bytes(load_i64(entry + C_REGISTER), start, size) ^ FULL
        store_u32(out + 4 * row, state)
    return row_count


@kernel
def keys_differ(row_count: int, rows: Rows, columns: int, column_count: int, out: int) -> int:
    """u8[row_count]: whether an update changes any of `columns`, a KEY_COLUMN each; returns how many rows do.

    Reads cells and the bytes they point to. Writes `out`. Bound: a byte a row, and as many bytes of each
    value as both images have. Twin: `tidegate.dispatcher.split.changes_key`. Trick: stored values are
    compared, not their texts, and bytes only if the sizes are equal.
    """
    found = 0
    for row in range(row_count):
        differs = 0
        if load_u8(rows.op + row) == UPDATE:
            for i in range(column_count):
                column = columns + _KEY_COLUMN * i
                cell = row * rows.stride + load_i64(column + K_POSITION)
                new_size = I64(load_i32(rows.new_sizes + 4 * cell))
                old_size = I64(load_i32(rows.old_sizes + 4 * cell))
                new = load_i64(rows.new_words + 8 * cell)
                old = load_i64(rows.old_words + 8 * cell)
                # Also true if one of them is NULL, whose size is negative.
                if new_size != old_size:
                    differs = 1
                elif new_size >= 0 and load_i64(column + K_POINTERS) == 0:
                    if new != old:
                        differs = 1
                elif new_size > 0 and not same_bytes(new, old, new_size):
                    differs = 1
        found += differs
        store_u8(out + row, differs)
    return found


# --- blocks ---------------------------------------------------------------------------------------------


def partition_block(
    block: RowBlock, rule: DispatchRule, count: int, time_zone: str = "UTC"
) -> npt.NDArray[np.int32]:
    """The partition of every row among `count`: int32[n]. `time_zone` of the feed is for TIMESTAMP texts."""
    if rule.partition == "ts":
        return (block.commit_ts % np.uint64(count)).astype(np.int32)
    columns = hashed_columns(block.table, rule)
    if not columns:
        return np.full(len(block), table_hash(block.table) % count, dtype=np.int32)
    return (_hashes(block, columns, time_zone) % np.uint32(count)).astype(np.int32)


def _hashes(block: RowBlock, columns: tuple[int, ...], time_zone: str) -> npt.NDArray[np.uint32]:
    table, deletes = block.table, block.op == DELETE
    stamps = [i for i in columns if table.columns[i].kind is Kind.TIMESTAMP]
    vectors = [i for i in columns if table.columns[i].kind is Kind.VECTOR]
    # The text of a TIMESTAMP is hashed, and that is the time in the zone of the feed.
    new = localised(block.new, stamps, ~deletes, time_zone)
    old = localised(block.old, stamps, deletes, time_zone)
    (new, kept_new), (old, kept_old) = _vectors(new, vectors, ~deletes), _vectors(old, vectors, deletes)
    plan = _plan(table, columns)
    scratch = buffer(_longest(new, old, columns, deletes) * JSON_GROWTH + FIXED_TEXT + SLACK)
    stack = np.empty(STACK_WORDS, dtype=np.int64)
    out = np.empty(len(block), dtype=np.uint32)
    op = np.ascontiguousarray(block.op)
    by = Hashing(address(plan), len(columns), table_hash(table), address(scratch), address(stack))
    hash_rows(len(block), _rows(op, new, old), by, address(out))
    del kept_new, kept_old  # alive until here: cells of vectors point into them
    return out


def _rows(op: npt.NDArray[np.uint8], new: Image, old: Image) -> Rows:
    """The rows in the form that kernels read; the caller keeps the arrays alive."""
    cells = address(new.words), address(new.sizes), address(old.words), address(old.sizes)
    return Rows(address(op), *cells, new.words.shape[1])


def _longest(new: Image, old: Image, columns: tuple[int, ...], deletes: npt.NDArray[np.bool_]) -> int:
    """The size of the largest value among the hashed columns, in stored bytes."""
    sizes = np.where(deletes[:, None], old.sizes[:, columns], new.sizes[:, columns])
    return max(int(sizes.max(initial=0)), 0)


def _vectors(image: Image, columns: list[int], valid: npt.NDArray[np.bool_]) -> tuple[Image, object]:
    """Replace vectors by their texts, with plain Python, because vectors are rarely hashed."""
    if not columns:
        return image, None
    words, sizes, kept = image.words.copy(), image.sizes.copy(), []
    for column in columns:
        for row in np.flatnonzero(valid & (sizes[:, column] != NULL)).tolist():
            stored = ctypes.string_at(int(words[row, column]), int(sizes[row, column]))
            text = np.frombuffer(vector.decode(stored).encode() + bytes(PAD), dtype=np.uint8).copy()
            words[row, column], sizes[row, column] = address(text), len(text) - PAD
            kept.append(text)
    return Image(words, sizes), kept


_plans: WeakKeyDictionary[TableSchema, dict[tuple[int, ...], npt.NDArray[np.int64]]] = WeakKeyDictionary()


def _plan(table: TableSchema, columns: tuple[int, ...]) -> npt.NDArray[np.int64]:
    plans = _plans.setdefault(table, {})
    if columns not in plans:
        lines = []
        for i in columns:
            column, name = table.columns[i], table.columns[i].name.encode()
            # This undoes the final inversion, so that `hash_rows` can continue with the value.
            register = crc32(name) ^ FULL
            lines.append([i, _FORMS[column.kind], max(column.decimal, 0), register, crc32(name + b"null"), 0])
        plans[columns] = np.array(lines, dtype=np.int64)
    return plans[columns]


def changed_keys(block: RowBlock, columns: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """For each row, whether it is an update that changes the stored value of any of the columns."""
    out = np.zeros(len(block), dtype=np.uint8)
    pointers = (Kind.DECIMAL, Kind.STRING, Kind.BYTES, Kind.JSON, Kind.VECTOR)
    lines = np.array([[i, block.table.columns[i].kind in pointers] for i in columns], dtype=np.int64)
    op, new, old = np.ascontiguousarray(block.op), block.new, block.old
    # Only an update can change a key, so a block without any needs no look.
    if columns and (op == UPDATE).any():
        keys_differ(len(block), _rows(op, new, old), address(lines), len(columns), address(out))
    return out.astype(np.bool_)


def warm() -> None:
    """Compile kernels that are not in numba's cache yet, by calling both with no rows."""
    rows = Rows(0, 0, 0, 0, 0, 1)
    hash_rows(0, rows, Hashing(0, 0, 0, 0, 0), 0)
    keys_differ(0, rows, 0, 0, 0)
