"""The owner's messages to Kafka: DDL and Resolved, broadcast, with a journal in the same transaction.

Resolved goes to every partition of every topic in use: the sink's own, those that tables of the feed go to
now, and those that any of them has gone to. A reader of several topics goes by the least Resolved of all: did
a topic get none any more because its last table was dropped or renamed, that reader would stand still for
ever. So the topics are kept, in a record beside the journal, with their numbers of partitions. A topic that
no table goes to any more leaves the record when somebody has deleted it.

A DDL is sent exactly once: its journal record and its messages commit together, so a restarted owner that
reads the journal knows whether the DDL is out. The owner has a transactional id of its own; whoever
becomes owner later initialises it and thereby fences the one before.

Not thread-safe: one thread calls it. Every call blocks until the broker has answered, or raises Fenced
(another owner has taken over) or Retryable. After Retryable open a new one: only the journal it
reads tells whether the interrupted call took effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tidegate.config import ReplicaConfig, SinkUri
from tidegate.errors import Fenced, InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.progress import JOURNAL_KEY, TOPICS_KEY, Journal, Topics, journal, topics
from tidegate.sink.base import Marks, Prove
from tidegate.sink.kafka.client import (
    CALL_TIMEOUT_S,
    FENCED,
    client_settings,
    drain,
    ensure_progress_topic,
    ensure_topic,
    ensure_topics,
    existing,
    producer_settings,
    read_records,
    unreachable,
    unwritten,
)


class KafkaOwnerSink:
    """Sends the DDL and Resolved messages of one changefeed; `journal` says what is out."""

    def __init__(
        self,
        uri: SinkUri,
        config: ReplicaConfig,
        transactional_id: str,
        journal_topic: str,
        instance: str,
        marks: Marks,
        prove: Prove,
    ) -> None:
        """Raises Retryable, and what `prove` raises: Fenced unless this is still the feed's owner.

        The proof comes after the initialisation: if the grant is replaced later, the new owner initialises
        later and fences this one; were it replaced before, this one may have fenced it and must do no more.
        """
        self._kafka = kafka = config.sink.kafka_config
        self._uri, self._topic, self._marks = uri, journal_topic, marks
        found = ensure_topic(uri, kafka)
        ensure_progress_topic(uri, kafka, journal_topic)
        self._producer = Producer(producer_settings(uri, kafka, transactional_id) | {"linger.ms": 0})
        try:
            self._producer.init_transactions(CALL_TIMEOUT_S)
        except KafkaException as error:
            raise unreachable(uri, error) from error
        prove()
        # Read after the initialisation: an older owner can add nothing any more.
        records = read_records(uri, kafka, journal_topic)
        self.journal = journal(records, instance)
        self._fixed = topics(records, instance)
        """Topics that were in use before, but for the URI's own."""
        self._recorded = dict(self._fixed)
        self.partitions = self._partitions_of_own(found)
        self.topics = {uri.topic: self.partitions}
        """Those in use, and how many partitions of each are written."""
        left = existing(AdminClient(client_settings(uri, kafka)), uri) if self._fixed else {}
        self.use(name for name in self._fixed if name in left)

    def _partitions_of_own(self, found: int) -> int:
        """Of the URI's topic: what partition-num says, else what was fixed, else what there are."""
        fixed = self._fixed.pop(self._uri.topic, 0)
        if self._kafka.partition_num or not fixed:
            return found
        if found < fixed:
            raise InvalidInput(
                f"Topic '{self._uri.topic}' has {found} partitions, fewer than the {fixed} that are written.",
                where=self._uri.bootstrap,
                why="it was deleted and made again since the changefeed began to write it",
                fix=f"add partitions to the topic, or set partition-num={found} in the sink URI",
            )
        return fixed

    def use(self, topics: Iterable[str]) -> None:
        """Make or look at topics that are new, fix their numbers of partitions, and send Resolved there."""
        fresh = {name: self._fixed.get(name, 0) for name in topics if name not in self.topics}
        used = self.topics | ensure_topics(self._uri, self._kafka, fresh, self.partitions)
        if used != self._recorded:
            with self._transaction():
                record = Topics(self.journal.instance, used)
                self._producer.produce(self._topic, record.to_bytes(), TOPICS_KEY, 0)
        # Only now: a Resolved there counts for a reader who finds the topic, and its rows may follow.
        self.topics, self._recorded = used, used

    def send_ddl(self, event: DdlEvent, build_ms: int = 0, topic: str = "") -> None:
        """Send one DDL event to its topic unless the journal holds it; durable on return."""
        if self.journal.holds(event):
            return
        topic = topic or self._uri.topic
        message = self._marks.encode_ddl(event, build_ms)
        count = self.topics[topic] if self._marks.ddl_to_all_partitions() else 1
        journal = replace(self.journal, ddl_ts=event.finished_ts, ddl_seq=event.seq)
        self._commit(message, {topic: count}, journal)

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        """Broadcast Resolved `ts`, which must not be below the last one; durable on return."""
        assert ts >= self.journal.resolved_ts, f"Resolved {ts} after {self.journal.resolved_ts}"
        message = self._marks.encode_resolved(ts, build_ms)
        if message is not None:
            self._commit(message, self.topics, replace(self.journal, resolved_ts=ts))

    def forget(self, spans: Iterable[str]) -> None:
        """Delete the progress of spans that have ended for good; durable on return.

        For spans which no incarnation can want any more: a compacted topic keeps a record of each for ever.
        """
        with self._transaction():
            for span in spans:
                self._producer.produce(self._topic, None, span, 0)

    def close(self) -> None:
        """Release the producer."""
        self._producer.purge()

    def _commit(self, message: Message | None, topics: Mapping[str, int], journal: Journal) -> None:
        """Send a message, if there is one, to so many partitions of topics, with the journal that says so."""
        places = ((topic, partition) for topic, count in topics.items() for partition in range(count))
        with self._transaction():
            for topic, partition in places if message is not None else ():
                assert message is not None
                headers = list(message.headers)
                self._producer.produce(topic, message.value, message.key, partition, headers=headers)
            self._producer.produce(self._topic, journal.to_bytes(), JOURNAL_KEY, 0)
        self.journal = journal

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Everything produced inside becomes visible at its end, or nothing does."""
        try:
            self._producer.begin_transaction()
            yield
            drain(self._producer)
            self._producer.commit_transaction(CALL_TIMEOUT_S)
        except KafkaException as error:
            self._give_up(error)

    def _give_up(self, cause: KafkaException) -> None:
        """Make sure that nothing of the transaction stays, and say why."""
        error: KafkaError = cause.args[0]
        if error.code() in FENCED:
            raise Fenced(
                "Another owner of this changefeed has taken over.",
                where=self._uri.bootstrap,
                why="or the broker has ended a transaction that was open too long by its clock",
                fix="nothing: the changefeed starts again if this capture still has the right to it",
            ) from cause
        if error.txn_requires_abort():
            try:
                self._producer.abort_transaction(CALL_TIMEOUT_S)
            except KafkaException as second:
                raise unreachable(self._uri, second) from cause
        raise unwritten(self._uri, error) from cause
