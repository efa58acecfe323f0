"""The interface for fetching and decoding: by Spark tasks, or by processes of our own without Spark.

    fetch_spark    ranges of any number of partitions on any number of executors
    fetch_workers  a few processes on this machine, which start in a second: `--master workers[N]`

Both run `fetch.fetch`, which turns a range into staged rows and descriptors. If a process dies, its range is
fetched again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from tidegate.consumer.engine.fetched import Fetched, Range
from tidegate.consumer.reading.source import Topic
from tidegate.errors import InvalidInput, TidegateError

WORKERS: Final = re.compile(r"workers(?:\[(\d{1,2})\])?")


class Fetcher(Protocol):
    """Fetches ranges in parallel. Another thread may call `cancel`; all other calls come one at a time."""

    def fetch(self, topic: Topic, ranges: Sequence[Range], staging: Path) -> list[Fetched]:
        """The result of each range. Raises if a process dies; then the whole round has no result."""

    def cancel(self) -> None:
        """End a running `fetch`: it raises, or returns."""

    def translated(self, error: Exception) -> TidegateError:
        """An error that `fetch` raised, as one of ours."""


def workers_of(master: str) -> int | None:
    """The number of processes in `--master`; None if it names a Spark master, InvalidInput if neither."""
    if not master.startswith("workers"):
        return None
    found = WORKERS.fullmatch(master)
    count = int(found[1] or 2) if found is not None else 0
    if not count:
        raise InvalidInput(
            "--master does not give the number of processes that fetch",
            where=f"--master {master[:100]}",
            why="it must be workers, or workers[N] with N from 1 to 99",
            fix="write --master workers[2], or the address of a Spark master",
        )
    return count
