"""DDL that moves rows without row events, on Delta and Iceberg tables: a real TiDB's jobs, RECOVER TABLE.

Partitioned targets divide the files of some tables by v, which is equal to the key in all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.consumer import at_delta, at_iceberg
from tests.mounter.jobs import finished
from tidegate.codec.base import DdlMessage
from tidegate.codec.formats import ddl_header
from tidegate.consumer.ddl.ddl_plan import plan
from tidegate.consumer.delta import maintenance as of_delta
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.iceberg import maintenance as of_iceberg
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.selecting.rules import Rules
from tidegate.consumer.selecting.selection import Selection
from tidegate.errors import Fatal
from tidegate.model.ddl import DdlEvent
from tidegate.mounter.schema_store import SchemaStore

RECOVER = 25
FILLED = ("r", "r2", "ex", "n", "old", "back")
"""The tables with a column v that tests fill, under all their names."""


def recorded(case: str) -> Iterator[tuple[str, list[DdlEvent]]]:
    """Each finished job's statement and events."""
    store = SchemaStore()
    for job, _ in finished(case):
        yield job.query, store.apply(job).events


def message(event: DdlEvent, header: bool = True) -> DdlMessage:
    reported = ddl_header.encode(event) if header else None
    return DdlMessage(event.finished_ts, event.query, event.action, event.schema, event.table, reported, 0)


class Target:
    """A target that DDLs and rows are applied to by hand."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, at = root, at_delta if kind.startswith("delta") else at_iceberg
        rules = Rules(
            partition_by=tuple(f"d_part.{name}:v" for name in FILLED) if kind.endswith("partitioned") else ()
        )
        self._of = lambda folder: at.applier_of(folder, selection=Selection(rules))
        self._upkeep = of_delta if kind.startswith("delta") else of_iceberg
        self.applier = self._of(root)
        self.inner = self.applier.target

    def ddl(self, *events: DdlEvent, header: bool = True) -> list[str]:
        return self.applier.ddl([message(event, header) for event in events])

    def put(self, name: tuple[str, str], ids: list[int]) -> None:
        """Rows (id, v = id) into a table."""
        table = self.inner.tables[name]
        schema = table.definition.arrow_schema
        columns = [
            pa.array(ids if field.name != "_tidegate_rowid" else map(str, ids), field.type)
            for field in schema
        ]
        self.inner.lake.append(table.path, pa.table(columns, schema=schema))
        table.version = self.inner.lake.version(table.path)

    def ids(self, name: tuple[str, str], column: str = "id") -> list[int]:
        table = self.inner.tables[name]
        assert self.inner.lake.version(table.path) == table.version
        assert self.inner.lake.partition_spec(table.path) == table.definition.partition_by
        batches = self.inner.lake.batches(table.path, table.definition.arrow_schema)
        return sorted(value for batch in batches for value in batch[column].to_pylist())

    def tidy(self, position: Position) -> None:
        """A round of upkeep."""
        upkeep = Upkeep(retention_hours=1)
        list(self._upkeep.Tidying(self.inner.lake, upkeep, self.inner.dropped_versions).round(position))

    def publish(self, ts: int) -> Position:
        position = Position(ts, "t", "open-protocol", "transaction", {0: PartitionPosition(0, ts, ts)})
        self.applier.commit(position)
        return position

    def restart(self) -> None:
        self.inner.close()
        self.applier = self._of(self.root)
        self.inner = self.applier.target
        self.inner.recover()


@pytest.fixture(params=["delta", "iceberg", "delta partitioned", "iceberg partitioned"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path / "target", request.param)
    made.inner.recover()
    yield made
    made.inner.close()


def test_partition_jobs_leave_the_rows_that_tidb_leaves(target: Target) -> None:
    r, ex, h, n = (("d_part", name) for name in ("r", "ex", "h", "n"))
    for query, events in recorded("partitions"):
        match query.split(" partition")[0], query:
            case _, "alter table r drop partition p0":
                target.put(r, [0, 9, 10, 19, 20, 39])
                target.ddl(*events)
                assert target.ids(r) == [10, 19, 20, 39]
            case _, "alter table r truncate partition p1":
                target.ddl(*events)
                assert target.ids(r) == [20, 39]
            case _, "alter table r truncate partition p2, p3":
                target.ddl(*events)
                assert target.ids(r) == []
            case "alter table r reorganize", _:
                target.put(r, [11, 29, 31])
                target.ddl(*events)
                assert target.ids(r) == [11, 29, 31]
            case _, "alter table r exchange partition p12 with table ex":
                target.put(ex, [12, 13])
                was = target.inner.tables[r].definition.info
                assert was is not None
                target.ddl(*events)
                assert target.ids(r) == [12, 13, 31]
                assert target.ids(ex) == [11, 29]
                assert (
                    target.inner.tables[ex].definition.table_id == was["partition"]["definitions"][0]["id"]
                ), "the plain table has the partition's id from now on"
            case _, "alter table h add partition partitions 2":
                target.put(h, [-5, 0, 1, 2])
                target.ddl(*events)
                assert target.ids(h) == [-5, 0, 1, 2]
            case _, "truncate table r":
                target.ddl(*events)
                assert target.ids(r) == []
            case _, "alter table r remove partitioning":
                target.put(r, [1, 2])
                target.ddl(*events)
                assert target.ids(r) == [1, 2], "TiDB copies the rows to a new table id"
                assert events[0].before is not None
                assert target.inner.tables[r].definition.table_id != events[0].before["id"]
            case "alter table n", _:
                target.put(n, [1, 200])
                target.ddl(*events)
                assert target.ids(n) == [1, 200]
            case _:
                target.ddl(*events)
    assert sorted(target.inner.tables) == [("d_part", "ex"), ("d_part", "n"), ("d_part", "r2")]
    assert target.ids(("d_part", "r2")) == [1, 2]


@pytest.fixture
def jobs() -> dict[str, DdlEvent]:
    """Recorded events of tables t1..., by statement."""
    return {query: events[0] for query, events in recorded("partitions") if events}


def recover(event: DdlEvent, ts: int, table: str) -> DdlEvent:
    """Return the DDL of RECOVER TABLE or FLASHBACK TABLE .. TO for a table that `event` has dropped."""
    after = event.before
    assert after is not None
    after = after | {"name": {"O": table, "L": table}}
    return replace(
        event, action=RECOVER, before=None, after=after, finished_ts=ts, table=table, query="recover table"
    )


@pytest.mark.parametrize("snapshots", [False, True], ids=["at once", "after snapshots, upkeep and a restart"])
@pytest.mark.parametrize("name", ["r2", "back"])
def test_a_recovered_table_is_as_it_was_dropped(
    target: Target, jobs: dict[str, DdlEvent], name: str, snapshots: bool
) -> None:
    create = jobs["create table n (id int primary key, v int)"]
    assert create.after is not None
    target.ddl(create)
    target.put(("d_part", "n"), [1, 2, 3])
    drop = replace(
        create,
        action=4,
        before=create.after,
        after=None,
        finished_ts=create.finished_ts + 10,
        query="drop table n",
    )
    if snapshots:
        target.publish(drop.finished_ts - 1)
    target.ddl(drop)
    if snapshots:
        position = target.publish(drop.finished_ts + 1)
        target.tidy(position)
        target.restart()
    assert ("d_part", "n") not in target.inner.tables
    target.ddl(recover(drop, drop.finished_ts + 20, "n" if name == "r2" else name))
    found = ("d_part", "n" if name == "r2" else name)
    assert target.ids(found) == [1, 2, 3]
    assert target.inner.tables[found].definition.table_id == create.after["id"]


def test_a_truncated_table_can_come_back_next_to_the_new_one(
    target: Target, jobs: dict[str, DdlEvent]
) -> None:
    create = jobs["create table n (id int primary key, v int)"]
    assert create.after is not None
    target.ddl(create)
    target.put(("d_part", "n"), [1, 2, 3])
    truncate = replace(
        create,
        action=11,
        before=create.after,
        after=create.after | {"id": 999},
        finished_ts=create.finished_ts + 10,
    )
    target.ddl(truncate)
    target.put(("d_part", "n"), [7])
    target.ddl(recover(truncate, truncate.finished_ts + 10, "old"))
    assert target.ids(("d_part", "old")) == [1, 2, 3]
    assert target.ids(("d_part", "n")) == [7]


def refused(target: Target, event: DdlEvent, header: bool = True) -> Fatal:
    before = {name: table.version for name, table in target.inner.tables.items()}
    with pytest.raises(Fatal, match="a DDL cannot be replayed at the target") as caught:
        target.ddl(event, header=header)
    assert {name: table.version for name, table in target.inner.tables.items()} == before
    assert event.query[:200] in caught.value.where
    assert f"{event.schema}.{event.table} at ts {event.finished_ts}" in caught.value.where
    assert "leave the table out with a [filter] rule" in caught.value.fix
    assert "into a new target" in caught.value.fix
    return caught.value


def test_what_cannot_be_replayed_is_refused_before_anything_is_done(
    target: Target, jobs: dict[str, DdlEvent]
) -> None:
    create = jobs[
        "create table r (id int primary key, v int) partition by range (id) "
        "(partition p0 values less than (10), partition p1 values less than (20))"
    ]
    drop = jobs["alter table r drop partition p0"]
    exchange = jobs["alter table r exchange partition p12 with table ex"]
    target.ddl(create)
    target.put(("d_part", "r"), [1, 11])
    assert drop.before is not None
    by_key = drop.before | {"partition": drop.before["partition"] | {"type": 4}}
    assert "KEY" in refused(target, replace(drop, before=by_key)).why
    assert "one of the two is not at the target" in refused(target, exchange).why
    assert "does not hold them" in refused(target, recover(drop, drop.finished_ts, "r")).why
    for action, word in ((62, "FLASHBACK CLUSTER"), (63, "FLASHBACK DATABASE")):
        assert word in refused(target, replace(drop, action=action)).why
    assert target.ids(("d_part", "r")) == [1, 11]


@pytest.mark.parametrize(
    "query",
    [
        "alter table d_part.r drop partition p0",
        "ALTER TABLE `r` TRUNCATE PARTITION p0",
        "ALTER TABLE `d_part`.`r` EXCHANGE PARTITION `p0` WITH TABLE `d_part`.`ex`",
        "recover table r",
        "flashback table r to r2",
        "FLASHBACK CLUSTER TO TIMESTAMP '2020-01-01'",
    ],
)
def test_without_the_header_the_text_is_enough_to_refuse(
    target: Target, jobs: dict[str, DdlEvent], query: str
) -> None:
    event = replace(jobs["alter table r drop partition p0"], query=query)
    assert "no header" in refused(target, event, header=False).why


def test_a_recovered_table_whose_files_are_gone_says_so(target: Target, jobs: dict[str, DdlEvent]) -> None:
    create = jobs["create table n (id int primary key, v int)"]
    target.ddl(create)
    target.put(("d_part", "n"), [1, 2, 3])
    drop = replace(create, action=4, before=create.after, after=None, finished_ts=create.finished_ts + 10)
    target.ddl(drop)
    for file in (target.root / "d_part").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(Fatal, match="rows that are to come back are deleted") as caught:
        target.ddl(recover(drop, drop.finished_ts + 20, "back"))
    assert "retention" in caught.value.why


def renamed(event: DdlEvent, seq: int, old: str, new: str) -> DdlEvent:
    """A step of a RENAME TABLES job over a table that `event` has created."""
    assert event.after is not None
    infos = [event.after | {"name": {"O": name, "L": name}} for name in (old, new)]
    query = f"RENAME TABLE `{event.schema}`.`{old}` TO `{event.schema}`.`{new}`"
    return replace(
        event, action=14, seq=seq, finished_ts=event.finished_ts + 5, before=infos[0], after=infos[1],
        old_table=old, table=new, query=query, job_id=999,
    )  # fmt: skip


@pytest.mark.parametrize("header", [True, False], ids=["by table id", "by the order of the messages"])
def test_two_tables_that_swap_their_names_keep_their_rows(target: Target, header: bool) -> None:
    made = [e for _, events in recorded("basic") for e in events if e.action == 3 and e.schema == "d1"][:1]
    (first,) = made
    assert first.after is not None
    a, b = (
        replace(first, after=first.after | {"id": i, "name": {"O": n, "L": n}}, table=n, old_table=n)
        for i, n in ((901, "a"), (902, "b"))
    )
    target.ddl(a)
    target.ddl(b)
    column = target.inner.tables["d1", "a"].definition.columns[0].name
    for name, ids in (("a", [1, 2]), ("b", [3])):
        table = target.inner.tables["d1", name]
        row = {f.name: pa.nulls(len(ids), f.type) for f in table.definition.arrow_schema}
        row[column] = pa.array(ids, row[column].type)
        target.inner.lake.append(table.path, pa.table(row))
        table.version = target.inner.lake.version(table.path)
    target.publish(first.finished_ts + 1)
    target.restart()
    target.ddl(renamed(a, 0, "a", "t"), renamed(b, 1, "b", "a"), renamed(a, 2, "t", "b"), header=header)
    assert sorted(target.inner.tables) == [("d1", "a"), ("d1", "b")]
    assert target.ids(("d1", "a"), column) == [3]
    assert target.ids(("d1", "b"), column) == [1, 2]
    ids = [target.inner.tables["d1", name].definition.table_id for name in "ab"]
    assert ids == [902, 901]
    target.publish(first.finished_ts + 6)
    target.restart()
    assert target.ids(("d1", "a"), column) == [3]


def test_a_rename_onto_another_table_stops_before_it_removes_anything(target: Target) -> None:
    events = [e for _, events in recorded("basic") for e in events if e.action == 3 and e.schema == "d1"]
    assert events[0].after is not None
    a, b = (
        replace(events[0], after=events[0].after | {"id": i, "name": {"O": n, "L": n}}, table=n, old_table=n)
        for i, n in ((901, "a"), (902, "b"))
    )
    target.ddl(a)
    target.ddl(b)
    for header in (True, False):
        with pytest.raises(Fatal, match=r"still there|other rows"):
            target.ddl(renamed(a, 0, "a", "b"), header=header)
    assert sorted(target.inner.tables) == [("d1", "a"), ("d1", "b")]


@pytest.mark.parametrize(
    ("rows", "stops"), [([12, 13], False), ([12, 35], True)], ids=["rows that fit", "misplaced rows"]
)
def test_an_exchange_without_validation_is_checked_at_the_target(
    target: Target, rows: list[int], stops: bool
) -> None:
    """Rows that lie in a partition which their values do not name go when that one is dropped, not theirs."""
    r, ex = ("d_part", "r"), ("d_part", "ex")
    for query, events in recorded("partitions"):
        if not query.startswith("alter table r exchange"):
            target.ddl(*events)
            continue
        target.put(r, [11, 31])
        target.put(ex, rows)
        (event,) = events
        known = {name: table.definition for name, table in target.inner.tables.items()}
        for name in (r, ex):  # a deleted row that was kept may have the key of one that moves
            (step,) = plan(event, (known | {name: replace(known[name], soft_delete="gone")}).values())
            assert "--soft-delete" in step.why
        target.ddl(replace(event, query=f"{event.query} WITHOUT VALIDATION"))
        assert target.ids(r) == sorted([*rows, 31])
        break
    target.publish(event.finished_ts)
    target.restart()
    assert event.after is not None
    (gone,) = (d["id"] for d in event.after["partition"]["definitions"][:1])
    drop = replace(
        event, action=20, before=event.after, old_table="r", removed_ids=(gone,), query="drop", seq=0,
        finished_ts=event.finished_ts + 1,
    )  # fmt: skip
    if stops:
        with pytest.raises(Fatal, match="WITHOUT VALIDATION"):
            target.ddl(drop)
    else:
        target.ddl(drop)
        assert target.ids(r) == [31]
