"""Encode kernels: from slots straight to the bytes of messages, whatever the protocol.

A table's *plan* (`codec.plan`) is a list of pieces for the key and one for each operation's value; a piece
copies a constant and writes one value after it. What stands for NULL, and quotes, are parts of the piece: no
kernel knows a protocol. The pieces of each row are walked, row by row, into one buffer:

    encode_single   data = [ key of row 0 | its value | key of row 1 | ... ]: a message a row, key or none
    encode_framed   data = [ keys of all messages | values of all messages ]: rows in batches with lengths

Strings come from `text_kernels`; numbers, decimals, times and binary JSON from `tidegate.tidb`'s. Before a
row is written its worst case is compared with the room left; without room the kernel returns and is called
again with a larger buffer, so it never writes past its end. Plain twins: `plain` in each protocol's folder.

Every address argument is an int64. Texts may scribble `SLACK` bytes past their end, and constants are
copied 32 bytes at a time: buffers end with `kernel.PAD` spare bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tidegate.codec import connect_kernels as connect
from tidegate.codec.connect_kernels import put_connected
from tidegate.codec.text_kernels import put_base64, put_const, put_latin1, put_quoted, put_text, put_vector
from tidegate.kernel import (
    bswap64,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    same_bytes,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from tidegate.model import slots
from tidegate.tidb.kernels.float import (
    put_double_fixed,
    put_double_json,
    put_float_fixed,
    put_float_json,
)
from tidegate.tidb.kernels.json import put_json
from tidegate.tidb.kernels.text import (
    I64,
    U64,
    put_date,
    put_datetime,
    put_decimal,
    put_duration,
    put_i64,
    put_u64,
)

# Forms of a piece: what follows its constant.
CONSTANT: Final = 0
INT: Final = 1
UINT: Final = 2
TEXT: Final = 3
DECIMAL: Final = 4
DATETIME: Final = 5
DATE: Final = 6
TIME: Final = 7
BASE64: Final = 8
QUOTED: Final = 9
LATIN1: Final = 10
JSON: Final = 11
FLOAT_JSON: Final = 12
DOUBLE_JSON: Final = 13
FLOAT_FIXED: Final = 14
DOUBLE_FIXED: Final = 15
VECTOR: Final = 16
PROMOTED: Final = 17
MILLISECONDS: Final = 18
COMMIT_TS: Final = 19
GROUP_END: Final = 20
ROW_ID: Final = 21
PHYSICAL_ID: Final = 22
CHECKSUM: Final = 36
"""Behind those of `connect_kernels`; its parameter is one of these:"""
SUM_VERSION, SUM_CORRUPTED, SUM_CURRENT, SUM_PREVIOUS, SUM_END = range(5)
START_TS: Final = 37
ROW_KEY: Final = 38
"""From CHECKSUM on: forms that few messages have."""

PIECE_WORDS: Final = 12
PIECE_BYTES: Final = 8 * PIECE_WORDS
(
    P_CONST, P_LENGTH, P_FORM, P_CELL, P_IMAGE, P_PARAM, P_TAIL, P_NULL, P_NULL_BACK, P_ONLY_CHANGED, P_OPEN,
    P_OPEN_LENGTH,
) = range(0, PIECE_BYTES, 8)  # fmt: skip
"""Byte offsets in a piece: its constant (address, length); form; column; image (0 new, 1 old); a form's
parameter; the short text behind a value; the short text that stands for NULL instead of both, and how many
bytes of the constant it takes back; whether the value is left out when equal to the new image; what to copy
before the first such piece that is not (address, length). Where P_NULL is LONG_NULL, what stands for NULL is
at P_OPEN instead (address, length)."""
CHECKSUM_BYTES: Final = slots.CHECKSUM.itemsize
CURRENT_AT, PREVIOUS_AT, VERSION_AT, CORRUPTED_AT, KNOWN_AT = (
    dict(slots.CHECKSUM.fields or {})[name][1]
    for name in ("current", "previous", "version", "corrupted", "known")
)
TRUE, FALSE = (int.from_bytes(word, "little") | len(word) << 56 for word in (b"true", b"false"))
"""Short texts."""
LONG_NULL: Final = -1
SHORT_TEXT: Final = 7
"""Most bytes of a short text: a word with the length in its highest byte."""

JOB_WORDS: Final = 40
(
    J_ROWS, J_ORDER, J_OP, J_COMMIT_TS, J_PHYSICAL, J_HANDLE, J_PARTITION, J_NEW_A, J_NEW_L, J_NEW_STRIDE,
    J_OLD_A, J_OLD_L, J_OLD_STRIDE, J_PIECES, J_VARIABLES, J_FIXED,
    J_MAX_BYTES, J_MAX_ROWS, J_SCRATCH, J_STACK, J_PRINTABLE, J_DATA, J_ROOM,
    J_KEY_START, J_KEY_LENGTH, J_VALUE_START, J_VALUE_LENGTH, J_MESSAGE_PARTITION, J_MESSAGE_ROWS,
    J_BUILD, J_CHECKSUMS, J_START_TS, J_ROW_KEYS,
    J_AT, J_KEY_OUT, J_OUT, J_MESSAGES, J_HELD, J_HELD_BYTES, J_NEED,
) = range(0, 8 * JOB_WORDS, 8)  # fmt: skip
"""Byte offsets in the job: inputs, the plan, limits, outputs, and from J_AT on the state between calls."""

DONE: Final = 0
NEED_ROOM: Final = 1
TOO_LARGE: Final = 2

KEY_SLACK: Final = 64
"""Most bytes of a key beside its pieces: version and length of a batch, and a constant's overrun."""
VALUE_FACTOR: Final = {TEXT: 6, QUOTED: 6, LATIN1: 6, BASE64: 2, JSON: 8, VECTOR: 16} | connect.FACTORS
"""Most bytes of text per byte of a value of variable size, plus 64."""
FIXED_SIZE: Final = {
    CONSTANT: 0, INT: 24, UINT: 24, DECIMAL: 88, DATETIME: 32, DATE: 16, TIME: 24,
    FLOAT_JSON: 48, DOUBLE_JSON: 48,
    FLOAT_FIXED: 360, DOUBLE_FIXED: 360, PROMOTED: 8, MILLISECONDS: 24, COMMIT_TS: 24, GROUP_END: 0,
    ROW_ID: 24, PHYSICAL_ID: 24, CHECKSUM: 24, START_TS: 24,
} | connect.SIZES  # fmt: skip
"""Most bytes of text of the other forms."""

_MILLIS_SHIFT: Final = U64(18)


# --- one value ------------------------------------------------------------------------------------------


@inline
def put_value(
    out: int, form: int, param: int, a: int, size: int, scratch: int, stack: int, printable: int
) -> int:
    """The text of one value that is not NULL; the order of tests is that of how common the forms are."""
    if form == INT:
        return put_i64(out, a)
    if form == TEXT:
        return put_text(out, a, size, param)
    if form == UINT:
        return put_u64(out, U64(a))
    if form == DATETIME:
        return put_datetime(out, a, param)
    if form == DECIMAL:
        return put_decimal(out, a, size)
    if form == BASE64:
        return put_base64(out, a, size)
    if form == DATE:
        return put_date(out, a)
    if form == TIME:
        return put_duration(out, a, param)
    if form == JSON:
        # TiDB's text first, then escaped as any text.
        return put_text(out, scratch, put_json(scratch, a, size, stack) - scratch, param)
    if form == QUOTED:
        return put_quoted(out, a, size, printable, param)
    if form == LATIN1:
        return put_latin1(out, a, size)
    if form == DOUBLE_JSON:
        return put_double_json(out, a)
    if form == FLOAT_JSON:
        return put_float_json(out, a)
    if form == DOUBLE_FIXED:
        return put_double_fixed(out, a)
    if form == FLOAT_FIXED:
        return put_float_fixed(out, a)
    if form == VECTOR:
        return put_vector(out, a, size)
    return put_connected(out, form, param, a, size, scratch, stack)


@kernel
def same_text(form: int, param: int, a: int, a_size: int, b: int, b_size: int, job: int) -> bool:
    """Whether two values print alike although their slots differ: decimals, times, JSON."""
    stack = load_i64(job + J_STACK)
    printable = load_i64(job + J_PRINTABLE)
    scratch = load_i64(job + J_SCRATCH)
    room = 8 * max(a_size, b_size, 64) + 512
    first = scratch + room
    middle = put_value(first, form, param, a, a_size, scratch, stack, printable)
    last = put_value(middle, form, param, b, b_size, scratch, stack, printable)
    size = middle - first
    return last - middle == size and same_bytes(first, middle, size)


@inline
def same_value(form: int, param: int, a: int, a_size: int, b: int, b_size: int, job: int) -> bool:
    """Whether TiCDC takes two values of a column for equal: it compares what it would print."""
    if a_size < 0 or b_size < 0:
        return a_size == b_size
    if form in (INT, UINT):
        return a == b
    if form in (TEXT, BASE64, QUOTED, LATIN1):
        return a_size == b_size and same_bytes(a, b, a_size)
    if FLOAT_JSON <= form <= DOUBLE_FIXED:
        return a == b or (a | b) & 0x7FFFFFFFFFFFFFFF == 0
    return same_text(form, param, a, a_size, b, b_size, job)


@inline
def put_short(out: int, text: int) -> int:
    """A short text."""
    store_u64(out, text)
    return out + (text >> 56)


@inline
def put_null(out: int, piece: int) -> int:
    """What stands for NULL in a piece, over as much of its constant as it takes back."""
    out -= load_i64(piece + P_NULL_BACK)
    null = load_i64(piece + P_NULL)
    if null == LONG_NULL:
        return put_const(out, load_i64(piece + P_OPEN), load_i64(piece + P_OPEN_LENGTH))
    return put_short(out, null)


@kernel
def put_apart(
    out: int, form: int, param: int, a: int, size: int, scratch: int, stack: int, printable: int
) -> int:
    """`put_value`, once more for keys: inlined there it would double the code of every kernel here."""
    return put_value(out, form, param, a, size, scratch, stack, printable)


# --- rows -----------------------------------------------------------------------------------------------


@inline
def put_promoted(out: int, param: int, a: int, size: int) -> int:
    """The Java type of an unsigned column: param = bits of the limit << 32 | text << 16 | promoted text."""
    limit = (param >> 32) & 63
    text = (param >> 16) & 0xFFFF
    if size >= 0 and U64(a) >> U64(limit) != U64(0):
        text = param & 0xFFFF
    store_u16(out, text)
    return out + (1 if text < 256 else 2)


@inline
def checksum_of(job: int, row: int) -> int:
    """The address of a row's checksum (`slots.CHECKSUM`); 0: it has none."""
    checksums = load_i64(job + J_CHECKSUMS)
    if checksums == 0:
        return 0
    found = checksums + CHECKSUM_BYTES * row
    return found if load_u8(found + KNOWN_AT) else 0


@inline
def put_checksum(out: int, part: int, op: int, found: int) -> int:
    """A part of a row's checksum as JSON has it; the sum of an image that the row does not have is 0."""
    if part == SUM_VERSION:
        return put_u64(out, U64(load_u8(found + VERSION_AT)))
    if part == SUM_CORRUPTED:
        return put_short(out, TRUE if load_u8(found + CORRUPTED_AT) else FALSE)
    if part == SUM_CURRENT:
        return put_u64(out, U64(0 if op == 3 else I64(load_u32(found + CURRENT_AT))))
    if part == SUM_PREVIOUS:
        return put_u64(out, U64(0 if op == 1 else I64(load_u32(found + PREVIOUS_AT))))
    return out


@inline
def put_seldom(out: int, job: int, piece: int, op: int, row: int, found: int) -> int:
    """A piece of the forms that few messages have, with its constant; `found`: the row's checksum.

    A part of a checksum is left out together with its constant where the row has none.
    """
    form = load_i64(piece + P_FORM)
    if form == CHECKSUM and found == 0:
        return out
    out = put_const(out, load_i64(piece + P_CONST), load_i64(piece + P_LENGTH))
    if form == CHECKSUM:
        return put_checksum(out, load_i64(piece + P_PARAM), op, found)
    if form == START_TS:
        return put_u64(out, load_u64(load_i64(job + J_START_TS) + 8 * row))
    key = load_i64(job + J_ROW_KEYS) + 16 * row
    return put_base64(out, load_i64(key), load_i64(key + 8))


@inline
def row_bound(job: int, op: int, row: int) -> int:
    """The worst case of one row's value: fixed part of its operation, and its values of variable size."""
    bound = load_i64(load_i64(job + J_FIXED) + 8 * op)
    keys = load_i64(job + J_ROW_KEYS)
    if keys != 0:
        bound += 2 * load_i64(keys + 16 * row + 8)
    entry = load_i64(job + J_VARIABLES)
    count = load_i64(entry)
    new_l = load_i64(job + J_NEW_L) + 4 * row * load_i64(job + J_NEW_STRIDE)
    old_l = load_i64(job + J_OLD_L) + 4 * row * load_i64(job + J_OLD_STRIDE)
    for i in range(count):
        cell = load_i64(entry + 8 + 16 * i)
        factor = load_i64(entry + 16 + 16 * i)
        if op != 3:
            bound += factor * max(I64(load_i32(new_l + 4 * cell)), 0)
        if op != 1:
            bound += factor * max(I64(load_i32(old_l + 4 * cell)), 0)
    return bound


@inline
def put_row(out: int, job: int, op: int, row: int) -> int:
    """All pieces of one row's operation."""
    new_a = load_i64(job + J_NEW_A) + 8 * row * load_i64(job + J_NEW_STRIDE)
    new_l = load_i64(job + J_NEW_L) + 4 * row * load_i64(job + J_NEW_STRIDE)
    old_a = load_i64(job + J_OLD_A) + 8 * row * load_i64(job + J_OLD_STRIDE)
    old_l = load_i64(job + J_OLD_L) + 4 * row * load_i64(job + J_OLD_STRIDE)
    scratch = load_i64(job + J_SCRATCH)
    stack = load_i64(job + J_STACK)
    printable = load_i64(job + J_PRINTABLE)
    piece = load_i64(load_i64(job + J_PIECES) + 16 * op)
    last = piece + PIECE_BYTES * load_i64(load_i64(job + J_PIECES) + 16 * op + 8)
    kept = 0
    found = checksum_of(job, row)
    while piece < last:
        form = load_i64(piece + P_FORM)
        cell = load_i64(piece + P_CELL)
        image = load_i64(piece + P_IMAGE)
        a = load_i64((old_a if image else new_a) + 8 * cell)
        size = I64(load_i32((old_l if image else new_l) + 4 * cell))
        source = load_i64(piece + P_CONST)
        length = load_i64(piece + P_LENGTH)
        param = load_i64(piece + P_PARAM)
        if load_i64(piece + P_ONLY_CHANGED):
            other = load_i64(new_a + 8 * cell)
            if same_value(form, param, a, size, other, I64(load_i32(new_l + 4 * cell)), job):
                piece += PIECE_BYTES
                continue
            if kept == 0:
                out = put_const(out, load_i64(piece + P_OPEN), load_i64(piece + P_OPEN_LENGTH))
                source += 1
                length -= 1
            kept += 1
        if form == GROUP_END:
            if kept > 0:
                out = put_const(out, source, length)
            kept = 0
            piece += PIECE_BYTES
            continue
        if form >= CHECKSUM:
            out = put_seldom(out, job, piece, op, row, found)
            piece += PIECE_BYTES
            continue
        out = put_const(out, source, length)
        if PROMOTED <= form <= PHYSICAL_ID:
            if form == PROMOTED:
                out = put_promoted(out, param, a, size)
            elif form == PHYSICAL_ID:
                out = put_i64(out, load_i64(load_i64(job + J_PHYSICAL) + 8 * row))
            else:
                ts = load_u64(load_i64(job + J_COMMIT_TS) + 8 * row)
                out = put_u64(out, ts >> _MILLIS_SHIFT if form == MILLISECONDS else ts)
        elif form != CONSTANT:
            if size < 0:
                out = put_null(out, piece)
            else:
                out = put_value(out, form, param, a, size, scratch, stack, printable)
                out = put_short(out, load_i64(piece + P_TAIL))
        piece += PIECE_BYTES
    return out


@inline
def put_key_cell(out: int, job: int, piece: int, op: int, row: int) -> int:
    """A column's value in a key: the new one, of a delete the old one."""
    cell = load_i64(piece + P_CELL)
    if op == 3:
        at = row * load_i64(job + J_OLD_STRIDE) + cell
        a = load_i64(load_i64(job + J_OLD_A) + 8 * at)
        size = I64(load_i32(load_i64(job + J_OLD_L) + 4 * at))
    else:
        at = row * load_i64(job + J_NEW_STRIDE) + cell
        a = load_i64(load_i64(job + J_NEW_A) + 8 * at)
        size = I64(load_i32(load_i64(job + J_NEW_L) + 4 * at))
    if size < 0:
        return put_null(out, piece)
    scratch = load_i64(job + J_SCRATCH)
    stack = load_i64(job + J_STACK)
    printable = load_i64(job + J_PRINTABLE)
    form = load_i64(piece + P_FORM)
    out = put_apart(out, form, load_i64(piece + P_PARAM), a, size, scratch, stack, printable)
    return put_short(out, load_i64(piece + P_TAIL))


@inline
def put_key(out: int, job: int, op: int, row: int) -> int:
    """The key of one row, the pieces of operation 0: constants, the row's own numbers, columns' values.

    A row id of 0 (no integer handle) is left out together with its constant.
    """
    pieces = load_i64(job + J_PIECES)
    piece = load_i64(pieces)
    last = piece + PIECE_BYTES * load_i64(pieces + 8)
    while piece < last:
        form = load_i64(piece + P_FORM)
        handle = load_i64(load_i64(job + J_HANDLE) + 8 * row) if form == ROW_ID else 1
        if handle != 0:
            out = put_const(out, load_i64(piece + P_CONST), load_i64(piece + P_LENGTH))
            if form == COMMIT_TS:
                out = put_u64(out, load_u64(load_i64(job + J_COMMIT_TS) + 8 * row))
            elif form == ROW_ID:
                out = put_i64(out, handle)
            elif form == PHYSICAL_ID:
                out = put_i64(out, load_i64(load_i64(job + J_PHYSICAL) + 8 * row))
            elif form != CONSTANT:
                out = put_key_cell(out, job, piece, op, row)
        piece += PIECE_BYTES
    return out


@inline
def end_message(
    job: int, number: int, key_start: int, key_end: int, start: int, end: int, row: int, rows: int
) -> None:
    """Note one finished message."""
    data = load_i64(job + J_DATA)
    store_u64(load_i64(job + J_KEY_START) + 8 * number, key_start - data)
    store_u64(load_i64(job + J_KEY_LENGTH) + 8 * number, key_end - key_start)
    store_u64(load_i64(job + J_VALUE_START) + 8 * number, start - data)
    store_u64(load_i64(job + J_VALUE_LENGTH) + 8 * number, end - start)
    store_u32(
        load_i64(job + J_MESSAGE_PARTITION) + 4 * number, load_u32(load_i64(job + J_PARTITION) + 4 * row)
    )
    store_u32(load_i64(job + J_MESSAGE_ROWS) + 4 * number, rows)


@kernel
def encode_single(job: int) -> int:
    """One message a row, its key before its value; null when the key has no piece: DONE, or why not.

    J_AT is then the row.
    """
    data = load_i64(job + J_DATA)
    end = data + load_i64(job + J_ROOM)
    out = data + load_i64(job + J_OUT)
    rows = load_i64(job + J_ROWS)
    ops = load_i64(job + J_OP)
    limit = load_i64(job + J_MAX_BYTES) - 36
    keyed = load_i64(load_i64(job + J_PIECES) + 8) > 0
    row = load_i64(job + J_AT)
    status = DONE
    while row < rows:
        op = I64(load_u8(ops + row))
        bound = row_bound(job, op, row)
        if out + bound > end:
            store_u64(job + J_NEED, bound)
            status = NEED_ROOM
            break
        key = out
        start = put_key(key, job, op, row) if keyed else key
        out = put_row(start, job, op, row)
        if out - key > limit:
            store_u64(job + J_NEED, out - key + 36)
            status = TOO_LARGE
            break
        end_message(job, row, key if keyed else data - 1, start if keyed else data - 2, start, out, row, 1)
        row += 1
    store_u64(job + J_OUT, out - data)
    store_u64(job + J_AT, row)
    store_u64(job + J_MESSAGES, row)
    return status


@inline
def shift_right(start: int, end: int, by: int) -> None:
    """Move the bytes [start, end) up by `by`."""
    at = end - 1
    while at >= start:
        store_u8(at + by, load_u8(at))
        at -= 1


@kernel
def encode_framed(job: int) -> int:
    """Batches of rows as lengths and bytes, partition after partition: DONE, or why not.

    A batch's key begins with a version of 1 (u64, big-endian); each key and value has a length before it.

    Messages are noted when the next one begins; the last one when all rows are done.
    """
    data = load_i64(job + J_DATA)
    end = data + load_i64(job + J_ROOM)
    key_out = data + load_i64(job + J_KEY_OUT)
    out = data + load_i64(job + J_OUT)
    rows = load_i64(job + J_ROWS)
    order = load_i64(job + J_ORDER)
    ops = load_i64(job + J_OP)
    partitions = load_i64(job + J_PARTITION)
    max_bytes = load_i64(job + J_MAX_BYTES)
    max_rows = load_i64(job + J_MAX_ROWS)
    number = load_i64(job + J_MESSAGES)
    held = load_i64(job + J_HELD)
    held_bytes = load_i64(job + J_HELD_BYTES)
    key_start = key_out - (held_bytes >> 40)
    start = out - (held_bytes & 0xFFFFFFFFFF)
    at = load_i64(job + J_AT)
    row = -1
    status = DONE
    while at < rows:
        before = load_i64(order + 8 * (at - 1)) if order and at > 0 else at - 1
        row = load_i64(order + 8 * at) if order else at
        op = I64(load_u8(ops + row))
        bound = row_bound(job, op, row)
        if out + bound > end:
            store_u64(job + J_NEED, bound)
            status = NEED_ROOM
            break
        fresh = held == 0 or held >= max_rows
        if not fresh:
            fresh = load_u32(partitions + 4 * row) != load_u32(partitions + 4 * before)
        item = key_out + (16 if fresh else 8)
        item_end = put_key(item, job, op, row)
        value_end = put_row(out + 8, job, op, row)
        key_size = item_end - item
        value_size = value_end - out - 8
        if key_size + value_size + 60 > max_bytes:
            store_u64(job + J_NEED, key_size + value_size + 60)
            status = TOO_LARGE
            break
        if not fresh:
            batch = (key_out - key_start) + (out - start) + 36 + key_size + value_size + 16
            if batch > max_bytes:
                shift_right(item, item_end, 8)
                item += 8
                item_end += 8
                fresh = True
        if fresh:
            if held > 0:
                end_message(job, number, key_start, key_out, start, out, before, held)
                number += 1
            held = 0
            key_start = key_out
            start = out
            store_u64(key_out, 0x0100000000000000)
        store_u64(item - 8, bswap64(U64(key_size)))
        store_u64(out, bswap64(U64(value_size)))
        key_out = item_end
        out = value_end
        held += 1
        at += 1
    if status == DONE and held > 0:
        row = load_i64(order + 8 * (rows - 1)) if order else rows - 1
        end_message(job, number, key_start, key_out, start, out, row, held)
        number += 1
        held = 0
    store_u64(job + J_HELD_BYTES, ((key_out - key_start) << 40) | (out - start))
    store_u64(job + J_KEY_OUT, key_out - data)
    store_u64(job + J_OUT, out - data)
    store_u64(job + J_AT, at)
    store_u64(job + J_MESSAGES, number)
    store_u64(job + J_HELD, held)
    return status


@kernel
def measure(job: int) -> int:
    """The bytes of all values of variable size; the largest one comes in J_NEED."""
    ops = load_i64(job + J_OP)
    entry = load_i64(job + J_VARIABLES)
    count = load_i64(entry)
    total = 0
    largest = 0
    for row in range(load_i64(job + J_ROWS)):
        op = I64(load_u8(ops + row))
        new_l = load_i64(job + J_NEW_L) + 4 * row * load_i64(job + J_NEW_STRIDE)
        old_l = load_i64(job + J_OLD_L) + 4 * row * load_i64(job + J_OLD_STRIDE)
        for i in range(count):
            cell = load_i64(entry + 8 + 16 * i)
            new_size = I64(load_i32(new_l + 4 * cell)) if op != 3 else 0
            old_size = I64(load_i32(old_l + 4 * cell)) if op != 1 else 0
            total += max(new_size, 0) + max(old_size, 0)
            largest = max(largest, new_size, old_size)
    store_u64(job + J_NEED, largest)
    return total


def warm() -> None:
    """Compile what is not in numba's cache yet: the entry kernels, over no rows."""
    job = np.zeros(JOB_WORDS, dtype=np.int64)
    none = np.zeros(2, dtype=np.int64)
    job[J_VARIABLES // 8] = job[J_PIECES // 8] = none.ctypes.data
    measure(job.ctypes.data)
    encode_single(job.ctypes.data)
    encode_framed(job.ctypes.data)
