"""Sends the owner's messages to Kafka: DDL and Resolved, with a journal in the same transaction.

Resolved goes to every partition of every topic in use: the sink's own topic, those that tables of the feed go
to now, and those that any of them has gone to before. A reader of several topics follows the smallest
Resolved of them. If a topic got no more Resolved after its last table was dropped or renamed, that reader
would never advance again. So a record next to the journal lists the topics with their numbers of partitions.
A topic that no table goes to any more leaves the record after a user has deleted the topic.

The number of partitions of the sink's own topic may change (docs/repartition.md). The change is one
transaction: Resolved T with the new layout, the record of topics with that layout, and the journal.
Partitions to which rows no longer go still get Resolved and DDL.

A DDL is sent exactly once: its journal record and its messages commit together, so a restarted owner that
reads the journal knows whether the DDL was sent. The owner has a transactional id of its own. The next owner
initialises the same id and thereby fences the previous one.

Not thread-safe: one thread calls it. Every call blocks until the broker has answered, or raises Fenced
(another owner has taken over) or Retryable. After Retryable the caller opens a new one: only the journal,
which is read at opening, shows whether the interrupted call took effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.errors import Fenced, InvalidInput, Retryable
from tidegate.model.ddl import DdlEvent
from tidegate.model.layout import Layout, first_change
from tidegate.model.message import Message
from tidegate.model.progress import (
    JOURNAL_KEY,
    TOPICS_KEY,
    Journal,
    Topics,
    furthest,
    journal,
    topics_record,
)
from tidegate.sink.base import Marks, Prove
from tidegate.sink.kafka.client import (
    CALL_TIMEOUT_S,
    FENCED,
    check_decided,
    client_settings,
    drain,
    producer_settings,
    read_records,
    unreachable,
    unwritten,
)
from tidegate.sink.kafka.topics import ensure_feeds_topics, ensure_topics, existing, widen_topic


class KafkaOwnerSink:
    """Sends the DDL and Resolved messages of one changefeed; `journal` has the last ones that are durable."""

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
        """Raises Retryable, and Fenced from `prove` if this is no longer the feed's owner.

        `prove` is called after the initialisation. If the grant is replaced after the proof, the new owner
        initialises after us and fences us. If it was replaced before, we may have fenced the new owner, and
        must do nothing more.
        """
        self._kafka = kafka = config.sink.kafka_config
        self._uri, self._topic, self._marks = uri, journal_topic, marks
        # One client for all questions: to connect takes longer than most of them.
        admin = AdminClient(client_settings(uri, kafka))
        # Made now, so that it connects meanwhile. No lingering: a broadcast is a few messages, and each call
        # waits for its commit.
        self._producer = Producer(producer_settings(uri, kafka, transactional_id) | {"linger.ms": 0})
        found = ensure_feeds_topics(admin, uri, kafka, journal_topic)
        try:
            self._producer.init_transactions(CALL_TIMEOUT_S)
        except KafkaException as error:
            raise unreachable(uri, error) from error
        prove()
        # Read after the initialisation, because then an older owner can add nothing more. Records that it has
        # added may still be hidden behind a worker's open transaction.
        check_decided(admin, uri, journal_topic)
        records = read_records(uri, kafka, journal_topic)
        self.journal = journal(records, instance)
        record = topics_record(records, instance)
        self._fixed = dict(record.partitions)
        """The topics that were in use before, except the URI's own, with their numbers of partitions."""
        self._recorded = dict(self._fixed)
        self.layouts = dict(record.layouts)
        """By topic, the layout of those whose number of partitions has changed."""
        self._partitions = self._partitions_of_own(admin, found)
        self.topics = {uri.topic: self._partitions}
        """The topics in use, and the number of partitions of each over which rows are spread."""
        left = existing(admin, uri, self._fixed)
        self.use(name for name in self._fixed if name in left)

    @property
    def partitions(self) -> int:
        """The number of partitions of the URI's topic over which rows are spread."""
        return self._partitions

    def _partitions_of_own(self, admin: AdminClient, found: int) -> int:
        """The URI topic's number: what it was changed to, or partition-num, or the fixed one, or `found`."""
        fixed = self._fixed.pop(self._uri.topic, 0)
        layout = self.layouts.get(self._uri.topic)
        if layout is not None:
            fixed = layout.all
            found = existing(admin, self._uri, [self._uri.topic])[self._uri.topic]
        elif self._kafka.partition_num or not fixed:
            return found
        if found < fixed:
            raise InvalidInput(
                f"topic '{self._uri.topic}' has {found} partitions, fewer than the {fixed} that are written",
                where=self._uri.bootstrap,
                why="it was deleted and made again since the changefeed began to write it",
                fix="add partitions to the topic"
                + ("" if layout else f", or set partition-num={found} in the sink URI"),
            )
        return layout.new if layout is not None else fixed

    def use(self, topics: Iterable[str]) -> None:
        """Create or check topics that are new, fix their numbers of partitions, and send Resolved to them."""
        fresh = {name: self._fixed.get(name, 0) for name in topics if name not in self.topics}
        # docs/guarantees.md#with-several-topics-the-same-holds: the topic exists and its number of partitions
        # is recorded before the caller sends the DDL that needs it.
        used = self.topics | ensure_topics(self._uri, self._kafka, fresh, self._partitions)
        # A transaction only if the record changes: `use` is called for each DDL.
        if used != self._recorded:
            with self._transaction():
                self._record(used, self.layouts)
        # Only after the commit: from here on a reader that finds the topic waits for its Resolved, and rows
        # may go to it.
        self.topics, self._recorded = used, used

    def send_ddl(self, event: DdlEvent, build_ms: int = 0, topic: str = "") -> None:
        """Send one DDL event to its topic unless the journal holds it; durable on return."""
        if self.journal.holds(event):
            return
        topic = topic or self._uri.topic
        message = self._marks.encode_ddl(event, build_ms)
        count = self._marked(topic) if self._marks.ddl_to_all_partitions() else 1
        # A copy: if the transaction fails, `self.journal` still says what is durable.
        journal = replace(self.journal, ddl_ts=event.finished_ts, ddl_seq=event.seq)
        with self._transaction():
            # docs/guarantees.md#a-ddl-is-delivered-once: the DDL and its journal record become visible
            # together.
            self._broadcast(message, topic, count)
            self._keep(journal)
        self.journal = journal

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        """Broadcast Resolved `ts`, which must not be below the last one; durable on return."""
        assert ts >= self.journal.resolved_ts, f"Resolved {ts} after {self.journal.resolved_ts}"
        message = self._marks.encode_resolved(ts, build_ms)
        if message is None:
            return
        journal = replace(self.journal, resolved_ts=ts)
        with self._transaction():
            # In one transaction: a successor knows from the journal which Resolved the readers have seen.
            self._broadcast_all(message, self.layouts)
            self._keep(journal)
        self.journal = journal

    @property
    def is_repartitioned(self) -> bool:
        """Whether the number of partitions of the URI's topic was ever changed."""
        return self._uri.topic in self.layouts

    def repartition(self, ts: int, partitions: int, build_ms: int = 0) -> None:
        """Send Resolved `ts`, after which rows of the URI's topic go to `partitions`; durable on return.

        Raises Retryable if a row above `ts` is durable, written by an incarnation that knew of more DDL than
        we do.
        """
        assert ts >= self.journal.resolved_ts, f"a change at {ts} after Resolved {self.journal.resolved_ts}"
        # Read again, because rows above `ts` may have been written since this sink was opened.
        own, records = self._uri.topic, read_records(self._uri, self._kafka, self._topic)
        if (out := furthest(records, self.journal.instance)) > ts:
            raise Retryable(
                "the number of partitions cannot change yet",
                where=f"topic '{own}' at {self._uri.bootstrap}",
                why=f"rows up to {out} are out, and it was to change at {ts}",
                fix="nothing: it is tried again at a later ts",
            )
        # Outside the transaction: to add partitions is not transactional, and empty ones do no harm if the
        # rest fails.
        widen_topic(self._uri, self._kafka, partitions)
        self._look_at_partitions()
        before = self.layouts.get(own)
        now = before.changed(ts, partitions) if before else first_change(ts, self._partitions, partitions)
        used, layouts = self.topics | {own: partitions}, self.layouts | {own: now}
        resolved, admin = self._marks.encode_resolved(ts, build_ms), self._marks.encode_admin(partitions)
        assert resolved is not None, "a protocol without Resolved is refused"
        journal = replace(self.journal, resolved_ts=ts)
        with self._transaction():
            # docs/guarantees.md#the-number-of-partitions-changes-at-one-ts-for-all-rows: the change, its
            # announcement and the record for the next incarnation are one transaction.
            self._broadcast_all(resolved, layouts)
            if admin is not None:
                self._broadcast(replace(admin, headers=admin.headers + now.headers), own, now.all)
            self._record(used, layouts)
            self._keep(journal)
        # Only after the commit. Before it an error must leave everything as it was.
        self.journal, self.topics, self._recorded, self.layouts = journal, used, used, layouts
        self._partitions = partitions

    def _look_at_partitions(self) -> None:
        """Make the producer's client read the partitions of the URI's topic again.

        The client refuses messages for partitions that did not exist when it last read the metadata.
        """
        try:
            self._producer.list_topics(self._uri.topic, timeout=CALL_TIMEOUT_S)
        except KafkaException as error:
            raise unreachable(self._uri, error) from error

    def _marked(self, topic: str) -> int:
        """The number of partitions of a topic that get Resolved and DDL."""
        layout = self.layouts.get(topic)
        return layout.all if layout is not None else self.topics[topic]

    def forget(self, spans: Iterable[str]) -> None:
        """Delete the progress of spans that have ended for good; durable on return.

        No incarnation will read the progress of such spans. Without this the compacted topic would keep a
        record of each of them for ever.
        """
        with self._transaction():
            for span in spans:
                self._producer.produce(self._topic, None, span, 0)

    def close(self) -> None:
        """Release the producer."""
        self._producer.purge()

    def _broadcast_all(self, resolved: Message, layouts: Mapping[str, Layout]) -> None:
        """Send a Resolved to every partition of every topic in use, with the topic's layout if it has one."""
        for topic, count in self.topics.items():
            layout = layouts.get(topic)
            if layout is None:
                self._broadcast(resolved, topic, count)
            else:
                labelled = replace(resolved, headers=resolved.headers + layout.headers)
                self._broadcast(labelled, topic, layout.all)

    def _broadcast(self, message: Message | None, topic: str, count: int) -> None:
        """Send a message, if there is one, to the first `count` partitions of a topic."""
        for partition in range(count) if message is not None else ():
            assert message is not None
            headers = list(message.headers)
            self._producer.produce(topic, message.value, message.key, partition, headers=headers)

    def _keep(self, journal: Journal) -> None:
        """Write the journal, in the same transaction as the messages that it records."""
        self._producer.produce(self._topic, journal.to_bytes(), JOURNAL_KEY, 0)

    def _record(self, used: Mapping[str, int], layouts: Mapping[str, Layout]) -> None:
        """Write the record of the topics in use and their partitions."""
        record = Topics(self.journal.instance, used, layouts)
        self._producer.produce(self._topic, record.to_bytes(), TOPICS_KEY, 0)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Everything produced inside it becomes visible together at its end, or not at all."""
        try:
            self._producer.begin_transaction()
            yield
            # The errors of single messages appear here, where the transaction can still be aborted.
            drain(self._producer)
            self._producer.commit_transaction(CALL_TIMEOUT_S)
        except KafkaException as error:
            self._give_up(error)

    def _give_up(self, cause: KafkaException) -> None:
        """Abort the transaction and raise the reason."""
        error: KafkaError = cause.args[0]
        # Before anything else: a fenced producer has no transaction any more that it could abort.
        if error.code() in FENCED:
            raise Fenced(
                "another owner of this changefeed has taken over",
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
