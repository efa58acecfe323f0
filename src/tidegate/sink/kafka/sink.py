"""Implements the sink contract with Kafka: a feed's topics, its progress topic, its transactional ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Final
from weakref import WeakSet

from confluent_kafka import KafkaException, Producer

from tidegate.errors import Retryable
from tidegate.model.progress import topics
from tidegate.sink.base import Check, Description, Domain, Form, Keys, Marks, Prove, SinkFeed
from tidegate.sink.kafka.client import cluster_id, read_records, transactional_id
from tidegate.sink.kafka.owner_sink import KafkaOwnerSink
from tidegate.sink.kafka.slot import FENCES_AT_ONCE, SlotWriter, fence_slots, slot_client
from tidegate.sink.kafka.topics import (
    delete_topic,
    ensure_progress_topic,
    ensure_topic,
    progress_topic,
    widen_topic,
)

CONNECTED_MAX: Final = 64
"""How many clients of `KafkaSink.connect` may wait in a process. Each has some threads and connections."""
CONNECTING: Final = Lock()
CONNECTED: Final[WeakSet[KafkaSink]] = WeakSet()
"""The sinks that may have such clients. Changed and counted under the lock."""


class KafkaSink:
    """One feed at Kafka."""

    def __init__(self, feed: SinkFeed) -> None:
        self._feed, self._uri, self._config = feed, feed.uri, feed.config
        self._kafka = feed.config.sink.kafka_config
        self._partitions: dict[str, int] = {}
        """By topic, the number that the owner has fixed; never read again."""
        self._clients: dict[str, Producer] = {}
        """The clients of `connect` that have not been used, by transactional id."""

    @property
    def progress_topic(self) -> str:
        """The topic with the feed's records of progress."""
        return progress_topic(self._feed.cluster, self._feed.namespace, self._feed.name)

    def transactional_id(self, slot: int | str) -> str:
        """The transactional id of one of the feed's slots on this capture."""
        return self._id(slot, self._feed.capture)

    def _id(self, slot: int | str, capture: str) -> str:
        feed = self._feed
        return transactional_id(feed.cluster, feed.namespace, feed.name, slot, capture)

    def describe(self) -> Description:
        """Takes messages; one transaction of TiDB may be written in several transactions of Kafka."""
        return Description(
            form=Form.MESSAGES,
            domain=Domain.ROW,
            pieces=True,
            writers=0,
            atomic=True,
            fenced_by="transactional ids: the last to initialise one is the only one who can commit under it",
            keys=Keys.ALL,
        )

    def widen(self, partitions: int) -> None:
        """Give the feed's own topic at least `partitions` partitions; raises the errors of `widen_topic`."""
        widen_topic(self._uri, self._kafka, partitions)

    def check(self) -> int:
        """The number of partitions of the feed's own topic; see `ensure_topic`."""
        return ensure_topic(self._uri, self._kafka)

    def partitions(self, topic: str) -> int:
        """The number in the owner's record in the progress topic, which is written before any row.

        If there was never an owner, the feed's own topic is checked instead.
        """
        if topic not in self._partitions:
            records = read_records(self._uri, self._kafka, self.progress_topic)
            # The number that was read before wins: it must not change under a writer that already uses it.
            self._partitions = topics(records, self._feed.instance) | self._partitions
        if topic not in self._partitions and topic == self._uri.topic:
            self._partitions[topic] = self.check()
        if topic not in self._partitions:
            raise Retryable(
                f"the number of written partitions of topic '{topic}' is not recorded",
                where=f"topic '{self.progress_topic}' at {self._uri.bootstrap}",
                why="the changefeed's owner records it before it lets rows go there; has it been deleted?",
                fix="nothing: the changefeed starts again, and its owner records it",
            )
        return self._partitions[topic]

    def open_owner(self, marks: Marks | None, prove: Prove) -> KafkaOwnerSink:
        """Open the producer of Resolved and DDL."""
        assert marks is not None
        name = self._id("owner", "")
        feed = self._feed
        return KafkaOwnerSink(self._uri, self._config, name, self.progress_topic, feed.instance, marks, prove)

    def fence(
        self,
        writers: Mapping[str, int],
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> dict[str, bytes]:
        """Initialise all transactional ids, then read the progress topic."""
        self.connect(writers)  # they connect while the broker is asked for the topic
        try:
            ensure_progress_topic(self._uri, self._kafka, self.progress_topic, check)
        except BaseException:
            self._clients.clear()  # otherwise they would try to connect until the next fence
            raise
        self.fence_only(writers, prove, alive, check)
        return read_records(self._uri, self._kafka, self.progress_topic, check)

    def connect(self, writers: Mapping[str, int]) -> None:
        """Make the clients that `fence_only` will use, `FENCES_AT_ONCE` at most. They connect by themselves.

        To connect costs most of a fence. A client takes its transactional id only when it is initialised. All
        sinks of a process keep `CONNECTED_MAX` clients at most: with hundreds of changefeeds the others do
        without.
        """
        self._clients.clear()
        with CONNECTING, suppress(KafkaException):  # the fence tries again, and raises what is wrong
            CONNECTED.add(self)
            room = CONNECTED_MAX - sum(len(sink._clients) for sink in CONNECTED)
            for name in self._ids_of(writers)[: min(FENCES_AT_ONCE, max(0, room))]:
                self._clients[name] = slot_client(self._uri, self._config, name)

    def fence_only(
        self,
        writers: Mapping[str, int],
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> None:
        """Initialise all transactional ids."""
        names = self._ids_of(writers)
        fence_slots(self._uri, self._config, names, alive, self._clients, check)
        self._clients.clear()  # those of writers that the round did not find
        # After fencing and before reading: a capture that lost its grant may have fenced the rightful one,
        # and must not continue from its records.
        prove()

    def _ids_of(self, writers: Mapping[str, int]) -> list[str]:
        return [self._id(slot, capture) for capture, slots in writers.items() for slot in range(slots)]

    def writer(
        self,
        slot: int,
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> SlotWriter:
        """Open the transactional producer of a slot."""
        name = self.transactional_id(slot)
        return SlotWriter(self._uri, self._config, name, self.progress_topic, prove, alive, check)

    def same_place(self, other: KafkaSink) -> bool:
        """Whether both mean the same topic of the same cluster, by the cluster id that brokers report."""
        if self._uri.topic != other._uri.topic:
            return False
        if self._uri.hosts == other._uri.hosts:
            return True
        return cluster_id(self._uri, self._kafka) == cluster_id(other._uri, other._kafka)

    def forget(self) -> None:
        """Delete the progress topic."""
        delete_topic(self._uri, self._kafka, self.progress_topic)
