"""The topics of a changefeed: made if they are missing, checked, widened, deleted.

Topics are asked for by name. A broker may have many thousands of others, and each start of a changefeed asks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tidegate.config.settings import KafkaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.errors import InvalidInput, Retryable
from tidegate.sink.base import Check
from tidegate.sink.kafka.client import CALL_TIMEOUT_S, client_settings, unreachable, words_of
from tidegate.sink.kafka.steps import result_in_steps

DELETE_TIMEOUT_S: Final = 3.0
DEFAULT_PARTITIONS: Final = 3
TOPICS_AT_ONCE: Final = 500
"""Topics that one request asks for, creates, or reads the settings of."""
POLL_S: Final = 0.05
"""The pause between two looks whether a change has reached the brokers."""
BROKERS_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
"""Setting of topics that we create. With timestamps of our own, a broker would refuse messages if our clock
is an hour ahead of its clock, and its retention would delete them at once if our clock is far behind."""
REFUSED_TOPIC: Final = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
"""Answers about a topic that say nothing of whether it exists."""
NOT_WIDENED: Final = (
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICA_ASSIGNMENT,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_REQUEST,
)
"""Errors of a request for more partitions after which a repeated request would fail in the same way."""


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
        time.sleep(POLL_S)


def ensure_progress_topic(uri: SinkUri, kafka: KafkaConfig, topic: str, check: Check = lambda: None) -> None:
    """Create the compacted progress topic, with one partition, if it does not exist."""
    admin = AdminClient(client_settings(uri, kafka))
    if not existing(admin, uri, [topic], check):
        _create_all(admin, uri, [_new_progress_topic(kafka, topic)], check)


def _new_progress_topic(kafka: KafkaConfig, topic: str) -> NewTopic:
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": "600000"}
    return NewTopic(topic, 1, kafka.replication_factor, config=settings | BROKERS_TIME)


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


def existing(
    admin: AdminClient, uri: SinkUri, names: Iterable[str], check: Check = lambda: None
) -> dict[str, int]:
    """Those of `names` that the broker has as topics, with the number of partitions of each.

    The request makes no topic, whatever the broker's `auto.create.topics.enable` says.
    """
    asked, found = sorted(set(names)), dict[str, int]()
    for at in range(0, len(asked), TOPICS_AT_ONCE):
        answers = admin.describe_topics(
            TopicCollection(asked[at : at + TOPICS_AT_ONCE]), request_timeout=CALL_TIMEOUT_S
        )
        for name, answer in answers.items():
            try:
                found[name] = len(result_in_steps(answer, 2 * CALL_TIMEOUT_S, check).partitions)
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


def _create_all(
    admin: AdminClient, uri: SinkUri, topics: list[NewTopic], check: Check = lambda: None
) -> None:
    for at in range(0, len(topics), TOPICS_AT_ONCE):
        asked = admin.create_topics(topics[at : at + TOPICS_AT_ONCE], operation_timeout=CALL_TIMEOUT_S)
        for name, answer in asked.items():
            try:
                result_in_steps(answer, CALL_TIMEOUT_S, check)
            except KafkaException as error:
                # It exists: another capture has created it, or the answer to an earlier attempt was lost.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise Retryable(
                        f"topic '{name}' could not be created", where=uri.bootstrap, why=words_of(error)
                    ) from error
    missing = {topic.topic for topic in topics}
    deadline = time.monotonic() + CALL_TIMEOUT_S
    while missing and (missing := missing - existing(admin, uri, missing, check).keys()):
        if time.monotonic() > deadline:
            raise Retryable(f"topic '{min(missing)}' was created but does not appear", where=uri.bootstrap)
        time.sleep(POLL_S)


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
