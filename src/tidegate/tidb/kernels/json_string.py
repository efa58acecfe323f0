"""Strings in JSON text: UTF-8, quotes and escapes, Base64. Eight bytes at a time where nothing is escaped.

`json` prints documents with them; the kernels of `codec` scan text with `utf8_size`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tidegate.kernel import inline, load_i64, load_u8, load_u16, load_u64, store_u8, store_u32, store_u64
from tidegate.kernel_ascii import (
    BACKSLASH,
    BACKSPACE,
    CARRIAGE_RETURN,
    EQUALS,
    ESCAPED_20_TEXT,
    FORM_FEED,
    LINE_BREAK_LEAD,
    LINE_SEPARATOR,
    LOWER_B,
    LOWER_F,
    LOWER_N,
    LOWER_R,
    LOWER_T,
    NEWLINE,
    PARAGRAPH_SEPARATOR,
    QUOTE,
    REPLACEMENT,
    SPACE,
    TAB,
    U000_TEXT,
    ZERO,
)
from tidegate.tidb.kernels.text import I64, U64

_BASE64: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
).copy()
_HEX: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8).copy()
_HIGH_BITS: Final = U64(0x8080808080808080)
_ONES: Final = U64(0x0101010101010101)
_QUOTES: Final = U64(0x2222222222222222)
_BACKSLASHES: Final = U64(0x5C5C5C5C5C5C5C5C)
_SPACES: Final = U64(0x2020202020202020)
_ALL_BITS: Final = U64(0xFFFFFFFFFFFFFFFF)
PAGE_OFFSET: Final = 4095
"""The bits of an address within a page of memory: the least that processors have."""

LEAD_MIN: Final = 0xC2
LEAD_3: Final = 0xE0
LEAD_4: Final = 0xF0
_LEAD_MAX: Final = 0xF4
"""The first bytes of UTF-8 characters of more than one byte: the least of all, the least of 3 and of 4 bytes,
and the greatest of all. Lower ones would begin overlong forms, higher ones numbers above U+10FFFF.
"""
_LEAD_SURROGATES: Final = 0xED
_NEXT_MIN: Final = 0x80
_NEXT_MAX: Final = 0xBF
"""The limits of each further byte. Four first bytes narrow those of the second byte."""
_NEXT_MIN_OF_3: Final = 0xA0
"""After LEAD_3: lower ones are overlong forms."""
_NEXT_MIN_OF_4: Final = 0x90
"""After LEAD_4: the same."""
_NEXT_MAX_OF_SURROGATES: Final = 0x9F
"""After _LEAD_SURROGATES: higher ones are surrogates."""
_NEXT_MAX_OF_LAST: Final = 0x8F
"""After _LEAD_MAX: higher ones are numbers above U+10FFFF."""


@inline
def plain_eight(word: int) -> bool:
    """Whether 8 bytes are ASCII characters that need no escape in JSON text."""
    bits = U64(word)
    quote = bits ^ _QUOTES
    slash = bits ^ _BACKSLASHES
    # A borrow may mark a plain byte above a marked one. Then these eight are only written one by one.
    marks = (bits - _SPACES) | (quote - _ONES) | (slash - _ONES) | bits
    return bool(marks & _HIGH_BITS == U64(0))


@inline
def utf8_size(addr: int, room: int) -> int:
    """The bytes of the character at `addr`, whose first byte is >= 0x80; negative for a damaged one.

    A damaged character is as long as the part of it that a whole character begins with, at least 1. Python
    and the Unicode standard (3.9, "maximal subpart") count it so for replacement.
    """
    lead = I64(load_u8(addr))
    if lead < LEAD_MIN or lead > _LEAD_MAX:
        return -1
    size = 2 if lead < LEAD_3 else (3 if lead < LEAD_4 else 4)
    # Some first bytes restrict the second one. Otherwise overlong forms, surrogates and numbers above
    # U+10FFFF would pass.
    low = _NEXT_MIN
    high = _NEXT_MAX
    if lead == LEAD_3:
        low = _NEXT_MIN_OF_3
    elif lead == _LEAD_SURROGATES:
        high = _NEXT_MAX_OF_SURROGATES
    elif lead == LEAD_4:
        low = _NEXT_MIN_OF_4
    elif lead == _LEAD_MAX:
        high = _NEXT_MAX_OF_LAST
    for i in range(1, size):
        if i >= room:
            return -i
        byte = I64(load_u8(addr + i))
        if byte < low or byte > high:
            return -i
        low = _NEXT_MIN
        high = _NEXT_MAX
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
    """Write a quote, backslash or control character with its escape: at most 6 bytes."""
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
    """Write a string in quotes; control characters, quotes, backslashes and U+2028/9 are escaped.

    A damaged character becomes U+FFFD. At most 6 * size + 2 bytes. Nothing else is escaped: this is TiDB's
    JSON, not Go's. Up to 7 bytes after the string may be read, which do not count, but only of a page that
    has a byte of it.
    """
    store_u8(out, QUOTE)
    out += 1
    at = 0
    while at < size:
        rest = size - at
        # The last bytes have no loop, because a processor cannot guess a number that differs from value to
        # value. Seldom they are near the end of a page, behind which there may be no memory.
        if rest >= 8 or (addr + at) & PAGE_OFFSET <= PAGE_OFFSET - 7:
            word = load_i64(addr + at)
            width = min(rest, 8)
            # Two shifts, because one by 64 bits is undefined. Bytes behind the string count as spaces.
            behind = (_ALL_BITS << U64(8 * width - 8)) << U64(8)
            if plain_eight(I64((U64(word) & ~behind) | (_SPACES & behind))):
                store_u64(out, word)
                out += width
                at += width
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
            # Three bytes of text; the fourth is overwritten by the next write.
            store_u32(out, REPLACEMENT)
            out += 3
            # `used` is negative, so this passes the damaged part.
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
    """Write standard Base64 with padding."""
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
