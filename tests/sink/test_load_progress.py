"""What of an initial load is in Kafka, read back by the incarnation that goes on with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sink.slots import deliver
from tests.sink.test_kafka import sink
from tidegate.sink.kafka import SpanProgress, read_progress, transactional_id
from tidegate.sink.kafka_slot import SlotWriter
from tidegate.sink.load_progress import LoadProgress, load_key, read_load_progress

pytestmark = pytest.mark.integration


def test_only_the_records_of_this_feeds_load_at_its_ts_count(
    kafka: str, new_topic: Callable[..., str]
) -> None:
    topic, journal = new_topic(1), new_topic(1)
    uri, config = sink(kafka, topic)
    records = {
        "mine": LoadProgress("mine", (1, 2), 3, 50, 7, "6b"),
        "done": LoadProgress("mine", (1, 2), 3, 50, 9, None),
        "foreign": LoadProgress("another", (1, 2), 3, 50, 8, None),
        "earlier": LoadProgress("mine", (1, 2), 3, 40, 8, None),
    }
    stream = SpanProgress("mine", (1, 2), 3, 60)
    writer = SlotWriter(uri, config, transactional_id(1, "default", topic, 0), lambda: None)
    written = {load_key(name): record.to_bytes() for name, record in records.items()}
    deliver(writer, topic, [], journal, written | {"span": stream.to_bytes()})
    found = read_load_progress(uri, config.sink.kafka_config, journal, "mine", 50)
    assert found == {name: records[name] for name in ("mine", "done")}
    assert read_progress(uri, config.sink.kafka_config, journal) == {"span": stream}
