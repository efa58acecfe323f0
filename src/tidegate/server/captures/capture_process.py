"""The parts of a capture's process that outlive its sessions in etcd: folder lock, socket, application.

    CaptureProcess: lock, control socket, application
        Capture: session, puller, changefeeds ... the session ends
        Capture: the next session ...

Two captures that start Spark at the same time on two cores take 20 to 30 s. A session can end although the
application is sound: etcd restarts, or the capture is cut off from etcd or stopped for a while. So the
application stays, and only its incarnations end (`Application.end`). A capture that is elected again, or gets
ranges again, then delivers at once. If the application still writes for an incarnation of an earlier session,
the sink fences it, as it fences a writer that was stopped and woken.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

from tidegate.clock import Clock
from tidegate.model.reports import ApplicationHello, ConnectionClosed, FromApplication, Report
from tidegate.server.captures.data_folder import lock_folder
from tidegate.server.delivery.application import Application, ApplicationCommand
from tidegate.server.delivery.plan import Paths
from tidegate.server.supervision.supervisor import Connection, ControlSocket, Spawn

Receiver = Callable[[Connection, Report], Awaitable[None]]
"""Takes the reports of a capture's other children: pullers and pipelines."""


class CaptureProcess:
    """Shared by the captures of one process, one after the other. `close` may be called twice."""

    def __init__(self, command: ApplicationCommand, clock: Clock, spawn: Spawn) -> None:
        self._command, self._clock, self._spawn = command, clock, spawn
        self._lock: int | None = None
        self._socket: ControlSocket | None = None
        self._application: Application | None = None
        self._receiver: Receiver | None = None
        self._receivers: dict[Connection, Receiver] = {}
        """The receiver of each connection: a child belongs to the capture that started it."""
        self.last_lease = 0
        """The lease of the last session; 0: there was none. Its keys may still be in etcd."""

    def lock(self, data_dir: Path) -> None:
        """Lock the data folder, unless it is locked already. Raises InvalidInput if another has it."""
        if self._lock is None:
            self._lock = lock_folder(data_dir)

    async def open(self, paths: Paths, receiver: Receiver) -> Application:
        """The application, which runs as soon as it is needed. Other children report to `receiver` now."""
        self._receiver = receiver
        if self._application is None:
            self._application = Application(
                self._command, paths.socket, paths.application, self._clock, self._spawn
            )
        if self._socket is None:
            self._socket = ControlSocket(paths.socket, self._receive)
            await self._socket.open()
        return self._application

    async def close(self) -> None:
        """End everything. The captures have ended their own children before."""
        if self._application is not None:
            await self._application.stop()
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
        # Last, because nothing of this process may use the folder when another one locks it.
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    async def _receive(self, connection: Connection, report: Report) -> None:
        """Pass a report to its receiver. The peer's hello fixes which reports it may send; the socket rejects
        all others.
        """
        if isinstance(connection.hello, ApplicationHello):
            if self._application is not None:
                self._application.receive(connection, cast(FromApplication, report))
            return
        if self._receiver is None:
            return
        receiver = self._receivers.setdefault(connection, self._receiver)
        if isinstance(report, ConnectionClosed):
            del self._receivers[connection]
        await receiver(connection, report)
