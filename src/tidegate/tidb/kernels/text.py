"""Text kernels: TiDB's values as TiDB's canonical text, for the compiled encoders to call.

The text by type: docs/formats/columns.md#canonical-text.

Every `put_*` is an `@inline` helper with the same form::

    out = put_i64(out, value)            # out: address; returns the address after the last byte written

*How to call them.* Only from a `@kernel`, `@shared` or `@inline` function; arguments are int64 unless stated
otherwise, addresses included. Make sure before the call that the target has the documented number of
bytes **plus `SLACK`** left: a helper may overwrite up to `SLACK` bytes after the address it returns (wide
stores), which the next write replaces. Helpers never read outside the given value. They take the words of a
cell (`model.cells`): `put_i64(out, a)`, `put_decimal(out, a, l)`, `put_datetime(out, a, fsp)`.

| kind | helper | longest text |
|---|---|---|
| INT, YEAR | `put_i64(out, a)` | 20 |
| UINT, ENUM, SET, BIT | `put_u64(out, U64(a))` | 20 |
| DECIMAL | `put_decimal(out, a, l)` | `DECIMAL_TEXT` = 84 |
| DATE | `put_date(out, a)` | `DATE_TEXT` = 11 |
| DATETIME | `put_datetime(out, a, fsp)` | `DATETIME_TEXT` = 27 |
| TIME | `put_duration(out, a, fsp)` | `DURATION_TEXT` = 22 |

Other modules, in the same style: `float` (FLOAT, DOUBLE), `json.put_json`, `zone.in_zone`
(TIMESTAMP in a zone, then `put_datetime`).

Values that TiDB never writes (month 14, 61 seconds) are printed as the digits in them, within the same
bounds. `fsp` is 0..6; a column's `decimal` of -1 means 0.

In numba, mixing int64 with uint64 makes a float: so helpers take int64, and say U64 if they need unsigned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import numpy as np

from tidegate.kernel import bswap64, cttz64, inline, load_u8, load_u32, store_u8, store_u16, store_u64
from tidegate.kernel_ascii import COLON, MINUS, POINT, SPACE, TWO_ZEROS, ZERO
from tidegate.tidb.kernels.packed_time import (
    CLOCK_AT,
    CLOCK_HOUR_AT,
    CLOCK_MASK,
    CLOCK_MINUTE_AT,
    DATE_AT,
    DATE_MASK,
    DATE_MONTHS_AT,
    DAY_MASK,
    MICRO_MASK,
    SIXTY_MASK,
)

U64: Final[Any] = np.uint64
"""Unsigned words; combine them only with each other."""
I64: Final = cast("Callable[[Any], int]", np.int64)

SLACK: Final = 16
"""Bytes that a helper may overwrite after the text it wrote."""
INTEGER_TEXT: Final = 20
DECIMAL_TEXT: Final = 84
"""Sign, 81 digits (the most that TiDB's nine words hold; columns have 65), point, a leading zero."""
DATE_TEXT: Final = 11
DATETIME_TEXT: Final = 27
DURATION_TEXT: Final = 22


class CellWords(NamedTuple):
    """The cells of rows: addresses of the first and second words, and the number of cells per row."""

    words: int
    sizes: int
    stride: int


_E8: Final = U64(10**8)
_E16: Final = U64(10**16)
_ASCII_ZEROS: Final = U64(0x3030303030303030)
_TOP_BYTE: Final = U64(1 << 56)
_LANES7: Final = 0x0000007F0000007F
_LANES4: Final = 0x000F000F000F000F

POWERS_OF_TEN: Final[Any] = np.array([10**i for i in range(19)], dtype=np.int64)
"""10**i; compiled into the kernels that index it."""
DECIMAL_FRAC_AT: Final = 1
DECIMAL_HEAD: Final = 2
"""A decimal begins with its precision and, at DECIMAL_FRAC_AT, its digits after the point: a byte each. The
binary digits follow the head.
"""
DECIMAL_PLUS: Final = 0x80
"""The bit of the first binary digits that is set unless the number is negative."""
BYTES_OF_DIGITS: Final[Any] = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
"""The number of bytes for 0..9 decimal digits in MySQL's binary decimal."""


@inline
def eight_digits(value: int) -> Any:
    """The 8 digits of 0 <= value < 10**8, one a byte, the first digit in the lowest byte; U64."""
    high = value // 10000
    lanes = high | ((value - high * 10000) << 32)
    # Two lanes in one word: 10486 / 2**20 is just above 1/100, exact for the quotients of numbers below
    # 10,000, and no product reaches the next lane.
    hundreds = ((lanes * 10486) >> 20) & _LANES7
    pairs = hundreds | ((lanes - hundreds * 100) << 16)
    # In the same way 103 / 2**10 for numbers below 100.
    tens = ((pairs * 103) >> 10) & _LANES4
    return U64(tens | ((pairs - tens * 10) << 8))


@inline
def put_eight(out: int, value: int) -> int:
    """Exactly 8 digits of 0 <= value < 10**8, zero-padded."""
    store_u64(out, eight_digits(value) | _ASCII_ZEROS)
    return out + 8


@inline
def put_small(out: int, value: int) -> int:
    """0 <= value < 10**8 without leading zeros: at most 8 bytes."""
    digits = eight_digits(value)
    # The bit in the last byte keeps one digit, so zero has a text.
    skip = I64(cttz64(digits | _TOP_BYTE) >> U64(3))
    store_u64(out, (digits | _ASCII_ZEROS) >> U64(8 * skip))
    return out + 8 - skip


@inline
def put_u64(out: int, value: Any) -> int:
    """A U64 as decimal digits: at most 20 bytes."""
    if value < _E8:
        return put_small(out, I64(value))
    if value < _E16:
        high = value // _E8
        return put_eight(put_small(out, I64(high)), I64(value - high * _E8))
    top = value // _E16
    rest = value - top * _E16
    high = rest // _E8
    out = put_eight(put_small(out, I64(top)), I64(high))
    return put_eight(out, I64(rest - high * _E8))


@inline
def put_i64(out: int, value: int) -> int:
    """An int64 as decimal digits with a minus sign if negative: at most 20 bytes."""
    # All ones for a negative number. Signs differ from value to value, so they have no branch: the sign is
    # written in any case, and the first digit replaces the one that does not count.
    sign = value >> 63
    store_u8(out, MINUS)
    # Unsigned, because -2**63 has no positive counterpart.
    return put_u64(out - sign, (U64(value) ^ U64(sign)) - U64(sign))


@inline
def put_two(out: int, value: int) -> int:
    """Exactly 2 digits of 0 <= value < 100."""
    tens = (value * 103) >> 10
    store_u16(out, TWO_ZEROS + tens + ((value - tens * 10) << 8))
    return out + 2


@inline
def put_nine(out: int, value: int) -> int:
    """Exactly 9 digits of 0 <= value < 10**9."""
    high = value // 10
    store_u8(out + 8, ZERO + value - high * 10)
    store_u64(out, eight_digits(high) | _ASCII_ZEROS)
    return out + 9


# --- decimals -------------------------------------------------------------------------------------------


@inline
def decimal_size(precision: int, frac: int) -> int:
    """Bytes of the binary digits of a decimal, without its two header bytes; -1: no such decimal exists."""
    if precision < 1 or precision > 81 or frac > precision:
        return -1
    integer = precision - frac
    whole = integer // 9
    frac_whole = frac // 9
    partial = BYTES_OF_DIGITS[integer - whole * 9] + BYTES_OF_DIGITS[frac - frac_whole * 9]
    return I64(partial) + 4 * (whole + frac_whole)


@inline
def decimal_word(digits: int, at: int, size: int, flip: int) -> int:
    """The word of `size` bytes, 0 to 4, at offset `at` of the digits; `flip` is -1 for a negative number,
    else 0.
    """
    end = digits + at + size
    # Four bytes that end with the word, because sizes differ from column to column. The head comes before the
    # digits, so only the first word can be too short for that.
    if at + size >= 4 - DECIMAL_HEAD:
        word = I64(bswap64(load_u32(end - 4)) >> U64(32))
    else:
        word = I64(load_u8(digits)) if size > 0 else 0
    # The first bit of the digits is inverted, so that the bytes of decimals sort as the numbers do.
    if at == 0:
        word ^= (DECIMAL_PLUS << (8 * size)) >> 8
    return (word ^ flip) & ((1 << (8 * size)) - 1)


@inline
def put_more(out: int, word: int, start: int) -> int:
    """The 9 digits of a word, without leading zeros if the number has no digit yet, that is `out` is `start`.

    At most 9 bytes. It has no branch, because the first word with digits differs from value to value.
    """
    high = word // 10
    eight = eight_digits(high)
    # Eight zeros give 8 here, and the shift by 64 bits becomes one by 0: the last digit replaces its result.
    zeros = I64(cttz64(eight) >> U64(3)) if out == start else 0
    store_u64(out, (eight | _ASCII_ZEROS) >> U64((8 * zeros) & 63))
    last = word - high * 10
    store_u8(out + 8 - zeros, ZERO + last)
    # A word of 0 has no digit at all.
    return out + 9 - zeros - (1 if (out == start) & (word == 0) else 0)


@inline
def put_decimal(out: int, addr: int, length: int) -> int:
    """A cell of kind DECIMAL (precision, frac, binary digits) as fixed-point text with exactly `frac` digits.

    At most `DECIMAL_TEXT` bytes; zero has no sign. `addr` must have passed the decoder's check
    (`row.decimal_used`); `length` is not used.
    """
    frac = I64(load_u8(addr + DECIMAL_FRAC_AT))
    integer = I64(load_u8(addr)) - frac
    digits = addr + DECIMAL_HEAD
    # Signs differ from value to value, so they have no branch: what follows replaces the one too many.
    flip = (I64(load_u8(digits)) >> 7) - 1
    first = out
    store_u8(out, MINUS)
    out -= flip
    start = out
    at = 0
    seen = 0
    lead = integer % 9
    if lead > 0:
        at = BYTES_OF_DIGITS[lead]
        seen = decimal_word(digits, 0, at, flip)
        after = put_small(out, seen)
        out = after if seen != 0 else out
    for _ in range(integer // 9):
        word = decimal_word(digits, at, 4, flip)
        at += 4
        seen |= word
        # Leading zeros have no text; from the first digit on each word has all nine.
        out = put_more(out, word, start)
    # Written in any case, and replaced by what follows unless there is no digit before the point.
    store_u8(out, ZERO)
    out += 1 if out == start else 0
    if frac > 0:
        store_u8(out, POINT)
        out += 1
        for _ in range(frac // 9):
            word = decimal_word(digits, at, 4, flip)
            out = put_nine(out, word)
            seen |= word
            at += 4
        tail = frac % 9
        if tail > 0:
            word = decimal_word(digits, at, BYTES_OF_DIGITS[tail], flip)
            # Eight digits are written, and the first `tail` of them count.
            put_eight(out, word * POWERS_OF_TEN[8 - tail])
            seen |= word
            out += tail
    # The sign is written before it is known whether all digits are zero. If they are, the text moves over
    # it.
    if (flip != 0) & (seen == 0):
        for addr in range(first, out):
            store_u8(addr, load_u8(addr + 1))
        out -= 1
    return out


# --- temporal values ------------------------------------------------------------------------------------


@inline
def put_date(out: int, packed: int) -> int:
    """The date of a packed time, `YYYY-MM-DD`: 10 bytes (11 for a year that TiDB never writes)."""
    days = (packed >> DATE_AT) & DATE_MASK
    months = days >> DATE_MONTHS_AT
    year = months // 13
    if year > 9999:
        out = put_small(out, year)
    else:
        # Eight digits, of which the year is the first four.
        put_eight(out, year * 10000)
        out += 4
    store_u8(out, MINUS)
    out = put_two(out + 1, months - year * 13)
    store_u8(out, MINUS)
    return put_two(out + 1, days & DAY_MASK)


@inline
def put_fraction(out: int, micros: int, fsp: int) -> int:
    """A point and the first `fsp` of 6 digits of 0 <= micros < 10**6; nothing for fsp <= 0."""
    if fsp <= 0:
        return out
    store_u8(out, POINT)
    # Eight digits, of which the fraction has the first six.
    put_eight(out + 1, micros * 100)
    return out + 1 + fsp


@inline
def put_datetime(out: int, packed: int, fsp: int) -> int:
    """A packed time, `YYYY-MM-DD hh:mm:ss[.f..]`: at most `DATETIME_TEXT` bytes. No time zone is applied."""
    out = put_date(out, packed)
    clock = (packed >> CLOCK_AT) & CLOCK_MASK
    store_u8(out, SPACE)
    out = put_two(out + 1, clock >> CLOCK_HOUR_AT)
    store_u8(out, COLON)
    out = put_two(out + 1, (clock >> CLOCK_MINUTE_AT) & SIXTY_MASK)
    store_u8(out, COLON)
    out = put_two(out + 1, clock & SIXTY_MASK)
    # 24 bits can hold more than six digits, and `put_fraction` takes no more.
    return put_fraction(out, (packed & MICRO_MASK) % 1000000, fsp)


@inline
def put_duration(out: int, nanoseconds: int, fsp: int) -> int:
    """A TIME, `[-]hh:mm:ss[.f..]` with at least 2 digits of hours: at most `DURATION_TEXT` bytes."""
    magnitude = U64(nanoseconds)
    if nanoseconds < 0:
        store_u8(out, MINUS)
        out += 1
        magnitude = U64(0) - magnitude
    micros = I64(magnitude // U64(1000))
    seconds = micros // 1000000
    hours = seconds // 3600
    rest = seconds - hours * 3600
    minutes = rest // 60
    out = put_two(out, hours) if hours < 100 else put_small(out, hours)
    store_u8(out, COLON)
    out = put_two(out + 1, minutes)
    store_u8(out, COLON)
    out = put_two(out + 1, rest - minutes * 60)
    return put_fraction(out, micros - seconds * 1000000, fsp)
