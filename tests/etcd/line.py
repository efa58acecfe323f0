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
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.endpoint = f"http://{self.address}"
        self.requests, self.answers = threading.Event(), threading.Event()
        self.requests.set()
        self.answers.set()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        """Pass bytes in both directions until one end closes; if the server is gone, at once."""
        with near, contextlib.suppress(OSError), socket.create_connection(self._to) as far:
            ends = {near, far}
            self._open |= ends
            back = threading.Thread(target=self._pass, args=(far, near, self.answers), daemon=True)
            back.start()
            self._pass(near, far, self.requests)
            back.join()
            self._open -= ends

    def _pass(self, source: socket.socket, target: socket.socket, passes: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if passes.is_set():
                    target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def lose(self, *, requests: bool = True, answers: bool = True) -> None:
        """From now on requests, answers or both are lost without notice, as by a firewall."""
        for lost, passes in ((requests, self.requests), (answers, self.answers)):
            if lost:
                passes.clear()
        self.cut()

    def restore(self) -> None:
        """From now on nothing is lost."""
        self.requests.set()
        self.answers.set()
        self.cut()  # connections that have lost bytes are of no use

    def cut(self) -> None:
        """End all connections; new ones are accepted."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """For good."""
        with contextlib.suppress(OSError):  # closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # else a thread in `accept` takes one more
        self._listener.close()
        self.cut()
