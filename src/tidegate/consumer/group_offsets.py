"""Offsets of a Kafka consumer group, so that the tools that show lag see this consumer. For them alone.

    position of the newest snapshot  ->  offsets of the group, about once a second at most

The truth is the position that the target keeps: nothing ever reads these offsets back. They are written after
the snapshot, so they do not run ahead of the target. After a crash, or if the broker refuses them, they stay
behind it until the next snapshot.

One request is under way at most, and the newest position replaces one that waits. A failure is said once.

They are committed as by a consumer that reads nothing. The admin client has a call for the same, but in it
librdkafka 2 may end the process if the group has no coordinator yet (`rd_kafka_enq_once_del_source_return`).
"""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidegate.consumer.position import Position
from tidegate.consumer.source import Topic
from tidegate.errors import Retryable, TidegateError
from tidegate.sink.kafka.client import client_settings

ANSWER_S: Final = 30.0
"""After this time the broker has not answered."""
PAUSE_S: Final = 10.0
"""After a failure."""
CLOSE_S: Final = 3.0
"""How long the end of a run waits for the broker at most, for each of two requests."""
POLL_S: Final = 0.05


class Voice(Protocol):
    """Who gets to know of a failure, and of its end."""

    def warn(self, error: TidegateError, /) -> None:
        """A trouble begins."""

    def note(self, text: str, /) -> None:
        """It is over."""


class GroupOffsets:
    """Writes the offsets of one group. Not thread-safe; only `close` waits."""

    def __init__(self, topic: Topic, group: str, voice: Voice) -> None:
        self._topic, self._group, self._voice = topic, group, voice
        self._client = Consumer(
            client_settings(topic.uri, topic.config.sink.kafka_config)
            | {"group.id": group, "enable.auto.commit": False, "on_commit": self._answered}
        )
        self._asked_at: float | None = None
        """When the request was sent that is under way."""
        self._answer: str | None = None
        """Why the broker refused it, or empty; None: it has not answered."""
        self._sent: dict[int, int] = {}
        """By partition, what the broker was asked to keep last."""
        self._not_before = 0.0
        self._failing = False

    def keep(self, position: Position, now: float) -> None:
        """To be called every second with the newest snapshot's position; `now` is a monotonic time."""
        self._look(now)
        if self._asked_at is None and now >= self._not_before:
            self._send(position, now)

    def close(self, position: Position) -> None:
        """Bring the newest position to the broker, within a few seconds, or give up."""
        self._wait()
        if self._asked_at is None and not self._failing:
            self._send(position, time.monotonic())
            self._wait()

    def _send(self, position: Position, now: float) -> None:
        offsets = {number: part.offset for number, part in position.partitions.items()}
        if not position.ts or offsets == self._sent:
            return
        places = [TopicPartition(*self._topic.place(number), offset) for number, offset in offsets.items()]
        self._sent, self._asked_at, self._answer = offsets, now, None
        try:
            self._client.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            self._answer = error.args[0].str()

    def _answered(self, error: KafkaError | None, places: list[Any]) -> None:
        """Called within `poll`."""
        errors = [error, *(one.error for one in places or ())]
        self._answer = next((one.str() for one in errors if one is not None), "")

    def _wait(self) -> None:
        until = time.monotonic() + CLOSE_S
        while self._asked_at is not None and (now := time.monotonic()) < until:
            self._look(now)
            time.sleep(POLL_S if self._asked_at is not None else 0)

    def _look(self, now: float) -> None:
        """Take the broker's answer, if it is there."""
        if self._asked_at is None:
            return
        self._client.poll(0)
        if self._answer is None:
            if now - self._asked_at > ANSWER_S:
                self._failed("it does not answer", now)
            return
        self._asked_at = None
        if self._answer:
            self._failed(self._answer, now)
        elif self._failing:
            self._failing = False
            self._voice.note(f"the offsets of group {self._group} are kept again")

    def _failed(self, why: str, now: float) -> None:
        self._sent, self._asked_at, self._not_before = {}, None, now + PAUSE_S
        if not self._failing:
            self._failing = True
            self._voice.warn(
                Retryable(
                    "the broker does not take the consumer group's offsets",
                    where=f"group {self._group} at {self._topic.uri.bootstrap}",
                    why=why,
                    fix="give --group a name that no other consumer uses, and the user the right to it; the "
                    "consumer goes on, and lag tools show old offsets",
                )
            )
