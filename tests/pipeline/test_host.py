"""The application and its workers, over a real socket: who gets what, what is passed on, and what ends what.

The workers run in threads here, each with a process id of its own; `test_job`, `test_application` and
`test_zombies` have Spark's processes.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.pipeline.recorded import RecordedFeed

from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable, TidegateError
from tidegate.ipc import FramedSocket, framed, socket_name
from tidegate.model.reports import Durable, Failed, Loaded, LoadState, Started, Working
from tidegate.pipeline.exchange import pace
from tidegate.pipeline.exchange.beats import Beats, read_beats
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import (
    Begun,
    Load,
    LoadReport,
    OnDurable,
    Report,
    Tasks,
    WorkerHello,
    to_json,
)
from tidegate.pipeline.host import addresses, load_throttle, signs_of_life, supply
from tidegate.pipeline.host import connected_worker as worker_module
from tidegate.pipeline.host import incarnation as incarnation_module
from tidegate.pipeline.host import incarnations as incarnations_module
from tidegate.pipeline.host.backlog import Backlog
from tidegate.pipeline.host.connected_worker import ConnectedWorker, Silence, Work
from tidegate.pipeline.host.cpu_wait import CpuWait
from tidegate.pipeline.host.failures import failure
from tidegate.pipeline.host.host import Host
from tidegate.pipeline.host.incarnation import Incarnation
from tidegate.pipeline.host.jobs import LocalJobs
from tidegate.pipeline.host.load_throttle import SHORT_S, CpuTime
from tidegate.pipeline.host.processes import Process
from tidegate.pipeline.host.timetable import WorkKind
from tidegate.pipeline.worker import worker
from tidegate.pipeline.worker.notice import check_of_thread
from tidegate.pipeline.worker.worker import failed

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
MIDDLE = 470612974530461697
"""Half of the transactions lie below."""
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol"
OTHER_URI = "kafka://127.0.0.1:2/t?protocol=open-protocol"
WAIT_S = 60
CORES = 2

DeliverTask = Callable[[str, list[Range], OnDurable], list[Report]]


class Killed(BaseException):
    """Raised here by a worker that is killed: it reports nothing more."""


@dataclass
class Played:
    """A process that is a thread. Killed, it ends where it next waits, and its line at once."""

    pid: int
    dies: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    line: FramedSocket | None = None

    def kill(self) -> None:
        self.dies.set()
        if self.line is not None:
            with suppress(OSError):
                self.line._socket.shutdown(socket.SHUT_RDWR)

    def wait(self) -> None:
        assert self.ended.wait(WAIT_S)

    def close(self) -> None:
        """Nothing is held."""


class InThreads:
    """Replaces Spark's context: each job of one task is run where it was submitted."""

    def __init__(self) -> None:
        self.processes: dict[int, Played] = {}
        self.start_s = 0.0
        """How long it takes to start a process."""
        self.asleep: set[int] = set()
        """The processes that do nothing now because a test wants it, and not because the machine is slow."""
        self._mine = threading.local()
        self._ids = itertools.count(1_000_001)

    def getpid(self) -> int:
        return getattr(self._mine, "pid", 4711)

    def opened(self, pid: int) -> Played:
        return self.processes.setdefault(pid, Played(pid))

    def parallelize(self, items: list[int], tasks: int) -> InThreads:
        assert (items, tasks) == ([0], 1)
        return self

    def foreachPartition(self, work: Callable[[Iterator[int]], None]) -> None:
        time.sleep(self.start_s)
        self._mine.pid = next(self._ids)
        mine = self.opened(self._mine.pid)
        try:
            work(iter([0]))
        except Killed as killed:
            raise RuntimeError("the worker was killed") from killed
        finally:
            mine.ended.set()

    def sleep(self, seconds: float, until: threading.Event | None = None) -> None:
        """Within a piece of work: what a process that can be killed does."""
        mine, end = self.processes[self.getpid()], time.monotonic() + seconds
        self.asleep.add(mine.pid)
        try:
            while time.monotonic() < end and not (until is not None and until.is_set()):
                if mine.dies.wait(0.01):
                    raise Killed
        finally:
            self.asleep.discard(mine.pid)


class Feed:
    """One incarnation over the recorded log, and what the control process gets of it."""

    def __init__(self, folder: Path, name: str, uri: str = URI, **settings: float) -> None:
        # Deeper than the 107 bytes that the path of a socket may have.
        path = RecordedFeed(folder / name / ("deep" * 30), BANK, uri, UPTO).write()
        self.bounds = path.parent / "bounds.json"
        spec = FeedSpec.load(path)
        own = replace(spec.config.tidegate, **settings)
        self.spec = replace(spec, name=name, config=replace(spec.config, tidegate=own))
        self.path = str(path)
        self.starts = Bounds.load(self.bounds).spans
        self.messages: list[Any] = []
        self.over = threading.Event()
        self.received = threading.Condition()
        self.one = Incarnation(self.spec, self.path, self._receive, lambda: None)

    @property
    def reported(self) -> list[Durable]:
        return [each for each in self.messages if isinstance(each, Durable)]

    def bound(self, ts: int) -> None:
        reported = json.loads(self.bounds.read_text())
        partial = self.bounds.with_suffix(".tmp")
        partial.write_text(json.dumps(reported | {"bound": ts}))
        partial.replace(self.bounds)

    def _receive(self, message: Any) -> None:
        with self.received:
            self.messages.append(message)
            self.received.notify_all()

    def wait(self, what: Callable[[list[Durable]], bool]) -> None:
        with self.received:
            assert self.received.wait_for(lambda: what(self.reported), WAIT_S), self.messages

    def wait_said(self, kind: type) -> None:
        with self.received:
            said = lambda: any(isinstance(each, kind) for each in self.messages)  # noqa: E731
            assert self.received.wait_for(said, WAIT_S), self.messages

    def wait_begun(self) -> None:
        self.wait_said(Started)

    def wait_end(self, within_s: float = WAIT_S) -> TidegateError | None:
        assert self.over.wait(within_s), f"it runs: {self.messages}"
        return self.one.error

    def is_delivered(self, reported: list[Durable]) -> bool:
        reached = [max((one.spans.get(span, 0) for one in reported), default=0) for span in self.starts]
        return sum(ts > MIDDLE for ts in reached) > 1


class Hosted:
    """A host in a thread, and some changefeeds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / ("deep" * 30)
        self.folder.mkdir()
        self.spark = InThreads()
        monkeypatch.setattr(os, "getpid", self.spark.getpid)
        self.feeds: dict[str, Feed] = {}
        self.error: TidegateError | None = None
        opened: Any = self.spark.opened
        self.working: list[Working] = []
        self.host = Host(self.folder, CORES, self._over, self.working.append, opened)
        connect = worker._connected

        def connected(path: Path) -> FramedSocket:
            self.spark.opened(self.spark.getpid()).line = line = connect(path)
            return line

        monkeypatch.setattr(worker, "_connected", connected)
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """End its threads: they look for work all the time, and would slow down every later test."""
        self.host._threads.fail(Retryable("the test is over"))
        for process in [*self.spark.processes.values()]:
            process.kill()
        with self.host._threads.changed:
            for each in [*self.host._workforce._all]:
                each.pieces.put(None)
        if self._thread is not None:
            self.ended_by()
        for thread in threading.enumerate():
            if thread.name == "signs-of-life":
                thread.join(WAIT_S)
                assert not thread.is_alive(), "it looks for signs of life"

    def feed(self, name: str, uri: str = URI, **settings: float) -> Feed:
        self.feeds[name] = Feed(self.folder, name, uri, **settings)
        return self.feeds[name]

    def _over(self, one: Incarnation) -> None:
        self.feeds[one.spec.name].over.set()

    def begun(self, path: str) -> Begun:
        feed = next(one for one in self.feeds.values() if one.path == path)
        return Begun(feed.starts)

    def start(
        self,
        deliver: DeliverTask,
        workers: int = 2,
        begin: Callable[[str], Begun] | None = None,
        load: Callable[[Load], list[LoadReport]] | None = None,
        spares: int = 0,
    ) -> None:
        none: Any = None
        begun = begin or self.begun
        tasks = Tasks(
            lambda piece: begun(piece.spec),
            lambda piece, on_durable: deliver(piece.spec, list(piece.ranges), on_durable),
            load or none,
            lambda: False,
        )
        self._thread = threading.Thread(target=self._run, args=(tasks, workers, spares), daemon=True)
        self._thread.start()

    def _run(self, tasks: Tasks, workers: int, spares: int) -> None:
        try:
            spark: Any = self.spark
            self.host.run(LocalJobs.at(self.host.socket, spark, tasks, workers, spares))
        except TidegateError as error:
            self.error = error

    def wait(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not what():
            assert time.monotonic() < end, self.working[-1:]
            time.sleep(0.001)

    def wait_free(self, workers: int) -> None:
        """Until all of them are connected and have no piece."""
        self.wait(lambda: self.host._workforce.free == workers)

    def deliver_half(self, *feeds: Feed, workers: int) -> None:
        """Begin these and deliver the first half, one after the other: each step ends before the next one."""
        self.wait_free(workers)
        for each in feeds:
            each.bound(1)
            self.host.begin(each.one)
            each.wait_begun()
            self.wait_free(workers)  # the worker that has begun it is the one with its writer
            each.bound(MIDDLE)
            each.wait(lambda reported: bool(reported))
            self.wait_free(workers)

    def ended_by(self) -> TidegateError | None:
        assert self._thread is not None, "it was not started"
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "it runs"
        return self.error

    def connected(self) -> socket.socket:
        """As a worker connects, as soon as the host listens."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            worker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with socket_name(self.folder / "work.sock") as name:
                    worker.connect(name)
                return worker
            except (FileNotFoundError, ConnectionRefusedError):
                worker.close()
        raise AssertionError("the host does not listen")


@pytest.fixture
def hosted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosted]:
    """On a slow machine every thread may stop for seconds. So only workers that sleep because a test wants it
    count as silent, and nobody is killed for silence after a time that the test does not set itself.
    """
    monkeypatch.setattr(signs_of_life, "WATCH_S", 0.05)
    for constant in ("SLOW_S", "SLOW_FIRST_S"):
        monkeypatch.setattr(worker_module, constant, WAIT_S)
    monkeypatch.setattr(addresses, "SILENT_MAX_S", WAIT_S)
    running, look = Hosted(tmp_path, monkeypatch), ConnectedWorker.look

    def look_at_sleepers(worker: ConnectedWorker, *given: Any, **named: bool) -> Silence:
        found = look(worker, *given, **named)
        return found if worker.process.pid in running.spark.asleep else replace(found, silent_s=0.0)

    monkeypatch.setattr(ConnectedWorker, "look", look_at_sleepers)
    yield running
    running.close()


def all_of(ranges: list[Range]) -> list[Report]:
    return [Report(one.span, one.upto, rows=1) for one in ranges]


def done(_: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
    return all_of(ranges)


def test_a_slow_worker_delays_only_those_that_want_its_spans(hosted: Hosted) -> None:
    feed = hosted.feed("one")
    feed.bound(1)
    busy: set[str] = set()
    both: list[str] = []
    slow: list[str] = []
    finished: list[Range] = []
    lock, released, met = threading.Lock(), threading.Event(), threading.Barrier(2)

    def work(_: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        spans = {one.span for one in ranges}
        with lock:
            both.extend(spans & busy)
            busy.update(spans)
            first = not released.is_set() and not finished
            # Said before the other worker may continue, so that it is known when anything is reported.
            slower = first and not slow
            slow.extend(spans if slower else ())
        if first:
            met.wait(WAIT_S)
        if slower:
            on_durable({one.span: one.after + 1 for one in ranges})
            assert released.wait(WAIT_S)
        with lock:
            finished.extend(ranges)
            busy.difference_update(spans)
        return all_of(ranges)

    hosted.start(work)
    hosted.host.begin(feed.one)
    feed.wait_begun()
    hosted.wait_free(2)
    feed.bound(MIDDLE)
    feed.wait(lambda reported: sum(bool(one.stats) for one in reported) >= 1)
    feed.bound(UPTO)
    # The other worker delivers to the end; of the slow one's spans it has been said how far they are.
    others = {one.span for one in finished} - set(slow)
    feed.wait(
        lambda reported: {s for one in reported for s, ts in one.spans.items() if ts > MIDDLE} >= others
    )
    assert slow
    assert all(not one.stats for one in feed.reported if one.spans.keys() & set(slow))
    feed.wait(lambda reported: any(not one.stats for one in reported))
    released.set()
    feed.wait(lambda reported: any(one.stats and one.spans.keys() & set(slow) for one in reported))
    feed.wait(lambda reported: min(max(one.spans.get(s, 0) for one in reported) for s in slow) > MIDDLE)
    assert both == []
    by_span: dict[str, list[Range]] = {}
    for one in finished:
        by_span.setdefault(one.span, []).append(one)
    for span, ranges in by_span.items():
        assert [one.after for one in ranges] == [feed.starts[span], *(one.upto for one in ranges[:-1])]


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (Fatal("no more"), Fatal),
        (Fenced("another"), Fenced),
        (Retryable("later"), Retryable),
        (InvalidInput("a rule"), Retryable),
        (ValueError("a defect"), Retryable),
    ],
)
def test_what_a_piece_raises_ends_its_incarnation_and_no_other(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: type
) -> None:
    monkeypatch.setattr(incarnations_module, "GRACE_S", WAIT_S)  # else a slow worker would be killed
    one, two = hosted.feed("one"), hosted.feed("two")

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        if path == one.path:
            raise raised
        return all_of(ranges)

    hosted.start(work)
    hosted.wait_free(2)
    hosted.host.begin(one.one)
    error = one.wait_end()
    assert type(error) is kind
    assert str(raised).splitlines()[0] in error.render()
    assert one.reported == []
    (said,) = (each for each in one.messages if isinstance(each, Failed))
    assert said.retry is failed(raised).retry is failure(error).retry is (kind is not Fatal)
    assert str(raised).splitlines()[0] in (one.spec.feed_dir / "log").read_text()
    hosted.host.begin(two.one)
    two.wait(two.is_delivered)
    assert len(hosted.spark.processes) == 2
    assert not any(each.ended.is_set() for each in hosted.spark.processes.values()), "its worker runs"


def test_a_changefeeds_log_shows_no_secret(hosted: Hosted) -> None:
    one = hosted.feed("one")

    def refused(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        raise Retryable("refused", why="kafka://a/b?sasl-password=q7Zsecret")

    hosted.start(refused)
    hosted.host.begin(one.one)
    assert one.wait_end() is not None
    log = (one.spec.feed_dir / "log").read_text()
    assert "refused" in log
    assert "q7Zsecret" not in log


def test_it_reports_who_does_what_and_who_waits_for_a_worker(hosted: Hosted) -> None:
    one, two = hosted.feed("one"), hosted.feed("two")
    released = threading.Event()

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        hosted.spark.sleep(WAIT_S, until=released)
        return all_of(ranges)

    def until(what: Callable[[Working], bool]) -> Working:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if hosted.working and what(hosted.working[-1]):
                return hosted.working[-1]
            time.sleep(0.005)
        raise AssertionError(hosted.working)

    hosted.start(work, workers=1)
    hosted.host.begin(one.one)
    one.wait_begun()
    until(lambda working: any("deliver" in each.what for each in working.at_work))
    hosted.host.begin(two.one)
    reported = until(lambda working: bool(working.waiting))
    assert reported.workers == 1
    (busy,) = reported.at_work
    assert (busy.changefeed, busy.what[:8]) == (one.spec.changefeed, "deliver ")
    assert busy.pid in hosted.spark.processes
    assert reported.waiting == (two.spec.changefeed,)
    released.set()
    until(lambda working: working == Working(1, (), ()))


def test_a_beginning_that_fails_ends_its_incarnation(hosted: Hosted) -> None:
    one, two = hosted.feed("one"), hosted.feed("two")

    def begin(path: str) -> Begun:
        if path == one.path:
            raise Retryable("The broker does not answer.")
        return hosted.begun(path)

    hosted.start(done, begin=begin)
    hosted.host.begin(one.one)
    hosted.host.begin(two.one)
    error = one.wait_end()
    assert error is not None
    assert error.what == "The broker does not answer."
    two.wait(two.is_delivered)
    assert not any(isinstance(each, Started) for each in one.messages)


def test_one_worker_that_hangs_is_killed_and_named_although_others_run(hosted: Hosted) -> None:
    one, two = hosted.feed("one", stall_timeout=1.0, start_timeout=1.0), hosted.feed("two")
    one.one.spec = replace(one.one.spec, slots=1)  # one worker, or two would hang
    hung: list[int] = []

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        if path == one.path and not hung:
            hung.append(os.getpid())
            hosted.spark.sleep(WAIT_S)
        return all_of(ranges)

    hosted.start(work)
    hosted.host.begin(one.one)
    hosted.host.begin(two.one)
    error = one.wait_end()
    assert isinstance(error, Retryable)
    assert "CDC:ErrPipelineHung" in error.what
    assert f"({hung[0]})" in error.where
    assert hosted.spark.processes[hung[0]].ended.is_set()
    two.wait(two.is_delivered)
    # Another worker has taken its place.
    three = hosted.feed("three")
    hosted.host.begin(three.one)
    three.wait(three.is_delivered)


def test_a_worker_that_gets_something_done_is_not_hung(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It beats once before each look, and between two looks more than half of its patience passes."""
    monkeypatch.setattr("tidegate.pipeline.exchange.beats.INTERVAL_S", 0.0)
    one = hosted.feed("one", stall_timeout=1.0, start_timeout=1.0)
    one.one.spec = replace(one.one.spec, slots=1)
    clock, is_at_work = SimpleNamespace(now=0.0), threading.Event()
    asked, done = threading.Semaphore(0), threading.Semaphore(0)

    def pause(_: float) -> None:
        time.sleep(0.01)
        if is_at_work.is_set():
            asked.release()
            assert done.acquire(timeout=WAIT_S)
            clock.now += 0.75

    def work(_: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        beats = Beats(one.spec.beats_dir)  # counts for one process
        hosted.spark.asleep.add(os.getpid())
        is_at_work.set()
        for left in range(9, -1, -1):
            assert asked.acquire(timeout=WAIT_S)
            beats.beat()
            if not left:
                is_at_work.clear()
            done.release()
        hosted.spark.asleep.discard(os.getpid())
        return all_of(ranges)

    monkeypatch.setattr(signs_of_life, "time", SimpleNamespace(sleep=pause, monotonic=lambda: clock.now))
    hosted.start(work)
    hosted.host.begin(one.one)
    one.wait(lambda reported: bool(reported))
    assert not one.one.over
    assert clock.now >= 6.0


def test_who_is_silent_makes_room_only_when_another_waits(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own patience is long; that of those who wait for its worker is not."""
    for constant in ("SLOW_S", "SLOW_FIRST_S"):
        monkeypatch.setattr(worker_module, constant, 0.5)
    one, two = hosted.feed("one"), hosted.feed("two")
    two.bound(1)
    silent, over = threading.Event(), threading.Event()

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        if path == one.path and not over.is_set():
            silent.set()
            hosted.spark.sleep(WAIT_S, until=over)
        return all_of(ranges)

    hosted.start(work, workers=1)
    hosted.host.begin(two.one)
    two.wait_begun()
    hosted.host.begin(one.one)
    assert silent.wait(WAIT_S)
    assert not one.over.wait(1.5), "nobody waits: it may be as slow as it likes"
    two.bound(UPTO)
    error = one.wait_end()
    assert isinstance(error, Retryable)
    assert "CDC:ErrSinkSlow" in error.what
    two.wait(two.is_delivered)
    over.set()


def test_only_one_of_several_silent_workers_makes_room_for_a_waiting_feed(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another address: at theirs nobody would begin while one of them is silent."""
    for constant in ("SLOW_S", "SLOW_FIRST_S"):
        monkeypatch.setattr(worker_module, constant, 0.3)
    monkeypatch.setattr(signs_of_life, "ROOM_S", 0.3)
    silent, waits = [hosted.feed(name) for name in ("one", "two", "three")], hosted.feed("four", OTHER_URI)
    over, slow = threading.Event(), threading.Semaphore(0)

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        if path == waits.path:
            over.set()  # its next piece may wait while it has this one, which makes room again
        elif not over.is_set():
            slow.release()
            hosted.spark.sleep(WAIT_S, until=over)
        return all_of(ranges)

    hosted.start(work, workers=3)
    for each in silent:
        each.one.spec = replace(each.one.spec, slots=1)  # one worker each, or the third would also wait
        hosted.host.begin(each.one)
        assert slow.acquire(timeout=WAIT_S)
    time.sleep(0.5)
    hosted.spark.start_s = 1.0
    hosted.host.begin(waits.one)
    waits.wait(waits.is_delivered)
    assert sum(each.one.error is not None for each in silent) == 1


def test_a_spare_worker_takes_the_place_of_one_whose_sink_does_not_answer(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before anybody is killed. There are no more than so many of them, and they stay."""
    monkeypatch.setattr(worker_module, "STUCK_S", 0.3)
    one, two, waits = (hosted.feed(name) for name in ("one", "two", "three"))
    over, silent, hang = threading.Event(), threading.Semaphore(0), {one.path}

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        if path in hang and not over.is_set():
            silent.release()
            hosted.spark.sleep(WAIT_S, until=over)
        return all_of(ranges)

    hosted.start(work, workers=1, spares=1)
    for each in (waits, one, two):
        each.bound(1)
        hosted.host.begin(each.one)
        each.wait_begun()
    one.bound(UPTO)
    assert silent.acquire(timeout=WAIT_S)
    waits.bound(UPTO)
    waits.wait(waits.is_delivered)
    two.bound(MIDDLE)
    two.wait(lambda reported: bool(reported))
    hang.add(two.path)
    two.bound(UPTO)
    assert silent.acquire(timeout=WAIT_S)
    time.sleep(1.0)
    assert len(hosted.spark.processes) == 2
    assert not one.over.is_set()
    assert not two.over.is_set()
    over.set()
    for each in (one, two):
        each.wait(each.is_delivered)
    hosted.wait(lambda: hosted.working[-1].workers == 2)


def test_spare_workers_are_not_all_given_to_the_address_that_is_silent(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its changefeeds have waited longer."""
    monkeypatch.setattr(worker_module, "STUCK_S", 1.0)
    silent, healthy = [hosted.feed(name, OTHER_URI) for name in "abcdef"], hosted.feed("g")
    over, stuck = threading.Event(), threading.Semaphore(0)
    hang, hung = {each.path for each in silent}, set[str]()

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        if path in hang and not over.is_set():
            hung.add(path)
            stuck.release()
            hosted.spark.sleep(WAIT_S, until=over)
        return all_of(ranges)

    over.set()
    hosted.start(work, workers=2 + CORES, spares=2)
    hosted.deliver_half(*silent, healthy, workers=2 + CORES)
    over.clear()
    for each in silent[:2]:
        each.bound(UPTO)
        assert stuck.acquire(timeout=WAIT_S)
    for each in (*silent[2:], healthy):
        each.bound(UPTO)
    healthy.wait(healthy.is_delivered)
    hosted.wait(lambda: len(hosted.host._workforce) == 4 + CORES)
    time.sleep(0.5)
    assert len(hung) <= 3, "only one more is tried there"
    assert not any(each.over.is_set() for each in silent)
    over.set()
    for each in silent:
        each.wait(each.is_delivered)


def test_a_silent_address_leaves_the_last_workers_to_others(hosted: Hosted) -> None:
    one, two, healthy = hosted.feed("one", OTHER_URI), hosted.feed("two", OTHER_URI), hosted.feed("three")
    over, silent = threading.Event(), threading.Semaphore(0)

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        if path != healthy.path and not over.is_set():
            silent.release()
            hosted.spark.sleep(WAIT_S, until=over)
        return all_of(ranges)

    over.set()
    hosted.start(work, workers=1 + CORES)
    hosted.deliver_half(one, two, healthy, workers=1 + CORES)
    over.clear()
    one.bound(UPTO)
    assert silent.acquire(timeout=WAIT_S)
    time.sleep(2 * addresses.SILENT_S)
    two.bound(UPTO)
    healthy.bound(UPTO)
    healthy.wait(healthy.is_delivered)
    assert not silent.acquire(timeout=0.5)
    over.set()
    for each in (one, two):
        each.wait(each.is_delivered)


def test_a_piece_for_an_address_in_doubt_takes_no_worker_that_others_need(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "STUCK_S", 0.3)
    one, two, healthy = hosted.feed("one", OTHER_URI), hosted.feed("two", OTHER_URI), hosted.feed("three")
    over, hung, pids = threading.Event(), threading.Event(), dict[str, int]()

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        pids[path] = hosted.spark.getpid()
        if path == one.path and not over.is_set():
            hung.set()
            hosted.spark.sleep(WAIT_S, until=over)
        return all_of(ranges)

    over.set()
    hosted.start(work, workers=2 + CORES)
    hosted.deliver_half(one, two, healthy, workers=2 + CORES)
    over.clear()
    has_writer = pids[two.path]
    one.bound(UPTO)
    assert hung.wait(WAIT_S)
    hosted.wait(lambda: len(hosted.host._incarnations._timetable._addresses._proven) == 1)
    two.bound(UPTO)
    two.wait(two.is_delivered)
    assert pids[two.path] != has_writer
    over.set()
    one.wait(one.is_delivered)


def test_with_one_address_a_piece_in_doubt_goes_where_its_writer_is(hosted: Hosted) -> None:
    """All others wait for it, and to open a writer takes longer than most pieces."""
    failing, other = hosted.feed("one"), hosted.feed("two")
    fails, pids = threading.Event(), dict[str, int]()

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        if path == failing.path and fails.is_set():
            raise Retryable("its topic has no leader")
        pids[path] = hosted.spark.getpid()
        return all_of(ranges)

    hosted.start(work, workers=2 + CORES)
    hosted.deliver_half(failing, other, workers=2 + CORES)
    has_writer = pids[other.path]
    fails.set()
    failing.bound(UPTO)
    assert isinstance(failing.wait_end(), Retryable)
    other.bound(UPTO)
    other.wait(other.is_delivered)
    assert pids[other.path] == has_writer


def test_rows_that_become_durable_end_the_doubt_about_their_address(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a slow broker would count as silent until the whole piece has ended."""
    monkeypatch.setattr(worker_module, "STUCK_S", 1.0)
    feed, over = hosted.feed("one"), threading.Event()
    hung, answers = threading.Event(), threading.Event()

    def work(_: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        if not over.is_set():
            hung.set()
            hosted.spark.sleep(WAIT_S, until=answers)
            while not over.is_set():
                on_durable({one.span: one.after + 1 for one in ranges})
                over.wait(0.2)
        return all_of(ranges)

    def await_proven(expected: int) -> None:
        hosted.wait(lambda: len(hosted.host._incarnations._timetable._addresses._proven) == expected)

    over.set()
    hosted.start(work)
    hosted.deliver_half(feed, workers=2)
    await_proven(1)
    over.clear()
    feed.bound(UPTO)
    assert hung.wait(WAIT_S)
    await_proven(0)
    answers.set()
    await_proven(1)
    over.set()
    feed.wait(feed.is_delivered)


def test_a_spare_worker_that_does_not_come_never_ends_the_application(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it may come nobody is killed; if it has not come, the slow one is, and the application lives."""
    for constant, seconds in {"SPARE_S": WAIT_S, "STARTS_AGAIN_S": 1.0}.items():
        monkeypatch.setattr(supply, constant, seconds)
    for constant in ("STUCK_S", "SLOW_S"):
        monkeypatch.setattr(worker_module, constant, 0.3)
    stuck, waits = hosted.feed("one"), hosted.feed("two")
    silent, over = threading.Event(), threading.Event()

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        if path == stuck.path and not over.is_set():
            silent.set()
            hosted.spark.sleep(WAIT_S, until=over)
        return all_of(ranges)

    run = LocalJobs.run

    def no_spare(jobs: LocalJobs) -> None:
        if silent.is_set() and not stuck.over.is_set():
            stuck.over.wait(WAIT_S)
        run(jobs)

    monkeypatch.setattr(LocalJobs, "run", no_spare)
    hosted.start(work, workers=1, spares=1)
    for each in (waits, stuck):
        each.bound(1)
        hosted.host.begin(each.one)
        each.wait_begun()
    stuck.bound(UPTO)
    assert silent.wait(WAIT_S)
    waits.bound(UPTO)
    assert not stuck.over.wait(2.0), "the spare one may be on its way"
    for constant, seconds in {"SPARE_S": 0.0, "STARTS_AGAIN_S": WAIT_S}.items():
        monkeypatch.setattr(supply, constant, seconds)
    error = stuck.wait_end()
    assert error is not None
    assert "CDC:ErrSinkSlow" in error.what
    waits.wait(waits.is_delivered)
    assert hosted.error is None
    over.set()


@pytest.mark.parametrize("late", [False, True])
def test_when_an_incarnation_is_over_nobody_works_for_it(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """A worker may end its piece, in a moment; else it is killed, and waited for. Neither counts."""
    if not late:
        monkeypatch.setattr(incarnations_module, "GRACE_S", WAIT_S)
    one, two = hosted.feed("one"), hosted.feed("two")
    at_work, released = threading.Event(), threading.Event()
    working: list[int] = []
    pieces: list[int] = []

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        pieces.append(os.getpid())
        if path == one.path:
            working.append(os.getpid())
            at_work.set()
            try:
                hosted.spark.sleep(WAIT_S, until=None if late else released)
                return all_of(ranges)
            finally:
                working.remove(os.getpid())
        return all_of(ranges)

    hosted.start(work)
    hosted.host.begin(one.one)
    assert at_work.wait(WAIT_S)
    hosted.host.end(one.one.key)
    hosted.host.end(one.one.key)
    released.set()
    assert one.wait_end() is None
    assert not working
    reported = list(one.messages)
    assert all(hosted.spark.processes[pid].dies.is_set() is late for pid in pieces)
    hosted.host.begin(two.one)
    two.wait(two.is_delivered)
    assert one.messages == reported
    assert not any(isinstance(each, Durable) for each in reported)


def test_a_worker_that_waits_for_its_sink_is_asked_to_give_up(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, it would take the writers of all other changefeeds with it."""
    monkeypatch.setattr(incarnations_module, "GRACE_S", WAIT_S)  # nobody is killed for being slow
    one, two = hosted.feed("one"), hosted.feed("two")
    at_work = threading.Event()
    raised: list[str] = []

    def work(path: str, ranges: list[Range], on_durable: OnDurable) -> list[Report]:
        check = check_of_thread()
        while path == one.path:
            at_work.set()
            try:
                check()
            except Fenced as fenced:
                raised.append(fenced.what)
                raise
            hosted.spark.sleep(0.01)
        return all_of(ranges)

    hosted.start(work)
    hosted.host.begin(one.one)
    assert at_work.wait(WAIT_S)
    hosted.host.end(one.one.key)
    assert one.wait_end() is None
    assert set(raised) == {"this incarnation of the changefeed is over"}
    hosted.host.begin(two.one)
    two.wait(two.is_delivered)
    assert len(hosted.spark.processes) == 2
    assert not any(each.dies.is_set() for each in hosted.spark.processes.values())


def test_a_load_that_waits_for_a_worker_ends_with_its_incarnation(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = hosted.feed("one")
    one.one.spec = replace(one.spec, loads=True)
    asked, ended = threading.Event(), threading.Event()

    class Waits:
        def __init__(self, spec: Any, cores: int, ask: Callable[[Load], Any], send: Any) -> None:
            self._ask = ask

        def run(self, loaded: Any) -> None:
            try:
                asked.set()
                self._ask(Load(one.path, "pd", 1, (), 0, 0))
            finally:
                time.sleep(0.2)
                ended.set()

    def never(_: Load) -> list[LoadReport]:
        hosted.spark.sleep(WAIT_S)
        raise AssertionError("it was not killed")

    monkeypatch.setattr(incarnations_module, "InitialLoad", Waits)
    hosted.start(done, load=never)
    hosted.host.begin(one.one)
    assert asked.wait(WAIT_S)
    hosted.host.end(one.one.key)
    assert one.wait_end() is None
    assert ended.is_set(), "its thread may read the changefeed's files until then"
    with pytest.raises(Fenced, match="is over"):
        hosted.host._requests.ask(one.one, Load(one.path, "pd", 1, (), 0, 0))


def test_a_load_makes_way_for_changefeeds_with_rows(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces are short then, and it does not count as hung while it pauses."""
    loading, live = hosted.feed("one"), hosted.feed("two")
    loading.one.spec = replace(loading.spec, loads=True)
    throttle, looked = hosted.host._requests.throttle, threading.Event()
    pieces: queue.SimpleQueue[Load] = queue.SimpleQueue()

    class Loads:
        def __init__(self, spec: Any, cores: int, ask: Callable[[Load], Any], send: Any) -> None:
            self._ask, self._send = ask, send

        def run(self, loaded: Any) -> None:
            for _ in range(2):
                self._ask(Load(loading.path, "pd", 1, (), 0, 0))
                self._send(Loaded(LoadState(2, 1), {}))

    def load(piece: Load) -> list[LoadReport]:
        pieces.put(piece)
        return []

    monkeypatch.setattr(incarnations_module, "InitialLoad", Loads)
    monkeypatch.setattr(load_throttle, "LIVE_S", WAIT_S)
    # Threads wait for cores, also if nothing else runs on this machine.
    monkeypatch.setattr(CpuWait, "look", lambda *_: looked.set() or CpuTime(1.0, 1000.0))
    monkeypatch.setattr(throttle, "ended", lambda now, _: setattr(throttle, "_begins_at", now + WAIT_S))
    hosted.start(done, load=load)
    hosted.host.begin(live.one)
    live.bound(MIDDLE)
    live.wait(lambda reported: bool(reported))
    with hosted.host._threads.changed:
        throttle.look(time.monotonic() - load_throttle.LOOK_S, CpuTime(1.0, 1000.0))
    hosted.host.begin(loading.one)
    assert pieces.get(timeout=WAIT_S).cpu_s == SHORT_S
    assert looked.wait(WAIT_S)
    beats = sum(read_beats(loading.spec.beats_dir).values())
    end = time.monotonic() + WAIT_S
    while sum(read_beats(loading.spec.beats_dir).values()) == beats and time.monotonic() < end:
        time.sleep(0.02)
    assert sum(read_beats(loading.spec.beats_dir).values()) != beats
    live.bound(UPTO)
    live.wait(live.is_delivered)
    assert pieces.empty(), "it pauses"
    loading.wait_said(Loaded)
    (report,) = (each for each in loading.messages if isinstance(each, Loaded))
    assert report.state.slowed == 1, "and its progress says why"
    monkeypatch.setattr(throttle, "may_begin", lambda now, out: True)
    assert pieces.get(timeout=WAIT_S).cpu_s == SHORT_S


def test_what_cannot_be_seen_of_one_changefeed_ends_it_alone(hosted: Hosted) -> None:
    one, two = hosted.feed("one"), hosted.feed("two")
    one.bounds.write_text("{")
    hosted.start(done)
    hosted.host.begin(one.one)
    hosted.host.begin(two.one)
    error = one.wait_end()
    assert error is not None
    assert "is damaged" in error.what
    two.wait(two.is_delivered)


def test_a_thread_of_the_application_that_fails_ends_the_host(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would look for signs of life any more, and nobody would know."""

    def broken(folder: Path) -> dict[str, int]:
        raise PermissionError(folder)

    monkeypatch.setattr(signs_of_life, "read_beats", broken)
    one = hosted.feed("one")
    hosted.start(lambda _, ranges, on_durable: hosted.spark.sleep(WAIT_S) or all_of(ranges))
    hosted.host.begin(one.one)
    error = hosted.ended_by()
    assert isinstance(error, Retryable)
    assert "signs-of-life" in error.where


def test_spark_that_starts_no_workers_ends_the_host(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(work: Any) -> None:
        raise RuntimeError("no executor")

    monkeypatch.setattr(hosted.spark, "foreachPartition", refused)
    hosted.start(done)
    error = hosted.ended_by()
    assert isinstance(error, Retryable)
    assert "no executor" in error.why


def test_a_worker_that_does_not_come_ends_the_host(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply, "STARTS_S", 0.5)
    monkeypatch.setattr(hosted.spark, "foreachPartition", lambda work: time.sleep(WAIT_S))
    hosted.start(done)
    error = hosted.ended_by()
    assert isinstance(error, Retryable)
    assert "does not start a worker" in error.what


HELLO = framed(to_json(WorkerHello(4711)))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([HELLO], "its connection has ended"),
        ([HELLO, b"\xff" * 8], "sent what is no message"),
        ([HELLO, framed({"type": "delivered"})], "sent what is no message"),
        ([HELLO, framed(to_json(WorkerHello(4712)))], "said what it must not"),
    ],
)
def test_a_worker_that_dies_or_says_nonsense_is_dead_and_its_piece_is_lost(
    hosted: Hosted, frames: list[bytes], words: str
) -> None:
    feed = hosted.feed("one")
    hosted.start(done, workers=0)
    connected = hosted.connected()
    mode = (hosted.folder / "work.sock").stat().st_mode
    assert mode & 0o77 == 0, "another user could take rows for delivered"
    hosted.host.begin(feed.one)
    for one in frames:
        connected.sendall(one)
        if one is HELLO:
            assert FramedSocket(connected).receive() is not None  # it has work from here on
    connected.close()
    process = hosted.spark.opened(4711)
    assert process.dies.wait(WAIT_S), "it may be at work still"
    assert not feed.over.wait(0.2), "and is, until it is dead"
    process.ended.set()
    error = feed.wait_end()
    assert isinstance(error, Retryable)
    assert "a worker (4711)" in error.where
    assert words in error.why


def test_a_worker_that_ends_while_it_has_nothing_to_do_costs_nothing(hosted: Hosted) -> None:
    """As when it has become too large, or the kernel has no memory: another one comes."""
    feed = hosted.feed("one")
    hosted.start(done, workers=0)
    ends = hosted.connected()
    ends.sendall(HELLO)
    hosted.wait_free(1)
    ends.close()
    hosted.wait(lambda: not len(hosted.host._workforce))
    hosted.host.begin(feed.one)
    with pytest.raises(AssertionError, match="it runs"):
        feed.wait_end(0.2)


def test_a_changefeed_among_others_has_short_pieces(hosted: Hosted) -> None:
    """So that nobody waits long for a worker. Alone it has pieces as large as the settings say."""
    one, two = hosted.feed("one"), hosted.feed("two")
    hosted.host.begin(one.one)
    assert hosted.host._placement.piece_bytes(one.one) == 0
    hosted.host.begin(two.one)
    assert hosted.host._placement.piece_bytes(one.one) == incarnation_module.PIECE_BYTES_MIN
    one.one.bytes_per_s = 50e6
    assert hosted.host._placement.piece_bytes(one.one) == 50_000_000 * incarnation_module.PIECE_S


def test_a_changefeed_rests_between_small_pieces_while_many_have_rows(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_s = 1.0
    monkeypatch.setattr(pace, "pause_s", lambda active: rest_s / pace.GAP_SHARE)
    monkeypatch.setattr(pace, "FRESH_S", 0.0)
    feed, given_at, give = hosted.feed("one"), list[float](), ConnectedWorker.give
    feed.bound(MIDDLE)

    def noted(worker: ConnectedWorker, work: Work, now: float) -> None:
        if work.kind is WorkKind.DELIVER:
            given_at.append(now)
        give(worker, work, now)

    monkeypatch.setattr(ConnectedWorker, "give", noted)
    hosted.start(done, workers=1)
    hosted.host.begin(feed.one)
    feed.wait(lambda reported: len(reported) == 1)
    feed.bound(UPTO)
    feed.wait(feed.is_delivered)
    assert given_at[1] - given_at[0] >= rest_s


def test_a_changefeed_that_rests_does_not_wait_for_a_worker(hosted: Hosted) -> None:
    one = hosted.feed("one").one
    one.backlog, one.may_be_due, one.rests_until = Backlog(one.spec, {}), True, 5.0
    assert not signs_of_life._waits(one, (), 4.9)
    assert signs_of_life._waits(one, (), 5.0)
    assert not signs_of_life._waits(one, {one.key}, 5.0)


@pytest.mark.parametrize("frame", [b"", framed({"type": "reached", "spans": {}}), b"\xff" * 8])
def test_who_does_not_say_who_it_is_gets_no_work(hosted: Hosted, frame: bytes) -> None:
    one = hosted.feed("one")
    hosted.start(done, workers=1)
    stranger = hosted.connected()
    stranger.sendall(frame)
    stranger.shutdown(socket.SHUT_WR)
    with suppress(ConnectionResetError):
        assert stranger.recv(1) == b""
    hosted.host.begin(one.one)
    one.wait(one.is_delivered)


def test_a_process_is_killed_by_a_handle_that_cannot_mean_another() -> None:
    child = os.fork()
    if not child:
        time.sleep(WAIT_S)
        os._exit(0)
    process = Process(child)
    process.kill()
    process.wait()
    assert os.waitpid(child, 0)[1] == 9
    process.kill()
    process.wait()
    process.close()
    with pytest.raises(ProcessLookupError):
        Process(child)
