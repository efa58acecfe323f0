"""Value kernels: check the stored bytes of one column's value and write them into a cell.

Formats: docs/formats/values.md, docs/formats/rows.md#format-v1.
Nothing is read outside the given bytes. Plain twin: `value`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from tidegate.kernel import bswap64, inline, load_i64, load_u8, load_u32, load_u64, store_u32, store_u64
from tidegate.kernel_layout import Layout, signed
from tidegate.tidb.kernels.json import json_ok
from tidegate.tidb.kernels.packed_time import (
    CLOCK_AT,
    CLOCK_DAY,
    CLOCK_HOUR,
    CLOCK_IN_HOUR_MASK,
    CLOCK_MASK,
    DATE_AT,
    DATE_MASK,
    MICRO_MASK,
    SIXTY_MASK,
)
from tidegate.tidb.kernels.text import (
    BYTES_OF_DIGITS,
    DECIMAL_FRAC_AT,
    DECIMAL_HEAD,
    DECIMAL_PLUS,
    I64,
    U64,
    decimal_size,
)
from tidegate.tidb.kernels.zone import calendar_ok
from tidegate.tidb.types.temporal import DURATION_MAX_NS


class Form(IntEnum):
    """How the stored bytes of a column become a cell, and which checks are made."""

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


SIGNED: Final = int(Form.SIGNED)
NANOSECONDS: Final = int(Form.NANOSECONDS)
UNSIGNED: Final = int(Form.UNSIGNED)
PACKED: Final = int(Form.PACKED)
PACKED_ZONED: Final = int(Form.PACKED_ZONED)
BYTES: Final = int(Form.BYTES)
FLOAT: Final = int(Form.FLOAT)
DECIMAL: Final = int(Form.DECIMAL)
JSON: Final = int(Form.JSON)

PLAN: Final = Layout(
    "plan line", "PLAN_", "A column of a table version; lines are in ascending order of id.",
    id=signed("the column's id"),
    cell=signed("its cell in a row"),
    form=signed("how stored bytes become a cell, a `Form`"),
    source=signed("for rows without it: FROM_DEFAULT, NO_DEFAULT, or a datum of the handle"),
    default_word=signed("the default's cell, first word"),
    default_size=signed("the default's cell, second word"),
    _6=signed("unused"),
    _7=signed("unused"),
)  # fmt: skip
PLAN_ID, PLAN_CELL, PLAN_FORM, PLAN_SOURCE, PLAN_DEFAULT_WORD, PLAN_DEFAULT_SIZE, _, _ = PLAN.offsets()

SIGN: Final = U64(1 << 63)
_POWERS: Final = np.array([10**i for i in range(10)], dtype=np.int64)
_LONGEST_TIME: Final = DURATION_MAX_NS
_PACKED_YEARS: Final = 10_000 * 13 * 32
"""Higher than every packed year, month and day."""
_INTEGER_SIZES: Final = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8
_SHAPES_SIDE: Final = 82


def _shapes() -> Any:
    """By precision and fraction: bytes including the header, bytes of both partial words, their digits."""
    found = np.zeros(_SHAPES_SIDE * _SHAPES_SIDE, dtype=np.int32)
    for precision in range(1, _SHAPES_SIDE):
        for frac in range(precision + 1):
            integer = precision - frac
            lead, tail = int(BYTES_OF_DIGITS[integer % 9]), int(BYTES_OF_DIGITS[frac % 9])
            size = DECIMAL_HEAD + lead + tail + 4 * (integer // 9 + frac // 9)
            digits = (integer % 9) << 16 | (frac % 9) << 20
            found[precision * _SHAPES_SIDE + frac] = size | lead << 8 | tail << 12 | digits
    return found


_SHAPES: Final = _shapes()


class RowCells(NamedTuple):
    """The cells of one row: the addresses of their first and of their second words."""

    words: int
    sizes: int


@inline
def put_cell(cells: RowCells, cell: int, word: int, size: int) -> None:
    """Write both words of a cell."""
    store_u64(cells.words + 8 * cell, word)
    store_u32(cells.sizes + 4 * cell, size)


@inline
def decimal_extent(addr: int, room: int) -> int:
    """The bytes of the decimal at `addr`, from its two header bytes; -1 if they are more than `room`."""
    if room <= DECIMAL_HEAD:
        return -1
    size = decimal_size(I64(load_u8(addr)), I64(load_u8(addr + DECIMAL_FRAC_AT)))
    return size + DECIMAL_HEAD if 0 <= size <= room - DECIMAL_HEAD else -1


@inline
def word_before(end: int, size: int, flip: int) -> int:
    """The big-endian word of 1 to 4 bytes that ends at `end`; three more bytes before it must be readable."""
    # Four bytes in any case, because sizes differ from row to row; the mask removes those before the word.
    word = I64(bswap64(load_u32(end - 4)) >> U64(32)) ^ flip
    return word & ((1 << (8 * size)) - 1)


@inline
def decimal_ok(addr: int, size: int) -> bool:
    """Whether `size` bytes are a decimal whose words fit their digits; also reads one byte before `addr`."""
    if size <= DECIMAL_HEAD:
        return False
    precision = I64(load_u8(addr))
    frac = I64(load_u8(addr + DECIMAL_FRAC_AT))
    if precision >= _SHAPES_SIDE or frac >= _SHAPES_SIDE:
        return False
    # The index is inside the array. A fraction longer than the precision has the shape 0, which is no size.
    shape = I64(_SHAPES[precision * _SHAPES_SIDE + frac])
    if shape & 0xFF != size:
        return False
    lead = (shape >> 8) & 15
    tail = (shape >> 12) & 15
    digits = addr + DECIMAL_HEAD
    end = addr + size
    flip = -1 if load_u8(digits) & DECIMAL_PLUS == 0 else 0
    at = digits + lead
    sign = DECIMAL_PLUS << 24
    ok = True
    if lead > 0:
        word = word_before(at, lead, flip) ^ (DECIMAL_PLUS << (8 * lead - 8))
        ok = word < _POWERS[(shape >> 16) & 15]
        sign = 0
    # The sign is in the first word only, whichever that is.
    while at < end - tail:
        at += 4
        ok &= (word_before(at, 4, flip) ^ sign) < 1000000000
        sign = 0
    if tail > 0:
        word = word_before(end, tail, flip)
        if sign != 0:
            word ^= DECIMAL_PLUS << (8 * tail - 8)
        ok &= word < _POWERS[shape >> 20]
    return bool(ok)


@inline
def float_bits(addr: int) -> int:
    """The bits of the double that TiDB's EncodeFloat wrote."""
    bits = bswap64(load_u64(addr))
    # The sign is inverted, and of negative numbers all other bits as well, so that the bytes sort as the
    # numbers do.
    if bits & SIGN != U64(0):
        return I64(bits ^ SIGN)
    return I64(~bits)


@inline
def packed_ok(packed: int, zoned: bool) -> bool:
    """Whether a packed time has a valid clock and year; zoned: and whether it is a calendar date, or zero."""
    clock = (packed >> CLOCK_AT) & CLOCK_MASK
    ok = ((packed >> DATE_AT) & DATE_MASK) < _PACKED_YEARS
    ok &= (clock < CLOCK_DAY) & ((clock & CLOCK_IN_HOUR_MASK) < CLOCK_HOUR) & ((clock & SIXTY_MASK) < 60)
    ok &= (packed & MICRO_MASK) < 1000000
    return bool(ok) and (not zoned or packed == 0 or calendar_ok(packed))


@inline
def integer_ok(form: int, word: int) -> bool:
    """Whether an integer is a valid value for a column of that form; for BYTES any is."""
    if form in (PACKED, PACKED_ZONED):
        return packed_ok(word, form == PACKED_ZONED)
    return form != NANOSECONDS or -_LONGEST_TIME <= word <= _LONGEST_TIME


@inline
def bytes_ok(form: int, addr: int, size: int, stack: int) -> bool:
    """Whether `size` bytes are a valid value for a column of a form that is stored as bytes."""
    if form == BYTES:
        return True
    if form == DECIMAL:
        return decimal_ok(addr, size)
    if form == JSON:
        return json_ok(addr, size, stack)
    return vector_ok(addr, size)


@inline
def vector_ok(addr: int, size: int) -> bool:
    """Whether the bytes are a vector of finite floats."""
    if size < 4 or I64(load_u32(addr)) * 4 + 4 != size:
        return False
    infinite = 0
    for at in range(4, size, 4):
        infinite += 1 if load_u32(addr + at) & 0x7F800000 == 0x7F800000 else 0
    return infinite == 0


@inline
def load_integer(form: int, end: int, size: int) -> int:
    """A little-endian integer of 1, 2, 4 or 8 bytes that ends at `end`, signed for the signed forms.

    Sizes differ from row to row, so a branch on them would be mispredicted. Instead it loads the 8 bytes
    before `end`, which are always readable because a row has a header, and shifts them.
    """
    word = load_u64(end - 8)
    # The same for these sizes. Any other gives a number without a meaning, but never an undefined shift.
    shift = (64 - 8 * size) & 63
    signed = I64(word) >> shift
    unsigned = I64(word >> U64(shift))
    return signed if form <= NANOSECONDS else unsigned


@inline
def decode_value(entry: int, addr: int, size: int, cells: RowCells, stack: int) -> bool:
    """Write one value of `size` bytes at `addr`, in v2's form, into the cell of its plan line; False if
    invalid.

    `size` is not negative, and at least 8 bytes of the row precede `addr`.
    """
    form = load_i64(entry + PLAN_FORM)
    cell = load_i64(entry + PLAN_CELL)
    if form <= BYTES:
        # No branch between numbers and bytes. Which columns are NULL differs from row to row, so a processor
        # cannot guess the form of the next value.
        is_bytes = form == BYTES
        number = load_integer(form, addr + size, size)
        # Written before it is checked: the cells of a row with a fault are not used.
        put_cell(cells, cell, addr if is_bytes else number, size if is_bytes else 0)
        whole = (_INTEGER_SIZES >> min(size, 63)) & 1 != 0
        return bool((is_bytes | whole) and integer_ok(form, number))
    if form == FLOAT:
        if size != 8:
            return False
        put_cell(cells, cell, float_bits(addr), 0)
        return True
    put_cell(cells, cell, addr, size)
    return bytes_ok(form, addr, size, stack)
