"""The sending half of a call (`http2`): frames, and the peer's windows, which bound the data that goes out.

```
 put ------------------> `output`     control frames, at once
 send -> waiting data -> `output`     DATA frames, as far as the windows of stream and connection allow
```
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

FRAME_BYTES_MAX: Final = 1 << 14
"""The largest frame that is sent: the size that each side must accept."""
OUTPUT_BYTES_MAX: Final = 4 << 20
"""If more bytes wait because the peer does not read, its pings and settings are not answered: the call
ends."""
HEAD: Final = struct.Struct(">HBBBL")
"""A frame: its length in three bytes, kind, flags, stream."""
STREAM: Final = 1
"""The stream of the call, the only one of its connection."""
DEFAULT_WINDOW: Final = (1 << 16) - 1
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class FrameKind(IntEnum):
    """The kind of a frame."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Output:
    """The bytes for the peer. The edge sends those of `output` and removes what it has sent."""

    def __init__(self) -> None:
        self.output = bytearray(_PREFACE)
        self._waiting = bytearray()  # data for which the peer has no window yet
        self._frame_bytes = FRAME_BYTES_MAX
        self._initial = self._stream = self._connection = DEFAULT_WINDOW

    def put(self, kind: FrameKind, flags: int, stream: int, payload: bytes) -> bool:
        """Add a frame. False, without effect, if it is an answer and the peer does not read."""
        # Only answers, because the peer alone decides how many of them there are.
        if len(self.output) > OUTPUT_BYTES_MAX and kind in {FrameKind.PING, FrameKind.SETTINGS}:
            return False
        size = len(payload)
        self.output += HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload
        return True

    def send(self, data: bytes) -> None:
        """Send data as soon as the peer's windows allow it."""
        self._waiting += data
        self.fill()

    def fill(self) -> None:
        """Send waiting data as far as the peer's windows allow."""
        while self._waiting:
            size = min(self._frame_bytes, self._stream, self._connection)
            # A window may be below 0: SETTINGS can make it smaller than what is under way (RFC 9113, section
            # 6.9.2).
            if size <= 0:
                return
            part = bytes(self._waiting[:size])
            del self._waiting[:size]
            self._stream -= len(part)
            self._connection -= len(part)
            self.put(FrameKind.DATA, 0, STREAM, part)

    def widen(self, stream: int, size: int) -> None:
        """The peer takes more data on a stream; 0: on the connection."""
        if stream:
            self._stream += size
        else:
            self._connection += size

    def begin_with(self, window: int) -> None:
        """The peer's setting for the window of a stream that begins. It holds for the open stream, too."""
        # The window may become negative (RFC 9113, 6.9.2); then `fill` waits.
        self._stream += window - self._initial
        self._initial = window

    def limit_frames(self, size: int) -> None:
        """The peer's setting for the largest frame that it takes."""
        self._frame_bytes = min(size, FRAME_BYTES_MAX)
