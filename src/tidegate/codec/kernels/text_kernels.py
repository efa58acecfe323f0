"""Strings as messages contain them: escaped for JSON, Latin-1, Base64, quoted as by Go; and texts of vectors.

Plain twins: `json_text`. Every address argument is an int64. Texts and constants may overwrite 32 bytes after
their end.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tidegate.kernel import (
    below32,
    bswap64,
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
    within32,
)
from tidegate.kernel_ascii import (
    BACKSLASH,
    BACKSPACE,
    BELL,
    CARRIAGE_RETURN,
    CLOSE_BRACKET,
    COMMA,
    DEL,
    EQUALS,
    ESCAPED_U_TEXT,
    FORM_FEED,
    LESS,
    LINE_BREAK_LEAD,
    LINE_SEPARATOR,
    LOWER_U,
    NEWLINE,
    NOT_ASCII,
    OPEN_BRACKET,
    PARAGRAPH_SEPARATOR,
    QUOTE,
    SPACE,
    TAB,
    TWO_BACKSLASHES,
    TWO_EQUALS,
    UPPER_U,
)
from tidegate.tidb.kernels.float import put_float_fixed
from tidegate.tidb.kernels.json_string import LEAD_3, LEAD_4, LEAD_MIN, PAGE_OFFSET, utf8_size
from tidegate.tidb.kernels.text import I64, U64

_HEX: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8).copy()
_B64: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
_PAIRS: Final = np.array([int(_B64[i >> 6]) | int(_B64[i & 63]) << 8 for i in range(4096)], dtype=np.uint16)
_ZERO: Final = U64(0)
_TWELVE_BITS: Final = U64(0xFFF)
_AHEAD: Final = 68
"""The most bytes that are read from where 32 bytes of a text are examined: the last of these may begin a
character of 4 bytes, and 32 bytes behind it are copied.
"""
_CONTINUES_BITS, _CONTINUES = 0xC0, 0x80
"""A byte continues a character of UTF-8 if these bits of it are so."""
_SURE_3, _SURE_3_COUNT, _LATE_3 = 0xE3, 10, 0xEE
"""The first bytes of characters of 3 bytes that any two further bytes complete, and need no escape: E3 to EC,
EE and EF."""
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
def put_hex_rune(out: int, code: int) -> int:
    r"""`\\uXXXX` of a code below 0x10000."""
    store_u16(out, ESCAPED_U_TEXT)
    store_u8(out + 2, _HEX[code >> 12])
    store_u8(out + 3, _HEX[(code >> 8) & 15])
    store_u8(out + 4, _HEX[(code >> 4) & 15])
    store_u8(out + 5, _HEX[code & 15])
    return out + 6


SHORT_TEXT: Final = 7
"""The most bytes of a short text, see `short_text`."""
SHORT_SIZE_AT: Final = 8 * SHORT_TEXT
"""The lowest bit of the length in a short text."""


def short_text(text: bytes) -> int:
    """A short text as the word that kernels store: its bytes, and its length in the highest byte."""
    assert len(text) <= SHORT_TEXT, f"{text!r} is no short text"
    return int.from_bytes(text, "little") | len(text) << SHORT_SIZE_AT


def _escaped(byte: int, std: int) -> bytes:
    """An ASCII byte in a JSON string as Go's encoding/json (std 1) or easyjson (std 0) writes it."""
    letters = {QUOTE: b'"', BACKSLASH: b"\\", NEWLINE: b"n", CARRIAGE_RETURN: b"r", TAB: b"t"}
    if std:
        # Go 1.22 gave these two a letter in encoding/json; easyjson still writes `\u0008` and `\u000c`.
        letters |= {BACKSPACE: b"b", FORM_FEED: b"f"}
    if byte in letters:
        return b"\\" + letters[byte]
    if byte < SPACE or byte in b"&<>":
        return b"\\u%04x" % byte
    return bytes([byte])


_ESCAPED: Final = np.array(
    [short_text(_escaped(byte, std)) for std in (0, 1) for byte in range(NOT_ASCII)], dtype=np.int64
)
"""`_escaped` of each ASCII byte, a short text: first those of std 0."""


_LATIN1: Final = np.array(
    [short_text(_escaped(byte, 0) if byte < NOT_ASCII else chr(byte).encode()) for byte in range(256)],
    dtype=np.int64,
)
"""Each byte as a character of ISO-8859-1 in a JSON string (easyjson), a short text."""


def _quoted(byte: int, std: int) -> bytes:
    """A byte as Go's strconv.Quote writes it, then escaped for JSON; from 0x80 on: one that is no UTF-8."""
    if byte in (QUOTE, BACKSLASH):
        # Go's Quote puts a backslash before it, and JSON one before each of the two.
        return b"\\\\\\" + bytes([byte])
    if std and byte in b"&<>":
        return b"\\u%04x" % byte
    if SPACE <= byte < DEL:
        return bytes([byte])
    if BELL <= byte <= CARRIAGE_RETURN:
        return b"\\\\" + b"abtnvfr"[byte - BELL : byte - BELL + 1]
    return b"\\\\x%02x" % byte


_QUOTED: Final = np.array(
    [short_text(_quoted(byte, std)) for std in (0, 1) for byte in range(256)], dtype=np.int64
)
"""`_quoted` of each byte, a short text: first those of std 0."""


@inline
def put_short(out: int, text: int) -> int:
    """Write a short text."""
    # All 8 bytes are stored, the length as well. The next write replaces those after the text.
    store_u64(out, text)
    return out + (text >> SHORT_SIZE_AT)


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
    # Two halves, which overlap if there are three bytes, because a loop whose end differs is slower.
    store_u16(out, load_u16(addr))
    store_u16(out + used - 2, load_u16(addr + used - 2))
    return out + used, used


@inline
def special32(addr: int) -> Any:
    """A bit for each of 32 bytes, exactly: control characters, `"`, `&`, `<`, `>`, a backslash, not
    ASCII. `"` and `&` differ only in bit 2, `<` and `>` only in bit 1.
    """
    # A byte that is not ASCII is negative, so it is below a space, as control characters are.
    return (
        below32(addr, SPACE)
        | equal32(addr, 0xFB, QUOTE)
        | equal32(addr, 0xFD, LESS)
        | equal32(addr, 0xFF, BACKSLASH)
    )


@inline
def unless_whole(marks: Any, addr: int, inside: Any) -> Any:
    """`marks` of 32 bytes without those of characters of two or three bytes, if all that are not ASCII are
    such, whole, and sure to need no escape.

    `inside`: a bit for each byte that counts. Without a branch: many texts have such characters, and many
    do not. Left to `put_character`: those of four bytes, and those whose first byte may also begin an
    overlong form, a surrogate, U+2028 or U+2029 (E0, ED and E2).
    """
    high = below32(addr, 0) & inside
    further = equal32(addr, _CONTINUES_BITS, _CONTINUES) & inside
    threes = (within32(addr, _SURE_3, _SURE_3_COUNT) | within32(addr, _LATE_3, LEAD_4 - _LATE_3)) & inside
    leads = (within32(addr, LEAD_MIN, LEAD_3 - LEAD_MIN) & inside) | threes
    # A character that is cut off wants a byte outside, so the two are not equal.
    wanted = leads << U64(1) | threes << U64(2)
    return marks & ~high if (wanted == further) & (leads | further == high) else marks


@inline
def put_character(out: int, addr: int, end: int, std: int) -> tuple[int, int]:
    """The character at `addr` as JSON: (new `out`, bytes read)."""
    byte = I64(load_u8(addr))
    if byte >= NOT_ASCII:
        return put_wide(out, addr, end - addr)
    return put_short(out, _ESCAPED[NOT_ASCII * std + byte]), 1


@inline
def put_text(out: int, addr: int, size: int, std: int) -> int:
    """The content of a JSON string: at most 6 * size bytes.

    32 bytes are written before it is known whether they are clean: the escape of the first one that is not
    replaces it and all after it. There is no loop over the last bytes, because a processor cannot guess a
    number that differs from value to value. So bytes after the value may be read, which do not count, but
    only of a page that has a byte of it.
    """
    end = addr + size
    while addr < end:
        # Seldom: near the end of a page, behind which there may be no memory. One character at a time.
        if addr & PAGE_OFFSET > PAGE_OFFSET + 1 - _AHEAD and addr + _AHEAD > end:
            out, used = put_character(out, addr, end, std)
            addr += used
            continue
        width = min(end - addr, 32)
        inside = (U64(1) << U64(width)) - U64(1)
        marks = unless_whole(special32(addr), addr, inside) & inside
        copy32(out, addr)
        while marks != _ZERO:
            clean = I64(cttz64(marks))
            out, used = put_character(out + clean, addr + clean, end, std)
            # The bytes behind a character move with it; what is marked among them is known.
            used += clean
            addr += used
            width -= used
            marks >>= U64(used)
            copy32(out, addr)
        # Less than 0 if the last character ends behind the 32 bytes.
        addr += max(width, 0)
        out += max(width, 0)
    return out


@inline
def put_latin1(out: int, addr: int, size: int) -> int:
    """Bytes as ISO-8859-1 text inside a JSON string (easyjson): at most 6 * size bytes."""
    # No branch for bytes above ASCII: half of random bytes are, which a processor cannot guess.
    for i in range(size):
        out = put_short(out, _LATIN1[I64(load_u8(addr + i))])
    return out


@inline
def digit_pair(word: Any, at: int) -> Any:
    """The two digits of base64 for the twelve bits of a word from bit `at` on."""
    return U64(_PAIRS[(word >> U64(at)) & _TWELVE_BITS])


@inline
def put_base64(out: int, addr: int, size: int) -> int:
    """Standard base64 with padding: at most 4 * (size + 2) / 3 bytes."""
    whole = size - size % 3
    at = 0
    # Six bytes of eight that are loaded at once.
    while at + 8 <= size:
        word = bswap64(load_u64(addr + at))
        left = digit_pair(word, 52) | digit_pair(word, 40) << U64(16)
        right = digit_pair(word, 28) | digit_pair(word, 16) << U64(16)
        store_u64(out, left | right << U64(32))
        out += 8
        at += 6
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
def put_quoted(out: int, addr: int, size: int, printable: int, std: int) -> int:
    """Bytes, escaped as by Go's strconv.Quote and then for JSON: at most 6 * size bytes.

    printable: Go's IsPrint, a bit per code point. std: whether the JSON is that of encoding/json, which
    escapes `<`, `>` and `&`, or that of json-iterator, which does not.
    """
    at = 0
    while at < size:
        byte = I64(load_u8(addr + at))
        # The last byte counts as the one after it: no byte that begins a character continues one.
        following = I64(load_u8(addr + min(at + 1, size - 1)))
        used = -1
        # In random bytes half are not ASCII, which a processor cannot guess, but few of these are followed by
        # one that continues a character.
        if (byte >= LEAD_MIN) & (following & _CONTINUES_BITS == _CONTINUES):
            used = utf8_size(addr + at, size - at)
        # Only one byte of a damaged character is escaped, and the scan continues behind it, as Go does: the
        # bytes after it may be valid.
        if used < 0:
            out = put_short(out, _QUOTED[256 * std + byte])
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
