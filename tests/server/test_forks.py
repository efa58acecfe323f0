"""Children that `forks` starts end, and are reported, as those of `supervisor.spawn`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.server import forks
from tests.server.test_supervisor import runs, wait_until

from tidegate import program
from tidegate.model.reports import Working
from tidegate.server.supervision.supervisor import Child, ControlSocket

PULLER = "tidegate.server.pulling.puller_process"
STAND_IN = Path(forks.__file__).with_name("stand_in_application.py")


@asynccontextmanager
async def application(folder: Path) -> AsyncIterator[Child]:
    """A stand-in that has reported itself."""
    working = asyncio.Event()

    async def receive(connection: object, report: object) -> None:
        if isinstance(report, Working):
            working.set()

    listening = ControlSocket(folder / "socket", receive)
    await listening.open()
    command = ["python", str(STAND_IN), str(folder), str(folder / "socket")]
    child = await forks.spawn("application", command, folder / "log")
    await working.wait()
    yield child
    await listening.close()


def test_an_error_is_in_the_log_and_the_exit_code_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = tmp_path / "logs" / "puller.log"
        child = await forks.spawn("puller", program.command(PULLER), log)
        assert await child.wait() == 1
        assert not child.alive
        assert "IndexError" in log.read_text(), "it has no arguments"

    asyncio.run(scenario())


def test_one_leads_a_session_and_a_signal_ends_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with application(tmp_path) as child:
            assert child.alive
            assert os.getsid(child.pid) == child.pid
            os.kill(child.pid, signal.SIGKILL)
            assert await child.wait() == -signal.SIGKILL
            assert not runs(child.pid)

    asyncio.run(scenario())


def test_one_ends_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with application(tmp_path) as child:
            child._process._writer.close()  # as at the end of a loop
            assert await child.wait() == -signal.SIGKILL
            wait_until(lambda: not runs(child.pid), "the child is gone")

    asyncio.run(scenario())


def test_one_ends_when_the_tests_process_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_running", [])

    async def scenario() -> None:
        async with application(tmp_path) as child:
            (process, listener), *_ = forks._running
            process.stdin.close()  # as the kernel does it for a process that ends
            assert process.wait(120) == 0
            listener.close()
            assert await child.wait() == -signal.SIGKILL
            assert not runs(child.pid)

    asyncio.run(scenario())
