"""A separate process: one port for gRPC and HTTP, as PD has. Uses only the standard library.

    python -I -S relay.py LISTENER_FD LIFE_FD GRPC_SOCKET HTTP_SOCKET

The first bytes of a connection show its protocol; then all bytes are passed to that server's Unix socket
(abstract names) and back, without interpretation. It is a process because every timestamp passes through it:
a thread would wait for the interpreter lock of a busy upstream at each message. It ends when the other end of
the pipe LIFE_FD is closed.

Bounds: `CONNECTIONS_MAX` open connections, others wait in the listener's queue; `HELD_MAX` bytes held in each
direction, then the sender is not read; a connection is closed if its protocol is unknown after `DECIDE_S`.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
import time
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every HTTP/2 connection without TLS (RFC 9113, section 3.4)."""
TLS_HANDSHAKE: Final = 0x16
CLIENT_HELLO: Final = 1
ALPN: Final = 16
HELLO_MAX: Final = 17 << 10
"""The most bytes of a first message that are examined: more than a TLS record."""
READ_BYTES: Final = 256 << 10
HELD_MAX: Final = 1 << 20
CONNECTIONS_MAX: Final = 4096
DECIDE_S: Final = 10.0


def is_grpc(first: bytes) -> bool | None:
    """Whether a connection that begins with these bytes is gRPC; None: more bytes are needed.

    With TLS a gRPC client offers only HTTP/2 (ALPN, RFC 7301); a client of PD's HTTP API also offers
    HTTP/1.1, or nothing.
    """
    if not first:
        return None
    if first[0] == TLS_HANDSHAKE:
        offered = protocols(first)
        return None if offered is None else b"h2" in offered and b"http/1.1" not in offered
    if first.startswith(PREFACE):
        return True
    return None if PREFACE.startswith(first) else False


def protocols(record: bytes) -> list[bytes] | None:
    """The application protocols that a TLS ClientHello offers; [] if none or malformed; None: incomplete."""
    if len(record) < 5:
        return None
    size = int.from_bytes(record[3:5], "big")
    if len(record) < 5 + size:
        # No TLS record is as long, so waiting for the rest would only hold memory.
        return None if len(record) < HELLO_MAX else []
    try:
        return _offered(record[5 : 5 + size])
    except (struct.error, IndexError):
        return []


def _offered(hello: bytes) -> list[bytes]:
    if hello[0] != CLIENT_HELLO:
        return []
    at = 4 + 2 + 32  # type and length, version, random
    at += 1 + hello[at]  # session
    at += 2 + struct.unpack_from(">H", hello, at)[0]  # cipher suites
    at += 1 + hello[at]  # compression methods
    end = at + 2 + struct.unpack_from(">H", hello, at)[0]
    at += 2
    while at + 4 <= min(end, len(hello)):
        kind, size = struct.unpack_from(">HH", hello, at)
        if kind == ALPN:
            return _names(hello[at + 6 : at + 4 + size])
        at += 4 + size
    return []


def _names(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        found.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    return found


class Half:
    """One of a connection's two sockets, and the bytes that wait to be sent to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.waiting = bytearray()
        self.is_at_end = False
        """Whether its peer has sent everything."""
        self.mask = 0


class Connection:
    """A client and, once its first bytes have shown the protocol, its server."""

    def __init__(self, relay: Relay, client: socket.socket) -> None:
        self._relay = relay
        self.client = Half(client)
        self.server: Half | None = None
        self.until = time.monotonic() + DECIDE_S
        self.open = True

    def ready(self, half: Half, mask: int) -> None:
        """A socket is ready to be read or written."""
        try:
            if mask & selectors.EVENT_READ:
                self._read(half)
            if self.open and mask & selectors.EVENT_WRITE:
                self._write(half)
        except OSError:
            self.close()
        if self.open:
            self._relay.watch(self)

    def _read(self, half: Half) -> None:
        try:
            data = half.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        if self.server is None:
            self._first(data)
            return
        other = self.server if half is self.client else self.client
        if not data:
            half.is_at_end = True
        other.waiting += data
        self._write(other)

    def _first(self, data: bytes) -> None:
        """Handle the first bytes of a client, which has no server yet."""
        held = self.client.waiting
        held += data
        grpc = is_grpc(bytes(held))
        if not data or (grpc is None and len(held) > HELLO_MAX):
            self.close()
        elif grpc is not None:
            sock = self._relay.dial(grpc)
            self.server = Half(sock)
            # The first bytes were only looked at. The server must get all of them.
            self.server.waiting, self.client.waiting = held, bytearray()
            self._write(self.server)

    def _write(self, half: Half) -> None:
        if half.waiting:
            try:
                del half.waiting[: half.sock.send(half.waiting)]
            except BlockingIOError:
                return
        # Only when nothing waits: the end of the peer's bytes must not overtake the last of them.
        if not half.waiting and self._other(half).is_at_end:
            half.sock.shutdown(socket.SHUT_WR)
            if half.is_at_end:
                self.close()

    def _other(self, half: Half) -> Half:
        assert self.server is not None
        return self.server if half is self.client else self.client

    def wanted(self, half: Half) -> int:
        """The selector events to wait for."""
        other = None if self.server is None else self._other(half)
        reads = not half.is_at_end and (other is None or len(other.waiting) < HELD_MAX)
        # Without a server, the client's `waiting` has the first bytes that came from it, not bytes for it.
        writes = other is not None and bool(half.waiting)
        return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)

    @property
    def halves(self) -> list[Half]:
        return [self.client] if self.server is None else [self.client, self.server]

    def close(self) -> None:
        """Close both sockets."""
        if self.open:
            self.open = False
            self._relay.forget(self)


class Relay:
    """Accepts connections and moves their bytes, in one thread."""

    def __init__(self, listener: socket.socket, life: int, grpc: str, http: str) -> None:
        self._listener, self._life = listener, life
        self._servers = {True: "\0" + grpc, False: "\0" + http}
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._accepting = False
        listener.setblocking(False)
        self._selector.register(life, selectors.EVENT_READ)
        self._accept_more()

    def run(self) -> None:
        """Serve until the other end of the pipe is closed."""
        while True:
            for key, mask in self._selector.select(1.0):
                if key.fd == self._life:
                    return
                if key.data is None:
                    self._accept()
                # An earlier event of this round may have closed the connection.
                elif key.data[0].open:
                    key.data[0].ready(key.data[1], mask)
            now = time.monotonic()
            for each in [c for c in self._connections if c.server is None and c.until < now]:
                each.close()

    def dial(self, grpc: bool) -> socket.socket:
        """Connect to one of the servers."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self._servers[grpc])
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        return sock

    def watch(self, connection: Connection) -> None:
        """Register the events that a connection waits for now."""
        for half in connection.halves:
            mask = connection.wanted(half)
            if mask == half.mask:
                continue
            # A selector accepts no empty mask.
            if not mask:
                self._selector.unregister(half.sock)
            elif half.mask:
                self._selector.modify(half.sock, mask, (connection, half))
            else:
                self._selector.register(half.sock, mask, (connection, half))
            half.mask = mask

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        for half in connection.halves:
            if half.mask:
                self._selector.unregister(half.sock)
            half.sock.close()
        self._connections.discard(connection)
        self._accept_more()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        client.setblocking(False)
        # Frames of gRPC are small, and Nagle's algorithm would hold them back until the peer's next ACK.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self, client)
        self._connections.add(connection)
        self.watch(connection)
        # Further ones wait in the kernel's backlog until one ends (`forget`).
        if len(self._connections) >= CONNECTIONS_MAX:
            self._accepting = False
            self._selector.unregister(self._listener)

    def _accept_more(self) -> None:
        if not self._accepting:
            self._accepting = True
            self._selector.register(self._listener, selectors.EVENT_READ)


def main(listener: int, life: int, grpc: str, http: str) -> None:
    """Serve until the other end of the pipe `life` is closed."""
    with socket.socket(fileno=listener) as sock:
        Relay(sock, life, grpc, http).run()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
