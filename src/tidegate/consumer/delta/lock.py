"""One process writes a target directory: a lock of the operating system, which ends with that process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.errors import InvalidInput
from tidegate.sink.lakehouse import Lakehouse


@contextmanager
def target_lock(root: Path) -> Iterator[None]:
    """Hold the target for this process; InvalidInput when another one has it. Ends with the process.

    A directory that cannot be a target is refused before anything is put into it: see `Lakehouse.check`.
    """
    try:
        Lakehouse(root).check()
        (root / "_tidegate").mkdir(parents=True, exist_ok=True)
        handle = os.open(root / "_tidegate" / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InvalidInput(
            "the target directory cannot be used",
            where=str(root),
            why=error.strerror or str(error),
            fix="choose a --target directory that can be made and written",
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise InvalidInput(
                "another consumer writes this target",
                where=str(root),
                why=f"process {holder} holds its lock",
                fix="stop that process, or choose another directory",
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)
