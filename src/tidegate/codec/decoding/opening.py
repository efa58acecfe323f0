"""Expands messages that their producer has compressed, and passes them to a decoder.

A message that cannot be expanded is a bad message. A message that the decoder finds bad is reported with the
bytes that are on the topic.

Bounds: a message expands to at most MAX_EXPANDED bytes, all its items together. The same bound holds for the
messages that are decoded at a time: small messages that expand a lot are decoded in several pieces. At most
one piece and the message after it are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tidegate.codec.base import BadMessage, Batch, Decoded, Decoder
from tidegate.codec.decoding.assemble import at, bad_message
from tidegate.codec.decoding.joined import join
from tidegate.codec.formats.compression import MAX_EXPANDED, NONE, ExpandError, expanded
from tidegate.codec.large import Large, LargeOptions

LENGTH: Final = 8
"""Bytes of the length of an item."""


def opening(decoder: Decoder, options: LargeOptions, large: Large) -> Decoder:
    """The decoder itself, or one that expands messages for it."""
    kind = options.large_message_handle_compression
    return decoder if kind == NONE else Opening(decoder, kind, framed=large.framed)


def in_pieces(decoder: Decoder, batch: Batch) -> Iterator[Decoded]:
    """The content of a batch, in pieces of bounded size, in the order of the messages.

    A caller that drops each piece before the next is made needs less memory than with `Decoder.decode`, which
    has all of them in memory at its end.
    """
    if isinstance(decoder, Opening):
        yield from decoder.pieces(batch)
    else:
        yield decoder.decode(batch)


def opened(value: bytes, kind: str, *, framed: bool, most: int = MAX_EXPANDED) -> bytes:
    """The expanded value of a message; batches are expanded item by item. ExpandError beyond `most` bytes."""
    return _items(value, kind, most) if framed else expanded(kind, value, most)


def _items(value: bytes, kind: str, most: int) -> bytes:
    """Expand items, which have lengths. A value of another form is returned unchanged: the decoder refuses
    it.
    """
    parts, position, left = [], 0, most
    while position < len(value):
        size = int.from_bytes(value[position : position + LENGTH], "big")
        end = position + LENGTH + size
        if position + LENGTH > len(value) or end > len(value):
            return value
        # The limit is for all items together: many small ones could expand to more than memory has.
        item = expanded(kind, value[position + LENGTH : end], left)
        parts += [len(item).to_bytes(LENGTH, "big"), item]
        position, left = end, left - len(item)
    return b"".join(parts)


@dataclass(slots=True)
class _Expanded:
    """Expanded messages that will be decoded together."""

    places: list[int] = field(default_factory=list)
    """Their numbers in the batch."""
    values: list[bytes | None] = field(default_factory=list)
    bad: list[BadMessage] = field(default_factory=list)
    size: int = 0


class Opening:
    """A `Decoder` of compressed messages, on top of a decoder of uncompressed ones."""

    def __init__(self, decoder: Decoder, kind: str, *, framed: bool, most: int = MAX_EXPANDED) -> None:
        """`most`: bytes to which a message, and the messages decoded at a time, may expand."""
        self._decoder, self._kind, self._framed, self._most = decoder, kind, framed, most

    def decode(self, batch: Batch) -> Decoded:
        """As `Decoder.decode`; memory is bounded by the expanded size of the messages."""
        pieces = list(self.pieces(batch))
        if len(pieces) > 1 and any(bad.unknown is not None for piece in pieces for bad in piece.bad):
            # A later piece may have defined the tables that these messages need.
            pieces = list(self.pieces(batch))
        return pieces[0] if len(pieces) == 1 else join(pieces)

    def pieces(self, batch: Batch) -> Iterator[Decoded]:
        """See `in_pieces`."""
        piece = _Expanded()
        for i in range(len(batch)):
            value = at(batch.values, i)
            try:
                found = None
                if value is not None:
                    found = opened(value, self._kind, framed=self._framed, most=self._most)
            except ExpandError as error:
                piece.bad.append(bad_message(int(batch.offsets[i]), at(batch.keys, i), value, error))
                continue
            size = len(found or b"")
            if piece.size and piece.size + size > self._most:
                yield self._decoded(batch, piece)
                piece = _Expanded()
            piece.places.append(i)
            piece.values.append(found)
            piece.size += size
        yield self._decoded(batch, piece)

    def _decoded(self, batch: Batch, piece: _Expanded) -> Decoded:
        offsets = np.asarray(batch.offsets, dtype=np.int64)[piece.places]
        headers = None if batch.headers is None else [batch.headers[i] for i in piece.places]
        keys = [at(batch.keys, i) for i in piece.places]
        decoded = self._decoder.decode(Batch(keys, piece.values, offsets, headers))
        places = dict(zip(offsets.tolist(), piece.places, strict=True))
        bad = [replace(one, value=at(batch.values, places[one.offset])) for one in decoded.bad]
        return replace(decoded, bad=sorted([*bad, *piece.bad], key=lambda one: one.offset))
