"""Pullers and stand-in applications that are forked from a process which has imported their modules.

A puller imports for 0.6 s of CPU, the stand-in application for a second, and tests start hundreds of them.
Here one process imports both, and loads the compiled kernels. It forks a child for each request, as the
daemon of Spark's workers does, and reports its process id, and later how it has ended:

    spawn      -> {"program": ..., "arguments": [...], ...} and the log's descriptor -> main
               <- process id
               <- exit code

As a child of `supervisor.spawn`, one leads a session of its own, and a signal reaches it by its process id.
It is killed when its connection is closed, or when the process that forked it ends. That one ends when its
input does, a pipe of the tests' process. If it ends before, the next request starts another one.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegate.launcher import PR_SET_PDEATHSIG
from tidegate.program import loaded, starting
from tidegate.server.supervision import supervisor
from tidegate.server.supervision.supervisor import Child

REQUEST_MAX = 64 << 10
PRELOADED = os.environ.get("LD_PRELOAD")
PROGRAMS = ("tidegate.server.pulling.puller_process", "stand_in_application")
_lock = threading.Lock()
_running: list[tuple[subprocess.Popen[bytes], bytes]] = []
"""The process that forks, and its address; empty before the first request."""


class Forked:
    """The members of an asyncio process that `Child` uses."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self._writer = writer  # otherwise the connection would be closed
        self._end = asyncio.create_task(self._ended(reader))

    async def _ended(self, reader: asyncio.StreamReader) -> int:
        try:
            return int(await reader.readline() or -signal.SIGKILL)
        finally:  # at the end of the loop, too, which closes no connection itself
            self._writer.close()

    @property
    def returncode(self) -> int | None:
        return self._end.result() if self._end.done() and not self._end.cancelled() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._end)


async def spawn(name: str, command: Sequence[str], log: Path) -> Child:
    """As `supervisor.spawn`, which starts what is neither a puller nor the stand-in.

    Raises OSError if the process that forks has ended.
    """
    program, arguments = "", list[str]()
    match list(map(str, command)):
        case [_, "-m", "tidegate.program", program, *arguments]:
            pass
        case [_, file, *arguments]:
            program = Path(file).stem
    preloads = os.environ.get("LD_PRELOAD") != PRELOADED  # a library that is loaded when a program starts
    if program not in PROGRAMS or preloads:
        return await supervisor.spawn(name, command, log)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(_address())
        socket.send_fds(connection, [_request(program, arguments)], [output.fileno()])
        reader, writer = await asyncio.open_connection(sock=connection.dup())
    try:
        pid = await reader.readline()
        if not pid:
            raise ConnectionResetError("the process that forks has ended: its standard error says why")
    except BaseException:
        writer.close()
        raise
    return Child(name, Forked(int(pid), reader, writer))


def _request(program: str, arguments: list[str]) -> bytes:
    # `os.umask` would change it for other threads.
    mask = re.search(r"^Umask:\s*(\d+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert mask is not None
    wanted = {"program": program, "arguments": arguments, "environment": {**os.environ}, "umask": mask[1]}
    return json.dumps(wanted | {"folder": str(Path.cwd())}).encode() + b"\n"


def _address() -> bytes:
    """The address of this process's `main`, which the first call starts, or one after its end."""
    with _lock:
        if not _running or _running[0][0].poll() is not None:
            # It is closed here, because otherwise a request after the end of `main` would wait for ever.
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind("")  # an address in no folder, which the kernel makes
                listener.listen(64)
                number, address = listener.fileno(), listener.getsockname()
                command = [sys.executable, __file__, str(number)]
                # Ctrl-C is for the tests, which end it.
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, pass_fds=[number], start_new_session=True
                )
            _running[:] = [(process, address)]
        return _running[0][1]


def _begin(program: Callable[[], object], wanted: Mapping[str, Any], log: int, others: Sequence[int]) -> int:
    """The process id of a child that runs `program`; it closes the descriptors `others`.

    Returns when the child leads its session, because `Child.stop` finds the child by it.
    """
    parent = os.getpid()
    begun, begins = os.pipe()
    if pid := os.fork():
        os.close(begins)
        os.read(begun, 1)  # its end
        os.close(begun)
        return pid
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it had ended before prctl
            os._exit(1)
        os.setsid()
        os.close(begun)
        os.close(begins)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        for descriptor in (nothing, log, *others):
            os.close(descriptor)
        os.umask(int(wanted["umask"], 8))
        os.chdir(wanted["folder"])
        os.environ.clear()
        os.environ.update(wanted["environment"])
        sys.argv[:] = [wanted["program"], *wanted["arguments"]]
        program()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def main(listener: socket.socket, programs: Mapping[str, Callable[[], object]]) -> None:
    """Fork a child for each connection until the standard input ends."""
    woken, wakes = os.pipe()
    for descriptor in (woken, wakes):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes)
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, woken, listener, *children.values()], [], [])
        if 0 in ready:
            return
        for pid in [pid for pid, connection in children.items() if connection in ready]:
            os.kill(pid, signal.SIGKILL)  # nobody waits for it any more
        if woken in ready:
            os.read(woken, 4096)
            _reap(children)
        if listener in ready:
            connection, _ = listener.accept()
            request, (log,), _, _ = socket.recv_fds(connection, REQUEST_MAX, 1)
            while not request.endswith(b"\n"):
                more = connection.recv(REQUEST_MAX)
                assert more, "the request ended early"
                request += more
            wanted = json.loads(request)
            others = [woken, wakes, *(one.fileno() for one in (listener, connection, *children.values()))]
            pid = _begin(programs[wanted["program"]], wanted, log, others)
            os.close(log)
            children[pid] = connection
            _report(connection, pid)


def _reap(children: dict[int, socket.socket]) -> None:
    """Report how children have ended."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            with children.pop(found[0]) as connection:
                _report(connection, os.waitstatus_to_exitcode(found[1]))


def _report(connection: socket.socket, number: int) -> None:
    """Send it, unless nobody waits for it any more."""
    with suppress(OSError):
        connection.sendall(f"{number}\n".encode())


if __name__ == "__main__":
    starting()
    import stand_in_application

    from tidegate.kernel import load_compiled
    from tidegate.server.pulling import puller_process

    load_compiled()
    loaded()
    mains = (puller_process.main, stand_in_application.main)
    main(socket.socket(fileno=int(sys.argv[1])), dict(zip(PROGRAMS, mains, strict=True)))
