"""Commits offsets of a Kafka consumer group, only so that tools that show lag see this consumer.

    position of the newest snapshot  ->  offsets of the group, about once a second at most

The position that the target stores is authoritative: nothing ever reads these offsets back. They are written
after the snapshot, so they never run ahead of the target. After a crash, or if the broker refuses them, they
stay behind it until the next snapshot.

At most one request is under way, and the newest position replaces one that waits. A failure is reported once.

A consumer client that reads nothing commits the offsets. The admin client has such a call too, but there
librdkafka 2 may end the process if the group has no coordinator yet (`rd_kafka_enq_once_del_source_return`).
"""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidegate.consumer.engine.position import Position
from tidegate.consumer.reading.source import Topic
from tidegate.errors import Retryable, TidegateError
from tidegate.sink.kafka.client import client_settings

ANSWER_S: Final = 30.0
"""Seconds after which an answer of the broker counts as missing, and for which a client that is released may
still wait for one."""
PAUSE_S: Final = 10.0
"""Seconds without requests after a failure."""
CLOSE_S: Final = 3.0
"""Seconds for which the end of a run waits for each of at most two requests."""
POLL_S: Final = 0.05
SILENT: Final = "it does not answer"
"""Why the broker does not take them, if it says nothing."""


class FailureListener(Protocol):
    """Gets reports of a failure, and of its end."""

    def warn(self, error: TidegateError, /) -> None:
        """A failure begins."""

    def note(self, text: str, /) -> None:
        """The failure is over."""


class GroupOffsets:
    """Writes the offsets of one group. Not thread-safe; only `close` blocks."""

    def __init__(
        self, topic: Topic, group: str, listener: FailureListener, answer_s: float = ANSWER_S
    ) -> None:
        self._topic, self._group, self._listener, self._answer_s = topic, group, listener, answer_s
        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "on_commit": self._answered,
            # The client is in no session. But a request without an answer is kept until this time has
            # passed, and the client does not end before: the thread that releases it waits, while that of
            # librdkafka spins.
            "session.timeout.ms": round(answer_s * 1000),
        }
        self._client = Consumer(client_settings(topic.uri, topic.config.sink.kafka_config) | own)
        self._asked_at: float | None = None
        """When the request under way was sent; None when there is none."""
        self._answer: str | None = None
        """The broker's refusal, or empty when it accepted; None while it has not answered."""
        self._sent: dict[int, int] = {}
        """The offset of each partition in the last request."""
        self._not_before = 0.0
        self._failing = False

    def keep(self, position: Position, now: float) -> None:
        """Call this every second with the newest snapshot's position; `now` is a monotonic time."""
        self._look(now)
        if self._asked_at is None and now >= self._not_before:
            self._send(position, now)

    def close(self, position: Position) -> None:
        """Commit the newest position, and wait for the broker for a few seconds at most."""
        self._wait()
        # A broker that has just refused would only make the end of the run wait.
        if self._asked_at is None and not self._failing:
            self._send(position, time.monotonic())
            self._wait()

    def _send(self, position: Position, now: float) -> None:
        offsets = {number: part.offset for number, part in position.partitions.items()}
        # The same offsets again would be a request a second for nothing, at each idle consumer.
        if not position.ts or offsets == self._sent:
            return
        places = [TopicPartition(*self._topic.place(number), offset) for number, offset in offsets.items()]
        self._sent, self._asked_at, self._answer = offsets, now, None
        try:
            self._client.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            self._answer = error.args[0].str()

    def _answered(self, error: KafkaError | None, places: list[Any]) -> None:
        """Called by librdkafka, within `poll`, with the broker's answer."""
        errors = [error, *(one.error for one in places or ())]
        found = next((one for one in errors if one is not None), None)
        silent = found is not None and found.code() == KafkaError._WAIT_COORD
        self._answer = SILENT if silent else found.str() if found is not None else ""

    def _wait(self) -> None:
        until = time.monotonic() + CLOSE_S
        while self._asked_at is not None and (now := time.monotonic()) < until:
            self._look(now)
            time.sleep(POLL_S if self._asked_at is not None else 0)

    def _look(self, now: float) -> None:
        """Take the broker's answer, if it has come."""
        if self._asked_at is None:
            return
        self._client.poll(0)
        if self._answer is None:
            if now - self._asked_at > self._answer_s:
                self._failed(SILENT, now)
            return
        self._asked_at = None
        if self._answer:
            self._failed(self._answer, now)
        elif self._failing:
            self._failing = False
            self._listener.note(f"the offsets of group {self._group} are kept again")

    def _failed(self, why: str, now: float) -> None:
        """Report the first of several failures, and pause. The next request sends all offsets again."""
        self._sent, self._asked_at, self._not_before = {}, None, now + PAUSE_S
        if not self._failing:
            self._failing = True
            self._listener.warn(
                Retryable(
                    "the broker does not take the consumer group's offsets",
                    where=f"group {self._group} at {self._topic.uri.bootstrap}",
                    why=why,
                    fix="give --group a name that no other consumer uses, and the user the right to it; the "
                    "consumer continues, and lag tools show old offsets",
                )
            )
