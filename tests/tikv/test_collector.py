"""Garbage collection removes what it may, and leaves what it must."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.tikv.cluster import Cluster
from tests.tikv.support import commit, delete, prewrite, put, rollback
from tidegate.clock import SystemClock
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.api_version import keyspace_prefix
from tidegate.tikv.collector import Collector
from tidegate.tikv.mvcc import Write
from tidegate.tikv.pd.gc import SafePoints
from tidegate.tikv.pd.tso import TsoMode
from tidegate.tikv.reader import MvccReader

LONG = b"L" * 300
Make = Callable[..., Cluster]


def collect(cluster: Cluster, safe_point: int, api_version: int = 1) -> Collector:
    points = SafePoints(cluster.engine)
    points.update(safe_point, cluster.tso.present())
    collector = Collector(cluster.raftstore, points, api_version, SystemClock())
    collector.collect()
    return collector


def version(cluster: Cluster, raw: bytes, start_ts: int, commit_ts: int, value: bytes | None = b"v") -> None:
    mutation = delete(raw) if value is None else put(raw, value)
    assert not cluster.call(prewrite(start_ts, mutation), raw).errors
    assert not cluster.call(commit(start_ts, commit_ts, raw), raw).HasField("error")


def records(cluster: Cluster, raw: bytes) -> list[tuple[int, int]]:
    return [(ts, write.kind) for ts, write in MvccReader(cluster.engine).writes(keys.encode(raw))]


def test_of_each_key_the_newest_value_below_the_safepoint_stays(make: Make) -> None:
    cluster = make(b"k", mode=TsoMode.MANUAL)
    cluster.tso.advance(1000)
    for start_ts, commit_ts in ((1, 2), (3, 4), (5, 6), (50, 60)):
        version(cluster, b"a", start_ts, commit_ts, LONG)
    version(cluster, b"gone", 1, 2)
    version(cluster, b"gone", 3, 4, None)
    version(cluster, b"z", 1, 2)
    cluster.call(rollback(7, b"z"), b"z")
    version(cluster, b"young", 30, 40)
    assert collect(cluster, 10).done == 10
    assert records(cluster, b"a") == [(60, mvcc.KIND_PUT), (6, mvcc.KIND_PUT)]
    assert records(cluster, b"gone") == []
    assert records(cluster, b"z") == [(2, mvcc.KIND_PUT)]
    assert records(cluster, b"young") == [(40, mvcc.KIND_PUT)]
    values = cluster.call(pb.MvccGetByKeyRequest(key=b"a"), b"a").info.values
    assert [each.start_ts for each in values] == [50, 5], "long values go with their records"


def test_a_delete_above_older_values_goes_with_all_of_them(make: Make) -> None:
    cluster = make(mode=TsoMode.MANUAL)
    version(cluster, b"k", 1, 2, LONG)
    version(cluster, b"k", 3, 4, None)
    version(cluster, b"k", 20, 30)
    collect(cluster, 10)
    assert records(cluster, b"k") == [(30, mvcc.KIND_PUT)]
    assert cluster.engine.get(mvcc.DEFAULT, keys.versioned(keys.encode(b"k"), 1)) is None


def test_the_oldest_lock_is_not_passed(make: Make) -> None:
    cluster = make(mode=TsoMode.MANUAL)
    for start_ts in (1, 3, 5):
        version(cluster, b"k", start_ts, start_ts + 1)
    cluster.call(prewrite(5, put(b"l")), b"l")
    collector = collect(cluster, 10)
    assert records(cluster, b"k") == [(6, mvcc.KIND_PUT), (4, mvcc.KIND_PUT)]
    assert collector.done == 0, "it is tried again"
    cluster.call(commit(5, 7, b"l"), b"l")
    assert collector.collect() > 0
    assert (records(cluster, b"k"), collector.done) == ([(6, mvcc.KIND_PUT)], 10)


def test_a_leftover_behind_its_fence_goes(make: Make) -> None:
    cluster = make(mode=TsoMode.MANUAL)
    key = keys.encode(b"k")
    fenced = Write(mvcc.KIND_PUT, 1, b"old", overlapped_rollback=True, gc_fence=5)
    cluster.engine.write([(mvcc.WRITE, keys.versioned(key, 2), mvcc.encode_write(fenced))])
    collect(cluster, 10)
    assert records(cluster, b"k") == []


def test_raw_versions_go_below_the_newest_and_tombstones_at_the_top(make: Make) -> None:
    cluster = make(api_version=2)
    prefix = keyspace_prefix(b"r", 0)

    def write(request: pb.RawPutRequest | pb.RawDeleteRequest) -> None:
        request.context.api_version = pb.V2
        assert not cluster.call(request, prefix).error

    for key in (b"kept", b"gone"):
        for value in (b"1", b"2"):
            write(pb.RawPutRequest(key=prefix + key, value=value))
    write(pb.RawDeleteRequest(key=prefix + b"gone"))
    safe_point = cluster.tso.get()
    write(pb.RawPutRequest(key=prefix + b"kept", value=b"3"))
    collect(cluster, safe_point, api_version=2)
    cursor = cluster.engine.cursor(mvcc.DEFAULT)
    cursor.seek(b"")
    found = []
    while cursor.valid():
        found.append((keys.decode(cursor.key()[:-8])[4:], cursor.value()))
        cursor.next()
    assert found == [(b"kept", b"3\0"), (b"kept", b"2\0")]


@pytest.mark.parametrize("seed", range(5))
def test_a_reader_at_or_above_the_safepoint_sees_the_same_before_and_after(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    cluster = make(b"c", mode=TsoMode.MANUAL)
    cluster.tso.advance(1000)
    last = dict.fromkeys((b"a", b"b", b"c", b"d"), 0)
    for ts in range(10, 400, 2):
        raw = rng.choice(sorted(last))
        kind = rng.random()
        if kind < 0.2:
            cluster.call(rollback(ts, raw), raw)
        elif kind < 0.9:
            value = rng.choice([None, b"%d" % ts, LONG + b"%d" % ts])
            version(cluster, raw, ts, ts + 1, value)
    reader = MvccReader(cluster.engine)
    safe_point = rng.randrange(50, 400)

    def everything() -> dict[tuple[bytes, int], bytes | None]:
        times = range(safe_point, 402)
        return {
            (raw, ts): MvccReader(cluster.engine).value_at(keys.encode(raw), ts)
            for raw in last
            for ts in times
        }

    before = everything()
    size = sum(len(records(cluster, raw)) for raw in last)
    collect(cluster, safe_point)
    assert everything() == before
    assert sum(len(records(cluster, raw)) for raw in last) < size
    assert all(len([1 for ts, _ in reader.writes(keys.encode(raw)) if ts <= safe_point]) <= 1 for raw in last)
