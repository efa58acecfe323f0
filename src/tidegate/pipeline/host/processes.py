"""A handle of a process, by pidfd_open(2). Unlike a process id, it never refers to a later process."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process, by proc(5); False for one that a debugger has stopped."""
    try:
        # From the last parenthesis, because a program's name may contain some.
        _, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return False
    return rest.split()[:1] == ["T"]


class Process:
    """A process that is not our child. Raises ProcessLookupError if no process has that id."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    def kill(self) -> None:
        """Send SIGKILL, which also ends a stopped process."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> None:
        """Block until it has ended. A process that is blocked in a call to a dead disk does not end."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        poll.poll()

    def close(self) -> None:
        """Close the handle."""
        os.close(self._handle)
