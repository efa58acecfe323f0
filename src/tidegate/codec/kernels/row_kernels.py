"""One row as text: the pieces of its key and of its value, walked in order.

Strings come from `text_kernels`, Connect's types from `connect_kernels`; numbers, decimals, times and
binary JSON from `tidegate.tidb.kernels`. `row_bound` is the largest size of a row's value: the kernels that
call these functions (`codec.kernels.encode_kernels`) compare it with the room left before they write.
"""

from __future__ import annotations

from typing import Final

from tidegate.codec.kernels.connect_kernels import put_connected
from tidegate.codec.kernels.job_kernels import (
    J_CHECKSUMS,
    J_COMMIT_TS,
    J_FIXED,
    J_HANDLE,
    J_MOST_VARIABLE,
    J_NEW_SIZES,
    J_NEW_STRIDE,
    J_NEW_WORDS,
    J_OLD_SIZES,
    J_OLD_STRIDE,
    J_OLD_WORDS,
    J_PHYSICAL,
    J_PIECES,
    J_PRINTABLE,
    J_ROW_KEYS,
    J_SCRATCH,
    J_STACK,
    J_START_TS,
    J_VARIABLES,
    VARIABLE_BYTES,
    VARIABLE_CELL,
    VARIABLE_FACTOR,
    VARIABLES_AT,
)
from tidegate.codec.kernels.layout_kernels import RUN_AT, RUN_BYTES, RUN_SIZE
from tidegate.codec.kernels.piece_kernels import (
    BASE64,
    CHECKSUM,
    COMMIT_TS,
    CONSTANT,
    DATE,
    DATETIME,
    DECIMAL,
    DOUBLE_FIXED,
    DOUBLE_JSON,
    FALSE,
    FITTING_AT,
    FLOAT_FIXED,
    FLOAT_JSON,
    GROUP_END,
    INT,
    JSON,
    LATIN1,
    LIMIT_BITS,
    LIMIT_BITS_AT,
    LONG_NULL,
    MILLISECONDS,
    P_CELL,
    P_CONST,
    P_FORM,
    P_IMAGE,
    P_LENGTH,
    P_NULL,
    P_NULL_BACK,
    P_ONLY_CHANGED,
    P_OPEN,
    P_OPEN_LENGTH,
    P_PARAM,
    P_TAIL,
    PHYSICAL_ID,
    PIECE_BYTES,
    PROMOTED,
    PROMOTED_TEXT,
    QUOTED,
    ROW_ID,
    START_TS,
    SUM_CORRUPTED,
    SUM_CURRENT,
    SUM_PREVIOUS,
    SUM_VERSION,
    TEXT,
    TIME,
    TRUE,
    UINT,
    VECTOR,
)
from tidegate.codec.kernels.text_kernels import (
    put_base64,
    put_const,
    put_latin1,
    put_quoted,
    put_short,
    put_text,
    put_vector,
)
from tidegate.kernel import (
    inline,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    prefetch,
    same_bytes,
    shared,
    store_u16,
)
from tidegate.model import cells
from tidegate.model.cells import DELETE, INSERT
from tidegate.model.timestamp import LOGICAL_BITS
from tidegate.tidb.kernels.float import put_double_fixed, put_double_json, put_float_fixed, put_float_json
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

CHECKSUM_BYTES: Final = cells.CHECKSUM.itemsize
CURRENT_AT, PREVIOUS_AT, VERSION_AT, CORRUPTED_AT, KNOWN_AT = (
    dict(cells.CHECKSUM.fields or {})[name][1]
    for name in ("current", "previous", "version", "corrupted", "known")
)
_MILLIS_SHIFT: Final = U64(LOGICAL_BITS)
_ONE_BYTE: Final = 0xFF
"""The largest text of one character."""
LINE_BYTES: Final = 64
"""A cache line."""


@inline
def put_value(out: int, form: int, param: int, word: int, size: int, job: int) -> int:
    """The text of one value that is not NULL. The most common forms are tested first.

    The job's memory is read where a form needs it: few do, and it need not be kept in registers.
    """
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
        # First as TiDB prints it, then escaped like any text.
        scratch = load_i64(job + J_SCRATCH)
        return put_text(out, scratch, put_json(scratch, word, size, load_i64(job + J_STACK)) - scratch, param)
    if form == QUOTED:
        return put_quoted(out, word, size, load_i64(job + J_PRINTABLE), param)
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
    scratch = load_i64(job + J_SCRATCH)
    return put_connected(out, form, param, word, size, scratch, load_i64(job + J_STACK))


@shared
def put_apart(out: int, form: int, param: int, word: int, size: int, job: int) -> int:
    """`put_value` as a function of its own, for keys: inlined there it would double the code of every kernel.

    Reads the bytes of the value. Writes `out`, and the job's scratch memory on the way. Bound: VALUE_FACTOR
    and FIXED_SIZE. Twin: the encoder of each protocol;
    `tests.contracts.test_codecs.test_a_key_of_text_is_counted_with_its_escapes` compares keys.
    """
    return put_value(out, form, param, word, size, job)


@shared
def same_text(
    form: int, param: int, left: int, left_size: int, right: int, right_size: int, job: int
) -> bool:
    """Whether two values have the same text although their cells differ: decimals, times, JSON.

    Reads both values. Writes their texts to the scratch memory of the job. Bound: three times eight bytes for
    each byte of the larger value, and 512 more: JSON's raw text, then both texts. Twin: the encoder of each
    protocol; `tests.contracts.test_codecs.test_any_row_keeps_the_contract` compares them.
    """
    # `blocks` gives 24 bytes of scratch memory for each byte of the largest value, and 8192 more: three of
    # these parts. `put_value` uses the first one.
    room = 8 * max(left_size, right_size, 64) + 512
    first = load_i64(job + J_SCRATCH) + room
    middle = put_apart(first, form, param, left, left_size, job)
    last = put_apart(middle, form, param, right, right_size, job)
    size = middle - first
    return last - middle == size and same_bytes(first, middle, size)


@inline
def same_value(
    form: int, param: int, left: int, left_size: int, right: int, right_size: int, job: int
) -> bool:
    """Whether TiCDC considers two values of a column equal: it compares their texts."""
    # NULL has the size -1, so this is true only if both are NULL.
    if left_size < 0 or right_size < 0:
        return left_size == right_size
    if form in (INT, UINT):
        return left == right
    if form in (TEXT, BASE64, QUOTED, LATIN1):
        return left_size == right_size and same_bytes(left, right, left_size)
    if FLOAT_JSON <= form <= DOUBLE_FIXED:
        # 0 and -0 differ in the sign bit alone and are equal.
        return left == right or (left | right) & 0x7FFFFFFFFFFFFFFF == 0
    return same_text(form, param, left, left_size, right, right_size, job)


@inline
def put_null(out: int, piece: int) -> int:
    """Write the text for NULL in a piece, over the end of its constant if the piece says so."""
    # The constant may end with the beginning of the value's text, for example a quotation mark, which NULL
    # does not have.
    out -= load_i64(piece + P_NULL_BACK)
    null = load_i64(piece + P_NULL)
    if null == LONG_NULL:
        return put_const(out, load_i64(piece + P_OPEN), load_i64(piece + P_OPEN_LENGTH))
    return put_short(out, null)


@inline
def put_promoted(out: int, param: int, word: int, size: int) -> int:
    """The Java type of an unsigned column; `param` is a `piece_kernels.promotion`."""
    limit = (param >> LIMIT_BITS_AT) & LIMIT_BITS
    text = (param >> FITTING_AT) & PROMOTED_TEXT
    # If the value needs more bits than the signed Java type has, the type is the next larger one.
    if size >= 0 and U64(word) >> U64(limit) != U64(0):
        text = param & PROMOTED_TEXT
    # Two bytes in any case. The upper one of a text of one character is 0, and the next write replaces it.
    store_u16(out, text)
    return out + (1 if text <= _ONE_BYTE else 2)


@inline
def checksum_of(job: int, row: int) -> int:
    """The address of a row's checksum (`cells.CHECKSUM`); 0 if the row has none."""
    checksums = load_i64(job + J_CHECKSUMS)
    if checksums == 0:
        return 0
    found = checksums + CHECKSUM_BYTES * row
    return found if load_u8(found + KNOWN_AT) else 0


@inline
def put_checksum(out: int, part: int, op: int, found: int) -> int:
    """A part of a row's checksum as JSON; 0 for the sum of an image that the row does not have."""
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
def put_seldom(out: int, job: int, piece: int, op: int, row: int) -> int:
    """A piece of a form that few messages use, with its constant.

    If the row has no checksum, a part of it is left out together with its constant.
    """
    form = load_i64(piece + P_FORM)
    found = checksum_of(job, row) if form == CHECKSUM else 0
    # Before the constant is written, because the name of the field is in it.
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
def row_bound(job: int, op: int, row: int, room: int) -> int:
    """The most bytes of a row's value: the fixed part of its operation, and values of variable size.

    If `room` is enough for the largest values of the block, they count instead of those of the row.
    """
    bound = load_i64(load_i64(job + J_FIXED) + 8 * op)
    keys = load_i64(job + J_ROW_KEYS)
    if keys != 0:
        # Base64 makes four bytes of three, so twice as many is enough for a row's key.
        bound += 2 * load_i64(keys + RUN_BYTES * row + RUN_SIZE)
    most = bound + load_i64(job + J_MOST_VARIABLE)
    # Sizes are far apart, so few rows should pay for a look at theirs: those near the end of the buffer.
    if most <= room:
        return most
    entry = load_i64(job + J_VARIABLES)
    count = load_i64(entry)
    new_sizes = load_i64(job + J_NEW_SIZES) + 4 * row * load_i64(job + J_NEW_STRIDE)
    old_sizes = load_i64(job + J_OLD_SIZES) + 4 * row * load_i64(job + J_OLD_STRIDE)
    for i in range(count):
        variable = entry + VARIABLES_AT + VARIABLE_BYTES * i
        cell = load_i64(variable + VARIABLE_CELL)
        factor = load_i64(variable + VARIABLE_FACTOR)
        if op != DELETE:
            # NULL has the size -1 and is part of the fixed bytes.
            bound += factor * max(I64(load_i32(new_sizes + 4 * cell)), 0)
        if op != INSERT:
            bound += factor * max(I64(load_i32(old_sizes + 4 * cell)), 0)
    return bound


@inline
def prefetch_lines(first: int, size: int) -> None:
    """Ask for the cache lines of `size` bytes."""
    for at in range(0, size, LINE_BYTES):
        prefetch(first + at)


@inline
def prefetch_row(job: int, op: int, row: int) -> None:
    """Ask for the cells of a row while the row before it is written.

    The images of a block are larger than the caches near the processor, and with several partitions a row is
    far from the one before it.
    """
    if op != DELETE:
        stride = load_i64(job + J_NEW_STRIDE)
        prefetch_lines(load_i64(job + J_NEW_SIZES) + 4 * row * stride, 4 * stride)
        prefetch_lines(load_i64(job + J_NEW_WORDS) + 8 * row * stride, 8 * stride)
    if op != INSERT:
        stride = load_i64(job + J_OLD_STRIDE)
        prefetch_lines(load_i64(job + J_OLD_SIZES) + 4 * row * stride, 4 * stride)
        prefetch_lines(load_i64(job + J_OLD_WORDS) + 8 * row * stride, 8 * stride)


@shared
def put_row(out: int, job: int, op: int, row: int) -> int:
    """Write all pieces for a row's operation; returns the end.

    Reads the row's cells and the pieces of the job. Writes `out`, and the job's scratch memory on the way.
    Bound: the worst case of the row, which the caller has compared with the room left. Twin: the encoder of
    each protocol; `tests.contracts.test_codecs.test_golden_rows_give_the_same_bytes_compiled_and_plain`
    compares rows.
    """
    new_words = load_i64(job + J_NEW_WORDS) + 8 * row * load_i64(job + J_NEW_STRIDE)
    new_sizes = load_i64(job + J_NEW_SIZES) + 4 * row * load_i64(job + J_NEW_STRIDE)
    old_words = load_i64(job + J_OLD_WORDS) + 8 * row * load_i64(job + J_OLD_STRIDE)
    old_sizes = load_i64(job + J_OLD_SIZES) + 4 * row * load_i64(job + J_OLD_STRIDE)
    pieces = load_i64(job + J_PIECES) + RUN_BYTES * op
    piece = load_i64(pieces + RUN_AT)
    last = piece + PIECE_BYTES * load_i64(pieces + RUN_SIZE)
    kept = 0
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
            # The first column of the group that differs opens it, and has no comma before it.
            if kept == 0:
                out = put_const(out, load_i64(piece + P_OPEN), load_i64(piece + P_OPEN_LENGTH))
                source += 1
                length -= 1
            kept += 1
        if form == GROUP_END:
            # A group without a changed column was never opened, so it is not closed either.
            if kept > 0:
                out = put_const(out, source, length)
            kept = 0
            piece += PIECE_BYTES
            continue
        if form >= CHECKSUM:
            out = put_seldom(out, job, piece, op, row)
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
                out = put_value(out, form, param, word, size, job)
                out = put_short(out, load_i64(piece + P_TAIL))
        piece += PIECE_BYTES
    return out


@inline
def put_key_cell(out: int, job: int, piece: int, op: int, row: int) -> int:
    """Write a column's value in a key: the new one, or for a delete the old one."""
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
    out = put_apart(out, load_i64(piece + P_FORM), load_i64(piece + P_PARAM), word, size, job)
    return put_short(out, load_i64(piece + P_TAIL))


@inline
def put_key(out: int, job: int, op: int, row: int) -> int:
    """Write the key of a row: constants, numbers of the row, values of columns.

    A row id of 0 (no integer handle) is left out together with its constant.
    """
    pieces = load_i64(job + J_PIECES)
    piece = load_i64(pieces + RUN_AT)
    last = piece + PIECE_BYTES * load_i64(pieces + RUN_SIZE)
    while piece < last:
        form = load_i64(piece + P_FORM)
        # 1 for all other pieces, because they are never left out.
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
