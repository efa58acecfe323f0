"""Decoded rows of one table as Arrow columns. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Changes of one version of one table, in the order of the entries from which they were decoded.

    `new` and `old` have one column per column of the table, null in rows whose change has no such image.
    """

    table: TableSchema
    op: npt.NDArray[np.uint8]
    """INSERT, UPDATE or DELETE (`model.cells`)."""
    commit_ts: npt.NDArray[np.uint64]
    position: npt.NDArray[np.int64]
    """As `RowBlock.position`: row numbers in the block of entries that was decoded."""
    new: pa.RecordBatch
    old: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.op)
