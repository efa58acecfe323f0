"""A protocol that only the contract test has: what it takes to add one.

It has no decode templates, so that all its messages are decoded plainly.

    {"ts":7,"at":"SCHEMA","of":"TABLE","op":1,"new":{"a":[3,128,1,"5"]},"old":{...}}

A cell is MySQL's type, TiCDC's flags, and the value as a text or null; bytes are base64.
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
    BINARY_FLAG,
    HANDLE_KEY_FLAG,
    UNSIGNED_FLAG,
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
from tidegate.codec.decoding.template import CellForm, DecodeForm
from tidegate.codec.entry import DdlTo, Loss, RowCodec
from tidegate.codec.formats import ddl_header
from tidegate.codec.formats.json_text import easy_string
from tidegate.codec.kernels import piece_kernels
from tidegate.codec.plan import NEW, NUMBERS, OLD, OPERATIONS, EncodePlan, Shape, Writer, quoted, text_shape
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb.text import value_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyOptions(CodecOptions):
    """Its own settings: none."""

    protocol: ClassVar[str] = "toy"


def head(table: TableSchema) -> bytes:
    return b',"at":%s,"of":%s,"op":' % (easy_string(table.schema.encode()), easy_string(table.table.encode()))


def cell_head(column: Column, flag: int) -> bytes:
    return b"%s:[%d,%d," % (easy_string(column.name.encode()), column.mysql_type, flag)


class ToyEncoder:
    """Row by row."""

    def __init__(self, options: ToyOptions) -> None:
        self._options = options

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        messages = []
        for row in rows:
            op = DELETE if row.is_delete else INSERT if row.is_insert else UPDATE
            value = b'{"ts":%d%s%d' % (row.commit_ts, head(row.table), op)
            value += b',"new":' + _image(row.table, row.new) if row.new is not None else b""
            value += b',"old":' + _image(row.table, row.old) if row.old is not None else b""
            value += b"}"
            if len(value) + RECORD_OVERHEAD > self._options.max_message_bytes:
                raise too_large(row.table.name, len(value) + RECORD_OVERHEAD, self._options)
            messages.append(Message(None, value))
        return messages

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message:
        names = tuple(easy_string(text.encode()) for text in (event.schema, event.table, event.query))
        value = b'{"ts":%d,"at":%s,"of":%s,"sql":%s}' % (event.finished_ts, *names)
        return Message(None, value, headers=ddl_header.headers(event, "UTC"))

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message:
        return Message(None, b'{"ts":%d}' % ts)


def _image(table: TableSchema, image: tuple[Value, ...]) -> bytes:
    cells = zip(table.columns, table.ticdc_flags, image, strict=True)
    return b"{" + b",".join(cell_head(c, flag) + _value(c, cell) + b"]" for c, flag, cell in cells) + b"}"


def _value(column: Column, value: Value) -> bytes:
    if value is None:
        return b"null"
    if column.kind is Kind.BYTES:
        assert isinstance(value, bytes)
        return easy_string(base64.b64encode(value))
    return easy_string(value_text(column.kind, value))


class ToyDecoder:
    """Message by message."""

    def decode(self, batch: Batch) -> Decoded:
        return decode_plainly(batch, _message)


def _message(
    key: bytes | None, value: bytes | None, header: bytes | None, offset: int, decoded: Decoded
) -> Rows:
    body = json_object(value, "value")
    ts = integer(body, "ts")
    if "at" not in body:
        decoded.resolved.append((ts, offset))
        return []
    schema, table = member(body, "at", str), member(body, "of", str)
    if "sql" in body:
        decoded.ddls.append(DdlMessage(ts, member(body, "sql", str), None, schema, table, header, offset))
        return []
    op, new, old = integer(body, "op"), member(body, "new", dict, {}), member(body, "old", dict, {})
    if (bool(new), bool(old)) != {INSERT: (True, False), UPDATE: (True, True), DELETE: (False, True)}.get(op):
        raise DecodeError("the operation does not have its images")
    if new and old and new.keys() != old.keys():
        raise DecodeError("the images have other columns")
    columns = tuple(_wire_column(name, cell) for name, cell in (new or old).items())
    images = [[_cell(c, image[c.name]) for c in columns] if image else None for image in (new, old)]
    return [(RowKey(schema, table, None, columns), (op, ts, offset, 0, *images))]


def _wire_column(name: str, cell: Any) -> WireColumn:
    if not isinstance(cell, list) or len(cell) != 3 or not all(type(part) is int for part in cell[:2]):
        raise DecodeError(f"column {name!r} is no cell")
    code, flag = cell[:2]
    arrow = wire_type(code, bool(flag & UNSIGNED_FLAG), bool(flag & BINARY_FLAG))
    return WireColumn(name, arrow, code, bool(flag & HANDLE_KEY_FLAG), flag)


def _cell(column: WireColumn, cell: Any) -> Any:
    if not isinstance(cell, list) or len(cell) != 3 or not isinstance(cell[2], str | None):
        raise DecodeError(f"column {column.name!r} is no cell")
    text = cell[2]
    if text is None or column.type == "string":
        return text
    if column.type == "binary":
        return base64.b64decode(text, validate=True)
    return number(column, float(text) if column.type in ("float", "double") else int(text))


def plan(table: TableSchema, options: ToyOptions, digits: int) -> EncodePlan:
    """The compiled form."""
    write, shapes = Writer(), [_shape(column) for column in table.columns]
    write.end()
    for op in OPERATIONS:
        write.text(b'{"ts":')
        write.number(piece_kernels.COMMIT_TS)
        write.text(head(table) + b"%d" % op)
        for image, name, shown in ((NEW, b"new", op != DELETE), (OLD, b"old", op != INSERT)):
            opening = b',"%s":{' % name
            for i, column in enumerate(table.columns if shown else ()):
                write.text(opening + cell_head(column, table.ticdc_flags[i]))
                write.cell(shapes[i], i, image, end=b"]")
                opening = b","
            write.text(b"}" if shown else b"")
        write.text(b"}")
        write.end()
    return write.plan(table, shapes)


def _shape(column: Column) -> Shape:
    if column.kind in NUMBERS:
        return quoted(NUMBERS[column.kind])
    if column.kind is Kind.FLOAT or column.kind is Kind.DOUBLE:
        return quoted(piece_kernels.FLOAT_FIXED if column.kind is Kind.FLOAT else piece_kernels.DOUBLE_FIXED)
    other = piece_kernels.BASE64 if column.kind is Kind.BYTES else piece_kernels.TEXT
    return text_shape(column, std=0) or quoted(other)


CODEC: Final = RowCodec(
    name=ToyOptions.protocol,
    aliases=("plaything",),
    options=ToyOptions,
    ddl_to=DdlTo.FIRST,
    encoder=ToyEncoder,
    decoder=lambda options: ToyDecoder(),
    plan=plan,
    form=DecodeForm(False, lambda key: [], lambda column: CellForm(True, 0)),
    losses=lambda options: frozenset({Loss.BAD_TEXT, Loss.PARTITION}),
)
