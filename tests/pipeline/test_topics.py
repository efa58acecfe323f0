"""Rows go to the topic of their table, over as many partitions as that has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.contracts.codec_rows import messages_of
from tests.pipeline.recorded import RecordedFeed
from tests.pipeline.test_job import BANK, UPTO
from tests.pipeline.test_stripes import Keeper

from tidegate.codec.base import Batch, Decoded
from tidegate.codec.decode import decoder
from tidegate.codec.protocols.avro.schema import AvroOptions
from tidegate.codec.registry import canonical, options_of
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.model.message import Message, MessageBlock
from tidegate.model.progress import TOPICS_KEY, Topics
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.begin import resume
from tidegate.pipeline.worker.deliver import Worker, open_worker
from tidegate.pipeline.worker.stages import stage_context
from tidegate.sink.base import Content

RULES = [
    {"matcher": ["bank.orders"], "partition": "index-value", "topic": "{table}.log"},
    {"matcher": ["bank.o*", "bank.tr*"], "partition": "index-value", "topic": "wrong"},
]
COUNTS = {"own": 3, "orders.log": 2, "wrong": 5}


class Sorter(Keeper):
    """Keeps messages by topic and partition."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[tuple[str, int], list[Message]] = {}

    def write(self, contents: Sequence[Content]) -> None:
        for one in contents:
            assert isinstance(one, MessageBlock)
            for partition, message in messages_of(one):
                self.places.setdefault((one.topic, partition), []).append(message)


def delivered(
    folder: Path, protocol: str, rules: list[dict[str, Any]], counts: Mapping[str, int]
) -> tuple[dict[tuple[str, int], list[Message]], FeedSpec]:
    feed = RecordedFeed(folder, BANK, f"kafka://127.0.0.1:1/own?protocol={protocol}", UPTO)
    spec = FeedSpec.load(feed.write(settings={"sink": {"dispatchers": rules}}))
    sorter = Sorter()
    worker = Worker(LocalAccess(spec), counts.__getitem__, sorter)
    spans = Bounds.load(feed.feed_dir / "bounds.json").spans
    worker.deliver([Range(span, ts, feed.last_ts) for span, ts in spans.items()])
    return sorter.places, spec


def decoded(messages: list[Message], spec: FeedSpec) -> Decoded:
    batch = Batch([m.key for m in messages], [m.value for m in messages], list(range(len(messages))), None)
    return decoder(options_of(spec.config)).decode(batch)


def test_each_topic_has_its_tables_over_its_own_number_of_partitions(tmp_path: Path) -> None:
    found, spec = delivered(tmp_path / "several", "open-protocol", RULES, COUNTS)
    tables = {"own": "accounts", "orders.log": "orders", "wrong": "transfers"}
    for (topic, partition), messages in found.items():
        assert {table.table for table in decoded(messages, spec).rows} == {tables[topic]}
        assert partition < COUNTS[topic]
    for topic, matcher in (("orders.log", "bank.orders"), ("wrong", "bank.transfers")):
        rule = {"matcher": [matcher], "partition": "index-value"}
        alone, _ = delivered(tmp_path / topic, "open-protocol", [rule], {"own": COUNTS[topic]})
        there = {partition: of for (name, partition), of in found.items() if name == topic}
        assert len(there) == COUNTS[topic]
        for partition, messages in there.items():
            same = [m for m in alone["own", partition] if m.key and matcher.split(".")[1].encode() in m.key]
            assert same == messages


def test_the_definitions_of_a_table_are_in_its_topic(tmp_path: Path) -> None:
    found, _ = delivered(tmp_path, "simple", RULES, COUNTS)
    assert {topic for topic, _ in found} == COUNTS.keys()
    for messages in found.values():
        first = json.loads(messages[0].value or b"")
        assert "tableSchema" in first


def test_schema_registry_subjects_are_named_by_the_topic_of_the_table() -> None:
    uri = parse_sink_uri("kafka://h/own?protocol=avro&schema-registry=http%3A%2F%2Fh%3A1")
    sink = {"dispatchers": [{"matcher": ["a.*"], "topic": "{schema}_{table}"}]}
    made = stage_context(canonical(merge_config({"sink": sink}, uri)), "own", COUNTS.__getitem__)
    own, other = made.codec, made.codec_of("a_t")
    assert isinstance(own, AvroOptions)
    assert isinstance(other, AvroOptions)
    assert (own.topic, other.topic, other.book is own.book) == ("own", "a_t", True)
    assert made.codec_of("a_t") is other, "plans are kept by it"


def test_a_worker_does_not_ask_the_sink_for_topics_that_the_owner_fixed(tmp_path: Path) -> None:
    """Nobody listens at the sink's address here: to ask it would be an error after a while."""
    feed = RecordedFeed(tmp_path, BANK, "kafka://127.0.0.1:1/own?protocol=open-protocol", UPTO)
    spec = FeedSpec.load(feed.write())
    resume(spec, {TOPICS_KEY: Topics(spec.instance, {"own": 3, "orders.log": 2}).to_bytes()})
    assert spec.durable() == LocalAccess(spec).durable()
    partitions = open_worker(LocalAccess(spec)).plan.partitions
    assert [partitions(topic) for topic in ("own", "orders.log")] == [3, 2]
