"""Has the kernels compiled before a capture begins, if they are not compiled yet.

`make setup` compiles them. An installation without it would compile each kernel at its first use, in puller
and workers at the same time, while rows wait and nothing says why.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Final

from tidegate import kernel
from tidegate.errors import Fatal
from tidegate.launcher import bound
from tidegate.log import event

LOG: Final = logging.getLogger(__name__)

COMMAND: Final = "python -m tidegate.kernel"
WAITS_FOR: Final = "the kernels to be compiled, once after each installation"
SHOWN: Final = 2_000
"""The last characters of the compiler's errors that are shown."""


async def compile_kernels() -> None:
    """Compile all kernels in a process of its own, which takes some minutes. Raises Fatal if that fails."""
    event(LOG, logging.WARNING, "kernels are being compiled", fix=f"to do it beforehand: {COMMAND}")
    process = await asyncio.create_subprocess_exec(
        *bound([sys.executable, *COMMAND.split()[1:]], signal.SIGKILL),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate()
    # A start that is cancelled must not leave a process behind that compiles for minutes.
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode or not kernel.is_compiled():
        raise Fatal(
            "the kernels cannot be compiled",
            why=errors.decode(errors="replace")[-SHOWN:].strip() or f"exit {process.returncode}",
            fix=f"run {COMMAND} to see more; its folder must be writable",
        )
    event(LOG, logging.INFO, "kernels compiled")
