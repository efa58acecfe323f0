"""A process by a handle that cannot come to mean another one, as a process id can: pidfd_open(2)."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress


class Process:
    """One that was not started here. Raises ProcessLookupError when there is none with that id."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    def kill(self) -> None:
        """SIGKILL, which ends stopped ones, too."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> None:
        """Until it has ended. One in a call to a dead disk does not."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        poll.poll()

    def close(self) -> None:
        """Let go of the handle."""
        os.close(self._handle)
