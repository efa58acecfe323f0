"""The engine of topics without watermarks: scenarios as scripts, any producer and deaths, its bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.consumer import offset_model
from tests.consumer.offset_script import OffsetScript
from tests.scripts import run_script, scripts
from tidegate.codec.base import DdlMessage
from tidegate.consumer.engine.assembler import StagedRun
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.flow import Rows
from tidegate.consumer.engine.offset_flow import MAX_DONE, Group, OffsetFlow, _touches
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.running.stall_detector import STALL_S, StallDetector

SEEDS = 80


@pytest.mark.parametrize("ddls_on_first", [True, False])
def test_any_producer_and_any_deaths_end_with_the_newest_rows(ddls_on_first: bool) -> None:
    for seed in range(SEEDS):
        held, wanted, stuck = offset_model.run(seed, ddls_on_first=ddls_on_first)
        assert not stuck, f"seed {seed}"
        assert held == wanted, f"seed {seed}"


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "offset_engine"))
def test_the_engine_does_what_the_script_says(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, rewrite: bool
) -> None:
    run_script(path, OffsetScript(monkeypatch).run, rewrite=rewrite)


def fresh(partitions: int = 2, *, ddls_on: int | None = None) -> OffsetFlow:
    numbers = tuple(range(partitions))
    begin = {number: PartitionPosition(0, 0, 0) for number in numbers}
    position = Position(0, "t", "canal-json", "row", begin, by_offset=True)
    return OffsetFlow(position, [Group(numbers, ddls_on)], offset_model.Broker(partitions, True).sides)


def ddl(ts: int, offset: int) -> DdlMessage:
    return DdlMessage(ts, "truncate table t", None, "s", "t", None, offset)


def test_a_position_is_of_its_kind_and_remembers_so_many_ddls() -> None:
    flow = fresh(1)
    for number in range(MAX_DONE + 5):
        flow.take([Fetched(0, number + 1, ddls=(ddl(number + 1, number),))], {})
        while (step := flow.next_step(100)) is not None:
            if isinstance(step, Rows):
                flow.assembler.take(step.bounds)
    position = flow.position(3)
    assert len(position.ddls) == MAX_DONE
    assert Position.from_json(position.to_json()) == position
    ruled = replace(position, by_offset=False, rules=("--include a.*",))
    for one in (position, ruled):
        assert '"format":3' in one.to_json(), "an earlier release must not continue from it"
    assert Position.from_json(ruled.to_json()) == ruled
    flow.take([Fetched(0, 100, ddls=(ddl(2, 90),))], {})
    assert flow.ddls_waiting == 0, "older than the oldest of them"


def test_a_copy_that_is_missing_for_long_is_said() -> None:
    stall_detector = StallDetector("t", "canal-json", {0: 0, 1: 0}, None, 0.0, by_offset=True)
    stall_detector.lacks([1], 1.0)
    assert stall_detector.news(1.0 + STALL_S / 2) == []
    (sign,) = stall_detector.news(1.0 + STALL_S)
    assert "no copy on partition 1" in sign.what
    assert "partition-num" in sign.fix
    assert stall_detector.lasting is None
    stall_detector.lacks([], 100.0)
    assert stall_detector.news(200.0) == []
    assert stall_detector.present == {}


def test_an_exchange_known_by_its_text_concerns_both_tables() -> None:
    """A later row of the plain table must not be there before: it would move, too."""
    query = "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u"
    message = DdlMessage(7, query, None, "s", "t", None, 0)
    run = StagedRun(1, "s", "t", (), "", 0, 0, 1, 8, 8, 0)
    concerned = [table for table in ("t", "u", "v") if _touches(message, replace(run, table=table))]
    assert concerned == ["t", "u"]
