"""Which rows of a block a changefeed leaves out.

The order is that of TiCDC: transactions by start ts, then operations, then expressions. Expressions are not
computed for rows that are left out already, so such rows cannot cause errors. The row-wise twin is `ignores`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tidegate.errors import Fatal, InvalidInput
from tidegate.filter.expression import plain, vector
from tidegate.filter.expression.cells import Cells
from tidegate.filter.expression.typed import Beyond, Typed, Uncomputable
from tidegate.filter.rules import NEW, Condition, TableRules
from tidegate.model.cells import DELETE, INSERT, UPDATE, RowBlock, take
from tidegate.model.row import RowChange
from tidegate.model.schema import Kind, TableSchema
from tidegate.mounter.rows import rows_of
from tidegate.tidb.types import temporal

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


def ignores(change: RowChange, rules: TableRules, start_ts: Collection[int] = ()) -> bool:
    """Whether a row is left out. Raises Fatal if an expression cannot be computed for it."""
    op = INSERT if change.is_insert else DELETE if change.is_delete else UPDATE
    if change.start_ts in start_ts or op in rules.operations:
        return True
    if any(_holds(condition, change) for condition in rules.conditions if condition.expression.op == op):
        return True
    if op != UPDATE:
        return False
    assert change.old is not None
    assert change.new is not None
    return any(all(change.old[at] == change.new[at] for at in watched) for watched in rules.watched)


def _holds(condition: Condition, change: RowChange) -> bool:
    """Whether a condition is true for a row, so that the row is left out."""
    node = _fitting(condition, change.table)
    values = change.new if condition.expression.image == NEW else change.old
    columns = change.table.columns
    assert values is not None
    row = [plain.inner(column, value) for column, value in zip(columns, values, strict=True)]
    try:
        return plain.is_true(plain.evaluate(node, row, columns), node)
    except Uncomputable as error:
        raise Fatal(
            "[CDC:ErrFailedToFilterDML]a filter expression cannot be computed for a row: "
            + condition.expression.text[:200],
            where=f"{condition.where}, table {change.table.name}, commit ts {change.commit_ts}",
            why=error.why,
            fix="change the expression so that it can be computed for every row of the table",
        ) from None


def _fitting(condition: Condition, table: TableSchema) -> Typed:
    """The bound expression. Raises Fatal if the table has changed so that it does not fit any more."""
    try:
        return condition.node(table)
    except InvalidInput as error:
        raise Fatal(error.what, where=error.where, why=error.why, fix=error.fix) from None


def ignored(
    block: RowBlock, rules: TableRules, start_ts: Int64s | None = None, time_zone: str = "UTC"
) -> Bools:
    """Which rows of a block are left out: bool[n]. `start_ts`: transactions to leave out."""
    out = np.zeros(len(block), np.bool_)
    if start_ts is not None:
        out |= np.isin(block.start_ts.view(np.int64), start_ts)
    for op in rules.operations:
        out |= block.op == op
    images: dict[tuple[int, str], tuple[Int64s, Cells]] = {}
    for condition in rules.conditions:
        key = condition.expression.op, condition.expression.image
        if key not in images:
            images[key] = _cells(block, *key, time_zone)
        rows, cells = images[key]
        if len(rows) and not out[rows].all():
            _apply(condition, block, rows, cells, out, time_zone)
    for watched in rules.watched:
        rows = np.flatnonzero((block.op == UPDATE) & ~out)
        if len(rows):
            out[rows] = ~_changed(block, rows, watched)
    return out


def _cells(block: RowBlock, op: int, image: str, time_zone: str) -> tuple[Int64s, Cells]:
    """The rows with an operation, and the cells of one of their images."""
    rows = np.flatnonzero(block.op == op)
    chosen = block.new if image == NEW else block.old
    return rows, Cells(block.table, chosen, None if len(rows) == len(block) else rows, time_zone)


def _apply(
    condition: Condition, block: RowBlock, rows: Int64s, cells: Cells, out: Bools, time_zone: str
) -> None:
    """Mark the rows for which a condition is true."""
    try:
        out[rows] |= vector.evaluate(_fitting(condition, block.table), cells)
    except Beyond:
        # Only rows that are not left out yet: the others must not cause an error.
        left = rows[~out[rows]]
        changes = rows_of(take(block, left), temporal.zone(time_zone))
        out[left] = [_holds(condition, change) for change in changes]


_POINTERS = frozenset({Kind.DECIMAL, Kind.STRING, Kind.BYTES, Kind.JSON, Kind.VECTOR})


def _changed(block: RowBlock, rows: Int64s, watched: tuple[int, ...]) -> Bools:
    """Which updates change at least one of the columns."""
    new, old = (Cells(block.table, image, rows, "UTC") for image in (block.new, block.old))
    changed = np.zeros(len(rows), np.bool_)
    for at in watched:
        nulls, olds = new.nulls(at), old.nulls(at)
        if block.table.columns[at].kind in _POINTERS:
            differs = pc.not_equal(new.raw(at), old.raw(at)).to_numpy(zero_copy_only=False)
        elif block.table.columns[at].kind in (Kind.FLOAT, Kind.DOUBLE):
            # As numbers, like the row-wise twin: 0.0 and -0.0 have different words but are equal.
            differs = new.floats(at) != old.floats(at)
        else:
            differs = new.integers(at) != old.integers(at)
        # The word in the place of a NULL has no meaning, so it is not compared.
        changed |= (nulls != olds) | (~nulls & ~olds & differs.astype(np.bool_))
    return changed
