"""Signs of life of a pipeline's processes: a small file each, with a number that rises while work gets done.

    folder/PID      the number, in `WIDTH` digits, written in place

A process calls `beat` whenever something was really done: the sink took something, a block is ready
to be sent. The control process reads all files of an incarnation now and then and compares: any difference is
progress. The files hold no time, so that neither clocks nor their jumps matter, and a long batch or a slow
sink needs no message on the socket to be known as alive.

The folder belongs to one incarnation (`FeedSpec.beats_dir`), and goes with its other files.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

INTERVAL_S: Final = 0.5
"""Between two writes of a process at least: a beat costs a look at the clock, seldom a write."""
WIDTH: Final = 16


class Beats:
    """This process's own file. Cheap enough to be called for every block and every acknowledgement.

    Callable from several threads, and usable on both sides of a fork: each process counts in its own file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._pid = self._count = 0
        self._written = float("-inf")

    def beat(self) -> None:
        """Something was done just now. Never fails: without its folder or room it only stays unsaid."""
        if os.getpid() != self._pid:
            self._pid, self._count, self._written = os.getpid(), 0, float("-inf")
        self._count += 1
        now = time.monotonic()
        if now - self._written >= INTERVAL_S:
            self._written = now
            # The work goes on whether it is said or not: a replaced incarnation has lost its folder, and a
            # full disk takes no new file (one that is there already is written in place).
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        file = os.open(self._folder / str(self._pid), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, b"%0*d" % (WIDTH, self._count), 0)
        finally:
            os.close(file)


def read_beats(folder: Path) -> dict[str, int]:
    """The count of each process by its id; a process without one yet is left out. {} without the folder.

    Two results that differ say that something was done in between. A smaller number does, too: process ids
    are used again.
    """
    counts = {}
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError, ValueError):
                counts[entry.name] = int(Path(entry.path).read_bytes())
    return counts
