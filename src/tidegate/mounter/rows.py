"""Converts a `RowBlock` to plain row changes: for encoders without a compiled form, for tests and for people.

It makes a Python object for each cell, so it handles thousands of rows per second, not millions.
"""

from __future__ import annotations

import ctypes
from datetime import UTC, tzinfo

from tidegate.model.cells import DELETE, INSERT, Image, RowBlock
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import TableSchema
from tidegate.tidb import value
from tidegate.tidb.cell_values import stored_of


def rows_of(block: RowBlock, time_zone: tzinfo = UTC) -> list[RowChange]:
    """The block's rows in order. They equal the results of the plain mounter for the same entries."""
    return [
        RowChange(
            table=block.table,
            commit_ts=int(block.commit_ts[i]),
            start_ts=int(block.start_ts[i]),
            physical_id=int(block.physical_id[i]),
            handle=int(block.handle[i]),
            old=None if block.op[i] == INSERT else _values(block.table, block.old, i, time_zone),
            new=None if block.op[i] == DELETE else _values(block.table, block.new, i, time_zone),
            row_key=b"" if block.row_keys is None else ctypes.string_at(*block.row_keys[i].tolist()),
        )
        for i in range(len(block))
    ]


def _values(table: TableSchema, image: Image, row: int, time_zone: tzinfo) -> tuple[Value, ...]:
    return tuple(
        value.present(column, stored_of(image, row, at, column.kind), time_zone)
        for at, column in enumerate(table.columns)
    )
