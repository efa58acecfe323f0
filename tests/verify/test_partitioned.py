"""The target side of tables that are partitioned there: their files lack the partition columns."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.consumer.snapshots import TableSnapshot, open_snapshot
from tidegate.sink.lakehouse.snapshot_rows import SnapshotRow
from tidegate.sink.lakehouse.tables import Lakehouse, table_path
from tidegate.verify import target
from tidegate.verify.differences import Difference
from tidegate.verify.ranges import Cuts
from tidegate.verify.repair import apply
from tidegate.verify.side import Shape, rows_of

SCHEMA = pa.schema(
    [
        *(("id", pa.int64()), ("region", pa.string()), ("day", pa.date32())),
        *(("price", pa.decimal128(10, 2)), ("small", pa.int32()), ("note", pa.string())),
    ]
)
ROWS = [
    (1, "north", date(2024, 2, 29), Decimal("1.50"), -1, "a"),
    (2, "ä/b=c %20", date(2024, 2, 29), None, 0, "b"),
    (3, None, None, Decimal("0.01"), None, None),
    (4, "north", date(1969, 12, 31), Decimal("1.50"), 7, "d"),
    (5, "north", date(2024, 2, 29), Decimal("1.50"), -1, "e"),
]
TS = 400


def table_of(rows: list[tuple[object, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def stored(root: Path, columns: list[str]) -> TableSnapshot:
    """The rows in a table of this spec, in two files of each partition where it has several rows."""
    lake, path = Lakehouse(root), table_path("shop", "t")
    lake.create(path, SCHEMA, columns)
    for part in (ROWS[:3], ROWS[3:]):
        lake.append(path, table_of(part))
    lake.snapshots.publish(TS, [SnapshotRow(TS, "shop", "t", 7, path, lake.version(path))], "{}")
    return open_snapshot(root).tables["shop.t"]


@pytest.mark.parametrize("columns", [[], ["region"], ["day"], ["price", "region"], ["small"], ["id"]])
@pytest.mark.parametrize("key", [("id",), ("id", "region"), ()])
def test_rows_of_files_have_their_partition_values(
    tmp_path: Path, columns: list[str], key: tuple[str, ...]
) -> None:
    held, shape = stored(tmp_path, columns), Shape(SCHEMA, key, key == ("id",))
    pieces = target.pieces_of(held.files(), shape, held.partition_values())
    found = rows_of([target.rows(shape, Cuts.whole(), pieces)], SCHEMA)
    assert found.sort_by("id").equals(table_of(ROWS))
    whole = stored(tmp_path / "whole", [])
    expected = target.sums(shape, Cuts.whole(), target.pieces_of(whole.files(), shape, {}))
    assert not target.sums(shape, Cuts.whole(), pieces).differs(expected).any()


def test_a_key_that_the_target_holds_as_text_may_be_a_partition_column() -> None:
    rows = pa.RecordBatch.from_pydict({"id": [1, 2]})
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    made = target.conformed(rows, schema, "f", {"day": "2024-02-29"})
    assert made.column(1).to_pylist() == [date(2024, 2, 29)] * 2
    assert target.conformed(rows, schema, "f", {"day": "2024-02-31"}).column(1).null_count == 2


@pytest.mark.parametrize("columns", [["region"], ["id"]])
def test_a_partitioned_table_can_be_repaired(tmp_path: Path, columns: list[str]) -> None:
    held, shape = stored(tmp_path, columns), Shape(SCHEMA, ("id",), True)
    mine = [dict(zip(SCHEMA.names, row, strict=True)) for row in ROWS]
    moved = mine[0] | {"region": "south"}
    fresh = mine[0] | {"id": 9}
    found = [
        Difference({"id": 1}, (moved,), (mine[0],)),
        Difference({"id": 2}, (), (mine[1],)),
        Difference({"id": 9}, (fresh,), ()),
    ]
    apply(tmp_path, TS, held, shape, found)
    now = open_snapshot(tmp_path).tables["shop.t"].to_arrow().sort_by("id").to_pylist()
    assert now == [moved, *mine[2:], fresh]
