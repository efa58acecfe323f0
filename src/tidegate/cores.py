"""How many cores this process may use: those of its affinity, and no more than its cgroup's quota.

A container that may use two cores of a machine with 64 has a quota in its cgroup, but its affinity names all
of them. If it runs a process for each, all are stopped for most of each period (`cpu.stat`, throttled).
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
"""The root of cgroup v2, in a container usually that of its own group."""
OWN: Final = Path("/proc/self/cgroup")


def usable(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """The cores that this process may use, at least 1. A part of a core counts as one."""
    quota = min(_quota(cgroups, own), len(os.sched_getaffinity(0)))
    return max(1, math.ceil(quota))


def _quota(cgroups: Path, own: Path) -> float:
    """The least quota of its group and of the groups around it; infinity: there is none.

    Linux Documentation/admin-guide/cgroup-v2.rst: a group's quota bounds all groups inside. The root of the
    machine has none, and a group outside of a container has no file in its view.
    """
    folder = cgroups / _own_group(own)
    around = [one for one in (folder, *folder.parents) if one.is_relative_to(cgroups)]
    return min(map(_read, [cgroups, *around]))


def _own_group(own: Path) -> str:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return ""
    # The line of cgroup v2. Others are of version 1, whose groups have no `cpu.max`.
    return next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")


def _read(folder: Path) -> float:
    """The quota of one group, in cores: `cpu.max` has microseconds and the period, or `max`."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # ValueError: it is `max`
        return math.inf
