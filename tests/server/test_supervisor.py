import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.errors import Retryable
from tidegate.ipc import ControlClient, frame
from tidegate.model.reports import (
    TO_PULLER,
    ConnectionClosed,
    PipelineHello,
    PullerHello,
    Report,
    SpanStatus,
    Started,
    Status,
    Watch,
)
from tidegate.model.span import Span
from tidegate.server.supervision import supervisor
from tidegate.server.supervision.processes import described
from tidegate.server.supervision.supervisor import Connection, ControlSocket, spawn

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n",
]

WATCH = Watch(Span(b"a", b"b"), 7, True)
STARTED = Started({"span": 100})
PIPELINE = PipelineHello("default/one", 1, 1)


CORRALLED = [
    sys.executable,
    "-c",
    "import os, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], process_group=0)\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n",
]


def wait_until(true: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s: {what}"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def ready(log: Path) -> str:
    while not (log.exists() and log.read_text().endswith("\n")):
        await asyncio.sleep(0.02)
    return log.read_text()


def test_a_child_ends_on_request_and_says_how(tmp_path: Path) -> None:
    async def scenario() -> int:
        child = await spawn("sleeper", SLEEPER, tmp_path / "log")
        await ready(tmp_path / "log")
        return await child.stop()

    assert asyncio.run(scenario()) == -signal.SIGTERM


def test_a_childs_descendants_end_with_it_even_stopped_in_another_group(
    tmp_path: Path,
) -> None:
    """As Spark's Python workers are: the daemon makes a group, and a stopped one sees nothing of the end."""

    async def scenario() -> list[int]:
        child = await spawn("corralled", CORRALLED, tmp_path / "log")
        grandchild = int(await ready(tmp_path / "log"))
        os.kill(grandchild, signal.SIGSTOP)
        os.kill(child.pid, signal.SIGSTOP)
        async with asyncio.timeout(120):  # a busy machine lets it run on for a moment
            while "stopped by a signal" not in described(child.pid):
                await asyncio.sleep(0.01)
        await child.stop(grace_s=0.2)
        return [child.pid, grandchild]

    assert not any(runs(pid) for pid in asyncio.run(scenario()))


def test_what_a_dead_child_started_ends_when_it_is_stopped(tmp_path: Path) -> None:
    async def scenario() -> int:
        child = await spawn("corralled", CORRALLED, tmp_path / "log")
        grandchild = int(await ready(tmp_path / "log"))
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        await child.stop()
        return grandchild

    assert not runs(asyncio.run(scenario()))


def test_a_child_that_will_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    async def scenario() -> tuple[int, int]:
        child = await spawn("stubborn", STUBBORN, tmp_path / "log")
        grandchild = int(await ready(tmp_path / "log"))
        return await child.stop(grace_s=0.2), grandchild

    code, grandchild = asyncio.run(scenario())
    assert code == -signal.SIGKILL
    wait_until(lambda: not runs(grandchild), "the grandchild is gone")


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, pathlib\n"
        "from tidegate.server.supervision.supervisor import spawn\n"
        "async def main():\n"
        "    child = await spawn('sleeper', sys.argv[2:], pathlib.Path(sys.argv[1]))\n"
        "    print(child.pid, flush=True)\n"
        "    await child.wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log"), *SLEEPER], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text(), "child up")
        assert runs(child)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not runs(child), "the child is gone")


def test_messages_go_both_ways_and_the_end_is_reported(tmp_path: Path) -> None:
    received: list[Report] = []

    async def scenario() -> Report | None:
        done = asyncio.Event()

        async def receive(connection: Connection, report: Report) -> None:
            received.append(report)
            if isinstance(report, PullerHello):
                connection.send(WATCH)
            if isinstance(report, ConnectionClosed):
                done.set()

        server = ControlSocket(tmp_path / "control.sock", receive)
        await server.open()

        def child() -> Report | None:
            client = ControlClient(tmp_path / "control.sock", PullerHello("tidb", os.getpid()))
            reported = client.receive(TO_PULLER)
            client.send(Status([SpanStatus("x" * 100_000)]))
            client.close()
            return reported

        reported = await asyncio.to_thread(child)
        async with asyncio.timeout(120):
            await done.wait()
        await server.close()
        return reported

    assert asyncio.run(scenario()) == WATCH
    assert [type(each) for each in received] == [PullerHello, Status, ConnectionClosed]
    assert not (tmp_path / "control.sock").exists()


def test_bytes_that_are_no_frame_end_that_connection_only(tmp_path: Path) -> None:
    async def scenario() -> list[type]:
        received: list[type] = []

        async def receive(connection: Connection, report: Report) -> None:
            received.append(type(report))

        server = ControlSocket(tmp_path / "control.sock", receive)
        await server.open()
        reader, writer = await asyncio.open_unix_connection(tmp_path / "control.sock")
        writer.write(b"\xff\xff\xff\xff garbage")
        assert await reader.read() == b""
        writer.close()
        client = await asyncio.to_thread(ControlClient, tmp_path / "control.sock", PIPELINE)
        while received != [PipelineHello]:
            await asyncio.sleep(0.01)
        client.close()
        while received[-1] is not ConnectionClosed:
            await asyncio.sleep(0.01)
        await server.close()
        return received

    assert asyncio.run(scenario()) == [PipelineHello, ConnectionClosed]


HELLO = frame(PIPELINE)
HALF = struct.pack(">I", 100) + b'{"type": '


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HALF,
        b"\0\0",
        struct.pack(">I", 15 << 20),
        frame(Status([])),
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x04\xff\xfe\x00{",
        struct.pack(">I", 60_000) + b"[" * 60_000,
        HELLO + HALF,
        HELLO + struct.pack(">I", 15 << 20) + b"x",
        HELLO + b"\xff\xff\xff\xff",
        HELLO + struct.pack(">I", 1 << 20) + b"[" * (1 << 20),
        HELLO + b'\x00\x00\x00\x0a{"type":1}',
        HELLO + frame(Status([])),
        HELLO + frame(WATCH),
        HELLO + frame(STARTED).replace(b"100", b'"x"'),
        HELLO + frame(Started({"refused": 1})),
        frame(PipelineHello("other", 1, 1)),
    ],
)
def test_a_peer_that_misbehaves_loses_its_connection_and_costs_nobody_else(
    tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing, half a message and silence, huge lengths, random bytes, members that are missing or wrong,
    what only others may say, and what the handler does not take."""
    reported: list[type] = []

    async def receive(connection: Connection, report: Report) -> None:
        assert isinstance(connection.hello, PipelineHello)
        if connection.hello.changefeed == "good":
            reported.append(type(report))
        elif connection.hello.changefeed == "other" or isinstance(report, Started | ConnectionClosed):
            raise Retryable("no such changefeed")

    async def scenario() -> None:
        uncaught: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: uncaught.append(context))
        server = ControlSocket(tmp_path / "control.sock", receive, hello_s=600, frame_s=600)
        await server.open()
        good = await asyncio.to_thread(ControlClient, tmp_path / "control.sock", PipelineHello("good", 1, 1))
        while reported != [PipelineHello]:
            await asyncio.sleep(0.01)
        good.send(STARTED)
        while reported != [PipelineHello, Started]:
            await asyncio.sleep(0.01)
        # Only now, so that a slow machine does not make a stranger of the good one.
        server._hello_s = server._frame_s = 0.2
        reader, writer = await asyncio.open_unix_connection(tmp_path / "control.sock")
        writer.write(sent)
        try:
            async with asyncio.timeout(120):
                assert await reader.read() == b""
        except ConnectionError:
            assert len(sent) > 60_000, "reset, with bytes on the way that nobody reads"
        writer.close()
        server._frame_s = 600
        good.send(STARTED)
        good.close()
        while reported != [PipelineHello, Started, Started, ConnectionClosed]:
            await asyncio.sleep(0.01)
        await server.close()
        assert not uncaught

    asyncio.run(scenario())
    assert "control connection broken" in caplog.text


def test_so_many_may_be_silent_at_once_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "UNIDENTIFIED_MAX", 3)

    async def receive(connection: Connection, report: Report) -> None:
        connection.send(WATCH)

    async def scenario() -> None:
        server = ControlSocket(tmp_path / "control.sock", receive, hello_s=600)
        await server.open()
        silent = [await asyncio.open_unix_connection(tmp_path / "control.sock") for _ in range(3)]
        reader, writer = await asyncio.open_unix_connection(tmp_path / "control.sock")
        assert await reader.read() == b"", "closed at once"
        writer.close()
        silent[0][1].write(HELLO)
        assert await silent[0][0].readexactly(4)
        late = await asyncio.open_unix_connection(tmp_path / "control.sock")
        late[1].write(HELLO)
        assert await late[0].readexactly(4), "one that has introduced itself makes room"
        for _, each in (*silent, late):
            each.close()
        await server.close()

    asyncio.run(scenario())


def test_a_peer_that_does_not_read_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "UNREAD_MAX", 1 << 20)
    kept: list[Connection] = []

    async def receive(connection: Connection, report: Report) -> None:
        kept.append(connection)

    async def scenario() -> None:
        server = ControlSocket(tmp_path / "control.sock", receive)
        await server.open()
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.connect(str(tmp_path / "control.sock"))
        peer.send(HELLO)
        while not kept:
            await asyncio.sleep(0.01)
        for _ in range(100):
            kept[0].send(Watch(Span(b"a" * 50_000, b"b"), 1, True))
        assert kept[0].closed.is_set()
        assert kept[0].writer.transport.get_write_buffer_size() < 2 << 20
        while len(kept) < 2:
            await asyncio.sleep(0.01)  # its end is reported
        peer.close()
        await server.close()

    asyncio.run(scenario())


def test_a_child_that_is_sent_no_message_says_so(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()
        client = ControlClient(tmp_path / "control.sock", PullerHello("tidb", 1))
        peer, _ = listener.accept()
        peer.sendall(b"\0\0\0\4\xff\xff\0{")
        with pytest.raises(Retryable, match="not a message"):
            client.receive(TO_PULLER)
        client.close()
        peer.close()
