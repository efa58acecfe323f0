"""The promises of docs/formats/change-feed.md, under random transactions and registrations at any moment."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from tests.tikv.cluster import WAIT_S, Client, Cluster, Feed
from tests.tikv.support import commit, delete, pessimistic_lock, prewrite, put, rollback
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.cdc import registrations, ticker
from tidegate.tikv.cdc.channel import EVENT_OVERHEAD, Channel
from tidegate.tikv.cdc.delegate import Delegate
from tidegate.tikv.pd.tso import TsoMode
from tidegate.tikv.raft.raftstore import Command

LONG = b"L" * 300


def test_the_worked_example_of_three_transactions_and_three_resolved_ts(make: Callable[..., Cluster]) -> None:
    """T1 = k1 and k2 at 1..2; T2 = k1 at 3..6; T3 = k2 from 4 on, open. Resolved ts 2, then 3, then 4.

    A second subscription comes between T2's prewrite and its commit: it has the one from its scan, the
    other live, and the same change in the end.
    """
    cluster = make(mode=TsoMode.MANUAL)
    (region,) = cluster.regions.all
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    cluster.call(prewrite(1, put(b"k1", b"a1"), put(b"k2", b"a2")), b"k1")
    cluster.call(commit(1, 2, b"k1", b"k2"), b"k1")
    cluster.tso.advance(2)
    client.until(lambda: feed.resolved_ts == 2)
    assert feed.commits == {(b"k1", 2): (b"a1", b"", 1), (b"k2", 2): (b"a2", b"", 1)}
    cluster.call(prewrite(3, put(b"k1", b"b1")), b"k1")
    late = client.register(2, region, checkpoint_ts=2)  # sees T2's prewrite from its scan
    client.until(lambda: late.initialized)
    cluster.tso.advance(5)
    client.until(lambda: feed.resolved_ts == 3 and late.resolved_ts == 3)
    cluster.call(prewrite(4, put(b"k2", b"c2")), b"k2")
    cluster.call(commit(3, 6, b"k1"), b"k1")
    cluster.tso.advance(6)
    client.until(lambda: feed.resolved_ts == 4 and late.resolved_ts == 4)
    assert (feed.commits[b"k1", 6], late.commits) == ((b"b1", b"a1", 1), {(b"k1", 6): (b"b1", b"a1", 1)})
    assert [(row.key, row.start_ts) for row in feed.open.values()] == [(b"k2", 4)], "T3 is still open"
    client.close()


def test_a_commit_that_overtakes_its_prewrite_is_matched_at_initialized() -> None:
    feed = Feed(checkpoint_ts=0)
    row = cdc.Event.Row
    feed.take_rows([row(type=cdc.Event.COMMIT, key=b"k1", start_ts=3, commit_ts=6, op_type=row.PUT)])
    feed.take_rows([row(type=cdc.Event.PREWRITE, key=b"k1", start_ts=3, value=b"b1", op_type=row.PUT)])
    assert feed.commits == {}
    feed.take_rows([row(type=cdc.Event.INITIALIZED)])
    assert feed.commits == {(b"k1", 6): (b"b1", b"", row.PUT)}


@pytest.mark.parametrize("seed", range(6))
def test_every_subscription_keeps_its_promises_whenever_it_comes(
    make: Callable[..., Cluster], seed: int
) -> None:
    """Random transactions from three threads; subscriptions with random checkpoints come and go."""
    rng = random.Random(seed)
    cluster = make(b"k3", b"k6")
    written = _Written()
    writers = [
        threading.Thread(target=_write, args=(cluster, random.Random(seed * 100 + i), written))
        for i in range(3)
    ]
    client = Client(cluster)
    live: dict[int, tuple[bytes, bytes]] = {}
    for writer in writers:
        writer.start()
    for request_id in range(1, 13):
        low, high = sorted((rng.choice([b"", b"k1", b"k4"]), rng.choice([b"", b"k5", b"k8"])))
        high = high if low < high else b""
        live[request_id] = (low, high)
        checkpoint = rng.choice([0, cluster.tso.present()])
        bounds = {
            "start_key": keys.encode(low) if low else b"",
            "end_key": keys.encode(high) if high else b"",
        }
        for region in cluster.regions.all:
            client.register(request_id, region, checkpoint, **bounds)
        client.until(lambda n=request_id: all(f.initialized for (r, _), f in client.feeds.items() if r == n))
        if rng.random() < 0.3:
            ended = rng.choice(sorted(live))
            live.pop(ended)
            stop = cdc.ChangeDataRequest(request_id=ended, deregister=cdc.ChangeDataRequest.Deregister())
            cluster.endpoint.request(client.connection, stop)
    for writer in writers:
        writer.join(WAIT_S)
        assert not writer.is_alive()
    last = cluster.tso.get(1)
    client.until(lambda: all(feed.resolved_ts >= last for (r, _), feed in client.feeds.items() if r in live))
    assert written.commits, "the writers wrote"
    for (request_id, region_id), feed in client.feeds.items():
        if request_id not in live:
            continue
        low, high = live[request_id]
        region = cluster.regions.by_id[region_id]
        expected = {
            (key, ts): change
            for (key, ts), change in written.with_old_values().items()
            if ts > feed.checkpoint_ts
            and low <= key
            and (not high or key < high)
            and region.contains(keys.encode(key))
        }
        assert feed.commits == expected
    client.close()


class _Written:
    """The writers' commits: (key, commit_ts) -> value, None for a delete."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.commits: dict[tuple[bytes, int], bytes | None] = {}

    def with_old_values(self) -> dict[tuple[bytes, int], tuple[bytes, bytes, int]]:
        found = {}
        before: dict[bytes, bytes | None] = {}
        for (key, ts), value in sorted(self.commits.items(), key=lambda each: each[0][1]):
            op = cdc.Event.Row.DELETE if value is None else cdc.Event.Row.PUT
            found[key, ts] = (value or b"", before.get(key) or b"", op)
            before[key] = value
        return found


def _write(cluster: Cluster, rng: random.Random, written: _Written) -> None:
    """Transactions over ten keys in three regions: optimistic and pessimistic, some rolled back."""
    for number in range(60):
        chosen = rng.sample([b"k%d" % i for i in range(10)], rng.randint(1, 4))
        start_ts = cluster.tso.get(1)
        for_update_ts = 0
        values = {key: rng.choice([None, b"%d-%d" % (start_ts, number), LONG]) for key in chosen}
        groups = cluster.each_region(chosen)
        if rng.random() < 0.4:
            for_update_ts = cluster.tso.get(1)
            locked = [
                cluster.call(pessimistic_lock(start_ts, for_update_ts, *group, primary=chosen[0]), group[0])
                for group in groups
            ]
            if any(answer.errors for answer in locked):
                for group in groups:
                    request = pb.PessimisticRollbackRequest(
                        start_version=start_ts, for_update_ts=for_update_ts, keys=group
                    )
                    cluster.call(request, group[0])
                continue
        errors = []
        for group in groups:
            mutations = [
                delete(key) if values[key] is None else put(key, values[key] or b"") for key in group
            ]
            actions = [pb.PrewriteRequest.DO_PESSIMISTIC_CHECK] * len(group) if for_update_ts else []
            request = prewrite(
                start_ts,
                *mutations,
                primary=chosen[0],
                for_update_ts=for_update_ts,
                pessimistic_actions=actions,
            )
            errors += cluster.call(request, group[0]).errors
        if errors or rng.random() < 0.15:
            for group in groups:
                cluster.call(rollback(start_ts, *group), group[0])
            continue
        commit_ts = cluster.tso.get(1)
        for group in sorted(groups, key=lambda each: chosen[0] not in each):
            answer = cluster.call(commit(start_ts, commit_ts, *group), group[0])
            assert not answer.HasField("error"), answer
        with written.mutex:
            written.commits.update({(key, commit_ts): values[key] for key in chosen})


def test_requests_that_cannot_be_served_say_why(make: Callable[..., Cluster]) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    stale = {"region_epoch": type(region.message.region_epoch)(version=7)}
    refused = {
        1: ({"cluster_id": 5}, "cluster_id_mismatch"),
        2: ({"kv_api": cdc.ChangeDataRequest.RawKV}, "compatibility"),
        3: (stale, "epoch_not_match"),
    }
    for request_id, (more, _) in refused.items():
        client.register(request_id, region, **more)
    client.feeds[4, 77] = Feed(0)
    cluster.endpoint.request(client.connection, client.request(4, region, region_id=77))
    client.until(lambda: all(feed.error is not None for feed in client.feeds.values()))
    for request_id, (_, kind) in refused.items():
        error = client.feeds[request_id, region.id].error
        assert error is not None
        assert error.HasField(kind)
    missing = client.feeds[4, 77].error
    assert missing is not None
    assert missing.region_not_found.region_id == 77
    client.close()


class _Refused(Feed):
    """A registration under the ids of another one, whose marks keep coming."""

    def take_resolved(self, ts: int) -> None:
        return


def test_a_duplicate_is_refused_and_the_first_registration_stays(make: Callable[..., Cluster]) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    second = client.feeds[1, region.id] = _Refused(0)
    cluster.endpoint.request(client.connection, client.request(1, region))
    client.until(lambda: second.error is not None)
    assert second.error is not None
    assert second.error.HasField("duplicate_request")
    client.feeds[1, region.id] = feed
    reached = cluster.tso.get(1)
    client.until(lambda: feed.resolved_ts > reached)
    client.close()


def test_a_client_that_does_not_read_is_congested_and_may_ask_again(make: Callable[..., Cluster]) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster, Channel(quota_bytes=20_000))
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    start_ts = cluster.tso.get(1)
    cluster.call(prewrite(start_ts, put(b"k", b"z" * 30_000)), b"k")
    client.until(lambda: feed.error is not None)
    assert feed.error is not None
    assert feed.error.congested.region_id == region.id
    cluster.call(rollback(start_ts, b"k"), b"k")
    again = client.register(1, region)
    reached = cluster.tso.get(1)
    client.until(lambda: again.resolved_ts > reached)
    client.close()


def test_too_many_registrations_server_is_busy_until_some_have_ended(
    make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One region under any number of request ids: each costs memory for as long as its stream lasts."""
    monkeypatch.setattr(registrations, "REGISTRATIONS_MAX", 3)
    cluster = make()
    (region,) = cluster.regions.all
    client, other = Client(cluster), Client(cluster)
    feeds = [client.register(number, region) for number in range(3)]
    client.until(lambda: all(feed.initialized for feed in feeds))
    refused = other.register(1, region)
    other.until(lambda: refused.error is not None)
    assert refused.error is not None
    assert refused.error.server_is_busy.reason == "too many registrations"
    client.close()
    again = other.register(2, region)
    other.until(lambda: again.initialized)
    other.close()


def test_an_unreadable_record_ends_the_subscription_and_not_the_module(make: Callable[..., Cluster]) -> None:
    cluster = make(b"m")
    low, high = cluster.regions.all
    cluster.engine.write([(mvcc.WRITE, keys.versioned(keys.encode(b"a"), 5), b"\x50")])
    client = Client(cluster)
    broken, whole = client.register(1, low), client.register(1, high)
    client.until(lambda: broken.error is not None)
    reached = cluster.tso.get(1)
    client.until(lambda: whole.resolved_ts > reached)
    client.close()


def test_a_stop_while_subscriptions_begin_does_not_hang(make: Callable[..., Cluster]) -> None:
    cluster = make(*(b"%02d" % i for i in range(50)))
    client = Client(cluster)
    for region in cluster.regions.all:
        client.register(1, region)
    cluster.endpoint.stop()
    client.close()


def test_a_stream_that_begins_at_a_store_that_stops_is_ended(make: Callable[..., Cluster]) -> None:
    """Nobody looks at it any more; without an end its client would wait for ever."""
    cluster = make()
    cluster.endpoint.stop()
    client = Client(cluster)
    client._thread.join(WAIT_S)
    assert not client._thread.is_alive()
    client.register(1, cluster.regions.all[0])  # does not wait either


def test_a_batch_that_cannot_be_processed_ends_streams_and_frees_memory(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.initialized)
    unreadable = Command(region.id, [(mvcc.LOCK, b"k", b"\xff")])
    cluster.endpoint.observer.on_applied([unreadable])
    client._thread.join(WAIT_S)
    assert not client._thread.is_alive(), "its stream has ended"
    second = Client(cluster)
    reported = second.register(1, region)
    second.until(lambda: reported.resolved_ts > 0)
    assert cluster.endpoint._backlog == 0
    second.close()


def test_without_multiplexing_resolved_ts_comes_for_the_whole_stream(make: Callable[..., Cluster]) -> None:
    cluster = make(b"m")
    client = Client(cluster, multiplexing=False)
    for region in cluster.regions.all:
        client.feeds[0, region.id] = client.register(3, region)
    client.until(lambda: all(feed.resolved_ts > 0 for feed in client.feeds.values()))
    both = {region.id for region in cluster.regions.all}
    client.until(lambda: any(both == set(message.resolved_ts.regions) for message in client.messages))
    client.close()


def test_a_lock_that_was_there_before_pins_the_resolved_ts_at_its_start(make: Callable[..., Cluster]) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    start_ts = cluster.tso.get(1)
    cluster.call(prewrite(start_ts, put(b"k", LONG)), b"k")
    client = Client(cluster)
    feed = client.register(1, region, checkpoint_ts=cluster.tso.get(1))
    narrow = client.register(2, region, end_key=keys.encode(b"a"))
    reached = cluster.tso.get(1)
    client.until(lambda: feed.resolved_ts > 0 and narrow.resolved_ts > reached)
    assert feed.resolved_ts == start_ts, "whatever its range was asked from"
    assert feed.open[b"k", start_ts].value == LONG
    cluster.call(commit(start_ts, cluster.tso.get(1), b"k"), b"k")
    client.until(lambda: feed.resolved_ts > reached)
    assert len(feed.commits) == 1
    client.close()


def test_a_commit_at_a_resolved_ts_is_refused(make: Callable[..., Cluster]) -> None:
    cluster = make(mode=TsoMode.MANUAL)
    cluster.tso.advance(100)
    (region,) = cluster.regions.all
    client = Client(cluster)
    feed = client.register(1, region)
    client.until(lambda: feed.resolved_ts == 100)
    cluster.call(prewrite(50, put(b"k")), b"k")
    assert cluster.call(commit(50, 100, b"k"), b"k").error.commit_ts_expired.min_commit_ts == 101
    assert not cluster.call(commit(50, 101, b"k"), b"k").HasField("error")
    client.until(lambda: len(feed.commits) == 1)
    client.close()


def test_the_stores_of_one_process_share_what_marks_may_cost() -> None:
    assert ticker.pause_s(0.05, cpu_s=0.0001, stores=1) == 0.05
    assert ticker.pause_s(0.05, cpu_s=0.0001, stores=10) == pytest.approx(0.1)
    assert ticker.pause_s(0.05, cpu_s=0.0001, stores=64) == ticker.FREQUENT_S
    assert ticker.pause_s(0.05, cpu_s=0.1, stores=1) == pytest.approx(2.0)


class GatedChannel(Channel):
    """A channel whose client reads nothing while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def take(self) -> list[bytes] | None:
        self.gate.wait()
        return super().take()


def test_marks_do_not_pile_up_before_a_slow_client(make: Callable[..., Cluster]) -> None:
    """Otherwise a client of hundreds of subscriptions gets old marks for ever: each tick adds as many."""
    cluster = make()
    (region,) = cluster.regions.all
    channel = GatedChannel()
    client = Client(cluster, channel)
    feeds = [client.register(number, region) for number in range(1, 21)]
    deadline = time.monotonic() + WAIT_S
    while not channel.has_marks and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # a hundred ticks
    waiting, reached = channel.queued_bytes, cluster.tso.get(1)
    assert waiting < 3 * len(feeds) * EVENT_OVERHEAD, "at most those of one tick, and the ends of scans"
    channel.gate.set()
    client.until(lambda: all(feed.resolved_ts > reached for feed in feeds))
    client.close()


def rest(cluster: Cluster) -> None:
    """Until nothing has been written for a while."""
    while time.monotonic() - cluster.raftstore.active_at <= 0.4:
        time.sleep(0.02)


def test_idle_stores_tick_less_often_until_any_of_them_is_written(
    make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker, "QUIET_S", 0.2)
    monkeypatch.setattr(ticker, "QUIET_TICKS", 1 << 60)
    cluster = make(b"m", stores=2)
    one, other = cluster.regions.all
    assert one.leader != other.leader
    client = Client(cluster, store_id=one.leader)
    feed = client.register(1, one)
    client.until(lambda: feed.resolved_ts > 0)
    rest(cluster)

    def rests() -> bool:
        reached = cluster.tso.get(1)
        time.sleep(0.1)  # 50 ticks
        return feed.resolved_ts < reached

    assert any(rests() for _ in range(3)), "one tick may have begun before and be late"
    reached = cluster.tso.get(1)
    cluster.txn(put(b"x"))
    client.until(lambda: feed.resolved_ts > reached)
    rest(cluster)
    second = client.register(2, one)
    client.until(lambda: second.resolved_ts > 0)
    client.close()


def test_a_defect_in_a_tick_ends_the_streams_and_the_next_tick_comes(
    make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that a defect has left half done belongs to streams: without them the store is as new."""
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    with monkeypatch.context() as broken:
        broken.setattr(Delegate, "resolve", lambda delegate, min_ts: 1 // 0)
        client.register(1, region)
        client._thread.join(WAIT_S)
        assert not client._thread.is_alive(), "its stream has ended"
    again = Client(cluster)
    feed = again.register(1, region)
    again.until(lambda: feed.resolved_ts > 0)
    again.close()


def test_what_is_written_before_a_snapshot_that_comes_late_is_scanned(
    make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    committed = threading.Event()
    monkeypatch.setattr(cluster.faults, "before_snapshot", lambda: committed.wait(WAIT_S))
    client = Client(cluster)
    feed = client.register(1, region)
    start_ts = cluster.tso.get(1)
    cluster.call(prewrite(start_ts, put(b"k", b"v")), b"k")
    cluster.call(commit(start_ts, cluster.tso.get(1), b"k"), b"k")
    committed.set()
    client.until(lambda: feed.initialized)
    assert [row.type for row in feed.rows] == [cdc.Event.COMMITTED, cdc.Event.INITIALIZED]
    client.close()
