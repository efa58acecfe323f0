"""The puller alone refuses to register below the safepoint, whatever it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.garbage import registrations_checked
from tests.puller.test_puller import SPAN, World, eventually, fail, world
from tidegate.eventstore.store import EventStore
from tidegate.model.span import Span
from tidegate.puller.puller import Puller

pytestmark = pytest.mark.integration
__all__ = ["world"]


class Refusing:
    """A puller over the world's event store, and what it refused."""

    def __init__(self, world: World) -> None:
        self.refused: list[tuple[Span, int, int]] = []
        self.store = EventStore(world.folder)
        self.puller = Puller(
            world.pd, self.store, on_failure=fail, on_refused=lambda *reported: self.refused.append(reported)
        )

    def close(self) -> None:
        self.puller.close()
        self.store.close()


@pytest.fixture
def below(world: World) -> Iterator[list[str]]:
    """Registrations below upstream's safepoint."""
    found: list[str] = []
    with registrations_checked(world.upstream, found):
        yield found


def test_a_span_that_is_asked_for_from_below_is_left_as_it_is(world: World, below: list[str]) -> None:
    early = world.pd.tso()
    world.run(10)
    start = world.pd.tso()
    running = Refusing(world)
    running.puller.watch(SPAN, start)
    world.run(10)
    world.check(SPAN, start)
    safe_point = world.upstream._safe_points.update(start, world.pd.tso())
    running.puller.keep_above(safe_point)
    running.puller.watch(SPAN, early)
    assert running.refused == [(SPAN, early, safe_point)]
    world.run(10)
    world.check(SPAN, start)  # it has all it had, and continues
    assert below == []
    running.close()


def test_a_store_that_ends_below_the_safe_point_waits_until_it_allows_more(
    world: World, below: list[str], tmp_path: Path
) -> None:
    start = world.pd.tso()
    first = Refusing(world)
    first.puller.watch(SPAN, start)
    world.run(10)
    world.check(SPAN, start)
    first.close()
    world.run(10)
    again = Refusing(world)
    again.puller.keep_above(world.upstream._safe_points.update(world.pd.tso(), world.pd.tso()))
    again.puller.watch(SPAN, start)  # the store holds that, but not what came after it
    eventually(lambda: bool(again.refused or below), "the refusal")
    assert below == []
    assert {span for span, _, _ in again.refused} == {SPAN}
    assert all(ts < safe_point for _, ts, safe_point in again.refused)
    assert "safe point" in again.puller.status()[0].waiting_for
    assert below == []
    again.puller.keep_above(0)
    world.check(SPAN, start)  # the collector has not come by: nothing is gone yet
    assert below
    again.close()
