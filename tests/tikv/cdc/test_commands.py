"""How a subscription sees each kind of transaction and of raw write, as in TiKV's `components/cdc/tests`."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.tikv.cluster import WAIT_S, Client, Cluster, Feed
from tests.tikv.support import commit, delete, pessimistic_lock, prewrite, put, rollback
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.api_version import keyspace_prefix
from tidegate.tikv.mvcc import Lock
from tidegate.tikv.pd.tso import TsoMode

LONG = b"L" * 512
K = keyspace_prefix(b"r", 0)
P = pb.PrewriteRequest
PUT, DELETE = cdc.Event.Row.PUT, cdc.Event.Row.DELETE
RAW = cdc.ChangeDataRequest.RawKV
Make = Callable[..., Cluster]


def subscribe(cluster: Cluster, checkpoint_ts: int = 0, **more: Any) -> tuple[Client, Feed]:
    client = Client(cluster)
    feed = client.register(1, cluster.regions.all[0], checkpoint_ts, live_committed=True, **more)
    client.until(lambda: feed.initialized)
    return client, feed


def after_initialized(feed: Feed) -> list[cdc.Event.Row]:
    at = next(i for i, row in enumerate(feed.rows) if row.type == cdc.Event.INITIALIZED)
    return feed.rows[at + 1 :]


def caught_up(cluster: Cluster, client: Client, feed: Feed) -> None:
    reached = cluster.tso.get()
    client.until(lambda: feed.resolved_ts > reached)


def test_a_one_phase_commit_is_one_committed_event_above_the_resolved_ts(make: Make) -> None:
    cluster = make()
    cluster.txn(put(b"k2", b"old"))
    client, feed = subscribe(cluster, cluster.tso.get())
    caught_up(cluster, client, feed)
    reported = feed.resolved_ts
    start_ts = cluster.tso.get()
    mutations = put(b"k1", b"short"), put(b"k2", LONG), pb.Mutation(op=pb.Lock, key=b"k3"), delete(b"k4")
    answer = cluster.call(prewrite(start_ts, *mutations, try_one_pc=True), b"k1")
    assert answer.one_pc_commit_ts > reported
    client.until(lambda: len(after_initialized(feed)) == 3)
    rows = {row.key: row for row in after_initialized(feed)}
    assert {row.type for row in rows.values()} == {cdc.Event.COMMITTED}
    assert {(row.start_ts, row.commit_ts) for row in rows.values()} == {(start_ts, answer.one_pc_commit_ts)}
    assert [(k, r.op_type, r.value, r.old_value) for k, r in sorted(rows.items())] == [
        (b"k1", PUT, b"short", b""),
        (b"k2", PUT, LONG, b"old"),
        (b"k4", DELETE, b"", b""),
    ]
    (event,) = [
        each for message in client.messages for each in message.events if len(each.entries.entries) == 3
    ]
    assert event.region_id == feed_region(cluster)
    caught_up(cluster, client, feed)
    client.close()


def feed_region(cluster: Cluster) -> int:
    return cluster.regions.all[0].id


def test_a_pessimistic_one_phase_commit_has_its_old_value_and_unlocks(make: Make) -> None:
    cluster = make()
    cluster.txn(put(b"k", b"old"))
    client, feed = subscribe(cluster)
    start_ts = cluster.tso.get()
    cluster.call(pessimistic_lock(start_ts, start_ts, b"k"), b"k")
    request = prewrite(start_ts, put(b"k", b"new"), for_update_ts=start_ts, try_one_pc=True)
    request.pessimistic_actions.append(P.DO_PESSIMISTIC_CHECK)
    commit_ts = cluster.call(request, b"k").one_pc_commit_ts
    client.until(lambda: (b"k", commit_ts) in feed.commits)
    assert feed.commits[b"k", commit_ts] == (b"new", b"old", PUT)
    caught_up(cluster, client, feed)
    client.close()


def test_an_async_commit_holds_the_resolved_ts_at_its_start(make: Make) -> None:
    """It is emitted as a prewrite and a commit."""
    cluster = make(mode=TsoMode.MANUAL)
    cluster.tso.advance(90)
    client, feed = subscribe(cluster)
    start_ts = 100  # no tick passes it before the locks are there
    request = prewrite(start_ts, put(b"p"), put(b"s", LONG), use_async_commit=True, secondaries=[b"s"])
    least = cluster.call(request, b"p").min_commit_ts
    cluster.tso.advance(200)
    client.until(lambda: feed.resolved_ts >= start_ts)
    cluster.call(pb.CheckTxnStatusRequest(primary_key=b"p", lock_ts=start_ts, current_ts=start_ts), b"p")
    assert feed.resolved_ts == start_ts
    assert not cluster.call(commit(start_ts, least, b"p", b"s"), b"p").HasField("error")
    client.until(lambda: feed.resolved_ts == 200)
    assert feed.commits == {(b"p", least): (b"v", b"", PUT), (b"s", least): (LONG, b"", PUT)}
    client.close()


def test_a_lock_in_memory_holds_resolved_ts_and_a_lower_one_keeps_it_there(make: Make) -> None:
    """TiKV's resolve_ts_checking_concurrency_manager: a lock of 80 under a TSO of 99, then one of 90."""
    cluster = make(mode=TsoMode.MANUAL)
    cluster.tso.advance(99)

    def lock(start_ts: int, raw: bytes) -> Any:
        held = Lock(mvcc.KIND_PUT, raw, start_ts, 3000, secondaries=())
        return cluster.concurrency.publish([(keys.encode(raw), held)], start_ts + 1, 0)

    first = lock(80, b"a")
    client, feed = subscribe(cluster)
    client.until(lambda: feed.resolved_ts == 80)
    assert cluster.concurrency.max_ts >= 99, "what is chosen now is above"
    cluster.concurrency.release(first.keys)
    client.until(lambda: feed.resolved_ts == 99)
    cluster.tso.advance(100)
    client.until(lambda: feed.resolved_ts == 100)
    second = lock(90, b"b")
    assert second.ts > 100
    cluster.tso.advance(200)
    marks = len(client.messages)
    client.until(lambda: len(client.messages) > marks + 1)
    assert feed.resolved_ts == 100, "neither forward nor back"
    cluster.concurrency.release(second.keys)
    client.until(lambda: feed.resolved_ts == 200)
    client.close()


def test_a_row_that_comes_only_by_locks_and_lock_only_records_is_not_sent(make: Make) -> None:
    cluster = make()
    client, feed = subscribe(cluster)
    start_ts = cluster.tso.get()
    cluster.call(pessimistic_lock(start_ts, start_ts, b"k"), b"k")
    cluster.txn(pb.Mutation(op=pb.Lock, key=b"l"))
    cluster.call(
        pb.PessimisticRollbackRequest(start_version=start_ts, for_update_ts=start_ts, keys=[b"k"]), b"k"
    )
    cluster.txn(put(b"end"))
    client.until(lambda: len(feed.commits) == 1)
    assert {row.key for row in after_initialized(feed)} == {b"end"}
    client.close()


def test_a_pushed_or_prolonged_lock_sends_no_valueless_prewrite(make: Make) -> None:
    cluster = make()
    client, feed = subscribe(cluster)
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"k", LONG), min_commit_ts=start_ts + 1), b"k")
    push = pb.CheckTxnStatusRequest(
        primary_key=b"k", lock_ts=start_ts, caller_start_ts=cluster.tso.get(), current_ts=start_ts
    )
    assert cluster.call(push, b"k").action == pb.MinCommitTSPushed
    beat = pb.TxnHeartBeatRequest(primary_lock=b"k", start_version=start_ts, advise_lock_ttl=90_000)
    assert cluster.call(beat, b"k").lock_ttl == 90_000
    commit_ts = cluster.tso.get()
    cluster.call(commit(start_ts, commit_ts, b"k"), b"k")
    client.until(lambda: (b"k", commit_ts) in feed.commits)
    assert [row.type for row in after_initialized(feed)] == [cdc.Event.PREWRITE, cdc.Event.COMMIT]
    assert feed.commits[b"k", commit_ts][0] == LONG
    client.close()


def test_an_overlapped_rollback_is_emitted_under_the_ts_of_the_commit(make: Make) -> None:
    """TiKV's extract_rollback_if_gc_fence_set, and an async lock that carries the flag to its commit."""
    cluster = make()
    commit_ts = cluster.txn(put(b"k"))
    client, feed = subscribe(cluster, cluster.tso.get())
    check = pb.CheckTxnStatusRequest(primary_key=b"k", lock_ts=commit_ts, rollback_if_not_exist=True)
    check.current_ts = check.caller_start_ts = cluster.tso.get()
    assert cluster.call(check, b"k").action == pb.LockNotExistRollback
    assert cluster.call(check, b"k").action == pb.NoAction
    client.until(lambda: len(after_initialized(feed)) == 1)
    (row,) = after_initialized(feed)
    assert (row.type, row.start_ts, row.commit_ts, row.key) == (cdc.Event.ROLLBACK, commit_ts, 0, b"k")
    start_ts = cluster.tso.get()
    least = cluster.call(prewrite(start_ts, put(b"k", b"new"), use_async_commit=True), b"k").min_commit_ts
    check.lock_ts = least + 5
    cluster.call(check, b"k")
    assert not cluster.call(commit(start_ts, least + 5, b"k"), b"k").HasField("error")
    client.until(lambda: len(feed.commits) == 1)
    assert feed.rows[-1].type == cdc.Event.COMMIT
    info = cluster.call(pb.MvccGetByKeyRequest(key=b"k"), b"k").info
    assert (info.writes[0].has_overlapped_rollback, info.writes[0].has_gc_fence) == (True, False)
    assert (info.writes[1].has_overlapped_rollback, info.writes[1].has_gc_fence) == (True, True)
    client.close()


def test_a_silent_rollback_of_a_secondary_lets_the_resolved_ts_advance(make: Make) -> None:
    """The stale lock of tikv#18498: nothing is written for it, but the lock is gone."""
    cluster = make()
    commit_ts = cluster.txn(put(b"s"))
    client, feed = subscribe(cluster, cluster.tso.get())
    cluster.call(prewrite(commit_ts, put(b"s", b"never"), primary=b"p"), b"s")
    client.until(lambda: len(after_initialized(feed)) == 1)
    cluster.call(rollback(commit_ts, b"s"), b"s")
    caught_up(cluster, client, feed)
    assert [row.type for row in after_initialized(feed)] == [cdc.Event.PREWRITE, cdc.Event.ROLLBACK]
    client.close()


def test_a_pipelined_transaction_sends_each_flush_and_commits_the_last(make: Make) -> None:
    cluster = make(mode=TsoMode.MANUAL)
    cluster.tso.advance(90)
    client, feed = subscribe(cluster)
    start_ts = 100  # no tick passes it before the first flush

    def flush(generation: int, *mutations: pb.Mutation) -> Any:
        request = pb.FlushRequest(
            mutations=mutations,
            primary_key=b"a",
            start_ts=start_ts,
            generation=generation,
            lock_ttl=60_000,
            min_commit_ts=start_ts + 1,
        )
        return cluster.call(request, b"a").errors

    assert not flush(1, put(b"a", b"1"), put(b"b", LONG))
    assert not flush(2, put(b"b", b"2"), delete(b"c"))
    assert "generation out of order" in flush(1, put(b"b", b"old"))[0].abort
    assert not flush(2, put(b"b", b"2")), "the same again changes nothing"
    mine = cluster.call(pb.BufferBatchGetRequest(keys=[b"a", b"b", b"c", b"d"], version=start_ts), b"a")
    assert [(pair.key, pair.value) for pair in mine.pairs] == [(b"a", b"1"), (b"b", b"2"), (b"c", b"")]
    cluster.tso.advance(1000)
    client.until(lambda: feed.resolved_ts == start_ts - 1)
    beat = pb.TxnHeartBeatRequest(primary_lock=b"a", start_version=start_ts, min_commit_ts=start_ts + 50)
    cluster.call(beat, b"a")
    client.until(lambda: feed.resolved_ts == start_ts + 49)
    late = client.register(9, cluster.regions.all[0])
    client.until(lambda: late.resolved_ts == start_ts + 49)
    commit_ts = cluster.tso.get() + 100
    cluster.call(commit(start_ts, commit_ts, b"a"), b"a")
    cluster.call(pb.ResolveLockRequest(start_version=start_ts, commit_version=commit_ts), b"a")
    client.until(lambda: len(feed.commits) == 3)
    assert {key: value for (key, _), (value, _, _) in feed.commits.items()} == {
        b"a": b"1",
        b"b": b"2",
        b"c": b"",
    }
    assert cluster.engine.get(mvcc.DEFAULT, keys.versioned(keys.encode(b"b"), start_ts)) is None
    assert {row.generation for row in feed.rows if row.type == cdc.Event.PREWRITE} == {1, 2}
    client.close()


@pytest.mark.parametrize("one_pc", [True, False])
def test_rows_that_a_downstream_does_not_want_are_dropped(make: Make, one_pc: bool) -> None:
    cluster = make()
    client, feed = subscribe(cluster, filter_loop=True)

    def write(raw: bytes, source: int) -> None:
        more: dict[str, Any] = {"try_one_pc": True} if one_pc else {}
        start_ts = cluster.tso.get()
        request = prewrite(start_ts, put(raw), context=pb.Context(txn_source=source), **more)
        answer = cluster.call(request, raw)
        if not answer.one_pc_commit_ts:
            cluster.call(commit(start_ts, cluster.tso.get(), raw), raw)

    for raw, source in ((b"cdc", 1), (b"lossy", 1 << 8), (b"lightning", 1 << 16), (b"own", 0)):
        write(raw, source)
    caught_up(cluster, client, feed)
    assert [key for key, _ in feed.commits] == [b"own"]
    scanned = client.register(2, cluster.regions.all[0], filter_loop=True)
    client.until(lambda: scanned.initialized)
    assert [key for key, _ in scanned.commits] == [b"own"]
    wide = client.register(3, cluster.regions.all[0])
    client.until(lambda: wide.initialized)
    assert sorted(key for key, _ in wide.commits) == [b"cdc", b"own"]
    client.close()


def test_emptied_ranges_are_not_captured_and_their_locks_hold_nothing(make: Make) -> None:
    cluster = make()
    cluster.txn(put(b"a"), put(b"b", LONG), put(b"c"))
    client, feed = subscribe(cluster)
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"b", b"never")), b"b")
    before = len(feed.rows)
    request = pb.DeleteRangeRequest(start_key=b"b", end_key=b"c", notify_only=True)
    cluster.call(request, b"b")
    assert cluster.call(pb.MvccGetByKeyRequest(key=b"b"), b"b").info.lock.start_ts == start_ts
    request.notify_only = False
    cluster.call(request, b"b")
    assert cluster.call(pb.MvccGetByKeyRequest(key=b"b"), b"b").info == pb.MvccInfo()
    caught_up(cluster, client, feed)
    assert len(feed.rows) <= before + 1, "at most the prewrite"
    done = threading.Event()
    destroy = pb.UnsafeDestroyRangeRequest(start_key=b"a", end_key=b"c")
    cluster.store.ranges.destroy(destroy, lambda response, error: done.set())
    assert done.wait(WAIT_S)
    found = cluster.call(pb.ScanRequest(start_key=b"a", limit=9, version=cluster.tso.get()), b"a").pairs
    assert [pair.key for pair in found] == [b"c"]
    client.close()


# --- RawKV ---


def raw(cluster: Cluster, request: Any) -> Any:
    request.context.api_version = pb.V2
    answer = cluster.call(request, K)
    assert not answer.error
    return answer


def test_raw_writes_are_committed_rows_with_expiry_and_a_rising_index(make: Make) -> None:
    """TiKV's rawkv_basic: put, the boundary key, a swap, a swap that deletes."""
    cluster = make(api_version=2)
    client, feed = subscribe(cluster, kv_api=RAW)
    raw(cluster, pb.RawPutRequest(key=K + b"a", value=b"1", ttl=1000))
    raw(cluster, pb.RawPutRequest(key=K, value=b"2"))
    raw(cluster, pb.RawCASRequest(key=K + b"a", value=b"3", previous_value=b"1"))
    raw(cluster, pb.RawCASRequest(key=K + b"a", previous_value=b"3", delete=True))
    raw(cluster, pb.RawCASRequest(key=K + b"a", value=b"no", previous_value=b"3"))
    client.until(lambda: len(after_initialized(feed)) == 4)
    rows = after_initialized(feed)
    assert [(r.type, r.op_type, r.key[4:], r.value) for r in rows] == [
        (cdc.Event.COMMITTED, PUT, b"a", b"1"),
        (cdc.Event.COMMITTED, PUT, b"", b"2"),
        (cdc.Event.COMMITTED, PUT, b"a", b"3"),
        (cdc.Event.COMMITTED, DELETE, b"a", b""),
    ]
    now_s = cluster.clock.now_ms() // 1000
    assert [bool(r.expire_ts_unix_secs) for r in rows] == [True, False, False, False]
    assert now_s < rows[0].expire_ts_unix_secs <= now_s + 1001
    assert all(r.start_ts == r.commit_ts and not r.old_value for r in rows)
    assert [r.commit_ts for r in rows] == sorted({r.commit_ts for r in rows})
    events = [e for m in client.messages for e in m.events if e.entries.entries[0].commit_ts]
    assert [e.index for e in events] == sorted({e.index for e in events})
    assert events[0].index > 0
    caught_up(cluster, client, feed)
    client.close()


def test_a_raw_scan_has_each_keys_newest_version_above_the_checkpoint(make: Make) -> None:
    cluster = make(api_version=2)
    raw(cluster, pb.RawPutRequest(key=K + b"0", value=b"old"))
    raw(cluster, pb.RawPutRequest(key=K + b"a", value=b"old"))
    checkpoint = cluster.tso.get()
    for value in (b"1", b"2"):
        raw(cluster, pb.RawPutRequest(key=K + b"a", value=value))
    raw(cluster, pb.RawDeleteRequest(key=K + b"b"))
    raw(cluster, pb.RawPutRequest(key=K + b"z", value=b"outside"))
    cluster.txn(put(b"t\x80row", LONG))
    client, feed = subscribe(cluster, checkpoint, kv_api=RAW, end_key=keys.encode(K + b"x"))
    found = [(key[4:], value, op) for (key, _), (value, _, op) in feed.commits.items()]
    assert found == [(b"a", b"2", PUT), (b"b", b"", DELETE)]
    client.close()


def test_each_kind_of_capture_sees_its_own_kind_of_keys(make: Make) -> None:
    cluster = make(api_version=2)
    client, tidb = subscribe(cluster)
    raw_feed = client.register(2, cluster.regions.all[0], live_committed=True, kv_api=RAW)
    client.until(lambda: raw_feed.initialized)
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"t\x80row", LONG)), b"t")
    locked = cluster.tso.get()
    raw(cluster, pb.RawPutRequest(key=K + b"a", value=LONG))
    reached = cluster.tso.get()
    client.until(lambda: raw_feed.resolved_ts > reached)
    assert tidb.resolved_ts < locked, "locks hold only those who wait for them"
    cluster.call(commit(start_ts, cluster.tso.get(), b"t\x80row"), b"t")
    client.until(lambda: len(tidb.commits) == 1 and len(raw_feed.commits) == 1)
    assert [key for key, _ in tidb.commits] == [b"t\x80row"]
    assert [key for key, _ in raw_feed.commits] == [K + b"a"]
    client.close()


def test_a_raw_write_under_way_holds_the_resolved_ts_below_itself(make: Make) -> None:
    cluster = make(api_version=2)
    client, feed = subscribe(cluster, kv_api=RAW)
    caught_up(cluster, client, feed)
    hold = cluster.concurrency.hold(cluster.tso.get())
    data_ts = cluster.tso.get()
    marks = len(client.messages)
    client.until(lambda: len(client.messages) > marks + 1)
    assert feed.resolved_ts < data_ts
    cluster.concurrency.end_hold(hold)
    client.until(lambda: feed.resolved_ts > data_ts)
    client.close()


@pytest.mark.parametrize(("api_version", "kv_api"), [(1, RAW), (1, cdc.ChangeDataRequest.TxnKV), (2, 2)])
def test_a_kind_of_capture_that_the_store_does_not_have_is_incompatible(
    make: Make, api_version: int, kv_api: Any
) -> None:
    cluster = make(api_version=api_version)
    client = Client(cluster)
    feed = client.register(1, cluster.regions.all[0], kv_api=kv_api)
    client.until(lambda: feed.error is not None)
    assert feed.error is not None
    assert feed.error.compatibility.required_version == "6.2.0"
    client.close()


@pytest.mark.parametrize("seed", range(4))
def test_self_chosen_timestamps_and_raw_writes_keep_the_promises(make: Make, seed: int) -> None:
    """One-phase, async and raw writes from threads, subscriptions at any moment: nothing lost, none late."""
    cluster = make(b"k3", api_version=2)
    history: dict[tuple[bytes, int], bytes] = {}
    problems: list[str] = []
    stop = threading.Event()

    def write(rng: random.Random) -> None:
        while not stop.is_set():
            start_ts = cluster.tso.get()
            name = b"t%d" % rng.randrange(6)
            value = rng.choice([b"%d" % start_ts, LONG + b"%d" % start_ts])
            kind: dict[str, Any] = rng.choice([{"try_one_pc": True}, {"use_async_commit": True}, {}])
            answer = cluster.call(prewrite(start_ts, put(name, value), **kind), name)
            if answer.errors:
                continue
            commit_ts = answer.one_pc_commit_ts or answer.min_commit_ts or cluster.tso.get()
            if not answer.one_pc_commit_ts:
                done = cluster.call(commit(start_ts, commit_ts, name), name)
                if done.HasField("error"):
                    problems.append(f"{kind} {start_ts} {commit_ts}: {done.error}")
            history[name, commit_ts] = value

    def put_raw(rng: random.Random) -> None:
        while not stop.is_set():
            raw(cluster, pb.RawPutRequest(key=K + b"%d" % rng.randrange(4), value=b"v"))

    threads = [threading.Thread(target=write, args=(random.Random(seed * 10 + i),)) for i in range(3)]
    threads.append(threading.Thread(target=put_raw, args=(random.Random(seed),)))
    for thread in threads:
        thread.start()
    client = Client(cluster)
    feeds = []
    for request_id in range(1, 7):
        checkpoint = cluster.tso.get() if request_id % 2 else 0
        region = cluster.regions.of_key(keys.encode(b"t"))
        kv_api = RAW if request_id % 3 == 0 else cdc.ChangeDataRequest.TiDB
        if kv_api == RAW:
            region = cluster.regions.of_key(keys.encode(K))
        feed = client.register(request_id, region, checkpoint, live_committed=True, kv_api=kv_api)
        client.until(lambda feed=feed: feed.initialized and feed.resolved_ts > 0)  # type: ignore[misc]
        if kv_api != RAW:
            feeds.append(feed)
    stop.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert not problems
    reached = cluster.tso.get()
    client.until(lambda: all(feed.resolved_ts > reached for feed in client.feeds.values()))
    for feed in feeds:
        expected = {at: value for at, value in history.items() if at[1] > feed.checkpoint_ts}
        assert {at: value for at, (value, _, _) in feed.commits.items()} == expected
    client.close()
