"""The blocks of rows of one span that wait in memory until they are resolved, or written as a run."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.eventstore import kernels, segment
from tidegate.model import timestamp
from tidegate.model.timestamp import Timestamp

_FIXED_BYTES: Final = 29
"""Bytes of a row without its keys and values: two timestamps, the operation, three offsets."""


@dataclass(slots=True)
class Block:
    """A block that holds rows above the resolved ts, some of which may already be sealed."""

    batch: pa.RecordBatch
    line: kernels.I64
    min_ts: Timestamp
    max_ts: Timestamp
    rows: int
    bytes: int

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Block:
        """The block for a batch that has just arrived."""
        low, high = kernels.commit_range(batch)
        size = segment.data_bytes(batch) + _FIXED_BYTES * batch.num_rows
        return cls(batch, kernels.describe(batch), low, high, batch.num_rows, size)


class Waiting:
    """The blocks of a span that wait in memory. Thread-safe: rows are appended while others are sealed.

    A block keeps its memory while at least half of its rows wait. Then the rows that still wait are copied,
    so that a few late rows do not hold a large block.
    """

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._lock = threading.Lock()  # held briefly

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        with self._lock:
            return sum(p.bytes for p in self._blocks)

    def add(self, block: Block) -> None:
        """Hold a block."""
        with self._lock:
            self._blocks.append(block)

    def clear(self) -> int:
        """Forget all blocks; returns their bytes."""
        with self._lock:
            freed = sum(p.bytes for p in self._blocks)
            self._blocks.clear()
        return freed

    def upto(self, ts: Timestamp) -> list[Block]:
        """The blocks with rows <= ts."""
        if not self._blocks:  # a block appended meanwhile has rows above `ts`, or waits for the next call
            return []
        with self._lock:
            return [p for p in self._blocks if p.min_ts <= ts]

    def forget(self, chosen: list[Block], taken: kernels.I64, upto: Timestamp) -> int:
        """Drop blocks without rows above `upto`, copy the rest of those that are mostly taken.

        `taken`: the rows taken of each chosen block. Returns by how much the bytes have changed.
        """
        gone, fresh, freed = set(), [], 0
        for held, count in zip(chosen, taken.tolist(), strict=True):
            held.rows -= count
            # Each copy is less than half of its block, so a row is copied only a few times.
            if held.rows * 2 < held.batch.num_rows:
                gone.add(id(held))
                freed += held.bytes
            if 0 < held.rows * 2 < held.batch.num_rows:
                fresh += [Block.of(batch) for batch in _beyond(held, upto)]
        # By identity, because `append` may have added blocks since `upto` chose these.
        with self._lock:
            # By identity, because `append` may have added blocks since `upto` chose these.
            self._blocks = [p for p in self._blocks if id(p) not in gone] + fresh
        return sum(p.bytes for p in fresh) - freed


def _beyond(held: Block, after: Timestamp) -> list[pa.RecordBatch]:
    """Copies of a block's rows above `after`."""
    table = kernels.table_of([held.line])
    refs, _, _ = kernels.order_rows(table, after, timestamp.MAX, np.zeros(1, dtype=np.int64))
    return list(kernels.take_all(table, refs, kernels.allocate))
