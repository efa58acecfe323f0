"""Topics of TiCDC, which have no DDL header, into a real MariaDB: their SQL is run, each statement once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.memory_topic import MemoryTopic, consume_into
from tests.consumer.mysql.mortal import Killed, MortalServer
from tests.consumer.mysql.reading import differences, forget
from tests.consumer.mysql.test_ddl import Life, steps_to_die_at
from tests.consumer.mysql.test_target import lines_of, schemas_of, topic_of
from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.engine.position import Position
from tidegate.consumer.mysql.described import describe
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.errors import Fatal

ON_EXPRESSION = 470613002306453504
"""ADD INDEX ((n3+1)) in the log `onlineddl`: MariaDB knows no such index."""
MOMENT_OF_DDL = {"bank.orders": "ts", "o.part": "t8"}
"""Added with DEFAULT CURRENT_TIMESTAMP(3): TiDB took the job's start_ts, which no message tells."""


def bare(topic: MemoryTopic) -> MemoryTopic:
    """The topic as TiCDC would have written it: without headers of ours."""
    messages = (
        (number, replace(message, headers=()))
        for number, held in topic.partitions.items()
        for message in held
    )
    return MemoryTopic(topic.options, topic.partitions, messages, topic.names)


def consume(
    server: MySqlServer, name: str, topic: MemoryTopic, folder: Path, until: int, rows: int = 2000, **how: Any
) -> Position:
    with MySqlAddress(server, name, folder / "own", lanes=3, **how).opened() as target:
        applier = Applier(target, folder / "own")
        return consume_into(topic, applier, folder / "staging", until=until, size=400, rows=rows)


# --- recorded logs


@pytest.mark.parametrize(
    ("log", "at"),
    [
        ("bank", [10, 19]),
        ("onlineddl", [11]),  # equal up to its last one, 25, too; that takes half a minute
    ],
)
def test_a_recorded_log_without_headers_is_as_sql_saw_it(
    mariadb: MySqlServer, tmp_path: Path, log: str, at: list[int], dialect: Dialect
) -> None:
    lines = lines_of(log)
    topic = bare(topic_of(log, lines[at[-1]].ts))
    forget(mariadb, log, *schemas_of(lines))
    skipped = {ON_EXPRESSION} if log == "onlineddl" else set()
    if dialect is Dialect.TIDB and log == "onlineddl":
        # A newer one made the log; 8.4 converts no column of a partitioned table.
        with pytest.raises(Fatal, match="refuses a DDL of the topic") as stop:
            consume(mariadb, log, topic, tmp_path, lines[at[-1]].ts, skipped=skipped)
        assert "MODIFY COLUMN" in stop.value.where.upper()
        assert "--skip-ddl" in stop.value.fix
        return
    for line in (lines[number] for number in at):
        assert consume(mariadb, log, topic, tmp_path, line.ts, skipped=skipped).ts == line.ts
        assert differences(mariadb, line, MOMENT_OF_DDL) == {}


def test_death_at_any_write_loses_and_doubles_nothing(mariadb: MySqlServer, tmp_path: Path) -> None:
    """Rows, SQL of DDLs, what is read of tables, positions and takeovers."""
    lines = lines_of("bank")[:6]
    topic = bare(topic_of("bank", lines[-1].ts))
    forget(mariadb, "bank", "bank", "bank_aux")
    deaths = 0
    for dies_at in count(31):
        try:
            mortal = MortalServer.at(mariadb, dies_at + 7 * (dies_at % 13))
            consume(mortal, "bank", topic, tmp_path, lines[-1].ts, rows=200 + 170 * (dies_at % 4))
            break
        except Killed:
            deaths += 1
    assert deaths > 10
    assert differences(mariadb, lines[-1]) == {}


# --- statements


def reported(query: str, ts: int = 0, schema: str = "d_sql") -> DdlMessage:
    return DdlMessage(ts or (1_700_000_000_000 << 18) + 7, query, None, schema, "t", None, 0)


def steps_of(*queries: str) -> list[DdlMessage]:
    return [reported(query, (1_700_000_000_000 + at << 18)) for at, query in enumerate(queries)]


@pytest.fixture
def cursor(mariadb: MySqlServer) -> Iterator[Any]:
    if _has_ours(mariadb):
        forget(mariadb, "ddl", "d_sql", "d_two")
    connection = mariadb.connect()
    yield connection.cursor()
    connection.close()


def _has_ours(server: MySqlServer) -> bool:
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS d_sql")
        cursor.execute("DROP DATABASE IF EXISTS d_two")
        found = bool(cursor.execute("SHOW DATABASES LIKE 'tidegate'"))
    connection.close()
    return found


class Sql(Life):
    """A consumer that may adopt tables and leave DDLs out; see `Life`."""

    def __init__(
        self, server: MySqlServer, folder: Path, dies_at: int | None = None, zone: str = "UTC", **how: Any
    ) -> None:
        super().__init__(server, "ddl", folder, dies_at)
        if how:
            run = self.target._run
            run._tables.adopting, run._skipped = how.get("adopting", False), how.get("skipped", set())
        self.applier = Applier(self.target, folder, zone)

    def run(self, messages: Iterable[DdlMessage]) -> None:
        for message in messages:
            self.applier.ddl([message])


EVERYTHING = steps_of(
    "CREATE DATABASE `d_sql`",
    "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY /*T![auto_rand] AUTO_RANDOM(5) */,"
    "`v` VARCHAR(9) DEFAULT 'it''s')",
    "CREATE TABLE `u` LIKE `t`",
    "ALTER TABLE `t` ADD COLUMN `n` INT DEFAULT 3, ADD UNIQUE `un`(`n`), RENAME AS `d_two`.`w`",
    "ALTER TABLE `d_two`.`w` AUTO_INCREMENT = 1000",
    "CREATE INDEX `iv` ON `d_two`.`w` (`v`)",
    "RENAME TABLE `d_two`.`w` TO `x`, `u` TO `d_two`.`w`, `x` TO `u`",
    "TRUNCATE TABLE `u`",
    "CREATE TABLE `p` (`a` INT,`b` INT) PARTITION BY RANGE (`a`) (PARTITION `p0` VALUES LESS THAN (5),"
    "PARTITION `p1` VALUES LESS THAN (9))",
    "ALTER TABLE `p` DROP PARTITION `p0`",
    "ALTER TABLE `p` TRUNCATE PARTITION `p1`",
    "DROP INDEX `iv` ON `u`",
    "CREATE TABLE `gone` (`a` INT)",
    "DROP TABLE `gone`",
    "DROP DATABASE `d_two`",
)


def everything_at(dialect: Dialect) -> list[DdlMessage]:
    """No TiDB takes a column and an index on it in one statement, so none sends it to a TiDB."""
    if dialect is not Dialect.TIDB:
        return EVERYTHING
    return [replace(one, query=one.query.replace("`un`(`n`)", "`un`(`v`)")) for one in EVERYTHING]


def test_sql_dies_at_any_step_and_runs_once(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, dialect: Dialect
) -> None:
    """Each life sees all DDLs from the beginning, as after a position that has not moved."""
    deaths, messages = 0, everything_at(dialect)
    for dies_at in steps_to_die_at():
        try:
            with Sql(mariadb, tmp_path, dies_at) as life:
                life.run(messages)
                held = dict(life.target.definitions)
            break
        except Life.Over:
            deaths += 1
    assert deaths > len(EVERYTHING)
    assert sorted(held) == [("d_sql", "p"), ("d_sql", "u")]
    assert [column.name for column in held["d_sql", "u"].columns] == ["id", "v", "n"]
    assert held["d_sql", "u"].keys == ("id",)
    u = describe(cursor, "d_sql", "u") or ""
    assert "DEFAULT 'it''s'" in u
    assert "UNIQUE KEY `un`" in u
    assert "iv" not in u
    assert "COLLATE=utf8mb4_bin" in u or "utf8mb4_bin" in u.split("\n")[-1]
    p = describe(cursor, "d_sql", "p") or ""
    assert "`p0`" not in p
    assert not cursor.execute("SHOW DATABASES LIKE 'd_two'")


def test_one_death_at_each_step_of_a_create(mariadb: MySqlServer, cursor: Any, tmp_path: Path) -> None:
    messages = steps_of("create table t (a int primary key)")
    for dies_at in count():
        forget(mariadb, "ddl", "d_sql")
        try:
            with Sql(mariadb, tmp_path, dies_at) as life:
                life.run(messages)
            break
        except Life.Over:
            pass
        with Sql(mariadb, tmp_path) as life:
            life.run(messages)
            assert list(life.target.definitions) == [("d_sql", "t")]
    assert dies_at > 15


def test_definitions_survive_a_restart(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, dialect: Dialect
) -> None:
    with Sql(mariadb, tmp_path) as life:
        life.run(
            steps_of(
                "CREATE TABLE t (a INT UNSIGNED, b BIGINT UNSIGNED NOT NULL, c DECIMAL(9,2),"
                " d DATETIME(3) NOT NULL, e ENUM('x'), f BLOB, g JSON, h BIT(9), i YEAR,"
                " s INT AS (a+1) STORED, v INT AS (a) VIRTUAL,"
                " UNIQUE u3 (b, d, h), UNIQUE u2 (b, d), UNIQUE u0 (b, d))"
            )
        )
        made = life.target.definitions["d_sql", "t"]
    assert made.keys == ("b", "d")
    assert made.generated == ("s", "v")
    json = 251 if dialect is Dialect.MARIADB else 245  # there JSON is another word for LONGTEXT
    assert [one.mysql_type for one in made.columns] == [3, 8, 246, 12, 247, 252, json, 16, 13, 3]
    assert str(made.columns[1].type) == "decimal128(20, 0)"
    with Sql(mariadb, tmp_path) as life:
        assert life.target.definitions["d_sql", "t"] == made


def test_a_default_is_the_moment_of_the_ddl_in_the_feeds_zone(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    with Sql(mariadb, tmp_path, zone="Asia/Shanghai") as life:
        life.run([reported("create table t (a int primary key)")])
        cursor.execute("INSERT INTO d_sql.t VALUES (1)")
        life.run(
            [
                reported(
                    "alter table t add d datetime default current_timestamp, add ts timestamp default"
                    " '2024-01-01 08:00:00'",
                    (1_700_000_000_000 << 18) + 9,
                )
            ]
        )
        life.run([reported("create table u (ts timestamp)", (1_700_000_000_000 << 18) + 11)])
        (zone,) = life.target._hold.rows(
            "SELECT @@time_zone, ABS(UNIX_TIMESTAMP() - UNIX_TIMESTAMP(SYSDATE())) < 5"
        )
    cursor.execute("SELECT CAST(d AS CHAR), CAST(ts AS CHAR) FROM d_sql.t")
    assert cursor.fetchall() == (("2023-11-15 06:13:20", "2024-01-01 00:00:00"),)
    assert zone == ("+00:00", 1)


def test_what_the_server_refuses_is_shown_and_may_be_done_by_hand(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, dialect: Dialect
) -> None:
    query = {
        Dialect.MARIADB: "alter table t add index i ((a+1)), add c int",
        Dialect.MYSQL: "alter table t add index i ((a)), add c int",
        Dialect.TIDB: "alter table t add c int, add unique u (c)",
    }[dialect]
    made, refused = steps_of("create table t (a int primary key)", query)
    with Sql(mariadb, tmp_path) as life:
        life.run([made])
        with pytest.raises(Fatal, match="refuses a DDL") as stop:
            life.run([refused])
    assert query in stop.value.where
    assert "; at the target: ALTER TABLE `d_sql`.`t` ADD" in stop.value.where.replace(" add", " ADD")
    assert f"--skip-ddl {refused.ts}" in stop.value.fix
    cursor.execute("ALTER TABLE d_sql.t ADD c INT")
    with Sql(mariadb, tmp_path, skipped={refused.ts}) as life:
        life.run([refused])
        assert life.target.definitions["d_sql", "t"].column("c") is not None
    with Sql(mariadb, tmp_path) as life:
        assert life.target.definitions["d_sql", "t"].column("c") is not None


def test_rows_that_come_back_are_refused_and_may_be_put_by_hand(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    message = reported("recover table t")
    with Sql(mariadb, tmp_path) as life, pytest.raises(Fatal, match="cannot be replayed"):
        life.run([message])
    with Sql(mariadb, tmp_path, skipped={message.ts}) as life:
        life.run([message])


def test_a_schema_with_tables_of_others_stays(mariadb: MySqlServer, cursor: Any, tmp_path: Path) -> None:
    with Sql(mariadb, tmp_path) as life:
        life.run(steps_of("create database d_sql", "create table t (a int)", "create table u (a int)"))
        cursor.execute("CREATE TABLE d_sql.mine (a INT)")
        life.run(steps_of("drop database d_sql"))
        cursor.execute("SHOW TABLES IN d_sql")
        assert cursor.fetchall() == (("mine",),)
        assert not life.target.definitions


def test_a_table_that_is_not_there_is_said(mariadb: MySqlServer, cursor: Any, tmp_path: Path) -> None:
    with Sql(mariadb, tmp_path) as life:
        life.run(steps_of("drop table t"))
        for query in ("truncate t", "alter table t add c int", "rename table t to u"):
            with pytest.raises(Fatal, match="not at the target"):
                life.run(steps_of(query))


def test_a_table_that_is_there_is_made_by_nobody(mariadb: MySqlServer, cursor: Any, tmp_path: Path) -> None:
    cursor.execute("CREATE DATABASE d_sql")
    cursor.execute("CREATE TABLE d_sql.t (a INT PRIMARY KEY)")
    with Sql(mariadb, tmp_path) as life:
        for query in (
            "create table t (a int)",
            "truncate t",
            "alter table t add c int",
            "rename table t to u",
        ):
            with pytest.raises(Fatal, match="is there already") as stop:
                life.run(steps_of(query))
            assert "--adopt" in stop.value.fix
        life.run(steps_of("drop table t"))  # not ours: it stays
    assert cursor.execute("SHOW TABLES IN d_sql LIKE 't'")
