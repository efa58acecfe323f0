"""The Delta writer: odd names, exact keys, undo, snapshots."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidegate.errors import Fatal, InvalidInput
from tidegate.sink.lakehouse.own_tables import OwnTables
from tidegate.sink.lakehouse.snapshot_rows import COMPACT_FILES, SLICE, SnapshotRow
from tidegate.sink.lakehouse.store import SNAPSHOTS
from tidegate.sink.lakehouse.tables import Lakehouse, table_path

SCHEMA = pa.schema([("id", pa.int64()), ("we`ird a.b", pa.decimal128(20, 0)), ("v", pa.list_(pa.float32()))])
PATH = table_path("b`a k", "_a/é%.1")
MAX = Decimal(2**64 - 1)


def rows(*values: tuple[int, object, object]) -> pa.Table:
    return pa.table([list(column) for column in zip(*values, strict=True)], schema=SCHEMA)


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    made = Lakehouse(tmp_path / "with space")
    made.create(PATH, SCHEMA)
    return made


def test_paths_are_plain_and_never_ours() -> None:
    assert table_path("bank", "accounts") == "bank/accounts"
    assert PATH == "b=60a=20k/=5Fa=2F=C3=A9=25.1"
    assert table_path("_tidegate", "snapshots") == "=5Ftidegate/snapshots"


def test_the_longest_names_have_folders_of_their_own(tmp_path: Path) -> None:
    """64 characters of four bytes are 768 signs when encoded; a folder's name has 255 at most."""
    lake = Lakehouse(tmp_path)
    names = ["\U00020000" * 64, "\U00020000" * 63 + "\U00020001", "表" * 29, "=~" * 32, "a" * 64]
    paths = [table_path(name, name) for name in names]
    assert len(set(paths)) == len(names)
    assert all(len(part) <= 200 for path in paths for part in path.split("/"))
    for number, path in enumerate(paths):
        lake.create(path, SCHEMA)
        lake.append(path, rows((number, 1, None)))
    assert [lake.read(path).column("id").to_pylist() for path in paths] == [[n] for n in range(len(names))]


def test_an_old_release_folder_is_not_shared_on_a_case_insensitive_disk(tmp_path: Path) -> None:
    """A link simulates such a disk: two spellings, one folder."""
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
    lake.create(table_path("shop", "Orders"), SCHEMA)


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
    batches = lake.dataset(PATH).to_batches()
    lake.replace(PATH, turned, (batch.select(turned.names) for batch in batches))
    assert lake.read(PATH).schema.names == turned.names
    assert lake.read(PATH).to_pylist() == [{"v": [0.5], "id": 1, "we`ird a.b": MAX}]


def test_rename_carries_the_rows_and_leaves_the_old_versions(lake: Lakehouse) -> None:
    lake.append(PATH, rows((1, 1, [0.5])))
    lake.rename(PATH, "x/y")
    assert lake.read("x/y").to_pylist() == lake.read(PATH).to_pylist()
    lake.create("x/y", SCHEMA)
    assert lake.read("x/y").num_rows == 0
    assert lake.read("x/y", 1).num_rows == 1


def test_compaction_and_cleaning_keep_needed_versions_readable(lake: Lakehouse) -> None:
    for i in range(COMPACT_FILES + 1):
        lake.append(PATH, rows((i, i, None)))
    named = lake.version(PATH)
    assert lake.compact(PATH)
    assert not lake.compact(PATH)
    clean(lake, [named])
    assert lake.read(PATH, named).num_rows == lake.read(PATH).num_rows == COMPACT_FILES + 1
    assert clean(lake, [lake.version(PATH)]) > 0
    with pytest.raises((Fatal, FileNotFoundError, OSError)):
        lake.read(PATH, named)


def clean(lake: Lakehouse, needed: list[int], log_age: float = 3600.0) -> int:
    """Delete what `needed` and later versions do not have, data files of any age."""
    now = time.time()
    return sum(lake.files_of(PATH).clean(needed, now, now - log_age))


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
    assert clean(lake, [named]) == 0
    assert lake.read(PATH, named).num_rows == named
    for file in log.iterdir():
        os.utime(file)
    assert clean(lake, [150]) == 0, "a reader may be about to open what is young"
    for file in log.iterdir():
        os.utime(file, (days_ago, days_ago))
    assert clean(lake, [150]) >= 99, "what no version from 150 on is read from"
    assert min(int(file.name[:20]) for file in log.iterdir() if file.name[:20].isdigit()) == 99
    assert lake.read(PATH, 150).num_rows == 150
    assert lake.read(PATH).num_rows == 230


def test_a_snapshot_carries_its_position_even_without_tables(lake: Lakehouse) -> None:
    assert lake.snapshots.position() is None
    lake.snapshots.publish(5, [SnapshotRow(5, "a", "b", 1, PATH, 0)], "one")
    lake.snapshots.publish(7, [], "two")
    assert lake.snapshots.position() == "two"
    assert lake.snapshots.rows() == []
    assert [row.path for row in lake.snapshots.rows(6)] == [PATH]
    assert lake.snapshots.all_ts() == [5, 7]
    list(lake.snapshots.forget([5]))
    assert lake.snapshots.all_ts() == [7]
    assert lake.snapshots.position() == "two"


def test_the_snapshot_at_a_moment_is_found_in_any_number_of_files(lake: Lakehouse) -> None:
    for ts in (10, 30, 20, 50, 40):  # files whose bounds overlap, once two of them are one
        lake.snapshots.publish(ts, [SnapshotRow(ts, "a", "b", 1, PATH, ts)], f"at {ts}")
    DeltaTable(lake.root / SNAPSHOTS).optimize.compact()
    for ts in (60, 70):
        Lakehouse(lake.root).snapshots.publish(ts, [SnapshotRow(ts, "a", "b", 1, PATH, ts)], f"at {ts}")
    for at in range(5, 80, 5):
        found = [row.version for row in lake.snapshots.rows(at)]
        assert found == ([at // 10 * 10] if at >= 10 else [])
    assert lake.snapshots.position() == "at 70"


def test_snapshots_are_forgotten_in_pieces_of_ten_minutes(tmp_path: Path) -> None:
    lake = Lakehouse(tmp_path)
    stamps = [SLICE * 100 + SLICE // 5 * number for number in range(30)]
    for ts in stamps:
        lake.snapshots.publish(ts, [SnapshotRow(ts, "a", "b", 1, PATH, 7)], f"at {ts}")
    forgotten = [*stamps[:5], stamps[12]]
    pieces = list(lake.snapshots.forget(forgotten))
    assert len(pieces) == 5, "the newest ten minutes have few files"
    left = [ts for ts in stamps if ts not in forgotten]
    assert lake.snapshots.all_ts() == left
    assert lake.snapshots.position() == f"at {stamps[-1]}"
    assert [[row.ts for row in lake.snapshots.rows(ts)] for ts in left] == [[ts] for ts in left]
    assert lake.file_count(SNAPSHOTS) == 4 + 5
    assert list(lake.snapshots.forget([])) == []
    assert len(list(lake.snapshots.forget([stamps[6], stamps[13]]))) == 2
    left = [ts for ts in left if ts not in (stamps[6], stamps[13])]
    assert lake.snapshots.all_ts() == left
    DeltaTable(tmp_path / SNAPSHOTS).optimize.compact()  # somebody's: one file of all the time
    assert len(list(lake.snapshots.forget([left[0]]))) == 1
    assert lake.snapshots.all_ts() == left[1:]


def test_snapshots_in_files_without_bounds_are_found_and_forgotten(tmp_path: Path) -> None:
    """As another tool may write them."""
    lake = Lakehouse(tmp_path)
    for number in (1, 2, 3):
        lake.snapshots.publish(
            number * SLICE, [SnapshotRow(number * SLICE, "a", "b", 1, PATH, number)], f"{number}"
        )
    nothing = {"delta.dataSkippingStatsColumns": "path"}
    DeltaTable(tmp_path / SNAPSHOTS).alter.set_table_properties(nothing)
    DeltaTable(tmp_path / SNAPSHOTS).optimize.compact()
    assert lake.snapshots.newest_ts(2 * SLICE + 5) == 2 * SLICE
    assert lake.snapshots.position() == "3"
    list(lake.snapshots.forget([SLICE]))
    assert lake.snapshots.all_ts() == [2 * SLICE, 3 * SLICE]
    assert [row.version for row in lake.snapshots.rows(2 * SLICE)] == [2]


def two_writers(root: Path) -> tuple[Lakehouse, Lakehouse]:
    """Two processes that both take themselves for the only one."""
    first = Lakehouse(root)
    first.create(PATH, SCHEMA)
    first.snapshots.publish(5, [], "one")
    second = Lakehouse(root)
    assert second.snapshots.position() == "one"
    return first, second


def test_a_consumer_that_was_replaced_names_no_snapshot(tmp_path: Path) -> None:
    old, new = two_writers(tmp_path)
    new.snapshots.publish(7, [], "of the new")
    with pytest.raises(Fatal, match="another consumer has named a snapshot") as caught:
        old.snapshots.publish(6, [], "of the old")
    assert "7" in caught.value.why
    assert Lakehouse(tmp_path).snapshots.all_ts() == [5, 7]


class SlowTables(OwnTables):
    """Looks at a table, and then is so slow that somebody else writes it first."""

    between: Callable[[], None]

    def writable(self, path: str) -> DeltaTable:
        table = super().writable(path)
        SlowTables.between()
        return table


def test_a_commit_that_somebody_else_was_faster_than_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default an append does not conflict with another append: both would stay."""
    _, new = two_writers(tmp_path)

    def next_is(act: Callable[[], object]) -> None:
        monkeypatch.setattr(SlowTables, "between", staticmethod(act), raising=False)

    with monkeypatch.context() as patch:
        patch.setattr("tidegate.sink.lakehouse.tables.OwnTables", SlowTables)
        old = Lakehouse(tmp_path)
    next_is(lambda: None)
    assert old.snapshots.position() == "one"
    next_is(lambda: new.snapshots.publish(7, [], "of the new"))
    with pytest.raises(Fatal, match="at the same time"):
        old.snapshots.publish(6, [], "of the old")
    assert Lakehouse(tmp_path).snapshots.all_ts() == [5, 7]
    values = rows((1, 1, None))
    writes: list[Callable[[], object]] = [
        lambda: old.append(PATH, values),
        lambda: old.merge(PATH, values, values.slice(0, 0).select(["id"]), ["id"]),
        lambda: old.create(PATH, SCHEMA),
        lambda: old.restore(PATH, 0),
        lambda: old.add_null_columns(PATH, pa.schema([*SCHEMA, pa.field("z", pa.string())])),
    ]
    for write in writes:
        other = Lakehouse(tmp_path)
        next_is(partial(other.append, PATH, values))
        before = other.version(PATH)
        with pytest.raises(Fatal, match="at the same time"):
            write()
        assert other.version(PATH) > before
        assert DeltaTable(tmp_path / PATH).history(1)[0]["operation"] == "WRITE"


def test_foreign_changes_to_the_snapshot_table_do_not_stop_the_consumer(tmp_path: Path) -> None:
    lake, _ = two_writers(tmp_path)
    lake.snapshots.publish(7, [], "two")
    DeltaTable(tmp_path / SNAPSHOTS).optimize.compact()
    lake.snapshots.publish(9, [], "three")
    assert lake.snapshots.all_ts() == [5, 7, 9]


def test_a_table_that_is_kept_open_is_seen_as_it_is_on_the_disk(tmp_path: Path) -> None:
    ours = Lakehouse(tmp_path / "ours")
    ours.create(PATH, SCHEMA)
    ours.append(PATH, rows((1, 1, None)))
    write_deltalake(tmp_path / "ours" / PATH, rows((2, 2, None)), mode="append")
    assert ours.read(PATH).num_rows == 2, "somebody else's commit"
    other = Lakehouse(tmp_path / "other")
    other.create(PATH, SCHEMA)
    for number in range(2):  # the same number of commits
        other.append(PATH, rows((number, 1, None)))
    (tmp_path / "ours" / PATH).rename(tmp_path / "away")
    shutil.copytree(tmp_path / "other" / PATH, tmp_path / "ours" / PATH)
    with pytest.raises(Fatal, match=r"not the target's"):
        ours.append(PATH, rows((9, 9, None)))
    assert other.version(PATH) == DeltaTable(tmp_path / "ours" / PATH).version() == 2


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
