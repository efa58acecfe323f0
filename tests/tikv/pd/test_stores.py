"""Several stores over real gRPC: PD's answers, clients that follow, kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.tikv.test_server import Wire
from tidegate.errors import InvalidInput
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import Transaction
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.proto import pdpb_pb2, tikvpb_pb2_grpc
from tidegate.tikv import keys
from tidegate.tikv.server import EmbeddedUpstream

SERVE = """
import sys, threading
from tidegate.tikv.server import EmbeddedUpstream
upstream = EmbeddedUpstream(sys.argv[1], regions=4, stores=3)
print(upstream.start().pd, flush=True)
threading.Event().wait()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream(tmp_path, boundaries=[keys.encode(b"m")], stores=3) as running:
        yield running


def test_pd_answers_for_regions_and_stores(cluster: EmbeddedUpstream) -> None:
    wire = Wire(cluster.pd_addr)
    stores = wire.pd.GetAllStores(pdpb_pb2.GetAllStoresRequest()).stores
    assert [store.id for store in stores] == [1, 2, 3]
    assert len({store.address for store in stores}) == 3
    assert all(store.last_heartbeat and store.start_timestamp for store in stores)
    beat = pdpb_pb2.StoreHeartbeatRequest(stats=pdpb_pb2.StoreStats(store_id=2))
    assert wire.pd.StoreHeartbeat(beat).cluster_version == "8.5.0"
    beat.stats.store_id = 9
    assert "invalid store ID 9" in wire.pd.StoreHeartbeat(beat).header.error.message
    made = wire.pd.SplitRegions(
        pdpb_pb2.SplitRegionsRequest(split_keys=[keys.encode(b"d"), keys.encode(b"t")])
    )
    assert (made.finished_percentage, len(made.regions_id)) == (100, 2)
    low, second, third, high = cluster.regions.all
    assert list(made.regions_id) == [second.id, high.id]
    ask = pdpb_pb2.QueryRegionRequest(
        keys=[b"", keys.encode(b"e")], prev_keys=[b"", keys.encode(b"z")], ids=[high.id, 12345]
    )
    (found,) = wire.pd.QueryRegion(iter([ask]))
    assert list(found.key_id_map) == [low.id, second.id]
    assert list(found.prev_key_id_map) == [0, third.id]
    assert set(found.regions_by_id) == {low.id, second.id, third.id, high.id}
    assert found.regions_by_id[high.id].leader == high.leader_peer
    before = wire.pd.GetPrevRegion(pdpb_pb2.GetRegionRequest(region_key=keys.encode(b"e")))
    assert (before.region.id, before.leader) == (low.id, low.leader_peer)
    by_id = wire.pd.GetRegionByID(pdpb_pb2.GetRegionByIDRequest(region_id=third.id))
    assert by_id.region == third.message
    ids = [low.id, second.id, third.id]
    scattered = wire.pd.ScatterRegion(pdpb_pb2.ScatterRegionRequest(regions_id=ids))
    assert scattered.finished_percentage == 100
    assert {cluster.regions.by_id[number].leader for number in ids} == {1, 2, 3}
    assert wire.pd.GetOperator(pdpb_pb2.GetOperatorRequest(region_id=low.id)).status == pdpb_pb2.SUCCESS
    ranges = [pdpb_pb2.KeyRange(start_key=b"", end_key=keys.encode(b"e"))]
    batch = wire.pd.BatchScanRegions(pdpb_pb2.BatchScanRegionsRequest(ranges=ranges))
    assert [each.region.id for each in batch.regions] == [low.id, second.id]
    ranges.append(pdpb_pb2.KeyRange(start_key=keys.encode(b"e"), end_key=b""))
    every = [each.id for each in cluster.regions.all]
    for limit, ids in ((1, [low.id]), (3, [low.id, second.id, third.id]), (9, every)):
        some = wire.pd.BatchScanRegions(pdpb_pb2.BatchScanRegionsRequest(ranges=ranges, limit=limit))
        assert [each.region.id for each in some.regions] == ids


def test_a_clients_split_request_reaches_the_leader_only(cluster: EmbeddedUpstream) -> None:
    low = cluster.regions.all[0]
    request = pb.SplitRegionRequest(split_keys=[b"c", b"f"])
    request.context.region_id, request.context.region_epoch.version = low.id, low.version
    answers = {}
    for store in cluster.stores.all():
        with grpc.insecure_channel(store.address) as channel:
            answers[store.id] = tikvpb_pb2_grpc.TikvStub(channel).SplitRegion(request)
    assert len(answers.pop(low.leader).regions) == 3
    assert all(answer.HasField("region_error") for answer in answers.values())


def test_transactions_follow_their_regions(cluster: EmbeddedUpstream) -> None:
    with PdClient(cluster.pd_addr) as pd:
        control = UpstreamControl(pd)

        def write(number: int) -> None:
            transaction = Transaction(pd)
            for first in b"adkqz":
                transaction.put(bytes([first]), b"%d" % number)
            transaction.commit()

        write(1)
        low, high = cluster.regions.all
        control.split(0, [keys.encode(b"e"), keys.encode(b"s")])
        write(2)
        control.transfer(low.id, next(store for store in low.stores if store != low.leader))
        write(3)
        control.merge(high.id)
        write(4)
        cluster.stop_store(cluster.regions.all[0].leader)
        write(5)
        found = Snapshot(pd, pd.tso()).batch_get([bytes([first]) for first in b"adkqz"])
        assert set(found.values()) == {b"5"}
        assert control.fault(clear=True) == []
        assert cluster.stores.up() == [1, 2, 3]
        write(6)


def test_a_kill_keeps_regions_stores_epochs_and_data(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    child = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=env
    )
    assert child.stdout is not None
    with PdClient(child.stdout.readline().strip()) as pd:
        control = UpstreamControl(pd)
        first, second, *_ = pd.scan_regions(b"", b"", 0)
        control.split(0, [keys.encode(b"a"), keys.encode(b"c"), keys.encode(b"tz")])
        control.merge(first.id, second.id)
        control.transfer(second.id, 3)
        transaction = Transaction(pd)
        transaction.put(b"b", b"1")
        transaction.put(b"tzz", b"2")
        transaction.commit()
        before = pd.scan_regions(b"", b"", 0)
        addresses = [pd.store_address(number) for number in (1, 2, 3)]
        child.send_signal(signal.SIGKILL)
        child.wait()
    with EmbeddedUpstream(tmp_path) as again, PdClient(again.pd_addr) as pd:
        assert pd.scan_regions(b"", b"", 0) == before
        assert [pd.store_address(number) for number in (1, 2, 3)] == addresses
        assert Snapshot(pd, pd.tso()).batch_get([b"b", b"tzz"]) == {b"b": b"1", b"tzz": b"2"}
    with pytest.raises(InvalidInput, match="of a cluster of 3 stores, not 1"):
        EmbeddedUpstream(tmp_path, stores=1)


def test_the_only_store_cannot_be_stopped(tmp_path: Path) -> None:
    with (
        EmbeddedUpstream(tmp_path) as running,
        pytest.raises(InvalidInput, match="only store cannot be stopped"),
    ):
        running.stop_store(1)


def test_the_http_port_shows_regions_and_stores(tmp_path: Path) -> None:
    with EmbeddedUpstream(tmp_path, regions=2, stores=3, status_port=0) as running:

        def page(path: str) -> Any:
            with urllib.request.urlopen(f"http://{running.status_addr}{path}") as answer:
                return (
                    json.load(answer) if "json" in answer.headers["Content-Type"] else answer.read().decode()
                )

        assert page("/pd/api/v1/version") == {"version": "v8.5.0"}
        assert page("/status")["version"] == "8.5.0"
        assert page("/pd/api/v1/health")[0]["health"] is True
        assert page("/pd/api/v1/members")["header"]["cluster_id"] == running.cluster_id
        stores = page("/pd/api/v1/stores")
        assert [store["store"]["status_address"] for store in stores["stores"]] == [running.status_addr] * 3
        assert sum(store["status"]["leader_count"] for store in stores["stores"]) == 2
        low, high = page("/pd/api/v1/regions?limit=9")["regions"]
        assert (low["start_key"], low["end_key"]) == ("", high["start_key"])
        assert page(f"/pd/api/v1/region/id/{low['id']}") == page(f"/region/{low['id']}") == low
        assert page("/pd/api/v1/store/2")["store"]["state_name"] == "Up"
        running.stop_store(2)
        assert page("/pd/api/v1/store/2")["store"]["state_name"] == "Disconnected"
        assert 'tidegate_upstream_regions{store="1",type="peer"} 2' in page("/metrics")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            page("/pd/api/v1/region/id/999")
        other = EmbeddedUpstream(tmp_path / "other", status_port=int(running.status_addr.split(":")[1]))
        with pytest.raises(InvalidInput, match="status port cannot listen"):
            other.start()
        other.stop()


def test_a_store_can_lead_before_it_is_known_to_be_up(
    cluster: EmbeddedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it may be given a region without a timestamp of PD to lead it from."""
    cluster.stop_store(2)
    started, was_ready = cluster.stores.started, []

    def noted(store_id: int, address: str, status_address: str = "") -> None:
        was_ready.append(store_id in cluster._raftstore.members)
        started(store_id, address, status_address)

    monkeypatch.setattr(cluster.stores, "started", noted)
    cluster.start_store(2)
    assert was_ready == [True]
