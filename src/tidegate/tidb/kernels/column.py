"""Column kernels: one column of many cells, as text or as decimal128.

`filter.expression` calls them, and so do the tests of the text kernels. Cells are given by the addresses of
the first row's two words and the step between rows, in cells. For whole record batches see `arrow`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from tidegate.kernel import (
    address,
    buffer,
    copy_bytes,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.tidb.kernels.float import (
    FIXED_TEXT,
    multiply_high,
    put_double_fixed,
    put_double_json,
    put_double_tidb,
    put_float_fixed,
    put_float_json,
)
from tidegate.tidb.kernels.json import STACK_WORDS, json_ok, put_json
from tidegate.tidb.kernels.text import (
    BYTES_OF_DIGITS,
    DATE_TEXT,
    DATETIME_TEXT,
    DECIMAL_FRAC_AT,
    DECIMAL_HEAD,
    DECIMAL_PLUS,
    DECIMAL_TEXT,
    DURATION_TEXT,
    I64,
    INTEGER_TEXT,
    POWERS_OF_TEN,
    SLACK,
    U64,
    CellWords,
    decimal_word,
    put_date,
    put_datetime,
    put_decimal,
    put_duration,
    put_i64,
    put_u64,
)
from tidegate.tidb.kernels.value import word_before
from tidegate.tidb.kernels.zone import in_zone

_ZERO: Final = U64(0)
_ONE: Final = U64(1)
UPPER_HALF: Final = 8
"""The offset of the upper half of a 128-bit number."""
_SMALL_DIGITS: Final = 18
"""The most digits of a decimal that fits an int64."""
NONE: Final = -1


class Text(IntEnum):
    """The text kernel that `texts` runs."""

    SIGNED = 1
    UNSIGNED = 2
    DECIMAL = 3
    DATE = 4
    DATETIME = 5
    DURATION = 6
    JSON = 7
    DOUBLE = 8
    FLOAT = 9
    DOUBLE_JSON = 10
    FLOAT_JSON = 11
    DOUBLE_TIDB = 12
    BYTES = 13
    TIMESTAMP = 14


SIGNED: Final = int(Text.SIGNED)
UNSIGNED: Final = int(Text.UNSIGNED)
DECIMAL: Final = int(Text.DECIMAL)
DATE: Final = int(Text.DATE)
DATETIME: Final = int(Text.DATETIME)
DURATION: Final = int(Text.DURATION)
JSON: Final = int(Text.JSON)
DOUBLE: Final = int(Text.DOUBLE)
FLOAT: Final = int(Text.FLOAT)
DOUBLE_JSON: Final = int(Text.DOUBLE_JSON)
FLOAT_JSON: Final = int(Text.FLOAT_JSON)
DOUBLE_TIDB: Final = int(Text.DOUBLE_TIDB)
BYTES: Final = int(Text.BYTES)
TIMESTAMP: Final = int(Text.TIMESTAMP)

WIDTH: Final = {
    Text.SIGNED: INTEGER_TEXT,
    Text.UNSIGNED: INTEGER_TEXT,
    Text.DECIMAL: DECIMAL_TEXT,
    Text.DATE: DATE_TEXT,
    Text.DATETIME: DATETIME_TEXT,
    Text.DURATION: DURATION_TEXT,
    Text.JSON: 0,
    Text.DOUBLE: FIXED_TEXT,
    Text.FLOAT: FIXED_TEXT,
    Text.DOUBLE_JSON: FIXED_TEXT,
    Text.FLOAT_JSON: FIXED_TEXT,
    Text.DOUBLE_TIDB: FIXED_TEXT,
    Text.BYTES: 0,
    Text.TIMESTAMP: DATETIME_TEXT,
}
"""The length of the longest text of each. JSON: `JSON_GROWTH` times the cell's length; BYTES: its length."""


class Column(NamedTuple):
    """Where `texts` writes a column."""

    out: int
    """Space for all texts at their longest, and `SLACK`."""
    ends: int
    """int32[n + 1], offsets as in Arrow."""
    valid: int
    """uint8[n], 0 for NULL."""


@kernel
def texts(what: int, fsp: int, count: int, cells: CellWords, column: Column, stack: int, zone: int) -> int:
    """Write the texts of `count` cells in sequence; returns the number of bytes.

    stack: int64[STACK_WORDS], for JSON. zone: see `zone`, for TIMESTAMP.

    Reads cells and the bytes they point to. Writes `column`. Bound: WIDTH, for each text. Twin:
    `tidegate.tidb.text.value_text`.
    """
    out, ends, step = column.out, column.ends, cells.stride
    base = out
    store_u32(ends, 0)
    for i in range(count):
        size = I64(load_i32(cells.sizes + 4 * i * step))
        word = load_i64(cells.words + 8 * i * step)
        store_u8(column.valid + i, 1 if size >= 0 else 0)
        # A NULL has an empty text, because Arrow needs an end for every cell.
        if size < 0:
            pass
        elif what == SIGNED:
            out = put_i64(out, word)
        elif what == UNSIGNED:
            out = put_u64(out, U64(word))
        elif what == DECIMAL:
            out = put_decimal(out, word, size)
        elif what == DATE:
            out = put_date(out, word)
        elif what == DATETIME:
            out = put_datetime(out, word, fsp)
        elif what == TIMESTAMP:
            out = put_datetime(out, in_zone(word, zone), fsp)
        elif what == DURATION:
            out = put_duration(out, word, fsp)
        elif what == JSON:
            out = put_json(out, word, size, stack)
        elif what == BYTES:
            copy_bytes(out, word, size)
            out += size
        elif what == DOUBLE:
            out = put_double_fixed(out, word)
        elif what == FLOAT:
            out = put_float_fixed(out, word)
        elif what == DOUBLE_JSON:
            out = put_double_json(out, word)
        elif what == FLOAT_JSON:
            out = put_float_json(out, word)
        else:
            out = put_double_tidb(out, word)
        store_u32(ends + 4 * (i + 1), out - base)
    return out - base


@inline
def shift_in(out: int, factor: Any, word: int) -> bool:
    """The U128 at `out` times `factor`, plus `word`; False if it does not fit 127 bits."""
    low = load_u64(out)
    high = load_u64(out + UPPER_HALF)
    new_low = low * factor + U64(word)
    # The sum is smaller than `word` only if it has wrapped around.
    carry = multiply_high(low, factor) + (_ONE if new_low < U64(word) else _ZERO)
    store_u64(out, new_low)
    store_u64(out + UPPER_HALF, high * factor + carry)
    # Bit 127 is the sign, so a number that reaches it does not fit either.
    return multiply_high(high, factor) == _ZERO and load_i64(out + UPPER_HALF) >= 0


@inline
def unscaled(addr: int, scale: int, out: int) -> bool:
    """A decimal as a signed 128-bit number of units of 10**-scale; False if digits would be lost."""
    frac = I64(load_u8(addr + DECIMAL_FRAC_AT))
    integer = I64(load_u8(addr)) - frac
    digits = addr + DECIMAL_HEAD
    flip = -1 if load_u8(digits) & DECIMAL_PLUS == 0 else 0
    store_u64(out, 0)
    store_u64(out + UPPER_HALF, 0)
    if frac > scale:
        return False
    # It continues after an overflow: the caller discards the number, and a branch in the loop would cost
    # more.
    fits = True
    at = 0
    # Both partial words are counted, even if they have no digits: their width is then 0.
    words = integer // 9 + frac // 9 + 2
    for i in range(words):
        width = 9
        if i == 0:
            width = integer % 9
        elif i == words - 1:
            width = frac % 9
        size = BYTES_OF_DIGITS[width]
        if width > 0:
            fits &= shift_in(out, U64(POWERS_OF_TEN[width]), decimal_word(digits, at, size, flip))
        at += size
    while frac < scale:
        fits &= shift_in(out, U64(10), 0)
        frac += 1
    if flip != 0:
        # Two's complement over both halves: the carry reaches the upper half only if the lower one is 0.
        low = U64(0) - load_u64(out)
        store_u64(out, low)
        store_u64(out + UPPER_HALF, ~load_u64(out + UPPER_HALF) + (_ONE if low == _ZERO else _ZERO))
    return fits


@inline
def small_unscaled(addr: int, integer: int, frac: int) -> int:
    """The digits of a decimal as one number; there are at most `_SMALL_DIGITS`."""
    at = addr + DECIMAL_HEAD
    flip = -1 if load_u8(at) & DECIMAL_PLUS == 0 else 0
    # The bit of the sign is in the first word only, whichever that is.
    sign = DECIMAL_PLUS
    value = 0
    lead = integer % 9
    if lead > 0:
        size = BYTES_OF_DIGITS[lead]
        at += size
        value = word_before(at, size, flip) ^ (sign << (8 * size - 8))
        sign = 0
    for _ in range(integer // 9 + frac // 9):
        at += 4
        value = value * 1000000000 + (word_before(at, 4, flip) ^ (sign << 24))
        sign = 0
    tail = frac % 9
    if tail > 0:
        size = BYTES_OF_DIGITS[tail]
        at += size
        value = value * POWERS_OF_TEN[tail] + (word_before(at, size, flip) ^ (sign << (8 * size - 8)))
    # With -1 this is the negation of two's complement, with 0 the value itself.
    return (value ^ flip) - flip


@inline
def put_unscaled(out: int, addr: int, scale: int) -> bool:
    """Write a decimal as decimal128 of a scale; False if digits would be lost."""
    frac = I64(load_u8(addr + DECIMAL_FRAC_AT))
    integer = I64(load_u8(addr)) - frac
    if frac > scale or integer + scale > _SMALL_DIGITS:
        return unscaled(addr, scale, out)
    value = small_unscaled(addr, integer, frac)
    # At most `_SMALL_DIGITS` digits in all, so no product overflows.
    for _ in range(scale - frac):
        value *= 10
    store_u64(out, value)
    # The signed shift fills the upper half with the sign.
    store_u64(out + UPPER_HALF, value >> 63)
    return True


@kernel
def decimals(count: int, words: int, sizes: int, scale: int, out: int, valid: int) -> int:
    """Decimals as Arrow's decimal128 (16 bytes each, little-endian) of that scale.

    Returns how many have more digits than the scale or 127 bits can hold: those are null in `valid`.

    Reads cells and the bytes they point to. Writes `out` and `valid`. Bound: 16 bytes a cell in `out`, one in
    `valid`. Twin: `tidegate.tidb.types.decimal.decode`. Trick: nine digits are shifted in at a time, as a
    decimal stores them.
    """
    lost = 0
    for i in range(count):
        filled = load_i32(sizes + 4 * i) >= 0
        if filled and not unscaled(load_i64(words + 8 * i), scale, out + 16 * i):
            filled = False
            lost += 1
        store_u8(valid + i, 1 if filled else 0)
    return lost


@kernel
def check_json(count: int, words: int, sizes: int, ok: int, stack: int) -> int:
    """Whether `json_ok` accepts each of `count` JSON cells (uint8[count]); returns how many. For tests.

    Reads cells and the bytes they point to. Writes `ok`, and `stack` on the way. Bound: the size of each
    cell. Twin: `tidegate.tidb.types.json.decode`.
    """
    good = 0
    for i in range(count):
        passed = json_ok(load_i64(words + 8 * i), I64(load_i32(sizes + 4 * i)), stack)
        store_u8(ok + i, 1 if passed else 0)
        good += 1 if passed else 0
    return good


def warm() -> None:
    """Compile kernels that are not in numba's cache yet."""
    word = np.zeros(1, dtype=np.int64)
    none = np.full(1, NONE, dtype=np.int32)
    end = np.zeros(2, dtype=np.int32)
    valid = np.zeros(1, dtype=np.uint8)
    stack = np.zeros(STACK_WORDS, dtype=np.int64)
    out = buffer(SLACK)
    at = address(word)
    column = Column(address(out), address(end), address(valid))
    texts(SIGNED, 0, 1, CellWords(at, address(none), 1), column, address(stack), 0)
    check_json(0, at, at, at, at)
    decimals(0, at, at, 0, at, at)
