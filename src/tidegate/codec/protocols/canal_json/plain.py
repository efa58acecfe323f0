"""Canal-JSON as TiCDC's classic encoder writes it (docs/formats/canal-json.md), row by row, both directions.

One message per row, with a null key and a JSON object as value. With the TiDB extension
(`enable-tidb-extension`) messages carry `_tidb.commitTs` and there are watermarks; without it a consumer has
only milliseconds and no resolved marks. `mysqlType` is in column order here, in random order in TiCDC.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tidegate.codec.base import (
    RECORD_OVERHEAD,
    Batch,
    DdlMessage,
    Decoded,
    WireColumn,
    only_new,
)
from tidegate.codec.decoding.assemble import (
    HANDLE_KEY_FLAG,
    DecodeError,
    ReducedError,
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
from tidegate.codec.formats.compression import compressed
from tidegate.codec.formats.ddl_words import action_of, word_of
from tidegate.codec.formats.json_text import easy_string
from tidegate.codec.formats.mysql_type import code_of, compact_type, is_binary, short_type
from tidegate.codec.large import (
    LargeOptions,
    Part,
    Reduced,
    Sent,
    fitted,
    key_words,
    without,
    without_key,
)
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, TableSchema
from tidegate.model.timestamp import compose, physical_ms
from tidegate.tidb.text import value_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CanalOptions(LargeOptions):
    """Canal-JSON's own options."""

    protocol: ClassVar[str] = "canal-json"
    enable_tidb_extension: bool = False
    """The `_tidb` member and watermarks; without it a consumer has only milliseconds."""
    only_output_updated_columns: bool = False
    """Whether the before image of an update has only the columns that changed."""
    delete_only_output_handle_key_columns: bool = False
    """Whether a delete has only the handle key."""
    content_compatible: bool = False
    """`mysqlType` in full, as canal itself writes it; implies only_output_updated_columns."""
    output_row_key: bool = only_new(needs="enable_tidb_extension")
    """Whether `_tidb` has the row's key in TiKV, in Base64."""

    @property
    def has_row_keys(self) -> bool:
        """Whether messages contain the rows' keys."""
        return self.enable_tidb_extension and self.output_row_key


_JAVA_TYPE: Final = {
    1: -6, 2: 5, 9: 4, 3: 4, 8: -5, 4: 7, 5: 8, 0: 3, 246: 3, 13: 12, 10: 91, 14: 91, 12: 93, 7: 93, 11: 92,
    16: -7, 247: 4, 248: -7, 245: 12, 225: 12, 15: 12, 253: 12, 254: 1,
    249: 2005, 250: 2005, 251: 2005, 252: 2005,
}  # fmt: skip
"""Java SQL type of a MySQL type code (docs/formats/canal-json.md#values), before charset and promotion."""

PROMOTED: Final = {1: (127, 5), 2: (32767, 4), 3: (2147483647, -5), 8: ((1 << 63) - 1, 3)}
"""Unsigned columns: above this value, this Java type. Not for mediumint."""

_OPERATION: Final = {"INSERT": INSERT, "UPDATE": UPDATE, "DELETE": DELETE}
NEW: Final = "new"
"""The flavour of TiCDC's new architecture: like the classic one, except for an object without members."""
WATERMARK: Final = "TIDB_WATERMARK"
ROW_KEY: Final = b',"rowkey":"'
"""The text between the commit ts, or the mark of a reduced row, and the row's key."""
REDUCED_MARKS: Final = ("onlyHandleKey", "claimCheckLocation")


def java_type(column: Column, value: Value) -> int:
    """The `sqlType` of a column for one value."""
    if is_binary(column):
        return 2004
    # Java has no unsigned types: a value above the signed range needs the next wider one (tiflow
    # `pkg/sink/codec/canal`).
    if column.unsigned and column.mysql_type in PROMOTED and isinstance(value, int):
        limit, promoted = PROMOTED[column.mysql_type]
        if value > limit:
            return promoted
    return _JAVA_TYPE[column.mysql_type]


def cell_json(column: Column, value: Value) -> bytes:
    """A value in `data` or `old`: a JSON string or null."""
    if value is None:
        return b"null"
    text = value_text(column.kind, value)
    if is_binary(column):
        # As canal does: each byte becomes the character with its number (ISO 8859-1), so JSON can hold any
        # bytes.
        text = text.decode("latin-1").encode()
    return easy_string(text)


class CanalJsonEncoder:
    """Encodes rows, DDL and watermarks."""

    def __init__(self, options: CanalOptions) -> None:
        self._options = options
        self._only_updated = options.only_output_updated_columns or options.content_compatible

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        """One message per row."""
        return [Message(None, self._fitted(row, build_ms)) for row in rows]

    def _fitted(self, row: RowChange, build_ms: int) -> bytes:
        (_, value), _ = fitted(
            self._options,
            self._sent(row, build_ms),
            size,
            lambda location: self._sent(row, build_ms, location),
            lambda whole: (None, whole.value),
            lambda: (row.table.name, key_words(row)),
        )
        return value

    def _sent(self, row: RowChange, build_ms: int, location: str | None = None) -> Sent:
        value = self.row_json(row, build_ms, location)
        return Sent(b"", compressed(self._options.large_message_handle_compression, value))

    def row_json(self, row: RowChange, build_ms: int, location: str | None = None) -> bytes:
        """The value of one row's message. With a `location`, even an empty one, only the handle key."""
        table, image = row.table, row.old if row.new is None else row.new
        assert image is not None, "a row has an image"
        if location is not None and not table.handle_key:
            raise without_key(table, self._options)
        shown = self._shown(table, row.is_delete, reduced=location is not None)
        operation = b"DELETE" if row.is_delete else b"INSERT" if row.is_insert else b"UPDATE"
        parts = [
            head(table),
            operation,
            b'","es":%d,"ts":%d,"sql":"","sqlType":' % (physical_ms(row.commit_ts), build_ms),
            self._java_types(table, image, shown),
            b',"mysqlType":' + self.mysql_types(table, shown),
            b',"old":' + self._old(row, shown),
            b',"data":[' + self._image(table, image, shown) + b"]",
            self._extension(row, location) if self._options.enable_tidb_extension else b"",
            b"}",
        ]
        return b"".join(parts)

    def _extension(self, row: RowChange, location: str | None) -> bytes:
        key = ROW_KEY + base64.b64encode(row.row_key) + b'"' if self._options.has_row_keys else b""
        return b',"_tidb":{"commitTs":%d' % row.commit_ts + reduced_mark(location) + key + b"}"

    def _java_types(self, table: TableSchema, image: tuple[Value, ...], shown: Sequence[int]) -> bytes:
        # Go writes a map that was never made as null, and not as `{}`.
        if not shown:
            return b"null"
        return _members((table.columns[i].name, b"%d" % java_type(table.columns[i], image[i])) for i in shown)

    def mysql_types(self, table: TableSchema, shown: Sequence[int]) -> bytes:
        """The `mysqlType` object."""
        if not shown and self._options.flavour == NEW:
            return b"null"
        describe = compact_type if self._options.content_compatible else short_type
        columns = [table.columns[i] for i in shown]
        return _members((column.name, easy_string(describe(column).encode())) for column in columns)

    def _shown(self, table: TableSchema, is_delete: bool, *, reduced: bool) -> Sequence[int]:
        if not reduced and not (is_delete and self._options.delete_only_output_handle_key_columns):
            return range(len(table.columns))
        return [i for i, flag in enumerate(table.ticdc_flags) if flag & HANDLE_KEY_FLAG]

    def _old(self, row: RowChange, shown: Sequence[int]) -> bytes:
        if row.old is None or row.new is None:
            return b"null"
        changed = [i for i in shown if not self._only_updated or row.old[i] != row.new[i]]
        return b"[" + self._image(row.table, row.old, changed) + b"]"

    def _image(self, table: TableSchema, image: tuple[Value, ...], shown: Sequence[int]) -> bytes:
        return _members((table.columns[i].name, cell_json(table.columns[i], image[i])) for i in shown)

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message:
        """A DDL message; the owner sends it to partition 0 of the topic."""
        kind = word_of(event.action)
        tail = b',"_tidb":{"commitTs":%d}' % event.finished_ts if self._options.enable_tidb_extension else b""
        ms = physical_ms(event.finished_ts)
        value = _plain(event.schema, event.table, b"true", kind, ms, build_ms, event.query, tail)
        return Message(
            None, self._compressed(value), headers=ddl_header.headers(event, self._options.time_zone)
        )

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None:
        """A watermark; None without the TiDB extension, of which it is a member."""
        if not self._options.enable_tidb_extension:
            return None
        # Go leaves out a 0 (omitempty). The decoder reads a member that is absent as 0.
        tail = b',"_tidb":{"watermarkTs":%d}' % ts if ts else b',"_tidb":{}'
        value = _plain("", "", b"false", WATERMARK, physical_ms(ts), build_ms, "", tail)
        return Message(None, self._compressed(value))

    def _compressed(self, value: bytes) -> bytes:
        return compressed(self._options.large_message_handle_compression, value)


def size(sent: Sent) -> int:
    """Bytes of a row's message."""
    return len(sent.value) + RECORD_OVERHEAD


def reduced_mark(location: str | None) -> bytes:
    """The part of `_tidb` after the commit ts that marks a message without the whole row."""
    if location is None:
        return b""
    stated = b',"claimCheckLocation":' + easy_string(location.encode())
    return stated if location else b',"onlyHandleKey":true'


def head(table: TableSchema) -> bytes:
    """The members of a row message up to the opening quote of the operation."""
    keys = b",".join(easy_string(table.columns[i].name.encode()) for i in sorted(table.primary_key))
    schema, name = easy_string(table.schema.encode()), easy_string(table.table.encode())
    return b'{"id":0,"database":%s,"table":%s,"pkNames":[%s],"isDdl":false,"type":"' % (schema, name, keys)


def _members(pairs: Any) -> bytes:
    return b"{" + b",".join(easy_string(name.encode()) + b":" + value for name, value in pairs) + b"}"


def _plain(
    schema: str, table: str, is_ddl: bytes, kind: str, es: int, build_ms: int, query: str, tail: bytes
) -> bytes:
    names = (easy_string(schema.encode()), easy_string(table.encode()), is_ddl, kind.encode())
    text = easy_string(query.encode())
    front = b'{"id":0,"database":%s,"table":%s,"pkNames":null,"isDdl":%s,"type":"%s"' % names
    back = b',"sqlType":null,"mysqlType":null,"data":null,"old":null'
    return front + b',"es":%d,"ts":%d,"sql":%s' % (es, build_ms, text) + back + tail + b"}"


class CanalJsonDecoder:
    """Decodes messages one by one: the oracle and fallback of the compiled decoder."""

    def decode(self, batch: Batch) -> Decoded:
        """Rows, watermarks and DDL; a message that is not valid becomes one BadMessage."""
        return decode_plainly(batch, _message)


def _message(
    key: bytes | None, value: bytes | None, header: bytes | None, offset: int, decoded: Decoded
) -> Rows:
    if value is None:
        raise DecodeError("canal-json messages have a value")
    body = json_object(value, "value")
    kind, extension = member(body, "type", str), member(body, "_tidb", dict, {})
    if kind == WATERMARK:
        decoded.resolved.append((integer({"watermarkTs": 0} | extension, "watermarkTs"), offset))
        return []
    # Without the extension only milliseconds are known: transactions of one millisecond get the same ts.
    ts = integer(extension, "commitTs") if "commitTs" in extension else _milliseconds(body)
    if member(body, "isDdl", bool):
        schema, table = member(body, "database", str, ""), member(body, "table", str, "")
        query, action = member(body, "sql", str), action_of(kind)
        decoded.ddls.append(DdlMessage(ts, query, action, schema, table, header, offset))
        return []
    if extension.get("onlyHandleKey") or extension.get("claimCheckLocation"):
        name = f"{member(body, 'database', str, '')}.{member(body, 'table', str, '')}"
        raise ReducedError(name, ts, member(extension, "claimCheckLocation", str, ""))
    return [_row(body, kind, ts, offset)]


def parts(key: bytes | None, value: bytes | None) -> list[Part]:
    """The one row of a message."""
    body = json_object(value, "value")
    extension = member(body, "_tidb", dict, {})
    if not (extension.get("onlyHandleKey") or extension.get("claimCheckLocation")):
        return [Part(key, value, None)]
    names = member(body, "database", str, ""), member(body, "table", str, "")
    claim = member(extension, "claimCheckLocation", str, "")
    rest = {name: extension[name] for name in extension if name not in REDUCED_MARKS}
    return [
        Part(key, without(body | {"_tidb": rest}), Reduced(*names, integer(extension, "commitTs"), claim))
    ]


def without_extension(values: Sequence[bytes | None], decoded: Decoded) -> bool:
    """Whether rows or DDLs were written without TiDB's extension, judged by the first good message.

    The member `_tidb` cannot be mistaken for a part of a text: there its quotes would be escaped.
    """
    if decoded.resolved or not (decoded.rows or decoded.ddls):
        return False
    bad = {message.value for message in decoded.bad}
    first = next((value for value in values if value is not None and value not in bad), b"")
    return b'"_tidb":' not in first


def _milliseconds(body: dict[str, Any]) -> int:
    milliseconds = integer(body, "es")
    # A TSO is 64 bits, and its lowest 18 are the logical counter.
    if milliseconds >= 1 << 46:
        raise DecodeError("member 'es' is out of range")
    return compose(milliseconds)


def _row(body: dict[str, Any], kind: str, ts: int, offset: int) -> tuple[RowKey, tuple[Any, ...]]:
    if kind not in _OPERATION:
        raise DecodeError(f"unknown type {kind!r}")
    op, data, old = _OPERATION[kind], _image(body, "data"), _image(body, "old")
    if not data or (op == UPDATE and old is None):
        raise DecodeError(f"{kind} without its image")
    types, keys = member(body, "mysqlType", dict), set(member(body, "pkNames", list, []))
    columns = tuple(_wire_column(name, types.get(name), name in keys) for name in data)
    if old is not None and any(name not in data for name in old):
        raise DecodeError("the before image has columns that the after image has not")
    cells = [_value(column, data[column.name]) for column in columns]
    former: list[Any] | None = None
    if op == UPDATE and old is not None:
        # Columns that the before image leaves out did not change.
        former = [_value(c, old[c.name]) if c.name in old else cells[i] for i, c in enumerate(columns)]
    row_key = RowKey(member(body, "database", str), member(body, "table", str), None, columns)
    # A delete has its row in `data`, so these cells are the old image.
    if op == DELETE:
        return row_key, (op, ts, offset, 0, None, cells)
    return row_key, (op, ts, offset, 0, cells, former)


def _image(body: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = member(body, name, list, [])
    if not found:
        return None
    # Canal itself may put several rows into a message. TiCDC never does, and a second row would be lost here.
    if len(found) != 1 or not isinstance(found[0], dict):
        raise DecodeError(f"{name!r} is not an array of one object")
    return found[0]


def _wire_column(name: str, type_name: Any, key: bool) -> WireColumn:
    if not isinstance(type_name, str):
        raise DecodeError(f"column {name!r} has no mysqlType")
    code, unsigned, binary = code_of(type_name)
    return WireColumn(name, wire_type(code, unsigned, binary), code, key, None, type_name)


def _value(column: WireColumn, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, str):
        raise DecodeError(f"column {column.name!r} holds {type(value).__name__}, not a string")
    if column.type == "binary":
        return value.encode("latin-1")
    if column.type == "string":
        return value
    return number(column, float(value) if column.type in ("float", "double") else int(value))
