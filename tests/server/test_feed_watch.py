"""Which silence of a feed's parts counts, by a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.control.metadata import FeedId
from tidegate.errors import Retryable
from tidegate.pipeline.exchange import beats
from tidegate.pipeline.exchange.beats import Beats
from tidegate.server.delivery.sink_thread import SinkThread
from tidegate.server.delivery.watch import PipelineWatch, SinkWatch

STALL_S, START_S = 60.0, 300.0
SESSION = os.getpid()
"""Any that is not 0, "none yet": in a container the session of the tests themselves may have that number."""


class ByHand:
    """A clock that advances when a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class Watched:
    """A watch with what it looks at."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.beats = ByHand(), Beats(folder)
        self.watch = PipelineWatch(self.clock, folder, STALL_S, START_S)
        self.sink = SinkWatch(self.clock, STALL_S, START_S)
        self.thread = SinkThread(FeedId("default", "one"))
        self.work = "rows"

    def wait(self, seconds: int, each: Callable[[], None] = lambda: None) -> Retryable | None:
        """Look, and call `each`, every second for `seconds`; return the first finding."""
        for _ in range(seconds):
            self.clock.seconds += 1
            each()
            if hung := self.watch.look(lambda: self.work, SESSION) or self.sink.look(
                self.thread, opened=True
            ):
                return hung
        return None


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(beats, "INTERVAL_S", 0.0)
    return Watched(tmp_path / "beats")


def test_a_slow_broker_is_not_hung_while_it_acknowledges_anything(watched: Watched) -> None:
    every = iter(range(10_000))

    def acknowledge() -> None:
        if next(every) % 50 == 0:
            watched.beats.beat()

    assert watched.wait(1000, acknowledge) is None
    hung = watched.wait(200)
    assert hung is not None
    assert "[CDC:ErrPipelineHung]" in hung.what
    assert f"({STALL_S:.0f} s)" in hung.what
    assert "rows" in hung.where


def test_until_the_first_thing_is_done_the_patience_is_that_of_a_start(watched: Watched) -> None:
    assert watched.wait(int(START_S)) is None
    assert watched.wait(2) is not None


def test_a_message_is_a_report_and_without_work_there_is_no_silence(watched: Watched) -> None:
    watched.beats.beat()
    assert watched.wait(50) is None
    watched.watch.received()
    assert watched.wait(59) is None
    watched.work = ""
    assert watched.wait(1000) is None


def test_a_long_list_of_ddls_is_one_call_with_many_answers(watched: Watched) -> None:
    watched.work = ""
    every = iter(range(10_000))

    def answer() -> None:
        number = next(every)
        watched.thread.at = f"a DDL of ts {number}"
        watched.thread.answers += number % 40 == 0

    assert watched.wait(1000, answer) is None
    hung = watched.wait(100)
    assert hung is not None
    assert "[CDC:ErrSinkHung]" in hung.what
    assert "a DDL of ts 999" in hung.where


def test_a_call_that_fails_is_over() -> None:
    async def scenario() -> SinkThread:
        thread = SinkThread(FeedId("default", "one"))

        def fail() -> None:
            assert thread.at == "Resolved 1"
            raise Retryable("The broker does not answer.")

        with pytest.raises(Retryable):
            await thread.call("Resolved 1", fail)
        thread.end()
        return thread

    thread = asyncio.run(scenario())
    assert (thread.at, thread.answers) == ("", 1)
