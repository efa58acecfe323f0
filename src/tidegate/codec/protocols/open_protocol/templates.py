"""The form of open-protocol's row messages for one table, in both flavours of TiCDC."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from tidegate.codec.base import WireColumn
from tidegate.codec.decoding.assemble import BLOB_TYPES, RowKey
from tidegate.codec.decoding.template import CellForm, Members, Pieces, Route, Template
from tidegate.codec.formats.json_text import raw_string, std_string
from tidegate.codec.kernels import decode_kernels, template_kernels
from tidegate.model.cells import DELETE, INSERT, UPDATE


def templates(key: RowKey) -> list[Template]:
    """The layouts of both flavours: columns in the order of the first message; `u` and maybe `p`, or `d`.

    Each flavour escapes names in its own way. A table without names that need escapes has one layout for
    both.
    """
    names = [key.schema, key.table, *(column.name for column in key.columns)]
    flavours = [std_string]
    if any(std_string(name.encode()) != raw_string(name.encode()) for name in names):
        flavours.append(raw_string)
    return [_template(key, string) for string in flavours]


def _template(key: RowKey, string: Callable[[bytes], bytes]) -> Template:
    head = b',"scm":' + string(key.schema.encode()) if key.schema else b""
    head += b',"tbl":' + string(key.table.encode()) if key.table else b""
    ends: Pieces = [(b',"t":1}', template_kernels.END, 0)]
    named: Pieces = [(head + b',"t":1}', template_kernels.END, 0)]
    if key.physical_id is not None:
        partition = b',"ptn":%d' % key.physical_id
        ends = [(partition + b',"t":1}', template_kernels.END, 0)]
        # The new flavour puts the partition last.
        named = [
            (head + partition + b',"t":1}', template_kernels.END, 0),
            (head + b',"t":1' + partition + b"}", template_kernels.END, 0),
        ]
    # The names are in every way through, because a message may be tried with the template of the one before.
    # Without them it would be taken for a row of that table.
    meta: Pieces = [
        (b'{"ts":', template_kernels.TIMESTAMP, 0),
        *named,
        (head + b',"rid":', template_kernels.NUMBER, 0),
        *ends,
    ]
    n = len(key.columns)

    def heads() -> Iterator[bytes]:
        for column in key.columns:
            mark = b',"h":true' if column.key else b""
            name = string(column.name.encode())
            yield b'%s:{"t":%d%s,"f":%d,"v":' % (name, column.mysql_type, mark, column.flag or 0)

    def image(opening: bytes, base: int) -> Pieces:
        found: Pieces = []
        for i, head in enumerate(heads()):
            found.append((opening + head, template_kernels.CELL, base + i))
            opening = b"},"
        return found

    end = b"}}}"
    old = [(head, template_kernels.CELL, n + i) for i, head in enumerate(heads())]
    upserts = [
        *image(b'{"u":{', 0),
        (end, template_kernels.END, INSERT),
        # The new architecture writes an empty `p` if nothing changed.
        (b'}},"p":{}}', template_kernels.END, INSERT),
        (b'}},"p":{', template_kernels.MEMBERS, Members(old, tail=b"}", partial=True, shift=n)),
        (b"}", template_kernels.END, UPDATE),
    ]
    deletes = [*image(b'{"d":{', n), (end, template_kernels.END, DELETE)]
    return Template(key, (meta, upserts, deletes, []))


ROUTE = Route(
    (
        (b'{"ts":', template_kernels.NUMBER),
        (b',"scm":', template_kernels.STRING),
        (b',"tbl":', template_kernels.STRING),
    ),
    lambda key: (
        b'{"ts":0,"scm":%s,"tbl":%s,' % (std_string(key.schema.encode()), std_string(key.table.encode()))
    ),
    in_key=True,
)


def cells(column: WireColumn) -> CellForm:
    """How messages contain the values of a column (docs/formats/open-protocol.md#values)."""
    blob = column.mysql_type in BLOB_TYPES
    if column.type == pa.binary():
        return CellForm(True, decode_kernels.BASE64 if blob else decode_kernels.QUOTED)
    is_text = column.type == pa.string()
    return CellForm(is_text, decode_kernels.BASE64_TEXT if blob else decode_kernels.TEXT)
