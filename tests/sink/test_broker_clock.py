"""A broker whose clock jumps by hours or days: it counts transactions, and what it takes, by that clock."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fixtures.kafka import Broker
from tests.fixtures.topic import read_committed
from tests.fixtures.wall_clock import WallClock
from tests.integration.cluster import eventually
from tests.sink.slots import deliver, read_progress
from tests.sink.test_kafka import block, sink
from tidegate.codec import registry
from tidegate.errors import Fenced, Retryable
from tidegate.model.progress import SpanProgress
from tidegate.sink.kafka import client
from tidegate.sink.kafka import owner_sink as owner
from tidegate.sink.kafka.client import transactional_id
from tidegate.sink.kafka.owner_sink import KafkaOwnerSink
from tidegate.sink.kafka.slot import SlotWriter, fence_slots
from tidegate.sink.kafka.topics import ensure_progress_topic, ensure_topic

pytestmark = pytest.mark.integration


ENDED = frozenset({0, 4, 5})
"""Empty, CompleteCommit, CompleteAbort (Kafka's TransactionState)."""


class Sinks:
    """A slot's writer and the owner's sink on one topic, reopened as the next incarnation does."""

    def __init__(self, kafka: str, topic: str) -> None:
        self.kafka, self.topic, self.progress = kafka, topic, f"{topic}.progress"
        self.uri, self.config = sink(self.kafka, topic, "&partition-num=1")
        self.name = transactional_id(1, "default", topic, 0)
        self.open()

    def open(self) -> None:
        settings = self.config.sink.kafka_config
        ensure_topic(self.uri, settings)
        ensure_progress_topic(self.uri, settings, self.progress)
        fence_slots(self.uri, self.config, [self.name])
        self.reached = {
            span: one.ts for span, one in read_progress(self.uri, self.config, self.progress).items()
        }.get("s", 0)
        self.writer = SlotWriter(self.uri, self.config, self.name, self.progress, lambda: None)
        marks = registry.marks(registry.options_of(self.config))
        self.owner = KafkaOwnerSink(
            self.uri, self.config, f"{self.topic}.owner", self.progress, "i", marks, lambda: None
        )

    def send(self, ts: int) -> None:
        """A row and then its Resolved."""
        record = SpanProgress("i", (1, 1), 1, ts).to_bytes()
        deliver(self.writer, [block((0, None, b"%d" % ts))], {"s": record})
        self.owner.send_resolved(ts)

    def rows(self) -> list[int]:
        """The rows that a committed reader sees."""
        values = [message.value() for message in read_committed(self.kafka, self.topic)[0]]
        return [int(value) for value in values if value.isdigit()]


@dataclass
class World:
    """A broker with a clock of its own."""

    broker: Broker
    clock: WallClock
    sinks: dict[str, Sinks]

    def jump(self, hours: float) -> None:
        """Set the clock ahead, or back once the broker has ended all transactions.

        It answers a commit first and ends the transaction afterwards. If its clock is set back in between, it
        may not do so until the clock has caught up, and refuses the id meanwhile (CONCURRENT_TRANSACTIONS).
        """
        if hours < 0:
            eventually("the end of all transactions", lambda: ENDED.issuperset(self.states().values()))
        self.clock.jump(hours)

    def states(self) -> dict[bytes, int]:
        """Transactional id -> state, as the coordinator logs it (Kafka's TransactionLogValue.json)."""
        states = {}
        for messages in read_committed(self.broker.bootstrap, "__transaction_state").values():
            for message in messages:
                # version, producer id, epoch, timeout, state
                *_, states[message.key()] = struct.unpack_from(">hqhib", message.value())
        return states


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, _wall_clock_library: str) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("broker-clock")
    clock = WallClock(folder / "clock")
    with pytest.MonkeyPatch.context() as patch:
        clock.wear(patch)
        patch.setenv("LD_PRELOAD", str(_wall_clock_library))
        broker = Broker(folder / "services")
    # A controller whose clock was set back makes no topic until it has caught up.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics(
        [NewTopic(name, 1, 1) for name in ("theirs", "theirs.progress")]
    ).values():
        made.result(60)
    names = ("ours", "theirs", "ended")
    yield World(broker, clock, {name: Sinks(broker.bootstrap, name) for name in names})
    broker.kill()  # nor does it end in order then
    broker.stop()


def test_our_own_topics_accept_messages_when_clocks_differ_by_hours(world: World) -> None:
    sinks = world.sinks["ours"]
    sinks.send(1)
    for ts, hours in enumerate((-6, 36, -60, 30), 2):
        world.jump(hours)
        sinks.send(ts)
    assert sinks.rows() == [1, 2, 3, 4, 5]
    assert sinks.owner.journal.resolved_ts == 5


def test_a_late_broker_rejects_a_topic_with_our_time_until_clocks_agree(
    world: World,
) -> None:
    sinks = world.sinks["theirs"]
    sinks.send(1)
    world.jump(-6)
    for send in (lambda: sinks.send(2), lambda: sinks.owner.send_resolved(2)):
        with pytest.raises(Retryable, match="Kafka refuses the changefeed's messages") as caught:
            send()
        assert caught.value.where.startswith("topic 'theirs' at ")
        assert "this machine's clock is far ahead of the broker's" in caught.value.why
        assert "message.timestamp.type=LogAppendTime" in caught.value.fix
    world.jump(6)
    sinks.open()
    assert (sinks.reached, sinks.owner.journal.resolved_ts) == (1, 1)
    sinks.send(2)
    assert sinks.rows() == [1, 2]


class Late:
    """A producer that commits only after something else has happened."""

    def __init__(self, producer: Producer, meanwhile: Callable[[], None]) -> None:
        self._producer, self._meanwhile = producer, meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def commit_transaction(self, timeout: float) -> None:
        self._meanwhile()
        self._producer.commit_transaction(timeout)


def test_a_transaction_that_the_broker_ends_by_its_clock_is_written_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = world.sinks["ended"]
    sinks.send(1)

    def ended() -> None:
        world.jump(6)
        world.jump(-6)

    def drained_then_ended(producer: Producer) -> None:
        client.drain(producer)
        monkeypatch.setattr(owner, "drain", client.drain)
        ended()

    late: Any = Late(sinks.writer._producer, ended)
    sinks.writer._producer = late
    with pytest.raises(Retryable, match="while its transaction was being committed"):
        sinks.send(2)
    sinks.open()
    assert sinks.reached == 1
    sinks.send(2)
    monkeypatch.setattr(owner, "drain", drained_then_ended)
    with pytest.raises(Fenced, match="too long by its clock"):
        sinks.owner.send_resolved(3)
    sinks.open()
    assert (sinks.reached, sinks.owner.journal.resolved_ts) == (2, 2)
    sinks.send(3)
    assert sinks.rows() == [1, 2, 3]


WAITS = """
import os, threading
from confluent_kafka import Consumer, Producer
from tidegate.sink.kafka import client

client.CALL_TIMEOUT_S = 1.0
nobody = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "error_cb": lambda error: None}
reader, producer = Consumer(nobody | {"group.id": "g"}), Producer(nobody)
producer.produce("t", b"row")
waits = [lambda: client.take(reader, 10, 1.0), lambda: client.drain(producer)]
threads = [threading.Thread(target=wait, daemon=True) for wait in waits]
for thread in threads:
    thread.start()
print("waiting", flush=True)
for thread in threads:
    thread.join(120.0)
print([thread.is_alive() for thread in threads], flush=True)
os._exit(0)
"""


def test_a_wait_for_the_broker_ends_though_the_clock_is_set_back_meanwhile(wall_clock: WallClock) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        wall_clock.jump(-6)
        assert process.stdout.readline() == "[False, False]\n"
