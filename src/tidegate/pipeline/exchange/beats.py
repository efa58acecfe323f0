"""Signs of life of a pipeline's processes: one small file each, with a number that rises with the work done.

    folder/PID      the number, in `WIDTH` digits, written in place

A process calls `beat` after each step of real work: the sink accepted data, or a block is ready to be sent.
The application and the control process read the files now and then and compare them with the previous look:
any difference is progress. The files hold no time, so clocks and their jumps do not matter. During a long
batch or with a slow sink a process needs to send no message to count as alive.

The folder belongs to one incarnation (`FeedSpec.beats_dir`) and is removed with its other files.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

INTERVAL_S: Final = 0.5
"""The shortest time between two writes of a process: most beats only read the clock."""
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
        """Count a step of work. Never fails: without its folder, or with a full disk, it writes nothing."""
        if os.getpid() != self._pid:
            self._pid, self._count, self._written = os.getpid(), 0, float("-inf")
        self._count += 1
        now = time.monotonic()
        if now - self._written >= INTERVAL_S:
            self._written = now
            # The work continues even if the beat cannot be written: the folder of a replaced incarnation is
            # gone, and a full disk takes no new file (an existing file is written in place).
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        file = os.open(self._folder / str(self._pid), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # With a fixed width, because the file is overwritten in place and a process that gets the same id
            # begins with a smaller number.
            os.pwrite(file, b"%0*d" % (WIDTH, self._count), 0)
        finally:
            os.close(file)


def read_beats(folder: Path) -> dict[str, int]:
    """The count of each process by its id. A process that has written none is left out. {} without the
    folder.

    If two results differ, work was done in between. This is also true of a smaller number, because the system
    reuses process ids.
    """
    counts = {}
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError, ValueError):
                counts[entry.name] = int(Path(entry.path).read_bytes())
    return counts
