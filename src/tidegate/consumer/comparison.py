"""Compares source and target at one timestamp, and finds the rows that differ.

Source: every base table as TiKV holds it at ts, decoded with the schema of ts. Target: the Delta tables at a
snapshot. Both become the same typed Arrow and are compared as bags of whole rows, so a table without a key
needs no special case. Both sides of one table are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.applying.net_effect import factorize
from tidegate.consumer.snapshots import Snapshot
from tidegate.consumer.table.convert import moments
from tidegate.consumer.table.definition import ROWID
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot as KvSnapshot
from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.model.schema import TableSchema
from tidegate.mounter.columns import target_type, to_arrow
from tidegate.mounter.decode import MountOptions, mount
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb import keys
from tidegate.tidb.table_filter import TableFilter, is_system_schema

PAGE_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """One table compared."""

    table: str
    source_rows: int
    target_rows: int
    differing: int
    """Rows that are on one side only; a changed row counts on both."""
    differences: tuple[dict[str, Any], ...]
    """Some of them: {"side": "source" or "target", "row": {column: value}}, by key."""
    note: str = ""
    key: tuple[str, ...] = ()
    """The columns that identify a row."""

    @property
    def equal(self) -> bool:
        """Whether both sides are the same."""
        return not self.differing and not self.note


class Source:
    """The tables of a cluster at one ts."""

    def __init__(self, pd: PdClient, ts: int) -> None:
        self._kv = KvSnapshot(pd, ts)
        self._store = SchemaStore.from_meta(self._kv.scan(keys.catalogue_span()), ts)
        self.ts = ts
        self.undecodable = 0

    def tables(self, rules: TableFilter | None = None) -> dict[str, TableSchema]:
        """User tables by `schema.table`; only those that the rules let pass."""
        return {
            table.name: table
            for table in self._store.tables(self.ts)
            if not is_system_schema(table.schema)
            and (rules is None or rules.matches(table.schema, table.table))
        }

    def read(self, table: TableSchema) -> pa.Table:
        """All rows in the target's types."""
        schema = pa.schema([(column.name, target_type(column)) for column in table.columns])
        batches = []
        for physical_id in table.physical_ids:
            pairs = self._kv.scan(keys.record_span(physical_id))
            while page := list(islice(pairs, PAGE_ROWS)):
                batches += self._decode(page)
        return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)

    def _decode(self, page: Sequence[tuple[bytes, bytes]]) -> list[pa.RecordBatch]:
        n = len(page)
        # A row is decoded with the schema of its commit_ts - 1, so the rows are stamped with the snapshot's
        # ts + 1.
        stamp = pa.array(np.full(n, self.ts + 1, np.uint64))
        arrays = [
            stamp,
            stamp,
            pa.array(np.full(n, OP_PUT, np.uint8)),
            pa.array([key for key, _ in page], pa.binary()),
            pa.array([value for _, value in page], pa.binary()),
            pa.array([b""] * n, pa.binary()),
        ]
        block = pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)
        rows, failed = mount(block, self._store, MountOptions(force_replicate=True))
        self.undecodable += len(failed)
        return [to_arrow(part) for part in rows]


def compare(
    source: Source, target: Snapshot, rules: TableFilter | None = None, limit: int = 20
) -> Iterator[TableVerdict]:
    """Every table of either side, in order of name."""
    known = source.tables(rules)
    names = set(known) | {
        name for name in target.tables if rules is None or rules.matches(*_parts(target, name))
    }
    for name in sorted(names):
        yield _verdict(name, source, known.get(name), target, limit)


def _parts(target: Snapshot, name: str) -> tuple[str, str]:
    return target.tables[name].schema, target.tables[name].table


def _verdict(
    name: str, source: Source, table: TableSchema | None, target: Snapshot, limit: int
) -> TableVerdict:
    held = target.tables.get(name)
    if table is None:
        assert held is not None
        return TableVerdict(name, 0, held.to_arrow().num_rows, 0, (), "not at the source")
    rows = source.read(table)
    if held is None:
        # A changefeed does not send such a table, so it is right that the target lacks it.
        if not table.eligible:
            return TableVerdict(name, rows.num_rows, 0, 0, ())
        return TableVerdict(name, rows.num_rows, 0, 0, (), "not at the target")
    found = held.to_arrow()
    found = found.drop_columns([ROWID]) if ROWID in found.column_names else found
    if sorted(rows.column_names) != sorted(found.column_names):
        here, there = ", ".join(rows.column_names), ", ".join(found.column_names)
        note = f"columns differ: {here} at the source, {there} at the target"
        return TableVerdict(name, rows.num_rows, found.num_rows, 0, (), note)
    found = found.select(rows.column_names)
    key = tuple(table.columns[at].name for at in table.handle_key)
    differing, shown = differences(rows, found, key, limit)
    return TableVerdict(name, rows.num_rows, found.num_rows, differing, shown, key=key)


def differences(
    source: pa.Table, target: pa.Table, order: Sequence[str], limit: int
) -> tuple[int, tuple[dict[str, Any], ...]]:
    """How many rows are on one side only, and `limit` of them, sorted by the columns `order`."""
    both = pa.concat_tables([canonical(source, source.schema), canonical(target, source.schema)])
    # Rows of both sides get one number for each distinct content, so that a bag is an array of counts.
    code = factorize(both)
    size = int(code.max(initial=-1)) + 1
    here = np.bincount(code[: source.num_rows], minlength=size)
    there = np.bincount(code[source.num_rows :], minlength=size)
    differing = int(np.abs(here - there).sum())
    if not differing:
        return 0, ()
    # All copies of such a row are shown, of both sides: the one that is too many cannot be named.
    unequal = np.flatnonzero((here != there)[code])
    rows = both.take(unequal).append_column("_tidegate_side", pa.array(unequal >= source.num_rows))
    by = [(name, "ascending") for name in (*order, "_tidegate_side") if not pa.types.is_list(rows[name].type)]
    shown = rows.sort_by(by).slice(0, limit).to_pylist()
    return differing, tuple(
        {"side": "target" if row.pop("_tidegate_side") else "source", "row": row} for row in shown
    )


def canonical(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give equal values equal forms: lists by their elements, -0.0 as 0.0, a key's texts as moments."""
    columns = []
    for field in schema:
        column = rows[field.name]
        if pa.types.is_string(column.type) and pa.types.is_temporal(field.type):  # part of the target's key
            column = pa.chunked_array([moments(part, field.type) for part in column.chunks], field.type)
        column = column.cast(field.type)
        # MySQL and TiDB take both zeros for one value; their bits differ.
        if pa.types.is_floating(field.type):
            zero = pa.scalar(0, field.type)
            column = pc.if_else(pc.equal(column, zero), zero, column)
        columns.append(column)
    return pa.table(columns, schema=schema)
