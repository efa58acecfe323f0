"""The upstream over real gRPC: a public client, kill -9, restart, and time that never goes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.tikv.support import commit, prewrite, put
from tidegate.errors import InvalidInput
from tidegate.model import timestamp
from tidegate.proto import (
    cdcpb_pb2,
    cdcpb_pb2_grpc,
    etcdserverpb_pb2,
    etcdserverpb_pb2_grpc,
    meta_storagepb_pb2,
    meta_storagepb_pb2_grpc,
    pdpb_pb2,
    pdpb_pb2_grpc,
    tidegate_pb2,
    tidegate_pb2_grpc,
    tikvpb_pb2,
    tikvpb_pb2_grpc,
)
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv.server import Addresses, EmbeddedUpstream

WAIT_S = 120
"""Guards against what hangs, and costs nothing when all is well."""
SERVE = """
import sys, threading
from tidegate.tikv.server import EmbeddedUpstream
upstream = EmbeddedUpstream(sys.argv[1], tso=sys.argv[2])
print(upstream.start().pd, flush=True)
threading.Event().wait()
"""
PUBLIC_CLIENT = """
import json, sys
from tikv_client import TransactionClient
client = TransactionClient.connect([sys.argv[1]])
seen = {}
for pessimistic in (False, True):
    txn = client.begin(pessimistic=pessimistic)
    if pessimistic:
        seen["for_update"] = txn.get_for_update(b"low").decode()
    txn.put(b"low", b"%d" % pessimistic)
    txn.put(b"high", b"long" * 100)
    txn.put(b"gone", b"x")
    txn.commit()
txn = client.begin(pessimistic=True)
txn.lock_keys([b"low"])
txn.put(b"low", b"never")
txn.rollback()
txn = client.begin(pessimistic=False)
txn.delete(b"gone")
txn.commit()
one, two = client.begin(pessimistic=False), client.begin(pessimistic=False)
one.put(b"race", b"1"), two.put(b"race", b"2")
one.commit()
try:
    two.commit()
    seen["conflict"] = False
except Exception as error:
    seen["conflict"] = "conflict" in str(error).lower()
    two.rollback()
snapshot = client.snapshot(client.current_timestamp(), pessimistic=False)
seen["get"] = snapshot.get(b"low").decode()
seen["batch"] = {k.decode(): len(v) for k, v in snapshot.batch_get([b"low", b"high", b"gone"])}
seen["scan"] = [k.decode() for k, v in snapshot.scan(b"", None, 10, True)]
print(json.dumps(seen), flush=True)
"""


class Wire:
    """Stubs of PD and of the first store."""

    def __init__(self, addresses: Addresses | str) -> None:
        pd = addresses if isinstance(addresses, str) else addresses.pd
        self.channel = grpc.insecure_channel(pd)
        self.pd = pdpb_pb2_grpc.PDStub(self.channel)
        store = self.pd.GetStore(pdpb_pb2.GetStoreRequest(store_id=1)).store
        self.store_channel = grpc.insecure_channel(store.address)
        self.kv = tikvpb_pb2_grpc.TikvStub(self.store_channel)
        self.upstream = tidegate_pb2_grpc.UpstreamStub(self.channel)
        self.cdc = cdcpb_pb2_grpc.ChangeDataStub(self.store_channel)
        self.etcd = etcdserverpb_pb2_grpc.ClusterStub(self.channel)

    def tso(self, count: int = 1) -> int:
        (answer,) = self.pd.Tso(iter([pdpb_pb2.TsoRequest(count=count)]))
        return timestamp.compose(answer.timestamp.physical, answer.timestamp.logical)

    def at(self, request: Any, raw: bytes) -> Any:
        """The request with the context of the region that holds an (encoded) key."""
        region = self.pd.GetRegion(pdpb_pb2.GetRegionRequest(region_key=raw)).region
        request.context.region_id = region.id
        request.context.region_epoch.CopyFrom(region.region_epoch)
        return request


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream(tmp_path / "data", regions=3) as running:
        yield running


def test_a_public_client_commits_and_reads_in_both_transaction_modes(tmp_path: Path) -> None:
    """In a child process: that client's interpreter sometimes aborts at exit."""
    boundaries = [b"lor\x00\x00\x00\x00\x00\xfa"]
    with EmbeddedUpstream(tmp_path, boundaries=boundaries) as running:
        command = [sys.executable, "-c", PUBLIC_CLIENT, running.pd_addr]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.stdout, done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == {
        "for_update": "0",
        "conflict": True,
        "get": "1",
        "batch": {"low": 1, "high": 400},
        "scan": ["high", "low", "race"],
    }


@pytest.mark.parametrize("round_", range(3))
def test_a_kill_loses_nothing_that_was_acknowledged_and_time_advances(tmp_path: Path, round_: int) -> None:
    acknowledged: dict[bytes, int] = {}
    child, address = _serve(tmp_path, "system")
    writers = [threading.Thread(target=_write_until_dead, args=(address, i, acknowledged)) for i in range(3)]
    for writer in writers:
        writer.start()
    enough = 40 * (round_ + 1)
    while len(acknowledged) < enough:
        assert child.poll() is None
        assert any(writer.is_alive() for writer in writers)
        writers[0].join(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(WAIT_S)
    for writer in writers:
        writer.join(WAIT_S)
    with EmbeddedUpstream(tmp_path) as again:
        wire = Wire(again.pd_addr)
        assert wire.tso() > max(acknowledged.values())
        for raw, commit_ts in acknowledged.items():
            for version, present in ((commit_ts, True), (commit_ts - 1, False)):
                request = pb.GetRequest(key=raw, version=version)
                answer = wire.kv.KvGet(wire.at(request, raw))
                assert answer.not_found != present, raw
                assert not answer.HasField("error"), "a commit that was acknowledged left no lock"


def _serve(data_dir: Path, mode: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-c", SERVE, str(data_dir), mode]
    source = str(Path(__file__).parents[2] / "src")
    env = os.environ | {"PYTHONPATH": source}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def _write_until_dead(address: str, number: int, acknowledged: dict[bytes, int]) -> None:
    wire = Wire(address)
    try:
        for i in range(100_000):
            raw = b"w%d-%06d" % (number, i)
            start_ts = wire.tso()
            wire.kv.KvPrewrite(wire.at(prewrite(start_ts, put(raw, b"x" * (i % 600))), raw))
            commit_ts = wire.tso()
            answer = wire.kv.KvCommit(wire.at(commit(start_ts, commit_ts, raw), raw))
            assert not answer.HasField("error")
            acknowledged[raw] = commit_ts
    except grpc.RpcError:
        return  # the upstream was killed


def test_a_manual_tso_moves_only_on_request_and_survives_a_kill(tmp_path: Path) -> None:
    child, address = _serve(tmp_path, "manual")
    wire = Wire(address)
    assert wire.upstream.AdvanceTso(tidegate_pb2.AdvanceTsoRequest(ts=1 << 40)).ts == 1 << 40
    assert [wire.tso(), wire.tso(5)] == [1 << 40, 1 << 40]
    assert wire.upstream.AdvanceTso(tidegate_pb2.AdvanceTsoRequest(ts=5)).ts == 1 << 40, "never back"
    os.kill(child.pid, signal.SIGKILL)
    child.wait(WAIT_S)
    with EmbeddedUpstream(tmp_path, tso="manual") as again:
        info = Wire(again.pd_addr).upstream.Info(tidegate_pb2.InfoRequest())
        assert (info.tso, info.tso_mode) == (1 << 40, tidegate_pb2.MANUAL)


def test_a_restart_keeps_the_cluster_its_regions_and_its_safepoints(tmp_path: Path) -> None:
    hold = pdpb_pb2.UpdateServiceGCSafePointRequest(service_id=b"feed", TTL=3600, safe_point=77)
    with EmbeddedUpstream(tmp_path, regions=4) as first:
        cluster_id = first.cluster_id
        assert Wire(first.pd_addr).pd.UpdateServiceGCSafePoint(hold).min_safe_point == 0
        worker = pdpb_pb2.UpdateServiceGCSafePointRequest(
            service_id=b"gc_worker", TTL=1 << 60, safe_point=500
        )
        assert Wire(first.pd_addr).pd.UpdateServiceGCSafePoint(worker).min_safe_point == 77
    with EmbeddedUpstream(tmp_path) as second:
        wire = Wire(second.pd_addr)
        assert second.cluster_id == cluster_id
        assert len(wire.pd.ScanRegions(pdpb_pb2.ScanRegionsRequest()).regions) == 4
        late = pdpb_pb2.UpdateServiceGCSafePointRequest(service_id=b"late", TTL=10, safe_point=60)
        answer = wire.pd.UpdateServiceGCSafePoint(late)
        assert (answer.service_id, answer.min_safe_point) == (b"feed", 77), "below the least: refused"


def test_advancing_a_system_tso_is_refused_with_what_to_do(upstream: EmbeddedUpstream) -> None:
    with pytest.raises(grpc.RpcError, match="--tso manual") as refused:
        Wire(upstream.pd_addr).upstream.AdvanceTso(tidegate_pb2.AdvanceTsoRequest(ts=1))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_request_for_another_cluster_is_refused(upstream: EmbeddedUpstream) -> None:
    request = pdpb_pb2.GetStoreRequest(header=pdpb_pb2.RequestHeader(cluster_id=1), store_id=1)
    with pytest.raises(grpc.RpcError, match="mismatch cluster id"):
        Wire(upstream.pd_addr).pd.GetStore(request)


def test_a_used_address_is_refused_with_what_to_do(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    other = EmbeddedUpstream(tmp_path / "other", upstream.pd_addr)
    with pytest.raises(InvalidInput, match="free --pd address"):
        other.start()
    other.stop()


def test_what_clients_ask_at_start_is_answered(upstream: EmbeddedUpstream) -> None:
    wire = Wire(upstream.pd_addr)
    members = wire.pd.GetMembers(pdpb_pb2.GetMembersRequest())
    assert members.leader.client_urls == [f"http://{upstream.pd_addr}"]
    assert members.header.cluster_id == upstream.cluster_id
    assert wire.pd.GetClusterInfo(pdpb_pb2.GetClusterInfoRequest()).serviceModes == [pdpb_pb2.PD_SVC_MODE]
    assert (
        wire.pd.GetStore(pdpb_pb2.GetStoreRequest(store_id=1)).store.address
        == upstream.stores.all()[0].address
    )
    listed = wire.etcd.MemberList(etcdserverpb_pb2.MemberListRequest())
    assert listed.members[0].clientURLs == [f"http://{upstream.pd_addr}"]
    check = wire.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"") == b"\x08\x01"
    storage = meta_storagepb_pb2_grpc.MetaStorageStub(wire.channel)
    routers = storage.Get(meta_storagepb_pb2.GetRequest(key=b"/ms/1/router/registry/"))
    assert (routers.header.cluster_id, routers.count) == (upstream.cluster_id, 0)
    now = wire.pd.GetMinTS(pdpb_pb2.GetMinTSRequest()).timestamp
    assert now.physical > 0


def test_newer_clients_hold_old_versions_by_barriers(upstream: EmbeddedUpstream) -> None:
    pd = Wire(upstream.pd_addr).pd
    barrier = pdpb_pb2.SetGCBarrierRequest(barrier_id="backup", barrier_ts=500, ttl_seconds=3600)
    assert pd.SetGCBarrier(barrier).new_barrier_info.barrier_ts == 500
    pd.UpdateGCSafePoint(pdpb_pb2.UpdateGCSafePointRequest(safe_point=800))
    state = pd.GetGCState(pdpb_pb2.GetGCStateRequest()).gc_state
    assert (state.txn_safe_point, state.gc_safe_point) == (500, 500)
    assert [(each.barrier_id, each.barrier_ts) for each in state.gc_barriers] == [("backup", 500)]
    assert not pd.GetGCState(pdpb_pb2.GetGCStateRequest(exclude_gc_barriers=True)).gc_state.gc_barriers
    barrier.barrier_ts = 499
    assert "already behind the txn safe point 500" in pd.SetGCBarrier(barrier).header.error.message
    barrier.ttl_seconds = 0
    assert "needs a name of its own, a ts and a ttl" in pd.SetGCBarrier(barrier).header.error.message
    gone = pd.DeleteGCBarrier(pdpb_pb2.DeleteGCBarrierRequest(barrier_id="backup"))
    assert gone.deleted_barrier_info.barrier_ts == 500
    assert pd.UpdateGCSafePoint(pdpb_pb2.UpdateGCSafePointRequest(safe_point=800)).new_safe_point == 800


def test_a_stale_region_epoch_is_answered_with_the_present_region(upstream: EmbeddedUpstream) -> None:
    wire = Wire(upstream.pd_addr)
    request = wire.at(pb.GetRequest(key=b"k", version=1), b"k")
    request.context.region_epoch.version = 99
    assert len(wire.kv.KvGet(request).region_error.epoch_not_match.current_regions) == 1
    outside = wire.at(pb.GetRequest(key=b"\xff", version=1), b"k")
    assert wire.kv.KvGet(outside).region_error.key_not_in_region.key == b"\xff"


def test_batched_commands_are_answered_under_their_ids(upstream: EmbeddedUpstream) -> None:
    wire = Wire(upstream.pd_addr)
    start_ts = wire.tso()
    wrap = tikvpb_pb2.BatchCommandsRequest.Request
    requests = [wrap(Prewrite=wire.at(prewrite(start_ts, put(b"k%d" % i)), b"k")) for i in range(20)]
    requests.append(wrap(Empty=tikvpb_pb2.BatchCommandsEmptyRequest(test_id=7)))
    ids = list(range(100, 121))
    closing = threading.Event()

    def stream() -> Iterator[Any]:
        yield tikvpb_pb2.BatchCommandsRequest(requests=requests, request_ids=ids)
        closing.wait(WAIT_S)

    found: dict[int, Any] = {}
    for message in wire.kv.BatchCommands(stream()):
        found.update(zip(message.request_ids, message.responses, strict=True))
        if len(found) == len(ids):
            closing.set()
    assert sorted(found) == ids
    assert found[120].Empty.test_id == 7
    assert all(not found[number].Prewrite.errors for number in ids[:20])


def test_an_unknown_cdc_feature_is_unimplemented(upstream: EmbeddedUpstream) -> None:
    call = Wire(upstream.pd_addr).cdc.EventFeedV2(iter(()), metadata=(("features", "time-travel"),))
    with pytest.raises(grpc.RpcError, match="time-travel") as refused:
        next(call)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_stopping_upstream_ends_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, not because gRPC cuts them off after the time of grace."""
    monkeypatch.setattr("tidegate.tikv.server.STOP_GRACE_S", float(WAIT_S))
    upstream = EmbeddedUpstream(tmp_path)
    upstream.start()
    wire = Wire(upstream.pd_addr)
    region = wire.pd.GetRegion(pdpb_pb2.GetRegionRequest(region_key=b"")).region
    register = cdcpb_pb2.ChangeDataRequest(
        header=cdcpb_pb2.Header(cluster_id=upstream.cluster_id, ticdc_version="8.5.0"),
        region_id=region.id,
        region_epoch=region.region_epoch,
        request_id=1,
    )
    done = threading.Event()

    def requests() -> Iterator[Any]:
        yield register
        done.wait(WAIT_S)

    call = wire.cdc.EventFeedV2(requests(), metadata=(("features", "stream-multiplexing"),))
    assert next(call).events[0].entries.entries[0].type == cdcpb_pb2.Event.INITIALIZED
    upstream.stop()
    upstream.stop()
    for _ in call:
        continue
    done.set()
