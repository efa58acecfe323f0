"""A range that holds a stripe back: what the others have is there for who wants nothing of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.puller.test_puller import World, eventually, fail
from tidegate.eventstore import reader, store_view
from tidegate.eventstore.floors import FloorReader
from tidegate.eventstore.order import entries_of
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.model.span import span_id
from tidegate.model.timestamp import compose
from tidegate.puller import slow_ranges, upkeep
from tidegate.puller.puller import Puller
from tidegate.tidb import keys
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration
SPAN = keys.stripe_span(128, 64)
LOCKED, OTHER = 130, 150


@pytest.fixture(autouse=True)
def nothing_is_kept_for_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "KEEP_S", 1e9)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    edges = [encode_bytes(keys.table_prefix(table)) for table in (LOCKED, LOCKED + 1, OTHER)]
    upstream = EmbeddedUpstream(tmp_path / "upstream", boundaries=edges)
    pd = PdClient(upstream.start().pd)
    yield World(upstream, pd, tmp_path / "events", random.Random(5))
    pd.close()
    upstream.stop()


def test_a_lock_delays_only_who_wants_a_table_of_its_region(world: World) -> None:
    start = world.pd.tso()
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    name = span_id(SPAN)
    try:
        puller.watch(SPAN, start)
        puller.watch(keys.ddl_span(), start)
        key = keys.int_record(LOCKED, 1)
        held = TwoPhase(world.pd, world.pd.tso(), key, ttl_ms=600_000)
        held.prewrite([Mutation(PUT, key, b"late")], Backoff())
        locked_at = world.pd.tso()

        def reach(*tables: int) -> int:
            wanted = (SPAN_IDS.start, sum(1 << table - SPAN_IDS.start for table in tables))
            return store_view.reach_of(store_view.read_manifest(world.folder, name), wanted)

        for n in range(3):
            world.commit({keys.int_record(OTHER, n): b"%d" % n, keys.int_record(LOCKED, 100 + n): b"x"})
            eventually(lambda: reach(OTHER) >= world.last_ts, "the other table")
            assert reach(LOCKED) < locked_at
            assert reach(OTHER, LOCKED) < locked_at
        assert store_view.read_frontier(world.folder)[name] < locked_at
        wanted = (SPAN_IDS.start, 1 << OTHER - SPAN_IDS.start)
        blocks = reader.read(world.folder, name, start, reach(OTHER), tables=[OTHER], wanted=lambda _: wanted)
        assert sum(block.num_rows for block in blocks) == 3
        held.commit([key], world.pd.tso(), Backoff())
        eventually(lambda: store_view.read_frontier(world.folder)[name] >= world.last_ts, "the floor")
        found = [
            e for block in reader.read(world.folder, name, start, world.last_ts) for e in entries_of(block)
        ]
        assert len(found) == 6
        world.commit({key: b"after"})
        world.await_published(SPAN)
        found = [
            e for block in reader.read(world.folder, name, start, world.last_ts) for e in entries_of(block)
        ]
        assert [e.value for e in found if e.key == key] == [b"late", b"after"]
    finally:
        puller.close()
        store.close()


SPAN_IDS = keys.stripe_ids(SPAN)


def test_what_is_kept_of_the_others_is_published_though_no_mark_rises(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers learn by the page of floors that there is another manifest."""
    monkeypatch.setattr(slow_ranges, "LOOK_S", 1e9)
    start = world.pd.tso()
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    name, page = span_id(SPAN), FloorReader(world.folder)
    try:
        puller.watch(SPAN, start)
        puller.watch(keys.ddl_span(), start)
        key = keys.int_record(LOCKED, 1)
        held = TwoPhase(world.pd, world.pd.tso(), key, ttl_ms=600_000)
        held.prewrite([Mutation(PUT, key, b"late")], Backoff())
        locked_at = world.pd.tso()
        behind = locked_at + compose(2 * slow_ranges.BEHIND_MS)
        ddl = span_id(keys.ddl_span())
        eventually(lambda: store_view.read_frontier(world.folder).get(ddl, 0) > behind, "time")
        monkeypatch.setattr(Puller, "matched", lambda self, stream, matched: None)
        versions = page.versions([name])
        puller._upkeep.slow_ranges.look()
        assert len(store_view.read_manifest(world.folder, name).ranges) > 1
        eventually(lambda: page.versions([name]) != versions, "the manifest's version")
    finally:
        puller.close()
        store.close()


def test_ranges_that_are_all_behind_wait_for_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a few is no table's trouble: nothing is written for it."""
    monkeypatch.setattr(slow_ranges, "BEHIND_MAX", 0)
    start = world.pd.tso()
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    looks: list[int] = []
    look = slow_ranges.SlowRanges.look
    monkeypatch.setattr(slow_ranges.SlowRanges, "look", lambda self: (looks.append(1), look(self))[1])
    try:
        puller.watch(SPAN, start)
        puller.watch(keys.ddl_span(), start)
        eventually(lambda: store_view.read_frontier(world.folder).get(span_id(SPAN), 0) > start, "a start")
        key = keys.int_record(LOCKED, 1)
        held = TwoPhase(world.pd, world.pd.tso(), key, ttl_ms=600_000)
        held.prewrite([Mutation(PUT, key, b"late")], Backoff())
        since = len(looks)
        eventually(lambda: len(looks) > since + 6, "looks")
        manifest = store_view.read_manifest(world.folder, span_id(SPAN))
        assert len(manifest.ranges) == 1
        held.rollback([key], Backoff())
    finally:
        puller.close()
        store.close()
