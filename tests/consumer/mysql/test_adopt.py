"""Tables that were loaded before the consumer had them: adopted, and right at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.consumer.logs import PARTITIONS
from tests.consumer.memory_topic import MemoryTopic
from tests.consumer.mysql.mortal import Killed, MortalServer
from tests.consumer.mysql.reading import differences, forget
from tests.consumer.mysql.test_ddl import two_tables
from tests.consumer.mysql.test_replay import bare, consume, reported
from tests.consumer.mysql.test_target import LOGS, lines_of, topic_of
from tests.consumer.test_ddl_at_target import message, renamed
from tests.consumer.topics import Event, Mark, events_of, messages_of
from tidegate.codec.base import Decoded, DecodedTable, WireColumn
from tidegate.codec.registry import codec_options
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.engine.assembler import StagedPiece
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress, MySqlTarget
from tidegate.consumer.reading.staging import stage
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.ddl import DdlEvent
from tidegate.model.row import RowChange
from tidegate.workload.changelog import SnapshotLine

UNADOPTABLE = {"nokey", "u_null", "shard", "s_pre"}
"""Without a key, or with one over a part of a column."""

# --- a copy that is later than the topic's beginning


def ts_of(event: Event) -> int:
    if isinstance(event, RowChange):
        return event.commit_ts
    return event.ts if isinstance(event, Mark) else event.finished_ts


def since(start: int, until: int) -> MemoryTopic:
    """Return the topic of a changefeed from `start` on, for the tables that can be adopted."""
    options = codec_options({"protocol": "open-protocol"})
    events = [
        event for event in events_of(LOGS / "keys.jsonl.gz", until=until, force=True) if ts_of(event) > start
    ]
    kept = [
        event
        for event in events
        if not (isinstance(event, RowChange) and event.table.table in UNADOPTABLE)
        and not (isinstance(event, DdlEvent) and event.table in UNADOPTABLE)
    ]
    return bare(MemoryTopic(options, PARTITIONS, messages_of(kept, options, PARTITIONS)))


def adoptable(line: SnapshotLine) -> SnapshotLine:
    return replace(
        line, tables={n: t for n, t in line.tables.items() if n.partition(".")[2] not in UNADOPTABLE}
    )


def test_a_copy_later_than_the_start_ts_becomes_equal_despite_crashes(
    mariadb: MySqlServer, tmp_path: Path
) -> None:
    """Rows between the two moments come again: inserts of rows that are there, swaps of unique values."""
    lines = lines_of("keys")
    first, copied, last = lines[1], lines[4], lines[6]
    forget(mariadb, "keys", "k")
    forget(mariadb, "later")
    consume(mariadb, "keys", bare(topic_of("keys", copied.ts)), tmp_path / "copy", copied.ts)
    assert differences(mariadb, copied) == {}
    forget(mariadb, "keys")  # the loader of the tables is gone
    connection = mariadb.connect()
    for table in UNADOPTABLE:
        connection.cursor().execute(f"DROP TABLE k.{table}")
    connection.close()
    topic, deaths = since(first.ts, last.ts), 0
    for dies_at in count(131):
        try:
            mortal = MortalServer.at(mariadb, dies_at + 29 * (dies_at % 11))
            rows = 400 + 300 * (dies_at % 4)
            consume(mortal, "later", topic, tmp_path, last.ts, rows, adopting=True)
            break
        except Killed:
            deaths += 1
    assert deaths > 3
    assert differences(mariadb, adoptable(last)) == {}


# --- what is adopted, and what is not


@pytest.fixture
def cursor(mariadb: MySqlServer) -> Iterator[Any]:
    connection = mariadb.connect()
    made = connection.cursor()
    made.execute("DROP DATABASE IF EXISTS d_adopt")
    if made.execute("SHOW DATABASES LIKE 'tidegate'"):
        for name in ("adopt", "other"):
            forget(mariadb, name, "d_adopt")
    made.execute("CREATE DATABASE d_adopt DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    yield made
    connection.close()


ID = WireColumn("id", pa.int64(), 8, key=True)
U = WireColumn("u", pa.int64(), 3, key=False)


class Consumer:
    """One that is given rows by hand, each call at a later ts."""

    def __init__(self, server: MySqlServer, folder: Path, name: str = "adopt", **how: Any) -> None:
        self.target = MySqlTarget(server, name, **{"adopting": True, **how})
        self.target.recover()
        self.applier, self.folder, self.ts = Applier(self.target, folder), folder, 10

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.target.close()

    def rows(
        self, *changes: tuple[int, dict[str, Any] | None, dict[str, Any] | None], columns: Any = (ID, U)
    ) -> None:
        """(op, new, old) in one batch, each at a ts of its own."""
        first, size = self.ts + 1, len(changes)
        self.ts += size
        schema = pa.schema([(column.name, column.type) for column in columns])
        images = [
            pa.RecordBatch.from_pylist([change[at] or {} for change in changes], schema) for at in (1, 2)
        ]
        table = DecodedTable(
            *("d_adopt", "t", None, columns, np.array([op for op, _, _ in changes], np.uint8)),
            np.arange(first, first + size, dtype=np.uint64),
            np.arange(first, first + size, dtype=np.int64),
            np.zeros(size, np.int32),
            *images,
        )
        (segment,) = stage(Decoded(rows=[table]), 0, self.folder / f"{first}.arrow")
        piece = StagedPiece(segment, first - 1, self.ts)
        part = PartitionPosition(self.ts, self.ts, self.ts)
        position = Position(self.ts, "m", "open-protocol", "transaction", {0: part})
        self.applier.rows({("d_adopt", "t"): [piece]}, position)


def row(id: int, u: int | None) -> dict[str, Any]:
    return {"id": id, "u": u}


def test_rows_of_a_later_copy_make_room_for_the_older_ones(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    cursor.execute("CREATE TABLE d_adopt.t (id BIGINT PRIMARY KEY, u INT UNIQUE, s INT AS (u + 1) STORED)")
    cursor.execute("INSERT INTO d_adopt.t (id, u) VALUES (1, 7), (2, 5), (3, 6), (4, NULL), (9, NULL)")
    with Consumer(mariadb, tmp_path) as consumer:
        consumer.rows((INSERT, row(1, 5), None))
        consumer.rows((UPDATE, row(1, 6), row(1, 5)), (INSERT, row(4, None), None))
        # In the copy, though it was there for a moment only: the copy is of that moment.
        consumer.rows((INSERT, row(9, None), None), (DELETE, None, row(9, None)))
        consumer.rows((UPDATE, row(1, 7), row(1, 6)))
        consumer.rows((INSERT, row(2, 5), None), (INSERT, row(3, 6), None))
    cursor.execute("SELECT id, u, s FROM d_adopt.t ORDER BY id")
    assert cursor.fetchall() == ((1, 7, 8), (2, 5, 6), (3, 6, 7), (4, None, None))
    with Consumer(mariadb, tmp_path, adopting=False) as consumer:  # it is ours now
        consumer.ts = 100
        stored = replace(U, name="s")  # as TiDB computed it: the target does it itself
        new = row(4, 5) | {"s": 6}
        consumer.rows((UPDATE, new, row(4, None) | {"s": None}), columns=(ID, U, stored))
    cursor.execute("SELECT * FROM d_adopt.t WHERE u=5")
    assert cursor.fetchall() == ((4, 5, 6),)


BAD = {
    "CREATE TABLE d_adopt.t (id BIGINT PRIMARY KEY, u INT) ENGINE=MyISAM": "InnoDB",
    "CREATE TABLE d_adopt.t (id BIGINT, u INT)": "identifies its rows by id",
    "CREATE TABLE d_adopt.t (id BIGINT, u INT PRIMARY KEY)": "identifies its rows by id",
    "CREATE TABLE d_adopt.t (id BIGINT UNIQUE, u INT)": "identifies its rows by id",
    "CREATE TABLE d_adopt.t (id BIGINT PRIMARY KEY, u INT, v VARCHAR(9), UNIQUE p (v(3)))": "index p",
    "CREATE TABLE d_adopt.t (id BIGINT PRIMARY KEY, u INT, g INT AS (u) VIRTUAL, UNIQUE p (g))": "index p",
    "CREATE VIEW d_adopt.t AS SELECT 1 AS id, 2 AS u": "view",
    "CREATE TABLE d_adopt.t (id BIGINT PRIMARY KEY)": "does not have",
    "CREATE TABLE d_adopt.t (id BIGINT PRIMARY KEY, u POINT)": "type that TiDB",
}


@pytest.mark.parametrize("made", BAD)
def test_a_table_that_rows_could_not_be_brought_right_in_is_refused(
    mariadb: MySqlServer, dialect: Dialect, cursor: Any, tmp_path: Path, made: str
) -> None:
    if dialect is Dialect.TIDB and BAD[made] in ("InnoDB", "type that TiDB"):
        pytest.skip("a TiDB has one engine, and no other types than a TiDB")
    cursor.execute(made)
    with Consumer(mariadb, tmp_path) as consumer, pytest.raises(Fatal) as stop:
        consumer.rows((INSERT, row(1, 5), None))
    assert BAD[made] in stop.value.render()
    with Consumer(mariadb, tmp_path) as consumer:
        assert not consumer.target.definitions


def test_unknown_and_missing_tables_and_those_of_others_are_refused(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    with Consumer(mariadb, tmp_path) as consumer, pytest.raises(Fatal, match="not at the target"):
        consumer.rows((INSERT, row(1, 5), None))
    cursor.execute("CREATE TABLE d_adopt.t (id BIGINT PRIMARY KEY, u INT)")
    with Consumer(mariadb, tmp_path, adopting=False) as consumer, pytest.raises(Fatal) as stop:
        consumer.rows((INSERT, row(1, 5), None))
    assert "--adopt" in stop.value.fix
    with Consumer(mariadb, tmp_path, "other") as consumer:
        consumer.rows((INSERT, row(1, 5), None))
    with Consumer(mariadb, tmp_path) as consumer, pytest.raises(InvalidInput, match="two consumers"):
        consumer.rows((INSERT, row(1, 5), None))
    with Consumer(mariadb, tmp_path) as consumer, pytest.raises(InvalidInput, match="two consumers"):
        consumer.applier.ddl([reported("alter table t add c int", 9, "d_adopt")])
    assert not cursor.execute("SHOW COLUMNS FROM d_adopt.t LIKE 'c'")


def test_a_table_with_a_trigger_is_refused(
    mariadb: MySqlServer, dialect: Dialect, cursor: Any, tmp_path: Path
) -> None:
    if dialect is Dialect.TIDB:
        pytest.skip("a TiDB has no triggers")
    cursor.execute("CREATE TABLE d_adopt.t (id BIGINT PRIMARY KEY, u INT)")
    cursor.execute("CREATE TRIGGER d_adopt.g BEFORE INSERT ON d_adopt.t FOR EACH ROW SET NEW.u = 1")
    with Consumer(mariadb, tmp_path) as consumer, pytest.raises(Fatal, match="trigger g"):
        consumer.rows((INSERT, row(1, 5), None))


def test_a_key_that_is_not_the_targets_first_is_the_topics(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    """TiDB takes the older one of two equal unique indexes, which need not be the first here."""
    columns = replace(ID, name="b"), replace(U, name="a")
    with Consumer(mariadb, tmp_path, adopting=False) as consumer:
        consumer.applier.ddl(
            [
                reported(
                    "create table t (a int not null, b bigint not null, unique (a), unique (b))", 9, "d_adopt"
                )
            ]
        )
        assert consumer.target.definitions["d_adopt", "t"].keys == ("a",)
        consumer.rows((INSERT, {"a": 1, "b": 2}, None), columns=columns)
        assert consumer.target.definitions["d_adopt", "t"].keys == ("b",)
        consumer.rows((DELETE, None, {"b": 2}), columns=columns)
    cursor.execute("SELECT * FROM d_adopt.t")
    assert cursor.fetchall() == ()


def test_a_key_that_the_topic_does_not_carry_is_refused(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    """Rows would be netted by NULLs: of three inserts one would be written."""
    columns = replace(ID, name="a", key=False), U
    rows = [(INSERT, {"a": 1, "u": number}, None) for number in range(3)]
    made = "create table d_adopt.t (s bigint auto_increment primary key, a bigint, u int)"
    cursor.execute(made)
    with (
        Consumer(mariadb, tmp_path) as consumer,
        pytest.raises(Fatal, match="rows of the topic do not carry"),
    ):
        consumer.rows(*rows, columns=columns)
    cursor.execute("DROP TABLE d_adopt.t")
    with Consumer(mariadb, tmp_path, adopting=False) as consumer:
        consumer.applier.ddl([reported(made, 9, "d_adopt")])
        with pytest.raises(Fatal, match="column s"):
            consumer.rows(*rows, columns=columns)


def test_rows_with_a_column_that_the_table_has_not_are_refused(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    with Consumer(mariadb, tmp_path) as consumer:
        consumer.applier.ddl([reported("create table t (id bigint primary key, u int)", 9, "d_adopt")])
        with pytest.raises(Fatal, match="does not have"):
            consumer.rows((INSERT, {"id": 1, "x": 2}, None), columns=(ID, replace(U, name="x")))


def test_ddl_reaches_tables_that_no_row_has_named_yet(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    """An old table that a DROP left would be adopted later, with its rows."""
    for name in ("t", "gone", "named", "t2"):
        cursor.execute(f"CREATE TABLE d_adopt.{name} (id BIGINT PRIMARY KEY, u INT UNIQUE)")
        cursor.execute(f"INSERT INTO d_adopt.{name} VALUES (1, 5)")
    with Consumer(mariadb, tmp_path) as consumer:
        for at, query in enumerate(
            [
                "alter table t add c int",
                "alter table t add unique (c)",  # one statement for both is refused by a TiDB
                "drop table gone",
                "rename table named to renamed",
                "create table gone (id bigint primary key)",
                "create table t2 (id bigint primary key)",
            ]
        ):
            consumer.applier.ddl([reported(query, 100 + at, "d_adopt")])
        held = consumer.target.definitions
        assert held["d_adopt", "t"].uniques == (("id",), ("u",), ("c",))
        assert held["d_adopt", "renamed"].uniques == (("id",), ("u",))
        assert held["d_adopt", "gone"].uniques == ()
        assert held["d_adopt", "t2"].uniques == (("id",), ("u",))
        cursor.execute("SELECT COUNT(*) FROM d_adopt.gone")
        assert cursor.fetchall() == ((0,),)
        consumer.applier.ddl([reported("truncate table t", 110, "d_adopt")])
        assert held["d_adopt", "t"].uniques == ()
        consumer.applier.ddl([reported("drop database d_adopt", 111, "d_adopt")])
        assert not cursor.execute("SHOW DATABASES LIKE 'd_adopt'")


def test_a_table_that_a_header_tells_of_is_adopted_and_stays_so(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    a, _ = two_tables()
    cursor.execute("DROP DATABASE IF EXISTS d1")
    forget(mariadb, "adopt", "d1")
    with Consumer(mariadb, tmp_path) as consumer:
        consumer.applier.ddl([message(a)])
    forget(mariadb, "adopt")
    with (
        Consumer(mariadb, tmp_path, adopting=False) as consumer,
        pytest.raises(Fatal, match="is there already"),
    ):
        consumer.applier.ddl([message(a)])
    with Consumer(mariadb, tmp_path) as consumer:
        consumer.applier.ddl([message(a)])
        made = consumer.target.definitions["d1", "a"]
        assert made.info is not None
        assert made.uniques == (made.keys,)
        consumer.applier.ddl([message(renamed(a, 0, "a", "t"))])
        assert consumer.target.definitions["d1", "t"].uniques == (made.keys,)
    with Consumer(mariadb, tmp_path) as consumer:
        assert consumer.target.definitions["d1", "t"].uniques == (made.keys,)
    forget(mariadb, "adopt")
    moved = message(renamed(a, 1, "t", "v"))
    with (
        Consumer(mariadb, tmp_path) as consumer,
        pytest.raises(Fatal, match="by a DDL that changes it") as stop,
    ):
        consumer.applier.ddl([moved])
    assert f"--skip-ddl {moved.ts}" in stop.value.fix
    cursor.execute("RENAME TABLE d1.t TO d1.v")
    with Consumer(mariadb, tmp_path, skipped={moved.ts}) as consumer:
        consumer.applier.ddl([moved])
        assert consumer.target.definitions["d1", "v"].uniques == (made.keys,)
    forget(mariadb, "adopt", "d1")


def test_delta_knows_no_adoption(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--adopt is for databases"):
        address_of(tmp_path, Upkeep(), DatabaseSettings(adopt=True))
    with pytest.raises(InvalidInput, match="--skip-ddl is for databases"):
        address_of(tmp_path, Upkeep(), DatabaseSettings(skip_ddls={5}))
    address = address_of("mysql://h/", Upkeep(), DatabaseSettings("n", tmp_path, adopt=True, skip_ddls={5}))
    assert isinstance(address, MySqlAddress)
    assert (address.adopting, address.skipped) == (True, {5})
