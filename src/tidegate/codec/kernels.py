"""Encode kernels: from slots straight to the bytes of messages, for every JSON protocol we have.

A table's *plan* (`codec.plans`) is, per operation, a list of pieces; each piece copies a constant and
writes one value after it. `encode` walks the pieces of each row's operation, row by row, into one buffer:

    open-protocol   data = [ keys of all messages | values of all messages ]
    canal-json      data = [ values ]

Strings come from `text_kernels`; numbers, decimals, times and binary JSON from `tidegate.tidb`'s. Before a
row is written its worst case is compared with the room left; without room the kernel returns and is called
again with a larger buffer, so it never writes past its end. Plain twins: `open_protocol`, `canal_json`.

Every address argument is an int64. Texts may scribble `SLACK` bytes past their end, and constants are
copied 32 bytes at a time: buffers end with `kernel.PAD` spare bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

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
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from tidegate.tidb.float_kernels import (
    put_double_fixed,
    put_double_json,
    put_float_fixed,
    put_float_json,
)
from tidegate.tidb.json_kernels import put_json
from tidegate.tidb.kernels import (
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

PIECE_WORDS: Final = 12
PIECE_BYTES: Final = 8 * PIECE_WORDS
# Words of a piece.
P_CONST: Final = 0
P_LENGTH: Final = 8
P_FORM: Final = 16
P_CELL: Final = 24
P_IMAGE: Final = 32
P_PARAM: Final = 40
P_QUOTES: Final = 48
P_ONLY_CHANGED: Final = 56
P_OPEN: Final = 64
P_OPEN_LENGTH: Final = 72
P_CLOSE: Final = 80
"""Byte offsets in a piece: its constant (address, length); form; column; image (0 new, 1 old); a form's
parameter; whether the value is quoted; whether it is left out when equal to the new image; what to copy
before the first such piece that is not (address, length); one byte to write after the value, or 0."""

JOB_WORDS: Final = 41
(
    J_ROWS, J_ORDER, J_OP, J_COMMIT_TS, J_PHYSICAL, J_HANDLE, J_PARTITION, J_NEW_A, J_NEW_L, J_NEW_STRIDE,
    J_OLD_A, J_OLD_L, J_OLD_STRIDE, J_PIECES, J_VARIABLES, J_FIXED, J_FRAMED, J_KEY_HEAD, J_KEY_HEAD_LENGTH,
    J_PARTITIONED, J_MAX_BYTES, J_MAX_ROWS, J_SCRATCH, J_STACK, J_PRINTABLE, J_DATA, J_KEY_ROOM, J_ROOM,
    J_KEY_START, J_KEY_LENGTH, J_VALUE_START, J_VALUE_LENGTH, J_MESSAGE_PARTITION, J_MESSAGE_ROWS,
    J_AT, J_KEY_OUT, J_OUT, J_MESSAGES, J_HELD, J_HELD_BYTES, J_NEED,
) = range(0, 8 * JOB_WORDS, 8)  # fmt: skip
"""Byte offsets in the job: inputs, the plan, limits, outputs, and from J_AT on the state between calls."""

DONE: Final = 0
NEED_ROOM: Final = 1
TOO_LARGE: Final = 2

KEY_FIXED: Final = 8 + 8 + 7 + 20 + 7 + 20 + 7 + 20 + 7 + 32
"""Most bytes of one open-protocol key beside its constant head: version, length, ts, rid, ptn, slack."""
VALUE_FACTOR: Final = {TEXT: 6, QUOTED: 6, LATIN1: 6, BASE64: 2, JSON: 8, VECTOR: 16}
"""Most bytes of text per byte of a value of variable size, plus 64."""
FIXED_SIZE: Final = {
    CONSTANT: 0, INT: 24, UINT: 24, DECIMAL: 88, DATETIME: 32, DATE: 16, TIME: 24,
    FLOAT_JSON: 48, DOUBLE_JSON: 48,
    FLOAT_FIXED: 360, DOUBLE_FIXED: 360, PROMOTED: 8, MILLISECONDS: 24, COMMIT_TS: 24, GROUP_END: 0,
}  # fmt: skip
"""Most bytes of text of the other forms."""

_MILLIS_SHIFT: Final = U64(18)
_KEY_TS, _KEY_RID, _KEY_PTN, _KEY_END = (
    U64(int.from_bytes(text, "little")) for text in (b'{"ts":', b',"rid":', b',"ptn":', b',"t":1}')
)


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
        return put_quoted(out, a, size, printable)
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
    return put_vector(out, a, size)


@inline
def same_bytes(left: int, right: int, size: int) -> bool:
    """Whether two runs of bytes are equal."""
    at = 0
    while at < size and load_u8(left + at) == load_u8(right + at):
        at += 1
    return at == size


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
def row_bound(job: int, op: int, row: int) -> int:
    """The worst case of one row's value: fixed part of its operation, and its values of variable size."""
    bound = load_i64(load_i64(job + J_FIXED) + 8 * op)
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
        out = put_const(out, source, length)
        if form >= PROMOTED:
            if form == PROMOTED:
                out = put_promoted(out, param, a, size)
            else:
                ts = load_u64(load_i64(job + J_COMMIT_TS) + 8 * row)
                out = put_u64(out, ts >> _MILLIS_SHIFT if form == MILLISECONDS else ts)
        elif form != CONSTANT:
            quotes = load_i64(piece + P_QUOTES)
            if size < 0:
                out -= quotes
                store_u32(out, 0x6C6C756E)
                out += 4
            else:
                out = put_value(out, form, param, a, size, scratch, stack, printable)
                store_u8(out, 34)
                out += quotes
            close = load_i64(piece + P_CLOSE)
            if close:
                store_u8(out, close)
                out += 1
        piece += PIECE_BYTES
    return out


@inline
def put_key(out: int, job: int, row: int) -> int:
    """Open-protocol's key JSON of one row."""
    store_u64(out, _KEY_TS)
    out = put_u64(out + 6, load_u64(load_i64(job + J_COMMIT_TS) + 8 * row))
    out = put_const(out, load_i64(job + J_KEY_HEAD), load_i64(job + J_KEY_HEAD_LENGTH))
    handle = load_i64(load_i64(job + J_HANDLE) + 8 * row)
    if handle != 0:
        store_u64(out, _KEY_RID)
        out = put_i64(out + 7, handle)
    if load_i64(job + J_PARTITIONED):
        store_u64(out, _KEY_PTN)
        out = put_i64(out + 7, load_i64(load_i64(job + J_PHYSICAL) + 8 * row))
    store_u64(out, _KEY_END)
    return out + 7


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
    """One message a row, null key (canal-json): DONE, or why not; J_AT is then the row."""
    data = load_i64(job + J_DATA)
    end = data + load_i64(job + J_ROOM)
    out = data + load_i64(job + J_OUT)
    rows = load_i64(job + J_ROWS)
    ops = load_i64(job + J_OP)
    limit = load_i64(job + J_MAX_BYTES) - 36
    row = load_i64(job + J_AT)
    status = DONE
    while row < rows:
        op = I64(load_u8(ops + row))
        bound = row_bound(job, op, row)
        if out + bound > end:
            store_u64(job + J_NEED, bound)
            status = NEED_ROOM
            break
        start = out
        out = put_row(out, job, op, row)
        if out - start > limit:
            store_u64(job + J_NEED, out - start + 36)
            status = TOO_LARGE
            break
        end_message(job, row, data - 1, data - 2, start, out, row, 1)
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
    """Batches of rows with keys (open-protocol), partition after partition: DONE, or why not.

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
        item_end = put_key(item, job, row)
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
    none = np.zeros(1, dtype=np.int64)
    job = np.zeros(JOB_WORDS, dtype=np.int64)
    job[J_VARIABLES // 8] = none.ctypes.data
    measure(job.ctypes.data)
    encode_single(job.ctypes.data)
    encode_framed(job.ctypes.data)
