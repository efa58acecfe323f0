"""Where lost ranges are: asked of PD together and aside, or not at all."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.puller.test_puller import World, eventually, fail
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration
SPAN, OTHER = Span(b"t", b"u"), Span(b"v", b"w")
REGIONS = 255


class CountedPd(PdClient):
    """Counts what it is asked about regions; answers only while `open` is set."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.asked = 0
        self.open = threading.Event()
        self.open.set()
        calls = self._calls
        self._unary, self._unary_if_known = calls.unary, calls.unary_if_known
        calls.unary, calls.unary_if_known = self._counted, self._counted_if_known

    def _counted(self, method: str, request: Any) -> Any:
        self.asked += method == "ScanRegions"
        return self._unary(method, request)

    def _counted_if_known(self, method: str, request: Any) -> Any:
        self.asked += 1
        assert self.open.wait(300)
        return self._unary_if_known(method, request)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # After a stall of some seconds the lock cleaner would ask PD, too.
    monkeypatch.setattr("tidegate.puller.stuck_spans.STUCK_S", 1e9)
    block_matcher.warm()
    cuts = [encode_bytes(b"t" + bytes([cut])) for cut in range(1, REGIONS)]
    upstream = EmbeddedUpstream(tmp_path / "upstream", boundaries=cuts, stores=3)
    with upstream, PdClient(upstream.pd_addr) as pd:
        yield World(upstream, pd, tmp_path / "events", random.Random(29), last_ts=pd.tso())


@pytest.fixture
def asked_pd(world: World) -> Iterator[CountedPd]:
    """The puller's own client."""
    with CountedPd(world.upstream.pd_addr) as pd:
        yield pd


@pytest.fixture
def puller(world: World, asked_pd: CountedPd) -> Iterator[Puller]:
    store = EventStore(world.folder)
    running = Puller(asked_pd, store, on_failure=fail)
    running.watch(SPAN, world.last_ts)
    world.run(5)
    world.await_published(SPAN)
    yield running
    running.close()
    store.close()


def errors(puller: Puller) -> dict[str, int]:
    found: dict[str, int] = puller.status()[0].errors
    return found


def test_all_regions_of_lost_streams_are_asked_for_in_a_few_calls(
    world: World, puller: Puller, asked_pd: CountedPd
) -> None:
    start = min(one.commit_ts for one in world.history) - 1
    asked_pd.asked = 0
    world.upstream.cut_streams()
    eventually(lambda: errors(puller).get("stream_lost", 0) >= REGIONS, "all of them to be lost")
    eventually(lambda: puller.status()[0].regions == REGIONS, "all of them to be registered again")
    assert asked_pd.asked < REGIONS / 5
    world.run(5)
    world.check(SPAN, start)


def test_where_a_store_names_the_leader_pd_is_not_asked(
    world: World, puller: Puller, asked_pd: CountedPd
) -> None:
    inside = [
        one
        for one in world.pd.scan_regions(b"", b"", 10_000)
        if encode_bytes(b"t") < one.start_key < encode_bytes(b"u")
    ]
    for region in inside[:20]:
        world.upstream.operators.transfer(region.id, region.leader_store_id % 3 + 1)
    asked_pd.asked = 0
    eventually(lambda: errors(puller).get("not_leader", 0) >= 20, "the old leaders' refusals")
    eventually(lambda: puller.status()[0].regions == REGIONS, "all of them to be registered again")
    world.run(5)
    world.await_published(SPAN)
    assert asked_pd.asked == 0
    assert sum(errors(puller).values()) == 20


def test_a_silent_pd_holds_up_only_the_ranges_it_is_asked_for(
    world: World, puller: Puller, asked_pd: CountedPd
) -> None:
    asked_pd.open.clear()
    asked_pd.asked = 0
    puller.watch(OTHER, world.last_ts)
    eventually(lambda: asked_pd.asked > 0, "PD to be asked")
    answered = threading.Event()
    puller._inbox.put(answered.set)
    assert answered.wait(60), "the coordinator waits for PD"
    world.run(5)
    world.await_published(SPAN)
    asked_pd.open.set()
    eventually(lambda: puller.status()[1].regions > 0, "the other span")
