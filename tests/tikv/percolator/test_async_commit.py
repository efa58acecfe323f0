"""Transactions that choose their own commit ts: async commit, one-phase commit, and what falls back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.tikv.cluster import Cluster
from tests.tikv.support import MemoryView, commit, delete, pessimistic_lock, prewrite, put
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Lock, Write
from tidegate.tikv.percolator import commit as commits
from tidegate.tikv.percolator import pessimistic, status
from tidegate.tikv.percolator import prewrite as prewrites
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.percolator.outcome import CommandOutcome
from tidegate.tikv.reader import MvccReader

LONG = b"x" * 300
P = pb.PrewriteRequest


class Kv:
    """A view, the in-memory locks, and prewrites over them."""

    def __init__(self, max_ts: int = 0) -> None:
        self.view = MemoryView()
        self.concurrency = ConcurrencyManager()
        self.concurrency.update_max_ts(max_ts)

    def decide(self, *arguments: Any, **more: Any) -> CommandOutcome[Any]:
        return prewrites.prewrite(
            MvccReader(self.view), prewrite(*arguments, **more), False, self.concurrency
        )

    def prewrite(self, *arguments: Any, **more: Any) -> Any:
        outcome = self.decide(*arguments, **more)
        self.view.apply(outcome.changes)
        self.concurrency.release(outcome.published)
        return outcome.response

    def do(self, command: Any, request: Any) -> Any:
        outcome = command(MvccReader(self.view), request)
        self.view.apply(outcome.changes)
        return outcome.response


def test_an_async_prewrite_locks_above_all_reads_and_names_secondaries() -> None:
    """The lock of the primary names the other keys."""
    kv = Kv(max_ts=100)
    answer = kv.prewrite(
        10, put(b"p"), put(b"s", LONG), delete(b"t"), use_async_commit=True, secondaries=[b"s", b"t"]
    )
    assert (answer.min_commit_ts, answer.one_pc_commit_ts) == (101, 0)
    primary = kv.view.lock(b"p")
    assert primary is not None
    assert (primary.min_commit_ts, primary.secondaries) == (101, (b"s", b"t"))
    assert kv.view.lock(b"s") == Lock(mvcc.KIND_PUT, b"p", 10, 3000, min_commit_ts=101, secondaries=())
    assert kv.do(commits.commit, commit(10, 100, b"p", b"s", b"t")).error.commit_ts_expired.min_commit_ts
    assert not kv.do(commits.commit, commit(10, 101, b"p", b"s", b"t")).HasField("error")
    assert MvccReader(kv.view).value_at(keys.encode(b"s"), 101) == LONG


def test_the_chosen_ts_is_above_the_start_the_for_update_and_the_asked_ts() -> None:
    assert Kv(5).prewrite(10, put(b"k"), use_async_commit=True).min_commit_ts == 11
    assert Kv(5).prewrite(10, put(b"k"), use_async_commit=True, min_commit_ts=30).min_commit_ts == 30
    assert Kv(5).prewrite(10, put(b"k"), try_one_pc=True, for_update_ts=20).one_pc_commit_ts == 21


def test_a_one_phase_commit_leaves_records_and_no_locks() -> None:
    kv = Kv(max_ts=50)
    mutations = put(b"a", b"short"), put(b"b", LONG), delete(b"c"), pb.Mutation(op=pb.Lock, key=b"d")
    outcome = kv.decide(10, *mutations, try_one_pc=True, context=pb.Context(txn_source=3))
    assert outcome.one_pc
    assert outcome.response.one_pc_commit_ts == 51
    kv.view.apply(outcome.changes)
    assert not kv.view.families[mvcc.LOCK]
    assert kv.view.writes(b"a") == [(51, Write(mvcc.KIND_PUT, 10, b"short", txn_source=3))]
    assert kv.view.writes(b"b") == [(51, Write(mvcc.KIND_PUT, 10, txn_source=3))]
    assert kv.view.writes(b"c") == [(51, Write(mvcc.KIND_DELETE, 10, txn_source=3))]
    assert kv.view.writes(b"d") == [(51, Write(mvcc.KIND_LOCK, 10, txn_source=3))]
    assert kv.view.get(mvcc.DEFAULT, keys.versioned(keys.encode(b"b"), 10)) == LONG


def test_a_one_phase_commit_takes_its_pessimistic_locks_away() -> None:
    kv = Kv()
    kv.do(pessimistic.pessimistic_lock, pessimistic_lock(10, 12, b"k", min_commit_ts=40))
    request = {"for_update_ts": 12, "pessimistic_actions": [P.DO_PESSIMISTIC_CHECK], "try_one_pc": True}
    assert kv.prewrite(10, put(b"k"), **request).one_pc_commit_ts == 40, "the lock's min_commit_ts holds"
    assert kv.view.lock(b"k") is None
    assert kv.view.writes(b"k") == [(40, Write(mvcc.KIND_PUT, 10, b"v"))]


@pytest.mark.parametrize("kind", ["use_async_commit", "try_one_pc"])
def test_above_max_commit_ts_both_fall_back_to_two_phases(kind: str) -> None:
    kv = Kv(max_ts=100)
    answer = kv.prewrite(10, put(b"k"), max_commit_ts=100, **{kind: True})
    assert (answer.min_commit_ts, answer.one_pc_commit_ts, len(answer.errors)) == (0, 0, 0)
    assert kv.view.lock(b"k") == Lock(mvcc.KIND_PUT, b"k", 10, 3000, b"v")
    assert kv.concurrency.lock(keys.encode(b"k")) is None


def test_a_repeated_prewrite_answers_as_the_first() -> None:
    kv = Kv(max_ts=100)
    first = kv.prewrite(10, put(b"k"), use_async_commit=True)
    kv.concurrency.update_max_ts(500)
    again = kv.prewrite(10, put(b"k"), use_async_commit=True)
    assert again.min_commit_ts >= first.min_commit_ts
    kept = kv.view.lock(b"k")
    assert kept is not None
    assert kept.min_commit_ts == first.min_commit_ts, "the lock is as it was"
    kv.do(commits.commit, commit(10, first.min_commit_ts, b"k"))
    assert kv.prewrite(10, put(b"k"), use_async_commit=True).min_commit_ts == first.min_commit_ts


def test_a_repeated_one_phase_commit_returns_its_ts_and_another_conflicts() -> None:
    kv = Kv(max_ts=100)
    assert kv.prewrite(10, put(b"k"), try_one_pc=True).one_pc_commit_ts == 101
    assert kv.prewrite(10, put(b"k"), try_one_pc=True).one_pc_commit_ts == 101
    assert kv.prewrite(11, put(b"k"), try_one_pc=True).errors[0].conflict.conflict_commit_ts == 101
    assert len(kv.view.writes(b"k")) == 1


@pytest.mark.parametrize("commit_ts", [12, 30])
def test_a_rollback_next_to_an_async_lock_lasts_whenever_that_commits(commit_ts: int) -> None:
    kv = Kv()
    assert kv.prewrite(10, put(b"k"), use_async_commit=True).min_commit_ts == 11
    asked = pb.CheckSecondaryLocksRequest(keys=[b"k"], start_version=30)
    answer = kv.do(status.check_secondary_locks, asked)
    assert (list(answer.locks), answer.commit_ts) == ([], 0), "rolled back"
    assert kv.prewrite(30, put(b"k"), use_async_commit=True).errors, "the key is locked"
    assert not kv.do(commits.commit, commit(10, commit_ts, b"k")).HasField("error")
    assert kv.prewrite(30, put(b"k"), use_async_commit=True).errors[0].HasField("conflict")
    assert kv.view.lock(b"k") is None


def test_a_retry_of_what_fell_back_stays_two_phase() -> None:
    kv = Kv(max_ts=100)
    kv.prewrite(10, put(b"k"), try_one_pc=True, max_commit_ts=50)
    answer = kv.prewrite(10, put(b"k"), try_one_pc=True)
    assert (answer.one_pc_commit_ts, answer.min_commit_ts) == (0, 0)
    assert not kv.view.writes(b"k")


def test_a_refused_prewrite_leaves_nothing_in_memory() -> None:
    kv = Kv()
    kv.prewrite(5, put(b"b"))
    assert kv.prewrite(10, put(b"a"), put(b"b"), use_async_commit=True).errors[0].locked.lock_version == 5
    assert kv.concurrency.locks_in(b"", b"") == []
    assert kv.concurrency.min_lock_ts(99) == 99


def test_readers_meet_locks_in_memory_that_may_commit_below_them(make: Callable[..., Cluster]) -> None:
    """The choice is made, the write not yet applied: a reader above must wait, one below need not."""
    cluster = make()
    old = cluster.txn(put(b"k", b"old"))
    start_ts = cluster.tso.get()
    lock = Lock(mvcc.KIND_PUT, b"k", start_ts, 3000, secondaries=())
    chosen = cluster.concurrency.publish([(keys.encode(b"k"), lock)], start_ts + 1, 0)
    assert chosen is not None
    later = cluster.tso.get()
    get = pb.GetRequest(key=b"k", version=later)
    assert cluster.call(get, b"k").error.locked.lock_version == start_ts
    assert (
        cluster.call(pb.BatchGetRequest(keys=[b"k"], version=later), b"k").pairs[0].error.HasField("locked")
    )
    scan = pb.ScanRequest(start_key=b"a", limit=9, version=later)
    assert cluster.call(scan, b"k").error.locked.key == b"k"
    assert cluster.call(pb.ScanLockRequest(max_version=later), b"k").error.HasField("locked")
    ignoring = pb.GetRequest(key=b"k", version=later)
    ignoring.context.resolved_locks.append(start_ts)
    assert cluster.call(ignoring, b"k").value == b"old"
    committed = pb.GetRequest(key=b"k", version=later, context=pb.Context(isolation_level=pb.RC))
    assert cluster.call(committed, b"k").value == b"old"
    assert cluster.call(pb.GetRequest(key=b"k", version=old), b"k").value == b"old"
    cluster.concurrency.release(chosen.keys)
    assert cluster.call(get, b"k").value == b"old"
    again = cluster.concurrency.publish([(keys.encode(b"k"), lock)], 0, 0)
    assert again is not None
    assert again.ts > later, "who reads raises what is chosen later"


def test_who_asks_for_a_fate_is_not_contradicted_later(make: Callable[..., Cluster]) -> None:
    cluster = make()
    start_ts = cluster.tso.get()
    asked = start_ts + 1000
    check = pb.CheckTxnStatusRequest(
        primary_key=b"p", lock_ts=start_ts, caller_start_ts=asked, current_ts=asked + 5
    )
    assert cluster.call(check, b"p").error.HasField("txn_not_found")
    assert cluster.concurrency.max_ts == asked + 5
    secondary = pb.CheckSecondaryLocksRequest(keys=[b"s"], start_version=asked + 10)
    assert cluster.call(secondary, b"s").commit_ts == 0
    assert cluster.concurrency.max_ts == asked + 10
    late = cluster.call(prewrite(asked + 10, put(b"s"), use_async_commit=True), b"s")
    assert late.errors[0].conflict.reason == pb.WriteConflict.SelfRolledBack


def test_reads_and_one_phase_commits_from_many_threads_never_contradict(make: Callable[..., Cluster]) -> None:
    """A reader that saw no commit at its ts must not find one there afterwards."""
    cluster = make()
    seen: set[tuple[int, bytes]] = set()
    problems: list[str] = []

    def write(number: int) -> None:
        for i in itertools.count():
            if i >= 40 and len({value for _, value in list(seen)}) > 5:
                return  # however seldom the readers have their turn
            start_ts = cluster.tso.get()
            value = b"%d-%d" % (number, i)
            kind: dict[str, Any] = {"try_one_pc": True} if i % 2 else {"use_async_commit": True}
            answer = cluster.call(prewrite(start_ts, put(b"k", value), **kind), b"k")
            if answer.min_commit_ts:
                cluster.call(commit(start_ts, answer.min_commit_ts, b"k"), b"k")

    def read() -> None:
        while any(writer.is_alive() for writer in writers):
            ts = cluster.tso.get()
            answer = cluster.call(pb.GetRequest(key=b"k", version=ts), b"k")
            if not answer.HasField("error"):
                seen.add((ts, answer.value))

    writers = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    threads = [*writers, *(threading.Thread(target=read) for _ in range(2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = MvccReader(cluster.engine)
    for ts, value in seen:
        now = reader.value_at(keys.encode(b"k"), ts) or b""
        if now != value:
            problems.append(f"at {ts}: {value!r} became {now!r}")
    assert not problems
    assert len({value for _, value in seen}) > 5


def test_a_ts_far_ahead_of_pd_is_refused_and_moves_nothing(make: Callable[..., Cluster]) -> None:
    cluster = make()
    far = cluster.tso.get() + (61_000 << 18)
    for request, raw in (
        (pb.GetRequest(key=b"k", version=far), b"k"),
        (pb.ScanLockRequest(max_version=far), b"k"),
        (pb.CheckSecondaryLocksRequest(keys=[b"k"], start_version=far), b"k"),
    ):
        assert "is more than 60 s ahead of PD's time" in cluster.call(request, raw).error.abort
    assert "ahead of PD" in cluster.call(prewrite(far, put(b"k"), try_one_pc=True), b"k").errors[0].abort
    assert cluster.concurrency.max_ts < far
    newest = pb.GetRequest(key=b"k", version=keys.TS_MAX)
    assert cluster.call(newest, b"k").not_found, "the newest of all is no time"


def test_a_mutation_that_is_none_of_a_prewrite_is_refused() -> None:
    kv = Kv()
    for op in (pb.Rollback, pb.PessimisticLock, pb.SharedLock):
        error = kv.prewrite(10, put(b"a"), pb.Mutation(op=op, key=b"b")).errors[0]
        assert error.abort == f"a prewrite cannot have a mutation of kind {op}"
    assert kv.view.lock(b"a") is None
