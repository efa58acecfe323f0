"""CPU seconds per stage inside one process: functions of the hot path are wrapped with a thread clock.

Only functions that handle whole blocks are wrapped, so the clock costs microseconds per block. Time that a
wrapped function spends in another wrapped function counts only for the inner one.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

WRITE_S: Final = 0.2


class StageClock:
    """Seconds by stage, over all threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        """Replace `owner.name` by a timed version."""
        inner = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            return self.run(stage, inner, *arguments, **named)

        setattr(owner, name, timed)

    def wrap_iterator(self, owner: Any, name: str, stage: str) -> None:
        """The same for a function that returns an iterator: only the time inside its steps counts."""
        inner = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Iterator[Any]:
            steps = self.run(stage, inner, *arguments, **named)
            end = object()
            while (item := self.run(stage, next, steps, end)) is not end:
                yield item

        setattr(owner, name, timed)

    def run(self, stage: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call `function`, and add its time to `stage`."""
        inside: list[float] = self._local.__dict__.setdefault("inside", [])
        inside.append(0.0)
        began = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            used = time.thread_time() - began
            own = used - inside.pop()
            if inside:
                inside[-1] += used
            with self._lock:
                self.seconds[stage] = self.seconds.get(stage, 0.0) + own

    def write(self, path: Path, **more: Any) -> None:
        """Write the seconds to a file, atomically."""
        with self._lock:
            text = json.dumps({"stages": self.seconds, **more})
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(text)
        partial.replace(path)


def read_stages(paths: Iterable[Path]) -> dict[str, float]:
    """The sums over several processes' files."""
    total: dict[str, float] = {}
    for path in paths:
        for stage, seconds in json.loads(path.read_text())["stages"].items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total
