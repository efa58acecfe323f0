"""Encodes blocks of entries of a feed of keys: entries in, `MessageBlock` out, through the compiled kernel.

A protocol of keys consists of its constants (`entry.KeyCodec.texts`), in this order: before the commit ts,
before the key, after it, before a value, a whole delete, after a value, before the expiry; then one closing
brace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.codec.base import CodecOptions
from tidegate.codec.kernels import kv_kernels
from tidegate.codec.registry import key_codec_of
from tidegate.kernel import address, buffer
from tidegate.model.message import MessageBlock


def encode_keys(block: pa.RecordBatch, strip: int, partitions: int, options: CodecOptions) -> MessageBlock:
    """The messages of entries of one mode, in order, each in the partition given by the hash of its key.

    The first `strip` bytes of keys (mode and keyspace) are left out. The old value of an entry of RawKV is
    its expiry, as the varint that the store sent; the old values of other entries must be empty.
    """
    rows = block.num_rows
    columns = [block.column(name) for name in ("key", "value", "old_value")]
    ends = [_ends(column) for column in columns]
    sizes = [int(offsets[-1] - offsets[0]) if rows else 0 for offsets in ends]
    out = buffer(kv_kernels.room_for(sizes[0], sizes[1], rows))
    places, partition = np.empty((rows, 4), np.int64), np.empty(rows, np.int32)
    commit = np.ascontiguousarray(block.column("commit_ts").to_numpy())
    op = np.ascontiguousarray(block.column("op").to_numpy())
    constants = key_codec_of(options).texts
    text, lengths = (
        np.frombuffer(b"".join(constants), np.uint8),
        np.array([len(one) for one in constants], np.int64),
    )
    texts = np.stack([address(text) + np.cumsum(lengths) - lengths, lengths], axis=1)
    data = [column.buffers()[2] for column in columns]
    parts = [address(part) for pair in zip(ends, data, strict=True) for part in pair]
    entries = kv_kernels.Entries(address(commit), address(op), *parts)
    output = kv_kernels.Output(address(out), address(places), address(partition))
    size = kv_kernels.encode(rows, strip, partitions, entries, address(texts), output)
    return MessageBlock(
        data=out[:size],
        key_start=places[:, 0],
        key_length=places[:, 1],
        value_start=places[:, 2],
        value_length=places[:, 3],
        partition=partition,
        rows=np.ones(rows, np.int32),
    )


def _ends(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The offsets of a binary column, also if the column is a slice."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1]
