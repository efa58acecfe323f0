"""Classic TiCDC's changes of a row before it compares checksums: its known defects, modelled.

It sums the columns' values encoded again, not the bytes that were stored: FLOAT through 32 bits, BIT through
as many bytes as the column is wide, JSON through its text, which has no dates and no unsigned integers. So it
overlooks damage in the bits that are lost, and accuses healthy JSON. A verdict of its own is accepted only
where it is exactly what follows from that (tiflow `cdc/entry/mounter.go:verifyRawBytesChecksum`).
"""

from __future__ import annotations

from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb import row
from tidegate.tidb.types import float as floats
from tidegate.tidb.types import json


def encoded_again(table: TableSchema, data: bytes) -> bytes:
    """The row value that classic TiCDC sums, with the checksum it carried."""
    fields = row.split(data)
    columns = {column.id: column for column in table.columns}
    cells = []
    for column_id, cell in fields.cells.items():
        assert cell is None or isinstance(cell, bytes), "only v2 rows carry checksums"
        column = columns.get(column_id)
        again = cell if cell is None or column is None else _again(column, cell)
        cells.append((column_id, Kind.BYTES, again))
    bare = row.encode_v2(cells)
    if fields.checksum is None:
        return bare
    size = 5 if fields.checksum.extra is None else 9
    return bytes([bare[0], bare[1] | row.CHECKSUM]) + bare[2:] + data[-size:]


def _again(column: Column, cell: bytes) -> bytes:
    stored = row.from_bytes(cell, column.kind)
    match column.kind, stored:
        case Kind.FLOAT, float(value):
            return row.to_bytes(floats.to_float32(value), column.kind)
        case Kind.BIT, int(value):
            return row.to_bytes(value & (1 << (column.flen + 7) // 8 * 8) - 1, column.kind)
        case Kind.JSON, _:
            return json.encode(json.decode(cell))
    return cell
