"""A real consumer, seen from outside: `consumer status`, metrics, and a Kafka group's offsets."""

from __future__ import annotations

import gc
import json
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from tests.consumer.logs import snapshots
from tests.consumer.mysql.reading import forget
from tests.consumer.test_job import LINE, PATIENCE_S, Running, bank_messages, ended, event, start
from tests.consumer.topics import publish
from tests.integration.cluster import eventually
from tidegate.cli.consumer import app
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.progress import Progress
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.reading.group_offsets import PAUSE_S, GroupOffsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.progress import Listener
from tidegate.consumer.running.status import STATUS, received
from tidegate.consumer.settings import Settings
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def ask(source: str, target: str | Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of `consumer status --json`."""
    options = ["--source", source, "--target", str(target), "--json", *more]
    done = CliRunner().invoke(app, ["status", *options])
    assert done.stdout, done.output
    return done.exit_code, json.loads(done.stdout)


def group_offsets(kafka: str, group: str) -> dict[int, int]:
    """By partition, what tools that show lag see."""
    # Where a group has no coordinator yet, as on a new broker, the admin client would end the process.
    Consumer({"bootstrap.servers": kafka, "group.id": group}).committed([TopicPartition("any", 0)], 30)
    admin = AdminClient({"bootstrap.servers": kafka})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return {one.partition: one.offset for one in asked[group].result(30).topic_partitions}


def kept(target: Path) -> dict[int, int]:
    """By partition, the offset of the target's position."""
    found = address_of(target, Upkeep(), DatabaseSettings()).look().position
    return {number: part.offset for number, part in found.partitions.items()} if found is not None else {}


def applied_to(folder: Path, ts: int) -> None:
    """Wait until a running consumer says that it has applied everything up to this ts."""
    deadline = time.monotonic() + PATIENCE_S
    while (last := received(folder)) is None or any(one.applied < ts for one in last.partitions):
        assert time.monotonic() < deadline, last
        time.sleep(0.1)


def source_of(kafka: str, topic: str) -> str:
    return f"kafka://{kafka}/{topic}?protocol=open-protocol"


def test_status_shows_a_consumer_before_during_and_after_its_run(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The last run dies."""
    topic, target, messages = new_topic(3), tmp_path / "lake", bank_messages()
    source = source_of(kafka, topic)
    code, found = ask(source, target)
    assert (code, found["ts"], found["running"]) == (1, 0, False)
    assert "nothing was ever committed" in found["verdict"]
    assert not target.exists(), "looking makes nothing"

    process = start(source, target, "--commit-interval", "0.1", "--metrics", "127.0.0.1:0")
    page = str(event(process, "ready")["metrics"])
    publish(kafka, topic, messages)
    applied_to(target / "_tidegate", snapshots()[LINE].ts)

    def waits() -> tuple[int, dict[str, Any]] | None:
        """The log is from the past, and nothing follows. On a busy machine the last report may be old."""
        seen = ask(source, target)
        return seen if "a newer watermark of" in seen[1]["verdict"] else None

    code, found = eventually("what it waits for", waits)
    assert found["running"]
    assert f"process {process.pid} on " in found["verdict"]
    assert found["lag_s"] > 3600
    assert (code == 0) == (not found["stuck"])
    assert {one["name"] for one in found["partitions"]} == {f"{topic}/{number}" for number in range(3)}
    read = f'tidegate_consumer_messages_unread{{partition="2",topic="{topic}"}} 0.0'

    def shown() -> bool:
        """They follow the status, of which we know, a moment later."""
        metrics = httpx.get(page, trust_env=False, timeout=60).text
        return read in metrics and "tidegate_consumer_rows_total 0.0" not in metrics

    eventually("metrics of all messages", shown)

    process.kill()
    process.wait()
    publish(kafka, topic, messages[-3:])
    code, found = ask(source, target)
    assert code == 1
    assert f"not running: process {process.pid} on " in found["verdict"]
    assert " died; " in found["verdict"]
    offsets = kept(target)
    assert [one["offset"] for one in found["partitions"]] == [offsets[number] for number in range(3)]
    assert found["messages"] >= 3


def test_a_databases_consumer_is_seen_by_its_name_from_any_folder(
    spark: SparkSession, kafka: str, new_topic: Callable[..., str], mariadb: MySqlServer, tmp_path: Path
) -> None:
    forget(mariadb, "seen", "bank")
    source, name = source_of(kafka, new_topic(3)), ("--name", "seen", "--folder")
    target, here, elsewhere = f"mysql://root@127.0.0.1:{mariadb.port}/", tmp_path / "a", tmp_path / "b"
    publish(kafka, Topic(source).name, bank_messages())
    database = DatabaseSettings("seen", here, lanes=2)
    consumer = Running(spark, Settings(source, target, commit_s=0.1, database=database))
    applied_to(here, snapshots()[LINE].ts)
    _, found = ask(source, target, *name, str(here))
    assert f"process {os.getpid()} on " in found["verdict"]
    _, found = ask(source, target, *name, str(elsewhere))
    assert "running (connection " in found["verdict"]
    assert found["ts"] == snapshots()[LINE].ts
    consumer.stop()
    code, found = ask(source, target, *name, str(here))
    assert (code, found["messages"]) == (1, 0)
    assert " ended " in found["verdict"]
    assert " in order" in found["verdict"]
    code, found = ask(source, target, *name, str(elsewhere))
    assert (code, found["verdict"]) == (1, "not running: nobody runs it")
    assert not elsewhere.exists()


def test_a_broker_that_does_not_answer_is_part_of_the_status(tmp_path: Path) -> None:
    code, found = ask("kafka://127.0.0.1:1/t?protocol=open-protocol", tmp_path / "lake")
    assert (code, found["messages"]) == (1, None)
    assert "the Kafka broker does not answer" in found["broker"]


def test_a_source_that_is_not_the_targets_is_refused(
    kafka: str, new_topic: Callable[..., str], mariadb: MySqlServer
) -> None:
    progress = Progress(Hold(mariadb, "other-topic"))
    progress.take_over()
    position = Position(7, "elsewhere", "open-protocol", "transaction", {0: PartitionPosition(1, 7, 7)})
    progress.move(position.to_json())
    options = ["--source", source_of(kafka, new_topic(1)), "--name", "other-topic"]
    options += ["--target", f"mysql://root@127.0.0.1:{mariadb.port}/"]
    done = CliRunner().invoke(app, ["status", *options])
    progress.hold.close()
    assert done.exit_code == 2
    assert "its position is in topic elsewhere" in done.stderr


def test_a_groups_offsets_follow_the_target_and_never_run_ahead_of_it(
    spark: SparkSession, kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, target, messages = new_topic(3), tmp_path / "lake", bank_messages()
    group = f"lag-{uuid.uuid4().hex[:8]}"
    settings = Settings(
        source_of(kafka, topic), target, until=snapshots()[LINE].ts, commit_s=0, commit_rows=200, group=group
    )
    consumer, half, piece = Running(spark, settings), len(messages) // 2, len(messages) // 20
    publish(kafka, topic, messages[:half])
    consumer.until(lambda: group_offsets(kafka, group), "no offsets while it runs")
    for at in range(half, len(messages), piece):
        publish(kafka, topic, messages[at : at + piece])
        for number, offset in group_offsets(kafka, group).items():
            assert offset <= kept(target)[number]
    consumer.thread.join(PATIENCE_S)
    assert consumer.error is None
    assert group_offsets(kafka, group) == kept(target), "the end is kept, too"
    last = received(target / "_tidegate")
    assert last is not None
    assert not last.running


def test_a_group_that_others_use_is_left_alone_and_said_once(
    kafka: str, new_topic: Callable[..., str]
) -> None:
    name, group = new_topic(1), f"lag-{uuid.uuid4().hex[:8]}"
    member = Consumer({"bootstrap.servers": kafka, "group.id": group})
    member.subscribe([name])
    while not member.assignment():
        member.poll(0.1)
    warnings: list[TidegateError] = []
    notes: list[str] = []
    topic = Topic(source_of(kafka, name))
    offsets = GroupOffsets(topic, group, Listener(warn=warnings.append, note=notes.append))
    for ts in (1, 2):
        position = Position(ts, name, "open-protocol", "transaction", {0: PartitionPosition(ts, ts, ts)})
        offsets.keep(position, now=time.monotonic() + ts * 100)
        offsets.close(position)
    assert [one.what for one in warnings] == ["the broker does not take the consumer group's offsets"]
    assert group in warnings[0].where
    assert {offset for offset in group_offsets(kafka, group).values() if offset > 0} == set()
    member.close()
    offsets.keep(position, now=time.monotonic() + 300)
    offsets.close(position)
    assert notes == [f"the offsets of group {group} are kept again"]
    assert group_offsets(kafka, group) == {0: 2}


def test_a_silent_broker_is_reported_once_and_retried_after_a_pause() -> None:
    warnings: list[TidegateError] = []
    topic = Topic("kafka://127.0.0.1:1/t?protocol=open-protocol")
    offsets, now = GroupOffsets(topic, "g", Listener(warn=warnings.append), answer_s=1), time.monotonic()
    position = Position(7, "t", "open-protocol", "transaction", {0: PartitionPosition(3, 7, 7)})
    for _ in range(3):
        offsets.keep(position, now)
        assert len(warnings) <= 1
        now += 2 + PAUSE_S
    assert [one.why for one in warnings] == ["it does not answer"]
    offsets.close(position)
    released = time.monotonic()
    del offsets
    gc.collect()  # the client refers to its owner
    assert time.monotonic() - released < 20, "it does not wait for librdkafka's 45 s"


def test_before_the_first_snapshot_a_group_gets_nothing(kafka: str, new_topic: Callable[..., str]) -> None:
    name, group = new_topic(1), f"lag-{uuid.uuid4().hex[:8]}"
    assert group_offsets(kafka, group) == {}, "a new broker takes a while to coordinate groups"
    offsets = GroupOffsets(Topic(source_of(kafka, name)), group, Listener())
    for ts, seen in ((0, {}), (1, {0: 3})):
        offsets.close(Position(ts, name, "open-protocol", "transaction", {0: PartitionPosition(3, ts, ts)}))
        assert group_offsets(kafka, group) == seen


def test_a_full_disk_of_the_status_stops_nothing(
    spark: SparkSession, kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, target, messages = new_topic(3), tmp_path / "lake", bank_messages()
    (target / "_tidegate").mkdir(parents=True)
    (target / "_tidegate" / STATUS).with_suffix(".part").symlink_to("/dev/full")
    publish(kafka, topic, messages)
    consumer = ended(spark, source_of(kafka, topic), target, snapshots()[LINE].ts)
    assert consumer.error is None
    assert consumer.end is not None
    assert consumer.end.ts == snapshots()[LINE].ts
    assert [one.what for one in consumer.warnings] == ["the consumer's status cannot be written"]
