"""Compression of single messages, independent of the sink's own: docs/formats/large-messages.md.

    snappy   a raw block, which begins with the length of its content
    lz4      frames, which do not contain the length

Open-protocol compresses the value of each item, the other protocols the whole value; empty values stay empty.
Libraries may compress to different bytes, but all of them expand to the same content. A hostile message
cannot make the reader allocate much memory: the expanded size is bounded before or during expansion.
`codec.decoding.opening` bounds a batch of messages.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

NONE: Final = "none"
SNAPPY: Final = "snappy"
LZ4: Final = "lz4"
MAX_EXPANDED: Final = 1 << 28
"""Bytes to which one message may expand. TiDB's largest row has 120 MB; 256 MB are enough for its text."""
_SNAPPY_RATIO: Final = 32
"""A block that claims to expand by more is refused. (A copy of three bytes expands to at most 64 bytes.)"""
_CHUNK: Final = 1 << 16
_LENGTH_BYTES: Final = 5


class ExpandError(ValueError):
    """Bytes that are not compressed correctly, or expand to more than is allowed."""


def compressed(kind: str, data: bytes) -> bytes:
    """The data as messages contain it."""
    if kind == NONE or not data:
        return data
    found: bytes = pa.compress(data, kind, asbytes=True)
    return found


def expanded(kind: str, data: bytes, most: int = MAX_EXPANDED) -> bytes:
    """The expanded data. Raises ExpandError, also if it would have more than `most` bytes."""
    if kind == NONE or not data:
        return data
    try:
        return _unsnapped(data, most) if kind == SNAPPY else _unframed(data, most)
    except (pa.ArrowException, OSError) as error:
        raise ExpandError(f"the value is not compressed with {kind}: {str(error)[:200]}") from error


def _unsnapped(data: bytes, most: int) -> bytes:
    size = _claimed(data)
    # Checked before `decompress` allocates so many bytes.
    if size > min(most, _SNAPPY_RATIO * len(data)):
        raise ExpandError(f"a snappy block of {len(data)} bytes claims to hold {size}")
    found: bytes = pa.decompress(data, size, SNAPPY, asbytes=True) if size else b""
    return found


def _claimed(data: bytes) -> int:
    """The length at the beginning of a snappy block: seven bits per byte, the lowest first."""
    size = 0
    for i, byte in enumerate(data[:_LENGTH_BYTES]):
        size |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return size
    raise ExpandError("a snappy block does not begin with a length")


def _unframed(data: bytes, most: int) -> bytes:
    chunks, size = [], 0
    with pa.CompressedInputStream(pa.BufferReader(data), LZ4) as stream:
        # At most one byte more than allowed is read: that is enough to notice a frame that is too long.
        while chunk := stream.read(min(max(_CHUNK, size), most - size + 1)):
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                raise ExpandError(f"an lz4 frame of {len(data)} bytes expands to more than {most}")
    return b"".join(chunks)
