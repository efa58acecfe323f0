"""Staged rows as the changes of one table: read from files, cut at the bounds, in a target's types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.applying.net_effect import Changes
from tidegate.consumer.engine.assembler import StagedPiece, StagedRun
from tidegate.consumer.engine.row_clock import Clock
from tidegate.consumer.reading.staging import CARRIED_TS, META, read_staged
from tidegate.consumer.table import soft_delete
from tidegate.consumer.table.convert import TargetColumn, unknown_members
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal
from tidegate.model.cells import DELETE
from tidegate.model.timestamp import LOGICAL_BITS

WHOLE_DELETES: Final = (
    "create a changefeed without delete-only-output-handle-key-columns into a new topic, and read that one "
    "into a new target; or begin a new target without --soft-delete for the table"
)
"""The advice in an error about deletes that carry only their keys."""


class Values(Protocol):
    """How a target stores the values of columns."""

    def type_of(self, column: TargetColumn) -> pa.DataType:
        """The type of a column's values in net effects, and when they are handed to the target."""

    def convert(self, wire: pa.Array, column: TargetColumn, time_zone: str) -> pa.Array:
        """Convert a decoded column to that type; `time_zone` is that of its TIMESTAMP texts.

        Undecodable when a value does not fit.
        """


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row change with a value that the table's definition does not allow."""

    partition: int
    offset: int
    seq: int
    commit_ts: int
    why: str
    values: dict[str, Any]
    """As decoded: `n.NAME` from the after image, `o.NAME` from the before image."""
    op: int
    """The operation, as in `net_effect.Changes.op`."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The rows of one piece as the protocol decoded them; never empty."""

    segment: StagedRun
    rows: pa.RecordBatch


def staged_rows(pieces: Sequence[StagedPiece]) -> list[Staged]:
    """The pieces that hold a row within their bounds, in the order of the topic.

    Pieces without one are left out: a segment may have rows below and above the bounds and none within,
    and its columns must then not change the table's definition.
    """
    read = [Staged(piece.segment, _within(read_staged(piece.segment), piece)) for piece in pieces]
    found = [one for one in read if one.rows.num_rows]
    return sorted(found, key=lambda one: one.segment.first_offset)


def without_repeats(staged: Sequence[Staged], ddl_floor: int, clock: Clock) -> list[Staged]:
    """The rows of a topic that is read by offset, without those older than the last DDL of their table.

    The producer sends a DDL only after all rows up to its ts are acknowledged, so an older row after the
    DDL was sent again.
    """
    if clock is Clock.NONE:
        return list(staged)
    # In ticks: a protocol with coarser times cannot say whether a row of the floor's own tick came before
    # the DDL, and such a row is kept.
    least = clock.tick(ddl_floor)
    kept = []
    for one in staged:
        carried = one.rows.column(CARRIED_TS).to_numpy()
        rows = one.rows.filter(pa.array(_ticks(carried, clock) >= least))
        kept += [Staged(one.segment, rows)] if rows.num_rows else []
    return kept


def sides_of(segment: StagedRun, ts: int, clock: Clock) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """By row of a topic that is read by offset: its offset, and whether its commit ts is above `ts`."""
    rows = read_staged(segment)
    carried = rows.column(CARRIED_TS).to_numpy()
    return rows.column("_offset").to_numpy(), _ticks(carried, clock) > clock.tick(ts)


def _ticks(carried: np.ndarray[Any, Any], clock: Clock) -> np.ndarray[Any, Any]:
    if clock is Clock.EXACT:
        return carried
    return (carried >> np.uint64(LOGICAL_BITS)) // np.uint64(abs(clock.value))


def staged_bytes(piece: StagedPiece) -> int:
    """About how many bytes of its segment are within a piece's bounds; 0 when no row is."""
    segment = piece.segment
    if _holds_all(piece):
        return segment.length
    ts = read_staged(segment).column("_commit_ts").to_numpy()
    # By share of rows: sizes of single rows are not known without decoding them.
    within = int(np.count_nonzero((ts > piece.after) & (ts <= piece.upto)))
    # Rounded up, because 0 means that no row is within the bounds.
    return -(-segment.length * within // segment.rows)


def staged_changes(
    staged: Sequence[Staged],
    known: Definition,
    time_zone: str,
    values: Values,
    aside: Callable[[Sequence[BadRow]], None],
    *,
    whole_old: bool = False,
) -> Changes:
    """The rows in the types of `values`, without bad rows, which are passed to `aside`.

    `whole_old`: `Changes.old` has all columns, for a target that keeps them.
    """
    meta: list[list[np.ndarray[Any, Any]]] = [[], [], [], [], []]
    new, old = [], []
    names = tuple(column.name for column in known.columns)
    # Otherwise the old image needs the whole row only if deletes keep it, or if nothing else identifies it.
    keys = names if whole_old or known.soft_delete or not known.keys else known.keys
    fields = {column.name: column for column in known.columns}
    for one in staged:
        # Row by row: one bad row must not set a whole piece aside.
        batch, bad = _sound(_taken(one.rows, known), known, one.segment.partition)
        if bad:
            aside(bad)
        if batch.num_rows == 0:
            continue
        if known.soft_delete:
            batch = _with_moments(batch, known)
        ts = CARRIED_TS if CARRIED_TS in batch.schema.names else "_commit_ts"
        numbers = [
            batch.column(name).to_numpy(zero_copy_only=False) for name in ("_op", ts, "_offset", "_seq")
        ]
        for column, array in zip(
            meta, [*numbers, np.full(batch.num_rows, one.segment.partition, np.int32)], strict=True
        ):
            column.append(array)
        new.append(_image(batch, "n.", list(fields.values()), time_zone, values))
        old.append(_image(batch, "o.", [fields[key] for key in keys], time_zone, values))
    # Stated, because there may be no batch to take it from.
    schema = pa.schema([(column.name, values.type_of(column)) for column in known.columns])
    key_schema = pa.schema([(key, values.type_of(fields[key])) for key in keys])
    kinds = (np.uint8, np.uint64, np.int64, np.int32, np.int32)
    op, commit_ts, offset, seq, partition = (
        np.concatenate(column) if column else np.zeros(0, kind)
        for column, kind in zip(meta, kinds, strict=True)
    )
    return Changes(
        op=op,
        commit_ts=commit_ts,
        partition=partition,
        offset=offset,
        seq=seq,
        new=pa.Table.from_batches(new, schema),
        old=pa.Table.from_batches(old, key_schema),
    )


def _taken(batch: pa.RecordBatch, known: Definition) -> pa.RecordBatch:
    """The rows without columns that the target's table does not take (`Definition.ignored`)."""
    ignored = [
        name for name in batch.schema.names if name.startswith(("n.", "o.")) and name[2:] in known.ignored
    ]
    return batch.drop_columns(ignored) if ignored else batch


def _with_moments(batch: pa.RecordBatch, known: Definition) -> pa.RecordBatch:
    """Add the moment of each change to its old image, because a deleted row is stored with that moment.

    Fatal when a delete carries only its key: the row's other values would be lost.
    """
    names = {name[2:] for name in batch.schema.names if name.startswith("o.")}
    own = {known.soft_delete, *known.ignored}
    lacking = [one.name for one in known.columns if one.name not in names and one.name not in own]
    # A definition without a TableInfo has every column ever seen, and some may have been dropped upstream.
    # A delete may lack those, so only one with nothing but the key is refused.
    bare = bool(lacking) and (known.info is not None or names <= set(known.keys))
    if bare and pc.any(pc.equal(batch.column("_op"), DELETE)).as_py():
        raise Fatal(
            "a delete does not carry the row that is to be kept",
            where=f"table {known.name}, column {lacking[0]}",
            why=f"--soft-delete keeps the row's values, and the message has {', '.join(sorted(names))}",
            fix=WHOLE_DELETES,
        )
    ts = batch.column(CARRIED_TS if CARRIED_TS in batch.schema.names else "_commit_ts").to_numpy()
    return batch.append_column(f"o.{known.soft_delete}", soft_delete.moments(ts))


def _holds_all(piece: StagedPiece) -> bool:
    return piece.after < piece.segment.min_ts and piece.segment.max_ts <= piece.upto


def _within(batch: pa.RecordBatch, piece: StagedPiece) -> pa.RecordBatch:
    if _holds_all(piece):
        return batch
    ts = batch.column("_commit_ts")
    after, upto = pa.scalar(piece.after, pa.uint64()), pa.scalar(piece.upto, pa.uint64())
    return batch.filter(pc.and_(pc.greater(ts, after), pc.less_equal(ts, upto)))


def _sound(batch: pa.RecordBatch, known: Definition, partition: int) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Split off the rows with a number that no element of their enum or set has."""
    whys: dict[int, str] = {}
    for name in batch.schema.names:
        column = known.column(name[2:]) if name.startswith(("n.", "o.")) else None
        unknown = unknown_members(batch.column(name), column) if column is not None else None
        if column is None or unknown is None:
            continue
        for at in np.flatnonzero(unknown.to_numpy(zero_copy_only=False)).tolist():
            number = batch.column(name)[at].as_py()
            whys[at] = f"column {column.name}: number {number}, and it has {len(column.elems)} elements"
    if not whys:
        return batch, []
    places = sorted(whys)
    bad = []
    for at, row in zip(places, batch.take(pa.array(places, pa.int64())).to_pylist(), strict=True):
        values = {name: value for name, value in row.items() if name not in (*META, CARRIED_TS)}
        # By offset, `_commit_ts` holds the message's offset, and the row's own ts has a column of its own.
        ts = row.get(CARRIED_TS, row["_commit_ts"])
        bad.append(BadRow(partition, row["_offset"], row["_seq"], ts, whys[at], values, row["_op"]))
    keep = np.ones(batch.num_rows, bool)
    keep[places] = False
    return batch.filter(pa.array(keep)), bad


def _image(
    batch: pa.RecordBatch, prefix: str, columns: Sequence[TargetColumn], time_zone: str, values: Values
) -> pa.RecordBatch:
    names = set(batch.schema.names)
    arrays = [
        values.convert(batch.column(prefix + column.name), column, time_zone)
        if prefix + column.name in names
        else pa.nulls(batch.num_rows, values.type_of(column))
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([(column.name, values.type_of(column)) for column in columns])
    )
