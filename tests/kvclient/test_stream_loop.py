"""Streaming calls on one thread, against gRPC's own server: order, ends, windows, silence, gathering."""

from __future__ import annotations

import queue
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.kvclient.test_tls import certified
from tests.puller.test_puller import eventually
from tidegate.errors import InvalidInput
from tidegate.grpc_tls import server_credentials
from tidegate.kvclient import http2, stream_loop
from tidegate.kvclient.channel import ChannelPool
from tidegate.kvclient.grpc_messages import UNPACK_BYTES
from tidegate.kvclient.stream_loop import StreamCall, StreamLoop

PATH = "/echo.Echo/Stream"
EMPTY_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""A frame of HTTP/2: no payload, kind SETTINGS, no flags, stream 0."""
Code = grpc.StatusCode


class Echo:
    """Answers each request with itself, but for a few words."""

    def __init__(self) -> None:
        self.sent = 0
        self.over, self.asked, self.may_answer = threading.Event(), threading.Event(), threading.Event()

    def stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(self.over.set)
        for request in requests:
            if request == b"end":
                return
            if request == b"abort":
                context.abort(Code.UNIMPLEMENTED, "unknown method: 100 %, größer")
            if request == b"later":
                self.asked.set()
                self.may_answer.wait(60)
            if request == b"flood":
                for _ in range(200):
                    self.sent += 1
                    yield b"f" * (1 << 16)
            yield request


def served(
    echo: Echo, credentials: grpc.ServerCredentials | None = None, compression: grpc.Compression | None = None
) -> tuple[grpc.Server, str]:
    # As TiKV: a client may ping as often as it likes.
    options = [("grpc.max_receive_message_length", -1), ("grpc.http2.max_ping_strikes", 0)]
    server = grpc.server(ThreadPoolExecutor(8), options=options, compression=compression)
    handler = grpc.stream_stream_rpc_method_handler(echo.stream)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo.Echo", {"Stream": handler})])
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return server, f"127.0.0.1:{port}"


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def address(echo: Echo) -> Iterator[str]:
    server, found = served(echo)
    yield found
    server.stop(0).wait()


@pytest.fixture
def loop() -> Iterator[StreamLoop]:
    made = StreamLoop()
    made.hurry(3600)
    yield made
    made.close()


class Taker:
    """Keeps what came; `take` is asked for each batch whether more may come."""

    def __init__(self, take: Callable[[list[bytes]], bool] = lambda _: True) -> None:
        self._take = take
        self.messages: list[bytes] = []
        self.batches: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self.ends: list[tuple[grpc.StatusCode, str]] = []
        self._ended = threading.Event()

    def received(self, messages: list[bytes]) -> bool:
        assert not self.ends
        self.messages += messages
        self.batches.put(messages)
        return self._take(messages)

    def ended(self, code: grpc.StatusCode, details: str) -> None:
        self.ends.append((code, details))
        self._ended.set()

    def end(self) -> tuple[grpc.StatusCode, str]:
        assert self._ended.wait(60)
        [found] = self.ends
        return found


def test_messages_of_all_sizes_come_back_in_order_then_the_end(loop: StreamLoop, address: str) -> None:
    taker = Taker()
    sizes = [0, 1, 5, 16_000, 16_384, 70_000, 3_000_000, 2, 0]
    sent = [bytes([i]) * size for i, size in enumerate(sizes)]
    call = loop.call(address, PATH, (), taker)
    for message in [*sent, b"end"]:
        call.send(message)
    assert taker.end() == (Code.OK, "")
    assert taker.messages == sent
    for act in (call.cancel, call.resume, lambda: call.send(b"late")):
        act()  # harmless


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_store_may_compress_as_tikv_can_be_set_to(
    loop: StreamLoop, echo: Echo, compression: grpc.Compression
) -> None:
    server, address = served(echo, None, compression)
    try:
        taker = Taker()
        sent = [bytes([i]) * size for i, size in enumerate([0, 1, 70_000, 3_000_000, 2])]
        call = loop.call(address, PATH, (), taker)
        for message in [*sent, b"end"]:
            call.send(message)
        assert taker.end() == (Code.OK, "")
        assert taker.messages == sent
    finally:
        server.stop(0).wait()


def test_a_status_comes_with_its_words(loop: StreamLoop, address: str) -> None:
    taker, unknown = Taker(), Taker()
    loop.call(address, PATH, (), taker).send(b"abort")
    loop.call(address, "/echo.Echo/Other", (), unknown)
    assert taker.end() == (Code.UNIMPLEMENTED, "unknown method: 100 %, größer")
    assert unknown.end()[0] is Code.UNIMPLEMENTED


def test_a_peer_that_is_not_there_ends_the_call(loop: StreamLoop) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        taker = Taker()
        loop.call(f"127.0.0.1:{nobody.getsockname()[1]}", PATH, (), taker)
        assert taker.end() == (Code.UNAVAILABLE, "Connection refused")
    for unknown in (f"{'x' * 70}.invalid:1", "nobody.invalid:1"):
        nameless = Taker()
        loop.call(unknown, PATH, (), nameless)
        assert nameless.end()[0] is Code.UNAVAILABLE


def test_a_peer_that_closes_or_resets_ends_its_call_alone(loop: StreamLoop, address: str) -> None:
    other = Taker()
    living = loop.call(address, PATH, (), other)
    for linger in (b"", bytes([1, 0, 0, 0, 0, 0, 0, 0])):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            taker = Taker()
            loop.call(f"127.0.0.1:{listener.getsockname()[1]}", PATH, (), taker)
            peer, _ = listener.accept()
            peer.recv(10)
            if linger:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            peer.close()
            assert taker.end()[0] is Code.UNAVAILABLE
    living.send(b"still here")
    assert other.batches.get(timeout=60) == [b"still here"]


def test_cancelling_is_seen_on_both_sides(loop: StreamLoop, address: str, echo: Echo) -> None:
    taker = Taker()
    call = loop.call(address, PATH, (), taker)
    call.send(b"a")
    assert taker.batches.get(timeout=60) == [b"a"]
    call.cancel()
    assert taker.end() == (Code.CANCELLED, "it was cancelled")
    assert echo.over.wait(60)


def test_a_call_may_be_cancelled_while_it_connects(
    loop: StreamLoop, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proceed, connect = threading.Event(), socket.create_connection
    opened: list[socket.socket] = []

    def late(*given: Any) -> socket.socket:
        assert proceed.wait(60)
        opened.append(connect(*given))
        return opened[0]

    monkeypatch.setattr(socket, "create_connection", late)
    taker = Taker()
    loop.call(address, PATH, (), taker).cancel()
    assert taker.end() == (Code.CANCELLED, "it was cancelled")
    proceed.set()
    eventually(lambda: bool(opened) and opened[0].fileno() < 0, "the connection to be closed")


def test_a_full_receiver_stops_its_peer_within_a_window_and_resumes(
    loop: StreamLoop, address: str, echo: Echo
) -> None:
    taker, other = Taker(lambda _: False), Taker()
    call = loop.call(address, PATH, (), taker)
    call.send(b"flood")
    seen = -1
    while (size := sum(map(len, taker.messages))) != seen:
        seen = size
        time.sleep(0.3)
    assert seen <= http2.WINDOW_BYTES
    assert echo.sent < 200, "the server waits"
    living = loop.call(address, PATH, (), other)
    living.send(b"not held up")
    assert other.batches.get(timeout=60) == [b"not held up"]
    while len(taker.messages) < 201:
        call.resume()
        time.sleep(0.001)
    assert taker.messages == [b"f" * (1 << 16)] * 200 + [b"flood"]


def test_compressed_messages_stay_packed_while_the_receiver_has_enough(loop: StreamLoop, echo: Echo) -> None:
    """The peer's window does not bound them: these 13 MB fit into it many times over."""
    server, address = served(echo, None, grpc.Compression.Gzip)
    try:
        taker = Taker(lambda _: False)
        call = loop.call(address, PATH, (), taker)
        call.send(b"flood")
        eventually(lambda: echo.sent == 200 and bool(taker.messages), "the server to have sent all")
        seen = -1
        while (size := sum(map(len, taker.messages))) != seen:
            seen = size
            time.sleep(0.3)
        assert seen < UNPACK_BYTES + (1 << 16), "one batch, and the rest waits as it came"
        while len(taker.messages) < 201:
            call.resume()
            time.sleep(0.001)
        assert taker.messages == [b"f" * (1 << 16)] * 200 + [b"flood"]
    finally:
        server.stop(0).wait()


def test_a_posted_task_that_fails_takes_no_other_with_it(loop: StreamLoop, address: str) -> None:
    """A call's start, message or end may be posted behind it, and nobody would post that again."""
    taker = Taker()
    call = loop.call(address, PATH, (), taker)
    is_busy, proceed, done = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        is_busy.set()
        assert proceed.wait(60)

    def fail() -> None:
        raise MemoryError

    loop.post(block)
    assert is_busy.wait(60)
    for task in (fail, done.set):  # the loop takes both at once
        loop.post(task)
    proceed.set()
    assert done.wait(60)
    call.send(b"still here")
    assert taker.batches.get(timeout=60) == [b"still here"]


def test_the_last_answer_of_a_receiver_counts(loop: StreamLoop, address: str) -> None:
    answers = iter([False])
    taker = Taker(lambda _: next(answers, True))
    loop.call(address, PATH, (), taker).send(b"flood")
    eventually(lambda: len(taker.messages) == 201, "all, without a call of `resume`")


def test_a_receiver_that_fails_ends_its_own_call(loop: StreamLoop, address: str) -> None:
    def fail(messages: list[bytes]) -> bool:
        raise MemoryError

    taker, other = Taker(fail), Taker()
    living = loop.call(address, PATH, (), other)
    loop.call(address, PATH, (), taker).send(b"a")
    assert taker.end() == (Code.UNAVAILABLE, "its reader failed: MemoryError()")
    living.send(b"b")
    assert other.batches.get(timeout=60) == [b"b"]


def test_a_defect_of_the_loop_ends_its_calls_and_not_the_loop(
    loop: StreamLoop, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker, later = Taker(), Taker()
    call = loop.call(address, PATH, (), taker)
    call.send(b"a")
    assert taker.batches.get(timeout=60) == [b"a"]

    def fail(*_: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("a defect")

    monkeypatch.setattr(call, "ready", fail)
    call.send(b"b")
    assert taker.end() == (Code.UNAVAILABLE, "the streams' loop failed: RuntimeError('a defect')")
    loop.call(address, PATH, (), later).send(b"c")
    assert later.batches.get(timeout=60) == [b"c"]


def test_a_silent_peer_is_pinged_and_given_up_when_it_does_not_answer(
    loop: StreamLoop, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    # Moved by the test: on a busy machine nobody answers within a time that a test can wait.
    monkeypatch.setattr(stream_loop, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(stream_loop, "LOOK_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent, answering = Taker(), Taker()
        living = loop.call(address, PATH, (), answering)
        mute = loop.call(f"127.0.0.1:{listener.getsockname()[1]}", PATH, (), silent)
        peer, _ = listener.accept()
        eventually(lambda: living._socket is not None and mute._socket is not None, "the connections")
        living.send(b"hello")
        assert answering.batches.get(timeout=60) == [b"hello"]
        now += stream_loop.PING_S
        eventually(lambda: mute._pinged_at == now, "the ping")
        eventually(lambda: living._received_at == now, "its answer")
        assert silent.ends == []
        now += stream_loop.GIVE_UP_S - stream_loop.PING_S + 1
        assert silent.end() == (Code.UNAVAILABLE, "the peer does not answer")
        peer.close()
    living.send(b"it has answered pings")
    assert answering.batches.get(timeout=60) == [b"it has answered pings"]


def test_what_comes_while_nobody_is_in_a_hurry_is_gathered(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_loop, "GATHERS", 0)  # however little comes
    loop, taker = StreamLoop(), Taker()
    call = loop.call(address, PATH, (), taker)
    call.send(b"first")
    first = taker.batches.get(timeout=60)
    all_sent = threading.Event()
    loop.post(lambda: all_sent.wait(60))
    sent = [b"message a", b"message b", b"message c"]
    for message in sent:
        call.send(message)
    monkeypatch.setattr(stream_loop, "GATHER_S", 600.0)  # the test ends the sleep
    all_sent.set()

    def came() -> bytes:
        assert call._socket is not None
        with suppress(BlockingIOError):
            return call._socket.recv(1 << 16, socket.MSG_PEEK)
        return b""

    eventually(lambda: all(message in came() for message in sent), "all answers")
    assert taker.batches.empty()
    loop.post(lambda: None)
    gathered = taker.batches.get(timeout=60)
    assert (first, gathered) == ([b"first"], sent)
    call.hurry(3600)
    began = time.monotonic()
    call.send(b"now")
    assert taker.batches.get(timeout=60) == [b"now"]
    loop.close()
    assert taker.end() == (Code.CANCELLED, "the client is closed")
    assert time.monotonic() - began < 60


def test_who_is_in_a_hurry_ends_a_sleep_that_has_begun(
    echo: Echo, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_loop, "GATHER_S", 60.0)
    monkeypatch.setattr(stream_loop, "GATHERS", 0)
    loop, taker = StreamLoop(), Taker()
    call = loop.call(address, PATH, (), taker)
    call.send(b"later")
    assert echo.asked.wait(60)  # the loop has sent it, and sleeps
    echo.may_answer.set()
    call.hurry(3600)
    assert taker.batches.get(timeout=30) == [b"later"]
    loop.close()


def test_a_loop_does_not_sleep_while_a_connection_has_more() -> None:
    loop, (ours, theirs) = StreamLoop(), socket.socketpair()
    ours.setblocking(False)
    call = StreamCall(loop, "store:1", http2.Call("store:1", PATH, (), scheme="http"), Taker())
    call._socket = ours
    theirs.sendall(EMPTY_SETTINGS * 20)
    for size, has_more in ((90, True), (4096, False)):
        loop.has_more = False
        call.ready(selectors.EVENT_READ, memoryview(bytearray(size)))
        assert loop.has_more is has_more
    for end in (ours, theirs):
        end.close()
    loop.close()


@pytest.mark.parametrize(("served", "pays"), [(0, False), (29, False), (30, True), (300, True)])
def test_a_loop_gathers_only_where_much_comes(served: int, pays: bool) -> None:
    assert stream_loop.gathering_pays(served, seconds=1.0) is pays


def test_a_pool_ends_the_streams_of_an_address_and_at_its_end_all(address: str) -> None:
    others = set(threading.enumerate())
    pool, dropped, last = ChannelPool(), Taker(), Taker()
    pool.stream(address, PATH, (), dropped)
    pool.drop("127.0.0.1:1")
    pool.drop(address)
    assert dropped.end() == (Code.CANCELLED, "it was dropped")
    call = pool.stream(address, PATH, (), last)
    pool.close()
    assert last.end() == (Code.CANCELLED, "the client is closed")
    call.cancel()
    assert "streams" not in {thread.name for thread in threading.enumerate() if thread not in others}
    with pytest.raises(InvalidInput, match="the client is closed"):
        pool.stream(address, PATH, (), Taker())


def test_streams_use_certificates_and_refuse_anothers(tmp_path: Path, echo: Echo) -> None:
    ours, others = certified(tmp_path, "ours"), certified(tmp_path, "others")
    assert ours.streams().verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN, (
        "as gRPC: an intermediate may be trusted"
    )
    server, address = served(echo, server_credentials(ours))
    loop, taker, refused = StreamLoop(ours), Taker(), Taker()
    call = loop.call(address, PATH, (), taker)
    sent = [bytes([i]) * (50_000 if i % 10 else 300_000) for i in range(40)]
    for message in [*sent, b"end"]:
        call.send(message)
    assert taker.end() == (Code.OK, "")
    assert taker.messages == sent
    stranger = StreamLoop(others)
    stranger.call(address, PATH, (), refused)
    code, why = refused.end()
    assert code is Code.UNAVAILABLE
    assert why.startswith("the certificate was refused")
    assert ours.key is not None
    kept = ours.key.read_text()
    for text in ("", kept[: len(kept) // 2]):
        ours.key.write_text(text)
        hasty = Taker()
        loop.call(address, PATH, (), hasty)
        assert hasty.end()[1].startswith(("this is not a PEM file", "the certificates cannot be used"))
    plain, dumb = StreamLoop(), Taker()
    plain.call(address, PATH, (), dumb)
    assert dumb.end()[0] is Code.UNAVAILABLE
    ours.key.write_text(kept)
    renewed = Taker()
    loop.call(address, PATH, (), renewed).send(b"end")
    assert renewed.end() == (Code.OK, "")
    for each in (loop, stranger, plain):
        each.close()
    server.stop(0).wait()
