"""TiCDC's open protocol (facts 1), row by row, both directions.

    Kafka key   = version u64 BE (1) { length u64 BE, key JSON }*
    Kafka value =                    { length u64 BE, value JSON }*

Rows are batched up to max-batch-size; a DDL or a resolved mark travels alone. The encoder writes the
classic flavour (columns sorted by name, Go's HTML escapes); the decoder reads both flavours.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from tidegate.codec import ddl_header
from tidegate.codec.assemble import (
    BINARY_FLAG,
    BLOB_TYPES,
    HANDLE_KEY_FLAG,
    INTEGER_TYPES,
    STRING_TYPES,
    UNSIGNED_FLAG,
    DecodeError,
    Group,
    ReducedError,
    RowKey,
    assemble,
    at,
    bad_message,
    count,
    header_of,
    integer,
    member,
    number,
    wire_type,
)
from tidegate.codec.base import (
    RECORD_OVERHEAD,
    BinaryColumn,
    CodecOptions,
    DdlMessage,
    Decoded,
    Headers,
    WireColumn,
    too_large,
)
from tidegate.codec.json_text import go_quote, go_unquote, json_float, std_string
from tidegate.errors import InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.model.slots import DELETE, INSERT, UPDATE

VERSION: Final = (1).to_bytes(8, "big")
ROW, DDL, RESOLVED = 1, 2, 3
MAX_ITEMS: Final = 1 << 16
"""Most items of one message that the decoder accepts."""


def value_json(column: Column, flag: int, value: Value) -> bytes:
    """The `v` of a column object (facts 1.5)."""
    if value is None:
        return b"null"
    if isinstance(value, float):
        return json_float(value, single=column.kind is Kind.FLOAT)
    if isinstance(value, bytes):
        if column.mysql_type in BLOB_TYPES:
            return b'"' + base64.b64encode(value) + b'"'
        return std_string(go_quote(value) if flag & BINARY_FLAG else value)
    if isinstance(value, str):
        return std_string(value.encode())
    return b"%d" % value


def column_json(column: Column, flag: int, value: Value) -> bytes:
    """One column object: type, handle key mark, flags, value."""
    mark = b',"h":true' if flag & HANDLE_KEY_FLAG else b""
    return b'{"t":%d%s,"f":%d,"v":%s}' % (column.mysql_type, mark, flag, value_json(column, flag, value))


def sorted_columns(table: TableSchema) -> list[int]:
    """Positions of the columns in the order Go writes a map: by name's bytes."""
    return sorted(range(len(table.columns)), key=lambda i: table.columns[i].name.encode())


class OpenProtocolEncoder:
    """Encodes rows, DDL and resolved marks of one partition."""

    def __init__(self, options: CodecOptions) -> None:
        self._options = options

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        """Batches of rows: at most max_batch_size rows and max_message_bytes bytes a message (facts 1.2)."""
        options = self._options
        messages: list[Message] = []
        keys, values, size, held = [VERSION], list[bytes](), 0, 0
        for row in rows:
            key, value = self.row_json(row)
            alone = len(key) + len(value) + RECORD_OVERHEAD + 24
            if alone > options.max_message_bytes:
                raise too_large(row.table.name, alone, options)
            grown = size + len(key) + len(value) + 16
            full = held >= options.max_batch_size or grown + RECORD_OVERHEAD + 8 > options.max_message_bytes
            if held and full:
                messages.append(Message(b"".join(keys), b"".join(values)))
                keys, values, size, held = [VERSION], [], 0, 0
            keys += (len(key).to_bytes(8, "big"), key)
            values += (len(value).to_bytes(8, "big"), value)
            size, held = size + len(key) + len(value) + 16, held + 1
        if held:
            messages.append(Message(b"".join(keys), b"".join(values)))
        return messages

    def row_json(self, row: RowChange) -> tuple[bytes, bytes]:
        """Key JSON and value JSON of one row."""
        return self._row_key(row), self._row_value(row)

    def _row_key(self, row: RowChange) -> bytes:
        table = row.table
        parts = [b'{"ts":%d' % row.commit_ts]
        parts += [b',"scm":' + std_string(table.schema.encode())] if table.schema else []
        parts += [b',"tbl":' + std_string(table.table.encode())] if table.table else []
        parts += [b',"rid":%d' % row.handle] if row.handle else []
        parts += [b',"ptn":%d' % row.physical_id] if table.partitions else []
        return b"".join(parts) + b',"t":1}'

    def _row_value(self, row: RowChange) -> bytes:
        members: list[tuple[bytes, bytes]] = []
        if row.new is None:
            require_handle_key(row.table, self._options)
            only_key = self._options.delete_only_output_handle_key_columns
            shown = [i for i in sorted_columns(row.table) if not only_key or self._is_key(row.table, i)]
            members.append((b'"d":', self._image(row.table, row.old, shown)))
        else:
            shown = sorted_columns(row.table)
            members.append((b'"u":', self._image(row.table, row.new, shown)))
            if row.old is not None and self._options.open_output_old_value:
                if self._options.only_output_updated_columns:
                    shown = [i for i in shown if row.old[i] != row.new[i]]
                members.append((b'"p":', self._image(row.table, row.old, shown)))
        return b"{" + b",".join(name + image for name, image in members if image) + b"}"

    def _is_key(self, table: TableSchema, position: int) -> bool:
        return bool(table.ticdc_flags[position] & HANDLE_KEY_FLAG)

    def _image(self, table: TableSchema, image: tuple[Value, ...] | None, shown: list[int]) -> bytes:
        assert image is not None, "a row of this operation has this image"
        if not shown:
            return b""
        cells = (
            std_string(table.columns[i].name.encode())
            + b":"
            + column_json(table.columns[i], table.ticdc_flags[i], image[i])
            for i in shown
        )
        return b"{" + b",".join(cells) + b"}"

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message:
        """A DDL message; the owner sends it to every partition."""
        key = b'{"ts":%d' % event.finished_ts
        key += b',"scm":' + std_string(event.schema.encode()) if event.schema else b""
        key += b',"tbl":' + std_string(event.table.encode()) if event.table else b""
        value = b'{"q":%s,"t":%d}' % (std_string(event.query.encode()), event.action)
        return Message(*_frame(key + b',"t":2}', value), headers=ddl_header.headers(event))

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message:
        """A resolved mark: its value is a length of zero."""
        return Message(*_frame(b'{"ts":%d,"t":3}' % ts, b""))

    def ddl_to_all_partitions(self) -> bool:
        """Open-protocol repeats a DDL on every partition."""
        return True


def _frame(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    return VERSION + len(key).to_bytes(8, "big") + key, len(value).to_bytes(8, "big") + value


class OpenProtocolDecoder:
    """Decodes messages of one partition, message by message: the oracle and fallback of the compiled form."""

    def decode(
        self,
        keys: BinaryColumn,
        values: BinaryColumn,
        headers: Sequence[Headers] | None,
        offsets: Sequence[int] | npt.NDArray[np.int64],
    ) -> Decoded:
        """Rows, resolved marks and DDL; a message that is not whole is one BadMessage."""
        decoded = Decoded()
        groups: dict[RowKey, Group] = {}
        for i in range(count(keys, values, offsets)):
            key, value, offset = at(keys, i), at(values, i), int(offsets[i])
            try:
                self._message(key, value, header_of(headers, i), offset, decoded, groups)
            except (DecodeError, ValueError) as error:
                decoded.bad.append(bad_message(offset, key, value, error))
        decoded.rows.extend(assemble(groups))
        return decoded

    def _message(
        self,
        key: bytes | None,
        value: bytes | None,
        header: bytes | None,
        offset: int,
        decoded: Decoded,
        groups: dict[RowKey, Group],
    ) -> None:
        rows: list[tuple[RowKey, tuple[Any, ...]]] = []
        others: list[Callable[[], None]] = []
        items = split_items(key, value)
        for seq, (key_json, value_json_) in enumerate(items):
            meta = _object(key_json, "key")
            ts = integer(meta, "ts")
            kind = integer(meta, "t")
            if kind == RESOLVED:
                others.append(partial(decoded.resolved.append, (ts, offset)))
            elif kind == DDL:
                ddl = _ddl(meta, ts, value_json_, header, offset)
                others.append(partial(decoded.ddls.append, ddl))
            elif kind == ROW:
                rows.append(_row(meta, ts, value_json_, offset, seq))
            else:
                raise DecodeError(f"unknown message type {kind}")
        for add in others:
            add()
        for row_key, row in rows:
            groups.setdefault(row_key, Group()).append(row)


def split_items(key: bytes | None, value: bytes | None) -> list[tuple[bytes, bytes]]:
    """The (key JSON, value JSON) pairs of one message; every length is checked before it is used."""
    if key is None or value is None:
        raise DecodeError("open-protocol messages have a key and a value")
    if key[:8] != VERSION:
        raise DecodeError("the key does not begin with version 1 of the open protocol")
    key_items, value_items = _lengths(key, 8, "key"), _lengths(value, 0, "value")
    if len(key_items) != len(value_items) or not key_items:
        raise DecodeError(f"{len(key_items)} items in the key, {len(value_items)} in the value")
    return list(zip(key_items, value_items, strict=True))


def _lengths(data: bytes, position: int, where: str) -> list[bytes]:
    items: list[bytes] = []
    while position < len(data):
        if position + 8 > len(data):
            raise DecodeError(f"the {where} ends inside a length")
        (length,) = struct.unpack_from(">Q", data, position)
        position += 8
        if length > len(data) - position:
            raise DecodeError(
                f"an item of the {where} claims {length} bytes, {len(data) - position} are left"
            )
        items.append(data[position : position + length])
        position += length
        if len(items) > MAX_ITEMS:
            raise DecodeError(f"more than {MAX_ITEMS} items in one message")
    return items


def _object(text: bytes, where: str) -> dict[str, Any]:
    found = orjson.loads(text)
    if not isinstance(found, dict):
        raise DecodeError(f"the {where} is not a JSON object")
    return found


def _ddl(meta: dict[str, Any], ts: int, text: bytes, header: bytes | None, offset: int) -> DdlMessage:
    body = _object(text, "value")
    schema, table = member(meta, "scm", str, ""), member(meta, "tbl", str, "")
    return DdlMessage(ts, member(body, "q", str), integer(body, "t"), schema, table, header, offset)


def _row(meta: dict[str, Any], ts: int, text: bytes, offset: int, seq: int) -> tuple[RowKey, tuple[Any, ...]]:
    if meta.get("ohk") or meta.get("ccl"):
        name = f"{member(meta, 'scm', str, '')}.{member(meta, 'tbl', str, '')}"
        raise ReducedError(name, ts, member(meta, "ccl", str, ""))
    body = _object(text, "value")
    new, before, deleted = (_cells(body, name) for name in ("u", "p", "d"))
    if deleted:
        op, shown, old = DELETE, deleted, deleted
    elif new:
        op, shown = (UPDATE if before else INSERT), new
        old = {**new, **before} if before else {}
    else:
        raise DecodeError("a row without any column")
    columns = tuple(_wire_column(name, cell) for name, cell in shown.items())
    if any(name not in shown for name in before):
        raise DecodeError("the before image has columns that the after image has not")
    row_key = RowKey(member(meta, "scm", str, ""), member(meta, "tbl", str, ""), meta.get("ptn"), columns)
    if row_key.physical_id is not None:
        integer(meta, "ptn")
    after = [_value(column, new[column.name]) for column in columns] if op != DELETE else None
    former = [_value(column, old[column.name]) for column in columns] if op != INSERT else None
    return row_key, (op, ts, offset, seq, after, former)


def _cells(body: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    cells: dict[str, dict[str, Any]] = member(body, name, dict, {})
    for column, cell in cells.items():
        if not isinstance(cell, dict) or "v" not in cell:
            raise DecodeError(f"column {column!r} of {name!r} is not a column object")
    return cells


def _wire_column(name: str, cell: dict[str, Any]) -> WireColumn:
    code, flag = integer(cell, "t"), integer(cell, "f")
    arrow = wire_type(code, unsigned=bool(flag & UNSIGNED_FLAG), binary=bool(flag & BINARY_FLAG))
    return WireColumn(name, arrow, code, bool(flag & HANDLE_KEY_FLAG), flag)


def _value(column: WireColumn, cell: dict[str, Any]) -> Any:
    value, code = cell["v"], column.mysql_type
    if value is None:
        return None
    if code in BLOB_TYPES:
        found: bytes = base64.b64decode(_text(column, value), validate=True)
        return found if (column.flag or 0) & BINARY_FLAG else found.decode()
    if code in STRING_TYPES and (column.flag or 0) & BINARY_FLAG:
        return go_unquote(_text(column, value).encode())
    if code in INTEGER_TYPES or code in (4, 5):
        return number(column, value)
    return _text(column, value)


def _text(column: WireColumn, value: Any) -> str:
    if not isinstance(value, str):
        raise DecodeError(f"column {column.name!r} of type {column.mysql_type} holds {type(value).__name__}")
    return value


def require_handle_key(table: TableSchema, options: CodecOptions) -> None:
    """Refuse a delete reduced to a handle key that is not there (ErrOpenProtocolCodecInvalidData)."""
    if options.delete_only_output_handle_key_columns and not table.handle_key:
        raise InvalidInput(
            "a delete has no handle key to send",
            where=f"table {table.name}",
            why="delete-only-output-handle-key-columns is on, and no primary or not-null unique key",
            fix="switch the option off, or give the table a key",
        )
