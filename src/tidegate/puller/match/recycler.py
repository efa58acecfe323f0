"""Memory for blocks that is reused after the last reference to a block is gone.

Arrow's allocator returns freed memory to the system within milliseconds, and getting a new page costs more
than filling it (on virtual machines several times more). A block's columns are cut from one slab. Slabs are
larger than their blocks by at most an eighth, so a returned slab fits the next block, and the bound on idle
ones is not used up by memory that no block fills.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

IDLE_BYTES_MAX: Final = 128 << 20
"""Bytes. If a returned slab would exceed this total, slabs of sizes that came back longer ago are freed."""
SMALL: Final = 64 << 10
"""Bytes. Smaller blocks use Arrow's allocator, which is good enough for them."""
STEPS_BITS: Final = 3
"""There are 2 ** STEPS_BITS sizes of slabs between a power of two and the next."""


class Recycler:
    """Makes the buffers of one block at a time. Blocks may be dropped in any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run inside `buffers`, in the same thread
        self._idle: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self.idle_bytes = 0

    def buffers(self, sizes: list[int]) -> list[pa.Buffer]:
        """Buffers of the given sizes, each aligned to 64 bytes."""
        starts = np.cumsum([0, *((size + 63) & ~63 for size in sizes)]).tolist()
        if starts[-1] < SMALL:
            return [pa.allocate_buffer(size) for size in sizes]
        slab = self._take(slab_size(starts[-1]))
        # Arrow's buffers hold the view, so the finalizer runs when the last of them is gone. It holds the
        # slab until then.
        view = slab[: starts[-1]]
        # Not at exit: memory ends with the process, and the interpreter may be half gone by then.
        weakref.finalize(view, self._give_back, slab).atexit = False
        whole = pa.py_buffer(view)
        return [whole.slice(start, size) for start, size in zip(starts, sizes, strict=False)]

    def _take(self, size: int) -> npt.NDArray[np.uint8]:
        with self._lock:
            # The best that fits. A slab of twice the size is left for the blocks that need it.
            fitting = [other for other, idle in self._idle.items() if idle and size <= other < 2 * size]
            if fitting:
                best = min(fitting)
                self.idle_bytes -= best
                return self._idle[best].pop()
        return np.empty(size, dtype=np.uint8)

    def _give_back(self, slab: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            # The size that came back last stays last. If blocks have another size now, slabs of earlier sizes
            # would use up the bound for ever.
            same = self._idle.pop(len(slab), [])
            while self.idle_bytes + len(slab) > IDLE_BYTES_MAX and self._idle:
                other, idle = next(iter(self._idle.items()))
                if idle:
                    idle.pop()
                    self.idle_bytes -= other
                else:
                    del self._idle[other]
            if self.idle_bytes + len(slab) <= IDLE_BYTES_MAX:
                same.append(slab)
                self.idle_bytes += len(slab)
            self._idle[len(slab)] = same


def slab_size(size: int) -> int:
    """The size of the slab for so many bytes, at least 16."""
    step = 1 << (size.bit_length() - 1 - STEPS_BITS)
    return -(-size // step) * step
