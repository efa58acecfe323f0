"""Memory for encoded messages that a worker uses again, piece after piece.

    take --> the messages of one table of a piece --> the sink's writer --> next_piece --> free again

A piece becomes tens of megabytes of messages. The C library returns so large a buffer to the system when it
is freed, and the system fills each page of the next one with zeros. That took two fifths of the CPU of the
encoding (benchmarks/README.md).

A buffer is free when the next piece begins: a worker encodes one only when the last one was written, or has
failed, and writers keep no reference to what they were given (`sink.base.Writer.write`).
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.kernel import PAD, buffer

KEPT_BYTES: Final = 64 << 20
"""A process keeps at most so much memory while nothing is encoded."""
KEPT: Final = 8
"""It keeps at most this many buffers: a piece has one for each of its tables."""
WASTE: Final = 4
"""A buffer is not used for messages that are expected to fill less than one part in so many of it: a larger
table of the same piece may need it."""

Bytes = npt.NDArray[np.uint8]


class Buffers(threading.local):
    """The buffers of this thread. A worker does all its work in one thread."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []
        """The smallest first."""
        self._taken: list[Bytes] = []

    def take(self, size: int) -> Bytes:
        """A buffer for `size` bytes and `PAD` more, with any contents, until `next_piece`."""
        for number, each in enumerate(self._free):
            if size + PAD <= len(each) <= WASTE * (size + PAD):
                found = self._free.pop(number)
                break
        else:
            found = buffer(size)
        self._taken.append(found)
        return found

    def next_piece(self) -> None:
        """Nothing refers any more to the buffers that were taken. The largest are kept, within the bounds."""
        kept, size = list[Bytes](), 0
        for each in sorted(self._free + self._taken, key=len, reverse=True)[:KEPT]:
            if size + len(each) <= KEPT_BYTES:
                kept.append(each)
                size += len(each)
        self._free, self._taken = kept[::-1], []

    def forget(self) -> None:
        """Keep none: the worker has had no work for a while."""
        self._free, self._taken = [], []


BUFFERS: Final = Buffers()
"""Those of the process, which works for many incarnations, but for one at a time."""
