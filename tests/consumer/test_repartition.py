"""A topic whose number of partitions changes while it is read: docs/repartition.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.consumer.logs import differences, snapshots
from tests.consumer.memory_topic import consume
from tests.consumer.repartitioned import bank_parts, changes_at, in_memory, keys_that_moved, options_for
from tests.consumer.test_apply import TOTAL, bank_sums
from tests.consumer.test_assembler import segment
from tests.consumer.topics import publish
from tidegate.codec.base import Batch, Decoded
from tidegate.consumer.checks import (
    added_partitions,
    check_announced,
    check_not_repartitioned,
    check_there,
    without_added,
)
from tidegate.consumer.flow import Flow, Rows
from tidegate.consumer.job import Listener, Settings, run
from tidegate.consumer.mark_headers import layouts
from tidegate.consumer.position import PartitionPosition, Position
from tidegate.consumer.source import Fetched, Topic
from tidegate.consumer.watermark import Mode
from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.model.layout import Layout

CHANGES = changes_at((1, 5), (3, 2), (4, 7))
SOURCE = Topic("kafka://127.0.0.1:1/t?protocol=open-protocol")
LAST = 5
"""The snapshot up to which topics are written here."""
GROWN = Layout(1, 100, 2, 3, 3)
PATIENCE_S = 60.0


def held(mode: Mode = Mode.ROW, numbers: tuple[int, ...] = (0, 1), epoch: int = 0) -> Position:
    return Position(
        0, "t", "open-protocol", mode.value, {p: PartitionPosition(0, 0, 0) for p in numbers}, epoch=epoch
    )


def applied(flow: Flow) -> dict[int, int]:
    """How far each partition is when nothing moves any more."""
    while isinstance(step := flow.next_step(100), Rows):
        flow.assembler.take(step.bounds)
    return {number: flow.assembler.applied(number) for number in flow.next_offsets()}


def test_row_mode_lets_no_partition_pass_the_change_before_all_have_reached_it() -> None:
    flow = Flow(held(), Mode.ROW, (), None)
    flow.take(
        [Fetched(0, 9, resolved=((100, 5), (130, 8)), layouts=(GROWN,)), Fetched(1, 4, resolved=((90, 3),))]
    )
    flow.join([2], (), {})
    flow.take([Fetched(2, 4, resolved=((100, 0), (150, 3)), layouts=(GROWN,))])
    assert applied(flow) == {0: 100, 1: 90, 2: 100}
    flow.take([Fetched(1, 9, resolved=((100, 5), (110, 8)), layouts=(GROWN,))])
    assert applied(flow) == {0: 130, 1: 110, 2: 150}


def test_a_restart_before_the_change_is_reached_still_waits_for_it() -> None:
    flow = Flow(held(), Mode.ROW, (), None)
    row = segment(0, 120, 120, 7)
    flow.take([Fetched(0, 9, segments=(row,), resolved=((100, 5), (130, 8)), layouts=(GROWN,))])
    flow.take([Fetched(1, 4, resolved=((90, 3),))])
    assert applied(flow) == {0: 100, 1: 90}
    position = Position.from_json(flow.position(0).to_json())
    assert (position.epoch, position.partitions[0].offset) == (1, 7)
    again = Flow(position, Mode.ROW, (), None)
    again.take([Fetched(0, 9, segments=(row,), resolved=((130, 8),), layouts=(GROWN,))])
    assert applied(again) == {0: 100, 1: 90}


@pytest.mark.parametrize(
    ("protocol", "mode"),
    [
        ("open-protocol", Mode.ROW),
        ("open-protocol", Mode.TRANSACTION),
        ("canal-json", Mode.ROW),
        ("ticdc-mq", Mode.ROW),
    ],
)
def test_a_topic_that_was_repartitioned_ends_as_sql_saw_it(tmp_path: Path, protocol: str, mode: Mode) -> None:
    """More partitions, fewer, and more again; partitions are read at very different speeds."""
    topic = in_memory(bank_parts(protocol, CHANGES, LAST), options_for(protocol))
    assert len(topic.partitions) == 7
    line, target = snapshots()[LAST], tmp_path / "target"
    position = consume(topic, target, mode=mode, until=line.ts, size=60, rows=300)
    assert (position.ts, position.epoch) == (line.ts, 3)
    assert differences(target, line) == {}
    assert set(bank_sums(target)) == {TOTAL}


def test_the_bank_logs_rows_do_move() -> None:
    assert keys_that_moved(CHANGES) > 100


def test_partitions_that_nothing_is_on_are_not_read_and_those_that_are_written_are() -> None:
    assert added_partitions(SOURCE, {2: 0, 3: 0}, {}) == []
    assert added_partitions(SOURCE, {2: 1, 3: 0}, {}) == [2]
    assert added_partitions(SOURCE, {2: 0, 3: 0}, {"t": 3}) == [2]
    assert without_added(held(), SOURCE, [0, 1, 2]) == [0, 1]
    another = replace(held(), topic="another")
    assert without_added(another, SOURCE, [0, 1, 2]) == [0, 1, 2], "which is refused later, by its name"
    check_there(SOURCE, [0, 1, 2], {"t": 3})
    with pytest.raises(Retryable, match="partition 2 of topic t is not there yet"):
        check_there(SOURCE, [0, 1], {"t": 3})


def test_a_partition_that_no_resolved_names_stops_the_consumer_when_something_is_on_it() -> None:
    check_announced(SOURCE, {2}, [Fetched(2, 4, 4)], {"t": 3})
    check_announced(SOURCE, {2}, [Fetched(0, 4, 4), Fetched(2, 0, 0)], {})
    with pytest.raises(Fatal, match="partition 2 was added to the topic") as caught:
        check_announced(SOURCE, {2}, [Fetched(2, 4, 4)], {})
    assert "changefeed repartition" in caught.value.fix


def test_only_marks_say_the_layout_and_one_that_is_not_sound_says_nothing() -> None:
    sound, foreign = list(GROWN.headers), [("tidegate-partitions", b"{}")]
    batch = Batch([None] * 5, [None] * 5, [3, 5, 8, 9, 10], [sound, None, foreign, sound, sound])
    decoded = Decoded(resolved=[(100, 3), (110, 5), (120, 8)], repartitions=[(3, 10)])
    assert layouts(batch, decoded) == {3: GROWN, 10: GROWN}
    assert layouts(Batch([None], [None], [1]), Decoded(resolved=[(1, 1)])) == {}


def test_an_admin_that_does_not_say_since_when_stops_the_consumer() -> None:
    check_not_repartitioned(SOURCE, [Fetched(0, 5, layouts=(GROWN,))])
    with pytest.raises(Fatal, match="changed the topic to 5 partitions"):
        check_not_repartitioned(SOURCE, [Fetched(0, 5, repartitions=((5, 4),))])


# --- on a broker -----------------------------------------------------------------------------------------


class Reading:
    """A consumer without Spark in a thread of this process."""

    def __init__(self, source: str, target: Path, mode: Mode) -> None:
        settings = Settings(source, target, mode, commit_s=0.2, commit_rows=500, master="workers[1]")
        self.error: TidegateError | None = None
        self.notes: list[str] = []
        self.warnings: list[TidegateError] = []
        self.ts = 0
        self._stop = threading.Event()
        listener = Listener(report=self._hear, note=self.notes.append, warn=self.warnings.append)

        def work() -> None:
            try:
                run(settings, self._stop.is_set, listener)
            except TidegateError as error:
                self.error = error

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def _hear(self, progress: object) -> None:
        self.ts = progress.ts  # type: ignore[attr-defined]

    def wait(self, ts: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.ts < ts:
            assert self._thread.is_alive(), self.error
            assert time.monotonic() < deadline, (self.ts, self.notes, self.warnings)
            time.sleep(0.05)

    def ended(self) -> TidegateError | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.error

    def stop(self) -> None:
        self._stop.set()
        assert self.ended() is None


def add_partitions(kafka: str, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while len(admin.list_topics(topic, timeout=10).topics[topic].partitions) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.integration
@pytest.mark.parametrize(("mode", "options"), [(Mode.TRANSACTION, ""), (Mode.ROW, "&partition-num=3")])
def test_a_consumer_goes_on_through_changes_and_restarts_with_the_words_it_was_started_with(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path, mode: Mode, options: str
) -> None:
    """Partitions are there, empty, before they are used, and others that never are."""
    parts, topic = bank_parts("ticdc-mq", CHANGES, LAST), new_topic(3)
    source, target = f"kafka://{kafka}/{topic}?protocol=ticdc-mq{options}", tmp_path / "target"
    publish(kafka, topic, parts[0])
    first = Reading(source, target, mode)
    try:
        # The last mark before the first change.
        first.wait(1)
        add_partitions(kafka, topic, 5)
        publish(kafka, topic, parts[1])
        first.wait(CHANGES[0][0])
    finally:
        first.stop()
    said = " ".join(first.notes)
    assert "partition 3" in said
    assert "partition 4" in said
    publish(kafka, topic, parts[2])
    add_partitions(kafka, topic, 7)
    second = Reading(source, target, mode)
    try:
        second.wait(CHANGES[1][0])
        publish(kafka, topic, parts[3])
        second.wait(snapshots()[LAST].ts)
    finally:
        second.stop()
    assert differences(target, snapshots()[LAST]) == {}
    assert set(bank_sums(target)) == {TOTAL}


@pytest.mark.integration
def test_what_somebody_else_writes_to_a_new_partition_stops_the_consumer_and_nothing_of_it_counts(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    parts, topic = bank_parts("open-protocol", CHANGES, 2), new_topic(3)
    source, target = f"kafka://{kafka}/{topic}?protocol=open-protocol", tmp_path / "target"
    publish(kafka, topic, parts[0])
    reading = Reading(source, target, Mode.TRANSACTION)
    reading.wait(1)
    add_partitions(kafka, topic, 4)
    reached, resolved = reading.ts, parts[0][-1][1]
    publish(kafka, topic, [(3, resolved)])
    publish(kafka, topic, [(0, resolved)])
    error = reading.ended()
    assert isinstance(error, Fatal)
    assert "partition 3 was added to the topic" in error.what
    assert reading.ts == reached
