"""A table version in the form that the row kernels read, made once for each.

`mounter.decode` gives it to `tidb.kernels.row.decode_rows`. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tidegate.errors import Undecodable
from tidegate.kernel import address, buffer
from tidegate.model.cells import NULL, stride_for
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb import value
from tidegate.tidb.kernels.row_context import FROM_DEFAULT, NO_DEFAULT, PLAN_WORDS
from tidegate.tidb.kernels.value import Form
from tidegate.tidb.row import Stored

Int64s = npt.NDArray[np.int64]

FORMS: Final = {
    Kind.INT: Form.SIGNED,
    Kind.YEAR: Form.SIGNED,
    Kind.TIME: Form.NANOSECONDS,
    Kind.UINT: Form.UNSIGNED,
    Kind.ENUM: Form.UNSIGNED,
    Kind.SET: Form.UNSIGNED,
    Kind.BIT: Form.UNSIGNED,
    Kind.DATE: Form.PACKED,
    Kind.DATETIME: Form.PACKED,
    Kind.TIMESTAMP: Form.PACKED,
    Kind.FLOAT: Form.FLOAT,
    Kind.DOUBLE: Form.FLOAT,
    Kind.DECIMAL: Form.DECIMAL,
    Kind.STRING: Form.BYTES,
    Kind.BYTES: Form.BYTES,
    Kind.JSON: Form.JSON,
    Kind.VECTOR: Form.VECTOR,
}


POINTERS: Final = (Form.BYTES, Form.DECIMAL, Form.JSON, Form.VECTOR)
"""Forms whose cells hold an address."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodePlan:
    """A table version in the form for `tidb.kernels.row.decode_rows`."""

    lines: Int64s
    """int64[columns, PLAN_WORDS], in ascending order of column id."""
    datums: int
    """The number of datums of a common handle. 0 for an integer handle."""
    stride: int
    defaults: npt.NDArray[np.uint8]
    """The bytes that default values point to."""


_plans: WeakKeyDictionary[TableSchema, dict[bool, DecodePlan]] = WeakKeyDictionary()


def plan_of(table: TableSchema, zoned: bool) -> DecodePlan:
    """The plan of a table version, which is made once. zoned: TIMESTAMPs will be converted to
    another zone.
    """
    plans = _plans.setdefault(table, {})
    if zoned not in plans:
        plans[zoned] = _make_plan(table, zoned)
    return plans[zoned]


def _make_plan(table: TableSchema, zoned: bool) -> DecodePlan:
    pool = BytePool()
    lines = np.zeros((len(table.columns), PLAN_WORDS), dtype=np.int64)
    for at, column in enumerate(table.columns):
        form = FORMS[column.kind]
        if zoned and column.kind is Kind.TIMESTAMP:
            form = Form.PACKED_ZONED
        if at in table.handle_columns:
            lines[at, :6] = column.id, at, form, table.handle_columns.index(at), 0, NULL
        else:
            lines[at, :6] = column.id, at, form, *_default(column, pool)
    data, moved = pool.finish()
    # Offsets become addresses only now, because the pool moves while it grows.
    points = (lines[:, 3] == FROM_DEFAULT) & (lines[:, 5] != NULL) & np.isin(lines[:, 2], POINTERS)
    lines[points, 4] += moved
    # The kernels merge the lines with the ids of a row, which ascend.
    order = np.argsort(lines[:, 0], kind="stable")
    datums = len(table.handle_columns) if table.is_common_handle else 0
    return DecodePlan(np.ascontiguousarray(lines[order]), datums, stride_for(len(table.columns)), data)


class BytePool:
    """Collects bytes to which cells will point, before their address is known."""

    def __init__(self) -> None:
        self.data = bytearray(8)  # kernels read a decimal's words whole, from up to three bytes before

    def cell(self, stored: Stored) -> tuple[int, int]:
        """The word and the size of a cell. For bytes, the word is the offset in the pool, not the address."""
        match stored:
            case None:
                return 0, NULL
            case int():
                return stored - (1 << 64) if stored >= 1 << 63 else stored, 0
            case float():
                return int(np.float64(stored).view(np.int64)), 0
            case bytes():
                at = len(self.data)
                self.data += stored
                return at, len(stored)

    def finish(self) -> tuple[npt.NDArray[np.uint8], int]:
        """The bytes, and the address to which offsets are relative."""
        held = buffer(len(self.data))
        held[: len(self.data)] = np.frombuffer(self.data, dtype=np.uint8)
        return held, address(held)


def _default(column: Column, pool: BytePool) -> tuple[int, int, int]:
    try:
        return FROM_DEFAULT, *pool.cell(value.missing(column))
    # Only rows that lack the column are faulty then; all others have a value of their own.
    except Undecodable:
        return NO_DEFAULT, 0, NULL
