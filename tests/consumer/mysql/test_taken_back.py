"""When a table that is set aside may be taken back: never in the middle of a write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidegate.consumer.engine.position import Position, SetAside
from tidegate.consumer.mysql import set_aside
from tidegate.consumer.mysql.ddl_note import progress_text
from tidegate.consumer.mysql.progress import TargetRecord
from tidegate.errors import InvalidInput

NAME = ("shop", "orders")
POSITION = Position(7, "t", "open-protocol", "transaction", {}, set_aside=(SetAside(*NAME, 5, "broken"),))
HELD = TargetRecord(POSITION.to_json(), None, None, {})


class Noting:
    """Used as the target's record; notes what would be stored."""

    def __init__(self) -> None:
        self.hold, self.amended = "server", list[tuple[Any, ...]]()

    def amend(self, *stored: Any, forgotten: Any) -> None:
        self.amended.append((*stored, forgotten))


def take_back(held: TargetRecord) -> list[tuple[Any, ...]]:
    progress: Any = Noting()
    set_aside.take_back(progress, held, [NAME])
    found: list[tuple[Any, ...]] = progress.amended
    return found


def test_a_table_is_taken_back_between_writes() -> None:
    ((position, begun, ddl, forgotten),) = take_back(HELD)
    assert Position.from_json(position) == replace(POSITION, set_aside=())
    assert (begun, ddl, forgotten) == (None, "", [NAME])


@pytest.mark.parametrize(
    "held",
    [
        replace(HELD, begun=replace(POSITION, ts=9).to_json()),
        replace(HELD, ddl=progress_text([], {"name": "a", "query": "ALTER ...", "at": 0, "evidence": []})),
    ],
    ids=["rows", "DDL"],
)
def test_no_table_is_taken_back_while_a_write_is_begun(held: TargetRecord) -> None:
    """Some lanes may have committed rows of it and others not; without the note, nobody would write those."""
    with pytest.raises(InvalidInput, match="in the middle of a write"):
        take_back(held)


def test_a_table_that_is_not_set_aside_is_named() -> None:
    with pytest.raises(InvalidInput, match="a table is not set aside"):
        take_back(replace(HELD, position=replace(POSITION, set_aside=()).to_json()))
