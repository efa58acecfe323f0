"""The line that tests cut: its own promises, without which a test of a cut proves nothing."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from tests.etcd.line import Line


def echo(listener: socket.socket) -> None:
    """Answer each message with itself, one connection after the other."""
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        with near:
            while data := near.recv(100):
                near.sendall(data)


def ask(line: Line, patience_s: float = 60.0) -> bytes:
    """The answer; empty if the connection ends without one. Raises TimeoutError if there is none."""
    host, _, port = line.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=patience_s) as connection:
        connection.sendall(b"x")
        return connection.recv(100)


def test_a_line_loses_what_it_is_asked_to_and_passes_the_rest_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
        line = Line(f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert ask(line) == b"x"
        for lost in ({}, {"requests": False}, {"answers": False}):
            line.lose(**lost)
            with pytest.raises(TimeoutError):
                ask(line, 0.3)
            line.restore()
            assert ask(line) == b"x"
        line.close()
        with pytest.raises(ConnectionRefusedError):
            ask(line)
        listener.shutdown(socket.SHUT_RDWR)


def test_a_line_outlives_the_absence_of_its_server() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # refuses connections until it listens, and nobody else gets the port
        line = Line(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with contextlib.suppress(ConnectionError):
            assert ask(line) == b""
        listener.listen()
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
        assert ask(line) == b"x"
        listener.shutdown(socket.SHUT_RDWR)
    line.close()
