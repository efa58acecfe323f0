"""Kafka: settings, and the progress that is stored there. `topics` makes and checks topics.

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
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidegate.config.settings import KafkaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.config.values import revealed
from tidegate.errors import Retryable
from tidegate.sink.base import Check, OpenTransactions

TRANSACTION_TIMEOUT_MS: Final = 10_000
REQUEST_MAX_MS: Final = 300_000
"""librdkafka's limit for `socket.timeout.ms`."""
FETCH_WAIT_MS: Final = 10
CALL_TIMEOUT_S: Final = 15.0
CLUSTER_ID_S: Final = 5.0
PROGRESS_READ_S: Final = 60.0
POLL_S: Final = 0.003
"""Pause between two polls; a wait may end late by this much."""
DRAIN_GROWTH: Final = 1.3
DRAIN_POLL_S: Final = 0.03
"""The pauses of `drain` grow up to this: hundreds of owners may wait for a busy broker at the same time, and
each poll takes the interpreter lock from the event loop that wakes the changefeeds."""
REFUSED: Final = (KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD)
SETTLING: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""Answers about a partition that has just been made, or whose leader changes."""
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


def check_decided(admin: AdminClient, uri: SinkUri, topic: str) -> None:
    """Raise OpenTransactions if a topic's only partition has an open transaction.

    A reader of committed records stops at the first open transaction (the *last stable offset*). It would
    miss records that other writers have committed after that point. The topic may have just been made: it is
    known to brokers some milliseconds before its leader answers.
    """
    deadline = time.monotonic() + CALL_TIMEOUT_S
    while not _is_decided(admin, uri, topic, deadline):
        time.sleep(DRAIN_POLL_S)


def _is_decided(admin: AdminClient, uri: SinkUri, topic: str, deadline: float) -> bool:
    """As `check_decided`; False if the partition has no leader yet and the deadline has not passed."""
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
        if error.args[0].code() in SETTLING and time.monotonic() < deadline:
            return False
        raise unreachable(uri, error) from error
    return True


def read_records(
    uri: SinkUri, kafka: KafkaConfig, topic: str, check: Check = lambda: None
) -> dict[str, bytes]:
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
            check()
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
