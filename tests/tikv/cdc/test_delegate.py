"""Applied commands become rows: one test per line of the table in the module's docstring."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tikv.support import MemoryView, commit, delete, pessimistic_lock, prewrite, put, rollback, taken
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.cdc import wire
from tidegate.tikv.cdc.channel import Channel
from tidegate.tikv.cdc.delegate import Delegate, Downstream, State
from tidegate.tikv.cdc.old_value import OldValues
from tidegate.tikv.mvcc import Lock, Write
from tidegate.tikv.percolator import commit as commits
from tidegate.tikv.percolator import pessimistic, status
from tidegate.tikv.percolator import prewrite as prewrites
from tidegate.tikv.raft.raftstore import Command
from tidegate.tikv.raft.region import Region
from tidegate.tikv.reader import MvccReader

LONG = b"x" * 300


class Rig:
    """One region, its delegate, and a store whose commands the delegate sees as they are applied."""

    def __init__(self) -> None:
        self.region = Region(2, b"", b"")
        self.delegate = Delegate(self.region)
        self.view = MemoryView()

    def downstream(
        self, request_id: int = 1, start: bytes = b"", end: bytes = b"", **more: Any
    ) -> Downstream:
        bounds = [keys.encode(bound) if bound else b"" for bound in (start, end)]
        channel = more.pop("channel", None) or Channel()
        found = Downstream(channel, request_id, self.region, bounds[0], bounds[1], 0, **more)
        found.state = State.NORMAL
        found.resolver.finish_scan({})
        self.delegate.add(found)
        return found

    def do(self, command: Any, *arguments: Any) -> list[Downstream]:
        outcome = command(MvccReader(self.view), *arguments)
        self.view.apply(outcome.changes)
        applied = Command(2, outcome.changes, outcome.old_values, one_pc=outcome.one_pc)
        return self.delegate.on_command(applied, OldValues(self.view, outcome.old_values))

    def prewrite(self, *arguments: Any, **more: Any) -> list[Downstream]:
        return self.do(prewrites.prewrite, prewrite(*arguments, **more))

    def commit(self, *arguments: Any) -> list[Downstream]:
        return self.do(commits.commit, commit(*arguments))

    def rollback(self, *arguments: Any) -> list[Downstream]:
        return self.do(commits.batch_rollback, rollback(*arguments))


def rows_of(downstream: Downstream) -> list[list[cdc.Event.Row]]:
    """The rows of each event that waits for a downstream's client."""
    downstream.channel.put_resolved(wire.resolved(cdc.ResolvedTs(ts=1)))
    messages = taken(downstream.channel) or []
    events = [event for message in messages for event in message.events]
    assert all(event.request_id == downstream.request_id for event in events)
    return [list(event.entries.entries) for event in events]


def brief(row: cdc.Event.Row) -> tuple[str, bytes, int, int]:
    return cdc.Event.LogType.Name(row.type), row.key, row.start_ts, row.commit_ts


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_prewrite_has_its_value_and_the_value_before(rig: Rig) -> None:
    one = rig.downstream()
    rig.prewrite(5, put(b"k", b"old"))
    rig.commit(5, 6, b"k")
    rig.prewrite(10, put(b"k", LONG), delete(b"d"))
    rig.commit(10, 11, b"k", b"d")
    first, second, third, fourth = rows_of(one)
    assert [brief(row) for row in first + second] == [("PREWRITE", b"k", 5, 0), ("COMMIT", b"k", 5, 6)]
    by_key = {row.key: row for row in third}
    assert (by_key[b"k"].value, by_key[b"k"].old_value, by_key[b"k"].op_type) == (
        LONG,
        b"old",
        cdc.Event.Row.PUT,
    )
    assert (by_key[b"d"].value, by_key[b"d"].op_type) == (b"", cdc.Event.Row.DELETE)
    assert sorted(brief(row) for row in fourth) == [("COMMIT", b"d", 10, 11), ("COMMIT", b"k", 10, 11)]


def test_the_rows_of_one_command_are_one_event(rig: Rig) -> None:
    one = rig.downstream()
    rig.prewrite(5, *(put(b"%03d" % i) for i in range(200)))
    assert [len(event) for event in rows_of(one)] == [200]


def test_a_rewritten_lock_with_a_long_value_is_not_sent_again(rig: Rig) -> None:
    one = rig.downstream()
    rig.prewrite(10, put(b"k", LONG), min_commit_ts=11)
    rig.do(
        status.check_txn_status,
        pb.CheckTxnStatusRequest(primary_key=b"k", lock_ts=10, caller_start_ts=20),
    )
    rig.do(
        status.heart_beat,
        pb.TxnHeartBeatRequest(primary_lock=b"k", start_version=10, advise_lock_ttl=9999),
    )
    rig.commit(10, 30, b"k")
    assert [[brief(row)[0] for row in event] for event in rows_of(one)] == [["PREWRITE"], ["COMMIT"]]
    assert one.resolver.resolve(100) == 100


def test_a_rollback_is_sent_and_frees_the_resolved_ts(rig: Rig) -> None:
    one = rig.downstream()
    rig.prewrite(10, put(b"k", LONG))
    assert one.resolver.resolve(50) == 10
    rig.rollback(10, b"k")
    assert one.resolver.resolve(50) == 50
    rig.rollback(20, b"never-locked")
    assert [brief(event[0]) for event in rows_of(one)] == [
        ("PREWRITE", b"k", 10, 0),
        ("ROLLBACK", b"k", 10, 0),
        ("ROLLBACK", b"never-locked", 20, 0),
    ]


def test_a_rollback_at_anothers_commit_ts_is_sent_under_its_own_start(rig: Rig) -> None:
    rig.prewrite(10, put(b"k"))
    rig.commit(10, 20, b"k")
    one = rig.downstream()
    asked = pb.CheckTxnStatusRequest(primary_key=b"k", lock_ts=20, rollback_if_not_exist=True)
    rig.do(status.check_txn_status, asked)
    assert [brief(event[0]) for event in rows_of(one)] == [("ROLLBACK", b"k", 20, 0)]


def test_a_silent_rollback_of_a_secondary_never_pins_the_resolved_ts(rig: Rig) -> None:
    """tikv#18498: T1 commits at 20; T2 starts at 20 with the key as secondary and rolls back only that."""
    one = rig.downstream()
    rig.prewrite(10, put(b"k"))
    rig.commit(10, 20, b"k")
    rig.prewrite(20, put(b"k"), primary=b"p")
    assert one.resolver.resolve(30) == 20
    rig.rollback(20, b"k")
    assert rig.view.writes(b"k") == [(20, Write(mvcc.KIND_PUT, 10, b"v"))], "nothing was written"
    assert one.resolver.resolve(30) == 30
    rig.prewrite(31, put(b"k"))
    kinds = [brief(event[0])[::2] for event in rows_of(one)]
    assert kinds == [("PREWRITE", 10), ("COMMIT", 10), ("PREWRITE", 20), ("ROLLBACK", 20), ("PREWRITE", 31)]


def test_locks_without_data_are_neither_sent_nor_waited_for(rig: Rig) -> None:
    one = rig.downstream()
    rig.do(pessimistic.pessimistic_lock, pessimistic_lock(10, 10, b"k"))
    rig.prewrite(5, pb.Mutation(op=pb.Lock, key=b"l"))
    assert one.resolver.resolve(50) == 50
    rig.commit(5, 60, b"l")
    release = pb.PessimisticRollbackRequest(start_version=10, for_update_ts=10, keys=[b"k"])
    rig.do(pessimistic.pessimistic_rollback, release)
    assert rows_of(one) == []


def test_a_commit_that_carries_an_overlapped_rollback_flag_is_a_commit(rig: Rig) -> None:
    one = rig.downstream()
    key = keys.encode(b"k")
    lock = Lock(mvcc.KIND_PUT, b"k", 5, 1, b"v", min_commit_ts=6, secondaries=(), rollback_ts=(20,))
    rig.view.put_lock(b"k", lock)
    rig.do(commits.commit, commit(5, 20, b"k"))
    assert mvcc.decode_write(rig.view.families[mvcc.WRITE][keys.versioned(key, 20)]).overlapped_rollback
    assert [brief(event[0]) for event in rows_of(one)] == [("COMMIT", b"k", 5, 20)]


def test_each_downstream_gets_the_rows_and_locks_of_its_own_range(rig: Rig) -> None:
    low, high, all_ = rig.downstream(1, b"", b"m"), rig.downstream(2, b"c", b""), rig.downstream(3)
    same = rig.downstream(4, b"", b"m")
    rig.prewrite(5, put(b"a"), put(b"d"), put(b"m"))
    seen = [sorted(row.key for row in rows_of(each)[0]) for each in (low, high, all_, same)]
    assert seen == [[b"a", b"d"], [b"d", b"m"], [b"a", b"d", b"m"], [b"a", b"d"]]
    rig.commit(5, 6, b"a", b"d")
    assert [each.resolver.resolve(9) for each in (low, high, all_)] == [9, 5, 5]
    rig.delegate.remove(high)
    rig.delegate.remove(all_)
    rig.commit(5, 6, b"m")
    assert len(rows_of(low)) == 1, "the commit of a and d only"


def test_a_downstream_that_is_not_initialized_gets_nothing(rig: Rig) -> None:
    one = rig.downstream()
    one.state = State.UNINITIALIZED
    rig.prewrite(5, put(b"k"))
    assert rows_of(one) == []
    assert one.resolver.resolve(9) == 9


@pytest.mark.parametrize(
    ("txn_source", "filter_loop", "sent"),
    [(0, True, True), (1, False, True), (1, True, False), (1 << 8, False, False), (1 << 16, False, False)],
)
def test_rows_are_filtered_by_their_source_but_their_locks_count(
    rig: Rig, txn_source: int, filter_loop: bool, sent: bool
) -> None:
    one = rig.downstream(filter_loop=filter_loop)
    rig.prewrite(5, put(b"k"), context=pb.Context(txn_source=txn_source))
    assert one.resolver.resolve(9) == 5
    rig.commit(5, 6, b"k")
    rig.rollback(7, b"k")
    kinds = [brief(event[0])[0] for event in rows_of(one)]
    assert kinds == (["PREWRITE", "COMMIT"] if sent else []) + ["ROLLBACK"]


def test_a_downstream_whose_client_is_too_slow_is_named(rig: Rig) -> None:
    slow, quick = rig.downstream(1, channel=Channel(quota_bytes=100)), rig.downstream(2)
    assert rig.prewrite(5, put(b"k", b"y" * 200)) == [slow]
    assert len(rows_of(quick)) == 1
