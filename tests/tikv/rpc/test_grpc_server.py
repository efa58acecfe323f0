"""Many streams are served; one too many is refused at once, and calls still have room."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tidegate.proto import pdpb_pb2, pdpb_pb2_grpc
from tidegate.tikv.rpc.grpc_server import new_server
from tidegate.tikv.server import EmbeddedUpstream

WAIT_S = 120
"""Guards against what hangs, and costs nothing when all is well."""


class Echo:
    """A stream that answers each message, and a call that waits."""

    def __init__(self) -> None:
        self.proceed = threading.Event()

    def stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from requests

    def call(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if request == b"wait":
            self.proceed.wait(WAIT_S)
        return request


class Open:
    """A stream of a client."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.answers = channel.stream_stream("/echo/stream")(iter(self.requests.get, None))

    def ask(self) -> bytes:
        self.requests.put(b"x")
        return bytes(next(self.answers))

    def refused(self) -> str:
        with pytest.raises(grpc.RpcError):
            self.ask()
        assert self.answers.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return str(self.answers.details())

    def end(self) -> None:
        self.requests.put(None)
        assert not list(self.answers)


def test_a_stream_above_the_limit_is_rejected_until_another_one_ends() -> None:
    """Calls continue meanwhile."""
    server, echo = new_server(streams_max=3, calls_max=2), Echo()
    handlers = {
        "stream": grpc.stream_stream_rpc_method_handler(echo.stream),
        "call": grpc.unary_unary_rpc_method_handler(echo.call),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/echo/call")
            streams = [Open(channel) for _ in range(3)]
            assert [stream.ask() for stream in streams] == [b"x"] * 3
            assert Open(channel).refused() == "3 streams are open, as many as this server has room for"
            assert call(b"now", timeout=WAIT_S) == b"now"
            waiting = [call.future(b"wait") for _ in range(2)]
            with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
                _until_refused(call)
            echo.proceed.set()
            assert [each.result() for each in waiting] == [b"wait"] * 2
            streams[0].end()
            while (again := Open(channel)) and not _serves(again):
                continue  # the thread of the one that ended comes free a moment later
            for stream in (again, *streams[1:]):
                stream.end()
    finally:
        server.stop(None).wait()


def _until_refused(call: Any) -> None:
    while True:
        call(b"now", timeout=WAIT_S)


def _serves(stream: Open) -> bool:
    try:
        return stream.ask() == b"x"
    except grpc.RpcError:
        return False


def test_three_hundred_streams_are_open_and_a_call_is_answered(tmp_path: Path) -> None:
    """With 256 threads for everything the 257th stream would wait for ever, and every call behind it."""
    with (
        EmbeddedUpstream(tmp_path) as upstream,
        grpc.insecure_channel(upstream.pd_addr) as channel,
    ):
        stub = pdpb_pb2_grpc.PDStub(channel)
        streams: list[tuple[queue.SimpleQueue[Any], Any]] = []
        for _ in range(300):
            requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
            streams.append((requests, stub.Tso(iter(requests.get, None))))
        for requests, _ in streams:
            requests.put(pdpb_pb2.TsoRequest(count=1))
        assert all(next(answers).count == 1 for _, answers in streams)
        assert stub.GetMembers(pdpb_pb2.GetMembersRequest(), timeout=WAIT_S).members
        for requests, answers in streams:
            requests.put(None)
            assert not list(answers)
