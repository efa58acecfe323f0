"""A worker is informed that the incarnation of its piece is over: it gives it up, and does the next one."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.contracts.test_sinks import AtKafka
from tests.fixtures.kafka import Broker
from tests.pipeline.test_slots import Counted
from tests.sink.test_giving_up import clients

from tidegate.errors import Fenced
from tidegate.ipc import FramedSocket
from tidegate.model.reports import Failed
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.work import (
    FROM_WORKER,
    Begin,
    Begun,
    Deliver,
    Delivered,
    GiveUp,
    Lease,
    Load,
    OnDurable,
    Report,
    Tasks,
    parse,
    to_json,
)
from tidegate.pipeline.host.connected_worker import ConnectedWorker
from tidegate.pipeline.worker import kept
from tidegate.pipeline.worker.kept import with_worker
from tidegate.pipeline.worker.notice import check_of_thread
from tidegate.pipeline.worker.slots import Slot
from tidegate.pipeline.worker.worker import work

WAIT_S = 60


class Counting(FramedSocket):
    """The worker's end of its line. It notes how many threads of Kafka's clients live at each report."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self.clients: list[int] = []

    def send_message(self, message: Mapping[str, Any]) -> None:
        self.clients.append(clients())
        super().send_message(message)


class Running:
    """A worker in a thread, and the host's end of its line."""

    def __init__(self) -> None:
        near, far = socket.socketpair()
        self.host, self.line = FramedSocket(near), Counting(far)
        self._thread: threading.Thread | None = None

    def start(
        self,
        deliver: Callable[[Deliver], object] = lambda piece: None,
        begin: Callable[[Begin], object] = lambda piece: None,
    ) -> None:
        def begun(piece: Begin) -> Begun:
            begin(piece)
            return Begun({})

        def delivered(piece: Deliver, on_durable: OnDurable) -> list[Report]:
            deliver(piece)
            return []

        def nothing(piece: Load) -> Any:
            raise AssertionError("no load is given")

        tasks = Tasks(begun, delivered, nothing, lambda: False)

        def run() -> None:
            with suppress(OSError):  # the host has ended the line
                work(self.line, tasks)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def send(self, message: Begin | Deliver | GiveUp) -> None:
        self.host.send_message(to_json(message))

    def answer(self) -> Any:
        assert self.host.waits(WAIT_S)
        message = self.host.receive()
        assert message is not None
        return parse(message, FROM_WORKER)

    def close(self) -> None:
        self.host.close()
        if self._thread is not None:
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.close()


def until_asked(check: Callable[[], None]) -> None:
    """Wait as for a sink that does not answer."""
    while True:
        check()


def test_a_message_to_give_up_between_pieces_is_ignored(running: Running) -> None:
    """The worker had just finished the piece that it is about."""
    running.start(deliver=lambda piece: check_of_thread()())
    for message in (GiveUp(), Begin("one"), GiveUp(), GiveUp(), Deliver("two", ()), GiveUp()):
        running.send(message)
        if isinstance(message, Begin | Deliver):
            assert isinstance(running.answer(), Begun if isinstance(message, Begin) else Delivered)


def test_a_worker_that_is_asked_gives_up_this_piece_and_does_the_next(running: Running) -> None:
    waits, tries = threading.Event(), list[str]()

    def deliver(piece: Deliver) -> None:
        tries.append(piece.spec)
        if piece.spec == "one":
            waits.set()
            until_asked(check_of_thread())

    running.start(deliver)
    running.send(Deliver("one", ()))
    assert waits.wait(WAIT_S)
    running.send(GiveUp())
    failed = running.answer()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error(), Fenced)
    assert "is over" in failed.what
    running.send(Deliver("two", ()))
    assert isinstance(running.answer(), Delivered)
    assert tries == ["one", "two"]


def test_a_worker_whose_application_is_gone_gives_up_its_piece(running: Running) -> None:
    waits, ended = threading.Event(), threading.Event()

    def deliver(piece: Deliver) -> None:
        waits.set()
        try:
            until_asked(check_of_thread())
        except Fenced:
            ended.set()
            raise

    running.start(deliver)
    running.send(Deliver("one", ()))
    assert waits.wait(WAIT_S)
    running.host.close()
    assert ended.wait(WAIT_S)


def test_threads_that_work_for_a_piece_are_asked_as_well(running: Running) -> None:
    """A fence initialises its slots in a pool of threads."""
    waits = threading.Event()

    def begin(piece: Begin) -> None:
        check = check_of_thread()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(waits.set)
            pool.submit(until_asked, check).result()

    running.start(begin=begin)
    running.send(Begin("one"))
    assert waits.wait(WAIT_S)
    running.send(GiveUp())
    assert isinstance(running.answer().error(), Fenced)


def test_without_a_line_nothing_is_given_up() -> None:
    check_of_thread()()


def test_the_host_never_waits_for_a_worker_that_does_not_read() -> None:
    """It asks workers under its lock, and one of them may have been stopped by a signal."""
    near, far = socket.socketpair()
    host, line = FramedSocket(near), FramedSocket(far)
    process: Any = SimpleNamespace(pid=1)
    worker = ConnectedWorker(host, process)
    with host._lock:  # as while another thread sends it a piece
        assert not host.offer_message(to_json(GiveUp()))
    with suppress(BlockingIOError):
        while True:
            near.send(b"x", socket.MSG_DONTWAIT)
    worker.ask_to_give_up()
    assert not host.offer_message(to_json(GiveUp()))
    with suppress(BlockingIOError):
        while far.recv(1 << 20, socket.MSG_DONTWAIT):
            pass
    worker.has_answered = True
    worker.ask_to_give_up()
    assert not line.waits(0), "it has nothing to give up"
    worker.has_answered = False
    worker.ask_to_give_up()
    assert line.receive() == to_json(GiveUp())
    far.close()
    worker.ask_to_give_up()
    host.close()


# --- with a real writer -------------------------------------------------------------------------------------


@pytest.fixture
def spec(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FeedSpec:
    for module in ("slot", "topics"):
        monkeypatch.setattr(f"tidegate.sink.kafka.{module}.CALL_TIMEOUT_S", 3600.0)
    place = AtKafka(kafka, new_topic(1))
    place.sink().check()
    made = FeedSpec(
        cluster_id=1,
        namespace="default",
        name=place.uri.topic,
        sink_uri=place.uri,
        config=place.config,
        token=(1, 1),
        instance="one",
        incarnation=1,
        slots=2,
        capture="here",
        ranges=(),
        givers={},
        store_dir=tmp_path,
        feed_dir=tmp_path,
        metadata="",
        socket_path=tmp_path,
    )
    made.sink.fence(made.writers, lambda: None)
    return made


@pytest.mark.integration
@pytest.mark.parametrize("moment", ["begin", "open", "write"])
def test_when_a_worker_reports_that_it_gave_up_its_client_is_gone(
    running: Running, spec: FeedSpec, kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The host says then that nobody works for the incarnation any more."""
    place = AtKafka(spec.sink_uri.bootstrap, spec.sink_uri.topic)
    monkeypatch.setattr(kept, "OPENED", [lambda path: Counted(spec)])

    def stop() -> None:
        os.kill(kafka_broker.pid, signal.SIGSTOP)
        running.send(GiveUp())

    def opened(access: Any) -> Any:
        return SimpleNamespace(access=access, slot=Slot(access, spec.sink))

    def deliver(piece: Deliver) -> None:
        def with_slot(worker: Any) -> None:
            if moment == "open":
                stop()
            with worker.slot.writer() as writer:
                writer.write([place.content([("key", "value")])])
                if moment == "write":
                    stop()
                    writer.write([place.content([("key", "v" * (1 << 20))] * 40)])
                writer.commit({"s": b"record"})

        with_worker(piece, with_slot, opened)

    def begin(piece: Begin) -> None:
        stop()
        kept.begin(piece)

    running.start(deliver, begin)
    gc.collect()
    before = clients()
    try:
        running.send(Begin("one") if moment == "begin" else Deliver("one", (), Lease(0, 1)))
        failed = running.answer()
        assert isinstance(failed, Failed)
        assert isinstance(failed.error(), Fenced), failed
        (at_report,) = running.line.clients
        assert at_report <= before
    finally:
        os.kill(kafka_broker.pid, signal.SIGCONT)
