"""The form of canal-json's row messages for one table."""

from __future__ import annotations

import pyarrow as pa

from tidegate.codec.base import WireColumn
from tidegate.codec.decoding.assemble import RowKey
from tidegate.codec.decoding.template import CellForm, Members, Pieces, Route, Template
from tidegate.codec.formats.json_text import easy_string
from tidegate.codec.kernels import decode_kernels, template_kernels
from tidegate.codec.protocols.canal_json.plain import ROW_KEY
from tidegate.model.cells import DELETE, INSERT, UPDATE


def templates(key: RowKey) -> list[Template]:
    """Templates with and without the TiDB extension, which may have the row's key.

    `mysqlType` is a map in Go, so each message has its members in a random order. `old` may lack columns that
    did not change.
    """
    names, n = [easy_string(column.name.encode()) for column in key.columns], len(key.columns)
    types = [easy_string(column.type_name.encode()) for column in key.columns]
    typed = Members(
        [
            (name + b":" + of_type, template_kernels.TEXT_ALONE, 0)
            for name, of_type in zip(names, types, strict=True)
        ]
    )
    old = Members(
        [(name + b":", template_kernels.CELL, n + i) for i, name in enumerate(names)], partial=True, shift=n
    )
    return [
        Template(
            key, ([], *(_pieces(key, names, typed, old, op, extended) for op in (INSERT, UPDATE, DELETE)))
        )
        for extended in (True, False)
    ]


def _pieces(
    key: RowKey, names: list[bytes], typed: Members, former: Members, op: int, extended: bool
) -> Pieces:
    n = len(names)
    keys = b",".join(name for name, column in zip(names, key.columns, strict=True) if column.key)
    database, table = easy_string(key.schema.encode()), easy_string(key.table.encode())
    text = b'{"id":0,"database":%s,"table":%s,"pkNames":[%s],"isDdl":false,"type":"%s","es":' % (
        database,
        table,
        keys,
        (b"", b"INSERT", b"UPDATE", b"DELETE")[op],
    )
    found: Pieces = [
        (text, template_kernels.NUMBER if extended else template_kernels.MILLISECONDS, 0),
        (b',"ts":', template_kernels.NUMBER, 0),
    ]
    opening = b',"sql":"","sqlType":{'
    for name in names:
        found.append((opening + name + b":", template_kernels.NUMBER, 0))
        opening = b","
    found.append((b'},"mysqlType":{', template_kernels.MEMBERS, typed))
    if op == UPDATE:
        found.append((b',"old":[{', template_kernels.MEMBERS, former))
    opening = b'],"data":[{' if op == UPDATE else b',"old":null,"data":[{'
    for i, name in enumerate(names):
        found.append((opening + name + b":", template_kernels.CELL, (n if op == DELETE else 0) + i))
        opening = b","
    if extended:
        found.append((b'}],"_tidb":{"commitTs":', template_kernels.TIMESTAMP, 0))
        found.append((ROW_KEY[:-1], template_kernels.OPTIONAL_STRING, 0))
    return [*found, (b"}}" if extended else b"}]}", template_kernels.END, op)]


ROUTE = Route(
    ((b'{"id":0,"database":', template_kernels.STRING), (b',"table":', template_kernels.STRING)),
    lambda key: (
        b'{"id":0,"database":%s,"table":%s,'
        % (easy_string(key.schema.encode()), easy_string(key.table.encode()))
    ),
)


def cells(column: WireColumn) -> CellForm:
    """All values are texts; bytes are written as Latin-1."""
    return CellForm(True, decode_kernels.LATIN1 if column.type == pa.binary() else decode_kernels.TEXT)
