"""The fence at a real TiDB, which has to be given (`TIDEGATE_TEST_MYSQL`): sessions, jobs, transactions."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pymysql
import pytest

from tests.consumer.mysql.reading import forget
from tidegate.consumer.mysql import tidb_sessions
from tidegate.consumer.mysql.found import look
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.progress import Progress
from tidegate.consumer.mysql.session import Connection, MySqlServer
from tidegate.consumer.mysql.takeover import name_of
from tidegate.errors import Fenced, InvalidInput, Retryable, TidegateError

pytestmark = pytest.mark.usefixtures("only_tidb")
NUMBERS = itertools.count()
NOTE = '{"done":[],"begun":{"name":"n","query":"ALTER TABLE t","at":0,"evidence":[]}}'
OVER = '{"done":["n"],"begun":null}'


@pytest.fixture
def name(mariadb: MySqlServer) -> str:
    """A consumer that no other test has, also the schema of its table."""
    made = f"tidb{next(NUMBERS)}"
    forget(mariadb, made, made)
    return made


@pytest.fixture
def rows(mariadb: MySqlServer, name: str) -> Iterator[Connection]:
    """A bystander's connection; the table NAME.t is there."""
    connection = mariadb.connect()
    ask(connection, f"CREATE DATABASE {name}")
    ask(connection, f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v INT)")
    ask(connection, f"INSERT INTO {name}.t VALUES (1, 1)")
    yield connection
    connection.close()


def ask(connection: Connection, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())


def taken(server: MySqlServer, name: str) -> Progress:
    progress = Progress(Hold(server, name))
    progress.take_over()
    return progress


def jobs(connection: Connection, name: str) -> list[str]:
    """The states of the jobs that alter the table, the newest first."""
    found = ask(
        connection,
        "SELECT state FROM information_schema.ddl_jobs WHERE query LIKE %s ORDER BY job_id DESC",
        f"%ALTER TABLE {name}.t%",
    )
    return [state for (state,) in found]


def wait_for_job(connection: Connection, name: str) -> None:
    until = time.monotonic() + 20
    while not jobs(connection, name):
        assert time.monotonic() < until
        time.sleep(0.02)


class Call(threading.Thread):
    """A call in a thread of its own, and what became of it."""

    def __init__(self, run: Any) -> None:
        super().__init__(daemon=True)
        self._run_it, self.error, self.result = run, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._run_it()
        except (TidegateError, pymysql.err.MySQLError) as error:
            self.error = error


@contextmanager
def reading(server: MySqlServer, name: str) -> Iterator[None]:
    """A transaction of somebody else that has read the table: a DDL job of the table waits for its end."""
    reader = server.connect()
    reader.begin()
    ask(reader, f"SELECT * FROM {name}.t")
    try:
        yield
    finally:
        reader.rollback()
        reader.close()


def taken_over_during(
    server: MySqlServer, rows: Connection, name: str, ddl: Callable[[], object]
) -> tuple[Call, Call]:
    """A takeover while the job of a DDL waits: it waits for the job, too. Returns both, ended."""
    with reading(server, name):
        running = Call(ddl)
        wait_for_job(rows, name)
        taker = Call(lambda: taken(server, name))
        taker.join(4)
        assert taker.is_alive(), "it has not waited for the job"
        assert jobs(rows, name)[0] in tidb_sessions.UNFINISHED
    for call in (taker, running):
        call.join(30)
    return taker, running


def columns(connection: Connection, name: str) -> list[str]:
    found = ask(
        connection,
        "SELECT column_name FROM information_schema.columns WHERE table_schema=%s ORDER BY ordinal_position",
        name,
    )
    return [column for (column,) in found]


# --- DDL


def test_a_ddl_that_runs_has_ended_before_the_taker_reads(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    """KILL cancels its job, which ends only when the transactions do that it waits for."""
    old = taken(mariadb, name)
    old.record_ddl(NOTE)
    statement = f"ALTER TABLE {name}.t ADD COLUMN w INT"
    taker, _ = taken_over_during(mariadb, rows, name, lambda: old.hold.run_ddl(statement))
    assert taker.error is None
    assert taker.result is not None, "the taker still waits"
    state = jobs(rows, name)[0]
    assert state not in tidb_sessions.UNFINISHED
    assert columns(rows, name) == (["id", "v", "w"] if state == "synced" else ["id", "v"])
    with pytest.raises(Fenced):
        old.take_again()


def test_a_job_without_its_session_is_waited_for(mariadb: MySqlServer, rows: Connection, name: str) -> None:
    """As if the TiDB server that had the session had died: the job is in the queue, and another runs it."""
    old = taken(mariadb, name)
    old.record_ddl(NOTE)
    statement = old.hold.guard.marked(f"ALTER TABLE {name}.t ADD COLUMN w INT")
    stranger = mariadb.connect()
    taker, ddl = taken_over_during(mariadb, rows, name, lambda: ask(stranger, str(statement)))
    assert (taker.error, ddl.error) == (None, None)
    assert columns(rows, name) == ["id", "v", "w"]


@pytest.mark.parametrize("note", [None, OVER], ids=["nothing", "one that is over"])
def test_without_a_noted_statement_a_takeover_waits_for_no_job(
    mariadb: MySqlServer, rows: Connection, name: str, note: str | None
) -> None:
    old = taken(mariadb, name)
    if note is not None:
        old.record_ddl(note)
    statement = old.hold.guard.marked(f"ALTER TABLE {name}.t ADD COLUMN w INT")
    stranger = mariadb.connect()
    with reading(mariadb, name):
        ddl = Call(lambda: ask(stranger, str(statement)))
        wait_for_job(rows, name)
        taken(mariadb, name)
        assert ddl.is_alive()
    ddl.join(30)


def test_a_consumer_that_sleeps_after_its_note_sends_nothing_any_more(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    old = taken(mariadb, name)
    old.record_ddl(NOTE)
    taken(mariadb, name)
    with pytest.raises(Retryable):
        old.hold.run_ddl(f"ALTER TABLE {name}.t ADD COLUMN w INT")
    with pytest.raises(Fenced):
        old.take_again()
    assert columns(rows, name) == ["id", "v"]


def test_a_consumer_that_sleeps_before_its_note_is_fenced_by_it(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    old = taken(mariadb, name)
    taken(mariadb, name)
    old.hold._control = mariadb.connect()  # as if nobody could end its session
    with pytest.raises(Fenced):
        old.record_ddl(NOTE)
    with pytest.raises(Fenced):
        old.take_again()


def test_a_server_that_does_not_answer_is_waited_for(
    mariadb: MySqlServer, rows: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(mariadb, name).record_ddl(NOTE)
    asking = Hold.rows_with_warnings

    def silent(hold: Hold, statement: str, *values: Any) -> tuple[list[tuple[Any, ...]], list[str]]:
        found, warnings = asking(hold, statement, *values)
        return found, [*warnings, "TiDB server timeout, address is tidb-1:10080"]

    with monkeypatch.context() as patched:
        patched.setattr(Hold, "rows_with_warnings", silent)
        patched.setattr(tidb_sessions, "TAKE_S", 1.0)
        with pytest.raises(Retryable, match="address is tidb-1:10080"):
            taken(mariadb, name)
    taken(mariadb, name)


def test_scratch_tables_of_earlier_tokens_are_dropped_and_later_ones_kept(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    old = taken(mariadb, name)
    earlier = old.hold.scratch
    later = earlier.replace(f"_{old.hold.token}", f"_{old.hold.token + 5}")
    for table in (earlier, later):
        ask(rows, f"CREATE TABLE tidegate.{table} (a INT)")
    assert taken(mariadb, name).hold.scratch not in (earlier, later)
    found = ask(rows, "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'scratch%'")
    assert (later,) in found
    assert (earlier,) not in found
    ask(rows, f"DROP TABLE tidegate.{later}")


def test_the_history_of_jobs_is_not_read(mariadb: MySqlServer, rows: Connection, name: str) -> None:
    """TiDB leaves it out for a query that names only states of jobs that have not ended."""
    sessions, asked = taken(mariadb, name).hold.guard, list[str]()
    control = sessions._hold
    control.rows = lambda statement, *values: (
        asked.append(control.control.cursor().mogrify(statement, values)) or []
    )
    sessions._jobs()
    plan = ask(rows, f"EXPLAIN {asked[0]}")
    assert {f'"{state}"' in plan[-1][-1] for state in tidb_sessions.UNFINISHED} == {True}


# --- sessions


def test_a_taker_that_sleeps_while_it_raises_the_token_is_ended(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    """It has locked the row of `progress`: a later one would wait for its transaction, an hour perhaps."""
    taken(mariadb, name)
    asleep, awake, raising = threading.Event(), threading.Event(), Hold(mariadb, name)
    asking = raising.rows

    def sleeping(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        found = asking(statement, *values)
        if statement.startswith("SELECT token, batch"):
            asleep.set()
            awake.wait(60)
        return found

    raising.rows = sleeping
    sleeper = Call(lambda: Progress(raising).take_over())
    assert asleep.wait(30)
    began = time.monotonic()
    new = taken(mariadb, name)
    waited = time.monotonic() - began
    awake.set()
    sleeper.join(30)
    assert isinstance(sleeper.error, Retryable)
    assert waited < 25, "it has waited for the lock"
    new.move("p")


def test_each_session_has_a_name_with_its_token(mariadb: MySqlServer, rows: Connection, name: str) -> None:
    progress = taken(mariadb, name)
    lane = progress.hold.lane_connection(3)
    for connection, number in ((progress.hold.control, None), (lane, 3)):
        ((found, mode),) = ask(connection, "SELECT @@tidb_session_alias, @@tidb_txn_mode")
        assert found == name_of(progress.hold._digest, progress.hold.token, number)
        assert mode == "pessimistic"


def test_a_session_with_the_id_of_our_own_is_found(
    mariadb: MySqlServer, rows: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another TiDB server had given this id, too: ids may be per server."""
    old = taken(mariadb, name)
    asking = Hold.rows_with_warnings

    def same_id(hold: Hold, statement: str, *values: Any) -> tuple[list[tuple[Any, ...]], list[str]]:
        number = str(old.hold.control.thread_id())
        return asking(hold, statement.replace("CONNECTION_ID()", number), *values)

    monkeypatch.setattr(Hold, "rows_with_warnings", same_id)
    _, holder = Progress(Hold(mariadb, name)).look_on()
    assert holder.startswith(f"connection {old.hold.control.thread_id()} of ")


def test_a_user_that_does_not_see_all_sessions_is_refused(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    """TiDB shows such a user its own sessions only, and does not say that there are others."""
    ask(rows, f"DROP USER IF EXISTS {name}")
    ask(rows, f"CREATE USER {name} IDENTIFIED BY ''")
    for schema in ("tidegate", name):
        ask(rows, f"GRANT ALL ON {schema}.* TO {name}")
    server = MySqlServer(mariadb.host, mariadb.port, name, "")
    with pytest.raises(InvalidInput, match="PROCESS"):
        taken(server, name)
    ask(rows, f"GRANT PROCESS, CONNECTION_ADMIN ON *.* TO {name}")
    old = taken(mariadb, name)  # another user's
    old.record_ddl(NOTE)
    taken(server, name)
    with pytest.raises(Retryable):
        old.move("p")


# --- rows


def test_rows_that_tidb_deletes_by_itself_are_recognized(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    ask(
        rows,
        f"CREATE TABLE {name}.e (a DATETIME PRIMARY KEY COMMENT '/*T![ttl] TTL_ENABLE=\\'ON\\' */')"
        " TTL=a + INTERVAL 9 YEAR",
    )
    assert look(partial(ask, rows), (name, "e")).expires
    ask(rows, f"ALTER TABLE {name}.e TTL_ENABLE='OFF'")
    assert not look(partial(ask, rows), (name, "e")).expires


def test_two_sets_of_54_elements_may_be_equal(rows: Connection, name: str) -> None:
    """Why `rendering` and `recast` stop there: TiDB compares them as doubles."""
    elements = ", ".join(f"'e{number}'" for number in range(54))
    ask(rows, f"CREATE TABLE {name}.s (c SET({elements}))")
    ask(rows, f"INSERT INTO {name}.s VALUES ({2**53}), ({2**53 + 1})")
    assert len(set(ask(rows, f"SELECT c FROM {name}.s"))) == 2
    assert len(ask(rows, f"SELECT c FROM {name}.s WHERE c IN ({2**53})")) == 2


def test_an_adopted_table_takes_keys_that_tidb_would_make_itself(
    mariadb: MySqlServer, rows: Connection, name: str
) -> None:
    ask(rows, f"CREATE TABLE {name}.r (id BIGINT PRIMARY KEY AUTO_RANDOM)")
    hold = taken(mariadb, name).hold
    lane = hold.lane_connection(0)
    hold.execute(f"INSERT INTO {name}.r VALUES (1)")
    ask(lane, f"INSERT INTO {name}.r VALUES (2)")
    lane.close()


@pytest.mark.parametrize("mode", ["pessimistic", "optimistic"])
def test_a_lane_is_fenced_whatever_transactions_the_server_prefers(
    mariadb: MySqlServer, rows: Connection, name: str, mode: str
) -> None:
    """An optimistic one would change its row as it was when the transaction began, and not wait."""
    ((usual,),) = ask(rows, "SELECT @@GLOBAL.tidb_txn_mode")
    ask(rows, f"SET GLOBAL tidb_txn_mode='{mode}'")
    try:
        old = taken(mariadb, name)
        old.batch.begin("p1", {0: "a"})
        connection = old.hold.lane_connection(0)
        connection.begin()
        ask(connection, f"SELECT * FROM {name}.t")  # a snapshot, if it took one
        new = taken(mariadb, name)
        fresh = old.hold.server.connect()  # nobody can end it
        old.hold.guard.join(0, fresh)
        fresh.begin()
        with pytest.raises(Fenced):
            old.batch.lane(0, fresh)
    finally:
        ask(rows, f"SET GLOBAL tidb_txn_mode='{usual}'")
    assert new.batch.begin("p1", {0: "a"}) == [0]
