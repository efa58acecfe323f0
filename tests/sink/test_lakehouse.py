"""The Delta writer: odd names, exact keys, undo, snapshots."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.errors import Fatal, InvalidInput
from tidegate.sink.lakehouse import COMPACT_FILES, Lakehouse, SnapshotRow, slot_path

SCHEMA = pa.schema([("id", pa.int64()), ("we`ird a.b", pa.decimal128(20, 0)), ("v", pa.list_(pa.float32()))])
PATH = slot_path("b`a k", "_a/é%.1")
MAX = Decimal(2**64 - 1)


def rows(*values: tuple[int, object, object]) -> pa.Table:
    return pa.table([list(column) for column in zip(*values, strict=True)], schema=SCHEMA)


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    made = Lakehouse(tmp_path / "with space")
    made.create(PATH, SCHEMA)
    return made


def test_paths_are_plain_and_never_ours() -> None:
    assert slot_path("bank", "accounts") == "bank/accounts"
    assert PATH == "b=60a=20k/=5Fa=2F=C3=A9=25.1"
    assert slot_path("_tidegate", "snapshots") == "=5Ftidegate/snapshots"


def test_the_longest_names_have_folders_of_their_own(tmp_path: Path) -> None:
    """64 characters of four bytes are 768 signs when encoded; a folder's name has 255 at most."""
    lake = Lakehouse(tmp_path)
    names = ["\U00020000" * 64, "\U00020000" * 63 + "\U00020001", "表" * 29, "=~" * 32, "a" * 64]
    paths = [slot_path(name, name) for name in names]
    assert len(set(paths)) == len(names)
    assert all(len(part) <= 200 for path in paths for part in path.split("/"))
    for number, path in enumerate(paths):
        lake.create(path, SCHEMA)
        lake.append(path, rows((number, 1, None)))
    assert [lake.read(path).column("id").to_pylist() for path in paths] == [[n] for n in range(len(names))]


def test_a_folder_of_an_earlier_release_is_not_shared_on_a_disk_that_ignores_case(tmp_path: Path) -> None:
    """A link stands for such a disk: two spellings, one folder."""
    lake = Lakehouse(tmp_path)
    lake.create("shop/Orders", SCHEMA)
    lake.append("shop/Orders", rows((1, 1, None)))
    (tmp_path / "shop/orders").symlink_to("Orders")
    for make in (
        lambda: lake.create("shop/orders", SCHEMA),
        lambda: lake.rename("shop/Orders", "shop/orders"),
    ):
        with pytest.raises(Fatal, match="share one folder"):
            make()
    assert lake.read("shop/Orders").num_rows == 1
    lake.create(slot_path("shop", "Orders"), SCHEMA)


def test_a_root_that_delta_cannot_open_is_refused() -> None:
    with pytest.raises(InvalidInput, match="character"):
        Lakehouse(Path("/tmp/100%"))


def test_merge_finds_keys_beyond_what_statistics_can_say(lake: Lakehouse) -> None:
    lake.append(PATH, rows((1, MAX, [1.0]), (2, 5, None)))
    lake.merge(PATH, rows((7, MAX, [2.0])), pa.table({"we`ird a.b": [Decimal(5)]}, schema=SCHEMA_KEY), KEY)
    assert lake.read(PATH).to_pylist() == [{"id": 7, "we`ird a.b": MAX, "v": [2.0]}]
    assert lake.read(PATH, 1).num_rows == 2, "the older version stays readable"


KEY = ["we`ird a.b"]
SCHEMA_KEY = pa.schema([("we`ird a.b", pa.decimal128(20, 0))])


def test_restore_undoes_rows_and_columns_and_only_once(lake: Lakehouse) -> None:
    lake.append(PATH, rows((1, 1, None)))
    named = lake.version(PATH)
    lake.append(PATH, rows((2, 2, None)))
    lake.add_null_columns(PATH, pa.schema([*SCHEMA, pa.field("z", pa.string())]))
    assert lake.restore(PATH, named)
    assert lake.read(PATH).to_pylist() == [{"id": 1, "we`ird a.b": Decimal(1), "v": None}]
    assert not lake.restore(PATH, named)


def test_the_same_columns_in_another_order_are_a_change(lake: Lakehouse) -> None:
    lake.append(PATH, rows((1, MAX, [0.5])))
    turned = pa.schema([SCHEMA.field(name) for name in ("v", "id", "we`ird a.b")])
    lake.rewrite(PATH, turned, lambda batch: batch.select(turned.names))
    assert lake.read(PATH).schema.names == turned.names
    assert lake.read(PATH).to_pylist() == [{"v": [0.5], "id": 1, "we`ird a.b": MAX}]


def test_rename_carries_the_rows_and_leaves_the_old_versions(lake: Lakehouse) -> None:
    lake.append(PATH, rows((1, 1, [0.5])))
    lake.rename(PATH, "x/y")
    assert lake.read("x/y").to_pylist() == lake.read(PATH).to_pylist()
    lake.create("x/y", SCHEMA)
    assert lake.read("x/y").num_rows == 0
    assert lake.read("x/y", 1).num_rows == 1


def test_compaction_and_vacuum_keep_named_versions_readable(lake: Lakehouse) -> None:
    for i in range(COMPACT_FILES + 1):
        lake.append(PATH, rows((i, i, None)))
    named = lake.version(PATH)
    assert lake.compact(PATH)
    assert not lake.compact(PATH)
    lake.vacuum(PATH, 0, [named])
    assert lake.read(PATH, named).num_rows == lake.read(PATH).num_rows == COMPACT_FILES + 1
    assert lake.vacuum(PATH, 0, []) > 0
    with pytest.raises((Fatal, FileNotFoundError, OSError)):
        lake.read(PATH, named)


def test_a_named_version_outlives_the_age_of_its_log(lake: Lakehouse) -> None:
    log = lake.root / PATH / "_delta_log"
    days_ago = time.time() - 30 * 86_400
    for i in range(130):
        lake.append(PATH, rows((i, i, None)))
    for file in log.iterdir():
        os.utime(file, (days_ago, days_ago))
    named = 50
    for i in range(130, 230):
        lake.append(PATH, rows((i, i, None)))
    lake.vacuum(PATH, 24 * 31, [named])
    assert lake.trim_log(PATH, named) == 0
    assert lake.read(PATH, named).num_rows == named
    for file in log.iterdir():
        os.utime(file)
    assert lake.trim_log(PATH, 150) == 0, "a reader may be about to open what is young"
    for file in log.iterdir():
        os.utime(file, (days_ago, days_ago))
    assert lake.trim_log(PATH, 150) >= 99, "what no version from 150 on is read from"
    assert min(int(file.name[:20]) for file in log.iterdir() if file.name[:20].isdigit()) == 99
    assert lake.read(PATH, 150).num_rows == 150
    lake.vacuum(PATH, 0, [150])
    assert lake.read(PATH).num_rows == 230


def test_a_snapshot_carries_its_position_even_without_tables(lake: Lakehouse) -> None:
    assert lake.position() is None
    lake.publish(5, [SnapshotRow(5, "a", "b", 1, PATH, 0)], "one")
    lake.publish(7, [], "two")
    assert lake.position() == "two"
    assert lake.snapshot_rows() == []
    assert [row.path for row in lake.snapshot_rows(6)] == [PATH]
    lake.trim_snapshots(9)
    assert lake.position() == "two", "the newest snapshot is never trimmed"
    assert lake.snapshot_ts() == 7


def test_the_first_tables_of_a_new_target_may_come_side_by_side(tmp_path: Path) -> None:
    lake, start = Lakehouse(tmp_path / "new"), threading.Barrier(8)

    def make(number: int) -> None:
        start.wait(240)
        lake.create(f"db/t{number}", SCHEMA)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(8)))
    again = Lakehouse(lake.root)
    for number in range(8):
        again.append(f"db/t{number}", rows((number, MAX, None)))


def test_a_table_that_is_gone_says_so(lake: Lakehouse) -> None:
    with pytest.raises(Fatal, match=r"gone|cannot be read"):
        lake.read("no/table")
