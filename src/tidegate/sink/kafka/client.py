"""Kafka: settings, topics, and the progress that is stored there.

A *slot* is a transactional id, `tidegate.{cluster}.{namespace}.{changefeed}.{capture}.{slot}`; a worker
process uses one for its whole life. Kafka itself does the fencing: the last caller of `init_transactions`
wins. So a writer must prove that its incarnation is the current one, with a read *after* the initialisation;
see `slot`. Progress is one record per span in a compacted topic, written in the same transaction as the rows
that it covers. So rows and their progress always become durable together.

Bounds: the bytes that wait for the broker's acknowledgement are bounded by what it has acknowledged recently
(`pace`). The broker aborts a transaction after `TRANSACTION_TIMEOUT_MS`, so a dead slot blocks read_committed
readers no longer than that.

We never block inside librdkafka for a message or an acknowledgement: its timeouts follow the wall clock, and
a clock that is set back during a wait makes the wait longer by that much (librdkafka issue 2145). Instead
`drain` and `take` poll against a monotonic deadline.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tidegate.config.settings import KafkaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.config.values import revealed
from tidegate.errors import InvalidInput, Retryable
from tidegate.sink.base import OpenTransactions

TRANSACTION_TIMEOUT_MS: Final = 10_000
REQUEST_MAX_MS: Final = 300_000
"""librdkafka's limit for `socket.timeout.ms`."""
FETCH_WAIT_MS: Final = 10
CALL_TIMEOUT_S: Final = 15.0
DELETE_TIMEOUT_S: Final = 3.0
CLUSTER_ID_S: Final = 5.0
DEFAULT_PARTITIONS: Final = 3
TOPICS_AT_ONCE: Final = 500
"""Topics that are created, or whose settings are read, in one request."""
PROGRESS_READ_S: Final = 60.0
POLL_S: Final = 0.003
"""Pause between two polls; a wait may end late by this much."""
DRAIN_GROWTH: Final = 1.3
DRAIN_POLL_S: Final = 0.03
"""The pauses of `drain` grow up to this: hundreds of owners may wait for a busy broker at the same time, and
each poll takes the interpreter lock from the event loop that wakes the changefeeds."""
BROKERS_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
"""Setting of topics that we create. With timestamps of our own, a broker would refuse messages if our clock
is an hour ahead of its clock, and its retention would delete them at once if our clock is far behind."""
REFUSED_TOPIC: Final = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
"""Answers about a topic that say nothing of whether it exists."""
REFUSED: Final = (KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD)
NOT_WIDENED: Final = (
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICA_ASSIGNMENT,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_REQUEST,
)
"""Errors of a request for more partitions after which a repeated request would fail in the same way."""
PURGED: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
FENCED: Final = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


def client_settings(uri: SinkUri, kafka: KafkaConfig) -> dict[str, Any]:
    """The settings of librdkafka that every client of this sink has. They hold secrets: never log them."""
    settings: dict[str, Any] = {
        "bootstrap.servers": uri.bootstrap,
        "log_level": 2,
        # TiCDC's client has a limit for sending and one for the answer; librdkafka has one for both.
        "socket.timeout.ms": min(int(max(kafka.write_timeout, kafka.read_timeout) * 1000), REQUEST_MAX_MS),
        "socket.connection.setup.timeout.ms": max(1000, int(kafka.dial_timeout * 1000)),
        "reconnect.backoff.max.ms": 2000,
        # By default librdkafka connects to a broker only when a request needs it, and timers of 50 and
        # 500 ms then delay that request: `init_transactions` took 60 or 510 ms instead of 8, reading a
        # topic's metadata 57 instead of 4, and every changefeed starts with several such requests. The cost:
        # each client connects to every broker of the cluster.
        "enable.sparse.connections": False,
        # Without a logger librdkafka prints to stderr; its errors reach us as exceptions anyway.
        "error_cb": lambda error: None,
    }
    if kafka.kafka_client_id:
        settings["client.id"] = kafka.kafka_client_id
    if kafka.enable_tls:
        tls = {
            "ssl.ca.location": kafka.ca,
            "ssl.certificate.location": kafka.cert,
            "ssl.key.location": kafka.key,
        }
        settings |= {name: value for name, value in tls.items() if value}
        settings["enable.ssl.certificate.verification"] = not kafka.insecure_skip_verify
    if kafka.sasl_user:
        settings["sasl.mechanism"] = kafka.sasl_mechanism or "PLAIN"
        settings |= {"sasl.username": kafka.sasl_user, "sasl.password": revealed(kafka.sasl_password)}
    secure = ("SASL_" if kafka.sasl_user else "") + ("SSL" if kafka.enable_tls else "PLAINTEXT")
    return settings | {"security.protocol": secure}


def producer_settings(uri: SinkUri, kafka: KafkaConfig, transactional_id: str) -> dict[str, Any]:
    """Settings of a transactional producer. A request takes no longer than a transaction may: librdkafka
    refuses it otherwise.
    """
    settings = client_settings(uri, kafka)
    return settings | {
        "socket.timeout.ms": min(settings["socket.timeout.ms"], TRANSACTION_TIMEOUT_MS),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": kafka.compression,
        "message.max.bytes": kafka.max_message_bytes + 128,
        "linger.ms": 5,
        "batch.size": 1_000_000,
        "batch.num.messages": 100_000,
        # Never reached, because `pace` bounds what is under way. A message refused by a full queue would be
        # missing from the order.
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": 2_000_000,
        "delivery.report.only.error": True,
    }


def unwritten(uri: SinkUri, error: KafkaError) -> Retryable:
    """The error for messages that the broker did not accept."""
    if error.code() not in REFUSED:
        return unreachable(uri, error)
    return Retryable(
        "Kafka refuses the changefeed's messages",
        where=f"topic '{uri.topic}' at {uri.bootstrap}, or another of the changefeed's topics",
        why=f"{error.str()}; most often this machine's clock is far ahead of the broker's",
        fix="set the wrong clock right, or set message.timestamp.type=LogAppendTime for the topic; "
        "the changefeed then continues by itself",
    )


def drain(producer: Producer) -> None:
    """Wait until the broker has answered everything that was produced, for at most `CALL_TIMEOUT_S`.

    `flush` is not used: in confluent-kafka 2 it turns the error of a fenced producer into a SystemError.
    """
    deadline = time.monotonic() + CALL_TIMEOUT_S
    pause_s = POLL_S
    while len(producer) and time.monotonic() < deadline:
        producer.poll(0)
        time.sleep(pause_s)
        pause_s = min(pause_s * DRAIN_GROWTH, DRAIN_POLL_S)


def take(reader: Consumer, count: int, patience_s: float) -> list[Message]:
    """At most `count` messages, as soon as at least one has arrived; [] after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        found: list[Message] = reader.consume(count, timeout=0)
        if found or time.monotonic() >= deadline:
            return found
        time.sleep(POLL_S)


def unreachable(uri: SinkUri, error: object) -> Retryable:
    """The error for a broker that does not answer."""
    return Retryable(
        "Kafka does not answer",
        where=uri.bootstrap,
        why=words_of(error),
        fix="check that the broker runs and is reachable; the changefeed then continues by itself",
    )


def words_of(error: object) -> str:
    """An error in words; for one of Kafka's client those of Kafka, without the dump of its fields."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return found.str() if isinstance(found, KafkaError) else str(found) or type(found).__name__


def progress_topic(cluster: int, namespace: str, changefeed: str) -> str:
    """The compacted topic of a feed's progress. The cluster is part of the name, because feeds of two
    clusters may have the same name and the same broker.
    """
    return f"_tidegate.{cluster}.{namespace}.{changefeed}.progress"


def ensure_topic(uri: SinkUri, kafka: KafkaConfig) -> int:
    """Create the sink's topic if it is missing and the settings allow; return its number of partitions.

    Raises InvalidInput if it is missing and may not be created, or has fewer partitions than
    `partition-num`; Retryable if no broker answers. Partitions above `partition-num` are not used.
    """
    return ensure_feeds_topics(AdminClient(client_settings(uri, kafka)), uri, kafka)


def ensure_feeds_topics(admin: AdminClient, uri: SinkUri, kafka: KafkaConfig, progress: str = "") -> int:
    """As `ensure_topic`; the same requests create the progress topic with this name if it is missing."""
    names = [uri.topic, progress] if progress else [uri.topic]
    there, made = existing(admin, uri, names), list[NewTopic]()
    found, wanted = there.get(uri.topic, 0), kafka.partition_num
    if found == 0:
        if not kafka.auto_create_topic:
            raise InvalidInput(
                f"topic '{uri.topic}' does not exist",
                where=uri.bootstrap,
                fix="create it, or set auto-create-topic=true in the sink URI",
            )
        found = wanted or DEFAULT_PARTITIONS
        made.append(NewTopic(uri.topic, found, kafka.replication_factor, config=BROKERS_TIME))
    # Before anything is created, so that a refused setting leaves nothing behind.
    if found < wanted:
        raise InvalidInput(
            f"topic '{uri.topic}' has {found} partitions, fewer than partition-num={wanted}",
            where=uri.bootstrap,
            fix=f"add partitions to the topic or set partition-num to at most {found}",
        )
    if progress and progress not in there:
        made.append(_new_progress_topic(kafka, progress))
    if made:
        _create_all(admin, uri, made)
    _check_message_limit(admin, uri, kafka, [uri.topic])
    return wanted or found


def ensure_topics(uri: SinkUri, kafka: KafkaConfig, wanted: Mapping[str, int], fresh: int) -> dict[str, int]:
    """The number of partitions to use in each topic other than the sink's own. Missing topics are created.

    `wanted`: by topic, the number that was fixed before, or 0: use all partitions that the topic has, or
    `fresh` if it is created. As in TiCDC, partition-num does not apply to such a topic if it exists already.
    Raises the errors of `ensure_topic`.
    """
    if not wanted:
        return {}
    admin = AdminClient(client_settings(uri, kafka))
    there = existing(admin, uri, wanted)
    missing = [name for name in wanted if name not in there]
    if missing and not kafka.auto_create_topic:
        raise InvalidInput(
            f"topic '{missing[0]}' does not exist, and {len(missing) - 1} more"
            if len(missing) > 1
            else f"topic '{missing[0]}' does not exist",
            where=uri.bootstrap,
            why="a dispatch rule sends rows there",
            fix="create it, or set auto-create-topic=true in the sink URI",
        )
    if missing:
        factor = kafka.replication_factor
        made = [NewTopic(name, wanted[name] or fresh, factor, config=BROKERS_TIME) for name in missing]
        _create_all(admin, uri, made)
        there = existing(admin, uri, wanted)  # another process may have created one, with another number
    found = {name: there[name] for name in wanted}
    for name, count in found.items():
        if count < wanted[name]:
            raise InvalidInput(
                f"topic '{name}' has {count} partitions, fewer than the {wanted[name]} that are written",
                where=uri.bootstrap,
                why="it was deleted and made again since the changefeed began to write it",
                fix="add partitions to the topic; or delete it, and the changefeed makes it again",
            )
    _check_message_limit(admin, uri, kafka, list(found))
    return {name: wanted[name] or count for name, count in found.items()}


def widen_topic(uri: SinkUri, kafka: KafkaConfig, wanted: int) -> None:
    """Give the sink's topic at least `wanted` partitions. Partitions are never removed.

    Raises InvalidInput if the topic does not exist or Kafka refuses to add partitions; Retryable if no
    broker answers, or the added partitions do not appear in time.
    """
    admin = AdminClient(client_settings(uri, kafka))
    found = _partitions(admin, uri, uri.topic)
    if found == 0:
        raise InvalidInput(
            f"topic '{uri.topic}' does not exist",
            where=uri.bootstrap,
            fix="start the changefeed first: it makes the topic",
        )
    if found >= wanted:
        return
    asked = admin.create_partitions([NewPartitions(uri.topic, wanted)], operation_timeout=CALL_TIMEOUT_S)
    try:
        # A second more than the call may take, so that its own error, which says more, comes first.
        asked[uri.topic].result(CALL_TIMEOUT_S + 1)
    except (KafkaException, TimeoutError) as error:
        code = error.args[0].code() if isinstance(error, KafkaException) else None
        if code not in NOT_WIDENED:
            raise unreachable(uri, error) from error
        if _partitions(admin, uri, uri.topic) < wanted:  # otherwise another process has added them meanwhile
            raise InvalidInput(
                f"Kafka refuses to give topic '{uri.topic}' {wanted} partitions",
                where=uri.bootstrap,
                why=words_of(error),
                fix="add them with Kafka's own tools, or let the changefeed's user alter the topic",
            ) from error
    deadline = time.monotonic() + CALL_TIMEOUT_S
    while _partitions(admin, uri, uri.topic) < wanted:  # Kafka answers before all brokers know of them
        if time.monotonic() > deadline:
            raise Retryable(f"topic '{uri.topic}' does not have its new partitions yet", where=uri.bootstrap)
        time.sleep(DRAIN_POLL_S)


def ensure_progress_topic(uri: SinkUri, kafka: KafkaConfig, topic: str) -> None:
    """Create the compacted progress topic, with one partition, if it does not exist."""
    admin = AdminClient(client_settings(uri, kafka))
    if _partitions(admin, uri, topic) == 0:
        _create_all(admin, uri, [_new_progress_topic(kafka, topic)])


def _new_progress_topic(kafka: KafkaConfig, topic: str) -> NewTopic:
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": "600000"}
    return NewTopic(topic, 1, kafka.replication_factor, config=settings | BROKERS_TIME)


def cluster_id(uri: SinkUri, kafka: KafkaConfig) -> str:
    """The cluster id that the brokers report. Raises Retryable if no broker answers."""
    admin = AdminClient(client_settings(uri, kafka))
    try:
        found = admin.describe_cluster(request_timeout=CLUSTER_ID_S).result(CLUSTER_ID_S + 1)
    except KafkaException as error:
        raise unreachable(uri, error) from error
    except TimeoutError as error:
        raise Retryable("no broker answers", where=uri.bootstrap) from error
    return str(found.cluster_id)


def delete_topic(uri: SinkUri, kafka: KafkaConfig, topic: str) -> None:
    """Delete a topic of ours (a removed feed's progress topic). It is no error if the topic is missing.

    Takes at most `DELETE_TIMEOUT_S`, because a user, or the shutdown of the process, waits for it.
    """
    admin = AdminClient(client_settings(uri, kafka))
    limits = {"operation_timeout": DELETE_TIMEOUT_S, "request_timeout": DELETE_TIMEOUT_S}
    try:
        admin.delete_topics([topic], **limits)[topic].result(DELETE_TIMEOUT_S + 1)
    except KafkaException as error:
        # It is gone: an earlier attempt has deleted it, and its answer was lost.
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise unreachable(uri, error) from error


def existing(admin: AdminClient, uri: SinkUri, names: Iterable[str]) -> dict[str, int]:
    """Those of `names` that the broker has as topics, with the number of partitions of each.

    Only these are asked for: a broker may have many thousands of others, and every start of a changefeed
    asks. The request makes no topic, whatever the broker's `auto.create.topics.enable` says.
    """
    asked, found = sorted(set(names)), dict[str, int]()
    for at in range(0, len(asked), TOPICS_AT_ONCE):
        answers = admin.describe_topics(
            TopicCollection(asked[at : at + TOPICS_AT_ONCE]), request_timeout=CALL_TIMEOUT_S
        )
        for name, answer in answers.items():
            try:
                found[name] = len(answer.result(2 * CALL_TIMEOUT_S).partitions)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError._TIMED_OUT:  # in the client's words it waited for a controller
                    raise unreachable(uri, f"no broker has answered within {CALL_TIMEOUT_S:g} s") from error
                if code < 0:  # the client's own: there was no answer
                    raise unreachable(uri, error) from error
                if code in REFUSED_TOPIC:
                    raise Retryable(
                        f"Kafka does not say whether topic '{name}' exists",
                        where=uri.bootstrap,
                        why=words_of(error),
                        fix="allow the sink's user to describe and write the topic",
                    ) from error
                # The others say that it does not exist, or has no leader yet.
    return {name: count for name, count in found.items() if count}


def _partitions(admin: AdminClient, uri: SinkUri, topic: str) -> int:
    return existing(admin, uri, [topic]).get(topic, 0)


def _create_all(admin: AdminClient, uri: SinkUri, topics: list[NewTopic]) -> None:
    for at in range(0, len(topics), TOPICS_AT_ONCE):
        asked = admin.create_topics(topics[at : at + TOPICS_AT_ONCE], operation_timeout=CALL_TIMEOUT_S)
        for name, answer in asked.items():
            try:
                answer.result(CALL_TIMEOUT_S)
            except KafkaException as error:
                # It exists: another capture has created it, or the answer to an earlier attempt was lost.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise Retryable(
                        f"topic '{name}' could not be created", where=uri.bootstrap, why=words_of(error)
                    ) from error
    missing = {topic.topic for topic in topics}
    deadline = time.monotonic() + CALL_TIMEOUT_S
    while missing and (missing := missing - existing(admin, uri, missing).keys()):
        if time.monotonic() > deadline:
            raise Retryable(f"topic '{min(missing)}' was created but does not appear", where=uri.bootstrap)
        time.sleep(0.05)


def _check_message_limit(admin: AdminClient, uri: SinkUri, kafka: KafkaConfig, topics: list[str]) -> None:
    """Raise InvalidInput if `max-message-bytes` exceeds a topic's limit: a row of a size between the two
    would stop the feed later.
    """
    for at in range(0, len(topics), TOPICS_AT_ONCE):
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in topics[at : at + TOPICS_AT_ONCE]]
        for resource, answer in admin.describe_configs(asked).items():
            try:
                settings = answer.result(CALL_TIMEOUT_S)
            except KafkaException as error:
                raise unreachable(uri, error) from error
            limit = int(settings["max.message.bytes"].value)
            if limit < kafka.max_message_bytes:
                raise InvalidInput(
                    f"max-message-bytes={kafka.max_message_bytes} exceeds what topic '{resource.name}' "
                    f"takes ({limit})",
                    where=uri.bootstrap,
                    fix=f"set max-message-bytes={limit - 128} in the sink URI, or raise the topic's limit",
                )


def check_decided(admin: AdminClient, uri: SinkUri, topic: str) -> None:
    """Raise OpenTransactions if a topic's only partition has an open transaction.

    A reader of committed records stops at the first open transaction (the *last stable offset*). It would
    miss records that other writers have committed after that point.
    """
    place = TopicPartition(topic, 0)
    try:
        # Both at once. If a record is written in between, they may differ although no transaction is open.
        # The caller then fences, which does no harm.
        all_records, decided = (
            admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place]
            for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        )
        if decided.result(CALL_TIMEOUT_S).offset < all_records.result(CALL_TIMEOUT_S).offset:
            raise OpenTransactions(
                "a transaction is open on the progress topic",
                where=topic,
                why="a writer was stopped in the middle of it",
                fix="nothing: it is fenced",
            )
    except KafkaException as error:
        raise unreachable(uri, error) from error


def read_records(uri: SinkUri, kafka: KafkaConfig, topic: str) -> dict[str, bytes]:
    """The last committed record of every key of a progress topic; {} if the topic does not exist.

    Call it once, after all transactional ids that write the topic were initialised: from then on no record
    is added.
    """
    consumer = Consumer(
        client_settings(uri, kafka)
        | {"group.id": topic, "enable.auto.commit": False, "isolation.level": "read_committed"}
        | {"auto.offset.reset": "earliest", "enable.partition.eof": True}
        # A broker that has no more records waits this long before it answers; the default is half a second.
        | {"fetch.wait.max.ms": FETCH_WAIT_MS}
    )
    records: dict[str, bytes] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + PROGRESS_READ_S
        while time.monotonic() < deadline:
            for message in take(consumer, 1000, 0.1):
                error = message.error()
                # All writers are fenced, so the end that is reached now is the last one.
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return records
                if error is not None and not error.retriable():
                    raise unreachable(uri, error)
                key, value = message.key(), message.value()
                # A deleted record. Compaction may not have removed the earlier ones yet.
                if error is None and key is not None and value is None:
                    records.pop(key.decode(), None)
                elif error is None and key is not None:
                    records[key.decode()] = value
    except KafkaException as error:
        raise unreachable(uri, error) from error
    finally:
        consumer.close()
    raise Retryable(f"progress in '{topic}' was not read within {PROGRESS_READ_S:.0f} s", where=uri.bootstrap)


def transactional_id(
    cluster: int, namespace: str, changefeed: str, slot: int | str, capture: str = ""
) -> str:
    """The transactional id of a capture's slot. The slot `owner`, for Resolved and DDL, has no capture."""
    return ".".join(["tidegate", str(cluster), namespace, changefeed, *filter(None, [capture]), str(slot)])
