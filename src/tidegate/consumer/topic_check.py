"""Reads topics to their end, or for ever, and checks them against `contract`. It needs no Spark.

While the check holds much state, a partition whose Resolved is ahead of the others is paused. So memory is
bounded by `remember`, and not by how unevenly the broker answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tidegate.codec import registry
from tidegate.codec.entry import Loss
from tidegate.consumer.contract.check import REMEMBER, Producer, TopicCheck
from tidegate.consumer.contract.verdict import Verdict
from tidegate.consumer.reading.fetch import batch_of
from tidegate.consumer.reading.mark_headers import MarkHeaders, mark_headers
from tidegate.consumer.reading.offsets import Offsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.reading.topic_decoder import TopicDecoder
from tidegate.dispatcher.router import Router
from tidegate.errors import InvalidInput, Retryable
from tidegate.model.timestamp import compose
from tidegate.sink.kafka.client import take

BATCH: Final = 5_000
SKEW_MS: Final = 60_000
"""How far the clocks of producer and broker may be behind upstream's."""
SILENCE_S: Final = 20.0
"""Seconds without a message after which reading to the topic's end fails."""


def check_topic(
    topic: Topic,
    *,
    producer: Producer = Producer.TIDEGATE,
    router: Router | None = None,
    remember: int = REMEMBER,
    follow: bool = False,
    stop: Callable[[], bool] = lambda: False,
    reported: Callable[[Verdict, int, int], None] = lambda *_: None,
) -> Verdict:
    """The verdict on topics from their oldest message to their current end; `follow`: until `stop`.

    `reported` is called after each batch with the verdict so far, and with how many of how many messages are
    read. Raises Retryable when the broker does not answer, and InvalidInput when there is no such topic, or
    its protocol does not allow a check.
    """
    codec = registry.reader_of(topic.options)
    if Loss.SECONDS in codec.losses(topic.options):
        raise InvalidInput(
            "the topic cannot be checked",
            where=f"topic {topic.name}",
            why=f"in {codec.name} {Loss.SECONDS}: the order of changes within a second cannot be judged",
            fix="check a topic of another protocol; `tidegate peek` shows the messages all the same",
        )
    offsets = Offsets(topic)
    partitions = offsets.partitions()
    starts, ends = offsets.first(partitions), offsets.ends(partitions)
    total = sum(ends.values()) - sum(starts.values())
    at = dict(starts)
    reader, decoder = Consumer(topic.settings()), TopicDecoder(topic)
    check = TopicCheck(
        partitions,
        producer=producer,
        ddl_to=codec.ddl_to,
        router=router,
        begun=_begun(topic, starts, ends),
        remember=remember,
        topics=topic.names,
    )
    left = {p for p in partitions if follow or starts[p] < ends[p]}
    paused: set[int] = set()
    received = time.monotonic()
    try:
        reader.assign([TopicPartition(*topic.place(p), starts[p]) for p in partitions])
        while left and not stop():
            paused = _paused(reader, topic, check, left, paused)
            batches: dict[int, list[Any]] = {}
            for message in take(reader, BATCH, 0.2):
                received = time.monotonic()
                error = message.error()
                if message.topic() is None:  # an error that concerns no partition
                    raise Retryable("the topic cannot be read", where=topic.name, why=error.str())
                partition = topic.number(message.topic(), message.partition())
                if error is None:
                    batches.setdefault(partition, []).append(message)
                    at[partition] = message.offset() + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    at[partition] = max(at[partition], message.offset())
                else:
                    raise Retryable("the topic cannot be read", where=topic.name, why=error.str())
            for partition, messages in sorted(batches.items()):
                batch = batch_of(messages)
                for piece in decoder.pieces(batch):
                    headers = mark_headers(batch, [*piece.resolved, *piece.repartitions])
                    if follow:
                        _check_all_read(topic, partition, partitions, headers)
                    check.take(partition, piece, headers)
            if not follow:
                left = {p for p in left if at[p] < ends[p]}
            reported(check.verdict, min(total, sum(at.values()) - sum(starts.values())), total)
            if left and not follow and time.monotonic() - received > SILENCE_S:
                raise Retryable(
                    "the topic cannot be read to its end",
                    where=topic.name,
                    why=f"no message came for {SILENCE_S:.0f} s",
                    fix="check the broker",
                )
    finally:
        reader.close()
    return check.finish()


def _check_all_read(topic: Topic, partition: int, read: Sequence[int], headers: MarkHeaders) -> None:
    """Retryable when rows go to partitions that did not exist at the start."""
    name = topic.place(partition)[0]
    for layout in headers.layouts.values():
        if topic.number(name, layout.all - 1) not in read:
            raise Retryable(
                f"topic {name} has got more partitions",
                where=f"from ts {layout.ts} on {layout.all} are written",
                why="the changefeed was re-partitioned, and the new partitions are not read",
                fix="start the check again",
            )


def _begun(topic: Topic, starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """For partitions that have lost their beginning, a ts that none of the lost messages exceeds.

    A change was committed upstream before its message was written. So the time of the oldest message that is
    left is such a ts, plus `SKEW_MS` for clocks that differ.
    """
    lost = [p for p, start in starts.items() if start > 0]
    if not lost:
        return {}
    # If a partition has no message left, all that is known is that the lost ones are not from the future.
    found = dict.fromkeys(lost, compose(int(time.time() * 1000)))
    reader = Consumer(topic.settings())
    try:
        waiting = {p for p in lost if starts[p] < ends[p]}
        reader.assign([TopicPartition(*topic.place(p), starts[p]) for p in waiting])
        deadline = time.monotonic() + SILENCE_S
        while waiting and time.monotonic() < deadline:
            for message in take(reader, 100, 0.2):
                if message.error() is not None:
                    continue
                partition = topic.number(message.topic(), message.partition())
                if partition in waiting:
                    waiting.discard(partition)
                    found[partition] = compose(message.timestamp()[1] + SKEW_MS)
    finally:
        reader.close()
    return found


def _paused(reader: Consumer, topic: Topic, check: TopicCheck, left: set[int], paused: set[int]) -> set[int]:
    """Pause partitions that are ahead, and resume the others. Returns the paused ones: never all that are
    left.
    """
    wanted = {p for p in left if check.ahead(p)} if check.pressed else set()
    if wanted == left:
        wanted = set()
    if wanted - paused:
        reader.pause([TopicPartition(*topic.place(p)) for p in wanted - paused])
    if paused - wanted:
        reader.resume([TopicPartition(*topic.place(p)) for p in paused - wanted])
    return wanted
