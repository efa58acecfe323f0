"""What waits of a feed: the driver rests while nothing comes, and whatever is told ends the rest."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pipeline.recorded import RecordedFeed

from tidegate.eventstore.floors import FloorPage
from tidegate.pipeline import backlog
from tidegate.pipeline.backlog import Backlog
from tidegate.pipeline.feed import Barrier, FeedSpec
from tidegate.pipeline.ranges import Range

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
MIDDLE = 470612974530461697
"""Half of the transactions lie below."""
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol"
WAIT_S = 120


@pytest.fixture
def feed(tmp_path: Path) -> RecordedFeed:
    return RecordedFeed(tmp_path, BANK, URI, UPTO)


class Resting:
    """`take` in a thread, held at the start by the barrier file; its rest has no end of its own."""

    def __init__(self, feed: RecordedFeed, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backlog, "REST_S", 3600.0)
        path = feed.write()
        self.barrier = path.parent / "barrier.json"
        self.told = json.loads(self.barrier.read_text())
        self.bound(1)
        self.spec = FeedSpec.load(path)
        self.backlog = Backlog(self.spec, Barrier.load(self.barrier).spans, self.free)
        self.shares: list[list[Range]] = []
        self.failure: Exception | None = None
        self._raised: Exception | None = None
        self.glances = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        mark = self.backlog.mark

        def glanced() -> object:
            self.glances.release()
            return mark()

        monkeypatch.setattr(self.backlog, "mark", glanced)

    def bound(self, ts: int) -> None:
        """Let spans go so far."""
        partial = self.barrier.with_suffix(".tmp")
        partial.write_text(json.dumps(self.told | {"barrier_ts": ts}))
        partial.replace(self.barrier)

    def rests(self) -> None:
        """Wait until it has looked, found nothing, and glanced at whether anything was told."""
        for _ in range(2):
            assert self.glances.acquire(timeout=WAIT_S)

    def begin(self) -> None:
        self._thread.start()

    def free(self) -> int:
        if self.failure is not None:
            raise self.failure
        return 2

    def _run(self) -> None:
        try:
            self.shares += self.backlog.take()
        except RuntimeError as error:
            self._raised = error

    def end(self) -> list[Range]:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "it rests still"
        return [one for share in self.shares for one in share]

    def ended_by(self) -> Exception | None:
        assert self.end() == []
        return self._raised


@pytest.fixture
def resting(feed: RecordedFeed, monkeypatch: pytest.MonkeyPatch) -> Resting:
    return Resting(feed, monkeypatch)


def test_a_barrier_that_is_raised_ends_the_rest(resting: Resting) -> None:
    resting.begin()
    resting.rests()
    resting.bound(resting.told["barrier_ts"])
    assert resting.end()


def test_rows_that_come_end_the_rest(resting: Resting) -> None:
    store = resting.spec.store_dir
    page = FloorPage(store, "process")
    held = {name: page.get(name) for name in resting.told["spans"]}
    page.put((name, 1, version ^ 1) for name, (_, version) in held.items())
    resting.bound(resting.told["barrier_ts"])
    resting.begin()
    resting.rests()
    page.put((name, floor, version) for name, (floor, version) in held.items())
    assert resting.end()
    page.close()


@pytest.mark.parametrize("calls", [1, 2])
def test_what_is_told_while_it_looks_is_looked_at_next(
    resting: Resting, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    look: Callable[[], tuple[list[Range], dict[str, int], int]] = resting.backlog.look
    left = [calls]

    def told_meanwhile() -> tuple[list[Range], dict[str, int], int]:
        found = look()
        left[0] -= 1
        resting.bound(resting.told["barrier_ts"] if left[0] == 0 else 1)
        return found

    monkeypatch.setattr(resting.backlog, "look", told_meanwhile)
    resting.begin()
    assert resting.end()
    assert left[0] == -1


def test_a_rest_ends_by_itself(resting: Resting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were something told that the mark does not show, it is seen at the next look."""
    monkeypatch.setattr(backlog, "REST_S", 0.05)
    monkeypatch.setattr(resting.backlog, "mark", resting.glances.release)
    resting.begin()
    resting.rests()
    resting.bound(resting.told["barrier_ts"])
    assert resting.end()


def test_what_was_taken_is_not_taken_again(resting: Resting) -> None:
    resting.bound(resting.told["barrier_ts"])
    first = [one for share in resting.backlog.take() for one in share]
    assert first
    assert resting.backlog.look()[0] == []
    resting.backlog.done(first)
    assert resting.backlog.look()[0] == []


def test_of_a_span_that_a_worker_has_nothing_more_is_due_until_it_is_done(resting: Resting) -> None:
    """Else two workers would write the rows of one span side by side, in no order."""
    resting.bound(MIDDLE)
    first = [one for share in resting.backlog.take() for one in share]
    assert first
    resting.bound(resting.told["barrier_ts"])
    others = [one for share in resting.backlog.taken() for one in share]
    assert not {one.span for one in first} & {one.span for one in others}
    resting.begin()
    resting.rests()
    resting.backlog.done(first)
    behind = {one.span: one for one in resting.end()}
    assert behind.keys() >= {one.span for one in first}
    assert all(behind[one.span].after == one.upto for one in first)


def test_what_a_worker_says_ends_the_rest(resting: Resting) -> None:
    """A failure is raised from `take`, which may be at rest for long."""
    resting.begin()
    resting.rests()
    resting.failure = RuntimeError("it failed")
    resting.backlog.stir()
    assert resting.ended_by() is resting.failure
