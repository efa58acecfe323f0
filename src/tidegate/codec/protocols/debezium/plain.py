"""Debezium as TiCDC's classic encoder writes it (docs/formats/debezium.md), row by row, both directions.

    key    {"payload":{"id":1},"schema":{...}}
    value  {"payload":{"source":{..},"ts_ms":1,"transaction":null,"op":"u","before":{},"after":{}},..}

One message per row. With `debezium-disable-schema` the schemas (`schema.py`) are left out. Then nothing gives
the types of the columns, so such messages can be written, but not read. With the TiDB extension the fields
have `tidb_type`, and there are watermarks.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import orjson

from tidegate.codec.base import (
    NEW,
    RECORD_OVERHEAD,
    Batch,
    CodecOptions,
    DdlMessage,
    Decoded,
    WireColumn,
    only_new,
    too_large,
)
from tidegate.codec.decoding.assemble import (
    DecodeError,
    RowKey,
    Rows,
    decode_plainly,
    integer,
    json_object,
    member,
)
from tidegate.codec.formats import ddl_header
from tidegate.codec.formats.json_text import iterator_float, raw_string
from tidegate.codec.formats.mysql_type import is_binary
from tidegate.codec.protocols.debezium import fields, moments, schema, table_changes
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.model.timestamp import physical_ms
from tidegate.tidb.types import temporal

CREATED, UPDATED, DELETED, WATERMARK = "c", "u", "d", "m"
_OPERATIONS: Final = {CREATED: INSERT, UPDATED: UPDATE, DELETED: DELETE}
SCHEMALESS: Final = (
    "the message has no schema, without which the types of its columns are not known: "
    "create a changefeed without debezium-disable-schema, into a new topic"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumOptions(CodecOptions):
    """Debezium's own options."""

    protocol: ClassVar[str] = "debezium"
    enable_tidb_extension: bool = False
    """`tidb_type` in the fields of columns, and watermarks."""
    debezium_disable_schema: bool = False
    """Whether messages have payloads only."""
    debezium_output_old_value: bool = True
    """`[sink.debezium] output-old-value`: whether an update has its old values."""
    debezium_include_start_ts: bool = only_new()
    """Whether the `source` of rows has the start ts of their transaction."""

    @property
    def id_fields(self) -> bytes:
        """The fields that the schema of `source` adds to Debezium's own, in messages without rows."""
        return schema.IDS if self.flavour == NEW and self.enable_tidb_extension else b""

    @property
    def row_id_fields(self) -> bytes:
        """The same fields in messages with rows."""
        return self.id_fields + (schema.START_TS if self.debezium_include_start_ts else b"")


# --- values


def value_json(column: Column, value: Value, zone: Any) -> bytes:
    """A column's value in `before`, `after` or a key. `zone`: the time zone of a TIMESTAMP's text."""
    if value is None:
        return null_json(column)
    match column.kind:
        case Kind.BIT:
            return schema.bits_json(column, int(value))
        case Kind.ENUM | Kind.SET:
            return raw_string(names_of(column, int(value)).encode())
        # As TiCDC does: a decimal is sent as a float, which may not have all its digits
        # (docs/formats/debezium.md).
        case Kind.DECIMAL | Kind.DOUBLE:
            return iterator_float(float(value), single=False)
        case Kind.FLOAT:
            return iterator_float(float(value), single=True)
        case Kind.INT | Kind.UINT | Kind.YEAR:
            return b"%d" % signed(int(value))
        case Kind.TIME:
            return b"%d" % micros(temporal.parse_duration(str(value)))
        case Kind.DATE | Kind.DATETIME:
            number = moment_number(column, temporal.parse(str(value)))
            return b"%d" % number if number is not None else no_moment(column)
        case Kind.TIMESTAMP:
            parts = temporal.to_utc(temporal.parse(str(value)), zone)
            return b'"%s"' % moments.zoned(parts, column.decimal)
    data = value if isinstance(value, bytes) else str(value).encode()
    return b'"' + base64.b64encode(data) + b'"' if is_binary(column) else raw_string(data)


def signed(value: int) -> int:
    """The signed number with the same 64 bits, as Go's int64(uint64) gives it."""
    return value - (1 << 64) if value >= 1 << 63 else value


def micros(nanoseconds: int) -> int:
    """Whole microseconds, rounded towards zero."""
    return -(-nanoseconds // 1000) if nanoseconds < 0 else nanoseconds // 1000


def moment_number(column: Column, parts: temporal.Parts) -> int | None:
    """A date's or datetime's number; None if it does not exist in the calendar."""
    return moments.days(parts) if column.kind is Kind.DATE else moments.epoch(parts, column.decimal)


def no_moment(column: Column) -> bytes:
    """The JSON for a date or datetime that does not exist in the calendar."""
    return b"null" if column.nullable else b"0"


def names_of(column: Column, number: int) -> str:
    """The name of an enum's element, or the names of a set's; empty for a number without an element."""
    count = len(column.elems)
    if column.kind is Kind.ENUM:
        return column.elems[number - 1] if 1 <= number <= count else ""
    if number >> count:
        return ""
    return ",".join(name for bit, name in enumerate(column.elems) if number >> bit & 1)


def null_json(column: Column) -> bytes:
    """The JSON for NULL: the column's default, if it has one."""
    # As TiCDC does, although a reader cannot tell such a NULL from the default (`Loss.DEFAULT`).
    return schema.value_of_default(column) or b"null"


# --- messages


HEAD: Final = (
    b'{"payload":{"source":{"version":"2.4.0.Final","connector":"TiCDC","name":"%s","ts_ms":'
    % schema.CLUSTER.encode()
)
"""A value up to the milliseconds of the commit."""


def after_ms(table_schema: str, table: str) -> bytes:
    """The text between the milliseconds of the commit and the commit ts."""
    names = raw_string(table_schema.encode()), raw_string(table.encode())
    return (
        b',"snapshot":"false","db":%s,"table":%s,"server_id":0,"gtid":null,"file":"","pos":0,"row":0,"thread":0,'
        b'"query":null,"commit_ts":' % names
    )


START_TS: Final = b',"start_ts":'
"""The text between the commit ts and the start ts, if rows have it."""
AFTER_TS: Final = b',"cluster_id":"%s"},"ts_ms":' % schema.CLUSTER.encode()
"""The text between the commit ts, or the start ts, and the build time."""
OPENINGS: Final = {
    INSERT: b',"transaction":null,"op":"c","before":null,"after":{',
    DELETE: b',"transaction":null,"op":"d","after":null,"before":{',
    UPDATE: b',"transaction":null,"op":"u",',
}
"""By operation, the text between the build time and the first image, or its name."""


def source(table_schema: str, table: str, ts: int, build_ms: int, start: bytes = b"") -> bytes:
    """A value's members up to the build time; `start`: the member with the start ts, or empty."""
    return (
        HEAD
        + b"%d" % physical_ms(ts)
        + after_ms(table_schema, table)
        + b"%d" % ts
        + start
        + AFTER_TS
        + b"%d" % build_ms
    )


class DebeziumEncoder:
    """Encodes rows, DDL and watermarks."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options, self._zone = options, temporal.zone(options.time_zone)
        self._schemas: dict[int, tuple[TableSchema, bytes, bytes]] = {}

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        """One message per row."""
        messages = []
        for row in rows:
            key, value = self._row(row, build_ms)
            size = len(key) + len(value) + RECORD_OVERHEAD
            if size > self._options.max_message_bytes:
                raise too_large(row.table.name, size, self._options)
            messages.append(Message(key, value))
        return messages

    def _row(self, row: RowChange, build_ms: int) -> tuple[bytes, bytes]:
        table, image = row.table, row.old if row.new is None else row.new
        assert image is not None, "a row has an image"
        key_schema, value_schema = self._schemas_of(table)
        key = (
            b'{"payload":{' + self._image(table, image, schema.key_columns(table)) + b"}" + key_schema + b"}"
        )
        op = DELETE if row.new is None else INSERT if row.old is None else UPDATE
        everything = range(len(table.columns))
        start = START_TS + b"%d" % row.start_ts if self._options.debezium_include_start_ts else b""
        value = source(table.schema, table.table, row.commit_ts, build_ms, start) + OPENINGS[op]
        if op == UPDATE:
            assert row.old is not None, "an update has its old image"
            if self._options.debezium_output_old_value:
                value += b'"before":{' + self._image(table, row.old, everything) + b"},"
            value += b'"after":{'
        value += self._image(table, image, everything) + b"}}" + value_schema + b"}"
        return key, value

    def _schemas_of(self, table: TableSchema) -> tuple[bytes, bytes]:
        """The schemas of a table's key and value; empty if they are left out."""
        if self._options.debezium_disable_schema:
            return b"", b""
        # The entry holds the table itself, so no other table can get its id while the entry exists.
        if id(table) not in self._schemas:
            extended = self._options.enable_tidb_extension
            of_value = schema.of_value(table, extended, self._options.row_id_fields)
            self._schemas = {id(table): (table, schema.of_key(table, extended), of_value)}
        return self._schemas[id(table)][1:]

    def _image(self, table: TableSchema, image: tuple[Value, ...], shown: Sequence[int]) -> bytes:
        return b",".join(
            raw_string(table.columns[i].name.encode())
            + b":"
            + value_json(table.columns[i], image[i], self._zone)
            for i in shown
        )

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message:
        """A DDL message; the owner sends it to every partition.

        TiCDC sends none for a few types of DDL (RECOVER TABLE, TTL). Here every DDL has one, because its
        header contains the event itself.
        """
        disabled = self._options.debezium_disable_schema
        name = raw_string(event.schema.encode())
        key = b'{"payload":{"databaseName":%s}%s}' % (name, b"" if disabled else schema.DDL_KEY)
        value = source(event.schema, event.table, event.finished_ts, build_ms)
        value += b',"databaseName":%s,"schemaName":null,"ddl":%s,"tableChanges":[%s]}%s}' % (
            name,
            raw_string(event.query.encode()),
            table_changes.of_event(event),
            b"" if disabled else schema.of_ddl(self._options.id_fields),
        )
        return Message(key, value, headers=ddl_header.headers(event, self._options.time_zone))

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None:
        """A watermark; None without the TiDB extension."""
        if not self._options.enable_tidb_extension:
            return None
        disabled = self._options.debezium_disable_schema
        key = b'{"payload":{}%s}' % (b"" if disabled else schema.WATERMARK_KEY)
        value = source("", "", ts, build_ms) + b',"transaction":null,"op":"m"}'
        stated = b"" if disabled else schema.of_watermark(self._options.id_fields)
        return Message(key, value + stated + b"}")


# --- decoding


class DebeziumDecoder:
    """Decodes messages one by one: the oracle and fallback of the compiled decoder."""

    def decode(self, batch: Batch) -> Decoded:
        """Rows, watermarks and DDL; a message that is not valid, or has no schema, becomes one BadMessage."""
        return decode_plainly(batch, _message)


def _message(
    key: bytes | None, value: bytes | None, header: bytes | None, offset: int, decoded: Decoded
) -> Rows:
    body = json_object(value, "value")
    payload = member(body, "payload", dict)
    stated, origin = member(body, "schema", dict, {}), member(payload, "source", dict)
    # Without its schema a row's columns would have no types.
    if not stated:
        raise DecodeError(SCHEMALESS)
    ts, keys = integer(origin, "commit_ts"), member(json_object(key, "key"), "payload", dict)
    # Only DDL messages have no operation.
    if "op" not in payload:
        query, name = member(payload, "ddl", str), member(payload, "databaseName", str, "")
        decoded.ddls.append(
            DdlMessage(ts, query, None, name, member(origin, "table", str, ""), header, offset)
        )
        return []
    kind = member(payload, "op", str)
    if kind == WATERMARK:
        decoded.resolved.append((ts, offset))
        return []
    if kind not in _OPERATIONS:
        raise DecodeError(f"unknown operation {kind[:100]!r}")
    return [_row(_OPERATIONS[kind], payload, stated, keys, ts, offset)]


def _row(
    op: int, payload: dict[str, Any], stated: dict[str, Any], keys: dict[str, Any], ts: int, offset: int
) -> tuple[RowKey, tuple[Any, ...]]:
    after, before = member(payload, "after", dict, {}), member(payload, "before", dict, {})
    image = before if op == DELETE else after
    if not image:
        raise DecodeError("a row without its image")
    described = _fields(stated, "before" if op == DELETE else "after")
    columns = tuple(_wire_column(name, described, name in keys) for name in image)
    cells = [fields.value_of(column, image[column.name]) for column in columns]
    origin = member(payload, "source", dict)
    row_key = RowKey(member(origin, "db", str), member(origin, "table", str), None, columns)
    if op == DELETE:
        return row_key, (op, ts, offset, 0, None, cells)
    # Without old values (`output-old-value`) an update has only its new row, as an insert has.
    if op == INSERT or not before:
        return row_key, (INSERT, ts, offset, 0, cells, None)
    if before.keys() != after.keys():
        raise DecodeError("the images before and after have other columns")
    former = [fields.value_of(column, before[column.name]) for column in columns]
    return row_key, (UPDATE, ts, offset, 0, cells, former)


def _fields(stated: dict[str, Any], image: str) -> dict[str, dict[str, Any]]:
    """The fields of an image by the names of their columns."""
    for found in member(stated, "fields", list, []):
        if isinstance(found, dict) and found.get("field") == image:
            inner = member(found, "fields", list)
            return {one["field"]: one for one in inner if isinstance(one, dict) and "field" in one}
    raise DecodeError(f"the schema does not describe {image!r}")


def _wire_column(name: str, described: dict[str, dict[str, Any]], key: bool) -> WireColumn:
    if name not in described:
        raise DecodeError(f"column {name[:100]!r} is not in the schema")
    return fields.wire_column(name, orjson.dumps(described[name]).decode(), key)
