"""TiKV's own tests of its CDC module, by their setup and expectation; each names the one it follows.

(tikv components/cdc/tests/integrations/test_cdc.py, tests/failpoints, src/endpoint.rs.)
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tikv.cluster import Client, Cluster, Feed, wait_until
from tests.tikv.support import commit, prewrite, put, rollback
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.tikv import keys
from tidegate.tikv.cdc import scans
from tidegate.tikv.cdc.service import Connection

Make = Callable[..., Cluster]


def caught_up(client: Client, feed: Feed, ts: int) -> None:
    client.until(lambda: feed.resolved_ts >= ts)


def kinds(feed: Feed) -> list[str]:
    return [cdc.Event.LogType.Name(row.type) for row in feed.rows]


def test_tso_failure_resolved_ts_waits_then_advances_and_never_falls(make: Make) -> None:
    cluster = make()
    client = Client(cluster)
    feed = client.register(1, cluster.regions.all[0])
    client.until(lambda: feed.resolved_ts > 0)
    for _ in range(3):
        cluster.tso.freeze()
        frozen_at = max(feed.resolved_ts, cluster.tso.present())
        cluster.tso.thaw()
        caught_up(client, feed, frozen_at + 1)
    client.close()


def test_observed_before_incremental_scan_snapshot_initialized_comes_last(
    make: Make,
) -> None:
    """The second registration gets rows that the first one has observed."""
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    first = client.register(1, region)
    client.until(lambda: first.initialized)
    cluster.txn(*(put(b"k%03d" % i, bytes(300)) for i in range(300)))
    cluster.faults.scan_delay_s = 0.02
    second = client.register(2, region)
    client.until(lambda: second.initialized)
    assert kinds(second) == ["COMMITTED"] * 300 + ["INITIALIZED"]
    assert kinds(first) == ["INITIALIZED"] + ["PREWRITE"] * 300 + ["COMMIT"] * 300
    client.close()


@pytest.mark.parametrize("version", ["4.0.7", "4.0.8"])
def test_no_resolved_ts_before_downstream_initialized(make: Make, version: str) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    cluster.txn(*(put(b"k%03d" % i, bytes(1000)) for i in range(200)))
    client = Client(cluster, multiplexing=False)
    cluster.faults.scan_delay_s = 0.03
    feed = client.register(0, region, version=version)
    client.until(lambda: feed.initialized)
    cluster.faults.scan_delay_s = 0.0
    caught_up(client, feed, cluster.tso.get())  # the feed itself refuses one that comes before INITIALIZED
    batched = any(message.HasField("resolved_ts") for message in client.messages)
    assert batched is (version == "4.0.8")
    client.close()


def test_stream_multiplexing_a_request_resolves_while_another_is_scanned(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    first = client.register(1, region)
    client.until(lambda: first.initialized)
    cluster.txn(*(put(b"k%03d" % i, bytes(1000)) for i in range(200)))
    proceed = cluster.hold_scans(beginning_with=1)
    second = client.register(2, region)
    client.until(lambda: bool(second.rows))
    now = cluster.tso.get()
    caught_up(client, first, now)
    assert not second.initialized
    proceed.set()
    caught_up(client, second, now)
    client.close()


def test_partial_subscription_a_lock_outside_the_range_holds_nothing(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"k0"), put(b"k9")), b"k")
    client = Client(cluster)
    bounds = {"start_key": keys.encode(b"k1"), "end_key": keys.encode(b"k5")}
    feed = client.register(1, region, **bounds)
    other = client.register(2, region, start_key=keys.encode(b"k5"))
    later = cluster.tso.get()
    cluster.call(prewrite(later, put(b"k00")), b"k")
    caught_up(client, feed, cluster.tso.get())
    client.until(lambda: other.initialized)
    assert other.resolved_ts <= start_ts
    assert kinds(feed) == ["INITIALIZED"]
    client.close()


def test_filter_key_range_two_overlapping_ranges_on_two_streams(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    low, high = Client(cluster), Client(cluster)
    left = low.register(1, region, start_key=keys.encode(b"a"), end_key=keys.encode(b"n"))
    right = high.register(1, region, start_key=keys.encode(b"k"), end_key=keys.encode(b"z"))
    low.until(lambda: left.initialized)
    high.until(lambda: right.initialized)
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"b"), put(b"m"), put(b"x")), b"b")
    cluster.call(rollback(start_ts, b"b", b"m", b"x"), b"b")
    ts = cluster.txn(put(b"c"), put(b"l"), put(b"y"))
    caught_up(low, left, ts)
    caught_up(high, right, ts)
    assert {key for key, _ in left.commits} == {b"c", b"l"}
    assert {key for key, _ in right.commits} == {b"l", b"y"}
    gone = {row.key for row in left.rows if row.type == cdc.Event.ROLLBACK}
    assert gone == {b"b", b"m"}
    low.close()
    high.close()


def test_batch_size_limit_rows_of_more_than_32_kib_are_events_of_their_own(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    cluster.txn(*(put(b"k%d" % i, bytes(40_000)) for i in range(4)), put(b"small1"), put(b"small2"))
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    sizes = [len(event.entries.entries) for message in client.messages for event in message.events]
    assert sizes[:4] == [1, 1, 1, 1]
    assert sum(sizes) == 7
    client.close()


def test_write_rollback_when_no_lock_of_an_older_transaction_frees_nothing(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    older, start_ts = cluster.tso.get(), cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"k")), b"k")
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.resolved_ts == start_ts)
    cluster.call(rollback(older, b"k"), b"k")
    client.until(lambda: any(row.type == cdc.Event.ROLLBACK for row in feed.rows))
    beat = len(client.messages)
    client.until(lambda: len(client.messages) > beat)
    assert feed.resolved_ts == start_ts
    commit_ts = cluster.tso.get()
    cluster.call(commit(start_ts, commit_ts, b"k"), b"k")
    caught_up(client, feed, commit_ts)
    client.close()


def test_observe_duplicate_cmd_new_subscriptions_get_a_commit_exactly_once(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"k")), b"k")
    cluster.faults.apply_delay_s = 0.05
    pending = cluster.begin(commit(start_ts, cluster.tso.get(), b"k"), b"k")
    feeds = [client.register(number, region) for number in (1, 2)]
    cluster.faults.apply_delay_s = 0.0
    pending.response()
    now = cluster.tso.get()
    for feed in feeds:
        caught_up(client, feed, now)
        assert [key for key, _ in feed.commits] == [b"k"], "once, whichever way it came"
    client.close()


def test_stale_resolver_subscriptions_change_around_one_transaction(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    start_ts = cluster.tso.get()
    client = Client(cluster)
    cluster.faults.scan_delay_s = 0.02
    client.register(1, region)
    for number in (1, 2):
        client.endpoint.request(client.connection, _deregister(number))
        if number == 1:
            cluster.call(prewrite(start_ts, put(b"k")), b"k")
            client.register(2, region)
    third = client.register(3, region)
    commit_ts = cluster.tso.get()
    cluster.call(commit(start_ts, commit_ts, b"k"), b"k")
    caught_up(client, third, commit_ts)
    assert list(third.commits) == [(b"k", commit_ts)]
    client.close()


def _deregister(request_id: int) -> cdc.ChangeDataRequest:
    return cdc.ChangeDataRequest(request_id=request_id, deregister=cdc.ChangeDataRequest.Deregister())


def test_too_many_scan_tasks_server_is_busy_until_some_have_ended(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "SCANS_MAX", 2)
    cluster = make()
    (region,) = cluster.regions.all
    cluster.txn(*(put(b"k%03d" % i, bytes(1000)) for i in range(100)))
    client = Client(cluster)
    proceed = cluster.hold_scans(beginning_with=0)
    feeds = [client.register(number, region) for number in range(3)]
    client.until(lambda: feeds[2].error is not None)
    assert feeds[2].error is not None
    assert feeds[2].error.server_is_busy.reason == "too many pending incremental scans"
    proceed.set()
    client.until(lambda: feeds[0].initialized and feeds[1].initialized)
    caught_up(client, feeds[0], cluster.tso.get())
    wait_until(lambda: cluster.endpoint._scans.count == 0)  # the client learns of an end first
    again = client.register(9, region)
    client.until(lambda: again.initialized)
    client.close()


def test_feature_gate_batched_marks_for_4_0_8_and_single_events_before(make: Make) -> None:
    cluster = make(b"m")
    new, old = Client(cluster, multiplexing=False), Client(cluster, multiplexing=False)
    low, high = cluster.regions.all
    feeds = [new.register(0, region, version="4.0.8") for region in (low, high)]
    alone = old.register(0, high, version="4.0.7")
    now = cluster.tso.get()
    for feed in feeds:
        caught_up(new, feed, now)
    caught_up(old, alone, now)
    both = {low.id, high.id}
    new.until(lambda: any(set(message.resolved_ts.regions) == both for message in new.messages))
    assert not any(message.HasField("resolved_ts") for message in old.messages)
    new.close()
    old.close()


def test_unresolved_region_count_a_hundred_regions_all_resolve(make: Make) -> None:
    cluster = make(*(b"k%02d" % i for i in range(1, 100)), stores=3)
    clients = [Client(cluster, store_id=number) for number in (1, 2, 3)]
    feeds = [(clients[region.leader - 1], region) for region in cluster.regions.all]
    found = [(client, client.register(1, region)) for client, region in feeds]
    now = cluster.tso.get()
    for client, feed in found:
        caught_up(client, feed, now)
    for client in clients:
        client.close()


def test_memory_quota_of_a_scan_that_nobody_reads_stops_no_other_stream(make: Make) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    for batch in range(4):
        cluster.txn(*(put(b"k%d%02d" % (batch, i), bytes(40_000)) for i in range(40)))
    slow = cluster.endpoint
    silent = Connection(multiplexing=True)
    slow.open(silent)
    reader = Client(cluster)
    request = reader.request(1, region)
    slow.request(silent, request)
    feed = reader.register(2, region)
    caught_up(reader, feed, cluster.tso.get())
    assert len(feed.commits) == 160
    slow.close(silent)
    reader.close()
