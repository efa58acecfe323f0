"""The state machine: DDLs wait, restarts neither lose nor repeat."""

from __future__ import annotations

from tests.consumer.test_assembler import segment
from tidegate.codec.base import DdlMessage
from tidegate.consumer.flow import Ddls, Flow, Rows
from tidegate.consumer.position import PartitionPosition, Position
from tidegate.consumer.source import Fetched
from tidegate.consumer.watermark import Mode

FRESH = Position(0, "t", "open-protocol", "transaction", {p: PartitionPosition(0, 0, 0) for p in (0, 1)})


def ddl(ts: int, offset: int) -> DdlMessage:
    return DdlMessage(ts, "create table s.t(a int)", 3, "s", "t", None, offset)


def test_a_ddl_runs_once_after_all_rows_up_to_it_and_before_later_ones() -> None:
    flow = Flow(FRESH, Mode.TRANSACTION, (), None)
    early, late = segment(0, 3, 5, 0), segment(0, 7, 9, 3)
    flow.take([Fetched(0, 10, segments=(early, late), resolved=((6, 2), (9, 4)), ddls=(ddl(6, 1),))])
    assert flow.next_step(100) is None, "partition 1 has not spoken"
    flow.take([Fetched(1, 10, resolved=((9, 4),), ddls=(ddl(6, 1),))])
    step = flow.next_step(100)
    assert step == Rows({0: 6, 1: 6})
    flow.assembler.take(step.bounds)
    assert flow.ddl_waits_at(6)
    step = flow.next_step(100)
    assert isinstance(step, Ddls)
    assert len(step.messages) == 1, "the copies of the broadcast are one DDL"
    assert flow.next_step(100) == Rows({0: 9, 1: 9})


def test_a_restart_reads_marks_and_rows_that_were_not_applied_again() -> None:
    flow = Flow(FRESH, Mode.TRANSACTION, (), None)
    flow.take(
        [Fetched(0, 10, segments=(segment(0, 3, 5, 0), segment(0, 7, 9, 3)), resolved=((6, 2), (9, 4)))]
    )
    flow.take([Fetched(1, 10, resolved=((6, 5),))])
    step = flow.next_step(100)
    assert isinstance(step, Rows)
    flow.assembler.take(step.bounds)
    position = flow.position(6)
    assert position.partitions[0] == PartitionPosition(offset=3, applied=6, watermark=6)
    assert position.partitions[1] == PartitionPosition(offset=10, applied=6, watermark=6)
    assert Position.from_json(position.to_json()) == position
    again = Flow(position, Mode.TRANSACTION, (), None)
    again.take([Fetched(1, 12, resolved=((9, 11),))])
    assert again.next_step(100) is None, "the mark at 9 of partition 0 must be read again with its row"


def test_a_mark_before_the_restart_is_kept_when_no_row_waits() -> None:
    flow = Flow(FRESH, Mode.TRANSACTION, (), None)
    flow.take([Fetched(0, 10, resolved=((9, 4),)), Fetched(1, 10, resolved=((6, 5),))])
    step = flow.next_step(100)
    assert isinstance(step, Rows)
    flow.assembler.take(step.bounds)
    position = flow.position(6)
    assert position.partitions[0] == PartitionPosition(offset=10, applied=6, watermark=9)
    # Nothing new in partition 0: the mark that is not read again must outlive any number of restarts.
    for ts in (7, 8):
        flow = Flow(position, Mode.TRANSACTION, (), None)
        flow.take([Fetched(1, 10 + ts, resolved=((ts, 3 + ts),))])
        step = flow.next_step(100)
        assert step == Rows({0: ts, 1: ts})
        flow.assembler.take(step.bounds)
        position = flow.position(ts)
        assert position.partitions[0] == PartitionPosition(offset=10, applied=ts, watermark=9)


def test_a_waiting_ddl_is_read_again_after_a_restart() -> None:
    flow = Flow(FRESH, Mode.TRANSACTION, (), None)
    flow.take(
        [Fetched(0, 10, resolved=((4, 2), (9, 4)), ddls=(ddl(6, 3),)), Fetched(1, 10, resolved=((4, 5),))]
    )
    step = flow.next_step(100)
    assert isinstance(step, Rows)
    flow.assembler.take(step.bounds)
    assert flow.position(4).partitions[0] == PartitionPosition(offset=3, applied=4, watermark=4)


def read(flow: Flow, ts: int, *messages: DdlMessage) -> None:
    """Both partitions bring the DDLs and Resolved ts."""
    at = max((message.offset for message in messages), default=0) + 10
    flow.take([Fetched(p, at + 1, resolved=((ts, at),), ddls=messages) for p in (0, 1)])


def executed(flow: Flow) -> list[str]:
    """The texts of all DDLs that are due now."""
    found = []
    while (step := flow.next_step(100)) is not None:
        if isinstance(step, Ddls):
            found += [message.query for message in step.messages]
        else:
            flow.assembler.take(step.bounds)
    return found


def named(ts: int, offset: int, query: str) -> DdlMessage:
    return DdlMessage(ts, query, 14, "s", "t", None, offset)


def test_a_ddl_that_is_sent_again_within_a_run_is_not_executed_again() -> None:
    flow = Flow(FRESH, Mode.TRANSACTION, (), None)
    read(flow, 6, named(6, 1, "a"))
    assert executed(flow) == ["a"]
    read(flow, 7, named(6, 20, "a"))
    assert executed(flow) == []
    read(flow, 9, named(9, 40, "b"), named(6, 41, "a"))
    assert executed(flow) == ["b"]
    read(flow, 9, named(6, 60, "a"), named(9, 61, "b"))
    assert executed(flow) == []


def test_a_ddl_that_is_read_again_after_a_restart_is_not_executed_again() -> None:
    flow = Flow(FRESH, Mode.TRANSACTION, (), None)
    read(flow, 9, named(6, 1, "a"), named(9, 2, "b"))
    assert executed(flow) == ["a", "b"]
    position = Position.from_json(flow.position(9).to_json())
    again = Flow(position, Mode.TRANSACTION, (), None)
    read(again, 12, named(6, 1, "a"), named(9, 2, "b"), named(9, 30, "c"))
    assert executed(again) == ["c"]


def test_ddls_of_one_ts_after_its_resolved_are_each_executed_once() -> None:
    """As TiCDC sends the events of RENAME TABLES, each with the ts of the job."""
    flow = Flow(FRESH, Mode.TRANSACTION, (), None)
    read(flow, 6)
    assert executed(flow) == []
    position = flow.position(6)
    read(flow, 6, named(6, 20, "a"))
    assert executed(flow) == ["a"]
    read(flow, 7, named(6, 40, "b"), named(6, 41, "a"))
    assert executed(flow) == ["b"]
    assert flow.position(7).ddl_ts == 6
    # Killed before a snapshot named any of it.
    again = Flow(Position.from_json(position.to_json()), Mode.TRANSACTION, (), None)
    read(again, 7, named(6, 20, "a"), named(6, 40, "b"), named(6, 41, "a"))
    assert executed(again) == ["a", "b"]


def test_a_position_of_an_earlier_release_counts_all_ddls_up_to_its_ts() -> None:
    text = '{"format":1,"ts":6,"topic":"t","protocol":"open-protocol","mode":"transaction","partitions":'
    held = Position.from_json(text + '{"0":{"offset":0,"applied":6,"watermark":6}}}')
    flow = Flow(held, Mode.TRANSACTION, (), None)
    flow.take([Fetched(0, 9, resolved=((8, 5),), ddls=(named(6, 1, "a"), named(7, 2, "b")))])
    assert executed(flow) == ["b"]


def test_an_interrupted_write_is_repeated_first_with_the_same_bounds() -> None:
    flow = Flow(FRESH, Mode.TRANSACTION, (), None, begun={0: 6, 1: 6})
    rows = (segment(0, 3, 5, 0), segment(0, 7, 9, 3))
    flow.take([Fetched(0, 10, segments=rows, resolved=((9, 4),), ddls=(ddl(7, 2),))])
    assert flow.next_step(100) is None, "partition 1 may still bring a row up to 6"
    flow.take([Fetched(1, 10, resolved=((9, 4),), ddls=(ddl(7, 1),))])
    assert flow.next_step(1) == Rows({0: 6, 1: 6}), "neither further nor in smaller parts"
    flow.assembler.take({0: 6, 1: 6})
    assert flow.next_step(100) == Rows({0: 7, 1: 7})


def test_a_restart_reads_waiting_ddls_again_before_it_reaches_their_ts() -> None:
    """A database keeps its position after each write, also between rows up to a ts and DDLs of that ts."""
    flow = Flow(FRESH, Mode.TRANSACTION, (), None)
    for number in (0, 1):
        ddls = (named(6, 1, "one"), named(6, 2, "two"))
        flow.take([Fetched(number, 10, resolved=((6, 4),), ddls=ddls)])
    step = flow.next_step(100)
    assert step == Rows({0: 6, 1: 6})
    flow.assembler.take(step.bounds)
    position = flow.position(0)
    assert position.partitions[0] == PartitionPosition(offset=1, applied=6, watermark=5)
    again = Flow(Position.from_json(position.to_json()), Mode.TRANSACTION, (), 6)
    assert again.reached(6)
    assert again.watermarks.lowest < 6, "no snapshot at 6 before its DDLs are read"
    again.take([Fetched(0, 2, ddls=(named(6, 1, "one"),))])
    assert again.next_step(100) is None, "nor one of them without the other"
    for number in (0, 1):
        again.take([Fetched(number, 10, resolved=((6, 4),), ddls=(named(6, 2, "two"),))])
    step = again.next_step(100)
    assert isinstance(step, Ddls)
    assert [message.query for message in step.messages] == ["one", "two"]
