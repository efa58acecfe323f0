"""A capture of regions on several stores: each error of the change feed is met, counted and survived."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.puller.test_puller import World, eventually, fail
from tidegate.clock import SystemClock
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.model.span import Span
from tidegate.proto import metapb_pb2
from tidegate.puller.event_feed import MessageQueue
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.faults import CAPTURE_ERRORS
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration
SPAN = Span(b"t", b"u")


class Listener(grpc.ServerInterceptor):  # type: ignore[misc]
    """Notes the requests to a server without services."""

    def __init__(self, receive: Callable[[str], None]) -> None:
        self._receive = receive

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        self._receive(details.method)
        return continuation(details)


class AwakeClock(SystemClock):
    """Time in which this process had its turn: while the machine is stopped, no store counts as silent."""

    def __init__(self) -> None:
        self._mutex, self._seen, self._awake_s = threading.Lock(), time.monotonic(), 0.0

    def monotonic(self) -> float:
        with self._mutex:
            now = time.monotonic()
            self._awake_s += min(now - self._seen, 0.5)  # TEND_S is the longest it sleeps
            self._seen = now
            return self._awake_s


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    block_matcher.warm()
    store_kernels.warm()
    cuts = [encode_bytes(b"t" + bytes([cut])) for cut in (40, 90, 160, 220)]
    upstream = EmbeddedUpstream(tmp_path / "upstream", boundaries=cuts, stores=3)
    pd = PdClient(upstream.start().pd)
    yield World(upstream, pd, tmp_path / "events", random.Random(23), last_ts=pd.tso())
    pd.close()
    upstream.stop()


@pytest.fixture
def puller(world: World) -> Iterator[Puller]:
    store = EventStore(world.folder)
    running = Puller(world.pd, store, clock=AwakeClock(), on_failure=fail)
    running.watch(SPAN, world.last_ts)
    eventually(lambda: running.status()[0].regions == 5, "five regions")
    yield running
    running.close()
    store.close()


def errors(puller: Puller) -> dict[str, int]:
    found: dict[str, int] = puller.status()[0].errors
    return found


def test_every_error_of_the_change_feed_is_survived(world: World, puller: Puller) -> None:
    start = world.last_ts
    world.run(10)
    for name in CAPTURE_ERRORS:
        world.upstream.faults.capture_errors = (name, 1.0)
        world.upstream.cut_streams()
        world.run(5)
        eventually(lambda name=name: errors(puller).get(name, 0) > 0, name)  # type: ignore[misc]
        world.upstream.faults.clear()
        world.check(SPAN, start)
    world.upstream.congest()
    eventually(lambda: errors(puller)["congested"] > 5, "the end of every registration")
    world.run(5)
    world.check(SPAN, start)


def test_a_region_without_leader_is_awaited_and_no_other_store_is_asked(world: World, puller: Puller) -> None:
    """Its first peer is TiFlash's, which knows nothing of change feeds; the other regions continue."""
    start = world.last_ts
    world.run(5)
    world.check(SPAN, start)
    faults, asked = world.upstream.faults, []
    other = grpc.server(ThreadPoolExecutor(1), interceptors=[Listener(asked.append)])
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    faults.stores = {99: metapb_pb2.Store(id=99, address=f"127.0.0.1:{port}", version="v8.5.0")}
    faults.stores[99].labels.add(key="engine", value="tiflash")
    faults.first_learner = 99
    faults.leaderless = frozenset({world.upstream.regions.all[2].id})
    world.upstream.cut_streams()
    eventually(lambda: errors(puller).get("pd_unreachable", 0) > 3, "some questions who leads it")
    eventually(lambda: puller.status()[0].regions == 4, "the others")
    faults.leaderless = frozenset()
    world.run(5)
    world.check(SPAN, start)
    assert asked == []
    other.stop(0).wait()


def test_regions_at_a_store_that_was_removed_are_found_where_they_are(world: World, puller: Puller) -> None:
    """PD's view is late: it names the store that is gone as leader until it is not any more."""
    start = world.last_ts
    world.run(5)
    upstream = world.upstream
    upstream.pd_regions.hold()
    upstream.stop_store(3)
    upstream.faults.stores = {3: metapb_pb2.Store(id=3, address="127.0.0.1:1", state=metapb_pb2.Tombstone)}
    eventually(lambda: errors(puller).get("pd_unreachable", 0) > 3, "some questions for it")
    upstream.pd_regions.release()
    world.run(5)
    world.check(SPAN, start)


def test_registrations_that_arrive_twice_are_made_again(world: World, puller: Puller) -> None:
    """The store keeps the first and refuses the second: both are given up (tiflow#2989)."""
    start = world.last_ts
    world.run(5)
    world.upstream.faults.duplicate_share = 0.5
    world.upstream.cut_streams()
    world.run(5)
    eventually(lambda: errors(puller).get("duplicate_request", 0) >= 3, "some to arrive twice")
    world.upstream.faults.clear()
    world.run(5)
    world.check(SPAN, start)


def test_regions_that_split_merge_and_move_are_followed(world: World, puller: Puller) -> None:
    start = world.last_ts
    operators, table = world.upstream.operators, world.upstream.regions
    world.run(10)
    operators.split_at([encode_bytes(b"t" + bytes([cut])) for cut in range(10, 250, 16)])
    world.run(10)
    world.check(SPAN, start)
    for region in table.all[1:-1]:
        operators.transfer(region.id, region.stores[-1])
    world.run(10)
    world.check(SPAN, start)
    while len(table.all) > 2:
        operators.merge(table.all[1].id, table.all[2].id)
        if len(table.all) % 5 == 0:
            world.run(4)
    world.check(SPAN, start)
    # A merged region may keep a registration for each range it was registered with (`RangeLock`).
    world.run(10)
    world.check(SPAN, start)
    assert errors(puller)["epoch_not_match"] > 5


def test_stores_that_stop_and_come_back_are_followed(world: World, puller: Puller) -> None:
    start = world.last_ts
    for store in (1, 2, 3):
        world.upstream.stop_store(store)
        world.run(10)
        world.check(SPAN, start)
        world.upstream.start_store(store)
    assert errors(puller)["stream_lost"] > 0


def test_a_time_that_does_not_advance_and_a_late_pd_only_delay(world: World, puller: Puller) -> None:
    start = world.last_ts
    world.run(5)
    world.check(SPAN, start)
    world.upstream.faults.resolved_frozen = True
    world.run(5)
    world.upstream.faults.resolved_frozen = False
    world.check(SPAN, start)
    world.upstream.pd_regions.hold()
    world.upstream.operators.split_at([encode_bytes(b"t\x05"), encode_bytes(b"t\xf0")])
    eventually(lambda: errors(puller).get("epoch_not_match", 0) > 3, "refusals of regions that are no more")
    world.upstream.pd_regions.release()
    world.run(5)
    world.check(SPAN, start)
    world.upstream.tso.freeze()
    world.upstream.cut_streams()
    world.upstream.tso.thaw()
    world.run(5)
    world.check(SPAN, start)


def test_a_region_that_falls_silent_is_registered_again(
    world: World, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = world.last_ts
    world.run(5)
    world.check(SPAN, start)
    world.upstream.faults.resolved_frozen = True
    monkeypatch.setattr("tidegate.puller.silence.SILENT_S", 0.5)
    world.run(5)
    eventually(lambda: errors(puller).get("silent", 0) >= 5, "every region to be registered again")
    monkeypatch.setattr("tidegate.puller.silence.SILENT_S", 300.0)
    world.upstream.faults.resolved_frozen = False
    world.check(SPAN, start)


def test_a_region_that_a_live_lock_holds_back_is_not_registered_again(
    world: World, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bulk transaction of hours would have its regions scanned every five minutes."""
    start = world.last_ts
    world.run(5)
    world.check(SPAN, start)
    long = TwoPhase(world.pd, world.pd.tso(), b"t\xf0-long", ttl_ms=3_600_000)
    long.prewrite([Mutation(PUT, b"t\xf0-long", b"v")], Backoff(5000))
    for module in ("lock_cleaner", "stuck_spans"):
        monkeypatch.setattr(f"tidegate.puller.{module}.STUCK_S", 0.1)
    monkeypatch.setattr("tidegate.puller.lock_cleaner.REST_ROUNDS", 1)
    locked = lambda: [held for held in list(puller._registrar.registered.values()) if held.locked_at]  # noqa: E731
    eventually(lambda: len(locked()) == 1, "the lock to be seen")
    (held,) = locked()
    monkeypatch.setattr("tidegate.puller.silence.SILENT_S", 2.0)
    since = time.monotonic()
    eventually(lambda: time.monotonic() - since > 4.0, "twice the patience to pass")
    assert locked() == [held], "it is the registration it was"
    assert errors(puller).get("silent", 0) == 0
    # A registration that the store forgot is found once the lock is gone.
    world.upstream.faults.resolved_frozen = True
    commit_ts = world.pd.tso()
    long.commit([b"t\xf0-long"], commit_ts, Backoff(5000))
    eventually(lambda: errors(puller).get("silent", 0) >= 5, "every region to be registered again")
    monkeypatch.setattr("tidegate.puller.silence.SILENT_S", 300.0)
    world.upstream.faults.resolved_frozen = False


def test_a_scan_without_events_is_requested_again_and_a_slow_one_is_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = world.last_ts
    world.run(5)
    for number in range(20):  # 20 events of the scan's size in one region
        world.commit({b"t\xf0" + bytes([number]): bytes(40_000)})
    faults = world.upstream.faults
    monkeypatch.setattr("tidegate.puller.silence.SILENT_S", 2.0)
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, clock=AwakeClock(), on_failure=fail)
    faults.scan_delay_s = 0.15
    puller.watch(SPAN, start)
    world.check(SPAN, start)
    assert errors(puller) == {}
    monkeypatch.setattr("tidegate.puller.silence.SILENT_S", 1.0)
    faults.scan_delay_s = 3.0
    world.upstream.cut_streams()
    eventually(lambda: errors(puller).get("silent", 0) >= 5, "scans to be requested again")
    faults.scan_delay_s = 0.0
    world.run(5)
    world.check(SPAN, start)
    puller.close()
    store.close()


def test_a_lost_stream_returns_its_sent_and_its_waiting_registrations(world: World) -> None:
    """ticdc returns tracked and pending regions; and a subscription that ends resets its back-off."""
    start = world.last_ts
    world.run(5)
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    puller._registrar.admission._limit = 1
    world.upstream.faults.scan_delay_s = 600.0
    puller.watch(SPAN, start)
    eventually(lambda: puller.status()[0].regions == 5, "five regions, most of which wait")
    held = puller._registrar.registered
    assert len(held) < 5
    nodes = world.upstream._shared.nodes.values()
    eventually(  # else the cut would not find their streams
        lambda: sum(node.endpoint._scans.count for node in nodes) == len(held),
        "the stores to scan",
    )
    world.upstream.faults.scan_delay_s = 0.0  # of those to come: the one under way waits on
    world.upstream.cut_streams()
    eventually(lambda: errors(puller).get("stream_lost", 0) >= 5, "all of them to be lost")
    world.check(SPAN, start)
    puller.unwatch(SPAN)
    puller.watch(SPAN, start)
    assert errors(puller) == {}
    world.run(5)
    world.check(SPAN, start)
    puller.close()
    store.close()


def test_a_failed_reader_ends_its_stream_and_all_on_it_register_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = world.last_ts
    world.run(5)
    put, failing = MessageQueue.put, iter([True])

    def once(queue: MessageQueue, messages: list[bytes]) -> bool:
        if next(failing, False):
            raise MemoryError
        return put(queue, messages)

    monkeypatch.setattr(MessageQueue, "put", once)
    store = EventStore(world.folder)
    puller = Puller(world.pd, store, on_failure=fail)
    puller.watch(SPAN, start)
    world.check(SPAN, start)
    assert errors(puller).get("stream_lost", 0) > 0
    puller.close()
    store.close()
