"""The processes of a session, as Linux shows them: lists them, finds stopped ones, and kills all.

A child is started as the leader of a session of its own (`supervisor.spawn`). Its own children stay in that
session, whatever process groups it makes. Signals to the child's group are not enough: Spark's worker daemon
makes a group of its own, so they do not reach the Python workers. And a stopped process does not notice that
its parent is gone; only SIGKILL ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.log import event

LOG: Final = logging.getLogger(__name__)

PROC: Final = Path("/proc")
LOOK_AGAIN_S: Final = 0.02
UNKILLABLE_S: Final = 5.0
"""How long killed processes are waited for; one that is in a call to a dead disk does not end."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process."""

    pid: int
    name: str
    """The name of its program in the kernel: at most 15 characters."""
    state: str
    """A letter: R runs, S sleeps, D waits for a disk, T was stopped by a signal, t by a debugger."""


def members(session: int) -> list[Member]:
    """The processes of a session that have not ended."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            # A process may end between listing and reading.
            with suppress(OSError):
                name, state, of = _stat(entry)
                if of == session and state not in "ZX":
                    found.append(Member(int(entry.name), name, state))
    return sorted(found, key=lambda one: one.pid)


def _stat(entry: Path) -> tuple[str, str, int]:
    """Name, state and session, by proc(5): `pid (name) state ppid pgrp session ...`."""
    # From the last parenthesis, because a program's name may contain some.
    head, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
    fields = rest.split()
    return head.partition("(")[2], fields[0], int(fields[3])


def described(session: int) -> str:
    """Why a session may hang, in words for users: its stopped processes, otherwise all of them."""
    there = members(session)
    stopped = [f"{one.name} ({one.pid})" for one in there if one.state in "Tt"]
    if stopped:
        return f"stopped by a signal: {', '.join(stopped)}"
    if not there:
        return "none of its processes is left"
    return "none is stopped: " + ", ".join(f"{one.name} ({one.pid}, {one.state})" for one in there)


async def kill_session(session: int) -> None:
    """SIGKILL every process of a session, including stopped ones; returns when they are gone.

    It looks again until none is left, because one may have forked just before. Processes that do not end
    within `UNKILLABLE_S` are left and logged.
    """
    until = asyncio.get_running_loop().time() + UNKILLABLE_S
    # docs/guarantees.md#a-hang-never-goes-unnoticed: a stopped process reacts neither to SIGTERM nor to
    # the end of its parent.
    while there := members(session):
        for one in there:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one.pid, signal.SIGKILL)
        if asyncio.get_running_loop().time() > until:
            event(LOG, logging.ERROR, "killed processes do not end", processes=described(session))
            return
        await asyncio.sleep(LOOK_AGAIN_S)
