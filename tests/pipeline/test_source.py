"""The source's look at the event store: it rests while nothing comes, and whatever is told ends the rest."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.pipeline.recorded import RecordedFeed

from tidegate.eventstore.floors import FloorPage
from tidegate.pipeline import source
from tidegate.pipeline.feed import Barrier
from tidegate.pipeline.offsets import Offset
from tidegate.pipeline.source import EventReader

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol"
WAIT_S = 120


@pytest.fixture
def feed(tmp_path: Path) -> RecordedFeed:
    return RecordedFeed(tmp_path, BANK, URI, UPTO)


class Resting:
    """`latestOffset` in a thread, held at the start by the barrier file; its rest has no end of its own."""

    def __init__(self, feed: RecordedFeed, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(source, "REST_S", 3600.0)
        self.path = feed.write()
        self.barrier = self.path.parent / "barrier.json"
        self.told = json.loads(self.barrier.read_text())
        self.bound(1)
        self.reader = EventReader(self.path, 2)
        spec = self.reader._spec
        starts = Barrier.load(self.barrier).spans
        self.start = Offset(spec.token, dict(starts)).to_json()
        self.found: list[dict[str, Any]] = []
        self.glances = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        sleep = source.time.sleep

        def glanced(seconds: float) -> None:
            self.glances.release()
            sleep(seconds)

        monkeypatch.setattr(source.time, "sleep", glanced)

    def bound(self, ts: int) -> None:
        """Let spans go so far."""
        partial = self.barrier.with_suffix(".tmp")
        partial.write_text(json.dumps(self.told | {"barrier_ts": ts}))
        partial.replace(self.barrier)

    def begin(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        self.found.append(self.reader.latestOffset(self.start, ReadAllAvailable()))

    def end(self) -> dict[str, Any]:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "it rests still"
        return self.found[0]


@pytest.fixture
def resting(feed: RecordedFeed, monkeypatch: pytest.MonkeyPatch) -> Resting:
    return Resting(feed, monkeypatch)


def test_a_barrier_that_is_raised_ends_the_rest(resting: Resting) -> None:
    resting.begin()
    assert resting.glances.acquire(timeout=WAIT_S)
    resting.bound(resting.told["barrier_ts"])
    assert resting.end() != resting.start


def test_rows_that_come_end_the_rest(resting: Resting) -> None:
    store = resting.reader._spec.store_dir
    page = FloorPage(store, "process")
    held = {name: page.get(name) for name in resting.told["spans"]}
    page.put((name, 1, version ^ 1) for name, (_, version) in held.items())
    resting.bound(resting.told["barrier_ts"])
    resting.begin()
    assert resting.glances.acquire(timeout=WAIT_S)
    page.put((name, floor, version) for name, (floor, version) in held.items())
    assert resting.end() != resting.start
    page.close()


@pytest.mark.parametrize("calls", [1, 2])
def test_what_is_told_while_it_looks_is_looked_at_next(
    resting: Resting, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    look: Callable[[Offset], tuple[Offset, int]] = resting.reader.look
    left = [calls]

    def told_meanwhile(after: Offset) -> tuple[Offset, int]:
        found = look(after)
        left[0] -= 1
        resting.bound(resting.told["barrier_ts"] if left[0] == 0 else 1)
        return found

    monkeypatch.setattr(resting.reader, "look", told_meanwhile)
    resting.begin()
    assert resting.end() != resting.start
    assert left[0] == -1


def test_a_rest_ends_by_itself_and_gives_back_the_offset_it_was_given(
    resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "REST_S", 0.05)
    assert resting.reader.latestOffset(resting.start, ReadAllAvailable()) == resting.start
