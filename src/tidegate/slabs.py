"""Memory in large pieces, which is used again after the last reference to it is gone.

Both the C library and Arrow return large freed memory to the system. The system fills each page of the next
piece with zeros, which costs more than writing it (on virtual machines several times more). A new slab is
larger than what it was asked for by at most an eighth, so a returned slab fits the next request, and the
bound on idle ones is not used up by memory that nobody fills. One that is used again may be almost twice as
large as what it then serves.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final

import numpy as np
import numpy.typing as npt

STEPS_BITS: Final = 3
"""There are 2 ** STEPS_BITS sizes of slabs between a power of two and the next."""


class Slabs:
    """Makes pieces of memory. Thread-safe; a piece may be dropped in any thread."""

    def __init__(self, idle_bytes_max: int) -> None:
        """`idle_bytes_max`: bytes. If a returned slab would exceed this total, slabs of sizes that came back
        longer ago are freed.
        """
        self.idle_bytes = 0
        self._idle_bytes_max = idle_bytes_max
        self._lock = threading.RLock()  # a finalizer may run inside `piece`, in the same thread
        self._idle: dict[int, list[npt.NDArray[np.uint8]]] = {}

    def piece(self, size: int) -> memoryview:
        """`size` bytes, at least 16, with any content.

        They are used again when nothing refers to them: no view, slice of a view, array or Arrow buffer.
        """
        slab = self._take(slab_size(size))
        # All memoryviews of this array hold it, so the finalizer runs when the last of them is gone. It holds
        # the slab until then. The array itself is not returned: a slice of it would hold the slab alone.
        view = slab[:size]
        # Not at exit: memory ends with the process, and the interpreter may be half gone by then.
        weakref.finalize(view, self._give_back, slab).atexit = False
        return view.data

    def _take(self, size: int) -> npt.NDArray[np.uint8]:
        with self._lock:
            # The best that fits. A slab of twice the size is left for the requests that need it.
            fitting = [other for other, idle in self._idle.items() if idle and size <= other < 2 * size]
            if fitting:
                best = min(fitting)
                self.idle_bytes -= best
                return self._idle[best].pop()
        return np.empty(size, dtype=np.uint8)

    def _give_back(self, slab: npt.NDArray[np.uint8]) -> None:
        # It would not fit if all others were freed.
        if len(slab) > self._idle_bytes_max:
            return
        with self._lock:
            # The size that came back last stays last. If requests have another size now, slabs of earlier
            # sizes would use up the bound for ever.
            same = self._idle.pop(len(slab), [])
            while self.idle_bytes + len(slab) > self._idle_bytes_max and self._idle:
                other, idle = next(iter(self._idle.items()))
                if idle:
                    idle.pop()
                    self.idle_bytes -= other
                else:
                    del self._idle[other]
            if self.idle_bytes + len(slab) <= self._idle_bytes_max:
                same.append(slab)
                self.idle_bytes += len(slab)
            self._idle[len(slab)] = same


def slab_size(size: int) -> int:
    """The size of the slab for so many bytes, at least 16."""
    step = 1 << (size.bit_length() - 1 - STEPS_BITS)
    return -(-size // step) * step
