"""How long threads had a core, and how long they waited for one, by the kernel's own account.

Linux Documentation/scheduler/sched-stats.rst: `/proc/PID/task/TID/schedstat` has the nanoseconds that a
thread ran, and those that it was ready and waited. Containers see it for their own processes, and the time
for which a group's quota has stopped a thread counts as waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidegate.pipeline.host.load_throttle import CpuTime

PROC: Final = Path("/proc")
NS: Final = 1e9


class CpuWait:
    """The time of this process and of some workers between two looks. For one thread."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._before: dict[str, tuple[int, int]] = {}
        """By file: the nanoseconds that the thread ran and waited, at the last look."""

    def look(self, workers: Iterable[int]) -> CpuTime | None:
        """The time since the last look of all threads of this process, and of the main threads of the workers
        with these process ids: those decode and encode, and there may be a hundred others for their sinks.

        A thread that was not there at the last look does not count yet. None: the kernel keeps no account.
        """
        found = dict(self._read(workers))
        if not found:
            return None
        both = [(now, self._before[file]) for file, now in found.items() if file in self._before]
        self._before = found
        # A smaller number is that of another process, to which the system has given the same id.
        spent = [(ran - first, waited - last) for (ran, waited), (first, last) in both if ran >= first]
        return CpuTime(sum(ran for ran, _ in spent) / NS, sum(waited for _, waited in spent) / NS)

    def _read(self, workers: Iterable[int]) -> Iterator[tuple[str, tuple[int, int]]]:
        own = sorted((self._proc / "self" / "task").glob("*/schedstat"))
        for file in (*own, *(self._proc / str(pid) / "schedstat" for pid in workers)):
            # The thread or process has ended meanwhile, or there is no such file.
            with suppress(OSError, ValueError):
                ran, waited, _ = map(int, file.read_text().split())
                yield str(file), (ran, waited)
