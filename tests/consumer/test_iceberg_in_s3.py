"""Iceberg tables in a real S3 server: writers that were replaced, upkeep, and readers.

`test_every_served_target` checks the promises of every target for S3 too; `test_catalog_chain` the chain of
catalogs; `test_iceberg` and `test_iceberg_deletes` what is alike on a disk and in a bucket.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable, Table
from typer.testing import CliRunner

from tests.consumer.at_iceberg import deletes_in_small_files
from tests.consumer.each_target import SCHEMA, AtIcebergInS3, Killed
from tests.consumer.logs import differences, snapshots
from tests.consumer.story import STORY, do, done_at, resume, state_at
from tests.consumer.test_job import LINE, bank_messages
from tests.consumer.topics import publish
from tests.fixtures.s3 import S3Place
from tidegate.cli.consumer import app
from tidegate.consumer.ddl.ddl_steps import Drop
from tidegate.consumer.delta.target import BucketAddress
from tidegate.consumer.engine.position import Position
from tidegate.consumer.iceberg import file_io
from tidegate.consumer.iceberg.catalog_chain import FOLDER, CatalogChain, key_of
from tidegate.consumer.iceberg.file_io import root_of
from tidegate.consumer.iceberg.maintenance import Tidying
from tidegate.consumer.iceberg.manifests import deletes_rows
from tidegate.consumer.iceberg.snapshots import open_catalog, open_snapshot
from tidegate.consumer.iceberg.target import IcebergTarget
from tidegate.consumer.job import run
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.settings import Settings
from tidegate.consumer.table.partition_spec import PartitionField, Transform
from tidegate.consumer.targets import DatabaseSettings
from tidegate.errors import Fenced, InvalidInput, Retryable
from tidegate.sink.lakehouse.object_store import ObjectStore

pytestmark = pytest.mark.integration
FIRST = 3
"""Steps of the story up to its first snapshot."""
ROWS = 5
"""The step of the story that writes into three tables; a commit follows."""
ALTER = 9
"""The step that adds a column."""
THIRD = 13
"""Steps up to the third snapshot."""


class OnlyNewest(Upkeep):
    """Keeps the newest snapshot alone, and no file that it does not need."""

    def forgotten(self, snapshots: Iterable[int]) -> list[int]:
        return sorted(snapshots)[:-1]


ONLY_NEWEST = OnlyNewest(retention_hours=0)


@pytest.fixture
def place(s3: S3Place, tmp_path: Path) -> AtIcebergInS3:
    return AtIcebergInS3(s3, tmp_path)


def finish(place: AtIcebergInS3) -> None:
    with place.address().opened() as target:
        resume(target)
    with place.address().opened() as target:
        assert done_at(target.recover()) == len(STORY)
        assert place.seen() == {name: sorted(rows, key=repr) for name, rows in STORY[-1].after.items()}


def rest(target: IcebergTarget, done: int) -> None:
    for number in range(done, len(STORY)):
        do(target, number)


def objects(s3: S3Place) -> set[str]:
    return {file.relative_to(s3.folder).as_posix() for file in s3.folder.rglob("*") if file.is_file()}


def before_first(store: Any, method: str, begins: str, meanwhile: Callable[[], object]) -> None:
    """Run `meanwhile` once, before the first call of a method of the store whose key begins so."""
    whole, left, lock = getattr(store, method), [meanwhile], threading.Lock()

    def watched(key: Any, *rest: Any) -> Any:
        first = key if isinstance(key, str) else next(iter(key), "")
        with lock:
            if left and first.startswith(begins):
                left.pop()()
        return whole(key, *rest)

    setattr(store, method, watched)


def newest(place: AtIcebergInS3) -> Position:
    found = place.address().look().position
    assert found is not None
    return found


def upkeep(place: AtIcebergInS3, target: IcebergTarget) -> None:
    list(Tidying(target.lake, ONLY_NEWEST).round(newest(place)))


def named(s3: S3Place) -> set[str]:
    """The objects that the newest catalog needs, the definitions and the journal."""
    chain = CatalogChain(s3.store()).find()
    assert chain is not None
    found = {key_of(number) for number in (*chain.begun, chain.number)}
    catalog = open_catalog(uri(s3))
    for name in catalog.locations():
        found |= {one.removeprefix(f"{root_of(s3.store())}/") for one in files_of(catalog.load_table(name))}
    return found | {name for name in objects(s3) if name.startswith(("_tidegate/d", "_tidegate/ddl"))}


def files_of(table: Table) -> set[str]:
    found = {table.metadata_location, *(one.metadata_file for one in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io)}
    return found


def uri(s3: S3Place) -> str:
    return s3.target.replace("delta+s3", "iceberg+s3")


def test_a_whole_run_of_the_consumer_fills_a_bucket(
    s3: S3Place, kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, line = new_topic(3), snapshots()[LINE]
    publish(kafka, topic, bank_messages())
    ended = run(
        Settings(
            source=f"kafka://{kafka}/{topic}?protocol=open-protocol",
            target=uri(s3),
            database=DatabaseSettings("bank", tmp_path / "own"),
            master="workers[1]",
            until=line.ts,
        )
    )
    assert ended.ts == line.ts
    assert differences(uri(s3), line, open_snapshot) == {}


# --- writers that were replaced


def test_a_writer_that_was_paused_before_its_commit_is_fenced(place: AtIcebergInS3) -> None:
    with place.address().opened() as old, place.address().opened() as new:
        resume(old, ROWS + 1)
        before_first(old.lake.store, "create", FOLDER, lambda: resume(new, ROWS + 2))
        with pytest.raises(Fenced, match="was taken over") as fenced:
            do(old, ROWS + 1)
        assert "consumer contract, process" in fenced.value.why
        before = place.seen()
        assert before == {name: sorted(rows, key=repr) for name, rows in state_at(ROWS + 2).items()}
        with pytest.raises(Fenced):
            do(old, ROWS + 1)
        assert place.seen() == before
    finish(place)


def test_late_rows_of_a_replaced_writer_are_seen_by_nobody_and_removed(
    s3: S3Place, place: AtIcebergInS3
) -> None:
    """The writer found that it was not replaced, and was paused before it wrote."""
    with place.address().opened() as old, place.address().opened() as new:
        resume(old, ROWS)
        before_first(old.lake.store, "put", SCHEMA, new.recover)
        with pytest.raises(Fenced):  # at the latest at its commit
            rest(old, ROWS)
        rest(new, done_at(newest(place)))
        upkeep(place, new)
        assert objects(s3) == named(s3)
    finish(place)


@pytest.mark.parametrize("number", [ROWS, ROWS + 1, ALTER])
def test_a_replaced_writer_names_nothing(s3: S3Place, place: AtIcebergInS3, number: int) -> None:
    """Neither rows nor a snapshot nor a line of the journal; files that no catalog names may be left."""
    with place.address().opened() as old, place.address().opened() as new:
        resume(old, number)
        new.recover()
        before = objects(s3)
        for step in (
            lambda: do(old, number),
            lambda: old.execute(Drop(SCHEMA, "log")),
            lambda: upkeep(place, old),
        ):
            with pytest.raises(Fenced):
                step()
        assert before <= objects(s3)
        assert all("/data/" in name or "/metadata/" in name for name in objects(s3) - before)
    finish(place)


@pytest.mark.parametrize(
    ("method", "begins"),
    [("files", SCHEMA), ("delete", SCHEMA), ("folders", ""), ("files", FOLDER)],
    ids=["files", "their deletion", "folders", "catalogs"],
)
def test_a_replaced_writer_in_its_upkeep_takes_nothing_of_its_successor(
    place: AtIcebergInS3, method: str, begins: str
) -> None:
    """It is replaced before it lists something, or before it deletes what it has listed."""
    with place.address().opened() as old, place.address().opened() as new:
        resume(old, THIRD)
        before_first(old.lake.store, method, begins, lambda: resume(new))
        with pytest.raises(Fenced):
            upkeep(place, old)
    finish(place)


def test_a_replaced_writer_is_fenced_after_its_successors_upkeep(place: AtIcebergInS3) -> None:
    """Upkeep has removed the catalogs between, but not the one that the successor began with."""
    with place.address().opened() as old, place.address().opened() as new:
        resume(old, ROWS + 1)
        resume(new)
        upkeep(place, new)
        with pytest.raises(Fenced):
            do(old, ROWS + 1)
    finish(place)


def test_a_commit_whose_answer_is_lost_is_found_by_a_restart(place: AtIcebergInS3) -> None:
    with place.address().opened() as target:
        resume(target, ROWS + 1)
        with pytest.MonkeyPatch.context() as patch:
            create = target.lake.store.create

            def lost(key: str, data: bytes) -> bool:
                create(key, data)
                raise Retryable("the object store does not answer as it should")

            patch.setattr(target.lake.store, "create", lost)
            with pytest.raises(Retryable):
                do(target, ROWS + 1)
        assert done_at(target.recover()) == ROWS + 2
        rest(target, ROWS + 2)
    finish(place)


def test_a_restart_finds_a_table_that_had_many_commits_since_the_snapshot(
    place: AtIcebergInS3,
) -> None:
    """More than a table's metadata have a log of; pyiceberg would remove the older files of metadata."""
    with place.address().opened() as target:
        resume(target, FIRST)
        log = target.tables[SCHEMA, "log"]
        rows = pa.Table.from_batches(list(target.lake.batches(log.path, log.definition.arrow_schema)))
        for _ in range(12):
            target.lake.append(log.path, rows)
    finish(place)


# --- upkeep


def test_upkeep_leaves_what_the_newest_snapshot_needs(s3: S3Place, place: AtIcebergInS3) -> None:
    """Files of dropped tables and of killed processes go, and old catalogs, and nothing of somebody else."""
    with place.address().opened() as target:
        resume(target)
        store = s3.store()
        store.put(left := f"{SCHEMA}/left-0a1b2c3d/data/0.parquet", b"of a process that was killed")
        store.put(theirs := f"{SCHEMA}/theirs/data/0.parquet", b"not to be lost")
        before = objects(s3)
        upkeep(place, target)
        gone = before - objects(s3)
        assert left in gone
        for begin in (f"{SCHEMA}/log-", f"{SCHEMA}/seats-", "_tidegate/snapshots/", FOLDER):
            assert any(name.startswith(begin) for name in gone), begin
        assert objects(s3) - named(s3) == {theirs}
    finish(place)


def test_a_kill_before_the_first_snapshot_leaves_nothing_for_ever(s3: S3Place, place: AtIcebergInS3) -> None:
    with place.address().opened() as target:
        resume(target, 2)
        assert any(name.startswith(f"{SCHEMA}/log-") for name in objects(s3))
    with place.address().opened() as target:
        assert target.recover() is None
        resume(target)
        upkeep(place, target)
        assert objects(s3) == named(s3)
    finish(place)


def test_a_kill_in_upkeep_leaves_all_that_the_catalog_needs(s3: S3Place, place: AtIcebergInS3) -> None:
    with place.address().opened() as target:
        resume(target, THIRD)
        store = target.lake.store
        delete = store.delete

        def dies(keys: Sequence[str]) -> None:
            delete(keys)
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "delete", dies)
            with pytest.raises(Killed):
                upkeep(place, target)
        assert named(s3) <= objects(s3)
    finish(place)


# --- readers


def test_a_target_in_a_bucket_is_read_by_anyone(s3: S3Place, place: AtIcebergInS3) -> None:
    assert place.address().look().position is None
    assert place.address().definitions() == {}
    with pytest.raises(InvalidInput, match="no such snapshot"):
        open_snapshot(uri(s3))
    with place.address().opened() as target:
        resume(target)
        looked, wanted = place.address().look(), dict(target.definitions)
        assert done_at(looked.position) == len(STORY)
        assert looked.holder == "", "it cannot be seen"
        assert place.address().definitions() == wanted
    table = open_snapshot(uri(s3)).tables[f"{SCHEMA}.cash"]
    rows = sorted(table.to_arrow().to_pydict().items())
    assert len(rows[0][1]) == len(state_at(len(STORY))["cash"])
    catalog = open_catalog(uri(s3))
    assert (SCHEMA, "cash") in catalog.list_tables(SCHEMA)
    for found in (catalog.load_table((SCHEMA, "cash")), plain(s3, table.metadata)):
        assert sorted(found.scan(snapshot_id=table.snapshot_id).to_arrow().to_pydict().items()) == rows
    done = CliRunner().invoke(app, ["snapshot", "--target", uri(s3)])
    assert f"{SCHEMA}.cash   {table.snapshot_id}  {table.metadata}" in done.output


def plain(s3: S3Place, metadata: str) -> Table:
    """A table as pyiceberg alone opens it, with its own client."""
    options = {"s3.endpoint": s3.bucket.endpoint, "s3.region": "us-east-1"}
    options |= {"s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"]}
    options |= {"s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"]}
    return StaticTable.from_metadata(metadata, options)


def test_delete_files_and_partitions_are_those_that_pyiceberg_reads(
    s3: S3Place, place: AtIcebergInS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also files that are read in parts, and a name with a sign that not all clients write alike."""
    deletes_in_small_files(monkeypatch)
    monkeypatch.setattr(file_io, "BEGINNING", 64)
    columns = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    with place.address().opened() as target:
        target.recover()
        lake = target.lake
        path = lake.make("a~b", "t", columns, (PartitionField("id", Transform.BUCKET, 3),))
        lake.append(path, pa.table([list(range(90)), [0] * 90], schema=columns))
        gone = pa.table({"id": pa.array([4, 50], pa.int64())})
        lake.merge(path, pa.table([[3, 33], [7, 7]], schema=columns), gone, ["id"])
        table = lake.tables.table(path)
        assert any(map(deletes_rows, lake.tables.manifests.files(table)))
        expected = {key: 7 if key in (3, 33) else 0 for key in range(90) if key not in (4, 50)}
        batches = pa.Table.from_batches(list(lake.batches(path, columns)))
        for found in (batches, table.scan().to_arrow(), plain(s3, table.metadata_location).scan().to_arrow()):
            assert dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True)) == expected


# --- refused


def test_a_store_without_conditional_put_is_refused(
    place: AtIcebergInS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectStore, "create", lambda *_: True)
    with pytest.raises(InvalidInput, match="no conditional put"), place.address().opened():
        pass


def test_a_prefix_of_another_kind_of_target_is_refused(
    s3: S3Place, place: AtIcebergInS3, tmp_path: Path
) -> None:
    """Also if it has no table yet, so that all of it is in the folder that each kind has."""
    delta = BucketAddress(s3.store(), "contract", tmp_path / "delta")
    with delta.opened() as first, place.address().opened() as second:
        first.recover()
        with pytest.raises(InvalidInput, match="something else"):
            second.recover()
    elsewhere = ObjectStore(replace(s3.bucket, prefix=f"{s3.bucket.prefix}-2"))
    iceberg = replace(place.address(), store=elsewhere, folder=tmp_path / "third")
    with (
        iceberg.opened() as third,
        replace(delta, store=elsewhere, folder=tmp_path / "fourth").opened() as fourth,
    ):
        third.recover()
        with pytest.raises(InvalidInput, match="something else"):
            fourth.recover()


def test_a_store_that_denies_access_is_not_taken_for_empty(
    s3: S3Place, place: AtIcebergInS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.address().opened() as target:
        resume(target, ROWS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "geheim")
    for ask in (place.address().look, place.address().definitions, lambda: open_snapshot(uri(s3))):
        with pytest.raises(InvalidInput, match="refuses access") as refused:
            ask()
        assert "geheim" not in str(refused.value)
