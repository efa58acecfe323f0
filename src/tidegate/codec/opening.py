"""Expand messages that their producer has compressed, and hand them to a decoder.

Message by message: what cannot be expanded is a bad message, and what a decoder finds bad is reported with
the bytes that were on the topic. Bounds: see `codec.compression`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from tidegate.codec.assemble import at, bad_message
from tidegate.codec.base import Batch, Decoded, Decoder
from tidegate.codec.compression import NONE, ExpandError, expanded
from tidegate.codec.large import Large, LargeOptions

LENGTH: Final = 8
"""Bytes of an item's length."""


def opening(decoder: Decoder, options: LargeOptions, large: Large) -> Decoder:
    """The decoder, or one that expands messages for it."""
    kind = options.large_message_handle_compression
    return decoder if kind == NONE else Opening(decoder, kind, framed=large.framed)


def opened(value: bytes, kind: str, *, framed: bool) -> bytes:
    """A message's value, expanded; of batches each item for itself. Raises ExpandError."""
    return _items(value, kind) if framed else expanded(kind, value)


def _items(value: bytes, kind: str) -> bytes:
    """Items with their lengths; what is no such thing is left as it is, for the decoder to refuse."""
    parts, position = [], 0
    while position < len(value):
        size = int.from_bytes(value[position : position + LENGTH], "big")
        end = position + LENGTH + size
        if position + LENGTH > len(value) or end > len(value):
            return value
        item = expanded(kind, value[position + LENGTH : end])
        parts += [len(item).to_bytes(LENGTH, "big"), item]
        position = end
    return b"".join(parts)


class Opening:
    """A `Decoder` of compressed messages over one of plain ones."""

    def __init__(self, decoder: Decoder, kind: str, *, framed: bool) -> None:
        self._decoder, self._kind, self._framed = decoder, kind, framed

    def decode(self, batch: Batch) -> Decoded:
        """As `Decoder.decode`."""
        values, bad, kept = [], [], []
        for i in range(len(batch)):
            value = at(batch.values, i)
            try:
                values.append(None if value is None else opened(value, self._kind, framed=self._framed))
                kept.append(i)
            except ExpandError as error:
                bad.append(bad_message(int(batch.offsets[i]), at(batch.keys, i), value, error))
        offsets = np.asarray(batch.offsets, dtype=np.int64)
        headers = None if batch.headers is None else [batch.headers[i] for i in kept]
        decoded = self._decoder.decode(
            Batch([at(batch.keys, i) for i in kept], values, offsets[kept], headers)
        )
        places = {int(offsets[i]): i for i in kept}
        bad += [replace(one, value=at(batch.values, places[one.offset])) for one in decoded.bad]
        return replace(decoded, bad=sorted(bad, key=lambda one: one.offset))
