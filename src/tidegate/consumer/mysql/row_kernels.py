"""Rows as SQL, and digests of texts, compiled: what `literals` and `digest` do for each row.

`put_rows` writes `(1,'a',NULL),(2,'b',2.5),` from Arrow columns, one row after the other, so that statements
are cut from it without another copy of any value. `fold_texts` adds up digests of texts in one buffer.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tidegate.kernel import (
    address,
    copy_exact,
    inline,
    kernel,
    load_bounds,
    load_i64,
    load_u8,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import (
    APOSTROPHE,
    BACKSLASH,
    CLOSE_PARENTHESIS,
    COMMA,
    OPEN_PARENTHESIS,
    SQL_BINARY_TEXT,
    SQL_NULL_TEXT,
    ZERO,
)
from tidegate.kernel_layout import Layout, pointer, signed, word
from tidegate.tidb.kernels.text import I64, SLACK, U64, put_i64, put_u64

SIGNED, UNSIGNED, PLAIN, QUOTED, BINARY = range(5)
"""How a value is written: as a number, as its bytes, or as its bytes in quotes, `_binary` before them."""
COLUMN: Final = Layout(
    "SQL column", "V_", "A column of rows that are written as SQL.",
    form=signed("how its values are written: SIGNED, UNSIGNED, PLAIN, QUOTED or BINARY"),
    values=pointer("numbers of 8 bytes, or the bytes of all texts"),
    ends=pointer("int32 offsets of texts, beginning with that of the first value; unused for numbers"),
    valid=pointer("the bits of validity; 0: no value is NULL"),
    first=signed("the bit of the first value"),
)  # fmt: skip
V_FORM, V_VALUES, V_ENDS, V_VALID, V_FIRST = COLUMN.offsets()
_COLUMN: Final = COLUMN.size
SUMS: Final = Layout(
    "digest sums", "S_", "The digests of texts, added up half by half.",
    begun=word("the state with which a text's first half begins"),
    other_begun=word("the state with which a text's second half begins"),
    total=word("the sum of the first halves"),
    other_total=word("the sum of the second halves"),
)  # fmt: skip
S_BEGUN, S_OTHER_BEGUN, S_TOTAL, S_OTHER_TOTAL = SUMS.offsets()

NUMBER_ROOM: Final = 21
"""The most bytes of a number or NULL, with its comma."""
PLAIN_ROOM: Final = 5
QUOTES_ROOM: Final = 12
"""The most bytes of a value in addition to its own, with its comma; in quotes each byte may become two."""
ROW_ROOM: Final = 3
"""Parentheses and a comma."""
SPARE: Final = SLACK
"""Bytes that may be overwritten after the last row."""

_WORD_BYTES: Final = 8
_BINARY_BYTES: Final = 7
_LOW: Final = U64(0x0101010101010101)
_HIGH: Final = U64(0x8080808080808080)
_APOSTROPHES: Final = U64(0x0101010101010101 * APOSTROPHE)
_BACKSLASHES: Final = U64(0x0101010101010101 * BACKSLASH)
_NONE: Final = U64(0)
_FACTORS: Final[Any] = (U64(0x9E3779B97F4A7C15), U64(0xD6E8FEB86659FD93))
"""An odd factor for each half of a digest."""
_FACTOR, _OTHER_FACTOR = _FACTORS
_FINISH: Final = U64(0xFF51AFD7ED558CCD)
_HALF: Final = U64(32)
_BYTE: Final = U64(8)


@inline
def zero_bytes(eight: Any) -> Any:
    """Not 0 exactly if one of eight bytes is 0."""
    # A borrow may also mark bytes above a zero byte. Only whether there is any mark matters here.
    return (eight - _LOW) & ~eight & _HIGH


@inline
def escaped_byte(out: int, byte: int) -> int:
    """Append a byte of a text in quotes; returns the new end."""
    if byte == 0:
        store_u8(out, BACKSLASH)
        store_u8(out + 1, ZERO)
        return out + 2
    if byte == APOSTROPHE or byte == BACKSLASH:
        store_u8(out, BACKSLASH)
        out += 1
    store_u8(out, byte)
    return out + 1


@inline
def put_escaped(out: int, source: int, size: int) -> int:
    """Append a text with its quotes, backslashes and zeros escaped; returns the new end."""
    i = 0
    while i + _WORD_BYTES <= size:
        eight = load_u64(source + i)
        special = zero_bytes(eight) | zero_bytes(eight ^ _APOSTROPHES) | zero_bytes(eight ^ _BACKSLASHES)
        if special == _NONE:
            store_u64(out, eight)
            out += _WORD_BYTES
        else:
            for k in range(_WORD_BYTES):
                out = escaped_byte(out, I64(load_u8(source + i + k)))
        i += _WORD_BYTES
    while i < size:
        out = escaped_byte(out, I64(load_u8(source + i)))
        i += 1
    return out


@inline
def put_value(out: int, column: int, row: int) -> int:
    """Append the literal of a row's value; returns the new end."""
    valid = load_i64(column + V_VALID)
    bit = load_i64(column + V_FIRST) + row
    if valid != 0 and (load_u8(valid + (bit >> 3)) >> (bit & 7)) & 1 == 0:
        store_u32(out, SQL_NULL_TEXT)
        return out + 4
    form, values = load_i64(column + V_FORM), load_i64(column + V_VALUES)
    if form == SIGNED:
        return put_i64(out, load_i64(values + 8 * row))
    if form == UNSIGNED:
        return put_u64(out, load_u64(values + 8 * row))
    begin, end = load_bounds(load_i64(column + V_ENDS), row)
    if form == PLAIN:
        copy_exact(out, values + begin, end - begin)
        return out + end - begin
    if form == BINARY:
        store_u64(out, SQL_BINARY_TEXT)
        out += _BINARY_BYTES
    store_u8(out, APOSTROPHE)
    out = put_escaped(out + 1, values + begin, end - begin)
    store_u8(out, APOSTROPHE)
    return out + 1


@kernel
def put_rows(row_count: int, columns: int, column_count: int, out: int, ends: int) -> int:
    """Write rows as `(value,value),` one after the other; returns the bytes.

    columns: an array of COLUMN. ends: int64[row_count], where each row ends.

    Reads the values of all rows, and their bits of validity. Writes `out` and `ends`. Bound: for each row
    ROW_ROOM bytes, and for each value NUMBER_ROOM, or PLAIN_ROOM and its bytes, or QUOTES_ROOM and twice its
    bytes; SPARE bytes after the last row. Twin: `tidegate.consumer.mysql.literals.literals`. Trick: eight
    bytes of a text are looked at together, because hardly any must be escaped.
    """
    at = out
    for i in range(row_count):
        store_u8(at, OPEN_PARENTHESIS)
        at += 1
        for c in range(column_count):
            at = put_value(at, columns + _COLUMN * c, i)
            store_u8(at, COMMA)
            at += 1
        # Over the comma after the last value.
        store_u8(at - 1, CLOSE_PARENTHESIS)
        store_u8(at, COMMA)
        at += 1
        store_u64(ends + 8 * i, at - out)
    return at - out


@inline
def folded(state: Any, eight: Any, factor: Any) -> Any:
    """Fold eight bytes into a state: a bijection of each argument."""
    state = (state ^ eight) * factor
    return state ^ (state >> _HALF)


@inline
def finished(state: Any) -> Any:
    """Mix the bits of a state: each bit of the result depends on all of them."""
    state = (state ^ (state >> _HALF)) * _FINISH
    return state ^ (state >> _HALF)


@kernel
def fold_texts(text_count: int, bounds: int, data: int, lead: int, trail: int, sums: int) -> int:
    """Add the digests of texts to two sums; returns the number of texts.

    bounds: int64[text_count + 1], offsets in `data`; a text is between two of them, without its first
    `lead` and last `trail` bytes. sums: a SUMS.

    Reads bounds, texts and states. Writes the sums. Bound: the bytes of the texts. Twin:
    `tidegate.consumer.mysql.digest.plain`. Trick: two states, each with its own factor, do not wait for each
    other.
    """
    begun, other_begun = load_u64(sums + S_BEGUN), load_u64(sums + S_OTHER_BEGUN)
    total, other_total = load_u64(sums + S_TOTAL), load_u64(sums + S_OTHER_TOTAL)
    for i in range(text_count):
        at = data + load_i64(bounds + 8 * i) + lead
        end = data + load_i64(bounds + 8 * i + 8) - trail
        # The size as well, because the last word is filled with zeros.
        size = U64(end - at)
        state, other = folded(begun, size, _FACTOR), folded(other_begun, size, _OTHER_FACTOR)
        while at + _WORD_BYTES <= end:
            eight = load_u64(at)
            state, other = folded(state, eight, _FACTOR), folded(other, eight, _OTHER_FACTOR)
            at += _WORD_BYTES
        if at < end:
            tail, shift = _NONE, _NONE
            while at < end:
                tail |= U64(load_u8(at)) << shift
                shift += _BYTE
                at += 1
            state, other = folded(state, tail, _FACTOR), folded(other, tail, _OTHER_FACTOR)
        total += finished(state)
        other_total += finished(other)
    store_u64(sums + S_TOTAL, total)
    store_u64(sums + S_OTHER_TOTAL, other_total)
    return text_count


def warm() -> None:
    """Compile the kernels that are not in numba's cache yet."""
    words = np.zeros(8, dtype=np.int64)
    at = address(words)
    put_rows(0, at, 0, at, at)
    fold_texts(0, at, at, 0, 0, at)
