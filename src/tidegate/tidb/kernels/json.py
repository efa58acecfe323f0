"""JSON kernels: check binary JSON, and print it as TiDB's canonical text.

Formats: docs/formats/values.md#json, docs/formats/columns.md#canonical-text.

The row decoder calls `json_ok` on every JSON value, with the rules of the plain reader
(`tidegate.tidb.types.json`): every part in bounds, every byte of the document in at most one part, at most
`MAX_DEPTH` levels, every scalar in its range. After that `put_json` needs no check of its own, takes time
linear in the value, and writes at most `JSON_GROWTH * length + SLACK` bytes.

    out = put_json(out, a, l, stack)     # a cell of kind JSON; stack: address of int64[STACK_WORDS]

These two are called, not inlined: each copy would cost seconds to compile, and a call costs nothing beside
what they do. The caller allocates the stack once and shares it between calls; it holds nothing between them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tidegate.kernel import (
    inline,
    kernel,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import (
    BACKSLASH,
    BACKSPACE,
    CARRIAGE_RETURN,
    CLOSE_BRACE,
    CLOSE_BRACKET,
    COLON,
    COMMA,
    EQUALS,
    ESCAPED_20_TEXT,
    FALS_TEXT,
    FORM_FEED,
    LINE_BREAK_LEAD,
    LINE_SEPARATOR,
    LOWER_B,
    LOWER_E,
    LOWER_F,
    LOWER_N,
    LOWER_R,
    LOWER_T,
    NEWLINE,
    NULL_TEXT,
    OPEN_BRACE,
    OPEN_BRACKET,
    PARAGRAPH_SEPARATOR,
    QUOTE,
    REPLACEMENT,
    SPACE,
    TAB,
    TRUE_TEXT,
    U000_TEXT,
    YPE_TEXT,
    ZERO,
)
from tidegate.kernel_layout import Layout, signed
from tidegate.tidb.kernels.float import is_finite, put_double_tidb
from tidegate.tidb.kernels.text import (
    I64,
    U64,
    put_date,
    put_datetime,
    put_duration,
    put_i64,
    put_u64,
)
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
"""Bytes of text per byte of binary JSON: a control character becomes six."""
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
"""Type code and offset (u32) of a value; of a literal the value itself."""
_NULL, _TRUE, _FALSE = range(3)
"""Literals."""
_DURATION_BYTES: Final = 12
"""Nanoseconds (i64) and digits of the fraction (u32)."""
_BASE64_T: Final = int.from_bytes(b"base64:t", "little")
_BASE64_T_BYTES: Final = 8
_LONGEST_TIME: Final = DURATION_MAX_NS

_BASE64: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
).copy()
_HEX: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8).copy()
_HIGH_BITS: Final = U64(0x8080808080808080)
_ONES: Final = U64(0x0101010101010101)
_QUOTES: Final = U64(0x2222222222222222)
_BACKSLASHES: Final = U64(0x5C5C5C5C5C5C5C5C)
_SPACES: Final = U64(0x2020202020202020)


@inline
def uvarint_size(addr: int, room: int) -> int:
    """The bytes of a LEB128 number of at most 63 bits within `room` bytes, or -1."""
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
        (core >> 50) & 0x3FFF <= 9999
        and (core >> 46) & 15 <= 12
        and (core >> 36) & 31 <= 23
        and (core >> 30) & 63 <= 59
        and (core >> 24) & 63 <= 59
        and (core >> 4) & 0xFFFFF <= 999999
    )


@inline
def packed_of_core(core: int) -> int:
    """The packed time of a core time."""
    months = ((core >> 50) & 0x3FFF) * 13 + ((core >> 46) & 15)
    clock = (((core >> 36) & 31) << 12) | (((core >> 30) & 63) << 6) | ((core >> 24) & 63)
    return (((((months << 5) | ((core >> 41) & 31)) << 17) | clock) << 24) | ((core >> 4) & 0xFFFFF)


@inline
def scalar_size(code: int, addr: int, room: int) -> int:
    """The bytes that a scalar at `addr` takes, or -1: unknown, cut, or out of range."""
    if code == LITERAL:
        return 1 if room >= 1 and load_u8(addr) <= _FALSE else -1
    if code == STRING or code == OPAQUE:
        head = 1 if code == OPAQUE else 0
        used = uvarint_size(addr + head, room - head)
        if used < 0:
            return -1
        size = uvarint(addr + head, used)
        return head + used + size if size <= room - head - used else -1
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
    """Enter a container: where it starts; members: count << 1 | named."""
    frame = stack + _FRAME * depth
    store_u64(frame + FRAME_BASE, base)
    store_u64(frame + FRAME_MEMBERS, members)
    store_u64(frame + FRAME_NEXT, 0)


@kernel
def json_ok(addr: int, size: int, stack: int) -> bool:
    """Whether `size` bytes are a type code and a whole binary JSON value.

    Reads the bytes. Writes `stack`. Bound: `size`, which the sizes of all parts together may not exceed, and
    the depth of `stack`. Twin: `tidegate.tidb.types.json.decode`. Trick: parts are counted instead of marked,
    so that a value whose parts overlap is refused in linear time.
    """
    if size < 1:
        return False
    left = size
    depth = 0
    code = I64(load_u8(addr))
    at = 1
    while True:
        room = size - at
        if code == OBJECT or code == ARRAY:
            if depth == _DEPTH or room < CONTAINER_HEAD:
                return False
            count = I64(load_u32(addr + at))
            heads = CONTAINER_HEAD + count * (_VALUE_ENTRY + (_KEY_ENTRY if code == OBJECT else 0))
            left -= heads
            if left < 0 or heads > room or I64(load_u32(addr + at + SIZE_AT)) > room:
                return False
            push(stack, depth, at, (count << 1) | (1 if code == OBJECT else 0))
            depth += 1
        else:
            used = scalar_size(code, addr + at, room)
            left -= used
            if used < 0 or left < 0:
                return False
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
            store_u64(frame + FRAME_NEXT, i + 1)
            entry = addr + base + CONTAINER_HEAD + _VALUE_ENTRY * i
            if members & 1:
                key = addr + base + CONTAINER_HEAD + _KEY_ENTRY * i
                entry += _KEY_ENTRY * count
                length = I64(load_u16(key + _KEY_SIZE_AT))
                left -= length
                if left < 0 or (length > 0 and base + I64(load_u32(key)) + length > size):
                    return False
            code = I64(load_u8(entry))
            at = I64(load_u32(entry + 1))
            if code == LITERAL:
                if at & 0xFF > _FALSE:
                    return False
                code = -1
            else:
                at += base
        if code < 0:
            return True


# --- text -----------------------------------------------------------------------------------------------


@inline
def plain_eight(word: int) -> bool:
    """Whether 8 bytes are ASCII that JSON text holds as it is."""
    bits = U64(word)
    quote = bits ^ _QUOTES
    slash = bits ^ _BACKSLASHES
    marks = (bits - _SPACES) | (quote - _ONES) | (slash - _ONES) | bits
    return bool(marks & _HIGH_BITS == U64(0))


@inline
def utf8_size(addr: int, room: int) -> int:
    """The bytes of the character at `addr` (its first byte is >= 0x80); negative: of a damaged one.

    A damaged character is as long as what it has in common with a whole one, at least 1, as Python and the
    Unicode standard (3.9, "maximal subpart") count for replacement.
    """
    lead = I64(load_u8(addr))
    if lead < 0xC2 or lead > 0xF4:
        return -1
    size = 2 if lead < 0xE0 else (3 if lead < 0xF0 else 4)
    low = 0x80
    high = 0xBF
    if lead == 0xE0:
        low = 0xA0
    elif lead == 0xED:
        high = 0x9F
    elif lead == 0xF0:
        low = 0x90
    elif lead == 0xF4:
        high = 0x8F
    for i in range(1, size):
        if i >= room:
            return -i
        byte = I64(load_u8(addr + i))
        if byte < low or byte > high:
            return -i
        low = 0x80
        high = 0xBF
    return size


@inline
def is_utf8(at: int, end: int) -> bool:
    """Whether the bytes are UTF-8. Nothing is read from `end` on."""
    while at < end:
        if at + 8 <= end and load_u64(at) & _HIGH_BITS == U64(0):
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
def put_escape(out: int, byte: int) -> int:
    """A quote, backslash or control character, escaped: at most 6 bytes."""
    store_u8(out, BACKSLASH)
    short = 0
    if byte == QUOTE or byte == BACKSLASH:
        short = byte
    elif byte == BACKSPACE:
        short = LOWER_B
    elif byte == FORM_FEED:
        short = LOWER_F
    elif byte == NEWLINE:
        short = LOWER_N
    elif byte == CARRIAGE_RETURN:
        short = LOWER_R
    elif byte == TAB:
        short = LOWER_T
    if short != 0:
        store_u8(out + 1, short)
        return out + 2
    store_u32(out + 1, U000_TEXT)
    store_u8(out + 4, _HEX[byte >> 4])
    store_u8(out + 5, _HEX[byte & 15])
    return out + 6


@inline
def put_quoted(out: int, addr: int, size: int) -> int:
    """A string in quotes: controls, quotes, backslashes and U+2028/9 escaped, damage replaced by U+FFFD.

    At most 6 * size + 2 bytes. Nothing else is escaped: this is TiDB's JSON, not Go's.
    """
    store_u8(out, QUOTE)
    out += 1
    at = 0
    while at < size:
        if at + 8 <= size:
            word = load_i64(addr + at)
            if plain_eight(word):
                store_u64(out, word)
                out += 8
                at += 8
                continue
        byte = I64(load_u8(addr + at))
        if byte < 0x80:
            at += 1
            if byte >= SPACE and byte != QUOTE and byte != BACKSLASH:
                store_u8(out, byte)
                out += 1
            else:
                out = put_escape(out, byte)
            continue
        used = utf8_size(addr + at, size - at)
        if used < 0:
            store_u32(out, REPLACEMENT)
            out += 3
            at -= used
            continue
        last = I64(load_u8(addr + at + 2)) if used == 3 else 0
        if (
            used == 3
            and I64(load_u16(addr + at)) == LINE_BREAK_LEAD
            and (last == LINE_SEPARATOR or last == PARAGRAPH_SEPARATOR)
        ):
            store_u32(out, ESCAPED_20_TEXT)
            store_u8(out + 4, ZERO + 2)
            store_u8(out + 5, ZERO + 8 + last - LINE_SEPARATOR)
            out += 6
        else:
            for i in range(used):
                store_u8(out + i, load_u8(addr + at + i))
            out += used
        at += used
    store_u8(out, QUOTE)
    return out + 1


@inline
def put_base64(out: int, addr: int, size: int) -> int:
    """Standard base64 with padding."""
    at = 0
    while at < size:
        rest = size - at
        word = I64(load_u8(addr + at)) << 16
        if rest > 1:
            word |= I64(load_u8(addr + at + 1)) << 8
        if rest > 2:
            word |= I64(load_u8(addr + at + 2))
        store_u8(out, _BASE64[word >> 18])
        store_u8(out + 1, _BASE64[(word >> 12) & 63])
        store_u8(out + 2, _BASE64[(word >> 6) & 63] if rest > 1 else EQUALS)
        store_u8(out + 3, _BASE64[word & 63] if rest > 2 else EQUALS)
        out += 4
        at += 3
    return out


@inline
def put_literal(out: int, code: int) -> int:
    """null, true or false."""
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
    """A scalar that `json_ok` has passed."""
    if code == LITERAL:
        return put_literal(out, I64(load_u8(addr)))
    if code == STRING:
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


@kernel
def put_json(out: int, addr: int, size: int, stack: int) -> int:
    """A cell of kind JSON as TiDB's text; the end.

    Reads the value, which must have passed `json_ok`. Writes `out`, and `stack` on the way. Bound:
    JSON_GROWTH * size + SLACK bytes. Twin: `tidegate.tidb.types.json.decode`.
    """
    depth = 0
    code = I64(load_u8(addr))
    at = 1
    while True:
        if code == OBJECT or code == ARRAY:
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
            if code == LITERAL:
                out = put_literal(out, at & 0xFF)
                code = -1
            else:
                at += base
        if code < 0:
            return out
