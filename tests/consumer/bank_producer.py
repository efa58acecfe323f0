"""The bank's changefeed as a process of its own, to be killed: `python -m tests.consumer.bank_producer`.

Each group of events up to a mark is one transaction of Kafka, together with a record of how many groups
are in, as our sink does it. A process that begins goes back some groups from that record and sends them
again: what a producer without transactions, such as TiCDC, leaves on a topic when it is killed. It prints a
JSON line for each further group that is in, and ends after the next one if it gets SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import threading
from collections.abc import Iterator, Sequence

from confluent_kafka import Producer

from tests.consumer.bank import Bank
from tests.consumer.topics import Event, messages_of
from tidegate.codec.registry import codec_options
from tidegate.config.reading import merge_config
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri, parse_sink_uri
from tidegate.model.message import Message
from tidegate.sink.kafka.client import CALL_TIMEOUT_S, producer_settings, read_records

PARTITIONS = 8
KEY = "groups"
OPTIONS = codec_options({"protocol": "open-protocol"})
BACK = 6
"""Groups that a restart sends again, at most."""


class Feed:
    """One topic, and the topic of what is in."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.uri: SinkUri = parse_sink_uri(f"kafka://{bootstrap}/{topic}?protocol=open-protocol")
        self.config: ReplicaConfig = merge_config({}, self.uri)
        self.progress = f"{topic}.progress"

    def groups_in(self) -> int:
        """How many groups are committed."""
        records = read_records(self.uri, self.config.sink.kafka_config, self.progress)
        return int(records.get(KEY, b"0"))


def send(feed: Feed, seed: int, pause_s: float) -> Iterator[tuple[int, int]]:
    """Continue the feed; yields (number of groups, their ts), each when it is committed."""
    producer = Producer(producer_settings(feed.uri, feed.config.sink.kafka_config, f"bank.{feed.uri.topic}"))
    producer.init_transactions(CALL_TIMEOUT_S)
    bank, held = Bank(seed), feed.groups_in()
    first = max(0, held - random.Random(held).randint(0, BACK))
    resting = threading.Event()
    for number, events in enumerate(bank.groups(), 1):
        if number <= first:
            continue
        _commit(producer, feed, events, max(number, held), pause_s)
        if number > held:
            yield number, bank.ts
        resting.wait(pause_s)


def _commit(producer: Producer, feed: Feed, events: Sequence[Event], number: int, pause_s: float) -> None:
    """Keep one transaction open for a while, because half of all kills are to find it open."""
    messages = list(messages_of(events, OPTIONS, PARTITIONS))
    middle = len(messages) // 2
    producer.begin_transaction()
    for part in (messages[:middle], messages[middle:]):
        for partition, message in part:
            _produce(producer, feed, partition, message)
        producer.flush(CALL_TIMEOUT_S)
        threading.Event().wait(pause_s / 2)
    producer.produce(feed.progress, str(number), KEY, partition=0)
    producer.commit_transaction(CALL_TIMEOUT_S)


def _produce(producer: Producer, feed: Feed, partition: int, message: Message) -> None:
    headers = list(message.headers) or None
    producer.produce(feed.uri.topic, message.value, message.key, partition=partition, headers=headers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True, help="seconds between two groups")
    chosen = parser.parse_args()
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    for number, ts in send(Feed(chosen.kafka, chosen.topic), chosen.seed, chosen.pause):
        print(json.dumps({"event": "group", "number": number, "ts": ts}), flush=True)
        if ending.is_set():
            break


if __name__ == "__main__":
    main()
