"""Row kernels: record keys and row values, many rows a call, into cells.

Formats: docs/formats/keys.md#rows, docs/formats/rows.md.

`parse_keys` splits record keys; `decode_rows` decodes the new and the old image of rows of *one* table
version, row by row, driven by the table's plan: an int64 matrix, one line of `PLAN_WORDS` a column in
ascending order of column id, so that a row's own sorted ids are merged with it in one pass. No code and
no compile per table. `mounter.decode` makes the plan and calls both.

Nothing is read outside the given buffers: each load is preceded by a proof of its bounds, and a row that
fails one gets a fault, `fault(code, image, offset)`, instead of values. Bytes are not copied: cells hold
addresses in the buffers of values, of keys (decimals in a common handle), of `scratch` (strings in a
common handle, un-grouped) or of the table's defaults.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from tidegate.kernel import (
    address,
    bswap64,
    cttz64,
    inline,
    kernel,
    load_bounds,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.kernel_layout import Layout, pointer, signed
from tidegate.model.block import OP_DELETE
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.tidb.kernels.checksum import (
    FILLED_AT,
    FLAGS_AT,
    NULLS_AT,
    ONE_SUM,
    ROW_HEAD,
    SUM_VERSION,
    TWO_SUMS,
    check_image,
)
from tidegate.tidb.kernels.datum import FLAG_NULL, FLAG_VARINT, read_datum, read_uvarint, skip_datum, unzigzag
from tidegate.tidb.kernels.json import STACK_WORDS
from tidegate.tidb.kernels.text import I64, U64
from tidegate.tidb.kernels.value import (
    BYTES,
    PLAN,
    PLAN_CELL,
    PLAN_DEFAULT_SIZE,
    PLAN_DEFAULT_WORD,
    PLAN_FORM,
    PLAN_SOURCE,
    SIGN,
    decode_value,
    put_cell,
)
from tidegate.tidb.row import CHECKSUM, EXTRA_CHECKSUM, LARGE, V2


class Fault(IntEnum):
    """Why a row could not be decoded."""

    KEY = 1
    HEADER = 2
    ORDER = 3
    OFFSETS = 4
    VALUE = 5
    DATUM = 6
    CHECKSUM = 7
    DEFAULT = 8


KEY_FAULT: Final = int(Fault.KEY)
HEADER_FAULT: Final = int(Fault.HEADER)
ORDER_FAULT: Final = int(Fault.ORDER)
OFFSETS_FAULT: Final = int(Fault.OFFSETS)
VALUE_FAULT: Final = int(Fault.VALUE)
DATUM_FAULT: Final = int(Fault.DATUM)
CHECKSUM_FAULT: Final = int(Fault.CHECKSUM)
DEFAULT_FAULT: Final = int(Fault.DEFAULT)

PLAN_WORDS: Final = len(PLAN.fields)
"""Words a column in a plan."""
FROM_DEFAULT: Final = -1
NO_DEFAULT: Final = -2
"""Sources of a column that a row does not hold; NO_DEFAULT: its default cannot be read, the row is faulty."""
_LINE: Final = PLAN.size
MAX_HANDLE_DATUMS: Final = 64

ABSENT: Final = -2
"""The size of a cell not yet filled, while an old row is read."""

NEW: Final = 0
OLD: Final = 1
"""Which value a fault's offset counts in."""

_RECORD_LE: Final = int.from_bytes(b"_r", "little")
_INDEX_LE: Final = int.from_bytes(b"_i", "little")
_TABLE: Final = ord("t")
_ID_AT: Final = 1
_MARK_AT: Final = 9
_DELETE: Final = OP_DELETE
_HANDLE_AT: Final = 11
"""A record's key: `t`, the table's id, `_r`, the handle."""
_INT_HANDLE_BYTES: Final = 8
_RECORD_KEY: Final = _HANDLE_AT + _INT_HANDLE_BYTES
"""The key of an integer handle, the shortest of all."""
_KNOWN_SUMS: Final = 3
"""Versions of checksums from this one on are unknown."""
NO_IMAGE, INSERTED, UPDATED, DELETED = 0, INSERT, UPDATE, DELETE
"""What `decode_rows` says of a row."""
NO_ROW: Final = -1
NO_RECORD: Final = -2


@inline
def fault(code: int, offset: int) -> int:
    """A fault word: the code, from bit 16 the offset; `decode_rows` adds the image in bit 8."""
    return code | (offset << 16)


# --- keys -----------------------------------------------------------------------------------------------


@kernel
def parse_keys(key_count: int, ends: int, keys: int, tables: int, handles: int, lengths: int) -> int:
    """Split record keys; returns how many are not record keys.

    ends: int32[key_count + 1], Arrow's offsets; keys: the bytes. Per key `tables` becomes the table id,
    `handles` the int handle (0 for a common handle), and `lengths` (int32) the handle's length in bytes (8:
    may be an int handle; NO_ROW: an index entry; NO_RECORD: neither).

    Reads the front of each key, and 8 bytes of a handle. Writes `tables`, `handles` and `lengths`. Bound:
    three words a key; a key is measured before it is read. Twin: `tidegate.tidb.keys.parse_record`.
    """
    other_keys = 0
    for i in range(key_count):
        start, end = load_bounds(ends, i)
        size = end - start
        key = keys + start
        table = 0
        handle = 0
        length = NO_RECORD
        if size >= _HANDLE_AT and load_u8(key) == _TABLE and load_u16(key + _MARK_AT) == _INDEX_LE:
            length = NO_ROW
        elif size >= _RECORD_KEY and load_u8(key) == _TABLE and load_u16(key + _MARK_AT) == _RECORD_LE:
            table = I64(bswap64(load_u64(key + _ID_AT)) ^ SIGN)
            length = size - _HANDLE_AT
            if length == _INT_HANDLE_BYTES:
                handle = I64(bswap64(load_u64(key + _HANDLE_AT)) ^ SIGN)
        if length < 0:
            other_keys += 1
        store_u64(tables + 8 * i, table)
        store_u64(handles + 8 * i, handle)
        store_u32(lengths + 4 * i, length)
    return other_keys


@inline
def row_id(ids: int, index: int, large: int) -> int:
    """The column id at `index` of a row's id list."""
    if large:
        return I64(load_u32(ids + 4 * index))
    return I64(load_u8(ids + index))


@inline
def row_end(ends: int, index: int, large: int) -> int:
    """The end offset at `index` of a row."""
    if large:
        return I64(load_u32(ends + 4 * index))
    return I64(load_u16(ends + 2 * index))


@inline
def find_line(plan: int, columns: int, wanted: int) -> int:
    """The address of the plan line of a column id, or 0."""
    low = 0
    high = columns
    while low < high:
        middle = (low + high) >> 1
        if load_i64(plan + middle * _LINE) < wanted:
            low = middle + 1
        else:
            high = middle
    if low < columns and load_i64(plan + low * _LINE) == wanted:
        return plan + low * _LINE
    return 0


# --- whole rows -----------------------------------------------------------------------------------------

CONTEXT: Final = Layout(
    "row context", "_", "What `decode_rows` knows of a row; cells of its handle, a list and a stack follow.",
    key=pointer("the handle in the row's key"),
    key_size=signed("size of the handle", "bytes"),
    datums=signed("values of a common handle; 0: the handle is an integer"),
    ready=signed("1: the common handle is decoded"),
    free=pointer("where strings of common handles go"),
    int_handle=signed("the integer handle"),
)  # fmt: skip
_KEY, _KEY_SIZE, _DATUMS, _READY, _FREE, _INT_HANDLE = CONTEXT.offsets()
_HANDLE_WORDS: Final = CONTEXT.size
_HANDLE_SIZES: Final = _HANDLE_WORDS + 8 * MAX_HANDLE_DATUMS
_LINES: Final = _HANDLE_SIZES + 8 * MAX_HANDLE_DATUMS
_STACK: Final = _LINES + 256
CONTEXT_WORDS: Final = _STACK // 8 + STACK_WORDS
"""int64 words that `decode_rows` wants as its working memory."""

_MOST_LINES: Final = 64
_NO_LINE: Final = 255
_NO_LINES: Final = U64(0xFFFFFFFFFFFFFFFF)


@kernel
def decode_handle(plan: int, columns: int, context: int) -> bool:
    """The common handle of a row's key into the context's handle cells, once a row; False: it is none.

    Reads the handle in the key. Writes the handle cells and the free bytes of the context. Bound: the datums
    of the table's handle; strings take no more bytes than the key has. Twin:
    `tidegate.tidb.record.key_values`.
    """
    key = load_i64(context + _KEY)
    size = load_i64(context + _KEY_SIZE)
    datums = load_i64(context + _DATUMS)
    handle_words = context + _HANDLE_WORDS
    handle_sizes = context + _HANDLE_SIZES
    free = load_i64(context + _FREE)
    at = 0
    for k in range(datums):
        entry = plan
        for c in range(columns):
            if load_i64(plan + c * _LINE + PLAN_SOURCE) == k:
                entry = plan + c * _LINE
        used = read_datum(entry, key + at, size - at, handle_words, handle_sizes, k, free, context + _STACK)
        if used < 0:
            return False
        if load_i64(entry + PLAN_FORM) == BYTES:
            free += max(load_i32(handle_sizes + 4 * k), 0)
        at += used
    store_u64(context + _FREE, free)
    while at < size:
        if load_u8(key + at) != 0:
            return False
        at += 1
    return True


@inline
def put_missing(entry: int, plan: int, columns: int, context: int, words: int, sizes: int) -> int:
    """A column that the row does not hold: from the key, or the default; 0 or a fault's code."""
    source = load_i64(entry + PLAN_SOURCE)
    cell = load_i64(entry + PLAN_CELL)
    if source < 0:
        put_cell(words, sizes, cell, load_i64(entry + PLAN_DEFAULT_WORD), load_i64(entry + PLAN_DEFAULT_SIZE))
        return 0 if source == FROM_DEFAULT else DEFAULT_FAULT
    if load_i64(context + _DATUMS) == 0:
        put_cell(words, sizes, cell, load_i64(context + _INT_HANDLE), 0)
        return 0 if load_i64(context + _KEY_SIZE) == _INT_HANDLE_BYTES else KEY_FAULT
    if load_i64(context + _READY) == 0:
        if not decode_handle(plan, columns, context):
            return KEY_FAULT
        store_u64(context + _READY, 1)
    handle_sizes = context + _HANDLE_SIZES
    put_cell(
        words,
        sizes,
        cell,
        load_i64(context + _HANDLE_WORDS + 8 * source),
        load_i32(handle_sizes + 4 * source),
    )
    return 0


@inline
def tail_ok(flags: int, tail: int, size: int) -> bool:
    """Whether what follows a row's data is a checksum of a known version, or nothing if it has none.

    The checksum's value is not compared: that is for `checksum`.
    """
    if flags & CHECKSUM == 0:
        return size == 0
    if size != ONE_SUM and size != TWO_SUMS:
        return False
    head = I64(load_u8(tail))
    return head & SUM_VERSION < _KNOWN_SUMS and (size == TWO_SUMS) == (head & EXTRA_CHECKSUM != 0)


@inline
def lists_apart(ids: int, filled: int, null_ids: int, nulls: int, large: int) -> bool:
    """Whether two ascending id lists have no id in common."""
    at = 0
    null_at = 0
    while at < filled and null_at < nulls:
        left = row_id(ids, at, large)
        right = row_id(null_ids, null_at, large)
        if left == right:
            return False
        if left < right:
            at += 1
        else:
            null_at += 1
    return True


@inline
def decode_v2(
    value: int,
    length: int,
    large: int,
    plan: int,
    columns: int,
    context: int,
    words: int,
    sizes: int,
) -> int:
    """A row value of format v2 into the cells of one row; 0 or a fault."""
    if length < ROW_HEAD:
        return fault(HEADER_FAULT, 0)
    flags = I64(load_u8(value + FLAGS_AT))
    filled = I64(load_u16(value + FILLED_AT))
    nulls = I64(load_u16(value + NULLS_AT))
    width = 4 if large else 1
    ids = value + ROW_HEAD
    null_ids = ids + filled * width
    ends = null_ids + nulls * width
    data = ends + filled * (4 if large else 2)
    room = value + length - data
    if room < 0 or flags > LARGE | CHECKSUM:
        return fault(HEADER_FAULT, FLAGS_AT)
    at = 0
    null_at = 0
    start = 0
    last = -1
    last_null = -1
    unknown_ids = 0
    for c in range(columns + 1):
        entry = plan + c * _LINE
        wanted = load_i64(entry) if c < columns else 1 << 62
        found = -1
        while at < filled:
            found = row_id(ids, at, large)
            end = row_end(ends, at, large)
            if found <= last or end < start or end > room:
                return fault(OFFSETS_FAULT, ids + at * width - value)
            if found >= wanted:
                break
            unknown_ids += 1
            last = found
            start = end
            at += 1
        if at < filled and found == wanted:
            end = row_end(ends, at, large)
            if not decode_value(entry, data + start, end - start, words, sizes, context + _STACK):
                return fault(VALUE_FAULT, data + start - value)
            last = found
            start = end
            at += 1
            continue
        while null_at < nulls:
            found = row_id(null_ids, null_at, large)
            if found <= last_null:
                return fault(ORDER_FAULT, null_ids + null_at * width - value)
            if found >= wanted:
                break
            unknown_ids += 1
            last_null = found
            null_at += 1
        if null_at < nulls and found == wanted:
            put_cell(words, sizes, load_i64(entry + PLAN_CELL), 0, -1)
            last_null = found
            null_at += 1
        elif c < columns:
            code = put_missing(entry, plan, columns, context, words, sizes)
            if code != 0:
                return fault(code, 0)
    if not tail_ok(flags, data + start, room - start):
        return fault(CHECKSUM_FAULT, data + start - value)
    if unknown_ids > 0 and not lists_apart(ids, filled, null_ids, nulls, large):
        return fault(ORDER_FAULT, ROW_HEAD)
    return 0


@inline
def note_lines(plan: int, columns: int, context: int) -> None:
    """By column id, the number of its line in the plan, for `decode_small`."""
    lines = context + _LINES
    for at in range(0, 256, 8):
        store_u64(lines + at, _NO_LINES)
    for c in range(min(columns, _MOST_LINES)):
        wanted = load_i64(plan + c * _LINE)
        if wanted < 256:
            store_u8(lines + wanted, c)


@inline
def decode_small(
    value: int,
    length: int,
    plan: int,
    columns: int,
    context: int,
    words: int,
    sizes: int,
) -> int:
    """`decode_v2` of a row with ids of one byte, for tables of at most `_MOST_LINES` columns.

    What `decode_v2` merges is looked up here, each value and each NULL once: which columns are NULL differs
    from row to row, and a merge would mispredict them.
    """
    if length < ROW_HEAD:
        return fault(HEADER_FAULT, 0)
    flags = I64(load_u8(value + FLAGS_AT))
    filled = I64(load_u16(value + FILLED_AT))
    nulls = I64(load_u16(value + NULLS_AT))
    ids = value + ROW_HEAD
    null_ids = ids + filled
    ends = null_ids + nulls
    data = ends + filled * 2
    room = value + length - data
    if room < 0 or flags > LARGE | CHECKSUM:
        return fault(HEADER_FAULT, FLAGS_AT)
    lines = context + _LINES
    stack = context + _STACK
    seen = U64(0)
    twice = U64(0)
    unknown_ids = 0
    start = 0
    last = -1
    for i in range(filled):
        found = I64(load_u8(ids + i))
        end = I64(load_u16(ends + 2 * i))
        if (found <= last) | (end < start) | (end > room):
            return fault(OFFSETS_FAULT, ids + i - value)
        line = I64(load_u8(lines + found))
        if line == _NO_LINE:
            unknown_ids += 1
        else:
            seen |= U64(1) << U64(line)
            if not decode_value(plan + line * _LINE, data + start, end - start, words, sizes, stack):
                return fault(VALUE_FAULT, data + start - value)
        last = found
        start = end
    last = -1
    for i in range(nulls):
        found = I64(load_u8(null_ids + i))
        if found <= last:
            return fault(ORDER_FAULT, null_ids + i - value)
        line = I64(load_u8(lines + found))
        if line == _NO_LINE:
            unknown_ids += 1
        else:
            bit = U64(1) << U64(line)
            twice |= seen & bit
            seen |= bit
            put_cell(words, sizes, load_i64(plan + line * _LINE + PLAN_CELL), 0, -1)
        last = found
    if twice != U64(0):
        return fault(ORDER_FAULT, ROW_HEAD)
    missing = seen ^ (~U64(0) >> U64(64 - columns)) if columns > 0 else U64(0)
    while missing != U64(0):
        code = put_missing(plan + I64(cttz64(missing)) * _LINE, plan, columns, context, words, sizes)
        if code != 0:
            return fault(code, 0)
        missing &= missing - U64(1)
    if not tail_ok(flags, data + start, room - start):
        return fault(CHECKSUM_FAULT, data + start - value)
    if unknown_ids > 0 and not lists_apart(ids, filled, null_ids, nulls, 0):
        return fault(ORDER_FAULT, ROW_HEAD)
    return 0


@kernel
def decode_v1(
    value: int,
    length: int,
    plan: int,
    columns: int,
    context: int,
    words: int,
    sizes: int,
) -> int:
    """A row value of format v1 into the cells of one row; 0 or a fault.

    Reads the value, and the key for columns that only it has. Writes `words` and `sizes`. Bound: `length`
    bytes, and a cell for each line of the plan. Twin: `tidegate.tidb.row.split`.
    """
    stack = context + _STACK
    for c in range(columns):
        store_u32(sizes + 4 * load_i64(plan + c * _LINE + PLAN_CELL), ABSENT)
    at = 0
    if length == 1 and load_u8(value) == FLAG_NULL:
        at = length
    while at < length:
        if load_u8(value + at) != FLAG_VARINT:
            return fault(DATUM_FAULT, at)
        used = read_uvarint(value + at + 1, length - at - 1, stack)
        if used < 0:
            return fault(DATUM_FAULT, at)
        entry = find_line(plan, columns, unzigzag(load_i64(stack)))
        at += used + 1
        if entry != 0:
            used = read_datum(
                entry, value + at, length - at, words, sizes, load_i64(entry + PLAN_CELL), 0, stack
            )
        else:
            used = skip_datum(value + at, length - at, stack)
        if used < 0:
            return fault(DATUM_FAULT, at)
        at += used
    for c in range(columns):
        entry = plan + c * _LINE
        if load_i32(sizes + 4 * load_i64(entry + PLAN_CELL)) == ABSENT:
            code = put_missing(entry, plan, columns, context, words, sizes)
            if code != 0:
                return fault(code, 0)
    return 0


class Block(NamedTuple):
    """A block of entries: Arrow's offsets (int32) and bytes of its columns, and what is known of each row."""

    key_ends: int
    keys: int
    int_handles: int
    """int64 a row."""
    changes: int
    """uint8 a row, OP_PUT or OP_DELETE."""
    value_ends: int
    values: int
    old_ends: int
    olds: int


class Table(NamedTuple):
    """One table version."""

    plan: int
    """Lines as PLAN says."""
    columns: int
    datums: int
    """How many a common handle has; 0: the handle is an integer, for which source 0 stands."""


class Decoded(NamedTuple):
    """Where the results go."""

    stride: int
    """Cells from one row's cells to the next one's."""
    ops: int
    """uint8 a row: NO_IMAGE, INSERTED, UPDATED or DELETED."""
    new_words: int
    new_sizes: int
    old_words: int
    old_sizes: int
    """Cells of the images that the row has."""
    faults: int
    """int64 a row, 0: none."""
    outcomes: int
    """0, or uint8[rows of the block, 2]: what `check_image` says of the new and the old image."""
    carried: int
    """With outcomes: uint32[rows of the block, 2, 2], as `check_image` fills them."""


@kernel
def decode_rows(
    row_count: int, rows: int, block: Block, table: Table, out: Decoded, free: int, context: int
) -> int:
    """Decode rows of one table version; returns how many have a fault or no image at all.

    rows: int64[row_count], positions in the block. free: at least as many bytes as the keys of these rows
    have, and the pad, for strings of common handles. context: int64[CONTEXT_WORDS].

    Reads the block's keys and values. Writes as `Decoded` says, and `free`. Bound: each load is preceded by a
    proof of its bounds. Twin: `tidegate.tidb.record.decode`. Trick: rows with small column ids find their
    columns by a table of 256 bytes, without a branch that differs from row to row.
    """
    unusable = 0
    store_u64(context + _DATUMS, table.datums)
    store_u64(context + _FREE, free)
    plan, columns = table.plan, table.columns
    note_lines(plan, columns, context)
    for i in range(row_count):
        row = load_i64(rows + 8 * i)
        start, end = load_bounds(block.value_ends, row)
        old_start, old_end = load_bounds(block.old_ends, row)
        size, old_size = end - start, old_end - old_start
        op = NO_IMAGE
        wrong = 0
        if load_u8(block.changes + row) == _DELETE:
            size = 0
            op = DELETED if old_size > 0 else NO_IMAGE
        elif size > 0:
            op = UPDATED if old_size > 0 else INSERTED
        else:
            wrong = HEADER_FAULT
        key, key_end = load_bounds(block.key_ends, row)
        key_size = key_end - key
        store_u64(context + _KEY, block.keys + key + _HANDLE_AT)
        store_u64(context + _KEY_SIZE, key_size - _HANDLE_AT)
        store_u64(context + _INT_HANDLE, load_i64(block.int_handles + 8 * row))
        store_u64(context + _READY, 0)
        for image in range(2):
            addr = block.values + start if image == NEW else block.olds + old_start
            length = size if image == NEW else old_size
            if length == 0 or wrong != 0:
                continue
            words = (out.new_words if image == NEW else out.old_words) + i * out.stride * 8
            sizes = (out.new_sizes if image == NEW else out.old_sizes) + i * out.stride * 4
            if load_u8(addr) == V2:
                if length > 1 and load_u8(addr + FLAGS_AT) & LARGE != 0:
                    wrong = decode_v2(addr, length, 1, plan, columns, context, words, sizes)
                elif columns <= _MOST_LINES:
                    wrong = decode_small(addr, length, plan, columns, context, words, sizes)
                else:
                    wrong = decode_v2(addr, length, 0, plan, columns, context, words, sizes)
            else:
                wrong = decode_v1(addr, length, plan, columns, context, words, sizes)
            if wrong != 0:
                wrong |= image << 8
            elif out.outcomes != 0:
                cell = 2 * row + image
                store_u8(
                    out.outcomes + cell,
                    check_image(addr, length, block.keys + key, key_size, out.carried + 8 * cell),
                )
        store_u8(out.ops + i, op)
        store_u64(out.faults + 8 * i, wrong)
        if wrong != 0 or op == NO_IMAGE:
            unusable += 1
    return unusable


def warm() -> None:
    """Compile what is not in numba's cache yet."""
    words = np.zeros(CONTEXT_WORDS, dtype=np.int64)
    at = address(words)
    parse_keys(0, at, at, at, at, at)
    decode_rows(
        0,
        at,
        Block(at, at, at, at, at, at, at, at),
        Table(at, 0, 0),
        Decoded(1, at, at, at, at, at, at, 0, 0),
        at,
        at,
    )
