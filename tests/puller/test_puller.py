"""From transactions on the embedded upstream over real gRPC to the event store's blocks."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidegate.errors import TidegateError
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore import reader, store_view
from tidegate.eventstore.order import Entry, entries_of
from tidegate.eventstore.removed_files import SMALL
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, Transaction, TwoPhase
from tidegate.model.span import Span, span_id
from tidegate.puller.match import block_matcher
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.puller import Puller
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration
SPAN = Span(b"t", b"u")
WAIT_S = 90.0


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S:g} s for {what}"
        time.sleep(0.005)


def spilled_files(folder: Path) -> dict[str, int]:
    """The sizes of spilled files; they come and go, and their folders, while it looks."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                sizes[name] = (Path(parent) / name).stat().st_size
    return sizes


@dataclass
class World:
    """An upstream with its committed history, and the folder of an event store."""

    upstream: EmbeddedUpstream
    pd: PdClient
    folder: Path
    random: random.Random
    history: list[Entry] = field(default_factory=list)
    state: dict[bytes, bytes] = field(default_factory=dict)
    last_ts: int = 0

    def run(self, transactions: int) -> None:
        """Commit random transactions, roll some back."""
        for number in range(transactions):
            changes: dict[bytes, bytes | None] = {}
            for _ in range(self.random.randint(1, 7)):
                key = b"t" + bytes([self.random.randint(0, 255), self.random.randint(0, 9)])
                changes[key] = None if self.random.random() < 0.2 else b"%d-%d" % (number, len(changes))
            self.commit(changes, self.random.random() < 0.1)

    def commit(self, changes: dict[bytes, bytes | None], roll_back: bool = False) -> None:
        """One transaction, remembered as the event store should show it."""
        transaction = Transaction(self.pd)
        for key, value in changes.items():
            if value is None:
                transaction.delete(key)
            else:
                transaction.put(key, value)
        if roll_back:
            transaction.rollback()
            return
        commit_ts = transaction.commit()
        for key, value in changes.items():
            op, old = (2 if value is None else 1), self.state.get(key, b"")
            self.history.append(Entry(commit_ts, 0, op, key, value or b"", old))
            self.state[key] = value or b""
        self.last_ts = commit_ts

    def stored(self, span: Span, after: int) -> list[Entry]:
        """Return the store's entries, start_ts left out."""
        upto = store_view.read_frontier(self.folder)[span_id(span)]
        blocks = reader.read(self.folder, span_id(span), after, upto)
        return [entry._replace(start_ts=0) for block in blocks for entry in entries_of(block)]

    def await_published(self, span: Span) -> None:
        """Until the frontier covers the last commit."""
        eventually(
            lambda: store_view.read_frontier(self.folder).get(span_id(span), 0) >= self.last_ts,
            "the frontier",
        )

    def check(self, span: Span, after: int) -> None:
        """The store shows the committed history, each change once, in order of commit."""
        self.await_published(span)
        found = self.stored(span, after)
        assert [e.commit_ts for e in found] == sorted(e.commit_ts for e in found)
        wanted = [e for e in self.history if e.commit_ts > after and span.contains(e.key)]
        assert sorted(found) == sorted(wanted)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    block_matcher.warm()
    store_kernels.warm()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    upstream = EmbeddedUpstream(tmp_path / "upstream", regions=5)
    pd = PdClient(upstream.start().pd)
    yield World(upstream, pd, tmp_path / "events", random.Random(11))
    pd.close()
    upstream.stop()


def fail(error: TidegateError) -> None:
    raise AssertionError(error.render())


def test_random_transactions_arrive_whole_once_and_in_order(world: World) -> None:
    world.run(40)
    start = world.pd.tso()
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    world.run(120)
    world.check(SPAN, start)
    [status] = puller.status()
    assert (status.span, status.errors) == (span_id(SPAN), {})
    assert status.rows == len([e for e in world.history if e.commit_ts > start])
    puller.close()
    store.close()


def test_what_was_committed_before_watching_comes_through_the_scan(world: World) -> None:
    start = world.pd.tso()
    world.run(60)
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    world.check(SPAN, start)
    puller.close()
    store.close()


def test_below_the_safe_point_only_what_is_not_guarded_is_registered(world: World) -> None:
    start = world.pd.tso()
    world.run(30)
    refused: list[tuple[Span, int]] = []
    store = EventStore(world.folder)
    puller = Puller(
        world.pd, store, on_failure=fail, on_refused=lambda span, ts, _: refused.append((span, ts))
    )
    puller.keep_above(world.pd.tso())
    puller.watch(SPAN, start)
    assert refused == [(SPAN, start)]
    assert puller.status() == []
    puller.watch(SPAN, start, guarded=False)
    world.check(SPAN, start)
    assert len(refused) == 1
    puller.close()
    store.close()


def test_overlapping_spans_on_one_stream_each_get_their_own(world: World) -> None:
    spans = [SPAN, Span(b"t\x40", b"t\x90"), Span(b"t\x90", b"t\x91")]
    start = world.pd.tso()
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    for span in spans:
        puller.watch(span, start)
    world.run(100)
    for span in spans:
        world.check(span, start)
    puller.unwatch(spans[1])
    assert {line.span for line in puller.status()} == {span_id(spans[0]), span_id(spans[2])}
    world.run(20)
    world.check(SPAN, start)
    puller.close()
    store.close()


def test_a_restarted_puller_resumes_from_what_is_sealed(world: World) -> None:
    start = world.pd.tso()
    for _ in range(4):
        store = EventStore(world.folder)
        puller = Puller(world.pd, store, on_failure=fail)
        puller.watch(SPAN, start)
        resumed = store.open_span(SPAN).resolved
        assert resumed >= start
        world.run(40)
        world.check(SPAN, start)
        puller.close()
        store.close()
        world.run(10)
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    world.check(SPAN, start)
    puller.close()
    store.close()


def test_lost_streams_are_opened_again_from_each_ranges_own_ts(world: World) -> None:
    start = world.pd.tso()
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    for _ in range(5):
        world.run(20)
        eventually(lambda: bool(puller.status()[0].regions), "a registered region")
        address = world.upstream.stores.all()[0].address
        world.pd.channels.drop(address)  # every call on the channel ends, the stream among them
        world.run(20)
    world.check(SPAN, start)
    assert puller.status()[0].errors["stream_lost"] > 0
    puller.close()
    store.close()


def test_a_large_transaction_beyond_the_memory_budget_arrives_through_runs(world: World) -> None:
    start = world.pd.tso()
    store = EventStore(world.folder, memory_bytes=100_000)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    for first in range(0, 6000, 2000):
        world.commit({b"t%05d" % i: b"value" * 20 for i in range(first, first + 2000)})
    world.check(SPAN, start)
    puller.close()
    store.close()


def test_an_upstream_that_goes_away_and_comes_back_is_followed_again(tmp_path: Path) -> None:
    upstream = EmbeddedUpstream(tmp_path / "upstream", regions=3)
    address = upstream.start().pd
    pd = PdClient(address)
    world = World(upstream, pd, tmp_path / "events", random.Random(5))
    start = pd.tso()
    store = EventStore(world.folder)
    puller = Puller(pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    world.run(30)
    upstream.stop()
    eventually(lambda: bool(puller.status()[0].errors), "the loss to be noticed")
    world.upstream = EmbeddedUpstream(tmp_path / "upstream", address, regions=3)
    world.upstream.start()
    world.run(30)
    world.check(SPAN, start)
    puller.close()
    store.close()
    pd.close()
    world.upstream.stop()


def test_a_transaction_of_many_times_the_memory_bound_goes_by_the_disk(world: World, tmp_path: Path) -> None:
    start = world.pd.tso()
    spill = tmp_path / "spill"
    spill.mkdir()
    (spill / "1-7").mkdir()
    (spill / "1-7" / "000001.spill").write_bytes(b"of a puller that was killed")
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, spill=spill, memory=StreamMemory(50_000), on_failure=fail)
    assert not spill.exists()
    puller.watch(SPAN, start)
    changes = {b"t%05d" % i: b"value" * 100 for i in range(2000)}
    large = TwoPhase(world.pd, world.pd.tso(), min(changes), ttl_ms=3_600_000)
    large.prewrite([Mutation(PUT, *change) for change in changes.items()], Backoff(20_000))
    eventually(lambda: sum(spilled_files(spill).values()) > 900_000, "1 MB on disk")
    world.run(10)
    commit_ts = world.pd.tso()
    large.commit(list(changes), commit_ts, Backoff(20_000))
    world.last_ts = commit_ts
    for key, value in changes.items():
        world.history.append(Entry(commit_ts, 0, 1, key, value, b""))
    world.check(SPAN, start)
    eventually(lambda: not spilled_files(spill), "the files to go")
    assert puller.status()[0].errors == {}
    puller.close()
    store.close()


def test_rows_are_published_though_a_quiet_puller_rests_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row ends the rest, and while rows wait for their mark there is none."""
    monkeypatch.setattr("tidegate.puller.sealer.QUIET_S", 0.0)
    monkeypatch.setattr("tidegate.puller.sealer.QUIET_REST_S", 3600.0)
    monkeypatch.setattr("tidegate.puller.event_feed.QUIET_S", 0.0)
    start = world.pd.tso()
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    for _ in range(3):
        world.run(5)
        world.check(SPAN, start)
    puller.close()
    store.close()


def test_a_puller_without_spans_gives_up_the_memory_of_removed_segments(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mark rises, so the sealer sleeps; and the disk may be needed."""
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    file = world.folder / "segment"
    file.write_bytes(b"x")
    store.removed.remove(file, SMALL)
    assert store.removed.bytes == SMALL
    monkeypatch.setattr("tidegate.eventstore.removed_files.UNUSED", 0)  # only now: the puller looks already
    eventually(lambda: store.removed.bytes == 0, "the end of the file")
    puller.close()
    store.close()
