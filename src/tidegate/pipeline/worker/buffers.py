"""Memory for encoded messages that a worker uses again, piece after piece.

    take --> the messages of one tile of a piece --> the sink's writer --> next_piece --> free again

A piece becomes tens of megabytes of messages. The C library returns so large a buffer to the system when it
is freed, and the system fills each page of the next one with zeros. That took two fifths of the CPU of the
encoding (benchmarks/README.md).

A buffer is free when the next piece begins: a worker encodes one only when the last one was written, or has
failed, and writers keep no reference to what they were given (`sink.base.Writer.write`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.kernel import PAD, buffer
from tidegate.mounter.tiles import TILE_BYTES

KEPT_BYTES: Final = 64 << 20
"""A process keeps at most so much memory from one piece to the next."""
KEPT: Final = 32
"""It keeps at most this many buffers: a piece has one for each of its tiles."""
UNUSED: Final = 16
"""A buffer that so many pieces did not use is given up: pieces have become smaller."""
KEPT_CELLS: Final = 2 * TILE_BYTES
"""It keeps the memory of a tile up to this size. Only a transaction that is not cut makes a larger one."""
WASTE: Final = 4
"""A buffer is not used for messages that are expected to fill less than one part in so many of it: a larger
table of the same piece may need it."""
SPARE: Final = 8
"""A new buffer is larger by one part in so many. The next pieces have about as many bytes, and one that is a
little larger would need new memory again. Pages that no message reaches are never touched."""

Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True)
class _Free:
    """A buffer that can be taken."""

    buffer: Bytes
    unused: int = 0
    """The number of pieces that did not use it."""


class Buffers(threading.local):
    """The buffers of this thread. A worker does all its work in one thread."""

    def __init__(self) -> None:
        self._free: list[_Free] = []
        """The smallest first."""
        self._taken: list[Bytes] = []

    def take(self, size: int) -> Bytes:
        """A buffer for at least `size` bytes and `PAD` more, with any contents, until `next_piece`."""
        for number, each in enumerate(self._free):
            if size + PAD <= len(each.buffer) <= WASTE * (size + PAD):
                found = self._free.pop(number).buffer
                break
        else:
            # Not so large that it would not be kept.
            found = buffer(max(size, min(size + size // SPARE, KEPT_BYTES - PAD)))
        self._taken.append(found)
        return found

    def next_piece(self) -> None:
        """Nothing refers any more to the buffers that were taken. They are kept within the bounds, those that
        were used last and the largest first.
        """
        for each in self._free:
            each.unused += 1
        self._free += [_Free(each) for each in self._taken]
        kept, size = list[_Free](), 0
        for each in sorted(self._free, key=lambda one: (one.unused, -len(one.buffer))):
            if each.unused < UNUSED and len(kept) < KEPT and size + len(each.buffer) <= KEPT_BYTES:
                kept.append(each)
                size += len(each.buffer)
        self._free, self._taken = sorted(kept, key=lambda one: len(one.buffer)), []

    def forget(self) -> None:
        """Keep none: the worker has had no work for a while."""
        self._free, self._taken = [], []


class Cells(threading.local):
    """The memory for cells of this thread: one tile is encoded when the next is mounted (`stages`)."""

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)

    def take(self, size: int) -> Bytes:
        """Memory for at least `size` bytes and `PAD` more, with any contents, until the next call."""
        if size > KEPT_CELLS:
            return buffer(size)
        if len(self._memory) < size + PAD:
            self._memory = buffer(size)
        return self._memory

    def forget(self) -> None:
        """Keep none."""
        self._memory = np.empty(0, dtype=np.uint8)


BUFFERS: Final = Buffers()
"""Those of the process, which works for many incarnations, but for one at a time."""
CELLS: Final = Cells()
"""Likewise."""
