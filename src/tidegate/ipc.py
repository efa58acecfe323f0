"""The sockets between the processes of one capture: length-prefixed JSON over a Unix socket.

Frame: u32 BE length, then that many bytes of JSON, a typed message. A frame over 16 MiB is refused. The
control process listens; pullers and the application connect and introduce themselves (`model.reports`). The
control process uses asyncio for these frames; this file has the frame and the blocking side. The application
uses the same frames with its workers (`pipeline.exchange.work`).
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tidegate.errors import Retryable
from tidegate.model.reports import Hello, Report, parse, to_json
from tidegate.model.wire import Kind

MAX_FRAME: Final = 16 << 20
HEADER: Final = struct.Struct(">I")


def frame(report: Report) -> bytes:
    """A message as bytes on the socket."""
    return framed(to_json(report))


def framed(message: Mapping[str, Any]) -> bytes:
    """A message in JSON, as bytes on the socket."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"a message of {len(body)} bytes exceeds {MAX_FRAME}")
    return HEADER.pack(len(body)) + body


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object in a frame. Raises ValueError if it is none."""
    try:
        message = json.loads(body)
    except RecursionError as error:
        raise ValueError("a control message is nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("a control message is no object")
    return message


class FramedSocket:
    """A connected socket that carries frames; `send` may be called from several threads."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()

    def send(self, frame: bytes) -> None:
        """Send one frame; raises OSError if the other end is gone."""
        with self._lock:
            self._socket.sendall(frame)

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a message in JSON; raises as `send`, and ValueError if it is too long."""
        self.send(framed(message))

    def offer_message(self, message: Mapping[str, Any]) -> bool:
        """Send a short message if that takes no wait; returns whether it was sent. Raises OSError if the
        other end is gone.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            # A Unix socket takes a short message as a whole or not at all.
            self._socket.send(framed(message), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        finally:
            self._lock.release()
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next message, or None if the other end has closed the socket or is gone. Blocks.

        Raises ValueError for invalid bytes; the connection cannot be used after that.
        """
        header = self._exactly(HEADER.size)
        if header is None:
            return None
        (length,) = HEADER.unpack(header)
        if length > MAX_FRAME:
            raise ValueError(f"a message of {length} bytes exceeds {MAX_FRAME}")
        body = self._exactly(length)
        return None if body is None else parsed(body)

    def waits(self, timeout_s: float) -> bool:
        """Whether a message, or the connection's end, can be received within this many seconds."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    @property
    def ended(self) -> bool:
        """Whether the other end is gone and nothing more can be received."""
        try:
            # Looked at and not taken, because a message that waits there belongs to `receive`.
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the connection; a blocked `receive` returns None."""
        try:
            # `close` alone would not wake a thread that is blocked in `recv`.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self._socket.close()

    def _exactly(self, count: int) -> bytes | None:
        parts: list[bytes] = []
        while count:
            try:
                part = self._socket.recv(count)
            except OSError:
                return None
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


class ControlClient:
    """A blocking connection to the control process; `send` may be called from several threads."""

    def __init__(self, path: Path, hello: Hello) -> None:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.connect(str(path))
        except OSError as error:
            connected.close()
            raise Retryable("the control process does not answer", where=str(path), why=str(error)) from error
        self._line = FramedSocket(connected)
        self.send(hello)

    def send(self, report: Report) -> None:
        """Send one message; raises Retryable if the control process is gone."""
        try:
            self._line.send(frame(report))
        except OSError as error:
            raise Retryable("the control process is gone", why=str(error)) from error

    def receive(self, kinds: Sequence[type[Kind]]) -> Kind | None:
        """The next message, one of `kinds`, or None if the control process has closed the socket. Blocks.

        Raises Retryable for an invalid message; the connection cannot be used after that.
        """
        try:
            message = self._line.receive()
            return None if message is None else parse(message, kinds)
        except ValueError as error:
            raise Retryable(
                "the control process sent a text that is not a message", why=str(error)
            ) from error

    def close(self) -> None:
        """Close the connection; a blocked `receive` returns None."""
        self._line.close()


@contextmanager
def socket_name(path: Path) -> Iterator[str]:
    """A short name for a socket's path, because the kernel accepts at most 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
