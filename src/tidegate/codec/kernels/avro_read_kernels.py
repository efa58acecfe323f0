"""Reads Avro's binary form in kernels: its primitives, and the cells that a walk writes.

A walk writes two words for each cell, into `starts` and `lengths`: for a number its bits and 0; for text,
bytes and decimals their address and size; for NULL, and for a value that is missing, the size `NULL`. The
walks are in `avro_decode_kernels` and `simple_decode_kernels`; `avro_column_kernels` turns the cells into
columns.

Every address is an int64. A primitive returns the address where it ended, or 0 if the bytes are not valid. It
reads nothing at or after `end`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.codec.kernels.layout_kernels import NAME_AT, NAME_BYTES, NAME_SIZE
from tidegate.kernel import inline, load_u8, load_u32, same_bytes, store_u32, store_u64
from tidegate.kernel_ascii import APOSTROPHE, BACKSLASH, COMMA, ZERO
from tidegate.kernel_layout import Layout, signed, word
from tidegate.tidb.kernels.text import I64, U64

NULL: Final = -1

RESULT: Final = Layout(
    "avro result", "R_", "The result of reading a message.",
    op=signed("its operation; 0: it is left to the plain decoder"),
    ts=word("its commit_ts", "ts"),
    current=signed("the sum of the new image; -1: none"),
    previous=signed("the sum of the old image; -1: none"),
    old=signed("under way: whether there is an old image"),
)  # fmt: skip
RESULT_BYTES: Final = RESULT.size
R_OP, R_TS, R_CURRENT, R_PREVIOUS, R_OLD = RESULT.offsets()


class MessageCells(NamedTuple):
    """The cells of many messages, and the result of each message."""

    starts: int
    """An array of i64."""
    lengths: int
    """An array of i32."""
    results: int
    """An array of RESULT."""
    stride: int
    """Cells per message."""


MAX_GROUPS: Final = 256
"""The most groups of messages in one call; messages of further groups are left to the plain decoder."""
MAX_DECIMAL: Final = 40
"""The most bytes of a decimal, as in the plain decoder."""

_TENTH: Final = U64(((1 << 64) - 1) // 10)
"""The digits of 2**64 - 1 without the last one, which is 5."""


@inline
def read_varint(at: int, end: int) -> tuple[int, int]:
    """(an int or long, the address where it ended)."""
    value = U64(0)
    shift = 0
    while at < end:
        byte = I64(load_u8(at))
        at += 1
        # The tenth byte has room for one bit. A larger one is refused, so the shift never exceeds 63.
        if shift == 63 and byte > 1:
            return 0, 0
        value |= U64(byte & 0x7F) << U64(shift)
        if byte < 0x80:
            # Zig-zag: bit 0 is the sign.
            return I64(value >> U64(1)) ^ -I64(value & U64(1)), at
        shift += 7
    return 0, 0


@inline
def read_size(at: int, end: int) -> tuple[int, int]:
    """(the size of a string or bytes, its first address), after checking that all of it is before `end`."""
    size, at = read_varint(at, end)
    # Compared without adding: `at + size` could wrap around.
    if at == 0 or size < 0 or size > end - at:
        return 0, 0
    return size, at


@inline
def read_digits(at: int, size: int) -> int:
    """An unsigned number of at most 18 digits; -1 if it is longer or not a number."""
    # 18 digits are below 2**63, so no step overflows.
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
    """(the bits of an unsigned 64-bit number, whether the text is one)."""
    value = U64(0)
    for i in range(size):
        digit = I64(load_u8(at + i)) - ZERO
        # Compared before the multiplication, because an overflow could not be seen afterwards.
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
    """The number of a name, from 1; 0: it is unknown, or contains an apostrophe or backslash (escapes).

    names: an array of NAME, as in `avro_kernels`.
    """
    # Such a name has escapes in the schema's text, which only the plain decoder undoes.
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
    """The mask of names separated by commas; 0: one of them is unknown, or the text is empty."""
    mask = U64(0)
    first = at
    end = at + size
    # The end closes the last name as a comma does. It is compared first, so no byte is read there.
    while at <= end:
        if at == end or load_u8(at) == COMMA:
            number = find_name(first, at - first, names, count)
            # A SET has at most 64 elements, and a shift by 64 is undefined.
            if number == 0 or number > 64:
                return 0
            mask |= U64(1) << U64(number - 1)
            first = at + 1
        at += 1
    return I64(mask)


@inline
def put_cell(starts: int, lengths: int, cell: int, word: int, size: int) -> None:
    """Write a cell that is not NULL."""
    store_u64(starts + 8 * cell, word)
    store_u32(lengths + 4 * cell, size)
