"""Row kernels: record keys and row values (facts 6.2 to 6.4), many rows a call, into slots.

`parse_keys` splits record keys; `decode_rows` decodes the new and the old image of rows of *one* table
version, row by row, driven by the table's plan: an int64 matrix, one line of `PLAN_WORDS` a column in
ascending order of column id, so that a row's own sorted ids are merged with it in one pass. No code and
no compile per table. `mounter.decode` makes the plan and calls both.

Nothing is read outside the given buffers: each load is preceded by a proof of its bounds, and a row that
fails one gets a fault, `fault(code, image, offset)`, instead of values. Bytes are not copied: slots hold
addresses in the buffers of values, of keys (decimals in a common handle), of `scratch` (strings in a
common handle, un-grouped) or of the table's defaults.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np

from tidegate.kernel import (
    address,
    bswap64,
    cttz64,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.model.block import DELETE
from tidegate.tidb.checksum_kernels import check_image
from tidegate.tidb.json_kernels import STACK_WORDS, json_ok
from tidegate.tidb.kernels import BYTES_OF_DIGITS, I64, U64, decimal_size
from tidegate.tidb.types.temporal import DURATION_MAX_NS
from tidegate.tidb.zone_kernels import calendar_ok


class Form(IntEnum):
    """How the stored bytes of a column become a slot, and what is checked on the way."""

    SIGNED = 1
    NANOSECONDS = 2
    UNSIGNED = 3
    PACKED = 4
    PACKED_ZONED = 5
    BYTES = 6
    FLOAT = 7
    DECIMAL = 8
    JSON = 9
    VECTOR = 10


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


SIGNED: Final = int(Form.SIGNED)
NANOSECONDS: Final = int(Form.NANOSECONDS)
UNSIGNED: Final = int(Form.UNSIGNED)
PACKED: Final = int(Form.PACKED)
PACKED_ZONED: Final = int(Form.PACKED_ZONED)
BYTES: Final = int(Form.BYTES)
FLOAT: Final = int(Form.FLOAT)
DECIMAL: Final = int(Form.DECIMAL)
JSON: Final = int(Form.JSON)

KEY_FAULT: Final = int(Fault.KEY)
HEADER_FAULT: Final = int(Fault.HEADER)
ORDER_FAULT: Final = int(Fault.ORDER)
OFFSETS_FAULT: Final = int(Fault.OFFSETS)
VALUE_FAULT: Final = int(Fault.VALUE)
DATUM_FAULT: Final = int(Fault.DATUM)
CHECKSUM_FAULT: Final = int(Fault.CHECKSUM)
DEFAULT_FAULT: Final = int(Fault.DEFAULT)

PLAN_WORDS: Final = 8
"""Words a column in a plan: id, position in the table, form, source, default a, default l, two unused.

source: what stands in for a column the row does not hold: the number of a datum of the handle, or
`FROM_DEFAULT`, or `NO_DEFAULT` when the default cannot be read (then such rows are faulty).
"""
FROM_DEFAULT: Final = -1
NO_DEFAULT: Final = -2
_LINE: Final = 8 * PLAN_WORDS
MAX_HANDLE_DATUMS: Final = 64

ABSENT: Final = -2
"""`l` of a slot not yet filled, while an old row is read."""

NEW: Final = 0
OLD: Final = 1
"""Which value a fault's offset counts in."""

_SIGN: Final = U64(1 << 63)
_RECORD_LE: Final = 0x725F  # "_r" as a little-endian u16
_INDEX_LE: Final = 0x695F  # "_i"
_DELETE: Final = DELETE
_HANDLE_AT: Final = 11
NO_ROW: Final = -1
NO_RECORD: Final = -2
_POWERS: Final = np.array([10**i for i in range(10)], dtype=np.int64)
_LONGEST_TIME: Final = DURATION_MAX_NS
_PACKED_YEARS: Final = 10_000 * 13 * 32
"""Above every packed year, month and day."""
_INTEGER_SIZES: Final = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8
_SHAPES_SIDE: Final = 82


def _shapes() -> Any:
    """By precision and fraction: the bytes with header, those of both partial words, and their digits."""
    found = np.zeros(_SHAPES_SIDE * _SHAPES_SIDE, dtype=np.int32)
    for precision in range(1, _SHAPES_SIDE):
        for frac in range(precision + 1):
            integer = precision - frac
            lead, tail = int(BYTES_OF_DIGITS[integer % 9]), int(BYTES_OF_DIGITS[frac % 9])
            size = 2 + lead + tail + 4 * (integer // 9 + frac // 9)
            digits = (integer % 9) << 16 | (frac % 9) << 20
            found[precision * _SHAPES_SIDE + frac] = size | lead << 8 | tail << 12 | digits
    return found


_SHAPES: Final = _shapes()


@inline
def fault(code: int, offset: int) -> int:
    """A fault word: the code, from bit 16 the offset; `decode_rows` adds the image in bit 8."""
    return code | (offset << 16)


# --- keys -----------------------------------------------------------------------------------------------


@kernel
def parse_keys(n: int, ends: int, keys: int, tables: int, handles: int, lengths: int) -> int:
    """Split n record keys; returns how many are not record keys.

    ends: int32[n + 1], Arrow's offsets; keys: the bytes. Writes per key the table id to `tables`, the int
    handle to `handles` (0 for a common handle) and the handle's length in bytes to `lengths` (int32; 8:
    may be an int handle; NO_ROW: an index entry; NO_RECORD: neither).
    """
    strangers = 0
    for i in range(n):
        start = I64(load_i32(ends + 4 * i))
        size = I64(load_i32(ends + 4 * i + 4)) - start
        key = keys + start
        table = 0
        handle = 0
        length = NO_RECORD
        if size >= 11 and load_u8(key) == 116 and load_u16(key + 9) == _INDEX_LE:
            length = NO_ROW
        elif size >= 19 and load_u8(key) == 116 and load_u16(key + 9) == _RECORD_LE:
            table = I64(bswap64(load_u64(key + 1)) ^ _SIGN)
            length = size - 11
            if length == 8:
                handle = I64(bswap64(load_u64(key + 11)) ^ _SIGN)
        if length < 0:
            strangers += 1
        store_u64(tables + 8 * i, table)
        store_u64(handles + 8 * i, handle)
        store_u32(lengths + 4 * i, length)
    return strangers


# --- values ---------------------------------------------------------------------------------------------


@inline
def put_slot(a: int, l: int, cell: int, word: int, size: int) -> None:  # noqa: E741
    """Write both words of a slot."""
    store_u64(a + 8 * cell, word)
    store_u32(l + 4 * cell, size)


@inline
def decimal_extent(addr: int, room: int) -> int:
    """The bytes that a decimal takes at `addr` by its two bytes of header, or -1 if `room` is not enough."""
    if room < 3:
        return -1
    size = decimal_size(I64(load_u8(addr)), I64(load_u8(addr + 1)))
    return size + 2 if 0 <= size <= room - 2 else -1


@inline
def word_before(end: int, size: int, flip: int) -> int:
    """The big-endian word of 1 to 4 bytes that ends at `end`, three more bytes being readable before it."""
    word = I64(bswap64(load_u32(end - 4)) >> U64(32)) ^ flip
    return word & ((1 << (8 * size)) - 1)


@inline
def decimal_ok(addr: int, size: int) -> bool:
    """Whether `size` bytes are a decimal, its words within their digits; a byte before `addr` is readable."""
    if size < 3:
        return False
    precision = I64(load_u8(addr))
    frac = I64(load_u8(addr + 1))
    if precision >= _SHAPES_SIDE or frac >= _SHAPES_SIDE:
        return False
    shape = I64(_SHAPES[precision * _SHAPES_SIDE + frac])
    if shape & 0xFF != size:
        return False
    lead = (shape >> 8) & 15
    tail = (shape >> 12) & 15
    digits = addr + 2
    end = addr + size
    flip = -1 if load_u8(digits) & 0x80 == 0 else 0
    at = digits + lead
    sign = 0x80000000
    ok = True
    if lead > 0:
        word = word_before(at, lead, flip) ^ (0x80 << (8 * lead - 8))
        ok = word < _POWERS[(shape >> 16) & 15]
        sign = 0
    while at < end - tail:
        at += 4
        ok &= (word_before(at, 4, flip) ^ sign) < 1000000000
        sign = 0
    if tail > 0:
        word = word_before(end, tail, flip)
        if sign != 0:
            word ^= 0x80 << (8 * tail - 8)
        ok &= word < _POWERS[shape >> 20]
    return bool(ok)


@inline
def float_bits(addr: int) -> int:
    """The bits of the double that EncodeFloat wrote."""
    bits = bswap64(load_u64(addr))
    if bits & _SIGN != U64(0):
        return I64(bits ^ _SIGN)
    return I64(~bits)


@inline
def packed_ok(packed: int, zoned: bool) -> bool:
    """Whether a packed time has a clock and a year; zoned: whether it is a calendar date too, or zero."""
    clock = (packed >> 24) & 0x1FFFF
    ok = ((packed >> 41) & 0x7FFFFF) < _PACKED_YEARS
    ok &= (clock < 98304) & ((clock & 0xFFF) < 3840) & ((clock & 63) < 60)
    ok &= (packed & 0xFFFFFF) < 1000000
    return bool(ok) and (not zoned or packed == 0 or calendar_ok(packed))


@inline
def integer_ok(form: int, word: int) -> bool:
    """Whether an integer is a value of a column of that form."""
    if form in (SIGNED, UNSIGNED):
        return True
    if form in (PACKED, PACKED_ZONED):
        return packed_ok(word, form == PACKED_ZONED)
    return -_LONGEST_TIME <= word <= _LONGEST_TIME


@inline
def bytes_ok(form: int, addr: int, size: int, stack: int) -> bool:
    """Whether `size` bytes are a value of a column of a form that keeps them."""
    if form == BYTES:
        return True
    if form == DECIMAL:
        return decimal_ok(addr, size)
    if form == JSON:
        return json_ok(addr, size, stack)
    return vector_ok(addr, size)


@inline
def vector_ok(addr: int, size: int) -> bool:
    """Whether bytes are a vector of finite floats."""
    if size < 4 or I64(load_u32(addr)) * 4 + 4 != size:
        return False
    infinite = 0
    for at in range(4, size, 4):
        infinite += 1 if load_u32(addr + at) & 0x7F800000 == 0x7F800000 else 0
    return infinite == 0


@inline
def load_integer(form: int, end: int, size: int) -> int:
    """A little-endian integer of 1, 2, 4 or 8 bytes that ends at `end`, signed for the signed forms.

    Sizes differ from row to row, so that a branch on them would be mispredicted: one load of the 8 bytes
    before `end`, which a row's header makes readable, and a shift.
    """
    word = load_u64(end - 8)
    shift = 64 - 8 * size
    signed = I64(word) >> shift
    unsigned = I64(word >> U64(shift))
    return signed if form <= NANOSECONDS else unsigned


@inline
def decode_value(entry: int, addr: int, size: int, a: int, l: int, stack: int) -> bool:  # noqa: E741
    """One value of `size` bytes at `addr`, as v2 stores it, into the slot its plan line names.

    `size` is not negative, and at least 8 bytes of the row come before `addr`.
    """
    form = load_i64(entry + 16)
    cell = load_i64(entry + 8)
    if form < BYTES:
        if size > 8 or (_INTEGER_SIZES >> size) & 1 == 0:
            return False
        word = load_integer(form, addr + size, size)
        put_slot(a, l, cell, word, 0)
        return integer_ok(form, word)
    if form == FLOAT:
        if size != 8:
            return False
        put_slot(a, l, cell, float_bits(addr), 0)
        return True
    put_slot(a, l, cell, addr, size)
    return bytes_ok(form, addr, size, stack)


@inline
def row_id(ids: int, i: int, large: int) -> int:
    """The i-th column id of a row's id list."""
    if large:
        return I64(load_u32(ids + 4 * i))
    return I64(load_u8(ids + i))


@inline
def row_end(ends: int, i: int, large: int) -> int:
    """The i-th end offset of a row."""
    if large:
        return I64(load_u32(ends + 4 * i))
    return I64(load_u16(ends + 2 * i))


# --- datums: old rows and common handles ----------------------------------------------------------------


@inline
def read_uvarint(addr: int, room: int, out: int) -> int:
    """A LEB128 number of at most 64 bits within `room` bytes: stores it at `out`, returns its size or -1."""
    value = U64(0)
    for i in range(min(room, 10)):
        byte = I64(load_u8(addr + i))
        value |= U64(byte & 0x7F) << U64(7 * i)
        if byte < 0x80:
            if i == 9 and byte > 1:
                return -1
            store_u64(out, value)
            return i + 1
    return -1


@inline
def unzigzag(value: int) -> int:
    """The signed number of a zig-zag one."""
    return I64((U64(value) >> U64(1)) ^ (U64(0) - (U64(value) & U64(1))))


@inline
def json_size(addr: int, room: int, scratch: int) -> int:
    """The bytes of a JSON value's type code and value, from their own headers; -1 if they cannot be read."""
    if room < 1:
        return -1
    code = I64(load_u8(addr))
    if code == 1 or code == 3:
        return 1 + I64(load_u32(addr + 5)) if room >= 9 else -1
    if code == 4:
        return 2
    if code == 9 or code == 10 or code == 11 or code == 14 or code == 15 or code == 16:
        return 9
    if code == 17:
        return 13
    if code != 12 and code != 13:
        return -1
    head = 1 if code == 12 else 2
    used = read_uvarint(addr + head, room - head, scratch)
    size = load_i64(scratch)
    if used < 0 or size < 0 or size > room:
        return -1
    return head + used + size


@inline
def ungroup(addr: int, room: int, out: int, result: int) -> int:
    """Memcomparable bytes: writes them to `out`, their number to `result`; returns the size read, or -1."""
    at = 0
    size = 0
    while at + 9 <= room:
        padding = 255 - I64(load_u8(addr + at + 8))
        group = load_u64(addr + at)
        if padding > 8 or (padding > 0 and padding < 8 and group >> U64(64 - 8 * padding) != U64(0)):
            return -1
        if padding == 8 and group != U64(0):
            return -1
        store_u64(out + size, group)
        size += 8 - padding
        at += 9
        if padding > 0:
            store_u64(result, size)
            return at
    return -1


@inline
def read_datum(entry: int, at: int, room: int, a: int, l: int, cell: int, free: int, stack: int) -> int:  # noqa: E741
    """The flagged value at `at` for the column of a plan line, into a slot; the bytes it takes, or -1.

    free: where the bytes of memcomparable strings go, at least `room` bytes and the pad; 0: none allowed.
    """
    if room < 1:
        return -1
    flag = I64(load_u8(at))
    addr = at + 1
    room -= 1
    form = load_i64(entry + 16)
    if flag == 0:
        put_slot(a, l, cell, 0, -1)
        return 1
    used = -1
    if form < BYTES:
        word = 0
        if flag == 8 or flag == 9:
            used = read_uvarint(addr, room, stack)
            word = load_i64(stack)
            if flag == 8:
                word = unzigzag(word)
        elif (flag == 3 or flag == 4 or flag == 7) and room >= 8:
            used = 8
            bits = bswap64(load_u64(addr))
            word = I64(bits) if flag == 4 else I64(bits ^ _SIGN)
        if form <= NANOSECONDS and word < 0 and (flag == 4 or flag == 9):
            return -1
        if used < 0 or not integer_ok(form, word):
            return -1
        put_slot(a, l, cell, word, 0)
        return used + 1
    if form == FLOAT:
        if flag != 5 or room < 8:
            return -1
        put_slot(a, l, cell, float_bits(addr), 0)
        return 9
    if form == BYTES and flag == 1 and free != 0:
        used = ungroup(addr, room, free, stack)
        if used < 0:
            return -1
        put_slot(a, l, cell, free, load_i64(stack))
        return used + 1
    size = -1
    if form == BYTES and flag == 2:
        used = read_uvarint(addr, room, stack)
        size = unzigzag(load_i64(stack))
        if used < 0 or size < 0 or size > room - used:
            return -1
        addr += used
        put_slot(a, l, cell, addr, size)
        return used + size + 1
    if form == DECIMAL and flag == 6:
        size = decimal_extent(addr, room)
    elif form == JSON and flag == 10:
        size = json_size(addr, room, stack)
    elif form > JSON and flag == 20 and room >= 4:
        size = I64(load_u32(addr)) * 4 + 4
    if size < 0 or size > room or not bytes_ok(form, addr, size, stack):
        return -1
    put_slot(a, l, cell, addr, size)
    return size + 1


@inline
def skip_datum(at: int, room: int, scratch: int) -> int:
    """The bytes of the flagged value at `at` in an old row, or -1."""
    if room < 1:
        return -1
    flag = I64(load_u8(at))
    addr = at + 1
    room -= 1
    size = -1
    if flag == 0:
        size = 0
    elif flag == 3 or flag == 4 or flag == 5 or flag == 7:
        size = 8
    elif flag == 8 or flag == 9:
        size = read_uvarint(addr, room, scratch)
    elif flag == 2:
        used = read_uvarint(addr, room, scratch)
        size = unzigzag(load_i64(scratch))
        size = used + size if used >= 0 and 0 <= size <= room else -1
    elif flag == 6:
        size = decimal_extent(addr, room)
    elif flag == 10:
        size = json_size(addr, room, scratch)
    elif flag == 20 and room >= 4:
        size = I64(load_u32(addr)) * 4 + 4
    if size < 0 or size > room:
        return -1
    return size + 1


@inline
def find_line(plan: int, columns: int, wanted: int) -> int:
    """The address of the plan line of a column id, or 0."""
    low = 0
    high = columns
    while low < high:
        middle = (low + high) >> 1
        if load_i64(plan + middle * _LINE) < wanted:
            low = middle + 1
        else:
            high = middle
    if low < columns and load_i64(plan + low * _LINE) == wanted:
        return plan + low * _LINE
    return 0


# --- whole rows -----------------------------------------------------------------------------------------

# Where the words of a row's context are, in bytes from its address; `decode_rows` keeps one for all rows.
_KEY: Final = 0
_KEY_SIZE: Final = 8
_DATUMS: Final = 16
_READY: Final = 24
_FREE: Final = 32
_INT_HANDLE: Final = 40
_HANDLES_A: Final = 48
_HANDLES_L: Final = _HANDLES_A + 8 * MAX_HANDLE_DATUMS
_LINES: Final = _HANDLES_L + 8 * MAX_HANDLE_DATUMS
_STACK: Final = _LINES + 256
CONTEXT_WORDS: Final = _STACK // 8 + STACK_WORDS
"""int64 words that `decode_rows` wants as its working memory."""

_MOST_LINES: Final = 64
_NO_LINE: Final = 255
_NO_LINES: Final = U64(0xFFFFFFFFFFFFFFFF)


@kernel
def decode_handle(plan: int, columns: int, context: int) -> bool:
    """The common handle of a row's key into the context's handle slots, once a row."""
    key = load_i64(context + _KEY)
    size = load_i64(context + _KEY_SIZE)
    datums = load_i64(context + _DATUMS)
    handles_a = context + _HANDLES_A
    handles_l = context + _HANDLES_L
    free = load_i64(context + _FREE)
    at = 0
    for k in range(datums):
        entry = plan
        for c in range(columns):
            if load_i64(plan + c * _LINE + 24) == k:
                entry = plan + c * _LINE
        used = read_datum(entry, key + at, size - at, handles_a, handles_l, k, free, context + _STACK)
        if used < 0:
            return False
        if load_i64(entry + 16) == BYTES:
            free += max(load_i32(handles_l + 4 * k), 0)
        at += used
    store_u64(context + _FREE, free)
    while at < size:
        if load_u8(key + at) != 0:
            return False
        at += 1
    return True


@inline
def put_missing(entry: int, plan: int, columns: int, context: int, a: int, l: int) -> int:  # noqa: E741
    """A column that the row does not hold: from the key, or the default; 0 or a fault's code."""
    source = load_i64(entry + 24)
    cell = load_i64(entry + 8)
    if source < 0:
        put_slot(a, l, cell, load_i64(entry + 32), load_i64(entry + 40))
        return 0 if source == FROM_DEFAULT else DEFAULT_FAULT
    if load_i64(context + _DATUMS) == 0:
        put_slot(a, l, cell, load_i64(context + _INT_HANDLE), 0)
        return 0 if load_i64(context + _KEY_SIZE) == 8 else KEY_FAULT
    if load_i64(context + _READY) == 0:
        if not decode_handle(plan, columns, context):
            return KEY_FAULT
        store_u64(context + _READY, 1)
    handles_l = context + _HANDLES_L
    put_slot(a, l, cell, load_i64(context + _HANDLES_A + 8 * source), load_i32(handles_l + 4 * source))
    return 0


@inline
def tail_ok(flags: int, tail: int, size: int) -> bool:
    """Whether what follows a row's data is a checksum of a known version, or nothing if it has none.

    The checksum's value is not compared: that is for `checksum_kernels`.
    """
    if flags & 2 == 0:
        return size == 0
    if size != 5 and size != 9:
        return False
    head = I64(load_u8(tail))
    return head & 7 < 3 and (size == 9) == (head & 8 != 0)


@inline
def lists_apart(ids: int, filled: int, null_ids: int, nulls: int, large: int) -> bool:
    """Whether two ascending id lists have no id in common."""
    at = 0
    null_at = 0
    while at < filled and null_at < nulls:
        left = row_id(ids, at, large)
        right = row_id(null_ids, null_at, large)
        if left == right:
            return False
        if left < right:
            at += 1
        else:
            null_at += 1
    return True


@inline
def decode_v2(
    value: int,
    length: int,
    large: int,
    plan: int,
    columns: int,
    context: int,
    a: int,
    l: int,  # noqa: E741
) -> int:
    """A row value of format v2 into the slots of one row; 0 or a fault."""
    if length < 6:
        return fault(HEADER_FAULT, 0)
    flags = I64(load_u8(value + 1))
    filled = I64(load_u16(value + 2))
    nulls = I64(load_u16(value + 4))
    width = 4 if large else 1
    ids = value + 6
    null_ids = ids + filled * width
    ends = null_ids + nulls * width
    data = ends + filled * (4 if large else 2)
    room = value + length - data
    if room < 0 or flags > 3:
        return fault(HEADER_FAULT, 1)
    at = 0
    null_at = 0
    start = 0
    last = -1
    last_null = -1
    strangers = 0
    for c in range(columns + 1):
        entry = plan + c * _LINE
        wanted = load_i64(entry) if c < columns else 1 << 62
        found = -1
        while at < filled:
            found = row_id(ids, at, large)
            end = row_end(ends, at, large)
            if found <= last or end < start or end > room:
                return fault(OFFSETS_FAULT, ids + at * width - value)
            if found >= wanted:
                break
            strangers += 1
            last = found
            start = end
            at += 1
        if at < filled and found == wanted:
            end = row_end(ends, at, large)
            if not decode_value(entry, data + start, end - start, a, l, context + _STACK):
                return fault(VALUE_FAULT, data + start - value)
            last = found
            start = end
            at += 1
            continue
        while null_at < nulls:
            found = row_id(null_ids, null_at, large)
            if found <= last_null:
                return fault(ORDER_FAULT, null_ids + null_at * width - value)
            if found >= wanted:
                break
            strangers += 1
            last_null = found
            null_at += 1
        if null_at < nulls and found == wanted:
            put_slot(a, l, load_i64(entry + 8), 0, -1)
            last_null = found
            null_at += 1
        elif c < columns:
            code = put_missing(entry, plan, columns, context, a, l)
            if code != 0:
                return fault(code, 0)
    if not tail_ok(flags, data + start, room - start):
        return fault(CHECKSUM_FAULT, data + start - value)
    if strangers > 0 and not lists_apart(ids, filled, null_ids, nulls, large):
        return fault(ORDER_FAULT, 6)
    return 0


@inline
def note_lines(plan: int, columns: int, context: int) -> None:
    """By column id, the number of its line in the plan, for `decode_small`."""
    lines = context + _LINES
    for at in range(0, 256, 8):
        store_u64(lines + at, _NO_LINES)
    for c in range(min(columns, _MOST_LINES)):
        wanted = load_i64(plan + c * _LINE)
        if wanted < 256:
            store_u8(lines + wanted, c)


@inline
def decode_small(
    value: int,
    length: int,
    plan: int,
    columns: int,
    context: int,
    a: int,
    l: int,  # noqa: E741
) -> int:
    """`decode_v2` of a row with ids of one byte, for tables of at most `_MOST_LINES` columns.

    What `decode_v2` merges is looked up here, each value and each NULL once: which columns are NULL differs
    from row to row, and a merge would mispredict them.
    """
    if length < 6:
        return fault(HEADER_FAULT, 0)
    flags = I64(load_u8(value + 1))
    filled = I64(load_u16(value + 2))
    nulls = I64(load_u16(value + 4))
    ids = value + 6
    null_ids = ids + filled
    ends = null_ids + nulls
    data = ends + filled * 2
    room = value + length - data
    if room < 0 or flags > 3:
        return fault(HEADER_FAULT, 1)
    lines = context + _LINES
    stack = context + _STACK
    seen = U64(0)
    twice = U64(0)
    strangers = 0
    start = 0
    last = -1
    for i in range(filled):
        found = I64(load_u8(ids + i))
        end = I64(load_u16(ends + 2 * i))
        if (found <= last) | (end < start) | (end > room):
            return fault(OFFSETS_FAULT, ids + i - value)
        line = I64(load_u8(lines + found))
        if line == _NO_LINE:
            strangers += 1
        else:
            seen |= U64(1) << U64(line)
            if not decode_value(plan + line * _LINE, data + start, end - start, a, l, stack):
                return fault(VALUE_FAULT, data + start - value)
        last = found
        start = end
    last = -1
    for i in range(nulls):
        found = I64(load_u8(null_ids + i))
        if found <= last:
            return fault(ORDER_FAULT, null_ids + i - value)
        line = I64(load_u8(lines + found))
        if line == _NO_LINE:
            strangers += 1
        else:
            bit = U64(1) << U64(line)
            twice |= seen & bit
            seen |= bit
            put_slot(a, l, load_i64(plan + line * _LINE + 8), 0, -1)
        last = found
    if twice != U64(0):
        return fault(ORDER_FAULT, 6)
    missing = seen ^ (~U64(0) >> U64(64 - columns)) if columns > 0 else U64(0)
    while missing != U64(0):
        code = put_missing(plan + I64(cttz64(missing)) * _LINE, plan, columns, context, a, l)
        if code != 0:
            return fault(code, 0)
        missing &= missing - U64(1)
    if not tail_ok(flags, data + start, room - start):
        return fault(CHECKSUM_FAULT, data + start - value)
    if strangers > 0 and not lists_apart(ids, filled, null_ids, nulls, 0):
        return fault(ORDER_FAULT, 6)
    return 0


@kernel
def decode_v1(
    value: int,
    length: int,
    plan: int,
    columns: int,
    context: int,
    a: int,
    l: int,  # noqa: E741
) -> int:
    """A row value of format v1 into the slots of one row; 0 or a fault."""
    stack = context + _STACK
    for c in range(columns):
        store_u32(l + 4 * load_i64(plan + c * _LINE + 8), ABSENT)
    at = 0
    if length == 1 and load_u8(value) == 0:
        at = length
    while at < length:
        if load_u8(value + at) != 8:
            return fault(DATUM_FAULT, at)
        used = read_uvarint(value + at + 1, length - at - 1, stack)
        if used < 0:
            return fault(DATUM_FAULT, at)
        entry = find_line(plan, columns, unzigzag(load_i64(stack)))
        at += used + 1
        if entry != 0:
            used = read_datum(entry, value + at, length - at, a, l, load_i64(entry + 8), 0, stack)
        else:
            used = skip_datum(value + at, length - at, stack)
        if used < 0:
            return fault(DATUM_FAULT, at)
        at += used
    for c in range(columns):
        entry = plan + c * _LINE
        if load_i32(l + 4 * load_i64(entry + 8)) == ABSENT:
            code = put_missing(entry, plan, columns, context, a, l)
            if code != 0:
                return fault(code, 0)
    return 0


@kernel
def decode_rows(
    n: int,
    rows: int,
    key_ends: int,
    keys: int,
    int_handles: int,
    changes: int,
    value_ends: int,
    values: int,
    old_ends: int,
    olds: int,
    plan: int,
    columns: int,
    datums: int,
    stride: int,
    ops: int,
    new_a: int,
    new_l: int,
    old_a: int,
    old_l: int,
    faults: int,
    free: int,
    context: int,
    outcomes: int,
    carried: int,
) -> int:
    """Decode n rows of one table version; returns how many have a fault or no image at all.

    rows: int64[n], positions in the block. X_ends, X: Arrow offsets (int32) and bytes of the block's key,
    value and old value. Per row of the block: int_handles (int64) and changes (uint8, PUT or DELETE). plan:
    `columns` lines of `PLAN_WORDS`. datums: how many a common handle has; 0: the handle is an integer (which
    source 0 stands for). Writes per row ops (uint8: 0 no image, 1 insert, 2 update, 3 delete), the slots of
    the images it has (row i at cell i * stride) and faults (int64, 0 = none). free: at least as many bytes
    as the keys of these rows have, and the pad, for strings of common handles. context: int64[CONTEXT_WORDS].
    outcomes: 0, or uint8[rows of the block, 2] where what `check_image` says of the new and old image is
    written; then carried: uint32[rows of the block, 2, 2], for sums of version 0.
    """
    odd = 0
    store_u64(context + _DATUMS, datums)
    store_u64(context + _FREE, free)
    note_lines(plan, columns, context)
    for i in range(n):
        row = load_i64(rows + 8 * i)
        start = I64(load_i32(value_ends + 4 * row))
        size = I64(load_i32(value_ends + 4 * row + 4)) - start
        old_start = I64(load_i32(old_ends + 4 * row))
        old_size = I64(load_i32(old_ends + 4 * row + 4)) - old_start
        op = 0
        wrong = 0
        if load_u8(changes + row) == _DELETE:
            size = 0
            op = 3 if old_size > 0 else 0
        elif size > 0:
            op = 2 if old_size > 0 else 1
        else:
            wrong = HEADER_FAULT
        key = I64(load_i32(key_ends + 4 * row))
        key_size = I64(load_i32(key_ends + 4 * row + 4)) - key
        store_u64(context + _KEY, keys + key + _HANDLE_AT)
        store_u64(context + _KEY_SIZE, key_size - _HANDLE_AT)
        store_u64(context + _INT_HANDLE, load_i64(int_handles + 8 * row))
        store_u64(context + _READY, 0)
        for image in range(2):
            addr = values + start if image == 0 else olds + old_start
            length = size if image == 0 else old_size
            if length == 0 or wrong != 0:
                continue
            a = (new_a if image == 0 else old_a) + i * stride * 8
            l = (new_l if image == 0 else old_l) + i * stride * 4  # noqa: E741
            if load_u8(addr) == 0x80:
                if length > 1 and load_u8(addr + 1) & 1 != 0:
                    wrong = decode_v2(addr, length, 1, plan, columns, context, a, l)
                elif columns <= _MOST_LINES:
                    wrong = decode_small(addr, length, plan, columns, context, a, l)
                else:
                    wrong = decode_v2(addr, length, 0, plan, columns, context, a, l)
            else:
                wrong = decode_v1(addr, length, plan, columns, context, a, l)
            if wrong != 0:
                wrong |= image << 8
            elif outcomes != 0:
                cell = 2 * row + image
                store_u8(outcomes + cell, check_image(addr, length, keys + key, key_size, carried + 8 * cell))
        store_u8(ops + i, op)
        store_u64(faults + 8 * i, wrong)
        if wrong != 0 or op == 0:
            odd += 1
    return odd


def warm() -> None:
    """Compile what is not in numba's cache yet."""
    words = np.zeros(CONTEXT_WORDS, dtype=np.int64)
    at = address(words)
    parse_keys(0, at, at, at, at, at)
    decode_rows(0, at, at, at, at, at, at, at, at, at, at, 0, 0, 1, at, at, at, at, at, at, at, at, 0, 0)
