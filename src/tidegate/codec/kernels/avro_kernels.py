"""Encode kernel of avro, and of simple in Avro: from cells directly to keys and values in Avro's binary form.

The plan is that of `codec.plan`: pieces for the key, then for each operation. Here a piece consists of a
constant (before the first value the message's header, before an old row the branch of its union, otherwise
usually empty), the branch of a union (`P_TAIL`, or `P_NULL` for NULL) and a value in one of the forms below.
Enums and sets have a table of `P_PARAM` names among the plan's constants (`P_OPEN`): NAME entries first, then
the texts.

    data = [ key of row 0 | its value | key of row 1 | ... ]

An operation without pieces has a null value; a table whose key has no pieces has null keys. Before each row
the kernel checks that its worst case fits, as in `codec.kernels.encode_kernels`. Plain twins:
`codec.protocols.avro.plain.AvroEncoder` and `codec.protocols.simple.avro_write.row`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np

from tidegate.codec.kernels.avro_decimal_kernels import put_decimal_bytes
from tidegate.codec.kernels.encode_kernels import Span, end_message, null_span
from tidegate.codec.kernels.job_kernels import (
    DONE,
    J_AT,
    J_BUILD,
    J_COMMIT_TS,
    J_DATA,
    J_MAX_BYTES,
    J_MESSAGES,
    J_NEED,
    J_NEW_SIZES,
    J_NEW_STRIDE,
    J_NEW_WORDS,
    J_OLD_SIZES,
    J_OLD_STRIDE,
    J_OLD_WORDS,
    J_OP,
    J_OUT,
    J_PHYSICAL,
    J_PIECES,
    J_ROOM,
    J_ROWS,
    J_SCRATCH,
    J_STACK,
    J_VARIABLES,
    JOB_WORDS,
    NEED_ROOM,
    RECORD_OVERHEAD,
    TOO_LARGE,
)
from tidegate.codec.kernels.layout_kernels import NAME_AT, NAME_BYTES, NAME_SIZE, RUN_AT, RUN_BYTES, RUN_SIZE
from tidegate.codec.kernels.piece_kernels import (
    CONSTANT,
    P_CELL,
    P_CONST,
    P_FORM,
    P_IMAGE,
    P_LENGTH,
    P_NULL,
    P_NULL_BACK,
    P_OPEN,
    P_PARAM,
    P_TAIL,
    PIECE_BYTES,
)
from tidegate.codec.kernels.row_kernels import (
    CORRUPTED_AT,
    CURRENT_AT,
    PREVIOUS_AT,
    VERSION_AT,
    checksum_of,
    row_bound,
)
from tidegate.codec.kernels.text_kernels import put_const, put_short, put_vector
from tidegate.kernel import (
    bswap64,
    copy_bytes,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import COMMA
from tidegate.model.cells import DELETE, INSERT
from tidegate.model.timestamp import LOGICAL_BITS
from tidegate.tidb.kernels.float import single_bits
from tidegate.tidb.kernels.json import put_json
from tidegate.tidb.kernels.text import (
    I64,
    U64,
    put_date,
    put_datetime,
    put_decimal,
    put_duration,
    put_u64,
)

# Forms of a piece, in addition to those of `piece_kernels`.
VARINT: Final = 40
BYTES: Final = 41
DOUBLE: Final = 42
FLOAT: Final = 43
DATE: Final = 44
DATETIME: Final = 45
TIME: Final = 46
UINT_TEXT: Final = 47
DECIMAL_TEXT: Final = 48
DECIMAL_BYTES: Final = 49
BIT: Final = 50
ENUM: Final = 51
SET: Final = 52
JSON: Final = 53
VECTOR: Final = 54
OF_ROW: Final = 60
"""From here on, forms for values that belong to the row and not to a column."""
COMMIT_TS: Final = 60
PHYSICAL_MS: Final = 61
STAMP: Final = 62
"""The commit ts, u64 big-endian."""
CHECKSUM_MEMBERS: Final = 63
"""A row's checksum in avro's form: the digits of its sum, or an empty text; corrupted; version."""
CHECKSUM_RECORD: Final = 64
"""A row's checksum in simple's form: a union of null and a record of version, corrupted, current,
previous."""
BUILD_MS: Final = 65
PHYSICAL_ID: Final = 66

SIZES: Final = MappingProxyType({DECIMAL_TEXT: 112, BYTES: 16, ENUM: 16, SET: 16, JSON: 80, VECTOR: 80})
"""Bounds in bytes for values whose bound is not 64. The last five are in addition to `FACTORS` and names."""
FACTORS: Final = MappingProxyType({BYTES: 1, JSON: 8, VECTOR: 16})
"""Most bytes of text per byte of a value of variable size."""


@inline
def put_varint(out: int, value: int) -> int:
    """An int or long, zigzag: at most 10 bytes."""
    # The signed shift gives all ones for a negative number. As U64 the rest then falls to 0, so the loop
    # ends.
    rest = U64((value << 1) ^ (value >> 63))
    while rest > U64(0x7F):
        store_u8(out, I64(rest & U64(0x7F)) | 0x80)
        rest >>= U64(7)
        out += 1
    store_u8(out, I64(rest))
    return out + 1


@inline
def put_sized(out: int, addr: int, size: int) -> int:
    """Bytes, preceded by their length."""
    out = put_varint(out, size)
    copy_bytes(out, addr, size)
    return out + size


@inline
def put_bit(out: int, value: int, least: int) -> int:
    """A BIT, big-endian, without leading zero bytes, but at least `least` bytes and at least one."""
    size = max(least, 1)
    while size < 8 and U64(value) >> U64(8 * size) != U64(0):
        size += 1
    store_u8(out, 2 * size)
    # All eight bytes are stored, of which `size` count; the next value overwrites the others.
    store_u64(out + 1, bswap64(U64(value) << U64(64 - 8 * size)))
    return out + 1 + size


@inline
def put_enum(out: int, index: int, names: int, count: int) -> int:
    """The name of an element; empty for 0, and for a number that the enum does not have."""
    if index < 1 or index > count:
        store_u8(out, 0)
        return out + 1
    entry = names + NAME_BYTES * (index - 1)
    return put_sized(out, names + I64(load_u32(entry + NAME_AT)), I64(load_u32(entry + NAME_SIZE)))


@inline
def put_set(out: int, mask: int, names: int, count: int) -> int:
    """The names of a mask's elements, separated by commas; bits without an element are left out."""
    # Avro has the size first, so the names are added up before any is written. The first has no comma.
    size = -1
    for bit in range(count):
        if U64(mask) >> U64(bit) & U64(1) != U64(0):
            size += I64(load_u32(names + NAME_BYTES * bit + NAME_SIZE)) + 1
    out = put_varint(out, max(size, 0))
    first = True
    for bit in range(count):
        if U64(mask) >> U64(bit) & U64(1) != U64(0):
            if not first:
                store_u8(out, COMMA)
                out += 1
            first = False
            length = I64(load_u32(names + NAME_BYTES * bit + NAME_SIZE))
            copy_bytes(out, names + I64(load_u32(names + NAME_BYTES * bit + NAME_AT)), length)
            out += length
    return out


@inline
def put_short_text(out: int, end: int) -> int:
    """Write the length, into the byte at `out`, of a text of at most 63 bytes that follows it."""
    store_u8(out, 2 * (end - out - 1))
    return end


@inline
def put_checksum_members(out: int, job: int, op: int, row: int) -> int:
    """Text, boolean and int: at most 22 bytes. For a delete it is the sum of the old image."""
    found = checksum_of(job, row)
    if found == 0:
        # An empty text, false and the version 0 are three zero bytes; the fourth is overwritten.
        store_u32(out, 0)
        return out + 3
    out = put_short_text(
        out, put_u64(out + 1, U64(load_u32(found + (PREVIOUS_AT if op == DELETE else CURRENT_AT))))
    )
    store_u8(out, load_u8(found + CORRUPTED_AT))
    return put_varint(out + 1, I64(load_u8(found + VERSION_AT)))


@inline
def put_checksum_record(out: int, job: int, op: int, row: int) -> int:
    """A union: at most 14 bytes. The sum of an image that the row does not have is 0."""
    found = checksum_of(job, row)
    store_u8(out, 0 if found == 0 else 2)
    out += 1
    if found == 0:
        return out
    out = put_varint(out, I64(load_u8(found + VERSION_AT)))
    store_u8(out, load_u8(found + CORRUPTED_AT))
    out = put_varint(out + 1, 0 if op == DELETE else I64(load_u32(found + CURRENT_AT)))
    return put_varint(out, 0 if op == INSERT else I64(load_u32(found + PREVIOUS_AT)))


@inline
def put_of_row(out: int, form: int, job: int, op: int, row: int) -> int:
    """A value of the row itself, not of a column."""
    if form == CHECKSUM_MEMBERS:
        return put_checksum_members(out, job, op, row)
    if form == CHECKSUM_RECORD:
        return put_checksum_record(out, job, op, row)
    if form == BUILD_MS:
        return put_varint(out, load_i64(job + J_BUILD))
    if form == PHYSICAL_ID:
        return put_varint(out, load_i64(load_i64(job + J_PHYSICAL) + 8 * row))
    ts = load_u64(load_i64(job + J_COMMIT_TS) + 8 * row)
    if form == COMMIT_TS:
        return put_varint(out, I64(ts))
    if form == PHYSICAL_MS:
        return put_varint(out, I64(ts >> U64(LOGICAL_BITS)))
    store_u64(out, bswap64(ts))
    return out + 8


@inline
def put_avro(out: int, piece: int, form: int, word: int, size: int, scratch: int, stack: int) -> int:
    """A value that is not NULL. The most common forms are tested first."""
    if form == VARINT:
        return put_varint(out, word)
    if form == BYTES:
        return put_sized(out, word, size)
    param = load_i64(piece + P_PARAM)
    if form == DATETIME:
        return put_short_text(out, put_datetime(out + 1, word, param))
    if form == DECIMAL_BYTES:
        return put_decimal_bytes(out, word, param, scratch)
    if form == DATE:
        return put_short_text(out, put_date(out + 1, word))
    if form == TIME:
        return put_short_text(out, put_duration(out + 1, word, param))
    if form == DOUBLE:
        store_u64(out, word)
        return out + 8
    if form == FLOAT:
        store_u32(out, I64(single_bits(word)))
        return out + 4
    if form == BIT:
        return put_bit(out, word, param)
    if form == ENUM:
        return put_enum(out, word, load_i64(piece + P_OPEN), param)
    if form == SET:
        return put_set(out, word, load_i64(piece + P_OPEN), param)
    if form == UINT_TEXT:
        return put_short_text(out, put_u64(out + 1, U64(word)))
    if form == DECIMAL_TEXT:
        return put_sized(out, scratch, put_decimal(scratch, word, size) - scratch)
    if form == JSON:
        return put_sized(out, scratch, put_json(scratch, word, size, stack) - scratch)
    return put_sized(out, scratch, put_vector(scratch, word, size) - scratch)


@inline
def put_members(out: int, job: int, number: int, op: int, row: int) -> int:
    """Write all pieces of the key (number 0) or of an operation.

    In a delete, a piece of the new image uses the old image: for the key, and for avro's only image.
    """
    old_words = load_i64(job + J_OLD_WORDS) + 8 * row * load_i64(job + J_OLD_STRIDE)
    old_sizes = load_i64(job + J_OLD_SIZES) + 4 * row * load_i64(job + J_OLD_STRIDE)
    new_words = load_i64(job + J_NEW_WORDS) + 8 * row * load_i64(job + J_NEW_STRIDE)
    new_sizes = load_i64(job + J_NEW_SIZES) + 4 * row * load_i64(job + J_NEW_STRIDE)
    if op == DELETE:
        new_words = old_words
        new_sizes = old_sizes
    scratch = load_i64(job + J_SCRATCH)
    stack = load_i64(job + J_STACK)
    pieces = load_i64(job + J_PIECES) + RUN_BYTES * number
    piece = load_i64(pieces + RUN_AT)
    last = piece + PIECE_BYTES * load_i64(pieces + RUN_SIZE)
    while piece < last:
        form = load_i64(piece + P_FORM)
        length = load_i64(piece + P_LENGTH)
        if length > 0:
            out = put_const(out, load_i64(piece + P_CONST), length)
        if form >= OF_ROW:
            out = put_of_row(out, form, job, op, row)
        elif form != CONSTANT:
            cell = load_i64(piece + P_CELL)
            old = load_i64(piece + P_IMAGE) != 0
            size = I64(load_i32((old_sizes if old else new_sizes) + 4 * cell))
            # The constant ends with the branch of the union for a value. NULL has another branch and no
            # value, so it goes back over that.
            if size < 0:
                out = put_short(out - load_i64(piece + P_NULL_BACK), load_i64(piece + P_NULL))
            else:
                word = load_i64((old_words if old else new_words) + 8 * cell)
                out = put_short(out, load_i64(piece + P_TAIL))
                out = put_avro(out, piece, form, word, size, scratch, stack)
        piece += PIECE_BYTES
    return out


@kernel
def encode_avro(job: int) -> int:
    """One message per row, its key before its value; returns DONE, or why it stopped at the row J_AT.

    Reads cells, plan and job. Writes data, the messages' columns and the job's state. Bound: J_ROOM, compared
    with the worst case of each row before it is written. Twins:
    `tidegate.codec.protocols.avro.plain.AvroEncoder.encode_rows` and
    `tidegate.codec.protocols.simple.avro_write.row`. Trick: digits of at most 64 bits stay in a register.
    """
    data = load_i64(job + J_DATA)
    end = data + load_i64(job + J_ROOM)
    out = data + load_i64(job + J_OUT)
    rows = load_i64(job + J_ROWS)
    ops = load_i64(job + J_OP)
    pieces = load_i64(job + J_PIECES)
    limit = load_i64(job + J_MAX_BYTES) - RECORD_OVERHEAD
    keyed = load_i64(pieces + RUN_SIZE) > 0
    row = load_i64(job + J_AT)
    status = DONE
    while row < rows:
        op = I64(load_u8(ops + row))
        bound = row_bound(job, op, row, end - out)
        if out + bound > end:
            store_u64(job + J_NEED, bound)
            status = NEED_ROOM
            break
        key = out
        start = put_members(key, job, 0, op, row) if keyed else key
        valued = load_i64(pieces + RUN_BYTES * op + RUN_SIZE) > 0
        out = put_members(start, job, op, op, row) if valued else start
        # Compared with the bytes that were written, because the bound above is only an upper limit.
        if out - key > limit:
            store_u64(job + J_NEED, out - key + RECORD_OVERHEAD)
            status = TOO_LARGE
            break
        named = Span(key, start) if keyed else null_span(data)
        # A delete without a value begins at 0 and has the length -1.
        written = Span(start, out) if valued else Span(data, data - 1)
        end_message(job, row, named, written, row, 1)
        row += 1
    store_u64(job + J_OUT, out - data)
    store_u64(job + J_AT, row)
    store_u64(job + J_MESSAGES, row)
    return status


def warm() -> None:
    """Compile kernels that are not in numba's cache yet, by calling them with no rows."""
    job = np.zeros(JOB_WORDS, dtype=np.int64)
    none = np.zeros(8, dtype=np.int64)
    job[J_VARIABLES // 8] = job[J_PIECES // 8] = none.ctypes.data
    encode_avro(job.ctypes.data)
