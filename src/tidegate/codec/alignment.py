"""Alignment marks, which dispatch by conflict puts on all partitions of a topic. Pure.

A mark is a Resolved message of ts 0, so a reader that does not know marks learns nothing new from it. It has
the header `tidegate-align`: a JSON object of `id` (text), `table` (`schema.table`) and `epoch` (the commit ts
of the place, which rises from mark to mark of a table). The rule for readers is in docs/formats/contract.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import orjson

from tidegate.codec.entry import MarkEncoder
from tidegate.model.message import Message, MessageBlock

ALIGN_HEADER: Final = "tidegate-align"
"""Name of the header that turns a Resolved into an alignment mark."""


def header(table: str, commit_ts: int) -> bytes:
    """The header's bytes."""
    return orjson.dumps({"id": f"{table}@{commit_ts}", "table": table, "epoch": commit_ts})


def resolved(marks: MarkEncoder, build_ms: int) -> Message:
    """The Resolved message that every mark consists of. The protocol must have Resolved messages."""
    message = marks.encode_resolved(0, build_ms)
    assert message is not None, "`registry.canonical` refuses protocols without Resolved"
    return message


def mark_block(message: Message, table: str, commit_ts: int, topic: str, partitions: int) -> MessageBlock:
    """A mark for each partition of a topic; `message`: the result of `resolved`."""
    key, value = message.key or b"", message.value or b""

    def each(number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.full(partitions, number, np.int64)

    return MessageBlock(
        data=np.frombuffer(key + value, np.uint8),
        key_start=each(0),
        key_length=each(-1 if message.key is None else len(key)),
        value_start=each(len(key)),
        value_length=each(-1 if message.value is None else len(value)),
        partition=np.arange(partitions, dtype=np.int32),
        rows=np.zeros(partitions, np.int32),
        topic=topic,
        headers=(*message.headers, (ALIGN_HEADER, header(table, commit_ts))),
    )
