"""Row kernels: row values into cells, many rows a call. Formats: docs/formats/rows.md.

`decode_rows` decodes the new and the old image of rows of *one* table version, row by row, driven by the
table's plan: an int64 matrix with a line of `PLAN_WORDS` for each column, in ascending order of column id, so
that the sorted ids of a row are merged with it in one pass. No code is made or compiled for a table.
`mounter.decode` makes the plan and calls it, after `record_key.parse_keys`. `row_v2` decodes values of format
v2; those of v1 are decoded here.

Nothing is read outside the given buffers: the bounds of each load are checked before, and a row that fails a
check gets a fault (`row_context.fault`) instead of values. Bytes are not copied: cells have addresses in the
buffers of values, of keys (decimals in a common handle), of `free` (strings in a common handle, un-grouped)
or of the table's defaults.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tidegate.kernel import (
    address,
    kernel,
    load_bounds,
    load_i32,
    load_i64,
    load_u8,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.model.block import OP_DELETE
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.tidb.kernels.checksum import FLAGS_AT, check_image
from tidegate.tidb.kernels.datum import FLAG_NULL, FLAG_VARINT, read_datum, read_uvarint, skip_datum, unzigzag
from tidegate.tidb.kernels.record_key import HANDLE_AT, parse_keys
from tidegate.tidb.kernels.row_context import (
    CONTEXT_DATUMS,
    CONTEXT_FREE,
    CONTEXT_INT_HANDLE,
    CONTEXT_KEY,
    CONTEXT_KEY_SIZE,
    CONTEXT_LONGEST,
    CONTEXT_READY,
    CONTEXT_TOTAL,
    CONTEXT_WORDS,
    DATUM_FAULT,
    FAULT_IMAGE_AT,
    HEADER_FAULT,
    PLAN_LINE_BYTES,
    STACK_AT,
    Table,
    fault,
    find_line,
    put_missing,
)
from tidegate.tidb.kernels.row_v2 import MOST_LINES, decode_small, decode_v2, index_lines
from tidegate.tidb.kernels.value import PLAN_CELL, RowCells
from tidegate.tidb.row import LARGE, V2

ABSENT: Final = -2
"""The size of a cell that is not filled yet, while a row of format v1 is read."""

NEW: Final = 0
OLD: Final = 1
"""The image in which the offset of a fault counts."""

_DELETE: Final = OP_DELETE
NO_IMAGE, INSERTED, UPDATED, DELETED = 0, INSERT, UPDATE, DELETE
"""The result of `decode_rows` for a row."""


@kernel
def decode_v1(value: int, length: int, table: Table, context: int, cells: RowCells) -> int:
    """Decode a row value of format v1 into the cells of one row; returns 0 or a fault.

    Reads the value, and the key for columns that only it has. Writes the cells. Bound: `length` bytes, and a
    cell for each line of the plan. Twin: `tidegate.tidb.row.split`.
    """
    plan, columns, sizes = table.plan, table.columns, cells.sizes
    stack = context + STACK_AT
    for c in range(columns):
        # Format v1 lists its columns in any order, so what is missing is known only at the end.
        store_u32(sizes + 4 * load_i64(plan + c * PLAN_LINE_BYTES + PLAN_CELL), ABSENT)
    at = 0
    # TiDB writes a row without any column as a single NULL.
    if length == 1 and load_u8(value) == FLAG_NULL:
        at = length
    while at < length:
        if load_u8(value + at) != FLAG_VARINT:
            return fault(DATUM_FAULT, at)
        used = read_uvarint(value + at + 1, length - at - 1, stack)
        # Each read has checked its bytes against `length`, so `at` never passes it.
        if used < 0:
            return fault(DATUM_FAULT, at)
        entry = find_line(table, unzigzag(load_i64(stack)))
        at += used + 1
        if entry != 0:
            cell = load_i64(entry + PLAN_CELL)
            used = read_datum(entry, value + at, length - at, cells, cell, 0, stack)
        else:
            used = skip_datum(value + at, length - at, stack)
        if used < 0:
            return fault(DATUM_FAULT, at)
        at += used
    for c in range(columns):
        entry = plan + c * PLAN_LINE_BYTES
        if load_i32(sizes + 4 * load_i64(entry + PLAN_CELL)) == ABSENT:
            code = put_missing(entry, table, context, cells)
            if code != 0:
                return fault(code, 0)
    return 0


class Block(NamedTuple):
    """A block of entries: offsets (int32) and bytes of its Arrow columns, and what is known of each row."""

    key_ends: int
    keys: int
    int_handles: int
    """int64 for each row."""
    changes: int
    """uint8 for each row, OP_PUT or OP_DELETE."""
    value_ends: int
    values: int
    old_ends: int
    olds: int


class Decoded(NamedTuple):
    """Where `decode_rows` writes its results."""

    stride: int
    """The number of cells between the cells of a row and those of the next one."""
    ops: int
    """uint8 for each row: NO_IMAGE, INSERTED, UPDATED or DELETED."""
    new_words: int
    new_sizes: int
    old_words: int
    old_sizes: int
    """The cells of the images that a row has."""
    faults: int
    """int64 for each row; 0: no fault."""
    outcomes: int
    """0, or uint8[rows of the block, 2]: the result of `check_image` for the new and the old image."""
    carried: int
    versions: int
    """If there are outcomes: uint32[rows of the block, 2, 2] and uint8[rows of the block, 2], which
    `check_image` fills."""


@kernel
def decode_rows(
    row_count: int, rows: int, block: Block, table: Table, out: Decoded, free: int, context: int
) -> int:
    """Decode rows of one table version; returns how many have a fault or no image at all.

    rows: int64[row_count], positions in the block. free: at least as many bytes as the keys of these rows
    have, and the pad, for strings of common handles. context: int64[CONTEXT_WORDS].

    Reads the block's keys and values. Writes as `Decoded` says, `free`, and two sizes in the context. Bound:
    each load is preceded by a proof of its bounds. Twin: `tidegate.tidb.record.decode`. Trick: rows with
    small column ids find their columns by a table of 256 bytes, without a branch that differs from row to
    row.
    """
    unusable = 0
    longest = 0
    total = 0
    store_u64(context + CONTEXT_DATUMS, table.datums)
    store_u64(context + CONTEXT_FREE, free)
    index_lines(table, context)
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
            # A put has at least one byte, even for a row without columns.
            wrong = HEADER_FAULT
        key, key_end = load_bounds(block.key_ends, row)
        key_size = key_end - key
        # A column that the value lacks may be in the key.
        longest = max(longest, max(size, old_size) + key_size)
        total += size + old_size
        store_u64(context + CONTEXT_KEY, block.keys + key + HANDLE_AT)
        store_u64(context + CONTEXT_KEY_SIZE, key_size - HANDLE_AT)
        store_u64(context + CONTEXT_INT_HANDLE, load_i64(block.int_handles + 8 * row))
        # The common handle of the row before is void.
        store_u64(context + CONTEXT_READY, 0)
        for image in range(2):
            addr = block.values + start if image == NEW else block.olds + old_start
            length = size if image == NEW else old_size
            # After a fault in one image the other is not read: the row goes to quarantine as a whole.
            if length == 0 or wrong != 0:
                continue
            words = (out.new_words if image == NEW else out.old_words) + i * out.stride * 8
            sizes = (out.new_sizes if image == NEW else out.old_sizes) + i * out.stride * 4
            cells = RowCells(words, sizes)
            if load_u8(addr) == V2:
                if length > 1 and load_u8(addr + FLAGS_AT) & LARGE != 0:
                    wrong = decode_v2(addr, length, 1, table, context, cells)
                # `decode_small` has one bit for each column in a word.
                elif table.columns <= MOST_LINES:
                    wrong = decode_small(addr, length, table, context, cells)
                else:
                    wrong = decode_v2(addr, length, 0, table, context, cells)
            else:
                wrong = decode_v1(addr, length, table, context, cells)
            if wrong != 0:
                # The offset of the fault counts in this image.
                wrong |= image << FAULT_IMAGE_AT
            # Only for an image without a fault: the row is set aside for that, whatever its sum says.
            elif out.outcomes != 0:
                cell = 2 * row + image
                carried, version_at = out.carried + 8 * cell, out.versions + cell
                found = check_image(addr, length, block.keys + key, key_size, carried, version_at)
                store_u8(out.outcomes + cell, found)
        store_u8(out.ops + i, op)
        store_u64(out.faults + 8 * i, wrong)
        if wrong != 0 or op == NO_IMAGE:
            unusable += 1
    store_u64(context + CONTEXT_LONGEST, longest)
    store_u64(context + CONTEXT_TOTAL, total)
    return unusable


def warm() -> None:
    """Compile the kernels that are not in numba's cache yet."""
    words = np.zeros(CONTEXT_WORDS, dtype=np.int64)
    at = address(words)
    parse_keys(0, at, at, at, at, at)
    decode_rows(
        0,
        at,
        Block(at, at, at, at, at, at, at, at),
        Table(at, 0, 0),
        Decoded(1, at, at, at, at, at, at, 0, 0, 0),
        at,
        at,
    )
