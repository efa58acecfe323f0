"""DDL at a real MariaDB: recorded jobs of a TiDB as statements, each once, whatever dies on the way."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pymysql
import pytest

from tests.consumer.mysql.reading import forget
from tests.consumer.test_ddl_at_target import message, recorded, renamed
from tests.mounter.jobs import OURS
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.ddl.ddl_plan import plan
from tidegate.consumer.ddl.ddl_steps import Drop, Rewrite
from tidegate.consumer.engine.ddl_queue import identity
from tidegate.consumer.mysql.described import describe
from tidegate.consumer.mysql.dialect import DIALECT, Dialect, dialect_of
from tidegate.consumer.mysql.literals import MySqlValues, literals
from tidegate.consumer.mysql.session import Connection, MySqlServer
from tidegate.consumer.mysql.tables import column_text, converts, create_table, qualified
from tidegate.consumer.mysql.target import MySqlTarget
from tidegate.consumer.table.definition import Definition, target_column
from tidegate.consumer.table.modify import WIRE_TYPES
from tidegate.errors import Fatal, Fenced, Retryable, TidegateError
from tidegate.filter.feed import FeedFilter
from tidegate.model.ddl import DdlEvent
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.mounter.table_version import Parsed, TableVersion
from tidegate.server.delivery.initial_load import definitions
from tidegate.tidb import table_info
from tidegate.tidb.cast import cast, refusal
from tidegate.tidb.table_info import table_schema
from tidegate.tidb.value import missing, present
from tidegate.workload.bank_model import ACCOUNTS
from tidegate.workload.definitions import table_info as workload_info

FRESH = "fresh_copies"
"""Schema of tables that are made in one go, to compare with those that became what they are."""
DATA_TYPES = {
    1: "tinyint", 2: "smallint", 3: "int", 4: "float", 5: "double", 7: "timestamp", 8: "bigint",
    9: "mediumint", 10: "date", 11: "time", 12: "datetime", 13: "year", 14: "date", 16: "bit",
    225: "longtext", 245: "longtext", 246: "decimal", 247: "enum", 248: "set",
}  # fmt: skip
TEXTS = {15: "varchar", 249: "tinytext", 250: "mediumtext", 251: "longtext", 252: "text", 254: "char"}
BYTES = {15: "varbinary", 249: "tinyblob", 250: "mediumblob", 251: "longblob", 252: "blob", 254: "binary"}

REFUSED = {
    "flashback database": "FLASHBACK DATABASE",
    "flashback table": "brings rows back",
    "recover table": "brings rows back",
}
"""How the recorded statements begin that a database cannot follow, and a part of the reason."""


class Life:
    """A consumer that has taken the server over. Dies at the n-th durable step of a DDL: see `dies_at`."""

    class Over(BaseException):
        """Simulates kill -9."""

    def __init__(self, server: MySqlServer, name: str, folder: Path, dies_at: int | None = None) -> None:
        """`dies_at`: 2n before step n takes effect, 2n + 1 right after; None: never."""
        self.target = MySqlTarget(server, name)
        self.target.recover()
        self.applier = Applier(self.target, folder)
        self._steps, self._dies_at = itertools.count(), dies_at
        for owner, step in ((self.target._hold, "run_ddl"), (self.target._progress, "record_ddl")):
            setattr(owner, step, self._mortal(getattr(owner, step)))

    def _mortal(self, whole: Any) -> Any:
        def step(*arguments: Any, **named: Any) -> Any:
            number = next(self._steps)
            self._die_if(2 * number)
            done = whole(*arguments, **named)
            self._die_if(2 * number + 1)
            return done

        return step

    def _die_if(self, step: int) -> None:
        if step == self._dies_at:
            self.target.close()
            raise Life.Over

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *_: object) -> None:
        self.target.close()

    def ddl(self, *events: DdlEvent) -> None:
        for event in events:
            self.applier.ddl([message(event)])

    def drop(self, cursor: Any, *names: tuple[str, str]) -> None:
        """Forget tables that a DDL was refused for, as if they had been filtered out until now."""
        for name in names:
            if self.target._definitions.pop(name, None) is not None:
                cursor.execute(f"DROP TABLE IF EXISTS {qualified(*name)}")


def steps_to_die_at() -> Iterator[int]:
    """For one life after the other: each early step again and again, and always later ones: all ends."""
    for life in itertools.count():
        yield life % (12 + life // 6)


@pytest.fixture
def server(mariadb: MySqlServer) -> MySqlServer:
    """Without the schemas of earlier tests."""
    connection = mariadb.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT schema_name FROM information_schema.schemata")
        names = [name for (name,) in cursor.fetchall() if name.startswith(("d_", "x_", "d1", "d2", FRESH))]
        for name in names:
            cursor.execute(f"DROP DATABASE `{name}`")
        cursor.execute(f"CREATE DATABASE {FRESH}")
        cursor.execute("SHOW DATABASES LIKE 'tidegate'")
        if cursor.fetchone():
            forget(mariadb, "ddl")
    connection.close()
    return mariadb


@pytest.fixture
def connection(server: MySqlServer) -> Iterator[Connection]:
    made = server.connect()
    yield made
    made.close()


def shown(cursor: Any, schema: str, table: str) -> list[tuple[str, str]]:
    cursor.execute(
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema=%s AND table_name=%s ORDER BY ordinal_position",
        (schema, table),
    )
    return list(cursor.fetchall())


def expected(made: Definition) -> list[tuple[str, str]]:
    """Names and types, said independently of what renders them."""
    kinds = [
        DATA_TYPES.get(column.mysql_type)
        or (BYTES if pa.types.is_binary(column.type) else TEXTS)[column.mysql_type]
        for column in made.columns
    ]
    return list(zip([column.name for column in made.columns], kinds, strict=True))


def parts(description: str | None) -> tuple[list[str], list[str]]:
    """Columns in order, and everything else in none: an index that was added later is at the end."""
    lines = (description or "").split("\n")
    return [line for line in lines if line.startswith("`")], sorted(lines)


@pytest.mark.parametrize("case", OURS)
def test_every_recorded_ddl_makes_the_table_that_its_definition_says(
    server: MySqlServer, connection: Connection, tmp_path: Path, case: str
) -> None:
    cursor, followed = connection.cursor(), 0
    with Life(server, "ddl", tmp_path) as life:
        for query, events in recorded(case):
            for event in events:
                filled = filled_columns(event, life.target.definitions.values())
                if filled:
                    put_one_row(cursor, event.old_schema, event.old_table)
                refusal_of = next((why for how, why in REFUSED.items() if query.startswith(how)), "")
                if not followed_or_refused(life, event, refusal_of):
                    life.drop(cursor, (event.schema, event.table), (event.old_schema, event.old_table))
                    continue
                followed += 1
                made = life.target.definitions.get((event.schema, event.table))
                if made is None:
                    continue
                assert shown(cursor, event.schema, event.table) == expected(made), query
                check_against_a_fresh_one(cursor, made, query)
                check_old_rows(cursor, made, filled, query)
    assert followed > 5


def followed_or_refused(life: Life, event: DdlEvent, why: str) -> bool:
    """Whether it was followed; if not, it was for this reason."""
    try:
        life.ddl(event)
    except Fatal as error:
        if not why or why not in error.why:
            raise
        return False
    return True


def check_against_a_fresh_one(cursor: Any, made: Definition, query: str) -> None:
    """A table that was altered is the one that would be created."""
    cursor.execute(f"DROP TABLE IF EXISTS {qualified(FRESH, made.table)}")
    cursor.execute(create_table(replace(made, schema=FRESH), dialect_at(cursor)))
    altered, fresh = describe(cursor, made.schema, made.table), describe(cursor, FRESH, made.table)
    assert parts(altered) == parts(fresh), query


def dialect_at(cursor: Any) -> Dialect:
    cursor.execute(DIALECT)
    return dialect_of(*cursor.fetchone())


def filled_columns(event: DdlEvent, known: Iterable[Definition]) -> list[Column]:
    """The columns that an event adds to a table that is there."""
    steps = [step for step in plan(event, known) if isinstance(step, Rewrite)]
    if not steps or event.after is None:
        return []
    added = {one.column.name for one in steps[0].sources if one.taken is None}
    columns = table_schema(event.schema, event.after, event.finished_ts).columns
    return [column for column in columns if column.name in added]


def put_one_row(cursor: Any, schema: str, table: str) -> None:
    cursor.execute(f"SELECT COUNT(*) FROM {qualified(schema, table)}")
    if cursor.fetchone()[0] == 0:
        cursor.execute("SELECT @@sql_mode")
        (usual,) = cursor.fetchone()
        cursor.execute("SET sql_mode=''")
        cursor.execute(f"INSERT INTO {qualified(schema, table)} () VALUES ()")
        cursor.execute("SET sql_mode=%s", (usual,))


def check_old_rows(cursor: Any, made: Definition, filled: Iterable[Column], query: str) -> None:
    """Rows older than a column hold in it what TiDB says, which new rows need not get."""
    for column in filled:
        value = present(column, missing(column), UTC)
        cursor.execute(f"SELECT DISTINCT {compared(column)} FROM {qualified(made.schema, made.table)}")
        assert cursor.fetchall() == ((stored(cursor, value, column),),), f"{query}: {column.name}"


def compared(column: Column, name: str = "") -> str:
    """Return the SQL that compares values of a column: floats exactly, bits and text by their bytes."""
    held = f"`{name or column.name}`"
    if column.kind in (Kind.FLOAT, Kind.DOUBLE):
        return f"CAST({held} AS DOUBLE)"
    return f"HEX({held})" if column.kind in (Kind.STRING, Kind.BYTES, Kind.BIT) else f"CAST({held} AS CHAR)"


def stored(cursor: Any, value: Value, column: Column) -> Any:
    """Return the value that the server stores when `value` is written into such a column."""
    cursor.execute(f"DROP TABLE IF EXISTS {FRESH}.w")
    made = column_text(replace(column, default=None), dialect_at(cursor))
    cursor.execute(f"CREATE TABLE {FRESH}.w (c {made})")
    cursor.execute(f"INSERT INTO {FRESH}.w VALUES ({literal(value, column)})")
    cursor.execute(f"SELECT {compared(column, 'c')} FROM {FRESH}.w")
    return cursor.fetchone()[0]


def literal(value: Value, column: Column) -> str:
    target, values = target_column(column), MySqlValues()
    if column.kind in (Kind.STRING, Kind.BYTES) and isinstance(value, str):
        value = value.encode()
    wire = pa.array([value], WIRE_TYPES.get(column.kind, pa.string()))
    text: bytes = literals(values.convert(wire, target, "UTC"), target)[0].as_py()
    return text.decode()


# --- once


def followed_events(case: str) -> list[DdlEvent]:
    return [
        event
        for query, events in recorded(case)
        for event in events
        if not any(query.startswith(how) for how in REFUSED)
    ]


@pytest.mark.parametrize("case", ["multi_schema_change", "indexes", "partitions"])
def test_death_at_any_step_of_a_ddl_does_it_once(
    server: MySqlServer, connection: Connection, tmp_path: Path, case: str
) -> None:
    """Each life sees all DDLs from the beginning, as after a position that has not moved."""
    deaths, boundaries = 0, steps_to_die_at()
    events = followed_events(case)
    while True:
        try:
            with Life(server, "ddl", tmp_path, dies_at=next(boundaries)) as life:
                life.ddl(*events)
                held = dict(life.target.definitions)
            break
        except Life.Over:
            deaths += 1
    assert deaths > len(events)
    cursor = connection.cursor()
    for made in held.values():
        check_against_a_fresh_one(cursor, made, "at the end")


def test_existing_tables_are_created_as_the_initial_load_describes_them(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    config = merge_config({}, parse_sink_uri("kafka://127.0.0.1:1/t?protocol=open-protocol"))
    reported = workload_info(100, "accounts", ACCOUNTS, ["id"])
    table = TableVersion.of(2, "d_load", reported, 5, Parsed())
    with Life(server, "ddl", tmp_path) as life, connection.cursor() as cursor:
        life.ddl(*definitions([table], FeedFilter.of(config), 1000))
        made = life.target.definition(("d_load", "accounts"))
        assert made is not None
        assert made.info == reported, "what follows is rendered from the TableInfo, not read from the server"
        assert shown(cursor, "d_load", "accounts") == expected(made)


def test_a_statement_that_ran_twice_would_be_noticed(server: MySqlServer, tmp_path: Path) -> None:
    """The DDLs of the test above are ones that a second time fail or change something."""
    events = followed_events("multi_schema_change")
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(*events)
        life.target._run._done.clear()
        life.target._definitions.clear()
        with pytest.raises(Fatal, match="is there already"):
            life.ddl(*events)


def test_a_table_that_somebody_changed_in_between_stops_the_restart(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    create, alter = followed_events("multi_schema_change")[1:3]
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create)
    before_it_runs = 2 * 5  # four statements show what it will do, then it is noted
    with Life(server, "ddl", tmp_path, before_it_runs) as life, pytest.raises(Life.Over):
        life.ddl(create, alter)
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {qualified(alter.schema, alter.table)} ADD COLUMN mine INT")
    with (
        Life(server, "ddl", tmp_path) as life,
        pytest.raises(Fatal, match="neither as it was nor as") as stop,
    ):
        life.ddl(create, alter)
    assert f"{alter.schema}.{alter.table}" in stop.value.where
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {qualified(alter.schema, alter.table)} DROP COLUMN mine")
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create, alter)


# --- names


def two_tables() -> tuple[DdlEvent, DdlEvent]:
    first = next(e for _, events in recorded("basic") for e in events if e.action == 3 and e.schema == "d1")
    assert first.after is not None
    made = [
        replace(
            first, after=first.after | {"id": i, "name": {"O": n, "L": n}}, table=n, old_table=n, job_id=i
        )
        for i, n in ((901, "a"), (902, "b"))
    ]
    return made[0], made[1]


def swap(a: DdlEvent, b: DdlEvent) -> list[DdlEvent]:
    return [renamed(a, 0, "a", "t"), renamed(b, 1, "b", "a"), renamed(a, 2, "t", "b")]


def rotate(a: DdlEvent, b: DdlEvent) -> list[DdlEvent]:
    """A name that is taken in between and given on."""
    return [renamed(a, 0, "a", "t"), renamed(a, 1, "t", "c"), renamed(b, 2, "b", "t")]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        pytest.param(swap, {"a": [3], "b": [1, 2]}, id="swap"),
        pytest.param(rotate, {"c": [1, 2], "t": [3]}, id="rotate"),
    ],
)
def test_tables_renamed_in_one_statement_keep_their_rows_despite_crashes(
    server: MySqlServer, connection: Connection, tmp_path: Path, names: Any, found: dict[str, list[int]]
) -> None:
    cursor = connection.cursor()
    a, b = two_tables()
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(a, b)
        column = life.target.definitions["d1", "a"].columns[0].name
    for table, ids in (("a", [1, 2]), ("b", [3])):
        for one in ids:
            cursor.execute(f"INSERT INTO d1.{table} (`{column}`) VALUES ({one})")
    for dies_at in steps_to_die_at():
        try:
            with Life(server, "ddl", tmp_path, dies_at=dies_at) as life:
                life.ddl(a, b, *names(a, b))
            break
        except Life.Over:
            pass
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(a, b, *names(a, b))  # dead after the last step, before the position moved
        assert sorted(life.target.definitions) == [("d1", name) for name in sorted(found)]
    for table, ids in found.items():
        cursor.execute(f"SELECT `{column}` FROM d1.{table} ORDER BY 1")
        assert [one for (one,) in cursor.fetchall()] == ids


# --- partitions


def put(cursor: Any, table: str, values: Iterable[Any]) -> None:
    for at, value in enumerate(values):
        number = at if isinstance(value, str) else value
        cursor.execute(f"REPLACE INTO d_part.{table} VALUES (%s, %s)", (number, value))


def values_of(cursor: Any, table: str) -> list[Any]:
    cursor.execute(f"SELECT v FROM d_part.{table} ORDER BY 1")
    return [value for (value,) in cursor.fetchall()]


def test_the_rows_of_dropped_and_truncated_partitions_go_whatever_dies(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    cursor = connection.cursor()
    left = {
        "alter table r drop partition p0": ([0, 9, 10, 19, 20, 39], [10, 19, 20, 39]),
        "alter table r truncate partition p1": ([], [20, 39]),
        "alter table r truncate partition p2, p3": ([], []),
    }
    done: list[DdlEvent] = []
    for query, events in recorded("partitions"):
        before, after = left.get(query, ([], []))
        if done:
            put(cursor, "r", before)
        done += events
        for dies_at in steps_to_die_at():
            try:
                with Life(server, "ddl", tmp_path, dies_at) as life:
                    life.ddl(*done)
                break
            except Life.Over:
                pass
        if query in left:
            assert values_of(cursor, "r") == after, query
        if query == list(left)[-1]:
            break


def test_a_partition_takes_the_texts_that_differ_only_in_case_or_spaces(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    create, drop = texts_by_range()
    cursor = connection.cursor()
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create)
        put(cursor, "r", ["a", "A", "b", "B", "B ", "é", "E"])
        life.ddl(drop)
    assert values_of(cursor, "r") == ["a", "b", "é"]


def texts_by_range() -> tuple[DdlEvent, DdlEvent]:
    """A table whose partition p0 has the texts below `a` by their bytes; and its end."""
    events = {query: events[0] for query, events in recorded("partitions") if events}
    create = next(event for query, event in events.items() if query.startswith("create table r "))
    assert create.after is not None
    column = create.after["cols"][1]
    field = column["type"] | {
        "Tp": 15, "Flag": 0, "Flen": 9, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"
    }  # fmt: skip
    ends = ["'a'"], ["MAXVALUE"]
    partition = create.after["partition"]
    described = zip(partition["definitions"], ends, strict=True)
    made = create.after | {
        "cols": [create.after["cols"][0], column | {"type": field}],
        "partition": partition
        | {
            "columns": [column["name"]],
            "definitions": [one | {"less_than": end} for one, end in described],
        },
    }
    gone = partition["definitions"][0]["id"]
    kept = made | {"partition": made["partition"] | {"definitions": made["partition"]["definitions"][1:]}}
    drop = replace(
        create, action=20, before=made, after=kept, removed_ids=(gone,), query="drop p0", job_id=998,
        finished_ts=create.finished_ts + 1,
    )  # fmt: skip
    return replace(create, after=made), drop


# --- values


def column_of(
    code: int, flen: int, decimal: int = 0, flag: int = 0, charset: str = "binary", elems: Any = None
) -> Column:
    collate = "utf8mb4_bin" if charset == "utf8mb4" else "binary"
    field = {
        "Tp": code,
        "Flag": flag,
        "Flen": flen,
        "Decimal": decimal,
        "Charset": charset,
        "Collate": collate,
    }
    entry = {
        "id": 1, "name": {"O": "c", "L": "c"}, "offset": 0, "state": 5, "version": 2,
        "type": {**field, "Elems": elems},
    }  # fmt: skip
    return table_info.every_column({"cols": [entry]}, 1)[0]


VALUES: list[tuple[Column, list[Value]]] = [
    (column_of(1, 4), [0, 1, -1, 69, 70, 127, -128]),
    (column_of(3, 11), [0, 1, -1, 255, 2024, -129, 2**31 - 1]),
    (column_of(8, 20, flag=32), [0, 1, 255, 2155, 2**64 - 1]),
    (column_of(246, 10, 4), ["0.0000", "1.5000", "-1.5000", "2.4999", "123.4500", "-0.5000"]),
    (column_of(5, 22, -1), [0.0, 1.5, -2.5, 0.1, 1e10, 123456.789, 1.005, 2.675]),
    (column_of(16, 8), [0, 1, 65, 200]),
    (column_of(13, 4, flag=32), [0, 1901, 2024, 2155]),
    (column_of(10, 10), ["2024-02-29", "0000-00-00", "9999-12-31"]),
    (column_of(12, 19), ["2024-02-29 23:59:59", "1970-01-01 00:00:01", "0000-00-00 00:00:00"]),
    (column_of(12, 26, 6), ["2024-02-29 23:59:59.999999", "2024-02-29 10:11:12.500000"]),
    (column_of(7, 19), ["2024-02-29 10:11:12", "0000-00-00 00:00:00"]),
    (column_of(7, 23, 3), ["2024-02-29 10:11:12.999"]),
    (column_of(254, 5, charset="utf8mb4"), ["", "1", " 1", "-1", "1e2", "é", "null"]),
    (
        column_of(15, 40, charset="utf8mb4"),
        ["", "1", "1 ", "1.5", "12abc", "[1,2]", '{"b": 1,"a": 2}', "\t5"],
    ),
    (column_of(252, 65535, charset="utf8mb4"), ["", "007", "127", '{"b": 1,"a": 2}', "18446744073709551615"]),
    (column_of(247, -1, charset="utf8mb4", elems=["a", "b", "x"]), [1, 2, 3]),
    (column_of(248, -1, charset="utf8mb4", elems=["a", "b", "x"]), [0, 1, 3, 7]),
    (column_of(245, 2**32 - 1, flag=128), ["1", '"x"', '{"a": 1, "b": [1, 2]}', "null", "1.5", '"é"']),
]
"""Columns, and values that they can hold."""
PAIRS = [
    pytest.param(before, values, after, id=f"{column_text(before)} to {column_text(after)}")
    for (before, values), (after, _) in itertools.product(VALUES, VALUES)
    if before is not after and converts(before, after, UTC) and not refusal(before, after, UTC)
]


@pytest.mark.parametrize(("before", "values", "after"), PAIRS)
def test_a_conversion_gives_the_values_that_tidb_gives_or_stops(
    server_once: Connection, before: Column, values: list[Value], after: Column
) -> None:
    """A value that does not fit is an error of the strict server: no value changes silently."""
    cursor = server_once.cursor()
    differ = [value for value in values if not converts_alike(cursor, value, before, after)]
    assert differ == []


@pytest.fixture(scope="module")
def server_once(mariadb: MySqlServer) -> Iterator[Connection]:
    made = mariadb.connect()
    with made.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {FRESH}")
    yield made
    made.close()


def converts_alike(cursor: Any, value: Value, before: Column, after: Column) -> bool:
    """True also when the server stops with an error."""
    dialect = dialect_at(cursor)
    cursor.execute(f"DROP TABLE IF EXISTS {FRESH}.o")
    cursor.execute(f"CREATE TABLE {FRESH}.o (c {column_text(before, dialect)})")
    cursor.execute(f"INSERT INTO {FRESH}.o VALUES ({literal(value, before)})")
    plain = value.encode() if before.kind in (Kind.STRING, Kind.BYTES) and isinstance(value, str) else value
    try:
        wanted = cast(plain, before, after, UTC)
        cursor.execute(f"ALTER TABLE {FRESH}.o CHANGE COLUMN c c {column_text(after, dialect)}")
    except (pymysql.err.MySQLError, TidegateError):
        return True  # MariaDB stops, or TiDB does and no such DDL ever comes
    cursor.execute(f"SELECT {compared(after)} FROM {FRESH}.o")
    found = cursor.fetchone()[0]
    return bool(found == stored(cursor, wanted, after))


# --- evidence


def test_a_description_is_that_of_an_empty_copy_whatever_the_table_has(server_once: Connection) -> None:
    """Rows, counters, foreign keys and options are no part of it; all that an ALTER of ours changes is."""
    cursor = server_once.cursor()
    place, copy = f"{FRESH}.described", f"{FRESH}.copy"
    # TiDB has no FULLTEXT indexes.
    index = "KEY e (e(9))" if dialect_at(cursor) is Dialect.TIDB else "FULLTEXT KEY (e)"
    option = " PAGE_CHECKSUM=1" if dialect_at(cursor) is Dialect.MARIADB else ""
    cursor.execute(f"DROP TABLE IF EXISTS {place}, {copy}, {FRESH}.parent")
    cursor.execute(f"CREATE TABLE {FRESH}.parent (id INT PRIMARY KEY)")
    cursor.execute(
        f"CREATE TABLE {place} (id INT AUTO_INCREMENT PRIMARY KEY COMMENT 'a\\nCONSTRAINT `x` FOREIGN KEY ',"
        f" p INT CHECK (p > 0), d VARCHAR(20) DEFAULT 'x,\\n) ENGINE=', e TEXT, {index},"
        f" CONSTRAINT fk FOREIGN KEY (p) REFERENCES {FRESH}.parent (id))"
        f" ROW_FORMAT=COMPRESSED{option} COMMENT 'AUTO_INCREMENT=7'"
    )
    cursor.execute(f"INSERT INTO {place} (p) VALUES (NULL), (NULL)")
    cursor.execute(f"CREATE TABLE {copy} LIKE {place}")
    before = describe(cursor, FRESH, "described")
    assert before is not None
    assert describe(cursor, FRESH, "copy") == before
    seen = {before}
    for change in (
        "ADD x INT",
        "ALTER x SET DEFAULT 3",
        "MODIFY x INT COMMENT 'c'",
        "ADD UNIQUE (x)",
        "DROP KEY e",
    ):
        cursor.execute(f"ALTER TABLE {copy} {change}")
        seen.add(describe(cursor, FRESH, "copy") or "")
    assert len(seen) == 6
    assert describe(cursor, FRESH, "none") is None
    assert describe(cursor, "no_such_schema", "none") is None
    cursor.execute(f"DROP TABLE {place}, {copy}, {FRESH}.parent")


def test_a_connection_lost_between_two_steps_leaves_the_first_steps_note(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    _, other = two_tables()
    create, alter = followed_events("multi_schema_change")[1:3]
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(create)
        target, cursor = life.target, connection.cursor()
        known = list(target.definitions.values())
        first, second = plan(other, known), plan(alter, known)
        assert isinstance(second[0], Rewrite)
        target.intend(message(alter), [*first, *second])
        target.execute(first[0])
        cursor.execute("SELECT ddl FROM tidegate.progress WHERE consumer='ddl'")
        ((noted,),) = cursor.fetchall()
        target._run.resume(noted)  # as after a connection was lost: the note is of the step before
        target.execute(second[0])
        held = target.definitions[alter.schema, alter.table]
        assert [name for name, _ in shown(cursor, alter.schema, alter.table)] == [
            c.name for c in held.columns
        ]


def test_a_connection_lost_while_a_ddl_is_planned_is_taken_again(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    _, other = two_tables()
    with Life(server, "ddl", tmp_path) as life:
        target, ended = life.target, list[int]()
        there = target._run._tables.there

        def end_and_ask(name: tuple[str, str]) -> bool:
            if not ended:
                ended.append(target._hold.control.thread_id())
                connection.cursor().execute(f"KILL {ended[0]}")
            return there(name)

        target._run._tables.there = end_and_ask  # type: ignore[method-assign]
        life.ddl(other)
        assert ended, "the plan asks the server whether the table exists"
        assert (other.schema, other.table) in target.definitions


@pytest.mark.usefixtures("named_locks")
def test_no_statement_runs_in_a_connection_that_has_lost_the_lock(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    """A proxy that opens another connection to the server shows no error, and that one has no lock."""
    _, other = two_tables()
    with Life(server, "ddl", tmp_path) as life:
        target = life.target
        record = target._progress.record_ddl

        def record_and_lose(*arguments: Any) -> None:
            record(*arguments)
            assert target._hold.rows("SELECT RELEASE_ALL_LOCKS()") == [(1,)]

        target._progress.record_ddl = record_and_lose  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            life.ddl(other)
    assert shown(connection.cursor(), other.schema, other.table) == []


def test_a_ddl_without_statements_that_was_noted_is_not_noted_twice(
    server: MySqlServer, connection: Connection, tmp_path: Path
) -> None:
    """The note is committed, and the connection is lost before the answer arrives."""
    _, other = two_tables()
    with Life(server, "ddl", tmp_path) as life:
        target, ended = life.target, list[int]()
        record = target._progress.record_ddl

        def record_and_end(*arguments: Any) -> None:
            record(*arguments)
            if not ended:
                ended.append(target._hold.control.thread_id())
                connection.cursor().execute(f"KILL {ended[0]}")
                raise Retryable("the answer to COMMIT was lost", where="here")

        target._progress.record_ddl = record_and_end  # type: ignore[method-assign]
        target.intend(message(other), [])
        assert ended
        cursor = connection.cursor()
        cursor.execute("SELECT ddl FROM tidegate.progress WHERE consumer='ddl'")
        assert orjson.loads(cursor.fetchone()[0])["done"] == [identity(message(other))]


def test_a_schema_is_dropped_in_an_order_that_a_restart_has_too(server: MySqlServer, tmp_path: Path) -> None:
    a, b = two_tables()
    drop = replace(a, action=2, after=None, before=None, table="", query="drop database d1")
    with Life(server, "ddl", tmp_path) as life:
        life.ddl(b, a)
        known = list(life.target.definitions.values())
    assert plan(drop, known) == plan(drop, reversed(known)) == [Drop("d1", "a"), Drop("d1", "b")]


def test_a_snapshot_forgets_no_ddl_that_was_begun(server: MySqlServer, tmp_path: Path) -> None:
    with Life(server, "ddl", tmp_path) as life:
        progress = life.target._progress
        begun = '{"done":[],"begun":{"name":"n","query":"q","at":0,"evidence":[]}}'
        progress.record_ddl(begun)
        progress.move("position")
        assert progress.take_again().ddl == begun
        progress.move("position", ddl_over=True)
        assert progress.take_again().ddl is None
