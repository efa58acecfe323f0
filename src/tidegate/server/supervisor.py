"""Child processes of a capture, and the Unix socket between them and the control process.

A child dies with the control process: it is started through a launcher that sets the kernel's parent-death
signal (SIGKILL) before it becomes the child. Each child leads a session of its own, so that stopping
it takes along what it has started. Supervisor and socket live in one asyncio loop; no method blocks.

    Children  ---- spawn, watch, stop
    ControlSocket ---- hello, then messages of `tidegate.ipc`'s frames; one task per connection
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate.errors import Fatal
from tidegate.ipc import HEADER, MAX_FRAME, frame
from tidegate.log import event
from tidegate.server.processes import kill_session

LOG: Final = logging.getLogger(__name__)

PR_SET_PDEATHSIG: Final = 1
_LAUNCHER: Final = (
    "import ctypes,os,sys;"
    f"ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG},{int(signal.SIGKILL)});"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);"
    "os.execv(sys.argv[2],sys.argv[2:])"
)
"""Runs in a fresh interpreter (15 ms): code between fork and exec of a process with threads is not safe."""

GRACE_S: Final = 5.0
"""Between SIGTERM and SIGKILL."""
LAST_WORDS_S: Final = 1.0
"""How long messages of a dead child are still waited for."""

Message = dict[str, Any]


class Child:
    """One running child process."""

    def __init__(self, name: str, process: Process) -> None:
        self.name, self._process = name, process
        self.pid = process.pid

    async def wait(self) -> int:
        """Its exit code; negative: the signal that ended it."""
        return await self._process.wait()

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def stop(self, grace_s: float = GRACE_S) -> int:
        """SIGTERM to its group, after `grace_s` seconds SIGKILL to its session; returns when all are gone."""
        if self.alive and grace_s > 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
        # Its leader may be gone and the rest not: a stopped process does not notice.
        await kill_session(self.pid)
        return await self._process.wait()


async def spawn(
    name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Child:
    """Start a child whose output is appended to `log`; raises Fatal when it cannot be started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                "-c",
                _LAUNCHER,
                str(os.getpid()),
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment) if environment is not None else None,
                start_new_session=True,
            )
        except OSError as error:
            raise Fatal(f"The {name} process cannot be started.", where=command[0], why=str(error)) from error
    event(LOG, logging.INFO, "process started", process=name, pid=process.pid)
    return Child(name, process)


@dataclass(slots=True, eq=False)
class Connection:
    """One child's end of the socket, after its hello."""

    hello: Message
    writer: asyncio.StreamWriter
    closed: asyncio.Event

    def send(self, message: Message) -> None:
        """Queue a message; one to a closed connection is dropped, since its process is gone."""
        if not self.closed.is_set():
            self.writer.write(frame(message))


Handler = Callable[[Connection, Message], Awaitable[None]]


class ControlSocket:
    """Listens on a Unix socket; hands each message, hello first, `{"type": "gone"}` last, to the handler."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self._path, self._handler = path, handler
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._closing = False

    async def open(self) -> None:
        """Start listening; a socket file left behind is replaced."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        self._closing = True
        if self._server is not None:
            self._server.close()
            for connection in list(self._connections):
                connection.writer.close()
            await self._server.wait_closed()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection: Connection | None = None
        try:
            hello = await _read(reader)
            if hello is None or hello.get("type") != "hello":
                return
            connection = Connection(hello, writer, asyncio.Event())
            self._connections.add(connection)
            await self._handler(connection, hello)
            while (message := await _read(reader)) is not None:
                await self._handler(connection, message)
        except (OSError, ValueError) as error:
            if not self._closing:
                event(LOG, logging.WARNING, "control connection broken", reason=str(error))
        finally:
            if connection is not None:
                self._connections.discard(connection)
                connection.closed.set()
                await self._handler(connection, {"type": "gone"})
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Message | None:
    """The next message, None at the end of the stream; ValueError when it is not a frame."""
    try:
        (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        if length > MAX_FRAME:
            raise ValueError(f"a control message of {length} bytes exceeds {MAX_FRAME}")
        body = await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return None
    message = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError("a control message is not an object")
    return message
