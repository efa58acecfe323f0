"""The files of removed segments, which give up their memory just when new segments need as much.

A new file gets its pages of memory from those that are free. On a virtual machine the host takes free pages
back after seconds, and to find one again costs several times as much as the copy into it
(benchmarks/README.md). Segments are dropped in bursts, so most of their pages would be gone before they are
written again. Therefore a removed file stays open, without a name, until as many bytes were written.

A reader that has such a file open or mapped keeps it, as any removed file. After kill -9 the system closes
them.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.disk import free_bytes

KEPT_BYTES: Final = 256 << 20
"""At most so many bytes of removed files stay open: about what is dropped in a second under full load."""
QUOTA_SHARE: Final = 1 / 16
"""At most this share of a store's quota, because their blocks on the disk are in use as well."""
FREE_SHARE: Final = 1 / 8
"""At most this share of the free bytes of the disk, so that nobody who writes there finds it full."""
SMALL: Final = 1 << 20
"""Bytes. Smaller files are not kept: they are many, and each takes a descriptor."""
UNUSED: Final = 40
"""A file is closed after so many calls of `tend`, which are 10 s."""


@dataclass(slots=True)
class _Removed:
    descriptor: int
    bytes: int
    rounds: int = 0
    """The calls of `tend` since the file was removed."""


class RemovedFiles:
    """Removed files that are still open, the oldest first. Thread-safe."""

    def __init__(self, quota: int = 0) -> None:
        """`quota`: the most bytes on disk of the store; 0: no bound."""
        self._most = min(KEPT_BYTES, int(quota * QUOTA_SHARE)) if quota else KEPT_BYTES
        self._held: deque[_Removed] = deque()
        self._lock = threading.Lock()  # guards _held and bytes
        self.bytes = 0
        """The bytes of the files that are open."""

    def remove(self, path: Path, size: int) -> None:
        """Remove a file of `size` bytes, if it is there. Its memory and its blocks on the disk follow."""
        descriptor = -1
        if size >= SMALL:
            with suppress(OSError):  # it is gone, or this process has too many files open
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        path.unlink(missing_ok=True)
        if descriptor < 0:
            return
        free = free_bytes(path.parent)
        with self._lock:
            self._held.append(_Removed(descriptor, size))
            self.bytes += size
            self._keep_at_most(min(self._most, int(free * FREE_SHARE)))

    def written(self, size: int) -> None:
        """A segment of `size` bytes was written: give up as many, which the next one will use."""
        with self._lock:
            self._keep_at_most(self.bytes - size)

    def tend(self, free: int) -> None:
        """Close files that nobody has needed for long, and more if only `free` bytes of the disk are free.

        Called four times a second, whether or not rows come: others may fill the disk meanwhile.
        """
        with self._lock:
            for one in self._held:
                one.rounds += 1
            old = sum(one.bytes for one in self._held if one.rounds > UNUSED)
            self._keep_at_most(min(self.bytes - old, int(free * FREE_SHARE)))

    def clear(self) -> None:
        """Close all: the disk is full, or the store is closed."""
        with self._lock:
            self._keep_at_most(0)

    def _keep_at_most(self, most: int) -> None:
        while self._held and self.bytes > most:
            oldest = self._held.popleft()
            self.bytes -= oldest.bytes
            os.close(oldest.descriptor)
