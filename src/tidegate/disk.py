"""Writes files safely: errors of a full disk, reserved space (ballast), durable names, a lock.

Full means ENOSPC, EDQUOT or EFBIG (RLIMIT_FSIZE). These errors pass, and existing files stay intact.
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
"""The share of a disk that is reserved for small files, and its limits in bytes."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
FEEDS_WAIT: Final = "free disk space; changefeeds wait and then continue by themselves"
CONSUMER_WAITS: Final = "free disk space; the consumer tries again until there is some, and then continues"
CONSUMER_ENDS: Final = "free disk space and start the consumer again; it continues where it was"
"""The fix in the errors of a full disk: those of a capture, and those of a consumer that finds no space for
rows on their way, and for anything else.
"""


class DiskFull(Retryable):
    """A file was not written, because the disk is full. The call succeeds once there is space again."""


@contextmanager
def writing(path: Path, *, keep: bool = False, fix: str = FEEDS_WAIT) -> Iterator[None]:
    """A context around the writing of a new file at `path`. Raises DiskFull, and OSError for other failures.

    `keep`: the file existed before, so that a failure does not remove it. `fix`: of DiskFull.
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
            fix=fix,
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
    # Sync the name as well: a plan of an initial load, for example, must survive a loss of power.
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def lock_file(path: Path, mode: int = 0o644) -> int:
    """Open a file, created if needed, and lock it. The lock ends when the descriptor is closed.

    Raises BlockingIOError if another process has the lock, and OSError if it cannot be opened or locked.
    """
    # The lock belongs to the open file, so a program that inherited the descriptor would keep it.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def free_bytes(folder: Path) -> int:
    """The number of bytes that may still be written on a folder's disk."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def disk_bytes(folder: Path) -> int:
    """The size in bytes of a folder's disk."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize


class Ballast:
    """A file that reserves disk space; it is removed when a small file finds the disk full.

    Thread-safe. `keep` is called from time to time. It notices that the disk is full, and reserves the space
    again when it is not full any more.
    """

    def __init__(self, folder: Path | None) -> None:
        """`folder` None: there is no ballast, and a full disk is not noticed."""
        self._folder = folder
        self._size = 0
        if folder is not None:
            self._size = min(max(BALLAST_MIN, round(disk_bytes(folder) * BALLAST_SHARE)), BALLAST_MAX)
        self._lock = threading.Lock()
        self.trouble = ""
        """Which disk is full, in words that do not change while it is; empty if there is space."""
        self.full_since_ms = 0

    def keep(self, now_ms: int) -> str:
        """Reserve the space if it is not; returns `trouble`."""
        if self._folder is None:
            return ""
        with self._lock:
            try:
                self._fill(self._folder / BALLAST)
                # A disk with less space than the ballast counts as full, so that the warning comes before a
                # write fails.
                full = free_bytes(self._folder) < self._size
            except DiskFull:
                full = True
            if full and not self.trouble:
                self.trouble, self.full_since_ms = f"the disk of {self._folder} is full", now_ms
            elif not full:
                self.trouble, self.full_since_ms = "", 0
            return self.trouble

    def small(self, write: Callable[[], T]) -> T:
        """Write a small file, if necessary after removing the ballast. Raises DiskFull; may call it twice."""
        try:
            return write()
        except DiskFull:
            if self._folder is None:
                raise
            with self._lock:
                # docs/guarantees.md#a-full-disk-is-a-warning: small files, such as the checkpoint, still find
                # space.
                (self._folder / BALLAST).unlink(missing_ok=True)
            return write()

    def _fill(self, path: Path) -> None:
        if path.exists() and path.stat().st_size == self._size:
            return
        with writing(path), path.open("wb") as file:
            # Blocks and not only a length, because a sparse file reserves nothing.
            os.posix_fallocate(file.fileno(), 0, self._size)
