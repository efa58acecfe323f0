"""Deleted rows that stay, with the moment of their deletion: the same at every target."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.consumer.at_delta import applier_of
from tests.consumer.bank import unique_index
from tests.consumer.each_target import SCHEMA, AtDelta, AtIceberg, AtMariaDb, Killed, Place
from tests.consumer.memory_topic import MemoryTopic, consume_into
from tests.consumer.one_table import topic
from tests.consumer.test_ddl_at_target import message
from tests.consumer.test_renames import Named
from tests.consumer.topics import Event, Mark, messages_of
from tidegate.codec.base import WireColumn
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.applying.net_effect import Changes, net_effect
from tidegate.consumer.applying.target import Target
from tidegate.consumer.engine.assembler import StagedPiece, StagedRun
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.checks import check_soft_delete
from tidegate.consumer.selecting.rules import Rules
from tidegate.consumer.selecting.selection import Selection
from tidegate.consumer.snapshots import check_comparable, open_snapshot
from tidegate.consumer.table import definition, soft_delete
from tidegate.consumer.table.soft_delete import SoftDelete
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.ddl import DdlEvent
from tidegate.model.timestamp import compose
from tidegate.workload.ddl import Action
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, column_info, table_info

RULES = Rules(soft_delete=(f"{SCHEMA}.t*.gone_at",))
BEGIN_MS = 1_700_000_000_000


def at(second: int) -> int:
    """The ts of a moment."""
    return compose(BEGIN_MS + 1000 * second)


def moment(second: int) -> datetime:
    """Return the value of the column at that second."""
    return datetime.fromtimestamp(BEGIN_MS / 1000 + second, UTC).replace(tzinfo=None)


def base() -> dict[str, Any]:
    """t(id primary key, place unique)."""
    key = ColumnSpec("id", 8, 20, flag=NOT_NULL | PRIMARY)
    info = table_info(81, "t", [key, ColumnSpec("place", 15, 40, text=True)], ["id"])
    return info | {"index_info": [unique_index(1, "place", 1)]}


class OneName(Named):
    """t, whose definition a test may change."""

    def __init__(self, info: dict[str, Any]) -> None:
        super().__init__(info["id"], SCHEMA, "t")
        self.now = info

    @property
    def info(self) -> dict[str, Any]:
        return self.now

    def ddl(self, ts: int, action: Action, after: dict[str, Any] | None) -> DdlEvent:
        before, self.now = self.now, after or self.now
        return replace(
            self.created(ts), job_id=ts, action=int(action), before=before, after=after, added_ids=(),
            query=f"alter table t ({action.name})",
        )  # fmt: skip


def history() -> tuple[list[Event], list[list[tuple[Any, ...]]]]:
    """Return the events of t, with a mark after each chapter, and the rows that t has then."""
    t = OneName(base())
    wide = base() | {"max_col_id": 3}
    wide["cols"] = [*wide["cols"], column_info(3, 2, ColumnSpec("note", 3, 11))]
    emptied = wide | {"id": 91}
    chapters: list[tuple[list[Event], list[tuple[Any, ...]]]] = [
        (
            [
                t.created(at(0)),
                *(t.change(at(1), None, row) for row in ((1, "a"), (2, "b"), (3, "c"))),
                t.change(at(2), (2, "b"), None),
                t.change(at(3), None, (4, "b")),  # takes the unique value of a deleted row
            ],
            [(None, 1, "a"), (moment(2), 2, "b"), (None, 3, "c"), (None, 4, "b")],
        ),
        (
            [
                t.change(at(11), (3, "c"), None),
                t.change(at(12), None, (2, "d")),  # comes back
                t.change(at(13), None, (5, "e")),  # comes and goes within the step
                t.change(at(14), (5, "e"), None),
                t.change(at(15), (1, "a"), (6, "a")),  # gets another key
            ],
            [
                (moment(15), 1, "a"), (None, 2, "d"), (moment(11), 3, "c"), (None, 4, "b"),
                (moment(14), 5, "e"), (None, 6, "a"),
            ],
        ),
        (
            [
                t.ddl(at(21), Action.ADD_COLUMN, wide),
                t.change(at(22), (4, "b", None), (4, "b", 7)),
                t.change(at(23), (4, "b", 7), None),
                t.change(at(24), None, (3, "x", 8)),
            ],
            [
                (moment(15), 1, "a", None), (None, 2, "d", None), (None, 3, "x", 8), (moment(23), 4, "b", 7),
                (moment(14), 5, "e", None), (None, 6, "a", None),
            ],
        ),
        (
            [
                t.ddl(at(31), Action.TRUNCATE_TABLE, emptied),
                t.change(at(32), None, (1, "z", 9)),
                t.change(at(33), (1, "z", 9), None),
            ],
            [(moment(33), 1, "z", 9)],
        ),
    ]  # fmt: skip
    events: list[Event] = []
    for number, (chapter, _) in enumerate(chapters):
        events += [*chapter, Mark(at(10 * number + 9))]
    return events, [rows for _, rows in chapters]


EVENTS, ROWS = history()


def sorted_rows(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


@pytest.fixture(params=["delta", "iceberg", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "mariadb":
        return AtMariaDb(request.getfixturevalue("mariadb"), tmp_path)
    return {"delta": AtDelta, "iceberg": AtIceberg}[request.param](tmp_path / "target")


def consumed(target: Target, folder: Path, until: int | None = None, *, size: int = 40) -> None:
    """One life of a consumer over the topic, in as small pieces as `size` says."""
    held = target.recover()
    selection = Selection(RULES, held.sources if held is not None else ())
    applier = Applier(target, folder / "own", selection=selection)
    consume_into(topic(EVENTS), applier, folder / "staging", until=until, size=size, rows=size)


@pytest.mark.parametrize("size", [1, 40])
def test_a_deleted_row_stays_until_an_insert_brings_it_back(place: Place, tmp_path: Path, size: int) -> None:
    """Whatever a step takes in, the rows are the same; TRUNCATE removes the deleted ones with the others."""
    for number, rows in enumerate(ROWS):
        with place.address().opened() as target:
            consumed(target, tmp_path, at(10 * number + 9), size=size)
        assert place.seen() == {"t": sorted_rows(rows)}


def test_a_consumer_that_dies_between_any_two_writes_repeats_deletes(place: Place, tmp_path: Path) -> None:
    deaths = 0
    for dies_at in itertools.count(2, 3):
        opened, _ = place.mortal(dies_at)
        try:
            with opened as target:
                consumed(target, tmp_path, size=2)
            break
        except Killed:
            deaths += 1
        with place.address().opened() as target:
            held = target.recover()
        if held is not None and place.undoes and target.begun is None:
            number = max((n for n in range(len(ROWS)) if at(10 * n + 9) <= held.ts), default=None)
            if number is not None and held.ts == at(10 * number + 9):
                assert place.seen() == {"t": sorted_rows(ROWS[number])}
    assert deaths > 3
    assert place.seen() == {"t": sorted_rows(ROWS[-1])}


def test_drop_table_removes_deleted_rows(place: Place, tmp_path: Path) -> None:
    t = OneName(base())
    events: list[Event] = [
        t.created(at(0)), t.change(at(1), None, (1, "a")), t.change(at(2), (1, "a"), None), Mark(at(3)),
        t.ddl(at(4), Action.DROP_TABLE, None), Mark(at(5)), t.created(at(6)), Mark(at(7)),
    ]  # fmt: skip
    with place.address().opened() as target:
        applier = Applier(target, tmp_path / "own", selection=Selection(RULES))
        consume_into(topic(events), applier, tmp_path / "staging")
    assert place.seen() == {"t": []}


def test_guessed_tables_keep_their_deleted_rows_after_a_restart(tmp_path: Path) -> None:
    """Without headers the columns are learnt from rows; the definition that is kept says which one it is."""
    t = OneName(base() | {"index_info": []})
    events: list[Event] = [
        t.change(at(1), None, (1, "a")), t.change(at(1), None, (2, "b")), Mark(at(2)),
        t.change(at(3), (1, "a"), None), Mark(at(4)),
    ]  # fmt: skip
    for until in (at(2), at(4)):
        applier = applier_of(tmp_path / "target", selection=Selection(RULES))
        consume_into(topic(events, header=False), applier, tmp_path / "staging", until=until)
        applier.target.close()
    (table,) = open_snapshot(tmp_path / "target").tables.values()
    assert table.to_arrow().sort_by("id").to_pylist() == [
        {"gone_at": moment(3), "id": 1, "place": "a"},
        {"gone_at": None, "id": 2, "place": "b"},
    ]


# --- the effect alone


def changes(*events: tuple[int, int, tuple[Any, ...], tuple[Any, ...]]) -> Changes:
    """(commit ts, kind, old, new) over (gone, id), in the order of the topic."""
    ops = np.array([event[1] for event in events], np.uint8)
    schema = pa.schema([("gone", pa.int64()), ("id", pa.int64())])
    images = [
        pa.table([[event[side][column] for event in events] for column in (0, 1)], schema=schema)
        for side in (3, 2)
    ]
    zeros = np.zeros(len(events), np.int32)
    numbers = np.arange(len(events), dtype=np.int64)
    ts = np.array([event[0] for event in events], np.uint64)
    return Changes(ops, ts, zeros, numbers, zeros, *images)


NONE = (None, None)


@pytest.mark.parametrize(
    ("events", "rows"),
    [
        ([(5, DELETE, (5, 1), NONE)], [(5, 1)]),
        ([(5, INSERT, NONE, (None, 1)), (6, DELETE, (6, 1), NONE)], [(6, 1)]),
        ([(5, DELETE, (5, 1), NONE), (6, INSERT, NONE, (None, 1))], [(None, 1)]),
        ([(5, INSERT, NONE, (None, 1)), (5, DELETE, (5, 1), NONE)], [(None, 1)]),
        ([(5, UPDATE, (5, 1), (None, 2))], [(5, 1), (None, 2)]),
        ([(5, DELETE, (5, 1), NONE), (5, DELETE, (5, 1), NONE)], [(5, 1)]),
    ],
    ids=["deleted", "came and went", "back", "replaced in one transaction", "another key", "sent twice"],
)
def test_the_last_change_of_a_key_is_put_in(events: Any, rows: list[tuple[Any, ...]]) -> None:
    effect = net_effect(changes(*events), ["id"], keeps_deleted=True)
    assert sorted(effect.upserts.to_pylist(), key=lambda row: row["id"]) == [
        {"gone": gone, "id": key} for gone, key in rows
    ]
    assert effect.deletes.num_rows == 0
    assert not effect.only_inserts, "a row that is inserted may be there as a deleted one"


def test_only_the_index_of_the_key_stays_unique() -> None:
    found = soft_delete.in_info(base(), "gone_at")
    made = definition.from_info(SCHEMA, found, 1)
    assert [column.name for column in made.columns] == ["gone_at", "id", "place"]
    assert made.keys == ("id",)
    assert made.soft_delete == "gone_at"
    assert [index["is_unique"] for index in found["index_info"]] == [False]
    place = ColumnSpec("place", 15, 40, flag=NOT_NULL, text=True)
    keyed = table_info(81, "t", [ColumnSpec("id", 8, 20), place], ["id"]) | {"pk_is_handle": False}
    kept = soft_delete.in_info(keyed | {"index_info": [unique_index(1, "place", 1)]}, "gone_at")
    assert kept["index_info"][0]["is_unique"]
    assert definition.from_info(SCHEMA, kept, 1).keys == ("place",)


# --- what is refused


def refusal(event: DdlEvent, rules: Rules = RULES) -> str:
    chosen = Selection(rules).ddl(event, message(event), ())
    assert chosen is not None
    return chosen.refusal.what if chosen.refusal is not None else ""


def test_a_column_that_is_there_upstream_is_refused() -> None:
    t = OneName(base())
    assert refusal(t.created(at(0))) == ""
    taken = base()
    taken["cols"] = [*taken["cols"], column_info(3, 2, ColumnSpec("Gone_At", 3, 11))]
    assert refusal(t.ddl(at(1), Action.ADD_COLUMN, taken)) == "the column for deleted rows is there upstream"


def test_a_table_without_a_key_is_refused() -> None:
    bag = OneName(base() | {"pk_is_handle": False, "index_info": []})
    assert refusal(bag.created(at(0))) == "a table without a key cannot keep its deleted rows"


def test_a_rename_between_kept_and_removed_is_refused() -> None:
    t = OneName(base())
    event = replace(t.created(at(1)), before=base(), table="u", action=14)
    assert refusal(event) == "a table would keep its deleted rows in another way"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ((WireColumn("id", pa.int64(), 8, True), WireColumn("GONE_AT", pa.string(), 12, False)), "upstream"),
        ((WireColumn("id", pa.int64(), 8, False),), "without a key"),
    ],
)
def test_rows_that_cannot_be_kept_are_refused(
    tmp_path: Path, columns: tuple[WireColumn, ...], why: str
) -> None:
    segment = StagedRun(0, SCHEMA, "t", columns, str(tmp_path), 0, 1, 1, 5, 5, 0)
    with pytest.raises(Fatal, match=why):
        Selection(RULES).pieces({(SCHEMA, "t"): [StagedPiece(segment, 0, 9)]}, ())


def test_the_text_of_a_ddl_is_not_run_for_such_a_table() -> None:
    event = OneName(base()).created(at(0))
    text = replace(message(event), header=None, query="CREATE TABLE `t` (`id` INT PRIMARY KEY)")
    chosen = Selection(RULES).ddl(None, text, ())
    assert chosen is not None
    assert chosen.sql_refusal is not None
    assert "--soft-delete needs the DDL header" in chosen.sql_refusal.why
    other = Selection(Rules(soft_delete=("a.b.c",))).ddl(None, text, ())
    assert other is not None
    assert other.sql_refusal is None


def source(options: str) -> Topic:
    return Topic(f"kafka://127.0.0.1:1/t?protocol={options}")


def test_what_cannot_say_what_was_deleted_is_refused_at_the_start() -> None:
    rules, whole = ("a.b.c",), source("open-protocol")
    bare = source("avro&schema-registry=http%3A%2F%2F127.0.0.1%3A1")
    check_soft_delete(whole, rules, adopt=False)
    check_soft_delete(bare, (), adopt=True)
    with pytest.raises(InvalidInput, match="exclude each other"):
        check_soft_delete(whole, rules, adopt=True)
    with pytest.raises(InvalidInput, match="when a row was deleted"):
        check_soft_delete(bare, rules, adopt=False)
    keys_alone = source("open-protocol")
    keys_alone.options = replace(keys_alone.options, delete_only_output_handle_key_columns=True)
    with pytest.raises(InvalidInput, match="do not carry the rows"):
        check_soft_delete(keys_alone, rules, adopt=False)


@pytest.mark.parametrize("rule", ["a.b", "deleted_at", "!a.b.c", "a.b.*", ""])
def test_a_rule_names_tables_and_one_column(rule: str) -> None:
    with pytest.raises(InvalidInput, match="--soft-delete cannot be read"):
        SoftDelete.of(rule)


def test_the_first_rule_that_matches_says_the_column() -> None:
    rules = Rules(soft_delete=("shop.orders.`gone at`", "*.*.deleted_at")).soft_deletes()
    assert soft_delete.column_for("shop", "Orders", rules) == "gone at"
    assert soft_delete.column_for("shop", "items", rules) == "deleted_at"
    assert soft_delete.column_for("shop", "items", rules[:1]) == ""


def test_a_target_that_keeps_deleted_rows_is_not_compared(tmp_path: Path) -> None:
    for name, rules in (("kept", RULES), ("removed", Rules())):
        applier = applier_of(tmp_path / name, selection=Selection(rules))
        position = consume_into(topic(EVENTS), applier, tmp_path / "staging")
        applier.commit(replace(position, ts=position.ts + 1, rules=rules.given))
        applier.target.close()
    check_comparable(tmp_path / "removed")
    with pytest.raises(InvalidInput, match="cannot be compared") as refused:
        check_comparable(tmp_path / "kept")
    assert RULES.soft_delete[0] in refused.value.why


@pytest.mark.parametrize("header", [True, False], ids=["header", "guessed"])
def test_a_delete_with_its_key_alone_is_refused(tmp_path: Path, header: bool) -> None:
    t = OneName(base())
    events: list[Event] = [
        t.created(at(0)), t.change(at(1), None, (1, "a")), Mark(at(2)), t.change(at(3), (1, "a"), None),
        Mark(at(4)),
    ]  # fmt: skip
    full = topic(events)
    options = replace(full.options, delete_only_output_handle_key_columns=True)
    messages = [
        (partition, one if header else replace(one, headers=()))
        for partition, one in messages_of(events, options, 1)
    ]
    bare = MemoryTopic(full.options, 1, messages)
    applier = applier_of(tmp_path / "target", selection=Selection(RULES))
    with pytest.raises(Fatal, match="does not carry the row"):
        consume_into(bare, applier, tmp_path / "staging")
    applier.target.close()
