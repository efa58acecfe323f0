"""Maxwell as TiCDC writes it, for the tests of its decoder: we do not write it otherwise.

`test_maxwell.py` holds its bytes to those that were recorded. `batch` puts rows into one message, as TiCDC
does.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from tidegate.codec.formats import ddl_header
from tidegate.codec.formats.json_text import json_float, std_string
from tidegate.codec.protocols.maxwell.plain import ROWS, MaxwellOptions
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Kind
from tidegate.model.timestamp import physical_ms
from tidegate.tidb.text import value_text


class MaxwellWriter:
    """Encodes rows and DDL."""

    def __init__(self, options: MaxwellOptions) -> None:
        self._options = options

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        return [self.batch([row]) for row in rows]

    def batch(self, rows: Sequence[RowChange]) -> Message:
        return Message(ROWS, b"".join(_row(row) for row in rows))

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message:
        schema, table, query = (
            std_string(text.encode()) for text in (event.schema, event.table, event.query)
        )
        key = b'{"ts":%d,"scm":%s,"tbl":%s,"t":2}' % (event.finished_ts, schema, table)
        value = b'{"type":"table-create","database":%s,"table":%s,"ts":%d,"sql":%s}'
        return Message(
            key, value % (schema, table, event.finished_ts, query), headers=ddl_header.headers(event, "UTC")
        )

    def encode_resolved(self, ts: int, build_ms: int = 0) -> None:
        return None


def _row(row: RowChange) -> bytes:
    names = std_string(row.table.schema.encode()), std_string(row.table.table.encode())
    kind = b"delete" if row.is_delete else b"insert" if row.is_insert else b"update"
    members = b'{"database":%s,"table":%s,"type":"%s","ts":%d' % (
        *names,
        kind,
        physical_ms(row.commit_ts) // 1000,
    )
    if row.new is not None:
        members += b',"data":' + _image(row, row.new, range(len(row.new)))
    if row.old is not None:
        shown = [i for i in range(len(row.old)) if row.new is None or _is_shown(row, i)]
        members += b',"old":' + _image(row, row.old, shown) if shown else b""
    return members + b"}"


def _is_shown(row: RowChange, i: int) -> bool:
    """Whether the old value of an update's column is sent; a vector's is, changed or not."""
    assert row.old is not None
    assert row.new is not None
    return row.old[i] != row.new[i] or row.table.columns[i].kind is Kind.VECTOR


def _image(row: RowChange, image: Sequence[Value], shown: Sequence[int]) -> bytes:
    columns = row.table.columns
    by_name = sorted(shown, key=lambda i: columns[i].name.encode())
    return b"{" + b",".join(_member(columns[i], image[i]) for i in by_name) + b"}"


def _member(column: Column, value: Value) -> bytes:
    return std_string(column.name.encode()) + b":" + _value(column, value)


def _value(column: Column, value: Value) -> bytes:
    if value is None:
        return b"null"
    if isinstance(value, float):
        return json_float(value, column.kind is Kind.FLOAT)
    if isinstance(value, int):
        return b"%d" % value
    if column.kind is Kind.BYTES:
        assert isinstance(value, bytes)
        return std_string(base64.b64encode(value))
    return std_string(value_text(column.kind, value))
