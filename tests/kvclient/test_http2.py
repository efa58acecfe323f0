"""One call on one connection: messages in any pieces, windows both ways, and each way in which it ends."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kvclient import hpack, http2
from tidegate.kvclient.grpc_messages import UNPACK_BYTES, Message, Messages
from tidegate.kvclient.http2 import DATA_BYTES_MAX, WINDOW_BYTES, Call, End
from tidegate.kvclient.http2_output import OUTPUT_BYTES_MAX, FrameKind

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITY = 4, 8, 0x20
Code = grpc.StatusCode


def frame(kind: int, flags: int = 0, stream: int = 1, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(FrameKind.SETTINGS, 0, 0, b"".join(struct.pack(">HL", *pair) for pair in pairs))


def update(stream: int, size: int) -> bytes:
    return frame(FrameKind.WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def message(data: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BL", flag, len(data)) + data


def trailers(*fields: tuple[str, str]) -> bytes:
    return frame(FrameKind.HEADERS, END_HEADERS | END_STREAM, 1, hpack.encode(list(fields)))


def sent(call: Call) -> Iterator[tuple[int, int, int, bytes]]:
    """The frames that the call has for its peer, which are then sent: kind, flags, stream, payload."""
    data = bytes(call.output).removeprefix(PREFACE)
    call.output.clear()
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        yield (
            data[at + 3],
            data[at + 4],
            int.from_bytes(data[at + 5 : at + 9], "big"),
            data[at + 9 : at + 9 + size],
        )
        at += 9 + size


def begun() -> Call:
    """A call whose peer has said its settings, with nothing to send."""
    call = Call("store:20160", "/cdcpb.ChangeData/EventFeedV2")
    assert call.receive(settings() + frame(FrameKind.HEADERS, END_HEADERS, 1, b"\x88")) == []
    call.output.clear()
    return call


def test_a_call_begins_with_the_preface_its_settings_and_its_headers() -> None:
    call = Call("store:20160", "/service/method", (("features", "stream-multiplexing"),))
    assert call.output.startswith(PREFACE)
    (kind, _, stream, payload), window, headers = sent(call)
    assert (kind, stream) == (FrameKind.SETTINGS, 0)
    assert dict(struct.iter_unpack(">HL", payload)) == {1: 0, 2: 0, 4: WINDOW_BYTES, 5: DATA_BYTES_MAX}
    assert window == (FrameKind.WINDOW_UPDATE, 0, 0, (WINDOW_BYTES - 65535).to_bytes(4, "big"))
    assert headers[:3] == (FrameKind.HEADERS, END_HEADERS, 1)
    assert dict(hpack.decode(headers[3])) == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/service/method",
        ":authority": "store:20160",
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-accept-encoding": "identity,deflate,gzip",
        "features": "stream-multiplexing",
    }


@given(
    st.lists(st.binary(max_size=40)),
    st.lists(st.integers(0, 30), min_size=1),
    st.lists(st.integers(1, 50), min_size=1),
    st.booleans(),
    st.lists(st.booleans(), min_size=1),
)
def test_messages_come_whole_and_in_order_however_they_are_cut(
    messages: Sequence[bytes],
    frames: Sequence[int],
    pieces: Sequence[int],
    padded: bool,
    placed: Sequence[bool],
) -> None:
    call, body, data = begun(), b"".join(map(message, messages)), b""
    for size in [*frames, len(body)]:
        part, body = body[:size], body[size:]
        if padded:
            data += frame(FrameKind.DATA, PADDED, 1, bytes([3]) + part + bytes(3))
        else:
            data += frame(FrameKind.DATA, 0, 1, part)
        data += frame(0x42, 0, 1, b"of an unknown kind")
    found: list[Message] = []
    at = turn = 0
    while at < len(data):
        size = pieces[turn % len(pieces)]
        room = call.room[:size]
        if room and placed[turn % len(placed)]:
            # As the loop does it: the first bytes into the message, and those behind them into a buffer.
            size = min(len(room), len(data) - at)
            room[:size] = data[at : at + size]
            found += call.placed(size)
            at, turn = at + size, turn + 1
            continue
        buffer = bytearray(data[at : at + size])
        found += call.receive(memoryview(buffer))
        buffer[:] = bytes(len(buffer))  # the caller uses it for something else
        at, turn = at + size, turn + 1
    assert found == messages
    assert call.end is None


@pytest.mark.parametrize("size", [7, 1 << 14, DATA_BYTES_MAX])
def test_a_message_of_many_parts_comes_whole(size: int) -> None:
    call, large = begun(), bytes(range(256)) * 1200
    messages = [large, b"", b"m", large]
    body = b"".join(map(message, messages))
    data = b"".join(frame(FrameKind.DATA, 0, 1, body[at : at + size]) for at in range(0, len(body), size))
    found: list[bytes] = []
    for at in range(0, len(data), 100_000):
        found += call.receive(memoryview(data[at : at + 100_000]))
    assert found == messages


def test_a_message_in_tiny_parts_has_one_piece_of_memory() -> None:
    asked: list[int] = []

    def memory(size: int) -> memoryview:
        asked.append(size)
        return memoryview(bytearray(size))

    held, found = Messages(1 << 20, memory), list[Message]()
    for byte in message(b"m" * 100_000):
        held.take(memoryview(bytes([byte])), found)
    assert found == [b"m" * 100_000]
    assert asked == [100_000]
    assert not held._whole, "it is the receiver's alone"


def test_only_data_of_a_message_that_has_begun_has_room() -> None:
    call = begun()
    assert not call.room
    call.receive(frame(FrameKind.DATA, 0, 1, message(b"m" * 30)[:15]))
    assert not call.room, "a frame's head comes next"
    rest = frame(FrameKind.DATA, 0, 1, message(b"m" * 30)[15:] + message(b"n"))
    call.receive(rest[:12])
    assert len(call.room) == 17, "the next message is not part of it"
    call.room[:17] = b"m" * 17
    assert call.placed(17) == [b"m" * 30]
    assert not call.room, "a prefix comes next"
    assert call.receive(rest[29:]) == [b"n"]


def test_a_frame_that_ends_in_the_messages_memory_may_end_the_stream() -> None:
    call = begun()
    data = frame(FrameKind.DATA, END_STREAM, 1, message(b"m" * 30))
    call.receive(data[:20])
    call.room[:24] = b"m" * 24
    assert call.placed(24) == [b"m" * 30]
    assert call.end == End(Code.UNKNOWN, "the peer ended the stream without a status")


def test_requests_keep_to_the_peers_windows() -> None:
    call = begun()
    call.send(b"r" * 100_000)
    frames = list(sent(call))
    assert {(kind, stream) for kind, _, stream, _ in frames} == {(FrameKind.DATA, 1)}
    assert max(len(payload) for *_, payload in frames) == 1 << 14
    body = b"".join(payload for *_, payload in frames)
    assert len(body) == 65535
    call.receive(update(0, 1 << 20))
    assert list(sent(call)) == [], "the stream has no window yet"
    call.receive(update(1, 10))
    [(*_, payload)] = sent(call)
    assert len(payload) == 10
    call.receive(settings((4, 65535 + 100_000), (5, 1 << 20)))
    kinds = list(sent(call))
    assert kinds[0][:2] == (FrameKind.SETTINGS, ACK)
    body += payload + b"".join(payload for kind, *_, payload in kinds if kind == FrameKind.DATA)
    assert body == message(b"r" * 100_000)


def test_the_peer_is_granted_only_what_the_caller_grants() -> None:
    call, part = begun(), frame(FrameKind.DATA, 0, 1, bytes(1 << 14))
    for _ in range(WINDOW_BYTES // 4 // (1 << 14)):
        call.receive(part)
    assert list(sent(call)) == []
    call.grant()
    size = (WINDOW_BYTES // 4).to_bytes(4, "big")
    assert list(sent(call)) == [(FrameKind.WINDOW_UPDATE, 0, 0, size), (FrameKind.WINDOW_UPDATE, 0, 1, size)]
    call.receive(part)
    call.grant()
    assert list(sent(call)) == [], "a little waits for more"
    for _ in range(WINDOW_BYTES // (1 << 14) - 1):
        call.receive(part)
    assert call.end is None
    call.receive(part)
    assert call.end == End(Code.INTERNAL, "the peer sent more than its window")


def test_a_ping_is_answered_and_an_answer_is_not() -> None:
    call = begun()
    call.receive(frame(FrameKind.PING, 0, 0, b"12345678") + frame(FrameKind.PING, ACK, 0, b"answered"))
    assert list(sent(call)) == [(FrameKind.PING, ACK, 0, b"12345678")]
    call.ping()
    assert list(sent(call)) == [(FrameKind.PING, 0, 0, bytes(8))]


def test_trailers_end_the_call_with_their_status_and_words() -> None:
    call = begun()
    data = frame(FrameKind.DATA, 0, 1, message(b"last"))
    fields = ("grpc-status", "12"), ("grpc-message", "unknown method gr%C3%BC%C3%9Fe 100%25")
    assert call.receive(data + trailers(*fields)) == [b"last"]
    assert call.end == End(Code.UNIMPLEMENTED, "unknown method grüße 100%")


def test_headers_may_be_padded_have_a_priority_and_span_several_frames() -> None:
    call = begun()
    block = hpack.encode([("grpc-status", "14"), ("grpc-message", "later")])
    first = bytes([2]) + bytes(5) + block[:7] + bytes(2)
    call.receive(frame(FrameKind.HEADERS, END_STREAM | PADDED | PRIORITY, 1, first))
    call.receive(frame(FrameKind.CONTINUATION, 0, 1, block[7:9]))
    assert call.end is None
    call.receive(frame(FrameKind.CONTINUATION, END_HEADERS, 1, block[9:]))
    assert call.end == End(Code.UNAVAILABLE, "later")


def reset(code: int) -> bytes:
    return frame(FrameKind.RST_STREAM, 0, 1, code.to_bytes(4, "big"))


def headers(*fields: tuple[str, str]) -> bytes:
    return frame(FrameKind.HEADERS, END_HEADERS, 1, hpack.encode(list(fields)))


def goaway(last: int) -> bytes:
    return frame(FrameKind.GOAWAY, 0, 0, struct.pack(">LL", last, 11) + b"too_many_pings")


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (reset(8), Code.CANCELLED, "error code 8"),
        (reset(7), Code.UNAVAILABLE, "error code 7"),
        (reset(2), Code.INTERNAL, "error code 2"),
        (goaway(0), Code.UNAVAILABLE, "error code 11: too_many_pings"),
        (headers((":status", "503")), Code.UNAVAILABLE, "HTTP 503"),
        (headers((":status", "302")), Code.UNKNOWN, "HTTP 302"),
        (headers(("grpc-encoding", "snappy")), Code.INTERNAL, "compressed by snappy"),
        (trailers(("server", "x")), Code.UNKNOWN, "without a status"),
        (trailers(("grpc-status", "99")), Code.UNKNOWN, ""),
        (frame(FrameKind.DATA, END_STREAM), Code.UNKNOWN, "without a status"),
        (frame(FrameKind.DATA, END_STREAM, 1, message(b"m")), Code.UNKNOWN, "without a status"),
        (frame(FrameKind.DATA, PADDED, 1, b"\x05abc"), Code.INTERNAL, "malformed frame of kind 0"),
        (frame(FrameKind.HEADERS, END_HEADERS, 1, b"\xff"), Code.INTERNAL, "malformed frame of kind 1"),
        (frame(FrameKind.PUSH_PROMISE), Code.INTERNAL, "a push"),
        (frame(FrameKind.CONTINUATION), Code.INTERNAL, "among headers, or without any"),
        (frame(FrameKind.HEADERS) + frame(FrameKind.PING, 0, 0, bytes(8)), Code.INTERNAL, "among headers"),
        (frame(FrameKind.WINDOW_UPDATE), Code.INTERNAL, "malformed frame of kind 8"),
        (bytes([0x10, 0, 1, 0, 0, 0, 0, 0, 1]), Code.INTERNAL, "a frame of 1048577 bytes"),
        (bytes([1, 0, 1, 0, PADDED, 0, 0, 0, 1]), Code.INTERNAL, "a frame of 65537 bytes"),
        (bytes([1, 0, 1, 1, 0, 0, 0, 0, 1]), Code.INTERNAL, "a frame of 65537 bytes"),
        (
            frame(FrameKind.HEADERS, 0, 1) + frame(FrameKind.CONTINUATION, 0, 1, bytes(1 << 14)) * 5,
            Code.INTERNAL,
            "headers without an end",
        ),
        (frame(FrameKind.DATA, 0, 1, b"\x00" + b"\xff" * 4), Code.RESOURCE_EXHAUSTED, "larger than max"),
        (frame(FrameKind.DATA, 0, 1, message(b"no gzip", 1)), Code.INTERNAL, "cannot be unpacked"),
        (
            frame(FrameKind.DATA, 0, 1, message(gzip.compress(b"m" * 99, mtime=0)[:-8], 1)),
            Code.INTERNAL,
            "not whole",
        ),
        (
            frame(FrameKind.DATA, 0, 1, message(gzip.compress(b"m", mtime=0) + b"m", 1)),
            Code.INTERNAL,
            "not whole",
        ),
        (frame(FrameKind.DATA, 0, 3, message(b"m")), Code.INTERNAL, "kind 0 on stream 3"),
        (frame(FrameKind.RST_STREAM, 0, 3, bytes(4)), Code.INTERNAL, "kind 3 on stream 3"),
        (frame(FrameKind.PING, 0, 1, bytes(8)), Code.INTERNAL, "kind 6 on stream 1"),
        (trailers((":status", "100")), Code.UNKNOWN, "HTTP 100"),
        (headers((":status", "100")) * 6000, Code.INTERNAL, "headers without an end"),
        (settings((5, 0)), Code.INTERNAL, "a setting 5 of 0"),
        (settings((4, 1 << 31)), Code.INTERNAL, "a setting 4 of"),
        (update(1, 0), Code.INTERNAL, "a window update of 0"),
        (
            frame(FrameKind.HEADERS) + frame(FrameKind.CONTINUATION) * 8000,
            Code.INTERNAL,
            "headers without an end",
        ),
        (
            frame(FrameKind.PING, 0, 0, bytes(8)) * (OUTPUT_BYTES_MAX // 17 + 2),
            Code.RESOURCE_EXHAUSTED,
            "does not read",
        ),
    ],
    ids=lambda value: f"{len(value)}-bytes" if isinstance(value, bytes) else None,
)
def test_whatever_ends_a_call_says_why(data: bytes, code: grpc.StatusCode, words: str) -> None:
    call = begun()
    call.receive(data)
    call.unpacked()
    assert call.end is not None
    assert call.end.code is code
    assert words in call.end.details
    end = call.end
    assert call.receive(frame(FrameKind.DATA, 0, 1, message(b"later"))) == []
    call.lost("the peer closed the connection")
    call.cancel("it was cancelled")
    assert call.end is end, "the first reason counts"


def test_what_does_not_speak_http2_is_named() -> None:
    call = Call("store:20160", "/service/method")
    call.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert call.end == End(Code.UNAVAILABLE, "what answers at its address does not speak HTTP/2")


def test_a_peer_that_goes_away_may_end_its_streams_first() -> None:
    call = begun()
    assert call.receive(goaway(1) + frame(FrameKind.DATA, 0, 1, message(b"m"))) == [b"m"]
    assert call.end is None
    call.lost("the peer closed the connection")
    words = "the peer goes away with error code 11: too_many_pings"
    assert call.end == End(Code.UNAVAILABLE, words)


def test_compressed_messages_are_unpacked_up_to_their_bound() -> None:
    call = Call("store:20160", "/service/method", message_bytes_max=1000)
    call.receive(settings() + frame(FrameKind.HEADERS, END_HEADERS, 1, b"\x88"))
    for pack in gzip.compress, zlib.compress:
        assert call.receive(frame(FrameKind.DATA, 0, 1, message(pack(b"m" * 1000), 1))) == []
        assert call.unpacked() == [b"m" * 1000]
    assert call.receive(frame(FrameKind.DATA, 0, 1, message(gzip.compress(b"m" * 1001), 1))) == []
    assert call.unpacked() == []
    assert call.end is not None
    assert call.end.code is Code.RESOURCE_EXHAUSTED


def test_compressed_messages_are_unpacked_as_they_are_taken_and_keep_order() -> None:
    call = begun()
    large = b"m" * UNPACK_BYTES
    body = (
        message(b"plain")
        + message(gzip.compress(large), 1)
        + message(b"behind")
        + message(zlib.compress(b"z"), 1)
    )
    assert call.receive(frame(FrameKind.DATA, 0, 1, body)) == [b"plain"]
    assert call.unpacked() == [large]
    assert call.unpacked() == [b"behind", b"z"]
    assert call.unpacked() == []
    assert call.receive(frame(FrameKind.DATA, 0, 1, message(b"at once"))) == [b"at once"]


def test_data_before_headers_and_what_is_not_grpc_end_the_call() -> None:
    call = Call("store:20160", "/service/method")
    assert call.receive(settings() + frame(FrameKind.DATA, 0, 1, message(b"m"))) == []
    assert call.end == End(Code.INTERNAL, "data before headers")
    call = Call("store:20160", "/service/method")
    # 0x5f: a literal whose name is the static table's 31, content-type.
    call.receive(settings() + frame(FrameKind.HEADERS, END_HEADERS, 1, b"\x88\x5f\x09text/html"))
    assert call.end == End(Code.UNKNOWN, "what answers is not gRPC: its content-type is 'text/html'")


def test_cancelling_resets_the_stream() -> None:
    call = begun()
    call.cancel("it was cancelled")
    assert list(sent(call)) == [(FrameKind.RST_STREAM, 0, 1, (8).to_bytes(4, "big"))]
    assert call.end == End(Code.CANCELLED, "it was cancelled")


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(
                frame, st.integers(0, 10), st.integers(0, 255), st.integers(0, 3), st.binary(max_size=40)
            ),
        )
    )
)
def test_any_bytes_give_messages_or_end_the_call(parts: Sequence[bytes]) -> None:
    call = begun()
    for part in parts:
        found = call.receive(part)
        assert all(isinstance(each, bytes) for each in found)
    assert call.end is None or call.end.code in http2._CODES.values()
