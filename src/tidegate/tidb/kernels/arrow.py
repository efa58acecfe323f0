"""Arrow kernels: one image of many rows, from cells to the buffers of a whole record batch.

`mounter.columns` calls them one after the other: `measure` gives every buffer its place in the body of an
Arrow message, `fill` writes validity, offsets and values, `seal` the head (`mounter.batch_layout`). The three
share a line of words for each column (`arrow_lines`).

Rows are handled in tiles: their cells stay in the first-level cache, and the kind of a column is tested once
for each tile. The validity of a tile is one word, and its bits lead to the values: which rows are NULL cannot
be predicted, so it must not be a branch.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tidegate.kernel import (
    address,
    copy32,
    copy_exact,
    ctpop64,
    cttz64,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import COMMA
from tidegate.tidb.kernels.arrow_lines import (
    ARGUMENT_AT,
    AS_TEXT,
    BYTES,
    CELL_AT,
    DATA_AT,
    DAYS,
    DECIMAL,
    DURATION,
    ELEMENT_BYTES,
    ELEMENT_NAME,
    ELEMENT_SIZE,
    ELEMENTS_AT,
    ENUM,
    GROWTH_AT,
    HIGH_AT,
    JSON,
    LINE_BYTES,
    LONGEST_AT,
    LOST_AT,
    NULLS_AT,
    PAIR_BYTES,
    PAIR_FIRST,
    PAIR_SECOND,
    SET,
    SINGLE,
    TEXT_AT,
    USED_AT,
    VALID_AT,
    VECTOR,
    WIDE,
    WIDTH_AT,
    WORD1,
    WORD2,
    WORD4,
    WORD8,
)
from tidegate.tidb.kernels.column import UPPER_HALF, put_unscaled
from tidegate.tidb.kernels.float import single_bits
from tidegate.tidb.kernels.json import STACK_WORDS, put_json
from tidegate.tidb.kernels.text import (
    I64,
    SLACK,
    U64,
    CellWords,
    put_decimal,
    put_duration,
)
from tidegate.tidb.kernels.zone import clock_seconds, day_of, month_line

_DECIMAL128: Final = 16
"""The bytes of a decimal128."""
TILE: Final = 32
_SPARE: Final = max(SLACK, 64)
"""The bytes that may be written after the end of a text."""
_ONE: Final = U64(1)
_NONE: Final = U64(0)
_TOP_BITS: Final = U64(0x8080808080808080)


@inline
def present(rows: int, ops: int, lacking: int) -> Any:
    """A bit for each row of a tile: whether it has the image."""
    bits = _NONE
    for i in range(rows):
        bits |= (_ONE if load_u8(ops + i) != lacking else _NONE) << U64(i)
    return bits


@inline
def filled(valid: Any, row: int) -> int:
    """-1 if the row of the tile has a value, otherwise 0."""
    # 0 - 1 wraps around to all ones, which keep a word in an AND.
    return I64(_NONE - ((valid >> U64(row)) & _ONE))


@inline
def not_null(rows: int, sizes: int, step: int) -> Any:
    """A bit for each row of a tile: whether its cell is not NULL; step: bytes between rows."""
    bits = _NONE
    for i in range(rows):
        # NULL is the only negative size, so its sign bit decides without a branch.
        bits |= (~U64(I64(load_i32(sizes + step * i))) >> U64(63)) << U64(i)
    return bits


@inline
def element(elements: int, number: int, out: int) -> int:
    """Append an element's name; returns the new end."""
    entry = elements + ELEMENT_BYTES * number
    size = load_i64(entry + ELEMENT_SIZE)
    copy_exact(out, load_i64(entry + ELEMENT_NAME), size)
    return out + size


@inline
def set_text(out: int, mask: Any, elements: int) -> int:
    """Append the names of a set's bits, joined by commas; returns the new end."""
    number = 0
    first = out
    while mask != _NONE:
        if mask & _ONE != _NONE:
            if out > first:
                store_u8(out, COMMA)
                out += 1
            out = element(elements, number, out)
        mask >>= _ONE
        number += 1
    return out


@inline
def set_known(mask: Any, count: int) -> bool:
    """Whether all bits of a set have an element."""
    return count >= 64 or mask >> U64(count) == _NONE


@inline
def put_text(out: int, addr: int, size: int, safe_from: int, safe_to: int) -> None:
    """Copy `size` bytes. Where 64 bytes may be read, at least 64 are copied: no branch for short texts."""
    if safe_from <= addr <= safe_to:
        copy32(out, addr)
        copy32(out + 32, addr + 32)
        if size > 64:
            copy_exact(out + 64, addr + 64, size - 64)
    else:
        copy_exact(out, addr, size)


@inline
def aligned(at: int) -> int:
    """The next multiple of 64."""
    return (at + 63) & -64


@kernel
def measure(
    row_count: int, lines: int, columns: int, all_sizes: int, stride: int, ops: int, lacking: int
) -> int:
    """Give each column its places in the body of a message; returns the bytes of the body.

    lines: int64[columns, LINE_WORDS], what the two kernels write being 0; all_sizes: the cells' sizes; ops:
    uint8[row_count], rows of operation `lacking` do not have the image.

    Reads operations and the sizes of cells. Writes VALID, DATA and TEXT of lines, and USED on the way. Bound:
    a line a column. Twin: none, because a place is not part of any value. Trick: text is given the room it
    needs at most, by the sizes of its cells, so that no value is read twice.
    """
    for first in range(0, row_count, TILE):
        rows = min(TILE, row_count - first)
        held = present(rows, ops + first, lacking)
        for c in range(columns):
            line = lines + c * LINE_BYTES
            if load_i64(line + GROWTH_AT) > 0:
                sizes = all_sizes + 4 * (first * stride + load_i64(line + CELL_AT))
                total = 0
                for i in range(rows):
                    size = I64(load_i32(sizes + 4 * stride * i))
                    # Both masks are 0 or all ones: a NULL and a row without the image add nothing.
                    total += size & ~(size >> 63) & filled(held, i)
                store_u64(line + USED_AT, load_i64(line + USED_AT) + total)
    at = 0
    for c in range(columns):
        line = lines + c * LINE_BYTES
        store_u64(line + VALID_AT, at)
        at = aligned(at + (row_count + TILE - 1) // TILE * (TILE // 8))
        store_u64(line + DATA_AT, at)
        if load_i64(line) < BYTES:
            at = aligned(at + load_i64(line + WIDTH_AT) * row_count)
        else:
            at = aligned(at + 4 * (row_count + 1))
            store_u64(line + TEXT_AT, at)
            text = (
                load_i64(line + USED_AT) * load_i64(line + GROWTH_AT)
                + load_i64(line + LONGEST_AT) * row_count
            )
            # The spare bytes take what the last text overwrites: `put_text` copies at least 64 bytes.
            at = aligned(at + text + _SPARE)
            # From here on USED counts the bytes that `fill` has written.
            store_u64(line + USED_AT, 0)
    return at


class Tile(NamedTuple):
    """Rows of one column that are written together."""

    first: int
    """The number of the first row."""
    rows: int
    words: int
    sizes: int
    """Addresses of the first row's cell."""
    stride: int
    """The number of cells between the cell of a row and that of the next one."""
    valid: Any
    """A bit for each row that has a value."""


class Source(NamedTuple):
    """One image, and the rows that have it."""

    cells: CellWords
    ops: int
    """uint8 for each row."""
    lacking: int
    """The operation of rows that do not have the image."""


class Memory(NamedTuple):
    """The memory that `fill` writes to, and reads besides cells."""

    body: int
    stack: int
    """int64[STACK_WORDS], for JSON."""
    months: int
    """`zone.month_lines`."""
    safe_from: int
    safe_to: int
    """64 bytes may be read from each address between these two."""


@inline
def fill_fixed(line: int, kind: int, body: int, tile: Tile, months: int) -> Any:
    """Write a tile of a column of fixed width; returns the bits of values that do not fit its type."""
    first, rows, words, step, valid = tile.first, tile.rows, tile.words, 8 * tile.stride, tile.valid
    data = body + load_i64(line + DATA_AT)
    lost = _NONE
    if kind == WORD8:
        for i in range(rows):
            # The cell of a row without a value may never have been written, so its word is masked and not
            # copied.
            store_u64(data + 8 * (first + i), load_i64(words + step * i) & filled(valid, i))
    elif kind == WORD4:
        for i in range(rows):
            store_u32(data + 4 * (first + i), load_i64(words + step * i) & filled(valid, i))
    elif kind == WORD2:
        for i in range(rows):
            store_u16(data + 2 * (first + i), load_i64(words + step * i) & filled(valid, i))
    elif kind == WORD1:
        for i in range(rows):
            store_u8(data + first + i, load_i64(words + step * i) & filled(valid, i))
    elif kind == WIDE:
        for i in range(rows):
            out = data + _DECIMAL128 * (first + i)
            store_u64(out, load_i64(words + step * i) & filled(valid, i))
            store_u64(out + UPPER_HALF, 0)
    elif kind == SINGLE:
        for i in range(rows):
            store_u32(data + 4 * (first + i), single_bits(load_i64(words + step * i) & filled(valid, i)))
    elif kind == DECIMAL:
        scale = load_i64(line + ARGUMENT_AT)
        for at in range(data + _DECIMAL128 * first, data + _DECIMAL128 * (first + rows), 8):
            store_u64(at, 0)
        left = valid
        while left != _NONE:
            i = I64(cttz64(left))
            out = data + _DECIMAL128 * (first + i)
            if not put_unscaled(out, load_i64(words + step * i), scale):
                store_u64(out, 0)
                store_u64(out + UPPER_HALF, 0)
                lost |= _ONE << U64(i)
            left &= left - _ONE
    else:
        width = 4 if kind == DAYS else 8
        for at in range(data + width * first, data + width * (first + rows), 4):
            store_u32(at, 0)
        left = valid
        while left != _NONE:
            i = I64(cttz64(left))
            packed = load_i64(words + step * i)
            moment = month_line(packed, months)
            day = day_of(packed, moment)
            # The shift keeps the sign: days before 1970 are negative.
            days = (moment >> 8) + day
            if day < 0:
                lost |= _ONE << U64(i)
            elif kind == DAYS:
                store_u32(data + 4 * (first + i), days)
            else:
                micros = (days * 86400 + clock_seconds(packed)) * 1000000 + (packed & 0xFFFFFF)
                store_u64(data + 8 * (first + i), micros)
            left &= left - _ONE
    return lost


@inline
def fill_bytes(line: int, body: int, tile: Tile, safe_from: int, safe_to: int) -> None:
    """Write a tile of a column whose bytes are its values."""
    first, rows, valid = tile.first, tile.rows, tile.valid
    words, sizes, stride = tile.words, tile.sizes, tile.stride
    ends = body + load_i64(line + DATA_AT) + 4 * (first + 1)
    text = body + load_i64(line + TEXT_AT)
    end = load_i64(line + USED_AT)
    for i in range(rows):
        end += I64(load_i32(sizes + 4 * stride * i)) & filled(valid, i)
        store_u32(ends + 4 * i, end)
    store_u64(line + USED_AT, end)
    left = valid
    # In the order of rows: the next copy replaces what this one writes too much.
    while left != _NONE:
        i = I64(cttz64(left))
        size = I64(load_i32(sizes + 4 * stride * i))
        out = text + I64(load_u32(ends + 4 * i)) - size
        put_text(out, load_i64(words + 8 * stride * i), size, safe_from, safe_to)
        left &= left - _ONE


@inline
def fill_text(line: int, kind: int, body: int, tile: Tile, stack: int) -> Any:
    """Write a tile of another column of text or vectors; returns the bits of values without a text."""
    first, rows, valid = tile.first, tile.rows, tile.valid
    words, sizes, stride = tile.words, tile.sizes, tile.stride
    ends = body + load_i64(line + DATA_AT) + 4 * (first + 1)
    text = body + load_i64(line + TEXT_AT)
    out = text + load_i64(line + USED_AT)
    argument = load_i64(line + ARGUMENT_AT)
    count = load_i64(line + ELEMENTS_AT)
    # Vectors have offsets in elements of four bytes, all others in bytes.
    unit = 0 if kind <= SET else 2
    lost = _NONE
    for i in range(rows):
        bit = _ONE << U64(i)
        if valid & bit != _NONE:
            word = load_i64(words + 8 * stride * i)
            size = I64(load_i32(sizes + 4 * stride * i))
            if kind == AS_TEXT:
                out = put_decimal(out, word, size)
            elif kind == DURATION:
                out = put_duration(out, word, argument)
            elif kind == JSON:
                out = put_json(out, word, size, stack)
            elif kind == ENUM:
                # Unsigned, so that a negative number has no name either.
                if U64(word) > U64(count):
                    lost |= bit
                elif word > 0:
                    out = element(argument, word - 1, out)
            elif kind == SET:
                if set_known(U64(word), count):
                    out = set_text(out, U64(word), argument)
                else:
                    lost |= bit
            else:
                copy_exact(out, word + 4, size - 4)
                out += size - 4
        store_u32(ends + 4 * i, (out - text) >> unit)
    store_u64(line + USED_AT, out - text)
    return lost


@kernel
def fill(row_count: int, lines: int, columns: int, source: Source, memory: Memory) -> None:
    """Write every column of the rows into the body, at the places that `measure` has given it.

    Reads cells and the bytes they point to. Writes the body, and USED, NULLS, LOST and HIGH of lines. Bound:
    the places that `measure` has given. Twin: `tidegate.mounter.rows.rows_of`. Trick: tiles of rows, whose
    validity is one word.
    """
    body, ops, lacking = memory.body, source.ops, source.lacking
    all_words, all_sizes, stride = source.cells.words, source.cells.sizes, source.cells.stride
    for c in range(columns):
        if load_i64(lines + c * LINE_BYTES) >= BYTES:
            store_u32(body + load_i64(lines + c * LINE_BYTES + DATA_AT), 0)
    for first in range(0, row_count, TILE):
        rows = min(TILE, row_count - first)
        held = present(rows, ops + first, lacking)
        for c in range(columns):
            line = lines + c * LINE_BYTES
            kind = load_i64(line)
            cell = first * stride + load_i64(line + CELL_AT)
            sizes = all_sizes + 4 * cell
            valid = held & not_null(rows, sizes, 4 * stride)
            tile = Tile(first, rows, all_words + 8 * cell, sizes, stride, valid)
            lost = _NONE
            if kind < BYTES:
                lost = fill_fixed(line, kind, body, tile, memory.months)
            elif kind == BYTES:
                fill_bytes(line, body, tile, memory.safe_from, memory.safe_to)
            else:
                lost = fill_text(line, kind, body, tile, memory.stack)
            # Only rows with a value can lose it, so the XOR removes exactly these.
            valid ^= lost
            store_u32(body + load_i64(line + VALID_AT) + first // 8, valid)
            store_u64(line + LOST_AT, load_i64(line + LOST_AT) + I64(ctpop64(lost)))
            store_u64(line + NULLS_AT, load_i64(line + NULLS_AT) + rows - I64(ctpop64(valid)))
    for c in range(columns):
        line = lines + c * LINE_BYTES
        if load_i64(line) >= BYTES:
            high = above_127(body + load_i64(line + TEXT_AT), load_i64(line + USED_AT))
            store_u64(line + HIGH_AT, 1 if high else 0)


@kernel
def seal(row_count: int, lines: int, columns: int, nodes: int, buffers: int) -> None:
    """Write the nodes (length, NULLs) and buffers (offset, length) of a message's head, after `fill`.

    Reads lines. Writes `nodes` and `buffers`. Bound: two nodes and five buffers a column. Twin: none, because
    Arrow itself reads the head; `tests.mounter.test_columns.test_arrow_columns_hold_what_the_plain_rows_do`
    compares what it finds there.
    """
    for c in range(columns):
        line = lines + c * LINE_BYTES
        kind = load_i64(line)
        text = load_i64(line + TEXT_AT)
        used = load_i64(line + USED_AT)
        nodes = put_pair(nodes, row_count, load_i64(line + NULLS_AT))
        buffers = put_pair(buffers, load_i64(line + VALID_AT), (row_count + 7) // 8)
        size = load_i64(line + WIDTH_AT) * row_count if kind < BYTES else 4 * (row_count + 1)
        buffers = put_pair(buffers, load_i64(line + DATA_AT), size)
        if kind == VECTOR:
            nodes = put_pair(nodes, used // 4, 0)
            buffers = put_pair(buffers, text, 0)
        if kind >= BYTES:
            buffers = put_pair(buffers, text, used)


@inline
def put_pair(at: int, first: int, second: int) -> int:
    """Write two int64; returns the address after them."""
    store_u64(at + PAIR_FIRST, first)
    store_u64(at + PAIR_SECOND, second)
    return at + PAIR_BYTES


@inline
def above_127(text: int, size: int) -> bool:
    """Whether any byte is not ASCII."""
    seen = _NONE
    at = 0
    while at + 8 <= size:
        seen |= load_u64(text + at)
        at += 8
    while at < size:
        seen |= U64(load_u8(text + at))
        at += 1
    return bool(seen & _TOP_BITS != _NONE)


def warm() -> None:
    """Compile the kernels that are not in numba's cache yet."""
    words = np.zeros(STACK_WORDS, dtype=np.int64)
    at = address(words)
    measure(0, at, 0, at, 1, at, 0)
    fill(0, at, 0, Source(CellWords(at, at, 1), at, 0), Memory(at, at, at, 0, 0))
    seal(0, at, 0, at, at)
