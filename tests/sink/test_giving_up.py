"""A piece of work that is given up at a broker that does not answer: nothing waits for the broker any more.

The broker is stopped, so it takes connections and requests and never answers. `check` raises at its first
call or at a later one, as if the host had sent GiveUp by then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.contracts.test_sinks import CAPTURE, AtKafka, record
from tests.fixtures.kafka import Broker
from tests.sink.test_kafka import Grants
from tidegate.errors import Fenced, Retryable
from tidegate.model.progress import span_progress
from tidegate.sink.kafka import slot, steps, topics

pytestmark = pytest.mark.integration

WRITERS = {CAPTURE: 3}
ROWS = [(f"k{number}", "v") for number in range(10)]


class GivenUp:
    """A check that raises at its nth call, and from then on."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.calls = at, 0
        """`at`: 0: never."""

    def __call__(self) -> None:
        self.calls += 1
        if 0 < self.at <= self.calls:
            raise Fenced("this incarnation of the changefeed is over")

    def now(self) -> None:
        """It raises from the next call on."""
        self.at = self.calls + 1


@pytest.fixture
def place(kafka: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> AtKafka:
    """Without a limit of time: what ends here is ended by `check` alone."""
    for module in (slot, topics):
        monkeypatch.setattr(module, "CALL_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(slot, "ABORT_TIMEOUT_S", 3600.0)
    made = AtKafka(kafka, new_topic(1))
    made.sink().check()
    made.sink().fence(WRITERS, lambda: None)
    return made


@contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def clients() -> int:
    """The threads of Kafka's clients in this process."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "comm").read_text().startswith("rdk:")
        except OSError:  # it has just ended
            continue
    return found


def given_up(work: Callable[[], object]) -> None:
    """The work raises Fenced, and leaves nothing behind."""
    before = clients()
    with pytest.raises(Fenced, match="is over"):
        work()
    assert clients() <= before


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ends of steps of an initialisation, and the aborts with their limits."""
    found: list[str] = []

    class Noted(Producer):
        def init_transactions(self, timeout_s: float) -> None:
            self._noted("init", super().init_transactions, timeout_s)

        def abort_transaction(self, timeout_s: float) -> None:
            found.append(f"abort {timeout_s}")
            super().abort_transaction(timeout_s)

        def _noted(self, name: str, call: Callable[[float], None], timeout_s: float) -> None:
            try:
                call(timeout_s)
            except KafkaException as error:
                if error.args[0].retriable():
                    found.append(name)
                raise

    monkeypatch.setattr(slot, "Producer", Noted)
    return found


def test_a_writer_that_opens_is_given_up(place: AtKafka, kafka_broker: Broker, ends: list[str]) -> None:
    check = GivenUp(3)
    with stopped(kafka_broker):
        given_up(lambda: place.sink().writer(0, lambda: None, check=check))
    assert (check.calls, ends) == (3, ["init"] * 3)


@pytest.mark.parametrize("at", [1, 3])
def test_a_fence_is_given_up(place: AtKafka, kafka_broker: Broker, ends: list[str], at: int) -> None:
    """It asks for the progress topic first, and waits there for as long."""
    check = GivenUp(at)
    with stopped(kafka_broker):
        given_up(lambda: place.sink().fence(WRITERS, lambda: None, check=check))
    assert check.calls == at
    assert ends == []


def test_a_fence_of_several_slots_is_given_up_between_two(place: AtKafka, ends: list[str]) -> None:
    given_up(lambda: place.sink().fence_only(WRITERS, lambda: None, check=GivenUp(1)))
    assert ends == []


def test_records_that_are_not_read_are_given_up(
    place: AtKafka, kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = GivenUp()
    monkeypatch.setattr("tidegate.sink.kafka.client.PROGRESS_READ_S", 3600.0)

    def prove() -> None:
        os.kill(kafka_broker.pid, signal.SIGSTOP)
        check.at = check.calls + 3

    try:
        given_up(lambda: place.sink().fence(WRITERS, prove, check=check))
    finally:
        os.kill(kafka_broker.pid, signal.SIGCONT)
    assert check.calls == check.at


class Opened:
    """A writer of slot 0 whose piece can be given up."""

    def __init__(self, place: AtKafka) -> None:
        self.place, self.check = place, GivenUp()
        self.writer = place.sink().writer(0, lambda: None, check=self.check)

    def write(self) -> None:
        self.writer.write([self.place.content(ROWS)])

    def commit(self) -> None:
        self.writer.commit({"s": record(5)})


@pytest.fixture
def opened(place: AtKafka, ends: list[str]) -> Opened:
    return Opened(place)


def seen_by_the_next(place: AtKafka) -> tuple[int, list[tuple[str, str]]]:
    """How far the next incarnation finds this one, and the committed rows."""
    grants = Grants()
    grants.current = 2
    records = place.sink(2).fence(WRITERS, grants.prover(2))
    progress = span_progress(records, "one").get("s")
    return (0 if progress is None else progress.ts), place.seen()


def test_a_wait_for_acknowledgements_is_given_up(
    opened: Opened, place: AtKafka, kafka_broker: Broker, ends: list[str]
) -> None:
    before = clients()
    opened.write()
    opened.writer._wait(0)
    opened.check.now()
    with stopped(kafka_broker):
        opened.write()
        given_up(opened.commit)
        # The broker is asked to discard the rows, and is waited for no longer than a step.
        ends.clear()
        with pytest.raises(Retryable):
            opened.writer.abort()
        opened.writer.close()
        assert ends == [f"abort {steps.STEP_S}"]
        assert clients() < before, "the client is gone with its writer"
    assert seen_by_the_next(place) == (0, [])


def test_a_writer_that_takes_its_slot_back_is_given_up(
    opened: Opened, place: AtKafka, kafka_broker: Broker, ends: list[str]
) -> None:
    """Its successor fences it, and the broker stops."""
    place.sink().fence(WRITERS, lambda: None)
    before = clients()

    def stop() -> None:
        os.kill(kafka_broker.pid, signal.SIGSTOP)
        opened.check.now()

    opened.writer._prove = stop  # called when it has found that it is fenced
    try:
        given_up(lambda: (opened.write(), opened.commit()))
        opened.writer.close()
        assert ends[-1] == "init"
        assert clients() < before
    finally:
        os.kill(kafka_broker.pid, signal.SIGCONT)


def test_beginnings_in_many_steps_end_well(
    place: AtKafka, ends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "STEP_S", 0.001)
    sink, check = place.sink(), GivenUp()
    # Until beginnings have taken several steps, which depends on the broker.
    for number in range(200):
        sink.fence(WRITERS, lambda: None, check=check)
        writer = sink.writer(0, lambda: None, check=check)
        writer.write([place.content([(f"k{number}", "v")])])
        writer.commit({"s": record(number + 1)})
        writer.close()
        if ends.count("init") > 3:
            break
    assert ends.count("init") > 3
    assert check.calls >= len(ends)
    assert seen_by_the_next(place) == (number + 1, [(f"k{one}", "v") for one in range(number + 1)])


def test_a_commit_is_one_call_whatever_it_waits_for(
    opened: Opened, place: AtKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka may take the result of an earlier call for that of the commit."""
    monkeypatch.setattr(steps, "STEP_S", 0.001)
    calls: list[float] = []
    commit = opened.writer._producer.commit_transaction

    class Noted:
        def __getattr__(self, name: str) -> Any:
            return getattr(producer, name)

        def __len__(self) -> int:
            return len(producer)

        def commit_transaction(self, timeout_s: float) -> None:
            calls.append(timeout_s)
            commit(timeout_s)

    producer = opened.writer._producer
    opened.writer._producer = Noted()
    opened.write()
    opened.commit()
    assert calls == [slot.CALL_TIMEOUT_S]
    opened.writer._producer = producer
    opened.writer.close()
    assert seen_by_the_next(place) == (5, ROWS)


def test_only_what_may_pass_is_tried_again() -> None:
    """Otherwise the error of a request that has failed would come a quarter of a minute later."""

    def calls(*errors: dict[str, Any], limit_s: float = 3600.0) -> tuple[int, int]:
        left, check = list(errors), GivenUp()

        def call(timeout_s: float) -> None:
            assert 0 < timeout_s <= steps.STEP_S
            if left:
                raise KafkaException(KafkaError(reason="", **left.pop(0)))

        client: Any = SimpleNamespace(init_transactions=call)
        try:
            steps.initialise(client, limit_s, check)
        except KafkaException:
            return check.calls, len(left)
        return check.calls, -1

    step = {"error": KafkaError._TIMED_OUT, "retriable": True}
    named = {"error": KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "retriable": True}
    assert calls() == (0, -1)
    assert calls(step, named, step) == (3, -1)
    for other in ({"error": KafkaError._TIMED_OUT}, {"error": KafkaError._FENCED, "fatal": True}):
        assert calls(step, other, step) == (1, 1)
    assert calls(step, step, limit_s=0.0) == (0, 1), "at the deadline"
