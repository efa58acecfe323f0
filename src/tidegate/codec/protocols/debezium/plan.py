"""The encode plan of a table for debezium; the plain twin is `plain.DebeziumEncoder`."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.codec.formats.json_text import raw_string
from tidegate.codec.formats.mysql_type import is_binary
from tidegate.codec.kernels import connect_kernels as connect
from tidegate.codec.kernels import piece_kernels
from tidegate.codec.plan import NEW, OLD, OPERATIONS, EncodePlan, Shape, Writer
from tidegate.codec.protocols.debezium import schema
from tidegate.codec.protocols.debezium.plain import (
    AFTER_TS,
    HEAD,
    OPENINGS,
    START_TS,
    DebeziumOptions,
    after_ms,
    null_json,
)
from tidegate.model.cells import DELETE, UPDATE
from tidegate.model.schema import Column, Kind, TableSchema

_BARE = {
    Kind.INT: piece_kernels.INT,
    Kind.UINT: piece_kernels.INT,
    Kind.YEAR: piece_kernels.INT,
    Kind.FLOAT: connect.FLOAT_ITERATOR,
    Kind.DOUBLE: connect.DOUBLE_ITERATOR,
    Kind.DECIMAL: connect.DECIMAL_DOUBLE,
    Kind.TIME: connect.MICROS,
}
"""Forms of the kinds that are plain numbers. An unsigned number is written as the signed one of its bits."""


def plan(table: TableSchema, options: DebeziumOptions, digits: int) -> EncodePlan:
    """The plan of a table version, with space for a build time of `digits` digits."""
    write, shapes = Writer(), [_shape(column) for column in table.columns]
    bare = options.debezium_disable_schema
    extended = options.enable_tidb_extension
    stated = b"" if bare else schema.of_value(table, extended, options.row_id_fields)
    value_end = b"}}" + stated + b"}"
    write.text(b'{"payload":{')
    # For a key the kernel uses the row's newest image, whichever image the piece names.
    _image(write, table, shapes, schema.key_columns(table), NEW)
    write.text(b"}" + (b"" if bare else schema.of_key(table, extended)) + b"}")
    write.end()
    everything = range(len(table.columns))
    for op in OPERATIONS:
        write.text(HEAD)
        write.number(piece_kernels.MILLISECONDS)
        write.text(after_ms(table.schema, table.table))
        write.number(piece_kernels.COMMIT_TS)
        if options.debezium_include_start_ts:
            write.text(START_TS)
            write.number(piece_kernels.START_TS)
        write.text(AFTER_TS)
        write.stamp(digits)
        write.text(OPENINGS[op])
        if op == UPDATE:
            if options.debezium_output_old_value:
                write.text(b'"before":{')
                _image(write, table, shapes, everything, OLD)
                write.text(b"},")
            write.text(b'"after":{')
        _image(write, table, shapes, everything, OLD if op == DELETE else NEW)
        write.text(value_end)
        write.end()
    return write.plan(table, shapes, utc=True)


def _image(
    write: Writer, table: TableSchema, shapes: Sequence[Shape], shown: Sequence[int], image: int
) -> None:
    for number, i in enumerate(shown):
        write.text((b"," if number else b"") + raw_string(table.columns[i].name.encode()) + b":")
        write.cell(shapes[i], i, image)


def _shape(column: Column) -> Shape:
    """How a column's values are written."""
    null = null_json(column)
    if column.kind in _BARE:
        return Shape(_BARE[column.kind], null=null)
    unknown = connect.NULLABLE if column.nullable else 0
    match column.kind:
        case Kind.DATE:
            return Shape(connect.DAYS, unknown, null=null)
        case Kind.DATETIME:
            unit = connect.MICROSECONDS if column.decimal > 3 else 0
            return Shape(connect.EPOCH, unknown | unit, null=null)
        case Kind.TIMESTAMP:
            return Shape(connect.ZONED, max(column.decimal, 0), b'"', b'Z"', null)
        case Kind.BIT if column.flen == 1:
            return Shape(connect.BOOL, null=null)
        case Kind.BIT:
            return Shape(connect.BITS, column.flen, b'"', b'"', null)
        case Kind.ENUM | Kind.SET:
            names = tuple(raw_string(name.encode())[1:-1] for name in column.elems)
            form = connect.NAME if column.kind is Kind.ENUM else connect.NAMES
            return Shape(form, 0, b'"', b'"', null, names)
        case Kind.JSON | Kind.VECTOR:
            form = connect.RAW_JSON if column.kind is Kind.JSON else piece_kernels.VECTOR
            return Shape(form, 0, b'"', b'"', null)
    return Shape(piece_kernels.BASE64 if is_binary(column) else connect.RAW_TEXT, 0, b'"', b'"', null)
