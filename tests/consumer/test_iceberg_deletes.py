"""Position delete files of Iceberg tables: what pyiceberg alone reads, and that there are never too many."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.typedef import Record
from typer.testing import CliRunner

from tests.consumer.at_iceberg import deletes_in_small_files
from tests.consumer.test_iceberg import BAG, HOUR_MS, KEYED, Written, dated, position, read, rows
from tidegate.cli.consumer import app
from tidegate.consumer.applying.net_effect import BagEffect
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.ddl.ddl_steps import Create
from tidegate.consumer.iceberg import position_deletes, table_files
from tidegate.consumer.iceberg.data_files import Touched
from tidegate.consumer.iceberg.maintenance import Tidying
from tidegate.consumer.iceberg.partitions import values_of
from tidegate.consumer.iceberg.snapshots import open_snapshot
from tidegate.consumer.iceberg.table_files import DELETES_MAX, TableFiles
from tidegate.consumer.iceberg.target import IcebergTarget
from tidegate.consumer.lakehouse import compaction
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.lakehouse.write_mode import TINY_BYTES, WORN, WriteMode, rewrites
from tidegate.consumer.table.partition_spec import PartitionField, Transform
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.errors import Fatal, InvalidInput

MERGE, COPY = WriteMode.MERGE_ON_READ, WriteMode.COPY_ON_WRITE


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    deletes_in_small_files(monkeypatch)


class Begun(Written):
    """A target of one table, in a write mode."""

    def __init__(self, root: Path, mode: WriteMode = MERGE) -> None:
        self.root = root
        self.target = IcebergTarget(root, mode=mode)
        if self.target.recover() is None:
            self.target.execute(Create(KEYED))

    def at_head(self) -> TableFiles:
        return self.lake.tables.files(self.path)

    def deletes(self) -> list[DataFile]:
        """The delete files, as pyiceberg alone plans them."""
        found = self.lake.tables.table(self.path).scan().plan_files()
        return list({file.file_path: file for task in found for file in task.delete_files}.values())

    def listed(self) -> list[DataFile]:
        """The delete files in manifests, also those that delete nothing any more."""
        table = self.lake.tables.table(self.path)
        return [f for f in self.lake.tables.manifests.files(table) if f.content != DataFileContent.DATA]


# --- when which


@pytest.mark.parametrize(
    ("mode", "lost", "size", "expected"),
    [
        (MERGE, 1, TINY_BYTES, False),
        (MERGE, 1, TINY_BYTES - 1, True),
        (MERGE, int(WORN * 1000) - 1, 1 << 30, False),
        (MERGE, int(WORN * 1000), 1 << 30, True),
        (COPY, 1, 1 << 30, True),
    ],
    ids=["few rows", "a tiny file", "almost many rows", "many rows", "copy-on-write"],
)
def test_a_file_is_rewritten_if_that_is_cheap_or_wanted(
    monkeypatch: pytest.MonkeyPatch, mode: WriteMode, lost: int, size: int, expected: bool
) -> None:
    deletes_in_small_files(monkeypatch, WORN)
    monkeypatch.setattr("tidegate.consumer.lakehouse.write_mode.TINY_BYTES", TINY_BYTES)
    assert rewrites(mode, lost, 1000, size) is expected


def test_a_file_that_loses_few_rows_stays_and_its_older_snapshot_too(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.commit(1)
    before, old = made.files(), made.lake.version(made.path)
    made.put({3: -3, 50: 50}, deletes=(5,))
    made.commit(2)
    assert before < made.files()
    (deletes,) = made.deletes()
    assert (deletes.content, deletes.record_count) == (DataFileContent.POSITION_DELETES, 2)
    expected = {key: key for key in range(40)} | {3: -3, 50: 50}
    del expected[5]
    assert made.held() == expected
    assert read(tmp_path, ("db", "t"), old) == {key: key for key in range(40)}
    assert open_snapshot(tmp_path).tables["db.t"].to_arrow().num_rows == 40
    made.target.close()


def test_manifests_say_that_they_list_delete_files(tmp_path: Path) -> None:
    """Engines look at the manifest list, and at the manifest's own header."""
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3})
    table = made.lake.tables.table(made.path)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    listed = snapshot.manifests(table.io)
    assert sorted(one.content for one in listed) == [ManifestContent.DATA] * 2 + [ManifestContent.DELETES]
    for one in listed:
        with AvroFile[Record](table.io.new_input(one.manifest_path)) as opened:
            assert opened.header.meta["content"] == one.content.name.lower()
    assert snapshot.summary is not None
    counted = {name: snapshot.summary[f"total-{name}"] for name in ("position-deletes", "delete-files")}
    assert counted == {"position-deletes": "1", "delete-files": "1"}
    assert snapshot.summary.operation.value == "overwrite"
    made.target.close()


def test_a_row_that_is_updated_often_is_deleted_once_in_each_file(tmp_path: Path) -> None:
    """And delete files are merged before they are many."""
    made = Begun(tmp_path)
    made.put({key: key for key in range(100)}, fresh=True)
    for at in range(3 * DELETES_MAX):
        made.put({7: at, 1000 + at: at})
        assert len(made.listed()) <= DELETES_MAX
        files = made.at_head()
        assert sum(map(files.dead, files.data_files)) == at + 1
    assert made.held()[7] == 3 * DELETES_MAX - 1
    assert len(made.held()) == 100 + 3 * DELETES_MAX
    made.target.close()


def test_no_delete_file_is_left_when_its_data_files_are_gone(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3})
    made.put({key: -key for key in range(40)})
    assert made.listed() == []
    assert made.held() == {key: -key for key in range(40)}
    made.put({4: 4})
    assert len(made.listed()) == 1
    made.lake.replace(made.path, KEYED.arrow_schema, made.lake.batches(made.path, KEYED.arrow_schema))
    assert made.listed() == []
    assert made.held() == {key: -key for key in range(40)} | {4: 4}
    made.target.close()


def test_only_key_columns_are_read_of_files_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Begun(tmp_path)
    for begin in (0, 100, 200):
        made.put({key: key for key in range(begin, begin + 50)}, fresh=True)
    seen, real = list[list[str]](), table_files.read

    def counted(table: Any, task: Any, columns: pa.Schema) -> pa.Table:
        seen.append(columns.names)
        return real(table, task, columns)

    monkeypatch.setattr(table_files, "read", counted)
    made.put({110: -1}, deletes=(120,))
    assert seen == [["id"]], "only the file whose bounds include the keys"
    made.target.close()


@pytest.mark.parametrize("of_type", [pa.int32(), pa.int64()], ids=str)
def test_numbers_are_found_in_rows_of_any_order(tmp_path: Path, of_type: pa.DataType) -> None:
    made, some = Begun(tmp_path), random.Random(1)
    metadata = made.lake.tables.table(made.path).metadata
    ends = [-(2**31), 2**31 - 1]
    for at in range(200):
        keys = some.sample([*ends, *range(-9, 9)], some.randrange(1, 8))
        held = some.sample([*ends, *range(-9, 9)], some.randrange(12)) + held_twice(some, at)
        table = pa.table({"id": pa.array(sorted(held) if at % 2 else held, of_type)})
        found = Touched(pa.table({"id": pa.array(keys, of_type)}), metadata).found_in(table)
        expected = [keys.index(key) if key in keys else -1 for key in table["id"].to_pylist()]
        assert found.tolist() == expected
    made.target.close()


def held_twice(some: random.Random, at: int) -> list[int]:
    """Sometimes a number that may be there already, as a dead row."""
    return [some.randrange(-9, 9)] if at % 5 == 0 else []


def test_equal_rows_without_a_key_are_deleted_one_by_one(tmp_path: Path) -> None:
    target = IcebergTarget(tmp_path)
    target.recover()
    target.execute(Create(BAG))
    schema = pa.schema([BAG.arrow_schema.field(column) for column in ("id", "n")])

    def put(values: list[tuple[int, int]], gone: list[tuple[int, int]], name: str) -> None:
        tables = [
            pa.table([[i for i, _ in some], [n for _, n in some]], schema=schema) for some in (values, gone)
        ]
        effect = BagEffect(tables[0], [f"{name}-{at}" for at in range(len(values))], tables[1])
        target.write([partial(TableChanges, BAG, effect)], position(0))

    put([(1, 1)] * 5 + [(2, 2)], [], "a")
    put([], [(1, 1), (1, 1)], "b")
    put([(2, 2)], [(1, 1)], "c")
    found = read_rows(tmp_path, ("db", "bag"))
    assert found == [(1, 1)] * 2 + [(2, 2)] * 2
    target.close()


def read_rows(root: Path, name: tuple[str, str]) -> list[tuple[int, int]]:
    catalog = SqlCatalog("tidegate", uri=f"sqlite:///{root}/catalog.db")
    found = catalog.load_table(name).scan().to_arrow()
    catalog.close()
    return sorted(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))


def test_each_partition_has_its_own_delete_files(tmp_path: Path) -> None:
    """A filter that leaves out a partition leaves out its delete files, too."""
    parted = replace(KEYED, partition_by=(PartitionField("n", Transform.BUCKET, 4),))
    target = IcebergTarget(tmp_path, mode=MERGE)
    target.recover()
    target.execute(Create(parted))
    path = target.tables["db", "t"].path
    target.lake.append(path, rows(KEYED, {key: key % 8 for key in range(80)}))
    target.lake.merge(path, rows(KEYED, {0: 1, 9: 9}), rows(KEYED, {16: 0}).select(["id"]), ["id"])
    table = target.lake.tables.table(path)
    for task in table.scan().plan_files():
        assert all(file.partition == task.file.partition for file in task.delete_files)
    expected = sorted([(key, key % 8) for key in range(80) if key not in (0, 9, 16)] + [(0, 1), (9, 9)])
    assert read_rows(tmp_path, ("db", "t")) == expected
    found = table.scan(EqualTo("n", 0)).to_arrow()
    assert sorted(found["id"].to_pylist()) == [key for key, n in expected if n == 0]
    target.close()


def test_null_and_the_text_none_are_two_partitions() -> None:
    """pyiceberg prints a partition's values as texts, in which they are one."""
    values = [Record(None), Record("None"), Record("a, b", "c"), Record("a", "b, c")]
    found = {values_of(DataFile.from_args(partition=one)) for one in values}
    assert found == {(None,), ("None",), ("a, b", "c"), ("a", "b, c")}


# --- rewriting what has too many dead rows


def test_before_a_snapshot_files_with_many_dead_rows_are_rewritten(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(100)}, fresh=True)
    (old,) = made.files()
    for begin in (0, 30):
        made.put({}, deletes=tuple(range(begin, begin + 30)))
        made.commit(begin + 1)
    assert old not in made.files()
    assert made.listed() == []
    assert made.held() == {key: key for key in range(60, 100)}
    made.target.close()


def test_compaction_copies_few_rows_for_each_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when all files of a table need it at once. Even so, no file has more dead rows than others."""
    deletes_in_small_files(monkeypatch, WORN)
    monkeypatch.setattr(compaction, "SMALL_BYTES", 0)
    made, some = Begun(tmp_path), random.Random(1)
    for begin in range(0, 2000, 200):
        made.put({key: key for key in range(begin, begin + 200)}, fresh=True)
    most = 0.0
    for at in range(24):
        made.put(dict.fromkeys(some.sample(range(2000), 40), at))
        files = made.at_head()
        before = {file.file_path: file.record_count - files.dead(file) for file in files.data_files}
        large = [file for file in files.data_files if file.record_count > 100]
        most = max(most, *(files.dead(file) / file.record_count for file in large))
        made.commit(at + 1)
        copied = sum(before[path] for path in before.keys() - made.files())
        assert copied <= compaction.COPIED_MAX * 40 + 200, "a file that waited, and what this commit pays for"
    assert WORN < most < 0.5
    files = made.at_head()
    total = sum(file.record_count for file in files.data_files)
    assert total - sum(map(files.dead, files.data_files)) == 2000 == len(made.held())
    made.target.close()


def test_after_a_change_of_mode_the_delete_files_disappear(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3})
    made.commit(1)
    assert made.listed()
    made.target.close()
    again = Begun(tmp_path, COPY)
    again.put({99: 99}, fresh=True)
    assert again.listed()
    again.commit(2)
    assert again.listed() == []
    assert again.held() == {key: key for key in range(40)} | {3: -3, 99: 99}
    again.target.close()


# --- restarts and upkeep


def test_a_table_does_not_come_back_without_its_delete_files(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({}, deletes=(3,))
    path, version = made.path, made.lake.version(made.path)
    made.lake.vanish(path)
    (deletes,) = made.listed()
    Path(deletes.file_path.removeprefix("file://")).unlink()
    with pytest.raises(Fatal, match="deleted already"):
        made.lake.move(path, "db", "t", version)
    made.target.close()


def test_deletes_that_no_snapshot_names_are_undone(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3})
    made.commit(1)
    made.put({}, deletes=(4, 5))
    made.target.close()
    again = Begun(tmp_path)
    assert again.held() == {key: key for key in range(40)} | {3: -3}
    again.put({}, deletes=(4,))
    assert again.held().keys() == set(range(40)) - {4}
    again.target.close()


def test_upkeep_keeps_the_delete_files_of_snapshots_and_no_others(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    for hour in (0, 30, 31):
        made.put({hour: -1})
        made.commit(hour * HOUR_MS)
    made.put({}, deletes=(2,))
    last = made.commit(31 * HOUR_MS + 1)
    dated(tmp_path, 2 * 3600)
    (tmp_path / made.path / "data" / "left-deletes.parquet").write_bytes(b"of a commit that died")
    dated(tmp_path, 2 * 3600)
    list(Tidying(made.lake, Upkeep(), made.target.dropped_versions).round(last))
    left = {path.name for path in (tmp_path / made.path / "data").glob("*-deletes.parquet")}
    assert left == {Path(file.file_path).name for file in made.listed()}
    seen = open_snapshot(tmp_path, position(30 * HOUR_MS).ts).tables["db.t"].to_arrow()
    assert sum(n == -1 for n in seen["n"].to_pylist()) == 2
    assert made.held().keys() == set(range(40)) - {2}
    made.target.close()


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_a_dictionary_whatever_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Updates, deletes, inserts, snapshots, restarts, changes of mode; pyiceberg alone reads."""
    some = random.Random(seed)
    deletes_in_small_files(monkeypatch, some.choice([0.3, 0.6, 1.1]))
    monkeypatch.setattr(table_files, "DELETES_MAX", 3)
    made, model, named, at = Begun(tmp_path), dict[int, int](), dict[int, int](), 0
    older: list[tuple[int, dict[int, int]]] = []
    for _ in range(30):
        at += 1
        match some.randrange(10):
            case 0:
                made.target.close()
                made, model = Begun(tmp_path, some.choice([MERGE, MERGE, COPY])), dict(named)
                if not older:
                    continue
            case 1 | 2:
                made.commit(at)
                named = dict(model)
                older.append((position(at).ts, named))
            case 3:
                fresh = {1000 * at + number: at for number in range(some.randrange(1, 40))}
                made.put(fresh, fresh=True)
                model |= fresh
            case _:
                keys = some.sample(sorted(model), min(len(model), some.randrange(1, 12)))
                gone = tuple(keys[: len(keys) // 3])
                come = dict.fromkeys(keys[len(keys) // 3 :], at) | {1000 * at: at}
                made.put(come, deletes=gone)
                model = {key: n for key, n in (model | come).items() if key not in gone}
        assert made.held() == model
    for ts, expected in older:
        seen = open_snapshot(tmp_path, ts).tables["db.t"].to_arrow()
        assert dict(zip(seen["id"].to_pylist(), seen["n"].to_pylist(), strict=True)) == expected
    made.target.close()


# --- the files themselves


@pytest.mark.parametrize("group_rows", [position_deletes.GROUP_ROWS, 4], ids=["a group", "two groups"])
def test_a_delete_file_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int
) -> None:
    monkeypatch.setattr(position_deletes, "GROUP_ROWS", group_rows)
    paths = {f"file:///data/{'ä' * 30}{at}.parquet": np.array([5, 1, 3 + at], np.uint32) for at in (2, 1)}
    io = PyArrowFileIO()
    (tmp_path / "data").mkdir()
    file = position_deletes.write(f"file://{tmp_path}", io, Record(), {p: [at] for p, at in paths.items()})
    found = position_deletes.read(file, io)
    assert {path: at.tolist() for path, at in found.items()} == {
        path: sorted(at.tolist()) for path, at in paths.items()
    }
    assert file.record_count == 6
    ends = (file.lower_bounds, file.upper_bounds)
    assert [end[position_deletes.PATH_ID].decode() for end in ends] == sorted(paths)


def test_contents_of_delete_files_are_remembered_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    io, known = PyArrowFileIO(), position_deletes.DeleteFiles()
    (tmp_path / "data").mkdir()
    files = [
        position_deletes.write(f"file://{tmp_path}", io, Record(), {"a": [np.arange(10, dtype=np.uint32)]})
        for _ in range(4)
    ]
    reads, real = list[str](), position_deletes.read

    def counted(file: DataFile, io: Any) -> Any:
        reads.append(file.file_path)
        return real(file, io)

    monkeypatch.setattr(position_deletes, "read", counted)
    monkeypatch.setattr(position_deletes, "REMEMBERED_MAX", 25)
    for file in (*files, files[3], files[0]):
        assert len(known.contents(file, io)["a"]) == 10
    assert reads == [file.file_path for file in (*files, files[0])]


# --- the option


def test_the_option_is_for_iceberg_and_has_two_values(tmp_path: Path) -> None:
    chosen = address_of(f"iceberg://{tmp_path}", Upkeep(), DatabaseSettings(), write_mode=COPY)
    assert getattr(chosen, "mode", None) is COPY
    assert getattr(address_of(f"iceberg://{tmp_path}", Upkeep(), DatabaseSettings()), "mode", None) is MERGE
    with pytest.raises(InvalidInput, match="write-mode is for Delta and Iceberg"):
        address_of(f"parquet://{tmp_path}", Upkeep(), DatabaseSettings(), write_mode=COPY)
    command = ["run", "--source", "kafka://h:1/t?protocol=open-protocol", "--write-mode", "copy"]
    done = CliRunner().invoke(app, [*command, "--target", f"iceberg://{tmp_path}"])
    assert done.exit_code == 2
    assert "copy-on-write" in done.output
