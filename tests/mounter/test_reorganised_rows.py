"""Rows written while TiDB moves partitions: recorded writes, followed from SELECT to SELECT."""

from __future__ import annotations

import pytest

from tests.consumer.topics import events_of
from tests.golden_folder import OURS
from tests.mounter.test_recorded_tables import by_sql
from tidegate.model.ddl import DdlEvent
from tidegate.model.row import RowChange
from tidegate.mounter.ddl_partitions import REORGANISATIONS
from tidegate.workload.changelog import Cell, SnapshotLine, read_log

LOG = OURS / "changelog" / "onlineddl.jsonl.gz"
Row = tuple[bytes | None, ...]


def _bytes(row: tuple[Cell, ...]) -> Row:
    return tuple(cell.encode() if isinstance(cell, str) else cell for cell in row)


def _written(change: RowChange) -> tuple[Row | None, Row | None]:
    """The row before and after a change, as SQL shows it."""
    columns = change.table.columns
    old, new = (
        tuple(by_sql(c, v) for c, v in zip(columns, image, strict=True)) if image is not None else None
        for image in (change.old, change.new)
    )
    return old, new


@pytest.mark.parametrize("table", ["o.main", "o.part"])
def test_every_row_written_during_a_reorganisation_is_delivered_once(table: str) -> None:
    """Some sessions write to old and new partitions, then to the new ones alone before the job is done.

    The changes between two SELECTs, each taken from the rows that the first showed, make what the second
    shows. A row that is sent for both its partitions, or for none, breaks the chain.
    """
    snapshots = [line for line in read_log(LOG) if isinstance(line, SnapshotLine)]
    first, last = snapshots[21], snapshots[22]
    shown = first.tables[table]
    assert shown.rows is not None
    key = shown.columns.index("id")
    rows = {row[key]: row for row in map(_bytes, shown.rows)}
    kinds, changes = set(), 0
    for event in events_of(LOG, until=last.ts):
        if isinstance(event, DdlEvent) and first.ts < event.finished_ts:
            kinds.add(event.action)
        if not isinstance(event, RowChange) or event.commit_ts <= first.ts:
            continue
        if event.table.name == table:
            old, new = _written(event)
            changes += 1
            if old is not None:
                assert rows.pop(old[key]) == old, "the chain of values is broken"
            if new is not None:
                assert rows.setdefault(new[key], new) is new, "a row came twice"
    assert kinds & REORGANISATIONS == {71, 72}
    assert changes > 70
    expected = last.tables[table]
    assert (expected.columns, expected.rows is not None) == (shown.columns, True)
    assert set(rows.values()) == set(map(_bytes, expected.rows or ()))
