"""Checksum kernels (docs/formats/checksums.md): the compiled twin of `checksum`, over whole blocks.

`check_image` compares the sums of versions 1 and 2 directly from the raw bytes: `row.decode_rows` calls it
while it decodes them. Version 0 is left to `column_sums`, which takes decoded cells. `fold_words` and
`fold_bytes` compute the same sums over Arrow columns, one column per call. No kernel reads outside the given
buffers, whatever they contain.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from tidegate.kernel import (
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    store_u8,
    store_u32,
)
from tidegate.kernel_layout import Layout, signed
from tidegate.model.schema import Kind
from tidegate.tidb.checksum import Outcome
from tidegate.tidb.kernels.crc import FULL, crc_bytes, crc_row, crc_u32, crc_word
from tidegate.tidb.kernels.json import put_json
from tidegate.tidb.kernels.text import I64, U64, CellWords, put_date, put_datetime, put_decimal, put_duration
from tidegate.tidb.row import CHECKSUM, EXTRA_CHECKSUM, LARGE, V2

UNCHECKED: Final = int(Outcome.UNCHECKED)
MATCHED: Final = int(Outcome.MATCHED)
MISMATCHED: Final = int(Outcome.MISMATCHED)
BY_COLUMNS: Final = 5
"""The result of `check_image` for an image with a sum of version 0."""

_HANDLE_AT: Final = 11

# A row of format v2: its marker, flags, two counts, then its lists (docs/formats/rows.md#format-v2).
FLAGS_AT, FILLED_AT, NULLS_AT, ROW_HEAD = 1, 2, 4, 6
# After its data: a header, then one sum or two.
SUM_VERSION: Final = 7
"""The bits of a header that contain its version."""
_SUM_AT, _EXTRA_AT = 1, 5
ONE_SUM, TWO_SUMS = 5, 9
"""Bytes of the header with one sum, and with two."""
_OF_COLUMNS, _WITH_KEY = 0, 1
"""Versions: the sum over the columns, and the sum over the row and the whole key."""
_SECOND: Final = 4
"""The offset of the second u32 of `carried`."""


@inline
def header_at(value: int, length: int) -> int:
    """The offset of the checksum's header byte; 0: the row has none; -1: its lists exceed its length."""
    if length < ROW_HEAD or load_u8(value) != V2 or load_u8(value + FLAGS_AT) & CHECKSUM == 0:
        return 0
    large = I64(load_u8(value + FLAGS_AT)) & LARGE
    filled = I64(load_u16(value + FILLED_AT))
    nulls = I64(load_u16(value + NULLS_AT))
    at = ROW_HEAD + (filled + nulls) * (4 if large else 1) + filled * (4 if large else 2)
    if at > length:
        return -1
    if filled > 0:
        # `at` is within the row, and at least one end is before it.
        ends = value + at
        at += I64(load_u32(ends - 4)) if large else I64(load_u16(ends - 2))
    room = length - at
    # If the last end is behind the row, `room` is negative and so neither of the two sizes.
    if (room != ONE_SUM and room != TWO_SUMS) or (room == TWO_SUMS) != (
        load_u8(value + at) & EXTRA_CHECKSUM != 0
    ):
        return -1
    return at


@inline
def check_image(value: int, length: int, key: int, key_size: int, carried: int, version_at: int) -> int:
    """The outcome for an image under its record key.

    carried: u32[2]. BY_COLUMNS: its two sums. MISMATCHED: its sum, or 0 if its lists exceed its length.
    version_at: u8, the version of its sum; not written if it has none.
    """
    at = header_at(value, length)
    if at == 0:
        return UNCHECKED
    if at < 0:
        store_u32(carried, 0)
        store_u8(version_at, 0)
        return MISMATCHED
    version = I64(load_u8(value + at)) & SUM_VERSION
    store_u8(version_at, version)
    expected = I64(load_u32(value + at + _SUM_AT))
    if version == _OF_COLUMNS:
        store_u32(carried, expected)
        store_u32(
            carried + _SECOND, load_u32(value + at + _EXTRA_AT) if length - at == TWO_SUMS else expected
        )
        return BY_COLUMNS
    skip = 0 if version == _WITH_KEY else _HANDLE_AT
    # As in the plain twin, the sum covers everything except the sums themselves.
    if crc_row(value, at + 1, key + skip, key_size - skip) == expected:
        return MATCHED
    # Only here, because nobody needs a sum that matches. Rows with one leave `carried` untouched, so its
    # pages take no memory.
    store_u32(carried, expected)
    return MISMATCHED


# --- the columns' sum -----------------------------------------------------------------------------------


class Form(IntEnum):
    """How a column enters the columns' sum."""

    WORD = 0
    FLOAT = 1
    BYTES = 2
    """Length and bytes."""
    BARE = 3
    """Bytes without a length: vectors."""
    DATE = 4
    DATETIME = 5
    TIME = 6
    DECIMAL = 7
    JSON = 8


FORMS: Final = {
    Kind.INT: Form.WORD,
    Kind.UINT: Form.WORD,
    Kind.YEAR: Form.WORD,
    Kind.ENUM: Form.WORD,
    Kind.SET: Form.WORD,
    Kind.BIT: Form.WORD,
    Kind.FLOAT: Form.FLOAT,
    Kind.DOUBLE: Form.FLOAT,
    Kind.STRING: Form.BYTES,
    Kind.BYTES: Form.BYTES,
    Kind.VECTOR: Form.BARE,
    Kind.DATE: Form.DATE,
    Kind.DATETIME: Form.DATETIME,
    Kind.TIMESTAMP: Form.DATETIME,
    Kind.TIME: Form.TIME,
    Kind.DECIMAL: Form.DECIMAL,
    Kind.JSON: Form.JSON,
}

_FLOAT: Final = int(Form.FLOAT)
_BYTES: Final = int(Form.BYTES)
_BARE: Final = int(Form.BARE)
_DATE: Final = int(Form.DATE)
_DATETIME: Final = int(Form.DATETIME)
_TIME: Final = int(Form.TIME)
_DECIMAL: Final = int(Form.DECIMAL)
SUM: Final = Layout(
    "sum line", "SUM_", "A column in the plan of `column_sums`: lines in ascending order of column id.",
    cell=signed("its cell in a row"),
    form=signed("what it adds, a `Form`"),
    fsp=signed("digits of a time's fraction"),
)  # fmt: skip
SUM_WORDS: Final = len(SUM.fields)
_SUM_LINE: Final = SUM.size
SUM_CELL, SUM_FORM, SUM_FSP = SUM.offsets()
_EXPONENT: Final = 0x7FF0000000000000


class SumLines(NamedTuple):
    """The columns that `column_sums` adds up."""

    at: int
    """An array of SUM, in ascending order of column id."""
    columns: int


@inline
def finite(word: int) -> int:
    """The bits of a double; for NaN and infinities those of 0."""
    # TiDB adds 0 for them to its sum, because TiCDC writes them as 0.
    return 0 if word & _EXPONENT == _EXPONENT else word


@inline
def crc_prefixed(register: int, addr: int, size: int) -> int:
    """The register after a u32 length and the bytes."""
    return crc_bytes(crc_u32(register, size), addr, size)


@inline
def put_text(out: int, form: int, fsp: int, word: int, size: int, stack: int) -> int:
    """Write the text of a value whose cell has another form."""
    if form == _DATE:
        return put_date(out, word)
    if form == _DATETIME:
        return put_datetime(out, word, fsp)
    if form == _TIME:
        return put_duration(out, word, fsp)
    if form == _DECIMAL:
        return put_decimal(out, word, size)
    return put_json(out, word, size, stack)


@kernel
def column_sums(
    row_count: int, rows: int, image: CellWords, plan: SumLines, scratch: int, stack: int, out: int
) -> int:
    """uint32[row_count]: the columns' sums of the rows numbered in int64[row_count] `rows`, of one image.

    scratch: space for the longest text and its slack. stack: for JSON.

    Reads cells and the bytes they point to. Writes `out`, and `scratch` on the way. Bound: one text at a
    time, in `scratch`. Twin: `tidegate.tidb.checksum.column_sum`.
    """
    for i in range(row_count):
        first = load_i64(rows + 8 * i) * image.stride
        register = FULL
        for c in range(plan.columns):
            line = plan.at + _SUM_LINE * c
            cell = first + load_i64(line + SUM_CELL)
            size = I64(load_i32(image.sizes + 4 * cell))
            # NULL adds nothing to the sum, not even a length (docs/formats/checksums.md).
            if size < 0:
                continue
            form = load_i64(line + SUM_FORM)
            word = load_i64(image.words + 8 * cell)
            if form < _BYTES:
                register = crc_word(register, U64(finite(word) if form == _FLOAT else word))
            elif form == _BYTES:
                register = crc_prefixed(register, word, size)
            elif form == _BARE:
                register = crc_bytes(register, word, size)
            else:
                fsp = load_i64(line + SUM_FSP)
                end = put_text(scratch, form, fsp, word, size, stack)
                register = crc_prefixed(register, scratch, end - scratch)
        store_u32(out + 4 * i, register ^ FULL)
    return row_count


@kernel
def fold_words(row_count: int, words: int, valid: int, registers: int) -> int:
    """Add a column of words to uint32[row_count] registers, for rows whose uint8 `valid` is not 0.

    Returns the number of rows.

    Reads int64[row_count] `words` and `valid`. Writes `registers`. Bound: a register a row. Twin:
    `tidegate.tidb.checksum.column_bytes`.
    """
    for i in range(row_count):
        if load_u8(valid + i) != 0:
            register = crc_word(I64(load_u32(registers + 4 * i)), U64(load_i64(words + 8 * i)))
            store_u32(registers + 4 * i, register)
    return row_count


@kernel
def fold_bytes(row_count: int, ends: int, data: int, valid: int, prefixed: int, registers: int) -> int:
    """Add a column of bytes as `fold_words` adds words, each after its length if `prefixed`.

    Reads int64[row_count + 1] offsets `ends`, `valid` and the bytes. Writes `registers`. Bound: a register a
    row, and the bytes between a value's offsets. Twin: `tidegate.tidb.checksum.column_bytes`.
    """
    for i in range(row_count):
        if load_u8(valid + i) != 0:
            start = load_i64(ends + 8 * i)
            size = load_i64(ends + 8 * (i + 1)) - start
            register = I64(load_u32(registers + 4 * i))
            if prefixed:
                register = crc_prefixed(register, data + start, size)
            else:
                register = crc_bytes(register, data + start, size)
            store_u32(registers + 4 * i, register)
    return row_count


def warm() -> None:
    """Compile kernels that are not in numba's cache yet, by calling each with no rows."""
    column_sums(0, 0, CellWords(0, 0, 1), SumLines(0, 0), 0, 0, 0)
    fold_words(0, 0, 0, 0)
    fold_bytes(0, 0, 0, 0, 1, 0)
