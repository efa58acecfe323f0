"""gRPC channels, one per address, shared by all callers of a client.

Called by `pd` and `region_request`. Channels connect lazily and reconnect automatically; a message may be as
large as 256 MiB. The puller's event streams are opened here, too, each on its own connection instead of a
channel (`stream_loop`). With certificates (`tidegate.tls`) all of them use TLS, even if an address has no
`https://`, because the addresses of TiKV stores in PD have none.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import grpc

from tidegate.errors import InvalidInput, Retryable
from tidegate.grpc_tls import client_credentials
from tidegate.kvclient.stream_loop import Metadata, Receiver, StreamCall, StreamLoop
from tidegate.tls import Tls

S = TypeVar("S")

MAX_MESSAGE_BYTES: Final = 256 << 20

_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # 0 is "no limit". gRPC's default stops the pings after two while a call waits for its answer, and then a
    # dead peer is not noticed.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    # Otherwise the channels of several pools to one address share a connection and its back-off state.
    ("grpc.use_local_subchannel_pool", 1),
)
"""While a call is open, keepalive detects within 15 s that a peer hangs (a stopped process, a cut cable)."""
RECONNECT_MS: Final = 2_000


class ChannelPool:
    """Channels by address. Thread-safe; `close` ends every call on them.

    `reconnect_ms`: the longest pause between two attempts to connect. All calls fail at once meanwhile.
    """

    def __init__(self, tls: Tls | None = None, *, reconnect_ms: int = RECONNECT_MS) -> None:
        self._tls = tls
        self._options = (*_OPTIONS, ("grpc.max_reconnect_backoff_ms", reconnect_ms))
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[tuple[str, Callable[[grpc.Channel], Any]], Any] = {}
        self._streams: StreamLoop | None = None
        self._closed = False

    def get(self, address: str) -> grpc.Channel:
        """The channel to `host:port`, opened at first use."""
        with self._lock:
            return self._get(address)

    def stub(self, address: str, kind: Callable[[grpc.Channel], S]) -> S:
        """A stub on the channel to `host:port`, made at first use.

        It is made under the lock, so no other thread can close the channel meanwhile: gRPC registers a
        stub's methods without checking that the channel is open, and on a closed channel this crashes the
        process (SIGSEGV). A call through a stub whose channel was closed later only fails (`beginning`).
        """
        with self._lock:
            found = self._stubs.get((address, kind))
            if found is None:
                found = self._stubs[address, kind] = kind(self._get(address))
            return cast("S", found)

    def stream(self, address: str, path: str, metadata: Metadata, receiver: Receiver) -> StreamCall:
        """Begin a long-lived streaming call of `path` at `host:port`, on its own connection."""
        with self._lock:
            if self._closed:
                raise InvalidInput("the client is closed", where=address)
            if self._streams is None:
                self._streams = StreamLoop(self._tls)
            return self._streams.call(address, path, metadata, receiver)

    def _get(self, address: str) -> grpc.Channel:
        if self._closed:
            raise InvalidInput("the client is closed", where=address)
        channel = self._channels.get(address)
        if channel is None:
            if self._tls is None:
                channel = grpc.insecure_channel(address, options=self._options)
            else:
                credentials = client_credentials(self._tls)
                channel = grpc.secure_channel(address, credentials, options=self._options)
            self._channels[address] = channel
        return channel

    def drop(self, address: str) -> None:
        """Close the channel and the streams of an address, for a peer that was replaced.

        The next `get` opens a new channel.
        """
        with self._lock:
            channel = self._channels.pop(address, None)
            # Stubs as well: one of the closed channel would fail every later call to this address.
            self._stubs = {key: stub for key, stub in self._stubs.items() if key[0] != address}
            streams = self._streams
        if channel is not None:
            channel.close()
        if streams is not None:
            streams.drop(address)

    def close(self) -> None:
        """Close all channels; calls in flight end with CANCELLED."""
        with self._lock:
            # Under the lock, so that `get` opens no channel that nobody would close.
            self._closed = True
            channels, self._channels = list(self._channels.values()), {}
            self._stubs.clear()
            streams = self._streams
        for channel in channels:
            channel.close()
        if streams is not None:
            streams.close()


@contextmanager
def beginning(address: str) -> Iterator[None]:
    """Put around the beginning of a call: raises Retryable if another thread has closed its channel.

    This can happen between `ChannelPool.get` and the call; gRPC then raises a ValueError.
    """
    try:
        yield
    except ValueError as error:
        # gRPC has no class of its own for it. Any other ValueError is a defect of the caller, and a retry
        # would hide it.
        if not str(error).startswith("Cannot invoke RPC"):
            raise
        raise Retryable("the connection was closed before a call", where=address, why=str(error)) from None


def at_end(call: Any, do: Callable[[], None]) -> None:
    """Call `do` once, in gRPC's thread, when a streaming call has ended; it must be quick.

    A thread that reads a call needs this, because gRPC's iterator may wait for ever: if a receive begins at
    the moment when a call fails because the connection is lost, the receive never completes, although the
    call gets its status (grpcio 1.85.1, occasionally, if the peer is restarted often).
    """
    call.add_done_callback(lambda _: do())


class Requests:
    """The requests of one streaming call, as the iterator from which a thread of gRPC takes them.

    `join` after `end` waits for that thread. Otherwise it could still run when the interpreter exits and
    freezes it; if it holds the call's lock then, the interpreter waits for ever to free the call.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._begun = threading.Event()
        self._taker: threading.Thread | None = None

    def put(self, request: Any) -> None:
        """Send a request."""
        self._queue.put(request)

    def end(self) -> None:
        """Send no more."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until gRPC's thread has ended, for at most twice `timeout_s`."""
        if self._begun.wait(timeout_s) and self._taker is not None:
            self._taker.join(timeout_s)

    def __iter__(self) -> Requests:
        return self

    def __next__(self) -> Any:
        if self._taker is None:
            # Before the wait for a request, because `join` may be called during it.
            self._taker = threading.current_thread()
            self._begun.set()
        request = self._queue.get()
        if request is None:
            raise StopIteration
        return request


def address_of(url: str) -> str:
    """`host:port` of an address as users and PD write it (`http://` and `https://` are dropped).

    Raises InvalidInput for anything else.
    """
    text = url.strip().rstrip("/").removeprefix("http://").removeprefix("https://")
    # From the right, because an IPv6 host contains colons.
    host, colon, port = text.rpartition(":")
    if not colon or not host or "/" in host or not port.isdigit():
        raise InvalidInput("the address is not HOST:PORT", where=url, fix="write one such as 127.0.0.1:2379")
    return text


def unavailable(what: str, address: str, error: grpc.RpcError) -> Retryable:
    """The error to raise if a peer cannot be reached or does not answer."""
    code = error.code() if isinstance(error, grpc.Call) else None
    name = code.name if code is not None else type(error).__name__
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    return Retryable(
        what, where=address, why=f"{name}: {details}", fix="check that it runs and that the address is right"
    )


TRANSIENT: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Status codes after which the same call may succeed. The calls of this client are all idempotent."""


def is_too_large(error: grpc.RpcError) -> bool:
    """Whether an answer is larger than a message may be; then the same call cannot succeed.

    gRPC has no separate status code for this, but client and server use these words.
    """
    exhausted = isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    return exhausted and "message larger than max" in (error.details() or "")


def is_transient(error: grpc.RpcError) -> bool:
    """Whether the same call may succeed later."""
    return isinstance(error, grpc.Call) and error.code() in TRANSIENT
