"""TiKV's flashback test, and what else a flashback promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tikv.cluster import WAIT_S, Client, Cluster
from tests.tikv.support import commit, delete, prewrite, put
from tidegate.errors import InvalidInput
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.proto import errorpb_pb2
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys
from tidegate.tikv.percolator import flashback as decisions
from tidegate.tikv.raft import region_meta

LONG = b"L" * 400
Make = Callable[..., Cluster]


def prepare(start_ts: int, version: int) -> pb.PrepareFlashbackToVersionRequest:
    return pb.PrepareFlashbackToVersionRequest(
        start_ts=start_ts, version=version, start_key=b"a", end_key=b"z"
    )


def flash_back(start_ts: int, version: int, commit_ts: int) -> pb.FlashbackToVersionRequest:
    return pb.FlashbackToVersionRequest(
        start_ts=start_ts, version=version, commit_ts=commit_ts, start_key=b"a", end_key=b"z"
    )


def content(cluster: Cluster, ts: int) -> dict[bytes, bytes]:
    request = pb.ScanRequest(start_key=b"a", end_key=b"z", limit=1000, version=ts)
    return {pair.key: pair.value for pair in cluster.call(request, b"a").pairs}


def refused(cluster: Cluster, request: Any) -> errorpb_pb2.Error:
    pending = cluster.begin(request, b"a")
    assert pending._done.wait(WAIT_S)
    response, error = pending._answered
    assert error is None, error
    found = response.region_error
    assert isinstance(found, errorpb_pb2.Error)
    return found


def test_flashback_freezes_the_resolved_ts_and_then_emits_its_changes(make: Make) -> None:
    """TiKV's test_flashback: resolved ts freezes at the prepare; then COMMITTED and one COMMIT delete."""
    cluster = make()
    (region,) = cluster.regions.all
    cluster.txn(put(b"a", b"1"), put(b"b", LONG), put(b"c", b"3"))
    version = cluster.tso.get()
    cluster.txn(put(b"a", LONG), delete(b"b"), put(b"d"), put(b"e", LONG))
    cluster.txn(put(b"f"))
    cluster.txn(delete(b"f"))
    before = content(cluster, version)
    client = Client(cluster)
    feed = client.register(1, region, cluster.tso.get(), live_committed=True)
    narrow = client.register(2, region, cluster.tso.get(), live_committed=True, start_key=keys.encode(b"d"))
    client.until(lambda: feed.resolved_ts > 0 and narrow.resolved_ts > 0)
    open_ts = cluster.tso.get()
    cluster.call(prewrite(open_ts, put(b"c", b"never"), put(b"g", b"never")), b"c")
    start_ts = cluster.tso.get()
    assert not cluster.call(prepare(start_ts, version), b"a").error
    now = cluster.tso.get()
    late = client.register(3, region)
    client.until(lambda: late.error is not None)
    assert late.error is not None
    assert late.error.region_not_found.region_id == region.id, "TiKV's word for what it has no other for"
    beats = len(client.messages)
    client.until(lambda: len(client.messages) > beats)
    assert feed.resolved_ts <= start_ts
    assert narrow.resolved_ts <= start_ts, "also where the lock is not"
    held = refused(cluster, pb.GetRequest(key=b"a", version=now)).flashback_in_progress
    assert (held.region_id, held.flashback_start_ts) == (region.id, start_ts)
    commit_ts = cluster.tso.get()
    assert not cluster.call(flash_back(start_ts, version, commit_ts), b"a").error
    client.until(lambda: feed.resolved_ts > commit_ts and narrow.resolved_ts > commit_ts)
    live = {row.key: row for row in feed.rows if row.commit_ts == commit_ts}
    kinds = {key: cdc.Event.LogType.Name(row.type) for key, row in live.items()}
    assert kinds == {b"a": "COMMIT", b"b": "COMMITTED", b"d": "COMMITTED", b"e": "COMMITTED"}
    assert {key for key, row in live.items() if row.op_type == cdc.Event.Row.DELETE} == {b"d", b"e"}
    gone = {row.key for row in feed.rows if row.type == cdc.Event.ROLLBACK and row.start_ts == open_ts}
    assert gone == {b"c", b"g"}
    assert feed.commits[b"a", commit_ts] == (b"1", LONG, cdc.Event.Row.PUT)
    assert feed.commits[b"b", commit_ts] == (LONG, b"", cdc.Event.Row.PUT)
    assert feed.commits[b"e", commit_ts] == (b"", LONG, cdc.Event.Row.DELETE)
    assert {key for key, ts in narrow.commits if ts == commit_ts} == {b"d", b"e"}
    assert content(cluster, cluster.tso.get()) == before
    assert not cluster.call(flash_back(start_ts, version, commit_ts), b"a").error, "the same again"
    client.close()


def test_a_flashback_that_was_cut_off_resumes_from_what_is_stored(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "BATCH_KEYS", 3)
    cluster = make(stores=3)
    names = [b"k%02d" % i for i in range(20)]
    cluster.txn(*(put(name, b"old") for name in names))
    version = cluster.tso.get()
    before = content(cluster, version)
    cluster.txn(*(put(name, b"new") for name in names))
    cluster.call(prewrite(cluster.tso.get(), *(put(name) for name in names)), b"k")
    start_ts = cluster.tso.get()
    early = refused(cluster, flash_back(start_ts, version, cluster.tso.get()))
    assert early.HasField("flashback_not_prepared")
    assert not cluster.call(prepare(start_ts, version), b"a").error
    assert not cluster.call(prepare(start_ts, version), b"a").error, "the same again"
    other = refused(cluster, prepare(cluster.tso.get(), version))
    assert other.flashback_in_progress.flashback_start_ts == start_ts
    (region,) = cluster.regions.all
    with pytest.raises(InvalidInput, match="it is in flashback"):
        cluster.operators.split(region.id, [keys.encode(b"k05")])
    stored = region_meta.load(cluster.engine, [])
    assert stored.all[0].flashback == start_ts
    assert stored.all[0].message.is_in_flashback
    cluster.operators.transfer(region.id, 2)
    assert "not above" in cluster.call(flash_back(start_ts, version, start_ts), b"a").error
    assert not cluster.call(flash_back(start_ts, version, cluster.tso.get()), b"a").error
    assert content(cluster, cluster.tso.get()) == before
    assert cluster.regions.all[0].flashback == 0


def test_an_empty_range_and_a_version_of_the_future(make: Make) -> None:
    cluster = make()
    version = cluster.tso.get()
    start_ts = cluster.tso.get()
    assert "not below start_ts" in cluster.call(prepare(version, start_ts), b"a").error
    assert not cluster.call(prepare(start_ts, version), b"a").error
    assert not cluster.call(flash_back(start_ts, version, cluster.tso.get()), b"a").error
    ts = cluster.txn(put(b"k"))
    assert content(cluster, ts) == {b"k": b"v"}
    assert not cluster.call(commit(start_ts, ts, b"k"), b"k").error.HasField("locked")
