"""EXCHANGE PARTITION at a real MariaDB, once: with headers rows move, without them the server exchanges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.mysql.mortal import Killed, MortalServer
from tests.consumer.mysql.reading import forget
from tests.consumer.mysql.test_ddl import Life
from tests.consumer.mysql.test_replay import Sql, reported, steps_of
from tests.consumer.test_ddl_at_target import message, recorded
from tests.consumer.test_iceberg import KEYED
from tidegate.codec.base import DdlMessage
from tidegate.consumer.ddl.ddl_plan import MISPLACED, plan
from tidegate.consumer.ddl.ddl_steps import Refuse
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.exchange import check_movable, truncated
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.model.ddl import WITHOUT_VALIDATION, DdlEvent

LATER = (1_700_000_000_000 << 18) + (1 << 40)
FIRST_WRITE = 2
"""The step of a `MortalServer` before it takes effect."""


@pytest.fixture
def cursor(mariadb: MySqlServer) -> Iterator[Any]:
    forget(mariadb, "ddl", "d_sql", "d_part")
    connection = mariadb.connect()
    yield connection.cursor()
    connection.close()


def ids(cursor: Any, table: str, column: str = "id") -> list[int]:
    cursor.execute(f"SELECT {column} FROM {table} ORDER BY 1")
    return [one for (one,) in cursor.fetchall()]


def put(cursor: Any, table: str, *numbers: int) -> None:
    cursor.execute(f"INSERT INTO {table} VALUES " + ", ".join(f"({one}, {one})" for one in numbers))


def lose_connection(server: MySqlServer, life: Life) -> None:
    """End the consumer's connection, as an attempt sees it whose answer is lost."""
    bystander = server.connect()
    bystander.cursor().execute(f"KILL {life.target._hold.control.thread_id()}")
    bystander.close()
    raise Retryable("the answer was lost", where="here")


# --- without headers: the server exchanges, and InnoDB's ids are the evidence

PARTED, PLAIN = "`d_sql`.`p-é`", "`d_sql`.`s.1`"
TABLES = steps_of(
    "CREATE DATABASE `d_sql`",
    "CREATE TABLE `p-é` (`a` INT PRIMARY KEY,`v` INT) PARTITION BY RANGE (`a`)"
    " (PARTITION `Q-0` VALUES LESS THAN (5),PARTITION `q1` VALUES LESS THAN (9))",
    "CREATE TABLE `s.1` (`a` INT PRIMARY KEY,`v` INT)",
)
BEFORE_IT_RUNS, AFTER_IT_RAN = 4, 5
"""Steps of a `Life`: the note is step 0, the session step 1, the statement step 2."""


def exchange(number: int = 0, words: str = "") -> DdlMessage:
    """Each number is another text: equal texts without a position between them are one DDL that is done."""
    text = f"ALTER TABLE `p-é` EXCHANGE /* {number} */ PARTITION `q-0` WITH TABLE `s.1`{words}"
    return reported(text, LATER + number)


def make_tables(server: MySqlServer, cursor: Any, folder: Path) -> None:
    with Sql(server, folder) as life:
        life.run(TABLES)
    put(cursor, PARTED, 1, 2, 7)
    put(cursor, PLAIN, 3)


def check(cursor: Any, *, swapped: bool) -> None:
    found = ids(cursor, PARTED, "a"), ids(cursor, PLAIN, "a")
    assert found == (([3, 7], [1, 2]) if swapped else ([1, 2, 7], [3]))


@pytest.mark.parametrize("together", [1, 2], ids=["one", "two that undo each other"])
def test_death_at_any_write_of_an_exchange_runs_it_once(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, together: int
) -> None:
    make_tables(mariadb, cursor, tmp_path)
    swapped = False
    for deaths in count():
        messages = [exchange(deaths * together + number) for number in range(together)]
        try:
            with Sql(MortalServer.at(mariadb, FIRST_WRITE + deaths), tmp_path) as life:
                life.run(messages)
            died = False
        except Killed:
            died = True
            with Sql(mariadb, tmp_path) as life:
                life.run(messages)
        swapped ^= together == 1
        check(cursor, swapped=swapped)
        if not died:
            break
    assert deaths > 20


@pytest.mark.parametrize("taken", [False, True], ids=["before it ran", "after it ran"])
def test_a_connection_lost_at_an_exchange_leaves_it_run_once(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, taken: bool
) -> None:
    make_tables(mariadb, cursor, tmp_path)
    with Sql(mariadb, tmp_path) as life:
        whole, lost = life.target._hold.run_ddl, list[str]()

        def run(text: str) -> None:
            if "EXCHANGE" in text and not lost:
                lost.append(text)
                if taken:
                    whole(text)
                lose_connection(mariadb, life)
            whole(text)

        life.target._hold.run_ddl = run  # type: ignore[method-assign,assignment]
        life.run([exchange()])
    assert lost
    check(cursor, swapped=True)


@pytest.mark.parametrize("dies_at", [BEFORE_IT_RUNS, AFTER_IT_RAN], ids=["before", "after"])
@pytest.mark.parametrize(
    "foreign",
    [
        f"TRUNCATE TABLE {PLAIN}",
        f"ALTER TABLE {PLAIN} FORCE",
        f"ALTER TABLE {PARTED} REBUILD PARTITION `q-0`",
        f"CREATE TABLE d_sql.x LIKE {PLAIN};"
        f" ALTER TABLE {PARTED} EXCHANGE PARTITION `Q-0` WITH TABLE d_sql.x",
    ],
    ids=["truncate", "rebuild", "rebuild partition", "another exchange"],
)
def test_what_others_did_after_an_exchange_began_stops_the_restart(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, foreign: str, dies_at: int, dialect: Dialect
) -> None:
    if dialect is Dialect.TIDB and ("FORCE" in foreign or "REBUILD" in foreign):
        pytest.skip("TiDB rebuilds no table")
    make_tables(mariadb, cursor, tmp_path)
    with Sql(mariadb, tmp_path, dies_at) as life, pytest.raises(Life.Over):
        life.run([exchange()])
    check(cursor, swapped=dies_at == AFTER_IT_RAN)
    for statement in foreign.split("; "):
        cursor.execute(statement)
    found = ids(cursor, PARTED, "a"), ids(cursor, PLAIN, "a")
    with Sql(mariadb, tmp_path) as life, pytest.raises(Fatal, match="not known whether") as stop:
        life.run([exchange()])
    assert f"--skip-ddl {LATER}" in stop.value.fix
    with Sql(mariadb, tmp_path, skipped={LATER}) as life:
        life.run([exchange()])
    assert (ids(cursor, PARTED, "a"), ids(cursor, PLAIN, "a")) == found
    with Sql(mariadb, tmp_path) as life:
        life.run([exchange(), reported("TRUNCATE TABLE `s.1`", LATER + 1)])


def test_an_exchange_that_others_have_run_meanwhile_is_not_repeated(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    make_tables(mariadb, cursor, tmp_path)
    with Sql(mariadb, tmp_path, BEFORE_IT_RUNS) as life, pytest.raises(Life.Over):
        life.run([exchange()])
    cursor.execute(f"ALTER TABLE {PARTED} EXCHANGE PARTITION `Q-0` WITH TABLE {PLAIN}")
    with Sql(mariadb, tmp_path) as life:
        life.run([exchange()])
    check(cursor, swapped=True)


def test_rows_of_another_partition_are_refused_and_nothing_moves(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    """The server looks for a row only where its values belong, so it would never find such a row again."""
    make_tables(mariadb, cursor, tmp_path)
    put(cursor, PLAIN, 8)
    for _ in range(2):
        with Sql(mariadb, tmp_path) as life, pytest.raises(Fatal, match="refuses a DDL of the topic") as stop:
            life.run([exchange(words=WITHOUT_VALIDATION)])
        assert "does not match" in stop.value.why
    cursor.execute(f"DELETE FROM {PLAIN} WHERE a=8")
    check(cursor, swapped=False)
    with Sql(mariadb, tmp_path) as life:
        life.run([exchange(words=WITHOUT_VALIDATION)])
    check(cursor, swapped=True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (f"ALTER TABLE {PARTED} PARTITION BY KEY (a) (PARTITION `q-0`, PARTITION q1)", "spread by KEY"),
        (f"ALTER TABLE {PARTED} REMOVE PARTITIONING", "no such partition"),
        (f"DROP TABLE {PLAIN}", "made before the changefeed's start"),
    ],
    ids=["by key", "without partitions", "without the other table"],
)
def test_an_exchange_that_would_move_other_rows_is_refused(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, change: str, why: str, dialect: Dialect
) -> None:
    if dialect is Dialect.TIDB and "KEY" in change:
        why = "Unsupported partition type"  # in TiDB's own words
    make_tables(mariadb, cursor, tmp_path)
    cursor.execute(change)
    with Sql(mariadb, tmp_path) as life, pytest.raises(Fatal) as stop:
        life.run([exchange()])
    assert why in stop.value.why
    assert ids(cursor, PARTED, "a") == [1, 2, 7]


def test_a_partition_by_key_is_not_truncated_either(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, dialect: Dialect
) -> None:
    if dialect is Dialect.TIDB:
        pytest.skip("its partitions by KEY are those of the other TiDB")
    make_tables(mariadb, cursor, tmp_path)
    truncate = reported("ALTER TABLE `p-é` TRUNCATE PARTITION `q-0`", LATER)
    cursor.execute(f"ALTER TABLE {PARTED} PARTITION BY KEY (a) (PARTITION `q-0`, PARTITION q1)")
    with Sql(mariadb, tmp_path) as life, pytest.raises(Fatal, match="cannot be truncated") as stop:
        life.run([truncate])
    assert "spread by KEY" in stop.value.why
    assert ids(cursor, PARTED, "a") == [1, 2, 7]


def test_partitions_that_an_alter_truncates_are_read_from_its_text() -> None:
    assert truncated("TRUNCATE PARTITION `a`, `b c`") == ["a", "b c"]
    assert truncated("TRUNCATE PARTITION ALL") == truncated("ADD COLUMN `truncate partition` INT") == []


def test_no_partition_of_a_table_that_keeps_deleted_rows_is_exchanged() -> None:
    keeping = replace(KEYED, soft_delete="gone")
    check_movable(KEYED, KEYED)
    for held, other in ((keeping, KEYED), (KEYED, keeping)):
        with pytest.raises(Fatal, match="keeps deleted rows"):
            check_movable(held, other)


def test_an_adopted_table_is_exchanged_by_a_person_only(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    """Its copy may have been taken after the exchange, which would then be undone."""
    make_tables(mariadb, cursor, tmp_path)
    forget(mariadb, "ddl")
    with Sql(mariadb, tmp_path, adopting=True) as life:
        with pytest.raises(Fatal, match="partition of an adopted table"):
            life.run([exchange()])
        check(cursor, swapped=False)
    with Sql(mariadb, tmp_path, adopting=True, skipped={LATER}) as life:
        life.run([exchange()])
    check(cursor, swapped=False)


def test_a_user_who_may_not_read_the_ids_is_shown_the_missing_right(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, dialect: Dialect
) -> None:
    make_tables(mariadb, cursor, tmp_path)
    cursor.execute("DROP USER IF EXISTS writer@'%'")
    cursor.execute("CREATE USER writer@'%' IDENTIFIED BY 'w'")
    for schema in ("d_sql", "tidegate"):
        cursor.execute(f"GRANT ALL ON {schema}.* TO writer@'%'")
    writer = replace(mariadb, user="writer", password="w")
    if dialect is Dialect.TIDB:  # a takeover needs the right already
        with pytest.raises(InvalidInput) as stop:
            Sql(writer, tmp_path)
    else:
        with Sql(writer, tmp_path) as life, pytest.raises((Fatal, InvalidInput)) as stop:
            life.run([exchange()])
    cursor.execute("DROP USER writer@'%'")
    assert "PROCESS" in (stop.value.fix or "")
    check(cursor, swapped=False)


# --- with headers: the rows move in the transaction that notes it

R, EX = ("d_part", "r"), ("d_part", "ex")
MOVING, MOVED = 6, 7
"""Steps of a `Life`: the note, two statements about the table between them; step 3 moves the rows."""


def until_the_exchange() -> tuple[list[DdlEvent], DdlEvent]:
    """Recorded DDLs of a TiDB that make `r` and `ex`, and its exchange of the partition below 30 of `r`."""
    earlier: list[DdlEvent] = []
    for query, events in recorded("partitions"):
        if query.startswith("alter table r exchange"):
            return earlier, events[0]
        earlier += events
    raise AssertionError("no exchange is recorded")


def filled_tables(
    server: MySqlServer, cursor: Any, folder: Path, come: tuple[int, ...] = (12, 13)
) -> Callable[[int], DdlEvent]:
    """Tables with rows. Returns their n-th exchange; each one undoes the one before."""
    earlier, first = until_the_exchange()
    with Life(server, "ddl", folder) as life:
        life.ddl(*earlier)
        info = life.target.definitions[R].info
    put(cursor, "d_part.r", 11, 29, 31)
    put(cursor, "d_part.ex", *come)
    assert info is not None
    assert first.before is not None
    assert first.after is not None
    parted, plain = first.after, first.before
    old = {one["id"] for one in info["partition"]["definitions"]}
    (gone,) = old - {one["id"] for one in parted["partition"]["definitions"]}

    def exchange_of(number: int) -> DdlEvent:
        comes = (plain["id"], gone)[number % 2]
        partitions = [
            one | {"id": comes} if one["id"] == plain["id"] else one
            for one in parted["partition"]["definitions"]
        ]
        return replace(
            first,
            before=plain | {"id": comes},
            after=parted | {"partition": parted["partition"] | {"definitions": partitions}},
            finished_ts=first.finished_ts + number,
            job_id=first.job_id + number,
        )

    return exchange_of


def check_rows(cursor: Any, *, swapped: bool) -> None:
    found = ids(cursor, "d_part.r"), ids(cursor, "d_part.ex")
    assert found == (([12, 13, 31], [11, 29]) if swapped else ([11, 29, 31], [12, 13]))


@pytest.mark.parametrize("together", [1, 2], ids=["one", "two that undo each other"])
def test_death_at_any_write_leaves_the_rows_moved_once(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, together: int
) -> None:
    of, swapped = filled_tables(mariadb, cursor, tmp_path), False
    for deaths in count():
        events = [of(deaths * together + number) for number in range(together)]
        try:
            with Life(MortalServer.at(mariadb, FIRST_WRITE + deaths), "ddl", tmp_path) as life:
                life.ddl(*events)
            died = False
        except Killed:
            died = True
            with Life(mariadb, "ddl", tmp_path) as life:
                life.ddl(*events)
        swapped ^= together == 1
        check_rows(cursor, swapped=swapped)
        if not died:
            break
    assert deaths > 20
    assert events[-1].before is not None
    assert life.target.definitions[EX].table_id != events[-1].before["id"], "ids go with the rows"
    cursor.execute("SHOW TABLES IN tidegate LIKE 'scratch%'")
    assert cursor.fetchall() == ()


def test_a_lost_answer_to_the_commit_leaves_the_rows_moved_once(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    of = filled_tables(mariadb, cursor, tmp_path)
    with Life(mariadb, "ddl", tmp_path) as life:
        whole, lost = life.target._progress.record_ddl, list[str]()

        def record(*arguments: Any, **moved: Any) -> None:
            whole(*arguments, **moved)
            if moved and not lost:
                lost.append(arguments[0])
                lose_connection(mariadb, life)

        life.target._progress.record_ddl = record  # type: ignore[method-assign]
        life.ddl(of(0))
    assert lost
    check_rows(cursor, swapped=True)


@pytest.mark.parametrize("dies_at", [None, MOVING, MOVED], ids=["alive", "before", "after"])
def test_rows_that_come_to_a_wrong_partition_are_remembered(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path, dies_at: int | None
) -> None:
    event = filled_tables(mariadb, cursor, tmp_path, come=(12, 35))(0)
    event = replace(event, query=f"{event.query}{WITHOUT_VALIDATION}")
    if dies_at is not None:
        with Life(mariadb, "ddl", tmp_path, dies_at) as life, pytest.raises(Life.Over):
            life.ddl(event)
    moved = ([12, 31, 35], [11, 29])
    assert ((ids(cursor, "d_part.r"), ids(cursor, "d_part.ex")) == moved) is (dies_at == MOVED)
    with Life(mariadb, "ddl", tmp_path) as life:
        life.ddl(event)
    assert (ids(cursor, "d_part.r"), ids(cursor, "d_part.ex")) == moved
    with Life(mariadb, "ddl", tmp_path) as life:
        held = life.target.definitions[R]
        assert held.info is not None
        assert held.info[MISPLACED]
        assert event.before is not None
        drop = replace(event, action=20, before=held.info, old_table="r", removed_ids=(event.before["id"],))
        (step,) = [one for one in plan(drop, life.target.definitions.values()) if isinstance(one, Refuse)]
        assert "WITHOUT VALIDATION" in step.why


def test_a_row_that_would_be_there_twice_stops_the_exchange(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    """TiDB has it in two partitions; a table without partitions cannot."""
    event = filled_tables(mariadb, cursor, tmp_path, come=(12, 31))(0)
    event = replace(event, query=f"{event.query}{WITHOUT_VALIDATION}")
    for _ in range(2):
        with Life(mariadb, "ddl", tmp_path) as life, pytest.raises(Fatal) as stop:
            life.ddl(event)
        assert "Duplicate" in stop.value.why
        assert (ids(cursor, "d_part.r"), ids(cursor, "d_part.ex")) == ([11, 29, 31], [12, 31])


def test_a_skipped_exchange_without_validation_counts_as_unchecked(
    mariadb: MySqlServer, cursor: Any, tmp_path: Path
) -> None:
    event = filled_tables(mariadb, cursor, tmp_path)(0)
    event = replace(event, query=f"{event.query}{WITHOUT_VALIDATION}")
    with Sql(mariadb, tmp_path, skipped={event.finished_ts}) as life:
        life.run([message(event)])
    check_rows(cursor, swapped=False)
    with Life(mariadb, "ddl", tmp_path) as life:
        held = life.target.definitions[R]
        assert held.info is not None
        assert held.info[MISPLACED]
