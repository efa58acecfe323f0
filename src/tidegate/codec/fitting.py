"""Repacks blocks of messages that are compressed, or have rows that do not fit.

The kernels write each row's text as usual. A block without compression whose rows all fit needs nothing else.
Otherwise this module compresses each row's message, lets the kernels write the reduced form of rows that
still do not fit, from a separate plan, and packs the messages again, in order. This is Python per row, a few
microseconds each: for all rows if messages are compressed, otherwise only for blocks with a row that is too
large. The plain encoders (`encode_rows`) are the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.codec.base import RECORD_OVERHEAD, RowTooLargeError
from tidegate.codec.formats.compression import NONE, compressed
from tidegate.codec.formats.json_text import std_string
from tidegate.codec.large import PLACE, Large, LargeOptions, Sent, bare, fitted, in_words
from tidegate.model.cells import DELETE, RowBlock, take
from tidegate.model.message import MessageBlock
from tidegate.tidb import value as values
from tidegate.tidb.cell_values import stored_of

Partitions = npt.NDArray[np.int32]
Encode: TypeAlias = Callable[[RowBlock, Partitions, Any], MessageBlock]
"""The kernels, called with a block's rows, their partitions, and options under which messages are plain."""
VERSION_BYTES: Final = 8
LENGTH_BYTES: Final = 8


def encode_fitting(
    block: RowBlock, partition: Partitions, options: LargeOptions, large: Large, encode: Encode
) -> MessageBlock:
    """As `blocks.encode_block`; raises InvalidInput for a row that fits in none of the forms."""
    whole = _Fitting(block, partition, options, large, encode)
    if options.large_message_handle_compression != NONE:
        return whole.run()
    plain = options
    if not options.is_plain:
        plain = replace(bare(options), max_message_bytes=options.max_message_bytes)
    try:
        return encode(block, partition, plain)
    except RowTooLargeError:
        # The kernel does not say which row is too large.
        return whole.run()


class _Packed(NamedTuple):
    """One message before it is part of a block."""

    key: bytes | None
    value: bytes
    partition: int
    rows: int


class _Fitting:
    """The encoding of one block."""

    def __init__(
        self, block: RowBlock, partition: Partitions, options: LargeOptions, large: Large, encode: Encode
    ) -> None:
        self._block, self._partition, self._options = block, partition, options
        self._large, self._encode = large, encode

    def run(self) -> MessageBlock:
        """Take the rows in the kernels' order, fit them one by one, and pack them."""
        rows = np.arange(len(self._block))
        if self._large.framed:
            # The kernels write batches partition by partition. A stable sort keeps the order of rows in
            # each.
            rows = np.argsort(self._partition, kind="stable")
        sent = [self._fitted(row, whole) for row, whole in zip(rows.tolist(), self._texts(), strict=True)]
        partitions = self._partition[rows].tolist()
        if self._large.framed:
            return _block(self._batches(sent, partitions))
        return _block(
            [_Packed(None, one.value, to, 1) for (one, _), to in zip(sent, partitions, strict=True)]
        )

    def _texts(self, only: int | None = None, reduced: str = "") -> list[Sent]:
        """The kernels' text of each row, or of one row in a reduced form; not compressed."""
        options = bare(self._options)
        if any(field.name == "max_batch_size" for field in fields(options)):
            # A message for each row, because each row's text is measured and packed on its own below.
            one_each: Any = {"max_batch_size": 1}
            options = replace(options, **one_each)
        if only is None:
            return self._taken(self._encode(self._block, self._partition, options))
        at = np.array([only], dtype=np.int64)
        return self._taken(
            self._encode(take(self._block, at), self._partition[at], replace(options, reduced=reduced))
        )

    def _taken(self, found: MessageBlock) -> list[Sent]:
        data, skip = found.data, LENGTH_BYTES if self._large.framed else 0
        values_ = zip(found.value_start.tolist(), found.value_length.tolist(), strict=True)
        texts = [data[start + skip : start + length].tobytes() for start, length in values_]
        if not self._large.framed:
            return [Sent(b"", text) for text in texts]
        skip += VERSION_BYTES
        keys = zip(found.key_start.tolist(), found.key_length.tolist(), strict=True)
        return [
            Sent(data[start + skip : start + length].tobytes(), text)
            for (start, length), text in zip(keys, texts, strict=True)
        ]

    def _fitted(self, row: int, text: Sent) -> tuple[Sent, bool]:
        return fitted(
            self._options,
            self._compressed(text),
            self._large.size,
            lambda location: self._reduced(row, location),
            self._stored,
            lambda: (self._block.table.name, self._key_words(row)),
        )

    def _compressed(self, text: Sent) -> Sent:
        kind = self._options.large_message_handle_compression
        return text if kind == NONE else Sent(text.key, compressed(kind, text.value))

    def _reduced(self, row: int, location: str) -> Sent:
        (text,) = self._texts(row, self._options.large_message_handle_option)
        place = std_string(location.encode())[1:-1]
        return self._compressed(Sent(*(part.replace(PLACE.encode(), place) for part in text)))

    def _stored(self, whole: Sent) -> tuple[bytes | None, bytes]:
        if not self._large.framed:
            return None, whole.value
        packed = _batch([whole], 0)
        return packed.key, packed.value

    def _key_words(self, row: int) -> str:
        block = self._block
        image = block.old if block.op[row] == DELETE else block.new
        cells = ((block.table.columns[i], i) for i in block.table.handle_key)
        return in_words(
            (column.name, values.present(column, stored_of(image, row, i, column.kind)))
            for column, i in cells
        )

    def _batches(self, sent: Sequence[tuple[Sent, bool]], partitions: Sequence[int]) -> list[_Packed]:
        """Batch as `OpenProtocolEncoder.encode_rows` does, partition after partition."""
        options: Any = self._options
        most, found = options.max_message_bytes - RECORD_OVERHEAD - VERSION_BYTES, list[_Packed]()
        held, size, to = list[Sent](), 0, -1
        for (one, is_claimed), partition in zip(sent, partitions, strict=True):
            grown = size + len(one.key) + len(one.value) + 2 * LENGTH_BYTES
            is_full = len(held) >= options.max_batch_size or grown > most
            # A row in the storage has a message of its own, so the batch before it ends, and the order stays.
            if held and (partition != to or is_full or is_claimed):
                found.append(_batch(held, to))
                held, size = [], 0
            to = partition
            if is_claimed:
                found.append(_batch([one], to))
                continue
            held.append(one)
            size += len(one.key) + len(one.value) + 2 * LENGTH_BYTES
        return [*found, _batch(held, to)] if held else found


def _batch(items: Sequence[Sent], partition: int) -> _Packed:
    keys = b"".join(len(one.key).to_bytes(LENGTH_BYTES, "big") + one.key for one in items)
    texts = b"".join(len(one.value).to_bytes(LENGTH_BYTES, "big") + one.value for one in items)
    return _Packed((1).to_bytes(VERSION_BYTES, "big") + keys, texts, partition, len(items))


def _block(messages: Sequence[_Packed]) -> MessageBlock:
    keys = np.array([-1 if one.key is None else len(one.key) for one in messages], dtype=np.int64)
    sizes = np.array([len(one.value) for one in messages], dtype=np.int64)
    lengths = np.stack([np.maximum(keys, 0), sizes], axis=1).reshape(-1)
    starts = (np.cumsum(lengths) - lengths).reshape(-1, 2)
    data = b"".join(part for one in messages for part in (one.key or b"", one.value))
    return MessageBlock(
        data=np.frombuffer(data, dtype=np.uint8),
        key_start=np.ascontiguousarray(starts[:, 0]),
        key_length=keys,
        value_start=np.ascontiguousarray(starts[:, 1]),
        value_length=sizes,
        partition=np.array([one.partition for one in messages], dtype=np.int32),
        rows=np.array([one.rows for one in messages], dtype=np.int32),
    )
