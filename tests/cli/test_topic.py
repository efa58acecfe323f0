"""`tidegate topic check` on topics of a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cli.test_usage import used
from tests.consumer.logs import bank_events
from tests.consumer.test_job import LINE, bank_messages
from tests.consumer.topics import messages_of, publish
from tidegate.codec.entry import RowCodec
from tidegate.codec.registry import CODECS, codec_options
from tidegate.model.message import Message

pytestmark = pytest.mark.integration

Topics = Callable[..., str]
WITHOUT_REGISTRY = [c.name for c in CODECS.values() if isinstance(c, RowCodec) and c.schemas is None]
"""The others are checked where there is a registry, in tests/integration."""


def source_of(kafka: str, topic: str, protocol: str = "open-protocol") -> str:
    return f"kafka://{kafka}/{topic}?{urlencode(marked(protocol))}"


def marked(protocol: str) -> dict[str, str]:
    """Settings of a protocol with which it has Resolved."""
    unmarked = CODECS[protocol].unmarked
    return {"protocol": protocol} | (dict(parse_qsl(unmarked.option)) if unmarked is not None else {})


def recorded(protocol: str) -> list[tuple[int, Message]]:
    """The bank log as messages of three partitions."""
    return list(messages_of(bank_events(LINE), codec_options(marked(protocol)), 3))


@pytest.mark.parametrize("protocol", WITHOUT_REGISTRY)
def test_a_recorded_log_keeps_the_contract_in_every_protocol(
    protocol: str, kafka: str, new_topic: Topics
) -> None:
    topic, messages = new_topic(3), recorded(protocol)
    publish(kafka, topic, messages)
    code, text = used("topic", "check", source_of(kafka, topic, protocol))
    assert code == 0, text
    assert f"{topic} keeps the contract, as far as it could be judged." in text
    assert "bank.accounts" in text
    assert "the lowest Resolved of all partitions" in text


def test_a_row_out_of_its_place_and_one_that_comes_late_are_named(kafka: str, new_topic: Topics) -> None:
    topic, messages = new_topic(3), bank_messages()
    rows = [at for at, (_, one) in enumerate(messages) if b'"bal' in one.value or b'"id' in one.value]
    home, early = messages[rows[0]]
    publish(kafka, topic, [*messages, ((home + 1) % 3, early)])
    code, text = used("topic", "check", source_of(kafka, topic), "--json")
    found = json.loads(text)
    assert (code, found["holds"]) == (1, False)
    (first, *_) = found["violations"]
    assert (first["rule"], first["partition"]) == ("moved", (home + 1) % 3)
    assert first["why"] == f"it appeared on partition {home} before"
    code, text = used("topic", "check", source_of(kafka, topic))
    assert code == 1
    assert f"{topic} BREAKS the contract:" in text
    assert f"partition {(home + 1) % 3} offset {first['offset']}" in text


def test_topic_check_compares_rows_with_the_configured_dispatcher(
    kafka: str, new_topic: Topics, tmp_path: Path
) -> None:
    topic = new_topic(3)
    publish(kafka, topic, bank_messages())
    rules = tmp_path / "feed.toml"
    rules.write_text('[[sink.dispatchers]]\nmatcher = ["bank.accounts"]\npartition = "ts"\n')
    code, text = used("topic", "check", source_of(kafka, topic), "--config", rules, "--json")
    found = json.loads(text)
    assert code == 1
    assert found["counts"]["placed"] > 0
    assert found["tables"]["bank.accounts"]["dispatcher"] == "ts, as given"
    assert any("dispatcher 'ts' puts it on partition" in one["why"] for one in found["violations"])


def test_a_topic_without_its_beginning_is_judged_from_what_is_left(kafka: str, new_topic: Topics) -> None:
    topic, messages = new_topic(3), bank_messages()
    publish(kafka, topic, messages)
    first = next(one for one in messages if one[0] == 1)
    publish(kafka, topic, [first])  # it came again, and its first appearance goes
    admin = AdminClient({"bootstrap.servers": kafka})
    where = TopicPartition(topic, 1, 5)
    admin.delete_records([where])[where].result(30)
    code, text = used("topic", "check", source_of(kafka, topic), "--json")
    assert (code, json.loads(text)["violations"]) == (0, [])


def test_what_is_no_message_of_the_protocol_breaks_it(kafka: str, new_topic: Topics) -> None:
    topic = new_topic(1)
    publish(kafka, topic, [(0, Message(b"key", b"no JSON"))])
    code, text = used("topic", "check", source_of(kafka, topic, "canal-json"), "--json")
    (first,) = json.loads(text)["violations"]
    assert (code, first["rule"], first["offset"]) == (1, "decodable", 0)


def test_a_topic_that_is_not_there_is_an_error_and_no_verdict(kafka: str) -> None:
    code, text = used("topic", "check", source_of(kafka, "nobody-s"))
    assert (code, "the topic does not exist" in text) == (2, True)
    code, text = used("topic", "check", source_of(kafka, "nobody-s"), "--producer", "debezium")
    assert (code, "write tidegate or ticdc" in text) == (2, True)
