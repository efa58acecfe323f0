"""Topics without watermarks: DDLs stand between their rows, restarts lose nothing, positions say the kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.consumer import offset_model
from tests.consumer.test_assembler import segment
from tidegate.codec.base import DdlMessage
from tidegate.consumer import offset_flow
from tidegate.consumer.assembler import Assembler
from tidegate.consumer.flow import Ddls, Rows
from tidegate.consumer.offset_flow import MAX_DONE, Group, OffsetFlow
from tidegate.consumer.position import PartitionPosition, Position
from tidegate.consumer.source import Fetched
from tidegate.consumer.stall_detector import STALL_S, StallDetector

SEEDS = 80


@pytest.mark.parametrize("ddls_on_first", [True, False])
def test_any_producer_and_any_deaths_end_with_the_newest_rows(ddls_on_first: bool) -> None:
    for seed in range(SEEDS):
        held, wanted, stuck = offset_model.run(seed, ddls_on_first=ddls_on_first)
        assert not stuck, f"seed {seed}"
        assert held == wanted, f"seed {seed}"


def fresh(partitions: int = 2, *, ddls_on: int | None = None) -> OffsetFlow:
    numbers = tuple(range(partitions))
    begin = {number: PartitionPosition(0, 0, 0) for number in numbers}
    position = Position(0, "t", "canal-json", "row", begin, by_offset=True)
    return OffsetFlow(position, [Group(numbers, ddls_on)], offset_model.Broker(partitions, True).sides)


def ddl(ts: int, offset: int) -> DdlMessage:
    return DdlMessage(ts, "truncate table t", None, "s", "t", None, offset)


def applied(flow: OffsetFlow) -> dict[int, int]:
    """Where each partition stands when all rows are applied that may be."""
    while isinstance(step := flow.next_step(1 << 30), Rows):
        flow.assembler.take(step.bounds)
    return {number: part.applied for number, part in flow.position(1).partitions.items()}


def test_rows_wait_until_the_ddl_partition_is_read_to_its_end_at_that_time() -> None:
    """A DDL that precedes the rows may be among its messages that are not read yet."""
    flow = fresh(ddls_on=0)
    flow.take([Fetched(1, 5, segments=(segment(1, 1, 5, 0),))], {0: 3, 1: 5})
    assert applied(flow) == {0: 0, 1: 0}, "a DDL before them may be among the three of partition 0"
    flow.take([Fetched(0, 3)], {0: 4, 1: 5})
    assert applied(flow) == {0: 3, 1: 0}, "those three were there before the rows were seen"
    flow.take([Fetched(0, 4)], {0: 4, 1: 5})
    assert applied(flow) == {0: 4, 1: 5}


def test_a_ddl_on_all_partitions_waits_for_its_copies_and_names_missing() -> None:
    """The partitions where a copy is missing are named."""
    flow = fresh()
    flow.take([Fetched(0, 9, segments=(segment(0, 1, 9, 0),), ddls=(ddl(7, 4),))], {})
    assert applied(flow) == {0: 4, 1: 0}
    assert flow.lacking() == [1]
    flow.take([Fetched(1, 3, ddls=(ddl(7, 2),))], {})
    assert flow.lacking() == []
    for _ in range(2):  # rows up to the second copy, then the DDL itself
        step = flow.next_step(100)
        if isinstance(step, Rows):
            flow.assembler.take(step.bounds)
    assert isinstance(step, Ddls)
    assert flow.snapshot(0) == 7, "the DDL is in it"
    assert applied(flow) == {0: 9, 1: 3}


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
        assert '"format":3' in one.to_json(), "an earlier release must not go on from it"
    assert Position.from_json(ruled.to_json()) == ruled
    flow.take([Fetched(0, 100, ddls=(ddl(2, 90),))], {})
    assert flow.ddls_waiting == 0, "older than the oldest of them"


def test_an_unnamed_state_is_named_once_and_above_the_last() -> None:
    flow = fresh(1)
    assert flow.snapshot(0) is None
    flow.take([Fetched(0, 5)], {})
    assert applied(flow) == {0: 5}
    assert flow.snapshot(41) == 42
    flow.named()
    assert flow.snapshot(42) is None


def test_where_changes_tell_no_commit_ts_snapshots_are_named_by_the_time() -> None:
    position = Position(0, "t", "avro", "row", {0: PartitionPosition(0, 0, 0)}, by_offset=True)
    flow = OffsetFlow(position, [Group((0,))], offset_model.Broker(1, True).sides, now_ts=lambda: 99)
    flow.take([Fetched(0, 5)], {})
    assert applied(flow) == {0: 5}
    assert (flow.snapshot(41), flow.snapshot(120)) == (99, 121)


def test_an_interrupted_write_is_read_to_its_end_however_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_flow, "MAX_WAITING_ROWS", 5)
    begin = {number: PartitionPosition(0, 0, 0) for number in (0, 1)}
    position = Position(0, "t", "avro", "row", begin, by_offset=True)
    flow = OffsetFlow(position, [Group((0, 1))], offset_model.Broker(2, True).sides, {0: 4, 1: 3})
    flow.take([Fetched(0, 9, segments=(segment(0, 1, 9, 0),))], {})
    assert flow.next_step(100) is None
    assert flow.wanted() == {1: 0}
    flow.take([Fetched(1, 3)], {})
    assert flow.next_step(100) == Rows({0: 4, 1: 3})


def test_no_change_above_a_snapshots_ts_is_in_it() -> None:
    flow = fresh()
    early, late = (replace(segment(0, at, at + 2, at - 1), commit_ts=ts) for at, ts in ((1, 70), (4, 90)))
    flow.take([Fetched(0, 6, segments=(early, late), ddls=(ddl(80, 4),))], {})
    assert applied(flow) == {0: 4, 1: 0}
    assert flow.snapshot(5) == 90, "the second segment is begun"
    flow = fresh()
    flow.take([Fetched(0, 6, segments=(early, late), ddls=(ddl(80, 3),))], {})
    assert applied(flow) == {0: 3, 1: 0}
    assert flow.snapshot(5) == 70


def test_a_step_takes_a_share_of_each_partition() -> None:
    held = Assembler({0: 1_000_000, 1: 0})
    held.add([segment(0, 1_000_000 + n, 1_000_000 + n, n, file=f"a{n}") for n in range(1, 9)])
    held.add([segment(1, n, n, n, file=f"b{n}") for n in range(1, 9)])
    assert held.cut_each({0: 1_000_008, 1: 8}, max_rows=40) == {0: 1_000_002, 1: 2}
    assert held.cut_each({0: 1_000_008, 1: 0}, max_rows=40) == {0: 1_000_004, 1: 0}
    assert held.cut_each({0: 1_000_008, 1: 8}, max_rows=1) == {0: 1_000_001, 1: 1}


def test_a_copy_that_is_missing_for_long_is_said() -> None:
    stall_detector = StallDetector("t", "canal-json", {0: 0, 1: 0}, None, 0.0, by_offset=True)
    stall_detector.lacks([1], 1.0)
    assert stall_detector.news(1.0 + STALL_S / 2) == []
    (sign,) = stall_detector.news(1.0 + STALL_S)
    assert "no copy on partition 1" in sign.what
    assert "partition-num" in sign.fix
    assert stall_detector.hopeless is None
    stall_detector.lacks([], 100.0)
    assert stall_detector.news(200.0) == []
    assert stall_detector.standing == {}
