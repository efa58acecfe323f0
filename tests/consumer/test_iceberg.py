"""Iceberg tables as a target: what the suite over all targets cannot see from outside."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from typer.testing import CliRunner

from tests.consumer.at_iceberg import applier_of, deletes_in_small_files
from tests.consumer.logs import bank_topic, differences, snapshots
from tests.consumer.memory_topic import consume
from tidegate.cli.consumer import app
from tidegate.consumer.applying.apply import Sizes
from tidegate.consumer.applying.net_effect import BagEffect, Effect
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.ddl.ddl_steps import Create, Source
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.iceberg import catalog as of_catalog
from tidegate.consumer.iceberg import index as of_index
from tidegate.consumer.iceberg import manifests as of_manifests
from tidegate.consumer.iceberg import table_files as of_files
from tidegate.consumer.iceberg import tables as of_tables
from tidegate.consumer.iceberg.columns import evolution, iceberg_schema
from tidegate.consumer.iceberg.lake import IcebergLake
from tidegate.consumer.iceberg.maintenance import Tidying
from tidegate.consumer.iceberg.snapshots import open_snapshot
from tidegate.consumer.iceberg.target import IcebergTarget
from tidegate.consumer.lakehouse import compaction as of_compaction
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.table.convert import TargetColumn
from tidegate.consumer.table.definition import ROWID, Definition, from_info
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.errors import Fatal, Fenced, InvalidInput
from tidegate.model.timestamp import compose
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, table_info

HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000
COLUMNS = [ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY), ColumnSpec("n", 8, 20)]
KEYED = from_info("db", table_info(1, "t", COLUMNS, ["id"]), 1)
BAG = from_info("db", table_info(2, "bag", COLUMNS, ["id"]) | {"pk_is_handle": False}, 1)


def position(at: int) -> Position:
    part = {0: PartitionPosition(at, at, at)}
    return Position(compose(BEGIN_MS + at), "t", "open-protocol", "transaction", part)


def rows(made: Definition, values: dict[int, int]) -> pa.Table:
    schema = pa.schema([made.arrow_schema.field(name) for name in ("id", "n")])
    return pa.table([list(values), list(values.values())], schema=schema)


class Written:
    """A target of one table, `t`, written step by step."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.target = IcebergTarget(root)
        if self.target.recover() is None:
            self.target.execute(Create(KEYED))

    def put(self, values: dict[int, int], deletes: tuple[int, ...] = (), *, fresh: bool = False) -> None:
        gone = rows(KEYED, dict.fromkeys(deletes, 0)).select(["id"])
        effect = Effect(rows(KEYED, values), gone, np.full(len(values), fresh, np.bool_))
        self.target.write([partial(TableChanges, KEYED, effect)], position(0))

    def commit(self, at: int) -> Position:
        return self.target.commit(position(at))

    @property
    def lake(self) -> IcebergLake:
        return self.target.lake

    @property
    def path(self) -> str:
        return self.target.tables["db", "t"].path

    def files(self) -> set[str]:
        table = self.lake.tables.table(self.path)
        return {task.file.file_path for task in self.lake.tables.manifests.tasks(table)}

    def held(self) -> dict[int, int]:
        """At the table's newest snapshot, as pyiceberg alone reads it."""
        return read(self.root, ("db", "t"))


def read(root: Path, name: tuple[str, str], snapshot_id: int | None = None) -> dict[int, int]:
    catalog = SqlCatalog("tidegate", uri=f"sqlite:///{root}/catalog.db")
    found = catalog.load_table(name).scan(snapshot_id=snapshot_id).to_arrow()
    catalog.close()
    return dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))


# --- recorded logs


@pytest.mark.parametrize("deletes", [False, True], ids=["files rewritten", "delete files"])
def test_the_bank_log_is_what_sql_saw_and_older_snapshots_stay_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletes: bool
) -> None:
    if deletes:
        deletes_in_small_files(monkeypatch)
    topic, target = bank_topic("open-protocol", 6), tmp_path / "target"
    for at in (1, 2, 6):
        until = snapshots()[at].ts
        assert (
            consume(topic, target, until=until, size=900, rows=5000, applier=applier_of(target)).ts == until
        )
    for at in (1, 2, 6):
        assert differences(target, snapshots()[at], open_snapshot) == {}


def test_a_step_in_parts_is_seen_only_when_it_is_named(tmp_path: Path) -> None:
    line, target = snapshots()[1], tmp_path / "target"
    applier = applier_of(target, sizes=Sizes(step=1, part=40_000))
    topic = bank_topic("open-protocol", 1)
    consume(topic, target, until=line.ts, size=5000, applier=applier, rows=50_000)
    assert differences(target, line, open_snapshot) == {}
    assert applier.target.stats.commits > len(line.tables)


# --- one commit names all


def test_pyiceberg_alone_reads_the_rows_at_the_snapshot_ids_shown(tmp_path: Path) -> None:
    """The snapshot command shows the ids."""
    made = Written(tmp_path)
    made.put({1: 10, 2: 20}, fresh=True)
    made.commit(1)
    made.put({1: 11}, deletes=(2,))
    made.commit(2)
    made.put({3: 30}, fresh=True)  # no snapshot of the target names it
    for at, expected in ((1, {1: 10, 2: 20}), (2, {1: 11}), (9, {1: 11})):
        command = ["snapshot", "--target", f"iceberg://{tmp_path}", "--at", str(position(at).ts)]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0
        header, line = done.stdout.splitlines()
        assert header == f"snapshot {position(min(at, 2)).ts}"
        name, snapshot_id, where = line.split()
        assert (name, where) == ("db.t", "db.t")
        assert read(tmp_path, ("db", "t"), int(snapshot_id)) == expected
    assert made.held() == {1: 11, 3: 30}
    early = ["snapshot", "--target", f"iceberg://{tmp_path}", "--at", "1"]
    assert CliRunner().invoke(app, early).exit_code == 2
    made.target.close()


def test_a_batch_that_died_before_its_index_commit_disappears(tmp_path: Path) -> None:
    made = Written(tmp_path)
    made.put({1: 10, 2: 20}, fresh=True)
    made.commit(1)
    made.put({1: 99}, deletes=(2,))
    made.lake.add_null_columns(made.path, pa.schema([*KEYED.arrow_schema, pa.field("c", pa.int8())]))
    made.target.execute(Create(BAG))
    made.target.close()
    assert made.held() == {1: 99}
    again = Written(tmp_path)
    assert again.held() == {1: 10, 2: 20}
    assert again.lake.columns(again.path) == ["id", "n"]
    assert again.lake.table_paths() == [again.path], "the table that was never named is gone, with its files"
    assert [p.name for p in (tmp_path / "db").iterdir()] == [Path(again.path).name]
    again.target.close()


def test_older_snapshots_of_a_renamed_table_are_read_under_its_new_name(tmp_path: Path) -> None:
    made = Written(tmp_path)
    made.put({1: 10}, fresh=True)
    made.commit(1)
    made.lake.move(made.path, "db", "other")
    found = open_snapshot(tmp_path).tables["db.t"]
    assert found.identifier == ("db", "other")
    assert found.to_arrow()["n"].to_pylist() == [10]
    made.target.close()


def test_names_that_a_batch_swapped_before_it_died_are_swapped_back(tmp_path: Path) -> None:
    made = Written(tmp_path)
    made.put({1: 10}, fresh=True)
    made.target.execute(Create(BAG))
    made.commit(1)
    bag = made.target.tables["db", "bag"].path
    made.lake.move(made.path, "db", "spare")
    made.lake.move(bag, "db", "t")
    made.lake.move(made.path, "db", "bag")
    made.target.close()
    again = Written(tmp_path)
    assert again.held() == {1: 10}
    assert again.lake.tables.names()[bag] == ("db", "bag")
    again.target.close()


def test_a_table_that_came_back_in_a_batch_that_died_is_dropped_again(tmp_path: Path) -> None:
    made = Written(tmp_path)
    made.put({1: 10}, fresh=True)
    made.commit(1)
    path, version = made.path, made.lake.version(made.path)
    made.lake.vanish(path)
    del made.target.tables["db", "t"]
    made.commit(2)
    made.lake.move(path, "db", "t", version)
    made.target.close()
    target = IcebergTarget(tmp_path)
    target.recover()
    assert target.lake.tables.names()[path][0] == of_tables.DROPPED
    target.close()
    assert open_snapshot(tmp_path, position(1).ts).tables["db.t"].to_arrow()["n"].to_pylist() == [10]


def test_a_new_column_is_in_the_snapshot_though_no_row_was_written_since(tmp_path: Path) -> None:
    made = Written(tmp_path)
    made.put({1: 10}, fresh=True)
    made.commit(1)
    made.lake.add_null_columns(made.path, pa.schema([*KEYED.arrow_schema, pa.field("c", pa.int8())]))
    made.target.tables["db", "t"].version = made.lake.version(made.path)
    made.commit(2)
    for at, expected in ((1, ["id", "n"]), (2, ["id", "n", "c"])):
        assert open_snapshot(tmp_path, position(at).ts).tables["db.t"].to_arrow().column_names == expected
    made.target.close()


# --- a zombie


def test_a_consumer_that_was_replaced_commits_nothing(tmp_path: Path) -> None:
    """Without the lock of the directory, which a process on another machine may not see."""
    old = Written(tmp_path)
    old.put({1: 10}, fresh=True)
    old.commit(1)
    old.put({2: 20}, fresh=True)
    new = Written(tmp_path)
    for step in (
        lambda: old.commit(2),
        lambda: old.put({3: 30}, fresh=True),
        lambda: old.target.execute(Create(BAG)),
        lambda: old.lake.move(old.path, "db", "other"),
        lambda: list(Tidying(old.lake, Upkeep()).round(position(1))),
    ):
        with pytest.raises(Fenced, match="taken this target over"):
            step()
    assert new.held() == {1: 10}
    assert open_snapshot(tmp_path).ts == position(1).ts
    new.put({2: 21}, fresh=True)
    new.commit(2)
    assert new.held() == {1: 10, 2: 21}
    new.target.close()
    old.target.close()


@pytest.mark.parametrize("open_max", [64, 0], ids=["tables stay open", "tables are opened again"])
def test_a_commit_must_be_the_next_after_the_last_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_max: int
) -> None:
    """Also if the fence is missing: two writers of one catalog, which know nothing of each other."""
    monkeypatch.setattr(of_tables, "OPEN_MAX", open_max)
    monkeypatch.setattr(of_catalog.WriterCatalog, "take_over", lambda self: None)
    old = Written(tmp_path)
    old.put({1: 10}, fresh=True)
    old.commit(1)
    new = Written(tmp_path)
    new.put({2: 20}, fresh=True)
    new.commit(2)
    with pytest.raises(Fatal, match="at the same time"):
        old.commit(3)
    with pytest.raises(Fatal, match="at the same time"):
        old.put({3: 30}, fresh=True)
    assert open_snapshot(tmp_path).ts == position(2).ts
    assert new.held() == {1: 10, 2: 20}
    new.target.close()
    old.target.close()


# --- merges


def test_files_whose_keys_are_not_touched_stay_and_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Written(tmp_path)
    for begin in (0, 100, 200):
        made.put({key: key for key in range(begin, begin + 50, 2)}, fresh=True)
    before = made.files()
    read_files = set[str]()
    real = of_files.read

    def counted(table: Any, task: Any, columns: pa.Schema) -> pa.Table:
        read_files.add(task.file.file_path)
        return real(table, task, columns)

    monkeypatch.setattr(of_files, "read", counted)
    made.put({110: -1, 60: -2, 211: -3}, deletes=(120, 70))
    assert len(read_files) == 2, "the one is rewritten, the other has no such key between its bounds"
    assert len(before & made.files()) == 2
    expected = {key: key for begin in (0, 100, 200) for key in range(begin, begin + 50, 2)}
    expected |= {110: -1, 60: -2, 211: -3}
    del expected[120]
    assert made.held() == expected
    made.target.close()


def test_an_update_is_found_by_all_columns_of_a_key_of_any_type(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    lake.begin()
    schema = pa.schema(
        [
            pa.field("s", pa.string()),
            pa.field("d", pa.decimal128(20, 0)),
            pa.field("b", pa.binary()),
            pa.field("i", pa.int8()),
        ]
    )
    long = "ä" * 40
    texts = [f"{long}{at}" for at in range(4)] + ["", "z", "\U0010ffff", "\U0010ffff" * 20]
    large = [Decimal(2**64 - 1 - at) for at in range(8)]
    path = lake.make("db", "t", schema)
    keys = ["s", "d", "b"]
    raw = [bytes([255 - at]) * 30 for at in range(8)]
    table = pa.table([texts, large, raw, list(range(8))], schema=schema)
    for at in range(8):
        lake.append(path, table.slice(at, 1))
    lake.merge(
        path, table.set_column(3, "i", pa.array([-1] * 8, pa.int8())).slice(2), table.slice(0, 1), keys
    )
    (found,) = [pa.Table.from_batches(list(lake.batches(path, schema)))]
    assert sorted(found["i"].to_pylist()) == [-1] * 6 + [1]
    assert found.schema.types == schema.types, "rows come back in the definition's types"
    lake.close()


def test_small_files_become_one_and_manifests_stay_few(tmp_path: Path) -> None:
    made = Written(tmp_path)
    for at in range(30):
        made.put({at: at}, fresh=True)
        made.put({at: at + 1})
        made.commit(at + 1)
    assert len(made.files()) <= of_compaction.COMPACT_FILES + 1
    table = made.lake.tables.table(made.path)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) < 12
    assert len(made.lake.tables.manifests.tasks(made.lake.snapshots.table())) <= of_index.FILES_MAX + 1
    assert len(made.lake.snapshots.rows()) == 1
    assert made.held() == {at: at + 1 for at in range(30)}
    made.target.close()


def test_manifests_stay_few_also_between_compactions(tmp_path: Path) -> None:
    """Also those that list only deleted files: pyiceberg itself keeps each of them for ever."""
    made = Written(tmp_path)

    def manifests() -> list[Any]:
        table = made.lake.tables.table(made.path)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        return list(snapshot.manifests(table.io))

    for at in range(20):
        made.put({at: at}, fresh=True)
    assert len(manifests()) <= of_manifests.SMALL_MAX + 2
    made.put(dict.fromkeys(range(20), -1))
    made.put({20: 20}, fresh=True)
    assert all(one.has_added_files() or one.has_existing_files() for one in manifests())
    assert made.held() == {**dict.fromkeys(range(20), -1), 20: 20}
    made.target.close()


def test_a_bag_loses_as_many_equal_rows_as_were_deleted(tmp_path: Path) -> None:
    target = IcebergTarget(tmp_path)
    target.recover()
    target.execute(Create(BAG))

    def put(values: list[tuple[int, int]], gone: list[tuple[int, int]], name: str) -> None:
        names = [f"{name}-{at}" for at in range(len(values))]
        come, left = (pa.Table.from_pylist([{"id": i, "n": n} for i, n in some]) for some in (values, gone))
        schema = pa.schema([BAG.arrow_schema.field(column) for column in ("id", "n")])
        come, left = (some if some.num_columns else schema.empty_table() for some in (come, left))
        effect = BagEffect(come.cast(schema), names, left.cast(schema))
        target.write([partial(TableChanges, BAG, effect)], position(0))

    put([(1, 1), (1, 1), (2, 2)], [], "a")
    put([(1, 1), (3, 3)], [], "b")
    put([(4, 4)], [(1, 1), (1, 1), (3, 3), (9, 9)], "c")
    path = target.tables["db", "bag"].path
    found = pa.Table.from_batches(list(target.lake.batches(path, BAG.arrow_schema)))
    assert sorted(found["id"].to_pylist()) == [1, 2, 4]
    assert ROWID in found.column_names
    assert target.stats.missing_deletes == 1
    target.close()


# --- columns


def column(name: str, of_type: pa.DataType, elems: tuple[str, ...] = ()) -> TargetColumn:
    return TargetColumn(name, 3, of_type, elems)


OLD = {name: column(name, pa.int32()) for name in "abc"}


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([Source(OLD["b"], OLD["b"]), Source(OLD["a"], OLD["a"])], (("c",), (), ())),
        ([Source(column("b", pa.int32()), OLD["a"])], (("b", "c"), (("a", "b"),), ())),
        ([Source(column("a", pa.int64()), OLD["a"])], (("b", "c"), (), (("a", pa.int64()),))),
        ([Source(column("a", pa.int16()), OLD["a"])], (("b", "c"), (), ())),
        ([Source(column("a", pa.string()), OLD["a"])], None),
        ([Source(column("d", pa.int32()), None, pa.scalar(7, pa.int32()))], None),
        ([Source(column("a", pa.int32(), ("x",)), OLD["a"])], None),
    ],
    ids=["drop and order", "rename", "wider", "stored alike", "other type", "filled", "names for numbers"],
)
def test_a_change_is_made_in_place_only_if_old_files_read_as_tidb_has_it(
    sources: list[Source], expected: Any
) -> None:
    held = iceberg_schema(pa.schema([pa.field(name, pa.int32()) for name in "abc"]))
    found = evolution(held, pa.schema([(s.column.name, s.column.type) for s in sources]), sources)
    assert (None if found is None else (found.drops, found.renames, found.widened)) == expected


def test_renamed_dropped_widened_and_moved_columns_keep_values_and_files(tmp_path: Path) -> None:
    """Two of the columns swap their names."""
    lake = IcebergLake(tmp_path)
    lake.begin()
    schema = pa.schema([("id", pa.int32()), ("a.b", pa.int32()), ("c d", pa.string()), ("gone", pa.int8())])
    path = lake.make("db", "t", schema)
    lake.append(path, pa.table([[1], [2], ["x"], [3]], schema=schema))
    was = lake.version(path)
    made = pa.schema([("c d", pa.int64()), ("a.b", pa.string()), ("id", pa.int64()), ("gone", pa.string())])
    old = {field.name: column(field.name, field.type) for field in schema}
    sources = [
        Source(column("c d", pa.int64()), old["a.b"]),
        Source(column("a.b", pa.string()), old["c d"]),
        Source(column("id", pa.int64()), old["id"]),
        Source(column("gone", pa.string()), None),
    ]
    assert lake.evolve(path, made, sources)
    assert lake.holds(path, made)
    lake.merge(path, pa.table([[7], ["y"], [2**40], [None]], schema=made), made.empty_table(), ["id"])
    found = pa.Table.from_batches(list(lake.batches(path, made))).sort_by("id").to_pylist()
    assert found == [
        {"c d": 2, "a.b": "x", "id": 1, "gone": None},
        {"c d": 7, "a.b": "y", "id": 2**40, "gone": None},
    ]
    lake.merge(path, made.empty_table(), pa.table({"id": pa.array([1], pa.int64())}), ["id"])
    assert [row["id"] for batch in lake.batches(path, made) for row in batch.to_pylist()] == [2**40]
    assert lake.restore(path, was)
    assert lake.holds(path, schema)
    assert pa.Table.from_batches(list(lake.batches(path, schema))).to_pylist() == [
        {"id": 1, "a.b": 2, "c d": "x", "gone": 3}
    ]
    lake.close()


# --- upkeep


def dated(root: Path, age_s: float) -> None:
    """All files are so old."""
    then = time.time() - age_s
    for file in root.rglob("*"):
        if file.is_file():
            os.utime(file, (then, then))


def test_upkeep_thins_snapshots_and_deletes_what_none_has(tmp_path: Path) -> None:
    made = Written(tmp_path)
    for hour in (0, 30, 31):
        made.put({1: hour, hour + 2: hour})
        made.target.commit(position(hour * HOUR_MS))
    made.put({1: 99})
    last = made.target.commit(position(31 * HOUR_MS + 1))
    dated(tmp_path, 2 * 3600)
    before = len(list(tmp_path.rglob("*.parquet")))
    list(Tidying(made.lake, Upkeep(), made.target.dropped_versions).round(last))
    assert len(list(tmp_path.rglob("*.parquet"))) < before
    with pytest.raises(InvalidInput, match="no such snapshot"):
        open_snapshot(tmp_path, position(0).ts)
    for hour, expected in ((30, 30), (31, 31)):
        found = open_snapshot(tmp_path, position(hour * HOUR_MS).ts)
        assert found.ts == position(hour * HOUR_MS).ts
        held = found.tables["db.t"].to_arrow()
        assert dict(zip(held["id"].to_pylist(), held["n"].to_pylist(), strict=True))[1] == expected
    made.put({1: 100})
    made.target.close()
    again = Written(tmp_path)
    assert again.held()[1] == 99
    again.target.close()


def test_young_files_stay_for_readers_that_have_just_opened_a_snapshot(tmp_path: Path) -> None:
    made = Written(tmp_path)
    made.put({1: 1}, fresh=True)
    made.target.commit(position(0))
    made.put({1: 2})
    last = made.target.commit(position(30 * HOUR_MS))
    before = set(tmp_path.rglob("*.parquet"))
    list(Tidying(made.lake, Upkeep()).round(last))
    assert before - set(tmp_path.rglob("*.parquet")) == set()
    made.target.close()


# --- addresses


def test_an_address_is_an_absolute_directory(tmp_path: Path) -> None:
    address = address_of(f"iceberg://{tmp_path}/lake", Upkeep(), DatabaseSettings())
    assert str(address) == f"iceberg://{tmp_path}/lake"
    assert address.look().position is None
    assert not (tmp_path / "lake").exists(), "looking makes nothing"
    with pytest.raises(InvalidInput, match="directory"):
        address_of("iceberg://lake", Upkeep(), DatabaseSettings())
    with pytest.raises(InvalidInput, match="character"):
        address_of(f"iceberg://{tmp_path}/a%b", Upkeep(), DatabaseSettings()).look()


def test_a_directory_with_blanks_works_and_a_schema_of_our_name_is_refused(tmp_path: Path) -> None:
    made = Written(tmp_path / "a directory")
    made.put({1: 1}, fresh=True)
    made.commit(1)
    with pytest.raises(Fatal, match="own namespaces"):
        made.target.execute(Create(replace(KEYED, schema=of_tables.DROPPED)))
    assert made.held() == {1: 1}
    assert len(list((tmp_path / "a directory" / made.path).rglob("*.parquet"))) == 1
    made.target.close()


def test_a_foreign_directory_is_rejected_but_a_new_catalog_is_accepted(
    tmp_path: Path,
) -> None:
    for name, made in (("files", "photo.jpg"), ("catalog", "photo.jpg"), ("begun", "")):
        root = tmp_path / name
        root.mkdir()
        if made:
            (root / made).write_bytes(b"not to be lost")
        if name != "files":
            SqlCatalog("somebody" if made else "tidegate", uri=f"sqlite:///{root}/catalog.db").close()
        if made:
            with pytest.raises(InvalidInput, match="something else"):
                IcebergLake(root).check()
        else:
            IcebergLake(root).check()


def test_a_catalog_that_has_tables_and_no_table_of_snapshots_is_refused(tmp_path: Path) -> None:
    catalog = SqlCatalog("tidegate", uri=f"sqlite:///{tmp_path}/catalog.db")
    catalog.create_namespace(("db",))
    catalog.create_table(("db", "theirs"), KEYED.arrow_schema, f"file://{tmp_path}/elsewhere")
    catalog.close()
    with pytest.raises(InvalidInput, match="no table of snapshots") as refused:
        IcebergLake(tmp_path).check()
    assert "db.theirs" in refused.value.where


def test_a_target_that_is_just_being_made_has_no_snapshot_yet(tmp_path: Path) -> None:
    (tmp_path / of_catalog.FILE).touch()
    with pytest.raises(InvalidInput, match="no such snapshot"):
        open_snapshot(tmp_path)


def test_the_columns_of_tables_are_shown_without_taking_the_target_over(tmp_path: Path) -> None:
    root = tmp_path / "target"
    address = address_of(f"iceberg://{root}", Upkeep(), DatabaseSettings())
    assert address.definitions() == {}
    target = IcebergTarget(root)
    target.recover()
    target.execute(Create(KEYED))
    target.commit(position(1))
    target.execute(Create(BAG))  # no snapshot names it yet
    assert address.definitions() == {("db", "t"): KEYED}
    target.commit(position(2))
    assert address.definitions() == {("db", "t"): KEYED, ("db", "bag"): BAG}
    target.close()


def test_commits_between_two_pieces_of_upkeep_lose_and_double_nothing(tmp_path: Path) -> None:
    """New tables, and snapshots that are named while a round is under way, are not of its decision."""
    target = IcebergTarget(tmp_path)
    target.recover()
    target.execute(Create(KEYED))

    def write(at: int, made: Definition) -> None:
        effect = Effect(rows(made, {at: at}), rows(made, {}).select(["id"]), np.array([True]))
        target.write([lambda: TableChanges(made, effect)], position(at))
        target.commit(position(at))

    hours = range(0, 40 * HOUR_MS, HOUR_MS // 2)
    for at in hours:
        write(at, KEYED)
    last, named, tables = hours[-1], dict[int, int](), 0
    tidying = Tidying(target.lake, Upkeep(retention_hours=12, all_hours=1, minute_hours=2))
    for _ in tidying.round(position(last)):
        last += 1000
        if tables < 4:
            tables += 1
            made = replace(KEYED, table=f"later_{tables}", table_id=100 + tables)
            target.execute(Create(made))
            write(last, made)
        write(last + 1, KEYED)
        last += 1
        named[last] = len(hours) + len(named) + 1
    for at, count in named.items():
        seen = open_snapshot(tmp_path, compose(BEGIN_MS + at)).tables
        assert seen["db.t"].to_arrow().num_rows == count
    kept = of_index.Index(target.lake.tables).table().scan().to_arrow()
    pairs = list(zip(kept["ts"].to_pylist(), kept["path"].to_pylist(), strict=True))
    assert len(pairs) == len(set(pairs)), "a row of the index is there once"
    target.close()
    again = IcebergTarget(tmp_path)
    again.recover()
    assert {name for _, name in again.tables} == {"t", *(f"later_{n}" for n in range(1, tables + 1))}
    again.close()


def test_a_file_that_is_not_the_tables_is_never_replaced(tmp_path: Path) -> None:
    target = IcebergTarget(tmp_path)
    target.recover()
    target.execute(Create(KEYED))
    (path,) = target.lake.table_paths()
    target.lake.append(path, rows(KEYED, {1: 1}))
    (stale,) = target.lake.tables.manifests.tasks(target.lake.tables.table(path))
    target.lake.merge(path, rows(KEYED, {1: 2}), rows(KEYED, {}).select(["id"]), ["id"])
    with (
        pytest.raises(AssertionError, match="the files that are replaced"),
        target.lake.tables.writing(path) as w,
    ):
        target.lake.tables.manifests.commit(w, w.io, [stale.file], [])
    target.close()


def test_a_text_that_pyiceberg_cannot_bound_is_written_and_found(tmp_path: Path) -> None:
    made = from_info(
        "db", table_info(1, "t", [ColumnSpec("id", 15, 80, flag=NOT_NULL | PRIMARY, text=True)], ["id"]), 1
    )
    target = IcebergTarget(tmp_path)
    target.recover()
    target.execute(Create(made))
    (path,) = target.lake.table_paths()
    names = ["a", "b" * 15 + "\ud7ff" + "z"]
    held = pa.table([names], schema=made.arrow_schema)
    target.lake.append(path, held)
    target.lake.merge(path, held.slice(0, 0), held.slice(1, 1), ["id"])
    left = target.lake.batches(path, made.arrow_schema)
    assert [batch.to_pydict()["id"] for batch in left if batch.num_rows] == [["a"]]
    target.close()


def test_files_of_many_rows_that_are_small_on_disk_are_compacted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_compaction, "FILE_BYTES", 1000)
    target = IcebergTarget(tmp_path)
    target.recover()
    target.execute(Create(KEYED))
    (path,) = target.lake.table_paths()
    for at in range(12):
        target.lake.append(path, rows(KEYED, {at * 100 + n: 7 for n in range(100)}))
    assert target.lake.compact(path, ["id"])
    assert not target.lake.compact(path, ["id"])
    tasks = target.lake.tables.manifests.tasks(target.lake.tables.table(path))
    assert len(tasks) == 12, "each had as many rows as one file takes"
    target.close()


def test_index_rows_rewritten_by_a_concurrent_commit_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = IcebergTarget(tmp_path)
    target.recover()
    target.execute(Create(KEYED))
    for at in range(8):
        target.commit(position(at))
    monkeypatch.setattr(of_index, "FILES_MAX", 3)
    index, gone = target.lake.snapshots, {compose(BEGIN_MS + at) for at in (1, 3, 5)}
    for at, _ in enumerate(index.forget(gone), 100):
        target.commit(position(at))  # it writes the small files of the table as one
    held = index.table().scan().to_arrow().select(["ts", "path"]).to_pylist()
    assert len(held) == len({tuple(row.values()) for row in held})
    for _ in index.forget(gone):
        pass
    left = set(index.all_ts())
    assert not left & gone
    assert {compose(BEGIN_MS + at) for at in (0, 2, 4, 6, 7, 100)} <= left
    target.close()


def test_snapshots_of_a_database_are_refused_in_words() -> None:
    done = CliRunner().invoke(app, ["snapshot", "--target", "mysql://root@127.0.0.1:1/"])
    assert done.exit_code == 2
    assert "a database has no snapshots" in done.output
