"""The CRC-32 of the kernels is zlib's, by both of its ways, and reads nothing beyond its bytes."""

from __future__ import annotations

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.guarded import Guarded
from tidegate.kernel import address, kernel
from tidegate.tidb.kernels.crc import FULL, crc_bytes, crc_row, crc_row_portable


@kernel
def of_bytes(addr: int, size: int) -> int:
    return crc_bytes(FULL, addr, size) ^ FULL


@kernel
def of_row(value: int, size: int, tail: int, tail_size: int) -> int:
    return crc_row(value, size, tail, tail_size)


@kernel
def of_row_portable(value: int, size: int, tail: int, tail_size: int) -> int:
    return crc_row_portable(value, size, tail, tail_size)


def test_every_length_and_alignment() -> None:
    data = np.random.default_rng(1).integers(0, 256, 700, dtype=np.uint8)
    held = data.tobytes()
    for size in [*range(300), 640]:
        for start in (0, 1, 5):
            part = held[start : start + size]
            at = address(data) + start
            assert of_bytes(at, size) == zlib.crc32(part)
            assert of_row(at, size, at, 0) == of_row_portable(at, size, at, 0) == zlib.crc32(part)


@given(st.binary(max_size=200), st.binary(max_size=40) | st.binary(min_size=8, max_size=8))
def test_rows_and_handles_at_the_end_of_readable_memory(value: bytes, handle: bytes) -> None:
    row, tail = Guarded(value), Guarded(handle)
    wanted = zlib.crc32(value + handle)
    assert of_row(row.address, len(value), tail.address, len(handle)) == wanted
    assert of_row_portable(row.address, len(value), tail.address, len(handle)) == wanted
    row.close()
    tail.close()
