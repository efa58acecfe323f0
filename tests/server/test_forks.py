"""Children that `forks` starts end, and are reported, as those of `supervisor.spawn`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
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
    assert os.getsid(child.pid) == child.pid, "at once, because it is stopped by its session"
    try:
        async with asyncio.timeout(120):
            await working.wait()
        yield child
    finally:
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


def test_one_ends_at_the_end_of_its_loop(tmp_path: Path) -> None:
    kept: list[Child] = []

    async def scenario() -> None:
        async with application(tmp_path) as child:
            kept.append(child)
            os.kill(child.pid, signal.SIGSTOP)  # otherwise it would end with its connection to the capture

    asyncio.run(scenario())
    wait_until(lambda: not runs(kept[0].pid), "the child is gone")


def test_one_ends_when_the_tests_process_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_running", [])

    async def scenario() -> None:
        async with application(tmp_path) as child:
            (process, _), *_ = forks._running
            process.stdin.close()  # as the kernel does it for a process that ends
            assert process.wait(120) == 0
            assert await child.wait() == -signal.SIGKILL
            # The kernel has sent the signal by now, but a busy machine may not have run the child since.
            wait_until(lambda: not runs(child.pid), "the child is gone")

    asyncio.run(scenario())


def test_after_the_end_of_the_process_that_forks_another_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_running", [])

    async def scenario() -> None:
        async with application(tmp_path) as child:
            forks._running[0][0].kill()
            assert await child.wait() == -signal.SIGKILL
            forks._running[0][0].wait(120)
        async with application(tmp_path):
            pass
        (process, _), *_ = forks._running
        process.stdin.close()
        assert process.wait(120) == 0

    asyncio.run(scenario())


def test_another_program_is_started_as_usual(tmp_path: Path) -> None:
    async def scenario() -> None:
        child = await forks.spawn("other", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log")
        assert await child.wait() == 3

    asyncio.run(scenario())
