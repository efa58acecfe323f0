"""Files that are written safely: what a full disk raises, a ballast, durable names, a lock.

Full means ENOSPC, EDQUOT or EFBIG (RLIMIT_FSIZE): none of them is lasting, none damages what is there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from tidegate.errors import Retryable

T = TypeVar("T")
BALLAST: Final = "ballast"
BALLAST_SHARE: Final = 0.01
BALLAST_MIN: Final = 1 << 20
BALLAST_MAX: Final = 64 << 20
"""Of a disk so much is kept for small files, within these bounds."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskFull(Retryable):
    """There was no room for a file; it is not there. Room comes back: the same call then succeeds."""


@contextmanager
def writing(path: Path, *, keep: bool = False) -> Iterator[None]:
    """Around the writing of a new file at `path`. Raises DiskFull, and OSError for anything else.

    `keep`: the file was there before, and stays.
    """
    try:
        yield
    except OSError as error:
        if not keep:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        if error.errno not in FULL:
            raise
        raise DiskFull(
            "the disk is full",
            where=str(path),
            why=os.strerror(error.errno or 0),
            fix="free disk space; changefeeds wait and then continue by themselves",
        ) from error


def replace_file(path: Path, data: bytes | Iterable[bytes | memoryview], mode: int = 0o644) -> None:
    """Put `data` at `path`, durably: a reader finds the old bytes or the new. Raises DiskFull."""
    partial = path.with_suffix(".tmp")
    with writing(partial):
        partial.touch(mode)
        with partial.open("wb") as file:
            for piece in [data] if isinstance(data, bytes) else data:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    partial.replace(path)
    # Its name, too: after a loss of power a plan of an initial load, for one, must still be there.
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def lock_file(path: Path, mode: int = 0o644) -> int:
    """Open a file, made if needed, and lock it; the lock ends when the descriptor is closed.

    Raises BlockingIOError when another process has the lock, and OSError when it cannot be opened or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def free_bytes(folder: Path) -> int:
    """What may still be written on the disk of a folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def disk_bytes(folder: Path) -> int:
    """The size of the disk of a folder."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize


class Ballast:
    """A file that takes room while there is some, and is given up for small files when there is none.

    Thread-safe. `keep` is called every now and then: it notices that the disk is full, and when it no longer
    is, it takes the room again.
    """

    def __init__(self, folder: Path | None) -> None:
        """None: there is no ballast, and nothing is ever said."""
        self._folder = folder
        self._size = 0
        if folder is not None:
            self._size = min(max(BALLAST_MIN, round(disk_bytes(folder) * BALLAST_SHARE)), BALLAST_MAX)
        self._lock = threading.Lock()
        self.trouble = ""
        """What is full, in words that stay the same as long as it is; empty when there is room."""
        self.full_since_ms = 0

    def keep(self, now_ms: int) -> str:
        """Take the room unless it is taken; `trouble`."""
        if self._folder is None:
            return ""
        with self._lock:
            try:
                self._fill(self._folder / BALLAST)
                full = free_bytes(self._folder) < self._size
            except DiskFull:
                full = True
            if full and not self.trouble:
                self.trouble, self.full_since_ms = f"the disk of {self._folder} is full", now_ms
            elif not full:
                self.trouble, self.full_since_ms = "", 0
            return self.trouble

    def small(self, write: Callable[[], T]) -> T:
        """Write a small file, if need be in the place of the ballast. Raises DiskFull; may call it twice."""
        try:
            return write()
        except DiskFull:
            if self._folder is None:
                raise
            with self._lock:
                (self._folder / BALLAST).unlink(missing_ok=True)
            return write()

    def _fill(self, path: Path) -> None:
        if path.exists() and path.stat().st_size == self._size:
            return
        with writing(path), path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self._size)
