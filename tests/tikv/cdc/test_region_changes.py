"""Registrations are informed when their region changes, and nothing is lost or sent too early.

After TiKV's tests of the same scenarios: cdc_basic, not_leader, region_split, merge, notify_pending_regions,
term_change, stale_epoch_after_region_ready.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from tests.tikv.cluster import WAIT_S, Client, Cluster, Feed
from tests.tikv.support import commit, prewrite, put
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.tikv import keys
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_change import RegionChange


def ended(client: Client, feed: Feed) -> cdc.Error:
    client.until(lambda: feed.error is not None)
    assert feed.error is not None
    return feed.error


def caught_up(client: Client, feed: Feed, ts: int) -> None:
    client.until(lambda: feed.resolved_ts >= ts)


def test_a_split_ends_every_registration_and_its_error_names_the_parts(
    make: Callable[..., Cluster],
) -> None:
    """One stream then registers the parts."""
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    feeds = [client.register(number, region) for number in (1, 2)]
    first = cluster.txn(put(b"a"), put(b"x"))
    for feed in feeds:
        caught_up(client, feed, first)
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"b"), put(b"y")), b"b")
    parts = cluster.operators.split(region.id, [keys.encode(b"m")])
    for feed in feeds:
        current = ended(client, feed).epoch_not_match.current_regions
        assert [each.id for each in current] == [part.id for part in parts]
    commit_ts = cluster.tso.get()
    assert all(feed.resolved_ts < commit_ts for feed in feeds)
    children = [client.register(3, part, feeds[0].resolved_ts) for part in parts]
    for part, raw in zip(parts, (b"b", b"y"), strict=True):
        cluster.at(part, commit(start_ts, commit_ts, raw)).response()
    now = cluster.tso.get()
    for child in children:
        caught_up(client, child, now)
        assert len(child.commits) == 1
    both = {part.id for part in parts}
    client.until(lambda: any(both <= set(message.resolved_ts.regions) for message in client.messages))
    client.close()


def test_a_transfer_names_the_new_leader_and_a_follower_refuses(make: Callable[..., Cluster]) -> None:
    cluster = make(stores=3)
    (region,) = cluster.regions.all
    client, other = Client(cluster), Client(cluster, store_id=2)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    early = other.register(1, region)
    assert ended(other, early).not_leader.leader == region.leader_peer
    moved = cluster.operators.transfer(region.id, 2)
    assert ended(client, feed).not_leader.leader == moved.leader_peer
    again = other.register(1, moved, feed.resolved_ts)
    late = client.register(2, moved)
    assert ended(client, late).not_leader.leader.store_id == 2
    caught_up(other, again, cluster.tso.get())
    stranger = Region(moved.id + 100, b"", b"")
    missing = other.register(5, stranger)
    assert ended(other, missing).region_not_found.region_id == stranger.id
    client.close()
    other.close()


def test_a_change_of_peers_ends_nothing(make: Callable[..., Cluster]) -> None:
    cluster = make(stores=4)
    (region,) = cluster.regions.all
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    cluster.operators.move(region.id, 3, 4)
    caught_up(client, feed, cluster.tso.get())
    assert feed.error is None
    client.close()


def test_a_merge_ends_the_source_at_its_prepare_and_the_target_at_its_end(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(b"m")
    low, high = cluster.regions.all
    client = Client(cluster)
    source, target = client.register(1, low), client.register(1, high)
    client.until(lambda: source.initialized and target.initialized)
    prepared = cluster.operators.prepare_merge(low.id, high.id)
    error = ended(client, source)
    assert error.HasField("epoch_not_match")
    assert not error.epoch_not_match.current_regions
    again = client.register(2, prepared)
    client.until(lambda: again.initialized)
    assert target.error is None
    merged = cluster.operators.commit_merge(low.id)
    assert ended(client, again).region_not_found.region_id == low.id
    error = ended(client, target)
    assert error.HasField("epoch_not_match")
    assert not error.epoch_not_match.current_regions
    late = client.register(3, prepared)
    assert ended(client, late).region_not_found.region_id == low.id
    whole = client.register(4, merged)
    ts = cluster.txn(put(b"a"), put(b"z"))
    caught_up(client, whole, ts)
    assert {key for key, _ in whole.commits} == {b"a", b"z"}
    client.close()


def test_a_merge_that_is_given_up_ends_the_source_once_more(make: Callable[..., Cluster]) -> None:
    cluster = make(b"m")
    low, high = cluster.regions.all
    prepared = cluster.operators.prepare_merge(low.id, high.id)
    client = Client(cluster)
    feed = client.register(1, prepared)
    client.until(lambda: feed.initialized)
    cluster.operators.rollback_merge(low.id)
    assert ended(client, feed).HasField("epoch_not_match")
    client.close()


def test_a_stale_epoch_is_refused_with_what_was_split_off(make: Callable[..., Cluster]) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    parts = cluster.operators.split(region.id, [keys.encode(b"f"), keys.encode(b"m")])
    client = Client(cluster)
    feed = client.register(1, region)
    current = ended(client, feed).epoch_not_match.current_regions
    assert [each.id for each in current] == [parts[2].id, parts[1].id, parts[0].id]
    client.close()


def test_a_split_during_a_scan_ends_the_registration_and_nothing_follows(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    cluster.txn(*(put(b"key%04d" % i, bytes(200)) for i in range(2000)))
    client = Client(cluster)
    proceed = cluster.hold_scans(beginning_with=1)
    feeds = [client.register(number, region) for number in range(6)]
    client.until(lambda: any(feed.rows for feed in feeds))
    cluster.operators.split(region.id, [keys.encode(b"key1")])
    for feed in feeds:
        ended(client, feed)
    rows = [len(feed.rows) for feed in feeds]
    proceed.set()
    fresh = client.register(9, cluster.regions.all[0])
    client.until(lambda: fresh.initialized)
    assert rows == [len(feed.rows) for feed in feeds], "promise 4: nothing after the error"
    assert not any(feed.initialized for feed in feeds)
    client.close()


def test_a_registration_between_a_split_and_its_region_table_is_ended(
    make: Callable[..., Cluster],
) -> None:
    """It came too late to be informed by the observer, and too early to be refused: its capture finds out."""
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    observed, proceed = threading.Event(), threading.Event()

    class Holder:
        """A member that keeps the table of regions as it was for a while."""

        def will_change(self, change: RegionChange) -> None:
            observed.set()
            assert proceed.wait(WAIT_S)

        def has_changed(self, change: RegionChange) -> None:
            """Nothing to do."""

    cluster.raftstore.members[99] = Holder()
    splitting = threading.Thread(target=cluster.operators.split, args=(region.id, [keys.encode(b"m")]))
    splitting.start()
    assert observed.wait(WAIT_S)
    feed = client.register(1, region)
    later = client.register(2, replace(region, id=999))
    client.until(lambda: later.error is not None)  # the endpoint takes them in order
    assert feed.error is None
    proceed.set()
    splitting.join()
    parts = ended(client, feed).epoch_not_match.current_regions
    assert {part.id for part in parts} == {each.id for each in cluster.regions.all}
    assert not feed.initialized
    client.close()


def test_a_new_leaders_resolved_ts_waits_for_locks_of_the_old_ones_time(make: Callable[..., Cluster]) -> None:
    cluster = make(stores=3)
    (region,) = cluster.regions.all
    start_ts = cluster.tso.get()
    cluster.at(region, prewrite(start_ts, put(b"k"))).response()
    moved = cluster.operators.transfer(region.id, 3)
    client = Client(cluster, store_id=3)
    feed = client.register(1, moved)
    client.until(lambda: feed.resolved_ts == start_ts)
    commit_ts = cluster.tso.get()
    cluster.at(moved, commit(start_ts, commit_ts, b"k")).response()
    caught_up(client, feed, commit_ts)
    assert list(feed.commits) == [(b"k", commit_ts)]
    client.close()


def test_a_store_that_stops_ends_its_streams_and_the_next_leader_continues(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(stores=3)
    (region,) = cluster.regions.all
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    cluster.stop_store(1)
    client.close()
    moved = cluster.regions.all[0]
    other = Client(cluster, store_id=moved.leader)
    again = other.register(1, moved, feed.resolved_ts)
    caught_up(other, again, cluster.tso.get())
    other.close()
