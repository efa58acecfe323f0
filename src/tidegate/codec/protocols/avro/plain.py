"""Avro with a schema registry, row by row, both directions: docs/formats/avro.md.

    key     00 | id of the key's schema, i32 big-endian | the handle key's columns
    value   00 | id of the value's schema | all columns, then _tidb_op, ...    insert, update
            the same, with the row as it was before _tidb_op                  delete, with old values
            nothing                                                           delete
            03 | commit ts, u64 big-endian                                    delete, with marks
            01 | {"query":"..","type":5,"schema":"..",...}                    DDL, no key
            02 | ts, u64 big-endian                                           watermark, no key

Each row is one message. An integer is written as a zigzag varint; text and bytes have their length before
them; a nullable column has the number of its branch before the value.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.codec.base import NEW, RECORD_OVERHEAD, Batch, DdlMessage, Decoded, too_large
from tidegate.codec.decoding import sums
from tidegate.codec.decoding.assemble import DecodeError, RowKey, Rows, decode_plainly, integer, member
from tidegate.codec.formats import ddl_header
from tidegate.codec.formats.avro_binary import sized, varint
from tidegate.codec.formats.json_text import std_string
from tidegate.codec.protocols.avro.schema import (
    BEFORE,
    AvroOptions,
    avro_type,
    escaped_elem,
    is_null_first,
    key_columns,
    refused_delete,
    subjects,
    value_members,
)
from tidegate.codec.protocols.avro.wire_schema import Field, Record, record_of, wire_columns
from tidegate.codec.schema_book import Subject
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.model.timestamp import physical_ms
from tidegate.tidb.types import enum

ROW, DDL, WATERMARK, DELETED = 0, 1, 2, 3
"""The first byte of a value."""
HEADER_BYTES: Final = 5
OPERATIONS: Final = {INSERT: b"c", UPDATE: b"u", DELETE: b"d"}
HAS_NONE, HAS_BEFORE = varint(0), varint(1)
"""The branches of the union that holds the old row."""


# --- encoding


def unscaled(text: str, scale: int) -> bytes:
    """A decimal with `scale` digits after the point as the shortest two's complement number, big-endian."""
    whole, _, frac = text.partition(".")
    number = int(whole + frac[:scale].ljust(scale, "0"))
    # One is added to a negative number because -128 fits one byte while 128 needs two.
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


def schema_header(subject: Subject, options: AvroOptions) -> bytes:
    """The zero byte and the schema id with which a key or value of this schema begins."""
    number = options.book.id_of(subject)
    assert number is not None, "the edge registers schemas before rows are encoded"
    return b"\x00" + number.to_bytes(4, "big")


def value_bytes(column: Column, value: Value, options: AvroOptions) -> bytes:
    """The bytes of a value that is not NULL."""
    of_type, _ = avro_type(column, options)
    if of_type in ("int", "long"):
        assert isinstance(value, int)
        return varint(value)
    match column.kind:
        case Kind.FLOAT:
            return struct.pack("<f", np.float32(value))
        case Kind.DOUBLE:
            return struct.pack("<d", value)
        case Kind.BIT:
            assert isinstance(value, int)
            size = max(least_bytes(column, options), (value.bit_length() + 7) // 8)
            return sized(value.to_bytes(size, "big"))
        case Kind.ENUM:
            assert isinstance(value, int)
            # A number without an element has no name. It is sent as the empty text, as TiDB shows it.
            known = 0 < value <= len(column.elems)
            return sized(column.elems[value - 1].encode() if known else b"")
        case Kind.SET:
            assert isinstance(value, int)
            return sized(enum.set_names(value & (1 << len(column.elems)) - 1, column.elems).encode())
        case Kind.DECIMAL if of_type == "bytes":
            assert isinstance(value, str)
            return sized(unscaled(value, max(column.decimal, 0)))
    return sized(value if isinstance(value, bytes) else str(value).encode())


def least_bytes(column: Column, options: AvroOptions) -> int:
    """The least number of bytes of a BIT value: in the new flavour the width of the column, otherwise 1."""
    return (column.flen + 7) // 8 if options.flavour == NEW else 1


def absent(column: Column, options: AvroOptions) -> bytes:
    """The bytes of a column that is NULL: the number of the null branch."""
    return varint(0 if is_null_first(column, options) else 1)


def checksum_members(row: RowChange) -> bytes:
    """The members of the extension for a row's checksum; the text is empty if the row has none.

    The sum belongs to the image that the columns show, which for a delete is the old one.
    """
    found = row.upstream_checksum
    if found is None:
        return sized(b"") + b"\0" + varint(0)
    stated = found.previous if row.is_delete else found.current
    return sized(b"%d" % stated) + bytes([found.corrupted]) + varint(found.version)


class AvroEncoder:
    """Encodes rows, DDL and watermarks. The options' book has the id of each schema."""

    def __init__(self, options: AvroOptions) -> None:
        self._options = options

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        """One message for each row; a delete has only its key unless the options ask for old values."""
        messages = []
        for row in rows:
            key, value = self._row(row)
            size = len(key or b"") + len(value or b"") + RECORD_OVERHEAD
            if size > self._options.max_message_bytes:
                raise too_large(row.table.name, size, self._options)
            messages.append(Message(key, value))
        return messages

    def _row(self, row: RowChange) -> tuple[bytes | None, bytes | None]:
        table, options = row.table, self._options
        image = row.old if row.new is None else row.new
        assert image is not None, "a row has an image"
        of_key, of_value = subjects(table, options)
        key = None
        if of_key is not None:
            key = schema_header(of_key, options) + self._columns(table, image, key_columns(table, options))
        if row.new is None and not options.avro_include_before_value:
            if key is None:
                raise refused_delete(table, options)
            # A tombstone has no place for a ts. Without one a reader could not compare the delete with a
            # watermark.
            return key, b"\x03" + row.commit_ts.to_bytes(8, "big") if options.has_marks else None
        members = value_members(table, options)
        value = schema_header(of_value, options) + self._columns(table, image, members)
        if options.avro_include_before_value:
            # A delete has its row as the main image and once more here: both are its old image.
            value += HAS_NONE if row.old is None else HAS_BEFORE + self._columns(table, row.old, members)
        if options.extension:
            value += sized(OPERATIONS[DELETE if row.is_delete else INSERT if row.is_insert else UPDATE])
        if options.enable_tidb_extension:
            value += varint(row.commit_ts) + varint(physical_ms(row.commit_ts))
        if options.has_checksums:
            value += checksum_members(row)
        return key, value

    def _columns(self, table: TableSchema, image: tuple[Value, ...], shown: Sequence[int | Column]) -> bytes:
        return b"".join(
            absent(i, self._options) if isinstance(i, Column) else self._cell(table.columns[i], image[i])
            for i in shown
        )

    def _cell(self, column: Column, value: Value) -> bytes:
        if not column.nullable:
            assert value is not None, "a NOT NULL column has a value"
            return value_bytes(column, value, self._options)
        null_first = is_null_first(column, self._options)
        if value is None:
            return absent(column, self._options)
        return varint(1 if null_first else 0) + value_bytes(column, value, self._options)

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message | None:
        """A DDL message; None where the options leave it out."""
        if not self._options.has_marks:
            return None
        texts = (std_string(text.encode()) for text in (event.query, event.schema, event.table))
        query, schema, table = texts
        value = b'\x01{"query":%s,"type":%d,"schema":%s,"table":%s,"commitTs":%d}' % (
            query, event.action, schema, table, event.finished_ts,
        )  # fmt: skip
        return Message(None, value, headers=ddl_header.headers(event, self._options.time_zone))

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None:
        """A watermark; None where the options leave it out."""
        return Message(None, b"\x02" + ts.to_bytes(8, "big")) if self._options.has_marks else None


# --- decoding


class AvroDecoder:
    """Decodes messages one by one. Tests compare the compiled decoder with this one."""

    def __init__(self, options: AvroOptions | None = None) -> None:
        self._options = options or AvroOptions()

    @property
    def has_marks(self) -> bool:
        """Whether every delete must contain its commit ts."""
        return self._options.has_marks

    @property
    def time_zone(self) -> str:
        """The time zone in which TIMESTAMPs are written as text."""
        return self._options.time_zone

    def decode(self, batch: Batch) -> Decoded:
        """Decode rows, watermarks and DDL; a message that cannot be decoded becomes one BadMessage."""
        return decode_plainly(batch, self._message)

    def _message(
        self, key: bytes | None, value: bytes | None, header: bytes | None, offset: int, decoded: Decoded
    ) -> Rows:
        if key is None and value and value[0] in (DDL, WATERMARK):
            if value[0] == DDL:
                decoded.ddls.append(_ddl(value, header, offset))
            else:
                decoded.resolved.append((_stamp(value), offset))
            return []
        if key is None and value is None:
            raise DecodeError("a message without key and value says nothing")
        of_key = self.record(schema_id(key)) if key is not None else None
        names = frozenset(one.name for one in of_key.fields) if of_key is not None else frozenset()
        if value == b"":
            raise DecodeError("its value is empty, and not null")
        if value is None or value[0] == DELETED:
            return [self._deleted(key, value, of_key, offset)]
        of_value = self.record(schema_id(value))
        reader = AvroReader(value)
        cells, more = _cells(reader, of_value)
        reader.end()
        columns = wire_columns(of_value, names)
        if key is not None and of_key is not None:
            _check_key(AvroReader(key), of_key, of_value)
        # An Avro long is signed: a number from 2**63 on arrives as a negative one.
        ts, op = (more.get("_tidb_commit_ts") or 0) & (1 << 64) - 1, more.get("_tidb_op") or ""
        # Without the extension a value does not say whether its row is new.
        if "_tidb_op" not in more or more["_tidb_op"] is None:
            op = "c"
        if op not in ("c", "u", "d"):
            raise DecodeError(f"a row has the operation {op[:100]!r}")
        name = f"{of_value.schema}.{of_value.table}"
        if more.get("_tidb_corrupted"):
            raise DecodeError(f"the producer marked this row of {name} as corrupted")
        stated = _stated_sum(more.get("_tidb_row_level_checksum") or "")
        if stated:
            sums.check(name, ts, columns, cells, stated, self._options.time_zone)
        row_key, before = RowKey(of_value.schema, of_value.table, None, columns), more.get(BEFORE)
        if op == "d":
            return [(row_key, (DELETE, ts, offset, 0, None, cells))]
        if before is not None:
            return [(row_key, (UPDATE, ts, offset, 0, cells, before))]
        return [(row_key, (INSERT, ts, offset, 0, cells, None))]

    def record(self, number: int) -> Record:
        """The schema with an id. Raises DecodeError if there is none, or if TiCDC would not write it."""
        text = self._options.book.schema_of(number)
        if text is None:
            raise DecodeError(
                f"the schema registry has no schema of the id {number}, which the message names"
            )
        return record_of(text)

    def _deleted(
        self, key: bytes | None, value: bytes | None, of_key: Record | None, offset: int
    ) -> tuple[RowKey, tuple[Any, ...]]:
        if key is None or of_key is None:
            raise DecodeError("a delete has no key")
        ts = 0 if value is None else _stamp(value)
        if value is None and self._options.has_marks:
            raise DecodeError(
                "a delete without a value does not say when it was committed; TiCDC's classic architecture "
                "writes such deletes also with avro-enable-watermark"
            )
        reader = AvroReader(key)
        cells, _ = _cells(reader, of_key)
        reader.end()
        columns = wire_columns(of_key, frozenset(one.name for one in of_key.fields))
        return RowKey(of_key.schema, of_key.table, None, columns), (DELETE, ts, offset, 0, None, cells)


def schema_id(data: bytes) -> int:
    """The id of the schema that a key or value names."""
    if len(data) < HEADER_BYTES or data[0] != ROW:
        raise DecodeError("it does not begin with a zero byte and the id of a schema")
    return int.from_bytes(data[1:HEADER_BYTES], "big")


def named_ids(batch: Batch) -> Iterator[int]:
    """Each id that whole keys and values name, once; the ids of most messages come first."""
    counts = Counter[bytes]()
    for column in (batch.keys, batch.values):
        whole = column if isinstance(column, pa.Array) else pa.array(column, pa.large_binary())
        for one in pc.value_counts(pc.binary_slice(whole.drop_null(), 0, HEADER_BYTES)).to_pylist():
            counts[one["values"]] += one["counts"]
    for head, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(head) == HEADER_BYTES and head[0] == ROW:
            yield int.from_bytes(head[1:], "big")


def _check_key(reader: AvroReader, of_key: Record, of_value: Record) -> None:
    """Raise DecodeError unless the key is complete and belongs to the table of the value."""
    if (of_key.schema, of_key.table) != (of_value.schema, of_value.table):
        raise DecodeError("key and value are of different tables")
    _cells(reader, of_key)
    reader.end()


def _stated_sum(text: str) -> int:
    """The checksum that a row states; 0 if it states none."""
    if text == "":
        return 0
    # `int` alone would also accept signs, underscores, spaces and digits of other scripts.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1
    if not 0 <= number < 1 << 32:
        raise DecodeError(f"a row has the checksum {text[:100]!r}")
    return number


def _stamp(value: bytes) -> int:
    if len(value) != 9:
        raise DecodeError(f"a ts needs 8 bytes, there are {len(value) - 1}")
    return int.from_bytes(value[1:], "big")


def _ddl(value: bytes, header: bytes | None, offset: int) -> DdlMessage:
    body = orjson.loads(value[1:])
    if not isinstance(body, dict):
        raise DecodeError("a DDL message is not a JSON object")
    names = member(body, "schema", str, ""), member(body, "table", str, "")
    return DdlMessage(
        integer(body, "commitTs"), member(body, "query", str), integer(body, "type"), *names, header, offset
    )


class AvroReader:
    """Reads the bytes of a message after its header, from first to last."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, HEADER_BYTES

    def varint(self) -> int:
        """Read an int or a long."""
        value = shift = 0
        while True:
            if self._at >= len(self._data):
                raise DecodeError("it is cut")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise DecodeError("a number has more than 64 bits")
        if value >= 1 << 64:
            raise DecodeError("a number has more than 64 bits")
        return value >> 1 ^ -(value & 1)

    def take(self, size: int) -> bytes:
        """Read `size` bytes."""
        if not 0 <= size <= len(self._data) - self._at:
            raise DecodeError(f"{size} bytes are said to follow, there are {len(self._data) - self._at}")
        self._at += size
        return self._data[self._at - size : self._at]

    def end(self) -> None:
        """Raise DecodeError if bytes are left."""
        if self._at != len(self._data):
            raise DecodeError(f"{len(self._data) - self._at} bytes follow its last member")


def _cells(reader: AvroReader, record: Record) -> tuple[list[Any], dict[str, Any]]:
    """Read a record: the values of its columns, and its other members by name."""
    cells: list[Any] = []
    more: dict[str, Any] = {}
    for one in record.fields:
        value = _value(reader, one)
        if one.tidb_type:
            cells.append(value)
        else:
            more[one.name] = value
    return cells, more


def _value(reader: AvroReader, field: Field) -> Any:
    if field.null >= 0:
        branch = reader.varint()
        if branch not in (0, 1):
            raise DecodeError(f"member {field.name!r} has the branch {branch} of two")
        if branch == field.null:
            return None
    match field.of_type:
        case "record":
            assert field.inner is not None
            return _cells(reader, field.inner)[0]
        case "float":
            return struct.unpack("<f", reader.take(4))[0]
        case "double":
            return struct.unpack("<d", reader.take(8))[0]
        case "boolean":
            return reader.take(1) != b"\0"
        case "int" | "long":
            return _number(field, reader.varint())
    data = reader.take(reader.varint())
    return _content(field, data)


def _number(field: Field, number: int) -> int:
    """A number with 64 bits, unchecked against the width of its column."""
    return number & (1 << 64) - 1 if field.tidb_type.endswith(" UNSIGNED") else number


def _content(field: Field, data: bytes) -> Any:
    """The value that text or bytes stand for."""
    match field.tidb_type:
        case "BLOB":
            return data
        case "BIT":
            if len(data) > 8:
                raise DecodeError(f"member {field.name!r}: {len(data)} bytes of BIT")
            return int.from_bytes(data, "big")
        case "DECIMAL" if field.scale >= 0:
            return _decimal(field, data)
    text = data.decode(errors="replace")
    match field.tidb_type:
        case "BIGINT UNSIGNED":
            number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else -1
            if not 0 <= number < 1 << 64:
                raise DecodeError(f"member {field.name!r}: {text[:100]!r} of {field.tidb_type}")
            return number
        case "ENUM":
            return _position(field, text)
        case "SET":
            mask = 0
            for name in text.split(",") if text else []:
                mask |= 1 << _position(field, name) - 1
            return mask
    return text


def _decimal(field: Field, data: bytes) -> str:
    if not 0 < len(data) <= 40:
        raise DecodeError(f"member {field.name!r}: {len(data)} bytes of a decimal")
    number, scale = int.from_bytes(data, "big", signed=True), field.scale
    digits = str(abs(number)).rjust(scale + 1, "0")
    text = digits[: len(digits) - scale] + ("." + digits[len(digits) - scale :] if scale else "")
    return "-" + text if number < 0 else text


def _position(field: Field, name: str) -> int:
    """The number of an element, from 1; 0 for the empty text that stands for no element."""
    # Splitting `allowed` removed the escapes of commas: remove them from the name as well.
    found = _positions(field.allowed).get(escaped_elem(name).replace("\\,", ","))
    if found is None:
        if name == "" and field.tidb_type == "ENUM":
            return 0
        raise DecodeError(f"member {field.name!r} has no element {name[:100]!r}")
    return found


@lru_cache(maxsize=1024)
def _positions(allowed: tuple[str, ...]) -> dict[str, int]:
    # Reversed, so that of equal names the first one keeps its number.
    return {name: number + 1 for number, name in reversed(list(enumerate(allowed)))}
