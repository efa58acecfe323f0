"""Row mode meets at alignment marks: no unique value is taken before it is free, whatever is read first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

from tests.consumer.test_assembler import segment
from tests.dispatcher.test_conflict_model import (
    PARTITIONS,
    Change,
    ConstraintError,
    Mark,
    Target,
    final,
    topic_of,
    transactions,
)
from tests.dispatcher.test_conflict_model import Topic as Partitions
from tidegate.codec.alignment import ALIGN_HEADER, header
from tidegate.codec.base import Batch
from tidegate.codec.registry import marks
from tidegate.consumer.flow import MAX_MEETINGS, Flow, Rows
from tidegate.consumer.places import number_of
from tidegate.consumer.position import PartitionPosition, Position
from tidegate.consumer.source import Fetched, Topic, TopicDecoder, _staged
from tidegate.consumer.watermark import Mode
from tidegate.model.slots import DELETE, INSERT, UPDATE


def fresh(numbers: Iterable[int], mode: Mode = Mode.ROW) -> Position:
    return Position(0, "t", "open-protocol", mode.value, {p: PartitionPosition(0, 0, 0) for p in numbers})


def fetched(partition: int, messages: list[Change | Mark], first: int, end: int, resolved: int) -> Fetched:
    """A stretch of a partition, with a Resolved behind it."""
    some = list(enumerate(messages[first:end], first))
    rows = [(offset, one) for offset, one in some if isinstance(one, Change)]
    times = [one.ts for _, one in rows]
    return Fetched(
        partition,
        end,
        segments=(segment(partition, min(times), max(times), rows[0][0]),) if rows else (),
        resolved=((resolved, end),) if resolved else (),
        aligns=tuple((one.ts, offset) for offset, one in some if isinstance(one, Mark)),
    )


def apply_step(target: Target, topic: Partitions, before: dict[int, int], step: Rows, chance: Random) -> None:
    """A step as a target may write it: partition by partition, but a single ts with its deletes first."""
    parts = [
        [row for row in topic[p] if isinstance(row, Change) and before[p] < row.ts <= upto]
        for p, upto in step.bounds.items()
    ]
    together = [row for part in parts for row in part]
    if len({row.ts for row in together}) == 1:
        parts = [sorted(together, key=lambda row: (DELETE, UPDATE, INSERT).index(row.op))]
    chance.shuffle(parts)
    for part in parts:
        for row in part:
            target.apply(row)


def consumed(topic: Partitions, chance: Random, *, aligned: bool = True) -> Target:
    """What the flow makes of a topic whose partitions are read at speeds of their own."""
    flow, target = Flow(fresh(range(PARTITIONS)), Mode.ROW, (), None), Target()
    last = max((one.ts for partition in topic for one in partition), default=0)
    at = [0] * PARTITIONS
    while any(flow.assembler.applied(p) < last for p in range(PARTITIONS)):
        p = chance.randrange(PARTITIONS)
        end = min(at[p] + chance.randint(1, 25), len(topic[p]))
        done = end == len(topic[p])
        part = fetched(p, topic[p], at[p], end, last if done else max(0, topic[p][end].ts - 1))
        at[p] = end
        flow.take([part if aligned else Fetched(p, end, segments=part.segments, resolved=part.resolved)])
        while isinstance(step := flow.next_step(chance.choice((1, 1000))), Rows):
            before = {p: flow.assembler.applied(p) for p in range(PARTITIONS)}
            apply_step(target, topic, before, step, chance)
            flow.assembler.take(step.bounds)
    return target


def test_partitions_at_their_own_speed_never_take_a_value_that_is_not_free() -> None:
    for seed in range(60):
        chance = Random(seed)
        log = list(transactions(chance, 60))
        topic = topic_of(log, chance, restarts=seed % 2 == 1)
        assert consumed(topic, chance).rows == final(log), seed


def test_without_marks_row_mode_takes_values_that_are_not_free() -> None:
    broken = 0
    for seed in range(60):
        chance = Random(seed)
        topic = topic_of(list(transactions(chance, 60)), chance)
        try:
            consumed(topic, chance, aligned=False)
        except ConstraintError:
            broken += 1
    assert broken > 30


def test_transaction_mode_ignores_marks() -> None:
    flow = Flow(fresh((0, 1), Mode.TRANSACTION), Mode.TRANSACTION, (), None)
    flow.take([Fetched(p, 9, resolved=((20, 8),), aligns=((10, 5),)) for p in (0, 1)])
    assert flow.next_step(100) == Rows({0: 20, 1: 20})


def stepped(flow: Flow) -> dict[int, int] | None:
    step = flow.next_step(100)
    if step is None:
        return None
    assert isinstance(step, Rows)
    flow.assembler.take(step.bounds)
    return dict(step.bounds)


def test_partitions_come_below_a_mark_then_make_its_ts_together_then_go_on() -> None:
    flow = Flow(fresh((0, 1)), Mode.ROW, (), None)
    flow.take([Fetched(0, 9, resolved=((20, 8),), aligns=((10, 5),))])
    assert stepped(flow) == {0: 9, 1: 0}
    flow.take([Fetched(1, 9, resolved=((9, 4),))])
    assert stepped(flow) == {0: 9, 1: 9}
    assert stepped(flow) is None, "partition 1 may have more of ts 10"
    flow.take([Fetched(1, 20, resolved=((30, 18),), aligns=((10, 12), (25, 15)))])
    assert stepped(flow) == {0: 10, 1: 10}
    assert stepped(flow) == {0: 20, 1: 24}
    assert stepped(flow) is None


def test_partitions_of_another_topic_do_not_wait() -> None:
    names = ("a", "b")
    first, second, other = (number_of(names, *one) for one in (("a", 0), ("a", 1), ("b", 0)))
    flow = Flow(fresh((first, second, other)), Mode.ROW, (), None)
    flow.take([Fetched(number, 9, resolved=((20, 8),)) for number in (second, other)])
    flow.take([Fetched(first, 9, resolved=((9, 8),), aligns=((10, 5),))])
    assert stepped(flow) == {first: 9, second: 9, other: 20}


def test_marks_of_two_tables_may_be_in_another_order_on_another_partition() -> None:
    flow = Flow(fresh((0, 1)), Mode.ROW, (), None)
    orders = [((10, 5), (12, 6)), ((12, 5), (10, 6))]
    flow.take([Fetched(p, 9, resolved=((20, 8),), aligns=aligns) for p, aligns in enumerate(orders)])
    found = [stepped(flow) for _ in range(5)]
    assert found == [{0: ts, 1: ts} for ts in (9, 10, 11, 12, 20)]


def test_a_restart_reads_a_mark_again_that_was_not_reached() -> None:
    flow = Flow(fresh((0, 1)), Mode.ROW, (), None)
    aligns = ((10, 5),)
    flow.take([Fetched(0, 12, resolved=((20, 11),), aligns=aligns), Fetched(1, 9, resolved=((9, 8),))])
    assert stepped(flow) == {0: 9, 1: 9}
    kept = flow.position(9).partitions[0]
    assert kept == PartitionPosition(offset=5, applied=9, watermark=9)
    again = Flow(flow.position(9), Mode.ROW, (), None)
    again.take([Fetched(0, 12, resolved=((20, 11),), aligns=aligns), Fetched(1, 12, resolved=((9, 8),))])
    assert stepped(again) is None
    again.take([Fetched(1, 20, resolved=((15, 18),), aligns=((10, 12),))])
    assert stepped(again) == {0: 10, 1: 10}
    assert again.position(10).partitions[0] == PartitionPosition(offset=12, applied=10, watermark=20)


def test_a_mark_that_comes_again_behind_its_ts_is_done_with() -> None:
    flow = Flow(fresh((0, 1)), Mode.ROW, (), None)
    flow.take([Fetched(p, 9, resolved=((20, 8),), aligns=((10, 5),)) for p in (0, 1)])
    assert [stepped(flow) for _ in range(3)] == [{0: 9, 1: 9}, {0: 10, 1: 10}, {0: 20, 1: 20}]
    flow.take([Fetched(0, 19, resolved=((30, 18),), aligns=((10, 15),))])
    assert stepped(flow) == {0: 30, 1: 20}


def test_with_many_marks_ahead_only_the_partitions_that_lag_are_read_on() -> None:
    flow = Flow(fresh((0, 1)), Mode.ROW, (), None)
    assert flow.wanted() == {0: 0, 1: 0}
    aligns = tuple((10 + n, n) for n in range(MAX_MEETINGS + 1))
    flow.take([Fetched(0, len(aligns), resolved=((9, 0),), aligns=aligns)])
    assert flow.wanted() == {1: 0}


def test_a_mark_is_no_watermark_and_one_that_cannot_be_read_is_kept_as_a_bad_message(tmp_path: Path) -> None:
    topic = Topic("kafka://127.0.0.1:1/t?protocol=open-protocol")
    made = marks(topic.options)
    resolved = [made.encode_resolved(ts) for ts in (20, 0, 0)]
    headers = [None, [(ALIGN_HEADER, header("s.t", 15))], [(ALIGN_HEADER, b'{"table":"s.t"}')]]
    batch = Batch([m.key for m in resolved if m], [m.value for m in resolved if m], [4, 5, 6], headers)
    found = _staged(topic, TopicDecoder(topic), batch, Fetched(0, 7), tmp_path)
    assert found.resolved == ((20, 4),)
    assert found.aligns == ((15, 5),)
    assert [(bad.offset, bad.why) for bad in found.bad] == [
        (6, "its header tidegate-align: id and table are no texts")
    ]
    assert found.bad[0].key == batch.keys[2]
