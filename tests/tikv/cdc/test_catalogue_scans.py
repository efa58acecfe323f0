"""TiKV's own tests of scans, old values, memory and registration; each names the one it follows.

(tikv components/cdc/src/initializer.rs, delegate.rs, endpoint.rs; tests/integrations, tests/failpoints.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tikv.cluster import Client, Cluster, Feed, wait_until
from tests.tikv.support import commit, delete, pessimistic_lock, prewrite, put, rollback
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.cdc import initializer, resolver
from tidegate.tikv.cdc.capture_errors import ended_by
from tidegate.tikv.cdc.channel import Channel
from tidegate.tikv.cdc.delegate import Delegate, Downstream
from tidegate.tikv.cdc.old_value import ScannedOldValues
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_change import CommandKind, RegionChange

Make = Callable[..., Cluster]
LONG = b"L" * 400
HELD = pb.PrewriteRequest.DO_PESSIMISTIC_CHECK
ROW = cdc.Event


def caught_up(cluster: Cluster, client: Client, *feeds: Feed) -> None:
    now = cluster.tso.get()
    client.until(lambda: all(feed.resolved_ts > now for feed in feeds))


def listed(feed: Feed) -> list[tuple[str, bytes, bytes, bytes]]:
    name = cdc.Event.LogType.Name
    return [(name(row.type), row.key, row.value, row.old_value) for row in feed.rows]


def deregister(cluster: Cluster, client: Client, request_id: int, region_id: int = 0) -> None:
    request = cdc.ChangeDataRequest(request_id=request_id, region_id=region_id)
    request.deregister.SetInParent()
    cluster.endpoint.request(client.connection, request)


# --- delegate and endpoint ---


def test_error_each_change_of_a_region_ends_registrations_in_its_own_way() -> None:
    region, other = Region(1, b"", b"m"), Region(2, b"m", b"")
    split = RegionChange(
        CommandKind.SPLIT, (region,), (Region(3, b"", b"c"), Region(1, b"c", b"m", version=2))
    )
    error = ended_by(split, region, 1)
    assert error is not None
    assert [each.id for each in error.epoch_not_match.current_regions] == [3, 1]
    merged = Region(2, b"", b"", version=3)
    for change, which in (
        (RegionChange(CommandKind.PREPARE_MERGE, (region,), (region,)), region),
        (RegionChange(CommandKind.COMMIT_MERGE, (other, region), (merged,)), other),
        (RegionChange(CommandKind.ROLLBACK_MERGE, (region,), (region,)), region),
    ):
        error = ended_by(change, which, 1)
        assert error is not None
        assert error.HasField("epoch_not_match")
        assert not error.epoch_not_match.current_regions
    for kind in (CommandKind.CHANGE_PEERS, CommandKind.PREPARE_FLASHBACK, CommandKind.FINISH_FLASHBACK):
        assert ended_by(RegionChange(kind, (region,), (region,)), region, 1) is None


def test_delegate_subscribe_unsubscribe_epochs_and_the_end_of_observing(
    make: Make,
) -> None:
    """Wrong epochs fail, and the last registration to leave ends the observing."""
    cluster = make()
    (region,) = cluster.operators.split(cluster.regions.all[0].id, [keys.encode(b"zz")])[:1]
    client = Client(cluster)
    epochs = [client.request(0, region).region_epoch for _ in range(3)]
    epochs[0].version = epochs[1].version = 1
    feeds = [client.register(i, region, region_epoch=epoch) for i, epoch in enumerate(epochs)]
    client.until(lambda: feeds[2].initialized and all(feed.error is not None for feed in feeds[:2]))
    assert all(feed.error is not None and feed.error.HasField("epoch_not_match") for feed in feeds[:2])
    late = client.register(7, region, region_epoch=epochs[0])
    client.until(lambda: late.error is not None)
    assert cluster.endpoint.observer.is_observing(region.id)
    deregister(cluster, client, 2)
    client.until(lambda: feeds[2].error is not None)
    # The client learns of it first.
    wait_until(lambda: not cluster.endpoint.observer.is_observing(region.id))
    assert region.id not in cluster.endpoint._registrations.delegates
    client.close()


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (b"", b"", (b"b", b"d")),
        (b"a", b"z", (b"b", b"d")),
        (b"b", b"d", (b"b", b"d")),
        (b"c", b"", (b"c", b"d")),
        (b"", b"c", (b"b", b"c")),
        (b"bb", b"cc", (b"bb", b"cc")),
        (b"c", b"z", (b"c", b"d")),
    ],
)
def test_observed_range_is_clipped_to_the_region_and_its_end_is_exclusive(
    start: bytes, end: bytes, found: tuple[bytes, bytes]
) -> None:
    downstream = Downstream(Channel(), 1, Region(2, b"b", b"d"), start, end, 0)
    assert (downstream.start, downstream.end) == found
    delegate = Delegate(downstream.region)
    delegate.add(downstream)
    delegate.resolve(1)
    downstream.resolver.resolved_ts = 9
    assert delegate.announced(found[0]) == 9
    assert delegate.announced(found[1]) == 0


def test_register_deregister_with_multiplexing_touches_only_what_is_named(make: Make) -> None:
    cluster = make(b"m")
    low, high = cluster.regions.all
    client = Client(cluster)
    feeds = {(i, region.id): client.register(i, region) for i in (1, 2) for region in (low, high)}
    client.until(lambda: all(feed.initialized for feed in feeds.values()))
    deregister(cluster, client, 3)
    deregister(cluster, client, 1, 999)
    deregister(cluster, client, 1, low.id)
    gone = feeds.pop((1, low.id))
    client.until(lambda: gone.error is not None)
    assert gone.error is not None
    assert gone.error.region_not_found.region_id == low.id
    caught_up(cluster, client, *feeds.values())
    again = client.register(1, low)
    deregister(cluster, client, 2)
    client.until(lambda: all(feeds[2, region.id].error is not None for region in (low, high)))
    caught_up(cluster, client, again, feeds[1, high.id])
    client.close()


def test_register_after_connection_deregistered_is_passed_over(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    client.close()
    cluster.endpoint.request(client.connection, client.request(1, region))
    other = Client(cluster)
    feed = other.register(1, region)
    other.until(lambda: feed.initialized)
    assert len(cluster.endpoint._registrations.delegates[region.id].downstreams) == 1
    other.close()


@pytest.mark.parametrize(("version", "is_checked"), [("5.2.9", False), ("5.3.0", True)])
def test_cluster_id_mismatch_is_reported_to_clients_of_5_3_0_and_later(
    make: Make, version: str, is_checked: bool
) -> None:
    cluster = make()
    client = Client(cluster)
    feed = client.register(1, cluster.regions.all[0], cluster_id=7, version=version)
    client.until(lambda: feed.initialized or feed.error is not None)
    assert (feed.error is not None) is is_checked
    client.close()


def test_region_ready_after_deregister_leaves_nothing(make: Make) -> None:
    """TiKV: region_ready_after_deregister, deregister_pending_downstream, failed_pending_batch."""
    cluster = make()
    (region,) = cluster.regions.all
    cluster.txn(*(put(b"k%03d" % i, bytes(2000)) for i in range(60)))
    client = Client(cluster)
    cluster.faults.scan_delay_s = 0.05
    feed = client.register(1, region)
    client.until(lambda: bool(feed.rows))
    cluster.txn(put(b"pending"))
    deregister(cluster, client, 1)
    client.until(lambda: feed.error is not None)
    cluster.faults.scan_delay_s = 0.0
    again = client.register(1, region)
    caught_up(cluster, client, again)
    assert len(again.commits) == 61
    client.close()


# --- scans ---


def test_scan_locks_data_locks_of_the_range_are_sent_and_tracked(make: Make) -> None:
    """TiKV: 10 pessimistic and 90 put locks, observed [k0, k90); ours tracks the range, not the region."""
    cluster = make()
    (region,) = cluster.regions.all
    start_ts = cluster.tso.get()
    names = [b"k%02d" % i for i in range(100)]
    cluster.call(pessimistic_lock(start_ts, start_ts, *names[:10], lock_ttl=60_000), b"k")
    cluster.call(prewrite(start_ts, *(put(name) for name in names[10:]), lock_ttl=60_000), b"k")
    client = Client(cluster)
    bounds = {"start_key": keys.encode(b"k0"), "end_key": keys.encode(b"k90")}
    feed = client.register(1, region, **bounds)
    client.until(lambda: feed.resolved_ts == start_ts)
    assert [row.key for row in feed.rows[:-1]] == names[10:90]
    assert {row.type for row in feed.rows[:-1]} == {ROW.PREWRITE}
    downstream = client.connection.downstreams[1, region.id]
    assert len(downstream.resolver) == 80
    client.close()


@pytest.mark.parametrize("back", [0, 50, 100])
def test_incremental_scanner_with_hint_min_ts_finds_earlier_old_values(make: Make, back: int) -> None:
    """TiKV: however much of the past the checkpoint leaves out, a delete's old value is the last put."""
    cluster = make()
    (region,) = cluster.regions.all
    first = cluster.txn(put(b"k", LONG))
    cluster.txn(put(b"other"))
    start_ts = cluster.tso.get()
    checkpoint = {0: start_ts, 50: first, 100: first - 1}[back]
    cluster.call(prewrite(start_ts, delete(b"k")), b"k")
    client = Client(cluster)
    feed = client.register(1, region, checkpoint)
    client.until(lambda: feed.initialized)
    assert listed(feed)[0] == ("PREWRITE", b"k", b"", LONG)
    cluster.call(commit(start_ts, cluster.tso.get(), b"k"), b"k")
    feed = client.register(2, region, checkpoint)
    client.until(lambda: feed.initialized)
    assert listed(feed)[0] == ("COMMITTED", b"k", b"", LONG)
    client.close()


def test_old_value_missing_range_cache_one_look_for_a_run_of_inserts(make: Make) -> None:
    """TiKV: 64 insert-like locks before one old key; the key at the end of the gap still has its value."""
    cluster = make()
    (region,) = cluster.regions.all
    cluster.txn(put(b"k64", b"old"))
    start_ts = cluster.tso.get()
    names = [b"k%02d" % i for i in range(65)]
    cluster.call(prewrite(start_ts, *(put(name) for name in names)), b"k")
    scanned = ScannedOldValues(cluster.engine)
    found = [scanned.before(keys.encode(name), start_ts) for name in names]
    assert found == [b""] * 64 + [b"old"]
    assert scanned.looks == 2
    assert scanned.before(keys.encode(b"k65"), start_ts) == b""
    assert scanned.before(keys.encode(b"k66"), start_ts) == b""
    assert scanned.looks == 3
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    assert [row.old_value for row in feed.rows if row.type == ROW.PREWRITE] == found
    client.close()


def test_cdc_scan_a_commit_and_an_open_lock_then_only_what_is_newer(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    cluster.txn(put(b"k", b"v"))
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"k", b"w")), b"k")
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    assert listed(feed) == [
        ("PREWRITE", b"k", b"w", b"v"),
        ("COMMITTED", b"k", b"v", b""),
        ("INITIALIZED", b"", b"", b""),
    ]
    checkpoint = cluster.tso.get()
    cluster.call(commit(start_ts, cluster.tso.get(), b"k"), b"k")
    cluster.call(prewrite(cluster.tso.get(), delete(b"k")), b"k")
    newer = client.register(2, region, checkpoint)
    client.until(lambda: newer.initialized)
    assert listed(newer) == [
        ("PREWRITE", b"k", b"", b"w"),
        ("COMMITTED", b"k", b"w", b"v"),
        ("INITIALIZED", b"", b"", b""),
    ]
    client.close()


def test_scan_ignore_gc_fence_both_versions_newest_first(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    first = cluster.txn(put(b"k", b"1"))
    cluster.txn(put(b"k", b"2"))
    check = pb.CheckTxnStatusRequest(primary_key=b"k", lock_ts=first, rollback_if_not_exist=True)
    check.current_ts = check.caller_start_ts = cluster.tso.get()
    assert cluster.call(check, b"k").action == pb.LockNotExistRollback, "at the first commit's ts"
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    assert [row.value for row in feed.rows[:-1]] == [b"2", b"1"]
    client.close()


# --- old values ---


def old_value_feed(make: Make) -> tuple[Cluster, Client, Feed]:
    cluster = make()
    client = Client(cluster)
    feed = client.register(1, cluster.regions.all[0], live_committed=True)
    client.until(lambda: feed.initialized)
    return cluster, client, feed


def test_old_value_basic_of_every_kind_of_change(make: Make) -> None:
    """Inserts, updates, deletes, rollbacks and pessimistic changes."""
    cluster, client, feed = old_value_feed(make)
    cluster.txn(pb.Mutation(op=pb.Insert, key=b"k", value=b"1"))
    cluster.txn(put(b"k", LONG))
    lost = cluster.tso.get()
    cluster.call(prewrite(lost, put(b"k", b"never")), b"k")
    cluster.call(rollback(lost, b"k"), b"k")
    cluster.txn(delete(b"k"))
    cluster.txn(put(b"k", b"5"))
    start_ts = cluster.tso.get()
    cluster.call(pessimistic_lock(start_ts, start_ts, b"k"), b"k")
    request = prewrite(start_ts, put(b"k", b"6"), for_update_ts=start_ts)
    request.pessimistic_actions.append(HELD)
    cluster.call(request, b"k")
    cluster.call(commit(start_ts, cluster.tso.get(), b"k"), b"k")
    caught_up(cluster, client, feed)
    expected = [(b"1", b""), (LONG, b"1"), (b"", LONG), (b"5", b""), (b"6", b"5")]
    assert [(value, old) for value, old, _ in feed.commits.values()] == expected
    scanned = client.register(2, cluster.regions.all[0])
    client.until(lambda: scanned.initialized)
    assert scanned.commits == feed.commits, "a scan has the same (old_value_multi_changefeeds)"
    client.close()


def test_old_value_cache_hit_prewrites_carry_it_even_pessimistic_ones(make: Make) -> None:
    """TiKV: old_value_cache_hit, old_value_cache_hit_pessimistic."""
    cluster, client, feed = old_value_feed(make)
    cluster.txn(put(b"k", b"1"))
    cluster.txn(pb.Mutation(op=pb.Insert, key=b"new", value=b"1"))
    start_ts = cluster.tso.get()
    cluster.call(pessimistic_lock(start_ts, start_ts, b"k"), b"k")
    request = prewrite(start_ts, put(b"k", b"2"), for_update_ts=start_ts)
    request.pessimistic_actions.append(HELD)
    cluster.call(request, b"k")
    cluster.call(commit(start_ts, cluster.tso.get(), b"k"), b"k")
    caught_up(cluster, client, feed)
    counts = cluster.endpoint.old_values
    assert (counts.hits, counts.misses) == (3, 0)
    assert [row.old_value for row in feed.rows if row.type == ROW.PREWRITE] == [b"", b"", b"1"]
    client.close()


def test_old_value_cache_without_downstreams_is_unused_and_a_row_is_read(make: Make) -> None:
    """The row of a later heartbeat is read from the store."""
    cluster = make()
    (region,) = cluster.regions.all
    cluster.txn(put(b"k", b"1"))
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"k", LONG), min_commit_ts=start_ts + 1), b"k")
    assert cluster.endpoint.old_values.hits == 0
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    short = cluster.tso.get()
    cluster.call(prewrite(short, put(b"s", b"v"), min_commit_ts=short + 1), b"s")
    beat = pb.TxnHeartBeatRequest(primary_lock=b"s", start_version=short, advise_lock_ttl=90_000)
    cluster.call(beat, b"s")
    client.until(lambda: sum(row.key == b"s" for row in feed.rows) == 2)
    counts = cluster.endpoint.old_values
    assert (counts.hits, counts.misses) == (1, 1), "the prolonged lock's row was read for"
    client.close()


def test_rollback_prewrites_with_txn_source_a_filtered_lock_holds_the_ts(make: Make) -> None:
    """The resolved ts stays below the lock until the rollback."""
    cluster = make()
    client = Client(cluster)
    feed = client.register(1, cluster.regions.all[0], filter_loop=True)
    client.until(lambda: feed.initialized)
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"k"), context=pb.Context(txn_source=1)), b"k")
    locked = cluster.tso.get()
    client.until(lambda: feed.resolved_ts >= start_ts)
    beats = len(client.messages)
    (downstream,) = client.connection.downstreams.values()
    downstream.sent_at = 0.0  # the mark is due once more
    client.until(lambda: len(client.messages) > beats)
    assert start_ts <= feed.resolved_ts < locked
    cluster.call(rollback(start_ts, b"k"), b"k")
    caught_up(cluster, client, feed)
    assert [row.type for row in feed.rows] == [ROW.INITIALIZED, ROW.ROLLBACK]
    client.close()


@pytest.mark.parametrize("is_pessimistic", [False, True])
def test_overlapped_write_bug_the_next_lock_on_the_key_is_sent(make: Make, is_pessimistic: bool) -> None:
    """tikv#18498 and #19083: T2 began at T1's commit_ts and rolls back a secondary there; T3 comes."""
    cluster = make()
    older = cluster.tso.get()
    meeting = cluster.txn(put(b"s"))
    client = Client(cluster)
    feed = client.register(1, cluster.regions.all[0], cluster.tso.get())
    client.until(lambda: feed.initialized)
    cluster.call(prewrite(meeting, put(b"s", b"never"), primary=b"p"), b"s")
    cluster.call(rollback(meeting, b"s"), b"s")
    start_ts = older if is_pessimistic else cluster.tso.get()
    more: dict[str, Any] = {}
    if is_pessimistic:
        more = {"for_update_ts": cluster.tso.get(), "pessimistic_actions": [HELD]}
        cluster.call(pessimistic_lock(start_ts, more["for_update_ts"], b"s"), b"s")
    assert not cluster.call(prewrite(start_ts, put(b"s", b"third"), **more), b"s").errors
    commit_ts = cluster.tso.get()
    cluster.call(commit(start_ts, commit_ts, b"s"), b"s")
    caught_up(cluster, client, feed)
    assert feed.commits == {(b"s", commit_ts): (b"third", b"v", ROW.Row.PUT)}
    client.close()


# --- memory ---


def congested(feed: Feed, region: Region) -> bool:
    return feed.error is not None and feed.error.congested.region_id == region.id


def limit(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    size = count * (len(keys.encode(b"k00")) + resolver.LOCK_OVERHEAD)
    for module in (resolver, initializer):
        monkeypatch.setattr(module, "LOCKS_BYTES_MAX", size)


def lock_some(cluster: Cluster, first: int, count: int) -> int:
    start_ts = cluster.tso.get()
    mutations = [put(b"k%02d" % i) for i in range(first, first + count)]
    assert not cluster.call(prewrite(start_ts, *mutations, lock_ttl=60_000), b"k").errors
    return start_ts


def test_memory_quota_of_locks_on_live_push(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """TiKV: cdc_lock_memory_quota_exceeded on push; the registration may come again when there is room."""
    limit(monkeypatch, 4)
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    held = lock_some(cluster, 0, 4)
    lock_some(cluster, 4, 1)
    client.until(lambda: congested(feed, region))
    wait_until(lambda: region.id not in cluster.endpoint._registrations.delegates)
    cluster.call(rollback(held, *(b"k%02d" % i for i in range(4))), b"k")
    again = client.register(1, region)
    client.until(lambda: again.initialized)
    client.close()


def test_memory_quota_of_locks_in_the_scan(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 4)
    cluster = make()
    (region,) = cluster.regions.all
    lock_some(cluster, 0, 5)
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: congested(feed, region))
    client.close()


@pytest.mark.parametrize(("before", "during"), [(1, 5), (3, 3)])
def test_memory_quota_of_pending_locks_during_and_after_a_scan(
    make: Make, monkeypatch: pytest.MonkeyPatch, before: int, during: int
) -> None:
    """TiKV: on pending push (5 of 4 while the scan runs), on finish scan (3 and 3 of 4)."""
    limit(monkeypatch, 4)
    cluster = make()
    (region,) = cluster.regions.all
    lock_some(cluster, 0, before)
    client = Client(cluster)
    cluster.faults.scan_delay_s = 0.3
    feed = client.register(1, region)
    downstreams = client.connection.downstreams
    while (1, region.id) not in downstreams or downstreams[1, region.id].state.value == "uninitialized":
        cluster.faults.stopping.wait(0.001)
    lock_some(cluster, 10, during)
    cluster.faults.scan_delay_s = 0.0
    client.until(lambda: congested(feed, region))
    client.close()


def test_memory_quota_counts_each_tracked_key_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """TiKV's test_lock_tracker: bytes are exact through pushes, pops, and the merge with the scan."""
    limit(monkeypatch, 2)
    found = resolver.Resolver()
    one, two, three = (keys.encode(b"k%02d" % i) for i in range(3))
    found.track(one, 5)
    found.track(one, 0)
    assert not found.is_congested
    found.finish_scan({two: 3})
    assert found._bytes * 2 == resolver.LOCKS_BYTES_MAX
    found.track(two, 3)
    found.track(two, 9)
    assert found._bytes * 2 == resolver.LOCKS_BYTES_MAX
    found.track(one, 7)
    assert not found.is_congested
    found.track(three, 7)
    assert found.is_congested
    for key in (one, two, three, three):
        found.track(key, 0)
    assert found._bytes == 0


def test_pessimistic_lock_and_unlock_do_no_harm(make: Make) -> None:
    cluster, client, feed = old_value_feed(make)
    for _ in range(3):
        start_ts = cluster.tso.get()
        cluster.call(pessimistic_lock(start_ts, start_ts, b"k"), b"k")
        unlock = pb.PessimisticRollbackRequest(start_version=start_ts, for_update_ts=start_ts, keys=[b"k"])
        cluster.call(unlock, b"k")
    assert cluster.engine.get(mvcc.LOCK, keys.encode(b"k")) is None
    caught_up(cluster, client, feed)
    assert [row.type for row in feed.rows] == [ROW.INITIALIZED]
    client.close()
