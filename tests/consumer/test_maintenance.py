"""Tidying keeps what snapshots promise and removes what none names."""

from __future__ import annotations

import os
import time
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.consumer.logs import bank_topic, differences, snapshots
from tests.consumer.memory_topic import consume
from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.net_effect import Effect
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.ddl.ddl_steps import Create, Drop, Restore
from tidegate.consumer.delta.maintenance import Tidying, tidy
from tidegate.consumer.delta.target import DeltaTarget
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.table.definition import Definition, from_info
from tidegate.model.timestamp import compose
from tidegate.sink.lakehouse import open_tables
from tidegate.sink.lakehouse.snapshot_rows import COMPACT_FILES
from tidegate.sink.lakehouse.store import SNAPSHOTS
from tidegate.sink.lakehouse.table_files import TableFiles
from tidegate.sink.lakehouse.tables import Lakehouse
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, table_info


def test_within_the_retention_everything_named_stays_readable(tmp_path: Path) -> None:
    topic, target = bank_topic("open-protocol", 11), tmp_path / "target"
    consume(topic, target, until=snapshots()[2].ts)
    position = consume(topic, target, until=snapshots()[3].ts)
    # The log's timestamps lie in the past of no clock here: age is measured between snapshots.
    tidy(Lakehouse(target), position, Upkeep(retention_hours=1))
    assert differences(target, snapshots()[2]) == {}
    assert differences(target, snapshots()[3]) == {}


def test_without_retention_only_the_newest_stays_and_consuming_continues(tmp_path: Path) -> None:
    topic, target = bank_topic("open-protocol", 11), tmp_path / "target"
    consume(topic, target, until=snapshots()[6].ts)
    position = consume(topic, target, until=snapshots()[9].ts)
    lake = Lakehouse(target)
    deleted = tidy(lake, position, Upkeep(retention_hours=0))
    assert deleted > 0
    assert set(lake.read(SNAPSHOTS)["ts"].to_pylist()) == {position.ts}
    assert differences(target, snapshots()[9]) == {}
    named = set(lake.snapshots.named_versions())
    assert set(lake.table_paths()) == named, "tables that were dropped or renamed away are gone"
    consume(topic, target, until=snapshots()[11].ts)
    assert differences(target, snapshots()[11]) == {}


HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS + HOUR_MS // 2 + 10_000
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


class Grown:
    """A target of some tables of one row that counts; each commit names a snapshot."""

    def __init__(self, root: Path, tables: int, upkeep: Upkeep = Upkeep()) -> None:
        self.root, self.count = root, 0
        self.made = [definition_of(number) for number in range(tables)]
        self.target = DeltaTarget(root, upkeep)
        self.position = self.target.recover()
        for made in self.made if self.position is None else ():
            self.target.execute(Create(made))
        self.said: dict[int, list[list[int]]] = {}
        """By ts, what each table holds in the snapshot."""
        self.holds: list[list[int]] = [[] for _ in self.made]

    def commit(self, at_ms: int, *changed: int) -> Position:
        self.count += 1
        part = {0: PartitionPosition(self.count, self.count, self.count)}
        position = Position(compose(at_ms), "t", "open-protocol", "transaction", part)
        rows = pa.table([[1], [self.count]], schema=SCHEMA)
        effect = Effect(rows, rows.select(["id"]).slice(0, 0), np.array([False]))
        self.target.write([partial(TableChanges, self.made[number], effect) for number in changed], position)
        for number in changed:
            self.holds[number] = [self.count]
        self.position = self.target.commit(position)
        self.said[position.ts] = [list(held) for held in self.holds]
        return self.position

    def held(self, ts: int) -> list[list[int]]:
        """Return the rows that a reader finds in the snapshot of `ts`."""
        snapshot = open_snapshot(self.root, ts)
        assert snapshot.ts == ts
        return [snapshot.tables[made.name].to_arrow()["n"].to_pylist() for made in self.made]

    def named(self) -> list[int]:
        return self.target.lake.snapshots.all_ts()

    def check(self) -> None:
        assert all(self.held(ts) == self.said[ts] for ts in self.named())


def definition_of(number: int) -> Definition:
    columns = [ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY), ColumnSpec("n", 8, 20)]
    return from_info("db", table_info(1 + number, f"t{number}", columns, ["id"]), 1)


def dated(root: Path) -> None:
    """All files are two hours old: young ones stay."""
    then = time.time() - 7200
    for file in root.rglob("*"):
        os.utime(file, (then, then))


def test_snapshots_are_thinned_and_those_that_stay_are_as_they_were(tmp_path: Path) -> None:
    grown = Grown(tmp_path, 2)
    ages_ms = [
        *(30 * HOUR_MS, 8 * HOUR_MS + 2000, 8 * HOUR_MS + 1000, 8 * HOUR_MS),
        *(3 * HOUR_MS + 2000, 3 * HOUR_MS + 1000, 3 * HOUR_MS, 2000, 1000, 0),
    ]
    for age_ms in ages_ms:
        position = grown.commit(NOW_MS - age_ms, 0)
    dated(tmp_path)
    deleted = tidy(grown.target.lake, position, Upkeep())
    kept_ms = [8 * HOUR_MS, 3 * HOUR_MS, 2000, 1000, 0]
    assert grown.named() == [compose(NOW_MS - age) for age in kept_ms]
    assert deleted == len(ages_ms) - len(kept_ms)
    assert len(list((tmp_path / "db/t0").glob("*.parquet"))) == len(kept_ms)
    grown.check()
    position = grown.commit(NOW_MS + 1000, 0, 1)
    tidy(grown.target.lake, position, Upkeep(retention_hours=48, all_hours=48))
    assert len(grown.named()) == len(kept_ms) + 1, "all of two days"
    tidy(grown.target.lake, position, Upkeep(minute_hours=2))
    assert grown.named()[:2] == [compose(NOW_MS - age) for age in kept_ms[:2]], "one an hour"


@pytest.mark.parametrize("ages_h", [[8.001, 8, 0], [9, 8.001, 8, 0]], ids=["the oldest", "one in between"])
def test_what_a_reader_may_have_opened_a_moment_ago_is_not_deleted_yet(
    tmp_path: Path, ages_h: list[float]
) -> None:
    grown = Grown(tmp_path, 1)
    for age_h in ages_h:
        position = grown.commit(round(NOW_MS - age_h * HOUR_MS), 0)
    tidying = Tidying(grown.target.lake, Upkeep())
    list(tidying.round(position))
    assert len(grown.named()) == len(ages_h) - 1
    assert len(list((tmp_path / "db/t0").glob("*.parquet"))) == len(ages_h)
    dated(tmp_path)
    later = tidying if len(ages_h) == 3 else Tidying(grown.target.lake, Upkeep())
    list(later.round(position))
    assert len(list((tmp_path / "db/t0").glob("*.parquet"))) == len(ages_h) - 1, "looked at again"


def test_a_dropped_table_can_come_back_when_no_snapshot_names_it_any_more(tmp_path: Path) -> None:
    grown = Grown(tmp_path, 2)
    grown.commit(NOW_MS - 8 * HOUR_MS - 2000, 0, 1)
    dropped = grown.made[0]
    message = DdlMessage(compose(NOW_MS - 8 * HOUR_MS - 1000), "drop table t0", 4, "db", "t0", None, 0)
    grown.target.intend(message, [Drop("db", "t0")])
    grown.target.execute(Drop("db", "t0"))
    for age_ms in (8 * HOUR_MS, 0):
        grown.commit(NOW_MS - age_ms, 1)
    dated(tmp_path)
    while not grown.target.tidy(grown.position):
        pass
    assert set(grown.target.lake.snapshots.named_versions()) == {"db/t1"}
    grown.target.execute(Restore(dropped, grown.target.dropped()[dropped.table_id]))
    assert grown.target.lake.read("db/t0")["n"].to_pylist() == [1]


class Watched(Lakehouse):
    """Notes which paths are cleaned."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.cleaned: list[str] = []

    def files_of(self, path: str) -> TableFiles:
        made = super().files_of(path)
        check = made._check

        def noting() -> object:
            self.cleaned.append(path)
            return check()

        made._check = noting
        return made


def test_a_round_touches_changed_tables_only(tmp_path: Path) -> None:
    grown = Grown(tmp_path, 5)
    position = grown.commit(NOW_MS, *range(5))
    dated(tmp_path)
    lake = Watched(tmp_path)
    tidying = Tidying(lake, Upkeep())
    assert len(list(tidying.round(position))) > 5, "a piece for each table at least"
    assert set(lake.cleaned) == {*(f"db/t{number}" for number in range(5)), SNAPSHOTS}
    lake.cleaned.clear()
    list(tidying.round(grown.commit(NOW_MS + 1000, 3)))
    assert set(lake.cleaned) == {"db/t3", SNAPSHOTS}
    lake.cleaned.clear()
    list(tidying.round(grown.commit(NOW_MS + 30 * HOUR_MS, 1)))
    assert set(lake.cleaned) == {"db/t1", "db/t3", SNAPSHOTS}, "of t3 a version was forgotten"


def test_commits_continue_between_the_pieces_of_a_round(tmp_path: Path) -> None:
    grown = Grown(tmp_path, 4, Upkeep(retention_hours=0, piece_s=0))
    for number in range(12):
        grown.commit(NOW_MS + 1000 * number, number % 4)
    pieces = 1
    while not grown.target.tidy(grown.position):
        pieces += 1
        grown.commit(NOW_MS + 100_000 + 1000 * pieces, *range(pieces % 5))
        grown.check()
    assert pieces > 6
    assert len(grown.named()) == pieces
    for given_up in range(1, pieces, 3):  # killed after that many pieces; another process continues
        grown.commit(NOW_MS + 200_000 + 1000 * given_up, *range(4))
        for _ in islice(
            Tidying(Lakehouse(tmp_path), Upkeep(retention_hours=0)).round(grown.position), given_up
        ):
            pass
        grown.check()
    again = Grown(tmp_path, 4)
    assert again.position == grown.position
    again.said, again.holds, again.count = grown.said, grown.holds, grown.count
    again.commit(NOW_MS + 300_000, 2)
    again.check()


def test_a_commit_opens_no_table_and_a_restart_each_one_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def noting(uri: str, storage_options: dict[str, str] | None = None) -> DeltaTable:
        opened.append(str(Path(uri).relative_to(tmp_path)))
        return DeltaTable(uri, storage_options=storage_options)

    grown = Grown(tmp_path, 5)
    grown.commit(NOW_MS, *range(5))
    monkeypatch.setattr(open_tables, "DeltaTable", noting)
    grown.commit(NOW_MS + 1000, 2)
    assert opened == []
    Grown(tmp_path, 5)
    assert sorted(opened) == sorted([SNAPSHOTS, *(f"db/t{number}" for number in range(5))])


def test_a_table_is_compacted_by_the_commit_that_makes_it_have_many_files(tmp_path: Path) -> None:
    grown = Grown(tmp_path, 2)
    rows = pa.table([[1], [0]], schema=SCHEMA)
    for number in range(COMPACT_FILES + 1):
        fresh = Effect(rows, rows.select(["id"]).slice(0, 0), np.array([True]))
        grown.target.write([partial(TableChanges, grown.made[0], fresh)], grown.position or position_zero())
        assert grown.target.lake.file_count("db/t0") == number + 1
    grown.commit(NOW_MS)
    assert grown.target.lake.file_count("db/t0") == 1


def position_zero() -> Position:
    return Position(0, "t", "open-protocol", "transaction", {0: PartitionPosition(0, 0, 0)})
