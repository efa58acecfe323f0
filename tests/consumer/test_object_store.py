"""Delta tables in a real S3 server: writers that were replaced, names that come again, upkeep, whole runs.

`test_every_served_target` checks the promises of every target for S3 too; `sink/test_store` each part of a
store.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.consumer.each_target import SCHEMA, AtDeltaInS3
from tests.consumer.logs import differences, snapshots
from tests.consumer.story import STORY, do, done_at, resume, state_at
from tests.consumer.test_job import LINE, PATIENCE_S, bank_messages, event
from tests.consumer.test_maintenance import definition_of
from tests.consumer.topics import publish
from tests.fixtures.s3 import S3Place
from tidegate.consumer.ddl.ddl_steps import Drop
from tidegate.consumer.delta.target import BucketAddress, DeltaTarget
from tidegate.consumer.engine.position import Position
from tidegate.consumer.lakehouse.definition_files import DefinitionFiles
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable
from tidegate.sink.lakehouse import delta_commit
from tidegate.sink.lakehouse.object_store import ObjectStore
from tidegate.sink.lakehouse.open_tables import OpenTables
from tidegate.sink.lakehouse.snapshot_rows import SnapshotRow
from tidegate.sink.lakehouse.store import OWN, SNAPSHOTS

pytestmark = pytest.mark.integration
FIRST = 3
"""Steps of the story up to its first snapshot."""
ALTER, TRUNCATE = 9, 14
"""The steps that add a column, and that empty `seats`."""
ROWS = 5
"""The step of the story that writes into three tables; a commit follows."""
ALL_GOES = Upkeep(retention_hours=0, piece_s=60)


@pytest.fixture
def place(s3: S3Place, tmp_path: Path) -> AtDeltaInS3:
    return AtDeltaInS3(s3, tmp_path)


def finish(place: AtDeltaInS3) -> None:
    with place.address().opened() as target:
        resume(target)
    with place.address().opened() as target:
        assert done_at(target.recover()) == len(STORY)
        assert place.seen() == {name: sorted(rows, key=repr) for name, rows in STORY[-1].after.items()}


def paused_behind_its_check(target: DeltaTarget, meanwhile: Callable[[], object]) -> None:
    """When the target next finds that it is the writer, run `meanwhile` once, and then continue."""
    check, lock, left = target.lake.check_writer, threading.Lock(), [meanwhile]

    def checked() -> None:
        check()
        with lock:
            if left:
                left.pop()()

    target.lake.check_writer = checked  # type: ignore[method-assign]


def test_a_replaced_writer_that_was_paused_before_its_commit_is_fenced(place: AtDeltaInS3) -> None:
    with place.address().opened() as old, place.address().opened() as new:
        assert isinstance(old, DeltaTarget)
        resume(old, ROWS)
        paused_behind_its_check(old, lambda: resume(new, ROWS + 1))
        with pytest.raises(Fenced, match="was taken over") as fenced:
            do(old, ROWS)
        assert "consumer contract, process" in fenced.value.why
        do(new, ROWS + 1)
        before = place.seen()
        with pytest.raises(Fenced):
            do(old, ROWS + 1)
        assert place.seen() == before
    finish(place)


@pytest.mark.parametrize("open_tables", [2_000, 1], ids=["open", "opened again"])
def test_late_rows_of_a_replaced_writer_are_neither_published_nor_extended(
    place: AtDeltaInS3, monkeypatch: pytest.MonkeyPatch, open_tables: int
) -> None:
    """They come between a takeover and the first write after it; nobody's snapshot may hold them twice. Files
    that it leaves where a table was discarded keep nobody from making that table again."""
    monkeypatch.setattr("tidegate.sink.lakehouse.open_tables.OPEN_MAX", open_tables)
    with place.address().opened() as old, place.address().opened() as new:
        assert isinstance(old, DeltaTarget)
        resume(old, ROWS)
        paused_behind_its_check(old, lambda: new.recover())
        with suppress(Fenced):  # of its three tables the first one gets through
            do(old, ROWS)
        with pytest.raises(Fenced):
            do(old, ROWS + 1)
        done = done_at(place.address().look().position)
        for number in range(done, ROWS):
            do(new, number)
        with pytest.raises(Fatal, match="somebody else has written"):
            do(new, ROWS)
    finish(place)


@pytest.mark.parametrize("number", [ROWS, ROWS + 1, ALTER])
def test_a_replaced_writer_writes_not_a_single_object(s3: S3Place, place: AtDeltaInS3, number: int) -> None:
    """Neither rows nor a snapshot nor a line of the journal; and none of the older snapshots goes."""
    with place.address().opened() as old, place.address().opened() as new:
        assert isinstance(old, DeltaTarget)
        resume(old, number)
        new.recover()
        before = objects(s3)
        with pytest.raises(Fenced):
            do(old, number)
        with pytest.raises(Fenced):
            old.execute(Drop(SCHEMA, "log"))
        with pytest.raises(Fenced):
            list(old.lake.snapshots.forget(old.lake.snapshots.all_ts()))
        left = {name for name in objects(s3) - before if not name.endswith(".parquet")}
        assert left == set(), "a data file that no log names may be left"
    finish(place)


def test_a_commit_of_somebody_else_right_behind_its_own_stops_the_writer(
    s3: S3Place, place: AtDeltaInS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    def followed(table: DeltaTable, rows: pa.Table, **options: Any) -> None:
        write_deltalake(table, rows, **options)
        if str(table.table_uri).rstrip("/").endswith("/log"):
            write_deltalake(table.table_uri, rows, mode="append", storage_options=s3.bucket.options)
            table.update_incremental()

    with place.address().opened() as target:
        resume(target, 1)
        with monkeypatch.context() as patch:
            patch.setattr(delta_commit, "write_deltalake", followed)
            with pytest.raises(Fatal, match="somebody else") as stopped:
                do(target, 1)
        assert "right behind" in stopped.value.why
    finish(place)


def test_a_replaced_writer_is_found_behind_a_trimmed_log(place: AtDeltaInS3) -> None:
    """A successor's upkeep also deletes the commit that comes right behind the earlier one's last."""
    with place.address().opened() as old, place.address().opened() as new:
        assert isinstance(old, DeltaTarget)
        assert isinstance(new, DeltaTarget)
        resume(old, ROWS)
        newest = int(old.lake.version(SNAPSHOTS))
        resume(new, ROWS + 2)
        DeltaTable(new.lake.store.uri(SNAPSHOTS), storage_options=new.lake.store.options).create_checkpoint()
        log = f"{SNAPSHOTS}/_delta_log"
        new.lake.store.delete([f"{log}/{version:020d}.json" for version in range(newest + 2)])
        with pytest.raises(Fenced, match="was taken over"):
            old.lake.check_writer()
        new.lake.check_writer()
        do(new, ROWS + 2)
    finish(place)


def test_a_replaced_writer_that_starts_restores_nothing(s3: S3Place, place: AtDeltaInS3) -> None:
    with place.address().opened() as old, place.address().opened() as new:
        assert isinstance(old, DeltaTarget)
        assert isinstance(new, DeltaTarget)
        resume(old, ROWS + 1)
        rows = old.lake.snapshots.rows()
        new.lake.begin()
        before = objects(s3)
        with pytest.raises(Fenced):
            old.lake.restore_all(rows)
        assert objects(s3) == before
    finish(place)


def test_rows_that_land_during_a_start_are_found_when_a_table_is_reopened(
    s3: S3Place, place: AtDeltaInS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More tables than stay open: a table is opened a second time between its restore and the first write."""
    monkeypatch.setattr("tidegate.sink.lakehouse.open_tables.OPEN_MAX", 1)
    with place.address().opened() as target:
        resume(target, ROWS + 2)
    with place.address().opened() as target:
        assert isinstance(target, DeltaTarget)
        restore_all = target.lake.restore_all

        def lands(rows: Sequence[SnapshotRow]) -> None:
            restore_all(rows)
            for row in rows:
                table = DeltaTable(target.lake.store.uri(row.path), storage_options=s3.bucket.options)
                write_deltalake(table, table.to_pyarrow_table(), mode="append")

        monkeypatch.setattr(target.lake, "restore_all", lands)
        with pytest.raises(Fatal, match="somebody else has written"):
            target.recover()
    finish(place)


def test_an_earlier_writer_cannot_delete_the_files_of_a_renamed_table(place: AtDeltaInS3) -> None:
    with place.address().opened() as target:
        assert isinstance(target, DeltaTarget)
        resume(target, ROWS + 2)
        lake = target.lake
        table = max(target.tables.values(), key=lambda one: lake.read(one.path).num_rows)
        path, version = table.path, table.version
        moved = lake.move(path, SCHEMA, "renamed", version)
        old, new = (set(lake.store.names(one)) for one in (path, moved))
        assert new
        assert not old & new
        assert lake.read(moved).num_rows == lake.read(path, version).num_rows > 0
    finish(place)


@pytest.mark.parametrize(
    ("words", "raised", "what"),
    [
        ("Invalid table version: 7", Fatal, "somebody else has written"),
        ("the commit already exists", Fatal, "somebody else has written"),
        ("operation timed out <Error><Token-0>geheim</Token-0></Error>", Retryable, "does not answer"),
    ],
)
def test_what_delta_rs_says_of_a_bucket_is_named(
    place: AtDeltaInS3, monkeypatch: pytest.MonkeyPatch, words: str, raised: type[Exception], what: str
) -> None:
    """It has errors without a class of their own."""

    def fails(*_: object, **__: object) -> None:
        raise DeltaError(words)

    with place.address().opened() as target:
        resume(target, ROWS)
        with monkeypatch.context() as patch:
            patch.setattr(delta_commit, "write_deltalake", fails)
            with pytest.raises(raised, match=what) as failed:
                target.commit(Position(1, "t", "open-protocol", "transaction", {}))
        assert "geheim" not in str(failed.value)
    finish(place)


def test_a_table_that_is_in_the_trash_is_not_listed(place: AtDeltaInS3) -> None:
    """Its data files are still there: piece by piece they go."""
    with place.address().opened() as target:
        assert isinstance(target, DeltaTarget)
        resume(target, ROWS + 2)
        lake = target.lake
        path = max(target.tables.values(), key=lambda one: lake.read(one.path).num_rows).path
        assert path in lake.table_paths()
        assert lake.set_aside(path)
        assert lake.store.names(path)
        assert path not in lake.table_paths()


def test_two_writers_of_definitions_never_take_the_same_number(s3: S3Place) -> None:
    """The one that was replaced may be about to write what it has begun."""
    old, new = DefinitionFiles(s3.store()), DefinitionFiles(s3.store())
    for files in (old, new):
        files.read()
    made = [definition_of(number) for number in (1, 2)]
    numbers = [files.keep("db/t", one) for files, one in zip((old, new), made, strict=True)]
    assert numbers == [1, 2]
    held = DefinitionFiles(s3.store())
    held.read()
    for number, one in zip(numbers, made, strict=True):
        position = Position(1, "t", "open-protocol", "transaction", {}, definitions={"db/t": number})
        assert held.find("db/t", lambda _: True, [], position) == (one, number)


def test_a_replaced_writer_deletes_nothing(s3: S3Place, place: AtDeltaInS3, tmp_path: Path) -> None:
    upkept = BucketAddress(s3.store(), "contract", tmp_path / "own", ALL_GOES)
    with upkept.opened() as old, place.address().opened() as new:
        resume(old, THIRD := 13)
        files = old.lake.files_of(f"{SCHEMA}/money")
        new.recover()
        before = objects(s3)
        with pytest.raises(Fenced):
            list(files.clean([place.lake().version(f"{SCHEMA}/money")], time.time(), time.time()))
        with pytest.raises(Fenced):
            old.lake.discard(f"{SCHEMA}/money")
        assert objects(s3) == before
        for number in range(THIRD, len(STORY)):
            do(new, number)
    finish(place)


def objects(s3: S3Place) -> set[str]:
    return {file.relative_to(s3.folder).as_posix() for file in s3.folder.rglob("*") if file.is_file()}


def test_a_path_that_was_discarded_is_not_used_again(place: AtDeltaInS3) -> None:
    with place.address().opened() as target:
        assert isinstance(target, DeltaTarget)
        resume(target, ROWS)  # `seats` is made, and no snapshot names it yet
        assert target.tables[SCHEMA, "seats"].path == f"{SCHEMA}/seats"
    with place.address().opened() as target:
        assert isinstance(target, DeltaTarget)
        resume(target, TRUNCATE)
        path = target.tables[SCHEMA, "seats"].path
        assert path.startswith(f"{SCHEMA}/seats~"), "the restart has discarded the first one"
        assert target.tables[SCHEMA, "log"].path == f"{SCHEMA}/log", "a snapshot named it"
        do(target, TRUNCATE)
        assert target.tables[SCHEMA, "seats"].path == path, "emptied while a snapshot names it: it stays"
    finish(place)


def test_what_an_earlier_writer_names_just_before_it_is_replaced_is_found(place: AtDeltaInS3) -> None:
    with place.address().opened() as old, place.address().opened() as new:
        assert isinstance(new, DeltaTarget)
        resume(old, FIRST)
        begin = new.lake.begin

        def later() -> None:
            for number in range(FIRST, ROWS + 2):
                do(old, number)
            begin()

        new.lake.begin = later  # type: ignore[method-assign]
        assert done_at(new.recover()) == ROWS + 2
    finish(place)


def test_upkeep_deletes_what_no_snapshot_needs(
    s3: S3Place, place: AtDeltaInS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Upkeep, "forgotten", lambda self, snapshots: sorted(snapshots)[:-1])
    upkept = BucketAddress(s3.store(), "contract", tmp_path / "own", ALL_GOES)
    with upkept.opened() as target:
        resume(target)
        before = objects(s3)
        for name in before:
            os.utime(s3.folder / name, (time.time() - 7200,) * 2)
        held = target.recover()
        assert held is not None
        while not target.tidy(held):
            pass
        after = objects(s3)
        assert len(place.lake().snapshots.all_ts()) == 1
    gone = before - after
    assert any(name.startswith(f"{SCHEMA}/log/") for name in gone), "of a dropped table"
    assert any(name.startswith(f"{SCHEMA}/seats/") and name.endswith(".parquet") for name in gone)
    assert any("/_delta_log/" in name for name in gone)
    finish(place)


def test_a_target_in_a_bucket_is_read_by_anyone(s3: S3Place, place: AtDeltaInS3) -> None:
    assert place.address().look().position is None
    assert place.address().definitions() == {}
    with pytest.raises(InvalidInput, match="no such snapshot"):
        open_snapshot(s3.target)
    with place.address().opened() as target:
        resume(target)
        looked, wanted = place.address().look(), dict(target.definitions)
        assert done_at(looked.position) == len(STORY)
        assert looked.holder == "", "it cannot be seen"
        assert place.address().definitions() == wanted
    table = open_snapshot(s3.target).tables[f"{SCHEMA}.cash"]
    assert table.to_arrow().num_rows == len(state_at(len(STORY))["cash"])
    plain = DeltaTable(str(table.path), version=table.version, storage_options=s3.bucket.options)
    assert plain.to_pyarrow_table().num_rows == table.to_arrow().num_rows
    for ask in (table.files, lambda: table.directory):
        with pytest.raises(InvalidInput, match=r"object store|local disk"):
            ask()


def test_two_consumers_that_begin_one_target_make_it_once(
    place: AtDeltaInS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.address().opened() as one, place.address().opened() as other:
        assert isinstance(other, DeltaTarget)
        with monkeypatch.context() as patch:  # when it looked, nothing was there
            patch.setattr(other.lake._tables, "exists", lambda path: False)
            patch.setattr(other.lake, "check", lambda: None)
            assert one.recover() is None
            with pytest.raises(Retryable, match="at the same time"):
                other.recover()
        resume(one, ROWS + 2)
    finish(place)


def test_a_target_that_was_taken_over_and_never_named_is_still_new(place: AtDeltaInS3) -> None:
    for _ in range(3):
        with place.address().opened() as target:
            assert target.recover() is None
    finish(place)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_an_endpoint_in_the_address_applies_to_tables_and_all_other_files(
    s3: S3Place, place: AtDeltaInS3, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Half of a target must not go to another server, because one library reads a variable that the other
    does not."""
    monkeypatch.setattr("tidegate.sink.lakehouse.object_store.RETRIES", 0)
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    with place.address().opened() as target:
        resume(target, FIRST)
    assert done_at(place.address().look().position) == FIRST
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.bucket.endpoint)
    elsewhere = BucketAddress(ObjectStore(replace(s3.bucket, endpoint="")), "contract", s3.folder)
    assert done_at(elsewhere.look().position) == FIRST


def test_a_store_that_denies_access_is_not_taken_for_empty_or_foreign(
    s3: S3Place, place: AtDeltaInS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.address().opened() as target:
        resume(target, ROWS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for ask in (place.lake().snapshots.position, place.lake().check, place.lake().snapshots.rows):
        with pytest.raises(InvalidInput, match="refuses access"):
            ask()
    with pytest.raises(InvalidInput, match="refuses access"), place.address().opened():
        pass


def test_trouble_while_a_table_is_opened_is_not_taken_for_a_foreign_table(
    place: AtDeltaInS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.address().opened() as target:
        resume(target, ROWS)

    def fails(*_: object) -> DeltaTable:
        raise OSError("Generic S3 error: operation timed out")

    monkeypatch.setattr(OpenTables, "newest", fails)
    with pytest.raises(Retryable, match="does not answer"):
        place.lake().check()


def test_a_bucket_wants_a_name_and_other_stores_are_refused_in_words(s3: S3Place) -> None:
    with pytest.raises(InvalidInput, match="needs a name"):
        address_of(s3.target, Upkeep(), DatabaseSettings())
    with pytest.raises(InvalidInput) as refused:
        address_of("iceberg+gs://lake/a", Upkeep(), DatabaseSettings("one"))
    assert "in a directory or in S3" in refused.value.why
    found = address_of(s3.target, Upkeep(), DatabaseSettings("shop/1"))
    assert found.folder == Path("tidegate-consumer-shop_1").absolute()
    for address in (
        "mysq://me:geheim@there:1/",
        "s3://me:ge/heim@lake/a?secret=geheim",
        "delta://x?key=geheim",
    ):
        with pytest.raises(InvalidInput, match="cannot be used") as refused:
            address_of(address, Upkeep(), DatabaseSettings("one"))
        assert "heim" not in str(refused.value)
    with pytest.raises(InvalidInput, match="is for databases") as refused:
        address_of("mysq://me:geheim@there:1/", Upkeep(), DatabaseSettings("one", adopt=True))
    assert "geheim" not in str(refused.value)
    assert str(found) == f"s3://lake/{s3.bucket.prefix}"


def test_killed_and_started_again_it_ends_equal(
    s3: S3Place, kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The whole consumer as people start it; the second one takes over from the first, which it ends."""
    topic, line, messages = new_topic(3), snapshots()[LINE], bank_messages()
    publish(kafka, topic, messages[: len(messages) // 2])
    command = [sys.executable, "-m", "tidegate", "consumer", "run", "--json", "--name", "bank"]
    command += ["--source", f"kafka://{kafka}/{topic}?protocol=open-protocol", "--target", s3.target]
    command += ["--master", "workers[1]", "--commit-interval", "0.05", "--commit-rows", "200"]

    def start(folder: str, *options: str) -> subprocess.Popen[str]:
        whole = [*command, "--folder", str(tmp_path / folder), *options]
        return subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    first = start("one")
    event(first, "ready")
    first.send_signal(signal.SIGSTOP)
    second = start("two")
    event(second, "ready")
    first.send_signal(signal.SIGCONT)
    publish(kafka, topic, messages[len(messages) // 2 :])  # now the first one has something to write
    assert first.wait(PATIENCE_S) == 1
    assert first.stderr is not None
    assert "this consumer's target was taken over" in first.stderr.read()
    second.kill()
    second.wait()
    third = start("two", "--until", str(line.ts))
    out, said = third.communicate(timeout=PATIENCE_S)
    assert third.returncode == 0, said
    assert json.loads(out.splitlines()[-1])["event"]
    assert differences(s3.target, line) == {}
    assert not (tmp_path / "one" / OWN).exists()
