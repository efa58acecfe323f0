"""PD's port: gRPC and HTTP behind one address, as a real PD serves them.

A gRPC server cannot share its port with another protocol. Therefore a separate process (`relay`) accepts the
connections and passes each to the gRPC server or to the HTTP pages, which listen at Unix sockets in the
abstract namespace. This process holds the listening socket, so a client that connects while the relay starts,
or restarts after a kill, waits instead of being refused.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from tidegate.errors import InvalidInput

BACKLOG: Final = 512
AGAIN_S: Final = 0.2
"""The pause before a relay that ended unexpectedly is restarted."""
RELAY: Final = Path(__file__).with_name("relay.py")


class Front:
    """A port whose connections go to `grpc` or `http`, two Unix sockets. `stop` may be called once."""

    def __init__(self, address: str) -> None:
        """Listen at host:port, port 0 for a free one. Raises InvalidInput if that is not possible."""
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        # Without it a restart could not use the same port while old connections are in TIME_WAIT.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((host.strip("[]"), int(port)))
            self._listener.listen(BACKLOG)
        except (OSError, OverflowError, ValueError) as error:
            self._listener.close()
            raise InvalidInput(
                "the upstream cannot listen", where=address, why=str(error), fix="choose a free --pd address"
            ) from error
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        name = f"tidegate-{os.getpid()}-{secrets.token_hex(8)}"
        self.grpc, self.http = f"{name}-grpc", f"{name}-http"
        self._stopping = threading.Event()
        # The kernel closes the pipe however this process ends, and then the relay ends, too.
        self._life, self._end = os.pipe()
        self._child: subprocess.Popen[bytes] | None = None
        self._supervisor = threading.Thread(target=self._supervise, name="pd front", daemon=True)

    def start(self) -> None:
        """Start the relay."""
        self._child = self._spawn()
        self._supervisor.start()

    def stop(self) -> None:
        """Refuse new connections and end the open ones."""
        self._stopping.set()
        os.close(self._end)
        # Before the sockets are closed: the supervisor may be starting a relay, which inherits them.
        if self._supervisor.is_alive():
            self._supervisor.join()
        self._listener.close()
        os.close(self._life)

    def _supervise(self) -> None:
        while self._child is not None:
            self._child.wait()
            if self._stopping.wait(AGAIN_S):
                return
            self._child = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        fds = (self._listener.fileno(), self._life)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(RELAY), *map(str, fds), self.grpc, self.http],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,  # Ctrl+C must reach only the upstream, which then stops the relay
        )
