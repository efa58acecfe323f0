"""Shows a topic: every message decoded, in the order of its partition. It needs no Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tidegate.codec.base import Batch, describe
from tidegate.consumer.reading.offsets import Offsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.reading.topic_decoder import TopicDecoder
from tidegate.errors import Retryable
from tidegate.sink.kafka.client import take

BATCH = 500
SILENCE_S = 20.0
"""Seconds without a message after which reading to the topic's end fails, unless following."""


def peek(
    topic: Topic, *, from_beginning: bool, follow: bool, stop: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """Decoded rows, marks, DDLs and bad messages as plain dicts with topic (of several), partition, offset.

    Begins at the topic's beginning or at its current end. Stops at the end that it has at the call, unless
    `follow`.
    """
    offsets = Offsets(topic)
    partitions = offsets.partitions()
    ends = offsets.ends(partitions)
    starts = offsets.first(partitions) if from_beginning else ends
    reader, decoder = Consumer(topic.settings()), TopicDecoder(topic)
    left = {p for p in partitions if follow or starts[p] < ends[p]}
    received = time.monotonic()
    try:
        reader.assign([TopicPartition(*topic.place(p), starts[p]) for p in sorted(left)])
        while left and not stop():
            batches: dict[int, list[Any]] = {}
            for message in take(reader, BATCH, 0.2):
                received = time.monotonic()
                error = message.error()
                # The end of a partition comes as an error too; without `follow` the loop waits for one of
                # each.
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise Retryable("the topic cannot be read", where=topic.name, why=error.str())
                number = topic.number(message.topic(), message.partition())
                if error is None:
                    batches.setdefault(number, []).append(message)
                elif not follow:
                    left.discard(number)
            for number, messages in sorted(batches.items()):
                name, partition = topic.place(number)
                place = {"topic": name} if len(topic.names) > 1 else {}
                yield from _decoded(decoder, place | {"partition": partition}, messages)
            if not follow and time.monotonic() - received > SILENCE_S:
                raise Retryable(
                    "the topic cannot be read to its end",
                    where=topic.name,
                    why=f"no message came for {SILENCE_S:.0f} s",
                    fix="check the broker",
                )
    finally:
        reader.close()


def _decoded(decoder: Any, place: dict[str, Any], messages: list[Any]) -> Iterator[dict[str, Any]]:
    batch = Batch(
        [message.key() for message in messages],
        [message.value() for message in messages],
        np.array([message.offset() for message in messages], np.int64),
        [message.headers() for message in messages],
    )
    for piece in decoder.pieces(batch):
        for item in describe(piece):
            yield {**place, **item}
