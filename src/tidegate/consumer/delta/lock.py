"""The lock of a directory of Delta tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.consumer.lakehouse.directory_lock import directory_lock
from tidegate.sink.lakehouse.tables import Lakehouse


@contextmanager
def target_lock(root: Path) -> Iterator[None]:
    """Lock the target for this process; InvalidInput when another process holds it. Ends with the process.

    A directory that cannot be a target is refused before anything is written into it: see `Lakehouse.check`.
    """
    with directory_lock(root, Lakehouse(root).check):
        yield
