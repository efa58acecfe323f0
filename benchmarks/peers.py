"""Peers of the codecs: the time of a fast library for only the syntax of the same messages.

For JSON the peer is orjson, with one object in each call: `loads` of each text, `dumps` of the result. It
makes no columns, looks up no table and checks no value, so it is a bound for programs that handle single
messages. For Avro the peer is fastavro, which reads and writes values by their schemas. It is not a
dependency of ours; without it there is no figure. To install it for one run:

    .venv/bin/uv pip install --target /tmp/peers fastavro
    PYTHONPATH=src:/tmp/peers python benchmarks/messages.py
"""

from __future__ import annotations

import importlib
import io
import json
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import orjson

from tidegate.codec.base import Batch, CodecOptions
from tidegate.codec.protocols.open_protocol.plain import split_items
from tidegate.codec.registry import codec_of
from tidegate.codec.schema_book import LOCAL

AVRO_HEAD = 5
"""The bytes of a message before its Avro value: a zero and the schema's id."""
SIMPLE_HEAD = 1
"""The same for a message of simple: the branch of a union, which is always the same."""


class Form(StrEnum):
    """The form of messages."""

    JSON = "JSON"
    AVRO = "Avro, with a schema registry"
    SIMPLE_AVRO = "simple's Avro"


def form_of(options: CodecOptions) -> Form:
    """The form of a protocol with these options."""
    if codec_of(options).schemas is not None:
        return Form.AVRO
    is_avro = getattr(options, "encoding_format", "json") == "avro"
    return Form.SIMPLE_AVRO if is_avro else Form.JSON


def texts_of(batch: Batch) -> list[bytes]:
    """The JSON texts of messages: keys, if there are any, and values. A framed message gives one for each
    item.
    """
    keys, values = batch.keys.to_pylist(), batch.values.to_pylist()  # type: ignore[union-attr]
    found: list[bytes] = []
    for key, value in zip(keys, values, strict=True):
        if key is not None and key[:1] == b"\0":
            found += [text for pair in split_items(key, value) for text in pair]
        else:
            found += [text for text in (key, value) if text is not None]
    return found


def cpu_seconds(work: Callable[[Any], Any], things: Sequence[Any]) -> float:
    """The CPU time of calling `work` with each of `things`."""
    start = time.process_time()
    for thing in things:
        work(thing)
    return time.process_time() - start


def parse_seconds(batch: Batch, form: Form = Form.JSON) -> float | None:
    """The peer's CPU seconds for parsing the messages. None without a peer."""
    if form is Form.JSON:
        return cpu_seconds(orjson.loads, texts_of(batch))
    found = _avro(batch, form)
    if found is None:
        return None
    read, _, values = found
    return cpu_seconds(read, values)


def dump_seconds(batch: Batch, form: Form = Form.JSON) -> float | None:
    """The peer's CPU seconds for writing the messages from existing objects. None without a peer."""
    if form is Form.JSON:
        return cpu_seconds(orjson.dumps, [orjson.loads(text) for text in texts_of(batch)])
    found = _avro(batch, form)
    if found is None:
        return None
    read, write, values = found
    return cpu_seconds(write, [read(value) for value in values])


def _avro(
    batch: Batch, form: Form
) -> tuple[Callable[[bytes], Any], Callable[[Any], Any], list[bytes]] | None:
    """Functions by which fastavro reads a value and writes it again, and the values. Keys are left out."""
    try:
        fastavro = importlib.import_module("fastavro")
    except ImportError:
        return None
    values = [value for value in batch.values.to_pylist() if value]  # type: ignore[union-attr]
    # Deletes of avro have no Avro value, but at most a commit ts.
    values = [value for value in values if form is Form.SIMPLE_AVRO or value[0] == 0]
    if form is Form.SIMPLE_AVRO:
        only = fastavro.parse_schema(simple_schema())
        head, numbers, schemas = SIMPLE_HEAD, [0], {0: only}
    else:
        head, numbers = AVRO_HEAD, sorted({int.from_bytes(value[1:AVRO_HEAD], "big") for value in values})
        schemas = {
            number: fastavro.parse_schema(json.loads(LOCAL.schema_of(number) or "null")) for number in numbers
        }

    def read(value: bytes) -> tuple[int, Any]:
        number = int.from_bytes(value[1:AVRO_HEAD], "big") if form is Form.AVRO else 0
        body = io.BytesIO(value[head:])
        return number, fastavro.schemaless_reader(body, schemas[number], None, return_record_name=True)

    def write(found: tuple[int, Any]) -> bytes:
        number, row = found
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schemas[number], row)
        return out.getvalue()

    for value in values[:100]:
        if write(read(value)) != value[head:]:
            raise SystemExit("fastavro does not write what it has read: its figures would mean nothing")
    return read, write, values


def simple_schema() -> dict[str, Any]:
    """The schema of simple's messages (TiCDC: pkg/sink/codec/simple/message.json), without the
    outer union.
    """

    def record(of: str, /, **fields: Any) -> dict[str, Any]:
        listed = [{"name": field, "type": kind} for field, kind in fields.items()]
        return {"type": "record", "name": of, "fields": listed}

    def optional(of: Any) -> list[Any]:
        return ["null", of]

    def words(name: str, *symbols: str) -> dict[str, Any]:
        return {"type": "enum", "name": name, "symbols": list(symbols)}

    data_type = record(
        "DataType", mysqlType="string", charset="string", collate="string", length="long",
        decimal=optional("int"), elements=optional({"type": "array", "items": "string"}),
        unsigned=optional("boolean"), zerofill=optional("boolean"),
    )  # fmt: skip
    column = record(
        "ColumnSchema", name="string", dataType=data_type, nullable="boolean", default=optional("string")
    )
    index = record(
        "IndexSchema", name="string", unique="boolean", primary="boolean", nullable="boolean",
        columns={"type": "array", "items": "string"},
    )  # fmt: skip
    table = record(
        "TableSchema", database="string", table="string", tableID="long", version="long",
        columns={"type": "array", "items": column}, indexes={"type": "array", "items": index},
    )  # fmt: skip
    values = [
        "null", "long", "float", "double", "string", "bytes",
        record("Timestamp", location="string", value="string"), record("UnsignedBigint", value="long"),
    ]  # fmt: skip
    known = ["null", "long", "float", "double", "string", "bytes", "Timestamp", "UnsignedBigint"]
    row = record(
        "DML", version="int", database="string", table="string", tableID="long",
        type=words("DMLType", "INSERT", "UPDATE", "DELETE"), commitTs="long", buildTs="long",
        schemaVersion="long", claimCheckLocation=optional("string"), handleKeyOnly=optional("boolean"),
        checksum=optional(
            record("Checksum", version="int", corrupted="boolean", current="long", previous="long")
        ),
        data=optional({"type": "map", "values": values}), old=optional({"type": "map", "values": known}),
    )  # fmt: skip
    ddl_types = words(
        "DDLType", "CREATE", "ALTER", "ERASE", "RENAME", "TRUNCATE", "CINDEX", "DINDEX", "QUERY"
    )
    ddl = record(
        "DDL", version="int", type=ddl_types, sql="string", commitTs="long", buildTs="long",
        tableSchema=optional("TableSchema"), preTableSchema=optional("TableSchema"),
    )  # fmt: skip
    payload = [
        record("Watermark", version="int", commitTs="long", buildTs="long"),
        record("Bootstrap", version="int", buildTs="long", tableSchema=table),
        ddl,
        row,
    ]
    kinds = words("MessageType", "WATERMARK", "BOOTSTRAP", "DDL", "DML")
    return record("Message", type=kinds, payload=payload)
