"""`tableChanges` of a DDL message: the table's definition after a DDL, in Debezium's terms.

Source: tiflow pkg/sink/codec/debezium/{codec,helper}.go. TiCDC parses the text of the DDL again, and takes
comment, default and precision of the columns in it from there; here they come from TiDB's TableInfo.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tidegate.codec.formats.json_text import iterator_float, raw_string
from tidegate.codec.formats.mysql_type import default_length, long_name
from tidegate.errors import Undecodable
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import Column
from tidegate.tidb import table_info

CREATE_SCHEMA, DROP_SCHEMA, CREATE_TABLE, DROP_TABLE, TRUNCATE_TABLE, RENAME_TABLE = 1, 2, 3, 4, 11, 14
_CREATED: Final = frozenset({CREATE_SCHEMA, CREATE_TABLE, 21, 25, 60})
_DROPPED: Final = frozenset({DROP_SCHEMA, DROP_TABLE, 8, 24, TRUNCATE_TABLE})
_TIMESTAMP, _TIME, _DATETIME, _DECIMAL, _FLOATS = 7, 11, 12, 246, (4, 5)
_ENUM, _SET, _YEAR, _BIT, _VECTOR = 247, 248, 13, 16, 225
_UNTYPED: Final = 0
_WITH_CHARSET: Final = frozenset({7, 11, 246, 254, 15, 252, 249, 250, 251, 247, 248})
_BARE: Final = frozenset({_YEAR, _BIT, 15, 254, _DECIMAL})
"""Types whose expression is only the name."""
_JDBC: Final = {
    1: -6, 2: 5, 9: 4, 3: 4, 8: -5, 4: 6, 5: 8, 0: 12, 246: 3, 13: 4, 10: 91, 14: 91, 12: 93, 7: 2014, 11: 92,
    16: -7, 247: 1, 248: 1, 245: 1111, 225: 1111, 15: 12, 253: 12, 254: 1,
    249: 12, 250: 12, 251: 12, 252: 12,
}  # fmt: skip
_ON_UPDATE_NOW, _AUTO_INCREMENT, _ZEROFILL = 8192, 512, 64


def of_event(event: DdlEvent) -> bytes:
    """The elements of the array; empty for a DDL of a schema, and for TRUNCATE."""
    if not event.table or event.action == TRUNCATE_TABLE:
        return b""
    return b'{"type":"%s","id":%s,"table":%s}' % (
        _kind(event.action),
        raw_string(_id(event).encode()),
        _table(event),
    )


def _kind(action: int) -> bytes:
    return b"CREATE" if action in _CREATED else b"DROP" if action in _DROPPED else b"ALTER"


def _id(event: DdlEvent) -> str:
    new, old = f'"{event.schema}"."{event.table}"', f'"{event.old_schema}"."{event.old_table}"'
    return f"{old},{new}" if event.action == RENAME_TABLE else new


def _table(event: DdlEvent) -> bytes:
    # For a dropped view this is its last definition.
    info = event.after or event.before
    if event.action == DROP_TABLE or info is None:
        return b"null"
    columns = [column for column in _columns(info, event.finished_ts) if column.state == table_info.PUBLIC]
    shown = b",".join(_column(column, at + 1, info) for at, column in enumerate(columns) if not column.hidden)
    names = b",".join(raw_string(name.encode()) for name in _primary_key(event, info))
    return b'{"defaultCharsetName":%s,"primaryKeyColumnNames":[%s],"columns":[%s],"comment":null}' % (
        raw_string(str(info.get("charset") or "").encode()),
        names,
        shown,
    )


def _columns(info: dict[str, Any], version: int) -> list[Column]:
    """All columns; those of a view have no type."""
    untyped = {entry["id"] for entry in info.get("cols") or [] if entry["type"]["Tp"] == _UNTYPED}
    entries = [
        entry | {"type": entry["type"] | {"Tp": 253}} if entry["id"] in untyped else entry
        for entry in info.get("cols") or []
    ]
    columns = table_info.every_column({"cols": entries}, version)
    return [replace(column, mysql_type=_UNTYPED) if column.id in untyped else column for column in columns]


def _primary_key(event: DdlEvent, info: dict[str, Any]) -> list[str]:
    """Names of the columns that TiCDC uses as the primary key: those of the handle key; none for a view."""
    try:
        table = table_info.table_schema(event.schema, info, event.finished_ts)
    except Undecodable:
        return []
    return [table.columns[at].name for at in table.handle_key]


def _column(column: Column, position: int, info: dict[str, Any]) -> bytes:
    name, expression = _type_names(column)
    charset, length, scale = _charset(column), _length(column), _scale(column)
    jdbc = _jdbc(column)
    automatic = bool(column.flag & _AUTO_INCREMENT) or bool(column.flag & _ON_UPDATE_NOW and jdbc == 2014)
    comment = next(c.get("comment") or "" for c in info["cols"] if c["id"] == column.id)
    members = [
        b'"name":' + raw_string(column.name.encode()),
        b'"jdbcType":%d,"nativeType":null' % jdbc,
        b'"comment":' + (raw_string(comment.encode()) if comment else b"null"),
        b'"defaultValueExpression":' + _default(column),
        b'"enumValues":' + _elements(column),
        b'"typeName":' + raw_string(name.encode()),
        b'"typeExpression":' + raw_string(expression.encode()),
        b'"charsetName":' + (raw_string(charset.encode()) if charset else b"null"),
        b'"length":' + (b"%d" % length if length != -1 else b"null"),
        b'"scale":' + (b"%d" % scale if scale != -1 else b"null"),
        b'"position":%d,"optional":%s' % (position, _bool(column.nullable)),
        b'"autoIncremented":%s,"generated":%s' % (_bool(automatic), _bool(automatic)),
    ]
    return b"{" + b",".join(members) + b"}"


def _bool(value: bool) -> bytes:
    return b"true" if value else b"false"


def _jdbc(column: Column) -> int:
    binary = bool(column.flag & 128)
    if binary and column.mysql_type in (249, 250, 251, 252):
        return 2004
    if binary and column.mysql_type in (15, 253, 254):
        return -2 if column.mysql_type == 254 else -3
    return _JDBC[column.mysql_type]


def _default(column: Column) -> bytes:
    default = column.default
    if default is None or default == "<nil>":
        return b"null"
    if isinstance(default, bytes) and column.mysql_type == _BIT:
        return raw_string(bits_text(default, column.flen).encode())
    if isinstance(default, bytes):
        return raw_string(default)
    if isinstance(default, str):
        # Debezium writes the epoch for a default that is computed when a row is inserted.
        now = default.upper() == "CURRENT_TIMESTAMP"
        return raw_string(b"1970-01-01 00:00:00" if now else default.encode())
    return iterator_float(float(default), single=False)


def bits_text(default: bytes, length: int) -> str:
    """A BIT's default as binary digits."""
    return f"{int.from_bytes(default, 'big'):0{max(length, 1)}b}"


def _elements(column: Column) -> bytes:
    if not column.elems:
        return b"null"
    return b"[" + b",".join(raw_string(f"'{name}'".encode()) for name in column.elems) + b"]"


def _charset(column: Column) -> str:
    return column.charset if column.charset != "binary" and column.mysql_type in _WITH_CHARSET else ""


def _type_names(column: Column) -> tuple[str, str]:
    """Name and expression of a column's type."""
    name = "UNSPECIFIED" if column.mysql_type == _UNTYPED else long_name(column).upper()
    if column.mysql_type in _BARE:
        return name, name
    suffix = " UNSIGNED ZEROFILL" if column.flag & _ZEROFILL else " UNSIGNED" if column.unsigned else ""
    return name + suffix, name + _digits(column) + suffix


def _digits(column: Column) -> str:
    length, decimals = default_length(column.mysql_type)
    shown = length if column.flen == -1 else column.flen
    if column.mysql_type == 5 and column.decimal not in (decimals, 0, -1):
        return f"({shown},{column.decimal})"
    if column.mysql_type == _VECTOR and column.flen != -1:
        return f"({column.flen})"
    return ""


def _length(column: Column) -> int:
    code, usual = column.mysql_type, default_length(column.mysql_type)[0]
    if code in (_TIMESTAMP, _TIME, _DATETIME):
        return column.decimal
    if code in (_DECIMAL, _YEAR):
        return column.flen
    if code == _SET:
        # As Debezium counts: one for each element and one for each comma between them.
        return 2 * len(column.elems) - 1
    if code == _ENUM:
        return 1
    if code in (1, 2, 3, 9) and column.unsigned:
        # The default display width has a place for the sign: int(11), but int(10) unsigned.
        usual -= 1
    measured = code in (_BIT, 15, 254, 253, _VECTOR, 1, 2, 3, 8, 9, *_FLOATS)
    return column.flen if measured and column.flen != usual else -1


def _scale(column: Column) -> int:
    return column.decimal if column.mysql_type in (_DECIMAL, *_FLOATS) else -1
