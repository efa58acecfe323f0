"""Partitioned tables at Delta and Iceberg: rows move between partitions, and no file has a wrong value.

Rows are read by delta-rs and pyiceberg alone. The partition values of files are those in the table's own
metadata, and are compared with the rows in the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from tests.consumer import at_delta, at_iceberg
from tests.consumer.logs import bank_topic, differences, snapshots
from tests.consumer.memory_topic import consume_into
from tests.consumer.one_table import KEY_FLAGS, Mark, OneTable, topic
from tests.consumer.test_ddl_at_target import message
from tests.consumer.topics import Event
from tidegate.consumer import snapshots as of_delta
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.delta import maintenance as delta_maintenance
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.iceberg import maintenance as iceberg_maintenance
from tidegate.consumer.iceberg import snapshots as of_iceberg
from tidegate.consumer.lakehouse.compaction import COMPACT_FILES as ICEBERG_FILES
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.selecting.rules import Rules
from tidegate.consumer.selecting.selection import Selection
from tidegate.errors import Fatal
from tidegate.model.timestamp import LOGICAL_BITS, compose
from tidegate.sink.lakehouse import delta_commit
from tidegate.sink.lakehouse.snapshot_rows import COMPACT_FILES as DELTA_FILES
from tidegate.workload.ddl import Action
from tidegate.workload.definitions import ColumnSpec, column_info

ITEMS = OneTable.of(
    [
        ColumnSpec("id", 8, 20, flag=KEY_FLAGS),
        ColumnSpec("region", 15, 100, text=True),
        ColumnSpec("day", 10, 10),
        ColumnSpec("n", 3, 11),
    ]
)
NAMES = ["id", "region", "day", "n"]
ODD = "a/b c%=+'`\"ü\n#"
"""A text with everything that paths, URLs and SQL treat in a special way."""
SECOND = 1000 << LOGICAL_BITS
Row = tuple[Any, ...]


class Reader(Protocol):
    """One kind of lakehouse, and an independent reader of its tables."""

    opened: Callable[..., Any]
    tidying: Any
    compact_files: int

    def applier(self, root: Path, rules: Rules) -> Applier: ...

    def read(self, root: Path, name: str) -> pa.Table: ...

    def files(self, root: Path, name: str) -> list[tuple[dict[str, Any], int]]:
        """Return the partition values of each file with its number of rows, both from the metadata."""


class OfDelta:
    opened, tidying = staticmethod(of_delta.open_snapshot), delta_maintenance.Tidying
    compact_files = DELTA_FILES

    def applier(self, root: Path, rules: Rules) -> Applier:
        return at_delta.applier_of(root, selection=Selection(rules))

    def read(self, root: Path, name: str) -> pa.Table:
        return DeltaTable(root / "shop" / name).to_pyarrow_table()

    def files(self, root: Path, name: str) -> list[tuple[dict[str, Any], int]]:
        table = DeltaTable(root / "shop" / name)
        found = []
        for action in pa.table(table.get_add_actions(flatten=False)).to_pylist():
            file = pq.read_table(root / "shop" / name / unquote(action["path"]), partitioning=None)
            assert file.num_rows == action["num_records"]
            assert not set(file.column_names) & set(table.metadata().partition_columns)
            found.append((action["partition"], file.num_rows))
        return found


class OfIceberg:
    opened, tidying = staticmethod(of_iceberg.open_snapshot), iceberg_maintenance.Tidying
    compact_files = ICEBERG_FILES

    def applier(self, root: Path, rules: Rules) -> Applier:
        return at_iceberg.applier_of(root, selection=Selection(rules))

    def table(self, root: Path, name: str) -> Table:
        catalog = SqlCatalog("tidegate", uri=f"sqlite:///{root}/catalog.db")
        try:
            return catalog.load_table(("shop", name))
        finally:
            catalog.close()

    def read(self, root: Path, name: str) -> pa.Table:
        return self.table(root, name).scan().to_arrow()

    def files(self, root: Path, name: str) -> list[tuple[dict[str, Any], int]]:
        table, found = self.table(root, name), []
        spec, schema = table.spec(), table.schema()
        transforms = [
            (field.name, schema.find_field(field.source_id), field.transform) for field in spec.fields
        ]
        for file in table.inspect.files().to_pylist():
            task = next(t for t in table.scan().plan_files() if t.file.file_path == file["file_path"])
            rows = pq.read_table(file["file_path"].removeprefix("file://"))
            for at, (_, column, transform) in enumerate(transforms):
                apply = transform.transform(column.field_type)
                values = {apply(physical(value)) for value in rows[column.name]}
                assert values == {task.file.partition[at]}, "each row belongs to the file's partition"
            names = [name for name, _, _ in transforms]
            found.append((dict(zip(names, task.file.partition, strict=True)), rows.num_rows))
        return found


def physical(value: pa.Scalar) -> Any:
    """A value as Iceberg's transforms take it."""
    if pa.types.is_date32(value.type):
        return value.cast(pa.int32()).as_py()
    return value.cast(pa.int64()).as_py() if pa.types.is_timestamp(value.type) else value.as_py()


def sorted_rows(table: pa.Table) -> list[Row]:
    return sorted(zip(*table.to_pydict().values(), strict=True), key=repr)


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> Reader:
    return {"delta": OfDelta(), "iceberg": OfIceberg()}[request.param]


RULES = Rules(partition_by=("shop.*:region",))


def by_region(files: Sequence[tuple[dict[str, Any], int]]) -> dict[Any, int]:
    """The rows of each partition."""
    found: dict[Any, int] = {}
    for values, count in files:
        found[values["region"]] = found.get(values["region"], 0) + count
    return found


def history() -> Iterator[tuple[list[Event], list[Row]]]:
    """Chapters of a table's life, with its rows at the end of each."""
    t = ITEMS
    north = (1, "north", "2024-01-02", 1)
    yield (
        [
            t.created(), t.change(110, None, north), t.change(111, None, (2, None, None, 2)),
            t.change(112, None, (3, ODD, "2024-01-03", 3)), t.change(113, None, (4, "north", None, 4)),
        ],
        [(1, "north", "2024-01-02", 1), (2, None, None, 2), (3, ODD, "2024-01-03", 3), (4, "north", None, 4)],
    )  # fmt: skip
    yield (
        [
            t.change(210, north, (1, ODD, "2024-01-02", 10)),
            t.change(211, (2, None, None, 2), (2, "north", None, 2)),
            t.change(212, (3, ODD, "2024-01-03", 3), (3, None, "2024-01-03", 3)),
            t.change(213, (4, "north", None, 4), None),
            t.change(214, None, (5, ODD, None, 5)),
        ],
        [(1, ODD, "2024-01-02", 10), (2, "north", None, 2), (3, None, "2024-01-03", 3), (5, ODD, None, 5)],
    )  # fmt: skip
    yield (
        [
            t.change(310, (5, ODD, None, 5), None),
            t.change(311, (3, None, "2024-01-03", 3), (3, "x", None, 3)),
        ],
        [(1, ODD, "2024-01-02", 10), (2, "north", None, 2), (3, "x", None, 3)],
    )


def shown(rows: Sequence[Row]) -> list[Row]:
    """The rows as readers get them."""
    dates = [row[2] and pa.scalar(row[2]).cast(pa.date32()).as_py() for row in rows]
    return sorted([(row[0], row[1], day, row[3]) for row, day in zip(rows, dates, strict=True)], key=repr)


@pytest.mark.parametrize("header", [True, False], ids=["with header", "guessed"])
def test_a_row_whose_partition_value_changes_moves(kind: Reader, tmp_path: Path, header: bool) -> None:
    """In one commit, and a restart in between changes nothing."""
    root, events = tmp_path / "target", list[Event]()
    for number, (chapter, rows) in enumerate(history()):
        events += [*chapter, Mark(100 * number + 190)]
        applier = kind.applier(root, RULES)
        consume_into(topic(events, header=header), applier, tmp_path / "staging")
        if number:
            assert applier.stats.commits == 1, "delete and insert are one commit"
        applier.target.close()
        assert sorted_rows(kind.read(root, "items").select(NAMES)) == shown(rows)
        expected: dict[Any, int] = {}
        for row in rows:
            expected[row[1]] = expected.get(row[1], 0) + 1
        assert by_region(kind.files(root, "items")) == expected
        held = kind.opened(root).tables["shop.items"].to_arrow()
        assert sorted_rows(held.select(NAMES)) == shown(rows), "as Tidegate's own reader sees it"


BANK = Rules(partition_by=("bank.transfers:region", "bank.audit*:what", "bank.notes2:", "bank_aux.*:"))
BUCKETS = Rules(
    partition_by=(
        "bank.transfers:region,bucket(2, id)",
        "bank.accounts:bucket(3, id)",
        "bank.*orders:day(placed)",
        "bank.scratch:truncate(10, a)",
    )
)


@pytest.mark.parametrize(
    ("kind", "rules", "last"),
    [("delta", BANK, 6), ("iceberg", BUCKETS, 2)],
    ids=["delta", "iceberg"],
    indirect=["kind"],
)
def test_the_bank_log_in_partitions_is_what_sql_saw(
    kind: Reader, tmp_path: Path, rules: Rules, last: int
) -> None:
    """With upkeep in between, and with DDLs on partitioned tables."""
    log, root = bank_topic("open-protocol", 6), tmp_path / "target"
    for at in (1, last):
        line = snapshots()[at]
        applier = kind.applier(root, rules)
        position = consume_into(log, applier, tmp_path / "staging", until=line.ts, size=3000, rows=20_000)
        target: Any = applier.target
        list(kind.tidying(target.lake, Upkeep(retention_hours=1), target.dropped_versions).round(position))
        applied = {name: table.partition_by for name, table in target.definitions.items()}
        for name, table in target.tables.items():
            assert target.lake.partition_spec(table.path) == applied[name]
        assert applied["bank", "transfers"][0].column == "region"
        target.close()
        assert differences(root, line, kind.opened) == {}
    assert differences(root, snapshots()[1], kind.opened) == {}


# --- keys and partitions


PAIRS = OneTable.of(
    [
        ColumnSpec("region", 15, 100, flag=KEY_FLAGS, text=True),
        ColumnSpec("id", 8, 20, flag=KEY_FLAGS),
        ColumnSpec("n", 3, 11),
    ]
)


def test_a_merge_reads_only_partitions_that_the_key_names(kind: Reader, tmp_path: Path) -> None:
    """Equal ids in all partitions, so that only the partition tells the files apart."""
    rows = [(region, number, 0) for region in ("a", "b", ODD) for number in range(3)]
    rules = RULES if isinstance(kind, OfDelta) else Rules(partition_by=("shop.*:truncate(2, region)",))
    first = [PAIRS.created(), *(PAIRS.change(110, None, row) for row in rows), Mark(120)]
    events = [*first, PAIRS.change(130, (ODD, 1, 0), (ODD, 1, 5)), PAIRS.change(131, ("a", 0, 0), None)]
    applier = kind.applier(tmp_path / "target", rules)
    consume_into(topic(first), applier, tmp_path / "staging")
    target: Any = applier.target
    (table,) = target.tables.values()
    before = names_of(kind, tmp_path / "target")
    consume_into(topic([*events, Mark(140)]), applier, tmp_path / "staging")
    target.close()
    stayed = before & names_of(kind, tmp_path / "target")
    assert len(stayed) == 1, "the file of partition b"
    assert len(sorted_rows(kind.read(tmp_path / "target", "items"))) == 8
    if isinstance(kind, OfDelta):
        (merge,) = DeltaTable(tmp_path / "target" / table.path).history(1)
        assert merge["operationMetrics"]["num_target_files_skipped_during_scan"] == 1


def names_of(kind: Reader, root: Path) -> set[str]:
    if isinstance(kind, OfDelta):
        return set(DeltaTable(root / "shop" / "items").file_uris())
    assert isinstance(kind, OfIceberg)
    return {task.file.file_path for task in kind.table(root, "items").scan().plan_files()}


# --- values that a format cannot have


@pytest.mark.parametrize("value", ["", "ü" * 100], ids=["an empty text", "a long text"])
def test_delta_refuses_a_value_that_it_would_change(kind: Reader, tmp_path: Path, value: str) -> None:
    root = tmp_path / "target"
    events = [ITEMS.created(), ITEMS.change(110, None, (1, "a", None, 1)), Mark(120)]
    applier = kind.applier(root, RULES)
    consume_into(topic(events), applier, tmp_path / "staging")
    for change in (
        ITEMS.change(130, None, (2, value, None, 2)),
        ITEMS.change(130, (1, "a", None, 1), (1, value, None, 1)),
    ):
        more = topic([*events, change, Mark(140)])
        if isinstance(kind, OfDelta):
            with pytest.raises(Fatal, match="by which no Delta table can be partitioned") as caught:
                consume_into(more, applier, tmp_path / "staging")
            assert "items, column region" in caught.value.where
            assert sorted_rows(kind.read(root, "items")) == [(1, "a", None, 1)]
    applier.target.close()
    if isinstance(kind, OfIceberg):
        applier = kind.applier(root, RULES)
        consume_into(more, applier, tmp_path / "staging")
        applier.target.close()
        assert sorted_rows(kind.read(root, "items")) == [(1, value, None, 1)]
        assert by_region(kind.files(root, "items")) == {value: 1}


# --- DDL and upkeep


class Life:
    """A target of the table, changed step by step."""

    def __init__(self, kind: Reader, root: Path) -> None:
        self.kind, self.root, self.ts = kind, root, compose(1_700_000_000_000)
        self.applier = kind.applier(root, RULES)
        self.target: Any = self.applier.target
        self.target.recover()

    def ddl(self, action: int, after: dict[str, Any] | None, before: dict[str, Any], table: str = "") -> None:
        self.ts += SECOND
        event = replace(
            ITEMS.ddl(self.ts, action, f"alter table items ({self.ts})", after), before=before, job_id=self.ts
        )
        self.applier.ddl([message(replace(event, table=table or "items"))])

    def put(self, *rows: Row, name: str = "items") -> None:
        table = self.target.tables["shop", name]
        schema = table.definition.arrow_schema
        columns = [
            pa.array(values, field.type)
            for values, field in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        self.target.lake.append(table.path, pa.table(columns, schema=schema))
        table.version, table.grown = self.target.lake.version(table.path), True

    def commit(self) -> Position:
        position = Position(self.ts, "t", "open-protocol", "transaction", {0: PartitionPosition(0, 1, 1)})
        return self.applier.commit(position)

    def restart(self) -> None:
        self.target.close()
        self.applier = self.kind.applier(self.root, RULES)
        self.target = self.applier.target
        self.target.recover()

    def spec(self, name: str = "items") -> str:
        table = self.target.tables["shop", name]
        held = self.target.lake.partition_spec(table.path)
        assert table.definition.partition_by == held
        return ", ".join(map(str, held))


@pytest.fixture
def life(kind: Reader, tmp_path: Path) -> Iterator[Life]:
    made = Life(kind, tmp_path / "target")
    made.applier.ddl([message(ITEMS.created())])
    yield made
    made.target.close()


def with_columns(*columns: tuple[int, ColumnSpec], default: str | None = None) -> dict[str, Any]:
    """The table with these columns, by TiDB's column id."""
    made = [column_info(number, at, column) for at, (number, column) in enumerate(columns)]
    if default is not None:
        made[-1] |= {"origin_default": default}
    return ITEMS.info | {"cols": made, "max_col_id": 9}


def test_other_ddls_keep_the_spec_and_the_order_of_columns(life: Life) -> None:
    ids, region, day, n = (
        ColumnSpec("id", 8, 20, flag=KEY_FLAGS), ColumnSpec("region", 15, 100, text=True),
        ColumnSpec("day", 10, 10), ColumnSpec("n", 3, 11),
    )  # fmt: skip
    note = ColumnSpec("note", 15, 10, text=True)
    life.put((1, "a", None, 1), (2, None, None, 2), (3, ODD, None, 3))
    added = with_columns((1, ids), (2, region), (3, day), (4, n), (5, note))
    life.ddl(Action.ADD_COLUMN, added, ITEMS.info)
    life.put((4, "b", None, 4, "x"))
    filled = with_columns((1, ids), (2, region), (3, day), (4, n), (5, note), (6, n), default="7")
    filled["cols"][-1]["name"] = {"O": "m", "L": "m"}
    life.ddl(Action.ADD_COLUMN, filled, added)
    moved = with_columns((4, n), (5, note), (2, region), (1, ids), (6, n))
    moved["cols"][-1]["name"] = {"O": "m", "L": "m"}
    life.ddl(Action.DROP_COLUMN, moved, filled)
    life.commit()
    life.restart()
    assert life.spec() == "region"
    assert sorted_rows(life.kind.read(life.root, "items")) == sorted(
        [(1, None, "a", 1, 7), (2, None, None, 2, 7), (3, None, ODD, 3, 7), (4, "x", "b", 4, 7)], key=repr
    )
    assert by_region(life.kind.files(life.root, "items")) == {"a": 1, None: 1, ODD: 1, "b": 1}


def test_rename_truncate_and_upkeep_keep_the_spec(life: Life) -> None:
    life.put((1, ODD, None, 1), (2, None, None, 2))
    life.commit()
    named = ITEMS.info | {"name": {"O": "things", "L": "things"}}
    life.ts += SECOND
    event = replace(
        ITEMS.ddl(life.ts, Action.RENAME_TABLE, "rename table items to things", named), table="things"
    )
    life.applier.ddl([message(event)])
    life.put((3, ODD, None, 3), name="things")
    position = life.commit()
    upkeep = Upkeep(retention_hours=0)
    list(life.kind.tidying(life.target.lake, upkeep, life.target.dropped_versions).round(position))
    life.restart()
    assert life.spec("things") == "region"
    rows = sorted_rows(life.kind.read(life.root, "things"))
    assert [row[0] for row in rows] == [1, 2, 3]
    assert by_region(life.kind.files(life.root, "things")) == {ODD: 2, None: 1}
    emptied = named | {"id": 99}
    life.ddl(Action.TRUNCATE_TABLE, emptied, named, table="things")
    life.put((4, "z", None, 4), name="things")
    life.commit()
    assert life.spec("things") == "region"
    assert by_region(life.kind.files(life.root, "things")) == {"z": 1}


def test_upkeep_deletes_files_of_partitions_that_nothing_needs(life: Life) -> None:
    for number in range(3):
        life.put((number, ODD, None, number))
        life.commit()
        table = life.target.tables["shop", "items"]
        keys = pa.table({"id": pa.array([number], pa.int64())})
        upserts = table.definition.arrow_schema.empty_table()
        life.target.lake.merge(table.path, upserts, keys, ["id"])
        table.version, life.ts = life.target.lake.version(table.path), life.ts + SECOND
    life.put((9, "kept", None, 9))
    position = life.commit()
    upkeep = Upkeep(retention_hours=0)
    removed = sum(life.kind.tidying(life.target.lake, upkeep, life.target.dropped_versions).round(position))
    assert removed >= 3
    left = [file for file in (life.root / "shop").rglob("*.parquet") if "checkpoint" not in file.name]
    assert len(left) == 1
    assert [row[0] for row in sorted_rows(life.kind.read(life.root, "items"))] == [9]


def test_compaction_joins_files_within_their_partition(life: Life) -> None:
    for number in range(life.kind.compact_files):
        life.put((number, "many", None, 1), (1000 + number, ODD if number % 2 else None, None, 2))
    life.commit()
    before = len(life.kind.files(life.root, "items"))
    assert before == 2 * life.kind.compact_files, "no partition has too many"
    life.put((5000, "many", None, 1))
    life.commit()
    files = life.kind.files(life.root, "items")
    half = life.kind.compact_files // 2
    assert by_region(files) == {"many": life.kind.compact_files + 1, ODD: half, None: half}
    assert sum(values["region"] == "many" for values, _ in files) == 1
    life.restart()
    assert life.spec() == "region"


def test_an_overwritten_delta_table_has_the_partition_columns_it_is_given(tmp_path: Path) -> None:
    """Also none: a table is made again under another rule, or after the rule has gone."""
    rows = pa.table({"id": [1, 2], "region": ["a", "b"]})
    write_deltalake(tmp_path, rows, partition_by=["region"])
    for columns in ([], ["id"]):
        delta_commit.overwrite(DeltaTable(tmp_path), rows.to_reader(), columns)
        assert DeltaTable(tmp_path).metadata().partition_columns == columns
        assert DeltaTable(tmp_path).to_pyarrow_table().sort_by("id").select(rows.column_names) == rows
