"""The transactional producer of one slot: rows and the progress that speaks of them, durable together.

A slot is a transactional id; a worker process holds one for its life. `pace` says how large its
transactions become. Rows are handed to the client while the next ones are still being encoded; nothing of a
transaction is kept but what the client holds until it is acknowledged.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Producer

from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.model.message import MessageBlock
from tidegate.sink.base import Content, Prove, SlotTaken, Undecided
from tidegate.sink.kafka.client import (
    CALL_TIMEOUT_S,
    FENCED,
    POLL_S,
    PURGED,
    producer_settings,
    unreachable,
    unwritten,
)
from tidegate.sink.kafka.pace import Pace

CHUNK_BYTES: Final = 256 << 10
"""What is handed to the client at once."""


ABORT_TIMEOUT_S: Final = 2.0
"""Whoever comes next fences the transaction and so ends it, too: only readers wait for that."""


class SlotWriter:
    """The transactional producer of one slot.

    `prove` reads the grant from the metadata store and raises Fenced when this incarnation is no longer
    current. Why a proof *after* each initialisation is enough: a new incarnation first raises the grant
    and then initialises every slot. If our initialisation came before its own, the broker fences us; if it
    came after, the grant was raised already and the proof fails. A rightful writer that a waking zombie
    has fenced proves itself and takes the slot back; the zombie cannot.

    `write` as often as need be, then `commit`; the first `write` after a commit begins the next
    transaction. Every call raises Fenced when another incarnation has taken over, and Retryable when the
    broker fails; nothing of the transaction is visible to read_committed readers then, but for a commit whose
    outcome is not known. `alive` is called when the broker has acknowledged something.
    """

    def __init__(
        self,
        uri: SinkUri,
        config: ReplicaConfig,
        transactional_id: str,
        progress_topic: str,
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._uri, self._settings = uri, producer_settings(uri, config.sink.kafka_config, transactional_id)
        self._topic, self._progress_topic = uri.topic, progress_topic
        self._id, self._prove, self._alive = transactional_id, prove, alive
        self._producer = self._initialise()
        self._errors: list[KafkaError] = []
        self._pace = Pace()
        self._under_way = _UnderWay()
        self._open = False

    @property
    def is_due(self) -> bool:
        """Whether the transaction should be committed now."""
        return self._pace.is_due(time.monotonic())

    @property
    def room(self) -> int:
        """Bytes of messages that may be produced before `is_due` is asked again."""
        return self._pace.piece(time.monotonic())

    def write(self, contents: Sequence[Content]) -> None:
        """Produce blocks of messages, those of each partition of their topics in order.

        Waits while the broker has much to acknowledge. Nothing is kept of the block.
        """
        with self._before_commit():
            for block in contents:
                assert isinstance(block, MessageBlock)
                order = np.argsort(block.partition, kind="stable")
                bounds = np.flatnonzero(np.diff(block.partition[order])) + 1
                for part in np.split(order, bounds):
                    if len(part):
                        self._produce_part(block, part)

    def commit(self, progress: Mapping[str, bytes]) -> None:
        """End the transaction with these records of progress; durable on return."""
        with self._before_commit():
            for key, value in progress.items():
                self._producer.produce(self._progress_topic, value, key, 0, on_delivery=self._failed)
                self._under_way.add(1, len(value))
            # Who is fenced shall learn it here, where nothing can have been committed yet.
            self._wait(0)
        self._open = False
        self._pace.ended()
        self._commit()

    def abort(self) -> None:
        """Give up what was produced since the last commit, if the broker can be told; else it times out."""
        if self._open:
            try:
                self._producer.abort_transaction(ABORT_TIMEOUT_S)
            except KafkaException as error:
                raise unreachable(self._uri, error) from error
            finally:
                self._producer.poll(0)  # that they were purged is no error of the next transaction's
                self._forget()

    def close(self) -> None:
        """Release the producer; an open transaction is left to the broker's timeout."""
        self._producer.purge()

    def _initialise(self) -> Producer:
        producer = Producer(self._settings)
        try:
            producer.init_transactions(CALL_TIMEOUT_S)
        except KafkaException as error:
            raise unreachable(self._uri, error) from error
        self._prove()
        return producer

    @contextmanager
    def _before_commit(self) -> Iterator[None]:
        """Within a transaction, begun if need be. An error shows whose the slot is."""
        try:
            if not self._open:
                self._producer.begin_transaction()
                self._open = True
                self._pace.begin(time.monotonic())
            yield
        except KafkaException as error:
            self._recover(error)

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction(CALL_TIMEOUT_S)
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            self._prove()
            if cause.code() not in FENCED:
                self._give_up(error)
            # The broker may have committed before it fenced us. The progress tells, but not while other slots
            # write: the next incarnation stops them all before it reads it.
            raise Undecided(
                "The slot was taken while its transaction was being committed.",
                where=self._id,
                why=f"whether it was committed is not known: {cause}",
                fix="nothing: the changefeed starts again from its progress in Kafka",
            ) from error

    def _recover(self, cause: KafkaException) -> NoReturn:
        """Before the commit: take the slot back if it is ours and was only fenced, else give up."""
        self._forget()
        self._pace.slowed()
        self._prove()
        error: KafkaError = cause.args[0]
        if error.code() not in FENCED:
            self._give_up(cause)
        self._producer.purge()
        self._producer = self._initialise()
        raise SlotTaken(
            "The slot was taken in the middle of a transaction.",
            where=self._id,
            why=f"{error.str()}; or the broker has ended a transaction that was open too long by its clock",
            fix="nothing to do: rows that were not committed are delivered again, in smaller transactions",
        ) from cause

    def _forget(self) -> None:
        """Nothing of the transaction counts any more."""
        self._open = False
        self._pace.ended()
        self._errors.clear()
        self._under_way = _UnderWay()

    def _give_up(self, cause: KafkaException) -> NoReturn:
        error: KafkaError = cause.args[0]
        if error.txn_requires_abort():
            self._producer.abort_transaction(ABORT_TIMEOUT_S)
        raise unwritten(self._uri, error) from cause

    def _produce_part(self, block: MessageBlock, part: np.ndarray[Any, Any]) -> None:
        """Hand over one partition's messages, in order, as fast as the broker takes them."""
        data, topic, partition = block.data.data, block.topic or self._topic, int(block.partition[part[0]])
        headers = list(block.headers)
        weights = np.cumsum(np.maximum(block.value_length[part], 0) + np.maximum(block.key_length[part], 0))
        first = done = 0
        while first < len(part):
            end = max(first + 1, int(np.searchsorted(weights, done + CHUNK_BYTES, side="right")))
            size, done = int(weights[end - 1]) - done, int(weights[end - 1])
            self._wait(self._pace.window(time.monotonic()) - size)
            self._hand_over(topic, partition, _messages(data, block, part[first:end]), headers)
            self._under_way.add(end - first, size)
            self._pace.sent(size)
            first = end

    def _hand_over(
        self, topic: str, partition: int, messages: list[dict[str, Any]], headers: list[tuple[str, bytes]]
    ) -> None:
        if headers:
            for one in messages:
                self._producer.produce(
                    topic, partition=partition, headers=headers, on_delivery=self._failed, **one
                )
            return
        done = self._producer.produce_batch(topic, messages, partition=partition, on_delivery=self._failed)
        if done != len(messages):
            refused = next(m["_error"] for m in messages if m.get("_error") is not None)
            raise KafkaException(refused)

    def _wait(self, limit: int) -> None:
        """Until no more than `limit` bytes are under way, or nothing; as long as the broker goes on taking.

        Raises KafkaException for what it refused, or when it has taken nothing for `CALL_TIMEOUT_S`.
        """
        received = time.monotonic()
        while True:
            self._producer.poll(0)
            self._raise_errors()
            size = self._under_way.left(len(self._producer))
            now = time.monotonic()
            if size:
                self._pace.acknowledged(size, now)
                self._alive()
                received = now
            if self._under_way.size <= limit or self._under_way.size == 0:
                return
            if now - received > CALL_TIMEOUT_S:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "nothing is acknowledged"))
            time.sleep(POLL_S)

    def _failed(self, error: KafkaError | None, message: object) -> None:
        if error is not None and len(self._errors) < 10:
            self._errors.append(error)

    def _raise_errors(self) -> None:
        if self._errors:
            # What else was waiting is only said to be purged.
            cause = next((error for error in self._errors if error.code() not in PURGED), self._errors[0])
            raise KafkaException(cause)


class _UnderWay:
    """What the client has not been answered for, from the number of such messages: it counts no bytes.

    Messages are taken to be answered in the order in which they were handed over, though partitions differ.
    """

    def __init__(self) -> None:
        self.size = 0
        self._count = 0
        self._chunks: deque[tuple[int, int]] = deque()

    def add(self, count: int, size: int) -> None:
        """Some messages were handed to the client."""
        self._chunks.append((count, size))
        self._count += count
        self.size += size

    def left(self, count: int) -> int:
        """So many messages are left; the bytes that have gone since the last call."""
        before = self.size
        while self._chunks and self._count - count >= self._chunks[0][0]:
            gone, size = self._chunks.popleft()
            self._count -= gone
            self.size -= size
        return before - self.size


def _messages(data: memoryview, block: MessageBlock, part: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """The messages of one partition as `produce_batch` takes them; nulls are left out."""
    starts = block.value_start[part]
    values = zip(starts.tolist(), (starts + block.value_length[part]).tolist(), strict=True)
    if block.key_length[part[0]] < 0:
        return [{"value": data[a:b].tobytes()} if b >= a else {} for a, b in values]
    starts = block.key_start[part]
    keys = zip(starts.tolist(), (starts + block.key_length[part]).tolist(), strict=True)
    return [
        {"value": data[a:b].tobytes(), "key": data[c:d].tobytes()} if b >= a else {"key": data[c:d].tobytes()}
        for (a, b), (c, d) in zip(values, keys, strict=True)
    ]


FENCES_AT_ONCE: Final = 32
"""Each has a client with connections to all brokers."""


def fence_slots(
    uri: SinkUri, config: ReplicaConfig, ids: Sequence[str], alive: Callable[[], None] = lambda: None
) -> None:
    """Initialise every slot once, so that no writer of an older incarnation can commit any more.

    `alive` is called after each, in the caller's thread: thousands of them take minutes.
    """

    def fence(one: str) -> None:
        try:
            Producer(producer_settings(uri, config.sink.kafka_config, one)).init_transactions(CALL_TIMEOUT_S)
        except KafkaException as error:
            raise unreachable(uri, error) from error

    # Each waits mostly for the broker to abort what its predecessor left open.
    with ThreadPoolExecutor(min(max(1, len(ids)), FENCES_AT_ONCE), thread_name_prefix="fence") as pool:
        for _ in pool.map(fence, ids):
            alive()
