"""Peers of the codecs: what a fast library needs for the bare syntax of the same messages.

For JSON orjson, one object a call: `loads` of each text, `dumps` of what came of it. It makes no columns,
looks up no table and checks no value, so that it is a bound for programs that go message by message. For Avro
fastavro, if it is installed: it is no dependency of ours.
"""

from __future__ import annotations

import importlib
import io
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from tidegate.codec.base import Batch
from tidegate.codec.protocols.open_protocol.plain import split_items
from tidegate.codec.schema_book import LOCAL

AVRO_HEAD = 5
"""Bytes of a message before its Avro: a zero and the schema's number."""


def texts_of(batch: Batch) -> list[bytes]:
    """The JSON texts of messages: keys, where there are some, and values; of framed ones each item's."""
    keys, values = batch.keys.to_pylist(), batch.values.to_pylist()  # type: ignore[union-attr]
    found: list[bytes] = []
    for key, value in zip(keys, values, strict=True):
        if key is not None and key[:1] == b"\0":
            found += [text for pair in split_items(key, value) for text in pair]
        else:
            found += [text for text in (key, value) if text is not None]
    return found


def cpu_seconds(work: Callable[[Any], Any], things: Sequence[Any]) -> float:
    """The CPU time of doing it to each."""
    start = time.process_time()
    for thing in things:
        work(thing)
    return time.process_time() - start


def parse_seconds(batch: Batch, *, avro: bool = False) -> float | None:
    """What parsing the messages costs the peer; None where there is none."""
    if avro:
        return _avro_seconds(batch)
    return cpu_seconds(orjson.loads, texts_of(batch))


def dump_seconds(batch: Batch) -> float:
    """What writing the messages costs the peer, from objects that are there."""
    return cpu_seconds(orjson.dumps, [orjson.loads(text) for text in texts_of(batch)])


def _avro_seconds(batch: Batch) -> float | None:
    """Fastavro over the values, with their schemas, of this process's own book, parsed before."""
    try:
        fastavro = importlib.import_module("fastavro")
    except ImportError:
        return None
    values = [value for value in batch.values.to_pylist() if value]  # type: ignore[union-attr]
    numbers = {int.from_bytes(value[1:AVRO_HEAD], "big") for value in values}
    schemas = {
        number: fastavro.parse_schema(json.loads(LOCAL.schema_of(number) or "null")) for number in numbers
    }

    def read(value: bytes) -> object:
        number = int.from_bytes(value[1:AVRO_HEAD], "big")
        return fastavro.schemaless_reader(io.BytesIO(value[AVRO_HEAD:]), schemas[number], None)

    return cpu_seconds(read, values)
