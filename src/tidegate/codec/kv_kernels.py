"""Key-value messages from a block of entries, compiled; the bytes and the plain twin are in `codec.kv_json`.

    data = [ key of message 0 | value of message 0 | key of message 1 | ... ]

Every address argument is an int64. The caller gives room for the worst case (`room_for`); base64 is written
in whole groups and nothing else runs past what it returns.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tidegate.kernel import (
    address,
    buffer,
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
from tidegate.tidb.kernels.text import put_u64

DELETE: Final = 2
FNV_BASIS: Final = np.uint64(0xCBF29CE484222325)
FNV_PRIME: Final = np.uint64(0x100000001B3)
FIXED: Final = 192
"""What a message takes beside its base64: frames, names, three numbers."""


def room_for(keys: int, values: int, rows: int) -> int:
    """Bytes that `encode` may write for `rows` messages with so many bytes of keys and of values."""
    return (keys + values) * 4 // 3 + (FIXED + 8) * rows


@inline
def _digit(six: int) -> Any:
    """A base64 digit."""
    if six < 26:
        return np.uint8(65 + six)
    if six < 52:
        return np.uint8(71 + six)
    if six < 62:
        return np.uint8(six - 4)
    return np.uint8(43) if six == 62 else np.uint8(47)


@inline
def _put_base64(at: int, source: int, size: int) -> int:
    """The standard alphabet, padded. Returns the address behind."""
    end = source + size
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
        store_u8(at + 2, _digit((word >> 6) & 63) if left == 2 else np.uint8(61))
        store_u8(at + 3, np.uint8(61))
        at += 4
    return at


@inline
def _put_size(at: int, size: int) -> None:
    """A length as u64, big-endian."""
    for i in range(8):
        store_u8(at + i, np.uint8((size >> (56 - 8 * i)) & 255))


@inline
def _put_text(at: int, text: int, size: int) -> int:
    """A constant."""
    for i in range(size):
        store_u8(at + i, load_u8(text + i))
    return at + size


@inline
def _varint(at: int, size: int) -> Any:
    """The number in `size` bytes of a protobuf varint, as the store sent it."""
    found = np.uint64(0)
    for i in range(size):
        found |= np.uint64(load_u8(at + i) & np.uint8(127)) << np.uint64(7 * i)
    return found


@inline
def _partition(at: int, size: int, partitions: int) -> Any:
    """FNV-1a of 64 bits over the key, modulo the partitions."""
    found = FNV_BASIS
    for i in range(size):
        found = (found ^ np.uint64(load_u8(at + i))) * FNV_PRIME
    return found % np.uint64(partitions)


@kernel
def encode(
    rows: int,
    strip: int,
    partitions: int,
    commit: int,
    op: int,
    key_ends: int,
    key_data: int,
    value_ends: int,
    value_data: int,
    expiry_ends: int,
    expiry_data: int,
    texts: int,
    out: int,
    places: int,
    partition: int,
) -> int:
    """Write the messages of `rows` entries to `out`; the bytes written.

    `strip`: bytes left out at the front of each key. `texts`: addresses and sizes of the constants, see
    `kv_json.TEXTS`. `places`: int64[rows, 4], key start, key length, value start, value length.
    `partition`: int32[rows].
    """
    at = out
    for i in range(rows):
        key, end = int(load_i32(key_ends + 4 * i)), int(load_i32(key_ends + 4 * i + 4))
        key, size = key_data + key + strip, end - key - strip
        store_u32(partition + 4 * i, np.uint32(_partition(key, size, partitions)))
        start = at
        _put_size(at, 1)
        at = _put_text(at + 16, load_i64(texts), load_i64(texts + 8))
        at = put_u64(at, load_u64(commit + 8 * i))
        at = _put_text(at, load_i64(texts + 16), load_i64(texts + 24))
        at = _put_base64(at, key, size)
        at = _put_text(at, load_i64(texts + 32), load_i64(texts + 40))
        _put_size(start + 8, at - start - 16)
        store_u64(places + 32 * i, np.uint64(start - out))
        store_u64(places + 32 * i + 8, np.uint64(at - start))
        start = at
        if int(load_u8(op + i)) == DELETE:
            at = _put_text(at + 8, load_i64(texts + 64), load_i64(texts + 72))
        else:
            first, end = int(load_i32(value_ends + 4 * i)), int(load_i32(value_ends + 4 * i + 4))
            at = _put_text(at + 8, load_i64(texts + 48), load_i64(texts + 56))
            at = _put_base64(at, value_data + first, end - first)
            at = _put_text(at, load_i64(texts + 80), load_i64(texts + 88))
        first, end = int(load_i32(expiry_ends + 4 * i)), int(load_i32(expiry_ends + 4 * i + 4))
        if end > first and int(load_u8(op + i)) != DELETE:
            at = _put_text(at, load_i64(texts + 96), load_i64(texts + 104))
            at = put_u64(at, _varint(expiry_data + first, end - first))
        store_u8(at, np.uint8(125))
        at += 1
        _put_size(start, at - start - 8)
        store_u64(places + 32 * i + 16, np.uint64(start - out))
        store_u64(places + 32 * i + 24, np.uint64(at - start))
    return at - out


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare = address(buffer(64))
    encode(0, 0, 1, spare, spare, spare, spare, spare, spare, spare, spare, spare, spare, spare, spare)
