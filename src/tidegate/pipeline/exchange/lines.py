"""A connection between the application and a worker: typed messages, in order, each way.

A worker on the application's machine uses a Unix socket (`ipc.FramedSocket`), one elsewhere a gRPC stream.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import grpc

from tidegate.ipc import parsed

WAITING_MAX: Final = 1024
"""How many received messages may wait for `receive`. If the other end sends more, the line is ended."""


class Line(Protocol):
    """The part of `ipc.FramedSocket` that host and worker use."""

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a message. Callable from several threads. Raises OSError when the other end is gone."""
        ...

    def offer_message(self, message: Mapping[str, Any]) -> bool:
        """Send a short message if that takes no wait. Returns whether it was sent. Raises OSError when the
        other end is gone.
        """
        ...

    def receive(self) -> dict[str, Any] | None:
        """The next message, or None when the other end is gone. Blocks. Raises ValueError for
        invalid bytes.
        """
        ...

    def waits(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds. Returns whether `receive` would not block: a message,
        or the end.
        """
        ...

    @property
    def ended(self) -> bool:
        """Whether the other end is gone and no message is left."""
        ...

    def close(self) -> None:
        """End the line. A blocked `receive` returns None."""
        ...


class StreamLine:
    """One end of a gRPC stream. `feed` takes the incoming messages, `outgoing` gives those to send."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        """`cancel`: ends the stream at once."""
        self._cancel = cancel
        self._changed = threading.Condition()
        self._in: deque[bytes] = deque()
        self._out: deque[bytes] = deque()
        self._closed = False

    def send_message(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            if self._closed:
                raise BrokenPipeError("the connection has ended")
            self._out.append(json.dumps(message, separators=(",", ":")).encode())
            self._changed.notify_all()

    def offer_message(self, message: Mapping[str, Any]) -> bool:
        self.send_message(message)  # it never waits
        return True

    def receive(self) -> dict[str, Any] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._in or self._closed)
            data = self._in.popleft() if self._in else None
        return None if data is None else parsed(data)

    def waits(self, timeout_s: float) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._in or self._closed, timeout_s))

    @property
    def ended(self) -> bool:
        with self._changed:
            return self._closed and not self._in

    def close(self) -> None:
        self.end()
        self._cancel()

    def end(self) -> None:
        """Note that the stream has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_end(self) -> None:
        """Block until the stream has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed)

    def feed(self, incoming: Iterable[bytes]) -> None:
        """Take incoming messages until the stream ends, with or without an error."""
        try:
            for data in incoming:
                with self._changed:
                    # A peer that never waits for an answer would fill the memory, so its line ends.
                    if self._closed or len(self._in) == WAITING_MAX:
                        return
                    self._in.append(data)
                    self._changed.notify_all()
        except grpc.RpcError:
            return
        finally:
            self.end()

    def outgoing(self) -> Iterator[bytes]:
        """The messages to send, until the stream ends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._out or self._closed)
                # Messages from before the end are still sent.
                if not self._out:
                    return
                data = self._out.popleft()
            yield data
