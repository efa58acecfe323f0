"""The consumer with a real broker and real Spark: kill -9, a broker that goes away, topics that are wrong."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import SparkSession

from tests.consumer.logs import BANK, differences, snapshots
from tests.consumer.recorded import messages_of_log
from tests.consumer.test_apply import TOTAL, bank_sums
from tests.consumer.topics import publish
from tests.fixtures.kafka import Broker
from tidegate.codec.base import BadMessage
from tidegate.codec.registry import codec_options
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.job import run
from tidegate.consumer.reading.offsets import Offsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.checks import check_complete, check_retained
from tidegate.consumer.running.progress import Listener, Progress
from tidegate.consumer.settings import Settings
from tidegate.errors import Fatal, InvalidInput, Retryable, TidegateError
from tidegate.model.message import Message
from tidegate.sink import quarantine
from tidegate.sink.lakehouse.tables import Lakehouse

pytestmark = pytest.mark.integration
SRC = Path(__file__).parents[2] / "src"
PATIENCE_S = 240.0
"""Costs nothing when all is well: a JVM alone may take a minute to start on a loaded machine."""
LINE = 5
"""The snapshot of the bank log up to which topics are written here."""


def start(source: str, target: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tidegate", "consumer", "run", "--source", source]
    command += ["--target", f"delta://{target}", "--json", *options]
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )


def event(process: subprocess.Popen[str], wanted: str, timeout_s: float = PATIENCE_S) -> dict[str, object]:
    """The next event of that name on stdout; fails with the process's stderr."""
    assert process.stdout is not None
    watchdog = threading.Timer(timeout_s, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            found: dict[str, object] = json.loads(line)
            if found["event"] != "progress":
                break
        else:
            assert process.stderr is not None
            pytest.fail(f"no '{wanted}': {process.stderr.read()[-3000:]}")
    finally:
        watchdog.cancel()
    assert found["event"] == wanted
    return found


@cache
def bank_messages(protocol: str = "open-protocol", extension: bool = True) -> Sequence[tuple[int, Message]]:
    """The bank log up to snapshot LINE as messages of three partitions."""
    canal = {"enable-tidb-extension": True} if protocol == "canal-json" else {}
    options = codec_options({"protocol": protocol} | canal)
    found = list(messages_of_log(BANK, options, 3, snapshots()[LINE].ts))
    if not extension:
        plain = [(p, m, re.sub(rb',"_tidb":\{"commitTs":\d+\}', b"", m.value)) for p, m in found]
        found = [(p, replace(m, value=value)) for p, m, value in plain if b'"_tidb"' not in value]
    return found


@pytest.fixture
def bank_source(kafka: str, new_topic: Callable[..., str]) -> str:
    topic, messages = new_topic(3), bank_messages()
    # One message that no decoder understands, in the middle of partition 1.
    middle = len(messages) // 2
    publish(kafka, topic, messages[:middle])
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(topic, b"\x00not open protocol", b"\x00key", partition=1)
    assert producer.flush(PATIENCE_S) == 0
    publish(kafka, topic, messages[middle:])
    return f"kafka://{kafka}/{topic}?protocol=open-protocol"


class Running:
    """A consumer in a thread of this process, and the reports that its caller got."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.warnings: list[TidegateError] = []
        self.notes: list[str] = []
        self.progress: list[Progress] = []
        self.error: TidegateError | None = None
        self.end: Progress | None = None
        self._stop = threading.Event()
        listener = Listener(
            ready=self.progress.append,
            report=self.progress.append,
            warn=self.warnings.append,
            note=self.notes.append,
        )

        def work() -> None:
            try:
                self.end = run(settings, self._stop.is_set, listener, spark)
            except TidegateError as error:
                self.error = error

        self.thread = threading.Thread(target=work)
        self.thread.start()

    def until(self, true: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"{what}; got {self.warnings}, {self.notes}, {self.error}"
            time.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@contextmanager
def consumer(spark: SparkSession, source: str, target: Path, until: int | None = None) -> Iterator[Running]:
    """A consumer that ends with the block."""
    settings = Settings(source, target, until=until, commit_s=0.2, commit_rows=500)
    received = Running(spark, settings)
    try:
        yield received
    finally:
        received.stop()


def ended(spark: SparkSession, source: str, target: Path, until: int | None) -> Running:
    """A consumer that has ended by itself."""
    with consumer(spark, source, target, until) as received:
        received.until(lambda: not received.thread.is_alive(), "its end")
    return received


@pytest.mark.slow
def test_a_job_killed_at_random_ends_equal_and_every_snapshot_sum_is_right(
    bank_source: str, tmp_path: Path, spark: SparkSession
) -> None:
    target, line, chance = tmp_path / "target", snapshots()[LINE], random.Random(7)
    for number in (signal.SIGKILL, signal.SIGINT):
        process = start(bank_source, target, "--commit-interval", "0.05", "--commit-rows", "50")
        event(process, "ready")
        if number == signal.SIGINT:
            second = start(bank_source, target)
            assert second.wait(PATIENCE_S) == 2
            assert second.stderr is not None
            assert f"process {process.pid} holds its lock" in second.stderr.read()
        else:
            time.sleep(chance.uniform(0.3, 2.0))
        process.send_signal(number)
        if number == signal.SIGINT:
            event(process, "stopped")
        assert process.wait(PATIENCE_S) == (0 if number == signal.SIGINT else -number)
    end = ended(spark, bank_source, target, line.ts).end
    assert end is not None
    assert end.ts == line.ts
    assert differences(target, line) == {}
    assert set(bank_sums(target)) == {TOTAL}
    bad = quarantine.read(target / "_tidegate" / "quarantine.jsonl")
    assert [entry["value"] for entry in bad] == [b"\x00not open protocol"], "once, with its bytes"
    assert bad[0]["where"]["partition"] == 1


def test_an_undecodable_message_is_quarantined_and_the_rest_is_applied(
    bank_source: str, tmp_path: Path, spark: SparkSession
) -> None:
    """The warning and the quarantine name the place of the message."""
    target, line = tmp_path / "target", snapshots()[LINE]
    received = ended(spark, bank_source, target, line.ts)
    assert differences(target, line) == {}
    assert received.end is not None
    assert received.end.quarantined == 1
    (warning,) = received.warnings
    (bad,) = quarantine.read(target / "_tidegate" / "quarantine.jsonl")
    assert (bad["key"], bad["value"]) == (b"\x00key", b"\x00not open protocol")
    assert "set aside" in warning.what
    assert f"partition 1, offset {bad['where']['offset']}" in warning.where
    assert warning.why == bad["why"] != ""
    assert str(target / "_tidegate" / "quarantine.jsonl") in warning.fix


def test_a_broker_that_goes_away_is_waited_for_and_nothing_is_lost(
    kafka_broker: Broker,
    new_topic: Callable[..., str],
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate.consumer.reading.offsets.ADMIN_TIMEOUT_S", 1.0)
    monkeypatch.setattr("tidegate.consumer.running.attempts.BACK_OFF_S", (0.5,))
    topic, messages, line = new_topic(3), bank_messages(), snapshots()[LINE]
    middle = len(messages) // 2
    publish(kafka_broker.bootstrap, topic, messages[:middle])
    source = f"kafka://{kafka_broker.bootstrap}/{topic}?protocol=open-protocol"
    with consumer(spark, source, tmp_path / "target", until=line.ts) as received:
        received.until(lambda: received.progress[-1:] and received.progress[-1].rows, "the first rows")
        kafka_broker.kill()
        try:
            received.until(lambda: received.warnings, "a warning")
            received.until(lambda: received.progress[-1].trouble, "the trouble in the progress")
        finally:
            kafka_broker.start()
        received.until(lambda: received.notes, "its recovery")
        publish(kafka_broker.bootstrap, topic, messages[middle:])
        received.until(lambda: not received.thread.is_alive(), "its end")
    # On a slow machine a broker that has just started may leave a second call without an answer.
    warning = received.warnings[0]
    assert isinstance(warning, Retryable)
    assert (warning.what, warning.where) == ("the Kafka broker does not answer", kafka_broker.bootstrap)
    assert "check that the broker runs" in warning.fix
    assert any(f"topic {topic} is read again after" in note for note in received.notes)
    assert received.end is not None
    assert (received.end.ts, received.end.trouble) == (line.ts, "")
    assert differences(tmp_path / "target", line) == {}


def test_a_broker_that_is_down_at_the_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.consumer.running.attempts.START_S", PATIENCE_S)
    monkeypatch.setattr("tidegate.consumer.reading.offsets.ADMIN_TIMEOUT_S", 1.0)
    settings = Settings("kafka://127.0.0.1:1/t?protocol=open-protocol", tmp_path / "target")
    warnings: list[TidegateError] = []

    def warn(error: TidegateError) -> None:
        """Let the time run out only now: on a busy machine the first question alone may take it."""
        warnings.append(error)
        monkeypatch.setattr("tidegate.consumer.running.attempts.START_S", 0.0)

    with pytest.raises(Retryable, match="does not answer") as caught:
        run(settings, lambda: False, Listener(warn=warn))
    assert len(warnings) == 1, "said once, though asked again"
    assert caught.value.where == "127.0.0.1:1"
    assert "check that the broker runs and that the address is right" in caught.value.fix


def test_a_topic_that_comes_a_little_later_is_waited_for(
    kafka: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = f"late-{uuid.uuid4().hex[:12]}"
    source = f"kafka://{kafka}/{topic}?protocol=open-protocol"
    line = snapshots()[LINE]
    monkeypatch.setattr("tidegate.consumer.running.attempts.GIVE_UP_S", PATIENCE_S)
    with consumer(spark, source, tmp_path / "target", until=line.ts) as received:
        received.until(lambda: received.notes, "a note")
        publish(kafka, new_topic(3, topic), bank_messages("open-protocol"))
        received.until(lambda: received.end, "the end")
    assert received.notes[0] == f"the topic does not exist; asking again for {PATIENCE_S:.0f} s"
    assert [note for note in received.notes[1:] if "does not exist" in note] == [], "said once"
    assert differences(tmp_path / "target", line) == {}


def test_a_topic_that_never_comes_is_named(
    kafka: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.consumer.running.attempts.GIVE_UP_S", 1.0)
    received = ended(
        spark, f"kafka://{kafka}/no-such-topic?protocol=open-protocol", tmp_path / "target", None
    )
    assert isinstance(received.error, InvalidInput)
    assert "the topic does not exist" in received.error.what
    assert "a changefeed creates its topic when it starts" in received.error.fix


def test_canal_json_without_the_extension_is_named_with_its_cure(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path, spark: SparkSession
) -> None:
    topic = new_topic(3)
    publish(kafka, topic, bank_messages("canal-json", extension=False))
    source = f"kafka://{kafka}/{topic}?protocol=canal-json"
    with consumer(spark, source, tmp_path / "target") as received:
        received.until(lambda: received.warnings and received.progress[-1].trouble, "a warning")
    (warning,) = received.warnings
    assert "no watermarks" in warning.what
    assert topic in warning.where
    assert "without TiDB's extension" in warning.why
    assert "enable-tidb-extension=true" in warning.fix
    assert received.progress[-1].trouble == warning.what
    stopped = ended(spark, source, tmp_path / "target", until=snapshots()[LINE].ts)
    assert isinstance(stopped.error, InvalidInput), "it must not wait for what can never come"
    assert stopped.error.render() == warning.render()


def test_the_wrong_protocol_is_refused_before_anything_is_set_aside(
    bank_source: str, tmp_path: Path, spark: SparkSession
) -> None:
    received = ended(spark, bank_source.replace("open-protocol", "canal-json"), tmp_path / "target", None)
    assert isinstance(received.error, InvalidInput)
    assert re.search("none of .* messages can be decoded as canal-json", received.error.what)
    assert "protocol=" in received.error.fix
    assert not (tmp_path / "target/_tidegate/quarantine.jsonl").exists()


def test_topics_and_sources_that_cannot_be_read_are_named(kafka: str, new_topic: Callable[..., str]) -> None:
    def refused(topic: str, options: str = "") -> str:
        with pytest.raises(InvalidInput) as caught:
            Offsets(Topic(f"kafka://{kafka}/{topic}?protocol=open-protocol{options}")).partitions()
        return caught.value.render()

    missing = refused("no-such-topic")
    assert "the topic does not exist" in missing
    assert f"topic no-such-topic at {kafka}" in missing
    assert "a changefeed creates its topic when it starts" in missing
    topic = new_topic(3)
    assert "3 partitions, fewer than partition-num=5" in refused(topic, "&partition-num=5")
    fewer = Topic(f"kafka://{kafka}/{topic}?protocol=open-protocol&partition-num=2")
    assert Offsets(fewer).partitions() == [0, 1]
    with pytest.raises(InvalidInput, match="does not exist"):
        Offsets(Topic(f"kafka://{kafka}/no-such-topic?protocol=open-protocol")).ends([0])
    other = new_topic(3)
    several = Topic(
        f"kafka://{kafka}/{topic},zz-no-such-topic,{other}?protocol=open-protocol&partition-num=2"
    )
    places = sorted([(topic, 0), (topic, 1), (other, 0), (other, 1), (other, 2)])
    numbers = [several.number(*place) for place in places]
    assert Offsets(several).partitions() == numbers
    ends: dict[int, int] = {}
    while not ends:  # a topic's partitions are without leaders in its first moments
        with suppress(Retryable):
            ends = Offsets(several).ends(numbers)
    assert ends == dict.fromkeys(numbers, 0)
    assert "the topic does not exist" in refused("no-such-topic,no-other")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("bank", "the URI has no scheme"),
        ("kafk://a/b?protocol=open-protocol", "did you mean 'kafka'?"),
        ("mysql://a/b", "not supported yet"),
        ("kafka://a/b", "add protocol=... to the source URI"),
        ("kafka://a/b?protocol=open-protokol", "did you mean 'open-protocol'?"),
        (
            "kafka://a/b?protocol=canal-json&enable-tidb-extensio=true",
            "did you mean 'enable-tidb-extension'?",
        ),
        ("kafka://a/b?protocol=open-protocol&enable-tidb-extension=true", "use protocol canal-json"),
    ],
)
def test_a_wrong_source_is_refused_with_what_is_right(source: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Topic(source)
    assert words in caught.value.render()
    assert caught.value.where == "source URI"
    assert caught.value.fix


def test_a_wrong_time_zone_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no time zone 'Mars'") as caught:
        Topic("kafka://a/b?protocol=open-protocol", "Mars")
    assert caught.value.where == "--time-zone"


def test_a_target_filled_from_another_number_of_partitions_is_not_touched(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path, spark: SparkSession
) -> None:
    topic, source = new_topic(3), f"kafka://{kafka}/%s?protocol=open-protocol"
    publish(kafka, topic, bank_messages()[:200])
    with consumer(spark, source % topic, tmp_path / "target") as received:
        received.until(lambda: received.progress[-1:] and received.progress[-1].snapshots, "a snapshot")
    again = ended(spark, (source % topic) + "&partition-num=2", tmp_path / "target", None)
    assert isinstance(again.error, Fatal)
    assert "has 2 partitions, the target was filled from 3" in again.error.what
    assert "add partition-num=3 to --source" in again.error.fix
    other = ended(spark, source % new_topic(3), tmp_path / "target", None)
    assert isinstance(other.error, InvalidInput)
    assert "the target belongs to another topic" in other.error.what


def test_a_target_directory_that_cannot_be_made_is_refused() -> None:
    settings = Settings("kafka://127.0.0.1:1/t?protocol=open-protocol", Path("/proc/no/target"))
    with pytest.raises(InvalidInput, match="target directory cannot be used") as caught:
        run(settings, lambda: False, Listener())
    assert caught.value.where == "/proc/no/target"
    assert "choose a --target directory" in caught.value.fix


def test_messages_deleted_before_they_were_read_stop_it() -> None:
    topic = Topic("kafka://127.0.0.1:1/t?protocol=open-protocol")
    check_retained(topic, {0: 5}, {0: 5})
    with pytest.raises(Fatal, match="no longer holds") as caught:
        check_retained(topic, {0: 5}, {0: 6})
    assert "partition 0: needed 5, oldest 6" in caught.value.where
    assert "retention" in caught.value.why


def test_a_row_that_is_not_on_the_topic_stops_it_only_when_it_is_wanted() -> None:
    topic = Topic("kafka://127.0.0.1:1/t?protocol=open-protocol")
    fetched = [Fetched(1, 9, bad=(BadMessage(7, b"k", b"v", "too large", reduced_ts=500),))]
    check_complete(topic, [Fetched(1, 9, bad=(BadMessage(7, b"k", b"v", "damaged"),))], None)
    check_complete(topic, fetched, until=499)
    with pytest.raises(Fatal, match="not on the topic") as caught:
        check_complete(topic, fetched, None)
    assert "partition 1, offset 7, commit ts 500" in caught.value.where
    assert "large-message-handle-option=none" in caught.value.fix


def stopped_by(spark: SparkSession, source: str, target: Path, change: Callable[[], object]) -> TidegateError:
    """Return the error that ends a consumer whose topic changes right after it has begun."""
    late = time.monotonic() + PATIENCE_S
    with pytest.raises(TidegateError) as caught:
        run(
            Settings(source, target),
            lambda: time.monotonic() > late,
            Listener(ready=lambda _: change()),
            spark,
        )
    return caught.value


def test_a_topic_changed_while_it_is_read_stops_the_job_with_the_reason(
    kafka: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate.consumer.running.attempts.GIVE_UP_S", 1.0)
    admin, topic, messages = AdminClient({"bootstrap.servers": kafka}), new_topic(3), bank_messages()
    publish(kafka, topic, messages)
    source = f"kafka://{kafka}/{topic}?protocol=open-protocol"

    def delete_rows() -> None:
        where = TopicPartition(topic, 1, 5)
        admin.delete_records([where])[where].result(PATIENCE_S)

    error = stopped_by(spark, source, tmp_path / "deleted", delete_rows)
    assert isinstance(error, Fatal)
    assert "no longer holds messages that the target needs" in error.what
    assert "partition 1: needed 0, oldest 5" in error.where
    assert "retention" in error.why

    topic = new_topic(3)
    publish(kafka, topic, messages)
    source = f"kafka://{kafka}/{topic}?protocol=open-protocol"

    def write_to_a_new_partition() -> None:
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(PATIENCE_S)
        while len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) < 4:
            time.sleep(0.02)
        publish(kafka, topic, [(3, messages[-1][1])])

    error = stopped_by(spark, source, tmp_path / "added", write_to_a_new_partition)
    assert isinstance(error, Fatal)
    assert "partition 3 was added to the topic" in error.what
    assert Lakehouse(tmp_path / "added").snapshots.newest_ts() is None, (
        "no snapshot may lack the new partition's rows"
    )

    key = b'{"ts":%d,"scm":"s","tbl":"t","t":1,"ohk":true}' % (snapshots()[LINE].ts + 1)
    value = b'{"u":{"a":{"t":3,"h":true,"f":2,"v":1}}}'
    frame = len(key).to_bytes(8, "big") + key, len(value).to_bytes(8, "big") + value
    publish(kafka, topic, [(0, Message((1).to_bytes(8, "big") + frame[0], frame[1]))])
    received = ended(spark, source, tmp_path / "reduced", None)
    assert isinstance(received.error, Fatal)
    assert "a row is not on the topic" in received.error.what
    assert "a row of s.t was too large for a message" in received.error.why
    assert not (tmp_path / "reduced/_tidegate/quarantine.jsonl").exists()


def test_a_recreated_topic_is_not_taken_for_the_one_that_filled_the_target(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path, spark: SparkSession
) -> None:
    admin, topic, messages = AdminClient({"bootstrap.servers": kafka}), new_topic(3), bank_messages()
    source, target, line = (
        f"kafka://{kafka}/{topic}?protocol=open-protocol",
        tmp_path / "t",
        snapshots()[LINE],
    )
    publish(kafka, topic, messages)

    def make_again() -> None:
        admin.delete_topics([topic])[topic].result(PATIENCE_S)
        while topic in admin.list_topics(timeout=PATIENCE_S).topics:
            time.sleep(0.02)
        new_topic(3, name=topic)
        publish(kafka, topic, messages + messages)

    error = stopped_by(spark, source, tmp_path / "running", make_again)
    assert isinstance(error, Fatal)
    assert "a topic is another one than the target was filled from" in error.what
    assert Lakehouse(tmp_path / "running").snapshots.newest_ts() is None, (
        "nothing of the new one may be in it"
    )

    assert ended(spark, source, target, line.ts).error is None
    zone = Settings(source, target, time_zone="Asia/Tokyo")
    with pytest.raises(InvalidInput, match="was filled under another --time-zone"):
        run(zone, lambda: False, Listener())
    make_again()
    with pytest.raises(Fatal, match="another one than the target") as caught:
        run(Settings(source, target, until=line.ts), lambda: False, Listener())
    assert f"topic {topic}" in caught.value.where
    assert "deleted and created again" in caught.value.why


def test_a_compacted_topic_is_refused(kafka: str, tmp_path: Path) -> None:
    admin, topic = AdminClient({"bootstrap.servers": kafka}), "compacted-by-somebody"
    policy = {"cleanup.policy": "compact,delete"}
    admin.create_topics([NewTopic(topic, 1, 1, config=policy)])[topic].result(PATIENCE_S)
    settings = Settings(f"kafka://{kafka}/{topic}?protocol=open-protocol", tmp_path / "target")
    with pytest.raises(InvalidInput, match="a compacted topic cannot be consumed"):
        run(settings, lambda: False, Listener())


def test_updates_without_old_values_apply_until_the_topic_is_repartitioned(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path, spark: SparkSession
) -> None:
    topic, target, line = new_topic(3), tmp_path / "target", snapshots()[LINE]
    publish(kafka, topic, bank_messages("ticdc-mq"))
    source = f"kafka://{kafka}/{topic}?protocol=ticdc-mq"
    received = ended(spark, source, target, line.ts)
    assert received.error is None
    assert differences(target, line) == {}
    publish(kafka, topic, [(1, Message(b'{"type":"Admin"}', b'{"partition":5}'))])
    received = ended(spark, source, target, None)
    assert isinstance(received.error, Fatal)
    assert "has changed the topic to 5 partitions" in received.error.what
    assert "partition 1, offset" in received.error.where
