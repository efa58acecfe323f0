"""A connection between the application and a worker: typed messages, in order, each way.

A worker on the application's machine has a Unix socket (`ipc.FramedSocket`), one elsewhere a stream of gRPC.
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
"""Messages that were received and not asked for; the line of one that sends more is ended."""


class Line(Protocol):
    """As `ipc.FramedSocket`, of which this is what host and worker use."""

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message. Callable from several threads. Raises OSError when the other end is gone."""
        ...

    def receive(self) -> dict[str, Any] | None:
        """The next message, or None when the other end is gone. Blocks. Raises ValueError for nonsense."""
        ...

    def waits(self, timeout_s: float) -> bool:
        """Whether something can be received within so many seconds: a message, or the end."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the other end is gone, and nothing is left to be received."""
        ...

    def close(self) -> None:
        """End it; a blocked `receive` returns None."""
        ...


class StreamLine:
    """One end of a stream of gRPC. `feed` takes what comes in, `outgoing` gives what is to be sent."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        """`cancel`: ends the stream at once."""
        self._cancel = cancel
        self._changed = threading.Condition()
        self._in: deque[bytes] = deque()
        self._out: deque[bytes] = deque()
        self._closed = False

    def say(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            if self._closed:
                raise BrokenPipeError("the connection has ended")
            self._out.append(json.dumps(message, separators=(",", ":")).encode())
            self._changed.notify_all()

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
        """The stream has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_end(self) -> None:
        """Until it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed)

    def feed(self, incoming: Iterable[bytes]) -> None:
        """Take what comes, until the stream ends; however it does, nothing more will come."""
        try:
            for data in incoming:
                with self._changed:
                    if self._closed or len(self._in) == WAITING_MAX:
                        return
                    self._in.append(data)
                    self._changed.notify_all()
        except grpc.RpcError:
            return
        finally:
            self.end()

    def outgoing(self) -> Iterator[bytes]:
        """What is to be sent, until the stream ends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._out or self._closed)
                if not self._out:
                    return
                data = self._out.popleft()
            yield data
