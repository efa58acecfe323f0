"""Decoded rows of one table, as the kernels pass them on: two words per cell, row-major.

`words[i, c]` and `sizes[i, c]` describe column c of row i as `Kind` says. Bytes are not copied: a cell
holds the *address* of the bytes inside the block's own buffers (values, keys, a table's defaults), which
`RowBlock.owners` keeps alive. So a RowBlock must never be pickled and must not outlive its task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.model.schema import TableSchema

NULL: Final = -1
"""The size of SQL NULL. Fixed-width kinds have size 0."""

CHECKSUM: Final = np.dtype(
    [
        ("current", "<u4"),
        ("previous", "<u4"),
        ("version", "u1"),
        ("corrupted", "u1"),
        ("known", "u1"),
        ("spare", "u1"),
    ]
)
"""A row's `model.row.RowChecksum`, as `RowBlock.checksums` holds it; `known` 0: the row has none."""

Taken: TypeAlias = Callable[[int], npt.NDArray[np.uint8]]
"""Gives memory for that many bytes and `kernel.PAD` more, with any contents."""

INSERT: Final = 1
UPDATE: Final = 2
DELETE: Final = 3


@dataclass(frozen=True, slots=True)
class Image:
    """One side of many rows: `words` int64[n, stride] and `sizes` int32[n, stride], C-contiguous.

    stride >= number of columns, and is never a power of two, which would cause cache conflicts. Only the
    first `len(table.columns)` columns have a meaning. Rows whose change has no such image hold garbage.
    """

    words: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Extent:
    """How many bytes the values of rows have, known before any cell is looked at."""

    largest: int
    """No image of any row has more bytes in all its cells together."""
    total: int
    """About the bytes of all rows."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Decoded changes of one version of one table, in the order of the entries they came from."""

    table: TableSchema
    op: npt.NDArray[np.uint8]
    """INSERT, UPDATE or DELETE per row."""
    commit_ts: npt.NDArray[np.uint64]
    start_ts: npt.NDArray[np.uint64]
    physical_id: npt.NDArray[np.int64]
    """The table id in the record key: the partition's, or the table's own."""
    handle: npt.NDArray[np.int64]
    """Int handle or _tidb_rowid; 0 for common handles."""
    position: npt.NDArray[np.int64]
    """Row number in the block of entries it was decoded from, to restore the order across tables."""
    new: Image
    """Valid for INSERT and UPDATE."""
    old: Image
    """Valid for UPDATE and DELETE."""
    owners: tuple[Any, ...]
    """The objects that own the memory to which the addresses point."""
    checksums: npt.NDArray[np.void] | None = None
    """CHECKSUM[n] for a protocol that sends checksums; None: no row has one, and no memory is used."""
    row_keys: npt.NDArray[np.int64] | None = None
    """int64[n, 2] for a protocol that sends row keys: address and size of each row's key in TiKV."""
    extent: Extent | None = None
    """None: unknown, so that an encoder adds up the sizes of the cells."""

    def __len__(self) -> int:
        return len(self.op)


def take(block: RowBlock, rows: npt.NDArray[np.int64], op: npt.NDArray[np.uint8] | None = None) -> RowBlock:
    """The rows numbered in `rows`, in that order. A row may occur twice; `op` replaces the operations."""
    extent = block.extent
    if extent is not None:
        # Rows differ, but the total is only a guess.
        extent = replace(extent, total=extent.total * len(rows) // max(len(block), 1))
    return replace(
        block,
        op=block.op[rows] if op is None else op,
        commit_ts=block.commit_ts[rows],
        start_ts=block.start_ts[rows],
        physical_id=block.physical_id[rows],
        handle=block.handle[rows],
        position=block.position[rows],
        new=Image(block.new.words[rows], block.new.sizes[rows]),
        old=Image(block.old.words[rows], block.old.sizes[rows]),
        checksums=None if block.checksums is None else block.checksums[rows],
        row_keys=None if block.row_keys is None else block.row_keys[rows],
        extent=extent,
    )


def stride_for(columns: int) -> int:
    """Cells per row for that many columns: at least one, never a power of two above 2."""
    stride = max(columns, 1)
    return stride + 1 if stride > 2 and stride & (stride - 1) == 0 else stride
