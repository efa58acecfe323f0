"""The Kafka Connect schemas of debezium messages, byte for byte as TiCDC's classic encoder writes them.

    key     {"payload":{},"schema":{"type":"struct","name":"default.db.t.Key","optional":false,"fields":[]}}
    value   {"payload":{},"schema":{..,"name":"default.db.t.Envelope",..}}

The members of a column's field: [tidb_type], type, optional, [name, version, parameters], field, [default].
The constants below are the same for every table. Source: tiflow pkg/sink/codec/debezium/codec.go.
"""

from __future__ import annotations

import base64
import re
from typing import Final

from tidegate.codec.formats.json_text import iterator_float, raw_string
from tidegate.codec.formats.mysql_type import long_name
from tidegate.codec.protocols.debezium import moments
from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb import table_info
from tidegate.tidb.types import temporal

CLUSTER: Final = "default"
"""TiCDC's default cluster id: the name of the source, and the beginning of the names of schemas."""

_UNSAFE: Final = re.compile("[^A-Za-z0-9_]")
_UNSAFE_IN_TABLE: Final = re.compile("[^A-Za-z0-9_.]")


def _field(of_type: str, optional: bool, name: str) -> bytes:
    text = f'{{"type":"{of_type}","optional":{str(optional).lower()},"field":"{name}"}}'
    return text.encode()


SNAPSHOT: Final = (
    b'{"type":"string","optional":true,"name":"io.debezium.data.Enum","version":1,'
    b'"parameters":{"allowed":"true,last,false,incremental"},"default":"false","field":"snapshot"}'
)
SOURCE_HEAD: Final = b'{"type":"struct","fields":[' + b",".join(
    [
        _field("string", False, "version"),
        _field("string", False, "connector"),
        _field("string", False, "name"),
        _field("int64", False, "ts_ms"),
        SNAPSHOT,
        _field("string", False, "db"),
        _field("string", True, "sequence"),
        _field("string", True, "table"),
        _field("int64", False, "server_id"),
        _field("string", True, "gtid"),
        _field("string", False, "file"),
        _field("int64", False, "pos"),
        _field("int32", False, "row"),
        _field("int64", True, "thread"),
        _field("string", True, "query"),
    ]
)
IDS: Final = b"," + _field("int64", False, "commit_ts") + b"," + _field("string", False, "cluster_id")
"""Fields of the source that the new architecture's schemas have with the TiDB extension; payloads always
do."""
START_TS: Final = b"," + _field("int64", False, "start_ts")
"""The field after these, if rows have a start ts."""
SOURCE_END: Final = b'],"optional":false,"name":"io.debezium.connector.mysql.Source","field":"source"}'
_TRANSACTION: Final = (
    b'{"type":"struct","fields":['
    + b",".join(
        [
            _field("string", False, "id"),
            _field("int64", False, "total_order"),
            _field("int64", False, "data_collection_order"),
        ]
    )
    + b'],"optional":true,"name":"event.block","version":1,"field":"transaction"}'
)
BEHIND_SOURCE: Final = (
    b"," + b",".join([_field("string", False, "op"), _field("int64", True, "ts_ms"), _TRANSACTION]) + b"]}"
)
"""From the end of the source's field to the end of the schema of a row or a watermark."""
WATERMARK_KEY: Final = (
    b',"schema":{"type":"struct","name":"%s.watermark.Key","optional":false,"fields":[]}' % CLUSTER.encode()
)
_WATERMARK: Final = (
    b',"schema":{"type":"struct","optional":false,"name":"%s.watermark.Envelope","version":1,"fields":['
    % CLUSTER.encode()
)
DDL_KEY: Final = (
    b',"schema":{"type":"struct","name":"io.debezium.connector.mysql.SchemaChangeKey","optional":false,'
    b'"version":1,"fields":[{"field":"databaseName","optional":false,"type":"string"}]}'
)


def _member(name: str, optional: bool, of_type: str) -> bytes:
    """A field as the schema of a DDL writes it: with its name first."""
    return f'{{"field":"{name}","optional":{str(optional).lower()},"type":"{of_type}"'.encode()


def _array(name: str, optional: bool, items: bytes) -> bytes:
    return _member(name, optional, "array") + b',"items":{' + items + b"}}"


def _struct(name: str, members: list[bytes]) -> bytes:
    """The items of an array of structs."""
    head = f'"name":"io.debezium.connector.schema.{name}","optional":false,"type":"struct","version":1'
    return head.encode() + b',"fields":[' + b",".join(members) + b"]"


_STRINGS: Final = b'"type":"string","optional":false'
_COLUMN: Final = _struct(
    "Column",
    [
        _member("name", False, "string") + b"}",
        _member("jdbcType", False, "int32") + b"}",
        _member("nativeType", True, "int32") + b"}",
        _member("typeName", False, "string") + b"}",
        _member("typeExpression", True, "string") + b"}",
        _member("charsetName", True, "string") + b"}",
        _member("length", True, "int32") + b"}",
        _member("scale", True, "int32") + b"}",
        _member("position", False, "int32") + b"}",
        _member("optional", True, "boolean") + b"}",
        _member("autoIncremented", True, "boolean") + b"}",
        _member("generated", True, "boolean") + b"}",
        _member("comment", True, "string") + b"}",
        _member("defaultValueExpression", True, "string") + b"}",
        _array("enumValues", True, _STRINGS),
    ],
)
_CHANGE: Final = _struct(
    "Change",
    [
        _member("type", False, "string") + b"}",
        _member("id", False, "string") + b"}",
        _member("table", True, "struct")
        + b',"name":"io.debezium.connector.schema.Table","version":1,"fields":['
        + b",".join(
            [
                _member("defaultCharsetName", True, "string") + b"}",
                _array("primaryKeyColumnNames", True, _STRINGS),
                _array("columns", False, _COLUMN),
                _member("comment", True, "string") + b"}",
            ]
        )
        + b"]}",
    ],
)
_DDL: Final = (
    b',"schema":{"optional":false,"type":"struct","version":1,'
    b'"name":"io.debezium.connector.mysql.SchemaChangeValue","fields":['
)
_BEHIND_DDL: Final = (
    b","
    + b",".join(
        [
            _member("ts_ms", False, "int64") + b"}",
            _member("databaseName", True, "string") + b"}",
            _member("schemaName", True, "string") + b"}",
            _member("ddl", True, "string") + b"}",
            _array("tableChanges", False, _CHANGE),
        ]
    )
    + b"]}"
)


# --- names


def _safe(name: str) -> str:
    """A name as a part of an Avro name: underscores replace other characters, one for each of their bytes."""
    if not name:
        return name
    first = name[0] if re.match("[A-Za-z_]", name) else "_" + (name[0] if name[0] in "0123456789" else "")
    return first + _UNSAFE.sub(lambda found: "_" * len(found.group().encode()), name[1:])


def prefix(schema: str, table: str) -> bytes:
    """The beginning of the names of a table's schemas."""
    safe_table = _UNSAFE_IN_TABLE.sub(lambda found: "_" * len(found.group().encode()), table)
    return f"{_safe(CLUSTER)}.{_safe(schema)}.{safe_table}".encode()


# --- columns

_INTEGERS: Final = {1: "int16", 2: "int16", 9: "int32", 3: "int32", 8: "int64"}
_UNSIGNED: Final = {2: "int32", 3: "int64"}
"""Unsigned integers that need a wider type than signed ones; TiCDC has no wider type for bigint."""
_NAMED: Final = {
    Kind.DATE: ("int32", "io.debezium.time.Date"),
    Kind.TIMESTAMP: ("string", "io.debezium.time.ZonedTimestamp"),
    Kind.TIME: ("int64", "io.debezium.time.MicroTime"),
    Kind.JSON: ("string", "io.debezium.data.Json"),
    Kind.YEAR: ("int32", "io.debezium.time.Year"),
}


def of_column(column: Column, extended: bool) -> bytes:
    """The field of a column; `extended`: whether it has `tidb_type`."""
    of_type, named = _type(column)
    shown = b'{"tidb_type":%s,' % raw_string(tidb_type(column).encode()) if extended else b"{"
    shown += b'"type":"%s","optional":%s' % (of_type, b"true" if column.nullable else b"false")
    shown += named + b',"field":' + raw_string(column.name.encode())
    default = _default(column)
    return shown + (b"" if default is None else b',"default":' + default) + b"}"


def tidb_type(column: Column) -> str:
    """A column's `tidb_type`: never zerofill, and decimals never unsigned."""
    signs = column.kind in (Kind.INT, Kind.UINT, Kind.FLOAT, Kind.DOUBLE)
    return long_name(column) + (" unsigned" if signs and column.unsigned else "")


def _type(column: Column) -> tuple[bytes, bytes]:
    """The Connect type, and the members that name it."""
    if column.kind in _NAMED:
        of_type, name = _NAMED[column.kind]
        return of_type.encode(), f',"name":"{name}","version":1'.encode()
    match column.kind:
        case Kind.BIT if column.flen == 1:
            return b"boolean", b""
        case Kind.BIT:
            return b"bytes", _parameters("io.debezium.data.Bits", "length", str(column.flen))
        case Kind.ENUM:
            allowed = ",".join(_escaped(name) for name in column.elems)
            return b"string", _parameters("io.debezium.data.Enum", "allowed", allowed)
        case Kind.SET:
            return b"string", _parameters("io.debezium.data.EnumSet", "allowed", ",".join(column.elems))
        case Kind.DATETIME:
            unit = "MicroTimestamp" if column.decimal > 3 else "Timestamp"
            return b"int64", f',"name":"io.debezium.time.{unit}","version":1'.encode()
        case Kind.VECTOR:
            return b"string", b',"name":"io.debezium.data.TiDBVectorFloat32"'
        case Kind.FLOAT:
            return (b"float" if column.decimal == -1 else b"double"), b""
        case Kind.DOUBLE | Kind.DECIMAL:
            return b"double", b""
        case Kind.INT | Kind.UINT:
            wide = _UNSIGNED if column.unsigned else {}
            return wide.get(column.mysql_type, _INTEGERS[column.mysql_type]).encode(), b""
    return b"string", b""


def _parameters(name: str, parameter: str, value: str) -> bytes:
    return b',"name":"%s","version":1,"parameters":{"%s":%s}' % (
        name.encode(),
        parameter.encode(),
        raw_string(value.encode()),
    )


def _escaped(name: str) -> str:
    """An element of an enum in the list of elements, as Debezium's own DDL parser returns it."""
    return name.replace(",", "\\,").replace("\\'", "'").replace("''", "'")


# --- defaults


def default_bits(column: Column) -> int:
    """The default of a BIT column."""
    default = column.default
    return int.from_bytes(default if isinstance(default, bytes) else str(default).encode(), "big")


def _default(column: Column) -> bytes | None:
    """The default in a field; None if TiCDC writes none."""
    default = column.default
    if default is None:
        return None
    if column.kind is Kind.BIT:
        return bits_json(column, default_bits(column))
    if isinstance(default, bytes):
        return raw_string(default)
    if not isinstance(default, str):
        return None
    if column.kind in (Kind.STRING, Kind.BYTES, Kind.ENUM, Kind.SET, Kind.JSON, Kind.VECTOR):
        return raw_string(default.encode())
    try:
        return _computed(column, default)
    except (ValueError, InvalidInput, Undecodable):
        return None


def _computed(column: Column, default: str) -> bytes | None:
    """The default of a number or of a date or time."""
    match column.kind:
        case Kind.DATE:
            days = moments.days(temporal.parse(default))
            return b"%d" % days if days is not None else _zero(column)
        case Kind.DATETIME:
            if default.upper() == "CURRENT_TIMESTAMP":
                return b"0"
            number = moments.epoch(temporal.parse(default), column.decimal)
            return b"%d" % number if number is not None else _zero(column)
        case Kind.TIMESTAMP:
            return _timestamp(column, default)
        case Kind.TIME:
            return b"%d" % (temporal.parse_duration(default) // 1000)
        case Kind.YEAR:
            year = float(default)
            return iterator_float(year + (2000 if year < 70 else 1900 if year < 100 else 0), single=False)
    return iterator_float(float(default), single=False)


def _timestamp(column: Column, default: str) -> bytes | None:
    zero = None if column.nullable else b'"%s"' % moments.EPOCH
    if default.upper() == "CURRENT_TIMESTAMP":
        return zero
    parts = temporal.parse(default)
    return b'"%s"' % moments.zoned(parts, column.decimal) if any(parts) else zero


def _zero(column: Column) -> bytes | None:
    return None if column.nullable else b"0"


def value_of_default(column: Column) -> bytes | None:
    """The JSON that TiCDC writes for NULL in a column with a default; None if it has no default.

    It has the form of the default in the schema, except for bytes and for `CURRENT_TIMESTAMP` of a TIMESTAMP.
    """
    default = column.default
    if default is None or column.kind is Kind.BIT:
        return _default(column)
    if column.kind in (Kind.INT, Kind.UINT):
        return _integer(str(default))
    if column.kind in (Kind.STRING, Kind.BYTES) and column.charset == "binary":
        data = default if isinstance(default, bytes) else str(default).encode()
        return b'"' + base64.b64encode(data) + b'"'
    return _default(column)


def _integer(default: str) -> bytes | None:
    """The default of an integer, as the signed number of its 64 bits; None if the text is no number."""
    try:
        value = int(default)
    except ValueError:
        return None
    return b"%d" % (value - (1 << 64) if value >= 1 << 63 else value)


def bits_json(column: Column, value: int) -> bytes:
    """A value of a BIT column: a boolean, or its bytes, the lowest first."""
    if column.flen == 1:
        return b"true" if value else b"false"
    return b'"' + base64.b64encode(value.to_bytes(8, "little")[: (column.flen + 7) // 8]) + b'"'


# --- messages


def of_source(stated: bytes) -> bytes:
    """The field of the source; `stated`: its fields in addition to Debezium's own."""
    return SOURCE_HEAD + stated + SOURCE_END


def of_watermark(stated: bytes) -> bytes:
    """The member `schema` of a watermark's value, with the comma before it; `stated`: see `of_source`."""
    return _WATERMARK + of_source(stated) + BEHIND_SOURCE


def of_ddl(stated: bytes) -> bytes:
    """The member `schema` of a DDL's value, with the comma before it."""
    return _DDL + of_source(stated) + _BEHIND_DDL


def of_key(table: TableSchema, extended: bool) -> bytes:
    """The member `schema` of a row's key, with the comma before it."""
    fields = b",".join(of_column(table.columns[i], extended) for i in key_columns(table))
    return key_schema(prefix(table.schema, table.table), fields)


def key_schema(name: bytes, fields: bytes) -> bytes:
    """The member `schema` of a row's key, from the prefix of names and the fields of the columns."""
    return b',"schema":{"type":"struct","name":"%s.Key","optional":false,"fields":[%s]}' % (name, fields)


def of_value(table: TableSchema, extended: bool, stated: bytes) -> bytes:
    """The member `schema` of a row's value, with the comma before it; `stated`: see `of_source`."""
    fields = b",".join(of_column(column, extended) for column in (*table.columns, *_virtual(table)))
    return value_schema(prefix(table.schema, table.table), fields) + stated + SOURCE_END + BEHIND_SOURCE


def _virtual(table: TableSchema) -> list[Column]:
    """Virtual generated columns: they have fields after those of all other columns, and no value."""
    columns = table_info.every_column(table.info, table.version)
    return [column for column in columns if column.state == table_info.PUBLIC and not column.visible]


def value_schema(name: bytes, fields: bytes) -> bytes:
    """The beginning of `of_value`, up to the fields of the source that are not always there."""
    images = b",".join(
        b'{"type":"struct","optional":true,"name":"%s.Value","field":"%s","fields":[%s]}'
        % (name, image, fields)
        for image in (b"before", b"after")
    )
    head = b',"schema":{"type":"struct","optional":false,"name":"%s.Envelope","version":1,"fields":[' % name
    return head + images + b"," + SOURCE_HEAD


def key_columns(table: TableSchema) -> list[int]:
    """The columns of a key: those of the handle key, in the table's order."""
    return sorted(table.handle_key)
