"""A capture that starts again pulls what is missing and no more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.puller.test_puller import SPAN, World, eventually, fail
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore import reader
from tidegate.eventstore.manifest import MANIFEST
from tidegate.eventstore.order import Entry
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, Transaction, TwoPhase
from tidegate.model.span import span_id
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.tidb import keys
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration


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


def started(world: World, start: int) -> tuple[EventStore, Puller]:
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    return store, puller


def stop(store: EventStore, puller: Puller) -> None:
    puller.close()
    store.close()


def test_after_a_stop_as_many_rows_are_scanned_as_were_written_meanwhile(world: World) -> None:
    start = world.pd.tso()
    world.run(50)
    store, puller = started(world, start)
    world.check(SPAN, start)
    stop(store, puller)
    known = len(world.history)
    world.run(30)
    store, puller = started(world, start)
    world.check(SPAN, start)
    assert puller.status()[0].rows == len(world.history) - known
    stop(store, puller)


def test_a_span_with_a_torn_manifest_or_lost_segment_is_pulled_again(world: World) -> None:
    start = world.pd.tso()
    world.run(20)
    store, puller = started(world, start)
    world.check(SPAN, start)
    stop(store, puller)
    manifest = world.folder / span_id(SPAN) / MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:-20])
    store, puller = started(world, start)
    world.check(SPAN, start)
    stop(store, puller)
    for segment in manifest.parent.glob("*.arrow"):
        segment.unlink()
    world.run(5)
    store, puller = started(world, start)
    world.check(SPAN, start)
    assert puller.failure is None
    stop(store, puller)


def test_a_range_that_is_ahead_of_a_stuck_one_resumes_from_its_own_ts(world: World) -> None:
    """An open transaction pins one region of four; what the others delivered is not scanned again."""
    start = world.pd.tso()
    store, puller = started(world, start)
    world.run(5)
    world.check(SPAN, start)
    key = b"t\x05\x00"
    open_one = TwoPhase(world.pd, world.pd.tso(), key, ttl_ms=3_600_000)
    open_one.prewrite([Mutation(PUT, key, b"pinned")], Backoff(5000))
    pinned = len(world.history)
    for number in range(40):
        world.commit({bytes([*b"t", 130 + number, 1]): b"ahead"})
    eventually(lambda: puller.status()[0].rows >= len(world.history), "the rows beyond the pin")
    goal = world.pd.tso()
    [watched_span] = puller._spans.all()
    eventually(
        lambda: sum(ts > goal for _, ts in puller._spans.ranges(watched_span)) == 3,
        "the other regions' marks beyond it",
    )
    assert store.open_span(SPAN).resolved < world.history[pinned].commit_ts
    stop(store, puller)
    meanwhile = len(world.history)
    for number in range(10):
        world.commit({bytes([*b"t", 210 + number, 1]): b"meanwhile"})
    store, puller = started(world, start)
    assert len(store.open_span(SPAN).ranges) > 1
    commit_ts = world.pd.tso()
    open_one.commit([key], commit_ts, Backoff(5000))
    world.history.append(Entry(commit_ts, 0, 1, key, b"pinned", world.state.get(key, b"")))
    world.last_ts = commit_ts
    world.check(SPAN, start)
    assert puller.status()[0].rows == len(world.history) - meanwhile
    stop(store, puller)
    store, puller = started(world, start)
    assert len(store.open_span(SPAN).ranges) == 1
    world.check(SPAN, start)
    stop(store, puller)


def test_of_several_tables_that_are_pulled_as_one_only_records_are_kept(world: World) -> None:
    start = world.pd.tso()
    stripe = keys.stripe_span(70, 64)
    records = [keys.int_record(table, handle) for table in (64, 70, 127) for handle in range(5)]
    others = [keys.index_prefix(table, 1, b"%d" % n) for table in (64, 70, 127) for n in range(5)]
    outside = [keys.int_record(table, 1) for table in (63, 128)]

    def write() -> None:
        transaction = Transaction(world.pd)
        for key in (*records, *others, *outside):
            transaction.put(key, b"value")
        transaction.commit()

    write()  # met by the scan
    written = world.pd.tso()
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(stripe, start)
    span = store.open_span(stripe)
    eventually(lambda: span.resolved > written, "the scan")
    write()  # met by the stream
    now = world.pd.tso()
    eventually(lambda: span.resolved > now, "the stream")
    store.publish()
    found = [
        key
        for block in reader.read(world.folder, span_id(stripe), start, span.resolved)
        for key in block.column("key").to_pylist()
    ]
    assert sorted(found) == sorted(records * 2)
    stop(store, puller)
