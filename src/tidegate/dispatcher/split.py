"""Turns updates that change a unique key into a delete and an insert, as TiCDC does for queues.

See docs/formats/contract.md#split-updates.

The rows of such a transaction are then sorted delete < update < insert, so that one row frees a key before
another takes it. Runs before partitioning, because the two halves may go to different partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.dispatcher.kernels import changed_keys
from tidegate.model.cells import DELETE, INSERT, RowBlock, take
from tidegate.model.row import RowChange
from tidegate.model.schema import TableSchema
from tidegate.tidb.text import value_text

KEY_FLAGS: Final = 2 | 16
"""TiCDC's handle key and unique key flags."""


def key_columns(table: TableSchema) -> tuple[int, ...]:
    """Positions of the columns of any unique key whose value an update can change.

    An integer handle is not among them. It is the row's record key, which both images of an update have, and
    TiDB leaves it out of the row's value (pingcap/tidb `pkg/table/tables/tables.go`, `CanSkip`). The columns
    of a common handle are: texts that differ may have the same sort key, and then the same record key.
    """
    handle = table.handle_columns if table.pk_is_handle else ()
    return tuple(i for i, flag in enumerate(table.ticdc_flags) if flag & KEY_FLAGS and i not in handle)


def changes_key(row: RowChange) -> bool:
    """Whether a row is an update that changes the value of a unique key."""
    if row.old is None or row.new is None:
        return False
    for i in key_columns(row.table):
        old, new, kind = row.old[i], row.new[i], row.table.columns[i].kind
        if (old is None) != (new is None):
            return True
        if old is not None and new is not None and value_text(kind, old) != value_text(kind, new):
            return True
    return False


def split_rows(rows: Sequence[RowChange]) -> list[RowChange]:
    """The plain twin: splits rows of one table, transaction by transaction."""
    found: list[RowChange] = []
    for _, group in groupby(rows, key=lambda row: (row.commit_ts, row.start_ts)):
        transaction = list(group)
        if any(changes_key(row) for row in transaction):
            halves = [half for row in transaction for half in _halves(row)]
            # -1 for deletes, 0 for updates, 1 for inserts: a value is free before another row takes it.
            transaction = sorted(halves, key=lambda row: (row.old is None) - (row.new is None))
        found += transaction
    return found


def _halves(row: RowChange) -> list[RowChange]:
    return [replace(row, new=None), replace(row, old=None)] if changes_key(row) else [row]


class Part(StrEnum):
    """The part of a block that is sent. The last four are for a transaction with rows in several blocks."""

    SPLIT = "split"
    """Everything; each transaction is in one block."""
    WHOLE = "whole"
    """Everything, and no update is split."""
    OLD_HALVES = "old halves"
    """Only the deletes of updates that change a key."""
    UPDATES = "updates"
    """Everything except updates that change a key."""
    NEW_HALVES = "new halves"
    """Only the inserts of updates that change a key."""


def part_of(block: RowBlock, part: Part) -> tuple[RowBlock, int]:
    """A part of a block, and the number of updates in the block that change a key."""
    columns = key_columns(block.table)
    if part is Part.WHOLE or (not columns and part in (Part.SPLIT, Part.UPDATES)):
        return block, 0
    changed = changed_keys(block, columns)
    count = int(changed.sum())
    if part is Part.SPLIT:
        return (_split(block, changed) if count else block), count
    if part is Part.UPDATES:
        return (take(block, np.flatnonzero(~changed)) if count else block), count
    rows = np.flatnonzero(changed)
    # The halves of one update are apart: all old ones are sent first, so that one row frees a key before
    # another takes it.
    half = DELETE if part is Part.OLD_HALVES else INSERT
    return take(block, rows, np.full(count, half, block.op.dtype)), count


def split_block(block: RowBlock) -> RowBlock:
    """The block with such updates split; the same object if there are none."""
    return part_of(block, Part.SPLIT)[0]


def _split(block: RowBlock, split: npt.NDArray[np.bool_]) -> RowBlock:
    # A row that is split is there twice. The second copy becomes the insert.
    source = np.repeat(np.arange(len(block)), 1 + split)
    op = block.op[source]
    second = np.zeros(len(source), dtype=np.bool_)
    second[1:] = source[1:] == source[:-1]
    halved = split[source]
    op[halved] = np.where(second[halved], INSERT, DELETE)
    starts = np.ones(len(source), dtype=np.bool_)
    commit_ts, start_ts = block.commit_ts[source], block.start_ts[source]
    starts[1:] = (commit_ts[1:] != commit_ts[:-1]) | (start_ts[1:] != start_ts[:-1])
    transaction = np.cumsum(starts)
    # A transaction with a split update is sorted with all its rows: a plain insert may take the value that
    # the update frees. Other transactions keep their order.
    sorted_ones = np.isin(transaction, transaction[halved])
    # 0 for deletes, 1 for updates, 2 for inserts. The number of the row keeps their order among equals.
    rank = np.where(sorted_ones, DELETE - op.astype(np.int64), 0)
    order = np.lexsort((np.arange(len(source)), rank, transaction))
    return take(block, source[order], op[order])
