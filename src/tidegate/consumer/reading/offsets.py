"""The driver's requests to the broker about the topics that it reads: partitions, offsets, ids, settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from tidegate.consumer.reading.source import ADMIN_TIMEOUT_S, Topic
from tidegate.errors import InvalidInput, Retryable
from tidegate.sink.kafka.client import client_settings

POLICY: Final = "cleanup.policy"
_UNREPORTED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Errors by which the broker refuses to show this user the settings of a topic."""


class Offsets:
    """The partitions of a source and their ends, as the broker reports them."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.written: dict[str, int] = {}
        """By topic, how many partitions the producer has announced that it writes, at least. `partition-num`
        is no upper bound for such a topic."""
        self._admin = AdminClient(client_settings(topic.uri, topic.config.sink.kafka_config))

    def partitions(self) -> list[int]:
        """The partitions to read: all; or, of the topic that is named first, the first `partition-num`, or as
        many as its producer has announced if these are more.

        The changefeed chooses the numbers of the other topics. Only those that exist count,
        because others may be created later, with their tables. Raises InvalidInput when none exists, or the
        first has fewer partitions; Retryable when no broker answers.
        """
        names = self._topic.names
        try:
            # The call takes one name or none, so for several topics it lists all of the broker.
            one = names[0] if len(names) == 1 else None
            found = self._admin.list_topics(one, timeout=ADMIN_TIMEOUT_S).topics
        except KafkaException as error:
            raise self.unreachable(error.args[0].str()) from error
        numbers: list[int] = []
        for name in names:
            if name not in found or found[name].error is not None or not found[name].partitions:
                continue
            partitions = sorted(found[name].partitions)
            own = name == self._topic.uri.topic
            wanted = self._topic.config.sink.kafka_config.partition_num if own else 0
            if len(partitions) < wanted:
                raise InvalidInput(
                    f"the topic has {len(partitions)} partitions, fewer than partition-num={wanted}",
                    where=self._where(name),
                    why="the source URI asks for more than there are",
                    fix="leave partition-num out, or check that it is the topic the changefeed writes",
                )
            # After a re-partition the option is out of date, and the producer's word counts: its watermarks
            # cover rows of the new partitions.
            upto = max(wanted, self.written.get(name, 0)) if wanted else None
            numbers += [self._topic.number(name, partition) for partition in partitions[:upto]]
        if not numbers:
            raise self._missing(self._topic.name)
        return numbers

    def _where(self, name: str) -> str:
        return f"topic {name} at {self._topic.uri.bootstrap}"

    def first(self, partitions: Sequence[int]) -> dict[int, int]:
        """The oldest available offset of each partition."""
        return self._list(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """The offset after the last committed message of each partition."""
        return self._list(partitions, OffsetSpec.latest())

    def ends_written(self, partitions: Sequence[int]) -> dict[int, int]:
        """The offset after the last message of each partition, committed or not."""
        return self._list(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)

    def ids(self, names: Iterable[str]) -> dict[str, str]:
        """Kafka's id of each topic that exists. A topic that is deleted and created again gets another id.

        Brokers before 2.8 have no ids. Raises Retryable when no broker answers.
        """
        found = {}
        asked = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=ADMIN_TIMEOUT_S)
        for name, future in asked.items():
            try:
                uuid = future.result().topic_id
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise self.unreachable(error.args[0].str()) from error
            # Older brokers answer zero for every topic, so a topic that was replaced would seem to be the
            # same.
            if uuid.get_most_significant_bits() or uuid.get_least_significant_bits():
                found[name] = str(uuid)
        return found

    def compacted(self, names: Iterable[str]) -> list[str]:
        """The topics whose broker removes messages that are followed by another with the same key.

        A topic whose settings this user may not read counts as not compacted. Raises Retryable when no broker
        answers.
        """
        wanted = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        found = []
        for one, future in self._admin.describe_configs(wanted, request_timeout=ADMIN_TIMEOUT_S).items():
            try:
                policy = future.result()[POLICY].value
            except KafkaException as error:
                # Not an error: a user who may read a topic need not be allowed to read its settings.
                if error.args[0].code() in _UNREPORTED:
                    continue
                raise self.unreachable(error.args[0].str()) from error
            if "compact" in policy.split(","):
                found.append(one.name)
        return found

    def _list(
        self,
        partitions: Sequence[int],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[int, int]:
        topic = self._topic
        if not partitions:
            return {}
        wanted = {TopicPartition(*topic.place(partition)): spec for partition in partitions}
        try:
            asked = self._admin.list_offsets(
                wanted, isolation_level=isolation, request_timeout=ADMIN_TIMEOUT_S
            )
            return {
                topic.number(at.topic, at.partition): future.result().offset for at, future in asked.items()
            }
        except KafkaException as error:
            if error.args[0].code() in (KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART):
                self.partitions()  # raises InvalidInput if the topic is gone
            raise self.unreachable(error.args[0].str()) from error

    def _missing(self, name: str) -> InvalidInput:
        return InvalidInput(
            "the topic does not exist",
            where=self._where(name),
            why="the broker knows no topic of this name",
            fix="check the topic's name; a changefeed creates its topic when it starts",
        )

    def unreachable(self, why: str) -> Retryable:
        """The error for a broker that does not answer, or refuses an answer."""
        return Retryable(
            "the Kafka broker does not answer",
            where=self._topic.uri.bootstrap,
            why=why,
            fix="check that the broker runs and that the address is right",
        )
