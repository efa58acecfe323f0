"""The MySQL target relies on facts that no manual promises. Each is read from a real server."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from tidegate.consumer.mysql.atomicity import MANY
from tidegate.consumer.mysql.literals import KEYS
from tidegate.consumer.mysql.session import Connection, MySqlServer

NUMBERS = itertools.count()
WAIT_S = 120
ROWS = 100_000
"""Enough that undoing them takes a moment that can be seen."""


@pytest.fixture
def schema() -> str:
    """A schema that no other test has; also the name of its lock."""
    return f"facts{next(NUMBERS)}"


@pytest.fixture
def server(mariadb: MySqlServer, schema: str) -> Iterator[Connection]:
    """A connection of a bystander; the schema is there and is its default."""
    connection = mariadb.connect()
    ask(connection, f"CREATE DATABASE {schema}")
    connection.select_db(schema)
    yield connection
    ask(connection, f"DROP DATABASE {schema}")
    connection.close()


def ask(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def numbers(connection: Connection, count: int) -> str:
    """A table with the numbers from 1 to `count` in its column `seq`, for a FROM."""
    if "MariaDB" in connection.get_server_info():
        return f"seq_1_to_{count}"
    ask(connection, f"SET cte_max_recursion_depth={count}")
    more = f"SELECT seq + 1 FROM n WHERE seq < {count}"
    return f"(WITH RECURSIVE n (seq) AS (SELECT 1 UNION ALL {more}) SELECT seq FROM n) AS n"


def wait_for(connection: Connection, statement: str) -> None:
    """Until the statement's one value is true."""
    deadline = time.monotonic() + WAIT_S
    while not ask(connection, statement)[0][0]:
        assert time.monotonic() < deadline, statement
        time.sleep(0.002)


def holder(mariadb: MySqlServer, schema: str) -> Connection:
    connection = mariadb.connect()
    connection.select_db(schema)
    assert ask(connection, f"SELECT GET_LOCK('{schema}', 0)") == [(1,)]
    return connection


# --- KILL and locks by name


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO copied SELECT id, pad FROM large ORDER BY id",
        "DELETE FROM large WHERE id > 0",
        "ALTER TABLE large MODIFY pad VARCHAR(201), ALGORITHM=COPY",
        "ALTER TABLE large FORCE, ALGORITHM=INPLACE",
        "CREATE TABLE made AS SELECT id, SLEEP(0.001) FROM large",
        "SELECT SLEEP(60)",
    ],
    ids=["insert", "delete", "copy", "inplace", "create", "sleep"],
)
def test_a_lock_is_free_only_after_the_killed_statement_has_ended(
    mariadb: MySqlServer, server: Connection, schema: str, statement: str
) -> None:
    """The client is cut off at once; the lock stays until the statement is undone, or has taken effect.

    Nothing of it may run when the taker has the lock. Whether it took effect is open: a killed ALTER that was
    nearly through loses its answer, not its work.
    """
    if "large" in statement:
        ask(server, "CREATE TABLE large (id INT PRIMARY KEY, pad VARCHAR(200)) ENGINE=InnoDB")
        ask(server, f"INSERT INTO large SELECT seq, REPEAT('x', 100) FROM {numbers(server, ROWS)}")
    ask(server, "CREATE TABLE copied (id INT PRIMARY KEY, pad VARCHAR(200)) ENGINE=InnoDB")
    old = holder(mariadb, schema)
    number = old.thread_id()
    errors: list[Exception] = []

    def run() -> None:
        try:
            ask(old, statement)
        except pymysql.err.MySQLError as error:
            errors.append(error)

    running = threading.Thread(target=run)
    running.start()
    shown = f"SELECT info IS NOT NULL FROM information_schema.processlist WHERE id={number}"
    # A busy machine may stop this thread until the statement has ended.
    while running.is_alive() and not ask(server, shown)[0][0]:
        time.sleep(0.002)
    time.sleep(0.05)
    ask(server, f"KILL CONNECTION {number}")
    assert ask(server, f"SELECT GET_LOCK('{schema}', {WAIT_S})") == [(1,)]
    at_work = ask(server, f"SELECT info FROM information_schema.processlist WHERE id={number}")
    in_doubt = ask(server, f"SELECT 1 FROM information_schema.innodb_trx WHERE trx_mysql_thread_id={number}")
    running.join()
    assert at_work in ([], [(None,)])
    assert in_doubt == []
    assert errors or "SLEEP" not in statement
    assert ask(server, "SELECT COUNT(*) FROM copied")[0][0] in (0, ROWS)
    if "large" in statement:
        assert ask(server, "SELECT COUNT(*) FROM large")[0][0] in (0, ROWS)


def test_a_lock_is_free_only_after_the_killed_transaction_is_rolled_back(
    mariadb: MySqlServer, server: Connection, schema: str
) -> None:
    """The killed connection is idle inside its open transaction."""
    ask(server, "CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB")
    old = holder(mariadb, schema)
    old.begin()
    ask(old, f"INSERT INTO t SELECT seq FROM {numbers(old, ROWS)}")
    ask(server, f"KILL CONNECTION {old.thread_id()}")
    assert ask(server, f"SELECT GET_LOCK('{schema}', {WAIT_S})") == [(1,)]
    ask(server, "SET innodb_lock_wait_timeout=0")
    assert ask(server, "SELECT id FROM t FOR UPDATE") == [], "no row is locked, none is in"


def test_kill_of_a_connection_that_is_gone_has_an_error_of_its_own(
    mariadb: MySqlServer, server: Connection, schema: str
) -> None:
    old = mariadb.connect()
    number = old.thread_id()
    old.close()
    wait_for(server, f"SELECT COUNT(*)=0 FROM information_schema.processlist WHERE id={number}")
    with pytest.raises(pymysql.err.OperationalError) as gone:
        ask(server, f"KILL CONNECTION {number}")
    assert gone.value.args[0] == pymysql.constants.ER.NO_SUCH_THREAD


def test_one_connection_may_hold_several_locks(mariadb: MySqlServer, server: Connection, schema: str) -> None:
    old = holder(mariadb, schema)
    assert ask(old, f"SELECT GET_LOCK('{schema}.1', 0)") == [(1,)]
    assert ask(server, f"SELECT IS_USED_LOCK('{schema}'), IS_USED_LOCK('{schema}.1')") == [
        (old.thread_id(), old.thread_id())
    ]
    old.close()


# --- foreign keys


def test_without_foreign_key_checks_nothing_cascades(
    mariadb: MySqlServer, server: Connection, schema: str
) -> None:
    """A row that upstream deletes by a cascade comes as a row of the topic; it must not go before."""
    ask(server, "CREATE TABLE parent (id INT PRIMARY KEY) ENGINE=InnoDB")
    ask(
        server,
        "CREATE TABLE child (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES parent (id)"
        " ON DELETE CASCADE ON UPDATE CASCADE) ENGINE=InnoDB",
    )
    ask(server, "INSERT INTO parent VALUES (1), (2)")
    ask(server, "INSERT INTO child VALUES (1, 1), (2, 2), (3, 777)")
    ask(server, "DELETE FROM parent WHERE id=1")
    ask(server, "UPDATE parent SET id=9 WHERE id=2")
    assert ask(server, "SELECT id, parent FROM child") == [(1, 1), (2, 2), (3, 777)]
    ask(server, "TRUNCATE TABLE parent")


# --- deletes by a list of keys

LISTED = 20_000
KINDS = {
    "bigint": ("k BIGINT", "seq", "{0}"),
    "latin1": ("k VARCHAR(40) CHARACTER SET latin1", "CONCAT('k', seq)", "'k{0}'"),
    "varbinary": ("k VARBINARY(40)", "CONCAT('k', seq)", "_binary'k{0}'"),
    "bit": ("k BIT(40)", "seq", "{0}"),
}


def plan(connection: Connection, statement: str) -> tuple[str, str | None]:
    """How the one table is reached, and by which index."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        # MySQL's own default is a tree.
        form = "" if "MariaDB" in connection.get_server_info() else "FORMAT=TRADITIONAL "
        cursor.execute(f"EXPLAIN {form}{statement}")
        (row,) = cursor.fetchall()
    return row["type"], row["key"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [500, 1000, 5000])
def test_a_delete_by_a_list_of_keys_reads_the_primary_key(
    mariadb: MySqlServer, server: Connection, schema: str, kind: str, count: int
) -> None:
    declared, made, literal = KINDS[kind]
    ask(server, f"CREATE TABLE t ({declared} PRIMARY KEY, v INT) ENGINE=InnoDB")
    ask(server, f"INSERT INTO t SELECT {made}, seq FROM {numbers(server, LISTED)}")
    listed = ",".join(literal.format(n) for n in range(1, count + 1))
    assert plan(server, f"DELETE FROM t WHERE k IN ({listed})") == ("range", "PRIMARY")


@pytest.mark.parametrize("form", ["rows", "equations"])
@pytest.mark.parametrize("count", [500, 1000, 5000])
def test_a_delete_by_a_list_of_composite_keys_reads_the_primary_key(
    mariadb: MySqlServer, server: Connection, schema: str, form: str, count: int
) -> None:
    ask(server, "CREATE TABLE t (a INT, b VARCHAR(20), d DECIMAL(20,4), PRIMARY KEY (a, b, d)) ENGINE=InnoDB")
    ask(server, f"INSERT INTO t SELECT seq % 100, seq, seq FROM {numbers(server, LISTED)}")
    keys = [(n % 100, f"'{n}'", f"{n}.0000") for n in range(1, count + 1)]
    if form == "rows":
        where = "(a, b, d) IN (" + ",".join(f"({a},{b},{d})" for a, b, d in keys) + ")"
    else:
        where = " OR ".join(f"(a={a} AND b={b} AND d={d})" for a, b, d in keys)
    assert plan(server, f"DELETE FROM t WHERE {where}") == ("range", "PRIMARY")
    with server.cursor() as cursor:
        assert cursor.execute(f"DELETE FROM t WHERE {where}") == count


@pytest.mark.usefixtures("only_mariadb")
def test_a_long_list_is_a_join_only_where_a_select_or_a_join_reads_it(
    mariadb: MySqlServer, server: Connection, schema: str
) -> None:
    """From `in_predicate_conversion_threshold` (1,000) on; 10.11 leaves DELETE FROM alone."""
    ask(server, "CREATE TABLE t (k BIGINT PRIMARY KEY) ENGINE=InnoDB")
    ask(server, f"INSERT INTO t SELECT seq FROM {numbers(server, LISTED)}")

    def steps(statement: str, count: int) -> int:
        listed = ",".join(map(str, range(1, count + 1)))
        return len(ask(server, f"EXPLAIN {statement} IN ({listed})"))

    assert [steps("SELECT * FROM t WHERE k", n) for n in (999, 1000)] == [1, 4]
    assert [steps("DELETE t FROM t WHERE k", n) for n in (999, 1000)] == [1, 4]
    assert [steps("DELETE FROM t WHERE k", n) for n in (999, 1000)] == [1, 1]


@pytest.mark.usefixtures("only_mariadb")
def test_a_small_table_is_read_whole(mariadb: MySqlServer, server: Connection, schema: str) -> None:
    """Then a DELETE also waits for rows that it does not name: two lanes must not share such a table."""
    ask(server, "CREATE TABLE t (a INT, b INT, PRIMARY KEY (a, b)) ENGINE=InnoDB")
    ask(server, f"INSERT INTO t SELECT seq, seq FROM {numbers(server, 50)}")
    half = ",".join(f"({n},{n})" for n in range(1, 41))
    assert plan(server, f"DELETE FROM t WHERE (a, b) IN ({half})")[0] == "ALL"
    other = mariadb.connect()
    other.select_db(schema)
    other.begin()
    ask(other, "DELETE FROM t WHERE a=50 AND b=50")
    ask(server, "SET innodb_lock_wait_timeout=0")
    with pytest.raises(pymysql.err.OperationalError) as waits:
        ask(server, f"DELETE FROM t WHERE (a, b) IN ({half})")
    assert waits.value.args[0] == pymysql.constants.ER.LOCK_WAIT_TIMEOUT
    other.close()


@pytest.mark.parametrize("keys", ["a", "a, b"])
def test_a_delete_of_a_small_part_waits_for_no_other_row(
    mariadb: MySqlServer, server: Connection, schema: str, keys: str
) -> None:
    """So lanes may share a table, if each DELETE names few of its rows."""
    ask(server, f"CREATE TABLE t (a INT, b INT, PRIMARY KEY ({keys})) ENGINE=InnoDB")
    ask(server, f"INSERT INTO t SELECT seq, seq FROM {numbers(server, MANY)}")
    odd, even = range(1, 2 * KEYS, 2), range(2, 2 * KEYS, 2)

    def delete(numbers: range) -> str:
        if "b" in keys:
            return f"DELETE FROM t WHERE {' OR '.join(f'(a={n} AND b={n})' for n in numbers)}"
        return f"DELETE FROM t WHERE a IN ({','.join(map(str, numbers))})"

    other = mariadb.connect()
    try:
        other.select_db(schema)
        other.begin()
        ask(other, delete(odd))
        ask(server, "SET innodb_lock_wait_timeout=0")
        with server.cursor() as cursor:
            assert cursor.execute(delete(even)) == len(even)
    finally:
        other.close()  # otherwise the schema could not be dropped


def test_null_and_equal_texts_in_a_unique_key(mariadb: MySqlServer, server: Connection, schema: str) -> None:
    """IN never finds NULL, <=> finds every NULL; a text finds whatever the column's collation calls equal."""
    ask(server, "CREATE TABLE t (id INT PRIMARY KEY, k VARCHAR(20) COLLATE utf8mb4_general_ci, UNIQUE (k))")
    ask(server, "INSERT INTO t VALUES (1, 'resume'), (2, NULL), (3, NULL), (4, 'pad')")

    def found(where: str) -> list[int]:
        return [row[0] for row in ask(server, f"SELECT id FROM t WHERE {where} ORDER BY id")]

    assert found("k IN (NULL)") == []
    assert found("k <=> NULL") == [2, 3]
    assert found("k IN ('résumé')") == found("k IN ('RESUME')") == [1]
    assert found("k IN ('pad  ')") == [4]
    assert found("BINARY k <=> 'résumé'") == []


# --- EXCHANGE PARTITION


def test_table_ids_tell_whether_partitions_were_exchanged(
    mariadb: MySqlServer, server: Connection, schema: str
) -> None:
    """They go with the rows. They also change where a table is rebuilt (TRUNCATE, FORCE, OPTIMIZE)."""
    ask(
        server,
        "CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB"
        " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200))",
    )
    ask(server, "CREATE TABLE s (id INT PRIMARY KEY) ENGINE=InnoDB")

    view = "innodb_sys_tables" if "MariaDB" in server.get_server_info() else "innodb_tables"

    def ids() -> dict[str, int]:
        like = f"{schema}/%"
        found = ask(server, f"SELECT name, table_id FROM information_schema.{view} WHERE name LIKE '{like}'")
        return {name.lower(): number for name, number in found}

    before = ids()
    partition, other, single = f"{schema}/t#p#p0", f"{schema}/t#p#p1", f"{schema}/s"
    ask(server, "ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE s")
    assert ids() == {partition: before[single], single: before[partition], other: before[other]}
    ask(server, "ALTER TABLE s ADD COLUMN v INT, ALGORITHM=INSTANT")
    ask(server, "ALTER TABLE s DROP COLUMN v, ALGORITHM=INSTANT")
    assert ids()[single] == before[partition], "an instant ALTER keeps the id"
    ask(server, "TRUNCATE TABLE s")
    assert ids()[single] not in before.values()
