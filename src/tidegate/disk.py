"""A disk without room: what is raised, and that a file which did not fit leaves nothing behind.

Full means ENOSPC, EDQUOT or EFBIG (RLIMIT_FSIZE): none of them is lasting, none damages what is there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tidegate.errors import Retryable

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
            fix="make room; everything waits and goes on by itself",
        ) from error
