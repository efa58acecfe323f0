"""Encode kernels: from cells straight to the bytes of messages, whatever the protocol.

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
from tidegate.codec.layout_kernels import RUN_AT, RUN_BYTES, RUN_SIZE
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
from tidegate.kernel_layout import Layout, pointer, signed
from tidegate.model import cells
from tidegate.model.cells import DELETE, INSERT
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

PIECE: Final = Layout(
    "piece", "P_", "A part of a key or value: a constant, then a value of one form.",
    const=pointer("its constant"),
    length=signed("of the constant", "bytes"),
    form=signed("what follows the constant, see INT and the others"),
    cell=signed("the column's cell"),
    image=signed("0: the new image, 1: the old one"),
    param=signed("the form's parameter"),
    tail=signed("the short text behind the value"),
    null=signed("the short text that stands for NULL instead of both; LONG_NULL: it is at P_OPEN"),
    null_back=signed("what that takes back of the constant", "bytes"),
    only_changed=signed("1: the value is left out when it is equal to the new image"),
    open=pointer("what comes before the first such piece; with LONG_NULL what stands for NULL"),
    open_length=signed("of that", "bytes"),
)  # fmt: skip
PIECE_WORDS: Final = len(PIECE.fields)
PIECE_BYTES: Final = PIECE.size
(
    P_CONST, P_LENGTH, P_FORM, P_CELL, P_IMAGE, P_PARAM, P_TAIL, P_NULL, P_NULL_BACK, P_ONLY_CHANGED, P_OPEN,
    P_OPEN_LENGTH,
) = PIECE.offsets()  # fmt: skip
CHECKSUM_BYTES: Final = cells.CHECKSUM.itemsize
CURRENT_AT, PREVIOUS_AT, VERSION_AT, CORRUPTED_AT, KNOWN_AT = (
    dict(cells.CHECKSUM.fields or {})[name][1]
    for name in ("current", "previous", "version", "corrupted", "known")
)
TRUE, FALSE = (int.from_bytes(word, "little") | len(word) << 56 for word in (b"true", b"false"))
"""Short texts."""
LONG_NULL: Final = -1
SHORT_TEXT: Final = 7
"""Most bytes of a short text: a word with the length in its highest byte."""

JOB: Final = Layout(
    "encode job", "J_", "What an encode kernel works on; from J_AT on its state between calls.",
    rows=signed("rows"),
    order=pointer("i64[rows], the order of rows; 0: as they are"),
    op=pointer("u8[rows], operations"),
    commit_ts=pointer("u64[rows]"),
    physical=pointer("i64[rows], physical table ids"),
    handle=pointer("i64[rows], integer handles; 0: none"),
    partition=pointer("i32[rows]"),
    new_words=pointer("first words of the new image's cells"),
    new_sizes=pointer("second words of these"),
    new_stride=signed("cells from row to row"),
    old_words=pointer("first words of the old image's cells"),
    old_sizes=pointer("second words of these"),
    old_stride=signed("cells from row to row"),
    pieces=pointer("RUN of pieces for the key, then for each operation"),
    variables=pointer("i64 count, then a VARIABLE for each column of variable size"),
    fixed=pointer("i64 for each operation: most bytes of a row's value without its variables", "bytes"),
    max_bytes=signed("most bytes of a message", "bytes"),
    max_rows=signed("most rows of a message"),
    scratch=pointer("working memory for one value"),
    stack=pointer("int64[STACK_WORDS], for JSON"),
    printable=pointer("a bit for each code point, Go's IsPrint"),
    data=pointer("where keys and values go"),
    room=signed("of that", "bytes"),
    key_start=pointer("u64 a message: where its key begins in data"),
    key_length=pointer("u64 a message"),
    value_start=pointer("u64 a message"),
    value_length=pointer("u64 a message"),
    message_partition=pointer("u32 a message"),
    message_rows=pointer("u32 a message"),
    build=signed("when the message is made", "ms"),
    checksums=pointer("`cells.CHECKSUM` a row; 0: none"),
    start_ts=pointer("u64[rows]"),
    row_keys=pointer("RUN a row, its key in TiKV; 0: none"),
    at=signed("the next row"),
    key_out=signed("used of the part of data that holds keys", "bytes"),
    out=signed("used of data", "bytes"),
    messages=signed("finished messages"),
    held=signed("rows of the message that is open"),
    held_bytes=signed("its bytes so far: of keys << 40 | of values", "bytes"),
    need=signed("with NEED_ROOM and TOO_LARGE: how much it was", "bytes"),
)  # fmt: skip
JOB_WORDS: Final = len(JOB.fields)
(
    J_ROWS, J_ORDER, J_OP, J_COMMIT_TS, J_PHYSICAL, J_HANDLE, J_PARTITION,
    J_NEW_WORDS, J_NEW_SIZES, J_NEW_STRIDE, J_OLD_WORDS, J_OLD_SIZES, J_OLD_STRIDE,
    J_PIECES, J_VARIABLES, J_FIXED,
    J_MAX_BYTES, J_MAX_ROWS, J_SCRATCH, J_STACK, J_PRINTABLE, J_DATA, J_ROOM,
    J_KEY_START, J_KEY_LENGTH, J_VALUE_START, J_VALUE_LENGTH, J_MESSAGE_PARTITION, J_MESSAGE_ROWS,
    J_BUILD, J_CHECKSUMS, J_START_TS, J_ROW_KEYS,
    J_AT, J_KEY_OUT, J_OUT, J_MESSAGES, J_HELD, J_HELD_BYTES, J_NEED,
) = JOB.offsets()  # fmt: skip

VARIABLE: Final = Layout(
    "variable", "VARIABLE_", "A column whose values differ in size.",
    cell=signed("its cell"),
    factor=signed("most bytes of text for each of a value's bytes"),
)  # fmt: skip
VARIABLE_CELL, VARIABLE_FACTOR = VARIABLE.offsets()
_VARIABLE: Final = VARIABLE.size
_VARIABLES: Final = 8
"""Where they begin, behind their count."""

BATCH_VERSION: Final = 0x0100000000000000
"""The number 1 as a batch's key begins with it, big-endian."""
LENGTH_BYTES: Final = 8
"""What a batch has before each key and value, and before its first key."""
RECORD_OVERHEAD: Final = 36
"""What Kafka adds to a message, as TiCDC counts it."""

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
    out: int, form: int, param: int, word: int, size: int, scratch: int, stack: int, printable: int
) -> int:
    """The text of one value that is not NULL; the order of tests is that of how common the forms are."""
    if form == INT:
        return put_i64(out, word)
    if form == TEXT:
        return put_text(out, word, size, param)
    if form == UINT:
        return put_u64(out, U64(word))
    if form == DATETIME:
        return put_datetime(out, word, param)
    if form == DECIMAL:
        return put_decimal(out, word, size)
    if form == BASE64:
        return put_base64(out, word, size)
    if form == DATE:
        return put_date(out, word)
    if form == TIME:
        return put_duration(out, word, param)
    if form == JSON:
        # TiDB's text first, then escaped as any text.
        return put_text(out, scratch, put_json(scratch, word, size, stack) - scratch, param)
    if form == QUOTED:
        return put_quoted(out, word, size, printable, param)
    if form == LATIN1:
        return put_latin1(out, word, size)
    if form == DOUBLE_JSON:
        return put_double_json(out, word)
    if form == FLOAT_JSON:
        return put_float_json(out, word)
    if form == DOUBLE_FIXED:
        return put_double_fixed(out, word)
    if form == FLOAT_FIXED:
        return put_float_fixed(out, word)
    if form == VECTOR:
        return put_vector(out, word, size)
    return put_connected(out, form, param, word, size, scratch, stack)


@kernel
def same_text(
    form: int, param: int, left: int, left_size: int, right: int, right_size: int, job: int
) -> bool:
    """Whether two values print alike although their cells differ: decimals, times, JSON.

    Reads both values. Writes their texts to the scratch memory of the job. Bound: three times eight bytes for
    each byte of the larger value, and 512 more: JSON's raw text, then both texts. Twin: the encoder of each
    protocol; `tests.contracts.test_codecs.test_any_row_keeps_the_contract` compares them.
    """
    stack = load_i64(job + J_STACK)
    printable = load_i64(job + J_PRINTABLE)
    scratch = load_i64(job + J_SCRATCH)
    room = 8 * max(left_size, right_size, 64) + 512
    first = scratch + room
    middle = put_value(first, form, param, left, left_size, scratch, stack, printable)
    last = put_value(middle, form, param, right, right_size, scratch, stack, printable)
    size = middle - first
    return last - middle == size and same_bytes(first, middle, size)


@inline
def same_value(
    form: int, param: int, left: int, left_size: int, right: int, right_size: int, job: int
) -> bool:
    """Whether TiCDC takes two values of a column for equal: it compares what it would print."""
    if left_size < 0 or right_size < 0:
        return left_size == right_size
    if form in (INT, UINT):
        return left == right
    if form in (TEXT, BASE64, QUOTED, LATIN1):
        return left_size == right_size and same_bytes(left, right, left_size)
    if FLOAT_JSON <= form <= DOUBLE_FIXED:
        return left == right or (left | right) & 0x7FFFFFFFFFFFFFFF == 0
    return same_text(form, param, left, left_size, right, right_size, job)


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
    out: int, form: int, param: int, word: int, size: int, scratch: int, stack: int, printable: int
) -> int:
    """`put_value`, once more for keys: inlined there it would double the code of every kernel here.

    Reads the bytes of the value. Writes `out`, and `scratch` on the way. Bound: VALUE_FACTOR and FIXED_SIZE.
    Twin: the encoder of each protocol;
    `tests.contracts.test_codecs.test_a_key_of_text_is_counted_with_its_escapes` compares keys.
    """
    return put_value(out, form, param, word, size, scratch, stack, printable)


# --- rows -----------------------------------------------------------------------------------------------


@inline
def put_promoted(out: int, param: int, word: int, size: int) -> int:
    """The Java type of an unsigned column: param = bits of the limit << 32 | text << 16 | promoted text."""
    limit = (param >> 32) & 63
    text = (param >> 16) & 0xFFFF
    if size >= 0 and U64(word) >> U64(limit) != U64(0):
        text = param & 0xFFFF
    store_u16(out, text)
    return out + (1 if text < 256 else 2)


@inline
def checksum_of(job: int, row: int) -> int:
    """The address of a row's checksum (`cells.CHECKSUM`); 0: it has none."""
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
        return put_u64(out, U64(0 if op == DELETE else I64(load_u32(found + CURRENT_AT))))
    if part == SUM_PREVIOUS:
        return put_u64(out, U64(0 if op == INSERT else I64(load_u32(found + PREVIOUS_AT))))
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
    key = load_i64(job + J_ROW_KEYS) + RUN_BYTES * row
    return put_base64(out, load_i64(key + RUN_AT), load_i64(key + RUN_SIZE))


@inline
def row_bound(job: int, op: int, row: int) -> int:
    """The worst case of one row's value: fixed part of its operation, and its values of variable size."""
    bound = load_i64(load_i64(job + J_FIXED) + 8 * op)
    keys = load_i64(job + J_ROW_KEYS)
    if keys != 0:
        bound += 2 * load_i64(keys + RUN_BYTES * row + RUN_SIZE)
    entry = load_i64(job + J_VARIABLES)
    count = load_i64(entry)
    new_sizes = load_i64(job + J_NEW_SIZES) + 4 * row * load_i64(job + J_NEW_STRIDE)
    old_sizes = load_i64(job + J_OLD_SIZES) + 4 * row * load_i64(job + J_OLD_STRIDE)
    for i in range(count):
        variable = entry + _VARIABLES + _VARIABLE * i
        cell = load_i64(variable + VARIABLE_CELL)
        factor = load_i64(variable + VARIABLE_FACTOR)
        if op != DELETE:
            bound += factor * max(I64(load_i32(new_sizes + 4 * cell)), 0)
        if op != INSERT:
            bound += factor * max(I64(load_i32(old_sizes + 4 * cell)), 0)
    return bound


@inline
def put_row(out: int, job: int, op: int, row: int) -> int:
    """All pieces of one row's operation."""
    new_words = load_i64(job + J_NEW_WORDS) + 8 * row * load_i64(job + J_NEW_STRIDE)
    new_sizes = load_i64(job + J_NEW_SIZES) + 4 * row * load_i64(job + J_NEW_STRIDE)
    old_words = load_i64(job + J_OLD_WORDS) + 8 * row * load_i64(job + J_OLD_STRIDE)
    old_sizes = load_i64(job + J_OLD_SIZES) + 4 * row * load_i64(job + J_OLD_STRIDE)
    scratch = load_i64(job + J_SCRATCH)
    stack = load_i64(job + J_STACK)
    printable = load_i64(job + J_PRINTABLE)
    pieces = load_i64(job + J_PIECES) + RUN_BYTES * op
    piece = load_i64(pieces + RUN_AT)
    last = piece + PIECE_BYTES * load_i64(pieces + RUN_SIZE)
    kept = 0
    found = checksum_of(job, row)
    while piece < last:
        form = load_i64(piece + P_FORM)
        cell = load_i64(piece + P_CELL)
        image = load_i64(piece + P_IMAGE)
        word = load_i64((old_words if image else new_words) + 8 * cell)
        size = I64(load_i32((old_sizes if image else new_sizes) + 4 * cell))
        source = load_i64(piece + P_CONST)
        length = load_i64(piece + P_LENGTH)
        param = load_i64(piece + P_PARAM)
        if load_i64(piece + P_ONLY_CHANGED):
            other = load_i64(new_words + 8 * cell)
            if same_value(form, param, word, size, other, I64(load_i32(new_sizes + 4 * cell)), job):
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
                out = put_promoted(out, param, word, size)
            elif form == PHYSICAL_ID:
                out = put_i64(out, load_i64(load_i64(job + J_PHYSICAL) + 8 * row))
            else:
                ts = load_u64(load_i64(job + J_COMMIT_TS) + 8 * row)
                out = put_u64(out, ts >> _MILLIS_SHIFT if form == MILLISECONDS else ts)
        elif form != CONSTANT:
            if size < 0:
                out = put_null(out, piece)
            else:
                out = put_value(out, form, param, word, size, scratch, stack, printable)
                out = put_short(out, load_i64(piece + P_TAIL))
        piece += PIECE_BYTES
    return out


@inline
def put_key_cell(out: int, job: int, piece: int, op: int, row: int) -> int:
    """A column's value in a key: the new one, of a delete the old one."""
    cell = load_i64(piece + P_CELL)
    if op == DELETE:
        at = row * load_i64(job + J_OLD_STRIDE) + cell
        word = load_i64(load_i64(job + J_OLD_WORDS) + 8 * at)
        size = I64(load_i32(load_i64(job + J_OLD_SIZES) + 4 * at))
    else:
        at = row * load_i64(job + J_NEW_STRIDE) + cell
        word = load_i64(load_i64(job + J_NEW_WORDS) + 8 * at)
        size = I64(load_i32(load_i64(job + J_NEW_SIZES) + 4 * at))
    if size < 0:
        return put_null(out, piece)
    scratch = load_i64(job + J_SCRATCH)
    stack = load_i64(job + J_STACK)
    printable = load_i64(job + J_PRINTABLE)
    form = load_i64(piece + P_FORM)
    out = put_apart(out, form, load_i64(piece + P_PARAM), word, size, scratch, stack, printable)
    return put_short(out, load_i64(piece + P_TAIL))


@inline
def put_key(out: int, job: int, op: int, row: int) -> int:
    """The key of one row, the pieces of operation 0: constants, the row's own numbers, columns' values.

    A row id of 0 (no integer handle) is left out together with its constant.
    """
    pieces = load_i64(job + J_PIECES)
    piece = load_i64(pieces + RUN_AT)
    last = piece + PIECE_BYTES * load_i64(pieces + RUN_SIZE)
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

    Reads cells, plan and job. Writes data, the messages' columns and the job's state. Bound: J_ROOM, compared
    with the worst case of each row before it is written. Twin: `encode_rows` of each protocol's `plain`;
    `tests.contracts.test_codecs.test_golden_rows_give_the_same_bytes_compiled_and_plain` compares them.
    Trick: constants are copied 32 bytes at a time, over what the next write replaces.
    """
    data = load_i64(job + J_DATA)
    end = data + load_i64(job + J_ROOM)
    out = data + load_i64(job + J_OUT)
    rows = load_i64(job + J_ROWS)
    ops = load_i64(job + J_OP)
    limit = load_i64(job + J_MAX_BYTES) - RECORD_OVERHEAD
    keyed = load_i64(load_i64(job + J_PIECES) + RUN_SIZE) > 0
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
            store_u64(job + J_NEED, out - key + RECORD_OVERHEAD)
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

    Reads cells, plan and job. Writes data, the messages' columns and the job's state. Bound: J_ROOM, compared
    with the worst case of each row before it is written. Twin:
    `tidegate.codec.protocols.open_protocol.plain.OpenProtocolEncoder.encode_rows`. Trick: the keys of all
    messages come first in data, so that a row's key and value are written once.
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
        item = key_out + (2 * LENGTH_BYTES if fresh else LENGTH_BYTES)
        item_end = put_key(item, job, op, row)
        value_end = put_row(out + LENGTH_BYTES, job, op, row)
        key_size = item_end - item
        value_size = value_end - out - LENGTH_BYTES
        if key_size + value_size + RECORD_OVERHEAD + 3 * LENGTH_BYTES > max_bytes:
            store_u64(job + J_NEED, key_size + value_size + RECORD_OVERHEAD + 3 * LENGTH_BYTES)
            status = TOO_LARGE
            break
        if not fresh:
            batch = (
                (key_out - key_start)
                + (out - start)
                + RECORD_OVERHEAD
                + key_size
                + value_size
                + 2 * LENGTH_BYTES
            )
            if batch > max_bytes:
                shift_right(item, item_end, LENGTH_BYTES)
                item += LENGTH_BYTES
                item_end += LENGTH_BYTES
                fresh = True
        if fresh:
            if held > 0:
                end_message(job, number, key_start, key_out, start, out, before, held)
                number += 1
            held = 0
            key_start = key_out
            start = out
            store_u64(key_out, BATCH_VERSION)
        store_u64(item - LENGTH_BYTES, bswap64(U64(key_size)))
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
    """The bytes of all values of variable size; the largest one comes in J_NEED.

    Reads the sizes of cells. Writes J_NEED. Bound: the columns of variable size of each row. Twin: none,
    because it adds up the sizes that the cells have, by which memory is allocated.
    """
    ops = load_i64(job + J_OP)
    entry = load_i64(job + J_VARIABLES)
    count = load_i64(entry)
    total = 0
    largest = 0
    for row in range(load_i64(job + J_ROWS)):
        op = I64(load_u8(ops + row))
        new_sizes = load_i64(job + J_NEW_SIZES) + 4 * row * load_i64(job + J_NEW_STRIDE)
        old_sizes = load_i64(job + J_OLD_SIZES) + 4 * row * load_i64(job + J_OLD_STRIDE)
        for i in range(count):
            cell = load_i64(entry + _VARIABLES + _VARIABLE * i + VARIABLE_CELL)
            new_size = I64(load_i32(new_sizes + 4 * cell)) if op != DELETE else 0
            old_size = I64(load_i32(old_sizes + 4 * cell)) if op != INSERT else 0
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
