"""The transactional producer of one slot: rows and the progress that covers them, durable together.

A slot is a transactional id; a worker process uses one for its whole life. `pace` decides how large its
transactions become. The worker hands rows to the client while it encodes the next ones. Only the client holds
the messages of a transaction, until they are acknowledged.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Producer

from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.errors import Fenced
from tidegate.model.message import MessageBlock
from tidegate.sink.base import Check, Content, Prove, SlotTaken, Undecided
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
from tidegate.sink.kafka.steps import STEP_S, initialise

CHUNK_BYTES: Final = 256 << 10
"""The bytes that are handed to the client at once."""


ABORT_TIMEOUT_S: Final = 2.0
"""A short wait is enough: the slot's next producer fences the transaction and so ends it, too. Until then
only read_committed readers wait."""


class SlotWriter:
    """The transactional producer of one slot.

    `prove` reads the grant from the metadata store and raises Fenced if this incarnation is no longer
    current. A proof *after* each initialisation is enough, because a new incarnation first raises the grant
    and then initialises every slot. If we initialised before it did, the broker fences us. If we initialised
    after it, the grant was raised already and our proof fails. If a zombie wakes up and initialises the slot,
    it fences the rightful writer: that writer proves its grant and takes the slot back, and the zombie's
    proof fails.

    Call `write` any number of times, then `commit`; the first `write` after a commit begins the next
    transaction. Every call raises Fenced if another incarnation has taken over, and Retryable if the
    broker fails. Then nothing of the transaction is visible to read_committed readers, except after a commit
    whose outcome is not known. `alive` is called whenever the broker has acknowledged something.

    `check` is called in each wait for the broker except that for a commit. When it raises, nothing is waited
    for any more but one short abort.
    """

    def __init__(
        self,
        uri: SinkUri,
        config: ReplicaConfig,
        transactional_id: str,
        progress_topic: str,
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> None:
        self._uri, self._settings = uri, producer_settings(uri, config.sink.kafka_config, transactional_id)
        self._topic, self._progress_topic = uri.topic, progress_topic
        self._id, self._prove, self._alive, self._check = transactional_id, prove, alive, check
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
        """Bytes of messages that may be produced before the caller asks `is_due` again."""
        return self._pace.piece(time.monotonic())

    def write(self, contents: Sequence[Content]) -> None:
        """Produce blocks of messages, keeping the order within each partition of each topic.

        Waits while too much is not acknowledged. Keeps no reference to the blocks.
        """
        with self._before_commit():
            for block in contents:
                assert isinstance(block, MessageBlock)
                # Stable, because rows of one partition must keep their order.
                order = np.argsort(block.partition, kind="stable")
                bounds = np.flatnonzero(np.diff(block.partition[order])) + 1
                for part in np.split(order, bounds):
                    if len(part):
                        self._produce_part(block, part)

    def commit(self, progress: Mapping[str, bytes]) -> None:
        """End the transaction with these records of progress; rows and records are durable on return."""
        with self._before_commit():
            # docs/guarantees.md#nothing-is-doubled: progress is in the transaction of its rows, so both are
            # durable or none.
            for key, value in progress.items():
                self._producer.produce(self._progress_topic, value, key, 0, on_delivery=self._failed)
                self._under_way.add(1, len(value))
            # If another incarnation has fenced us, we must notice here, where nothing can be committed yet.
            self._wait(0)
        # Before the commit: whatever its outcome, nothing more may be added to this transaction.
        self._open = False
        self._pace.ended()
        self._commit()

    def abort(self) -> None:
        """Discard what was produced since the last commit. If that fails, the broker aborts it by timeout."""
        if self._open:
            try:
                self._producer.abort_transaction(self._abort_s())
            except KafkaException as error:
                raise unreachable(self._uri, error) from error
            finally:
                # Take the reports of purged messages now: they are no errors of the next transaction.
                self._producer.poll(0)
                self._forget()

    def close(self) -> None:
        """Release the producer; the broker ends an open transaction by its timeout. Nothing can be called
        after it.
        """
        self._producer.purge()
        # The client refers to this object until the purged messages are reported.
        self._producer.poll(0)
        # Frees the client with its threads and connections now. An error may keep this object for a while.
        del self._producer

    def _initialise(self) -> Producer:
        producer = Producer(self._settings)
        try:
            initialise(producer, CALL_TIMEOUT_S, self._check)
        except KafkaException as error:
            raise unreachable(self._uri, error) from error
        # docs/guarantees.md#a-zombie-writes-nothing-that-a-reader-sees: after the initialisation. A grant
        # that is replaced later is fenced by Kafka; one that was replaced before is found here.
        self._prove()
        return producer

    @contextmanager
    def _before_commit(self) -> Iterator[None]:
        """Begin a transaction if none is open, and turn an error into Fenced, SlotTaken or Retryable."""
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
            self._producer.commit_transaction(CALL_TIMEOUT_S)  # never in steps: see `steps`
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            # If the grant was replaced, Fenced says more than the error of the broker.
            self._prove()
            if cause.code() not in FENCED:
                self._give_up(error)
            # The broker may have committed before it fenced us. The records of progress would show it, but
            # not while other slots write: the next incarnation stops all of them before it reads the records.
            raise Undecided(
                "the slot was taken while its transaction was being committed",
                where=self._id,
                why=f"whether it was committed is not known: {cause}",
                fix="nothing: the changefeed starts again from its progress in Kafka",
            ) from error

    def _recover(self, cause: KafkaException) -> NoReturn:
        """Handle an error before the commit: take the slot back if our grant holds and the slot was only
        fenced, otherwise raise.
        """
        # Before the proof, which may raise: the transaction is lost whatever it says.
        self._forget()
        self._pace.slowed()
        self._prove()
        error: KafkaError = cause.args[0]
        if error.code() not in FENCED:
            self._give_up(cause)
        self._producer.purge()
        # Our grant holds, so the process that took the slot has none: take it back.
        self._producer = self._initialise()
        raise SlotTaken(
            "the slot was taken in the middle of a transaction",
            where=self._id,
            why=f"{error.str()}; or the broker has ended a transaction that was open too long by its clock",
            fix="nothing: rows that were not committed are delivered again, in smaller transactions",
        ) from cause

    def _forget(self) -> None:
        """Forget the transaction: it was aborted, or is lost."""
        self._open = False
        self._pace.ended()
        self._errors.clear()
        self._under_way = _UnderWay()

    def _give_up(self, cause: KafkaException) -> NoReturn:
        error: KafkaError = cause.args[0]
        if error.txn_requires_abort():
            try:
                self._producer.abort_transaction(self._abort_s())
            except KafkaException as second:
                raise unreachable(self._uri, second) from cause
        raise unwritten(self._uri, error) from cause

    def _abort_s(self) -> float:
        """How long an abort may take. If the work is given up, others wait for this worker."""
        try:
            self._check()
        except Fenced:
            return STEP_S
        return ABORT_TIMEOUT_S

    def _produce_part(self, block: MessageBlock, part: np.ndarray[Any, Any]) -> None:
        """Produce one partition's messages, in order, as fast as the broker acknowledges them."""
        data, topic, partition = block.data.data, block.topic or self._topic, int(block.partition[part[0]])
        headers = list(block.headers)
        # A length of -1 means null and has no bytes.
        weights = np.cumsum(np.maximum(block.value_length[part], 0) + np.maximum(block.key_length[part], 0))
        first = done = 0
        while first < len(part):
            # At least one message, even if it is larger than a chunk; otherwise the loop would not end.
            end = max(first + 1, int(np.searchsorted(weights, done + CHUNK_BYTES, side="right")))
            size, done = int(weights[end - 1]) - done, int(weights[end - 1])
            # Room for this chunk is made before it is handed over, so the window is exceeded only by a
            # single chunk that is larger than it.
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
        # The batch call takes no headers, so it serves only messages without them.
        done = self._producer.produce_batch(topic, messages, partition=partition, on_delivery=self._failed)
        if done != len(messages):
            refused = next(m["_error"] for m in messages if m.get("_error") is not None)
            raise KafkaException(refused)

    def _wait(self, limit: int) -> None:
        """Wait until at most `limit` bytes are under way, or none; as long as the broker makes progress.

        Raises KafkaException for messages that the broker refused, or if it has acknowledged nothing for
        `CALL_TIMEOUT_S`. Raises Fenced if the work is to be given up.
        """
        received = checked = time.monotonic()
        while True:
            self._producer.poll(0)
            self._raise_errors()
            size = self._under_way.left(len(self._producer))
            now = time.monotonic()
            if size:
                self._pace.acknowledged(size, now)
                self._alive()
                received = now
            # `limit` may be negative for a large chunk; an empty window is all the room there can be.
            if self._under_way.size <= limit or self._under_way.size == 0:
                return
            if now - received > CALL_TIMEOUT_S:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "nothing is acknowledged"))
            if now - checked >= STEP_S:
                self._check()
                checked = now
            time.sleep(POLL_S)

    def _failed(self, error: KafkaError | None, message: object) -> None:
        # Bounded: after a failure each message of the transaction reports one.
        if error is not None and len(self._errors) < 10:
            self._errors.append(error)

    def _raise_errors(self) -> None:
        if self._errors:
            # After the first error the other messages are only reported as purged.
            cause = next((error for error in self._errors if error.code() not in PURGED), self._errors[0])
            raise KafkaException(cause)


class _UnderWay:
    """Counts the bytes that are not acknowledged, from the number of messages: the client counts no bytes.

    It assumes that messages are acknowledged in the order in which they were handed over, although that holds
    only within a partition.
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
        """Set the number of messages that are left; returns the bytes acknowledged since the last call."""
        before = self.size
        # By whole chunks: part of a chunk has no known size in bytes.
        while self._chunks and self._count - count >= self._chunks[0][0]:
            gone, size = self._chunks.popleft()
            self._count -= gone
            self.size -= size
        return before - self.size


def _messages(data: memoryview, block: MessageBlock, part: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """The messages of one partition as `produce_batch` expects them; null keys and values are left out."""
    starts = block.value_start[part]
    values = zip(starts.tolist(), (starts + block.value_length[part]).tolist(), strict=True)
    # All messages of a block have keys, or none of them has.
    if block.key_length[part[0]] < 0:
        return [{"value": data[a:b].tobytes()} if b >= a else {} for a, b in values]
    starts = block.key_start[part]
    keys = zip(starts.tolist(), (starts + block.key_length[part]).tolist(), strict=True)
    return [
        {"value": data[a:b].tobytes(), "key": data[c:d].tobytes()} if b >= a else {"key": data[c:d].tobytes()}
        for (a, b), (c, d) in zip(values, keys, strict=True)
    ]


FENCES_AT_ONCE: Final = 32
"""Each one has a client with connections to all brokers."""


def slot_client(uri: SinkUri, config: ReplicaConfig, transactional_id: str) -> Producer:
    """A client for a slot. It connects, and takes the transactional id only when it is initialised."""
    return Producer(producer_settings(uri, config.sink.kafka_config, transactional_id))


def fence_slots(
    uri: SinkUri,
    config: ReplicaConfig,
    ids: Sequence[str],
    alive: Callable[[], None] = lambda: None,
    clients: MutableMapping[str, Producer] | None = None,
    check: Check = lambda: None,
) -> None:
    """Initialise every slot once, so that no writer of an older incarnation can commit any more.

    `alive` is called after each, in the caller's thread, because thousands of them take minutes. `clients`:
    some that have connected, by transactional id; they are taken out. `check` is called before each one, in
    several threads.
    """
    connected = {} if clients is None else clients

    def fence(one: str) -> None:
        check()
        try:
            client = connected.pop(one, None) or slot_client(uri, config, one)
            # In one call, because what has been fenced depends on its result. A broker that does not answer
            # has been noticed before.
            client.init_transactions(CALL_TIMEOUT_S)
        except KafkaException as error:
            raise unreachable(uri, error) from error

    # Each call mostly waits until the broker has aborted the transaction that the previous writer left open.
    with ThreadPoolExecutor(min(max(1, len(ids)), FENCES_AT_ONCE), thread_name_prefix="fence") as pool:
        for _ in pool.map(fence, ids):
            alive()
