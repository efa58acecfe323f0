"""Which captures are drained, by what etcd has, while captures come and go."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tidegate.control.metadata import Delete, KeyValue, Put
from tidegate.etcd.election import drained_prefix
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.changefeeds.placement import DRAINED_S, Placement


class Node:
    """An owner's capture with its keys in a dict."""

    cluster = 1

    def __init__(self) -> None:
        self.now, self.there = 0.0, {"a": "1", "b": "2"}
        self.drained: set[str] = set()
        self.keys: dict[str, bytes] = {}
        self.clock = SimpleNamespace(monotonic=lambda: self.now)

    def ids(self) -> dict[str, str]:
        return self.there

    async def under(self, front: str) -> list[KeyValue]:
        return [KeyValue(key, value, 1, 1) for key, value in self.keys.items() if key.startswith(front)]

    async def write(self, *writes: Put | Delete) -> bool:
        for one in writes:
            if isinstance(one, Put):
                self.keys[one.key] = one.value
            else:
                del self.keys[one.key]
        return True


def test_a_capture_that_never_comes_back_is_drained_for_a_day() -> None:
    """Its data folder was deleted: nobody else would remove its key."""
    made: Any = Node()
    placement = Placement(made, Feeds())
    asyncio.run(placement.drain("b"))
    assert list(made.keys) == [drained_prefix(1) + "b"]

    def drained_at(now: float, *, there: bool) -> bool:
        made.now = now
        made.there = {"a": "1", "b": "2"} if there else {"a": "1"}
        asyncio.run(placement.end_drains())
        assert bool(made.keys) is bool(made.drained)
        return "b" in made.drained

    assert drained_at(10.0, there=False)
    assert drained_at(DRAINED_S, there=True), "the same process: it had lost its session"
    assert drained_at(DRAINED_S + 20, there=False)
    assert drained_at(2 * DRAINED_S + 20, there=False)
    assert not drained_at(2 * DRAINED_S + 21, there=False)
