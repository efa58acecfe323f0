"""TiCDC's open protocol (docs/formats/open-protocol.md), row by row, both directions.

    key   = version u64 BE (1) { length u64 BE, key JSON }*
    value =                    { length u64 BE, value JSON }*

Up to max-batch-size rows share a message; a DDL or a resolved mark is a message of its own. The classic
flavour sorts columns by name, and has Go's HTML escapes and the row's integer handle. The new flavour has
columns in the table's order, no HTML escapes and no handle. The decoder reads both.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from tidegate.codec.base import (
    RECORD_OVERHEAD,
    Batch,
    DdlMessage,
    Decoded,
    WireColumn,
    bounded,
)
from tidegate.codec.decoding.assemble import (
    BINARY_FLAG,
    BLOB_TYPES,
    HANDLE_KEY_FLAG,
    INTEGER_TYPES,
    STRING_TYPES,
    UNSIGNED_FLAG,
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
from tidegate.codec.formats.json_text import (
    go_quote,
    go_unquote,
    iterator_float,
    json_float,
    raw_string,
    std_string,
)
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
from tidegate.errors import InvalidInput
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Kind, TableSchema

VERSION: Final = (1).to_bytes(8, "big")
ROW, DDL, RESOLVED = 1, 2, 3
NEW: Final = "new"
"""The flavour of TiCDC's new architecture."""
MAX_ITEMS: Final = 1 << 16
"""The most items of one message that the decoder accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions(LargeOptions):
    """Open-protocol's own options."""

    protocol: ClassVar[str] = "open-protocol"
    max_batch_size: int = bounded(16, 1, 65_536)
    """The most rows of a message."""
    only_output_updated_columns: bool = False
    """Whether the before image of an update has only the columns that changed."""
    delete_only_output_handle_key_columns: bool = False
    """Whether a delete has only the handle key."""
    output_old_value: bool = True
    """Whether updates have the before image."""


def string_json(flavour: str) -> Callable[[bytes], bytes]:
    """How a flavour writes strings. The new one uses json-iterator, without HTML escapes."""
    return raw_string if flavour == NEW else std_string


def value_json(column: Column, flag: int, value: Value, flavour: str) -> bytes:
    """The `v` of a column object (docs/formats/open-protocol.md#values)."""
    string = string_json(flavour)
    if value is None:
        return b"null"
    if isinstance(value, float):
        # TiCDC's two architectures use different JSON libraries, which write some floats with other digits.
        return (iterator_float if flavour == NEW else json_float)(value, single=column.kind is Kind.FLOAT)
    if isinstance(value, bytes):
        if column.mysql_type in BLOB_TYPES:
            return b'"' + base64.b64encode(value) + b'"'
        # Bytes need not be UTF-8, so TiCDC sends them as Go's quoted text, inside a JSON string.
        return string(go_quote(value) if flag & BINARY_FLAG else value)
    if isinstance(value, str):
        return string(value.encode())
    return b"%d" % value


def column_json(column: Column, flag: int, value: Value, flavour: str) -> bytes:
    """One column object: type, handle key mark, flags, value."""
    mark = b',"h":true' if flag & HANDLE_KEY_FLAG else b""
    text = value_json(column, flag, value, flavour)
    return b'{"t":%d%s,"f":%d,"v":%s}' % (column.mysql_type, mark, flag, text)


def column_order(table: TableSchema, flavour: str) -> list[int]:
    """Positions of the columns in a flavour's order: the table's order, or sorted by the names' bytes."""
    order = list(range(len(table.columns)))
    # Go's encoding/json, which the classic flavour uses, writes the members of a map in this order.
    return order if flavour == NEW else sorted(order, key=lambda i: table.columns[i].name.encode())


class OpenProtocolEncoder:
    """Encodes rows, DDL and resolved marks of one partition."""

    def __init__(self, options: OpenOptions) -> None:
        self._options = options
        self._new = options.flavour == NEW
        self._string = string_json(options.flavour)

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        """Batches of rows: at most max_batch_size rows and max_message_bytes bytes per message.

        See docs/formats/open-protocol.md#a-batch.
        """
        options = self._options
        messages: list[Message] = []
        keys, values, size, held = [VERSION], list[bytes](), 0, 0
        for row in rows:
            (key, value), is_claimed = self._fitted(row)
            if is_claimed:
                # As in TiCDC, a row in the claim-check storage has a message of its own.
                messages += [Message(b"".join(keys), b"".join(values))] if held else []
                messages.append(Message(*frame(key, value)))
                keys, values, size, held = [VERSION], [], 0, 0
                continue
            # 16: the two lengths of an item. 8 below: the version at the start of the key.
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

    def _fitted(self, row: RowChange) -> tuple[Sent, bool]:
        return fitted(
            self._options,
            self.row_json(row),
            size,
            lambda location: self.row_json(row, location),
            lambda whole: frame(*whole),
            lambda: (row.table.name, key_words(row)),
        )

    def row_json(self, row: RowChange, location: str | None = None) -> Sent:
        """Key JSON and value JSON of one row, the value compressed. With a `location`, which may be empty,
        the row has only its handle key.
        """
        value = self._row_value(row, reduced=location is not None)
        kind = self._options.large_message_handle_compression
        return Sent(self._row_key(row, location), compressed(kind, value))

    def _row_key(self, row: RowChange, location: str | None) -> bytes:
        table = row.table
        if self._new:
            names = self._string(table.schema.encode()), self._string(table.table.encode())
            partition = b',"ptn":%d' % row.physical_id if table.partitions else b""
            stated = reduced_mark(location) + partition
            return b'{"ts":%d,"scm":%s,"tbl":%s,"t":1%s}' % (row.commit_ts, *names, stated)
        parts = [b'{"ts":%d' % row.commit_ts]
        parts += [b',"scm":' + std_string(table.schema.encode())] if table.schema else []
        parts += [b',"tbl":' + std_string(table.table.encode())] if table.table else []
        # The classic flavour leaves out members that are 0 or empty (Go's omitempty), here and above.
        parts += [b',"rid":%d' % row.handle] if row.handle else []
        parts += [b',"ptn":%d' % row.physical_id] if table.partitions else []
        return b"".join(parts) + b',"t":1' + reduced_mark(location) + b"}"

    def _row_value(self, row: RowChange, *, reduced: bool) -> bytes:
        members: list[tuple[bytes, bytes]] = []
        if reduced and not row.table.handle_key:
            raise without_key(row.table, self._options)
        if row.new is None:
            refused = why_no_delete(row.table, self._options)
            if refused is not None:
                raise refused
            only_key = reduced or self._options.delete_only_output_handle_key_columns
            shown = shown_columns(row.table, self._options.flavour, only_key=only_key)
            members.append((b'"d":', self._image(row.table, row.old, shown)))
        else:
            shown = shown_columns(row.table, self._options.flavour, only_key=reduced)
            members.append((b'"u":', self._image(row.table, row.new, shown)))
            if row.old is not None and self._options.output_old_value:
                if self._options.only_output_updated_columns:
                    shown = [i for i in shown if row.old[i] != row.new[i]]
                # If nothing changed, the new flavour writes `{}` and the classic one leaves `p` out.
                members.append(
                    (b'"p":', self._image(row.table, row.old, shown) or (b"{}" if self._new else b""))
                )
        return b"{" + b",".join(name + image for name, image in members if image) + b"}"

    def _image(self, table: TableSchema, image: tuple[Value, ...] | None, shown: list[int]) -> bytes:
        assert image is not None, "a row of this operation has this image"
        if not shown:
            return b""
        cells = (
            self._string(table.columns[i].name.encode())
            + b":"
            + column_json(table.columns[i], table.ticdc_flags[i], image[i], self._options.flavour)
            for i in shown
        )
        return b"{" + b",".join(cells) + b"}"

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message:
        """A DDL message; the owner sends it to every partition."""
        key = b'{"ts":%d' % event.finished_ts
        key += b',"scm":' + self._string(event.schema.encode()) if event.schema or self._new else b""
        key += b',"tbl":' + self._string(event.table.encode()) if event.table or self._new else b""
        value = b'{"q":%s,"t":%d}' % (self._string(event.query.encode()), event.action)
        # TiCDC compresses values and never keys.
        value = compressed(self._options.large_message_handle_compression, value)
        return Message(
            *frame(key + b',"t":2}', value), headers=ddl_header.headers(event, self._options.time_zone)
        )

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message:
        """A resolved mark: its value is a length of zero."""
        return Message(*frame(b'{"ts":%d,"t":3}' % ts, b""))


def shown_columns(table: TableSchema, flavour: str, *, only_key: bool) -> list[int]:
    """Positions of the columns in an image, in their order."""
    shown = column_order(table, flavour)
    return [i for i in shown if table.ticdc_flags[i] & HANDLE_KEY_FLAG] if only_key else shown


def reduced_mark(location: str | None) -> bytes:
    """The end of a key that marks a message without the whole row."""
    if location is None:
        return b""
    return b',"ccl":' + std_string(location.encode()) if location else b',"ohk":true'


def size(sent: Sent) -> int:
    """Bytes of a message with one row: its key, its value, their lengths and the version."""
    return len(sent.key) + len(sent.value) + RECORD_OVERHEAD + 24


def frame(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Key and value of a message with one item."""
    return VERSION + len(key).to_bytes(8, "big") + key, len(value).to_bytes(8, "big") + value


class OpenProtocolDecoder:
    """Decodes messages of one partition, one by one: the oracle and fallback of the compiled decoder."""

    def decode(self, batch: Batch) -> Decoded:
        """Rows, resolved marks and DDL; a message that is not valid becomes one BadMessage."""
        return decode_plainly(batch, _message)


def _message(
    key: bytes | None, value: bytes | None, header: bytes | None, offset: int, decoded: Decoded
) -> Rows:
    rows: Rows = []
    others: list[Callable[[], None]] = []
    for seq, (key_json, value_json_) in enumerate(split_items(key, value)):
        meta = json_object(key_json, "key")
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
    # Only now: an invalid item before this raised, and then the message must have no effect.
    for add in others:
        add()
    return rows


def split_items(key: bytes | None, value: bytes | None) -> list[tuple[bytes, bytes]]:
    """The (key JSON, value JSON) pairs of one message. Every length is checked before it is used."""
    if key is None or value is None:
        raise DecodeError("open-protocol messages have a key and a value")
    if key[:8] != VERSION:
        raise DecodeError("the key does not begin with version 1 of the open protocol")
    key_items, value_items = _lengths(key, 8, "key"), _lengths(value, 0, "value")
    # A message without items would otherwise be passed over in silence.
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
        # A slice beyond the end would only be shorter.
        if length > len(data) - position:
            raise DecodeError(
                f"an item of the {where} claims {length} bytes, {len(data) - position} are left"
            )
        items.append(data[position : position + length])
        position += length
        if len(items) > MAX_ITEMS:
            raise DecodeError(f"more than {MAX_ITEMS} items in one message")
    return items


def _ddl(meta: dict[str, Any], ts: int, text: bytes, header: bytes | None, offset: int) -> DdlMessage:
    body = json_object(text, "value")
    schema, table = member(meta, "scm", str, ""), member(meta, "tbl", str, "")
    return DdlMessage(ts, member(body, "q", str), integer(body, "t"), schema, table, header, offset)


def _row(meta: dict[str, Any], ts: int, text: bytes, offset: int, seq: int) -> tuple[RowKey, tuple[Any, ...]]:
    if meta.get("ohk") or meta.get("ccl"):
        name = f"{member(meta, 'scm', str, '')}.{member(meta, 'tbl', str, '')}"
        raise ReducedError(name, ts, member(meta, "ccl", str, ""))
    body = json_object(text, "value")
    new, before, deleted = (_cells(body, name) for name in ("u", "p", "d"))
    # As in TiCDC's decoder: a delete is known by `d` alone, and an insert is an update without `p`.
    if deleted:
        op, shown, old = DELETE, deleted, deleted
    elif new:
        op, shown = (UPDATE if before else INSERT), new
        # Columns that the before image leaves out did not change.
        old = {**new, **before} if before else {}
    else:
        raise DecodeError("a row without any column")
    columns = tuple(_wire_column(name, cell) for name, cell in shown.items())
    # Otherwise a cell of the old image would belong to no column of the table that is made of the row.
    if any(name not in shown for name in before):
        raise DecodeError("the before image has columns that the after image has not")
    row_key = RowKey(member(meta, "scm", str, ""), member(meta, "tbl", str, ""), meta.get("ptn"), columns)
    # `meta.get` above takes any JSON value: a text must not become a partition's id.
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
        # TEXT columns have the type codes of BLOBs; only the flag separates them.
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


def parts(key: bytes | None, value: bytes | None) -> list[Part]:
    """The rows of a message, each as a message of its own."""
    found = []
    for key_json, value_json_ in split_items(key, value):
        meta = json_object(key_json, "key")
        if meta.get("ohk") or meta.get("ccl"):
            names = member(meta, "scm", str, ""), member(meta, "tbl", str, "")
            reduced = Reduced(*names, integer(meta, "ts"), member(meta, "ccl", str, ""))
            found.append(Part(*frame(without(meta, "ohk", "ccl"), value_json_), reduced))
        else:
            found.append(Part(*frame(key_json, value_json_), None))
    return found


def why_no_delete(table: TableSchema, options: OpenOptions) -> InvalidInput | None:
    """Why a delete cannot be sent: only the handle key would be sent, and the table has none.

    TiCDC: ErrOpenProtocolCodecInvalidData.
    """
    if table.handle_key or not options.delete_only_output_handle_key_columns:
        return None
    return InvalidInput(
        "a delete has no handle key to send",
        where=f"table {table.name}",
        why="delete-only-output-handle-key-columns is on, and no primary or not-null unique key",
        fix="switch the option off, or give the table a key",
    )
