"""Scalars of JSON text, scanned eight bytes at a time, and the hash of names.

Each function returns where a scalar ends. The scanners are strict: whatever the plain decoders refuse, or
treat in a special way, is "not a scalar" here, and the message is left to them. All reads stay below `end`.
"""

from __future__ import annotations

from typing import Any, Final

from tidegate.codec.kernels.template_kernels import ESCAPED
from tidegate.kernel import cttz64, inline, kernel, load_u8, load_u32, load_u64
from tidegate.kernel_ascii import (
    BACKSLASH,
    FALS_TEXT,
    LOWER_E,
    MINUS,
    NINE,
    NOT_ASCII,
    PLUS,
    POINT,
    QUOTE,
    SPACE,
    TRUE_TEXT,
    UPPER_E,
    ZERO,
)
from tidegate.tidb.kernels.json_string import utf8_size
from tidegate.tidb.kernels.text import I64, U64

_QUOTES: Final = U64(0x2222222222222222)
_BACKSLASHES: Final = U64(0x5C5C5C5C5C5C5C5C)
_SPACES: Final = U64(0x2020202020202020)
_ONES: Final = U64(0x0101010101010101)
_HIGH_BITS: Final = U64(0x8080808080808080)
MIX: Final = U64(0x9E3779B97F4A7C15)

ZEROS: Final = U64(0x3030303030303030)
"""Eight digits 0."""
NO_DIGITS: Final = U64((1 << 64) - 1)
"""The result for text that is no number; no number here is as large."""
_SIXES: Final = U64(0x0606060606060606)
_HIGH_NIBBLES: Final = U64(0xF0F0F0F0F0F0F0F0)
_THREES: Final = U64(0x3333333333333333)
_TEN_TO_8: Final = U64(10**8)


@inline
def no_digits(bits: Any) -> Any:
    """0 if eight bytes are decimal digits; otherwise its lowest byte that is not 0 marks the first other."""
    # A digit is 0x30 to 0x39: the high nibble is 3, and still 3 after 6 is added. Only a byte from 0xFA on
    # carries into the next one, and its own high nibble fails.
    return ((bits & _HIGH_NIBBLES) | (((bits + _SIXES) & _HIGH_NIBBLES) >> U64(4))) ^ _THREES


@inline
def eight_digits(word: Any) -> Any:
    """The number of 8 decimal digits in text order; NO_DIGITS if some byte is not a digit."""
    bits = U64(word)
    if no_digits(bits) != U64(0):
        return NO_DIGITS
    # Pairs, then fours, then eight digits are joined, each step by one multiplication for all lanes.
    bits -= ZEROS
    bits = bits * U64(10) + (bits >> U64(8))
    low = (bits & U64(0x000000FF000000FF)) * U64(0x000F424000000064)
    high = ((bits >> U64(16)) & U64(0x000000FF000000FF)) * U64(0x0000271000000001)
    return ((low + high) & ~U64(0)) >> U64(32)


@inline
def scan_digits(at: int, end: int) -> int:
    """The end of a run of decimal digits."""
    while at + 8 <= end:
        others = no_digits(load_u64(at))
        if others != U64(0):
            return at + (I64(cttz64(others)) >> 3)
        at += 8
    while at < end and ZERO <= I64(load_u8(at)) <= NINE:
        at += 1
    return at


@inline
def scan_number(at: int, end: int) -> int:
    """The end of the JSON number (RFC 8259, section 6) at `at`; `at` itself if there is none.

    The grammar is checked, not only the characters: the plain decoders refuse `0613`, `1.` and `-`, so a
    message with one must not match a template. They also refuse a number that is infinite as a double, so one
    that may be (more than two digits of exponent, or more than 300 digits) is left to them.
    """
    first = at + (at < end and load_u8(at) == MINUS)
    stop = scan_digits(first, end)
    if stop == first or stop - first > 300 or (stop - first > 1 and load_u8(first) == ZERO):
        return at
    if stop < end and load_u8(stop) == POINT:
        fraction = scan_digits(stop + 1, end)
        if fraction == stop + 1:
            return at
        stop = fraction
    if stop < end and (load_u8(stop) == LOWER_E or load_u8(stop) == UPPER_E):
        exponent = stop + 1
        exponent += exponent < end and (load_u8(exponent) == PLUS or load_u8(exponent) == MINUS)
        stop = scan_digits(exponent, end)
        if stop == exponent or stop - exponent > 2:
            return at
    return stop


@inline
def scan_bool(at: int, end: int) -> int:
    """The end of `true` or `false`; `at` itself if neither is there."""
    if end - at >= 4 and load_u32(at) == TRUE_TEXT:
        return at + 4
    if end - at >= 5 and load_u32(at) == FALS_TEXT and load_u8(at + 4) == LOWER_E:
        return at + 5
    return at


@inline
def scan_string(at: int, end: int) -> tuple[int, int]:
    """(address of the closing quote or 0, ESCAPED if there is a backslash), from after the first quote."""
    flags = 0
    while at < end:
        if at + 8 <= end:
            # Only the lowest of the marks below is exact: a borrow may set others above it.
            bits = load_u64(at)
            quote = bits ^ _QUOTES
            slash = bits ^ _BACKSLASHES
            marks = (bits - _SPACES) | (quote - _ONES) | (slash - _ONES) | bits
            marks &= _HIGH_BITS
            if marks == U64(0):
                at += 8
                continue
            at += I64(cttz64(marks)) >> 3
        byte = I64(load_u8(at))
        if byte == QUOTE:
            return at, flags
        if byte < SPACE:
            return 0, 0
        if byte == BACKSLASH:
            # The byte after it is skipped unseen: whether the escape is valid is for the decoder to say.
            flags = ESCAPED
            # It may pass `end` by one. Then the string has no closing quote, and the loop ends with 0.
            at += 2
        elif byte < NOT_ASCII:
            at += 1
        else:
            used = utf8_size(at, end - at)
            if used < 0:
                return 0, 0
            at += used
    return 0, 0


@inline
def read_unsigned(at: int, end: int) -> Any:
    """The U64 of plain digits; NO_DIGITS, which is no timestamp, for more than 64 bits and for other text."""
    value = U64(0)
    # 19 digits are below 2**64, so no step overflows.
    if at >= end or end - at > 19:
        return NO_DIGITS
    while at + 8 <= end:
        eight = eight_digits(load_u64(at))
        if eight == NO_DIGITS:
            return NO_DIGITS
        value = value * _TEN_TO_8 + eight
        at += 8
    while at < end:
        digit = I64(load_u8(at)) - ZERO
        if digit < 0 or digit > 9:
            return NO_DIGITS
        value = value * U64(10) + U64(digit)
        at += 1
    return value


@inline
def hash_text(at: int, size: int, end: int) -> Any:
    """A hash of `size` bytes; words are read up to `end`."""
    found = U64(size) * MIX
    while size >= 8:
        found = (found ^ load_u64(at)) * MIX
        found ^= found >> U64(29)
        at += 8
        size -= 8
    if size > 0:
        # 1 to 7 bytes are left, so the shift below is less than 64.
        word = U64(0)
        # A whole word is read if it is inside the message. The mask removes what follows the text, so both
        # branches give the same word.
        if end - at >= 8:
            word = load_u64(at) & ((U64(1) << U64(8 * size)) - U64(1))
        else:
            for i in range(size):
                word |= U64(load_u8(at + i)) << U64(8 * i)
        found = (found ^ word) * MIX
        found ^= found >> U64(29)
    return found ^ (found >> U64(32))


@kernel
def hash_name(at: int, size: int) -> int:
    """`hash_text` of a name, for Python, which fills the hash table of a set.

    Reads the name. Writes nothing. Bound: `size` bytes. Twin: none, because a table must be filled with the
    same hash by which `match_kernels.find_member` searches it.
    """
    return I64(hash_text(at, size, at + size))
