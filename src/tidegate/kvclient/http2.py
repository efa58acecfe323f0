"""One streaming gRPC call on its own HTTP/2 connection (RFC 9113), as a pure state machine.

```
 bytes of the peer --> receive --> messages, `end`
 ... read into `room` -> placed --> messages, `end`
 send, grant, ping, cancel ------> `output`, bytes for the peer
```

It replaces gRPC's library for long-lived streams, because the library needs four threads and half a
millisecond for a message (`benchmarks/marks.py`). `stream_loop` is the edge that moves the bytes,
and `http2_output` the half that sends.

A message (`grpc_messages`) is in any number of DATA frames. Back-pressure is HTTP/2's: the peer may send at
most `WINDOW_BYTES` that were not granted again. `end` is set once: by the peer's trailers, by a protocol
error, or by `cancel`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import grpc

from tidegate.kvclient import hpack
from tidegate.kvclient.grpc_messages import ENCODINGS, Bytes, Message, MessageError, Messages, framed
from tidegate.kvclient.http2_output import DEFAULT_WINDOW, FRAME_BYTES_MAX, HEAD, STREAM, FrameKind, Output

WINDOW_BYTES: Final = 2 << 20
"""The bytes that the peer may send before it needs another grant: enough for 200 MB/s at a round trip of
10 ms."""
DATA_BYTES_MAX: Final = 1 << 20
"""The largest DATA frame that is accepted. Each frame costs some microseconds, and its size is 16 KiB at most
unless the settings allow more.
"""
HEADERS_BYTES_MAX: Final = 1 << 16
"""The most bytes of all header blocks of a call; an answer has two or three small ones. It is also the
largest size of frames other than plain DATA, because they are buffered whole."""
_U32: Final = struct.Struct(">L")
_SETTING: Final = struct.Struct(">HL")
_WINDOW_MAX: Final = (1 << 31) - 1

_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 1, 2, 4, 5
_NO_ERROR, _REFUSED_STREAM, _CANCEL, _ENHANCE_YOUR_CALM = 0, 7, 8, 11

_OF_RESET: Final = {
    _REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    _CANCEL: grpc.StatusCode.CANCELLED,
    _ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""Other error codes of RST_STREAM are INTERNAL (gRPC, doc/PROTOCOL-HTTP2.md)."""
_OF_HTTP: Final = {
    "400": grpc.StatusCode.INTERNAL,
    "401": grpc.StatusCode.UNAUTHENTICATED,
    "403": grpc.StatusCode.PERMISSION_DENIED,
    "404": grpc.StatusCode.UNIMPLEMENTED,
    "429": grpc.StatusCode.UNAVAILABLE,
    "502": grpc.StatusCode.UNAVAILABLE,
    "503": grpc.StatusCode.UNAVAILABLE,
    "504": grpc.StatusCode.UNAVAILABLE,
}
"""Other HTTP states are UNKNOWN (gRPC, doc/http-grpc-status-mapping.md)."""
_CODES: Final = {str(code.value[0]): code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class End:
    """The reason why a call ended."""

    code: grpc.StatusCode
    details: str


_STREAMS: Final[dict[int, int]] = {
    FrameKind.DATA: STREAM,
    FrameKind.HEADERS: STREAM,
    FrameKind.RST_STREAM: STREAM,
    FrameKind.CONTINUATION: STREAM,
    FrameKind.SETTINGS: 0,
    FrameKind.PING: 0,
    FrameKind.GOAWAY: 0,
}
"""The stream on which frames of a kind may arrive; 0: the connection."""


class Call:
    """The call and its connection. The edge sends the bytes of `output` and removes what it has sent."""

    def __init__(
        self,
        authority: str,
        path: str,
        metadata: tuple[tuple[str, str], ...] = (),
        *,
        scheme: str = "http",
        message_bytes_max: int = 256 << 20,
        memory: Callable[[int], memoryview] = lambda size: memoryview(bytearray(size)),
    ) -> None:
        """Begin the call of `path` (`/service/method`) at `authority` (host:port).

        `memory`: makes so many bytes for a message.
        """
        self._sending = Output()
        self.output = self._sending.output
        self.end: End | None = None
        self._messages = Messages(message_bytes_max, memory)
        self._has_settings = False
        self._input = bytearray()  # the beginning of an incomplete frame
        self._left = 0  # missing bytes of the current DATA frame
        self._is_last = False  # whether that frame ends the stream
        self._unacknowledged = 0  # bytes received since the last grant
        self._block: bytearray | None = None  # headers that continue in the next frame
        self._block_flags = 0
        self._header_bytes = 0
        self._has_headers = False
        self._goes_away = ""
        settings = (
            (_HEADER_TABLE_SIZE, 0),
            (_ENABLE_PUSH, 0),
            (_INITIAL_WINDOW_SIZE, WINDOW_BYTES),
            (_MAX_FRAME_SIZE, DATA_BYTES_MAX),
        )
        self._put(FrameKind.SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in settings))
        # The setting is for streams only. The connection's own window can only be raised (RFC 9113, 6.9.2),
        # and the smaller of the two limits the peer.
        self._put(FrameKind.WINDOW_UPDATE, 0, 0, _U32.pack(WINDOW_BYTES - DEFAULT_WINDOW))
        headers = [
            (":method", "POST"),
            (":scheme", scheme),
            (":path", path),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-accept-encoding", ",".join(ENCODINGS)),
            *metadata,
        ]
        self._put(FrameKind.HEADERS, _END_HEADERS, STREAM, hpack.encode(headers))

    def send(self, message: bytes) -> None:
        """Send a message as soon as the peer's window allows it."""
        if self.end is None:
            self._sending.send(framed(message))

    def grant(self) -> None:
        """Let the peer send as much again as was received; without this it stops after a window."""
        # A grant for each message would cost two frames each. Below a quarter the peer still has three
        # quarters of its window.
        if self._unacknowledged >= WINDOW_BYTES // 4 and self.end is None:
            self._put(FrameKind.WINDOW_UPDATE, 0, 0, _U32.pack(self._unacknowledged))
            self._put(FrameKind.WINDOW_UPDATE, 0, STREAM, _U32.pack(self._unacknowledged))
            self._unacknowledged = 0

    def ping(self) -> None:
        """Send a ping, which the peer must answer."""
        self._put(FrameKind.PING, 0, 0, bytes(8))

    def cancel(self, details: str) -> None:
        """End the call."""
        if self.end is None:
            self._put(FrameKind.RST_STREAM, 0, STREAM, _U32.pack(_CANCEL))
            self.end = End(grpc.StatusCode.CANCELLED, details)

    def lost(self, why: str) -> None:
        """End the call, because its connection is closed."""
        # The words of a GOAWAY say more than that the connection was closed after it.
        self._finish(grpc.StatusCode.UNAVAILABLE, self._goes_away or why)

    @property
    def room(self) -> memoryview:
        """The memory of the peer's next bytes, if they are data of a message that has begun; else empty.

        Who reads into it calls `placed` and saves a copy; or ignores it and calls `receive`.
        """
        # While a frame of data is incomplete, `_input` is empty, so no other byte comes before.
        return self._messages.room[: self._left]

    def placed(self, size: int) -> list[Message]:
        """Process the first `size` bytes of `room`, where the peer's bytes are now; returns the messages."""
        messages: list[Message] = []
        self._left -= size
        self._messages.filled(size, messages)
        if not self._left:
            self._ended_frame()
        return messages

    def receive(self, data: Bytes) -> list[Message]:
        """Process bytes from the peer; returns the messages in them. The caller may then reuse `data`."""
        messages: list[Message] = []
        if self._input:
            self._input += data
            # The view below locks the old buffer, and a locked one cannot grow. So the rest goes into a new
            # one.
            data, self._input = self._input, bytearray()
        view = memoryview(data)
        at = 0
        while self.end is None:
            if self._left:
                part = view[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                self._take(part, messages)
                if self._left:
                    break
                self._ended_frame()
                continue
            if len(view) - at < HEAD.size:
                break
            high, low, kind, flags, stream = HEAD.unpack_from(view, at)
            size = high << 8 | low
            # Only such data is taken while its frame is incomplete. `_input` keeps the beginning of other
            # frames, so these must be small. gRPC pads none.
            is_plain = kind == FrameKind.DATA and not flags & _PADDED
            if not self._may_come(kind, size, stream, DATA_BYTES_MAX if is_plain else HEADERS_BYTES_MAX):
                break
            if is_plain:
                at += HEAD.size
                # When the head arrives: `grant` can then return the whole frame, and the peer does not run
                # out of window in the middle of it.
                self._count_received(size)
                self._left, self._is_last = size, bool(flags & _END_STREAM)
                # No byte follows that could end an empty frame above.
                if not size:
                    self._ended_frame()
                continue
            if len(view) - at < HEAD.size + size:
                break
            at += HEAD.size
            self._frame(kind, flags, stream, bytes(view[at : at + size]), messages)
            at += size
        self._input += view[at:]
        return messages

    def unpacked(self) -> list[Message]:
        """About `UNPACK_BYTES` of the messages that `receive` held back behind a compressed one.

        Call this until it returns nothing or the receiver takes no more.
        """
        messages: list[Message] = []
        try:
            self._messages.unpack(messages)
        except MessageError as error:
            self._finish(error.code, error.details)
        return messages

    # --- frames --------------------------------------------------------------------------------------

    def _may_come(self, kind: int, size: int, stream: int, size_max: int) -> bool:
        expected = _STREAMS.get(kind)
        # Looked at first: what speaks HTTP/1 or TLS fails here, and not with a strange frame size.
        if not self._has_settings and kind != FrameKind.SETTINGS:
            self._finish(grpc.StatusCode.UNAVAILABLE, "what answers at its address does not speak HTTP/2")
        elif size > size_max:
            self._finish(grpc.StatusCode.INTERNAL, f"a frame of {size} bytes")
        elif expected is not None and stream & _WINDOW_MAX != expected:
            self._finish(grpc.StatusCode.INTERNAL, f"a frame of kind {kind} on stream {stream}")
        elif kind == FrameKind.DATA and not self._has_headers:
            self._finish(grpc.StatusCode.INTERNAL, "data before headers")
        # The frames of a header block must follow each other without another frame (RFC 9113, 4.3).
        elif (self._block is not None) != (kind == FrameKind.CONTINUATION):
            self._finish(grpc.StatusCode.INTERNAL, f"a frame of kind {kind} among headers, or without any")
        return self.end is None

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes, messages: list[Message]) -> None:
        try:
            match kind:
                case FrameKind.DATA:
                    self._count_received(len(payload))
                    self._is_last = bool(flags & _END_STREAM)
                    self._take(memoryview(_without_padding(payload, flags)), messages)
                    self._ended_frame()
                case FrameKind.HEADERS:
                    # The head counts as well, so that empty continuations without an end are bounded.
                    self._header_bytes += HEAD.size + len(payload)
                    payload = _without_padding(payload, flags)
                    # The five bytes are a priority, which one call on its own connection does not need.
                    self._block = bytearray(payload[5:] if flags & _PRIORITY else payload)
                    self._block_flags = flags
                    self._continued(flags)
                case FrameKind.CONTINUATION:
                    assert self._block is not None, "`_may_come` has looked"
                    self._header_bytes += HEAD.size + len(payload)
                    self._block += payload
                    self._continued(flags)
                case FrameKind.RST_STREAM:
                    code = _U32.unpack(payload)[0]
                    found = _OF_RESET.get(code, grpc.StatusCode.INTERNAL)
                    self._finish(found, f"the peer reset the stream with error code {code}")
                case FrameKind.SETTINGS:
                    self._settings(flags, payload)
                case FrameKind.PING:
                    if not flags & _ACK:
                        self._put(FrameKind.PING, _ACK, 0, payload)
                case FrameKind.GOAWAY:
                    self._going_away(payload)
                case FrameKind.WINDOW_UPDATE:
                    self._granted(stream, _U32.unpack(payload)[0] & _WINDOW_MAX)
                case FrameKind.PUSH_PROMISE:
                    self._finish(grpc.StatusCode.INTERNAL, "a push, which was forbidden")
                case _:
                    pass  # unknown kinds and PRIORITY are ignored (RFC 9113, 5.5)
        except (hpack.MalformedError, struct.error, IndexError) as error:
            self._finish(grpc.StatusCode.INTERNAL, f"a malformed frame of kind {kind}: {error}")

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & _ACK:
            return
        self._has_settings = True
        for name, value in _SETTING.iter_unpack(payload):
            if (name == _INITIAL_WINDOW_SIZE and value > _WINDOW_MAX) or (
                name == _MAX_FRAME_SIZE and value < FRAME_BYTES_MAX
            ):
                self._finish(grpc.StatusCode.INTERNAL, f"a setting {name} of {value}")
            elif name == _INITIAL_WINDOW_SIZE:
                self._sending.begin_with(value)
            elif name == _MAX_FRAME_SIZE:
                self._sending.limit_frames(value)
        # After they were applied, because the acknowledgement says that they are in force (RFC 9113, 6.5.3).
        self._put(FrameKind.SETTINGS, _ACK, 0, b"")
        self._fill()

    def _granted(self, stream: int, size: int) -> None:
        # It would allow nothing and could be repeated for ever (RFC 9113, 6.9).
        if size == 0:
            self._finish(grpc.StatusCode.INTERNAL, "a window update of 0")
        else:
            self._sending.widen(stream, size)
        self._fill()

    def _going_away(self, payload: bytes) -> None:
        last, code = _U32.unpack_from(payload)[0] & _WINDOW_MAX, _U32.unpack_from(payload, 4)[0]
        words = payload[8:].decode("utf-8", "replace")
        self._goes_away = f"the peer goes away with error code {code}" + (f": {words}" if words else "")
        # A stream up to `last` continues to its end. Only one above it was not processed.
        if last < STREAM:
            self._finish(grpc.StatusCode.UNAVAILABLE, self._goes_away)

    def _continued(self, flags: int) -> None:
        """Handle the header bytes collected so far; decode them if they are complete."""
        assert self._block is not None, "a frame of headers has come"
        if self._header_bytes > HEADERS_BYTES_MAX:
            self._finish(grpc.StatusCode.INTERNAL, "headers without an end")
        elif flags & _END_HEADERS:
            block, self._block = bytes(self._block), None
            self._headers(dict(hpack.decode(block)), bool(self._block_flags & _END_STREAM))

    def _headers(self, fields: dict[str, str], is_last: bool) -> None:
        state = fields.get(":status", "200")
        status = fields.get("grpc-status")
        encoding = fields.get("grpc-encoding", "identity")
        kind = fields.get("content-type", "application/grpc")
        # Looked at first, because HTTP states are mapped only where no status of gRPC is given.
        if status is not None and is_last:
            code = _CODES.get(status, grpc.StatusCode.UNKNOWN)
            self._finish(code, unquote(fields.get("grpc-message", "")))
        elif state.startswith("1") and not is_last:
            pass  # an interim response: the real one follows
        elif state != "200":
            self._finish(_OF_HTTP.get(state, grpc.StatusCode.UNKNOWN), f"the peer answers with HTTP {state}")
        elif is_last:
            self._finish(grpc.StatusCode.UNKNOWN, "the peer ended the stream without a status")
        # Without this the page of a proxy would be parsed as messages.
        elif not self._has_headers and not kind.startswith("application/grpc"):
            self._finish(
                grpc.StatusCode.UNKNOWN, f"what answers is not gRPC: its content-type is {kind[:100]!r}"
            )
        elif encoding not in ENCODINGS:
            self._finish(
                grpc.StatusCode.INTERNAL, f"messages compressed by {encoding}, which was not offered"
            )
        else:
            self._has_headers = True

    def _ended_frame(self) -> None:
        if self._is_last:
            self._finish(grpc.StatusCode.UNKNOWN, "the peer ended the stream without a status")

    def _finish(self, code: grpc.StatusCode, details: str) -> None:
        """End the call, unless it has ended before."""
        self.end = self.end or End(code, details)

    # --- messages ------------------------------------------------------------------------------------

    def _count_received(self, size: int) -> None:
        self._unacknowledged += size
        # docs/guarantees.md#memory-is-bounded: a peer that ignores flow control could fill the memory.
        if self._unacknowledged > WINDOW_BYTES:
            self._finish(grpc.StatusCode.INTERNAL, "the peer sent more than its window")

    def _take(self, part: memoryview, messages: list[Message]) -> None:
        if self.end is None:
            try:
                self._messages.take(part, messages)
            except MessageError as error:
                self._finish(error.code, error.details)

    # --- output --------------------------------------------------------------------------------------

    def _fill(self) -> None:
        if self.end is None:
            self._sending.fill()

    def _put(self, kind: FrameKind, flags: int, stream: int, payload: bytes) -> None:
        if not self._sending.put(kind, flags, stream, payload):
            self._finish(grpc.StatusCode.RESOURCE_EXHAUSTED, "the peer does not read what it is answered")


def _without_padding(payload: bytes, flags: int) -> bytes:
    """A frame's payload without its padding. Raises IndexError if the padding is larger."""
    if not flags & _PADDED:
        return payload
    if payload[0] >= len(payload):
        raise IndexError("more padding than payload")
    return payload[1 : len(payload) - payload[0]]
