"""When the puller looks for slow ranges: seldom while it finds none, with each risen mark while it does."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.errors import Retryable
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp, compose
from tidegate.puller import slow_ranges
from tidegate.puller.inbox import Inbox
from tidegate.puller.slow_ranges import SlowRanges

NOW = compose(1_000_000)
EARLIER = compose(1_000_000 - 2 * slow_ranges.BEHIND_MS)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def advance(self, seconds: float) -> None:
        self.now += seconds


class World:
    """A stripe of two ranges, the second of which may be slow, and the span of DDL, which never is."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.inbox = Inbox(self.clock)
        self.slow_ts: Timestamp = NOW
        self.kept: list[Sequence[tuple[Span, Timestamp]]] = []
        self.published = 0
        self.look_s = 0.0
        self.disk_is_full = False
        self.store = SimpleNamespace(pressure="", publish=self._publish)
        self.looks = SlowRanges(self.store, self, self.inbox, self.clock, self._keep)  # type: ignore[arg-type]

    def _publish(self) -> None:
        self.published += 1
        if self.disk_is_full:
            raise Retryable("full", why="full", fix="make room")

    def _keep(self, watched_span: Any, ranges: Sequence[tuple[Span, Timestamp]]) -> None:
        self.clock.advance(self.look_s)
        self.kept.append(ranges)

    # The members of the span table that SlowRanges uses.

    def all(self) -> list[Any]:
        ddl = SimpleNamespace(records=False, paused=False, changes=SimpleNamespace(resolved=NOW))
        stripe = SimpleNamespace(records=True, paused=False, changes=SimpleNamespace(resolved=self.slow_ts))
        return [ddl, stripe]

    def below(self, watched_span: Any, limit: Timestamp) -> list[int]:
        return [0] if self.slow_ts < limit else []

    def ranges(self, watched_span: Any) -> list[tuple[Span, Timestamp]]:
        return [(Span(b"a", b"b"), NOW), (Span(b"b", b"c"), self.slow_ts)]

    def run(self, seconds: float = 0.0) -> None:
        """Let time pass, then run all tasks that are due."""
        self.clock.advance(seconds)
        self.inbox.put(None)
        while (task := self.inbox.take()) is not None:
            task()


@pytest.fixture
def world() -> World:
    return World()


def test_risen_marks_ask_for_nothing_while_no_range_is_slow(world: World) -> None:
    world.looks.tend()
    world.looks.risen()
    world.run()
    assert world.kept == []
    assert world.published == 0


def test_each_risen_mark_asks_for_one_look_while_a_range_is_slow(world: World) -> None:
    world.slow_ts = EARLIER
    world.looks.tend()
    assert world.kept == [world.ranges(None)]
    assert world.published == 1
    for n in (2, 3):
        world.looks.risen()
        world.looks.risen()
        world.run(slow_ranges.REST_S)
        assert len(world.kept) == world.published == n


def test_looks_rest_in_proportion_to_the_time_they_take(world: World) -> None:
    world.slow_ts, world.look_s = EARLIER, 0.1
    world.looks.tend()
    rest = slow_ranges.LOOK_REST * world.look_s
    world.looks.risen()
    world.run()
    world.run(0.9 * rest)
    assert len(world.kept) == 1
    world.run(0.2 * rest)
    assert len(world.kept) == 2


def test_looks_that_take_long_use_a_fifth_of_the_time(world: World) -> None:
    """The coordinator also calls `tend`, and marks never stop rising."""
    world.slow_ts, world.look_s = EARLIER, 1.0
    while world.clock.now < 60:
        world.looks.tend()
        world.looks.risen()
        world.run(0.05)
        assert len(world.inbox._timers) <= 1
    assert len(world.kept) <= 60 / (1 + slow_ranges.LOOK_REST) + 1


def test_looks_are_seldom_again_once_no_range_is_slow(world: World) -> None:
    world.slow_ts = EARLIER
    world.looks.tend()
    world.slow_ts = NOW
    world.looks.risen()
    world.run(slow_ranges.REST_S)
    world.slow_ts = EARLIER
    world.looks.risen()
    world.looks.tend()
    world.run()
    assert len(world.kept) == 1
    world.clock.advance(slow_ranges.LOOK_S)
    world.looks.tend()
    assert len(world.kept) == 2


def test_a_full_disk_ends_no_look(world: World) -> None:
    world.slow_ts, world.disk_is_full = EARLIER, True
    world.looks.tend()
    world.looks.risen()
    world.run(slow_ranges.REST_S)
    assert world.published == 2


def test_nothing_more_is_stored_while_the_store_has_no_room(world: World) -> None:
    world.slow_ts, world.store.pressure = EARLIER, "full"
    world.looks.tend()
    assert world.kept == []
