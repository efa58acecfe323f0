"""A `RowBlock` as plain row changes: for encoders that have no compiled form, for tests and for people.

A Python object per cell: thousands of rows a second, not millions.
"""

from __future__ import annotations

import ctypes
import struct
from datetime import UTC, tzinfo

import numpy as np

from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Kind, TableSchema
from tidegate.model.slots import DELETE, INSERT, NULL, Image, RowBlock
from tidegate.tidb import value
from tidegate.tidb.row import Stored

_POINTERS = frozenset({Kind.DECIMAL, Kind.STRING, Kind.BYTES, Kind.JSON, Kind.VECTOR})
_UNSIGNED = frozenset({Kind.UINT, Kind.ENUM, Kind.SET, Kind.BIT, Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})


def rows_of(block: RowBlock, time_zone: tzinfo = UTC) -> list[RowChange]:
    """The block's rows in order, what the plain mounter makes of the same entries."""
    return [
        RowChange(
            table=block.table,
            commit_ts=int(block.commit_ts[i]),
            start_ts=int(block.start_ts[i]),
            physical_id=int(block.physical_id[i]),
            handle=int(block.handle[i]),
            old=None if block.op[i] == INSERT else _values(block.table, block.old, i, time_zone),
            new=None if block.op[i] == DELETE else _values(block.table, block.new, i, time_zone),
        )
        for i in range(len(block))
    ]


def _values(table: TableSchema, image: Image, row: int, time_zone: tzinfo) -> tuple[Value, ...]:
    return tuple(
        value.present(column, stored_of(image, row, at, column.kind), time_zone)
        for at, column in enumerate(table.columns)
    )


def stored_of(image: Image, row: int, column: int, kind: Kind) -> Stored:
    """The stored value (`tidb.row`) in a slot; bytes are copied."""
    a, size = int(image.a[row, column]), int(image.l[row, column])
    if size == NULL:
        return None
    if kind in _POINTERS:
        return ctypes.string_at(a, size)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        number: float = struct.unpack("<d", struct.pack("<q", a))[0]
        return number
    return int(np.int64(a).view(np.uint64)) if kind in _UNSIGNED else a
