"""Key-value messages from a block of entries, compiled. `codec.protocols.kv_json` has bytes and plain twin.

    data = [ key of message 0 | value of message 0 | key of message 1 | ... ]

Every address argument is an int64. The caller provides space for the worst case (`room_for`). base64 is
written in whole groups, and no other write goes past the address that a function returns.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tidegate.codec.kernels.layout_kernels import (
    MESSAGE_BYTES,
    MESSAGE_KEY,
    MESSAGE_KEY_SIZE,
    MESSAGE_VALUE,
    MESSAGE_VALUE_SIZE,
    RUN_AT,
    RUN_SIZE,
)
from tidegate.kernel import (
    address,
    bswap64,
    buffer,
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
from tidegate.kernel_ascii import CLOSE_BRACE, EQUALS, LOWER_A, PLUS, SLASH, UPPER_A, ZERO
from tidegate.kernel_layout import Layout, run
from tidegate.model.block import OP_DELETE
from tidegate.tidb.kernels.text import put_u64

_LETTERS: Final = 26
_PLUS: Final = 62
"""The first Base64 digit after letters and numerals."""
_ONES: Final = np.uint64(0x0101010101010101)
_TO_LOWER: Final = np.uint64(LOWER_A - _LETTERS - UPPER_A)
_TO_NUMERAL: Final = np.uint64(LOWER_A + _LETTERS - ZERO)
_TO_PLUS: Final = np.uint64(ZERO + 10 - PLUS)
_TO_SLASH: Final = np.uint64(SLASH - PLUS - 1)
"""Added to a digit's number, or subtracted, where the alphabet jumps."""
FNV_BASIS: Final = np.uint64(0xCBF29CE484222325)
FNV_PRIME: Final = np.uint64(0x100000001B3)
_SIZE_BYTES: Final = 8
"""Bytes of a length, and of a key's version."""
FIXED: Final = 192
"""The size of a message without its base64: frames, names, three numbers."""


def room_for(keys: int, values: int, rows: int) -> int:
    """The most bytes that `encode` writes for `rows` messages with so many bytes of keys and of values."""
    # Padding adds at most 8/3 bytes to each of the two Base64 texts of a message. 8 a row cover both, and
    # the rounding down.
    return (keys + values) * 4 // 3 + (FIXED + 8) * rows


@inline
def _digit(six: int) -> Any:
    """A base64 digit."""
    if six < _LETTERS:
        return np.uint8(UPPER_A + six)
    if six < 2 * _LETTERS:
        return np.uint8(LOWER_A + six - _LETTERS)
    if six < _PLUS:
        return np.uint8(ZERO + six - 2 * _LETTERS)
    return np.uint8(PLUS) if six == _PLUS else np.uint8(SLASH)


@inline
def _digits(six: Any) -> Any:
    """Eight base64 digits at once: the bytes of a word, each a number below 64.

    A number plus 127 - n has its high bit exactly if it is above n. No sum passes 255 and no difference falls
    below 0, so no byte changes its neighbour.
    """
    after_z = (six + np.uint64(127 - 25) * _ONES) >> np.uint64(7) & _ONES
    after_lower_z = (six + np.uint64(127 - 51) * _ONES) >> np.uint64(7) & _ONES
    after_nine = (six + np.uint64(127 - 61) * _ONES) >> np.uint64(7) & _ONES
    slash = (six + np.uint64(127 - 62) * _ONES) >> np.uint64(7) & _ONES
    added = np.uint64(UPPER_A) * _ONES + after_z * _TO_LOWER + slash * _TO_SLASH
    return six + added - after_lower_z * _TO_NUMERAL - after_nine * _TO_PLUS


@inline
def _put_base64(at: int, source: int, size: int) -> int:
    """Encode with the standard alphabet, padded. Returns the address after the text."""
    end = source + size
    # Six bytes are eight digits. Eight are read, so the last groups are left to the loop below.
    while source + 8 <= end:
        bits = bswap64(load_u64(source)) >> np.uint64(16)
        # Halved three times: two times 24 bits in 32, four times 12 in 16, eight times 6 in 8.
        bits = (bits >> np.uint64(24)) << np.uint64(32) | bits & np.uint64(0xFFFFFF)
        bits = (bits & np.uint64(0x00FFF00000FFF000)) << np.uint64(4) | bits & np.uint64(0x00000FFF00000FFF)
        bits = (bits & np.uint64(0x0FC00FC00FC00FC0)) << np.uint64(2) | bits & np.uint64(0x003F003F003F003F)
        store_u64(at, bswap64(_digits(bits)))
        at, source = at + 8, source + 6
    # Each group is written only as far as it reaches: `room_for` counts no byte more.
    while source + 3 <= end:
        word = (int(load_u8(source)) << 16) | (int(load_u8(source + 1)) << 8) | int(load_u8(source + 2))
        store_u8(at, _digit((word >> 18) & 63))
        store_u8(at + 1, _digit((word >> 12) & 63))
        store_u8(at + 2, _digit((word >> 6) & 63))
        store_u8(at + 3, _digit(word & 63))
        at, source = at + 4, source + 3
    left = end - source
    if left > 0:
        word = int(load_u8(source)) << 16
        if left == 2:
            word |= int(load_u8(source + 1)) << 8
        store_u8(at, _digit((word >> 18) & 63))
        store_u8(at + 1, _digit((word >> 12) & 63))
        store_u8(at + 2, _digit((word >> 6) & 63) if left == 2 else np.uint8(EQUALS))
        store_u8(at + 3, np.uint8(EQUALS))
        at += 4
    return at


@inline
def _put_size(at: int, size: int) -> None:
    """A length as u64, big-endian."""
    for i in range(8):
        store_u8(at + i, np.uint8((size >> (56 - 8 * i)) & 255))


@inline
def _put_text(at: int, text: int, size: int) -> int:
    """Copy a constant; returns its end."""
    copy_exact(at, text, size)
    return at + size


@inline
def _varint(at: int, size: int) -> Any:
    """The number in a protobuf varint of `size` bytes, as the store sent it."""
    found = np.uint64(0)
    for i in range(size):
        found |= np.uint64(load_u8(at + i) & np.uint8(0x7F)) << np.uint64(7 * i)
    return found


@inline
def _partition(at: int, size: int, partitions: int) -> Any:
    """FNV-1a of 64 bits over the key, modulo the partitions."""
    found = FNV_BASIS
    for i in range(size):
        # The product wraps around modulo 2**64, as FNV-1a defines it.
        found = (found ^ np.uint64(load_u8(at + i))) * FNV_PRIME
    return found % np.uint64(partitions)


class Entries(NamedTuple):
    """The columns of a block: int32 offsets and bytes of keys, values and expiries."""

    commit: int
    """An array of uint64."""
    op: int
    """An array of uint8, OP_PUT or OP_DELETE."""
    key_ends: int
    key_data: int
    value_ends: int
    value_data: int
    expiry_ends: int
    expiry_data: int


class Output(NamedTuple):
    """Where the kernel writes the messages."""

    out: int
    """Space for `room_for` bytes."""
    places: int
    """An array of MESSAGE, whose addresses count from `out`."""
    partition: int
    """An array of int32."""


TEXTS: Final = Layout(
    "key-value texts", "T_", "The constants of a message, see `kv_json.TEXTS`.",
    ts=run("the text before the commit_ts"),
    key=run("the text before the key"),
    key_end=run("the text after the key"),
    value=run("the text before a value"),
    deleted=run("the text of a delete, instead of a value"),
    value_end=run("the text after a value"),
    expiry=run("the text before the expiry"),
)  # fmt: skip
T_TS, T_KEY, T_KEY_END, T_VALUE, T_DELETED, T_VALUE_END, T_EXPIRY = TEXTS.offsets()


@inline
def _put_run(at: int, text: int) -> int:
    """Write a constant, given by its RUN."""
    return _put_text(at, load_i64(text + RUN_AT), load_i64(text + RUN_SIZE))


@inline
def _put_key(at: int, key: int, size: int, commit: Any, texts: int) -> int:
    """A message's key: a version and a size, followed by one JSON object."""
    start = at
    _put_size(at, 1)
    # The second size is known only when the text is written, so its place is left free until then.
    at = _put_run(at + 2 * _SIZE_BYTES, texts + T_TS)
    at = put_u64(at, commit)
    at = _put_run(at, texts + T_KEY)
    at = _put_base64(at, key, size)
    at = _put_run(at, texts + T_KEY_END)
    _put_size(start + _SIZE_BYTES, at - start - 2 * _SIZE_BYTES)
    return at


@inline
def _put_value(at: int, entries: Entries, row: int, texts: int) -> int:
    """A message's value: a size, followed by one JSON object."""
    start = at
    deleted = int(load_u8(entries.op + row)) == OP_DELETE
    if deleted:
        at = _put_run(at + _SIZE_BYTES, texts + T_DELETED)
    else:
        first, end = load_bounds(entries.value_ends, row)
        at = _put_run(at + _SIZE_BYTES, texts + T_VALUE)
        at = _put_base64(at, entries.value_data + first, end - first)
        at = _put_run(at, texts + T_VALUE_END)
    first, end = load_bounds(entries.expiry_ends, row)
    if end > first and not deleted:
        at = _put_run(at, texts + T_EXPIRY)
        at = put_u64(at, _varint(entries.expiry_data + first, end - first))
    # Here and not in a constant, because an optional expiry comes before it.
    store_u8(at, np.uint8(CLOSE_BRACE))
    _put_size(start, at + 1 - start - _SIZE_BYTES)
    return at + 1


@kernel
def encode(rows: int, strip: int, partitions: int, entries: Entries, texts: int, output: Output) -> int:
    """Write the messages of `rows` entries; returns the number of bytes written.

    `strip`: how many bytes to leave out at the front of each key. `texts`: constants, laid out as TEXTS.

    Reads the entries. Writes the arrays of `Output`. Bound: `room_for`. Twin:
    `tidegate.codec.protocols.kv_json.plain.encode`.
    """
    out, at = output.out, output.out
    for i in range(rows):
        first, end = load_bounds(entries.key_ends, i)
        key, size = entries.key_data + first + strip, end - first - strip
        store_u32(output.partition + 4 * i, np.uint32(_partition(key, size, partitions)))
        place = output.places + MESSAGE_BYTES * i
        start = at
        at = _put_key(at, key, size, load_u64(entries.commit + 8 * i), texts)
        store_u64(place + MESSAGE_KEY, np.uint64(start - out))
        store_u64(place + MESSAGE_KEY_SIZE, np.uint64(at - start))
        start = at
        at = _put_value(at, entries, i, texts)
        store_u64(place + MESSAGE_VALUE, np.uint64(start - out))
        store_u64(place + MESSAGE_VALUE_SIZE, np.uint64(at - start))
    return at - out


def warm() -> None:
    """Compile every kernel for the types with which it is called."""
    spare = address(buffer(64))
    encode(0, 0, 1, Entries(*[spare] * 8), spare, Output(spare, spare, spare))
