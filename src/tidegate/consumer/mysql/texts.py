"""Many texts in one buffer: the rows of a statement, or keys, as the target's literals. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts that lie one after the other in memory, each perhaps with a frame that does not count."""

    data: npt.NDArray[np.uint8] | pa.Buffer | None
    """None: all are empty."""
    bounds: Ints
    """Where the first text begins, and where each one ends."""
    lead: int = 0
    trail: int = 0
    """The size of the frame, before and after each text."""

    @classmethod
    def of(cls, array: pa.Array) -> Texts:
        """The texts of an Arrow array of `binary` without nulls."""
        if len(array) == 0:  # Arrow may have no offsets then
            return cls(None, np.zeros(1, np.int64))
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        return cls(array.buffers()[2], offsets.astype(np.int64))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[bytes]:
        """Each text without its frame."""
        data = self.memory
        for begin, end in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            yield bytes(data[begin + self.lead : end - self.trail])

    @property
    def memory(self) -> memoryview[Any]:
        """The buffer."""
        data: Any = b"" if self.data is None else self.data
        return memoryview(data)

    def cut(self, size: int, most: int) -> Iterator[memoryview[Any]]:
        """The texts with their frames, in parts of about `size` bytes and at most `most` texts."""
        data, start = self.memory, 0
        while start < len(self):
            begin = int(self.bounds[start])
            fits = int(np.searchsorted(self.bounds, begin + size, "right")) - 1
            end = min(max(fits, start + 1), start + most, len(self))
            yield data[begin : int(self.bounds[end])]
            start = end
