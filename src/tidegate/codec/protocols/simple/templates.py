"""The form of simple's JSON row messages for one table version. `bulk` decodes rows in Avro."""

from __future__ import annotations

import pyarrow as pa

from tidegate.codec.base import WireColumn
from tidegate.codec.decoding.assemble import RowKey
from tidegate.codec.decoding.template import CellForm, Pieces, Route, Template
from tidegate.codec.formats.json_text import std_string
from tidegate.codec.kernels import decode_kernels, template_kernels
from tidegate.codec.protocols.simple.definition import TIMESTAMP
from tidegate.codec.protocols.simple.message import OPERATIONS, timestamp_head
from tidegate.model.cells import DELETE, INSERT


def templates(key: RowKey) -> list[Template]:
    """Templates for rows without a checksum, and for rows whose producer found their checksum to match."""
    return [
        Template(key, ([], *(_pieces(key, word, summed) for word in OPERATIONS)), summed)
        for summed in (False, True)
    ]


def _pieces(key: RowKey, word: str, summed: bool) -> Pieces:
    op = OPERATIONS[word]
    names = std_string(key.schema.encode()), std_string(key.table.encode())
    before = b'{"version":1,"database":%s,"table":%s,"tableID":' % names
    found: Pieces = []
    assert key.version is not None, "rows name their table's version"
    before += b"%d" % (key.version.table_id if key.physical_id is None else key.physical_id)
    found += [
        (before + b',"type":"%s","commitTs":' % word.encode(), template_kernels.TIMESTAMP, 0),
        (b',"buildTs":', template_kernels.NUMBER, 0),
    ]
    before = b',"schemaVersion":%d' % key.version.version
    if summed:
        found.append((before + b',"checksum":{"version":', template_kernels.NUMBER, 0))
        found.append((b',"corrupted":false,"current":', template_kernels.CELL, 2 * len(key.columns)))
        found.append((b',"previous":', template_kernels.CELL, 2 * len(key.columns) + 1))
        before = b"}"
    order = sorted(range(len(key.columns)), key=lambda i: key.columns[i].name.encode())
    images = ((b"data", 0, op != DELETE), (b"old", len(key.columns), op != INSERT))
    for name, base, shown in images:
        if not shown:
            continue
        before += b',"%s":{' % name
        for i in order:
            column = key.columns[i]
            before += std_string(column.name.encode()) + b":"
            if column.mysql_type == TIMESTAMP:
                found.append((before, template_kernels.WRAPPED, base + i))
                found.append((timestamp_head(column.zone), template_kernels.WRAPPER, 0))
            else:
                found.append((before, template_kernels.CELL, base + i))
            before = b","
        before = b"}"
    return [*found, (before + b"}", template_kernels.END, op)]


ROUTE = Route(
    ((b'{"version":1,"database":', template_kernels.STRING), (b',"table":', template_kernels.STRING)),
    lambda key: (
        b'{"version":1,"database":%s,"table":%s,'
        % (std_string(key.schema.encode()), std_string(key.table.encode()))
    ),
)


def cells(column: WireColumn) -> CellForm:
    """All values are texts; bytes are in Base64."""
    return CellForm(True, decode_kernels.BASE64 if column.type == pa.binary() else decode_kernels.TEXT)
