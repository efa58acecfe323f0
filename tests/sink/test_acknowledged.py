"""A writer gives a sign of life only if its broker acknowledges something, and does not wait forever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.sink.test_kafka import sink
from tidegate.errors import Fenced, Retryable
from tidegate.sink.kafka import slot
from tidegate.sink.kafka.slot import SlotWriter


class Client:
    """Replaces the client of Kafka. It takes all messages, and has one acknowledged at each tenth poll."""

    acknowledges = True

    def __init__(self, settings: Any) -> None:
        self._left = self._polls = 0
        self.commits = 0

    def __len__(self) -> int:
        return self._left

    def produce(self, topic: str, *message: Any, **more: Any) -> None:
        self._left += 1

    def poll(self, timeout_s: float) -> None:
        self._polls += 1
        if self.acknowledges and self._left and self._polls % 10 == 0:
            self._left -= 1

    def commit_transaction(self, timeout_s: float) -> None:
        self.commits += 1

    def init_transactions(self, timeout_s: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def abort_transaction(self, timeout_s: float) -> None: ...


RECORDS = {f"span-{number}": b"progress" for number in range(5)}


def opened(
    monkeypatch: pytest.MonkeyPatch, lives: list[str], check: Callable[[], None] = lambda: None
) -> SlotWriter:
    monkeypatch.setattr(slot, "Producer", Client)
    uri, config = sink("127.0.0.1:1", "t")
    return SlotWriter(uri, config, "id", "progress", lambda: None, lambda: lives.append("alive"), check)


def test_each_acknowledgement_of_the_broker_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    lives: list[str] = []
    opened(monkeypatch, lives).commit(RECORDS)
    assert len(lives) == len(RECORDS)


def test_a_wait_for_a_silent_broker_is_no_sign_of_life_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no spare worker would replace the one that waits."""
    monkeypatch.setattr(Client, "acknowledges", False)
    monkeypatch.setattr(slot, "CALL_TIMEOUT_S", 0.3)
    lives: list[str] = []
    with pytest.raises(Retryable):
        opened(monkeypatch, lives).commit(RECORDS)
    assert lives == []


def test_a_wait_for_a_silent_broker_ends_when_its_work_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its worker is killed, and others must open the writers that it has."""
    monkeypatch.setattr(Client, "acknowledges", False)
    monkeypatch.setattr(slot, "CALL_TIMEOUT_S", 10.0)
    calls: list[int] = []

    def check() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            raise Fenced("this incarnation of the changefeed is over")

    with pytest.raises(Fenced):
        opened(monkeypatch, [], check).commit(RECORDS)
    assert calls == [0, 1, 2]


def test_a_broker_that_does_not_answer_an_abort_either_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Client, timeout_s: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "refused", txn_requires_abort=True))

    def silence(self: Client, timeout_s: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "silence"))

    monkeypatch.setattr(Client, "commit_transaction", refuse)
    monkeypatch.setattr(Client, "abort_transaction", silence)
    with pytest.raises(Retryable):
        opened(monkeypatch, []).commit(RECORDS)
