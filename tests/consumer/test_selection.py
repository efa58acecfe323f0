"""Which tables and columns are applied, and under which names: the same at every target.

Whole topics go into both kinds of target, with headers and as SQL, and are compared with what SQL saw of the
source. Refusals are tested with `Selection` alone, or with an applier over Delta tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.consumer import logs
from tests.consumer.at_delta import applier_of
from tests.consumer.memory_topic import MemoryTopic, consume_into
from tests.consumer.mysql.mortal import Killed, MortalServer
from tests.consumer.mysql.reading import differences, forget
from tests.consumer.mysql.test_ddl import Life, steps_to_die_at
from tests.consumer.mysql.test_replay import EVERYTHING, Sql
from tests.consumer.mysql.test_target import TINY
from tests.consumer.one_table import KEY_FLAGS, OneTable
from tests.consumer.one_table import topic as one_topic
from tests.consumer.test_ddl_at_target import message
from tests.consumer.test_renames import RENAME, Named
from tests.consumer.topics import Mark, publish
from tidegate.codec.base import DdlMessage, WireColumn
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.ddl.ddl_plan import EXCHANGE
from tidegate.consumer.ddl.ddl_steps import Create
from tidegate.consumer.delta.target import DeltaTarget
from tidegate.consumer.engine.assembler import StagedPiece, StagedRun
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.job import run
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.consumer.selecting.rules import Rules
from tidegate.consumer.selecting.selection import Selection, check_same_rules
from tidegate.consumer.settings import Settings
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.table.definition import guess
from tidegate.consumer.targets import DatabaseSettings
from tidegate.errors import Fatal, InvalidInput
from tidegate.workload.changelog import SnapshotLine, SnapshotTable
from tidegate.workload.definitions import ColumnSpec

ROUTES = ("bank.orders=copy.all_orders", "bank.*=copy.*", "bank_aux.*=copy_aux.*")
WITH_HEADERS = Rules(
    exclude=("bank.audit_log",),
    route=ROUTES,
    drop_column=("*.*.account_id", "bank.accounts.tier", "bank.accounts.note"),
)
"""idx_acc and u_id_acc are over account_id; audit is renamed to audit_log, and made again later."""
AS_SQL = Rules(
    exclude=("bank.transfers", "bank.audit*"), route=ROUTES, drop_column=("*.*.remark", "*.*.tier")
)
SHAPE = OneTable.of([ColumnSpec("id", 3, 11, flag=KEY_FLAGS), ColumnSpec("v", 15, 20, text=True)])
AFTER_RENAME, LAST = 12, len(logs.snapshots()) - 1


# --- whole topics


def seen_by(rules: Rules, line: SnapshotLine) -> SnapshotLine:
    """Return the state that SQL saw, as the rules leave it."""
    tables, columns, routes = rules.tables(), rules.columns(), rules.routes()
    found = {}
    for name, table in line.tables.items():
        schema, _, own = name.partition(".")
        if tables is not None and not tables.matches(schema, own):
            continue
        target = next(to for route in routes if (to := route.target((schema, own))) is not None)
        kept = [at for at, column in enumerate(table.columns) if not columns.matches(schema, own, column)]
        found[".".join(target)] = left_of(table, kept)
    return replace(line, tables=found)


def left_of(table: SnapshotTable, kept: Sequence[int]) -> SnapshotTable:
    def of(cells: Any) -> tuple[Any, ...]:
        return tuple(cells[at] for at in kept)

    if len(kept) == len(table.columns):
        return table
    assert table.rows is not None, "only a digest of its rows is known"
    return replace(table, columns=of(table.columns), types=of(table.types), rows=tuple(map(of, table.rows)))


def bare(topic: MemoryTopic) -> MemoryTopic:
    """The topic without headers of ours, as TiCDC writes it."""
    messages = [
        (number, replace(one, headers=())) for number, part in topic.partitions.items() for one in part
    ]
    return MemoryTopic(topic.options, topic.partitions, messages)


def into_mariadb(
    server: MySqlServer, topic: MemoryTopic, rules: Rules, folder: Path, lines: Iterable[int], **but: str
) -> list[dict[str, list[str]]]:
    """Return the differences at each snapshot, with a restart after each."""
    forget(server, "selection", "bank", "bank_aux", "copy", "copy_aux")
    found = []
    for line in (logs.snapshots()[at] for at in lines):
        with MySqlAddress(server, "selection", folder / "own", lanes=3).opened() as target:
            applier = Applier(target, folder / "own", selection=selection_of(rules, target))
            consume_into(topic, applier, folder / "staging", until=line.ts, size=400, rows=2000)
        found.append(differences(server, seen_by(rules, line), but))
    connection = server.connect()
    with connection.cursor() as cursor:
        assert not cursor.execute("SHOW DATABASES LIKE 'bank%'")
    connection.close()
    return found


def selection_of(rules: Rules, target: Any) -> Selection:
    held = target.recover()
    return Selection(rules, held.sources if held is not None else ())


def test_a_write_in_parts_dies_and_resumes_under_its_rules(mariadb: MySqlServer, tmp_path: Path) -> None:
    """The record of the write says into how many parts each table is cut, by the names at the target."""
    line, topic = logs.snapshots()[1], logs.bank_topic("open-protocol")
    forget(mariadb, "selection", "bank", "copy")
    deaths = 0
    for dies_at in itertools.count(131, 23):
        server = MortalServer.at(mariadb, dies_at)
        try:
            address = MySqlAddress(server, "selection", tmp_path / "own", lanes=2, transaction_bytes=1)
            with address.opened() as target:
                selection = selection_of(WITH_HEADERS, target)
                applier = Applier(target, tmp_path / "own", sizes=TINY, selection=selection)
                consume_into(topic, applier, tmp_path / "staging", until=line.ts, size=400, rows=200)
            break
        except Killed:
            deaths += 1
    assert deaths > 2
    assert differences(mariadb, seen_by(WITH_HEADERS, line)) == {}


class RoutedSql(Sql):
    """A consumer of SQL that dies at a step of a DDL."""

    def __init__(self, server: MySqlServer, folder: Path, dies_at: int) -> None:
        super().__init__(server, folder, dies_at)
        rules = Rules(
            exclude=("*.gone",), route=("d_sql.*=d_copy.*", "d_two.*=d_copy2.*"), drop_column=("*.*.n",)
        )
        self.applier.selection = Selection(rules)


def test_sql_of_other_names_dies_at_any_step_and_runs_once(mariadb: MySqlServer, tmp_path: Path) -> None:
    """Each life sees all DDLs from the beginning, as after a position that has not moved."""
    forget(mariadb, "ddl", "d_sql", "d_two", "d_copy", "d_copy2")
    deaths = 0
    for dies_at in steps_to_die_at():
        try:
            with RoutedSql(mariadb, tmp_path, dies_at) as life:
                life.run(EVERYTHING)
                held = dict(life.target.definitions)
                sources = life.applier.sources
            break
        except Life.Over:
            deaths += 1
    assert deaths > len(EVERYTHING)
    assert sorted(held) == [("d_copy", "p"), ("d_copy", "u")]
    assert [column.name for column in held["d_copy", "u"].columns] == ["id", "v"]
    assert {one[:2] for one in sources} >= held.keys()
    connection = mariadb.connect()
    with connection.cursor() as cursor:
        assert not cursor.execute("SHOW DATABASES LIKE 'd_two'")
        assert not cursor.execute("SHOW DATABASES LIKE 'd_sql'")
        assert not cursor.execute("SHOW TABLES FROM d_copy2")
    connection.close()


def test_a_topic_with_headers_is_in_a_database_as_the_rules_say(mariadb: MySqlServer, tmp_path: Path) -> None:
    """The table that was renamed out of what is followed stays, until one of its name is made again."""
    topic = logs.bank_topic("open-protocol")
    wrong = into_mariadb(mariadb, topic, WITH_HEADERS, tmp_path, [AFTER_RENAME, LAST])
    assert wrong == [{"copy.audit": ["not in SQL"]}, {}]


def test_a_topic_of_sql_is_in_a_database_as_the_rules_say(mariadb: MySqlServer, tmp_path: Path) -> None:
    topic, moment = (
        bare(logs.bank_topic("open-protocol")),
        {"copy.all_orders": "ts"},
    )  # of a DDL: see test_replay
    wrong = into_mariadb(mariadb, topic, AS_SQL, tmp_path, [AFTER_RENAME, LAST], **moment)
    assert wrong == [{}, {}]


def test_delta_tables_are_as_the_rules_say(tmp_path: Path) -> None:
    for at, wrong in ((AFTER_RENAME, {"copy.audit": ["not in SQL"]}), (LAST, {})):
        line = logs.snapshots()[at]
        applier = applier_of(tmp_path / "target")
        applier.selection = selection_of(WITH_HEADERS, applier.target)
        consume_into(logs.bank_topic("open-protocol"), applier, tmp_path / "staging", until=line.ts)
        applier.target.close()
        assert logs.differences(tmp_path / "target", seen_by(WITH_HEADERS, line)) == wrong


def test_delta_tables_guessed_from_rows_follow_the_rules_too(tmp_path: Path) -> None:
    """Without headers a DROP finds its table under the routed name."""
    two = [Named(71, "shop", "a"), Named(72, "shop", "b")]
    events = [
        *(replace(one.created(100), query=f"CREATE TABLE {one.name} (id INT)") for one in two),
        *(one.change(110, None, (1, "x")) for one in two),
        Mark(120),
        replace(two[0].created(130), action=4, query="DROP TABLE `shop`.`a`", before=two[0].info, after=None),
        Mark(140),
    ]
    rules = Rules(route=("shop.*=copy.old_*",), drop_column=("shop.*.v",))
    applier = applier_of(tmp_path / "target", selection=Selection(rules))
    consume_into(one_topic(events, header=False), applier, tmp_path / "staging")
    found = open_snapshot(tmp_path / "target").tables
    assert {name: table.to_arrow().to_pylist() for name, table in found.items()} == {
        "copy.old_b": [{"id": 1}]
    }


def test_rows_without_a_key_are_compared_by_the_columns_that_are_left(tmp_path: Path) -> None:
    """Two rows look alike then, and a delete takes one of them."""
    bag = OneTable.of([ColumnSpec("a", 3, 11), ColumnSpec("v", 15, 20, text=True)])
    rows = [(1, "x"), (1, "y"), (2, "z")]
    events = [
        bag.created(), *(bag.change(110, None, row) for row in rows), Mark(120),
        bag.change(130, (1, "x"), None), bag.change(130, (2, "z"), (3, "z")), Mark(140),
    ]  # fmt: skip
    applier = applier_of(tmp_path / "target", selection=Selection(Rules(drop_column=("*.*.v",))))
    consume_into(one_topic(events), applier, tmp_path / "staging")
    (table,) = open_snapshot(tmp_path / "target").tables.values()
    assert sorted(table.to_arrow()["a"].to_pylist()) == [1, 3]
    assert "v" not in table.to_arrow().column_names


# --- restarts


@pytest.fixture
def items_source(kafka: str, new_topic: Callable[..., str]) -> str:
    """shop.items is made at 100 and has a row at 110; nothing follows up to 200, but for a table that runs on
    in a topic that nobody reads."""
    name, moved = new_topic(1), replace(Named(80, "shop", "log").rename(150, "log2"), moved_to="elsewhere")
    row = SHAPE.change(110, None, (1, "x"))
    messages = one_topic([SHAPE.created(), row, Mark(120), moved, Mark(200)])
    publish(kafka, name, [(0, message) for message in messages.partitions[0]])
    return f"kafka://{kafka}/{name}?protocol=open-protocol"


def test_other_rules_are_refused_before_anything_is_written(items_source: str, tmp_path: Path) -> None:
    target, rules = tmp_path / "target", Rules(exclude=("shop.log*",), route=("shop.*=copy.*",))
    settings = Settings(items_source, target, until=120, master="workers[1]", rules=rules)
    run(settings)
    again = replace(settings, until=200)
    with pytest.raises(InvalidInput, match="was filled under other rules") as refused:
        run(replace(again, rules=replace(rules, exclude=())))
    assert "--exclude shop.log*" in refused.value.why
    assert open_snapshot(target).ts == 120
    run(again)  # continues, and knows where each table came from
    assert open_snapshot(target).ts == 200
    held = Position.from_json(applier_of(target).target.lake.snapshots.position() or "")
    assert (held.rules, held.sources) == (rules.given, (("copy", "items", "shop", "items"),))


def test_a_write_that_was_begun_keeps_its_rules_too(
    items_source: str, mariadb: MySqlServer, tmp_path: Path
) -> None:
    """The very first write: there is no position yet, only what was begun."""
    forget(mariadb, "begun", "copy", "copy_aux", "bank")
    database = DatabaseSettings("begun", tmp_path / "own")
    target = f"mysql://root@127.0.0.1:{mariadb.port}/"
    rules = Rules(include=("bank.orders",))
    with MySqlAddress(mariadb, "begun", tmp_path / "own").opened() as one:
        one.recover()
        begun = position(rules=rules.given).to_json()
        one._progress.batch.begin(begun, {0: "1"})
    settings = Settings(items_source, target, master="workers[1]", database=database, until=2**60)
    with pytest.raises(InvalidInput, match="was filled under other rules"):
        run(settings)


def position(**what: Any) -> Position:
    part = {0: PartitionPosition(0, 1, 1)}
    return Position(1, "t", "open-protocol", "transaction", part, **what)


def test_the_position_keeps_rules_and_sources() -> None:
    held = position(rules=("--include a.*", "--route a.*=b.*"), sources=(("b", "t", "a", "t"),))
    assert Position.from_json(held.to_json()) == held
    assert "rules" not in position().to_json()
    check_same_rules(held, held.rules, "x")
    with pytest.raises(InvalidInput, match=r"no rule.*--include a") as refused:
        check_same_rules(position(), ("--include a.*",), "x")
    assert refused.value.where == "x"


def test_unreadable_rules_are_rejected_before_the_target_is_touched(tmp_path: Path) -> None:
    source = "kafka://127.0.0.1:1/t?protocol=open-protocol"
    with pytest.raises(InvalidInput, match="the route 'a=b' cannot be read"):
        run(Settings(source, tmp_path / "target", rules=Rules(route=("a=b",))))
    assert not (tmp_path / "target").exists()


# --- rows


def pieces(*names: tuple[str, str], key: str = "id") -> dict[tuple[str, str], list[StagedPiece]]:
    columns = tuple(WireColumn(name, pa.int64(), 8, key=name == key) for name in ("id", "v", "secret"))
    return {name: [StagedPiece(StagedRun(0, *name, columns, "f", 0, 9, 1, 5, 5, 0), 0, 9)] for name in names}


def test_rows_of_other_tables_are_left_out_and_the_rest_is_renamed() -> None:
    selection = Selection(Rules(("shop.*",), ("shop.log",), ("shop.a=x.b",), ("SHOP.*.Secret",)))
    found = selection.pieces(pieces(("shop", "a"), ("shop", "log"), ("shop", "c"), ("mart", "a")), ())
    assert found.keys() == {("x", "b"), ("shop", "c")}
    (piece,) = found["x", "b"]
    assert (piece.segment.schema, piece.segment.table) == ("x", "b")
    assert [column.name for column in piece.segment.columns] == ["id", "v"]


@pytest.mark.parametrize(("column", "what"), [("id", "column of a key"), ("*", "column of a key")])
def test_rows_do_not_lose_their_key(column: str, what: str) -> None:
    selection = Selection(Rules(drop_column=(f"shop.a.{column}",)))
    with pytest.raises(Fatal, match=what):
        selection.pieces(pieces(("shop", "a")), ())


def test_rows_without_a_key_do_not_lose_all_their_columns() -> None:
    selection = Selection(Rules(drop_column=("*.*.*",)))
    with pytest.raises(Fatal, match="no column of a table is left"):
        selection.pieces(pieces(("shop", "a"), key=""), ())


def test_two_tables_do_not_meet_in_one() -> None:
    rules = Rules(route=("shop.*=all.*", "mart.*=all.*"))
    with pytest.raises(Fatal, match=r"shop.t and mart.T, both to all.T"):
        Selection(rules).pieces(pieces(("shop", "t"), ("mart", "T")), ())
    selection = Selection(rules)
    selection.pieces(pieces(("shop", "t")), ())  # in one step, and after a restart
    later = Selection(rules, selection.sources)
    with pytest.raises(Fatal, match="meet"):
        later.pieces(pieces(("mart", "t")), {("all", "t")})
    unrouted = Selection(Rules(route=("shop.*=mart.*",)))
    with pytest.raises(Fatal, match="meet"):
        unrouted.pieces(pieces(("shop", "t"), ("mart", "t")), ())
    gone = Selection(rules, selection.sources)
    assert gone.pieces(pieces(("mart", "t")), ()).keys() == {("all", "t")}


# --- DDL


def reported(
    selection: Selection, query: str, schema: str = "shop", held: Iterable[tuple[str, str]] = ()
) -> DdlMessage | None:
    """A DDL without a header, in the target's words."""
    text = DdlMessage(7, query, None, schema, "t", None, 0)
    chosen = selection.ddl(None, text, set(held))
    if chosen is None:
        return None
    if chosen.refusal is not None:
        raise chosen.refusal
    return chosen.message


RULES = Rules(exclude=("shop.log",), route=("shop.*=copy.*", "mart.*=copy.*"), drop_column=("*.*.secret",))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("create table t (id int primary key, secret int)", "CREATE TABLE `copy`.`t` (`id` INT PRIMARY KEY)"),
        ("create table t like u", "CREATE TABLE `copy`.`t` LIKE `copy`.`u`"),
        ("drop table t, log, other.x", "DROP TABLE `copy`.`t`, `other`.`x`"),
        ("truncate t", "TRUNCATE TABLE `copy`.`t`"),
        ("rename table t to u, x.v to x.w", "RENAME TABLE `copy`.`t` TO `copy`.`u`, `x`.`v` TO `x`.`w`"),
        ("rename table t to log, u to v", "RENAME TABLE `copy`.`u` TO `copy`.`v`"),
        ("alter table t add x int after secret", "ALTER TABLE `copy`.`t` ADD COLUMN `x` INT"),
        ("alter table t drop x, rename x.u", "ALTER TABLE `copy`.`t` DROP COLUMN `x`, RENAME AS `x`.`u`"),
        ("alter table shop.t rename to mart.t", "ALTER TABLE `copy`.`t`"),
        ("alter table t add index i (v), drop column secret", "ALTER TABLE `copy`.`t` ADD INDEX `i`(`v`)"),
        ("alter table t modify column secret bigint", None),
        ("alter table t add unique u (v, secret)", None),
        ("create unique index u on t (secret)", None),
        ("alter table log add column x int", None),
        ("drop table log", None),
        ("truncate log", None),
        ("create table log (id int)", None),
        ("rename table t to log", None),
        ("create view w as select 1", None),
        (
            "alter table t exchange partition p0 with table u without validation",
            "ALTER TABLE `copy`.`t` EXCHANGE PARTITION `p0` WITH TABLE `copy`.`u` WITHOUT VALIDATION",
        ),
        ("alter table log exchange partition p0 with table log", None),
    ],
)  # fmt: skip
def test_sql_is_written_again_for_the_target(query: str, expected: str | None) -> None:
    found = reported(Selection(RULES), query)
    assert (found.query if found is not None else None) == expected


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("rename table log to t", "moves into what is followed"),
        ("alter table log rename to t", "moves into what is followed"),
        ("create table t like log", "made like shop.log, which is not at the target"),
        ("create table t (secret int primary key, v int)", "column secret is the primary key"),
        ("create table t (secret int, v int, primary key (v, secret))", "part of the primary key"),
        ("create table t (secret int)", "no column of the table is left"),
        ("create table t (v int, secret int, w int as (secret))", "computed or partitioned by column secret"),
        ("create table t (v int, secret int) partition by hash (secret)", "computed or partitioned"),
        ("alter table t change secret v int", "its values are not at the target"),
        ("alter table t rename column secret to v", "its values are not at the target"),
        ("alter table t add column w int as (t.v + 1)", "names a column with its table"),
        ("alter table t exchange partition p0 with table log", "EXCHANGE PARTITION moves them"),
        ("alter table log exchange partition p0 with table t", "EXCHANGE PARTITION moves them"),
        ("no SQL at all", "cannot be read"),
    ],
)  # fmt: skip
def test_sql_that_cannot_be_written_again_is_refused(query: str, why: str) -> None:
    with pytest.raises(Fatal, match=why):
        reported(Selection(RULES), query)


@pytest.mark.parametrize(
    "query",
    [
        "create table t like u",
        "create table u like t",
        "alter table t rename to u",
        "alter table u exchange partition p0 with table t",
    ],
)
def test_sql_does_not_join_tables_of_which_other_columns_are_left_out(query: str) -> None:
    with pytest.raises(Fatal, match="other columns are left out"):
        reported(Selection(Rules(drop_column=("shop.t.secret",))), query)


def test_a_column_that_is_renamed_out_of_view_goes() -> None:
    found = reported(Selection(RULES), "alter table t change v secret int")
    assert found is not None
    assert found.query == "ALTER TABLE `copy`.`t` DROP COLUMN `v`"


def test_a_text_is_untouched_where_no_name_and_no_column_changes() -> None:
    query = "alter table t add column x int after w, algorithm=inplace"
    found = reported(Selection(Rules(include=("shop.*",), drop_column=("*.*.secret",))), query)
    assert found is not None
    assert found.query == query


def test_drop_and_create_database_follow_the_routes_of_their_tables() -> None:
    """DROP drops the tables that came from it; CREATE creates the databases its tables go to."""
    sources = [("copy", "a", "shop", "a"), ("copy", "b", "mart", "b"), ("copy", "c", "shop", "c")]
    selection = Selection(RULES, sources)
    drop = DdlMessage(7, "drop database shop", None, "shop", "", None, 0)
    chosen = selection.ddl(None, drop, {("copy", "a"), ("copy", "b")})
    assert chosen is not None
    assert chosen.drops == (("copy", "a"),)
    make = DdlMessage(7, "create database shop charset latin1", None, "shop", "", None, 0)
    partial = Selection(Rules(route=("shop.a=x.a", "shop.b_*=y.*")))
    chosen = partial.ddl(None, make, ())
    assert chosen is not None
    assert [query.split("`")[1] for query in chosen.queries] == ["x", "y", "shop"]
    assert all("latin1" in query for query in chosen.queries)
    assert Selection(Rules(include=("mart.*",))).ddl(None, make, ()) is None


@pytest.mark.parametrize("header", [True, False], ids=["header", "SQL"])
def test_drop_database_leaves_the_tables_of_other_schemas(tmp_path: Path, header: bool) -> None:
    tables = Named(71, "shop", "a"), Named(72, "mart", "b")
    gone = replace(
        tables[0].created(120), action=2, query="drop database shop", table="", old_table="", after=None
    )
    applier = applier_of(tmp_path, selection=Selection(RULES))
    applier.target.recover()
    applier.ddl([message(one.created(100)) for one in tables])
    assert applier.target.definitions.keys() == {("copy", "a"), ("copy", "b")}
    applier.ddl([message(gone, header)])
    assert applier.target.definitions.keys() == {("copy", "b")}


# --- DDL with headers


def refusal(rules: Rules, event: Any) -> str:
    chosen = Selection(rules).ddl(event, message(event), ())
    assert chosen is not None
    assert chosen.refusal is not None
    return chosen.refusal.what


def test_a_rename_into_the_selection_is_rejected_and_one_out_is_ignored() -> None:
    rules = Rules(exclude=("shop.log",))
    into = Named(71, "shop", "log").rename(120, "t")
    assert refusal(rules, into) == "a table moves into what is followed"
    out = Named(71, "shop", "t").rename(120, "log")
    assert Selection(rules).ddl(out, message(out), ()) is None
    half = replace(into, action=EXCHANGE)
    assert refusal(rules, half) == "rows move between a table that is followed and one that is not"


def test_a_refused_ddl_stops_the_consumer_when_it_is_due(tmp_path: Path) -> None:
    """The rows before it are in, and named by a snapshot."""
    log, items = Named(71, "shop", "log"), Named(72, "shop", "items")
    events = [
        log.created(100), items.created(100),
        log.change(110, None, (1, "x")), items.change(110, None, (2, "y")), Mark(120),
        log.rename(130, "t"), Mark(140),
    ]  # fmt: skip
    applier = applier_of(tmp_path / "target", selection=Selection(Rules(exclude=("shop.log",))))
    with pytest.raises(Fatal, match="moves into what is followed"):
        consume_into(one_topic(events), applier, tmp_path / "staging", size=1)
    found = open_snapshot(tmp_path / "target")
    assert {name: len(table.to_arrow()) for name, table in found.tables.items()} == {"shop.items": 1}


def changed(name: str, to: str, **column: Any) -> dict[str, Any]:
    """The TableInfo after a column was renamed; `column`: what else of it is other."""
    columns = [
        one | {"name": {"O": to, "L": to}} | column if one["name"]["O"] == name else one
        for one in SHAPE.info["cols"]
    ]
    return SHAPE.info | {"cols": columns}


def test_a_key_of_a_header_keeps_its_columns() -> None:
    assert refusal(Rules(drop_column=("*.*.id",)), SHAPE.created()) == "a column of a key cannot be left out"
    bag = {"cols": [one | {"type": one["type"] | {"Flag": 0}} for one in SHAPE.info["cols"]]}
    created = replace(SHAPE.created(), after=SHAPE.info | bag | {"pk_is_handle": False, "index_info": []})
    assert refusal(Rules(drop_column=("*.*.*",)), created) == "no column of a table is left"


@pytest.mark.parametrize("new_id", [{}, {"id": 9}], ids=["kept id", "new id"])
def test_a_column_that_comes_into_view_is_refused(new_id: dict[str, int]) -> None:
    event = SHAPE.ddl(120, 12, "alter table items change v w int", changed("v", "w", **new_id))
    assert (
        refusal(Rules(drop_column=("*.*.v",)), event)
        == "a DDL renames a column that is left out to a name that is not left out"
    )
    hidden = Selection(Rules(drop_column=("*.*.[vw]",))).ddl(event, message(event), ())
    assert hidden is not None
    assert hidden.refusal is None


def test_a_table_that_is_made_again_under_a_name_has_no_earlier_values() -> None:
    event = replace(SHAPE.ddl(120, 11, "truncate items", changed("v", "w") | {"id": 99}))
    chosen = Selection(Rules(drop_column=("*.*.v",))).ddl(event, message(event), ())
    assert chosen is not None
    assert chosen.refusal is None


def test_a_table_keeps_its_place_when_only_the_source_calls_it_otherwise(tmp_path: Path) -> None:
    one = Named(71, "shop", "t")
    applier = applier_of(tmp_path, selection=Selection(RULES))
    applier.target.recover()
    applier.ddl([message(one.created(100))])
    applier.ddl([message(one.rename(110, "t", "mart"))])
    assert applier.sources == (("copy", "t", "mart", "t"),)
    assert applier.target.definitions.keys() == {("copy", "t")}


def test_a_ddl_without_a_rule_is_the_very_same() -> None:
    event = replace(SHAPE.created(), action=RENAME)
    text = message(event)
    chosen = Selection().ddl(event, text, ())
    assert chosen is not None
    assert chosen.event is event
    assert chosen.message is text


def test_a_topic_that_only_unselected_tables_need_is_not_required() -> None:
    ddls = tuple(DdlMessage(7, "x", None, "shop", table, None, 0) for table in ("log", "t", ""))
    part = Selection(RULES).followed(Fetched(0, 9, ddls=ddls))
    assert [ddl.table for ddl in part.ddls] == ["t", ""]


# --- between rows, DDLs and the position


def test_what_is_written_says_where_new_tables_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database moves the position with the write, and a restart reads it there."""
    applier, written = applier_of(tmp_path, selection=Selection(RULES)), list[Position]()
    monkeypatch.setattr(applier.target, "write", lambda tables, reached, parted: written.append(reached))
    applier.rows(pieces(("shop", "t")), position())
    assert [one.sources for one in written] == [(("copy", "t", "shop", "t"),)]


class RunsSql(DeltaTarget):
    """Says that it runs SQL, as databases do."""

    replays_sql = True


def test_a_header_does_not_help_where_the_text_must_be_run(tmp_path: Path) -> None:
    """The table was found at the target: no TableInfo says how it looks there."""
    target = RunsSql(tmp_path)
    applier = Applier(target, tmp_path / "own", selection=Selection(RULES))
    target.recover()
    target.execute(Create(guess("copy", "items", [WireColumn("id", pa.int64(), 8, key=True)], 90)))
    event = SHAPE.ddl(120, 5, "alter table items add column w int as (items.v + 1)", SHAPE.info)
    with pytest.raises(Fatal, match="names a column with its table"):
        applier.ddl([message(event)])
