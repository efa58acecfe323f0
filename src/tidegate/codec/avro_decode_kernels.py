"""Decode kernels of Avro's binary form: messages in, the words of their cells out.

A message is walked once, by a plan made from its schema. A cell becomes two words, `starts` and `lengths` of
its cell: a number its bits and 0; text, bytes and decimals their address and size; NULL and what is not there
`NULL`. A message that does not go by the plan, or holds what only the plain decoder can judge, is left to it:
its operation in `results` is 0. The `take_*` kernels turn a cell of many messages into an Arrow buffer.

    confluent   read_heads, then walk_records by groups of messages with the same schemas (protocol avro)
    simple      read_rows, then walk_rows by groups of messages of the same table version

Every address is an int64; all reads stay inside the message, all writes inside the cells of its row. Plain
twins: `codec.protocols.avro.plain.AvroDecoder` and `codec.protocols.simple.plain.SimpleDecoder`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tidegate.codec.layout_kernels import (
    MESSAGE_BYTES,
    MESSAGE_KEY,
    MESSAGE_KEY_SIZE,
    MESSAGE_VALUE,
    MESSAGE_VALUE_SIZE,
    NAME_AT,
    NAME_BYTES,
    NAME_SIZE,
)
from tidegate.kernel import (
    bswap64,
    copy_bytes,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    same_bytes,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import APOSTROPHE, BACKSLASH, COMMA, LOWER_C, LOWER_D, LOWER_U, MINUS, POINT, ZERO
from tidegate.kernel_layout import Layout, pointer, signed, word
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.tidb.kernels.json import utf8_size
from tidegate.tidb.kernels.text import I64, U64, put_u64

NULL: Final = -1

FIELD: Final = Layout(
    "avro field", "F_", "A field of a record.",
    form=signed("what it is, see NUMBER and the others"),
    null=signed("the branch that is null; -1: it is no union"),
    cell=signed("its cell"),
    param=signed("the form's parameter"),
    table=pointer("a table of names, a NAME each"),
    _5=signed("unused"),
)  # fmt: skip
FIELD_WORDS: Final = len(FIELD.fields)
FIELD_BYTES: Final = FIELD.size
F_FORM, F_NULL, F_CELL, F_PARAM, F_TABLE, _ = FIELD.offsets()

# Forms of a field.
NUMBER: Final = 0
FLOAT: Final = 1
DOUBLE: Final = 2
BYTES: Final = 3
TEXT: Final = 4
BIT: Final = 5
DIGITS: Final = 6  # text of an unsigned number
ENUM: Final = 7  # F_TABLE: names, F_PARAM of them
SET: Final = 8
DECIMAL: Final = 9
RECORD: Final = 10  # the old image: the F_PARAM fields behind this one, if it is there
# What is no column:
SKIPPED_TEXT: Final = 20
SKIPPED_NUMBER: Final = 21
SKIPPED_BOOLEAN: Final = 22
OPERATION: Final = 23
COMMIT_TS: Final = 24
SUM: Final = 25
CORRUPTED: Final = 26

RESULT: Final = Layout(
    "avro result", "R_", "What a message is.",
    op=signed("its operation; 0: it is left to the plain decoder"),
    ts=word("its commit_ts", "ts"),
    current=signed("the sum of the new image; -1: none"),
    previous=signed("the sum of the old image; -1: none"),
    old=signed("under way: whether there is an old image"),
)  # fmt: skip
RESULT_BYTES: Final = RESULT.size
R_OP, R_TS, R_CURRENT, R_PREVIOUS, R_OLD = RESULT.offsets()

HEAD: Final = Layout(
    "simple head", "H_", "The head of one of simple's rows.",
    group=signed("its group; -1: it is left to the plain decoder"),
    op=signed("its operation"),
    ts=word("its commit_ts", "ts"),
    at=pointer("its images"),
    current=signed("the sum of the new image; -1: none"),
    previous=signed("the sum of the old image; -1: none"),
    names=pointer("its schema and table"),
    names_size=signed("of these", "bytes"),
    table_id=signed("its table's id"),
    version=signed("its table's version"),
)  # fmt: skip
HEAD_WORDS: Final = len(HEAD.fields)
HEAD_BYTES: Final = HEAD.size
(
    H_GROUP, H_OP, H_TS, H_AT, H_CURRENT, H_PREVIOUS, H_NAMES, H_NAMES_SIZE, H_TABLE_ID, H_VERSION,
) = HEAD.offsets()  # fmt: skip

GROUP: Final = Layout(
    "avro group", "GROUP_", "What the messages of a group have in common.",
    key=signed("the id of the key's schema; -1: no key"),
    value=signed("the id of the value's schema; -1: a delete"),
)  # fmt: skip
GROUP_KEY, GROUP_VALUE = GROUP.offsets()
_GROUP: Final = GROUP.size
_ID_AT, _HEADER, _STAMP = 1, 5, 9
"""A key or value begins with 0 and a schema's id (u32, big-endian); a delete with 3 and its commit_ts."""
_DELETED: Final = 3
_FIRST_VERSION: Final = 1
_NO_SUM, _SUMMED = 0, 2
"""Branches of the union of a checksum, as Avro writes their numbers."""


class Fields(NamedTuple):
    """The fields of a record, a FIELD each."""

    at: int
    size: int
    """Of a value -1: deletes, whose key has the cells."""


class MessageCells(NamedTuple):
    """The cells of many messages, and what each message is."""

    starts: int
    """i64 each."""
    lengths: int
    """i32 each."""
    results: int
    """A RESULT each."""
    stride: int
    """Cells of a message."""


class Taken(NamedTuple):
    """One cell of the walked messages numbered in i64[row_count] `rows`."""

    row_count: int
    rows: int
    starts: int
    lengths: int
    stride: int
    cell: int


MAX_GROUPS: Final = 256
"""Groups of messages told apart at once; messages of others are left."""
MAX_DECIMAL: Final = 40
"""Bytes of a decimal at most, as in the plain decoder."""
LIMBS: Final = MAX_DECIMAL // 4

_TENTH: Final = U64(((1 << 64) - 1) // 10)
"""2**64 - 1 ends with a 5 behind these digits."""
_HIGH: Final = U64(0x8080808080808080)


# --- primitives: every one gives where it ended, 0 where it could not -----------------------------------


@inline
def read_varint(at: int, end: int) -> tuple[int, int]:
    """(an int or long, where it ended)."""
    value = U64(0)
    shift = 0
    while at < end:
        byte = I64(load_u8(at))
        at += 1
        if shift == 63 and byte > 1:
            return 0, 0
        value |= U64(byte & 0x7F) << U64(shift)
        if byte < 0x80:
            return I64(value >> U64(1)) ^ -I64(value & U64(1)), at
        shift += 7
    return 0, 0


@inline
def read_size(at: int, end: int) -> tuple[int, int]:
    """(the size of a string or bytes, where they begin); they are wholly there."""
    size, at = read_varint(at, end)
    if at == 0 or size < 0 or size > end - at:
        return 0, 0
    return size, at


@inline
def is_text(at: int, end: int) -> bool:
    """Whether the bytes are UTF-8."""
    while at < end:
        if at + 8 <= end and load_u64(at) & _HIGH == U64(0):
            at += 8
        elif load_u8(at) < 0x80:
            at += 1
        else:
            used = utf8_size(at, end - at)
            if used < 0:
                return False
            at += used
    return True


@inline
def read_digits(at: int, size: int) -> int:
    """An unsigned number of at most 18 digits; -1: it is longer, or none."""
    if size < 1 or size > 18:
        return -1
    value = 0
    for i in range(size):
        digit = I64(load_u8(at + i)) - ZERO
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@inline
def read_unsigned(at: int, size: int) -> tuple[int, bool]:
    """(the bits of an unsigned number of 64 bits, whether it is one)."""
    value = U64(0)
    for i in range(size):
        digit = I64(load_u8(at + i)) - ZERO
        last = i == 19 and (value > _TENTH or (value == _TENTH and digit > 5))
        if digit < 0 or digit > 9 or i > 19 or last:
            return 0, False
        value = value * U64(10) + U64(digit)
    return I64(value), size > 0


@inline
def read_bits(at: int, size: int) -> int:
    """At most 8 bytes, big-endian."""
    value = U64(0)
    for i in range(size):
        value = (value << U64(8)) | U64(load_u8(at + i))
    return I64(value)


@inline
def find_name(at: int, size: int, names: int, count: int) -> int:
    """The number of a name, from 1; 0: there is none, or the name has an escape's characters.

    names: a NAME each, as in `avro_kernels`.
    """
    for i in range(size):
        byte = I64(load_u8(at + i))
        if byte == APOSTROPHE or byte == BACKSLASH:
            return 0
    for i in range(count):
        entry = names + NAME_BYTES * i
        begin = names + I64(load_u32(entry + NAME_AT))
        if I64(load_u32(entry + NAME_SIZE)) == size and same_bytes(begin, at, size):
            return i + 1
    return 0


@inline
def find_names(at: int, size: int, names: int, count: int) -> int:
    """The mask of names with commas between; 0: one of them is not there, or all are empty."""
    mask = U64(0)
    first = at
    end = at + size
    while at <= end:
        if at == end or load_u8(at) == COMMA:
            number = find_name(first, at - first, names, count)
            if number == 0 or number > 64:
                return 0
            mask |= U64(1) << U64(number - 1)
            first = at + 1
        at += 1
    return I64(mask)


# --- records by a schema --------------------------------------------------------------------------------


@inline
def put_cell(starts: int, lengths: int, cell: int, word: int, size: int) -> None:
    """A cell that is not NULL."""
    store_u64(starts + 8 * cell, word)
    store_u32(lengths + 4 * cell, size)


@inline
def walk_sized(at: int, end: int, field: int, form: int, starts: int, lengths: int, result: int) -> int:
    """A field of text or bytes."""
    size, at = read_size(at, end)
    if at == 0:
        return 0
    stop = at + size
    cell = load_i64(field + F_CELL)
    if form in (TEXT, BYTES):
        if form == TEXT and not is_text(at, stop):
            return 0
        put_cell(starts, lengths, cell, at, size)
    elif form == DECIMAL:
        if size < 1 or size > MAX_DECIMAL:
            return 0
        put_cell(starts, lengths, cell, at, size)
    elif form == BIT:
        if size > 8:
            return 0
        put_cell(starts, lengths, cell, read_bits(at, size), 0)
    elif form == DIGITS:
        number, good = read_unsigned(at, size)
        if not good:
            return 0
        put_cell(starts, lengths, cell, number, 0)
    elif form == ENUM:
        number = find_name(at, size, load_i64(field + F_TABLE), load_i64(field + F_PARAM))
        if number == 0 and size > 0:
            return 0
        put_cell(starts, lengths, cell, number, 0)
    elif form == SET:
        mask = 0
        if size > 0:
            mask = find_names(at, size, load_i64(field + F_TABLE), load_i64(field + F_PARAM))
            if mask == 0:
                return 0
        put_cell(starts, lengths, cell, mask, 0)
    elif form == OPERATION:
        letter = I64(load_u8(at)) if size == 1 else 0
        if letter != LOWER_C and letter != LOWER_U and letter != LOWER_D:
            return 0
        if letter == LOWER_D:
            store_u64(result + R_OP, DELETE)
    elif form == SUM and size > 0:
        number = read_digits(at, size)
        if number < 0 or number > 0xFFFFFFFF:
            return 0
        store_u64(result + R_CURRENT, number if number > 0 else -1)
    return stop


@inline
def walk(at: int, end: int, plan: int, fields: int, starts: int, lengths: int, result: int) -> bool:
    """A record from behind the header to the last byte of the message."""
    field = plan
    last = plan + FIELD_BYTES * fields
    while field < last:
        null = load_i64(field + F_NULL)
        form = load_i64(field + F_FORM)
        here = field
        field += FIELD_BYTES
        if null >= 0:
            branch, at = read_varint(at, end)
            if at == 0 or branch < 0 or branch > 1:
                return False
            if branch == null:
                if form == RECORD:
                    field += FIELD_BYTES * load_i64(here + F_PARAM)
                continue
        if form == NUMBER:
            number, at = read_varint(at, end)
            if at == 0:
                return False
            put_cell(starts, lengths, load_i64(here + F_CELL), number, 0)
        elif form in (FLOAT, DOUBLE):
            size = 4 if form == FLOAT else 8
            if end - at < size:
                return False
            word = I64(load_u32(at)) if form == FLOAT else load_i64(at)
            put_cell(starts, lengths, load_i64(here + F_CELL), word, 0)
            at += size
        elif form == RECORD:
            store_u64(result + R_OLD, 1)
        elif form in (COMMIT_TS, SKIPPED_NUMBER):
            number, at = read_varint(at, end)
            if at == 0:
                return False
            if form == COMMIT_TS:
                store_u64(result + R_TS, number)
        elif form in (CORRUPTED, SKIPPED_BOOLEAN):
            # A row marked as corrupted is refused, in words.
            if at >= end or (form == CORRUPTED and load_u8(at) != 0):
                return False
            at += 1
        else:
            at = walk_sized(at, end, here, form, starts, lengths, result)
            if at == 0:
                return False
    return at == end


@inline
def is_headed(at: int, size: int) -> bool:
    """Whether a key or value names a schema."""
    return size >= _HEADER and load_u8(at) == 0


@kernel
def read_heads(message_count: int, spans: int, groups: int, found: int) -> int:
    """The group of each message: i32[message_count], -1 if it is left; how many groups there are.

    spans: a MESSAGE each. found: a GROUP for each of MAX_GROUPS.

    Reads the first bytes of keys and values. Writes `groups` and `found`. Bound: MAX_GROUPS groups; the
    messages of more are left. Twin: `tidegate.codec.protocols.avro.plain.schema_id`. Trick: the group of the
    message before is tried first.
    """
    count = 0
    last = 0
    for i in range(message_count):
        span = spans + MESSAGE_BYTES * i
        key = load_i64(span + MESSAGE_KEY)
        key_size = load_i64(span + MESSAGE_KEY_SIZE)
        value = load_i64(span + MESSAGE_VALUE)
        size = load_i64(span + MESSAGE_VALUE_SIZE)
        group = -1
        of_key = -1
        of_value = -1
        good = key_size < 0 or is_headed(key, key_size)
        if key_size >= 0 and good:
            of_key = I64(bswap64(U64(load_u32(key + _ID_AT))) >> U64(32))
        if size >= 0 and is_headed(value, size):
            of_value = I64(bswap64(U64(load_u32(value + _ID_AT))) >> U64(32))
        elif size >= 0 and (size != _STAMP or load_u8(value) != _DELETED):
            good = False
        if good and (of_key >= 0 or of_value >= 0):
            for k in range(count):
                number = last + k
                if number >= count:
                    number -= count
                one = found + _GROUP * number
                if load_i64(one + GROUP_KEY) == of_key and load_i64(one + GROUP_VALUE) == of_value:
                    group = number
                    break
            if group < 0 and count < MAX_GROUPS:
                group = count
                store_u64(found + _GROUP * count + GROUP_KEY, of_key)
                store_u64(found + _GROUP * count + GROUP_VALUE, of_value)
                count += 1
        if group >= 0:
            last = group
        store_u32(groups + 4 * i, group)
    return count


@kernel
def walk_records(
    row_count: int,
    rows: int,
    spans: int,
    of_key: Fields,
    of_value: Fields,
    columns: int,
    cells: MessageCells,
    spare: int,
) -> int:
    """The messages numbered in i64[row_count] `rows`, all of one group; how many were walked.

    spans: a MESSAGE each. cells: those of the i-th row come i-th; with room for two images the old one has
    its cells behind `columns`. spare: cells of a key whose message has a value; nobody reads them.

    Reads the messages. Writes cells and results, and `spare`. Bound: `stride` cells a message. Twin:
    `tidegate.codec.protocols.avro.plain.AvroDecoder.decode`.
    """
    stride = cells.stride
    walked = 0
    for i in range(row_count):
        span = spans + MESSAGE_BYTES * load_i64(rows + 8 * i)
        key = load_i64(span + MESSAGE_KEY)
        key_end = key + load_i64(span + MESSAGE_KEY_SIZE)
        value = load_i64(span + MESSAGE_VALUE)
        size = load_i64(span + MESSAGE_VALUE_SIZE)
        words = cells.starts + 8 * stride * i
        sizes = cells.lengths + 4 * stride * i
        result = cells.results + RESULT_BYTES * i
        for cell in range(stride):
            store_u32(sizes + 4 * cell, NULL)
        store_u64(result + R_OP, 0)
        store_u64(result + R_TS, 0)
        store_u64(result + R_CURRENT, -1)
        store_u64(result + R_PREVIOUS, -1)
        store_u64(result + R_OLD, 0)
        if of_value.size < 0:
            if not walk(key + _HEADER, key_end, of_key.at, of_key.size, words, sizes, result):
                continue
            store_u64(result + R_OP, DELETE)
            if size >= 0:
                store_u64(result + R_TS, bswap64(load_u64(value + _ID_AT)))
            walked += 1
            continue
        spare_sizes = spare + 8 * of_key.size
        if of_key.size > 0 and not walk(
            key + _HEADER, key_end, of_key.at, of_key.size, spare, spare_sizes, result
        ):
            continue
        if not walk(value + _HEADER, value + size, of_value.at, of_value.size, words, sizes, result):
            store_u64(result + R_OP, 0)
            continue
        if load_i64(result + R_OP) == DELETE:
            # A delete with its whole row, which is the old image: as TiCDC's new architecture sends it.
            if stride < 2 * columns:
                store_u64(result + R_OP, 0)
                continue
            for c in range(columns):
                size = I64(load_i32(sizes + 4 * c))
                put_cell(words, sizes, columns + c, load_i64(words + 8 * c), size)
                store_u32(sizes + 4 * c, NULL)
            store_u64(result + R_PREVIOUS, load_i64(result + R_CURRENT))
            store_u64(result + R_CURRENT, -1)
        else:
            store_u64(result + R_OP, UPDATE if load_i64(result + R_OLD) else INSERT)
        walked += 1
    return walked


# --- simple's rows --------------------------------------------------------------------------------------

COLUMN: Final = Layout(
    "simple column", "C_", "A column of simple's plan.",
    name=pointer("its name"),
    size=signed("of the name", "bytes"),
    form=signed("what it is, see SIGNED and the others"),
    next=signed("of the n-th, the column whose name is the n-th in the order of their bytes"),
)  # fmt: skip
COLUMN_WORDS: Final = len(COLUMN.fields)
COLUMN_BYTES: Final = COLUMN.size
C_NAME, C_SIZE, C_FORM, C_NEXT = COLUMN.offsets()


class ColumnTable(NamedTuple):
    """The columns of a table version, and the way to them."""

    columns: int
    """A COLUMN each."""
    column_count: int
    table: int
    """i32[1 << bits], columns by the hash of their names; -1: none."""
    bits: int


class Zone(NamedTuple):
    """The name of the only time zone whose moments are taken."""

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
    """A U64 whose upper bits spread names; reads nothing beyond the name."""
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
    """`hash_name` as Python fills the table of a plan with it.

    Reads the name. Writes nothing. Bound: `size` bytes. Twin: none, because a table must be filled with the
    very hash by which `find_column` searches it.
    """
    return I64(hash_name(at, size) >> U64(32))


@inline
def find_column(at: int, size: int, nth: int, plan: ColumnTable) -> int:
    """The column of a name, -1 if there is none: that of the n-th name first, as we write them."""
    if nth < plan.column_count:
        column = load_i64(plan.columns + COLUMN_BYTES * nth + C_NEXT)
        entry = plan.columns + COLUMN_BYTES * column
        if load_i64(entry + C_SIZE) == size and same_bytes(load_i64(entry + C_NAME), at, size):
            return column
    place = I64(hash_name(at, size) >> U64(32)) & ((1 << plan.bits) - 1)
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
    """A value of a column; where it ended, 0 if it is not what this column's usually is."""
    branch, at = read_varint(at, end)
    if at == 0:
        return 0
    if branch == _IS_NULL:
        store_u32(lengths + 4 * cell, NULL)
        return at
    if form in (SIGNED, UNSIGNED):
        if branch in (_LONG, _UNSIGNED):
            number, at = read_varint(at, end)
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
    if at == 0 or (form != BINARY and not is_text(at, at + size)):
        return 0
    put_cell(starts, lengths, cell, at, size)
    return at + size


@inline
def walk_map(
    at: int, end: int, base: int, plan: ColumnTable, starts: int, lengths: int, zone: Zone
) -> tuple[int, int]:
    """(how many entries, where a map ended) of an image whose cells begin at `base`."""
    entries = 0
    while True:
        count, at = read_varint(at, end)
        if at == 0:
            return 0, 0
        if count == 0:
            return entries, at
        if count < 0:
            count = -count
            _size, at = read_varint(at, end)
            if at == 0:
                return 0, 0
        # Two entries of one name are left, so that there are never more than columns.
        if count < 0 or count > plan.column_count - entries:
            return 0, 0
        for _ in range(count):
            size, at = read_size(at, end)
            if at == 0:
                return 0, 0
            column = find_column(at, size, entries, plan)
            if column < 0 or I64(load_i32(lengths + 4 * (base + column))) != _MISSING:
                return 0, 0
            form = load_i64(plan.columns + COLUMN_BYTES * column + C_FORM)
            at = walk_value(at + size, end, form, base + column, starts, lengths, zone)
            if at == 0:
                return 0, 0
            entries += 1


@inline
def read_row(at: int, end: int, head: int) -> bool:
    """The head of a row's message, behind its first three bytes; False: it is left."""
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
    kind, at = read_varint(at, end if at != 0 else 0)
    ts, at = read_varint(at, end if at != 0 else 0)
    _build, at = read_varint(at, end if at != 0 else 0)
    table_version, at = read_varint(at, end if at != 0 else 0)
    # Neither a claim check, nor a message of the key only.
    if at == 0 or kind < 0 or kind > 2 or table_id < 0 or end - at < 3:
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
    store_u64(head + H_OP, kind + 1)
    store_u64(head + H_TS, ts)
    store_u64(head + H_AT, at)
    store_u64(head + H_CURRENT, current if current > 0 else -1)
    store_u64(head + H_PREVIOUS, previous if previous > 0 else -1)
    store_u64(head + H_TABLE_ID, table_id)
    store_u64(head + H_VERSION, table_version)
    return True


@inline
def same_table(left: int, right: int) -> bool:
    """Whether two heads name one table version."""
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
"""How a row of simple begins: the branches of its unions, as Avro writes them."""


@inline
def is_row(value: int) -> bool:
    """Whether a message of at least three bytes begins as one of simple's rows."""
    return load_u8(value) == _ROW_FIRST and load_u16(value + 1) == _ROW_REST


@kernel
def read_rows(message_count: int, spans: int, heads: int, firsts: int) -> int:
    """The heads of messages, HEAD_BYTES each; how many groups there are.

    spans: a MESSAGE each. firsts: i64[MAX_GROUPS], the first message of each group.

    Reads the messages up to their images. Writes `heads` and `firsts`. Bound: MAX_GROUPS groups; the messages
    of more are left. Twin: `tidegate.codec.protocols.simple.plain.SimpleDecoder.row_key`. Trick: the group of
    the message before is tried first.
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
    """Take for the old image what it leaves out from the new one; False: the new one has it not either."""
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
    """The messages numbered in i64[row_count] `rows`, all of one group; how many were walked.

    A message must have all the columns of the plan and no other; `cells` has twice as many cells, and one.

    Reads the messages from where their heads end. Writes cells and results. Bound: `stride` cells a message.
    Twin: `tidegate.codec.protocols.simple.plain.SimpleDecoder.decode`. Trick: the n-th column is looked for
    where the n-th name of our own messages is.
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
        for cell in range(2 * columns):
            store_u32(sizes + 4 * cell, _MISSING)
        good = True
        for side in range(2):
            wanted = op != DELETE if side == 0 else op != INSERT
            branch, at = read_varint(at, end if good else 0)
            if at == 0 or branch != (1 if wanted else 0):
                good = False
            elif wanted:
                entries, at = walk_map(at, end, side * columns, plan, words, sizes, zone)
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


# --- columns --------------------------------------------------------------------------------------------


@kernel
def take_words(of: Taken, out: int, valid: int) -> int:
    """A column of numbers: i64[row_count] and u8[row_count] validity; the nulls.

    Reads one cell of each row. Writes `out` and `valid`. Bound: a word and a byte a row. Twin:
    `tidegate.codec.protocols.avro.plain.AvroDecoder.decode`, whose values
    `tests.contracts.test_codecs.test_golden_rows_decode_alike_and_to_what_was_encoded` compares.
    """
    nulls = 0
    for i in range(of.row_count):
        cell = load_i64(of.rows + 8 * i) * of.stride + of.cell
        present = I64(load_i32(of.lengths + 4 * cell)) >= 0
        store_u8(valid + i, 1 if present else 0)
        store_u64(out + 8 * i, load_i64(of.starts + 8 * cell) if present else 0)
        nulls += 0 if present else 1
    return nulls


@kernel
def measure_spans(of: Taken) -> int:
    """The bytes of a column of text or bytes.

    Reads the length of one cell of each row. Writes nothing. Bound: `row_count` cells. Twin: none, because it
    adds up what `take_spans` copies from the same cells.
    """
    total = 0
    for i in range(of.row_count):
        size = I64(load_i32(of.lengths + 4 * (load_i64(of.rows + 8 * i) * of.stride + of.cell)))
        total += max(size, 0)
    return total


@kernel
def take_spans(of: Taken, out: int, ends: int, valid: int) -> int:
    """A column of text or bytes: its bytes, i32[row_count] ends and u8[row_count] validity; the nulls.

    Reads one cell of each row, and the bytes it points to. Writes `out`, `ends` and `valid`. Bound: what
    `measure_spans` says, in `out`. Twin: `tidegate.codec.protocols.avro.plain.AvroDecoder.decode`, whose
    values `tests.contracts.test_codecs.test_golden_rows_decode_alike_and_to_what_was_encoded` compares.
    """
    nulls = 0
    data = out
    for i in range(of.row_count):
        cell = load_i64(of.rows + 8 * i) * of.stride + of.cell
        size = I64(load_i32(of.lengths + 4 * cell))
        store_u8(valid + i, 1 if size >= 0 else 0)
        if size >= 0:
            copy_bytes(out, load_i64(of.starts + 8 * cell), size)
            out += size
        else:
            nulls += 1
        store_u32(ends + 4 * i, out - data)
    return nulls


@inline
def put_limbs_text(out: int, limbs: int) -> int:
    """The digits of LIMBS words, the lowest first, which are zero afterwards; no digit for zero."""
    chunks = limbs + 4 * LIMBS
    count = 0
    top = LIMBS
    while top > 0:
        if load_u32(limbs + 4 * (top - 1)) == 0:
            top -= 1
            continue
        rest = U64(0)
        for back in range(top):
            at = limbs + 4 * (top - 1 - back)
            rest = (rest << U64(32)) | U64(load_u32(at))
            store_u32(at, I64(rest // U64(1_000_000_000)))
            rest = rest % U64(1_000_000_000)
        store_u32(chunks + 4 * count, I64(rest))
        count += 1
    for back in range(count):
        word = I64(load_u32(chunks + 4 * (count - 1 - back)))
        if back == 0:
            out = put_u64(out, U64(word))
        else:
            for digit in range(9):
                store_u8(out + 8 - digit, ZERO + word % 10)
                word //= 10
            out += 9
    return out


@inline
def put_unscaled(out: int, at: int, size: int, limbs: int) -> tuple[int, bool]:
    """(the end of the digits, whether it is negative) of a two's complement, big-endian."""
    negative = load_u8(at) >= 0x80
    if size <= 8:
        shift = U64(64 - 8 * size)
        number = I64(U64(read_bits(at, size)) << shift) >> I64(shift)
        return put_u64(out, U64(-number if negative else number)), negative
    for i in range(LIMBS):
        store_u32(limbs + 4 * i, 0)
    carry = 1
    for i in range(size):
        byte = I64(load_u8(at + size - 1 - i))
        if negative:
            byte = (byte ^ 0xFF) + carry
            carry = byte >> 8
            byte &= 0xFF
        store_u8(limbs + i, byte)
    return put_limbs_text(out, limbs), negative


@kernel
def take_decimals(of: Taken, scale: int, scratch: int, out: int, ends: int, valid: int) -> int:
    """A column of decimals in bytes, as text: bytes, ends and validity as in `take_spans`; the nulls.

    Reads one cell of each row, and the bytes it points to. Writes `out`, `ends` and `valid`, and 512 bytes of
    `scratch` on the way. Bound: three bytes for each of `measure_spans` and `scale` + 4 a row, in `out`.
    Twin: `tidegate.codec.protocols.avro.plain.AvroDecoder.decode`;
    `tests.codec.test_avro.test_decimals_of_any_size_come_back` compares the texts. Trick: up to 8 bytes are
    one number in a register.
    """
    nulls = 0
    data = out
    for i in range(of.row_count):
        cell = load_i64(of.rows + 8 * i) * of.stride + of.cell
        size = I64(load_i32(of.lengths + 4 * cell))
        store_u8(valid + i, 1 if size >= 0 else 0)
        if size >= 0:
            digits = scratch + 128
            end, negative = put_unscaled(digits, load_i64(of.starts + 8 * cell), size, scratch)
            count = end - digits
            if negative:
                store_u8(out, MINUS)
                out += 1
            whole = count - scale
            if whole > 0:
                copy_bytes(out, digits, whole)
                out += whole
            else:
                store_u8(out, ZERO)
                out += 1
            if scale > 0:
                store_u8(out, POINT)
                out += 1
                for _ in range(max(-whole, 0)):
                    store_u8(out, ZERO)
                    out += 1
                tail = min(count, scale)
                copy_bytes(out, end - tail, tail)
                out += tail
        else:
            nulls += 1
        store_u32(ends + 4 * i, out - data)
    return nulls


def warm() -> None:
    """Compile what is not in numba's cache yet, over no rows."""
    spare = np.zeros(8, dtype=np.int64)
    read_heads(0, 0, 0, 0)
    walk_records(0, 0, 0, Fields(0, 0), Fields(0, 0), 0, MessageCells(0, 0, 0, 1), 0)
    name_hash(spare.ctypes.data, 8)
    read_rows(0, 0, 0, 0)
    walk_rows(0, 0, 0, 0, ColumnTable(0, 0, 0, 1), Zone(0, 0), MessageCells(0, 0, 0, 1))
    taken = Taken(0, 0, 0, 0, 1, 0)
    take_words(taken, 0, 0)
    measure_spans(taken)
    take_spans(taken, 0, 0, 0)
    take_decimals(taken, 0, 0, 0, 0, 0)
