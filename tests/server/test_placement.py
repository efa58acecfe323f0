"""The captures that a user or the other changefeeds leave for the ranges of a changefeed."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from tests.server.test_shares import ALL, NOW, TABLES, World

from tidegate.control.metadata import Delete, KeyValue, Put
from tidegate.etcd.election import drained_prefix
from tidegate.model.span import Span
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.changefeeds.placement import COUNTED_S, DRAINED_S, Placement
from tidegate.server.owner.sharing import Shares


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


class Cluster:
    """Several changefeeds over the captures a, b and c, each with its own view of them."""

    def __init__(self, feeds: int) -> None:
        self.worlds = [World("b", "c") for _ in range(feeds)]
        made: Any = Node()
        self._clock = made
        found = [SimpleNamespace(replication=SimpleNamespace(peers=one.peers)) for one in self.worlds]
        held: Any = SimpleNamespace(values=lambda: found)
        placement = Placement(made, held)
        for one in self.worlds:
            one.node.burdens = placement.burdens

    def divide(self, feed: int, *, shared: bool) -> Shares:
        """Divide a changefeed's keys, which the captures then deliver."""
        world = self.worlds[feed]
        before = world.sharing.now
        for peer in world.peers:
            peer.asked = None
        shares = world.sharing.divide(before, shared=shared)
        world.run(**{name: spans[0] for name, spans in shares.items()})
        self._clock.now += COUNTED_S
        return shares

    def dies(self, capture: str) -> list[str]:
        """A capture's session ends; returns what each changefeed says of those that deliver."""
        for one in self.worlds:
            left = {name: "addr" for name in "bc" if name != capture}
            one.node.others = lambda left=left: left
            one.peers[capture].received_at = float("-inf")
        return [one.sharing.captures.lost(one.now, NOW) for one in self.worlds]


def test_changefeeds_of_one_writer_each_are_spread_over_the_captures() -> None:
    cluster = Cluster(3)
    assert [list(cluster.divide(feed, shared=False)) for feed in range(3)] == [["a"], ["b"], ["c"]]
    assert cluster.dies("b") == ["", "capture b is gone", ""], "the others do not begin again"
    assert list(cluster.divide(1, shared=False)) == ["a"]
    assert list(cluster.divide(2, shared=False)) == ["c"], "it stays where it is"


def test_a_capture_that_dies_leaves_all_its_ranges_of_all_changefeeds() -> None:
    cluster = Cluster(2)
    cuts = [b"", TABLES[1].span.start, TABLES[2].span.start, b""]
    thirds = [Span(start, end) for start, end in pairwise(cuts)]
    for one in cluster.worlds:
        one.run(**dict(zip("abc", thirds, strict=True)))
    assert cluster.dies("b") == ["capture b is gone"] * 2
    for feed in range(2):
        shares = cluster.divide(feed, shared=True)
        assert shares.keys() == {"a", "c"}
        found = sorted((span.start, span.end) for spans in shares.values() for span in spans)
        assert (found[0][0], found[-1][1]) == (ALL.start, ALL.end)
        assert all(one[1] == after[0] for one, after in pairwise(found)), "no gap"
