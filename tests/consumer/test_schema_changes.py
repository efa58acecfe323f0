"""Columns that change upstream: they stay at the target, or the consumer stops before the DDL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.at_delta import applier_of
from tests.consumer.each_target import SCHEMA, AtDelta, AtIceberg, AtMariaDb, Killed, Place
from tests.consumer.memory_topic import consume_by_offset_into, consume_into
from tests.consumer.one_table import topic
from tests.consumer.test_ddl_at_target import message
from tests.consumer.test_renames import Named
from tests.consumer.topics import Event, Mark, publish
from tidegate.cli.consumer_status import summary
from tidegate.codec.registry import reader_of
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.applying.target import Target
from tidegate.consumer.ddl import schema_changes
from tidegate.consumer.ddl.schema_changes import SchemaChanges
from tidegate.consumer.engine.position import Position
from tidegate.consumer.engine.row_clock import clock_of
from tidegate.consumer.job import run
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.tables import create_table
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.progress import Listener
from tidegate.consumer.running.status import look, received
from tidegate.consumer.selecting.rules import Rules
from tidegate.consumer.selecting.selection import Selection, check_same_rules
from tidegate.consumer.settings import Settings
from tidegate.consumer.snapshots import check_comparable, open_snapshot
from tidegate.consumer.table import definition
from tidegate.consumer.targets import DatabaseSettings
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.workload.ddl import Action
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, column_info, table_info

IGNORE, STOP, EVOLVE = SchemaChanges.IGNORE, SchemaChanges.STOP, SchemaChanges.EVOLVE
KEY = ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY)
PLACE = ColumnSpec("place", 15, 40, text=True)
COUNT = ColumnSpec("count", 3, 11)
MODIFY, ADD_INDEX = 12, 7


class Altered(Named):
    """t(id primary key, place, count), whose columns a test changes."""

    def __init__(self) -> None:
        super().__init__(81, SCHEMA, "t")
        self.ids = itertools.count(4)
        self.now = table_info(81, "t", [KEY, PLACE, COUNT], ["id"])

    @property
    def info(self) -> dict[str, Any]:
        return self.now

    def ddl(self, ts: int, action: int, after: dict[str, Any] | None, query: str = "") -> DdlEvent:
        before, self.now = self.now, after or self.now
        return replace(
            self.created(ts), job_id=ts, action=int(action), before=before, after=after, added_ids=(),
            query=query or f"ALTER TABLE `t` (action {action})",
        )  # fmt: skip

    def with_columns(self, columns: Iterable[dict[str, Any]]) -> dict[str, Any]:
        return self.now | {"cols": [one | {"offset": at} for at, one in enumerate(columns)]}

    def added(self, ts: int, spec: ColumnSpec) -> DdlEvent:
        made = column_info(next(self.ids), 0, spec)
        query = f"ALTER TABLE `t` ADD COLUMN `{spec.name}` INT"
        return self.ddl(ts, Action.ADD_COLUMN, self.with_columns([*self.now["cols"], made]), query)

    def dropped(self, ts: int, name: str) -> DdlEvent:
        left = [one for one in self.now["cols"] if one["name"]["O"] != name]
        return self.ddl(
            ts, Action.DROP_COLUMN, self.with_columns(left), f"ALTER TABLE `t` DROP COLUMN `{name}`"
        )

    def changed(self, ts: int, column: str, **what: Any) -> DdlEvent:
        """`what`: members of the column, and those of its type."""
        made = [
            one | {k: v for k, v in what.items() if k in one} | {
                "type": one["type"] | {k: v for k, v in what.items() if k in one["type"]}
            }
            if one["name"]["O"] == column else one
            for one in self.now["cols"]
        ]  # fmt: skip
        return self.ddl(ts, MODIFY, self.with_columns(made))

    def renamed(self, ts: int, old: str, new: str) -> DdlEvent:
        return self.changed(ts, old, name={"O": new, "L": new.lower()})


def history() -> tuple[list[Event], list[tuple[int, list[tuple[Any, ...]]]]]:
    """Return the events of t, and by ts the rows of a target that keeps its columns."""
    t = Altered()
    events: list[Event] = [
        t.created(1), t.change(2, None, (1, "a", 10)), t.change(3, None, (2, "b", 20)), Mark(9),
        t.added(11, ColumnSpec("note", 3, 11)), t.change(12, (1, "a", 10, None), (1, "a", 11, 7)),
        t.change(13, None, (3, "c", 30, 8)), Mark(19),
        t.dropped(21, "count"), t.change(22, (2, "b", None), (2, "d", None)), t.change(23, None, (4, "e", 9)),
        Mark(29),
        t.added(31, COUNT), t.change(32, (1, "a", 7, None), (1, "a", 7, 99)), Mark(39),
        t.renamed(41, "place", "spot"), t.change(42, (3, "c", 8, None), (3, "x", 8, 5)), Mark(49),
        t.ddl(51, Action.TRUNCATE_TABLE, t.now | {"id": 91}, "TRUNCATE TABLE `t`"),
        t.change(52, None, (9, "new", 1, 2)), Mark(59),
    ]  # fmt: skip
    rows: list[tuple[int, list[tuple[Any, ...]]]] = [
        (9, [(1, "a", 10), (2, "b", 20)]),
        (19, [(1, "a", 11), (2, "b", 20), (3, "c", 30)]),
        (29, [(1, "a", 11), (2, "d", None), (3, "c", 30), (4, "e", None)]),
        (39, [(1, "a", None), (2, "d", None), (3, "c", 30), (4, "e", None)]),
        (49, [(1, "a", None), (2, "d", None), (3, None, None), (4, "e", None)]),
        (59, [(9, None, None)]),
    ]
    return events, rows


EVENTS, ROWS = history()


@pytest.fixture(params=["delta", "iceberg", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "mariadb":
        return AtMariaDb(request.getfixturevalue("mariadb"), tmp_path)
    return {"delta": AtDelta, "iceberg": AtIceberg}[request.param](tmp_path / "target")


def consumed(
    target: Target, folder: Path, policy: SchemaChanges, until: int | None = None, *,
    events: list[Event] = EVENTS, header: bool = True, size: int = 40,
) -> Position:  # fmt: skip
    """One life of a consumer over the topic."""
    selection = Selection(Rules(schema_changes=policy))
    applier = Applier(target, folder / "own", selection=selection, schema_changes=policy)
    return consume_into(
        topic(events, header=header), applier, folder / "staging", until=until, size=size, rows=size
    )


@pytest.mark.parametrize("size", [1, 40])
def test_the_target_keeps_its_columns_while_rows_arrive(place: Place, tmp_path: Path, size: int) -> None:
    """Each chapter in a life of its own: what is ignored survives a restart."""
    for until, rows in ROWS:
        with place.address().opened() as target:
            consumed(target, tmp_path, IGNORE, until, size=size)
            (known,) = target.definitions.values()
            assert [column.name for column in known.columns] == ["id", "place", "count"]
        assert place.seen() == {"t": sorted(rows, key=repr)}


def test_a_consumer_that_dies_between_any_two_writes_ignores_the_same(place: Place, tmp_path: Path) -> None:
    deaths = 0
    for dies_at in itertools.count(2, 3):
        opened, _ = place.mortal(dies_at)
        try:
            with opened as target:
                consumed(target, tmp_path, IGNORE, size=2)
            break
        except Killed:
            deaths += 1
    assert deaths > 3
    assert place.seen() == {"t": sorted(ROWS[-1][1], key=repr)}


def test_everything_before_the_ddl_is_in_when_the_consumer_stops(place: Place, tmp_path: Path) -> None:
    """A restart under another policy begins with that DDL."""
    for _ in range(2):  # a second start stops at the same DDL
        with place.address().opened() as target, pytest.raises(Fatal, match="changes columns") as stop:
            consumed(target, tmp_path, STOP)
        assert stop.value.where == "table contract.t at ts 11: ALTER TABLE `t` ADD COLUMN `note` INT"
        assert stop.value.why == "column note is added"
        assert "--schema-changes evolve" in stop.value.fix
        assert place.seen() == {"t": [(1, "a", 10), (2, "b", 20)]}
    with place.address().opened() as target:
        held = target.recover()
        assert held is not None
        assert held.ts in (9, 10)
    with place.address().opened() as target:
        consumed(target, tmp_path, EVOLVE, 19)
    assert place.seen() == {"t": [(1, "a", 11, 7), (2, "b", 20, None), (3, "c", 30, 8)]}


def test_rows_between_a_snapshot_and_the_ddl_are_committed_at_a_stop(tmp_path: Path) -> None:
    t = Altered()
    events: list[Event] = [
        t.created(1), t.change(2, None, (1, "a", 10)), Mark(3), t.change(5, None, (2, "b", 20)),
        t.dropped(8, "count"), t.change(9, None, (3, "c")), Mark(12),
    ]  # fmt: skip
    applier = applier_of(tmp_path / "target", schema_changes=STOP)
    with pytest.raises(Fatal, match="changes columns"):
        consume_into(topic(events), applier, tmp_path / "staging", size=40)
    applier.target.close()
    snapshot = open_snapshot(tmp_path / "target")
    assert snapshot.ts == 7, "the moment before the DDL"
    (table,) = snapshot.tables.values()
    assert table.to_arrow().sort_by("id").column("id").to_pylist() == [1, 2]


def test_a_ddl_that_was_interrupted_is_not_ignored_afterwards(mariadb: MySqlServer, tmp_path: Path) -> None:
    """Whatever it did to the table, the definition and the table stay the same."""
    refused = 0
    for dies_at in itertools.count(2, 3):
        there = AtMariaDb(mariadb, tmp_path / str(dies_at))
        opened, _ = there.mortal(dies_at)
        try:
            with opened as target:
                consumed(target, tmp_path / str(dies_at), EVOLVE, 19)
            break
        except Killed:
            pass
        policy = IGNORE
        try:
            with there.address().opened() as target:
                consumed(target, tmp_path / str(dies_at), IGNORE, 19)
        except Fatal as error:
            refused, policy = refused + ("another --schema-changes" in error.why), EVOLVE
            with there.address().opened() as target:
                consumed(target, tmp_path / str(dies_at), EVOLVE, 19)
        with there.address().opened() as target:
            target.recover()
            (known,) = target.definitions.values()
        wide = [(1, "a", 11, 7), (2, "b", 20, None), (3, "c", 30, 8)]
        rows = wide if len(known.columns) == 4 else [row[:3] for row in wide]
        assert there.seen() == {"t": rows}
        assert policy is IGNORE or len(known.columns) == 4
    assert refused > 0


@pytest.mark.parametrize("policy", [IGNORE, STOP])
def test_a_text_that_changes_columns_stops_without_a_header(tmp_path: Path, policy: SchemaChanges) -> None:
    applier = applier_of(tmp_path / "target")
    with pytest.raises(Fatal) as stop:
        consumed(applier.target, tmp_path, policy, header=False)
    applier.target.close()
    assert "at ts 11" in stop.value.where
    assert ("--schema-changes ignore cannot ignore" in stop.value.what) is (policy is IGNORE)


@pytest.mark.parametrize(
    ("query", "changes"),
    [
        ("ALTER TABLE t ADD COLUMN a INT", True),
        ("ALTER TABLE t ADD INDEX i (a), DROP COLUMN b", True),
        ("ALTER TABLE t CHANGE COLUMN a b INT", True),
        ("ALTER TABLE t MODIFY a BIGINT", True),
        ("ALTER TABLE t RENAME COLUMN a TO b", True),
        ("ALTER TABLE t ADD INDEX i (a)", False),
        ("ALTER TABLE t ALTER COLUMN a SET DEFAULT 1", False),
        ("ALTER TABLE t RENAME TO u", False),
        ("ALTER TABLE t something new", True),
        ("TRUNCATE TABLE t", False),
        ("DROP TABLE t", False),
        ("CREATE TABLE t (a INT PRIMARY KEY)", False),
    ],
)
def test_whether_a_text_changes_columns_is_read_from_it(query: str, changes: bool) -> None:
    text = replace(message(Altered().created(1)), header=None, query=query)
    assert schema_changes.changed_in_text(text) is changes


def test_a_deleted_row_that_is_kept_has_null_in_a_column_that_is_gone(tmp_path: Path) -> None:
    """Under other rules, too: the columns that they add and leave out stay as they are."""
    t = Altered()
    events: list[Event] = [
        t.created(1), t.change(2, None, (1, "a", 10)), t.change(2, None, (2, "b", 20)), Mark(3),
        t.added(4, ColumnSpec("note", 3, 11)), t.dropped(5, "count"),
        t.change(6, (1, "a", 7), None), t.change(7, None, (3, "c", 9)), Mark(8),
    ]  # fmt: skip
    rules = Rules(drop_column=("*.*.place",), soft_delete=("*.*.gone_at",), schema_changes=IGNORE)
    applier = applier_of(tmp_path / "target", selection=Selection(rules), schema_changes=IGNORE)
    consume_into(topic(events), applier, tmp_path / "staging")
    applier.target.close()
    (table,) = open_snapshot(tmp_path / "target").tables.values()
    rows = table.to_arrow().sort_by("id").to_pylist()
    assert [{**row, "gone_at": row["gone_at"] is not None} for row in rows] == [
        {"gone_at": True, "id": 1, "count": None},
        {"gone_at": False, "id": 2, "count": 20},
        {"gone_at": False, "id": 3, "count": None},
    ]


def test_a_consumer_by_offset_stops_with_all_rows_before_the_ddl(tmp_path: Path) -> None:
    source, root = topic(EVENTS), tmp_path / "target"
    clock = clock_of(reader_of(source.options).losses(source.options))
    for policy in (STOP, STOP):
        applier = applier_of(root, trust_inserts=False, clock=clock, schema_changes=policy)
        with pytest.raises(Fatal, match="column note is added"):
            consume_by_offset_into(source, applier, tmp_path / "staging", size=40, rows=40)
        applier.target.close()
        assert AtDelta(root).seen() == {"t": [(1, "a", 10), (2, "b", 20)]}
    applier = applier_of(root, trust_inserts=False, clock=clock, schema_changes=IGNORE)
    consume_by_offset_into(source, applier, tmp_path / "staging", size=40, rows=40)
    applier.target.close()
    assert AtDelta(root).seen() == {"t": [(9, None, None)]}


# --- the whole consumer


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["delta", "iceberg", "mariadb"])
def test_a_stopped_consumer_restarts_and_ignores_from_there_on(
    request: pytest.FixtureRequest, kafka: str, new_topic: Callable[..., str], tmp_path: Path, kind: str
) -> None:
    name, root, uri, place = new_topic(1), tmp_path / "target", "", None
    publish(kafka, name, [(0, one) for one in topic(EVENTS).partitions[0]])
    match kind:
        case "delta":
            place, uri = AtDelta(root), f"delta://{root}"
        case "iceberg":
            place, uri = AtIceberg(root), f"iceberg://{root}"
        case _:
            server = request.getfixturevalue("mariadb")
            place, uri = AtMariaDb(server, tmp_path), f"mysql://root@127.0.0.1:{server.port}/"
    settings = Settings(
        f"kafka://{kafka}/{name}?protocol=open-protocol", uri, until=59, master="workers[1]",
        rules=Rules(schema_changes=STOP), database=DatabaseSettings("contract", tmp_path / "own"),
    )  # fmt: skip
    with pytest.raises(Fatal, match="a DDL changes columns"):
        run(settings)
    assert place.seen() == {"t": [(1, "a", 10), (2, "b", 20)]}
    said = received(place.address().folder)
    assert said is not None
    assert (said.schema_changes, said.trouble) == (
        "stop",
        "a DDL changes columns, and --schema-changes is stop",
    )
    notes: list[str] = []
    ignoring = replace(settings, rules=Rules(schema_changes=IGNORE))
    run(ignoring, listener=Listener(note=notes.append))
    assert place.seen() == {"t": [(9, None, None)]}
    assert [note for note in notes if "is ignored" in note] == [
        f"a change of columns is ignored: table contract.t: {what}"
        for what in ("note is added", "count is removed", "count is added", "place is renamed to spot")
    ]
    seen = look(Topic(settings.source), place.address(), 0)
    assert seen.schema_changes == "ignore"
    assert seen.ignored == ("contract.t: spot, note, count left out; count, place NULL",)
    assert "columns   --schema-changes ignore; contract.t: spot, note, count left out; count, place NULL" in (
        summary(seen)
    )
    with pytest.raises(InvalidInput, match="was filled under other rules"):
        run(replace(settings, rules=Rules()))


# --- what a DDL does to columns


def test_the_changes_of_columns_are_said_in_words() -> None:
    t = Altered()
    assert schema_changes.changed_columns(t.created(1)) == ()
    assert schema_changes.changed_columns(t.added(2, ColumnSpec("note", 3, 11))) == ("note is added",)
    assert schema_changes.changed_columns(t.renamed(3, "note", "memo")) == ("note is renamed to memo",)
    assert schema_changes.changed_columns(t.changed(4, "memo", Tp=8)) == ("memo has another type",)
    assert schema_changes.changed_columns(t.changed(5, "memo", Flag=NOT_NULL)) == ("memo has another type",)
    assert schema_changes.changed_columns(t.changed(6, "memo", default="5")) == ()
    assert schema_changes.changed_columns(t.dropped(7, "memo")) == ("memo is removed",)
    moved = t.ddl(8, MODIFY, t.with_columns([t.now["cols"][at] for at in (0, 2, 1)]))
    assert schema_changes.changed_columns(moved) == ("the order is another",)
    assert schema_changes.changed_columns(t.ddl(9, Action.TRUNCATE_TABLE, t.now | {"id": 99})) == ()
    assert schema_changes.changed_columns(t.ddl(10, Action.DROP_TABLE, None)) == ()


def kept(t: Altered, *events: DdlEvent, typed: bool = False) -> definition.Definition:
    """The table at a target after these events."""
    created, *others = events
    assert created.after is not None
    held = definition.from_info(SCHEMA, created.after, created.finished_ts)
    for event in others:
        followed = schema_changes.kept(event, message(event), held, typed=typed)
        assert followed.after is not None
        held = definition.from_info(SCHEMA, followed.after, event.finished_ts)
    return held


def test_a_column_that_was_dropped_stays_gone_under_its_name() -> None:
    t = Altered()
    held = kept(t, t.created(1), t.dropped(2, "count"), t.added(3, COUNT), t.dropped(4, "count"))
    assert [column.name for column in held.columns] == ["id", "place", "count"]
    assert held.ignored == {"count"}
    assert held.info is not None
    assert schema_changes.ignored_names(held.info) == ((), ("count",))
    assert definition.from_json(held.to_json()) == held


def test_a_rename_back_does_not_bring_a_column_back() -> None:
    t = Altered()
    held = kept(t, t.created(1), t.renamed(2, "count", "number"), t.renamed(3, "number", "count"))
    assert held.info is not None
    assert schema_changes.ignored_names(held.info) == (("count",), ("count",))


def test_names_that_change_places_are_not_mixed_up() -> None:
    """`count` takes the name of `place`: neither continues."""
    t = Altered()
    created, dropped = t.created(1), t.dropped(2, "place")
    both = replace(t.renamed(3, "count", "place"), before=dropped.before)
    held = kept(t, created, both)
    assert held.info is not None
    assert schema_changes.ignored_names(held.info) == (("place",), ("place", "count"))


def index(number: int, column: str, offset: int) -> dict[str, Any]:
    return {
        "id": number, "idx_name": {"O": f"by_{column}", "L": f"by_{column}"}, "tbl_name": {"O": "", "L": ""},
        "idx_cols": [{"name": {"O": column, "L": column}, "offset": offset, "length": -1}], "state": 5,
        "is_unique": False, "is_primary": False, "index_type": 1,
    }  # fmt: skip


def test_indexes_stay_with_their_columns_or_are_left_out_with_them() -> None:
    t = Altered()
    events = [t.created(1), t.dropped(2, "place"), t.added(3, ColumnSpec("note", 3, 11))]
    over = t.now | {"index_info": [index(1, "count", 1), index(2, "note", 2)]}
    held = kept(t, *events, t.ddl(4, ADD_INDEX, over), typed=True)
    assert create_table(held).splitlines()[1:-1] == [
        "  `id` BIGINT NOT NULL,",
        "  `place` VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,",
        "  `count` INT NULL,",
        "  PRIMARY KEY (`id`),",
        "  INDEX `by_count` (`count`)",
    ]


def test_a_table_that_is_not_there_is_made_with_all_its_columns() -> None:
    t = Altered()
    event = t.added(2, ColumnSpec("note", 3, 11))
    assert schema_changes.kept(event, message(event), None, typed=True) is event


def refusal(t: Altered, event: DdlEvent, *, typed: bool = False) -> str:
    assert event.before is not None
    held = definition.from_info(SCHEMA, event.before, 1)
    try:
        schema_changes.kept(event, message(event), held, typed=typed)
    except Fatal as error:
        return f"{error.where}: {error.why}"
    return ""


def test_a_type_that_the_old_one_holds_is_ignored_in_files_alone() -> None:
    longer = Altered()
    event = longer.changed(2, "place", Flen=80)
    assert refusal(longer, event) == ""
    assert "the target's is for the old one" in refusal(longer, event, typed=True)
    wider = Altered()
    assert "cannot hold it" in refusal(wider, wider.changed(2, "count", Tp=8))
    recast = Altered()
    assert "its rows were converted" in refusal(recast, recast.changed(2, "count", Tp=2, id=9))


def test_null_in_a_column_without_null_stops_at_a_database() -> None:
    t = Altered()
    t.changed(1, "count", Flag=NOT_NULL)
    loose = t.changed(2, "count", Flag=0)
    assert refusal(t, loose) == ""
    assert "may be NULL from now on" in refusal(t, loose, typed=True)
    t.changed(1, "count", Flag=NOT_NULL)
    dropped = t.dropped(2, "count")
    assert refusal(t, dropped) == ""
    assert "would get NULL from now on" in refusal(t, dropped, typed=True)


def test_a_stricter_column_stays_as_it_is_at_a_database() -> None:
    t = Altered()
    held = kept(t, t.created(1), t.changed(2, "count", Flag=NOT_NULL), typed=True)
    assert held.info is not None
    assert held.info["cols"][2]["type"]["Flag"] & NOT_NULL == 0


def test_a_change_of_the_key_stops() -> None:
    renamed, dropped = Altered(), Altered()
    assert "column ident is in the key" in refusal(renamed, renamed.renamed(2, "id", "ident"))
    keyless = dropped.dropped(2, "id")
    assert "column id is in the key" in refusal(dropped, keyless)


def test_a_recovered_table_stops() -> None:
    t = Altered()
    event = replace(t.created(2), action=25, before=t.now)
    assert "when it was dropped" in refusal(t, event)


# --- the rule


def test_only_ignore_is_kept_with_the_position() -> None:
    assert Rules(schema_changes=STOP).given == Rules().given == ()
    ignoring = Rules(include=("a.*",), schema_changes=IGNORE)
    assert ignoring.given == ("--include a.*", "--schema-changes ignore")
    held = Position(1, "t", "open-protocol", "transaction", {}, rules=("--include a.*",))
    check_same_rules(held, ignoring.given, "the target")
    kept_so = replace(held, rules=ignoring.given)
    check_same_rules(kept_so, ignoring.given, "the target")
    with pytest.raises(InvalidInput, match="under other rules"):
        check_same_rules(kept_so, Rules(include=("a.*",)).given, "the target")
    with pytest.raises(InvalidInput, match="under other rules"):
        check_same_rules(replace(held, rules=()), ignoring.given, "the target")


def test_a_target_that_keeps_its_columns_is_not_compared(tmp_path: Path) -> None:
    for name, policy in (("evolving", EVOLVE), ("keeping", IGNORE)):
        applier = applier_of(tmp_path / name, schema_changes=policy)
        position = consume_into(topic(EVENTS), applier, tmp_path / "staging")
        rules = Rules(schema_changes=policy).given
        applier.commit(replace(position, ts=position.ts + 1, rules=rules))
        applier.target.close()
    check_comparable(tmp_path / "evolving")
    with pytest.raises(InvalidInput, match="cannot be compared"):
        check_comparable(tmp_path / "keeping")


def test_the_columns_that_differ_are_named_and_do_not_change_again() -> None:
    t, other = Altered(), Altered()
    held = kept(t, t.created(1), t.added(2, ColumnSpec("note", 3, 11)), t.dropped(3, "count"))
    plain = kept(other, other.created(1))
    assert schema_changes.ignored_words([held, plain]) == ("contract.t: note left out; count NULL",)
    schema_changes.check_policy(IGNORE, [held], "the target")
    schema_changes.check_policy(STOP, [plain], "the target")
    with pytest.raises(InvalidInput, match="under other rules") as refused:
        schema_changes.check_policy(EVOLVE, [plain, held], "the target")
    assert "contract.t: note left out; count NULL" in refused.value.why
    many = schema_changes.ignored_words([held] * 22)
    assert many[-1] == "and 2 more tables"
    assert len(many) == schema_changes.SHOWN + 1
