"""A gRPC server with room for many streams, which refuses further ones with an error.

gRPC's handlers are threads, and a stream occupies one from its beginning to its end. If streams occupied all
threads, every later call would wait without an error until a stream ends. Therefore there are `STREAMS_MAX`
threads for streams, as many as TiKV allows on a connection (`server.grpc-concurrent-stream`), and `CALLS_MAX`
more that streams cannot use; threads are started when needed. A stream beyond STREAMS_MAX, and any call
beyond both, ends at once with RESOURCE_EXHAUSTED, and the client retries later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

MESSAGE_BYTES_MAX: Final = 256 << 20
STREAMS_MAX: Final = 1024
CALLS_MAX: Final = 256


def new_server(
    interceptors: Sequence[grpc.ServerInterceptor] = (),
    streams_max: int = STREAMS_MAX,
    calls_max: int = CALLS_MAX,
) -> grpc.Server:
    """A server without services; not started."""
    threads = streams_max + calls_max
    return grpc.server(
        ThreadPoolExecutor(threads, thread_name_prefix="grpc"),
        interceptors=[*interceptors, _StreamLimit(streams_max)],
        maximum_concurrent_rpcs=threads,
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            # With it a second upstream could listen at the same port, and each would get some connections.
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
            # 0 is no limit: a client that pings often is not disconnected with `too_many_pings`.
            ("grpc.http2.max_ping_strikes", 0),
        ],
    )


class _StreamLimit(grpc.ServerInterceptor):
    """Refuses streams beyond the limit."""

    def __init__(self, streams_max: int) -> None:
        self._max = streams_max
        self._free = threading.Semaphore(streams_max)

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = continuation(handler_call_details)
        if handler is None or not handler.request_streaming:
            return handler

        def limited(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            if not self._free.acquire(blocking=False):
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{self._max} streams are open, as many as this server has room for",
                )
            try:
                yield from handler.stream_stream(requests, context)
            finally:
                self._free.release()

        return grpc.stream_stream_rpc_method_handler(
            limited, handler.request_deserializer, handler.response_serializer
        )
