"""Row fingerprints over Arrow buffers, compiled, column by column; the plain twin is `fingerprint.plain`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.kernel import inline, kernel, load_i32, load_u8, load_u16, load_u32, load_u64, store_u64

U64: Any = np.uint64

_HALF = 8
"""The offset of the second half in a value of 16 bytes."""


@inline
def step(state: Any, word: Any) -> Any:
    """Fold a word into a state: a bijection of each argument. All result bits depend on all input bits."""
    state = (state ^ word) * U64(0x9E3779B97F4A7C15)
    state ^= state >> U64(32)
    state *= U64(0xD6E8FEB86659FD93)
    return state ^ (state >> U64(29))


class Validity(NamedTuple):
    """Which values of an Arrow column are not NULL."""

    bits: int
    """The bitmap; 0: none is NULL."""
    first: int
    """The bit of the first value."""


@inline
def is_valid(validity: Validity, row: int) -> bool:
    """Whether the value of a row is not NULL."""
    at = validity.first + row
    return validity.bits == 0 or (load_u8(validity.bits + (at >> 3)) >> (at & 7)) & 1 != 0


@kernel
def fold_fixed(row_count: int, data: int, width: int, validity: Validity, column: int, states: int) -> int:
    """Fold a column of `width` bytes per value (1, 2, 4, 8, 16) into uint64[row_count] states; returns the
    rows.

    data: address of the first value.

    Reads the values and their bits, and `states`. Writes `states`. Bound: `row_count` states, and `width`
    bytes of each value that is not NULL. Twin: `tidegate.verify.fingerprint.plain`. Trick: the presence of a
    value and the column's number are folded as one word.
    """
    for i in range(row_count):
        state = U64(load_u64(states + 8 * i))
        if is_valid(validity, i):
            state = step(state, U64(2 * column + 1))
            at = data + width * i
            if width == 8:
                state = step(state, load_u64(at))
            elif width == 4:
                state = step(state, U64(load_u32(at)))
            elif width == 16:
                state = step(step(state, load_u64(at)), load_u64(at + _HALF))
            elif width == 2:
                state = step(state, U64(load_u16(at)))
            else:
                state = step(state, U64(load_u8(at)))
        else:
            # A NULL is folded with its column, so that NULLs of different columns do not look alike.
            state = step(state, U64(2 * column))
        store_u64(states + 8 * i, state)
    return row_count


@kernel
def fold_bytes(
    row_count: int, ends: int, data: int, scale: int, validity: Validity, column: int, states: int
) -> int:
    """Fold a column of byte strings into uint64[row_count] states; returns the rows.

    ends: int32 offsets, beginning with that of the first value, in units of `scale` bytes of `data`.

    Reads the values, their bits and `states`. Writes `states`. Bound: `row_count` states, and the bytes
    between the offsets of each value that is not NULL. Twin: `tidegate.verify.fingerprint.plain`. Trick: 8
    bytes at a time, the rest as one word.
    """
    for i in range(row_count):
        state = U64(load_u64(states + 8 * i))
        if is_valid(validity, i):
            at = data + scale * load_i32(ends + 4 * i)
            end = data + scale * load_i32(ends + 4 * i + 4)
            # The length as well: the last word is filled with zeros, so texts that end with zero bytes
            # would be equal without it.
            state = step(step(state, U64(2 * column + 1)), U64(end - at))
            while at + 8 <= end:
                state = step(state, load_u64(at))
                at += 8
            if at < end:
                word, shift = U64(0), U64(0)
                while at < end:
                    word |= U64(load_u8(at)) << shift
                    shift += U64(8)
                    at += 1
                state = step(state, word)
        else:
            state = step(state, U64(2 * column))
        store_u64(states + 8 * i, state)
    return row_count


def warm() -> None:
    """Compile what is not in numba's cache yet, by calling each kernel with no rows."""
    fold_fixed(0, 0, 8, Validity(0, 0), 0, 0)
    fold_bytes(0, 0, 0, 1, Validity(0, 0), 0, 0)
