"""The messages of one partition, in memory that is used again for the next ones.

Fresh memory costs more than the copy into it: the kernel must find and clear each page first. So a process
that reads keeps one arena, and the arrays that a decoder gets are views of it: valid until `clear`.

Bounds: memory grows in doubling steps to what the messages need. `clear` keeps at most `KEPT_BYTES` of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Message

from tidegate.codec.base import Batch, Headers
from tidegate.consumer.reading.message_kernels import FREE, take_messages
from tidegate.kernel import address

KEPT_BYTES: Final = 128 << 20
MESSAGE_BYTES: Final = 3 * 8 + 2
"""The memory of a message in addition to key and value: two ends, an offset, two flags."""
_VALUES: Final = 1 << 20
_KEYS: Final = 1 << 16
_COUNT: Final = 1 << 12

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]


class Arena:
    """Messages of one partition, ascending by offset."""

    def __init__(self) -> None:
        self.count = 0
        self._headers: dict[int, Headers] = {}
        self._allocate()

    def _allocate(self) -> None:
        self._values, self._keys = np.empty(_VALUES, np.uint8), np.empty(_KEYS, np.uint8)
        self._value_ends, self._key_ends = np.zeros(_COUNT + 1, np.int64), np.zeros(_COUNT + 1, np.int64)
        self._has_value, self._has_key = np.empty(_COUNT, np.uint8), np.empty(_COUNT, np.uint8)
        self._offsets = np.empty(_COUNT, np.int64)

    @property
    def size(self) -> int:
        """How many bytes the messages take, with their keys, offsets and flags."""
        return self._value_bytes + int(self._key_ends[self.count]) + MESSAGE_BYTES * self.count

    @property
    def _value_bytes(self) -> int:
        return int(self._value_ends[self.count])

    @property
    def next_offset(self) -> int:
        """The offset after the last message; there must be one."""
        return int(self._offsets[self.count - 1]) + 1

    def clear(self) -> None:
        """Remove all messages. Batches that were made of them are not valid any more."""
        self.count = 0
        self._headers = {}
        kept = (self._values, self._keys, self._value_ends, self._key_ends, self._has_value, self._has_key)
        # One range of very large messages must not keep its memory for as long as the process lives.
        if sum(one.nbytes for one in (*kept, self._offsets)) > KEPT_BYTES:
            self._allocate()

    def reserve(self, count: int, values: int, keys: int) -> None:
        """Make room for so many more messages, with so many bytes of values and keys."""
        self._values = _grown(self._values, self._value_bytes, values)
        self._keys = _grown(self._keys, int(self._key_ends[self.count]), keys)
        if self.count + count > len(self._offsets):
            used = self.count
            self._value_ends = _grown(self._value_ends, used + 1, count)
            self._key_ends = _grown(self._key_ends, used + 1, count)
            self._has_value = _grown(self._has_value, used, count)
            self._has_key = _grown(self._has_key, used, count)
            self._offsets = _grown(self._offsets, used, count)

    def take(self, count: int, messages: int, destroy: int, headers: dict[int, Headers]) -> None:
        """Append messages of librdkafka (`take_messages`), for which there is room.

        `headers`: by the place among the messages of the list that are no errors.
        """
        used = self.count
        free = FREE.record([
            address(self._values),
            address(self._value_ends) + 8 * used,
            address(self._keys),
            address(self._key_ends) + 8 * used,
            address(self._has_value) + used,
            address(self._has_key) + used,
            address(self._offsets) + 8 * used,
        ])  # fmt: skip
        self._headers |= {used + place: found for place, found in headers.items()}
        self.count += take_messages(count, messages, destroy, address(free))

    def add(self, messages: Sequence[Message]) -> None:
        """Append messages of confluent-kafka."""
        used, end = self.count, self.count + len(messages)
        values, keys = [one.value() for one in messages], [one.key() for one in messages]
        data = b"".join(value for value in values if value is not None)
        key_data = b"".join(key for key in keys if key is not None)
        self.reserve(len(messages), len(data), len(key_data))
        for whole, ends, has, column, joined in (
            (self._values, self._value_ends, self._has_value, values, data),
            (self._keys, self._key_ends, self._has_key, keys, key_data),
        ):
            begin = int(ends[used])
            whole[begin : begin + len(joined)] = np.frombuffer(joined, np.uint8)
            ends[used + 1 : end + 1] = begin + np.cumsum([len(cell or b"") for cell in column])
            has[used:end] = [cell is not None for cell in column]
        self._offsets[used:end] = [one.offset() for one in messages]
        headers = {used + place: one.headers() for place, one in enumerate(messages)}
        self._headers |= {place: found for place, found in headers.items() if found}
        self.count = end

    def batch(self) -> Batch:
        """The messages for a decoder, without a copy: valid until `clear`."""
        headers = [self._headers.get(place) for place in range(self.count)] if self._headers else None
        return Batch(
            _column(self.count, self._keys, self._key_ends, self._has_key),
            _column(self.count, self._values, self._value_ends, self._has_value),
            self._offsets[: self.count],
            headers,
        )


def _grown(array: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
    """The array, or a longer one with the same content, that has room for so many more."""
    if used + more <= len(array):
        return array
    # At least doubled, so that all copies together cost no more than the messages themselves.
    longer = np.empty(max(used + more, 2 * len(array)), array.dtype)
    longer[:used] = array[:used]
    return longer


def _column(count: int, data: Bytes, ends: Int64s, has: Bytes) -> pa.Array:
    # A message without a key or value is not an empty one: deletes of some protocols have no value. Arrow
    # marks it as NULL.
    missing = count - int(np.count_nonzero(has[:count]))
    valid = pa.py_buffer(np.packbits(has[:count], bitorder="little")) if missing else None
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), count, buffers, missing)
