"""The end of an initial load is stored before the stream continues, and once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.errors import Retryable
from tidegate.server.owner.load_end import LoadEnd


class World:
    """A changefeed that loads; `done` has what happened, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.fails = False
        record: Any = SimpleNamespace(id="default/one", persisted=7, loading=True, store=self.store)
        reports: Any = SimpleNamespace(load=SimpleNamespace(rows=3))
        self.owner: Any = SimpleNamespace(load_done=lambda: self.done.append("continues"))
        self.record, self.end = record, LoadEnd(record, reports)

    async def store(self, ts: int, *, loaded: bool) -> None:
        if self.fails:
            raise Retryable("the metadata store does not answer")
        self.done.append(f"stored at {ts}, loaded: {loaded}")


def test_the_end_of_a_load_is_stored_before_the_stream_continues() -> None:
    world = World()
    assert world.end.begin()
    asyncio.run(world.end.store(world.owner))
    assert world.done == ["stored at 7, loaded: True", "continues"]
    assert not world.record.loading


def test_a_load_whose_end_is_not_stored_continues_to_load() -> None:
    world = World()
    world.fails = True
    assert world.end.begin()
    with pytest.raises(Retryable):
        asyncio.run(world.end.store(world.owner))
    assert world.done == []
    assert world.record.loading
    assert world.end.begin(), "it is tried again"


def test_a_load_that_is_reported_twice_ends_once() -> None:
    world = World()
    assert world.end.begin()
    assert not world.end.begin()
