"""A TCP line to a server that a test can cut: in one direction, in both, or for good."""

from __future__ import annotations

import contextlib
import socket
import threading


class Line:
    """Listens on a port of its own and passes bytes on. `answers` off: what the server says is lost."""

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition("://")[2].rpartition(":")
        self._to = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests, self.answers = threading.Event(), threading.Event()
        self.requests.set()
        self.answers.set()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._open += [near, far]
                threading.Thread(target=self._pass, args=(near, far, self.requests), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, self.answers), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, passes: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if passes.is_set():
                    target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End all connections; new ones are accepted."""
        broken, self._open = self._open, []
        for one in broken:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """For good."""
        with contextlib.suppress(OSError):  # closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # else a thread in `accept` takes one more
        self._listener.close()
        self.cut()
