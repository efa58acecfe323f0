"""Avro schemas of a table as TiCDC writes them: names, types, defaults, and which branch is null.

    {"type":"record","name":TABLE,"namespace":NS.SCHEMA,"fields":[{"default":null,"name":"a","type":["null",
      {"type":"int","connect.parameters":{"tidb_type":"INT"}}]}]}

One text for the key (the handle key's columns) and one for the value. Source: tiflow
`pkg/sink/codec/avro/avro.go`. Plain Python, because it runs once per table version.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final
from weakref import WeakKeyDictionary

from tidegate.codec.base import CHECKSUMS_ON, NEW, CodecOptions, one_of, only_new
from tidegate.codec.formats.json_text import json_float, std_string
from tidegate.codec.formats.mysql_type import is_binary
from tidegate.codec.schema_book import LOCAL, SchemaBook, Subject
from tidegate.errors import InvalidInput
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb.table_info import PUBLIC, every_column

PRECISE: Final = "precise"
LONG: Final = "long"
STRING: Final = "string"
EXTENSION: Final = (
    ("_tidb_op", "string", b'""'),
    ("_tidb_commit_ts", "long", b"0"),
    ("_tidb_commit_physical_time", "long", b"0"),
)
"""The members that enable-tidb-extension adds to values: name, Avro type, default."""
CHECKSUMS: Final = (
    ("_tidb_row_level_checksum", "string", b'""'),
    ("_tidb_corrupted", "boolean", b"false"),
    ("_tidb_checksum_version", "int", b"0"),
)
"""The members that integrity-check-level = correctness adds after these."""
BEFORE: Final = "_ticdc_before"
"""The member of a value, before those of the extension, that holds the old row."""
_TIDB_TYPE: Final = {
    Kind.FLOAT: ("float", "FLOAT"), Kind.DOUBLE: ("double", "DOUBLE"), Kind.BIT: ("bytes", "BIT"),
    Kind.ENUM: ("string", "ENUM"), Kind.SET: ("string", "SET"), Kind.JSON: ("string", "JSON"),
    Kind.DATE: ("string", "DATE"), Kind.DATETIME: ("string", "DATETIME"), Kind.YEAR: ("int", "YEAR"),
    Kind.TIMESTAMP: ("string", "TIMESTAMP"), Kind.TIME: ("string", "TIME"),
    Kind.VECTOR: ("string", "TiDBVECTORFloat32"),
}  # fmt: skip
_INT32, _INT64 = 3, 8
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroOptions(CodecOptions):
    """TiCDC's avro."""

    protocol: ClassVar[str] = "avro"
    enable_tidb_extension: bool = False
    """Whether every value has operation and commit ts."""
    avro_enable_watermark: bool = False
    """With the extension: DDL and watermark messages, which no other Avro reader understands."""
    avro_include_before_value: bool = only_new()
    """Whether updates and deletes contain the old row. Then a delete is not a tombstone."""
    avro_decimal_handling_mode: str = one_of(PRECISE, STRING)
    avro_bigint_unsigned_handling_mode: str = one_of(LONG, STRING)
    integrity_check_level: str = one_of("none", CHECKSUMS_ON)
    topic: str = field(default="", metadata={"placed": True})
    namespace: str = field(default="default", metadata={"placed": True})
    """The changefeed's namespace."""
    book: SchemaBook = field(default=LOCAL, repr=False, metadata={"placed": True})

    @property
    def has_checksums(self) -> bool:
        """Whether values contain their row's checksum, and have columns in the order it is computed in."""
        return self.enable_tidb_extension and self.integrity_check_level == CHECKSUMS_ON

    @property
    def extension(self) -> tuple[tuple[str, str, bytes], ...]:
        """The members of values after the columns: name, Avro type, default.

        If deletes contain the whole row, at least the operation is sent: without it a delete would look like
        an insert.
        """
        if not self.enable_tidb_extension:
            return EXTENSION[:1] if self.avro_include_before_value else ()
        return (*EXTENSION, *CHECKSUMS) if self.has_checksums else EXTENSION

    @property
    def has_marks(self) -> bool:
        """Whether there are DDL and watermark messages, and deletes contain their commit ts."""
        return self.enable_tidb_extension and self.avro_enable_watermark


def sanitized(name: str) -> str:
    """A name as Avro allows it: `_` replaces every other character, and precedes a digit at the start."""
    if name[:1].isascii() and name[:1].isdigit():
        return "_" + _NOT_A_NAME.sub("_", name)
    return _NOT_A_NAME.sub("_", name)


def escaped_elem(elem: str) -> str:
    """An element of an enum or set, as the list `allowed` contains it."""
    return elem.replace(",", "\\,").replace("\\'", "'").replace("''", "'")


def is_null_first(column: Column, options: AvroOptions) -> bool:
    """Whether branch 0 of a nullable column's union is null: without a default, and always for a decimal."""
    # The default of a union must be of its first branch (Avro specification, Unions).
    return _is_logical(column, options) or _default(column, options) is None


_made: WeakKeyDictionary[TableSchema, dict[AvroOptions, tuple[Subject | None, Subject]]] = WeakKeyDictionary()
MAX_MADE: Final = 16
"""How many sets of options the schemas of one table version are kept for."""


def subjects(table: TableSchema, options: AvroOptions) -> tuple[Subject | None, Subject]:
    """The schemas of keys (None: the table has no handle key) and of values; made once per table version.

    Raises InvalidInput if two columns have the same name in Avro.
    """
    made = _made.setdefault(table, {})
    if options not in made:
        if len(made) >= MAX_MADE:
            made.clear()
        made[options] = _subjects(table, options)
    return made[options]


def refused_delete(table: TableSchema, options: AvroOptions) -> InvalidInput:
    """The error for a delete in a table without a key: its message would identify no row."""
    kind = "primary" if options.flavour == NEW else "handle"
    other = "" if options.flavour == NEW else " or a unique key without NULLs"
    return InvalidInput(
        "a delete cannot be sent",
        where=f"table {table.name}",
        why=f"protocol avro sends the {kind} key of a delete, and the table has no {kind} key",
        fix=f"give the table a primary key{other}, or use another protocol",
    )


def _subjects(table: TableSchema, options: AvroOptions) -> tuple[Subject | None, Subject]:
    values = [
        member if isinstance(member, Column) else table.columns[member]
        for member in value_members(table, options)
    ]
    names = [sanitized(column.name) for column in values]
    names += [BEFORE] if options.avro_include_before_value else []
    names += [name for name, _, _ in options.extension]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidInput(
            "two columns have one name in Avro",
            where=f"table {table.name}",
            why=f"'_' replaces what Avro does not allow, and then these names are equal: {', '.join(twice)}",
            fix="rename a column, leave one out by [[sink.column-selectors]], or use another protocol",
        )
    topic = options.topic.replace(".", "_")
    keys = [table.columns[i] for i in key_columns(table, options)]
    value = _record(table, values, options, options.extension, has_before=options.avro_include_before_value)
    key = _record(table, keys, options) if keys else None
    return (
        Subject(f"{topic}-key", key) if key is not None else None,
        Subject(f"{topic}-value", value),
    )


def key_columns(table: TableSchema, options: AvroOptions) -> list[int]:
    """Positions of the key's columns, in the table's order. In the new flavour they are the primary key's."""
    return sorted(table.primary_key if options.flavour == NEW else table.handle_key)


def value_members(table: TableSchema, options: AvroOptions) -> list[int | Column]:
    """The columns of a value: in the table's order, or with checksums in the order of their ids.

    A reader sums the columns in the order of the message, and the checksum is over the order of the ids. Most
    members are positions. The new flavour also has the virtual columns, as `Column`: they are always NULL.
    """
    members: list[int | Column] = [*range(len(table.columns))]
    if options.flavour == NEW:
        members += _virtual(table)

    def place(member: int | Column) -> int:
        column = member if isinstance(member, Column) else table.columns[member]
        return column.id if options.has_checksums else column.offset

    return sorted(members, key=place)


def _virtual(table: TableSchema) -> list[Column]:
    """The virtual columns that may be NULL; none if columns of the table were selected."""
    public = [column for column in every_column(table.info, table.version) if column.state == PUBLIC]
    virtual = [column for column in public if column.generated and not column.stored]
    if len(public) - len(virtual) != len(table.columns):
        return []
    return [column for column in virtual if column.nullable]


def needs_of_checksums(options: AvroOptions) -> str:
    """The requirements of checksums that these options do not meet, in words; empty: none."""
    lacking = [
        option
        for option, given in (
            ("enable-tidb-extension=true", options.enable_tidb_extension),
            ("avro-decimal-handling-mode=string", options.avro_decimal_handling_mode == STRING),
            (
                "avro-bigint-unsigned-handling-mode=string",
                options.avro_bigint_unsigned_handling_mode == STRING,
            ),
        )
        if not given
    ]
    if not lacking:
        return ""
    return (
        "a checksum travels in the extension, and is over the texts of decimals and the digits of unsigned "
        f"bigints; {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing"
    )


def _record(
    table: TableSchema,
    columns: Sequence[Column],
    options: AvroOptions,
    extension: Sequence[tuple[str, str, bytes]] = (),
    *,
    has_before: bool = False,
) -> str:
    fields = [_field(column, options) for column in columns]
    if has_before:
        before = _text(table, b"_before", fields, options)
        fields.append(b'{"default":null,"name":"%s","type":["null",%s]}' % (BEFORE.encode(), before))
    fields += [
        b'{"default":%s,"name":"%s","type":"%s"}' % (default, name.encode(), of_type.encode())
        for name, of_type, default in extension
    ]
    return _text(table, b"", fields, options).decode()


def _text(table: TableSchema, suffix: bytes, fields: Sequence[bytes], options: AvroOptions) -> bytes:
    """A record's schema, whose name is the table's and a suffix."""
    namespace = f"{sanitized(options.namespace)}.{sanitized(table.schema)}"
    head = b'{"type":"record","name":"%s%s","namespace":"%s","fields":[' % (
        sanitized(table.table).encode(),
        suffix,
        namespace.encode(),
    )
    return head + b",".join(fields) + b"]}"


def _field(column: Column, options: AvroOptions) -> bytes:
    name, of_type = sanitized(column.name).encode(), _type(column, options)
    default = None if _is_logical(column, options) else _default(column, options)
    if column.nullable:
        union = b'["null",%s]' % of_type if default is None else b'[%s,"null"]' % of_type
        return b'{"default":%s,"name":"%s","type":%s}' % (default or b"null", name, union)
    if default is None:
        return b'{"name":"%s","type":%s}' % (name, of_type)
    return b'{"default":%s,"name":"%s","type":%s}' % (default, name, of_type)


def _is_logical(column: Column, options: AvroOptions) -> bool:
    return column.kind is Kind.DECIMAL and options.avro_decimal_handling_mode == PRECISE


def avro_type(column: Column, options: AvroOptions) -> tuple[str, str]:
    """(Avro's type, TiDB's type) of a column's values."""
    match column.kind:
        case Kind.INT | Kind.UINT:
            sign = " UNSIGNED" if column.unsigned else ""
            if column.mysql_type == _INT64:
                as_text = column.unsigned and options.avro_bigint_unsigned_handling_mode == STRING
                return "string" if as_text else "long", "BIGINT" + sign
            # Avro's int is signed with 32 bits. Smaller unsigned integers fit, this one does not.
            return "long" if column.mysql_type == _INT32 and column.unsigned else "int", "INT" + sign
        case Kind.DECIMAL:
            return "bytes" if options.avro_decimal_handling_mode == PRECISE else "string", "DECIMAL"
        case Kind.STRING | Kind.BYTES:
            return ("bytes", "BLOB") if is_binary(column) else ("string", "TEXT")
    return _TIDB_TYPE[column.kind]


def _type(column: Column, options: AvroOptions) -> bytes:
    of_type, tidb_type = avro_type(column, options)
    extra = b""
    if column.kind is Kind.BIT:
        extra = b'"length":"%d",' % column.flen
    elif column.kind in (Kind.ENUM, Kind.SET):
        extra = b'"allowed":%s,' % std_string(",".join(map(escaped_elem, column.elems)).encode())
    text = b'{"type":"%s","connect.parameters":{%s"tidb_type":"%s"}' % (
        of_type.encode(),
        extra,
        tidb_type.encode(),
    )
    if _is_logical(column, options):
        # DECIMAL without digits is DECIMAL(10, 0).
        size = (column.flen, max(column.decimal, 0)) if column.flen > 0 else (10, 0)
        text += b',"logicalType":"decimal","precision":%d,"scale":%d' % size
    return text + b"}"


def _default(column: Column, options: AvroOptions) -> bytes | None:
    """The default in JSON; None if there is none, or if it is an expression, whose value is not known."""
    default = column.default
    if default is None or column.default_is_expr:
        return None
    of_type, _ = avro_type(column, options)
    data = default if isinstance(default, bytes) else str(default).encode()
    match of_type:
        case "int" | "long":
            number = int(data)
            # An Avro long is signed, so a default from 2**63 on is written as values are: negative.
            return b"%d" % (number - (1 << 64) if number >= 1 << 63 else number)
        case "float" | "double":
            return json_float(float(data), single=of_type == "float")
        case "bytes":
            return b'"' + base64.b64encode(data) + b'"'
    return std_string(data)
