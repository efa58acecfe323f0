"""The fence at a real MariaDB: who may write, and what a restart finds, at every step of a batch."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
import trustme

from tests.consumer.mysql.reading import forget
from tidegate.consumer.applying.target import TargetFailed
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.progress import Progress, TargetRecord
from tidegate.consumer.mysql.session import Connection, MySqlServer, translated
from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable

NUMBERS = itertools.count()


@pytest.fixture
def name() -> str:
    """A consumer that no other test has, also the schema of its table."""
    return f"p{next(NUMBERS)}"


@pytest.fixture
def rows(mariadb: MySqlServer, name: str) -> Iterator[Connection]:
    """A bystander's connection; the table NAME.t is there."""
    forget(mariadb, name, name)  # a server that is given may have them from earlier tests
    connection = mariadb.connect()
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY) ENGINE=InnoDB")
    yield connection
    connection.close()


def taken(server: MySqlServer, name: str) -> tuple[Progress, TargetRecord]:
    progress = Progress(Hold(server, name))
    return progress, progress.take_over()


def ids(rows: Connection, name: str) -> list[int]:
    with rows.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {name}.t ORDER BY id")
        return [row[0] for row in cursor.fetchall()]


def write(connection: Connection, progress: Progress, name: str, lane: int, *written: int) -> None:
    connection.begin()
    progress.batch.lane(lane, connection)
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
    assert held == TargetRecord(None, None, None, {})
    assert first.batch.begin("p1", {0: "a", 1: "b"}) == [0, 1]
    for lane in (0, 1):
        write(first.hold.lane_connection(lane), first, name, lane, lane)
    first.batch.end("p1")
    first.move("p2")
    _, held = taken(mariadb, name)
    assert held == TargetRecord("p2", None, None, {})
    assert ids(rows, name) == [0, 1]


def test_a_restart_writes_the_lanes_that_are_missing_and_no_other(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    first, _ = taken(mariadb, name)
    first.batch.begin("p1", {0: "a", 1: "b"})
    write(first.hold.lane_connection(1), first, name, 1, 1)
    second, held = taken(mariadb, name)
    assert held == TargetRecord(None, "p1", None, {})
    assert second.batch.begin("p1", {0: "a", 1: "b"}) == [0]
    write(second.hold.lane_connection(0), second, name, 0, 0)
    second.batch.end("p1")
    assert ids(rows, name) == [0, 1]
    assert second.batch.begin("p2", {1: "c"}) == [1], "the next batch is a new one"


@pytest.mark.parametrize("digests", [{0: "a", 1: "x"}, {0: "a"}, {0: "a", 1: "b", 2: "c"}])
def test_other_rows_than_before_are_not_written(
    mariadb: MySqlServer, rows: Connection, name: str, digests: dict[int, str]
) -> None:
    first, _ = taken(mariadb, name)
    first.batch.begin("p1", {0: "a", 1: "b"})
    second, _ = taken(mariadb, name)
    differs = sorted({0: "a", 1: "b"}.items() ^ digests.items())[0][0]
    with pytest.raises(Fatal, match=f"lane {differs}"):
        second.batch.begin("p1", digests)


def test_an_open_transaction_of_a_replaced_consumer_is_never_committed(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    old, _ = taken(mariadb, name)
    old.batch.begin("p1", {0: "a"})
    connection = old.hold.lane_connection(0)
    connection.begin()
    old.batch.lane(0, connection)
    insert(connection, name, 7)
    new, held = taken(mariadb, name)
    assert held.begun == "p1"
    with pytest.raises(pymysql.err.MySQLError):
        connection.commit()
    assert new.batch.begin("p1", {0: "a"}) == [0], "nothing of the lane is in"
    assert ids(rows, name) == []


def test_an_old_consumer_that_wakes_up_can_do_nothing_at_any_step(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    old, _ = taken(mariadb, name)
    old.batch.begin("p1", {0: "a"})
    taken(mariadb, name)
    fresh = mariadb.connect()  # it may reopen connections, which nobody can end before
    fresh.begin()
    with pytest.raises(Fenced):
        old.batch.lane(0, fresh)
    fresh.rollback()
    for step in (
        lambda: old.batch.end("p1"),
        lambda: old.move("p9"),
        lambda: old.record_ddl("ddl", {(name, "t"): "{}"}),
        old.hold.check_lock,
    ):
        old.hold._control = mariadb.connect()
        with pytest.raises(Fenced):
            step()
    third, held = taken(mariadb, name)
    assert held == TargetRecord(None, "p1", None, {})
    third.batch.begin("p1", {0: "a"})
    third.batch.end("p1")
    old.hold._control = mariadb.connect()
    old.batch._begun = False
    with pytest.raises(Fenced):
        old.batch.begin("p2", {0: "a"})


@pytest.mark.usefixtures("named_locks")
def test_a_statement_without_a_transaction_has_ended_when_the_lock_is_free(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    """DDL has no row to guard it: what counts is that a taker comes after its end."""
    insert(rows, name, *range(2000))
    old, _ = taken(mariadb, name)
    errors: list[Exception] = []

    def slow_ddl() -> None:
        try:
            with old.hold.control.cursor() as cursor:
                cursor.execute(f"CREATE TABLE {name}.copy AS SELECT a.id, SLEEP(0.05) s FROM {name}.t a")
        except pymysql.err.MySQLError as error:
            errors.append(error)

    thread = threading.Thread(target=slow_ddl)
    thread.start()
    while not running(rows, "SLEEP"):
        pass
    new, _ = taken(mariadb, name)
    assert not running(rows, "SLEEP"), "the taker has the lock, and the statement runs"
    thread.join()
    assert errors
    new.hold.check_lock()


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
    first.batch.begin("p1", {0: "a"})
    write(first.hold.lane_connection(0), first, name, 0, 5)
    with rows.cursor() as cursor:
        cursor.execute(f"KILL {first.hold.control.thread_id()}")
    with pytest.raises(Retryable):
        first.batch.end("p1")
    held = first.take_again()
    assert held.begun == "p1"
    assert first.batch.begin("p1", {0: "a"}) == [], "the lane is through"
    first.batch.end("p1")


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
    over = '{"done":["d2"],"begun":null}'
    first.record_ddl('{"done":["d1"],"begun":null}', {(name, "t"): "one", (name, "u"): "two"})
    first.record_ddl(over, {(name, "u"): "three"}, gone=[(name, "t")])
    _, held = taken(mariadb, name)
    assert held == TargetRecord(None, None, over, {(name, "u"): "three"})
    other = Progress(Hold(mariadb, f"{name}-other"))
    other.take_over()
    with pytest.raises(InvalidInput, match="two consumers"):
        other.record_ddl(over, {(name, "u"): "four"})


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


def lose_answer(connection: Connection, *, effective: bool) -> None:
    """The next COMMIT brings no answer; whether it has taken effect is not to be seen."""
    commit = connection.commit

    def lost() -> None:
        if effective:
            commit()
        connection._force_close()
        raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")

    connection.commit = lost


@pytest.mark.parametrize("effective", [False, True])
def test_a_position_whose_commit_lost_its_answer_is_moved_once(
    mariadb: MySqlServer, rows: Connection, name: str, effective: bool
) -> None:
    first, _ = taken(mariadb, name)
    first.batch.begin("p1", {0: "a"})
    number = first.batch.number
    write(first.hold.lane_connection(0), first, name, 0, 5)
    lose_answer(first.hold.control, effective=effective)
    with pytest.raises(Retryable):
        first.batch.end("p1")
    held = first.take_again()
    assert (held.position, held.begun) == (("p1", None) if effective else (None, "p1"))
    assert first.batch.has_ended(number) is effective
    if not effective:
        assert first.batch.begin("p1", {0: "a"}) == [], "its rows are in already"
        first.batch.end("p1")
    assert first.batch.begin("p2", {0: "b"}) == [0], "the next batch is a new one"


@pytest.mark.parametrize("effective", [False, True])
def test_a_batch_whose_begin_lost_its_answer_is_begun_once(
    mariadb: MySqlServer, rows: Connection, name: str, effective: bool
) -> None:
    first, _ = taken(mariadb, name)
    lose_answer(first.hold.control, effective=effective)
    with pytest.raises(Retryable):
        first.batch.begin("p1", {0: "a"})
    first.take_again()
    assert first.batch.begin("p1", {0: "a"}) == [0]
    write(first.hold.lane_connection(0), first, name, 0, 5)
    first.batch.end("p1")
    assert taken(mariadb, name)[1] == TargetRecord("p1", None, None, {})


def test_a_lane_whose_commit_lost_its_answer_is_seen_to_be_through(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    first, _ = taken(mariadb, name)
    first.batch.begin("p1", {0: "a", 1: "b"})
    connection = first.hold.lane_connection(1)
    lose_answer(connection, effective=True)
    with pytest.raises(pymysql.err.OperationalError):
        write(connection, first, name, 1, 5)
    first.take_again()
    assert first.batch.begin("p1", {0: "a", 1: "b"}) == [0]


def test_a_consumer_that_was_ended_does_not_end_the_one_that_took_over(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    """Else the two would end each other in turns, and the older one would write old rows once more."""
    old, _ = taken(mariadb, name)
    old.batch.begin("p1", {0: "a"})
    new, _ = taken(mariadb, name)
    with pytest.raises(Retryable):
        old.batch.end("p1")
    for _ in range(2):
        with pytest.raises(Fenced):
            old.take_again()
    assert new.batch.begin("p1", {0: "a"}) == [0]
    write(new.hold.lane_connection(0), new, name, 0, 5)
    new.batch.end("p1")
    with pytest.raises(Fenced):
        old.take_again()
    new.move("p2")


def test_a_takeover_whose_commit_is_lost_shares_no_token_with_another(
    mariadb: MySqlServer, rows: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = taken(mariadb, name)
    first.batch.begin("p1", {0: "a"})
    with monkeypatch.context() as broken:
        broken.setattr(pymysql.connections.Connection, "commit", fail)
        with pytest.raises(Retryable):
            first.take_again()
    other, _ = taken(mariadb, name)
    other.hold.close()  # nobody holds the lock: the token alone tells
    with pytest.raises(Fenced):
        first.take_again()


@pytest.mark.usefixtures("named_locks")
def test_a_taker_that_holds_the_lock_and_has_no_token_yet_is_left_alone(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    first, _ = taken(mariadb, name)
    first.hold.close()
    with rows.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 5)", (first.hold._locks.name,))
    with pytest.raises(Fenced):
        first.take_again()
    rows.ping(reconnect=False)


def test_one_that_slept_while_it_took_over_again_is_fenced(
    mariadb: MySqlServer, rows: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All looked as it had left it; before it took the lock, another came and wrote a batch."""
    old, _ = taken(mariadb, name)
    old.hold.close()
    wait = Hold.take_lock
    others: list[Progress] = []

    def sleeping(hold: Hold, *, again: bool = False) -> None:
        if hold is old.hold and not others:
            others.append(taken(mariadb, name)[0])
            others[0].batch.begin("p1", {0: "a"})
            write(others[0].hold.lane_connection(0), others[0], name, 0, 5)
            others[0].batch.end("p1")
        wait(hold, again=again)

    monkeypatch.setattr(Hold, "take_lock", sleeping)
    with pytest.raises(Fenced):
        old.take_again()
    others[0].move("p2")


def fail(connection: Connection) -> None:
    raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


def test_our_own_connection_that_the_server_holds_open_is_ended(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    first, _ = taken(mariadb, name)
    stale, first.hold._control = first.hold.control, None  # the network has swallowed its end
    first.take_again()
    with pytest.raises(pymysql.err.MySQLError):
        stale.ping(reconnect=False)
    first.hold.check_lock()


def test_a_transaction_that_nobody_can_end_is_waited_for_and_seen(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    old, _ = taken(mariadb, name)
    old.batch.begin("p1", {0: "a", 1: "b"})
    connection = mariadb.connect()  # it has no lock by which a taker could find it
    connection.begin()
    old.batch.lane(0, connection)
    insert(connection, name, 7)
    found: list[tuple[Progress, TargetRecord]] = []
    taker = threading.Thread(target=lambda: found.append(taken(mariadb, name)))
    taker.start()
    while not running(rows, "UPDATE%lanes%SET token"):
        pass
    taker.join(0.2)
    assert taker.is_alive(), "it has not waited"
    connection.commit()
    taker.join()
    ((new, held),) = found
    assert held.begun == "p1"
    assert new.batch.begin("p1", {0: "a", 1: "b"}) == [1], "lane 0 is through"
    assert ids(rows, name) == [7]


def test_after_a_deadlock_the_lane_that_lost_is_written_again(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    insert(rows, name, 1, 2)
    first, _ = taken(mariadb, name)
    first.batch.begin("p1", {0: "a", 1: "b"})
    lanes = [first.hold.lane_connection(0), first.hold.lane_connection(1)]
    for lane, connection in enumerate(lanes):
        connection.begin()
        first.batch.lane(lane, connection)
        change(connection, name, lane + 1)
    errors: list[pymysql.err.MySQLError] = []

    def cross(lane: int) -> None:
        try:
            change(lanes[lane], name, 2 - lane)
            lanes[lane].commit()
        except pymysql.err.MySQLError as error:
            errors.append(error)
            lanes[lane].close()

    threads = [threading.Thread(target=cross, args=(lane,)) for lane in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (error,) = errors
    assert isinstance(translated(error, mariadb), Retryable)
    first.take_again()
    (again,) = first.batch.begin("p1", {0: "a", 1: "b"})
    write(first.hold.lane_connection(again), first, name, again, 9)
    first.batch.end("p1")
    assert ids(rows, name) == [9, 101, 102]


def change(connection: Connection, name: str, one: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {name}.t SET id={100 + one} WHERE id={one}")


def test_a_record_that_somebody_has_changed_is_no_fence(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    first, _ = taken(mariadb, name)
    first.batch.begin("p1", {0: "a"})
    with rows.cursor() as cursor:
        cursor.execute("UPDATE tidegate.progress SET batch=7 WHERE consumer=%s", (name,))
    with pytest.raises(Fatal, match="batch 7, and not 1"):
        first.batch.end("p1")
    first, _ = taken(mariadb, name)
    with rows.cursor() as cursor:
        cursor.execute("DELETE FROM tidegate.progress WHERE consumer=%s", (name,))
    with pytest.raises(Fatal, match="it is gone"):
        first.batch.end("p1")


@pytest.mark.parametrize("sign", ["/", "?", "#", "[", "1/", "1?", "1#"])
def test_a_password_with_signs_of_a_uri_is_refused_and_not_shown(sign: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        MySqlServer.from_uri(f"mysql://root:{sign if sign[0] == '1' else 'ge' + sign}heim@host:3306/")
    assert refused.value.__cause__ is None
    assert "heim" not in str(refused.value)
    assert "'ge" not in str(refused.value)


def test_a_password_is_sent_as_utf_8(mariadb: MySqlServer, rows: Connection) -> None:
    with rows.cursor() as cursor:
        cursor.execute("DROP USER IF EXISTS schluessel")
        cursor.execute("CREATE USER schluessel IDENTIFIED BY 'schlüssel-ключ'")
    MySqlServer(mariadb.host, mariadb.port, "schluessel", "schlüssel-ключ").connect().close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *((1040, Retryable), (1205, Retryable), (1317, Retryable), (1095, InvalidInput), (1062, Fatal)),
        *((8229, Retryable), (8004, TargetFailed), (8175, TargetFailed), (8176, TargetFailed)),
    ],
)
def test_errors_say_what_to_do(code: int, kind: type[Exception]) -> None:
    server = MySqlServer("nowhere", 3306, "root", "")
    assert type(translated(pymysql.err.OperationalError(code, "why"), server)) is kind


@pytest.mark.usefixtures("only_mariadb")  # others offer TLS by themselves
def test_tls_that_is_asked_for_is_not_left_out(mariadb: MySqlServer, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    address = f"mysql://root@{mariadb.host}:{mariadb.port}/?ssl-ca="
    with pytest.raises(InvalidInput, match="does not offer TLS"):
        MySqlServer.from_uri(f"{address}{tmp_path}/ca.pem").connect()
    with pytest.raises(InvalidInput, match="cannot be used"):
        MySqlServer.from_uri(f"{address}{tmp_path}/other.pem").connect()
    for wrong in ("?ssl-cert=x", "?ssl-ca=x&ssl-cert=y", "?tls=1", "#x"):
        with pytest.raises(InvalidInput):
            MySqlServer.from_uri(f"mysql://root@host/{wrong}")


@pytest.mark.usefixtures("named_locks")
@pytest.mark.parametrize(
    ("variable", "harmful", "usual"),
    [("explicit_defaults_for_timestamp", "0", "1"), ("binlog_format", "'STATEMENT'", "'MIXED'")],
)
def test_a_server_that_would_change_what_is_written_is_refused(
    mariadb: MySqlServer, rows: Connection, name: str, variable: str, harmful: str, usual: str
) -> None:
    with rows.cursor() as cursor:
        cursor.execute(f"SET GLOBAL {variable}={harmful}")
        try:
            with pytest.raises(InvalidInput, match=variable):
                Progress(Hold(mariadb, name)).take_over()
        finally:
            cursor.execute(f"SET GLOBAL {variable}={usual}")
    taken(mariadb, name)


@pytest.mark.usefixtures("named_locks")
def test_connections_that_come_to_two_servers_are_refused(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    """A server that takes another number between two connections looks like two behind a proxy."""
    progress, _ = taken(mariadb, name)
    progress.hold.lane_connection(0).close()
    with rows.cursor() as cursor:
        cursor.execute("SELECT @@server_id")
        (usual,) = cursor.fetchone()
        cursor.execute(f"SET GLOBAL server_id={usual + 1}")
        try:
            with pytest.raises(InvalidInput, match="come to several servers") as caught:
                progress.hold.lane_connection(1)
        finally:
            cursor.execute(f"SET GLOBAL server_id={usual}")
    assert f"server_id {usual + 1}" in caught.value.why
    progress.hold.lane_connection(1).close()
