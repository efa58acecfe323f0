"""A client that reads nothing is cut off, and what its scans held is there for others."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.tikv.cluster import WAIT_S
from tests.tikv.support import prewrite, put
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.proto import cdcpb_pb2_grpc, tikvpb_pb2_grpc
from tidegate.tikv.cdc.scans import SCAN_THREADS
from tidegate.tikv.cdc.ticker import Watchdog
from tidegate.tikv.raft.region import Region
from tidegate.tikv.server import EmbeddedUpstream


def feed(channel: grpc.Channel, upstream: EmbeddedUpstream, region: Region, requests: int) -> Any:
    done = threading.Event()

    def asked() -> Any:
        for number in range(requests):
            yield cdc.ChangeDataRequest(
                header=cdc.Header(cluster_id=upstream.cluster_id, ticdc_version="8.5.0"),
                region_id=region.id,
                region_epoch=region.message.region_epoch,
                request_id=number + 1,
                register=cdc.ChangeDataRequest.Register(),
            )
        done.wait()

    call = cdcpb_pb2_grpc.ChangeDataStub(channel).EventFeedV2(
        asked(), metadata=(("features", "stream-multiplexing"),)
    )
    call.add_callback(done.set)
    return call


def test_a_stream_that_nobody_reads_ends_with_unknown_and_frees_its_scans(tmp_path: Path) -> None:
    with (
        EmbeddedUpstream(tmp_path, watchdog=Watchdog(interval_s=0.1, idle_s=3600.0)) as upstream,
        grpc.insecure_channel(
            upstream.stores.all()[0].address, [("grpc.max_receive_message_length", -1)]
        ) as channel,
    ):
        (region,) = upstream.regions.all
        ts = upstream.tso.get()
        request = prewrite(ts, *(put(b"%03d" % i, bytes(200_000)) for i in range(40)), try_one_pc=True)
        request.context.region_id = region.id
        request.context.region_epoch.CopyFrom(region.message.region_epoch)
        assert tikvpb_pb2_grpc.TikvStub(channel).KvPrewrite(request).one_pc_commit_ts > ts
        deaf = feed(channel, upstream, region, SCAN_THREADS + 8)  # gRPC itself holds what some of them send
        endpoint = upstream._shared.nodes[1].endpoint
        deadline = time.monotonic() + WAIT_S
        while endpoint._scans.count < SCAN_THREADS + 2:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        other = feed(channel, upstream, region, 1)  # its scan waits behind those
        endpoint._ticker.watchdog = Watchdog(interval_s=0.1, idle_s=1.0)
        rows = (row for message in other for event in message.events for row in event.entries.entries)
        assert any(row.type == cdc.Event.INITIALIZED for row in rows)
        other.cancel()
        with pytest.raises(grpc.RpcError) as ended:
            for _ in deaf:
                pass
        assert deaf.code() is grpc.StatusCode.UNKNOWN, ended.value
        assert deaf.details() == "connection cancelled"


def test_a_small_quota_congests_streams_that_begin_under_it(tmp_path: Path) -> None:
    with (
        EmbeddedUpstream(tmp_path) as upstream,
        grpc.insecure_channel(upstream.stores.all()[0].address) as channel,
    ):
        (region,) = upstream.regions.all
        usual = feed(channel, upstream, region, 1)
        assert next(usual).events[0].entries.entries[0].type == cdc.Event.INITIALIZED
        upstream.faults.quota_bytes = 100
        narrow = feed(channel, upstream, region, 1)
        assert next(narrow).events[0].entries.entries[0].type == cdc.Event.INITIALIZED
        ts = upstream.tso.get()
        request = prewrite(ts, put(b"k", bytes(200)), try_one_pc=True)
        request.context.region_id = region.id
        request.context.region_epoch.CopyFrom(region.message.region_epoch)
        assert tikvpb_pb2_grpc.TikvStub(channel).KvPrewrite(request).one_pc_commit_ts > ts
        ended = next(event for message in narrow for event in message.events if event.HasField("error"))
        assert ended.error.congested.region_id == region.id
        came = next(event for message in usual for event in message.events)
        assert came.entries.entries[0].value == bytes(200)
        usual.cancel()
        narrow.cancel()
