"""The encode plan of a table for ticdc-mq; the plain twin is `plain.TicdcMqEncoder`."""

from __future__ import annotations

from tidegate.codec.decoding.assemble import HANDLE_KEY_FLAG
from tidegate.codec.formats.mysql_type import is_binary
from tidegate.codec.kernels import piece_kernels
from tidegate.codec.plan import (
    NEW,
    NUMBERS,
    OLD,
    OPERATIONS,
    EncodePlan,
    Shape,
    Writer,
    bare,
    quoted,
    text_shape,
)
from tidegate.codec.protocols.ticdc_mq.plain import (
    DELETE_MEMBER,
    ROW,
    UPDATE_MEMBER,
    MqOptions,
    cell_end,
    cell_head,
    deleted_columns,
    key_tail,
)
from tidegate.codec.protocols.ticdc_mq.types import type_name
from tidegate.model.cells import DELETE
from tidegate.model.schema import Column, Kind, TableSchema


def plan(table: TableSchema, options: MqOptions, digits: int) -> EncodePlan:
    """The plan of a table version. It depends neither on the options nor on the build time."""
    write, shapes = Writer(), [_shape(column) for column in table.columns]
    write.text(b'{"ts":')
    write.number(piece_kernels.COMMIT_TS)
    write.text(key_tail(ROW, table.schema, table.table))
    write.end()
    for op in OPERATIONS:
        deleted = op == DELETE
        write.text(b'{"%s":{' % (DELETE_MEMBER if deleted else UPDATE_MEMBER).encode())
        for number, i in enumerate(deleted_columns(table) if deleted else range(len(table.columns))):
            column = table.columns[i]
            write.text((b"," if number else b"") + cell_head(column.name, type_name(column)))
            write.cell(shapes[i], i, OLD if deleted else NEW)
            write.text(cell_end(bool(table.ticdc_flags[i] & HANDLE_KEY_FLAG)))
        write.text(b"}}")
        write.end()
    return write.plan(table, shapes)


def _shape(column: Column) -> Shape:
    """How a column's values are written: numbers without quotes, bytes in Base64, others as TiDB's text."""
    if column.kind in NUMBERS:
        return bare(NUMBERS[column.kind])
    if column.kind is Kind.FLOAT or column.kind is Kind.DOUBLE:
        return bare(piece_kernels.FLOAT_JSON if column.kind is Kind.FLOAT else piece_kernels.DOUBLE_JSON)
    return text_shape(column, std=1) or quoted(
        piece_kernels.BASE64 if is_binary(column) else piece_kernels.TEXT, 1
    )
