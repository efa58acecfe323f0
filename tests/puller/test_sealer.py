"""When floors are published: at every mark while rows come, and now and then while only time passes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.puller.test_puller import eventually
from tidegate.clock import SystemClock
from tidegate.puller import sealer
from tidegate.puller.sealer import Sealer


class Store:
    """Counts what is published."""

    held_bytes = 0
    published = 0

    def publish(self) -> None:
        self.published += 1


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def quiet(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sealer]:
    """One for which no row has come for long, and whose rest then has no end of its own."""
    monkeypatch.setattr(sealer, "QUIET_S", 0.0)
    monkeypatch.setattr(sealer, "QUIET_REST_S", 3600.0)
    closing, sink = threading.Event(), store
    failures: list[Any] = []
    made = Sealer(sink, list, 0.0, SystemClock(), closing, failures.append)  # type: ignore[arg-type]
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    closing.set()
    made.wake()
    thread.join(120)
    assert (thread.is_alive(), failures) == (False, [])


def test_a_row_ends_the_rest_and_marks_are_published_while_rows_wait(store: Store, quiet: Sealer) -> None:
    quiet.moved()
    eventually(lambda: store.published == 1, "the first mark")
    for number in range(2, 5):  # it rests, or is about to
        quiet.stir()
        quiet.moved()
        eventually(lambda number=number: store.published == number, "the mark behind a row")  # type: ignore[misc]
    store.held_bytes = 1  # of a row that a lock holds back
    quiet.stir()
    for number in range(5, 9):
        quiet.moved()
        eventually(lambda number=number: store.published == number, "a mark that may complete it")  # type: ignore[misc]
