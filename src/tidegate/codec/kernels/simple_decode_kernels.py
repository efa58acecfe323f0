"""Decode kernels for the rows of protocol simple in Avro: messages in, the words of their cells out.

`read_rows` reads the head of each message and groups messages of the same table version. `walk_rows` walks
the two maps of a group's messages, by a plan made from the table's definition. A message that does not follow
the plan, or needs a check that only the plain decoder makes, is left to the plain decoder: its operation in
`results` is 0.

Every address is an int64. All reads stay inside the message, all writes inside the cells of its row. Plain
twin: `codec.protocols.simple.plain.SimpleDecoder`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tidegate.codec.kernels.avro_read_kernels import (
    MAX_GROUPS,
    NULL,
    R_CURRENT,
    R_OP,
    R_PREVIOUS,
    R_TS,
    RESULT_BYTES,
    MessageCells,
    put_cell,
    read_digits,
    read_size,
    read_varint,
)
from tidegate.codec.kernels.layout_kernels import MESSAGE_BYTES, MESSAGE_VALUE, MESSAGE_VALUE_SIZE
from tidegate.kernel import (
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    same_bytes,
    store_u32,
    store_u64,
)
from tidegate.kernel_layout import Layout, pointer, signed, word
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.tidb.kernels.json_string import is_utf8
from tidegate.tidb.kernels.text import I64, U64

HEAD: Final = Layout(
    "simple head", "H_", "The head of one of simple's rows.",
    group=signed("its group; -1: it is left to the plain decoder"),
    op=signed("its operation"),
    ts=word("its commit_ts", "ts"),
    at=pointer("its images"),
    current=signed("the sum of the new image; -1: none"),
    previous=signed("the sum of the old image; -1: none"),
    names=pointer("its schema and table"),
    names_size=signed("size of both names, with their lengths", "bytes"),
    table_id=signed("its table's id"),
    version=signed("its table's version"),
)  # fmt: skip
HEAD_WORDS: Final = len(HEAD.fields)
HEAD_BYTES: Final = HEAD.size
(
    H_GROUP, H_OP, H_TS, H_AT, H_CURRENT, H_PREVIOUS, H_NAMES, H_NAMES_SIZE, H_TABLE_ID, H_VERSION,
) = HEAD.offsets()  # fmt: skip
_FIRST_VERSION: Final = 1
_NO_SUM, _SUMMED = 0, 2
"""Branches of the union of a checksum, as zig-zag varints."""

COLUMN: Final = Layout(
    "simple column", "C_", "A column of simple's plan.",
    name=pointer("its name"),
    size=signed("size of the name", "bytes"),
    form=signed("what it is, see SIGNED and the others"),
    next=signed("of the n-th column: the number of the column whose name is the n-th in byte order"),
)  # fmt: skip
COLUMN_WORDS: Final = len(COLUMN.fields)
COLUMN_BYTES: Final = COLUMN.size
C_NAME, C_SIZE, C_FORM, C_NEXT = COLUMN.offsets()


class ColumnTable(NamedTuple):
    """The columns of a table version, and a hash table to find them."""

    columns: int
    """An array of COLUMN."""
    column_count: int
    table: int
    """i32[1 << bits]: columns by the hash of their names; -1: no column."""
    bits: int


class Zone(NamedTuple):
    """The name of the time zone that TIMESTAMPs must have; others are left to the plain decoder."""

    name: int
    size: int


SIGNED: Final = 30
UNSIGNED: Final = 31
SINGLE: Final = 32
WIDE: Final = 33
STRING: Final = 34
BINARY: Final = 35
MOMENT: Final = 36
_IS_NULL, _LONG, _FLOAT, _DOUBLE, _STRING, _BYTES, _MOMENT, _UNSIGNED = range(8)
_MISSING: Final = -2
_MIX: Final = U64(0x9E3779B97F4A7C15)


@inline
def hash_name(at: int, size: int) -> Any:
    """A U64 hash of a name whose upper bits are well distributed; reads nothing after the name."""
    mixed = U64(size)
    i = 0
    while i + 8 <= size:
        mixed = (mixed ^ load_u64(at + i)) * _MIX
        mixed ^= mixed >> U64(29)
        i += 8
    while i < size:
        mixed = (mixed ^ U64(load_u8(at + i))) * _MIX
        i += 1
    return (mixed ^ (mixed >> U64(32))) * _MIX


@kernel
def name_hash(at: int, size: int) -> int:
    """`hash_name` for Python, which fills the hash table of a plan with it.

    Reads the name. Writes nothing. Bound: `size` bytes. Twin: none, because the table must be filled with
    exactly the hash by which `find_column` searches it.
    """
    return I64(hash_name(at, size) >> U64(32))


@inline
def find_column(at: int, size: int, nth: int, plan: ColumnTable) -> int:
    """The column of a name, -1 if there is none. Tries the n-th name first: we write names in this order."""
    if nth < plan.column_count:
        column = load_i64(plan.columns + COLUMN_BYTES * nth + C_NEXT)
        entry = plan.columns + COLUMN_BYTES * column
        if load_i64(entry + C_SIZE) == size and same_bytes(load_i64(entry + C_NAME), at, size):
            return column
    place = I64(hash_name(at, size) >> U64(32)) & ((1 << plan.bits) - 1)
    # It ends: the table has more than twice as many places as columns (`bulk`).
    while True:
        column = I64(load_i32(plan.table + 4 * place))
        if column < 0:
            return -1
        entry = plan.columns + COLUMN_BYTES * column
        if load_i64(entry + C_SIZE) == size and same_bytes(load_i64(entry + C_NAME), at, size):
            return column
        place = (place + 1) & ((1 << plan.bits) - 1)


@inline
def walk_value(at: int, end: int, form: int, cell: int, starts: int, lengths: int, zone: Zone) -> int:
    """Walk a column's value; returns its end, 0 if it does not have the usual form of this column."""
    branch, at = read_varint(at, end)
    if at == 0:
        return 0
    if branch == _IS_NULL:
        store_u32(lengths + 4 * cell, NULL)
        return at
    if form in (SIGNED, UNSIGNED):
        if branch in (_LONG, _UNSIGNED):
            number, at = read_varint(at, end)
            # An unsigned number above 2**63 - 1, which does not fit a signed column.
            if form == SIGNED and branch == _UNSIGNED and number < 0:
                return 0
            put_cell(starts, lengths, cell, number, 0)
            return at
        if branch == _STRING:
            size, at = read_size(at, end)
            number = read_digits(at, size) if at != 0 else -1
            if number < 0:
                return 0
            put_cell(starts, lengths, cell, number, 0)
            return at + size
        return 0
    if form in (SINGLE, WIDE):
        size = 4 if form == SINGLE else 8
        if branch != (_FLOAT if form == SINGLE else _DOUBLE) or end - at < size:
            return 0
        put_cell(starts, lengths, cell, I64(load_u32(at)) if form == SINGLE else load_i64(at), 0)
        return at + size
    if form == MOMENT:
        if branch != _MOMENT:
            return 0
        size, at = read_size(at, end)
        if at == 0 or size != zone.size or not same_bytes(at, zone.name, size):
            return 0
        at += size
    elif branch != (_BYTES if form == BINARY else _STRING):
        return 0
    size, at = read_size(at, end)
    if at == 0 or (form != BINARY and not is_utf8(at, at + size)):
        return 0
    put_cell(starts, lengths, cell, at, size)
    return at + size


@inline
def walk_map(
    at: int, end: int, base: int, plan: ColumnTable, starts: int, lengths: int, zone: Zone
) -> tuple[int, int]:
    """Walk an image whose cells begin at `base`; returns (the number of entries, the map's end)."""
    entries = 0
    while True:
        count, at = read_varint(at, end)
        if at == 0:
            return 0, 0
        if count == 0:
            return entries, at
        if count < 0:
            # A negative count has the bytes of its block before it (Avro's specification). -2**63 stays
            # negative, and is refused below.
            count = -count
            _size, at = read_varint(at, end)
            if at == 0:
                return 0, 0
        # A map with two entries of one name is left to the plain decoder, so there are never more than
        # columns.
        if count < 0 or count > plan.column_count - entries:
            return 0, 0
        for _ in range(count):
            size, at = read_size(at, end)
            if at == 0:
                return 0, 0
            column = find_column(at, size, entries, plan)
            # Two entries of one name: which of them counts is for the plain decoder to say.
            if column < 0 or I64(load_i32(lengths + 4 * (base + column))) != _MISSING:
                return 0, 0
            form = load_i64(plan.columns + COLUMN_BYTES * column + C_FORM)
            at = walk_value(at + size, end, form, base + column, starts, lengths, zone)
            if at == 0:
                return 0, 0
            entries += 1


@inline
def read_row(at: int, end: int, head: int) -> bool:
    """Read the head of a row's message, after its first three bytes; False: left to the plain decoder."""
    version, at = read_varint(at, end)
    if at == 0 or version != _FIRST_VERSION:
        return False
    store_u64(head + H_NAMES, at)
    names = at
    for _ in range(2):
        size, at = read_size(at, end)
        if at == 0:
            return False
        at += size
    store_u64(head + H_NAMES_SIZE, at - names)
    table_id, at = read_varint(at, end)
    # Once a step has failed, `at` stays 0 and `end` is 0, so no further byte is read. One comparison
    # follows.
    kind, at = read_varint(at, end if at != 0 else 0)
    ts, at = read_varint(at, end if at != 0 else 0)
    _build, at = read_varint(at, end if at != 0 else 0)
    table_version, at = read_varint(at, end if at != 0 else 0)
    # A claim check and a message with only the key are left to the plain decoder. In them one of the two
    # branches that follow is not 0.
    if at == 0 or kind < 0 or kind > DELETE - INSERT or table_id < 0 or end - at < 3:
        return False
    if (
        load_u8(at) != 0
        or load_u8(at + 1) != 0
        or (load_u8(at + 2) != _NO_SUM and load_u8(at + 2) != _SUMMED)
    ):
        return False
    current = 0
    previous = 0
    summed = load_u8(at + 2) == _SUMMED
    at += 3
    if summed:
        _version, at = read_varint(at, end)
        if at == 0 or at >= end or load_u8(at) != 0:
            return False
        current, at = read_varint(at + 1, end)
        previous, at = read_varint(at, end if at != 0 else 0)
        if at == 0 or current < 0 or current > 0xFFFFFFFF or previous < 0 or previous > 0xFFFFFFFF:
            return False
    store_u64(head + H_OP, kind + INSERT)
    store_u64(head + H_TS, ts)
    store_u64(head + H_AT, at)
    # A sum of 0 says that the message has none.
    store_u64(head + H_CURRENT, current if current > 0 else -1)
    store_u64(head + H_PREVIOUS, previous if previous > 0 else -1)
    store_u64(head + H_TABLE_ID, table_id)
    store_u64(head + H_VERSION, table_version)
    return True


@inline
def same_table(left: int, right: int) -> bool:
    """Whether two heads have the same table version."""
    size = load_i64(left + H_NAMES_SIZE)
    return (
        load_i64(left + H_VERSION) == load_i64(right + H_VERSION)
        and load_i64(left + H_TABLE_ID) == load_i64(right + H_TABLE_ID)
        and load_i64(right + H_NAMES_SIZE) == size
        and same_bytes(load_i64(left + H_NAMES), load_i64(right + H_NAMES), size)
    )


_ROW_HEAD: Final = bytes([0x16, 6, 6])
_ROW_FIRST: Final = _ROW_HEAD[0]
_ROW_REST: Final = int.from_bytes(_ROW_HEAD[1:], "little")
"""The first bytes of a row of simple: the branches of its unions, as zig-zag varints."""


@inline
def is_row(value: int) -> bool:
    """Whether a message of at least three bytes begins as one of simple's rows."""
    return load_u8(value) == _ROW_FIRST and load_u16(value + 1) == _ROW_REST


@kernel
def read_rows(message_count: int, spans: int, heads: int, firsts: int) -> int:
    """Read the heads of messages, HEAD_BYTES each; returns the number of groups.

    spans: an array of MESSAGE. firsts: i64[MAX_GROUPS], the first message of each group.

    Reads the messages up to their images. Writes `heads` and `firsts`. Bound: MAX_GROUPS groups; messages of
    further groups are left out. Twin: `tidegate.codec.protocols.simple.plain.SimpleDecoder.row_key`. Trick:
    the group of the previous message is tried first.
    """
    count = 0
    last = 0
    for i in range(message_count):
        span = spans + MESSAGE_BYTES * i
        value = load_i64(span + MESSAGE_VALUE)
        end = value + load_i64(span + MESSAGE_VALUE_SIZE)
        head = heads + HEAD_BYTES * i
        group = -1
        if end - value > 3 and is_row(value) and read_row(value + 3, end, head):
            for k in range(count):
                number = last + k
                if number >= count:
                    number -= count
                if same_table(heads + HEAD_BYTES * load_i64(firsts + 8 * number), head):
                    group = number
                    break
            if group < 0 and count < MAX_GROUPS:
                group = count
                store_u64(firsts + 8 * count, i)
                count += 1
        if group >= 0:
            last = group
        store_u64(head + H_GROUP, group)
    return count


@inline
def fill_missing(columns: int, starts: int, lengths: int) -> bool:
    """Copy cells that the old image leaves out from the new image; False if the new one lacks one, too."""
    for c in range(columns):
        size = I64(load_i32(lengths + 4 * (columns + c)))
        if size == _MISSING:
            size = I64(load_i32(lengths + 4 * c))
            if size == _MISSING:
                return False
            put_cell(starts, lengths, columns + c, load_i64(starts + 8 * c), size)
    return True


@kernel
def walk_rows(
    row_count: int, rows: int, spans: int, heads: int, plan: ColumnTable, zone: Zone, cells: MessageCells
) -> int:
    """Walk the messages numbered in i64[row_count] `rows`, all of one group; returns how many succeeded.

    A message must have exactly the columns of the plan; `cells` has two cells per column, and one more.

    Reads the messages from the end of their heads. Writes cells and results. Bound: `stride` cells a message.
    Twin: `tidegate.codec.protocols.simple.plain.SimpleDecoder.decode`. Trick: the n-th entry is first
    compared with the n-th name in the order that our own encoder uses.
    """
    walked = 0
    columns, stride = plan.column_count, cells.stride
    for i in range(row_count):
        row = load_i64(rows + 8 * i)
        head = heads + HEAD_BYTES * row
        span = spans + MESSAGE_BYTES * row
        end = load_i64(span + MESSAGE_VALUE) + load_i64(span + MESSAGE_VALUE_SIZE)
        at = load_i64(head + H_AT)
        op = load_i64(head + H_OP)
        words = cells.starts + 8 * stride * i
        sizes = cells.lengths + 4 * stride * i
        result = cells.results + RESULT_BYTES * i
        # Marked first: an entry of a name whose cell is not `_MISSING` is the second one of that name.
        for cell in range(2 * columns):
            store_u32(sizes + 4 * cell, _MISSING)
        good = True
        for side in range(2):
            wanted = op != DELETE if side == 0 else op != INSERT
            # After a failure nothing is read any more, because no address is below 0.
            branch, at = read_varint(at, end if good else 0)
            if at == 0 or branch != (1 if wanted else 0):
                good = False
            elif wanted:
                entries, at = walk_map(at, end, side * columns, plan, words, sizes, zone)
                # The old image of an update may have only the columns that changed.
                whole = entries == columns or (op == UPDATE and side == 1 and entries > 0)
                good = at != 0 and whole
            else:
                for cell in range(side * columns, (side + 1) * columns):
                    store_u32(sizes + 4 * cell, NULL)
        if good and op == UPDATE:
            good = fill_missing(columns, words, sizes)
        good = good and at == end
        store_u64(result + R_OP, op if good else 0)
        store_u64(result + R_TS, load_i64(head + H_TS))
        store_u64(result + R_CURRENT, load_i64(head + H_CURRENT) if op != DELETE else -1)
        store_u64(result + R_PREVIOUS, load_i64(head + H_PREVIOUS) if op != INSERT else -1)
        walked += good
    return walked


def warm() -> None:
    """Compile kernels that are not in numba's cache yet, by calling them with no rows."""
    name = np.zeros(1, dtype=np.int64)
    name_hash(name.ctypes.data, 8)
    read_rows(0, 0, 0, 0)
    walk_rows(0, 0, 0, 0, ColumnTable(0, 0, 0, 1), Zone(0, 0), MessageCells(0, 0, 0, 1))
