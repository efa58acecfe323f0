"""The writing half of `plain`: rows, DDL, watermarks and definitions as messages, one by one."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from tidegate.codec.base import RECORD_OVERHEAD
from tidegate.codec.formats import ddl_header
from tidegate.codec.formats.compression import compressed
from tidegate.codec.formats.ddl_words import word_of
from tidegate.codec.formats.json_text import std_string
from tidegate.codec.formats.mysql_type import is_binary
from tidegate.codec.large import Sent, fitted, key_words, without_key
from tidegate.codec.protocols.simple import avro_write
from tidegate.codec.protocols.simple.definition import has_columns, of_table, table_schema, version_of
from tidegate.codec.protocols.simple.message import (
    BOOTSTRAP,
    SCHEMA_MEMBERS,
    VERSION,
    WATERMARK,
    SimpleOptions,
    timestamp_head,
)
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange, RowChecksum, Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb.text import value_text


def head(table: TableSchema) -> bytes:
    """The members of a row's message up to the table id."""
    names = std_string(table.schema.encode()), std_string(table.table.encode())
    return b'{"version":1,"database":%s,"table":%s,"tableID":' % names


def by_name(table: TableSchema, *, only_key: bool = False) -> list[int]:
    """Positions of the columns in the order in which Go writes the members of a map."""
    shown = table.handle_key if only_key else range(len(table.columns))
    return sorted(shown, key=lambda i: table.columns[i].name.encode())


def size(sent: Sent) -> int:
    """Bytes of a row's message."""
    return len(sent.value) + RECORD_OVERHEAD


def reduced_mark(location: str | None) -> bytes:
    """The text before the images that marks a message without the whole row."""
    if location is None:
        return b""
    stated = b',"claimCheckLocation":' + std_string(location.encode()) if location else b""
    return stated + b',"handleKeyOnly":true'


def checksum_member(found: RowChecksum | None) -> bytes:
    """The member with a row's checksum; empty for a row without one."""
    if found is None:
        return b""
    numbers = (found.version, b"true" if found.corrupted else b"false", found.current, found.previous)
    return b',"checksum":{"version":%d,"corrupted":%s,"current":%d,"previous":%d}' % numbers


def go_json(value: Any) -> bytes:
    """A value as Go's encoding/json writes it."""
    match value:
        case None:
            return b"null"
        case bool():
            return b"true" if value else b"false"
        case int():
            return b"%d" % value
        case str():
            return std_string(value.encode(errors="replace"))
        case list():
            return b"[" + b",".join(map(go_json, value)) + b"]"
    members = (std_string(name.encode()) + b":" + go_json(item) for name, item in value.items())
    return b"{" + b",".join(members) + b"}"


class SimpleEncoder:
    """Encodes rows, DDL, watermarks and definitions."""

    def __init__(self, options: SimpleOptions) -> None:
        self._options = options
        self._timestamp_head = timestamp_head(options.time_zone)

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        """One message per row."""
        return [Message(None, self._fitted(row, build_ms)) for row in rows]

    def _fitted(self, row: RowChange, build_ms: int) -> bytes:
        (_, value), _ = fitted(
            self._options,
            Sent(b"", self._compressed(self._row(row, build_ms))),
            size,
            lambda location: Sent(b"", self._compressed(self._row(row, build_ms, location))),
            lambda whole: (None, whole.value),
            lambda: (row.table.name, key_words(row)),
        )
        return value

    def _compressed(self, value: bytes) -> bytes:
        return compressed(self._options.large_message_handle_compression, value)

    def _row(self, row: RowChange, build_ms: int, location: str | None = None) -> bytes:
        """The value of one row's message. With a `location`, even an empty one, only the handle key."""
        table, version = row.table, version_of(row.table.info, row.table.version)
        options = self._options
        if options.in_avro:
            assert location is None, "refused with the options"
            order, zone, summed = by_name(table), options.time_zone, options.has_checksums
            bits = avro_write.bits_of(options.flavour)
            return avro_write.row(row, build_ms, version, order, zone, summed=summed, bits=bits)
        if location is not None and not table.handle_key:
            raise without_key(table, options)
        shown = by_name(table, only_key=location is not None)
        word = b"DELETE" if row.is_delete else b"INSERT" if row.is_insert else b"UPDATE"
        numbers = (row.physical_id, word, row.commit_ts, build_ms, version)
        parts = [
            head(table) + b'%d,"type":"%s","commitTs":%d,"buildTs":%d,"schemaVersion":%d' % numbers,
            reduced_mark(location),
            checksum_member(row.upstream_checksum if options.has_checksums else None),
            *(
                b',"%s":{%s}' % (name, self._image(table, image, shown))
                for name, image in ((b"data", row.new), (b"old", row.old))
                if image is not None
            ),
            b"}",
        ]
        return b"".join(parts)

    def _image(self, table: TableSchema, image: tuple[Value, ...], shown: Sequence[int]) -> bytes:
        return b",".join(
            std_string(table.columns[i].name.encode()) + b":" + self._cell(table.columns[i], image[i])
            for i in shown
        )

    def _cell(self, column: Column, value: Value) -> bytes:
        if value is None:
            return b"null"
        text = value_text(column.kind, value)
        if column.kind is Kind.TIMESTAMP:
            return self._timestamp_head + std_string(text) + b"}"
        return b'"' + base64.b64encode(text) + b'"' if is_binary(column) else std_string(text)

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message:
        """A DDL message; the owner sends it to every partition."""
        body: dict[str, Any] = {
            "version": VERSION,
            "type": word_of(event.action),
            "sql": event.query,
            "commitTs": event.finished_ts,
            "buildTs": build_ms,
        }
        # A DROP leaves no table, so its message has the definition from before.
        stated = event.after if has_columns(event.after) else event.before
        sides = ((event.schema, stated), (event.old_schema, event.before))
        for name, (schema, info) in zip(SCHEMA_MEMBERS, sides, strict=True):
            if info is not None and has_columns(info):
                body[name] = table_schema(schema, info, event.finished_ts)
        return Message(
            None,
            self._compressed(self._written(body)),
            headers=ddl_header.headers(event, self._options.time_zone),
        )

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message:
        """A watermark."""
        body = {"version": VERSION, "type": WATERMARK, "commitTs": ts, "buildTs": build_ms}
        return Message(None, self._compressed(self._written(body)))

    def encode_definition(self, table: TableSchema, build_ms: int = 0) -> Message:
        """A BOOTSTRAP message, which defines the columns of a table version."""
        body = {"version": VERSION, "type": BOOTSTRAP, "commitTs": 0, "buildTs": build_ms}
        return Message(None, self._compressed(self._written(body | {"tableSchema": of_table(table)})))

    def _written(self, body: dict[str, Any]) -> bytes:
        return avro_write.message(body) if self._options.in_avro else go_json(body)
