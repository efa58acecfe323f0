"""The messages of a gRPC call in the bytes of its stream (gRPC, doc/PROTOCOL-HTTP2.md). Pure.

    flag (1: compressed) | length in four bytes | that many bytes

The bytes come in parts that begin and end anywhere. A compressed message stays compressed until the receiver
takes it, because a few bytes may unpack to gigabytes; later messages wait behind it, to keep their order.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from typing import Final

import grpc

Bytes = bytes | bytearray | memoryview

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

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: the largest message, also when it is unpacked."""
        self._bytes_max = bytes_max
        self._body = bytearray()  # the beginning of an incomplete message
        self._packed: deque[tuple[int, bytes]] = deque()  # messages that wait behind a compressed one

    def take(self, part: memoryview, messages: list[bytes]) -> None:
        """Split the next bytes into messages; adds to `messages` those that need no unpacking.

        Raises MessageError; then the messages before the bad one have been added.
        """
        while part:
            if self._body or len(part) < _PREFIX.size:
                have = len(self._body)
                whole = _PREFIX.size
                if have >= _PREFIX.size:
                    whole += self._size(self._body)
                more = part[: whole - have]
                self._body += more
                part = part[len(more) :]
                # If only the prefix is there, the size is known from here on: continue, unless the message is
                # empty.
                if len(self._body) < whole or (whole == _PREFIX.size and self._size(self._body)):
                    continue
                body, self._body = self._body, bytearray()
                self._add(body[0], bytes(memoryview(body)[_PREFIX.size :]), messages)
                continue
            whole = _PREFIX.size + self._size(part)
            if len(part) < whole:
                self._body += part
                return
            self._add(part[0], bytes(part[_PREFIX.size : whole]), messages)
            part = part[whole:]

    def unpack(self, messages: list[bytes]) -> None:
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
        if size > self._bytes_max:
            details = f"message larger than max ({size} vs. {self._bytes_max})"
            raise MessageError(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        return size

    def _add(self, flag: int, message: bytes, messages: list[bytes]) -> None:
        if flag or self._packed:
            self._packed.append((flag, message))
        else:
            messages.append(message)

    def _unpacked(self, message: bytes) -> bytes:
        """The content of a message of gzip or zlib (gRPC's deflate)."""
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
