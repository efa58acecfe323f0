"""The messages of a gRPC call in the bytes of its stream (gRPC, doc/PROTOCOL-HTTP2.md). Pure.

    flag (1: compressed) | length in four bytes | that many bytes

The bytes come in parts that begin and end anywhere. A message that is not whole in one part gets its memory
when its prefix is read, and the caller may read from its socket into it (`room`).

A compressed message stays compressed until the receiver takes it, because a few bytes may unpack to
gigabytes; later messages wait behind it, to keep their order.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable
from typing import Final

import grpc

Bytes = bytes | bytearray | memoryview
Message = bytes | memoryview
"""The bytes of a message. If it is large, its memory is used again when nothing refers to it any more."""

UNPACK_BYTES: Final = 4 << 20
"""After this many unpacked bytes the receiver is asked whether it takes more."""
ENCODINGS: Final = ("identity", "deflate", "gzip")
"""The compressions that can be unpacked, as headers name them."""

_PREFIX: Final = struct.Struct(">BL")


class MessageError(Exception):
    """The peer sent what is no message, or one that is too large; the call ends with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


def framed(message: bytes) -> bytes:
    """A message as it is sent: not compressed."""
    return _PREFIX.pack(0, len(message)) + message


class Messages:
    """The messages that a peer sends in one call."""

    def __init__(self, bytes_max: int, memory: Callable[[int], memoryview]) -> None:
        """`bytes_max`: the largest message, also when it is unpacked. `memory`: makes that of a message."""
        self._bytes_max, self._memory = bytes_max, memory
        self._prefix = bytearray()  # the beginning of an incomplete prefix
        self._flag = 0
        self.room = memoryview(b"")
        """The memory of the bytes that a message which has begun is missing; empty: a prefix comes next."""
        self._whole = self.room  # the memory of that message
        self._packed: deque[tuple[int, Message]] = deque()  # messages that wait behind a compressed one

    def take(self, part: memoryview, messages: list[Message]) -> None:
        """Split the next bytes into messages; adds to `messages` those that need no unpacking.

        Raises MessageError; then the messages before the bad one have been added.
        """
        while part:
            if self.room:
                size = min(len(part), len(self.room))
                self.room[:size] = part[:size]
                self.filled(size, messages)
                part = part[size:]
            # A frame may end inside a prefix; its first bytes wait for the rest.
            elif self._prefix or len(part) < _PREFIX.size:
                more = part[: _PREFIX.size - len(self._prefix)]
                self._prefix += more
                part = part[len(more) :]
                if len(self._prefix) == _PREFIX.size:
                    prefix, self._prefix = self._prefix, bytearray()
                    self._begin(prefix, messages)
            # The usual case: a message that is whole in one frame is copied once.
            elif len(part) >= (whole := _PREFIX.size + self._size(part)):
                self._add(part[0], bytes(part[_PREFIX.size : whole]), messages)
                part = part[whole:]
            else:
                self._begin(part, messages)
                part = part[_PREFIX.size :]

    def _begin(self, prefix: Bytes, messages: list[Message]) -> None:
        """Read a prefix; its message follows."""
        self._flag, size = prefix[0], self._size(prefix)
        if size:
            # The system finds pages for what is written, so a prefix alone does not cost its message's size.
            self._whole = self.room = self._memory(size)
        else:
            # An empty message is complete with its prefix: no later byte would complete it.
            self._add(self._flag, b"", messages)

    def filled(self, size: int, messages: list[Message]) -> None:
        """The first `size` bytes of `room` were written; adds the message if it is whole."""
        self.room = self.room[size:]
        if not self.room:
            whole = self._whole
            # Otherwise this object would refer to the message until the next one begins.
            self._whole = self.room = memoryview(b"")
            self._add(self._flag, whole, messages)

    def unpack(self, messages: list[Message]) -> None:
        """Add about `UNPACK_BYTES` of the messages that `take` held back.

        Raises MessageError; then the messages before the bad one have been added, and no others will come.
        """
        size = 0
        while self._packed and size < UNPACK_BYTES:
            flag, message = self._packed.popleft()
            try:
                found = self._unpacked(message) if flag else message
            except MessageError:
                self._packed.clear()
                raise
            messages.append(found)
            size += len(found)

    def _size(self, prefix: Bytes) -> int:
        size: int = _PREFIX.unpack_from(prefix)[1]
        # Judged by the prefix, before any byte is kept: four bytes of a peer could otherwise ask for 4 GiB.
        if size > self._bytes_max:
            details = f"message larger than max ({size} vs. {self._bytes_max})"
            raise MessageError(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        return size

    def _add(self, flag: int, message: Message, messages: list[Message]) -> None:
        if flag or self._packed:
            self._packed.append((flag, message))
        else:
            messages.append(message)

    def _unpacked(self, message: Message) -> bytes:
        """The content of a message of gzip or zlib (gRPC's deflate)."""
        # 32: the header decides between gzip and zlib, because the flag of a message does not say which of
        # them it is.
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            found = unpacker.decompress(message, self._bytes_max)
        except zlib.error as error:
            details = f"a message that cannot be unpacked: {error}"
            raise MessageError(grpc.StatusCode.INTERNAL, details) from error
        if unpacker.unconsumed_tail:
            details = "message larger than max when it is unpacked"
            raise MessageError(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        if not unpacker.eof or unpacker.unused_data:
            # A truncated message may still parse as a message, but without its last rows.
            raise MessageError(grpc.StatusCode.INTERNAL, "a compressed message that is not whole")
        return found
