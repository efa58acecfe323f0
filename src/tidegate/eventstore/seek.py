"""Positions inside sorted blocks: the place of a row, and the rows behind a place."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.block import OP_DELETE
from tidegate.model.position import DELETE_CLASS, INSERT_CLASS, UPDATE_CLASS, Place


def place_of(block: pa.RecordBatch, row: int) -> tuple[int, int, int, bytes]:
    """The place of one row of a block in the store's order (`order.order_key`)."""
    commit_ts, start_ts, op, key, _, old = (block.column(i)[row] for i in range(6))
    if op.as_py() == OP_DELETE:
        kind = DELETE_CLASS
    else:
        kind = UPDATE_CLASS if old.as_buffer().size else INSERT_CLASS
    return commit_ts.as_py(), start_ts.as_py(), kind, key.as_py()


def beyond(blocks: Iterable[pa.RecordBatch], past: Place) -> Iterator[pa.RecordBatch]:
    """The rows of sorted blocks that come after a place; blocks are sliced, not copied."""
    blocks = iter(blocks)
    for block in blocks:
        # The last row decides for the whole block, because blocks are sorted.
        if place_of(block, block.num_rows - 1) <= past:
            continue
        first = bisect_right(range(block.num_rows), past, key=lambda row: place_of(block, row))
        yield block.slice(first)
        # All later blocks come after the place, so no row of them is compared.
        yield from blocks


def classes(block: pa.RecordBatch) -> npt.NDArray[np.int8]:
    """The class of operation of every row."""
    found = np.where(np.diff(_offsets(block, 5)) > 0, UPDATE_CLASS, INSERT_CLASS).astype(np.int8)
    found[block.column(2).to_numpy() == OP_DELETE] = DELETE_CLASS
    return found


def sizes(block: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The bytes of key, value and old value of every row."""
    total = np.zeros(block.num_rows, np.int64)
    for column in (3, 4, 5):
        total += np.diff(_offsets(block, column))
    return total


def _offsets(block: pa.RecordBatch, column: int) -> npt.NDArray[np.int32]:
    array = block.column(column)
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]
