"""Row mode meets at alignment marks: no unique value is taken before it is free, whatever is read first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.consumer.assembler_script import segment
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
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.flow import Flow, Rows
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.reading.fetch import _staged
from tidegate.consumer.reading.mark_headers import mark_headers
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.reading.topic_decoder import TopicDecoder
from tidegate.consumer.running.checks import check_marks_read
from tidegate.errors import Fatal
from tidegate.model.cells import DELETE, INSERT


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


def apply_step(target: Target, topic: Partitions, before: dict[int, int], step: Rows) -> None:
    """A step as a target writes it: each row's net effect, and deletes first."""
    news = {
        change.id: change
        for p, upto in step.bounds.items()
        for change in topic[p]
        if isinstance(change, Change) and before[p] < change.ts <= upto
    }
    for row in news.keys() & target.rows.keys():
        target.apply(Change(target.newest[row], DELETE, row, target.rows[row]))
    for change in news.values():
        if change.op != DELETE:
            target.apply(Change(change.ts, INSERT, change.id, change.u))


def consumed(topic: Partitions, chance: Random, *, aligned: bool = True) -> Target:
    """Return the target after a topic whose partitions are read at different speeds."""
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
            apply_step(target, topic, before, step)
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


def test_a_mark_is_no_watermark_and_an_unreadable_one_is_a_bad_message(tmp_path: Path) -> None:
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
    with pytest.raises(Fatal, match="alignment mark cannot be read") as stopped:
        check_marks_read(topic, [found])
    assert stopped.value.where == "topic t, partition 0, offset 6"
    assert stopped.value.why == found.bad[0].why


def test_headers_of_resolved_messages_alone_are_looked_at() -> None:
    class Headers(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("the headers of all messages are looked at")

    mark = [(ALIGN_HEADER, header("s.t", 15))]
    batch = Batch([None] * 3, [b""] * 3, [4, 7, 9], Headers([mark, None, mark]))
    assert mark_headers(batch, [(0, 9), (3, 7)]).alignments.keys() == {9}
    assert mark_headers(replace(batch, headers=None), [(0, 9)]).alignments == {}
