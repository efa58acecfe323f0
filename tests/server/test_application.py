"""The control process and its application: started when wanted, sent its work, replaced when it is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from tidegate.clock import SystemClock
from tidegate.model.reports import AtWork, Working
from tidegate.server.delivery import application
from tidegate.server.delivery.application import Application, Running
from tidegate.server.supervision.supervisor import Connection, ControlSocket

WAIT_S: Final = 60.0
PLAYED: Final = """
import os, signal, sys, time
from pathlib import Path
from tidegate.errors import Retryable
from tidegate.ipc import ControlClient
from tidegate.model.reports import TO_APPLICATION, ApplicationHello, AtWork, End, Ended, Failed, Run, Working

folder = Path(sys.argv[2])
(folder / "pids").open("a").write(f"{os.getpid()}\\n")
while (folder / "late").exists():
    time.sleep(0.01)
control = ControlClient(Path(sys.argv[1]), ApplicationHello(os.getpid()))
control.send(Working(1, (AtWork(7, "default/one", "deliver", 3),), ("default/two",)))
while (message := control.receive(TO_APPLICATION)) is not None:
    (folder / "received").open("a").write(f"{type(message).__name__} {message.changefeed}\\n")
    if message.changefeed == "fails":
        control.send(Failed.of(Retryable("No JVM.", why="none is installed")))
        sys.exit(1)
    if isinstance(message, End) and message.changefeed != "stuck":
        control.send(Ended(message.changefeed, message.incarnation))
"""
"""An application that does nothing but answer."""


class Played:
    """A control process's end, and the messages that its applications have received."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "work").mkdir()
        program = folder / "application.py"
        program.write_text(PLAYED)

        def command(socket: Path, _: Path) -> list[str]:
            return [sys.executable, str(program), str(socket), str(folder)]

        socket = folder / "control.sock"
        self.application = Application(command, socket, folder / "work", SystemClock())
        self._socket = ControlSocket(socket, self._receive)

    async def _receive(self, connection: Connection, report: Any) -> None:
        self.application.receive(connection, report)

    async def __aenter__(self) -> Played:
        await self._socket.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.application.stop()
        await self._socket.close()

    @property
    def received(self) -> list[str]:
        file = self.folder / "received"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def pids(self) -> list[int]:
        file = self.folder / "pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def run(self, name: str, incarnation: int = 1) -> Running:
        return self.application.run(name, incarnation, self.folder / "spec")

    async def until(self, what: Callable[[], Any]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not what():
                await asyncio.sleep(0.01)


Body = Callable[[Played], Coroutine[Any, Any, None]]


def played(folder: Path, body: Body) -> None:
    async def main() -> None:
        async with Played(folder) as it:
            await body(it)

    asyncio.run(main())


def test_it_is_started_with_the_first_changefeed_and_ends_each_by_itself(tmp_path: Path) -> None:
    async def body(it: Played) -> None:
        assert it.application.pid == 0
        one, two = it.run("one"), it.run("two")
        await it.until(lambda: len(it.received) == 2)
        assert it.pids == [it.application.pid]
        await it.application.end(one)
        assert (one.gone.is_set(), two.gone.is_set()) == (True, False)
        assert it.received == ["Run one", "Run two", "End one"]
        await it.application.end(one)

    played(tmp_path, body)


def test_a_feed_that_ends_before_the_application_gets_it_is_never_run(tmp_path: Path) -> None:
    async def body(it: Played) -> None:
        (tmp_path / "late").touch()
        one, two = it.run("one"), it.run("two")
        await it.until(lambda: it.pids)
        await it.application.end(one)
        assert one.gone.is_set()
        (tmp_path / "late").unlink()
        await it.until(lambda: it.received)
        assert it.received == ["Run two"]
        assert len(it.pids) == 1
        assert not two.gone.is_set()

    played(tmp_path, body)


def test_a_new_application_runs_only_what_is_wanted_after_the_old_one_died(
    tmp_path: Path,
) -> None:
    async def body(it: Played) -> None:
        one, two = it.run("one"), it.run("two")
        await it.until(lambda: len(it.received) == 2 and it.application.working != application.NOTHING)
        assert it.application.working == Working(
            1, (AtWork(7, "default/one", "deliver", 3),), ("default/two",)
        )
        os.kill(it.application.pid, signal.SIGKILL)
        for each in (one, two):
            async with asyncio.timeout(WAIT_S):
                await each.gone.wait()
            assert each.how == "signal 9"
        assert it.application.working == application.NOTHING
        await it.application.end(one)
        again = it.run("one", 2)
        await it.until(lambda: len(it.received) == 3)
        assert it.received[2] == "Run one"
        assert len(it.pids) == 2
        assert not again.gone.is_set()

    played(tmp_path, body)


def test_after_its_death_it_starts_once_before_changefeeds_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes long to start, and changefeeds wait a second and more before they try again."""
    monkeypatch.setattr(application, "APART_S", 0.05)

    async def body(it: Played) -> None:
        one = it.run("one")
        await it.until(lambda: it.received)
        os.kill(it.application.pid, signal.SIGKILL)
        await it.until(lambda: len(it.pids) == 2 and it.application.pid == it.pids[1])
        assert one.gone.is_set()
        # It has no incarnation to lose, so the next one starts only when a changefeed asks.
        os.kill(it.pids[1], signal.SIGKILL)
        await it.until(lambda: it.application.pid == 0)
        await asyncio.sleep(0.5)
        assert (it.application.pid, len(it.pids)) == (0, 2)
        it.run("two")
        await it.until(lambda: len(it.received) == 2)
        assert it.received[1] == "Run two"

    played(tmp_path, body)


def test_one_that_does_not_end_a_changefeed_is_killed_with_all_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a changefeed is said to be paused nobody may work for it any more."""
    monkeypatch.setattr(application, "END_S", 0.3)

    async def body(it: Played) -> None:
        stuck, other = it.run("stuck"), it.run("other")
        await it.until(lambda: len(it.received) == 2)
        await it.application.end(stuck)
        assert stuck.gone.is_set()
        assert other.gone.is_set()
        (first,) = it.pids
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)

    played(tmp_path, body)


def test_why_it_failed_is_said_to_all_that_it_was_to_run(tmp_path: Path) -> None:
    async def body(it: Played) -> None:
        one = it.run("one")
        await it.until(lambda: it.received)
        it.run("fails")
        async with asyncio.timeout(WAIT_S):
            await one.gone.wait()
        assert "No JVM." in one.how
        assert "none is installed" in one.how

    played(tmp_path, body)


def test_its_log_is_rotated_when_it_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "LOG_MAX", 100)
    log = tmp_path / "application.log"
    application.cut(log)
    with log.open("a") as writer:
        writer.write("a" * 100)
        writer.flush()
        application.cut(log)
        assert not (tmp_path / "application.log.1").exists()
        writer.write("b")
        writer.flush()
        application.cut(log)
        writer.write("c")
    assert (tmp_path / "application.log.1").read_text() == "a" * 100 + "b"
    assert log.read_text() == "c"
