"""Cuts the rows of a table version into tiles, which pass all stages one after another. Pure.

The cells of both images of 12,000 rows of 44 columns are 14 MB, and those of 60,000 rows 70 MB: more than
caches hold. If all are mounted before the first is encoded, each cell comes back from memory. A tile is small
enough to stay in a cache that cores share, and the memory of its cells serves for the next one. It is not so
small that the fixed cost of a call shows: 0.1 ms for all stages together, and several times as much where the
kernels have driven Python's own code out of the caches (benchmarks/README.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.model.cells import Image, Taken

TILE_BYTES: Final = 8 << 20
"""The cells of a tile's two images have at most so many bytes, unless one transaction needs more."""
_CELL_BYTES: Final = 8 + 4
"""A word and a size."""

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Tiling:
    """How rows are cut into tiles.

    transactions: no transaction is cut, because its rows may have to be put in another order. taken: gives
    memory for cells, which may be that of the tile before. most_bytes: of a tile's cells.
    """

    transactions: bool
    taken: Taken
    most_bytes: int


def tiles(
    rows: Int64s, stride: int, tiling: Tiling, commit_ts: Uint64s, start_ts: Uint64s
) -> Iterator[Int64s]:
    """The rows, in their order, in tiles; none is empty.

    `rows`: positions in a block, all of one table version with `stride` cells a row. `commit_ts`, `start_ts`:
    those of all rows of the block.
    """
    most = max(tiling.most_bytes // (2 * _CELL_BYTES * stride), 1)
    if len(rows) <= most:
        yield rows
        return
    if tiling.transactions:
        commits, starts = commit_ts[rows], start_ts[rows]
        changes = (commits[1:] != commits[:-1]) | (starts[1:] != starts[:-1])
        ends = np.append(np.flatnonzero(changes) + 1, len(rows))
    else:
        ends = np.arange(1, len(rows) + 1)
    first = 0
    while first < len(rows):
        # The last end that fits; if none does, the first one, after a transaction that is larger than a tile.
        fitting = int(np.searchsorted(ends, first + most, side="right")) - 1
        if fitting < 0 or ends[fitting] <= first:
            fitting += 1
        end = int(ends[fitting])
        yield rows[first:end]
        first = end


def empty_images(count: int, stride: int, taken: Taken) -> tuple[Image, Image]:
    """Cells of new and old images for so many rows, not initialised, in memory of `taken`."""
    cells = count * stride
    memory = taken(2 * _CELL_BYTES * cells)
    words = memory[: 16 * cells].view(np.int64).reshape(2, count, stride)
    sizes = memory[16 * cells : 24 * cells].view(np.int32).reshape(2, count, stride)
    return Image(words[0], sizes[0]), Image(words[1], sizes[1])
