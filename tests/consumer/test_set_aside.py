"""A table whose changes cannot be applied is set aside, and all others continue: see `set_aside`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_consumer_lines import QUIET
from tests.consumer.at_delta import applier_of
from tests.consumer.each_target import SCHEMA, AtDelta, AtIceberg, AtMariaDb, Killed, Place
from tests.consumer.memory_topic import MemoryTopic, consume_into, consume_setting_aside
from tests.consumer.one_table import topic
from tests.consumer.test_ddl_at_target import message
from tests.consumer.test_renames import Named
from tests.consumer.topics import Event, Mark
from tidegate.cli.consumer import status as live_line
from tidegate.cli.consumer_status import summary
from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying import set_aside
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.applying.set_aside import SetAsideTables
from tidegate.consumer.applying.target import TableFailed, Target, TargetFailed, TargetStatus
from tidegate.consumer.ddl.ddl_plan import DROP_SCHEMA
from tidegate.consumer.engine.position import PartitionPosition, Position, SetAside
from tidegate.consumer.mysql.lanes import lane_of
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.checks import check_set_aside
from tidegate.consumer.running.gauges import Gauges
from tidegate.consumer.running.status import Observation, status_of
from tidegate.consumer.selecting.rules import Rules
from tidegate.consumer.selecting.selection import Chosen, Selection
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.workload.ddl import Action
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, column_info, table_info

BAD = "bad"
LANES = 3
"""As `AtMariaDb` has them."""
NEAR = next(n for n in "abcdefgh" if lane_of(SCHEMA, n, LANES) == lane_of(SCHEMA, BAD, LANES))
FAR = next(n for n in "abcdefgh" if lane_of(SCHEMA, n, LANES) != lane_of(SCHEMA, BAD, LANES))
"""The other tables: one in the lane of the bad one, and one in another lane."""
LONG = "much longer than three"
BEGINNING, FAILS = 120, 140
"""Up to the first ts all is well; a change at the second cannot be applied."""
LIVES = 400


def info(number: int, name: str) -> dict[str, Any]:
    key = ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY)
    return table_info(number, name, [key, ColumnSpec("what", 15, 40, text=True)], ["id"])


class Table(Named):
    """A table (id primary key, what), whose definition may change."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(number, SCHEMA, name)
        self.now = info(number, name)

    @property
    def info(self) -> dict[str, Any]:
        return self.now | {"name": {"O": self.name, "L": self.name}}

    def widen(self) -> None:
        """Get a column, which no DDL announces."""
        spec = ColumnSpec("note", 3, 11)
        self.now = self.now | {"max_col_id": 3, "cols": [*self.now["cols"], column_info(3, 2, spec)]}

    def widened(self, ts: int) -> DdlEvent:
        before = self.info
        self.widen()
        return replace(
            self.created(ts), job_id=ts, action=int(Action.ADD_COLUMN), before=before, after=self.info,
            added_ids=(), query=f"alter table {self.name} add column note int",
        )  # fmt: skip


def history(*, silently: bool) -> list[Event]:
    """Three tables, of which the bad one cannot be written from FAILS on, and much that comes later.

    `silently`: its rows have a column that no DDL announced; otherwise they have texts that are long.
    """
    near, far, bad = Table(81, NEAR), Table(82, FAR), Table(83, BAD)
    events: list[Event] = [near.created(100), far.created(101), bad.created(102)]
    events += [one.change(BEGINNING, None, (n, "x")) for one in (near, far, bad) for n in (1, 2)]
    events.append(Mark(BEGINNING))
    events += [one.change(130, None, (3, "y")) for one in (near, far, bad)]
    events.append(Mark(130))
    more: tuple[Any, ...] = ()
    if silently:
        bad.widen()
        more = (5,)
    events += [near.change(FAILS, (1, "x"), (1, "z")), far.change(FAILS, (1, "x"), None)]
    events += [bad.change(FAILS, None, (4, LONG, *more)), Mark(FAILS)]
    events += [near.change(150, None, (5, "v")), bad.change(150, None, (5, "v", *more)), Mark(150)]
    events += [far.widened(160), bad.rename(170, "worse")]
    events += [far.change(180, None, (6, "u", 7)), bad.change(180, None, (6, "u", *more))]
    again = Table(93, BAD)
    events += [again.created(190), again.change(200, None, (7, "t")), near.change(200, (2, "x"), None)]
    return [*events, Mark(210)]


GOOD = {
    NEAR: [(1, "z"), (3, "y"), (5, "v")],
    FAR: [(2, "x", None), (3, "y", None), (6, "u", 7)],
}
"""The other tables at the end."""
WHOLE = {BEGINNING: [(1, "x"), (2, "x")], 130: [(1, "x"), (2, "x"), (3, "y")]}
"""The bad table, by ts, before it cannot be written."""


def at_end(place: Place, position: Position) -> None:
    """The other tables have everything once, and the bad one what its entry says, and nothing later."""
    seen, entries = place.seen(), {one.table: one for one in position.set_aside}
    assert entries.keys() == {BAD, "worse"}
    assert position.partitions[0].applied == 210
    assert {name: seen[name] for name in GOOD} == GOOD
    assert seen[BAD] == WHOLE[max(ts for ts in WHOLE if ts <= entries[BAD].ts)]
    assert BEGINNING <= entries[BAD].ts < FAILS
    assert (entries["worse"].ts, "worse" in seen) == (170, False)


def begin(place: Place, events: Sequence[Event], folder: Path) -> None:
    with place.address().opened() as target:
        applier = Applier(target, folder / "begin")
        assert (
            consume_into(topic(events, partitions=2), applier, folder / "s", until=BEGINNING).ts == BEGINNING
        )


def narrow(server: MySqlServer) -> None:
    """Somebody alters the bad table at the target, so that it does not hold long texts."""
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE `{SCHEMA}`.`{BAD}` MODIFY what VARCHAR(3)")
    connection.close()


@pytest.fixture(params=["delta", "iceberg", "mariadb", "mariadb that refuses the rows"])
def begun(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Place, MemoryTopic]:
    """A target up to BEGINNING, and the topic. In the last one the server refuses the rows; the others do not
    get as far."""
    kind, silently = request.param, "refuses" not in request.param
    events, place = history(silently=silently), None
    if kind == "delta":
        place = AtDelta(tmp_path / "target")
    elif kind == "iceberg":
        place = AtIceberg(tmp_path / "target")
    else:
        place = AtMariaDb(request.getfixturevalue("mariadb"), tmp_path)
    begin(place, events, tmp_path)
    if not silently:
        narrow(request.getfixturevalue("mariadb"))
    return place, topic(events, partitions=2)


def covers(position: Position | None) -> None:
    """No position has passed the change that is not applied without naming its table."""
    passed = position is not None and position.complete_ts >= FAILS
    assert not passed or BAD in {one.table for one in position.set_aside}  # type: ignore[union-attr]


@pytest.mark.slow
def test_death_at_every_write_around_a_set_aside_loses_nothing(
    begun: tuple[Place, MemoryTopic], tmp_path: Path
) -> None:
    """As `test_every_target` dies: each takeover writes the same, so only some lives die in one."""
    place, messages = begun
    context, life = place.mortal(1 << 30)
    with context as target:
        target.recover()
        takeover = 0 if place.undoes else life.steps
    dies_at, state, deaths, moves = 3, place.state(), 0, 0
    while deaths < LIVES:
        context, _ = place.mortal(dies_at)
        try:
            with context as target:
                consume_setting_aside(messages, target, tmp_path / "mortal", size=4, rows=3)
            break
        except Killed:
            deaths += 1
        covers(place.address().look().position)
        left = place.state()
        moves += left != state
        dies_at = dies_at + 2 if left == state else 3 + (takeover if moves % 8 else 0)
        state = left
    assert 10 < deaths < LIVES
    with place.address().opened() as target:
        position = consume_setting_aside(messages, target, tmp_path / "end")
    at_end(place, position)


def test_a_restart_without_the_option_still_has_the_table_set_aside(
    begun: tuple[Place, MemoryTopic], tmp_path: Path
) -> None:
    """Without what is stored, its later rows would be taken, and would stop this run."""
    place, messages = begun
    with place.address().opened() as target:
        half = consume_setting_aside(messages, target, tmp_path / "first", until=FAILS, size=4, rows=3)
    assert [one.table for one in half.set_aside] == [BAD]
    with place.address().opened() as target:
        position = consume_into(messages, Applier(target, tmp_path / "own"), tmp_path / "s2", rows=3)
    at_end(place, position)
    assert place.address().look().position == position


def test_a_table_that_may_be_spread_is_set_aside_if_one_lane_had_it(
    mariadb: MySqlServer, tmp_path: Path
) -> None:
    """Other lanes have committed the step, but none of its rows."""
    place, events = AtMariaDb(mariadb, tmp_path), history(silently=False)
    begin(place, events, tmp_path)
    messages, spreading = topic(events, partitions=2), replace(place.address(), spreads=True)
    with spreading.opened() as target:
        consume_into(messages, Applier(target, tmp_path / "own"), tmp_path / "s2", until=FAILS - 1)
        narrow(mariadb)
        half = consume_setting_aside(messages, target, tmp_path / "first", until=FAILS)
        assert [one.table for one in half.set_aside] == [BAD]
        position = consume_setting_aside(messages, target, tmp_path / "rest")
    at_end(place, position)


def test_without_the_option_the_first_such_table_stops_all(
    begun: tuple[Place, MemoryTopic], tmp_path: Path
) -> None:
    place, messages = begun
    with place.address().opened() as target, pytest.raises(Fatal):
        consume_into(messages, Applier(target, tmp_path / "own"), tmp_path / "s2", rows=3)
    assert BAD in place.seen()


def test_no_table_is_set_aside_because_the_whole_target_refuses(tmp_path: Path) -> None:
    applier = applier_of(tmp_path, sets_aside=True)
    with pytest.raises(TargetFailed), applier.set_aside.blaming([(SCHEMA, BAD)]):
        raise TargetFailed("the disk is full")
    with pytest.raises(TableFailed) as failed, applier.set_aside.blaming([(SCHEMA, BAD)]):
        raise Fatal("a column does not fit", where="w", why="y", fix="f")
    assert failed.value.render() == "a column does not fit\n  where: w\n  why:   y\n  to do: f"
    applier.target.close()


# --- the position


ENTRY = SetAside(SCHEMA, BAD, 130, "its column does not fit")
POSITION = Position(130, "t", "open-protocol", "transaction", {0: PartitionPosition(5, 130, 130)})


def test_a_position_keeps_its_tables_in_a_form_that_is_refused_before() -> None:
    text = POSITION.without_tables([ENTRY]).to_json()
    assert Position.from_json(text) == replace(POSITION, set_aside=(ENTRY,))
    assert '"format":4' in text
    assert '"format":1' in POSITION.to_json(), "earlier releases read a position without such tables"
    later = replace(ENTRY, ts=200)
    assert POSITION.without_tables([ENTRY]).without_tables([later]).set_aside == (ENTRY,)


# --- DDL


def aside(*tables: str) -> SetAsideTables:
    made = SetAsideTables()
    made.know(SetAside(SCHEMA, table, 130, "why") for table in tables)
    return made


def text(query: str, table: str = "") -> Chosen:
    return Chosen(None, DdlMessage(300, query, 0, SCHEMA, table, None, 0), (query,))


def of(event: DdlEvent) -> Chosen:
    reported = message(event)
    return Chosen(event, reported, (reported.query,))


HELD = [(SCHEMA, NEAR), (SCHEMA, BAD), ("other", "t")]


def test_a_ddl_of_other_tables_is_left_as_it_is() -> None:
    tables, chosen = aside(BAD), text(f"alter table {NEAR} add column c int", NEAR)
    assert tables.left(chosen, HELD, by_text=True) is chosen
    assert [one.table for one in tables.entries] == [BAD]


@pytest.mark.parametrize(
    ("chosen", "more"),
    [
        (text(f"drop table {BAD}", BAD), []),
        (text(f"alter table {BAD.upper()} add column c int", BAD.upper()), []),
        (text(f"rename table {NEAR} to x, {BAD} to {NEAR}", NEAR), [NEAR, "x"]),
        (text(f"create table copy like {BAD}", "copy"), ["copy"]),
        (text(f"alter table {NEAR} exchange partition p0 with table {BAD}", NEAR), [NEAR]),
        (
            text(f"alter table {BAD} exchange partition p0 with table `{NEAR}`", BAD),
            [NEAR],
        ),
        (of(Table(83, BAD).rename(300, "worse")), ["worse"]),
        (of(Table(84, "fine").rename(300, BAD)), ["fine"]),
        (of(Table(93, BAD).created(300)), []),
    ],
    ids=[
        "drop",
        "other case",
        "swap",
        "like",
        "exchanged",
        "exchanges",
        "renamed",
        "takes its name",
        "created again",
    ],
)
def test_a_ddl_that_names_a_set_aside_table_takes_others_with_it(chosen: Chosen, more: list[str]) -> None:
    tables = aside(BAD)
    assert tables.concerns(chosen, by_text=True)
    assert tables.left(chosen, HELD, by_text=True) is None
    added = [one for one in tables.entries if one.table != BAD]
    assert sorted(one.table for one in added) == sorted(more)
    assert all(one.ts == 300 and BAD in one.why for one in added)


@pytest.mark.parametrize(
    ("query", "unclear"),
    [
        ("alter table a exchange partition p0 with table b", False),
        ("alter table a add column c int", False),
        ("alter table a add column c int; drop table b", True),
        ("flashback table a to b", True),
    ],
)
def test_no_table_is_blamed_for_a_text_that_may_name_others(query: str, unclear: bool) -> None:
    assert set_aside.may_name_others(text(query, "a")) is unclear
    assert not set_aside.may_name_others(of(Table(83, BAD).rename(300, "worse")))


def test_rows_of_a_set_aside_table_are_left_out_before_the_rules_see_them() -> None:
    """A rule may refuse them, for example because a column for deleted rows is taken."""
    selection, pieces = Selection(Rules(include=("s.*",))), {("s", BAD): [object()]}
    left: Any = selection.pieces(pieces, [], lambda name: name == ("s", BAD))  # type: ignore[dict-item]
    assert left == {}


def test_a_ddl_that_contradicts_a_partition_spec_is_its_tables_own_failure(tmp_path: Path) -> None:
    selection = Selection(Rules(partition_by=(f"{SCHEMA}.*:region",)))
    applier = applier_of(tmp_path, sets_aside=True, selection=selection)
    with pytest.raises(TableFailed) as failed:
        applier.ddl([message(Table(83, BAD).created(100))])
    assert failed.value.names == ((SCHEMA, BAD),)
    applier.target.close()


@pytest.mark.parametrize("header", [True, False])
def test_drop_database_drops_all_but_the_set_aside_tables(header: bool) -> None:
    chosen = text(f"drop database {SCHEMA}")
    if header:
        dropped = replace(Table(1, "t").created(300), action=DROP_SCHEMA, table="", old_table="", after=None)
        chosen = replace(chosen, event=dropped)
    left = aside(BAD).left(chosen, HELD, by_text=True)
    assert left is not None
    assert left.drops == ((SCHEMA, NEAR),)
    assert aside("none").left(chosen, HELD, by_text=True) is chosen


def test_there_is_a_bound_on_the_tables_that_are_set_aside() -> None:
    tables = aside(*(f"t{number}" for number in range(set_aside.TABLES_MAX)))
    with pytest.raises(Fatal, match="more than 100 tables"):
        tables.check_room(TableFailed(Fatal("it does not fit"), [(SCHEMA, BAD)]))
    with pytest.raises(Fatal, match="it does not fit"):
        tables.check_room(TableFailed(Fatal("it does not fit"), [(SCHEMA, "t1")]))


# --- what is shown, and what is refused


def test_the_status_the_live_line_and_a_metric_show_it() -> None:
    found = TargetStatus(replace(POSITION, set_aside=(ENTRY,)), "process 7")
    source = Topic("kafka://127.0.0.1:9092/t?protocol=open-protocol")
    shown = status_of(source, Observation("target", found, None, None, {0: 5}), 1_700_000_000_000)
    words = f"{SCHEMA}.{BAD}, which lacks all changes after ts 130: its column does not fit"
    assert f"set aside {words}" in summary(shown)
    assert not shown.fine, "somebody has to act"
    assert status_of(
        source, Observation("target", TargetStatus(POSITION, "process 7"), None, None, {0: 5}), 0
    ).fine
    progress = replace(QUIET, set_aside=2)
    assert "2 tables set aside" in live_line(progress, 0)
    gauges = Gauges(lambda: 0)
    gauges.update(progress)
    assert "tidegate_consumer_set_aside_tables 2.0" in gauges.render().decode().splitlines()


def test_it_is_refused_where_readers_see_whole_transactions(tmp_path: Path) -> None:
    server = MySqlServer("h", 3306, "u", "p")
    one, several = (MySqlAddress(server, "c", tmp_path, lanes) for lanes in (1, 2))
    with pytest.raises(InvalidInput, match="whole transactions"):
        check_set_aside(True, one)
    check_set_aside(False, one)
    check_set_aside(True, several)


# --- the way back


def test_a_table_that_was_loaded_again_is_taken_back(mariadb: MySqlServer, tmp_path: Path) -> None:
    events = history(silently=False)
    place, messages = AtMariaDb(mariadb, tmp_path), topic(events, partitions=2)
    begin(place, events, tmp_path)
    narrow(mariadb)
    with place.address().opened() as target:
        consume_setting_aside(messages, target, tmp_path / "own", until=150, rows=3)
    with place.address().opened() as target:
        target.recover()
        with pytest.raises(InvalidInput, match="not set aside"):
            target.take_back([(SCHEMA, NEAR)])
        target.take_back([(SCHEMA, BAD)])
    loaded = mariadb.connect()
    with loaded.cursor() as cursor:
        cursor.execute(f"ALTER TABLE `{SCHEMA}`.`{BAD}` MODIFY what VARCHAR(40) COLLATE utf8mb4_bin")
        cursor.execute(f"DELETE FROM `{SCHEMA}`.`{BAD}`")
        cursor.execute(f"INSERT INTO `{SCHEMA}`.`{BAD}` VALUES (1, 'x'), (2, 'x'), (3, 'y'), (4, '{LONG}')")
        cursor.execute(f"INSERT INTO `{SCHEMA}`.`{BAD}` VALUES (5, 'v')")
    bad = Table(83, BAD)
    rows = [bad.change(160, (5, "v"), None), bad.change(165, None, (6, "w")), Mark(170)]
    continued = topic([*(one for one in events if _ts(one) <= 150), *rows], partitions=2)
    address = replace(place.address(), adopting=True)
    with address.opened() as target:
        position = consume_into(continued, Applier(target, tmp_path / "own"), tmp_path / "s3", rows=3)
    loaded.close()
    assert position.set_aside == ()
    assert place.seen()[BAD] == [(1, "x"), (2, "x"), (3, "y"), (4, LONG), (6, "w")]


def _ts(event: Event) -> int:
    return event.finished_ts if isinstance(event, DdlEvent) else getattr(event, "commit_ts", 0) or event.ts


def test_files_cannot_take_a_table_back(tmp_path: Path) -> None:
    target: Target = applier_of(tmp_path).target
    with pytest.raises(InvalidInput, match="begin a new target"):
        target.take_back([(SCHEMA, BAD)])
    target.close()
