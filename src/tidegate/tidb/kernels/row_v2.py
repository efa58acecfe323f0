"""Rows in format v2 into cells: docs/formats/rows.md#format-v2.

A row has the sorted ids of its columns with values, and of those that are NULL. `decode_v2` merges them with
the plan, whose lines are sorted as well; `decode_small` looks ids of one byte up in a table. Both report a
fault instead of reading outside the row.
"""

from __future__ import annotations

from typing import Final

from tidegate.kernel import cttz64, inline, load_i64, load_u8, load_u16, load_u32, store_u8, store_u64
from tidegate.tidb.kernels.checksum import (
    FILLED_AT,
    FLAGS_AT,
    NULLS_AT,
    ONE_SUM,
    ROW_HEAD,
    SUM_VERSION,
    TWO_SUMS,
)
from tidegate.tidb.kernels.row_context import (
    CHECKSUM_FAULT,
    HEADER_FAULT,
    LINES_AT,
    OFFSETS_FAULT,
    ORDER_FAULT,
    PLAN_LINE_BYTES,
    STACK_AT,
    VALUE_FAULT,
    Table,
    fault,
    put_missing,
)
from tidegate.tidb.kernels.text import I64, U64
from tidegate.tidb.kernels.value import PLAN_CELL, RowCells, decode_value, put_cell
from tidegate.tidb.row import CHECKSUM, EXTRA_CHECKSUM, LARGE

_KNOWN_SUMS: Final = 3
"""The lowest version of checksums that is unknown."""


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


MOST_LINES: Final = 64
_NO_LINE: Final = 255
_NO_LINES: Final = U64(0xFFFFFFFFFFFFFFFF)


@inline
def tail_ok(flags: int, tail: int, size: int) -> bool:
    """Whether a checksum of a known version follows the row's data, or nothing if the row has none.

    The sum is not compared here, but in `checksum`.
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
def decode_v2(value: int, length: int, large: int, table: Table, context: int, cells: RowCells) -> int:
    """Decode a row value of format v2 into the cells of one row; returns 0 or a fault."""
    plan, columns = table.plan, table.columns
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
    # Not negative means that all lists are inside the value, so the loads below need no check of their own.
    room = value + length - data
    # A flag above these two is of a later format, whose lists may be in other places.
    if room < 0 or flags > LARGE | CHECKSUM:
        return fault(HEADER_FAULT, FLAGS_AT)
    at = 0
    null_at = 0
    start = 0
    last = -1
    last_null = -1
    unknown_ids = 0
    # One turn more than columns, with an id above all: it checks the ids that are left in the row.
    for c in range(columns + 1):
        entry = plan + c * PLAN_LINE_BYTES
        wanted = load_i64(entry) if c < columns else 1 << 62
        found = -1
        while at < filled:
            found = row_id(ids, at, large)
            end = row_end(ends, at, large)
            # Ids and ends must both rise. Then each value is inside the data, and no two overlap.
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
            if not decode_value(entry, data + start, end - start, cells, context + STACK_AT):
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
            put_cell(cells, load_i64(entry + PLAN_CELL), 0, -1)
            last_null = found
            null_at += 1
        elif c < columns:
            code = put_missing(entry, table, context, cells)
            if code != 0:
                return fault(code, 0)
    if not tail_ok(flags, data + start, room - start):
        return fault(CHECKSUM_FAULT, data + start - value)
    # A column whose id is in both lists was taken from the first one. Its id then counts as unknown in the
    # second, so it is found here.
    if unknown_ids > 0 and not lists_apart(ids, filled, null_ids, nulls, large):
        return fault(ORDER_FAULT, ROW_HEAD)
    return 0


@inline
def index_lines(table: Table, context: int) -> None:
    """Store the number of each column's line by the column's id, for `decode_small`."""
    lines = context + LINES_AT
    for at in range(0, 256, 8):
        store_u64(lines + at, _NO_LINES)
    for c in range(min(table.columns, MOST_LINES)):
        wanted = load_i64(table.plan + c * PLAN_LINE_BYTES)
        # A larger id cannot be in a row with ids of one byte; the column is then missing there.
        if wanted < 256:
            store_u8(lines + wanted, c)


@inline
def decode_small(value: int, length: int, table: Table, context: int, cells: RowCells) -> int:
    """`decode_v2` for a row with ids of one byte, and tables of at most `MOST_LINES` columns.

    Each id is looked up instead of merged with the plan: which columns are NULL differs from row to row, so
    the processor would mispredict the branches of a merge.
    """
    plan, columns = table.plan, table.columns
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
    lines = context + LINES_AT
    stack = context + STACK_AT
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
            # `line` is below 64 (MOST_LINES), so the shift is defined.
            seen |= U64(1) << U64(line)
            if not decode_value(plan + line * PLAN_LINE_BYTES, data + start, end - start, cells, stack):
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
            put_cell(cells, load_i64(plan + line * PLAN_LINE_BYTES + PLAN_CELL), 0, -1)
        last = found
    if twice != U64(0):
        return fault(ORDER_FAULT, ROW_HEAD)
    # `seen` has only bits of columns, so the XOR leaves exactly those that are missing. A shift by 64 is
    # undefined, so no columns are a case of their own.
    missing = seen ^ (~U64(0) >> U64(64 - columns)) if columns > 0 else U64(0)
    while missing != U64(0):
        code = put_missing(plan + I64(cttz64(missing)) * PLAN_LINE_BYTES, table, context, cells)
        if code != 0:
            return fault(code, 0)
        missing &= missing - U64(1)
    if not tail_ok(flags, data + start, room - start):
        return fault(CHECKSUM_FAULT, data + start - value)
    # Known ids were compared by their bits. Only ids without a line could be in both lists unseen.
    if unknown_ids > 0 and not lists_apart(ids, filled, null_ids, nulls, 0):
        return fault(ORDER_FAULT, ROW_HEAD)
    return 0
