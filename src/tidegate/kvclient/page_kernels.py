"""Compiled: decodes a page of a scan into two Arrow columns. The plain twin is the protobuf library.

ScanResponse  1 region_error | 2 pairs* | 3 error          KvPair  1 error | 2 key | 3 value | 4 commit_ts
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tidegate.kernel import copy_bytes, inline, kernel, load_u8, store_u32

i64: Any = np.int64
U64: Any = np.uint64

OTHER: Final = -1
"""Not a plain page: it has an error, or is not a ScanResponse; the caller uses the protobuf library then."""
FULL: Final = -2
"""The page has more pairs than there is room for."""
_VARINT, _BYTES = 0, 2
"""The wire types of protobuf that a page uses."""
_TAG_FIELD, _TAG_WIRE = U64(3), U64(7)
"""A tag holds the field's number above its lowest three bits, which are the wire type."""
_PAIRS, _REGION_ERROR, _ERROR = 2, 1, 3
_PAIR_ERROR, _KEY, _VALUE = 1, 2, 3


@inline
def _varint(at: int, end: int) -> tuple[Any, Any]:
    """The varint at `at` and the address after it; address 0 if it is cut off or too long."""
    value, shift = U64(0), 0
    while at < end and shift < 64:
        byte = U64(load_u8(at))
        at += 1
        value |= (byte & U64(0x7F)) << U64(shift)
        if byte < U64(0x80):
            return value, at
        shift += 7
    return U64(0), 0


@inline
def _field(at: int, end: int) -> tuple[Any, Any, Any]:
    """A field's number, and the addresses where its bytes begin and end; number 0: malformed or unknown.

    A varint has no bytes: both addresses are behind it.
    """
    tag, at = _varint(at, end)
    if at == 0:
        return i64(0), 0, 0
    number, wire = i64(tag >> _TAG_FIELD), i64(tag & _TAG_WIRE)
    value, at = _varint(at, end)
    if at == 0:
        return i64(0), 0, 0
    if wire == _VARINT:
        return number, at, at
    # Compared before it is added: a size near 2**64 would wrap the address around.
    if wire != _BYTES or value > U64(end - at):
        return i64(0), 0, 0
    return number, at, at + i64(value)


@kernel
def take_pairs(
    data: int, size: int, room: int, keys: int, key_ends: int, values: int, value_ends: int
) -> int:
    """Copy the pairs of the ScanResponse at `data`; returns their number, OTHER or FULL.

    keys, values: `size` bytes each. key_ends, value_ends: int32[room + 1], Arrow's offsets.

    Reads the message. Writes the four buffers. Bound: `room` pairs, and `size` bytes of each column. Twin:
    none of ours, because the protobuf library reads the same message;
    `tests.kvclient.test_pages.test_a_plain_page_is_read_as_protobuf_reads_it` compares the two. Trick: a key
    and a value are copied only after their pair was read to its end, so an error in it needs no undoing.
    """
    at, end = data, data + size
    n, key_end, value_end = 0, 0, 0
    store_u32(key_ends, np.uint32(0))
    store_u32(value_ends, np.uint32(0))
    while at < end:
        number, start, at = _field(at, end)
        if number in (0, _REGION_ERROR, _ERROR):
            return OTHER
        if number != _PAIRS:
            continue
        # The columns need no such check: the fields of the message do not overlap, so the copies have at
        # most `size` bytes.
        if n == room:
            return FULL
        key, key_size, value, value_size = 0, 0, 0, 0
        while start < at:
            part, first, start = _field(start, at)
            if part == 0 or part == _PAIR_ERROR:
                return OTHER
            if part == _KEY:
                # If a field comes twice, the last one counts, as in protobuf.
                key, key_size = first, start - first
            elif part == _VALUE:
                value, value_size = first, start - first
        copy_bytes(keys + key_end, key, key_size)
        copy_bytes(values + value_end, value, value_size)
        key_end += key_size
        value_end += value_size
        n += 1
        store_u32(key_ends + 4 * n, np.uint32(key_end))
        store_u32(value_ends + 4 * n, np.uint32(value_end))
    return n


def warm() -> None:
    """Compile the kernel if it is not in numba's cache."""
    ends = np.zeros(2, np.uint32)
    take_pairs(0, 0, 0, 0, ends.ctypes.data, 0, ends.ctypes.data)
