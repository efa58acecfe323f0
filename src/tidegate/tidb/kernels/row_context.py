"""The input of decoding one row besides its value: the context, the plan, faults, columns the row lacks.

A column that a row's value does not have comes from the row's key (if it belongs to the handle) or is the
default of the table. A common handle is decoded at most once for each row.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from tidegate.kernel import inline, load_i32, load_i64, load_u8, shared, store_u64
from tidegate.kernel_layout import Layout, pointer, signed
from tidegate.tidb.kernels.datum import read_datum
from tidegate.tidb.kernels.json import STACK_WORDS
from tidegate.tidb.kernels.record_key import INT_HANDLE_BYTES
from tidegate.tidb.kernels.value import (
    BYTES,
    PLAN,
    PLAN_CELL,
    PLAN_DEFAULT_SIZE,
    PLAN_DEFAULT_WORD,
    PLAN_FORM,
    PLAN_SOURCE,
    RowCells,
    put_cell,
)


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
"""Words of a line of the plan, one for each column."""
FROM_DEFAULT: Final = -1
NO_DEFAULT: Final = -2
"""The sources of a column that a row lacks; NO_DEFAULT: its default cannot be read, so the row is faulty."""
PLAN_LINE_BYTES: Final = PLAN.size
MAX_HANDLE_DATUMS: Final = 64


class Table(NamedTuple):
    """One table version."""

    plan: int
    """The address of its lines, as PLAN declares them."""
    columns: int
    datums: int
    """The datums of a common handle; 0: the handle is an integer, and its source is 0."""


FAULT_IMAGE_AT, FAULT_OFFSET_AT = 8, 16
"""The bits of a fault's word from which on it has the image, and the offset in it; the code is below them."""


@inline
def fault(code: int, offset: int) -> int:
    """A fault's word without the image, which `decode_rows` adds."""
    return code | (offset << FAULT_OFFSET_AT)


@inline
def find_line(table: Table, wanted: int) -> int:
    """The address of the plan's line for a column id, or 0."""
    plan = table.plan
    low = 0
    high = table.columns
    while low < high:
        middle = (low + high) >> 1
        if load_i64(plan + middle * PLAN_LINE_BYTES) < wanted:
            low = middle + 1
        else:
            high = middle
    if low < table.columns and load_i64(plan + low * PLAN_LINE_BYTES) == wanted:
        return plan + low * PLAN_LINE_BYTES
    return 0


CONTEXT: Final = Layout(
    "row context",
    "CONTEXT_",
    "The state of `decode_rows` for a row; cells of its handle, a list and a stack follow.",
    key=pointer("the handle in the row's key"),
    key_size=signed("size of the handle", "bytes"),
    datums=signed("values of a common handle; 0: the handle is an integer"),
    ready=signed("1: the common handle is decoded"),
    free=pointer("where strings of common handles go"),
    int_handle=signed("the integer handle"),
    longest=signed("after the call: of the values of an image and the row's key together, the most", "bytes"),
    total=signed("after the call: of all values", "bytes"),
)  # fmt: skip
(
    CONTEXT_KEY, CONTEXT_KEY_SIZE, CONTEXT_DATUMS, CONTEXT_READY, CONTEXT_FREE, CONTEXT_INT_HANDLE,
    CONTEXT_LONGEST, CONTEXT_TOTAL,
) = CONTEXT.offsets()  # fmt: skip
HANDLE_WORDS: Final = CONTEXT.size
HANDLE_SIZES: Final = HANDLE_WORDS + 8 * MAX_HANDLE_DATUMS
LINES_AT: Final = HANDLE_SIZES + 8 * MAX_HANDLE_DATUMS
STACK_AT: Final = LINES_AT + 256
CONTEXT_WORDS: Final = STACK_AT // 8 + STACK_WORDS
"""The int64 words of working memory that `decode_rows` needs."""


@shared
def decode_handle(table: Table, context: int) -> bool:
    """Decode the common handle in a row's key into the context; returns False if the key has none.

    Reads the handle in the key. Writes the handle cells and the free bytes of the context. Bound: the datums
    of the table's handle; strings take no more bytes than the key has. Twin:
    `tidegate.tidb.record.key_values`.
    """
    key = load_i64(context + CONTEXT_KEY)
    size = load_i64(context + CONTEXT_KEY_SIZE)
    datums = load_i64(context + CONTEXT_DATUMS)
    cells = RowCells(context + HANDLE_WORDS, context + HANDLE_SIZES)
    free = load_i64(context + CONTEXT_FREE)
    at = 0
    for k in range(datums):
        entry = table.plan
        for c in range(table.columns):
            if load_i64(table.plan + c * PLAN_LINE_BYTES + PLAN_SOURCE) == k:
                entry = table.plan + c * PLAN_LINE_BYTES
        used = read_datum(entry, key + at, size - at, cells, k, free, context + STACK_AT)
        if used < 0:
            return False
        if load_i64(entry + PLAN_FORM) == BYTES:
            # The strings follow each other. Un-grouped they are shorter than in the key, so the space
            # suffices.
            free += max(load_i32(cells.sizes + 4 * k), 0)
        at += used
    store_u64(context + CONTEXT_FREE, free)
    # TiDB pads a common handle of fewer than 9 bytes with zeros (`NewCommonHandle` in TiDB's
    # pkg/kv/key.go).
    while at < size:
        if load_u8(key + at) != 0:
            return False
        at += 1
    return True


@inline
def put_missing(entry: int, table: Table, context: int, cells: RowCells) -> int:
    """Fill the cell of a column that the row lacks, from the key or the default; 0 or a fault's code."""
    source = load_i64(entry + PLAN_SOURCE)
    cell = load_i64(entry + PLAN_CELL)
    if source < 0:
        put_cell(cells, cell, load_i64(entry + PLAN_DEFAULT_WORD), load_i64(entry + PLAN_DEFAULT_SIZE))
        return 0 if source == FROM_DEFAULT else DEFAULT_FAULT
    if load_i64(context + CONTEXT_DATUMS) == 0:
        put_cell(cells, cell, load_i64(context + CONTEXT_INT_HANDLE), 0)
        return 0 if load_i64(context + CONTEXT_KEY_SIZE) == INT_HANDLE_BYTES else KEY_FAULT
    # Decoded once for both images, and only if a column is missing in one of them.
    if load_i64(context + CONTEXT_READY) == 0:
        if not decode_handle(table, context):
            return KEY_FAULT
        store_u64(context + CONTEXT_READY, 1)
    word = load_i64(context + HANDLE_WORDS + 8 * source)
    put_cell(cells, cell, word, load_i32(context + HANDLE_SIZES + 4 * source))
    return 0
