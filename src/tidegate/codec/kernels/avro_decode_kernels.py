"""Decode kernels for records in Avro (protocol avro): messages in, the words of their cells out.

`read_heads` groups messages that have the same schemas. `walk_records` walks a group's messages once, by a
plan made from these schemas. A message that does not follow the plan, or needs a check that only the plain
decoder makes, is left to the plain decoder: its operation in `results` is 0.

Every address is an int64. All reads stay inside the message, all writes inside the cells of its row. Plain
twin: `codec.protocols.avro.plain.AvroDecoder`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.codec.kernels.avro_read_kernels import (
    MAX_DECIMAL,
    MAX_GROUPS,
    NULL,
    R_CURRENT,
    R_OLD,
    R_OP,
    R_PREVIOUS,
    R_TS,
    RESULT_BYTES,
    MessageCells,
    find_name,
    find_names,
    put_cell,
    read_bits,
    read_digits,
    read_size,
    read_unsigned,
    read_varint,
)
from tidegate.codec.kernels.layout_kernels import (
    MESSAGE_BYTES,
    MESSAGE_KEY,
    MESSAGE_KEY_SIZE,
    MESSAGE_VALUE,
    MESSAGE_VALUE_SIZE,
)
from tidegate.kernel import (
    bswap64,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import LOWER_C, LOWER_D, LOWER_U
from tidegate.kernel_layout import Layout, pointer, signed
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.tidb.kernels.json_string import is_utf8
from tidegate.tidb.kernels.text import I64, U64

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
RECORD: Final = 10  # the old image: if it is present, its F_PARAM fields follow this one
# Forms of fields that are not columns:
SKIPPED_TEXT: Final = 20
SKIPPED_NUMBER: Final = 21
SKIPPED_BOOLEAN: Final = 22
OPERATION: Final = 23
COMMIT_TS: Final = 24
SUM: Final = 25
CORRUPTED: Final = 26

GROUP: Final = Layout(
    "avro group", "GROUP_", "The common parts of a group's messages.",
    key=signed("the id of the key's schema; -1: no key"),
    value=signed("the id of the value's schema; -1: a delete"),
)  # fmt: skip
GROUP_KEY, GROUP_VALUE = GROUP.offsets()
_GROUP: Final = GROUP.size
_ID_AT, _HEADER, _STAMP = 1, 5, 9
"""A key or value begins with 0 and a schema id (u32, big-endian); a delete's value with 3 and its
commit_ts."""
_DELETED: Final = 3


class Fields(NamedTuple):
    """The fields of a record, an array of FIELD."""

    at: int
    size: int
    """For a value, -1: the group's messages are deletes, whose keys have the cells."""


class GroupRecords(NamedTuple):
    """The records in the messages of a group."""

    key: Fields
    value: Fields
    columns: int
    """The columns of the table, which are the cells of one image."""


@inline
def walk_sized(at: int, end: int, field: int, form: int, starts: int, lengths: int, result: int) -> int:
    """Walk a field of text or bytes; returns its end, 0 if the plain decoder must decide."""
    size, at = read_size(at, end)
    if at == 0:
        return 0
    stop = at + size
    cell = load_i64(field + F_CELL)
    if form in (TEXT, BYTES):
        if form == TEXT and not is_utf8(at, stop):
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
        # The empty name is the number 0, which MySQL stores for a value that is none of the names.
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
    """Walk a record, from after the header to the message's end; False: left to the plain decoder."""
    field = plan
    last = plan + FIELD_BYTES * fields
    while field < last:
        null = load_i64(field + F_NULL)
        form = load_i64(field + F_FORM)
        here = field
        field += FIELD_BYTES
        if null >= 0:
            branch, at = read_varint(at, end)
            # A union here has null and one type. F_NULL says which of the two is null.
            if at == 0 or branch < 0 or branch > 1:
                return False
            if branch == null:
                if form == RECORD:
                    # An old image that is absent has no bytes, so its fields are skipped in the plan.
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
            # A row marked as corrupted is left to the plain decoder, which refuses it with a reason in words.
            if at >= end or (form == CORRUPTED and load_u8(at) != 0):
                return False
            at += 1
        else:
            at = walk_sized(at, end, here, form, starts, lengths, result)
            if at == 0:
                return False
    # Bytes that are left mean another schema, or a damaged message.
    return at == end


@inline
def is_headed(at: int, size: int) -> bool:
    """Whether a key or value begins with the id of a schema."""
    return size >= _HEADER and load_u8(at) == 0


@kernel
def read_heads(message_count: int, spans: int, groups: int, found: int) -> int:
    """The group of each message: i32[message_count], -1 if it is left out; returns the number of groups.

    spans: an array of MESSAGE. found: space for MAX_GROUPS of GROUP.

    Reads the first bytes of keys and values. Writes `groups` and `found`. Bound: MAX_GROUPS groups; messages
    of further groups are left out. Twin: `tidegate.codec.protocols.avro.plain.schema_id`. Trick: the group of
    the previous message is tried first.
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
            # A swap of 64 bits brings the four bytes, in order, into the upper half.
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
            # The bound also keeps the search short, because it is linear.
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
    row_count: int, rows: int, spans: int, records: GroupRecords, cells: MessageCells, spare: int
) -> int:
    """Walk the messages numbered in i64[row_count] `rows`, all of one group; returns how many succeeded.

    spans: an array of MESSAGE. cells: those of row number i are at place i; if there is space for two images,
    the old one has its cells after those of the new one. spare: takes the cells of a key whose message has a
    value, which are not used.

    Reads the messages. Writes cells and results, and `spare`. Bound: `stride` cells a message. Twin:
    `tidegate.codec.protocols.avro.plain.AvroDecoder.decode`.
    """
    stride, columns = cells.stride, records.columns
    of_key, of_value = records.key, records.value
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
        # NULL first: fields that the message leaves out are not walked.
        for cell in range(stride):
            store_u32(sizes + 4 * cell, NULL)
        # The operation stays 0 until the whole message was walked. If a step below gives up, the plain
        # decoder takes the message.
        store_u64(result + R_OP, 0)
        store_u64(result + R_TS, 0)
        store_u64(result + R_CURRENT, -1)
        store_u64(result + R_PREVIOUS, -1)
        store_u64(result + R_OLD, 0)
        if of_value.size < 0:
            if not walk(key + _HEADER, key_end, of_key.at, of_key.size, words, sizes, result):
                continue
            store_u64(result + R_OP, DELETE)
            # `read_heads` accepts such a value only with exactly _STAMP bytes, so the eight bytes of the ts
            # are there.
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
            # The walk may have stored a delete before it failed.
            store_u64(result + R_OP, 0)
            continue
        if load_i64(result + R_OP) == DELETE:
            # A delete with its whole row, as TiCDC's new architecture sends it: the row is the old image.
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


def warm() -> None:
    """Compile kernels that are not in numba's cache yet, by calling them with no rows."""
    read_heads(0, 0, 0, 0)
    walk_records(0, 0, 0, GroupRecords(Fields(0, 0), Fields(0, 0), 0), MessageCells(0, 0, 0, 1), 0)
