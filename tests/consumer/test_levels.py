"""Row and transaction level as `dispatcher.consistency` defines them, in a real Delta target."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumer.memory_topic import MemoryTopic, consume
from tests.consumer.one_table import KEY_FLAGS, Mark, OneTable, topic
from tests.consumer.topics import Event
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.snapshots import open_snapshot
from tidegate.workload.definitions import ColumnSpec

TABLE = OneTable.of([ColumnSpec("id", 8, 20, flag=KEY_FLAGS), ColumnSpec("v", 3, 11)])
OLDER = TABLE.change(110, None, (1, 1))
NEWER = TABLE.change(120, (1, 1), (1, 2))


def rows_of(target: Path, mode: Mode, *partitions: list[Event]) -> list[int]:
    """Return the rows after each partition's changes; the second is read twice as fast as the first."""
    options = topic([]).options
    messages = [
        (number, message)
        for number, changes in enumerate(partitions)
        for message in topic([TABLE.created(), Mark(105), *changes, Mark(140)]).partitions[0]
    ]
    consume(MemoryTopic(options, len(partitions), messages), target, mode=mode, size=1)
    found = open_snapshot(target).tables["shop.items"].to_arrow()["v"].to_pylist()
    return [int(value) for value in found]


@pytest.mark.parametrize("mode", Mode)
def test_a_row_whose_changes_are_on_one_partition_is_right_at_both_levels(tmp_path: Path, mode: Mode) -> None:
    assert rows_of(tmp_path / "target", mode, [], [OLDER, NEWER, Mark(125)]) == [2]


def test_a_row_changed_on_several_partitions_needs_transaction_level(tmp_path: Path) -> None:
    spread: tuple[list[Event], list[Event]] = [OLDER], [NEWER, Mark(125)]
    assert rows_of(tmp_path / "whole", Mode.TRANSACTION, *spread) == [2]
    assert rows_of(tmp_path / "row", Mode.ROW, *spread) == [1, 2], "this is what row level gives up"
