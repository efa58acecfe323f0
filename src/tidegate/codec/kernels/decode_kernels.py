"""Decode kernels: from the spans of cells in JSON messages, as `match_kernels` found them, to columns.

`gather` writes all columns of a group of rows in one call, 64 rows at a time, so that the spans of these
rows and their messages stay in the cache while one column after another is read from them. A value that does
not fit its column marks its item as bad; then the plain decoder decides what to do with the message.

All reads stay inside the message, including the 8 bytes before a cell; addresses are int64.
"""

from __future__ import annotations

from typing import Any, Final

from tidegate.codec.kernels.json_scan_kernels import NO_DIGITS, ZEROS, eight_digits
from tidegate.codec.kernels.string_decode_kernels import take_base64, take_string, unquote
from tidegate.codec.kernels.template_kernels import (
    ESCAPED,
    IS_STRING,
    RESULT_BYTES,
    RESULT_OP,
    RESULT_SPAN,
    SPAN_AT,
    SPAN_FLAGS,
    Spans,
)
from tidegate.kernel import (
    copy_exact,
    ctpop64,
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
from tidegate.kernel_ascii import MINUS
from tidegate.kernel_layout import Layout, pointer, signed
from tidegate.model.cells import DELETE, INSERT
from tidegate.tidb.kernels.json_string import is_utf8
from tidegate.tidb.kernels.text import I64, U64

# How a column's values are written in messages.
TEXT: Final = 0
LATIN1: Final = 1
BASE64: Final = 2
QUOTED: Final = 3
BASE64_TEXT: Final = 4
SIGNED: Final = 5  # of the columns that become words of 64 bits
UNSIGNED: Final = 6

COLUMN: Final = Layout(
    "decoded column", "C_", "A column of a group of rows that `gather` writes.",
    mode=signed("how its values stand in messages, see TEXT and the others"),
    in_quotes=signed("1: the values are strings"),
    cell=signed("its cell"),
    old=signed("1: it is of the old image"),
    valid=pointer("the bits of validity"),
    ends=pointer("of texts and bytes: i32[n + 1], end offsets"),
    out=pointer("where the values go; of texts the next one"),
    nulls=signed("afterwards: rows without a value"),
)  # fmt: skip
COLUMN_WORDS: Final = len(COLUMN.fields)
(C_MODE, C_IN_QUOTES, C_CELL, C_OLD, C_VALID, C_ENDS, C_OUT, C_NULLS) = COLUMN.offsets()
COLUMN_BYTES: Final = COLUMN.size
CHUNK: Final = 64
"""Rows at a time: one 64-bit word of validity."""

_MAX_NEGATIVE: Final = U64(1 << 63)
_TEN_TO_16: Final = U64(10**16)
_MOST_TOP: Final = U64((1 << 64) // 10**16)
_MOST_REST: Final = U64((1 << 64) % 10**16)


@inline
def few_digits(end: int, size: int) -> Any:
    """The number of 1 to 8 digits that end at `end`, from the 8 bytes before it; NO_DIGITS as there."""
    # `compiled` asserts that 8 constant bytes precede the first cell, so this stays inside the message.
    word = load_u64(end - 8)
    if size < 8:
        gone = U64(64 - 8 * size)
        word = ((word >> gone) << gone) | (ZEROS & ((U64(1) << gone) - U64(1)))
    return eight_digits(word)


@inline
def read_digits(at: int, size: int) -> tuple[Any, bool]:
    """(the number of at most 20 digits, whether the bytes are digits and fit 64 bits)."""
    if size < 1 or size > 20:
        return U64(0), False
    if size <= 8:
        value = few_digits(at + size, size)
        return value, value != NO_DIGITS
    end = at + size
    last = eight_digits(load_u64(end - 8))
    if size <= 16:
        first = few_digits(end - 8, size - 8)
        return first * U64(100000000) + last, first != NO_DIGITS and last != NO_DIGITS
    middle = eight_digits(load_u64(end - 16))
    first = few_digits(end - 16, size - 16)
    rest = middle * U64(100000000) + last
    good = first != NO_DIGITS and middle != NO_DIGITS and last != NO_DIGITS
    # Compared in parts, because the whole number may not fit.
    if first > _MOST_TOP or (first == _MOST_TOP and rest >= _MOST_REST):
        good = False
    return first * _TEN_TO_16 + rest, good


@inline
def read_integer(word: int, size: int, unsigned: bool, wanted: int) -> tuple[Any, bool]:
    """(the 64 bits of the integer in a span, whether it is an integer that fits its column)."""
    at = word >> SPAN_AT
    negative = size > 0 and load_u8(at) == MINUS
    value, good = read_digits(at + negative, size - negative)
    if word & SPAN_FLAGS != wanted:
        good = False
    if unsigned:
        return value, good and not negative
    # Two's complement has one more negative number than positive ones.
    if value > (_MAX_NEGATIVE if negative else _MAX_NEGATIVE - U64(1)):
        good = False
    # The wrap-around is two's complement.
    return (U64(0) - value if negative else value), good


@inline
def read_text(out: int, word: int, size: int, mode: int, in_quotes: bool) -> int:
    """Write the bytes that a span represents to `out`; returns their end, 0 if the span is not valid."""
    at = word >> SPAN_AT
    if not in_quotes:
        if word & SPAN_FLAGS:
            return 0
        copy_exact(out, at, size)
        return out + size
    if word & IS_STRING == 0:
        return 0
    if mode in (BASE64, BASE64_TEXT):
        # JSON may escape a `/`. No encoder does, so such a value is left to the plain decoder.
        done = take_base64(out, at, size) if word & ESCAPED == 0 else 0
        if mode == BASE64_TEXT and done != 0 and not is_utf8(out, done):
            return 0
        return done
    if word & ESCAPED == 0 and mode != LATIN1:
        copy_exact(out, at, size)
        return out + size
    done = take_string(out, at, size, mode == LATIN1)
    if mode == QUOTED and done != 0:
        done = unquote(out, done)
    return done


@kernel
def measure(row_count: int, order: int, results: int, lengths: int, cells: int, sums: int) -> int:
    """Add the bytes of each row's cells to i64[2 * cells], new images before old; returns the rows.

    order: each row's item.

    Reads results and lengths. Writes `sums`. Bound: two images of `cells` lengths a row. Twin: none, because
    it only adds up what `gather` copies from the same spans.
    """
    for row in range(row_count):
        result = results + RESULT_BYTES * load_i64(order + 8 * row)
        op = load_i64(result + RESULT_OP)
        span = lengths + 4 * load_i64(result + RESULT_SPAN)
        # The spans of an image that the row lacks were never written.
        for cell in range(cells if op == DELETE else 0, cells if op == INSERT else 2 * cells):
            store_u64(sums + 8 * cell, load_i64(sums + 8 * cell) + max(0, I64(load_i32(span + 4 * cell))))
    return row_count


@kernel
def gather(
    row_count: int, order: int, spans: Spans, columns: int, column_count: int, bases: int, bad: int
) -> int:
    """Write columns of rows; a row without the column's image gets a null. Returns how many values are bad.

    order: i64[row_count], each row's item; columns: an array of COLUMN; bases: i64[2 * CHUNK] of scratch
    memory; bad: u8, by item.

    Reads the spans and the bytes they point to. Writes the columns and `bad`. Bound: the sum of its lengths
    in a column of texts, as `measure` gives it; a word a row in the others. Twin: the plain decoder of each
    protocol; `tests.contracts.test_codecs.test_damaged_messages_decode_alike` compares them. Trick: 64 rows
    at a time, so that their messages stay in the cache while one column after another is read.
    """
    results, starts, lengths = spans.results, spans.starts, spans.lengths
    wrong = 0
    for first in range(0, row_count, CHUNK):
        rows = min(CHUNK, row_count - first)
        for i in range(rows):
            result = results + RESULT_BYTES * load_i64(order + 8 * (first + i))
            op = load_i64(result + RESULT_OP)
            span = load_i64(result + RESULT_SPAN)
            store_u64(bases + 8 * i, -1 if op == DELETE else span)
            store_u64(bases + 8 * (CHUNK + i), -1 if op == INSERT else span)
        for number in range(column_count):
            column = columns + COLUMN_BYTES * number
            mode = load_i64(column + C_MODE)
            in_quotes = load_i64(column + C_IN_QUOTES) != 0
            cell = load_i64(column + C_CELL)
            rows_spans = bases + 8 * CHUNK * load_i64(column + C_OLD)
            bits = U64(0)
            if mode >= SIGNED:
                out = load_i64(column + C_OUT) + 8 * first
                wanted = IS_STRING if in_quotes else 0
                for i in range(rows):
                    span = load_i64(rows_spans + 8 * i)
                    size = -1
                    if span >= 0:
                        size = I64(load_i32(lengths + 4 * (span + cell)))
                    value = U64(0)
                    if size >= 0:
                        bits |= U64(1) << U64(i)
                        value, good = read_integer(
                            load_i64(starts + 8 * (span + cell)), size, mode == UNSIGNED, wanted
                        )
                        if not good:
                            store_u8(bad + load_i64(order + 8 * (first + i)), 1)
                            wrong += 1
                    store_u64(out + 8 * i, value)
            else:
                out = load_i64(column + C_OUT)
                ends = load_i64(column + C_ENDS) + 4 * first
                # Where the text of the whole column begins: the ends count from there, over all chunks.
                base = out - I64(load_i32(ends))
                for i in range(rows):
                    span = load_i64(rows_spans + 8 * i)
                    size = -1
                    if span >= 0:
                        size = I64(load_i32(lengths + 4 * (span + cell)))
                    if size >= 0:
                        bits |= U64(1) << U64(i)
                        # A bad value takes no space: `out` stays, so the bound of `measure` holds.
                        done = read_text(out, load_i64(starts + 8 * (span + cell)), size, mode, in_quotes)
                        if done == 0:
                            store_u8(bad + load_i64(order + 8 * (first + i)), 1)
                            wrong += 1
                        else:
                            out = done
                    store_u32(ends + 4 * i + 4, out - base)
                store_u64(column + C_OUT, out)
            store_u64(load_i64(column + C_VALID) + (first >> 3), bits)
            store_u64(column + C_NULLS, load_i64(column + C_NULLS) + rows - I64(ctpop64(bits)))
    return wrong


def warm() -> None:
    """Compile kernels that are not in numba's cache yet, by calling them with no rows."""
    measure(0, 0, 0, 0, 0, 0)
    gather(0, 0, Spans(0, 0, 0), 0, 0, 0, 0)
