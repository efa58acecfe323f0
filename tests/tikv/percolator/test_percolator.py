"""The rules of percolator, one by one, and all together against a simple model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tikv.support import (
    MemoryView,
    commit,
    delete,
    pessimistic_lock,
    prewrite,
    put,
    rollback,
)
from tidegate.model import timestamp
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.mvcc import Lock, Write
from tidegate.tikv.percolator import commit as commits
from tidegate.tikv.percolator import pessimistic, status
from tidegate.tikv.percolator import prewrite as prewrites
from tidegate.tikv.percolator.outcome import CommandOutcome
from tidegate.tikv.reader import MvccReader

LONG = b"x" * 256
P = pb.PrewriteRequest


class Kv:
    """A view and the commands over it; `do` applies what a command decided and returns its answer."""

    def __init__(self) -> None:
        self.view = MemoryView()

    def do(self, command: Any, *arguments: Any) -> Any:
        outcome: CommandOutcome[Any] = command(MvccReader(self.view), *arguments)
        self.view.apply(outcome.changes)
        return outcome.response

    def prewrite(self, *arguments: Any, **more: Any) -> Any:
        return self.do(prewrites.prewrite, prewrite(*arguments, **more))

    def commit(self, *arguments: Any) -> Any:
        return self.do(commits.commit, commit(*arguments))

    def rollback(self, *arguments: Any) -> Any:
        return self.do(commits.batch_rollback, rollback(*arguments))

    def pessimistic_lock(self, *arguments: Any, **more: Any) -> Any:
        return self.do(pessimistic.pessimistic_lock, pessimistic_lock(*arguments, **more))

    def check(self, primary: bytes, lock_ts: int, **more: Any) -> Any:
        return self.do(
            status.check_txn_status,
            pb.CheckTxnStatusRequest(primary_key=primary, lock_ts=lock_ts, **more),
        )

    def value(self, raw: bytes, ts: int) -> bytes | None:
        return MvccReader(self.view).value_at(keys.encode(raw), ts)

    def put_version(self, raw: bytes, start_ts: int, commit_ts: int, value: bytes = b"v") -> None:
        assert not self.prewrite(start_ts, put(raw, value)).errors
        assert not self.commit(start_ts, commit_ts, raw).HasField("error")


class Announced:
    """A resolved ts was announced for all keys."""

    def __init__(self, ts: int) -> None:
        self.highest = ts

    def __call__(self, key: bytes, /) -> int:
        return self.highest


@pytest.fixture
def kv() -> Kv:
    return Kv()


# --- prewrite and commit ---


def test_a_short_value_is_in_the_lock_then_in_the_write_record(kv: Kv) -> None:
    assert not kv.prewrite(10, put(b"k", b"short")).errors
    assert kv.view.lock(b"k") == Lock(mvcc.KIND_PUT, b"k", 10, 3000, b"short")
    assert not kv.commit(10, 20, b"k").HasField("error")
    assert kv.view.lock(b"k") is None
    assert kv.view.writes(b"k") == [(20, Write(mvcc.KIND_PUT, 10, b"short"))]
    assert not kv.view.families[mvcc.DEFAULT]


def test_a_long_value_is_in_the_default_family_at_its_start(kv: Kv) -> None:
    kv.prewrite(10, put(b"k", LONG))
    assert kv.view.lock(b"k") == Lock(mvcc.KIND_PUT, b"k", 10, 3000)
    assert kv.view.get(mvcc.DEFAULT, keys.versioned(keys.encode(b"k"), 10)) == LONG
    kv.commit(10, 20, b"k")
    assert kv.value(b"k", 20) == LONG
    assert kv.view.writes(b"k") == [(20, Write(mvcc.KIND_PUT, 10))]


def test_a_delete_hides_and_a_lock_only_mutation_changes_nothing(kv: Kv) -> None:
    kv.put_version(b"a", 1, 2)
    kv.prewrite(3, delete(b"a"), pb.Mutation(op=pb.Lock, key=b"b"))
    kv.commit(3, 4, b"a", b"b")
    assert kv.value(b"a", 4) is None
    assert kv.value(b"a", 3) == b"v"
    assert kv.view.writes(b"b") == [(4, Write(mvcc.KIND_LOCK, 3))]


def test_another_transactions_locks_stop_a_prewrite_and_are_all_named(kv: Kv) -> None:
    kv.prewrite(10, put(b"a"), put(b"b"))
    errors = kv.prewrite(11, put(b"a"), put(b"b"), put(b"c")).errors
    assert [error.locked.key for error in errors] == [b"a", b"b"]
    assert errors[0].locked.lock_version == 10
    assert kv.view.lock(b"c") is None, "all or nothing"


def test_a_newer_commit_is_a_conflict(kv: Kv) -> None:
    kv.put_version(b"k", 10, 20)
    conflict = kv.prewrite(15, put(b"k")).errors[0].conflict
    assert (conflict.start_ts, conflict.conflict_ts, conflict.conflict_commit_ts) == (15, 10, 20)
    assert conflict.reason == pb.WriteConflict.Optimistic
    assert not kv.prewrite(20, put(b"k")).errors, "a commit at exactly the start is seen"


def test_a_prewrite_or_commit_may_be_repeated(kv: Kv) -> None:
    for _ in range(2):
        assert not kv.prewrite(10, put(b"k")).errors
    for _ in range(2):
        assert not kv.commit(10, 20, b"k").HasField("error")
    assert len(kv.view.writes(b"k")) == 1


def test_an_insert_of_an_existing_key_fails_and_a_check_leaves_no_lock(kv: Kv) -> None:
    """The check is check-not-exists."""
    kv.put_version(b"k", 1, 2)
    error = kv.prewrite(3, pb.Mutation(op=pb.Insert, key=b"k")).errors[0]
    assert error.already_exist.key == b"k"
    assert not kv.prewrite(3, pb.Mutation(op=pb.CheckNotExists, key=b"free")).errors
    assert kv.view.lock(b"free") is None
    kv.prewrite(4, delete(b"k"))
    kv.commit(4, 5, b"k")
    assert not kv.prewrite(6, pb.Mutation(op=pb.Insert, key=b"k")).errors


def test_an_assertion_is_checked_when_asked(kv: Kv) -> None:
    failed = kv.prewrite(3, put(b"k", assertion=pb.Exist), assertion_level=pb.Strict).errors[0]
    assert failed.assertion_failed.key == b"k"
    assert not kv.prewrite(3, put(b"k", assertion=pb.Exist)).errors


def test_a_commit_below_the_locks_min_commit_ts_is_refused(kv: Kv) -> None:
    kv.prewrite(10, put(b"k"), min_commit_ts=15)
    expired = kv.commit(10, 14, b"k").error.commit_ts_expired
    assert (expired.attempted_commit_ts, expired.min_commit_ts) == (14, 15)
    assert not kv.commit(10, 15, b"k").HasField("error")


def test_a_data_commit_up_to_the_announced_resolved_ts_is_rejected(kv: Kv) -> None:
    """A commit of a lock-only key is accepted."""
    kv.prewrite(10, put(b"k"), pb.Mutation(op=pb.Lock, key=b"l"))
    refused = kv.do(commits.commit, commit(10, 20, b"k"), Announced(20))
    assert refused.error.commit_ts_expired.min_commit_ts == 21
    assert not kv.do(commits.commit, commit(10, 20, b"l"), Announced(20)).HasField("error")
    assert not kv.do(commits.commit, commit(10, 20, b"k"), Announced(19)).HasField("error")


def test_a_commit_without_its_lock_fails(kv: Kv) -> None:
    assert kv.commit(10, 20, b"k").error.txn_lock_not_found.key == b"k"
    kv.prewrite(11, put(b"k"))
    assert kv.commit(10, 20, b"k").error.HasField("txn_lock_not_found")


def test_old_values_are_those_a_reader_at_the_start_saw(kv: Kv) -> None:
    kv.put_version(b"a", 1, 2, b"one")
    kv.put_version(b"b", 1, 2, LONG)
    request = prewrite(5, put(b"a", b"two"), delete(b"b"), put(b"c"))
    outcome = prewrites.prewrite(MvccReader(kv.view), request, want_old_values=True)
    assert outcome.old_values == {keys.encode(b"a"): b"one", keys.encode(b"b"): LONG, keys.encode(b"c"): None}
    assert prewrites.prewrite(MvccReader(kv.view), request).old_values == {}


# --- rollback ---


def test_a_rolled_back_transaction_cannot_prewrite_again(kv: Kv) -> None:
    kv.prewrite(10, put(b"k", LONG))
    kv.rollback(10, b"k")
    assert kv.view.lock(b"k") is None
    assert not kv.view.families[mvcc.DEFAULT]
    conflict = kv.prewrite(10, put(b"k")).errors[0].conflict
    assert conflict.reason == pb.WriteConflict.SelfRolledBack
    assert kv.commit(10, 20, b"k").error.HasField("txn_lock_not_found")


def test_a_rollback_may_come_before_its_prewrite(kv: Kv) -> None:
    kv.rollback(10, b"k")
    assert kv.prewrite(10, put(b"k")).errors[0].conflict.reason == pb.WriteConflict.SelfRolledBack


def test_a_committed_transaction_cannot_be_rolled_back(kv: Kv) -> None:
    kv.put_version(b"k", 10, 20)
    assert kv.rollback(10, b"k").error.abort
    answer = kv.do(commits.cleanup, pb.CleanupRequest(key=b"k", start_version=10))
    assert answer.commit_version == 20


def test_another_transactions_lock_is_left_alone_by_a_rollback(kv: Kv) -> None:
    kv.prewrite(10, put(b"k"))
    kv.rollback(5, b"k")
    assert kv.view.lock(b"k") is not None
    assert not kv.commit(10, 20, b"k").HasField("error")
    assert [ts for ts, _ in kv.view.writes(b"k")] == [20, 5]


def test_the_primarys_rollback_is_protected_and_others_collapse(kv: Kv) -> None:
    kv.prewrite(10, put(b"p"), put(b"s"))
    kv.rollback(10, b"p", b"s")
    assert kv.view.writes(b"p") == [(10, Write(mvcc.KIND_ROLLBACK, 10, mvcc.PROTECTED))]
    kv.rollback(12, b"p", b"s")
    assert [ts for ts, _ in kv.view.writes(b"p")] == [12, 10], "a protected mark stays"
    assert [ts for ts, _ in kv.view.writes(b"s")] == [12], "an unprotected one is replaced by the next"


def test_a_rollback_at_anothers_commit_ts_never_overwrites_it(kv: Kv) -> None:
    kv.put_version(b"k", 10, 20, b"kept")
    kv.prewrite(20, put(b"p"), put(b"k"))
    kv.rollback(20, b"k")
    assert kv.view.writes(b"k") == [(20, Write(mvcc.KIND_PUT, 10, b"kept"))], "nothing is written"
    kv.check(b"k", 20, rollback_if_not_exist=True)
    assert kv.view.writes(b"k") == [(20, Write(mvcc.KIND_PUT, 10, b"kept", True, 0))], (
        "protected: flagged and fenced"
    )
    assert kv.value(b"k", 30) == b"kept"
    assert kv.prewrite(20, put(b"k")).errors[0].conflict.reason == pb.WriteConflict.SelfRolledBack


def test_cleanup_spares_a_lock_that_is_alive(kv: Kv) -> None:
    start = timestamp.compose(1000)
    kv.prewrite(start, put(b"k"), lock_ttl=50)
    early = pb.CleanupRequest(key=b"k", start_version=start, current_ts=timestamp.compose(1050))
    assert kv.do(commits.cleanup, early).error.HasField("locked")
    late = pb.CleanupRequest(key=b"k", start_version=start, current_ts=timestamp.compose(1051))
    assert not kv.do(commits.cleanup, late).HasField("error")
    assert kv.view.lock(b"k") is None


# --- pessimistic ---


def test_a_pessimistic_lock_is_upgraded_by_the_prewrite(kv: Kv) -> None:
    kv.put_version(b"k", 1, 20, b"seen")
    answer = kv.pessimistic_lock(10, 25, b"k", return_values=True)
    assert (list(answer.values), list(answer.not_founds)) == ([b"seen"], [False])
    assert kv.view.lock(b"k") == Lock(mvcc.KIND_PESSIMISTIC, b"k", 10, 3000, for_update_ts=25)
    request = prewrite(10, put(b"k", b"new"), for_update_ts=25, pessimistic_actions=[P.DO_PESSIMISTIC_CHECK])
    outcome = prewrites.prewrite(MvccReader(kv.view), request, want_old_values=True)
    assert outcome.old_values == {keys.encode(b"k"): b"seen"}, (
        "read at for_update_ts, though committed after the start"
    )
    kv.view.apply(outcome.changes)
    assert kv.view.lock(b"k") == Lock(mvcc.KIND_PUT, b"k", 10, 3000, b"new", 25)
    assert not kv.commit(10, 30, b"k").HasField("error")


def test_a_pessimistic_lock_conflicts_with_commits_after_its_for_update_ts(kv: Kv) -> None:
    kv.put_version(b"k", 1, 20)
    conflict = kv.pessimistic_lock(10, 15, b"k").errors[0].conflict
    assert (conflict.conflict_commit_ts, conflict.reason) == (20, pb.WriteConflict.PessimisticRetry)
    assert not kv.pessimistic_lock(10, 20, b"k").errors


def test_a_lost_pessimistic_lock_is_replaced_unless_somebody_wrote(kv: Kv) -> None:
    kv.put_version(b"k", 1, 2)
    action = {"for_update_ts": 10, "pessimistic_actions": [P.DO_PESSIMISTIC_CHECK]}
    assert not kv.prewrite(10, put(b"k"), **action).errors
    kv.rollback(10, b"k")
    kv.put_version(b"k", 11, 12)
    assert "pessimistic lock not found" in kv.prewrite(10, put(b"k"), **action).errors[0].abort


def test_a_pessimistic_rollback_takes_only_its_own_older_locks(kv: Kv) -> None:
    kv.pessimistic_lock(10, 12, b"a", b"b")
    kv.prewrite(10, put(b"b"), for_update_ts=12, pessimistic_actions=[P.DO_PESSIMISTIC_CHECK])
    request = pb.PessimisticRollbackRequest(start_version=10, for_update_ts=11, keys=[b"a", b"b"])
    kv.do(pessimistic.pessimistic_rollback, request)
    assert kv.view.lock(b"a") is not None, "locked by a later statement"
    request.for_update_ts = 12
    kv.do(pessimistic.pessimistic_rollback, request)
    assert kv.view.lock(b"a") is None
    assert kv.view.lock(b"b") is not None, "prewritten already"


def test_a_pessimistic_lock_that_was_never_prewritten_is_dropped_at_commit(kv: Kv) -> None:
    kv.pessimistic_lock(10, 10, b"k")
    assert not kv.commit(10, 20, b"k").HasField("error")
    assert (kv.view.lock(b"k"), kv.view.writes(b"k")) == (None, [])


def test_a_later_for_update_ts_loads_a_transaction_below_a_newer_commit(
    kv: Kv,
) -> None:
    """Without it the prewrite of the recorded transaction is a conflict."""
    kv.put_version(b"k", 10, 20, b"first")
    assert kv.prewrite(15, put(b"k")).errors, "optimistically it is a conflict"
    assert not kv.pessimistic_lock(15, 24, b"k").errors
    assert not kv.prewrite(
        15, put(b"k", b"second"), for_update_ts=24, pessimistic_actions=[P.DO_PESSIMISTIC_CHECK]
    ).errors
    assert not kv.commit(15, 25, b"k").HasField("error")
    assert [kv.value(b"k", ts) for ts in (20, 24, 25)] == [b"first", b"first", b"second"]


# --- what became of a transaction ---


def test_the_status_of_a_live_lock_pushes_its_min_commit_ts(kv: Kv) -> None:
    kv.prewrite(10, put(b"k"), min_commit_ts=11)
    status = kv.check(b"k", 10, caller_start_ts=30, current_ts=31)
    assert (status.lock_ttl, status.action) == (3000, pb.MinCommitTSPushed)
    lock = kv.view.lock(b"k")
    assert lock is not None
    assert lock.min_commit_ts == 31
    earlier = kv.check(b"k", 10, caller_start_ts=20, current_ts=32)
    assert earlier.action == pb.MinCommitTSPushed, "it may pass over the lock, too"
    assert kv.check(b"k", 10, caller_start_ts=0, current_ts=32).action == pb.NoAction
    assert kv.commit(10, 30, b"k").error.HasField("commit_ts_expired")


def test_the_status_of_an_expired_lock_rolls_it_back(kv: Kv) -> None:
    start = timestamp.compose(1000)
    kv.prewrite(start, put(b"k"), lock_ttl=10)
    status = kv.check(b"k", start, current_ts=timestamp.compose(1011))
    assert status.action == pb.TTLExpireRollback
    assert kv.view.writes(b"k") == [(start, Write(mvcc.KIND_ROLLBACK, start, mvcc.PROTECTED))]
    assert kv.check(b"k", start, rollback_if_not_exist=True).action == pb.NoAction


def test_the_status_of_a_finished_or_unknown_transaction(kv: Kv) -> None:
    kv.put_version(b"k", 10, 20)
    assert kv.check(b"k", 10).commit_version == 20
    assert kv.check(b"k", 15).error.txn_not_found.start_ts == 15
    assert kv.check(b"k", 15, rollback_if_not_exist=True).action == pb.LockNotExistRollback
    assert kv.prewrite(15, put(b"k")).errors, "it is rolled back now"


def test_a_lock_that_names_another_primary_is_reported(kv: Kv) -> None:
    kv.prewrite(10, put(b"s"), primary=b"p")
    error = kv.check(b"s", 10, verify_is_primary=True).error
    assert error.primary_mismatch.lock_info.primary_lock == b"p"


def test_a_heartbeat_prolongs_and_never_shortens(kv: Kv) -> None:
    kv.prewrite(10, put(b"k"))
    beat = pb.TxnHeartBeatRequest(primary_lock=b"k", start_version=10, advise_lock_ttl=9000)
    assert kv.do(status.heart_beat, beat).lock_ttl == 9000
    beat.advise_lock_ttl = 5
    assert kv.do(status.heart_beat, beat).lock_ttl == 9000
    beat.start_version = 11
    assert kv.do(status.heart_beat, beat).error.HasField("txn_not_found")


def test_missing_secondaries_roll_the_transaction_back(kv: Kv) -> None:
    kv.prewrite(10, put(b"p"), put(b"a"))
    ask = pb.CheckSecondaryLocksRequest(keys=[b"a"], start_version=10)
    assert [lock.key for lock in kv.do(status.check_secondary_locks, ask).locks] == [b"a"]
    ask.keys.append(b"b")
    answer = kv.do(status.check_secondary_locks, ask)
    assert (list(answer.locks), answer.commit_ts) == ([], 0)
    assert kv.prewrite(10, put(b"b")).errors
    kv.commit(10, 20, b"a")
    ask.keys[:] = [b"a"]
    assert kv.do(status.check_secondary_locks, ask).commit_ts == 20


def test_resolving_commits_or_rolls_back_each_transaction_by_its_fate(kv: Kv) -> None:
    kv.prewrite(10, put(b"a"), put(b"b"), primary=b"p")
    kv.prewrite(11, put(b"c"), primary=b"q")
    answer = kv.do(
        commits.resolve_locks, [keys.encode(raw) for raw in (b"a", b"b", b"c", b"gone")], {10: 20, 11: 0}
    )
    assert not answer.HasField("error")
    assert kv.value(b"a", 20) == kv.value(b"b", 20) == b"v"
    assert kv.view.lock(b"c") is None
    assert kv.value(b"c", 99) is None


# --- all together ---

KEYS = [b"a", b"b", b"c"]


class Model:
    """The expected result of transactions: committed versions, locks and rollbacks, key by key."""

    def __init__(self) -> None:
        self.versions: dict[bytes, dict[int, bytes | None]] = {key: {} for key in KEYS}
        self.locks: dict[bytes, tuple[int, bytes | None]] = {}
        self.rolled_back: set[tuple[bytes, int]] = set()

    def prewrite(self, start_ts: int, key: bytes, value: bytes | None) -> bool:
        owner = self.locks.get(key)
        if owner is not None:
            return owner[0] == start_ts
        newest = max(self.versions[key], default=0)
        marks = [ts for marked, ts in self.rolled_back if marked == key]
        if newest > start_ts or (key, start_ts) in self.rolled_back or max(marks, default=0) > start_ts:
            return False
        self.locks[key] = (start_ts, value)
        return True

    def commit(self, start_ts: int, commit_ts: int, key: bytes, committed: set[tuple[bytes, int]]) -> bool:
        owner = self.locks.get(key)
        if owner is None or owner[0] != start_ts:
            return (key, start_ts) in committed
        del self.locks[key]
        self.versions[key][commit_ts] = owner[1]
        committed.add((key, start_ts))
        return True

    def rollback(self, start_ts: int, key: bytes, committed: set[tuple[bytes, int]]) -> bool:
        if (key, start_ts) in committed:
            return False
        if self.locks.get(key, (0,))[0] == start_ts:
            del self.locks[key]
        self.rolled_back.add((key, start_ts))
        return True

    def read(self, key: bytes, ts: int) -> bytes | None:
        below = [commit_ts for commit_ts in self.versions[key] if commit_ts <= ts]
        return self.versions[key][max(below)] if below else None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["prewrite", "delete", "commit", "rollback"]),
        st.integers(0, 4),
        st.sampled_from(KEYS),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_any_interleaving_of_transactions_does_what_the_model_does(
    steps: list[tuple[str, int, bytes]],
) -> None:
    """Five transactions that prewrite, commit and roll back single keys in any order."""
    kv, model = Kv(), Model()
    committed: set[tuple[bytes, int]] = set()
    clock = 100
    starts = [10, 20, 30, 40, 50]
    for what, number, key in steps:
        start = starts[number]
        if what in ("prewrite", "delete"):
            value = b"%d" % start if what == "prewrite" else None
            mutation = put(key, value) if value is not None else delete(key)
            assert (not kv.prewrite(start, mutation).errors) == model.prewrite(start, key, value)
        elif what == "commit":
            clock += 10
            assert (not kv.commit(start, clock, key).HasField("error")) == model.commit(
                start, clock, key, committed
            )
        else:
            assert (not kv.rollback(start, key).HasField("error")) == model.rollback(start, key, committed)
        for each in KEYS:
            lock = kv.view.lock(each)
            assert (lock.start_ts if lock else None) == model.locks.get(each, (None,))[0]
    for key in KEYS:
        for ts in (5, 105, 155, 205, 999):
            assert kv.value(key, ts) == model.read(key, ts)
