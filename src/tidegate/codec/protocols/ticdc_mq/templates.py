"""The form of ticdc-mq's row messages for one table."""

from __future__ import annotations

import pyarrow as pa

from tidegate.codec.base import WireColumn
from tidegate.codec.decoding.assemble import INTEGER_TYPES, RowKey
from tidegate.codec.decoding.template import CellForm, Pieces, Route, Template
from tidegate.codec.kernels import decode_kernels, template_kernels
from tidegate.codec.protocols.ticdc_mq.plain import (
    DELETE_MEMBER,
    FLOATS,
    ROW,
    UPDATE_MEMBER,
    cell_end,
    cell_head,
    key_tail,
)
from tidegate.model.cells import DELETE, INSERT


def templates(key: RowKey) -> list[Template]:
    """The key, and the value of these columns as an update and as a delete."""
    meta: Pieces = [
        (b'{"ts":', template_kernels.TIMESTAMP, 0),
        (key_tail(ROW, key.schema, key.table), template_kernels.END, 0),
    ]

    def image(name: str, base: int, op: int) -> Pieces:
        found: Pieces = []
        before = b'{"%s":{' % name.encode()
        for i, column in enumerate(key.columns):
            found.append((before + cell_head(column.name, column.type_name), template_kernels.CELL, base + i))
            before = cell_end(column.key) + b","
        return [*found, (before.removesuffix(b",") + b"}}", template_kernels.END, op)]

    updates = image(UPDATE_MEMBER, 0, INSERT)
    return [Template(key, (meta, updates, image(DELETE_MEMBER, len(key.columns), DELETE), []))]


ROUTE = Route(
    (
        (b'{"ts":', template_kernels.NUMBER),
        (b',"type":"%s","schema":' % ROW.encode(), template_kernels.STRING),
        (b',"table":', template_kernels.STRING),
    ),
    lambda key: b'{"ts":0' + key_tail(ROW, key.schema, key.table),
    in_key=True,
)


def cells(column: WireColumn) -> CellForm:
    """Numbers are without quotes, bytes in Base64."""
    if column.mysql_type in INTEGER_TYPES or column.mysql_type in FLOATS:
        return CellForm(False, decode_kernels.TEXT)
    return CellForm(True, decode_kernels.BASE64 if column.type == pa.binary() else decode_kernels.TEXT)
