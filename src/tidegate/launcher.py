"""Child processes that end with their parent, in whatever way the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
_LAUNCHER: Final = (
    "import ctypes,os,sys;"
    f"ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG},int(sys.argv[2]));"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);"
    "os.execvp(sys.argv[3],sys.argv[3:])"
)


def bound(command: Sequence[str | Path], number: signal.Signals) -> list[str]:
    """A command that runs `command` in its own process, which gets the signal `number` when this one ends.

    A fresh interpreter (15 ms) asks for the signal. A function that Popen calls between fork and exec
    (preexec_fn) is not usable: it would fork the whole process with its threads and locks, and gRPC's fork
    handlers abort one child in fifty if other threads are inside gRPC.
    """
    return [
        sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(number)), *map(str, command)
    ]  # fmt: skip


def bind_forks(number: signal.Signals) -> None:
    """From now on, let each process forked from this one get the signal `number` when this one ends."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def in_child() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:  # the parent had ended before prctl
            os._exit(1)

    os.register_at_fork(after_in_child=in_child)
