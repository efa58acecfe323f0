"""Child processes of a capture, and the Unix socket between them and the control process.

A child dies with the control process, because it is started through a launcher that sets the kernel's
parent-death signal (SIGKILL) before it becomes the child. Each child leads a session of its own, so that
stopping it also stops what it has started. Supervisor and socket live in one asyncio loop; no method blocks.

    Children  ---- spawn, watch, stop
    ControlSocket ---- hello, then messages of `tidegate.ipc`'s frames; one task per connection

A bad peer loses only its own connection, and the socket stays open. A peer is bad if it does not introduce
itself, does not finish a message, sends something that is no message, or does not read its messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.errors import Fatal, TidegateError
from tidegate.ipc import HEADER, MAX_FRAME, frame, parsed
from tidegate.launcher import bound
from tidegate.log import event
from tidegate.model.reports import HELLOS, REPORTS_AFTER, ConnectionClosed, Hello, Report, parse
from tidegate.model.wire import Kind
from tidegate.server.supervision.processes import kill_session

LOG: Final = logging.getLogger(__name__)

GRACE_S: Final = 5.0
"""The time between SIGTERM and SIGKILL."""
LAST_WORDS_S: Final = 1.0
"""How long messages of a dead child are still accepted."""

HELLO_S: Final = 10.0
"""How long a connection may take to introduce itself."""
FRAME_S: Final = 60.0
"""How long a message may take from its first byte to its last."""
HELLO_MAX: Final = 64 << 10
UNIDENTIFIED_MAX: Final = 256
"""The most connections that have not introduced themselves; one more is closed at once."""
UNREAD_MAX: Final = 128 << 20
"""The most bytes, about 600,000 spans, that wait for a peer to read them; then its connection is closed."""


class Child:
    """One running child process."""

    def __init__(self, name: str, process: Process) -> None:
        self.name, self._process = name, process
        self.pid = process.pid

    async def wait(self) -> int:
        """Wait for its exit code; a negative one is the signal that ended it."""
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
        # The leader may be gone while others are stopped: a stopped process does not notice its parent's end.
        await kill_session(self.pid)
        return await self._process.wait()


async def spawn(
    name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Child:
    """Start a child whose output is appended to `log`; raises Fatal if it cannot be started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *bound(command, signal.SIGKILL),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment) if environment is not None else None,
                # A session of its own, which `kill_session` ends with everything that the child has started.
                start_new_session=True,
            )
        except OSError as error:
            raise Fatal(
                f"the {name} process cannot be started",
                where=command[0],
                why=str(error),
                fix="remove the cause, and start the capture again",
            ) from error
    event(LOG, logging.INFO, "process started", process=name, pid=process.pid)
    return Child(name, process)


Spawn = Callable[[str, Sequence[str], Path], Awaitable[Child]]
"""Starts a child as `spawn` does, given its name, command and log."""


@dataclass(slots=True, eq=False)
class Connection:
    """One child's connection to the socket, after its hello."""

    hello: Hello
    writer: asyncio.StreamWriter
    closed: asyncio.Event

    def send(self, report: Report) -> None:
        """Queue a message. A message to a closed connection is dropped, because its process is gone.

        A peer that leaves more than `UNREAD_MAX` bytes unread loses its connection.
        """
        if self.closed.is_set():
            return
        self.writer.write(frame(report))
        if self.writer.transport.get_write_buffer_size() > UNREAD_MAX:
            event(LOG, logging.WARNING, "control connection closed", reason="its messages are not read")
            self.closed.set()
            # Not `close`, which would keep the connection until the peer has read everything.
            self.writer.transport.abort()


Handler = Callable[[Connection, Report], Awaitable[None]]


class ControlSocket:
    """Listens on a Unix socket; gives messages to the handler, the hello first, `ConnectionClosed` last."""

    def __init__(
        self, path: Path, handler: Handler, hello_s: float = HELLO_S, frame_s: float = FRAME_S
    ) -> None:
        self._path, self._handler = path, handler
        self._hello_s, self._frame_s = hello_s, frame_s
        self._unidentified = 0
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._closing = False

    async def open(self) -> None:
        """Start listening; replaces a socket file that an earlier process has left."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        # Each process that can connect may send reports, so only those of this user can.
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
            hello = await self._hello(reader)
            if hello is None:
                return
            connection = Connection(hello, writer, asyncio.Event())
            self._connections.add(connection)
            await self._handler(connection, hello)
            while (report := await _read(reader, self._frame_s, REPORTS_AFTER[type(hello)])) is not None:
                await self._handler(connection, report)
        except BROKEN as error:
            if not self._closing:
                reason = f"{type(error).__name__}: {error}"
                event(LOG, logging.WARNING, "control connection broken", reason=reason)
        finally:
            writer.close()
            if connection is not None:
                self._connections.discard(connection)
                # Before its end is reported, so that the receiver of the report sends nothing more to it.
                connection.closed.set()
                await self._say_gone(connection)

    async def _hello(self, reader: asyncio.StreamReader) -> Hello | None:
        """The first message; None if the connection ends before. Raises as `_read`, and TimeoutError."""
        if self._unidentified >= UNIDENTIFIED_MAX:
            raise ValueError(f"{self._unidentified} connections have not introduced themselves yet")
        self._unidentified += 1
        try:
            async with asyncio.timeout(self._hello_s):
                return await _read(reader, self._hello_s, HELLOS, HELLO_MAX)
        finally:
            self._unidentified -= 1

    async def _say_gone(self, connection: Connection) -> None:
        try:
            await self._handler(connection, ConnectionClosed())
        except BROKEN as error:  # for example a hello that names no changefeed
            event(LOG, logging.WARNING, "end of a control connection not reported", reason=str(error))


BROKEN: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, TidegateError)
"""Errors that an invalid message causes, where it is read or where its members are used."""


async def _read(
    reader: asyncio.StreamReader, frame_s: float, kinds: Sequence[type[Kind]], longest: int = MAX_FRAME
) -> Kind | None:
    """The next message, one of `kinds`; None at the end of the stream. Waits for its first byte without
    limit.

    Raises ValueError if it is no frame, not one of `kinds`, or incomplete at the end of the stream;
    TimeoutError if the rest does not arrive in `frame_s`.
    """
    # Without a limit of time: a quiet child is no trouble, but one that stops within a message is.
    first = await reader.read(1)
    if not first:
        return None
    try:
        async with asyncio.timeout(frame_s):
            (length,) = HEADER.unpack(first + await reader.readexactly(HEADER.size - 1))
            if length > longest:
                raise ValueError(f"a control message of {length} bytes exceeds {longest}")
            body = await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ValueError("the connection ended within a message") from error
    except TimeoutError as error:
        raise TimeoutError(f"a control message is not whole after {frame_s:.0f} s") from error
    return parse(parsed(body), kinds)
