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
        self.backlog = Backlog(self.spec, Barrier.load(self.barrier).spans, 2)
        self.shares: list[list[Range]] = []
        self.glances = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        sleep = backlog.time.sleep

        def glanced(seconds: float) -> None:
            self.glances.release()
            sleep(seconds)

        monkeypatch.setattr(backlog.time, "sleep", glanced)

    def bound(self, ts: int) -> None:
        """Let spans go so far."""
        partial = self.barrier.with_suffix(".tmp")
        partial.write_text(json.dumps(self.told | {"barrier_ts": ts}))
        partial.replace(self.barrier)

    def begin(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        self.shares += self.backlog.take()

    def end(self) -> list[Range]:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "it rests still"
        return [one for share in self.shares for one in share]


@pytest.fixture
def resting(feed: RecordedFeed, monkeypatch: pytest.MonkeyPatch) -> Resting:
    return Resting(feed, monkeypatch)


def test_a_barrier_that_is_raised_ends_the_rest(resting: Resting) -> None:
    resting.begin()
    assert resting.glances.acquire(timeout=WAIT_S)
    resting.bound(resting.told["barrier_ts"])
    assert resting.end()


def test_rows_that_come_end_the_rest(resting: Resting) -> None:
    store = resting.spec.store_dir
    page = FloorPage(store, "process")
    held = {name: page.get(name) for name in resting.told["spans"]}
    page.put((name, 1, version ^ 1) for name, (_, version) in held.items())
    resting.bound(resting.told["barrier_ts"])
    resting.begin()
    assert resting.glances.acquire(timeout=WAIT_S)
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
    monkeypatch.setattr(resting.backlog, "mark", lambda: None)
    resting.begin()
    assert resting.glances.acquire(timeout=WAIT_S)
    resting.bound(resting.told["barrier_ts"])
    assert resting.end()


def test_what_was_taken_is_not_taken_again(resting: Resting) -> None:
    resting.bound(resting.told["barrier_ts"])
    first = {one.span for share in resting.backlog.take() for one in share}
    assert first
    assert resting.backlog.look()[0] == []
