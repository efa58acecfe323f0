"""A writer and its successor at a real broker: what the first still writes is read by the other, or refused.

A clock seldom meets the moments that matter. So the tests make them: just before the broker raises the fence,
at the proof behind it, and after the progress was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

import pytest
from confluent_kafka import Producer

from tests.contracts.test_sinks import CAPTURE, AtKafka, marks, send
from tests.integration.validators import read_topic
from tests.sink.test_kafka import Grants
from tests.sink.test_kafka_owner import event
from tidegate.errors import Fenced, Retryable
from tidegate.model.progress import span_progress
from tidegate.sink.kafka import owner_sink as owner
from tidegate.sink.kafka import slot

pytestmark = pytest.mark.integration

WRITERS = {CAPTURE: 1}


@pytest.fixture
def place(kafka: str, new_topic: Callable[..., str]) -> AtKafka:
    return AtKafka(kafka, new_topic(1))


def just_before_the_fence(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, act: Callable[[], None]
) -> None:
    """Call `act` once, just before the next producer of the module takes its transactional id."""
    left = [act]

    class Late(Producer):
        def init_transactions(self, timeout_s: float) -> None:
            if left:
                left.pop()()
            super().init_transactions(timeout_s)

    monkeypatch.setattr(module, "Producer", Late)


@pytest.mark.parametrize("moment", ["before the fence", "at the proof", "after the read"])
def test_what_an_old_writer_commits_is_read_by_its_successor_or_refused(
    place: AtKafka, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Progress that is read before the fence would lack what the old writer commits in between."""
    grants, old = Grants(), place.sink()
    old.check()
    old.fence(WRITERS, grants.prover(1))
    writer = old.writer(0, grants.prover(1))
    send(place, writer, [("early", "1")], 5)
    grants.current = 2
    accepted: list[bool] = []

    def write_late() -> None:
        try:
            send(place, writer, [("late", "1")], 6)
        except Fenced:
            accepted.append(False)
        else:
            accepted.append(True)

    def prove() -> None:
        if moment == "at the proof":
            write_late()
        grants.prover(2)()

    if moment == "before the fence":
        just_before_the_fence(monkeypatch, slot, write_late)
    records = place.sink(2).fence(WRITERS, prove)
    if moment == "after the read":
        write_late()
    is_early = moment == "before the fence"
    assert accepted == [is_early]
    assert span_progress(records, "one")["s"].ts == (6 if is_early else 5)
    assert place.seen() == [("early", "1"), ("late", "1")][: 1 + is_early]


def test_a_ddl_sent_just_before_the_fence_is_in_the_successors_journal(
    place: AtKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be sent a second time."""
    first = place.sink().open_owner(marks(place), lambda: None)
    just_before_the_fence(monkeypatch, owner, lambda: first.send_ddl(event(100)))
    second = place.sink(2).open_owner(marks(place), lambda: None)
    assert second.journal.ddl_ts == 100
    second.send_ddl(event(100))
    (decoded,) = read_topic(place.uri.render()).values()
    assert [ddl.ts for ddl in decoded.ddls] == [100]


def test_a_grant_that_is_replaced_right_after_its_proof_fences_the_writer(place: AtKafka) -> None:
    """A proof before the initialisation would let the writer take its slot back behind the fence."""
    grants, old = Grants(), place.sink()
    old.check()
    old.fence(WRITERS, grants.prover(1))
    records: list[dict[str, bytes]] = []

    def prove() -> None:
        grants.prover(1)()
        if not records:
            grants.current = 2
            records.append(place.sink(2).fence(WRITERS, grants.prover(2)))

    writer = old.writer(0, prove)
    with pytest.raises(Fenced):
        send(place, writer, [("late", "1")], 6)
    assert len(records) == 1
    assert place.seen() == []


def test_an_incarnation_that_was_replaced_does_not_begin_by_a_late_fence(place: AtKafka) -> None:
    grants = Grants()
    grants.current = 2
    place.sink().check()
    with pytest.raises(Fenced):
        place.sink().fence(WRITERS, grants.prover(1))


def test_a_fence_that_does_not_reach_its_broker_keeps_no_clients(
    place: AtKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise Retryable("the broker does not answer", where="broker", why="it is gone", fix="start it")

    monkeypatch.setattr("tidegate.sink.kafka.sink.ensure_progress_topic", unreachable)
    sink = place.sink()
    with pytest.raises(Retryable):
        sink.fence(WRITERS, Grants().prover(1))
    assert not sink._clients


def test_a_prepared_fence_stops_nobody_until_it_fences(place: AtKafka) -> None:
    """Its clients connect while the earlier writers still deliver."""
    grants, old = Grants(), place.sink()
    old.check()
    old.fence(WRITERS, grants.prover(1))
    writer = old.writer(0, grants.prover(1))
    taker = place.sink(2)
    taker.connect(WRITERS)
    time.sleep(0.5)  # longer than a client takes to connect
    send(place, writer, [("before", "1")], 5)
    grants.current = 2
    taker.fence_only(WRITERS, grants.prover(2))
    with pytest.raises(Fenced):
        send(place, writer, [("late", "1")], 6)
    assert place.seen() == [("before", "1")]
