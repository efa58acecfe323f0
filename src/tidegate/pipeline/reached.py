"""What is durable while a task goes on: a small file a worker process, read by the driver.

    folder/PID.json      {span id: ts}, replaced at most every `INTERVAL_S`

Spark gives back what a task yields only when its whole job is over, which may be long for a slow sink or a
large transaction. The driver looks at the folder now and then and reports what is new as checkpoints; the
task's own report follows at its end. The folder belongs to one incarnation.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidegate.errors import Retryable

INTERVAL_S: Final = 0.5


class Reached:
    """This process's own file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told = float("-inf")

    def tell(self, spans: Mapping[str, int]) -> None:
        """Each span is durable up to its ts. Never fails: without room it is said later."""
        now = time.monotonic()
        if now - self._told < INTERVAL_S:
            return
        self._told = now
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = self._folder / f"{os.getpid()}.tmp"
            partial.write_text(json.dumps(dict(spans)))
            partial.replace(self._folder / f"{os.getpid()}.json")


def read_reached(folder: Path) -> dict[str, int]:
    """What all processes have said, the furthest of each span; {} without the folder."""
    found: dict[str, int] = {}
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):
            for span, ts in json.loads(path.read_text()).items():
                found[span] = max(ts, found.get(span, 0))
    return found


def herald(folder: Path, send: Callable[[dict[str, int]], None]) -> None:
    """Call `send` with what is new, from a thread, until it raises Retryable: then nobody listens."""

    def watch() -> None:
        known: dict[str, int] = {}
        with suppress(Retryable):
            while True:
                found = read_reached(folder)
                fresh = {span: ts for span, ts in found.items() if ts > known.get(span, 0)}
                if fresh:
                    send(fresh)
                    known |= fresh
                time.sleep(INTERVAL_S)

    threading.Thread(target=watch, name="reached", daemon=True).start()
