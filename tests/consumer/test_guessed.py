"""Tables of topics without our header: what is learnt from rows, and that nothing learnt is lost again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.consumer.at_delta import applier_of
from tidegate.codec.base import Decoded, DecodedTable, WireColumn
from tidegate.consumer.engine.assembler import StagedPiece
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.reading.staging import stage
from tidegate.consumer.table.definition import from_json, grown, guess
from tidegate.errors import Fatal
from tidegate.model.cells import DELETE, INSERT

NAME = ("s", "t")
ID = WireColumn("id", pa.int64(), 8, key=True)
INT = WireColumn("v", pa.int64(), 3, key=False)
TINY = WireColumn("v", pa.int64(), 1, key=False)
BIG = WireColumn("v", pa.uint64(), 8, key=False)
TEXT = WireColumn("v", pa.string(), 15, key=False)
DOUBLE = WireColumn("v", pa.float64(), 5, key=False)
DAY = WireColumn("v", pa.string(), 10, key=False)
MOMENT = WireColumn("v", pa.string(), 12, key=False)
STAMP = WireColumn("v", pa.string(), 7, key=False)
ENUM = WireColumn("v", pa.uint64(), 247, key=False)
KEY_DAY = replace(DAY, key=True)
KEY_MOMENT = replace(MOMENT, key=True)
KEY_TEXT = replace(TEXT, key=True)


def position_at(ts: int) -> Position:
    return Position(ts, "t", "open-protocol", "transaction", {0: PartitionPosition(0, ts, ts)})


class Target:
    """A target that rows are applied to by hand, without any DDL."""

    def __init__(self, root: Path) -> None:
        self.root, self.numbers = root, count()
        self.open()

    def open(self) -> None:
        self.applier = applier_of(self.root / "lake")
        self.delta = self.applier.target
        self.delta.recover()

    def restart(self) -> None:
        self.delta.close()
        self.open()

    def rows(self, ts: int, columns: tuple[WireColumn, ...], rows: list[list[Any]], op: int = INSERT) -> None:
        values = zip(*rows, strict=True)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(v, c.type) for v, c in zip(values, columns, strict=True)], [c.name for c in columns]
        )
        size = len(rows)
        table = DecodedTable(
            *NAME,
            None,
            columns,
            np.full(size, op, np.uint8),
            np.full(size, ts, np.uint64),
            np.arange(size, dtype=np.int64),
            np.zeros(size, np.int32),
            batch if op == INSERT else None,
            batch if op == DELETE else None,
        )
        file = self.root / f"{next(self.numbers)}.arrow"
        segments = stage(Decoded(rows=[table]), 0, file)
        self.applier.rows({NAME: [StagedPiece(segment, 0, ts) for segment in segments]}, position_at(ts))

    def publish(self, ts: int) -> None:
        self.applier.commit(position_at(ts))

    def held(self) -> list[dict[str, Any]]:
        table = self.delta.tables[NAME]
        return sorted(self.delta.lake.read(table.path).to_pylist(), key=lambda row: row["id"])


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path)
    yield made
    made.delta.close()


def test_a_delete_with_the_key_alone_takes_no_column_away(target: Target) -> None:
    """Its ts is greater than that of the definition with all columns, which was learnt later."""
    target.rows(50, (ID,), [[9]], DELETE)
    target.rows(40, (ID, TEXT), [[1, "a"], [2, "b"]])
    target.publish(60)
    target.restart()
    target.rows(70, (ID,), [[2]], DELETE)
    target.publish(70)
    target.restart()
    target.rows(80, (ID, TEXT), [[3, "c"]])
    assert target.held() == [{"id": 1, "v": "a"}, {"id": 3, "v": "c"}]


def test_columns_learnt_after_the_newest_snapshot_are_dropped_with_rows(target: Target) -> None:
    target.rows(40, (ID,), [[1]])
    target.publish(60)
    target.rows(55, (ID, TEXT), [[2, "b"]])  # killed before the next snapshot
    target.restart()
    assert target.held() == [{"id": 1}]
    target.rows(65, (ID, TEXT), [[2, "b"]])
    target.publish(70)
    target.restart()
    assert target.held() == [{"id": 1, "v": None}, {"id": 2, "v": "b"}]


def test_a_definition_that_is_not_that_of_the_rows_stops_the_start(target: Target) -> None:
    target.rows(40, (ID, TEXT), [[1, "a"]])
    target.publish(60)
    (file,) = (target.root / "lake/_tidegate/definitions").iterdir()
    file.write_bytes(guess(*NAME, (ID,), 40).to_json())
    with pytest.raises(Fatal, match="not that of its rows"):
        target.restart()


@pytest.mark.parametrize(
    ("before", "old", "now", "new", "expected"),
    [
        (TINY, 5, INT, 70_000, [5, 70_000]),
        (INT, 70_000, TINY, 5, [70_000, 5]),
        (INT, -7, TEXT, "x", ["-7", "x"]),
        (TEXT, "x", INT, 7, ["x", "7"]),
        (DOUBLE, 1e21, TEXT, "x", ["1000000000000000000000", "x"]),
        (MOMENT, "2024-02-29 01:02:03", TEXT, "x", ["2024-02-29 01:02:03", "x"]),
        (DAY, "2024-02-29", INT, 7, ["2024-02-29", "7"]),
    ],
)
def test_a_column_whose_type_changes_gets_one_that_holds_both(
    target: Target, before: WireColumn, old: Any, now: WireColumn, new: Any, expected: list[Any]
) -> None:
    target.rows(40, (ID, before), [[1, old]])
    target.rows(50, (ID, now), [[2, new]])
    target.publish(60)
    target.restart()
    assert [row["v"] for row in target.held()] == expected
    notes = target.delta.tables[NAME].definition.guessed
    assert any("older rows keep their values" in note for note in notes) == (
        before in (TINY, DOUBLE, MOMENT, DAY) or now is TEXT
    )


def test_integers_widen_to_unsigned_ones_and_days_to_moments() -> None:
    wide = grown(guess(*NAME, (ID, INT), 1), (ID, BIG), 2)
    assert wide is not None
    assert [str(column.type) for column in wide.columns] == ["int64", "decimal128(20, 0)"]
    days = grown(guess(*NAME, (ID, DAY), 1), (ID, MOMENT), 2)
    assert days is not None
    assert str(days.columns[1].type) == "timestamp[us]"
    assert from_json(days.to_json()) == days
    assert grown(days, (ID, DAY), 3) is None


@pytest.mark.parametrize(("before", "now"), [(ENUM, TEXT), (INT, ENUM), (STAMP, MOMENT)])
def test_a_change_of_type_that_no_column_holds_is_reported(before: WireColumn, now: WireColumn) -> None:
    with pytest.raises(Fatal, match="type changed") as reported:
        grown(guess(*NAME, (ID, before), 1), (ID, now), 2)
    assert "column v" in reported.value.where


def test_a_day_of_a_key_that_becomes_a_moment_is_found_as_one(target: Target) -> None:
    target.rows(40, (ID, KEY_DAY), [[1, "2024-02-29"], [2, "0000-00-00"], [3, "2021-02-31"]])
    target.rows(50, (ID, KEY_MOMENT), [[1, "2024-02-29 00:00:00"], [2, "0000-00-00 00:00:00"]], DELETE)
    target.publish(60)
    target.restart()
    target.rows(70, (ID, KEY_MOMENT), [[4, "0000-00-00 00:00:00.5"]])
    assert target.held() == [
        {"id": 3, "v": "2021-02-31 00:00:00.000000"},
        {"id": 4, "v": "0000-00-00 00:00:00.500000"},
    ]


def test_moments_are_text_from_when_a_key_is_known_to_hold_them() -> None:
    """Whatever a message says later of what is in the key."""
    bag = guess(*NAME, (replace(ID, key=False), STAMP), 1)
    keyed = grown(bag, (ID, replace(STAMP, key=True)), 2)
    assert keyed is not None
    assert [(column.mysql_type, str(column.type)) for column in keyed.columns] == [
        (8, "int64"),
        (7, "string"),
    ]
    assert from_json(keyed.to_json()) == keyed
    assert grown(keyed, (ID, STAMP), 3) is None
    assert grown(guess(*NAME, (ID, STAMP), 1), (ID, replace(STAMP, key=True)), 2) is None


@pytest.mark.parametrize(("before", "now"), [(KEY_MOMENT, KEY_TEXT), (KEY_TEXT, KEY_DAY)])
def test_a_moment_of_a_key_does_not_become_any_text(before: WireColumn, now: WireColumn) -> None:
    with pytest.raises(Fatal, match="type changed"):
        grown(guess(*NAME, (ID, before), 1), (ID, now), 2)
