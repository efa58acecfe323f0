"""The changes of a table as rows of a change log: the alternative to `net_effect`. Pure.

| column | meaning |
|---|---|
| `_tidegate_op` | `insert`, `update` or `delete`; `before`: the row as it was before an update |
| `_tidegate_commit_ts` | the transaction's commit ts |
| `_tidegate_seq` | grows with each change of a row, as in the Spark source (`sink.reader.changes`) |
| the others | the row after the change; for `delete` and `before`, the row before it |

An update that changes the key is a delete and an insert. So is every update of a table without a key, because
nothing connects the two rows. At one commit ts, deletes and rows before an update sort before the others: one
row may free a key that another one takes. A change that the producer has sent again is left out: as in
`net_effect`, a key has one change of each kind at a commit ts, and rows without a key are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.applying.net_effect import (
    BagEffect,
    Changes,
    Ints,
    factorize,
    key_changed,
    not_replayed,
)
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.sink.reader.changes import CHANGED, DELETED, MAX_TS, OWN_COLUMNS, SEQ_A_TS

GONE, BEFORE, UPDATED, INSERTED = range(4)
"""The meaning of a row of the log, in the order of `OPS`."""
OPS: Final = ("delete", "before", "update", "insert")


def check_columns(made: Definition) -> None:
    """Fatal if a table has a column with a name of the log's own."""
    taken = [column.name for column in made.columns if column.name in OWN_COLUMNS.names]
    if taken:
        raise Fatal(
            "a table has a column whose name the change log uses for its own",
            where=f"table {made.name}, column {', '.join(taken)}",
            why="the change log would have two columns of this name",
            fix="leave the column out with --drop-column, or the table with --exclude",
        )


def logged(changes: Changes, keys: Sequence[str], *, knows_old: bool) -> BagEffect:
    """The rows that the changes add to the table's log, in order.

    `changes.old` has all columns. `knows_old`: updates carry the old row; otherwise an insert may be one, and
    both are `update`.
    """
    # `_tidegate_seq` is the commit ts times SEQ_A_TS. An overflow would sort the change before all others, in
    # silence.
    if len(changes) and int(changes.commit_ts.max()) > MAX_TS // SEQ_A_TS - 1:
        raise Fatal(
            "a commit ts is too large for a change log",
            where=f"partition {int(changes.partition[np.argmax(changes.commit_ts)])}",
            why=f"{int(changes.commit_ts.max())} is far in the future",
            fix="look at the changes of this ts at the source",
        )
    # A reader that follows one key would never learn that its row is gone, if a change of the key were one
    # update.
    moved = key_changed(changes, keys) if keys else changes.op == UPDATE
    gone = np.flatnonzero((changes.op == DELETE) | moved)
    before = np.flatnonzero(_shows_old(changes, keys) & ~moved) if knows_old else np.zeros(0, np.int64)
    puts = np.flatnonzero(changes.op != DELETE)
    inserted = ((changes.op == INSERT) | moved) & knows_old if keys else changes.op != DELETE
    row = np.concatenate([gone, before, puts])
    kind = np.concatenate(
        [
            np.full(len(gone), GONE),
            np.full(len(before), BEFORE),
            np.where(inserted[puts], INSERTED, UPDATED),
        ]
    )
    names = changes.new.column_names
    images = pa.concat_tables(
        [changes.old.select(names).take(gone), changes.old.select(names).take(before), changes.new.take(puts)]
    )
    kept = (
        _distinct(changes, row, kind, images.select(list(keys)))
        if keys
        else _counted(changes, row, kind, images)
    )
    seq = changes.commit_ts[row].astype(np.int64) * SEQ_A_TS + np.where(kind <= BEFORE, DELETED, CHANGED)
    # By `seq` first: within a commit ts all deletions and old images come before the new rows, as a reader
    # needs them.
    order = kept[np.lexsort((*_place(changes, row[kept]), seq[kept]))]
    own = (
        pa.array(OPS, pa.string()).take(pa.array(kind[order])),
        pa.array(changes.commit_ts[row[order]].astype(np.int64)),
        pa.array(seq[order]),
    )
    schema = pa.schema([*OWN_COLUMNS, *changes.new.schema])
    rows = pa.table([*own, *images.take(pa.array(order)).columns], schema=schema)
    return BagEffect(rows, [], rows.slice(0, 0))


def _shows_old(changes: Changes, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """For each change, whether it is an update whose message has the old row.

    A message with the old key alone has none, so a row that was NULL in all other columns has none, too.
    """
    others = [name for name in changes.new.column_names if name not in keys]
    shown = np.full(len(changes), not others)
    for name in others:
        shown |= pc.is_valid(changes.old.column(name)).to_numpy()
    return np.asarray(shown & (changes.op == UPDATE), bool)


def _place(changes: Changes, row: Ints) -> tuple[npt.NDArray[np.int32], Ints, npt.NDArray[np.int32]]:
    return changes.seq[row], changes.offset[row], changes.partition[row]


def _distinct(changes: Changes, row: Ints, kind: Ints, keys: pa.Table) -> Ints:
    """The first entry of each key, commit ts and kind, in the order of the topic."""
    what = keys.append_column("_ts", pa.array(changes.commit_ts[row])).append_column("_kind", pa.array(kind))
    order = np.lexsort(_place(changes, row))
    _, first = np.unique(factorize(what)[order], return_index=True)
    return np.asarray(order[first], np.int64)


def _counted(changes: Changes, row: Ints, kind: Ints, rows: pa.Table) -> Ints:
    """The entries of a table without a key that do not repeat another one."""
    return not_replayed(changes, row, np.where(kind == GONE, -1, 1), factorize(rows))
