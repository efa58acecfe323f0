"""Memory for blocks that is reused after the last reference to a block is gone (`slabs`).

A block's columns are cut from one slab.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.slabs import Slabs

IDLE_BYTES_MAX: Final = 128 << 20
"""The most bytes of slabs that wait for the next blocks."""
SMALL: Final = 64 << 10
"""Bytes. Smaller blocks use Arrow's allocator, which is good enough for them."""


class Recycler(Slabs):
    """Makes the buffers of one block at a time. Blocks may be dropped in any thread."""

    def __init__(self) -> None:
        super().__init__(IDLE_BYTES_MAX)

    def buffers(self, sizes: list[int]) -> list[pa.Buffer]:
        """Buffers of the given sizes, each aligned to 64 bytes."""
        starts = np.cumsum([0, *((size + 63) & ~63 for size in sizes)]).tolist()
        if starts[-1] < SMALL:
            return [pa.allocate_buffer(size) for size in sizes]
        whole = pa.py_buffer(self.piece(starts[-1]))
        return [whole.slice(start, size) for start, size in zip(starts, sizes, strict=False)]
