"""JSON kernels: check binary JSON documents, and print them as TiDB's canonical text.

Formats: docs/formats/values.md#json, docs/formats/columns.md#canonical-text.

The row decoder calls `json_ok` on every JSON value. It has the rules of the plain reader
(`tidegate.tidb.types.json`): every part is in bounds, every byte of the document belongs to at most one part,
there are at most `MAX_DEPTH` levels, every scalar is in its range. After that `put_json` needs no checks,
takes time linear in the value, and writes at most `JSON_GROWTH * length + SLACK` bytes. Strings are in
`json_string`.

    out = put_json(out, a, l, stack)     # a cell of kind JSON; stack: address of int64[STACK_WORDS]

These two are called, not inlined: each copy would cost seconds to compile, and a call is cheap compared with
their work. The caller allocates the stack once and uses it for all calls; nothing in it outlives a call.
"""

from __future__ import annotations

from typing import Final

from tidegate.kernel import (
    inline,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    shared,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import (
    CLOSE_BRACE,
    CLOSE_BRACKET,
    COLON,
    COMMA,
    FALS_TEXT,
    LOWER_E,
    NULL_TEXT,
    OPEN_BRACE,
    OPEN_BRACKET,
    QUOTE,
    SPACE,
    TRUE_TEXT,
    YPE_TEXT,
)
from tidegate.kernel_layout import Layout, signed
from tidegate.tidb.kernels.float import is_finite, put_double_tidb
from tidegate.tidb.kernels.json_string import put_base64, put_quoted
from tidegate.tidb.kernels.packed_time import (
    CLOCK_AT,
    CLOCK_HOUR_AT,
    CLOCK_MINUTE_AT,
    CORE_MICRO_AT,
    CORE_MICRO_MASK,
    CORE_MONTH_AT,
    CORE_MONTH_MASK,
    CORE_YEAR_AT,
    CORE_YEAR_MASK,
    DATE_AT,
    DATE_MONTHS_AT,
    DAY_MASK,
    HOUR_AT,
    HOUR_MASK,
    MINUTE_AT,
    SIXTY_MASK,
)
from tidegate.tidb.kernels.text import I64, put_date, put_datetime, put_duration, put_i64, put_u64
from tidegate.tidb.types.json import (
    ARRAY,
    DATE,
    DATETIME,
    DOUBLE,
    DURATION,
    INT64,
    LITERAL,
    MAX_DEPTH,
    OBJECT,
    OPAQUE,
    STRING,
    TIMESTAMP,
    UINT64,
)
from tidegate.tidb.types.temporal import DURATION_MAX_NS

JSON_GROWTH: Final = 6
"""The most bytes of text for each byte of binary JSON: a control character becomes six."""
_DEPTH: Final = MAX_DEPTH
FRAME: Final = Layout(
    "JSON frame", "FRAME_", "A container that is being read: one for each level of the stack.",
    base=signed("where its header begins, from the type code on", "bytes"),
    members=signed("count << 1 | 1 for an object"),
    next=signed("the member to be read next"),
)  # fmt: skip
FRAME_BASE, FRAME_MEMBERS, FRAME_NEXT = FRAME.offsets()
_FRAME: Final = FRAME.size
STACK_WORDS: Final = len(FRAME.fields) * (MAX_DEPTH + 1)
"""int64 words of the stack."""

# Binary JSON, docs/formats/values.md#json: a container is its count (u32), its size (u32), keys, values.
SIZE_AT: Final = 4
CONTAINER_HEAD: Final = 8
_KEY_ENTRY: Final = 6
"""Offset (u32) and size (u16) of a key."""
_KEY_SIZE_AT: Final = 4
_VALUE_ENTRY: Final = 5
"""Type code and offset (u32) of a value; for a literal the value itself instead of the offset."""
_NULL, _TRUE, _FALSE = range(3)
"""Literals."""
_DURATION_BYTES: Final = 12
"""Nanoseconds (i64) and digits of the fraction (u32)."""
_BASE64_T: Final = int.from_bytes(b"base64:t", "little")
_BASE64_T_BYTES: Final = 8
_LONGEST_TIME: Final = DURATION_MAX_NS


@inline
def uvarint_size(addr: int, room: int) -> int:
    """The bytes of a LEB128 number of at most 63 bits within `room` bytes, or -1."""
    # Nine groups of seven bits stay below the sign bit. A negative room leaves the loop empty.
    for i in range(min(room, 9)):
        if load_u8(addr + i) < 0x80:
            return i + 1
    return -1


@inline
def uvarint(addr: int, size: int) -> int:
    """The LEB128 number of `size` <= 9 bytes."""
    value = 0
    for i in range(size):
        value |= (I64(load_u8(addr + i)) & 0x7F) << (7 * i)
    return value


@inline
def core_ok(core: int) -> bool:
    """Whether a core time's fields are in range."""
    return (
        # A day needs no test: its five bits end at 31, and a date need not be in the calendar.
        (core >> CORE_YEAR_AT) & CORE_YEAR_MASK <= 9999
        and (core >> CORE_MONTH_AT) & CORE_MONTH_MASK <= 12
        and (core >> HOUR_AT) & HOUR_MASK <= 23
        and (core >> MINUTE_AT) & SIXTY_MASK <= 59
        and (core >> CLOCK_AT) & SIXTY_MASK <= 59
        and (core >> CORE_MICRO_AT) & CORE_MICRO_MASK <= 999999
    )


@inline
def packed_of_core(core: int) -> int:
    """The packed time of a core time."""
    months = ((core >> CORE_YEAR_AT) & CORE_YEAR_MASK) * 13 + ((core >> CORE_MONTH_AT) & CORE_MONTH_MASK)
    clock = (
        (((core >> HOUR_AT) & HOUR_MASK) << CLOCK_HOUR_AT)
        | (((core >> MINUTE_AT) & SIXTY_MASK) << CLOCK_MINUTE_AT)
        | ((core >> CLOCK_AT) & SIXTY_MASK)
    )
    return (
        ((((months << DATE_MONTHS_AT) | ((core >> DATE_AT) & DAY_MASK)) << (DATE_AT - CLOCK_AT)) | clock)
        << CLOCK_AT
    ) | ((core >> CORE_MICRO_AT) & CORE_MICRO_MASK)


@inline
def scalar_size(code: int, addr: int, room: int) -> int:
    """The bytes that a scalar at `addr` takes, or -1: unknown, cut, or out of range."""
    if code == LITERAL:
        return 1 if room >= 1 and load_u8(addr) <= _FALSE else -1
    if code == STRING or code == OPAQUE:
        # An OPAQUE has the MySQL type before its length.
        head = 1 if code == OPAQUE else 0
        used = uvarint_size(addr + head, room - head)
        if used < 0:
            return -1
        size = uvarint(addr + head, used)
        return head + used + size if size <= room - head - used else -1
    # All kinds that follow have at least 8 bytes, so one check serves them.
    if room < 8:
        return -1
    word = load_i64(addr)
    if code == INT64 or code == UINT64:
        return 8
    if code == DOUBLE:
        return 8 if is_finite(word) else -1
    if code == DATE or code == DATETIME or code == TIMESTAMP:
        return 8 if core_ok(word) else -1
    if code == DURATION:
        return _DURATION_BYTES if room >= _DURATION_BYTES and -_LONGEST_TIME <= word <= _LONGEST_TIME else -1
    return -1


@inline
def push(stack: int, depth: int, base: int, members: int) -> None:
    """Enter the container at `base`; members: count << 1 | 1 for an object."""
    frame = stack + _FRAME * depth
    store_u64(frame + FRAME_BASE, base)
    store_u64(frame + FRAME_MEMBERS, members)
    store_u64(frame + FRAME_NEXT, 0)


@shared
def json_ok(addr: int, size: int, stack: int) -> bool:
    """Whether `size` bytes are a type code and a whole binary JSON value.

    Reads the bytes. Writes `stack`. Bound: `size`, which the sizes of all parts together may not exceed, and
    the depth of `stack`. Twin: `tidegate.tidb.types.json.decode`. Trick: parts are counted instead of marked,
    so that a value whose parts overlap is refused in linear time.
    """
    if size < 1:
        return False
    # Each part takes its bytes from `left`. Parts that overlap would together need more than there are.
    left = size
    depth = 0
    code = I64(load_u8(addr))
    at = 1
    while True:
        # An offset behind the document makes this negative, and every branch below refuses that.
        room = size - at
        if code == OBJECT or code == ARRAY:
            if depth == _DEPTH or room < CONTAINER_HEAD:
                return False
            # Below 2**32, so the product does not overflow.
            count = I64(load_u32(addr + at))
            heads = CONTAINER_HEAD + count * (_VALUE_ENTRY + (_KEY_ENTRY if code == OBJECT else 0))
            left -= heads
            # `left` bounds all parts together; `room` keeps this one inside the document.
            if left < 0 or heads > room or I64(load_u32(addr + at + SIZE_AT)) > room:
                return False
            push(stack, depth, at, (count << 1) | (1 if code == OBJECT else 0))
            depth += 1
        else:
            used = scalar_size(code, addr + at, room)
            left -= used
            if used < 0 or left < 0:
                return False
        # No recursion: the stack has a frame for each level, and its depth is bounded.
        code = -1
        while depth > 0 and code < 0:
            frame = stack + _FRAME * (depth - 1)
            base = load_i64(frame + FRAME_BASE)
            members = load_i64(frame + FRAME_MEMBERS)
            count = members >> 1
            i = load_i64(frame + FRAME_NEXT)
            if i == count:
                depth -= 1
                continue
            # All heads of the container are inside the value: that was checked when it was entered.
            store_u64(frame + FRAME_NEXT, i + 1)
            entry = addr + base + CONTAINER_HEAD + _VALUE_ENTRY * i
            if members & 1:
                key = addr + base + CONTAINER_HEAD + _KEY_ENTRY * i
                entry += _KEY_ENTRY * count
                length = I64(load_u16(key + _KEY_SIZE_AT))
                left -= length
                # An empty key may have any offset, because none of its bytes is read.
                if left < 0 or (length > 0 and base + I64(load_u32(key)) + length > size):
                    return False
            code = I64(load_u8(entry))
            at = I64(load_u32(entry + 1))
            # A literal is in its entry itself, where other values have their offset.
            if code == LITERAL:
                if at & 0xFF > _FALSE:
                    return False
                code = -1
            else:
                at += base
        if code < 0:
            return True


@inline
def put_literal(out: int, code: int) -> int:
    """Write null, true or false."""
    if code == _NULL:
        store_u32(out, NULL_TEXT)
        return out + 4
    if code == _TRUE:
        store_u32(out, TRUE_TEXT)
        return out + 4
    store_u32(out, FALS_TEXT)
    store_u8(out + 4, LOWER_E)
    return out + 5


@inline
def put_scalar(out: int, code: int, addr: int) -> int:
    """Write a scalar that `json_ok` has accepted."""
    if code == LITERAL:
        return put_literal(out, I64(load_u8(addr)))
    if code == STRING:
        # `json_ok` has found the length complete, so no room is compared here.
        used = uvarint_size(addr, 9)
        return put_quoted(out, addr + used, uvarint(addr, used))
    if code == INT64:
        return put_i64(out, load_i64(addr))
    if code == UINT64:
        return put_u64(out, load_u64(addr))
    if code == DOUBLE:
        return put_double_tidb(out, load_i64(addr))
    store_u8(out, QUOTE)
    out += 1
    if code == OPAQUE:
        store_u64(out, _BASE64_T)
        store_u32(out + _BASE64_T_BYTES, YPE_TEXT)
        out = put_i64(out + 11, I64(load_u8(addr)))
        store_u8(out, COLON)
        used = uvarint_size(addr + 1, 9)
        out = put_base64(out + 1, addr + 1 + used, uvarint(addr + 1, used))
    elif code == DATE:
        out = put_date(out, packed_of_core(load_i64(addr)))
    elif code == DURATION:
        out = put_duration(out, load_i64(addr), 6)
    else:
        out = put_datetime(out, packed_of_core(load_i64(addr)), 6)
    store_u8(out, QUOTE)
    return out + 1


@shared
def put_json(out: int, addr: int, size: int, stack: int) -> int:
    """Write a cell of kind JSON as TiDB's text; returns the end.

    Reads the value, which must have passed `json_ok`. Writes `out`, and `stack` on the way. Bound:
    JSON_GROWTH * size + SLACK bytes. Twin: `tidegate.tidb.types.json.decode`.
    """
    depth = 0
    code = I64(load_u8(addr))
    at = 1
    while True:
        if code == OBJECT or code == ARRAY:
            # A stack in memory instead of recursion, because the depth comes from another system's data.
            # `json_ok` has bounded it.
            push(stack, depth, at, (I64(load_u32(addr + at)) << 1) | (1 if code == OBJECT else 0))
            depth += 1
            store_u8(out, OPEN_BRACE if code == OBJECT else OPEN_BRACKET)
            out += 1
        else:
            out = put_scalar(out, code, addr + at)
        code = -1
        while depth > 0 and code < 0:
            frame = stack + _FRAME * (depth - 1)
            base = load_i64(frame + FRAME_BASE)
            members = load_i64(frame + FRAME_MEMBERS)
            i = load_i64(frame + FRAME_NEXT)
            if i == members >> 1:
                depth -= 1
                store_u8(out, CLOSE_BRACE if members & 1 else CLOSE_BRACKET)
                out += 1
                continue
            store_u64(frame + FRAME_NEXT, i + 1)
            if i > 0:
                store_u8(out, COMMA)
                store_u8(out + 1, SPACE)
                out += 2
            entry = addr + base + CONTAINER_HEAD + _VALUE_ENTRY * i
            if members & 1:
                key = addr + base + CONTAINER_HEAD + _KEY_ENTRY * i
                entry += _KEY_ENTRY * (members >> 1)
                out = put_quoted(out, addr + base + I64(load_u32(key)), I64(load_u16(key + _KEY_SIZE_AT)))
                store_u8(out, COLON)
                store_u8(out + 1, SPACE)
                out += 2
            code = I64(load_u8(entry))
            at = I64(load_u32(entry + 1))
            # A literal is in its entry. Any other value is at an offset from the beginning of its container,
            # not of the document.
            if code == LITERAL:
                out = put_literal(out, at & 0xFF)
                code = -1
            else:
                at += base
        if code < 0:
            return out
