"""Decodes a quarantined message or row again, with this release and the table as it is at the target now.

    a message  -> its protocol's decoder        -> rows, DDLs, marks
    a row      -> its table's definition        -> the same row in the target's types

Nothing is written. A target stores no commit ts with its rows, and later changes of a row may be in
quarantine themselves. So it cannot be known whether an entry is still the newest change of its row: a person
has to decide (docs/quarantine.md).

Only the decoder does I/O: to a schema registry, a claim-check storage, or upstream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.codec.base import Batch, Decoded, DecodedTable, describe
from tidegate.consumer.applying.changes import BadRow, Staged, Values, staged_changes
from tidegate.consumer.applying.net_effect import Changes, net_bag, net_effect
from tidegate.consumer.applying.target import Name, TableChanges
from tidegate.consumer.engine.assembler import StagedRun
from tidegate.consumer.reading.staging import META, staged_batch
from tidegate.consumer.reading.topic_decoder import TopicDecoder
from tidegate.consumer.table.convert import TIMESTAMP
from tidegate.consumer.table.definition import Definition
from tidegate.errors import TidegateError
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.sink.quarantine import DecodeOutcome, still_bad

KINDS: Final = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}


@dataclass(frozen=True, slots=True)
class Tables:
    """A target's tables, as they are now."""

    definitions: Mapping[Name, Definition]
    values: Values
    """How the target stores values."""
    zone: str
    """The zone of the topic's TIMESTAMP texts; empty when it is not known."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result for one entry."""

    outcome: DecodeOutcome
    changes: tuple[TableChanges, ...] = ()
    """How its rows would change their tables; empty unless the whole entry is good and the tables are
    known."""


def replay(entry: Mapping[str, Any], decoder: TopicDecoder | None, tables: Tables | None) -> Replayed:
    """Decode an entry again, and convert it for its table.

    `decoder`: None leaves messages undecoded. `tables`: None shows rows as messages have them. Raises
    Retryable while a schema registry or a storage does not answer.
    """
    if "row" in entry:
        return _row(entry, tables)
    if "value" not in entry or decoder is None:
        return Replayed(still_bad("it is a message, and --source is needed to know how it is written"))
    return _message(entry, decoder, tables)


def _message(entry: Mapping[str, Any], decoder: TopicDecoder, tables: Tables | None) -> Replayed:
    offset = entry["where"].get("offset", 0)
    batch = Batch([entry["key"]], [entry["value"]], np.array([offset], np.int64), [None])
    pieces = list(decoder.pieces(batch))
    # One bad row makes the whole entry bad: a message that is written in part would be taken for done.
    bad = next((message for piece in pieces for message in piece.bad), None)
    if bad is not None:
        return Replayed(still_bad(bad.why))
    found = [_table(table, entry, tables) for piece in pieces for table in piece.rows]
    if (worse := next((one for one in found if not one.outcome.good), None)) is not None:
        return worse
    rows = tuple(row for one in found for row in one.outcome.rows)
    changes = tuple(change for one in found for change in one.changes)
    notes = [one.outcome.what for one in found if one.outcome.what]
    notes += [text for piece in pieces for text in _events(piece)]
    return Replayed(
        DecodeOutcome(True, "; ".join(notes) or ("" if rows else "it holds nothing"), rows), changes
    )


def _events(piece: Decoded) -> Iterator[str]:
    """DDLs and marks in a message, in words."""
    yield from (f"Resolved {ts}" for ts, _ in piece.resolved)
    yield from (f"a DDL at ts {ddl.ts}: {ddl.query}" for ddl in piece.ddls)
    yield from (f"from here on the topic has {count} partitions" for count, _ in piece.repartitions)


def _table(table: DecodedTable, entry: Mapping[str, Any], tables: Tables | None) -> Replayed:
    name = (table.schema, table.table)
    if tables is None or name not in tables.definitions:
        shown = tuple({k: v for k, v in row.items() if k != "offset"} for row in describe(Decoded([table])))
        what = "" if tables is None else f"the target has no table {table.schema}.{table.table}"
        return Replayed(DecodeOutcome(True, what, shown))
    known = tables.definitions[name]
    return _fitted(known, staged_batch(table, whole=bool(known.soft_delete)), entry, tables)


def _row(entry: Mapping[str, Any], tables: Tables | None) -> Replayed:
    if tables is None:
        return Replayed(still_bad("it is a row, and --target is needed to know its table"))
    schema, _, table = str(entry["where"]["table"]).partition(".")
    known = tables.definitions.get((schema, table)) or next(
        (one for one in tables.definitions.values() if one.name == entry["where"]["table"]), None
    )
    if known is None:
        return Replayed(still_bad(f"the target has no table {entry['where']['table']} any more"))
    return _fitted(known, _kept_batch(entry), entry, tables)


def _kept_batch(entry: Mapping[str, Any]) -> pa.RecordBatch:
    """The row of an entry in the staged form; its types follow from its values."""
    where, values = entry["where"], entry["row"]
    arrays = [
        pa.array([entry.get("op") or _op(values)], pa.uint8()),
        pa.array([where["commit_ts"]], pa.uint64()),
        pa.array([where["offset"]], pa.int64()),
        pa.array([where["seq"]], pa.int32()),
        *map(_array, values.values()),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[*META, *values])


def _array(value: Any) -> pa.Array:
    """One value in the type that Arrow infers; Arrow infers none for unsigned numbers from 2^63 on."""
    unsigned = isinstance(value, int) and value >= 1 << 63
    return pa.array([value], pa.uint64()) if unsigned else pa.array([value])


def _op(values: Mapping[str, Any]) -> int:
    """The operation of an entry of an earlier release, which did not store it: no key holds NULL."""
    new = any(value is not None for name, value in values.items() if name.startswith("n."))
    old = any(value is not None for name, value in values.items() if name.startswith("o."))
    return DELETE if not new else UPDATE if old else INSERT


def _fitted(known: Definition, batch: pa.RecordBatch, entry: Mapping[str, Any], tables: Tables) -> Replayed:
    """Rows in the types of their table, and how they would change it."""
    if why := _misfit(known, batch, tables.zone):
        return Replayed(still_bad(why))
    bad: list[BadRow] = []
    partition = entry["where"].get("partition", 0)
    staged = Staged(_segment(known, batch, partition), batch)
    try:
        # UTC is never used for a TIMESTAMP: `_misfit` has refused such a column if the zone is not known.
        changes = staged_changes([staged], known, tables.zone or "UTC", tables.values, bad.extend)
    except TidegateError as error:
        return Replayed(still_bad(f"{error.what}: {error.where}: {error.why}"))
    if bad:
        return Replayed(still_bad(bad[0].why))
    kept = bool(known.soft_delete)
    effect = (
        # An insert may find its row: the target can hold a later or an earlier version of it. So it deletes
        # the key first.
        net_effect(changes, known.keys, trust_inserts=False, keeps_deleted=kept)
        if known.keys
        else net_bag(changes)
    )
    return Replayed(DecodeOutcome(True, "", tuple(_shown(known, changes))), (TableChanges(known, effect),))


def _misfit(known: Definition, batch: pa.RecordBatch, zone: str) -> str:
    """Why rows cannot be fitted to a table; empty when they may fit."""
    names = dict.fromkeys(name[2:] for name in batch.schema.names if name not in META)
    # The target computes generated columns itself, and `--schema-changes ignore` keeps others out: rows may
    # carry both.
    other = {*known.generated, *known.ignored}
    unknown = [name for name in names if known.column(name) is None and name not in other]
    if unknown:
        return f"table {known.name} has no column {', '.join(unknown)} now"
    timed = [one.name for one in known.columns if one.mysql_type == TIMESTAMP and one.name in names]
    if timed and not zone:
        return f"column {timed[0]} is a TIMESTAMP, and --time-zone is needed to read it"
    return ""


def _segment(known: Definition, batch: pa.RecordBatch, partition: int) -> StagedRun:
    """The descriptor of rows that are in memory, not in a file."""
    ts, offset = batch.column("_commit_ts").to_pylist(), batch.column("_offset")[0].as_py()
    return StagedRun(
        partition=partition,
        schema=known.schema,
        table=known.table,
        columns=(),
        file="",
        start=0,
        length=0,
        rows=len(ts),
        min_ts=min(ts),
        max_ts=max(ts),
        first_offset=offset,
    )


def _shown(known: Definition, changes: Changes) -> Iterator[dict[str, Any]]:
    new, old = changes.new.to_pylist(), changes.old.to_pylist()
    for at, op in enumerate(changes.op.tolist()):
        yield {
            "kind": KINDS[op],
            "schema": known.schema,
            "table": known.table,
            "commit_ts": int(changes.commit_ts[at]),
            "new": new[at] if op != DELETE else None,
            "old": old[at] if op != INSERT else None,
        }
