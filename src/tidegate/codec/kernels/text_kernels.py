"""Strings as messages contain them: escaped for JSON, Latin-1, Base64, quoted as by Go; and texts of vectors.

Plain twins: `json_text`. Every address argument is an int64. Texts may overwrite `SLACK` bytes after their
end.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tidegate.kernel import (
    below32,
    copy32,
    cttz64,
    equal32,
    inline,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import (
    AMPERSAND,
    BACKSLASH,
    BACKSPACE,
    CARRIAGE_RETURN,
    CLOSE_BRACKET,
    COMMA,
    DEL,
    EQUALS,
    ESCAPED_U_TEXT,
    FORM_FEED,
    GREATER,
    LESS,
    LINE_BREAK_LEAD,
    LINE_SEPARATOR,
    LOWER_B,
    LOWER_F,
    LOWER_N,
    LOWER_R,
    LOWER_T,
    LOWER_U,
    LOWER_X,
    NEWLINE,
    NOT_ASCII,
    OPEN_BRACKET,
    PARAGRAPH_SEPARATOR,
    QUOTE,
    SPACE,
    TAB,
    THREE_BACKSLASHES,
    TWO_BACKSLASHES,
    TWO_EQUALS,
    UPPER_U,
)
from tidegate.tidb.kernels.float import put_float_fixed
from tidegate.tidb.kernels.json_string import utf8_size
from tidegate.tidb.kernels.text import I64, U64

_HIGH: Final = U64(0x8080808080808080)
_ONES: Final = U64(0x0101010101010101)
_SPACES: Final = U64(0x2020202020202020)
_QUOTES: Final = U64(0x2222222222222222)
_BACKSLASHES: Final = U64(0x5C5C5C5C5C5C5C5C)
_LESS: Final = U64(0x3C3C3C3C3C3C3C3C)
_NOT_BIT_1: Final = U64(0xFDFDFDFDFDFDFDFD)
_NOT_BIT_2: Final = U64(0xFBFBFBFBFBFBFBFB)
_ZERO: Final = U64(0)
_HEX: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8).copy()
_B64: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
_PAIRS: Final = np.array([int(_B64[i >> 6]) | int(_B64[i & 63]) << 8 for i in range(4096)], dtype=np.uint16)
_GO_SHORT: Final = np.array([0] * 7 + list(b"abtnvfr") + [0] * 18, dtype=np.uint8)
"""Go's letter for a control character (`\\a` .. `\\r`), or 0."""

_SINGLE_INFINITE: Final = 0xFF
"""The exponent of NaN and infinities in a 32-bit float."""


@inline
def put_const(out: int, source: int, length: int) -> int:
    """Copy a constant: 32 bytes at a time, up to 31 bytes past its end on both sides."""
    copy32(out, source)
    done = 32
    # At least 32 bytes are copied, even of an empty constant. The next write replaces what is too much.
    while done < length:
        copy32(out + done, source + done)
        done += 32
    return out + length


@inline
def special_bytes(word: Any) -> Any:
    """High bits set at bytes that are control characters, `"`, `&`, `<`, `>`, a backslash or not ASCII.

    `"` and `&` differ only in bit 2, `<` and `>` only in bit 1. A borrow may also mark the byte above a
    marked one.
    """
    quote = (word & _NOT_BIT_2) ^ _QUOTES
    angle = (word & _NOT_BIT_1) ^ _LESS
    slash = word ^ _BACKSLASHES
    return ((word - _SPACES) | (quote - _ONES) | (angle - _ONES) | (slash - _ONES) | word) & _HIGH


@inline
def is_special(byte: int) -> bool:
    """Whether an ASCII byte needs an escape in Go's JSON."""
    return (
        byte < SPACE
        or byte == QUOTE
        or byte == AMPERSAND
        or byte == LESS
        or byte == GREATER
        or byte == BACKSLASH
    )


@inline
def put_hex_rune(out: int, code: int) -> int:
    r"""`\\uXXXX` of a code below 0x10000."""
    store_u16(out, ESCAPED_U_TEXT)
    store_u8(out + 2, _HEX[code >> 12])
    store_u8(out + 3, _HEX[(code >> 8) & 15])
    store_u8(out + 4, _HEX[(code >> 4) & 15])
    store_u8(out + 5, _HEX[code & 15])
    return out + 6


@inline
def put_escaped(out: int, byte: int, std: int) -> int:
    """A special ASCII byte as Go's encoding/json (std 1) or easyjson (std 0) escapes it."""
    short = 0
    if byte == QUOTE or byte == BACKSLASH:
        short = byte
    elif byte == NEWLINE:
        short = LOWER_N
    elif byte == CARRIAGE_RETURN:
        short = LOWER_R
    elif byte == TAB:
        short = LOWER_T
    # Go 1.22 gave these two a letter in encoding/json; easyjson still writes `\u0008` and `\u000c`.
    elif std == 1 and byte == BACKSPACE:
        short = LOWER_B
    elif std == 1 and byte == FORM_FEED:
        short = LOWER_F
    if short != 0:
        store_u16(out, BACKSLASH | (short << 8))
        return out + 2
    return put_hex_rune(out, byte)


@inline
def put_wide(out: int, addr: int, room: int) -> tuple[int, int]:
    """A character that is not ASCII, as JSON: (new `out`, bytes read). Escapes U+2028/9 and bad UTF-8."""
    used = utf8_size(addr, room)
    if used < 0:
        # One byte, as Go reads it: each byte of a damaged character becomes a U+FFFD of its own.
        return put_hex_rune(out, 0xFFFD), 1
    if used == 3 and I64(load_u16(addr)) == LINE_BREAK_LEAD:
        last = I64(load_u8(addr + 2))
        if last == LINE_SEPARATOR or last == PARAGRAPH_SEPARATOR:
            return put_hex_rune(out, 0x2028 + last - LINE_SEPARATOR), 3
    # Byte by byte, because fewer than eight may be left to read.
    for i in range(used):
        store_u8(out + i, load_u8(addr + i))
    return out + used, used


@inline
def special32(addr: int) -> Any:
    """A bit for each of 32 bytes, exactly: those that `special_bytes` marks."""
    # A byte that is not ASCII is negative, so it is below a space, as control characters are.
    return (
        below32(addr, SPACE)
        | equal32(addr, 0xFB, QUOTE)
        | equal32(addr, 0xFD, LESS)
        | equal32(addr, 0xFF, BACKSLASH)
    )


@inline
def load_tail(start: int, addr: int, end: int) -> Any:
    """The 1 to 7 bytes from `addr` to `end` of a value that begins at `start`, with spaces after them.

    Reads nothing outside the value.
    """
    left = end - addr
    if end - start >= 8:
        # The word that ends with the value; bytes before `addr` are shifted out.
        word = load_u64(end - 8) >> U64(64 - 8 * left)
    elif left >= 4:
        # Two halves, which may overlap: where they do, both have the same bytes.
        word = U64(load_u32(addr)) | U64(load_u32(end - 4)) << U64(8 * left - 32)
    elif left >= 2:
        word = U64(load_u16(addr)) | U64(load_u16(end - 2)) << U64(8 * left - 16)
    else:
        word = U64(load_u8(addr))
    return word | _SPACES << U64(8 * left)


@inline
def put_special(out: int, addr: int, end: int, std: int) -> tuple[int, int]:
    """The character at `addr`, which `special_bytes` marks, as JSON: (new `out`, bytes read)."""
    byte = I64(load_u8(addr))
    if byte >= NOT_ASCII:
        return put_wide(out, addr, end - addr)
    return put_escaped(out, byte, std), 1


@inline
def put_text(out: int, addr: int, size: int, std: int) -> int:
    """The content of a JSON string: at most 6 * size bytes. Reads exactly `size` bytes.

    Bytes are written before it is known whether they are clean: the escape of the first one that is not
    replaces it and all after it. The first of the marked bytes is always special.
    """
    start, end = addr, addr + size
    while addr + 32 <= end:
        marks = special32(addr)
        copy32(out, addr)
        if marks == _ZERO:
            addr += 32
            out += 32
            continue
        clean = I64(cttz64(marks))
        out, used = put_special(out + clean, addr + clean, end, std)
        addr += clean + used
    # Words, because a value has no spare bytes after it that could be read. There is no loop over the last
    # bytes: their number differs from value to value, and each wrong guess of it costs as much as ten words.
    while addr < end:
        width = min(end - addr, 8)
        word = load_u64(addr) if width == 8 else load_tail(start, addr, end)
        marks = special_bytes(word)
        store_u64(out, word)
        if marks == _ZERO:
            addr += width
            out += width
            continue
        clean = I64(cttz64(marks) >> U64(3))
        out, used = put_special(out + clean, addr + clean, end, std)
        addr += clean + used
    return out


@inline
def put_latin1(out: int, addr: int, size: int) -> int:
    """Bytes as ISO-8859-1 text inside a JSON string (easyjson): at most 6 * size bytes."""
    for i in range(size):
        byte = I64(load_u8(addr + i))
        if byte >= NOT_ASCII:
            # Both bytes of the character in UTF-8; the lower half of the word is the first one.
            store_u16(out, 0x80C0 | (byte >> 6) | ((byte & 0x3F) << 8))
            out += 2
        elif is_special(byte):
            out = put_escaped(out, byte, 0)
        else:
            store_u8(out, byte)
            out += 1
    return out


@inline
def put_base64(out: int, addr: int, size: int) -> int:
    """Standard base64 with padding: at most 4 * (size + 2) / 3 bytes."""
    whole = size - size % 3
    at = 0
    while at < whole:
        # Twelve bits are two digits, which the table gives together.
        high = (I64(load_u8(addr + at)) << 4) | (I64(load_u8(addr + at + 1)) >> 4)
        low = ((I64(load_u8(addr + at + 1)) & 15) << 8) | I64(load_u8(addr + at + 2))
        store_u32(out, I64(_PAIRS[high]) | (I64(_PAIRS[low]) << 16))
        out += 4
        at += 3
    if size - whole == 1:
        store_u32(out, I64(_PAIRS[I64(load_u8(addr + whole)) << 4]) | (TWO_EQUALS << 16))
        return out + 4
    if size - whole == 2:
        first = I64(load_u8(addr + whole))
        second = I64(load_u8(addr + whole + 1))
        # Only the first digit of the last pair counts: padding takes the place of the other.
        high = I64(_PAIRS[(first << 4) | (second >> 4)])
        store_u32(out, high | (I64(_PAIRS[(second & 15) << 8]) & 0xFF) << 16 | (EQUALS << 24))
        return out + 4
    return out


@inline
def rune_at(addr: int, used: int) -> int:
    """The code point of a complete character of `used` >= 2 bytes."""
    # The first byte of a character of n bytes has n ones and a zero before its bits.
    code = I64(load_u8(addr)) & (0x7F >> used)
    for i in range(1, used):
        code = (code << 6) | (I64(load_u8(addr + i)) & 0x3F)
    return code


@inline
def put_go_hex(out: int, letter: int, code: int, digits: int) -> int:
    r"""`\\\\xNN`, `\\\\uNNNN` or `\\\\UNNNNNNNN`: Go's escape with its backslash escaped for JSON."""
    store_u16(out, TWO_BACKSLASHES)
    store_u8(out + 2, letter)
    for i in range(digits):
        store_u8(out + 3 + i, _HEX[(code >> (4 * (digits - 1 - i))) & 15])
    return out + 3 + digits


@inline
def put_quoted_ascii(out: int, byte: int, std: int) -> int:
    """An ASCII byte, escaped as by Go's strconv.Quote and then for JSON."""
    if byte == QUOTE or byte == BACKSLASH:
        # Go's Quote puts a backslash before it, and JSON one before each of the two.
        store_u32(out, THREE_BACKSLASHES | (byte << 24))
        return out + 4
    if std and (byte == AMPERSAND or byte == LESS or byte == GREATER):
        return put_hex_rune(out, byte)
    if SPACE <= byte < DEL:
        store_u8(out, byte)
        return out + 1
    if byte < SPACE and _GO_SHORT[byte] != 0:
        store_u16(out, TWO_BACKSLASHES)
        store_u8(out + 2, _GO_SHORT[byte])
        return out + 3
    return put_go_hex(out, LOWER_X, byte, 2)


@inline
def put_quoted(out: int, addr: int, size: int, printable: int, std: int) -> int:
    """Bytes, escaped as by Go's strconv.Quote and then for JSON: at most 6 * size bytes.

    printable: Go's IsPrint, a bit per code point. std: whether the JSON is that of encoding/json, which
    escapes `<`, `>` and `&`, or that of json-iterator, which does not.
    """
    at = 0
    while at < size:
        byte = I64(load_u8(addr + at))
        if byte < NOT_ASCII:
            out = put_quoted_ascii(out, byte, std)
            at += 1
            continue
        used = utf8_size(addr + at, size - at)
        # Only one byte is escaped, and the scan continues behind it, as Go does: the bytes after it may be
        # valid.
        if used < 0:
            out = put_go_hex(out, LOWER_X, byte, 2)
            at += 1
            continue
        code = rune_at(addr + at, used)
        if (I64(load_u8(printable + (code >> 3))) >> (code & 7)) & 1:
            for i in range(used):
                store_u8(out + i, load_u8(addr + at + i))
            out += used
        elif code < 0x10000:
            out = put_go_hex(out, LOWER_U, code, 4)
        else:
            out = put_go_hex(out, UPPER_U, code, 8)
        at += used
    return out


@inline
def put_vector(out: int, addr: int, size: int) -> int:
    """A cell of kind VECTOR, `[1,2.5]`: at most 16 * size bytes."""
    store_u8(out, OPEN_BRACKET)
    out += 1
    # The first four bytes are the number of elements.
    for at in range(4, size - 3, 4):
        if at > 4:
            store_u8(out, COMMA)
            out += 1
        out = put_float_fixed(out, widened(I64(load_u32(addr + at))))
    store_u8(out, CLOSE_BRACKET)
    return out + 1


@inline
def widened(bits: int) -> int:
    """The bits of the double that equals a finite f32 with these bits; NaN and infinities stay non-finite."""
    sign = (bits & 0x80000000) << 32
    exponent = (bits >> 23) & 0xFF
    fraction = bits & 0x7FFFFF
    if exponent == _SINGLE_INFINITE:
        return sign | (0x7FF << 52) | (fraction << 29)
    if exponent == 0:
        if fraction == 0:
            return sign
        shift = 0
        # A subnormal number has no leading one. A double can have it, so the fraction moves up until it
        # has.
        while fraction & 0x800000 == 0:
            fraction <<= 1
            shift += 1
        return sign | ((897 - shift) << 52) | ((fraction & 0x7FFFFF) << 29)
    # 896 is the difference of the exponents' biases (1023 and 127), 29 that of the fractions' bits (52 and
    # 23).
    return sign | ((exponent + 896) << 52) | (fraction << 29)
