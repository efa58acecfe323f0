"""Foreign files and tables in a target, or next to it, are refused or left alone, never emptied."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.consumer.logs import bank_topic, differences, snapshots
from tests.consumer.memory_topic import consume
from tidegate.consumer.delta.lock import target_lock
from tidegate.consumer.delta.maintenance import tidy
from tidegate.consumer.delta.target import DeltaTarget
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.errors import Fatal, InvalidInput, TidegateError
from tidegate.sink.lakehouse.snapshot_rows import SNAPSHOT_SCHEMA
from tidegate.sink.lakehouse.store import SNAPSHOTS
from tidegate.sink.lakehouse.tables import Lakehouse

ORDERS = pa.table({"id": [1, 2, 3]})


def put_photos(root: Path) -> Path:
    photo = root / "photos" / "2024" / "beach.jpg"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(b"not to be lost")
    return photo


def put_orders(root: Path) -> Path:
    """Somebody's Delta table, at a path that a new table might need."""
    write_deltalake(root / "sales" / "orders", ORDERS)
    return root / "sales" / "orders"


def files_of(root: Path) -> dict[str, bytes]:
    return {str(f.relative_to(root)): f.read_bytes() for f in sorted(root.rglob("*")) if f.is_file()}


@pytest.mark.parametrize("put", [put_photos, put_orders], ids=["photos", "a Delta table"])
def test_a_folder_that_holds_something_else_is_refused_and_left_as_it_was(
    tmp_path: Path, put: Callable[[Path], Path]
) -> None:
    name = put(tmp_path).relative_to(tmp_path).parts[0]
    before = files_of(tmp_path)
    with pytest.raises(InvalidInput, match="holds something else") as caught, target_lock(tmp_path):
        pass
    assert name in caught.value.where
    assert files_of(tmp_path) == before, "not even a lock was put there"
    with pytest.raises(InvalidInput, match="holds something else"):
        DeltaTarget(tmp_path).recover()
    assert files_of(tmp_path) == before


def test_a_table_of_snapshots_without_a_mark_is_refused(tmp_path: Path) -> None:
    """It is of an earlier release, or foreign: nothing says which tables next to it are the target's."""
    write_deltalake(tmp_path / SNAPSHOTS, SNAPSHOT_SCHEMA.empty_table())
    put_orders(tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(InvalidInput, match="was not made by this release") as caught, target_lock(tmp_path):
        pass
    assert "tidegate.target" in caught.value.why
    assert files_of(tmp_path) == before


def test_foreign_files_survive_recovery_cleanup_drops_and_renames(tmp_path: Path) -> None:
    """Others may keep files and tables next to ours in the same folders."""
    topic, target = bank_topic("open-protocol", 11), tmp_path / "target"
    consume(topic, target, until=snapshots()[2].ts)
    photo, orders = put_photos(target), put_orders(target)
    inside = target / "bank" / "notes" / "by hand.txt"
    inside.parent.mkdir()
    inside.write_text("next to tables of one schema")
    before = files_of(target / "photos") | files_of(target / "sales")
    for until in (6, 9, 11):
        position = consume(topic, target, until=snapshots()[until].ts)
        tidy(Lakehouse(target), position, Upkeep(retention_hours=0))
    assert differences(target, snapshots()[11]) == {}
    assert files_of(target / "photos") | files_of(target / "sales") == before
    assert photo.exists()
    assert inside.exists()
    assert DeltaTable(orders).to_pyarrow_table().num_rows == 3


@pytest.mark.parametrize("delta", [True, False], ids=["a Delta table", "files"])
def test_a_name_that_somebody_else_uses_stops_the_consumer(tmp_path: Path, delta: bool) -> None:
    lake, schema = Lakehouse(tmp_path), ORDERS.schema
    lake.create("sales/customers", schema)
    if delta:
        put_orders(tmp_path)
    else:
        (tmp_path / "sales" / "orders").mkdir()
        (tmp_path / "sales" / "orders" / "a.parquet").write_bytes(b"x")
    before = files_of(tmp_path / "sales" / "orders")
    writes: list[Callable[[], object]] = [
        lambda: lake.create("sales/orders", schema),
        lambda: lake.rename("sales/customers", "sales/orders"),
    ]
    if delta:
        writes += [
            lambda: lake.append("sales/orders", ORDERS),
            lambda: lake.merge("sales/orders", ORDERS, ORDERS.slice(0, 0), ["id"]),
            lambda: lake.replace("sales/orders", schema, iter(())),
            lambda: lake.restore("sales/orders", 0),
            lambda: list(lake.files_of("sales/orders").clean([0], time.time() + 9, time.time() + 9)),
        ]
    for write in writes:
        with pytest.raises(Fatal, match=r"not the target's") as caught:
            write()
        assert "sales/orders" in caught.value.where
    assert not lake.discard("sales/orders")
    assert files_of(tmp_path / "sales" / "orders") == before


def test_tables_of_another_target_are_not_ours(tmp_path: Path) -> None:
    ours, other = Lakehouse(tmp_path / "ours"), Lakehouse(tmp_path / "other")
    for lake in (ours, other):
        lake.create("a/b", ORDERS.schema)
    shutil.copytree(other.root / "a" / "b", ours.root / "a" / "moved in")
    assert not ours.discard("a/moved in")
    assert ours.discard("a/b")
    assert ours.table_paths() == ["a/moved in"]


def test_a_target_that_looks_new_while_its_tables_lie_there_is_refused(tmp_path: Path) -> None:
    topic, target = bank_topic("open-protocol", 2), tmp_path / "target"
    consume(topic, target, until=snapshots()[2].ts)
    tables = files_of(target / "bank")

    def refused(match: str) -> TidegateError:
        with pytest.raises(Fatal, match=match) as caught:
            DeltaTarget(target).recover()
        assert files_of(target / "bank") == tables
        return caught.value

    whole = tmp_path / "whole"
    shutil.copytree(target, whole)
    DeltaTable(target / SNAPSHOTS).delete()
    assert "somebody removed them" in refused("position is gone").why
    shutil.rmtree(target / SNAPSHOTS / "_delta_log")
    assert "bank/" in refused("table of snapshots is gone").where
    shutil.rmtree(target / SNAPSHOTS)
    refused("table of snapshots is gone")
    shutil.copytree(whole / SNAPSHOTS, target / SNAPSHOTS)
    assert consume(topic, target).ts >= snapshots()[2].ts


def test_a_first_run_that_was_killed_begins_again(tmp_path: Path) -> None:
    topic, target = bank_topic("open-protocol", 2), tmp_path / "target"
    lake = Lakehouse(target)
    lake.create("bank/accounts", ORDERS.schema)
    lake.append("bank/accounts", ORDERS)
    (target / "bank" / "logs" / "_delta_log").mkdir(parents=True)  # killed before the table's first commit
    consume(topic, target, until=snapshots()[2].ts)
    assert differences(target, snapshots()[2]) == {}


def test_the_position_is_found_behind_any_number_of_foreign_commits(tmp_path: Path) -> None:
    topic, target = bank_topic("open-protocol", 3), tmp_path / "target"
    position = consume(topic, target, until=snapshots()[1].ts)
    held = DeltaTable(target / SNAPSHOTS)
    held.optimize.compact()
    for number in range(120):
        held.alter.set_table_properties({"delta.checkpointInterval": f"{50 + number % 2}"})
    held.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    held.create_checkpoint()
    for file in (target / SNAPSHOTS / "_delta_log").glob("*.json"):
        if int(file.stem) < held.version():
            file.unlink()  # as the log's cleanup does in the end
    assert DeltaTarget(target).recover() == position
    consume(topic, target, until=snapshots()[3].ts)
    assert differences(target, snapshots()[3]) == {}
