"""Who fetches and decodes: Spark tasks, or processes of our own without Spark. The rest is the same.

    fetch_spark    ranges of any number of partitions on any number of executors
    fetch_workers  a few processes on this machine, which start in a second: `--master workers[N]`

Both run `fetch.fetch`: from a range to staged rows and descriptors. A process that dies loses what it was
fetching; the range is asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from tidegate.consumer.fetched import Fetched, Range
from tidegate.consumer.source import Topic
from tidegate.errors import InvalidInput, TidegateError

WORKERS: Final = re.compile(r"workers(?:\[(\d{1,2})\])?")


class Fetcher(Protocol):
    """Fetches ranges side by side. `cancel` may be called by another thread; all else by one at a time."""

    def fetch(self, topic: Topic, ranges: Sequence[Range], staging: Path) -> list[Fetched]:
        """What each range brought. Raises whatever a process died of: nothing of the round is known then."""

    def cancel(self) -> None:
        """End a `fetch` that is going on: it raises, or comes back."""

    def translated(self, error: Exception) -> TidegateError:
        """What `fetch` raised, as one of our errors."""


def workers_of(master: str) -> int | None:
    """How many processes `--master` asks for; None: it names a Spark master. InvalidInput for neither."""
    if not master.startswith("workers"):
        return None
    found = WORKERS.fullmatch(master)
    count = int(found[1] or 2) if found is not None else 0
    if not count:
        raise InvalidInput(
            "--master does not say how many processes fetch",
            where=f"--master {master[:100]}",
            why="it must be workers, or workers[N] with N from 1 to 99",
            fix="write --master workers[2], or the address of a Spark master",
        )
    return count
