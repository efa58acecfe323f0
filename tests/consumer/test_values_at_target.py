"""Values that a target's types cannot hold, in a real target: set aside, counted, never lost in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.consumer.memory_topic import consume
from tests.consumer.one_table import KEY_FLAGS, Mark, OneTable, topic
from tidegate.consumer.apply import QUARANTINE, Applier
from tidegate.consumer.snapshots import open_snapshot
from tidegate.sink import quarantine
from tidegate.workload.schema import ColumnSpec

ID = ColumnSpec("id", 8, 20, flag=KEY_FLAGS)
COLOURS = OneTable.of(
    [ID, ColumnSpec("e", 247, 1, text=True), ColumnSpec("s", 248, 3, text=True)],
    {"e": ["red", "green"], "s": ["a", "b"]},
)


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_a_row_with_an_element_that_its_enum_does_not_have_is_set_aside_and_the_rest_goes_on(
    tmp_path: Path, protocol: str
) -> None:
    table = COLOURS
    events = [
        table.created(),
        table.change(110, None, (1, 2, 3)),
        table.change(111, None, (2, 9, 1)),
        table.change(112, None, (3, 1, 4)),
        table.change(113, (1, 2, 3), (1, 3, 3)),
        table.change(114, None, (4, 0, 0)),
        Mark(120),
    ]
    target = tmp_path / "target"
    applier = Applier(target)
    consume(topic(events, protocol), target, applier=applier)
    rows = open_snapshot(target).tables["shop.items"].to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "e": "green", "s": "a,b"}, {"id": 4, "e": "", "s": ""}]
    held = quarantine.read(target / QUARANTINE)
    assert [(entry["where"]["table"], entry["row"]["n.id"]) for entry in held] == [
        ("shop.items", 2),
        ("shop.items", 3),
        ("shop.items", 1),
    ]
    assert held[0]["why"] == "column e: number 9, and it has 2 elements"
    assert held[0]["where"]["commit_ts"] == 111
    assert held[1]["why"] == "column s: number 4, and it has 2 elements"
    assert applier.stats.bad_rows == 3


def test_a_row_set_aside_is_written_once_however_often_it_is_read(tmp_path: Path) -> None:
    events = [COLOURS.created(), COLOURS.change(110, None, (1, 9, 0)), Mark(111)]
    first, again = tmp_path / "first", tmp_path / "again"
    consume(topic(events), first)
    # A run that was killed after it set the row aside, and before its first snapshot.
    (again / QUARANTINE).parent.mkdir(parents=True)
    shutil.copy(first / QUARANTINE, again / QUARANTINE)
    applier = Applier(again)
    consume(topic(events), again, applier=applier)
    assert len(quarantine.read(again / QUARANTINE)) == 1
    assert applier.stats.bad_rows == 0


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_a_truncate_behind_a_comment_empties_the_table_on_a_topic_without_the_header(
    tmp_path: Path, protocol: str
) -> None:
    table = COLOURS
    events = [
        table.change(110, None, (1, 1, 1)),
        table.ddl(112, 11, "/* nightly */ TRUNCATE TABLE items", table.info),
        table.change(115, None, (2, 1, 1)),
        Mark(120),
    ]
    target = tmp_path / "target"
    consume(topic(events, protocol, header=False), target)
    assert open_snapshot(target).tables["shop.items"].to_arrow()["id"].to_pylist() == [2]
