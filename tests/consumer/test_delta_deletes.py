"""Deletion vectors of Delta tables: what delta-rs alone reads, at any version, and what a commit writes."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from tests.consumer.at_delta import applier_of
from tests.consumer.at_iceberg import deletes_in_small_files
from tests.consumer.delta_table import MERGE, Begun, as_values, trim
from tests.consumer.logs import bank_topic, differences, snapshots
from tests.consumer.memory_topic import consume
from tests.consumer.test_iceberg import BAG, KEYED, position, rows
from tests.fixtures.s3 import S3Place
from tidegate.consumer.applying.apply import Sizes
from tidegate.consumer.applying.net_effect import BagEffect
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.ddl.ddl_steps import Create
from tidegate.consumer.delta.lake import DeltaLake
from tidegate.consumer.delta.maintenance import tidy
from tidegate.consumer.delta.target import DeltaTarget
from tidegate.consumer.lakehouse import compaction
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.lakehouse.write_mode import WORN
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.table.partition_spec import PartitionField, Transform
from tidegate.errors import Fatal, InvalidInput
from tidegate.sink.lakehouse import vector_tables
from tidegate.sink.lakehouse.object_store import ObjectStore
from tidegate.verify import target as at_target
from tidegate.verify.ranges import Cuts
from tidegate.verify.side import Shape


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    deletes_in_small_files(monkeypatch)


def test_a_file_that_loses_few_rows_stays_and_its_older_version_too(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.commit(1)
    before, old = made.files(), made.lake.version(made.path)
    made.put({3: -3, 50: 50}, deletes=(5,))
    made.commit(2)
    (name,) = before
    assert made.files()[name].dead == 2
    expected = {key: key for key in range(40)} | {3: -3, 50: 50}
    del expected[5]
    assert made.held() == expected
    assert made.held(old) == {key: key for key in range(40)}
    query = QueryBuilder().register("t", made.delta()).execute("SELECT count(*) AS c, min(n) AS m FROM t")
    assert pa.table(query.read_all()).to_pylist() == [{"c": 40, "m": -3}]
    made.target.close()


def test_only_a_table_that_has_lost_rows_asks_for_readers_that_know_it(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    assert made.delta().protocol().min_reader_version == 1
    made.put({3: -3})
    protocol = made.delta().protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ["deletionVectors"]
    assert sorted(protocol.writer_features or ()) == ["appendOnly", "deletionVectors", "invariants"]
    assert made.delta().metadata().configuration["delta.enableDeletionVectors"] == "true"
    made.put({4: -4})
    lines = (made.log() / f"{made.lake.version(made.path):020d}.json").read_text().splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["commitInfo", "remove", "add", "add"]
    with pytest.raises(Exception, match="deletionVectors"):
        made.delta().to_pyarrow_table()  # the reader of deltalake that does not know them says so
    made.target.close()


def test_a_row_that_is_updated_often_is_deleted_once_in_each_file(tmp_path: Path) -> None:
    """Files that have only dead versions of it get no new vector."""
    made = Begun(tmp_path)
    made.put({key: key for key in range(100)}, fresh=True)
    for at in range(8):
        made.put({7: at, 1000 + at: at})
        lines = (made.log() / f"{made.lake.version(made.path):020d}.json").read_text().splitlines()
        assert sum(line.startswith('{"add"') for line in lines) == 2, "the file that loses it, and a new one"
        assert sum(file.dead for file in made.files().values()) == at + 1
    assert made.held()[7] == 7
    made.target.close()


@pytest.mark.parametrize("checkpoint", [False, True], ids=["the log alone", "checkpoints"])
def test_any_sequence_of_changes_is_what_a_dictionary_says(tmp_path: Path, checkpoint: bool) -> None:
    """Also with restarts, restores, renames, and a log whose commits are only in checkpoints."""
    made, some, model, dead = Begun(tmp_path), random.Random(3), dict.fromkeys(range(200), 0), 0
    made.put(model, fresh=True)
    made.commit(1)
    before = dict(model)
    for at in range(1, 40):
        changed = some.sample(range(240), 12)
        up, gone = dict.fromkeys(changed[:8], at), tuple(changed[8:])
        made.put(up, deletes=gone)
        model = {key: n for key, n in (model | up).items() if key not in gone}
        if at % 3 == 0:
            made.commit(at + 1)
            before = dict(model)
        if at % 7 == 0:  # a new process, which undoes what no snapshot names
            made.target.close()
            made, model = Begun(tmp_path, None), dict(before)
        if checkpoint and at % 5 == 0:
            made.delta().create_checkpoint()
            trim(made)
        assert made.held() == model
        if checkpoint:
            assert as_values(DeltaLake(tmp_path).read(made.path)) == model, "as another process reads it"
        dead += sum(file.dead for file in made.files().values())
    assert dead > 100
    made.target.close()


def test_checkpoints_are_made_as_often_as_by_delta_rs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they keep the vectors: otherwise deleted rows would come back."""
    monkeypatch.setattr(vector_tables, "CHECKPOINT_EVERY", 5)
    made = Begun(tmp_path)
    made.put({key: key for key in range(100)}, fresh=True)
    for at in range(7):
        made.put({at: -1})
    assert (made.log() / f"{4:020d}.checkpoint.parquet").exists()
    made.delta().create_checkpoint()
    trim(made)
    assert list(made.held().values()).count(-1) == 7
    made.target.close()


def test_a_commit_of_someone_else_stops_the_consumer(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    real = made.lake.store.create

    def raced(key: str, data: bytes) -> bool:
        if key.endswith(".json"):
            write_deltalake(made.delta(), rows(KEYED, {900: 9}), mode="append")
        return real(key, data)

    made.lake.store.create = raced  # type: ignore[method-assign]
    with pytest.raises(Fatal, match="somebody else has written"):
        made.put({3: -3})
    assert made.held() == {key: key for key in range(40)} | {900: 9}, "theirs is whole, ours is not there"
    made.target.close()


@pytest.mark.parametrize("compacts", [False, True], ids=["a merge", "a compaction"])
def test_a_commit_while_files_are_written_stops_the_consumer(tmp_path: Path, compacts: bool) -> None:
    """Otherwise the rows of the files that it has replaced would be there twice."""
    made = Begun(tmp_path)
    for begin in range(0, 40, 2):
        made.put({key: key for key in range(begin, begin + 2)}, fresh=True)
    version, real, raced = made.lake.version(made.path), made.lake.store.create, list[str]()

    def create(key: str, data: bytes) -> bool:
        if key.endswith(".parquet") and not raced:
            raced.append(key)
            made.delta().optimize.compact()
        return real(key, data)

    made.lake.store.create = create  # type: ignore[method-assign]
    write = partial(made.lake.compact, made.path, ["id"]) if compacts else partial(made.put, {3: -3})
    with pytest.raises(Fatal, match="somebody else has written") as caught:
        write()
    assert caught.value.why.startswith(f"version {version + 1} is not this consumer's")
    assert made.held() == {key: key for key in range(40)}, "ours is not there"
    made.target.close()


def test_two_programs_never_get_the_same_version(tmp_path: Path) -> None:
    """The name is given by a link, which fails if the other file came a moment ago."""
    made = Begun(tmp_path)
    key = "db/t/_delta_log/00000000000000000009.json"
    real = Path.exists
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: False if path.name.startswith("0000") else real(path))
        assert made.lake.store.create(key, b"1")
        assert not made.lake.store.create(key, b"2")
    assert made.lake.store.get(key) == b"1"
    made.target.close()


def test_a_restart_undoes_commits_as_one_that_says_so(tmp_path: Path) -> None:
    """A second restart finds by it that nothing is left to undo. Files that went are named again."""
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3}, deletes=(5,))
    made.commit(1)
    named, expected = made.lake.version(made.path), made.held()
    made.put({4: -4, 6: -6})
    made.put(dict.fromkeys(range(40), -1))
    made.target.close()
    for _ in range(2):
        made = Begun(tmp_path, None)
        assert made.lake.version(made.path) == named + 3
        assert made.held() == expected
        made.target.close()
    assert made.delta().history(1)[0]["operation"] == "RESTORE"
    assert made.delta().protocol().reader_features == ["deletionVectors"], "delta-rs would add variantType"


def test_a_restore_of_files_that_are_gone_is_refused(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3}, deletes=(5,))
    version = made.lake.version(made.path)
    made.put({4: -4})
    for file in (tmp_path / made.path).glob("*.bin"):
        file.unlink()
    with pytest.raises(Fatal, match="deleted already"):
        made.lake.restore(made.path, version)
    made.target.close()


# --- readers


def test_what_cannot_leave_deleted_rows_out_is_refused(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.commit(1)
    held = open_snapshot(tmp_path).tables["db.t"]
    assert held.dataset().count_rows() == 40
    assert len(held.files()) == 1
    made.put({3: -3}, deletes=(5,))
    made.commit(2)
    held = open_snapshot(tmp_path).tables["db.t"]
    for read in (held.dataset, held.files):
        with pytest.raises(InvalidInput, match="deleted rows"):
            read()
    assert held.to_arrow(["n"]).num_rows == sum(batch.num_rows for batch in held.batches()) == 39
    assert held.columns.names == ["id", "n"]
    (dead,) = held.deleted_rows().values()
    assert dead.tolist() == [3, 5]
    made.target.close()


def test_the_bank_log_is_what_sql_saw_and_older_snapshots_stay_readable(tmp_path: Path) -> None:
    topic, target = bank_topic("open-protocol", 6), tmp_path / "target"
    for at in (1, 2, 6):
        until = snapshots()[at].ts
        applier = applier_of(target, mode=MERGE)
        assert consume(topic, target, until=until, size=900, rows=5000, applier=applier).ts == until
    for at in (1, 2, 6):
        assert differences(target, snapshots()[at]) == {}
    features = {tuple(table.protocol().reader_features or ()) for table in tables_of(target)}
    assert any("deletionVectors" in some for some in features)


def test_a_verification_reads_the_rows_that_are_not_deleted(tmp_path: Path) -> None:
    """Its tasks read groups of rows, so each group has the deleted rows among its own."""
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3}, deletes=(5, 39))
    made.commit(1)
    held = open_snapshot(tmp_path).tables["db.t"]
    shape = Shape(held.columns, ("id",), True)
    pieces = at_target.pieces_of(held.data_files(), shape, held.partition_values(), held.deleted_rows())
    assert sum(piece.rows for piece in pieces) == 38
    assert (
        as_values(pa.ipc.open_stream(at_target.rows(shape, Cuts.whole(), pieces)).read_all()) == made.held()
    )
    made.target.close()
    pq.write_table(rows(KEYED, {key: key for key in range(100)}), tmp_path / "a.parquet", row_group_size=30)
    dead = {"a.parquet": np.array([0, 29, 30, 61, 99], np.uint32)}
    pieces = at_target.pieces_of([tmp_path / "a.parquet"], shape, {}, dead)
    assert [piece.rows for piece in pieces] == [28, 29, 29, 9]
    found = as_values(pa.ipc.open_stream(at_target.rows(shape, Cuts.whole(), pieces)).read_all())
    assert found.keys() == set(range(100)) - {0, 29, 30, 61, 99}


def tables_of(target: Path) -> list[DeltaTable]:
    return [DeltaTable(str(one.path), version=one.version) for one in open_snapshot(target).tables.values()]


def test_a_step_in_parts_is_seen_only_when_it_is_named(tmp_path: Path) -> None:
    line, target = snapshots()[1], tmp_path / "target"
    applier = applier_of(target, mode=MERGE, sizes=Sizes(step=1, part=40_000))
    topic = bank_topic("open-protocol", 1)
    consume(topic, target, until=line.ts, size=5000, applier=applier, rows=50_000)
    assert differences(target, line) == {}
    assert applier.target.stats.commits > len(line.tables)


def test_equal_rows_without_a_key_are_deleted_one_by_one(tmp_path: Path) -> None:
    target = DeltaTarget(tmp_path, mode=MERGE)
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
    found = target.lake.read(target.tables["db", "bag"].path)
    pairs = sorted(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))
    assert pairs == [(1, 1)] * 2 + [(2, 2)] * 2
    target.close()


def test_a_partitioned_table_reads_the_files_of_its_keys_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted = replace(KEYED, partition_by=(PartitionField("n", Transform.IDENTITY),))
    target = DeltaTarget(tmp_path, mode=MERGE)
    target.recover()
    target.execute(Create(parted))
    path = target.tables["db", "t"].path
    target.lake.append(path, rows(KEYED, {key: key % 4 for key in range(80)}))
    target.lake.merge(path, rows(KEYED, {0: 1, 9: 9}), rows(KEYED, {16: 0}).select(["id"]), ["id"])
    expected = {key: key % 4 for key in range(80) if key != 16} | {0: 1, 9: 9}
    assert as_values(target.lake.read(path)) == expected
    delta = DeltaTable(str(tmp_path / path))
    assert as_values(pa.table(delta.scan())) == expected
    assert as_values(pa.table(delta.scan(predicate="n = 1"))) == {k: n for k, n in expected.items() if n == 1}
    seen, real = list[list[str]](), vector_tables.VectorTables.fragments

    def counted(self: object, path: str, table: object, names: list[str]) -> object:
        seen.append(names)
        return real(self, path, table, names)  # type: ignore[arg-type]

    monkeypatch.setattr(vector_tables.VectorTables, "fragments", counted)
    both = pa.table({"id": pa.array([5], pa.int32()), "n": pa.array([1], pa.int32())})
    files = target.lake.vectors.live(path).files
    target.lake.merge(path, rows(KEYED, {}), both.cast(rows(KEYED, {}).schema), ["id", "n"])
    assert {files[name].partition["n"] for name in seen[0]} == {"1"}
    del expected[5]
    target.lake.compact(path, ["id"])
    assert as_values(target.lake.read(path)) == expected
    target.close()


def test_a_renamed_table_has_no_deleted_rows(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3}, deletes=(5,))
    before = made.held()
    moved = made.lake.move(made.path, "db", "u")
    assert as_values(made.lake.read(moved)) == before
    assert not made.lake.vectors.deleted_rows(moved)
    assert as_values(pa.table(DeltaTable(str(tmp_path / moved)).scan())) == before
    made.target.close()


def test_columns_in_another_order_keep_the_rows_that_are_not_deleted(tmp_path: Path) -> None:
    """The table is emptied before it gets its columns: the rows are those at the time of the call."""
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3}, deletes=(5,))
    before, found = made.held(), made.lake.batches(made.path, KEYED.arrow_schema)
    other = pa.schema(reversed(list(KEYED.arrow_schema)))
    made.lake.replace(made.path, other, (batch.select(other.names) for batch in found))
    assert made.held() == before
    made.put({4: -4}, deletes=(6,))
    del before[6]
    assert made.held() == before | {4: -4}
    made.target.close()


def test_a_path_that_is_used_again_has_nothing_of_the_earlier_table(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3})
    assert made.lake.discard(made.path)
    assert made.lake.make("db", "t", KEYED.arrow_schema) == made.path
    for begin in (0, 40):
        made.put(dict.fromkeys(range(begin, begin + 40), 1), fresh=True)
    made.put({5: -5})
    assert made.held() == dict.fromkeys(range(80), 1) | {5: -5}
    made.target.close()


# --- what a commit costs, and what upkeep removes


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
        before = made.files()
        large = [file for file in before.values() if file.rows > 100]
        most = max(most, *(file.dead / file.rows for file in large))
        made.commit(at + 1)
        gone = [before[name] for name in before.keys() - made.files().keys()]
        copied = sum(file.rows - file.dead for file in gone)
        assert copied <= compaction.COPIED_MAX * 40 + 200, "a file that waited, and what this commit pays for"
    assert WORN < most < 0.5
    assert sum(file.rows - file.dead for file in made.files().values()) == 2000 == len(made.held())
    made.target.close()


def test_small_files_become_one_and_their_commit_changes_no_rows(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    for key in range(compaction.COMPACT_FILES + 1):
        made.put({key: key}, fresh=True)
    made.commit(1)
    assert len(made.files()) == 1
    lines = (made.log() / f"{made.lake.version(made.path):020d}.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines[1:]]
    assert {next(iter(one.values()))["dataChange"] for one in actions} == {False}
    made.target.close()


def test_upkeep_removes_vectors_that_no_snapshot_needs_and_no_others(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(100)}, fresh=True)
    for at in range(4):
        made.put({at: -1})
        made.commit(at + 1)
    stray = tmp_path / made.path / "deletion_vector_00000000-0000-0000-0000-000000000000.bin"
    stray.write_bytes(b"of a write that was killed")
    then = time.time() - 7200
    for file in tmp_path.rglob("*"):
        if file.is_file():
            os.utime(file, (then, then))

    def bins() -> int:
        return len(list((tmp_path / made.path).glob("*.bin")))

    assert bins() == 5
    everything = Upkeep(retention_hours=10**6, all_hours=10**6)
    tidy(made.lake, position(4), everything)
    assert bins() == 4, "only the one that no commit names"
    assert made.held(made.lake.version(made.path) - 1) != made.held()
    tidy(made.lake, position(4), Upkeep(retention_hours=0))
    assert bins() == 1
    assert list(made.held().values()).count(-1) == 4
    made.target.close()
    again = Begun(tmp_path, None)
    assert list(again.held().values()).count(-1) == 4
    again.target.close()


def test_a_missing_file_of_deleted_rows_is_an_error_and_not_more_rows(tmp_path: Path) -> None:
    made = Begun(tmp_path)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3})
    made.commit(1)
    for file in (tmp_path / made.path).glob("*.bin"):
        file.unlink()
    with pytest.raises(Fatal, match="deleted rows of a table is gone"):
        open_snapshot(tmp_path).tables["db.t"].to_arrow()
    made.target.close()


# --- in S3


@pytest.mark.integration
def test_a_target_in_a_bucket_has_vectors_and_survives_a_restart(s3: S3Place) -> None:
    made = Begun(s3.store())
    made.put({key: key for key in range(100)}, fresh=True)
    made.put({3: -3}, deletes=(5,))
    made.commit(1)
    made.put({4: -4})  # which no snapshot names
    late = made
    made = Begun(s3.store(), None)
    expected = {key: key for key in range(100) if key != 5} | {3: -3}
    assert made.held() == expected
    with pytest.raises(Exception, match="taken over"):
        late.put({6: -6})
    made.put({7: -7})
    made.commit(2)
    assert made.held() == expected | {7: -7}
    tidy(made.lake, position(2), Upkeep(retention_hours=0))
    assert as_values(open_snapshot(s3.target).tables["db.t"].to_arrow()) == expected | {7: -7}
    assert isinstance(made.lake.store, ObjectStore)
    made.target.close()
