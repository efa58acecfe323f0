"""The transactional slot writer against a real broker: fencing, progress, errors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.sink.slots import deliver, read_progress
from tidegate.config.reading import merge_config
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri, parse_sink_uri
from tidegate.errors import Fenced, InvalidInput, Retryable
from tidegate.model.message import MessageBlock
from tidegate.model.progress import SpanProgress
from tidegate.sink.kafka.client import (
    check_decided,
    client_settings,
    producer_settings,
    transactional_id,
)
from tidegate.sink.kafka.slot import SlotWriter
from tidegate.sink.kafka.topics import ensure_progress_topic, ensure_topic, existing

pytestmark = pytest.mark.integration

Committed = Callable[[str], list[tuple[int, bytes | None, bytes | None]]]


def block(*messages: tuple[int, bytes | None, bytes | None]) -> MessageBlock:
    """A MessageBlock of (partition, key, value)."""
    data = b"".join((key or b"") + (value or b"") for _, key, value in messages)
    key_length = np.array([-1 if key is None else len(key) for _, key, _ in messages], np.int64)
    value_length = np.array([-1 if value is None else len(value) for _, _, value in messages], np.int64)
    sizes = np.maximum(key_length, 0) + np.maximum(value_length, 0)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    return MessageBlock(
        np.frombuffer(data, np.uint8),
        starts,
        key_length,
        starts + np.maximum(key_length, 0),
        value_length,
        np.array([p for p, _, _ in messages], np.int32),
        np.ones(len(messages), np.int32),
    )


def sink(kafka: str, topic: str, options: str = "") -> tuple[SinkUri, ReplicaConfig]:
    uri = parse_sink_uri(f"kafka://{kafka}/{topic}?protocol=open-protocol{options}")
    return uri, merge_config({}, uri)


class Grants:
    """A grant in the metadata store, for writers that prove themselves."""

    def __init__(self) -> None:
        self.current = 1

    def prover(self, incarnation: int) -> Callable[[], None]:
        def prove() -> None:
            if incarnation != self.current:
                raise Fenced("an older incarnation")

        return prove


def test_rows_and_progress_become_visible_together_and_in_order(
    kafka: str, new_topic: Callable[..., str], committed: Committed
) -> None:
    topic, progress = new_topic(3), new_topic(1)
    uri, config = sink(kafka, topic)
    writer = SlotWriter(uri, config, transactional_id(1, "default", topic, 0), progress, Grants().prover(1))
    rows = [(i % 3, b"k%d" % i, b"v%d" % i) for i in range(1000)]
    deliver(
        writer,
        [block(*rows[:500]), block(*rows[500:])],
        {"s1": SpanProgress("i", (1, 1), 1, 77).to_bytes()},
    )
    assert [m[1:] for m in committed(topic)] == [m[1:] for p in range(3) for m in rows if m[0] == p]
    assert read_progress(uri, config, progress) == {"s1": SpanProgress("i", (1, 1), 1, 77)}


def test_nulls_arrive_as_nulls_and_nothing_as_nothing(
    kafka: str, new_topic: Callable[..., str], committed: Committed
) -> None:
    topic, progress = new_topic(1), new_topic(1)
    uri, config = sink(kafka, topic)
    writer = SlotWriter(uri, config, transactional_id(1, "default", topic, 0), progress, Grants().prover(1))
    keyed = [(0, b"k", None), (0, b"l", b""), (0, b"m", b"v"), (0, b"n", None)]
    unkeyed: list[tuple[int, bytes | None, bytes | None]] = [(0, None, b"w"), (0, None, None)]
    deliver(writer, [block(*keyed), block(*unkeyed)], {})
    assert committed(topic) == [*keyed, *unkeyed]


def test_a_topic_with_too_few_partitions_is_refused(kafka: str, new_topic: Callable[..., str]) -> None:
    uri, config = sink(kafka, new_topic(2), "&partition-num=5")
    with pytest.raises(InvalidInput, match="2 partitions"):
        ensure_topic(uri, config.sink.kafka_config)


def test_a_missing_topic_is_created_unless_the_settings_forbid_it(
    kafka: str, new_topic: Callable[..., str]
) -> None:
    missing = new_topic(1) + "-missing"
    uri, config = sink(kafka, missing, "&auto-create-topic=false")
    with pytest.raises(InvalidInput, match="does not exist"):
        ensure_topic(uri, config.sink.kafka_config)
    uri, config = sink(kafka, missing, "&partition-num=4")
    assert ensure_topic(uri, config.sink.kafka_config) == 4
    ensure_progress_topic(uri, config.sink.kafka_config, missing + "-progress")
    assert read_progress(uri, config, missing + "-progress") == {}


def test_a_question_about_topics_makes_none_and_names_only_those(
    kafka: str, new_topic: Callable[..., str]
) -> None:
    """Hundreds of changefeeds ask at the same time, of brokers that may have many thousands of topics."""
    one, two = new_topic(2), new_topic(1)
    missing = one + "-missing"
    uri, config = sink(kafka, one)
    admin = AdminClient(client_settings(uri, config.sink.kafka_config))
    assert existing(admin, uri, [one, missing, one]) == {one: 2}
    assert existing(admin, uri, [missing, two]) == {two: 1}
    assert existing(admin, uri, []) == {}
    assert missing not in admin.list_topics(timeout=30).topics


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_a_topic_that_has_just_been_made_may_have_no_leader_yet(code: int) -> None:
    """About one in six of such topics had none when changefeeds began together, and they failed for it."""
    asked = list[TopicPartition]()

    class Settling:
        """Answers the first two questions, which come together, as a broker that is not the leader yet."""

        def list_offsets(self, places: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Any]:
            (place,) = places
            asked.append(place)
            answer = Future[Any]()
            if len(asked) <= 2:
                answer.set_exception(KafkaException(KafkaError(code)))
            else:
                answer.set_result(SimpleNamespace(offset=7))
            return {place: answer}

    admin: Any = Settling()
    check_decided(admin, parse_sink_uri("kafka://h/t?protocol=open-protocol"), "progress")
    assert [(each.topic, each.partition) for each in asked] == [("progress", 0)] * 4


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ""),
        (KafkaError.LEADER_NOT_AVAILABLE, ""),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "does not say whether topic 'closed' exists"),
        (KafkaError._TRANSPORT, "does not answer"),
    ],
)
def test_only_what_a_broker_says_is_missing_counts_as_missing(code: int, error: str) -> None:
    """A topic that may not be looked at would be made again, or lose its place among those in use."""

    class Answers:
        """Has the topic `open`, and says something else about the others."""

        def describe_topics(self, asked: TopicCollection, **_: Any) -> dict[str, Any]:
            answers = {name: Future[Any]() for name in asked.topic_names}
            for name, answer in answers.items():
                if name == "open":
                    answer.set_result(SimpleNamespace(partitions=[0, 1]))
                else:
                    answer.set_exception(KafkaException(KafkaError(code)))
            return answers

    admin: Any = Answers()
    uri = parse_sink_uri("kafka://h/t?protocol=open-protocol")
    if not error:
        assert existing(admin, uri, ["open", "closed"]) == {"open": 2}
        return
    with pytest.raises(Retryable, match=error) as raised:
        existing(admin, uri, ["open", "closed"])
    assert raised.value.where == "h:9092"


def test_a_broker_that_is_down_is_a_retryable_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.sink.kafka.topics.CALL_TIMEOUT_S", 2.0)
    uri, config = sink("127.0.0.1:1", "t", "&dial-timeout=1s&write-timeout=1s&read-timeout=1s")
    with pytest.raises(Retryable, match=r"127\.0\.0\.1:1") as raised:
        ensure_topic(uri, config.sink.kafka_config)
    assert raised.value.why == "no broker has answered within 2 s"


@pytest.mark.parametrize(
    ("options", "limit_ms"),
    [
        ("", 10_000),
        ("&read-timeout=25s", 25_000),
        ("&write-timeout=1s&read-timeout=2s", 2_000),
        ("&read-timeout=10m", 300_000),
    ],
)
def test_a_request_may_take_as_long_as_the_longer_timeout(options: str, limit_ms: int) -> None:
    uri, config = sink("127.0.0.1:1", "t", options)
    kafka = config.sink.kafka_config
    assert client_settings(uri, kafka)["socket.timeout.ms"] == limit_ms
    settings = producer_settings(uri, kafka, "t.1")
    assert settings["socket.timeout.ms"] == min(limit_ms, settings["transaction.timeout.ms"])
    Producer(settings), AdminClient(client_settings(uri, kafka))  # librdkafka takes them
