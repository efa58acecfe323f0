"""The file of a segment while it is written: in pieces, so that Linux takes small free pages for it.

A call that writes megabytes gets pages of 2 MB if the file system has large pages (ext4 since Linux 6.16,
XFS). On a virtual machine whose host takes free memory back, Linux gives back exactly the free blocks of 2 MB
and more. The host must find these again, which takes several times the CPU of the copy, while smaller free
blocks still have their memory. A piece gets pages of at most its own size, and thus any free block of that
size or more, the smallest first: the smaller the pieces, the more such memory there is, and the more work for
each byte, also for readers, which map one page after another (benchmarks/README.md).
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Final

import pyarrow as pa

PIECE: Final = 64 << 10
"""The most bytes of one call. No call crosses a multiple of it, so a full one may get one large page."""


class PiecewiseFile:
    """A new file, and the sink of a `pyarrow.PythonFile`. It holds what it is given until `flush`."""

    closed = False  # pyarrow asks

    def __init__(self, path: Path) -> None:
        """Create the file; replaces an old one."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._parts: list[memoryview] = []
        self._written = 0
        self.size = 0
        """The bytes that were given, written or not."""

    def __enter__(self) -> PiecewiseFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def write(self, part: pa.Buffer | bytes) -> None:
        """Hold a part. Its memory must not change until `flush`."""
        view = memoryview(part).cast("B")
        self._parts.append(view)
        self.size += len(view)

    def flush(self) -> None:
        """Write the parts. Raises OSError."""
        parts, self._parts = self._parts, []
        piece: list[memoryview] = []
        room = PIECE - self._written % PIECE
        for part in parts:
            rest = part
            while len(rest) >= room:
                self._write([*piece, rest[:room]])
                piece, rest, room = [], rest[room:], PIECE
            piece.append(rest)
            room -= len(rest)
        self._write(piece)

    def _write(self, piece: list[memoryview]) -> None:
        size = sum(map(len, piece))
        # A batch has some thirty parts, fewer than a call may have (1,024).
        done = os.writev(self._descriptor, piece) if size else 0
        if done < size:
            # The disk has no more room, or hardly any: the next call says so.
            rest = memoryview(b"".join(piece))
            while done < size:
                done += os.write(self._descriptor, rest[done:])
        self._written += size

    def close(self) -> None:
        """Nothing: pyarrow calls it, and the file is closed at the end of the `with`."""
