"""gRPC channels, one per address, shared by all callers of a client.

Called by `pd` and `region_request`. Channels connect lazily and reconnect by themselves; a message may be as
large as 256 MiB. The puller's event streams come from here too, each on a connection of its own instead of a
channel (`stream_loop`). With certificates (`tidegate.tls`) all of them use TLS, whether or not an address
says so: TiKV's, as PD knows them, do not.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import grpc

from tidegate.errors import InvalidInput, Retryable
from tidegate.kvclient.stream_loop import Metadata, Receiver, StreamCall, StreamLoop
from tidegate.tls import Tls

S = TypeVar("S")

MAX_MESSAGE_BYTES: Final = 256 << 20

_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Without it channels to one address share a connection between pools, and its back-off state too.
    ("grpc.use_local_subchannel_pool", 1),
)
"""Keepalive finds a peer that hangs (a stopped process, a cut cable) within 15 s while a call is open."""


class ChannelPool:
    """Channels by address. Thread-safe; `close` ends every call on them."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._tls = tls
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

        It is made here, while nobody can close the channel: gRPC registers a stub's methods without a look at
        whether the channel is open, and on a closed one that ends the process (SIGSEGV). A call through a
        stub whose channel was closed since is only an error (`beginning`).
        """
        with self._lock:
            found = self._stubs.get((address, kind))
            if found is None:
                found = self._stubs[address, kind] = kind(self._get(address))
            return cast("S", found)

    def stream(self, address: str, path: str, metadata: Metadata, receiver: Receiver) -> StreamCall:
        """Begin a long-lived streaming call of `path` at `host:port`, on a connection of its own."""
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
                channel = grpc.insecure_channel(address, options=_OPTIONS)
            else:
                channel = grpc.secure_channel(address, self._tls.client(), options=_OPTIONS)
            self._channels[address] = channel
        return channel

    def drop(self, address: str) -> None:
        """Close one channel and the streams there; the next `get` opens a new one. For a replaced peer."""
        with self._lock:
            channel = self._channels.pop(address, None)
            self._stubs = {key: stub for key, stub in self._stubs.items() if key[0] != address}
            streams = self._streams
        if channel is not None:
            channel.close()
        if streams is not None:
            streams.drop(address)

    def close(self) -> None:
        """Close all channels; calls in flight end with CANCELLED."""
        with self._lock:
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
    """Around the beginning of a call: raises Retryable where gRPC finds its channel closed by another thread.

    Between `ChannelPool.get` and the call a channel may be closed; gRPC's error for it is a ValueError.
    """
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("Cannot invoke RPC"):
            raise
        raise Retryable("the connection was closed before a call", where=address, why=str(error)) from None


def at_end(call: Any, do: Callable[[], None]) -> None:
    """Call `do` once, in gRPC's thread, when a streaming call has ended; it must be quick.

    Whoever reads a call in a thread must listen for its end too: gRPC's iterator may wait for ever. A receive
    that is begun at the moment when a call fails for want of a connection is never completed, while the
    call's status is (grpcio 1.85.1, now and then where the peer is restarted often).
    """
    call.add_done_callback(lambda _: do())


class Requests:
    """The requests of one streaming call, as the iterator gRPC takes them from in a thread of its own.

    `join` after `end` waits for that thread. A thread that the interpreter's end freezes in the middle of a
    call may hold the call's lock, which the interpreter then waits for to clear the call away.
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
    host, colon, port = text.rpartition(":")
    if not colon or not host or "/" in host or not port.isdigit():
        raise InvalidInput("an address is host:port", where=url, fix="for example 127.0.0.1:2379")
    return text


def unavailable(what: str, address: str, error: grpc.RpcError) -> Retryable:
    """The error a caller sees when a peer cannot be reached or does not answer."""
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
    """Whether an answer has more bytes than a message may have: the same call cannot succeed.

    gRPC has no code of its own for it; client and server say it in these words.
    """
    exhausted = isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    return exhausted and "message larger than max" in (error.details() or "")


def is_transient(error: grpc.RpcError) -> bool:
    """Whether the same call may succeed later."""
    return isinstance(error, grpc.Call) and error.code() in TRANSIENT
