"""Reading Avro's binary form in kernels: its primitives, and the cells that a walk leaves.

A walk writes two words for each cell, into `starts` and `lengths`: of a number its bits and 0; of text, bytes
and decimals their address and size; of NULL and what is not there `NULL`. The walks are in
`avro_decode_kernels` and `simple_decode_kernels`; `avro_column_kernels` makes columns of the cells.

Every address is an int64. A primitive gives where it ended, 0 where it could not; it reads nothing from `end`
on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.codec.layout_kernels import NAME_AT, NAME_BYTES, NAME_SIZE
from tidegate.kernel import inline, load_u8, load_u32, load_u64, same_bytes, store_u32, store_u64
from tidegate.kernel_ascii import APOSTROPHE, BACKSLASH, COMMA, ZERO
from tidegate.kernel_layout import Layout, signed, word
from tidegate.tidb.kernels.json import utf8_size
from tidegate.tidb.kernels.text import I64, U64

NULL: Final = -1

RESULT: Final = Layout(
    "avro result", "R_", "What a message is.",
    op=signed("its operation; 0: it is left to the plain decoder"),
    ts=word("its commit_ts", "ts"),
    current=signed("the sum of the new image; -1: none"),
    previous=signed("the sum of the old image; -1: none"),
    old=signed("under way: whether there is an old image"),
)  # fmt: skip
RESULT_BYTES: Final = RESULT.size
R_OP, R_TS, R_CURRENT, R_PREVIOUS, R_OLD = RESULT.offsets()


class MessageCells(NamedTuple):
    """The cells of many messages, and what each message is."""

    starts: int
    """i64 each."""
    lengths: int
    """i32 each."""
    results: int
    """A RESULT each."""
    stride: int
    """Cells of a message."""


MAX_GROUPS: Final = 256
"""Groups of messages told apart at once; messages of others are left."""
MAX_DECIMAL: Final = 40
"""Bytes of a decimal at most, as in the plain decoder."""

_TENTH: Final = U64(((1 << 64) - 1) // 10)
"""2**64 - 1 ends with a 5 behind these digits."""
_HIGH: Final = U64(0x8080808080808080)


@inline
def read_varint(at: int, end: int) -> tuple[int, int]:
    """(an int or long, where it ended)."""
    value = U64(0)
    shift = 0
    while at < end:
        byte = I64(load_u8(at))
        at += 1
        if shift == 63 and byte > 1:
            return 0, 0
        value |= U64(byte & 0x7F) << U64(shift)
        if byte < 0x80:
            return I64(value >> U64(1)) ^ -I64(value & U64(1)), at
        shift += 7
    return 0, 0


@inline
def read_size(at: int, end: int) -> tuple[int, int]:
    """(the size of a string or bytes, where they begin); they are wholly there."""
    size, at = read_varint(at, end)
    if at == 0 or size < 0 or size > end - at:
        return 0, 0
    return size, at


@inline
def is_text(at: int, end: int) -> bool:
    """Whether the bytes are UTF-8."""
    while at < end:
        if at + 8 <= end and load_u64(at) & _HIGH == U64(0):
            at += 8
        elif load_u8(at) < 0x80:
            at += 1
        else:
            used = utf8_size(at, end - at)
            if used < 0:
                return False
            at += used
    return True


@inline
def read_digits(at: int, size: int) -> int:
    """An unsigned number of at most 18 digits; -1: it is longer, or none."""
    if size < 1 or size > 18:
        return -1
    value = 0
    for i in range(size):
        digit = I64(load_u8(at + i)) - ZERO
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@inline
def read_unsigned(at: int, size: int) -> tuple[int, bool]:
    """(the bits of an unsigned number of 64 bits, whether it is one)."""
    value = U64(0)
    for i in range(size):
        digit = I64(load_u8(at + i)) - ZERO
        last = i == 19 and (value > _TENTH or (value == _TENTH and digit > 5))
        if digit < 0 or digit > 9 or i > 19 or last:
            return 0, False
        value = value * U64(10) + U64(digit)
    return I64(value), size > 0


@inline
def read_bits(at: int, size: int) -> int:
    """At most 8 bytes, big-endian."""
    value = U64(0)
    for i in range(size):
        value = (value << U64(8)) | U64(load_u8(at + i))
    return I64(value)


@inline
def find_name(at: int, size: int, names: int, count: int) -> int:
    """The number of a name, from 1; 0: there is none, or the name has an escape's characters.

    names: a NAME each, as in `avro_kernels`.
    """
    for i in range(size):
        byte = I64(load_u8(at + i))
        if byte == APOSTROPHE or byte == BACKSLASH:
            return 0
    for i in range(count):
        entry = names + NAME_BYTES * i
        begin = names + I64(load_u32(entry + NAME_AT))
        if I64(load_u32(entry + NAME_SIZE)) == size and same_bytes(begin, at, size):
            return i + 1
    return 0


@inline
def find_names(at: int, size: int, names: int, count: int) -> int:
    """The mask of names with commas between; 0: one of them is not there, or all are empty."""
    mask = U64(0)
    first = at
    end = at + size
    while at <= end:
        if at == end or load_u8(at) == COMMA:
            number = find_name(first, at - first, names, count)
            if number == 0 or number > 64:
                return 0
            mask |= U64(1) << U64(number - 1)
            first = at + 1
        at += 1
    return I64(mask)


@inline
def put_cell(starts: int, lengths: int, cell: int, word: int, size: int) -> None:
    """A cell that is not NULL."""
    store_u64(starts + 8 * cell, word)
    store_u32(lengths + 4 * cell, size)
