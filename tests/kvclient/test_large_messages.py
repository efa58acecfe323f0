"""Large messages are read into memory of their own, which is used again when nothing refers to them."""

from __future__ import annotations

import gc
import queue
import selectors
import socket
from typing import Any

import grpc
import pyarrow as pa
import pytest

from tests.kvclient.test_stream_loop import EMPTY_SETTINGS, PATH, Echo, Taker, served
from tidegate.kvclient import http2
from tidegate.kvclient.stream_loop import StreamCall, StreamLoop

SIZE = 1_000_000
EMPTY_HEADERS = bytes([0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88])
"""A frame of HTTP/2: kind HEADERS, complete, stream 1, `:status: 200`."""


class LastBatch:
    """Passes each batch on and keeps nothing."""

    def __init__(self) -> None:
        self.batches: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()

    def received(self, messages: list[Any]) -> bool:
        self.batches.put(messages)
        return True

    def ended(self, code: grpc.StatusCode, details: str) -> None:
        self.batches.put([])


def test_memory_is_used_again_but_not_that_of_a_message_in_use() -> None:
    server, address = served(Echo())
    loop, receiver = StreamLoop(), LastBatch()
    loop.hurry(3600)
    call = loop.call(address, PATH, (), receiver)
    held, seen = [], set[int]()
    for turn in range(12):
        call.send(bytes([turn]) * SIZE)
        [message] = receiver.batches.get(timeout=60)
        assert message == bytes([turn]) * SIZE
        seen.add(pa.py_buffer(message).address)
        if turn < 2:
            held.append(message[5:25])
        del message
        gc.collect()
    assert held == [bytes([turn]) * 20 for turn in range(2)], "nobody wrote over them"
    assert 3 <= len(seen) <= 4
    assert loop.slabs.idle_bytes <= 3 * SIZE
    loop.close()
    server.stop(0).wait()


def test_bytes_of_a_message_that_has_begun_are_read_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, (ours, theirs), taker = StreamLoop(), socket.socketpair(), Taker()
    ours.setblocking(False)
    call = StreamCall(loop, "store:1", http2.Call("store:1", PATH, (), scheme="http"), taker)
    call._socket = ours
    placed, read = http2.Call.placed, list[int]()

    def counted(machine: http2.Call, size: int) -> Any:
        read.append(size)
        return placed(machine, size)

    monkeypatch.setattr(http2.Call, "placed", counted)
    large, small = bytes(range(200)) * 1000, b"small"
    body = b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in (large, small))
    head = len(body).to_bytes(3, "big") + bytes([0, 0, 0, 0, 0, 1])
    begin, middle, rest = body[: 5 + 40_000], body[5 + 40_000 : 5 + 100_000], body[5 + 100_000 :]
    for part in (EMPTY_SETTINGS + EMPTY_HEADERS + head + begin, middle, rest):
        theirs.sendall(part)
        call.ready(selectors.EVENT_READ, memoryview(bytearray(50_000)))
    assert read == [60_000, 100_000]
    assert taker.messages == [large, small]
    for end in (ours, theirs):
        end.close()
    loop.close()
