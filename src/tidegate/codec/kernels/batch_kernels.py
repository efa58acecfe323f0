"""Splits the batches of the open protocol into items: docs/formats/open-protocol.md.

A batch has a version before its first key, and a length before each key and value.
"""

from __future__ import annotations

from typing import Final

from tidegate.codec.kernels.layout_kernels import (
    MESSAGE_BYTES,
    MESSAGE_KEY,
    MESSAGE_KEY_SIZE,
    MESSAGE_VALUE,
    MESSAGE_VALUE_SIZE,
)
from tidegate.kernel import bswap64, kernel, load_i64, load_u64, store_u32, store_u64
from tidegate.tidb.kernels.text import I64, U64

_BATCH_VERSION: Final = U64(0x0100000000000000)
"""The number 1, big-endian, with which the key of a batch begins, as it is loaded."""
_LENGTH: Final = 8
"""The bytes of a length in a batch, and of its version."""


@kernel
def split_batches(message_count: int, messages: int, items: int, owner: int, room: int) -> int:
    """Split messages that are batches into items, a MESSAGE each; returns the number of items.

    owner: i32 for each item, its message; after `room` of them i32 for each item, its number within the
    message. A message that is not whole gets no items.

    Reads the lengths in keys and values. Writes `items` and `owner`, unless `room` is 0: then it only counts.
    Bound: `room` items. Twin: `tidegate.codec.protocols.open_protocol.plain.split_items`.
    """
    total = 0
    for i in range(message_count):
        message = messages + MESSAGE_BYTES * i
        key = load_i64(message + MESSAGE_KEY)
        key_end = key + load_i64(message + MESSAGE_KEY_SIZE)
        value = load_i64(message + MESSAGE_VALUE)
        value_end = value + load_i64(message + MESSAGE_VALUE_SIZE)
        # A key without any item is no batch either.
        if key_end - key < 2 * _LENGTH or load_u64(key) != _BATCH_VERSION:
            continue
        key += _LENGTH
        first = total
        whole = True
        while key < key_end or value < value_end:
            if key_end - key < _LENGTH or value_end - value < _LENGTH:
                whole = False
                break
            key_size = bswap64(load_u64(key))
            value_size = bswap64(load_u64(value))
            # Unsigned, and compared before it is added: a size near 2**64 would wrap the address around.
            if key_size > U64(key_end - key - _LENGTH) or value_size > U64(value_end - value - _LENGTH):
                whole = False
                break
            if room > total:
                item = items + MESSAGE_BYTES * total
                store_u64(item + MESSAGE_KEY, key + _LENGTH)
                store_u64(item + MESSAGE_KEY_SIZE, key_size)
                store_u64(item + MESSAGE_VALUE, value + _LENGTH)
                store_u64(item + MESSAGE_VALUE_SIZE, value_size)
                store_u32(owner + 4 * total, i)
                store_u32(owner + 4 * (room + total), total - first)
            total += 1
            key += _LENGTH + I64(key_size)
            value += _LENGTH + I64(value_size)
        if not whole:
            # The items of the broken message are overwritten by those of the next one.
            total = first
    return total
