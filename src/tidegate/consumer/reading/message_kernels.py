"""Copies messages out of librdkafka's memory, whole lists at a time, compiled.

`measure_messages` finds out how much room a list needs, and which of its entries Python must look at itself.
`take_messages` copies the others into an `Arena` and gives all back to librdkafka.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tidegate.kernel import (
    address,
    call_i32,
    call_void,
    copy_exact,
    kernel,
    load_i64,
    load_u32,
    store_u8,
    store_u64,
)
from tidegate.kernel_layout import Layout, half, pointer, signed, word

MESSAGE: Final = Layout(
    "librdkafka's message", "M_", "`rd_kafka_message_t` of librdkafka's `rdkafka.h`.",
    error=half("0, or the code of an error; then the entry is no message"),
    _error_gap=half("unused"),
    topic=pointer("the topic"),
    partition=half("the number of the partition"),
    _partition_gap=half("unused"),
    value=pointer("the value; 0: it has none"),
    value_size=word("the size of the value", "bytes"),
    key=pointer("the key; 0: it has none"),
    key_size=word("the size of the key", "bytes"),
    offset=signed("the offset in the partition"),
    own=pointer("what librdkafka keeps for itself"),
)  # fmt: skip
(
    M_ERROR, _, M_TOPIC, M_PARTITION, _, M_VALUE, M_VALUE_SIZE, M_KEY, M_KEY_SIZE, M_OFFSET, M_OWN,
) = MESSAGE.offsets()  # fmt: skip
SIZES: Final = Layout(
    "sizes of messages", "Z_", "How much room the messages of a list need.",
    values=word("of all values", "bytes"),
    keys=word("of all keys", "bytes"),
    headers=pointer("the headers of the last message that has any"),
)  # fmt: skip
Z_VALUES, Z_KEYS, Z_HEADERS = SIZES.offsets()
FREE: Final = Layout(
    "free room", "F_", "The part of an arena behind the messages that it has.",
    values=pointer("values, one after the other, from that of the first message on"),
    value_ends=pointer("int64 offsets in the values, beginning with the end of the last message"),
    keys=pointer("keys, one after the other, from that of the first message on"),
    key_ends=pointer("int64 offsets in the keys, beginning with the end of the last message"),
    has_value=pointer("a byte for each message: 1 if it has a value"),
    has_key=pointer("a byte for each message: 1 if it has a key"),
    offsets=pointer("int64 offsets in the partition"),
)  # fmt: skip
F_VALUES, F_VALUE_ENDS, F_KEYS, F_KEY_ENDS, F_HAS_VALUE, F_HAS_KEY, F_OFFSETS = FREE.offsets()


@kernel
def measure_messages(count: int, messages: int, headers_of: int, sizes: int, seen: int) -> int:
    """Measure a list of messages; returns how many of its entries are listed in `seen`.

    messages: addresses of MESSAGE. headers_of: the address of `rd_kafka_message_headers`, which returns 0 for
    a message with headers. sizes: a SIZES. seen: int64[count], the numbers of the entries that are errors or
    have headers.

    Reads the messages, not their bytes. Writes `sizes` and `seen`. Bound: the messages. Twin:
    `tidegate.consumer.reading.arena.Arena.add`. Trick: librdkafka parses headers only when it is asked for
    them, and knows without that whether there are any.
    """
    values, keys, found = np.int64(0), np.int64(0), 0
    for i in range(count):
        message = load_i64(messages + 8 * i)
        if load_u32(message + M_ERROR) != 0:
            store_u64(seen + 8 * found, i)
            found += 1
            continue
        values += load_i64(message + M_VALUE_SIZE)
        keys += load_i64(message + M_KEY_SIZE)
        if call_i32(headers_of, message, sizes + Z_HEADERS) == 0:
            store_u64(seen + 8 * found, i)
            found += 1
    store_u64(sizes + Z_VALUES, values)
    store_u64(sizes + Z_KEYS, keys)
    return found


@kernel
def take_messages(count: int, messages: int, destroy: int, free: int) -> int:
    """Append the messages of a list to an arena, and give all its entries back; returns how many it took.

    messages: addresses of MESSAGE. destroy: the address of `rd_kafka_message_destroy`. free: a FREE.

    Reads the messages and their bytes. Writes the arena; frees the list's entries, so that their addresses
    are not valid any more. Bound: the sizes that `measure_messages` has found. Twin:
    `tidegate.consumer.reading.arena.Arena.add`. Trick: a message that is given back at once leaves its memory
    to the next fetch while it is still in the processor's cache.
    """
    values, keys = load_i64(free + F_VALUES), load_i64(free + F_KEYS)
    value_ends, key_ends = load_i64(free + F_VALUE_ENDS), load_i64(free + F_KEY_ENDS)
    has_value, has_key = load_i64(free + F_HAS_VALUE), load_i64(free + F_HAS_KEY)
    offsets = load_i64(free + F_OFFSETS)
    value_end, key_end, taken = load_i64(value_ends), load_i64(key_ends), 0
    for i in range(count):
        message = load_i64(messages + 8 * i)
        if load_u32(message + M_ERROR) == 0:
            value, key = load_i64(message + M_VALUE), load_i64(message + M_KEY)
            store_u8(has_value + taken, value != 0)
            if value != 0:
                size = load_i64(message + M_VALUE_SIZE)
                copy_exact(values + value_end, value, size)
                value_end += size
            store_u8(has_key + taken, key != 0)
            if key != 0:
                size = load_i64(message + M_KEY_SIZE)
                copy_exact(keys + key_end, key, size)
                key_end += size
            store_u64(offsets + 8 * taken, load_i64(message + M_OFFSET))
            taken += 1
            store_u64(value_ends + 8 * taken, value_end)
            store_u64(key_ends + 8 * taken, key_end)
        # Also an entry that is an error: librdkafka waits for every entry that was not given back when the
        # client is closed.
        call_void(destroy, message)
    return taken


def warm() -> None:
    """Compile the kernels that are not in numba's cache yet."""
    words = np.zeros(8, dtype=np.int64)
    at = address(words)
    words[: len(FREE.fields)] = at
    measure_messages(0, at, 0, at, at)
    words[: len(FREE.fields)] = at
    take_messages(0, at, 0, at)
