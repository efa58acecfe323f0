"""Atomicity at a database: the levels, how a table is spread over lanes, a consumer that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.consumer.bank import SCHEMA, SEATS, TABLES, Bank, Rows
from tests.consumer.bank_targets import AtMariaDb, Truth, lane_of, moment
from tests.consumer.memory_topic import MemoryTopic, consume_into
from tests.consumer.mysql.mortal import Killed, MortalServer
from tests.consumer.topics import messages_of
from tidegate.codec.registry import codec_options
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.applying.net_effect import Effect
from tidegate.consumer.applying.row_codes import codes_of, parts_of
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.mysql import atomicity
from tidegate.consumer.mysql.atomicity import Atomicity, can_spread, chosen, is_spread, spread
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.consumer.table.convert import TargetColumn
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.dispatcher.consistency import Visibility
from tidegate.errors import Fatal, InvalidInput

SEED, GROUPS, LANES = 7, 30, 4
TARGET = "mysql://me@host:1/"


@pytest.mark.parametrize(
    ("given", "lanes", "address", "expected"),
    [
        ("", None, "", (Atomicity.TABLE, 4)),
        ("", 1, "", (Atomicity.GLOBAL, 1)),
        ("", 7, "", (Atomicity.TABLE, 7)),
        ("global", None, "", (Atomicity.GLOBAL, 1)),
        ("global", 1, "?transaction-atomicity=global", (Atomicity.GLOBAL, 1)),
        ("", None, "?transaction-atomicity=global", (Atomicity.GLOBAL, 1)),
        ("table", 2, "", (Atomicity.TABLE, 2)),
        ("none", None, "", (Atomicity.NONE, 4)),
        ("", 2, "?transaction-atomicity=none", (Atomicity.NONE, 2)),
    ],
)
def test_the_level_and_the_lanes_follow_from_what_is_given(
    given: str, lanes: int | None, address: str, expected: tuple[Atomicity, int]
) -> None:
    assert chosen(given, lanes, f"{TARGET}{address}") == expected


@pytest.mark.parametrize(
    ("given", "lanes", "address", "where"),
    [
        ("global", 2, "", "--atomicity global, --lanes 2"),
        ("table", 1, "", "--atomicity table, --lanes 1"),
        ("none", 1, "", "--atomicity none, --lanes 1"),
        ("some", None, "", "--atomicity some"),
        ("", None, "?transaction-atomicity=all", "?transaction-atomicity= all"),
        ("table", None, "?transaction-atomicity=none", "--atomicity table, --target"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    given: str, lanes: int | None, address: str, where: str
) -> None:
    with pytest.raises(InvalidInput, match="this atomicity cannot be had") as refused:
        chosen(given, lanes, f"{TARGET}{address}")
    assert where in refused.value.where


def test_readers_are_said_to_see_what_the_level_allows(tmp_path: Path) -> None:
    def seen(level: str) -> Visibility:
        settings = DatabaseSettings("bank", tmp_path, atomicity=level)
        return address_of(TARGET, Upkeep(), settings).seen

    assert [seen(level) for level in Atomicity] == [
        Visibility.ROWS,
        Visibility.TABLES,
        Visibility.TRANSACTIONS,
    ]
    with pytest.raises(InvalidInput, match="--atomicity is for databases"):
        address_of(f"delta://{tmp_path}", Upkeep(), DatabaseSettings(atomicity="none"))


def table(*keys: TargetColumn) -> Definition:
    return Definition("shop", "hot", 0, 0, keys, tuple(column.name for column in keys), None)


def column(name: str, kind: int, type_: pa.DataType) -> TargetColumn:
    return TargetColumn(name, kind, type_)


def test_only_tables_whose_keys_compare_exactly_are_spread() -> None:
    number, other = column("a", 8, pa.int64()), column("b", 3, pa.int32())
    assert can_spread(table(number))
    assert can_spread(table(number, other))
    assert not can_spread(table())
    assert not can_spread(table(number, column("t", 15, pa.string())))
    assert not can_spread(table(column("e", 247, pa.uint64())))


def changes(*, descending: bool = False) -> TableChanges:
    """Half of the keys are put, the others deleted."""
    ids = list(range(1000, 0, -1) if descending else range(1, 1001))
    put, gone = ([one for one in ids if one % 2 == odd] for odd in (1, 0))
    upserts = pa.table({"a": pa.array(put, pa.int64()), "v": [f"v{one}" for one in put]})
    fresh = np.array([one % 3 == 0 for one in put])
    effect = Effect(upserts, pa.table({"a": pa.array(gone, pa.int64())}), fresh)
    return TableChanges(table(column("a", 8, pa.int64())), effect)


def test_each_key_is_in_one_lane_whatever_order_rows_come_in() -> None:
    found: dict[tuple[int, str], int] = {}
    for descending in (False, True):
        for lane, part in spread(changes(descending=descending), LANES).items():
            assert isinstance(part.effect, Effect)
            put, gone = part.effect.upserts["a"].to_pylist(), part.effect.deletes["a"].to_pylist()
            assert part.effect.fresh.tolist() == [one % 3 == 0 for one in put]
            for one in [(key, "put") for key in put] + [(key, "gone") for key in gone]:
                assert found.setdefault(one, lane) == lane
    assert len(found) == 1000
    assert {(key, "put" if key % 2 else "gone") for key in range(1, 1001)} == found.keys()
    # Another release completes a write that this one has begun, so the numbers must stay.
    assert [found[key, "put" if key % 2 else "gone"] for key in range(1, 13)] == FIRST


FIRST = [1, 2, 1, 2, 2, 0, 3, 2, 0, 2, 1, 3]
"""The lanes of the keys 1 to 12."""


class Spread(AtMariaDb):
    """A reader who knows which lane writes each row."""

    def faults(self, truth: Truth) -> tuple[list[str], bool]:
        """Rows that are not what their lanes have written, and whether a table was at two moments."""
        try:
            with self._reader.cursor() as cursor:
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                cursor.execute(
                    "SELECT batch, position, begun FROM tidegate.progress WHERE consumer=%s", (self._name,)
                )
                found = cursor.fetchone()
                if found is None or found[1] is None:
                    return [], False
                batch, position, begun = found
                cursor.execute("SELECT lane, batch FROM tidegate.lanes WHERE consumer=%s", (self._name,))
                through = {lane for lane, last in cursor.fetchall() if last == batch and begun is not None}
                cursor.execute(
                    "SELECT table_name FROM information_schema.tables WHERE table_schema=%s", (SCHEMA,)
                )
                there = {name for (name,) in cursor.fetchall()}
                held = {}
                for name in there:
                    cursor.execute(f"SELECT * FROM `{SCHEMA}`.`{name}`")
                    held[name] = {row[0]: row for row in cursor.fetchall()}
        finally:
            self._reader.rollback()
        before, after = truth.at(moment(position)), truth.at(moment(begun or position))
        wrong = [
            one for name in there for one in differing(name, held[name], before[name], after[name], through)
        ]
        changed = any(before[name] != after[name] for name in TABLES if name != SEATS)
        return wrong, changed and 0 < len(through) < LANES


def differing(name: str, rows: Rows, before: Rows, after: Rows, through: set[int]) -> Iterator[str]:
    for key in rows.keys() | before.keys() | after.keys():
        expected = (after if lane_of_row(name, key) in through else before).get(key)
        got = rows.get(key)
        # A DDL between the moments may have added a column.
        same = (got is None) is (expected is None)
        if not same or any(a != b for a, b in zip(got or (), expected or (), strict=False)):
            yield f"{name} {key}: {got} and not {expected}"


def lane_of_row(name: str, key: int) -> int:
    if name == SEATS:
        return lane_of(name, LANES)
    return int(parts_of(codes_of(pa.table({"id": pa.array([key], pa.int64())})), LANES)[0])


def bank_topic() -> tuple[MemoryTopic, int]:
    """The bank's changes, and the last ts."""
    options, bank = codec_options({"protocol": "open-protocol"}), Bank(SEED)
    events = [event for group in islice(bank.groups(), GROUPS) for event in group]
    return MemoryTopic(options, 2, messages_of(events, options, 2)), bank.ts


def test_a_step_is_spread_if_its_lanes_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another release completes a write that this one has begun, so the number must stay.
    assert atomicity.MANY == 10_000
    some = changes()
    assert isinstance(some.effect, Effect)
    assert not is_spread(some), "its DELETEs may name most rows of a table"
    new = Effect(some.effect.upserts, some.effect.deletes[:0], np.ones(len(some.effect.fresh), np.bool_))
    assert is_spread(replace(some, effect=new))
    removed = 500 + int((~some.effect.fresh).sum())
    for many, expected in ((removed, True), (removed + 1, False)):
        monkeypatch.setattr(atomicity, "MANY", many)
        assert is_spread(some) is expected


def test_whatever_dies_each_row_is_at_the_moment_of_its_lane(
    mariadb: MySqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seats, with two more unique indexes, stay in one lane. Lanes of the others wait for each other."""
    monkeypatch.setattr(atomicity, "MANY", 0)
    topic, last = bank_topic()
    reader, truth = Spread(mariadb, LANES, tmp_path / "own"), Truth(SEED)
    looks = halves = 0
    for life in count():
        server = MortalServer.at(mariadb, 40 + 17 * life)
        address = MySqlAddress(server, f"bank-{LANES}", tmp_path / "own", LANES, spreads=True)
        try:
            with address.opened() as target:
                staging, writer = tmp_path / f"staging-{life}", Applier(target, tmp_path / "own")
                end = consume_into(topic, writer, staging, until=last, size=20, rows=40)
                lanes = {name: target._rows.lanes_of((SCHEMA, name)) for name in TABLES}
            break
        except Killed:
            wrong, half = reader.faults(truth)
            assert wrong == []
            looks, halves = looks + 1, halves + half
    assert looks > 5
    assert halves, "nothing died between the lanes of a table"
    assert end.ts == last
    final = reader.look()
    assert final is not None
    assert truth.faults(final, columns=True) == []
    reader.close()
    assert lanes[SEATS] == [lane_of(SEATS, LANES)]
    assert max(map(len, lanes.values())) > 1, "the last step had rows of other tables in several lanes"


def test_a_write_that_was_cut_off_is_completed_as_it_was_begun(
    mariadb: MySqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another level rows would be twice, or missing. So nothing is written then."""
    monkeypatch.setattr(atomicity, "MANY", 0)
    topic, last = bank_topic()
    reader, truth, staging = Spread(mariadb, LANES, tmp_path / "own"), Truth(SEED), tmp_path / "staging"
    name, own, half = f"bank-{LANES}", tmp_path / "own", False
    for dies_at in count(150, 3):
        address = MySqlAddress(MortalServer.at(mariadb, dies_at), name, own, LANES, spreads=True)
        with pytest.raises(Killed), address.opened() as target:
            consume_into(topic, Applier(target, own), staging, until=last, size=20, rows=40)
        _, half = reader.faults(truth)
        if half:
            break
    for lanes, spreads in ((LANES, False), (1, False), (LANES + 1, True)):
        other = MySqlAddress(mariadb, name, own, lanes, spreads=spreads)
        with other.opened() as target, pytest.raises(Fatal, match="cannot be completed") as stopped:
            consume_into(topic, Applier(target, own), staging, until=last, size=20, rows=40)
        assert "start again as it was" in stopped.value.fix
        assert reader.faults(truth) == ([], True), "some of it was written"
    with MySqlAddress(mariadb, name, own, LANES, spreads=True).opened() as target:
        target.recover()
        assert target.begun is not None
        upto = target.begun.complete_ts
        consume_into(topic, Applier(target, own), staging, until=upto, size=20, rows=40)
    with MySqlAddress(mariadb, name, own, 1).opened() as target:
        assert consume_into(topic, Applier(target, own), staging, until=last, size=20, rows=40).ts == last
    final = reader.look()
    assert final is not None
    assert truth.faults(final, columns=True) == []
    reader.close()
