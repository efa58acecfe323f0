"""The protocol of TiCDC's first design document, row by row, both directions: docs/formats/ticdc-mq.md.

    key    {"ts":1,"type":"Row","schema":"schema1","table":"table1"}
    value  {"update":{"columnName1":{"type":"Long","value":7766,"unique":true}}}       or "delete"

One message per row, whose key and value are JSON objects. DDL, Resolved and Admin are separate messages.
Messages have only the members that the document describes; a header carries the whole DDL. Columns are in the
table's order.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tidegate.codec.base import (
    RECORD_OVERHEAD,
    Batch,
    CodecOptions,
    DdlMessage,
    Decoded,
    WireColumn,
    too_large,
)
from tidegate.codec.decoding.assemble import (
    HANDLE_KEY_FLAG,
    INTEGER_TYPES,
    DecodeError,
    RowKey,
    Rows,
    decode_plainly,
    integer,
    json_object,
    member,
    number,
    wire_type,
)
from tidegate.codec.formats import ddl_header
from tidegate.codec.formats.json_text import json_float, std_string
from tidegate.codec.formats.mysql_type import is_binary
from tidegate.codec.protocols.ticdc_mq.types import TYPES, type_name
from tidegate.model.cells import DELETE, INSERT
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Kind, TableSchema

ROW, DDL, RESOLVED, ADMIN = "Row", "DDL", "Resolved", "Admin"
UPDATE_MEMBER: Final = "update"
DELETE_MEMBER: Final = "delete"
FLOATS: Final = frozenset({4, 5})


@dataclass(frozen=True, slots=True, kw_only=True)
class MqOptions(CodecOptions):
    """This protocol has no options of its own."""

    protocol: ClassVar[str] = "ticdc-mq"


def key_tail(kind: str, schema: str, table: str) -> bytes:
    """The key of a row or DDL after its ts."""
    names = kind.encode(), std_string(schema.encode()), std_string(table.encode())
    return b',"type":"%s","schema":%s,"table":%s}' % names


def cell_head(name: str, of_type: str) -> bytes:
    """A column up to its value."""
    return b'%s:{"type":"%s","value":' % (std_string(name.encode()), of_type.encode())


def cell_end(unique: bool) -> bytes:
    """A column after its value."""
    return b',"unique":true}' if unique else b"}"


def value_json(column: Column, value: Value) -> bytes:
    """The `value` of a column."""
    if value is None:
        return b"null"
    if isinstance(value, float):
        return json_float(value, single=column.kind is Kind.FLOAT)
    if isinstance(value, bytes):
        return b'"' + base64.b64encode(value) + b'"' if is_binary(column) else std_string(value)
    return std_string(value.encode()) if isinstance(value, str) else b"%d" % value


def deleted_columns(table: TableSchema) -> list[int]:
    """Positions of the columns of a delete: those of the handle key, or all if there is none."""
    unique = [i for i, flag in enumerate(table.ticdc_flags) if flag & HANDLE_KEY_FLAG]
    return unique or list(range(len(table.columns)))


class TicdcMqEncoder:
    """Encodes rows, DDL and resolved marks."""

    def __init__(self, options: MqOptions) -> None:
        self._options = options

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        """One message per row; an update has only its new values, like an insert."""
        messages = []
        for row in rows:
            table, image = row.table, row.old if row.new is None else row.new
            assert image is not None, "a row has an image"
            shown = deleted_columns(table) if row.new is None else range(len(image))
            name = DELETE_MEMBER if row.new is None else UPDATE_MEMBER
            cells = b",".join(self._cell(table, image, i) for i in shown)
            key = b'{"ts":%d%s' % (row.commit_ts, key_tail(ROW, table.schema, table.table))
            value = b'{"%s":{%s}}' % (name.encode(), cells)
            size = len(key) + len(value) + RECORD_OVERHEAD
            if size > self._options.max_message_bytes:
                raise too_large(table.name, size, self._options)
            messages.append(Message(key, value))
        return messages

    def _cell(self, table: TableSchema, image: tuple[Value, ...], i: int) -> bytes:
        column, unique = table.columns[i], bool(table.ticdc_flags[i] & HANDLE_KEY_FLAG)
        return cell_head(column.name, type_name(column)) + value_json(column, image[i]) + cell_end(unique)

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message:
        """A DDL message; the owner sends it to every partition."""
        key = b'{"ts":%d%s' % (event.finished_ts, key_tail(DDL, event.schema, event.table))
        value = b'{"query":%s}' % std_string(event.query.encode())
        return Message(key, value, headers=ddl_header.headers(event, self._options.time_zone))

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message:
        """A resolved mark, without a value."""
        return Message(b'{"ts":%d,"type":"%s"}' % (ts, RESOLVED.encode()), None)


def admin(partitions: int) -> Message:
    """The message that from here on rows go to so many partitions."""
    return Message(b'{"type":"%s"}' % ADMIN.encode(), b'{"partition":%d}' % partitions)


class TicdcMqDecoder:
    """Decodes messages one by one: the oracle and fallback of the compiled decoder."""

    def decode(self, batch: Batch) -> Decoded:
        """Rows, resolved marks, DDL and Admin; a message that is not valid becomes one BadMessage."""
        return decode_plainly(batch, _message)


def _message(
    key: bytes | None, value: bytes | None, header: bytes | None, offset: int, decoded: Decoded
) -> Rows:
    meta = json_object(key, "key")
    kind = member(meta, "type", str)
    if kind == ADMIN:
        decoded.repartitions.append((integer(json_object(value, "value"), "partition"), offset))
        return []
    ts = integer(meta, "ts")
    if kind == RESOLVED:
        if value:
            raise DecodeError("a Resolved message has a value")
        decoded.resolved.append((ts, offset))
        return []
    if kind not in (ROW, DDL):
        raise DecodeError(f"unknown type {kind!r}")
    schema, table, body = member(meta, "schema", str), member(meta, "table", str), json_object(value, "value")
    if kind == DDL:
        query = member(body, "query", str)
        decoded.ddls.append(DdlMessage(ts, query, None, schema, table, header, offset))
        return []
    update, delete = member(body, UPDATE_MEMBER, dict, {}), member(body, DELETE_MEMBER, dict, {})
    # With both, or with neither, it is not known which of its images the row has.
    if bool(update) == bool(delete):
        raise DecodeError("a row has the columns of an update, or of a delete")
    cells = update or delete
    columns = tuple(_wire_column(name, cell) for name, cell in cells.items())
    image = [_value(column, cells[column.name]["value"]) for column in columns]
    row = (INSERT, ts, offset, 0, image, None) if update else (DELETE, ts, offset, 0, None, image)
    return [(RowKey(schema, table, None, columns), row)]


def _wire_column(name: str, cell: Any) -> WireColumn:
    if not isinstance(cell, dict) or "value" not in cell:
        raise DecodeError(f"column {name!r} is not a column object")
    of_type = member(cell, "type", str)
    if of_type not in TYPES:
        raise DecodeError(f"column {name!r} has the unknown type {of_type[:100]!r}")
    code, unsigned, binary = TYPES[of_type]
    unique = member(cell, "unique", bool, False)
    return WireColumn(name, wire_type(code, unsigned, binary), code, unique, None, of_type)


def _value(column: WireColumn, value: Any) -> Any:
    if value is None:
        return None
    if column.mysql_type in INTEGER_TYPES or column.mysql_type in FLOATS:
        return number(column, value)
    if not isinstance(value, str):
        raise DecodeError(f"column {column.name!r} of type {column.type_name} holds {type(value).__name__}")
    return base64.b64decode(value, validate=True) if column.type == "binary" else value
