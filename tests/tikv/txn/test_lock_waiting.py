"""Pessimistic locks: who waits, who is woken, who is the victim; and locking in spite of a conflict."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.tikv.cluster import WAIT_S, Cluster, wait_until
from tests.tikv.support import commit, pessimistic_lock, prewrite, put, rollback
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv.txn.deadlock import DeadlockDetector, Edge

LONG_MS = int(WAIT_S * 1000)
P = pb.PrewriteRequest


def lock(start_ts: int, *raw: bytes, wait_ms: int = LONG_MS, **more: Any) -> pb.PessimisticLockRequest:
    more.setdefault("lock_ttl", 60_000)
    return pessimistic_lock(start_ts, start_ts, *raw, wait_timeout=wait_ms, **more)


def unlock(start_ts: int, *raw: bytes) -> pb.PessimisticRollbackRequest:
    return pb.PessimisticRollbackRequest(start_version=start_ts, for_update_ts=start_ts, keys=raw)


def waiting(cluster: Cluster) -> int:
    return len(cluster.waiting.detector.entries())


def test_a_request_waits_for_a_lock_and_gets_it_when_it_is_released(make: Callable[..., Cluster]) -> None:
    cluster = make()
    assert not cluster.call(lock(10, b"k"), b"k").errors
    second = cluster.begin(lock(20, b"k"), b"k")
    wait_until(lambda: waiting(cluster) == 1)
    assert not second.is_there
    info = cluster.store.lock_wait_info().entries[0]
    assert (info.txn, info.wait_for_txn, info.key) == (20, 10, b"k")
    cluster.call(unlock(10, b"k"), b"k")
    assert not second.response().errors
    assert waiting(cluster) == 0
    assert cluster.call(lock(30, b"k", wait_ms=-1), b"k").errors[0].locked.lock_version == 20


def test_a_commit_wakes_the_waiter_into_a_conflict_that_it_retries(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.call(prewrite(10, put(b"k")), b"k")
    second = cluster.begin(lock(20, b"k", return_values=True), b"k")
    wait_until(lambda: waiting(cluster) == 1)
    cluster.call(commit(10, 25, b"k"), b"k")
    conflict = second.response().errors[0].conflict
    assert (conflict.conflict_commit_ts, conflict.reason) == (25, pb.WriteConflict.PessimisticRetry)
    again = lock(20, b"k", return_values=True)
    again.for_update_ts = 30
    assert list(cluster.call(again, b"k").values) == [b"v"]


def test_the_time_a_request_waits_is_its_own(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.call(lock(10, b"k"), b"k")
    assert cluster.call(lock(20, b"k", wait_ms=-1), b"k").errors[0].locked.lock_version == 10
    began = time.monotonic()
    patient = cluster.begin(lock(21, b"k"), b"k")
    assert cluster.call(lock(20, b"k", wait_ms=30), b"k").errors[0].locked.lock_version == 10
    assert time.monotonic() - began >= 0.03
    assert not patient.is_there
    cluster.call(rollback(10, b"k"), b"k")
    assert not patient.response().errors


def test_the_oldest_waiter_is_woken_and_the_others_wait_for_it(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.call(lock(10, b"k"), b"k")
    young, old = cluster.begin(lock(40, b"k"), b"k"), cluster.begin(lock(30, b"k"), b"k")
    wait_until(lambda: waiting(cluster) == 2)
    cluster.call(unlock(10, b"k"), b"k")
    assert not old.response().errors
    wait_until(lambda: [e.wait_for_txn for e in cluster.waiting.detector.entries()] == [30])
    assert not young.is_there
    cluster.call(unlock(30, b"k"), b"k")
    assert not young.response().errors


def test_a_woken_request_that_does_not_take_the_lock_passes_it_on(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.txn(put(b"k", b"there"))
    start_ts = [cluster.tso.get() for _ in range(3)]
    cluster.call(lock(start_ts[0], b"k"), b"k")
    picky = pessimistic_lock(start_ts[1], start_ts[1], b"k", wait_timeout=LONG_MS)
    picky.mutations[0].assertion = pb.NotExist
    first, second = cluster.begin(picky, b"k"), cluster.begin(lock(start_ts[2], b"k"), b"k")
    wait_until(lambda: waiting(cluster) == 2)
    cluster.call(unlock(start_ts[0], b"k"), b"k")
    assert first.response().errors[0].already_exist.key == b"k"
    assert not second.response().errors


def test_two_that_wait_for_each_other_get_a_deadlock_with_the_chain(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(b"m")
    for start_ts, raw in ((10, b"a"), (20, b"z")):  # in two regions
        cluster.call(lock(start_ts, raw), raw)
    first = cluster.begin(lock(10, b"z", primary=b"a"), b"z")
    wait_until(lambda: waiting(cluster) == 1)
    found = cluster.call(lock(20, b"a", primary=b"z"), b"a").errors[0].deadlock
    assert (found.lock_ts, found.lock_key, found.deadlock_key) == (10, b"a", b"z")
    assert [(each.txn, each.wait_for_txn, each.key) for each in found.wait_chain] == [
        (10, 20, b"z"),
        (20, 10, b"a"),
    ]
    cluster.call(unlock(20, b"z"), b"z")
    assert not first.response().errors, "the victim's lock is free now"


def test_a_waiter_is_the_victim_when_the_lock_goes_into_a_cycle(
    make: Callable[..., Cluster],
) -> None:
    """30 waits for 10 at k; 20 holds m and gets k; 30 holds n, for which 20 waits already."""
    cluster = make()
    cluster.call(lock(10, b"k"), b"k")
    cluster.call(lock(30, b"n"), b"n")
    both = cluster.begin(lock(20, b"k", primary=b"m"), b"k")
    wait_until(lambda: waiting(cluster) == 1)
    young = cluster.begin(lock(30, b"k", primary=b"n"), b"k")
    wait_until(lambda: waiting(cluster) == 2)
    third = cluster.begin(lock(20, b"n", primary=b"m"), b"n")
    wait_until(lambda: waiting(cluster) == 3)
    cluster.call(unlock(10, b"k"), b"k")
    assert not both.response().errors
    assert young.response().errors[0].deadlock.lock_ts == 20
    cluster.call(unlock(30, b"n"), b"n")
    assert not third.response().errors


def test_locking_in_spite_of_a_conflict_tells_the_newer_commit(make: Callable[..., Cluster]) -> None:
    cluster = make()
    commit_ts = cluster.txn(put(b"k", b"new"))
    request = pessimistic_lock(5, 5, b"k", wake_up_mode=pb.WakeUpModeForceLock)
    for _ in range(2):  # a retry answers alike
        result = cluster.call(request, b"k").results[0]
        assert result.type == pb.LockResultLockedWithConflict
        assert (result.locked_with_conflict_ts, result.value, result.existence) == (commit_ts, b"new", True)
    info = cluster.call(pb.MvccGetByKeyRequest(key=b"k"), b"k").info
    assert (info.lock.type, info.lock.for_update_ts) == (pb.PessimisticLock, commit_ts)
    wrong = prewrite(5, put(b"k"), for_update_ts=5, pessimistic_actions=[P.DO_PESSIMISTIC_CHECK])
    wrong.for_update_ts_constraints.add(index=0, expected_for_update_ts=5)
    assert "pessimistic lock not found" in cluster.call(wrong, b"k").errors[0].abort
    wrong.for_update_ts_constraints[0].expected_for_update_ts = commit_ts
    assert not cluster.call(wrong, b"k").errors
    two = pessimistic_lock(6, 6, b"a", b"b", wake_up_mode=pb.WakeUpModeForceLock)
    assert "only a request for one key" in cluster.call(two, b"a").errors[0].abort


def test_lock_only_if_exists_locks_nothing_else(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.txn(put(b"a"))
    ts = cluster.tso.get()
    request = pessimistic_lock(ts, ts, b"a", b"b", return_values=True, lock_only_if_exists=True)
    assert list(cluster.call(request, b"a").not_founds) == [False, True]
    locks = cluster.call(pb.ScanLockRequest(max_version=ts + 1), b"a").locks
    assert [each.key for each in locks] == [b"a"]
    request.return_values = False
    assert "needs return_values" in cluster.call(request, b"a").errors[0].abort


def test_a_stop_answers_everybody_who_waits(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.call(lock(10, b"k"), b"k")
    waiters = [cluster.begin(lock(20 + i, b"k"), b"k") for i in range(3)]
    wait_until(lambda: waiting(cluster) == 3)
    cluster.waiting.stop()
    assert all(each.response().errors[0].locked.lock_version == 10 for each in waiters)
    assert cluster.call(lock(40, b"k"), b"k").errors[0].HasField("locked"), "nobody waits any more"


def test_many_transactions_on_few_keys_all_come_to_an_end(make: Callable[..., Cluster]) -> None:
    cluster = make()
    ends: list[str] = []

    def work(number: int) -> None:
        for _ in range(6):
            start_ts = cluster.tso.get()
            order = (b"a", b"b") if number % 2 else (b"b", b"a")
            for raw in order:
                request = pessimistic_lock(
                    start_ts, cluster.tso.get(), raw, primary=order[0], wait_timeout=LONG_MS, lock_ttl=60_000
                )
                errors = cluster.call(request, raw).errors
                if errors:
                    ends.append("deadlock" if errors[0].HasField("deadlock") else "other")
                    break
            else:
                ends.append("locked")
            request = unlock(start_ts, *order)
            request.for_update_ts = cluster.tso.get()
            cluster.call(request, b"a")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert len(ends) == 36
    assert "other" not in ends
    assert "locked" in ends
    assert waiting(cluster) == 0


EDGES = st.tuples(st.integers(1, 6), st.integers(1, 6)).filter(lambda edge: edge[0] != edge[1])


@given(st.lists(EDGES, max_size=25))
def test_the_graph_never_has_a_cycle_and_refuses_only_what_would_close_one(
    edges: list[tuple[int, int]],
) -> None:
    detector = DeadlockDetector()
    kept: list[tuple[int, int]] = []

    def reaches(origin: int, target: int) -> bool:
        seen, ahead = {origin}, [origin]
        while ahead:
            at = ahead.pop()
            ahead += [b for a, b in kept if a == at and b not in seen]
            seen |= {b for a, b in kept if a == at}
        return target in seen

    for txn, holder in edges:
        refused = detector.wait(Edge(txn, holder, b"k", 0.0))
        assert (refused is not None) == reaches(holder, txn)
        if refused is None:
            kept.append((txn, holder))
        else:
            chain = [(each.txn, each.wait_for_txn) for each in refused.wait_chain]
            assert chain[-1] == (txn, holder)
            assert all(step in kept for step in chain[:-1])
