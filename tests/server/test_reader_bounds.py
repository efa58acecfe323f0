"""The bounds of workers are written in another thread, one file at a time, and nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.test_processor_needs import asked, never_open

from tidegate.control.barrier import SpanTask
from tidegate.control.grants import Grant
from tidegate.control.messages import Checkpoint, DispatchResponse, FromProcessor, Wish
from tidegate.control.open_spans import OpenSpans
from tidegate.disk import Ballast, DiskFull
from tidegate.errors import TidegateError
from tidegate.model.span import Span
from tidegate.server.delivery.plan import BoundsChange, BoundsFile
from tidegate.server.processor.processor import FeedProcessor
from tidegate.server.processor.reader_bounds import ReaderBounds

ALL = Span(b"", b"")


class SlowDisk:
    """A disk that takes as long to write a bounds file as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end, self.bounds = threading.Event(), threading.Event(), list[int]()
        self.failure: Exception | None = None
        self.is_busy = False
        """Whether a file is being written."""
        put, write = BoundsFile.put, Path.write_text

        def noted(file: BoundsFile, change: BoundsChange) -> None:
            put(file, change)
            self.bounds.append(change.bound)

        def slow(path: Path, text: str) -> int:
            self.is_busy = True
            self.begun.set()
            # Longer than a test waits for anything, so that no wait ends by the end of this one.
            is_over = self.may_end.wait(120)
            self.is_busy = False
            assert is_over
            if self.failure is not None:
                raise self.failure
            return write(path, text)

        self.monkeypatch, self.noted, self.slow = monkeypatch, noted, slow

    def slows(self) -> None:
        """From now on files take their time."""
        self.monkeypatch.setattr(BoundsFile, "put", self.noted)
        self.monkeypatch.setattr(Path, "write_text", self.slow)

    async def writes(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 60)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


def opened(folder: Path) -> Any:
    """The opening of a changefeed, of which its bounds need these parts."""
    return SimpleNamespace(
        plan=SimpleNamespace(folder=folder),
        ddl=SimpleNamespace(span_id="0" * 16, base_ts=lambda ts: ts),
        arrivals=SimpleNamespace(all_idle=False),
        look=lambda dispatch: None,
        receive_history=lambda: None,
    )


class Following:
    """The bounds of a changefeed, whose machine is at some bound."""

    def __init__(self, folder: Path, disk: SlowDisk) -> None:
        self.failures, self.woken, self.opening = list[TidegateError](), 0, opened(folder)
        node: Any = SimpleNamespace(ballast=Ballast(None), files=None)
        node.clock = SimpleNamespace(monotonic=lambda: 1000.0)
        self.machine: Any = SimpleNamespace(reach=7, spans=OpenSpans())
        self.bounds = ReaderBounds(node, self.machine, self.failures.append, self._wake)
        self.bounds.begin(self.opening.plan, Grant("i", (1, 1), 1, 1), self.opening)
        disk.slows()

    def _wake(self) -> None:
        self.woken += 1

    def follow(self, bound: int) -> None:
        self.machine.reach = bound
        self.bounds.follow(self.opening, 5)


def test_one_file_is_written_at_a_time_and_then_the_newest(tmp_path: Path, disk: SlowDisk) -> None:
    async def scenario() -> None:
        feed = Following(tmp_path, disk)
        feed.follow(8)
        await disk.writes()
        feed.follow(9)
        feed.follow(10)
        assert feed.woken == 0
        disk.may_end.set()
        await feed.bounds.written()
        assert (disk.bounds, feed.woken) == ([8], 1)
        feed.follow(10)
        await feed.bounds.written()
        assert (disk.bounds, feed.woken) == ([8, 10], 1), "nothing was missed meanwhile"

    asyncio.run(scenario())


def test_a_file_that_cannot_be_written_fails_its_own_incarnation_only(tmp_path: Path, disk: SlowDisk) -> None:
    async def scenario(failure: Exception, *, ends: bool) -> list[str]:
        feed = Following(tmp_path, disk)
        disk.failure = failure
        feed.follow(8)
        await disk.writes()
        if ends:
            feed.bounds.end()
        disk.may_end.set()
        await feed.bounds.written()
        disk.failure = None
        return [error.what for error in feed.failures]

    assert asyncio.run(scenario(DiskFull("the disk is full"), ends=False)) == [], "workers keep their bound"
    assert asyncio.run(scenario(OSError("gone"), ends=False)) == [
        "an unexpected error stopped the changefeed"
    ]
    assert asyncio.run(scenario(OSError("gone"), ends=True)) == []


def test_an_incarnation_ends_during_a_write_which_has_no_effect_then(tmp_path: Path, disk: SlowDisk) -> None:
    """All changefeeds share the loop in which it ends, so it does not wait for the disk."""

    async def scenario() -> None:
        feed = Following(tmp_path, disk)
        before = (tmp_path / "bounds.json").read_text()
        feed.follow(8)
        await disk.writes()
        feed.bounds.end()
        assert disk.is_busy, "its end has not waited"
        disk.may_end.set()
        await feed.bounds.written()
        assert (tmp_path / "bounds.json").read_text() == before
        assert not (tmp_path / "bound.json").exists()
        assert not list(tmp_path.glob("*.tmp"))

    asyncio.run(scenario())


def test_what_a_killed_process_had_begun_to_write_is_removed(tmp_path: Path, disk: SlowDisk) -> None:
    (tmp_path / "bounds-1f-3.tmp").write_text("{")
    (tmp_path / "load.tmp").write_text("another file's")
    Following(tmp_path, disk)
    assert [one.name for one in tmp_path.glob("*.tmp")] == ["load.tmp"]


def delivering(said: list[FromProcessor], opening: Any) -> FeedProcessor:
    """A processor that delivers as soon as it is asked to run. `said`: gets its messages."""
    processor = never_open(said)
    node: Any = processor.node
    node.ballast, node.files = Ballast(None), None

    async def reach(dispatch: object) -> None:
        processor.openings.current, processor.openings.is_ready = opening, True
        processor.machine.open(5, [SpanTask("s", ALL, 1, 5)], [], 100)
        processor._bounds.begin(opening.plan, Grant("i", (1, 1), 1, 1), opening)

    unused: Any = lambda *_: None  # noqa: E731
    vars(processor).update(_reach=reach, _check_space=unused, _rest_s=lambda: 0.01)
    vars(processor)["_status"] = SimpleNamespace(take=unused)
    vars(processor.openings)["measure_loads"] = unused
    return processor


def test_an_owner_is_answered_while_a_file_is_being_written(tmp_path: Path, disk: SlowDisk) -> None:
    """All captures of a round wait for these answers. Progress alone waits for the end of the write."""
    said: list[FromProcessor] = []
    processor = delivering(said, opened(tmp_path))

    async def ended() -> None:
        processor._bounds.end()

    async def prepared(dispatch: object) -> None:
        """The spans are opened."""

    async def scenario() -> None:
        processor.box.put(asked(1, Wish.RUN, checkpoint=5, needed=5, incarnation=1))
        await processor._step()
        await asyncio.sleep(0)
        disk.slows()
        processor.machine.learn([], 200)
        said.clear()
        await processor._step()
        await disk.writes()
        assert any(isinstance(one, Checkpoint) for one in said)

        processor._wake.set()  # a task is durable
        progress = asyncio.create_task(processor._pause())
        await asyncio.sleep(0.05)
        assert not progress.done()

        assert processor.machine.started(1, {})
        processor._wake.set()
        async with asyncio.timeout(60):
            await progress
        said.clear()
        await processor._step()
        assert [one.answers for one in said if isinstance(one, DispatchResponse)] == [1]

        del vars(processor)["_reach"]
        vars(processor)["pipeline"] = SimpleNamespace(is_there=True, end=ended, waits="")
        vars(processor.openings).update(close=lambda **_: None, prepare=prepared)
        vars(processor)["_tick"] = lambda: None
        # After the first one it no longer runs, so that only the response says that the second one is done.
        for number, wish in ((2, Wish.REST), (3, Wish.PREPARE)):
            processor.box.put(asked(number, wish, checkpoint=5, needed=5))
            async with asyncio.timeout(60):
                await processor._pause()
                await processor._step()
                said.clear()
                await processor._pause()
                await processor._step()
            assert [one.answers for one in said if isinstance(one, DispatchResponse)] == [number]
        assert disk.is_busy
        assert disk.bounds == [], "all of this happened during one write"
        disk.may_end.set()
        await processor._bounds.written()

    asyncio.run(scenario())


def test_a_write_under_way_ends_before_its_processor_does(tmp_path: Path, disk: SlowDisk) -> None:
    """The folder of a removed changefeed is removed next."""
    processor = never_open([])
    node: Any = processor.node
    node.ballast, node.files = Ballast(None), None
    opening = opened(tmp_path)

    async def scenario() -> None:
        processor._bounds.begin(opening.plan, Grant("i", (1, 1), 1, 1), opening)
        disk.slows()
        machine = SimpleNamespace(reach=7, spans=OpenSpans())
        vars(processor._bounds)["_machine"] = machine
        processor._bounds.follow(opening, 5)
        await disk.writes()
        ending = asyncio.create_task(processor._end())
        await asyncio.sleep(0.02)
        assert not ending.done()
        disk.may_end.set()
        await ending
        assert processor._bounds.writing is None

    asyncio.run(scenario())
