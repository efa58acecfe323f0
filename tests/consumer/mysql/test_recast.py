"""MODIFY COLUMN at a real MariaDB: every value becomes what TiDB makes of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.consumer.mysql.test_ddl import (
    VALUES,
    Life,
    column_of,
    compared,
    connection,
    expected,
    literal,
    server,
    shown,
    steps_to_die_at,
    stored,
    texts_by_range,
)  # fmt: skip
from tests.consumer.mysql.test_dialect import PRIMARY_KEY
from tests.consumer.mysql.test_replay import Sql
from tests.consumer.test_ddl_at_target import message
from tidegate.consumer.ddl.ddl_plan import plan
from tidegate.consumer.mysql import ddl
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.recast import recast
from tidegate.consumer.mysql.session import Connection, MySqlServer
from tidegate.consumer.mysql.tables import column_text, converts
from tidegate.consumer.table.modify import Change
from tidegate.errors import Fatal, TidegateError, Undecodable
from tidegate.model.ddl import DdlEvent
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.tidb.cast import cast, refusal

__all__ = ["connection", "server"]


def created(column: Column, number: int) -> DdlEvent:
    """A table (id INT PRIMARY KEY, v `column`), its number 2 * `number`."""
    create, _ = texts_by_range()
    assert create.after is not None
    entry = entry_of(create, column, 2)
    after = create.after | {
        "id": 10_000 + number,
        "cols": [create.after["cols"][0], entry],
        "partition": None,
    }
    return replace(create, after=after, job_id=20_000 + 2 * number)


def entry_of(create: DdlEvent, column: Column, number: int) -> dict[str, Any]:
    assert create.after is not None
    field = {
        "Tp": column.mysql_type, "Flag": column.flag, "Flen": column.flen, "Decimal": column.decimal,
        "Charset": column.charset, "Collate": column.collate, "Elems": list(column.elems) or None,
    }  # fmt: skip
    return create.after["cols"][1] | {"id": number, "type": field}


def modified(create: DdlEvent, column: Column, at: int = 1) -> DdlEvent:
    """One of its columns as `column`, with new data, and so with a new id."""
    assert create.after is not None
    cols = list(create.after["cols"])
    cols[at] = entry_of(create, column, 3) | {"name": cols[at]["name"], "offset": at}
    return replace(
        create, before=create.after, after=create.after | {"cols": cols}, action=12, query="modify",
        job_id=create.job_id + 1, finished_ts=create.finished_ts + 1, time_zone="UTC",
    )  # fmt: skip


def plain_of(value: Value, column: Column) -> Value:
    text = column.kind in (Kind.STRING, Kind.BYTES) and isinstance(value, str)
    return value.encode() if text and isinstance(value, str) else value


def converted(value: Value, before: Column, after: Column) -> Value | None:
    """None where TiDB has no value, or one that a strict server takes from nobody: an enum's 0."""
    try:
        made = cast(plain_of(value, before), before, after, UTC)
    except TidegateError:
        return None
    return None if after.kind is Kind.ENUM and made == 0 else made


PAIRS = [
    (before, values, after)
    for (at, (before, values)), (to, (after, _)) in itertools.product(enumerate(VALUES), enumerate(VALUES))
    if at != to and ((2 * at + to) % 7 == 0 or (before.kind, after.kind) == (Kind.DATETIME, Kind.DATE))
    if not refusal(before, after, UTC) and not converts(before, after, UTC)
]
"""Each type with some of the others; all of them were compared once. MySQL rounds a DATETIME to the next day.
"""


def test_each_conversion_gives_the_values_that_tidb_gives(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    cursor, count = connection.cursor(), 0
    with Life(server, "ddl", tmp_path) as life:
        for number, (before, values, after) in enumerate(PAIRS):
            create = created(before, number)
            life.ddl(create)
            known = [(v, made) for v in values if (made := converted(v, before, after)) is not None]
            for at, (value, _) in enumerate(known):
                cursor.execute(f"INSERT INTO d_part.r VALUES ({at}, {literal(value, before)})")
            cursor.execute("INSERT INTO d_part.r VALUES (-1, NULL)")
            life.ddl(modified(create, after))
            assert shown(cursor, "d_part", "r") == expected(life.target.definitions["d_part", "r"])
            cursor.execute(f"SELECT {compared(after, 'v')} FROM d_part.r ORDER BY id")
            found = [value for (value,) in cursor.fetchall()]
            wanted = [None, *(stored(cursor, made, after) for _, made in known)]
            assert found == wanted, f"{column_text(before)} to {column_text(after)}"
            count += len(known)
    assert count > 60


TEXT = column_of(15, 40, charset="utf8mb4")
JSON = column_of(245, 2**32 - 1, flag=128)


def test_a_column_is_converted_once_whatever_dies(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    cursor, create = connection.cursor(), created(TEXT, 1)
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create)
    texts = ['{"b":1,"a":2}', '"x"', '"X"', "1e2"]
    for at, text in enumerate([*texts, *texts]):
        cursor.execute("INSERT INTO d_part.r VALUES (%s, %s)", (at, text))
    deaths = 0
    for dies_at in steps_to_die_at():
        try:
            with Life(server, "ddl", tmp_path, dies_at) as life:
                life.ddl(create, modified(create, JSON))
            break
        except Life.Over:
            deaths += 1
    assert deaths > 20
    cursor.execute("SELECT v FROM d_part.r ORDER BY id")
    assert [v for (v,) in cursor.fetchall()] == ['{"a": 2, "b": 1}', '"x"', '"X"', "100.0"] * 2
    cursor.execute("SHOW COLUMNS FROM d_part.r")
    assert [row[0] for row in cursor.fetchall()] == ["id", "v"]


def test_floats_that_look_alike_stay_apart(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    cursor, create = connection.cursor(), created(column_of(4, 12, -1), 1)
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create)
        cursor.execute("INSERT INTO d_part.r VALUES (1, '123456.5'), (2, '123456.75')")
        life.ddl(modified(create, TEXT))
    cursor.execute("SELECT v FROM d_part.r ORDER BY id")
    assert [v for (v,) in cursor.fetchall()] == ["123456.5", "123456.75"]


def test_a_set_that_tidb_reads_as_a_double_is_not_converted() -> None:
    """There 2**53 equals 2**53 + 1 in a SET, so a value could become that of another one."""
    most = column_of(248, -1, charset="utf8mb4", elems=[f"e{n}" for n in range(54)])
    hold, change = SimpleNamespace(dialect=Dialect.TIDB), Change(most, TEXT, UTC)
    with pytest.raises(Fatal, match="this one has 54 elements"):
        recast(hold, ("s", "t"), "c", "new", change)  # type: ignore[arg-type]


@pytest.mark.parametrize("null", [False, True])
def test_a_null_that_becomes_the_time_of_day_stops_the_consumer(
    server: MySqlServer, connection: Connection, tmp_path: Path, null: bool
) -> None:
    cursor, create = connection.cursor(), created(TEXT, 1)
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create)
        cursor.execute("INSERT INTO d_part.r VALUES (1, '2024-02-29 10:11:12')")
        change = modified(create, column_of(7, 19, flag=1))
        if null:
            cursor.execute("INSERT INTO d_part.r VALUES (2, NULL)")
            with pytest.raises(Undecodable, match="NULL becomes the current time"):
                life.ddl(change)
        else:
            life.ddl(change)
            cursor.execute("SELECT CAST(v AS CHAR) FROM d_part.r")
            assert cursor.fetchall() == (("2024-02-29 10:11:12",),)


def with_key(create: DdlEvent, *, clustered: bool) -> DdlEvent:
    """The table of `create`, whose primary key is an index of its own unless it is clustered."""
    assert create.after is not None
    if clustered:
        return create
    key = {"name": create.after["cols"][0]["name"], "offset": 0, "length": -1}
    info = {"pk_is_handle": False, "index_info": [PRIMARY_KEY | {"idx_cols": [key]}]}
    return replace(create, after=create.after | info)


@pytest.mark.parametrize(
    "to", [replace(TEXT, flag=3), column_of(4, 12, -1, flag=3)], ids=["by the server", "by the consumer"]
)
@pytest.mark.parametrize("clustered", [True, False])
def test_a_primary_key_that_is_converted_stays_one(
    server: MySqlServer, connection: Connection, tmp_path: Path, clustered: bool, to: Column, dialect: Dialect
) -> None:
    cursor, create = connection.cursor(), with_key(created(TEXT, 1), clustered=clustered)
    change = modified(create, to, at=0)
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create)
        cursor.execute("INSERT INTO d_part.r VALUES (1, 'a'), (-2, 'b')")
        if clustered and dialect is Dialect.TIDB:
            cursor.execute("SHOW CREATE TABLE d_part.r")
            before = cursor.fetchall()
            with pytest.raises(Fatal, match="it is clustered") as stop:
                life.ddl(change)
            assert "table d_part.r, primary key id" in stop.value.where
            cursor.execute("SHOW CREATE TABLE d_part.r")
            assert cursor.fetchall() == before, "refused before anything is done"
            by_hand(cursor, to)
    skipped = {change.finished_ts} if clustered and dialect is Dialect.TIDB else set()
    with Sql(server, tmp_path, skipped=skipped) as life:
        life.ddl(create, change)
        assert shown(cursor, "d_part", "r") == expected(life.target.definitions["d_part", "r"])
    cursor.execute("SELECT CAST(id AS CHAR), v FROM d_part.r ORDER BY v")
    assert cursor.fetchall() == (("1", "a"), ("-2", "b"))
    cursor.execute("SHOW INDEX FROM d_part.r")
    assert [(row[2], row[4]) for row in cursor.fetchall()] == [("PRIMARY", "id")]


def test_what_tidb_does_not_do_is_not_refused_again_if_it_was_done_by_hand(
    server: MySqlServer, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = created(TEXT, 1)
    change = modified(create, replace(TEXT, flag=3), at=0)
    for skipped in (set[int](), {change.finished_ts}):
        with Sql(server, tmp_path, skipped=skipped) as life, monkeypatch.context() as patched:
            life.ddl(create)
            steps, run = plan(change, life.target.definitions.values()), life.target._run
            patched.setattr(run._hold, "dialect", Dialect.TIDB)
            if skipped:
                run.intend(message(change), steps)
                assert [one.statements for one in run._planned] == [[]]
            else:
                with pytest.raises(Fatal, match="it is clustered") as stop:
                    run.intend(message(change), steps)
                assert f"ts {change.finished_ts}: modify" in stop.value.where, "what --skip-ddl takes"


def by_hand(cursor: Any, to: Column) -> None:
    """Do as the error advises."""
    cursor.execute(f"CREATE TABLE d_part.new (id {column_text(to, Dialect.TIDB)} PRIMARY KEY, v VARCHAR(40))")
    cursor.execute("INSERT INTO d_part.new SELECT * FROM d_part.r")
    cursor.execute("DROP TABLE d_part.r")
    cursor.execute("RENAME TABLE d_part.new TO d_part.r")


def test_a_refused_ddl_names_both_statements_and_may_be_done_by_hand(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    cursor, create = connection.cursor(), created(column_of(3, 11), 1)
    change = modified(create, column_of(1, 4))
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create)
        cursor.execute("INSERT INTO d_part.r VALUES (1, 300)")
        with pytest.raises(Fatal, match="refuses a DDL of the topic") as stop:
            life.ddl(change)
    where = stop.value.where
    assert f"ts {change.finished_ts}: modify; at the target: ALTER TABLE `d_part`.`r` CHANGE COLUMN" in where
    assert any(words in stop.value.why.lower() for words in ("out of range", "overflows tinyint"))
    assert f"--skip-ddl {change.finished_ts}" in stop.value.fix
    cursor.execute("UPDATE d_part.r SET v=100")
    cursor.execute("ALTER TABLE d_part.r MODIFY COLUMN v TINYINT")
    with Sql(server, tmp_path, skipped={change.finished_ts}) as life:
        life.ddl(create, change)
        assert shown(cursor, "d_part", "r") == expected(life.target.definitions["d_part", "r"])


def test_a_ddl_refused_at_a_later_statement_leaves_a_filled_column(
    server: MySqlServer, connection: Connection, tmp_path: Path, dialect: Dialect
) -> None:
    cursor, create = connection.cursor(), with_key(created(TEXT, 1), clustered=False)
    change = modified(create, column_of(4, 12, -1, flag=3), at=0)
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create)
        cursor.execute("INSERT INTO d_part.r VALUES (16777216, 'a'), (16777217, 'b')")
        with pytest.raises(Fatal, match="refuses a DDL of the topic") as stop:
            life.ddl(change)
    assert "ADD PRIMARY KEY" in stop.value.where
    assert "duplicate" in stop.value.why.lower()
    cursor.execute("SHOW COLUMNS FROM d_part.r")
    left = [name for name, *_ in cursor.fetchall() if name.startswith("_tidegate_new_")]
    if dialect is not Dialect.TIDB:  # there a statement of its own has named it as the old one
        assert len(left) == 1


def test_an_error_in_the_middle_of_a_ddl_names_it(
    server: MySqlServer, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise Fatal("a column cannot be converted", where="table d_part.r", fix="--skip-ddl")

    create = with_key(created(TEXT, 1), clustered=False)
    change = modified(create, column_of(4, 12, -1, flag=3), at=0)
    monkeypatch.setattr(ddl, "recast", refuse)
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create)
        with pytest.raises(Fatal, match="cannot be converted") as stop:
            life.ddl(change)
    assert stop.value.where == f"table d_part.r; ts {change.finished_ts}: modify"
