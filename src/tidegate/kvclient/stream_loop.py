"""One thread for all long-lived streaming calls of a client, each on a connection of its own (`http2`).

gRPC's library hands each message from thread to thread, which for the marks of many quiet stores is most of
what a quiet capture does. Here one thread waits for all connections, reads, and gives the messages to the
call's receiver at once.

While no receiver is in a hurry (`StreamCall.hurry`) and much comes, the thread sleeps `GATHER_S` before it
looks again, so that one wake-up serves several calls. On a processor that was idle, the wake-up and the cold
caches after it cost several times as much as the work.

A receiver that has enough stops its peer by HTTP/2's window, at most `http2.WINDOW_BYTES` later. A peer that
says nothing is pinged; one that does not answer, because its process is stopped or its cable cut, is given up
at most `GIVE_UP_S` after its last word, rounded up to `LOOK_S`.

Connecting, which may wait for names, peers and TLS, has a short-lived thread for each attempt.
"""

from __future__ import annotations

import logging
import select
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import grpc

from tidegate.errors import InvalidInput
from tidegate.kvclient import http2
from tidegate.tls import Tls

LOG: Final = logging.getLogger(__name__)

READ_BYTES: Final = 256 << 10
CONNECT_S: Final = 10.0
LOOK_S: Final = 1.0
"""How often connections are looked at that say nothing."""
PING_S: Final = 10.0
GIVE_UP_S: Final = 15.0
"""After so long without a word from the peer: it is pinged, it is given up."""
GATHER_S: Final = 0.05
"""Marks may be so late, and the first row after a rest: the following ones find the loop in a hurry."""
GATHERS: Final = 1.5
"""So many connections must be expected to be ready in `GATHER_S` (`gathering_pays`)."""

Metadata = tuple[tuple[str, str], ...]


class Receiver(Protocol):
    """Who a call's messages are for. Called in the loop's thread, for which all other calls wait."""

    def received(self, messages: list[bytes]) -> bool:
        """Messages came. False: no more, until `StreamCall.resume`. An exception ends the call.

        What the peer may still send comes all the same, and the last answer counts.
        """
        ...

    def ended(self, code: grpc.StatusCode, details: str) -> None:
        """The call is over; the last call."""
        ...


class StreamCall:
    """One call. Any thread may call its methods; after its end they do nothing."""

    def __init__(self, loop: StreamLoop, address: str, machine: http2.Call, receiver: Receiver) -> None:
        """Made by `StreamLoop.call`."""
        self.address = address
        self._loop, self._machine, self._receiver = loop, machine, receiver
        self._socket: socket.socket | None = None
        self._is_paused = self._is_over = False
        self._mask = selectors.EVENT_READ
        self._heard_at = self._pinged_at = 0.0

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._loop.post(lambda: self._do(lambda: self._machine.send(message)))

    def cancel(self, why: str = "it was cancelled") -> None:
        """End the call; `Receiver.ended` follows."""
        self._loop.post(lambda: self._do(lambda: self._machine.cancel(why)))

    def resume(self) -> None:
        """Go on after `Receiver.received` was False."""
        self._loop.post(lambda: self._do(self._resume))

    def hurry(self, seconds: float) -> None:
        """Gather nothing for so long: whatever comes may be waited for."""
        self._loop.hurry(seconds)

    # --- in the loop's thread ------------------------------------------------------------------------

    def opened(self, connection: socket.socket, buffer: memoryview) -> None:
        """The connection is there; with TLS, the first bytes may have come with it."""
        if self._is_over:
            connection.close()
            return
        self._socket, self._heard_at = connection, time.monotonic()

        def begin() -> None:
            self._loop.selector.register(connection, self._mask, self)
            self._read(buffer)

        self._do(begin)

    def failed(self, why: str) -> None:
        """There is no connection."""
        self._do(lambda: self._machine.lost(why))

    def ready(self, mask: int, buffer: memoryview) -> None:
        """Read and write what is possible. `buffer`: to read into."""
        self._do(lambda: self._read(buffer) if mask & selectors.EVENT_READ else None)

    def look(self, now: float) -> None:
        """Ping a silent peer, or give it up."""
        if self._socket is None or now - self._heard_at < PING_S:
            return
        if self._pinged_at < self._heard_at:
            self._pinged_at = now
            self._do(self._machine.ping)
        elif now - self._pinged_at >= GIVE_UP_S - PING_S:
            self._do(lambda: self._machine.lost("the peer does not answer"))

    def _do(self, act: Callable[[], None]) -> None:
        """Do something with the call, then send what follows from it; ends the call when it is over."""
        if self._is_over:
            return
        try:
            act()
            self._write()
        except Exception as error:  # out of memory, a defect: the call must end, not fall silent
            self._machine.lost(f"its reader failed: {error!r}")
        if self._machine.end is not None:
            self._over(self._machine.end)

    def _resume(self) -> None:
        self._is_paused = False
        self._give()

    def _give(self) -> None:
        """Hand on what is compressed, then grant more, unless the receiver has enough."""
        while not self._is_paused and (messages := self._machine.unpacked()):
            self._is_paused = not self._receiver.received(messages)
        if not self._is_paused:
            self._machine.grant()

    def _read(self, buffer: memoryview) -> None:
        connection, machine = self._socket, self._machine
        assert connection is not None, "a socket is ready"
        while machine.end is None:
            try:
                size = connection.recv_into(buffer)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                machine.lost(_words(error))
                return
            if size == 0:
                machine.lost("the peer closed the connection")
                return
            self._heard_at = time.monotonic()
            messages = machine.receive(buffer[:size])
            if messages:
                self._is_paused = not self._receiver.received(messages)
            self._give()
            if not (isinstance(connection, ssl.SSLSocket) and connection.pending()):
                return

    def _write(self) -> None:
        connection, output = self._socket, self._machine.output
        if connection is None:
            return
        try:
            while output:
                del output[: connection.send(output)]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # the rest goes when the socket can take it
        except OSError as error:
            self._machine.lost(_words(error))
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if output else 0)
        if mask != self._mask:
            self._mask = mask
            self._loop.selector.modify(connection, mask, self)

    def _over(self, end: http2.End) -> None:
        self._is_over = True
        self._loop.calls.discard(self)
        if self._socket is not None:
            with suppress(KeyError):  # it could not be registered
                self._loop.selector.unregister(self._socket)
            self._socket.close()
        try:
            self._receiver.ended(end.code, end.details)
        except Exception:  # the other calls must go on
            LOG.exception("a receiver's end failed")


class StreamLoop:
    """The thread, which starts with the first call. Thread-safe."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._tls = tls
        self._lock = threading.Lock()  # guards `_posted`, `_thread`, `_closed`, `_is_over`
        self._posted: deque[Callable[[], None]] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._hurry_until = 0.0
        # Used by the loop's thread:
        self.calls: set[StreamCall] = set()
        self.selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self.selector.register(self._woken, selectors.EVENT_READ)
        self._look_at = self._looked_at = 0.0
        self._served = 0
        self._gathers = False
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._posts = select.poll()
        self._posts.register(self._woken, select.POLLIN)

    def call(self, address: str, path: str, metadata: Metadata, receiver: Receiver) -> StreamCall:
        """Begin a call of `path` (`/service/method`) at `host:port`; failing to connect is one of its ends.

        So is a certificate that cannot be read, as it may be half renewed. Raises InvalidInput if the loop is
        closed.
        """
        machine = http2.Call(address, path, metadata, scheme="http" if self._tls is None else "https")
        made = StreamCall(self, address, machine, receiver)
        with self._lock:
            if self._closed:
                raise InvalidInput("the client is closed", where=address)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
                self._thread.start()
        self.post(lambda: self.calls.add(made))
        threading.Thread(target=self._connect, args=(made,), name=f"connect-{address}", daemon=True).start()
        return made

    def drop(self, address: str) -> None:
        """End the calls at one address."""
        self.post(lambda: self._cancel("it was dropped", address))

    def close(self) -> None:
        """End all calls and the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
            if thread is None:
                self._end()
                return
        self.post(lambda: self._cancel("the client is closed"))
        if thread is not threading.current_thread():
            thread.join()

    def _cancel(self, why: str, address: str | None = None) -> None:
        for call in self.calls:
            if address in {None, call.address}:
                call.cancel(why)

    def post(self, task: Callable[[], None]) -> bool:
        """Have something done in the loop's thread, after what was posted before; False: the loop is over."""
        with self._lock:
            if self._is_over:
                return False
            self._posted.append(task)
            if len(self._posted) == 1:
                self._waker.send(b"w")
            return True

    def hurry(self, seconds: float) -> None:
        """Gather nothing for so long."""
        self._hurry_until = max(self._hurry_until, time.monotonic() + seconds)

    def _connect(self, call: StreamCall) -> None:
        host, _, port = call.address.rpartition(":")
        try:
            context = self._tls.streams() if self._tls is not None else None
            connection = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is not None:
                    connection = context.wrap_socket(connection, server_hostname=host.strip("[]"))
                connection.setblocking(False)
            except BaseException:
                connection.close()
                raise
        except Exception as error:  # a name that cannot be looked up, for one: the call must end
            why = _words(error)
            self.post(lambda: call.failed(why))
        else:
            if not self.post(lambda: call.opened(connection, self._buffer)):
                connection.close()

    def _run(self) -> None:
        while not self._ends():
            try:
                self._turn()
            except Exception as error:  # a defect: no call may fall silent
                LOG.exception("the streams' loop failed")
                why = f"the streams' loop failed: {error!r}"
                for call in list(self.calls):
                    call.failed(why)

    def _turn(self) -> None:
        if self._gathers and time.monotonic() >= self._hurry_until:
            self._posts.poll(GATHER_S * 1000)  # what is posted ends it: a request does not wait
        found = self.selector.select(LOOK_S if self.calls else None)
        now = time.monotonic()
        self._do_posted()
        for key, mask in found:
            if key.data is not None:
                key.data.ready(mask, self._buffer)
        self._served += len(found)
        if now >= self._look_at:
            self._gathers = gathering_pays(self._served, now - self._looked_at)
            self._served, self._looked_at, self._look_at = 0, now, now + LOOK_S
            for call in list(self.calls):
                call.look(now)

    def _ends(self) -> bool:
        """Whether the loop is closed and everything is done; then it is over."""
        with self._lock:
            if not self._closed or self.calls or self._posted:
                return False
            self._end()
            return True

    def _end(self) -> None:
        self._is_over = True
        self.selector.close()
        self._waker.close()
        self._woken.close()

    def _do_posted(self) -> None:
        if not self._posted:
            return  # what is posted from now on wakes the thread up
        with self._lock:
            tasks, self._posted = self._posted, deque()
            self._woken.recv(READ_BYTES)
        while tasks:
            try:
                tasks.popleft()()
            except Exception:  # out of memory, a defect: what was posted behind it must be done
                LOG.exception("a task of the streams' loop failed")


def gathering_pays(served: int, seconds: float) -> bool:
    """Whether to sleep before looking, where `served` connections were ready in the last `seconds`.

    Each sleep costs a wake-up of its own. It must spare at least half a wake-up of others.
    """
    return served * GATHER_S >= GATHERS * seconds


def _words(error: Exception) -> str:
    """What went wrong, the same each time: such words are logged once."""
    if isinstance(error, InvalidInput):
        return f"{error.what}: {error.where}: {error.why}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate was refused: {error.verify_message}"
    words = error.strerror if isinstance(error, OSError) else ""
    return words or str(error) or type(error).__name__
