"""Raw keys: what they are resolved to stays 3 s behind TiKV; each key's changes in order through moves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.puller.test_puller import eventually, fail
from tidegate.config.values import RAW_MODE
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore import reader, store_view
from tidegate.eventstore.order import entries_of
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.model.key_range import after_all, front_of
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import compose, physical_ms
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration
FRONT = front_of(RAW_MODE, -1)
SPAN = Span(FRONT, after_all(FRONT))
NAME = span_id(SPAN, RAW_MODE)


class StillClock:
    """A wall clock that somebody else moves."""

    def __init__(self, now_ms: int) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return time.monotonic()


@pytest.fixture
def clock() -> StillClock:
    return StillClock(100_000)


@pytest.fixture
def upstream(tmp_path: Path, clock: StillClock) -> Iterator[EmbeddedUpstream]:
    """Two stores of API V2 whose time advances only when it is moved."""
    with EmbeddedUpstream(tmp_path / "upstream", clock=clock, api_version=2, stores=2) as running:
        yield running


def put(pd: PdClient, key: bytes, value: bytes) -> None:
    request = kvrpcpb.RawPutRequest(key=FRONT + key, value=value)
    request.context.api_version = kvrpcpb.V2
    answer = RegionRequester(pd).at_key(FRONT + key, "RawPut", request, Backoff(20_000))
    assert not answer.error


def test_resolved_ts_stays_3_s_behind_while_regions_split_and_move(
    upstream: EmbeddedUpstream, clock: StillClock, tmp_path: Path
) -> None:
    block_matcher.warm()
    store_kernels.warm()
    folder = tmp_path / "events"

    def wait_resolved() -> None:
        """The ts may come up to 3 s late from a leader that goes (RAW_LAG)."""
        due = clock.ms - 3000
        eventually(lambda: store_view.read_frontier(folder).get(NAME, 0) >= compose(due), f"{due} ms")
        assert physical_ms(store_view.read_frontier(folder)[NAME]) == due

    with PdClient(upstream.pd_addr) as pd:
        control = UpstreamControl(pd)
        store = EventStore(folder, kv_mode=RAW_MODE)
        puller = Puller(pd, store, kv_mode=RAW_MODE, on_failure=fail)
        puller.watch(SPAN, compose(90_000))
        wait_resolved()
        put(pd, b"k", b"1")
        put(pd, b"p", b"2")
        control.split(0, [encode_bytes(FRONT + b"m")])
        clock.ms += 1000
        wait_resolved()
        put(pd, b"k", b"3")
        region = pd.regions.locate(FRONT + b"k")
        control.move(region.id, region.leader_store_id, 3 - region.leader_store_id)
        put(pd, b"m", b"4")
        clock.ms += 1000
        put(pd, b"k", b"5")
        clock.ms += 4000
        wait_resolved()
        puller.close()
        store.close()
    blocks = reader.read(folder, NAME, compose(97_000), compose(103_000))
    found = [entry for block in blocks for entry in entries_of(block)]
    written = [(physical_ms(entry.commit_ts), entry.key.removeprefix(FRONT), entry.value) for entry in found]
    assert written == [
        (100_000, b"k", b"1"),
        (100_000, b"p", b"2"),
        (101_000, b"k", b"3"),
        (101_000, b"m", b"4"),
        (102_000, b"k", b"5"),
    ]
