"""The memory of a process, as the kernel counts it: mapped files included."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path


def resident(pid: int | str = "self") -> int:
    """Bytes of a process's resident memory; 0: it is gone."""
    return _status(pid, "VmRSS:")


def taken_by(act: Callable[[], object]) -> int:
    """How many bytes more this process had at most during a call than before it."""
    base = resident()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is now the present size
    except OSError:  # not every container may: look often instead
        return _watched(act) - base
    act()
    return _status("self", "VmHWM:") - base


def _watched(act: Callable[[], object]) -> int:
    most, done = [resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            most.append(max(most.pop(), resident()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        act()
    finally:
        done.set()
        watcher.join()
    return most[0]


def _status(pid: int | str, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), 0)
