"""Makes sure that only one process writes a target directory, by a lock that ends with that process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidegate.disk import lock_file
from tidegate.errors import InvalidInput

OWN: Final = "_tidegate"
"""The folder of the consumer's own files in a target directory."""
LOCKS: Final = Path("/proc/locks")
"""See proc_locks(5)."""


@contextmanager
def directory_lock(root: Path, check: Callable[[], None]) -> Iterator[None]:
    """Lock the directory for this process; InvalidInput when another one holds it. Released at the latest
    when the process ends.

    `check` raises for a directory that cannot be a target, before anything is written into it.
    """
    try:
        check()
        (root / OWN).mkdir(parents=True, exist_ok=True)
        handle = lock_file(root / OWN / "lock")
    except BlockingIOError as error:
        holder = (root / OWN / "lock").read_text(errors="replace").strip()
        raise InvalidInput(
            "another consumer writes this target",
            where=str(root),
            why=f"process {holder} holds its lock",
            fix="stop that process, or choose another directory",
        ) from error
    except OSError as error:
        raise InvalidInput(
            "the target directory cannot be used",
            where=str(root),
            why=error.strerror or str(error),
            fix="choose a --target directory that can be made and written",
        ) from error
    try:
        # Only under the lock: until then the file has the number of the process that holds it.
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def lock_holder(root: Path) -> int | None:
    """The process that holds the target's lock; None when none is visible from here. Takes no lock.

    Taking the lock for a moment, as a test, would make a consumer fail that starts in that moment. So the
    kernel's list of locks is read. It does not show locks of other machines and of other containers.
    """
    path = root / OWN / "lock"
    try:
        holder, inode = path.read_text().strip(), path.stat().st_ino
        locks = LOCKS.read_text().splitlines()
    except OSError:
        return None
    for line in locks:  # 1: FLOCK ADVISORY WRITE 4711 fe:00:1234 0 EOF
        words = line.split()
        if words[1:2] == ["FLOCK"] and words[4] == holder and words[5].rpartition(":")[2] == str(inode):
            return int(holder)
    return None
