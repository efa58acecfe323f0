"""Reduces many changes of a row to one: how a table must change between two snapshots. Pure.

Changes are ordered by (commit_ts, delete < update < insert, partition, offset, seq). A key's last change
wins, and its first one shows whether the row existed before. Whole transactions go in, so the result is the
table at the upper ts, whatever happened between. Duplicates (the same change read twice above the applied ts)
have the same key and the same commit_ts, and change nothing. An update that changes its key acts as delete of
the old key and insert of the new one.

If deleted rows are kept (`soft_delete`), the last change of a key is upserted even if it is a delete: the row
as it was before, with the moment of its deletion. Whether the row existed before does not matter then.

Tables without a key are bags: rows are counted by their whole content. The order on the topic distinguishes a
repeated row from two equal rows: a commit_ts that falls begins a new run, and a row counts as often as in the
run that has it most often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.cells import DELETE, INSERT, UPDATE

Ints = npt.NDArray[np.int64]

REMOVE, CHANGE, ADD = 0, 1, 2
"""Order within one commit_ts."""
CODE_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Changes:
    """Row changes of one table in the target's types, in no particular order."""

    op: npt.NDArray[np.uint8]
    commit_ts: npt.NDArray[np.uint64]
    partition: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int32]
    new: pa.Table
    """All columns; nulls for deletes."""
    old: pa.Table
    """The key columns; all columns if the table has no key or keeps deleted rows, or if the target keeps
    every change. Nulls for inserts."""
    run: Ints | None = None
    """For a table without a key: the number of each change's run on its partition, if these are not all of
    the step's changes (`row_runs`). None: the ts show it."""

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True)
class Effect:
    """The changes to write to a table with a key."""

    upserts: pa.Table
    deletes: pa.Table
    """Key columns only."""
    fresh: npt.NDArray[np.bool_]
    """For each row of `upserts`, whether it is certainly new."""

    @property
    def only_inserts(self) -> bool:
        """Whether all changes are new rows, so that appending them suffices."""
        return self.deletes.num_rows == 0 and bool(self.fresh.all())


@dataclass(frozen=True, slots=True)
class BagEffect:
    """The changes to write to a table without a key."""

    inserts: pa.Table
    identities: list[str]
    """For each inserted row, the partition-offset-seq of its change."""
    deletes: pa.Table
    """All columns; a row occurs here as often as it must be removed."""


def net_effect(
    changes: Changes,
    keys: Sequence[str],
    trust_inserts: bool = True,
    by_kind: bool = True,
    keeps_deleted: bool = False,
) -> Effect:
    """The effect on a table whose rows are identified by the columns `keys`.

    `trust_inserts`: False when an insert may be an update whose old values were not sent; then it does not
    show whether the row existed before. `by_kind`: False when a commit_ts is not exact, so that several
    transactions may have the same: then the order of the topic decides. `keeps_deleted`: upsert a deleted row
    as `Changes.old` has it, which then has all columns; a later insert may find its row there.
    """
    moved = key_changed(changes, keys)
    puts = np.flatnonzero(changes.op != DELETE)
    # An update that changes the key is two changes: it puts the row under the new key and removes the old
    # key.
    gone = np.flatnonzero((changes.op == DELETE) | moved)
    row = np.concatenate([puts, gone])
    plain_update = (changes.op == UPDATE) & ~moved
    kind = np.concatenate([np.where(plain_update[puts], CHANGE, ADD), np.full(len(gone), REMOVE)])
    key_rows = _rows_of(changes.new.select(keys), puts)
    if len(gone):
        key_rows = pa.concat_tables([key_rows, changes.old.select(keys).take(gone)])
    # With equal commit ts a removal comes before an addition: a transaction may give a key that it removes to
    # another row.
    rank = kind if by_kind else np.zeros_like(kind)
    code = ordered_codes(key_rows)
    order = _in_order(
        code,
        (changes.seq[row], changes.offset[row], changes.partition[row], rank, changes.commit_ts[row]),
    )
    differs = code[order][1:] != code[order][:-1]
    # Without any change the mask would be longer than `order`.
    first = order[np.concatenate([[True], differs])] if len(order) else order
    last = order[np.concatenate([differs, [True]])] if len(order) else order
    stays, new = kind[last] != REMOVE, kind[first] == ADD
    if keeps_deleted:
        return _all_kept(changes, row[last], stays, key_rows.slice(0, 0))
    if not trust_inserts:
        new[:] = False
    # A key that these changes first add and then remove was not in the target.
    removed = ~stays & ~new
    return Effect(
        upserts=_rows_of(changes.new, row[last[stays]]),
        deletes=key_rows.take(last[removed]),
        fresh=new[stays],
    )


def _rows_of(rows: pa.Table, at: Ints) -> pa.Table:
    """The rows at these places; `rows` itself, without a copy, if they are all rows in their order."""
    return rows if _all_in_order(at, rows.num_rows) else rows.take(at)


def _all_in_order(at: Ints, count: int) -> bool:
    return len(at) == count and (not count or bool((at[0] == 0) & (at[1:] > at[:-1]).all()))


def _in_order(code: Ints, then: Sequence[npt.NDArray[Any]]) -> Ints:
    """The order by code, and within a code by `then`, whose last array counts first.

    The same as `np.lexsort((*then, code))`. Only the entries whose code occurs several times are compared by
    `then`: most keys change once between two snapshots.
    """
    order: Ints = np.argsort(code, kind="stable")
    by_code = code[order]
    twice = np.zeros(len(order), bool)
    twice[1:] = by_code[1:] == by_code[:-1]
    twice[:-1] |= twice[1:]
    if twice.any():
        among = order[twice]
        # The entries of a code keep their places as a group, because both orders go by code first.
        order[twice] = among[np.lexsort((*(one[among] for one in then), code[among]))]
    return order


def _all_kept(changes: Changes, last: Ints, stays: npt.NDArray[np.bool_], no_keys: pa.Table) -> Effect:
    deleted = changes.old.select(changes.new.column_names).take(last[~stays])
    upserts = pa.concat_tables([changes.new.take(last[stays]), deleted])
    return Effect(upserts, no_keys, np.zeros(upserts.num_rows, np.bool_))


def net_bag(changes: Changes) -> BagEffect:
    """The effect on a table without a key."""
    puts = np.flatnonzero(changes.op != DELETE)
    gone = np.flatnonzero(changes.op != INSERT)
    row = np.concatenate([puts, gone])
    sign = np.concatenate([np.ones(len(puts), np.int64), -np.ones(len(gone), np.int64)])
    rows = pa.concat_tables([changes.new.take(puts), changes.old.select(changes.new.column_names).take(gone)])
    content = factorize(rows)
    fresh = not_replayed(changes, row, sign, content)
    content, sign, index = content[fresh], sign[fresh], fresh
    total = np.bincount(content, weights=sign).astype(np.int64) if len(content) else np.zeros(0, np.int64)
    inserts = index[_keep(content, sign > 0, total)]
    deletes = index[_keep(content, sign < 0, -total)]
    made = row[inserts]
    where = zip(changes.partition[made], changes.offset[made], changes.seq[made], strict=True)
    return BagEffect(rows.take(inserts), [f"{p}-{o}-{s}" for p, o, s in where], rows.take(deletes))


def factorize(rows: pa.Table) -> Ints:
    """A number per row from 0 on, equal exactly for rows equal in all columns (null equals null)."""
    if rows.num_columns == 1:
        return _encoded(rows.column(0))[1]
    return np.asarray(
        np.unique(_combined(rows, lambda values, codes: codes), return_inverse=True)[1], np.int64
    )


def ordered_codes(rows: pa.Table) -> npt.NDArray[Any]:
    """A number per row, equal exactly for rows equal in all columns, and in the order of their values.

    By value, column by column, nulls last; text by its bytes. A database takes rows in the order of their
    keys faster, because they go into the same pages, and files in this order are easier to skip.
    """
    if rows.num_columns == 1:
        column = rows.column(0)
        if pa.types.is_integer(column.type) and not column.null_count:
            return np.asarray(column.to_numpy())
    return _combined(rows, _ranked)


def _combined(rows: pa.Table, numbered: Callable[[pa.Array, Ints], Ints]) -> Ints:
    """A number per row, from the numbers of its values in the order of the columns.

    `numbered`: given a column's distinct values and the place of each row's value among them, the numbers.
    """
    code = np.zeros(rows.num_rows, np.int64)
    size = 1
    for column in rows.columns:
        values, codes = _encoded(column)
        distinct = max(len(values), 1)
        # Renumber before the product of the counts of distinct values can exceed an int64.
        if size * distinct > CODE_LIMIT:
            code = np.unique(code, return_inverse=True)[1].astype(np.int64)
            size = int(code.max(initial=0)) + 1
        code = code * distinct + numbered(values, codes)
        size *= distinct
    return code


def _encoded(column: pa.ChunkedArray) -> tuple[pa.Array, Ints]:
    """The distinct values of a column, null among them, and for each row the place of its value."""
    # Arrow has no dictionary encoding for lists.
    if pa.types.is_list(column.type):
        column = pa.chunked_array([pa.array([repr(value) for value in column.to_pylist()], pa.string())])
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    return encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _ranked(values: pa.Array, codes: Ints) -> Ints:
    rank = np.empty(len(values), np.int64)
    rank[pc.sort_indices(values).to_numpy()] = np.arange(len(values))
    return rank[codes] if len(values) else codes


def key_changed(changes: Changes, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """For each change, whether it is an update that gives its row another key."""
    changed, updates = np.zeros(len(changes), bool), changes.op == UPDATE
    for name in keys if updates.any() else ():
        differs = pc.fill_null(pc.not_equal(changes.new.column(name), changes.old.column(name)), False)
        changed |= differs.to_numpy()
    return np.asarray(changed & updates, bool)


def not_replayed(changes: Changes, row: Ints, sign: Ints, content: Ints) -> Ints:
    """Positions of the entries that do not repeat another entry, in topic order."""
    order = np.lexsort((sign, changes.seq[row], changes.offset[row], changes.partition[row]))
    # A ts that falls begins another run. Within a run each entry is a change of its own, even if rows are
    # equal. A producer that was restarted repeats changes in a later run: there the n-th equal entry is the
    # n-th of before.
    ts, partition = changes.commit_ts[row[order]], changes.partition[row[order]]
    if changes.run is not None:
        run = changes.run[row[order]]
    else:
        falls = np.zeros(len(order), bool)
        falls[1:] = (ts[1:] < ts[:-1]) | (partition[1:] != partition[:-1])
        run = np.cumsum(falls)
    sign, content = sign[order], content[order]
    # An entry is kept if no earlier run has as many equal ones.
    number = _occurrence((partition, run, ts, sign, content))
    kept: Ints = order[_occurrence((ts, sign, content, number)) == 0]
    return kept


def _occurrence(columns: Sequence[npt.NDArray[Any]]) -> Ints:
    """For each entry, how many before it are equal to it in all columns."""
    order = np.lexsort(columns)
    begins = np.ones(len(order), bool)
    begins[1:] = False
    for column in columns:
        ordered = column[order]
        begins[1:] |= ordered[1:] != ordered[:-1]
    place = np.arange(len(order))
    number = np.empty(len(order), np.int64)
    # `lexsort` is stable, so equal entries are in their order.
    number[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return number


def _keep(content: Ints, eligible: npt.NDArray[np.bool_], wanted: Ints) -> Ints:
    """For each content, the last `wanted[content]` of the eligible entries (none when negative)."""
    backwards = np.flatnonzero(eligible)[::-1]
    of = content[backwards]
    return backwards[_occurrence((of,)) < wanted[of]][::-1]
