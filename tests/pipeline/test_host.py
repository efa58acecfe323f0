"""The driver and its workers, over a real socket: who gets what, what is passed on, and what ends it.

The workers run in threads here; `test_job` and `test_zombies` have Spark's processes.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.recorded import RecordedFeed

from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable, TidegateError
from tidegate.ipc import FramedSocket, framed, socket_name
from tidegate.model.reports import Durable
from tidegate.pipeline.beats import Beats
from tidegate.pipeline.feed import Barrier, FeedSpec
from tidegate.pipeline.host import Host
from tidegate.pipeline.ranges import Range
from tidegate.pipeline.work import Report, Tell, WorkerHello, to_json
from tidegate.pipeline.worker import failed

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
MIDDLE = 470612974530461697
"""Half of the transactions lie below."""
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol"
WAIT_S = 60


class InThreads:
    """Stands where Spark's context does: each job of one task is run where it was submitted."""

    def parallelize(self, items: list[int], tasks: int) -> InThreads:
        assert (items, tasks) == ([0], 1)
        return self

    def foreachPartition(self, work: Callable[[Iterator[int]], None]) -> None:
        work(iter([0]))


class Hosted:
    """A host in a thread, over the recorded log."""

    def __init__(self, folder: Path) -> None:
        # Deeper than the 107 bytes that the path of a socket may have.
        self.feed = RecordedFeed(folder / ("deep" * 30), BANK, URI, UPTO)
        path = self.feed.write()
        self.barrier = path.parent / "barrier.json"
        self.spec = FeedSpec.load(path)
        self.spec.work_dir.mkdir(parents=True, exist_ok=True)
        self.starts = Barrier.load(self.barrier).spans
        self.told: list[Durable] = []
        self.heard = threading.Condition()
        self.error: TidegateError | None = None

    @property
    def socket(self) -> Path:
        return self.spec.work_dir / "work.sock"

    def connected(self) -> socket.socket:
        """As a worker connects, as soon as the host listens."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            worker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with socket_name(self.socket) as name:
                    worker.connect(name)
                return worker
            except (FileNotFoundError, ConnectionRefusedError):
                worker.close()
        raise AssertionError("the host does not listen")

    def bound(self, ts: int) -> None:
        told = json.loads(self.barrier.read_text())
        partial = self.barrier.with_suffix(".tmp")
        partial.write_text(json.dumps(told | {"barrier_ts": ts}))
        partial.replace(self.barrier)

    def start_impatient(self, task: Callable[[str, list[Range], Tell], list[Report]]) -> None:
        """With little time for a worker; two are there before anything is due."""
        own = replace(self.spec.config.tidegate, stall_timeout=1.5, start_timeout=1.5)
        self.spec = replace(self.spec, config=replace(self.spec.config, tidegate=own))
        self.start_held(task)
        self.bound(UPTO)

    def start_held(self, task: Callable[[str, list[Range], Tell], list[Report]]) -> None:
        """With two workers, and nothing for them before `bound`."""
        self.bound(1)
        self.start(task)
        while self.host._free() < 2:
            pass

    def start(self, task: Callable[[str, list[Range], Tell], list[Report]], workers: int = 2) -> None:
        self.host = Host(self.spec, self.starts, self._hear)
        self._thread = threading.Thread(target=self._run, args=(task, workers), daemon=True)
        self._thread.start()

    def _run(self, task: Any, workers: int) -> None:
        try:
            self.host.run(InThreads(), workers, "spec", task)  # type: ignore[arg-type]
        except TidegateError as error:
            self.error = error

    def _hear(self, durable: Durable) -> None:
        with self.heard:
            self.told.append(durable)
            self.heard.notify_all()

    def wait(self, what: Callable[[list[Durable]], bool]) -> None:
        with self.heard:
            assert self.heard.wait_for(lambda: what(self.told), WAIT_S), self.told

    def ended_by(self) -> TidegateError | None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "it goes on"
        return self.error


@pytest.fixture
def hosted(tmp_path: Path) -> Hosted:
    return Hosted(tmp_path)


def all_of(ranges: list[Range]) -> list[Report]:
    return [Report(one.span, one.upto, rows=1) for one in ranges]


def test_a_worker_that_is_slow_keeps_nobody_waiting_but_who_wants_its_spans(hosted: Hosted) -> None:
    busy: set[str] = set()
    both: list[str] = []
    slow: list[str] = []
    done: list[Range] = []
    lock, let_go, met = threading.Lock(), threading.Event(), threading.Barrier(2)

    def work(_: str, ranges: list[Range], tell: Tell) -> list[Report]:
        spans = {one.span for one in ranges}
        with lock:
            both.extend(spans & busy)
            busy.update(spans)
        first = not let_go.is_set() and not done
        if first and met.wait(WAIT_S) == 0:
            slow.extend(spans)
            tell({one.span: one.after + 1 for one in ranges})
            assert let_go.wait(WAIT_S)
        with lock:
            done.extend(ranges)
            busy.difference_update(spans)
        return all_of(ranges)

    hosted.start_held(work)
    hosted.bound(MIDDLE)
    hosted.wait(lambda told: sum(bool(one.stats) for one in told) >= 1)
    hosted.bound(UPTO)
    # The other worker delivers to the end; of the slow one's spans it has been said how far they are.
    others = {one.span for one in done} - set(slow)
    hosted.wait(lambda told: {s for one in told for s, ts in one.spans.items() if ts > MIDDLE} >= others)
    assert slow
    assert all(not one.stats for one in hosted.told if one.spans.keys() & set(slow))
    assert [one for one in hosted.told if not one.stats]
    let_go.set()
    hosted.wait(lambda told: any(one.stats and one.spans.keys() & set(slow) for one in told))
    hosted.wait(lambda told: min(max(one.spans.get(s, 0) for one in told) for s in slow) > MIDDLE)
    assert both == []
    by_span: dict[str, list[Range]] = {}
    for one in done:
        by_span.setdefault(one.span, []).append(one)
    for span, ranges in by_span.items():
        assert [one.after for one in ranges] == [hosted.starts[span], *(one.upto for one in ranges[:-1])]


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
def test_what_a_task_raises_ends_the_host_with_it(hosted: Hosted, raised: Exception, kind: type) -> None:
    def work(_: str, ranges: list[Range], tell: Tell) -> list[Report]:
        raise raised

    hosted.start(work)
    error = hosted.ended_by()
    assert type(error) is kind
    text = error.render()
    assert str(raised).splitlines()[0] in text
    assert hosted.told == []
    assert failed(raised).retry is (kind is not Fatal)


def test_one_worker_that_hangs_is_named_although_the_others_go_on(hosted: Hosted) -> None:
    hung, over = threading.Event(), threading.Event()

    def work(_: str, ranges: list[Range], tell: Tell) -> list[Report]:
        if not hung.is_set():
            hung.set()
            over.wait(WAIT_S)
        return all_of(ranges)

    hosted.start_impatient(work)
    error = hosted.ended_by()
    over.set()
    assert isinstance(error, Retryable)
    assert "CDC:ErrPipelineHung" in error.what
    assert f"({os.getpid()})" in error.where
    assert hosted.told, "the other one has delivered"


def test_a_thread_of_the_driver_that_fails_ends_the_host(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would look for signs of life any more, and nobody would know."""

    def broken(folder: Path) -> dict[str, int]:
        raise PermissionError(folder)

    monkeypatch.setattr("tidegate.pipeline.host.read_beats", broken)
    hosted.start(lambda _, ranges, tell: all_of(ranges))
    error = hosted.ended_by()
    assert isinstance(error, Retryable)
    assert "signs-of-life" in error.where


def test_a_worker_that_gets_something_done_is_not_hung(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.pipeline.beats.INTERVAL_S", 0.0)
    beats = Beats(hosted.spec.beats_dir)

    def work(_: str, ranges: list[Range], tell: Tell) -> list[Report]:
        for _beat in range(30):
            time.sleep(0.1)
            beats.beat()
        return all_of(ranges)

    hosted.start_impatient(work)
    hosted.wait(lambda told: len(told) >= 2)
    assert hosted.error is None


HELLO = framed(to_json(WorkerHello(4711)))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([HELLO], "a worker (4711)"),
        ([HELLO, b"\xff" * 8], "sent what is no message"),
        ([HELLO, framed({"type": "delivered"})], "sent what is no message"),
        ([HELLO, framed(to_json(WorkerHello(4712)))], "said what it must not"),
        ([framed({"type": "reached", "spans": {}})], "does not say who it is"),
        ([], "a worker that has not said who it is"),
    ],
)
def test_a_worker_that_dies_or_says_nonsense_ends_the_host(
    hosted: Hosted, frames: list[bytes], words: str
) -> None:
    hosted.start(lambda _, ranges, tell: all_of(ranges), workers=0)
    connected = hosted.connected()
    assert hosted.socket.stat().st_mode & 0o77 == 0, "another user could take rows for delivered"
    for one in frames:
        connected.sendall(one)
        if one is HELLO:
            assert FramedSocket(connected).receive() is not None  # it has work from here on
    connected.close()
    error = hosted.ended_by()
    assert isinstance(error, Retryable)
    assert words in error.render()
