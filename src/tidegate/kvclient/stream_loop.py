"""One thread for all long-lived streaming calls of a client, each on its own connection (`http2`).

gRPC's library passes each message from thread to thread. With many quiet stores, which send only marks, this
would be most of the work of a quiet capture. Here one thread waits for all connections, reads, and passes the
messages to the call's receiver at once.

While no receiver is in a hurry (`StreamCall.hurry`) and many messages arrive, the thread sleeps `GATHER_S`
before it looks again, so one wake-up serves several calls. If the CPU was idle, the wake-up and the cold
caches after it cost several times as much as the work itself.

If a receiver takes no more, HTTP/2's window stops the peer after at most `http2.WINDOW_BYTES` and the rest of
the frame that has begun, whose bytes are granted again when its head arrives. A silent peer
is pinged. If it does not answer, because its process is stopped or a cable is cut, its call ends at most
`GIVE_UP_S` after its last bytes, rounded up to `LOOK_S`.

Each attempt to connect has a short-lived thread, because it may wait for name resolution, the peer and TLS.
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
from tidegate.kvclient.grpc_messages import Message
from tidegate.slabs import Slabs
from tidegate.tls import Tls

LOG: Final = logging.getLogger(__name__)

READ_BYTES: Final = 256 << 10
PLACED_BYTES_MIN: Final = 16 << 10
"""If a message that has begun is missing at least so many bytes of a frame, they are read into its memory."""
BEHIND_BYTES: Final = 64 << 10
"""The bytes behind them that are read at the same time. They are copied once more, but are few."""
SLAB_BYTES_MIN: Final = 64 << 10
"""The memory of messages from this size on is used again."""
IDLE_BYTES_MAX: Final = 32 << 20
"""The most bytes of memory that waits for the next messages: a stream has one batch of them in work and one
waiting, and a message has a megabyte or two."""
CONNECT_S: Final = 10.0
LOOK_S: Final = 1.0
"""The interval at which silent connections are checked."""
PING_S: Final = 10.0
GIVE_UP_S: Final = 15.0
"""A peer that sends nothing is pinged after PING_S, and its call ends after GIVE_UP_S."""
GATHER_S: Final = 0.05
"""The longest delay of marks, and of the first row after a rest. That row ends the sleep for the rows after
it, as soon as its receiver has seen it (`hurry`).
"""
GATHERS: Final = 1.5
"""The loop sleeps only if at least this many connections should become ready in `GATHER_S`
(`gathering_pays`).
"""

Metadata = tuple[tuple[str, str], ...]


class Receiver(Protocol):
    """The receiver of a call's messages. Called in the loop's thread, so all other calls wait meanwhile."""

    def received(self, messages: list[Message]) -> bool:
        """Take messages. Return False to get no more until `StreamCall.resume`. An exception ends the call.

        Keep a reference to a message as long as its bytes are used. Its memory is used again afterwards.

        Messages that the peer may still send inside its window arrive anyway; the last return value counts.
        """
        ...

    def ended(self, code: grpc.StatusCode, details: str) -> None:
        """The streaming call has ended. This is the last call to the receiver."""
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
        self._received_at = self._pinged_at = 0.0

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._loop.post(lambda: self._do(lambda: self._machine.send(message)))

    def cancel(self, why: str = "it was cancelled") -> None:
        """End the call; `Receiver.ended` follows."""
        self._loop.post(lambda: self._do(lambda: self._machine.cancel(why)))

    def resume(self) -> None:
        """Continue after `Receiver.received` returned False."""
        self._loop.post(lambda: self._do(self._resume))

    def hurry(self, seconds: float) -> None:
        """Do not gather messages for this long, because a reader may wait for them."""
        self._loop.hurry(seconds)

    # --- in the loop's thread ------------------------------------------------------------------------

    def opened(self, connection: socket.socket, buffer: memoryview) -> None:
        """The connection is open. Read at once, because with TLS the first bytes may have arrived already."""
        if self._is_over:
            connection.close()
            return
        self._socket, self._received_at = connection, time.monotonic()

        def begin() -> None:
            self._loop.selector.register(connection, self._mask, self)
            self._read(buffer)

        self._do(begin)

    def failed(self, why: str) -> None:
        """Connecting failed; end the call."""
        self._do(lambda: self._machine.lost(why))

    def ready(self, mask: int, buffer: memoryview) -> None:
        """The socket is ready: read into `buffer`, and write as much as possible."""
        self._do(lambda: self._read(buffer) if mask & selectors.EVENT_READ else None)

    def look(self, now: float) -> None:
        """Ping a silent peer, or end its call."""
        if self._socket is None or now - self._received_at < PING_S:
            return
        # One ping for each silence; any byte after it counts as its answer.
        if self._pinged_at < self._received_at:
            self._pinged_at = now
            self._do(self._machine.ping)
        # Measured from the ping and not from the last byte: after a pause of this process, a peer that was
        # not asked yet would be given up.
        elif now - self._pinged_at >= GIVE_UP_S - PING_S:
            self._do(lambda: self._machine.lost("the peer does not answer"))

    def _do(self, act: Callable[[], None]) -> None:
        """Run `act` and send the resulting output; close the call if its machine has ended."""
        if self._is_over:
            return
        try:
            act()
            self._write()
        except Exception as error:  # for example out of memory: the call must end, not become silent
            self._machine.lost(f"its reader failed: {error!r}")
        if self._machine.end is not None:
            self._over(self._machine.end)

    def _resume(self) -> None:
        self._is_paused = False
        self._give()

    def _give(self) -> None:
        """Pass on compressed messages, then let the peer send more, unless the receiver is paused."""
        while not self._is_paused and (messages := self._machine.unpacked()):
            self._is_paused = not self._receiver.received(messages)
        if not self._is_paused:
            self._machine.grant()

    def _read(self, buffer: memoryview) -> None:
        connection, machine = self._socket, self._machine
        assert connection is not None, "a socket is ready"
        while machine.end is None:
            try:
                messages = self._received(connection, machine, buffer)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                machine.lost(_words(error))
                return
            if messages:
                self._is_paused = not self._receiver.received(messages)
            self._give()
            # Bytes that TLS has already decrypted do not make the socket readable, so they must be read
            # now.
            if not (isinstance(connection, ssl.SSLSocket) and connection.pending()):
                return

    def _received(self, connection: socket.socket, machine: http2.Call, buffer: memoryview) -> list[Message]:
        """Read once; returns the messages that are whole now. Raises OSError."""
        room = machine.room
        if len(room) < PLACED_BYTES_MIN:
            room = room[:0]
        elif isinstance(connection, ssl.SSLSocket):
            buffer = buffer[:0]  # TLS reads into one buffer at a time
        else:
            buffer = buffer[:BEHIND_BYTES]
        if room and buffer:
            size = connection.recvmsg_into([room, buffer])[0]
        else:
            size = connection.recv_into(room or buffer)
        if size == 0:
            machine.lost("the peer closed the connection")
            return []
        self._received_at = time.monotonic()
        # The socket may have more. A sleep now would delay it, and the peer's window would close.
        if size == len(room) + len(buffer):
            self._loop.has_more = True
        behind = size - len(room)
        messages = machine.placed(min(size, len(room))) if room else []
        return messages + machine.receive(buffer[:behind]) if behind > 0 else messages

    def _write(self) -> None:
        connection, output = self._socket, self._machine.output
        if connection is None:
            return
        try:
            while output:
                del output[: connection.send(output)]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # the rest is sent when the socket is writable again
        except OSError as error:
            self._machine.lost(_words(error))
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if output else 0)
        if mask != self._mask:
            self._mask = mask
            # Interest in writing only while something waits: otherwise the loop would never sleep.
            self._loop.selector.modify(connection, mask, self)

    def _over(self, end: http2.End) -> None:
        self._is_over = True
        self._loop.calls.discard(self)
        if self._socket is not None:
            with suppress(KeyError):  # its registration may have failed
                self._loop.selector.unregister(self._socket)
            self._socket.close()
        try:
            self._receiver.ended(end.code, end.details)
        except Exception:  # the other calls must continue
            LOG.exception("a receiver failed at the end of its call")


class StreamLoop:
    """The loop's thread, which starts with the first call. Thread-safe."""

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
        self.has_more = False
        """Whether a connection gave as much as was asked for, so it may have more at once."""
        self._waker, self._woken = socket.socketpair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self.selector.register(self._woken, selectors.EVENT_READ)
        self._look_at = self._looked_at = 0.0
        self._served = 0
        self._gathers = False
        self._buffer = memoryview(bytearray(READ_BYTES))
        self.slabs = Slabs(IDLE_BYTES_MAX)
        self._posts = select.poll()
        self._posts.register(self._woken, select.POLLIN)

    def call(self, address: str, path: str, metadata: Metadata, receiver: Receiver) -> StreamCall:
        """Begin a call of `path` (`/service/method`) at `host:port`. Raises InvalidInput on a closed loop.

        A failed connection ends the call (`Receiver.ended`) and raises nothing here. The same holds for a
        certificate that cannot be read, because it may be in the middle of a renewal.
        """
        scheme = "http" if self._tls is None else "https"
        machine = http2.Call(address, path, metadata, scheme=scheme, memory=self._memory)
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

    def _memory(self, size: int) -> memoryview:
        """Memory for a message."""
        return self.slabs.piece(size) if size >= SLAB_BYTES_MIN else memoryview(bytearray(size))

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
        # A receiver may close the client from inside the loop, and a thread cannot wait for itself.
        if thread is not threading.current_thread():
            thread.join()

    def _cancel(self, why: str, address: str | None = None) -> None:
        for call in self.calls:
            if address in {None, call.address}:
                # `cancel` only posts a task, so the set does not change during this loop.
                call.cancel(why)

    def post(self, task: Callable[[], None]) -> bool:
        """Run a task in the loop's thread, after those posted before. False: the loop has ended."""
        with self._lock:
            if self._is_over:
                return False
            self._posted.append(task)
            # One byte is enough until the tasks are taken; more would only fill the socket.
            if len(self._posted) == 1:
                self._waker.send(b"w")
            return True

    def hurry(self, seconds: float) -> None:
        """Do not gather messages for this long. A sleep that has begun ends."""
        now = time.monotonic()
        # Without a lock: a lost race sets a slightly earlier end, which costs one sleep.
        is_calm = now >= self._hurry_until
        self._hurry_until = max(self._hurry_until, now + seconds)
        if is_calm:
            self.post(lambda: None)

    def _connect(self, call: StreamCall) -> None:
        host, _, port = call.address.rpartition(":")
        try:
            context = self._tls.streams() if self._tls is not None else None
            connection = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
            try:
                # Requests are small. Nagle's algorithm would hold one back until the one before it is
                # acknowledged.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is not None:
                    connection = context.wrap_socket(connection, server_hostname=host.strip("[]"))
                connection.setblocking(False)
            except BaseException:
                connection.close()
                raise
        except Exception as error:  # for example a host name that cannot be resolved: the call must end
            why = _words(error)
            self.post(lambda: call.failed(why))
        else:
            # The loop has ended while the connection was made, so nobody else would close it.
            if not self.post(lambda: call.opened(connection, self._buffer)):
                connection.close()

    def _run(self) -> None:
        while not self._ends():
            try:
                self._turn()
            except Exception as error:  # a defect: no call may become silent
                LOG.exception("the streams' loop failed")
                why = f"the streams' loop failed: {error!r}"
                for call in list(self.calls):
                    call.failed(why)

    def _turn(self) -> None:
        may_sleep, self.has_more = self._gathers and not self.has_more, False
        if may_sleep and time.monotonic() >= self._hurry_until:
            self._posts.poll(GATHER_S * 1000)  # a posted task ends the wait, so requests are not delayed
        # The posted tasks run after the wait and before the sockets: a task may end a call whose socket is
        # ready.
        # Without calls nothing needs a look, and a posted task wakes the thread through `_woken`.
        found = self.selector.select(LOOK_S if self.calls else None)
        now = time.monotonic()
        self._do_posted()
        for key, mask in found:
            if key.data is not None:
                key.data.ready(mask, self._buffer)
                self._served += 1
        if now >= self._look_at:
            self._gathers = gathering_pays(self._served, now - self._looked_at)
            self._served, self._looked_at, self._look_at = 0, now, now + LOOK_S
            for call in list(self.calls):
                call.look(now)

    def _ends(self) -> bool:
        """Whether the loop is closed and has nothing left to do; if so, this ends it."""
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
            return  # a task that is posted from now on wakes the thread
        with self._lock:
            tasks, self._posted = self._posted, deque()
            # Within the lock: a task that is posted afterwards sends a new byte.
            self._woken.recv(READ_BYTES)
        while tasks:
            try:
                tasks.popleft()()
            except Exception:  # for example out of memory: the tasks behind this one must still run
                LOG.exception("a task of the streams' loop failed")


def gathering_pays(served: int, seconds: float) -> bool:
    """Whether to sleep before the next look, if `served` connections were ready in the last `seconds`.

    A sleep costs one wake-up itself, and should save at least half a wake-up more.
    """
    return served * GATHER_S >= GATHERS * seconds


def _words(error: Exception) -> str:
    """The cause of a failure, in words that are the same each time, because equal causes are logged once."""
    if isinstance(error, InvalidInput):
        return f"{error.what}: {error.where}: {error.why}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate was refused: {error.verify_message}"
    words = error.strerror if isinstance(error, OSError) else ""
    return words or str(error) or type(error).__name__
