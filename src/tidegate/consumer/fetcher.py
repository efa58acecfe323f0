"""Who fetches and decodes: Spark tasks, or processes of our own without Spark. The rest is the same.

    fetch_spark    ranges of any number of partitions on any number of executors
    fetch_workers  a few processes on this machine, which start in a second: `--master workers[N]`

Both run `source.fetch`: from a range to staged rows and descriptors. A process that dies loses what it was
fetching; the range is asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tidegate.consumer.source import Fetched, Range, Topic
from tidegate.errors import InvalidInput, TidegateError

WORKERS = re.compile(r"workers(?:\[(\d{1,3})\])?")


class Fetcher(Protocol):
    """Fetches ranges side by side. `cancel` may be called by another thread; all else by one at a time."""

    def fetch(self, topic: Topic, ranges: Sequence[Range], staging: Path) -> list[Fetched]:
        """What each range brought. Raises whatever a process died of: nothing of the round is known then."""

    def cancel(self) -> None:
        """End a `fetch` that is going on: it raises, or comes back."""

    def translated(self, error: Exception) -> TidegateError:
        """What `fetch` raised, as one of our errors."""


def workers_of(master: str) -> int | None:
    """How many processes `--master` asks for; None: it names a Spark master. InvalidInput for none or 0."""
    found = WORKERS.fullmatch(master)
    if found is None:
        return None
    count = int(found[1] or 2)
    if not count:
        raise InvalidInput(
            "there must be a process that fetches",
            where=f"--master {master}",
            why="it names 0",
            fix="write --master workers[2], or the address of a Spark master",
        )
    return count
