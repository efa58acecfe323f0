"""A topic whose number of partitions changes while it is read: docs/repartition.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.consumer.assembler_script import segment
from tests.consumer.logs import differences, snapshots
from tests.consumer.memory_topic import consume
from tests.consumer.repartitioned import bank_parts, changes_at, in_memory, keys_that_moved, options_for
from tests.consumer.test_apply import TOTAL, bank_sums
from tests.consumer.topics import publish
from tidegate.codec.base import Batch, Decoded
from tidegate.codec.registry import encoder
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.flow import Flow, Rows
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.job import run
from tidegate.consumer.reading.mark_headers import layouts
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.checks import (
    added_partitions,
    check_announced,
    check_not_repartitioned,
    check_there,
    without_added,
)
from tidegate.consumer.running.progress import Listener
from tidegate.consumer.settings import Settings
from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.model.layout import Layout
from tidegate.model.message import Message

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


def test_a_restart_between_two_changes_still_waits_for_the_first() -> None:
    """Marks read from there on name the second alone."""
    flow, second = Flow(held(), Mode.ROW, (), None), GROWN.changed(120, 2)
    row = segment(0, 110, 110, 7)
    marks = Fetched(0, 9, segments=(row,), resolved=((100, 5), (120, 8)), layouts=(GROWN, second))
    flow.take([marks, Fetched(1, 4, resolved=((90, 3),))])
    assert applied(flow) == {0: 100, 1: 90}
    position = Position.from_json(flow.position(0).over(("s", "t")).to_json())
    assert position.switches == (100, 120)
    again = Flow(position.over(("s", "t")), Mode.ROW, (), None)
    ahead, late = position.partitions
    again.take([Fetched(ahead, 12, resolved=((120, 8), (130, 11)), layouts=(second,))])
    assert applied(again) == {ahead: 100, late: 90}
    again.take([Fetched(late, 12, resolved=((100, 5), (130, 11)), layouts=(GROWN, second))])
    assert applied(again) == {ahead: 130, late: 130}
    assert again.position(130).switches == ()
    assert "switches" not in again.position(130).to_json(), (
        "as earlier releases wrote it, which are still read"
    )


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


def test_added_partitions_are_read_only_if_they_are_written_or_announced() -> None:
    assert added_partitions(SOURCE, {2: 0, 3: 0}, {}) == []
    assert added_partitions(SOURCE, {2: 1, 3: 0}, {}) == [2]
    assert added_partitions(SOURCE, {2: 0, 3: 0}, {"t": 3}) == [2]
    assert without_added(held(), SOURCE, [0, 1, 2]) == [0, 1]
    another = replace(held(), topic="another")
    assert without_added(another, SOURCE, [0, 1, 2]) == [0, 1, 2], "which is refused later, by its name"
    check_there(SOURCE, [0, 1, 2], {"t": 3})
    with pytest.raises(Retryable, match="partition 2 of topic t is not there yet"):
        check_there(SOURCE, [0, 1], {"t": 3})


def test_an_unannounced_partition_with_messages_stops_the_consumer() -> None:
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


def test_a_topic_read_by_offset_that_was_repartitioned_stops_the_consumer() -> None:
    """Its reader does not use the Resolved that are on it."""
    topic = Topic("kafka://127.0.0.1:1/t?protocol=canal-json", by_offset=True)
    check_not_repartitioned(topic, [Fetched(0, 5)])
    with pytest.raises(Fatal, match="changed the topic from 2 to 3 partitions") as caught:
        check_not_repartitioned(topic, [Fetched(0, 5, layouts=(GROWN,))])
    assert "add enable-tidb-extension=true" in caught.value.fix


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
        listener = Listener(report=self._receive, note=self.notes.append, warn=self.warnings.append)

        def work() -> None:
            try:
                run(settings, self._stop.is_set, listener)
            except TidegateError as error:
                self.error = error

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def _receive(self, progress: object) -> None:
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
def test_a_consumer_with_unchanged_options_survives_changes_and_restarts(
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
def test_partitions_without_committed_messages_hold_nothing_back(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """From the first start on, until a change names them."""
    changes = changes_at((3, 5))
    parts, topic = bank_parts("ticdc-mq", changes, LAST), new_topic(4)
    target = tmp_path / "target"
    publish(kafka, topic, parts[0])
    reading = Reading(f"kafka://{kafka}/{topic}?protocol=ticdc-mq", target, Mode.TRANSACTION)
    try:
        reading.wait(1)
        assert "not read while nothing is on it: " in " ".join(reading.notes)
        add_partitions(kafka, topic, 5)
        abort_on(kafka, topic, [3, 4])
        publish(kafka, topic, [(number, resolved_at(changes[0][0] - 1)) for number in range(3)])
        reading.wait(changes[0][0] - 1)
        publish(kafka, topic, parts[1])
        reading.wait(snapshots()[LAST].ts)
    finally:
        reading.stop()
    assert differences(target, snapshots()[LAST]) == {}


@pytest.mark.integration
def test_a_reader_by_offset_stops_before_it_waits_for_new_partitions(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """A change of the topic names the new partitions."""
    topic = new_topic(5)
    publish(kafka, topic, [one for part in bank_parts("canal-json", CHANGES[:1], LAST) for one in part])
    source = f"kafka://{kafka}/{topic}?protocol=canal-json&partition-num=3"
    error = Reading(source, tmp_path / "target", Mode.ROW).ended()
    assert isinstance(error, Fatal)
    assert "changed the topic from 3 to 5 partitions" in error.what


def abort_on(kafka: str, topic: str, partitions: list[int]) -> None:
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"aborts-{topic}"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(topic, b"x", partition=partition)
    producer.flush(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)


def resolved_at(ts: int, protocol: str = "ticdc-mq") -> Message:
    message = encoder(options_for(protocol)).encode_resolved(ts)
    assert message is not None
    return message


@pytest.mark.integration
def test_a_foreign_write_to_a_new_partition_stops_the_consumer(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Nothing of the foreign write counts."""
    parts, topic = bank_parts("open-protocol", CHANGES, 2), new_topic(3)
    source, target = f"kafka://{kafka}/{topic}?protocol=open-protocol", tmp_path / "target"
    reached = CHANGES[0][0] - 1
    resolved = resolved_at(reached, "open-protocol")
    publish(kafka, topic, [*parts[0], *((number, resolved) for number in range(3))])
    reading = Reading(source, target, Mode.TRANSACTION)
    # The topic is applied in more than one step if the machine is slow.
    reading.wait(reached)
    add_partitions(kafka, topic, 4)
    publish(kafka, topic, [(3, resolved)])
    publish(kafka, topic, [(0, resolved)])
    error = reading.ended()
    assert isinstance(error, Fatal)
    assert "partition 3 was added to the topic" in error.what
    assert reading.ts == reached
