"""Every command over the wire, one by one and in BatchCommands streams; keyspaces; lock waits."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.tikv.support import commit, pessimistic_lock, prewrite, put, rollback
from tests.tikv.test_server import WAIT_S, Wire
from tidegate.errors import InvalidInput
from tidegate.proto import keyspacepb_pb2, keyspacepb_pb2_grpc, pdpb_pb2, tikvpb_pb2
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys
from tidegate.tikv.api_version import keyspace_prefix
from tidegate.tikv.raw.checksum import crc64
from tidegate.tikv.server import EmbeddedUpstream

K = keyspace_prefix(b"r", 0)
T = keyspace_prefix(b"x", 1)
Send = Callable[[str, Any], Any]


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream(tmp_path_factory.mktemp("services"), api_version=2, keyspaces=["one"]) as running:
        yield running


UNARY = {
    "PessimisticRollback": "KVPessimisticRollback",
    "RawGetKeyTTL": "RawGetKeyTTL",
    "RawCompareAndSwap": "RawCompareAndSwap",
}
"""Method names that are not "Kv" and the command's name."""
NOT_BATCHED = ("RawGetKeyTTL", "RawCompareAndSwap", "RawChecksum", "MvccGetByKey")


class Batch:
    """A BatchCommands stream used one command at a time."""

    def __init__(self, wire: Wire) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers = wire.kv.BatchCommands(iter(self._requests.get, None))
        self._number = 0

    def send(self, name: str, request: Any) -> Any:
        self._number += 1
        one = tikvpb_pb2.BatchCommandsRequest.Request(**{name: request})
        self._requests.put(tikvpb_pb2.BatchCommandsRequest(requests=[one], request_ids=[self._number]))
        answer = next(self._answers)
        assert list(answer.request_ids) == [self._number]
        assert answer.responses[0].WhichOneof("cmd") == name
        return getattr(answer.responses[0], name)


@pytest.fixture(params=["unary", "batch"])
def send(request: pytest.FixtureRequest, upstream: EmbeddedUpstream) -> Send:
    wire = Wire(upstream.pd_addr)
    batch = Batch(wire)

    def call(name: str, message: Any) -> Any:
        message.context.api_version = pb.V2
        wire.at(message, keys.encode(K if name.startswith("Raw") else T))
        if request.param == "batch" and name not in NOT_BATCHED:
            return batch.send(name, message)
        method = UNARY.get(name, name if name.startswith(("Raw", "Mvcc")) else f"Kv{name}")
        return getattr(wire.kv, method)(message, timeout=WAIT_S)

    return call


def test_every_transactional_command_is_served(send: Send, upstream: EmbeddedUpstream) -> None:
    wire = Wire(upstream.pd_addr)
    a, b, c = (T + name for name in (b"a", b"b", b"c"))
    start = wire.tso()
    assert not send("Prewrite", prewrite(start, put(a), put(b))).errors
    assert send("TxnHeartBeat", pb.TxnHeartBeatRequest(primary_lock=a, start_version=start)).lock_ttl == 3000
    status = pb.CheckTxnStatusRequest(primary_key=a, lock_ts=start, current_ts=start)
    assert send("CheckTxnStatus", status).lock_ttl == 3000
    assert len(send("ScanLock", pb.ScanLockRequest(max_version=start, start_key=T, limit=9)).locks) == 2
    assert send("MvccGetByKey", pb.MvccGetByKeyRequest(key=a)).info.lock.start_ts == start
    ts = wire.tso()
    assert not send("Commit", commit(start, ts, a)).HasField("error")
    assert not send("ResolveLock", pb.ResolveLockRequest(start_version=start, commit_version=ts)).HasField(
        "error"
    )
    assert send("Get", pb.GetRequest(key=b, version=ts)).value == b"v"
    assert len(send("BatchGet", pb.BatchGetRequest(keys=[a, b, c], version=ts)).pairs) == 2
    assert len(send("Scan", pb.ScanRequest(start_key=T, end_key=T + b"z", limit=9, version=ts)).pairs) == 2
    start = wire.tso()
    assert send("Prewrite", prewrite(start, put(a), try_one_pc=True)).one_pc_commit_ts > start
    start = wire.tso()
    request = prewrite(start, put(a), put(b), use_async_commit=True, secondaries=[b])
    least = send("Prewrite", request).min_commit_ts
    assert least > start
    check = pb.CheckSecondaryLocksRequest(keys=[b], start_version=start)
    assert send("CheckSecondaryLocks", check).locks[0].min_commit_ts == least
    assert not send("Commit", commit(start, least, a, b)).HasField("error")
    start = wire.tso()
    assert not send("PessimisticLock", pessimistic_lock(start, start, a, b)).errors
    loose = pb.PessimisticRollbackRequest(start_version=start, for_update_ts=start, keys=[a])
    assert not send("PessimisticRollback", loose).errors
    assert not send("BatchRollback", rollback(start, a, b)).HasField("error")
    assert not send("Cleanup", pb.CleanupRequest(key=c, start_version=start)).HasField("error")
    start = wire.tso()
    flush = pb.FlushRequest(mutations=[put(c)], primary_key=c, start_ts=start, generation=1, lock_ttl=3000)
    assert not send("Flush", flush).errors
    mine = pb.BufferBatchGetRequest(keys=[c], version=start)
    assert send("BufferBatchGet", mine).pairs[0].value == b"v"
    send("BatchRollback", rollback(start, c))
    now = wire.tso()
    held = pb.PrepareFlashbackToVersionRequest(
        start_key=T, end_key=T + b"z", version=now, start_ts=wire.tso()
    )
    assert not send("PrepareFlashbackToVersion", held).error
    back = pb.FlashbackToVersionRequest(start_key=T, end_key=T + b"z", version=now, start_ts=held.start_ts)
    back.commit_ts = wire.tso()
    assert not send("FlashbackToVersion", back).error
    assert not send("DeleteRange", pb.DeleteRangeRequest(start_key=T, end_key=T + b"z")).error
    assert not send("Scan", pb.ScanRequest(start_key=T, end_key=T + b"z", limit=9, version=wire.tso())).pairs


def test_every_raw_command_is_served(send: Send) -> None:
    a, b = K + b"a", K + b"b"
    assert not send("RawPut", pb.RawPutRequest(key=a, value=b"1", ttl=9000)).error
    assert send("RawGet", pb.RawGetRequest(key=a)).value == b"1"
    assert 8000 < send("RawGetKeyTTL", pb.RawGetKeyTTLRequest(key=a)).ttl <= 9000
    assert send("RawCompareAndSwap", pb.RawCASRequest(key=a, value=b"2", previous_value=b"1")).succeed
    assert not send("RawBatchPut", pb.RawBatchPutRequest(pairs=[pb.KvPair(key=b, value=b"3")])).error
    assert len(send("RawBatchGet", pb.RawBatchGetRequest(keys=[a, b])).pairs) == 2
    scan = pb.RawScanRequest(start_key=K, end_key=K + b"z", limit=9)
    assert [pair.value for pair in send("RawScan", scan).kvs] == [b"2", b"3"]
    ranges = [pb.KeyRange(start_key=b, end_key=K + b"z")]
    assert [
        p.value for p in send("RawBatchScan", pb.RawBatchScanRequest(ranges=ranges, each_limit=1)).kvs
    ] == [b"3"]
    whole = pb.RawChecksumRequest(ranges=[pb.KeyRange(start_key=K, end_key=K + b"z")])
    sum_ = send("RawChecksum", whole)
    assert (sum_.checksum, sum_.total_kvs) == (crc64(a + b"2") ^ crc64(b + b"3"), 2)
    assert sum_.total_bytes == len(a) + len(b) + 2
    assert not send("RawDelete", pb.RawDeleteRequest(key=a)).error
    assert not send("RawBatchDelete", pb.RawBatchDeleteRequest(keys=[b])).error
    assert not send("RawDeleteRange", pb.RawDeleteRangeRequest(start_key=K, end_key=K + b"z")).error
    assert not send("RawScan", scan).kvs


def test_a_waiting_lock_does_not_hold_up_the_stream_it_came_on(upstream: EmbeddedUpstream) -> None:
    wire = Wire(upstream.pd_addr)
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    answers = wire.kv.BatchCommands(iter(requests.get, None))
    key = T + b"hot"

    def post(number: int, name: str, message: Any) -> None:
        message.context.api_version = pb.V2
        one = tikvpb_pb2.BatchCommandsRequest.Request(**{name: wire.at(message, keys.encode(T))})
        requests.put(tikvpb_pb2.BatchCommandsRequest(requests=[one], request_ids=[number]))

    first, second = wire.tso(), wire.tso()
    post(1, "PessimisticLock", pessimistic_lock(first, first, key, lock_ttl=300_000))
    assert list(next(answers).request_ids) == [1]
    post(2, "PessimisticLock", pessimistic_lock(second, second, key, wait_timeout=120_000))
    post(3, "Get", pb.GetRequest(key=key, version=second))
    assert list(next(answers).request_ids) == [3]
    while not (waits := wire.kv.GetLockWaitInfo(pb.GetLockWaitInfoRequest()).entries):
        threading.Event().wait(0.005)
    assert (waits[0].txn, waits[0].wait_for_txn, waits[0].key) == (second, first, key)
    unlock = pb.PessimisticRollbackRequest(start_version=first, for_update_ts=first, keys=[key])
    post(4, "PessimisticRollback", unlock)
    ended: dict[int, Any] = {}
    while len(ended) < 2:  # the server packs answers that are ready together into one message
        message = next(answers)
        ended.update(zip(message.request_ids, message.responses, strict=True))
    assert not ended[2].PessimisticLock.errors
    assert not ended[4].PessimisticRollback.errors


def test_keyspaces_are_named_and_keep_their_ids(tmp_path: Path) -> None:
    for names in (["one", "two"], ["two", "three"]):
        with EmbeddedUpstream(tmp_path, api_version=2, keyspaces=names) as upstream:
            stub = keyspacepb_pb2_grpc.KeyspaceStub(grpc.insecure_channel(upstream.pd_addr))
            found = stub.GetAllKeyspaces(keyspacepb_pb2.GetAllKeyspacesRequest()).keyspaces
            assert [each.name for each in found][:3] == ["DEFAULT", "one", "two"]
            two = stub.LoadKeyspace(keyspacepb_pb2.LoadKeyspaceRequest(name="two"))
            assert (two.keyspace.id, two.keyspace.state) == (2, keyspacepb_pb2.ENABLED)
            missing = stub.LoadKeyspace(keyspacepb_pb2.LoadKeyspaceRequest(name="none"))
            assert missing.header.error.message == "keyspace none does not exist"
            part = keyspacepb_pb2.GetAllKeyspacesRequest(start_id=1, limit=1)
            assert [each.name for each in stub.GetAllKeyspaces(part).keyspaces] == ["one"]
    for _ in range(2):  # the data directory is free again
        with pytest.raises(InvalidInput, match="'a b' is not a name of a keyspace"):
            EmbeddedUpstream(tmp_path, keyspaces=["a b"])


def test_garbage_is_collected_when_the_safepoint_moves(tmp_path: Path) -> None:
    with EmbeddedUpstream(tmp_path) as upstream:
        wire = Wire(upstream.pd_addr)
        for _ in range(3):
            start = wire.tso()
            request = wire.at(prewrite(start, put(b"k"), try_one_pc=True), b"")
            assert wire.kv.KvPrewrite(request).one_pc_commit_ts
        info = wire.at(pb.MvccGetByKeyRequest(key=b"k"), b"")
        assert len(wire.kv.MvccGetByKey(info).info.writes) == 3
        wire.pd.UpdateGCSafePoint(pdpb_pb2.UpdateGCSafePointRequest(safe_point=wire.tso()))
        deadline = time.monotonic() + WAIT_S
        while len(wire.kv.MvccGetByKey(info).info.writes) > 1:
            assert time.monotonic() < deadline, "nothing was collected"
            time.sleep(0.05)
