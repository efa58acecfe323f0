"""The fence at a real MariaDB: who may write, and what a restart finds, at every step of a batch."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pymysql
import pytest

from tidegate.consumer.mysql.progress import Held, Progress
from tidegate.consumer.mysql.session import Connection, MySqlServer
from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable

NUMBERS = itertools.count()


@pytest.fixture
def name() -> str:
    """A consumer that no other test has, also the schema of its table."""
    return f"p{next(NUMBERS)}"


@pytest.fixture
def rows(mariadb: MySqlServer, name: str) -> Iterator[Connection]:
    """A bystander's connection; the table NAME.t is there."""
    connection = mariadb.connect()
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY) ENGINE=InnoDB")
    yield connection
    connection.close()


def taken(server: MySqlServer, name: str) -> tuple[Progress, Held]:
    progress = Progress(server, name)
    return progress, progress.take_over()


def ids(rows: Connection, name: str) -> list[int]:
    with rows.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {name}.t ORDER BY id")
        return [row[0] for row in cursor.fetchall()]


def write(connection: Connection, progress: Progress, name: str, lane: int, *written: int) -> None:
    connection.begin()
    progress.lane(lane, connection)
    insert(connection, name, *written)
    connection.commit()


def insert(connection: Connection, name: str, *written: int) -> None:
    with connection.cursor() as cursor:
        for one in written:
            cursor.execute(f"INSERT INTO {name}.t VALUES ({one})")


def test_a_batch_moves_the_position_when_all_its_lanes_are_through(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    first, held = taken(mariadb, name)
    assert held == Held(None, None, None, {})
    assert first.begin("p1", {0: "a", 1: "b"}) == [0, 1]
    for lane in (0, 1):
        write(first.lane_connection(lane), first, name, lane, lane)
    first.end("p1")
    first.move("p2")
    _, held = taken(mariadb, name)
    assert held == Held("p2", None, None, {})
    assert ids(rows, name) == [0, 1]


def test_a_restart_writes_the_lanes_that_are_missing_and_no_other(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    first, _ = taken(mariadb, name)
    first.begin("p1", {0: "a", 1: "b"})
    write(first.lane_connection(1), first, name, 1, 1)
    second, held = taken(mariadb, name)
    assert held == Held(None, "p1", None, {})
    assert second.begin("p1", {0: "a", 1: "b"}) == [0]
    write(second.lane_connection(0), second, name, 0, 0)
    second.end("p1")
    assert ids(rows, name) == [0, 1]
    assert second.begin("p2", {1: "c"}) == [1], "the next batch is a new one"


@pytest.mark.parametrize("digests", [{0: "a", 1: "x"}, {0: "a"}, {0: "a", 1: "b", 2: "c"}])
def test_other_rows_than_before_are_not_written(
    mariadb: MySqlServer, rows: Connection, name: str, digests: dict[int, str]
) -> None:
    first, _ = taken(mariadb, name)
    first.begin("p1", {0: "a", 1: "b"})
    second, _ = taken(mariadb, name)
    differs = sorted({0: "a", 1: "b"}.items() ^ digests.items())[0][0]
    with pytest.raises(Fatal, match=f"lane {differs}"):
        second.begin("p1", digests)


def test_what_an_old_consumer_has_in_an_open_transaction_is_never_committed(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    old, _ = taken(mariadb, name)
    old.begin("p1", {0: "a"})
    connection = old.lane_connection(0)
    connection.begin()
    old.lane(0, connection)
    insert(connection, name, 7)
    new, held = taken(mariadb, name)
    assert held.begun == "p1"
    with pytest.raises(pymysql.err.MySQLError):
        connection.commit()
    assert new.begin("p1", {0: "a"}) == [0], "nothing of the lane is in"
    assert ids(rows, name) == []


def test_an_old_consumer_that_wakes_up_can_do_nothing_at_any_step(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    old, _ = taken(mariadb, name)
    old.begin("p1", {0: "a"})
    taken(mariadb, name)
    fresh = mariadb.connect()  # it may open connections anew, which nobody can end before
    fresh.begin()
    with pytest.raises(Fenced):
        old.lane(0, fresh)
    fresh.rollback()
    for step in (
        lambda: old.end("p1"),
        lambda: old.move("p9"),
        lambda: old.note_ddl("ddl", {(name, "t"): "{}"}),
        old.check_lock,
    ):
        old._control = mariadb.connect()
        with pytest.raises(Fenced):
            step()
    third, held = taken(mariadb, name)
    assert held == Held(None, "p1", None, {})
    third.begin("p1", {0: "a"})
    third.end("p1")
    old._control = mariadb.connect()
    old._begun = False
    with pytest.raises(Fenced):
        old.begin("p2", {0: "a"})


def test_a_statement_without_a_transaction_has_ended_when_the_lock_is_free(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    """DDL has no row to guard it: what counts is that a taker comes after its end."""
    insert(rows, name, *range(2000))
    old, _ = taken(mariadb, name)
    errors: list[Exception] = []

    def slow_ddl() -> None:
        try:
            with old.control.cursor() as cursor:
                cursor.execute(f"CREATE TABLE {name}.copy AS SELECT a.id, SLEEP(0.005) s FROM {name}.t a")
        except pymysql.err.MySQLError as error:
            errors.append(error)

    thread = threading.Thread(target=slow_ddl)
    thread.start()
    while not running(rows, "SLEEP"):
        pass
    new, _ = taken(mariadb, name)
    assert not running(rows, "SLEEP"), "the taker has the lock, and the statement goes on"
    thread.join()
    assert errors
    new.check_lock()


def running(rows: Connection, text: str) -> bool:
    with rows.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE %s AND id<>CONNECTION_ID()",
            (f"%{text}%",),
        )
        return bool(cursor.fetchone()[0])


def test_a_lost_connection_is_no_proof_of_anything_and_is_taken_over(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    first, _ = taken(mariadb, name)
    first.begin("p1", {0: "a"})
    write(first.lane_connection(0), first, name, 0, 5)
    with rows.cursor() as cursor:
        cursor.execute(f"KILL {first.control.thread_id()}")
    with pytest.raises(Retryable):
        first.end("p1")
    held = first.take_again()
    assert held.begun == "p1"
    assert first.begin("p1", {0: "a"}) == [], "the lane is through"
    first.end("p1")


def test_who_was_taken_over_does_not_take_over_again(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    old, _ = taken(mariadb, name)
    new, _ = taken(mariadb, name)
    with pytest.raises(Retryable):
        old.move("p1")
    with pytest.raises(Fenced):
        old.take_again()
    new.move("p2")


def test_definitions_move_with_the_ddl_that_made_them(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    first, _ = taken(mariadb, name)
    first.note_ddl("d1", {(name, "t"): "one", (name, "u"): "two"})
    first.note_ddl("d2", {(name, "u"): "three"}, gone=[(name, "t")])
    _, held = taken(mariadb, name)
    assert held == Held(None, None, "d2", {(name, "u"): "three"})
    other = Progress(mariadb, f"{name}-other")
    other.take_over()
    with pytest.raises(InvalidInput, match="two consumers"):
        other.note_ddl("d1", {(name, "u"): "four"})


def test_a_password_is_never_shown(mariadb: MySqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = MySqlServer.from_uri(f"mysql://nobody:geheim@127.0.0.1:{mariadb.port}/")
    assert server.password == "geheim"
    with pytest.raises(InvalidInput) as refused:
        server.connect()
    with pytest.raises(InvalidInput) as unknown:
        MySqlServer.from_uri("mysql://nobody:geheim@127.0.0.1:1/shop")
    monkeypatch.setenv("TIDEGATE_TARGET_PASSWORD", "geheim")
    other = MySqlServer.from_uri("mysql://nobody@127.0.0.1:1/")
    assert other.password == "geheim"
    for text in (str(server), repr(server), str(refused.value), str(unknown.value), repr(other)):
        assert "geheim" not in text
    with pytest.raises(Retryable):
        other.connect()
