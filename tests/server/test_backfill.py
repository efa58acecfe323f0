"""Changes from before the event store's part of a span are pulled while that part advances."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.puller.test_puller import SPAN, World, eventually, fail

from tidegate.errors import Retryable
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.server.pulling import backfill
from tidegate.server.pulling.backfill import FOLDER, Backfill
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration


class Process:
    """The parts that run in the puller's process."""

    def __init__(self, world: World) -> None:
        self.notices: list[Retryable] = []
        self.store = EventStore(world.folder)
        self.backfill = Backfill(world.pd, self.store, self.notices.append)
        self.puller = Puller(world.pd, self.store, on_failure=fail, on_watch=self.backfill.want)

    def close(self) -> None:
        self.backfill.close()
        self.puller.close()
        self.store.close()


class Let:
    """A span of which a part was released, while the upstream takes no new registration."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.start = world.pd.tso()
        world.run(20)
        self.process = Process(world)
        self.process.puller.watch(SPAN, self.start)
        world.await_published(SPAN)
        self.live = self.process.store.open_span(SPAN)
        eventually(lambda: self.live.resolved >= world.last_ts, "the first part")
        world.run(20)
        world.await_published(SPAN)
        self.live.drop_below(self.live.resolved)
        self.first = self.live.complete_from
        assert self.start < self.first <= world.last_ts
        world.run(5)
        world.upstream.faults.errors("capture", "server_is_busy", 1.0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    block_matcher.warm()
    store_kernels.warm()
    cuts = [encode_bytes(b"t" + bytes([cut])) for cut in (60, 120, 200)]
    upstream = EmbeddedUpstream(tmp_path / "upstream", boundaries=cuts)
    pd = PdClient(upstream.start().pd)
    yield World(upstream, pd, tmp_path / "events", random.Random(3))
    pd.close()
    upstream.stop()


@pytest.fixture
def let(world: World) -> Iterator[Let]:
    made = Let(world)
    yield made
    made.process.close()


def test_the_part_that_others_read_advances_while_the_missing_part_comes(let: Let) -> None:
    world, live = let.world, let.live
    before = live.resolved
    let.process.puller.watch(SPAN, let.start)
    for _ in range(5):
        world.run(2)
        world.await_published(SPAN)
        assert (live.complete_from, let.process.backfill.waiting) == (let.first, {SPAN: let.start})
        assert live.resolved > before
        before = live.resolved
    world.upstream.faults.clear()
    eventually(lambda: live.complete_from == let.start, "the beginning")
    world.run(5)
    world.check(SPAN, let.start)
    eventually(lambda: not (world.folder / FOLDER).exists(), "the end of the backfill")
    assert (let.process.backfill.waiting, let.process.backfill.filled) == ({}, 1)
    live.drop_below(live.resolved)
    let.process.puller.watch(SPAN, let.start + 1)
    eventually(lambda: live.complete_from == let.start + 1, "the beginning once more")
    world.check(SPAN, let.start + 1)


def test_a_span_that_lacks_nothing_costs_no_puller(let: Let, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[str] = []
    monkeypatch.setattr(Backfill, "_pull", lambda self: pulled.append("again"))
    for _ in range(3):
        let.process.puller.watch(SPAN, let.first)
        eventually(lambda: let.process.backfill.waiting == {}, "a look")
    assert pulled == []


def test_what_fails_is_reported_and_tried_again(let: Let, monkeypatch: pytest.MonkeyPatch) -> None:
    pull, tries = Backfill._pull, []

    def fails_once(self: Backfill) -> None:
        tries.append("again")
        if len(tries) == 1:
            raise Retryable("The store does not answer.")
        pull(self)

    monkeypatch.setattr(Backfill, "_pull", fails_once)
    monkeypatch.setattr(backfill, "RETRY_S", 0.01)
    let.world.upstream.faults.clear()
    let.process.puller.watch(SPAN, let.start)
    eventually(lambda: let.live.complete_from == let.start, "the beginning")
    assert [notice.why for notice in let.process.notices] == ["The store does not answer."]


@pytest.mark.parametrize("watched_again", [False, True])
def test_what_nobody_needs_any_more_is_not_pulled(let: Let, watched_again: bool) -> None:
    process = let.process
    process.puller.watch(SPAN, let.start)
    eventually(lambda: (let.world.folder / FOLDER).exists(), "the backfill")
    if watched_again:  # by the time that the thread looks, it is watched
        process.puller.unwatch(SPAN)
    process.puller.watch(SPAN, let.first)  # as `SpanRegistry` says when the changefeed is gone
    eventually(lambda: not (let.world.folder / FOLDER).exists(), "its end")
    let.world.upstream.faults.clear()
    let.world.run(5)
    let.world.await_published(SPAN)
    assert (let.live.complete_from, process.backfill.filled) == (let.first, 0)
    process.puller.watch(SPAN, let.start)
    process.puller.unwatch(SPAN)
    eventually(lambda: process.backfill.waiting == {}, "an end, since nobody follows the span")


def test_a_process_that_starts_again_keeps_the_part_that_others_read(let: Let) -> None:
    world = let.world
    let.process.puller.watch(SPAN, let.start)
    eventually(lambda: let.live.resolved >= world.last_ts, "all that was written")
    kept = let.live.resolved
    let.process.store.publish()
    let.process.close()
    let.process = Process(world)
    let.process.puller.watch(SPAN, let.start)
    live = let.process.store.open_span(SPAN)
    assert (live.resolved >= kept, live.complete_from) == (True, let.first)
    world.upstream.faults.clear()
    world.run(5)
    eventually(lambda: live.complete_from == let.start, "the beginning")
    world.check(SPAN, let.start)


def test_it_takes_only_the_room_that_the_quota_leaves(let: Let, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "ROOM_MIN", 1)
    store = let.process.store
    eventually(lambda: let.live.resolved >= let.world.last_ts, "all that was written")
    store.disk_bytes = store.used_bytes + 1
    let.world.upstream.faults.clear()
    let.process.puller.watch(SPAN, let.start)
    eventually(lambda: bool(let.process.notices), "a notice")
    assert "quota is used up" in let.process.notices[0].render()
    assert (let.live.complete_from, store.over_quota) == (let.first, False)
    assert len(let.process.notices) == 1
    store.disk_bytes = 1 << 30
    eventually(lambda: let.live.complete_from == let.start, "the beginning")
    let.world.check(SPAN, let.start)


def test_spans_that_have_no_room_together_are_pulled_one_by_one(
    let: Let, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each holds a part of the room, and none is ever whole."""
    monkeypatch.setattr(backfill, "ROOM_MIN", 1)
    monkeypatch.setattr(backfill, "TURN_S", 0.5)
    world, process, store = let.world, let.process, let.process.store
    parts = [Span(SPAN.start, b"t\x80"), Span(b"t\x80", SPAN.end)]
    world.upstream.faults.clear()
    for part in parts:
        process.puller.watch(part, let.start)
    lives = [store.open_span(part) for part in parts]
    eventually(lambda: all(live.resolved >= world.last_ts for live in lives), "both parts")
    sizes = [live.disk_bytes for live in lives]
    world.run(3)
    for live in (*lives, let.live):
        eventually(lambda live=live: live.resolved >= world.last_ts, "what was written")
        live.drop_below(world.last_ts)
    store.disk_bytes = store.used_bytes + 1
    for part in parts:
        process.puller.watch(part, let.start)
    tried: set[str] = set()

    def pulled() -> set[str]:
        folder = world.folder / FOLDER
        found = {path.name for path in folder.iterdir()} if folder.exists() else set()
        return found & {live.id for live in lives}

    eventually(lambda: tried.update(pulled()) or len(tried) == 2, "a turn of each")
    eventually(lambda: len(pulled()) == 1, "one at a time")
    assert [live.complete_from > let.start for live in lives] == [True, True]
    store.disk_bytes = store.used_bytes + max(sizes) + 200
    eventually(lambda: any(live.complete_from == let.start for live in lives), "one of them")
    store.disk_bytes = 1 << 30
    eventually(lambda: all(live.complete_from == let.start for live in lives), "the other one")
    for part in parts:
        world.check(part, let.start)
