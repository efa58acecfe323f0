"""The content of JSON strings as bytes: escapes, latin-1, base64 and Go's quoting undone.

`decode_kernels` calls these functions for the cells of texts and bytes; the matching kernels have found where
a string ends, and that it is UTF-8. The other direction is in `text_kernels`. All reads stay inside the
string, and no result is longer than it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tidegate.kernel import inline, load_u8, store_u8
from tidegate.kernel_ascii import (
    APOSTROPHE,
    BACKSLASH,
    BACKSPACE,
    BELL,
    CARRIAGE_RETURN,
    EQUALS,
    FORM_FEED,
    LOWER_A,
    LOWER_B,
    LOWER_F,
    LOWER_N,
    LOWER_R,
    LOWER_T,
    LOWER_U,
    LOWER_V,
    LOWER_X,
    NEWLINE,
    NINE,
    NOT_ASCII,
    QUOTE,
    SLASH,
    TAB,
    UPPER_U,
    VERTICAL_TAB,
    ZERO,
)
from tidegate.tidb.kernels.text import I64

_LOWER: Final = 0x20
"""The bit that distinguishes upper and lower case letters."""
_NO_DIGIT: Final = -65536
"""Below any sum of four valid digits."""
_UNBASE64: Final = np.full(256, 255, dtype=np.uint8)
for _i, _c in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
    _UNBASE64[_c] = _i


@inline
def hex_of(byte: int) -> int:
    """The value of a hexadecimal digit, or a negative number."""
    if ZERO <= byte <= NINE:
        return byte - ZERO
    byte |= _LOWER
    return byte - LOWER_A + 10 if LOWER_A <= byte <= LOWER_F else _NO_DIGIT


@inline
def hex4(at: int) -> int:
    """Four hexadecimal digits, or a negative number."""
    return (
        (hex_of(I64(load_u8(at))) << 12)
        + (hex_of(I64(load_u8(at + 1))) << 8)
        + (hex_of(I64(load_u8(at + 2))) << 4)
        + hex_of(I64(load_u8(at + 3)))
    )


@inline
def put_utf8(out: int, code: int) -> int:
    """Write a code point as UTF-8."""
    if code < 0x80:
        store_u8(out, code)
        return out + 1
    if code < 0x800:
        store_u8(out, 0xC0 | (code >> 6))
        store_u8(out + 1, 0x80 | (code & 63))
        return out + 2
    if code < 0x10000:
        store_u8(out, 0xE0 | (code >> 12))
        store_u8(out + 1, 0x80 | ((code >> 6) & 63))
        store_u8(out + 2, 0x80 | (code & 63))
        return out + 3
    store_u8(out, 0xF0 | (code >> 18))
    store_u8(out + 1, 0x80 | ((code >> 12) & 63))
    store_u8(out + 2, 0x80 | ((code >> 6) & 63))
    store_u8(out + 3, 0x80 | (code & 63))
    return out + 4


@inline
def read_escape(at: int, end: int) -> tuple[int, int]:
    """(code point, bytes read) of a JSON escape that begins at `at`; (-1, 0) if it is not valid."""
    if end - at < 2:
        return -1, 0
    letter = I64(load_u8(at + 1))
    if letter == QUOTE or letter == BACKSLASH or letter == SLASH:
        return letter, 2
    if letter == LOWER_N:
        return NEWLINE, 2
    if letter == LOWER_T:
        return TAB, 2
    if letter == LOWER_R:
        return CARRIAGE_RETURN, 2
    if letter == LOWER_B:
        return BACKSPACE, 2
    if letter == LOWER_F:
        return FORM_FEED, 2
    if letter != LOWER_U or end - at < 6:
        return -1, 0
    code = hex4(at + 2)
    if code < 0xD800 or code > 0xDFFF:
        return (code, 6) if code >= 0 else (-1, 0)
    # A high surrogate needs a low one right after it: UTF-8 has no form for half of a pair.
    if code > 0xDBFF or end - at < 12 or load_u8(at + 6) != BACKSLASH or load_u8(at + 7) != LOWER_U:
        return -1, 0
    low = hex4(at + 8)
    if low < 0xDC00 or low > 0xDFFF:
        return -1, 0
    return 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00, 12


@inline
def take_string(out: int, at: int, size: int, latin1: bool) -> int:
    """Write a JSON string's content as UTF-8 or latin-1 bytes, at most `size`; 0 if it is invalid."""
    end = at + size
    while at < end:
        byte = I64(load_u8(at))
        if byte == BACKSLASH:
            code, used = read_escape(at, end)
            if code < 0:
                return 0
            at += used
        elif byte < NOT_ASCII:
            store_u8(out, byte)
            out += 1
            at += 1
            continue
        # The scan has checked the UTF-8, so a second byte follows. Three bytes or more are never Latin-1.
        elif latin1:
            code = ((byte & 31) << 6) | (I64(load_u8(at + 1)) & 63) if byte < 0xE0 and end - at > 1 else 256
            at += 2
        else:
            store_u8(out, byte)
            out += 1
            at += 1
            continue
        if latin1:
            if code > 255:
                return 0
            store_u8(out, code)
            out += 1
        else:
            out = put_utf8(out, code)
    return out


@inline
def take_base64(out: int, at: int, size: int) -> int:
    """Decode standard base64 with padding; 0 if it is not valid."""
    if size & 3:
        return 0
    end = at + size
    while at < end:
        a = I64(_UNBASE64[load_u8(at)])
        b = I64(_UNBASE64[load_u8(at + 1)])
        c = I64(_UNBASE64[load_u8(at + 2)])
        d = I64(_UNBASE64[load_u8(at + 3)])
        # A byte that is no digit has the value 255, so one comparison finds it in any of the four.
        if (a | b | c | d) < 64:
            store_u8(out, (a << 2) | (b >> 4))
            store_u8(out + 1, ((b << 4) | (c >> 2)) & 255)
            store_u8(out + 2, ((c << 6) | d) & 255)
            out += 3
        else:
            # Padding is allowed in the last group only.
            if at + 4 != end or (a | b) >= 64 or load_u8(at + 3) != EQUALS:
                return 0
            store_u8(out, (a << 2) | (b >> 4))
            out += 1
            if c < 64:
                store_u8(out, ((b << 4) | (c >> 2)) & 255)
                out += 1
            elif load_u8(at + 2) != EQUALS:
                return 0
        at += 4
    return out


@inline
def short_escape(letter: int) -> int:
    """The byte of Go's one-letter escape, or -1."""
    if letter == BACKSLASH or letter == QUOTE or letter == APOSTROPHE:
        return letter
    if letter == LOWER_A:
        return BELL
    if letter == LOWER_B:
        return BACKSPACE
    if letter == LOWER_T:
        return TAB
    if letter == LOWER_N:
        return NEWLINE
    if letter == LOWER_V:
        return VERTICAL_TAB
    if letter == LOWER_F:
        return FORM_FEED
    return CARRIAGE_RETURN if letter == LOWER_R else -1


@inline
def unquote(start: int, end: int) -> int:
    """Undo Go's strconv.Quote in place; the new end, or 0 for an escape that strconv.Quote never writes."""
    # In place: no escape is shorter than what it stands for, so `out` never passes `at`.
    at = start
    out = start
    while at < end:
        byte = I64(load_u8(at))
        if byte != BACKSLASH:
            store_u8(out, byte)
            out += 1
            at += 1
            continue
        # 0 is no letter of an escape, so a backslash at the end is refused below.
        letter = I64(load_u8(at + 1)) if end - at > 1 else 0
        code = short_escape(letter)
        if code >= 0:
            store_u8(out, code)
            out += 1
            at += 2
        elif letter == LOWER_X and end - at >= 4:
            code = (hex_of(I64(load_u8(at + 2))) << 4) + hex_of(I64(load_u8(at + 3)))
            if code < 0:
                return 0
            store_u8(out, code)
            out += 1
            at += 4
        elif letter == LOWER_U and end - at >= 6:
            code = hex4(at + 2)
            if code < 0 or 0xD800 <= code <= 0xDFFF:
                return 0
            out = put_utf8(out, code)
            at += 6
        elif letter == UPPER_U and end - at >= 10:
            high = hex4(at + 2)
            low = hex4(at + 6)
            # U+10FFFF is the last character.
            if high < 0 or low < 0 or high > 0x10:
                return 0
            out = put_utf8(out, (high << 16) | low)
            at += 10
        else:
            return 0
    return out
