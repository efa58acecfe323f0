"""Open locks and the resolved ts they allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.tikv.cdc.resolver import Resolver

SEQUENCES: list[list[tuple[bytes | int, int]]] = [
    [(b"a", 1), (b"a", 0), (2, 2)],
    [(b"a", 3), (4, 3), (b"a", 0), (5, 5)],
    [(b"a", 1), (b"b", 2), (3, 1), (b"a", 0), (3, 2), (b"b", 0), (3, 3)],
    [(2, 2), (b"a", 1), (3, 2), (b"a", 0), (3, 3)],
    [(b"a", 0), (b"a", 2), (3, 2)],
    [(b"a", 2), (b"a", 0), (b"a", 0), (3, 3)],
    [(b"a", 2), (b"b", 0), (3, 2), (b"a", 0), (3, 3)],
    [(b"a", 5), (b"b", 3), (b"b", 0), (4, 4), (b"c", 2), (9, 4), (b"c", 0), (b"a", 0), (9, 9)],
]
"""Also a smaller start_ts after resolving, an unlock before its lock, twice, and of another key."""


def ready(scanned: dict[bytes, int] | None = None) -> Resolver:
    resolver = Resolver()
    resolver.finish_scan(scanned or {})
    return resolver


def test_nothing_is_resolved_before_the_locks_are_known() -> None:
    resolver = Resolver()
    assert resolver.resolve(100) == 0
    resolver.finish_scan({})
    assert resolver.resolve(100) == 100


def test_the_oldest_lock_holds_the_resolved_ts() -> None:
    resolver = ready({b"a": 5})
    resolver.track(b"b", 3)
    assert resolver.resolve(10) == 3
    resolver.track(b"b", 0)
    assert resolver.resolve(10) == 5
    resolver.track(b"a", 0)
    assert resolver.resolve(10) == 10


def test_a_lock_older_than_what_was_resolved_does_not_move_it_back() -> None:
    resolver = ready()
    assert resolver.resolve(10) == 10
    resolver.track(b"a", 4)
    assert resolver.resolve(20) == 10
    resolver.track(b"a", 0)
    assert resolver.resolve(20) == 20
    assert resolver.resolve(15) == 20


def test_changes_during_the_scan_are_replayed_over_its_result() -> None:
    resolver = Resolver()
    resolver.track(b"gone", 0)
    resolver.track(b"new", 7)
    resolver.track(b"replaced", 0)
    resolver.track(b"replaced", 9)
    resolver.finish_scan({b"gone": 2, b"kept": 6, b"replaced": 3})
    assert len(resolver) == 3
    assert resolver.resolve(100) == 6
    resolver.track(b"kept", 0)
    assert resolver.resolve(100) == 7
    assert resolver.locked_by(b"replaced") == 9


def test_a_key_that_changes_hands_is_counted_once() -> None:
    resolver = ready({b"k": 2})
    resolver.track(b"k", 2)
    resolver.track(b"k", 8)
    assert resolver.resolve(100) == 8
    resolver.track(b"k", 0)
    resolver.track(b"k", 0)
    assert resolver.resolve(100) == 100


def test_large_transactions_hold_below_what_they_may_commit_at() -> None:
    """TiKV's test_large_txn_tracking and its strictness: unknown -> start_ts - 1, then min_commit_ts - 1."""
    known: dict[int, int] = {}
    resolver = Resolver(lambda start_ts: known.get(start_ts, start_ts))
    resolver.finish_scan({b"s": 5, b"t": 5}, {5})
    assert resolver.resolve(20) == 4
    known[5] = 10
    assert resolver.resolve(10) == 9, "at 10 it may still commit"
    resolver.track(b"u", 8, True)
    known[8] = 15
    known[5] = 18
    assert resolver.resolve(20) == 14
    resolver.track(b"u", 0)
    resolver.track(b"s", 0)
    assert resolver.resolve(30) == 17, "a key of it is still locked"
    resolver.track(b"small", 16)
    assert resolver.resolve(30) == 17
    resolver.track(b"t", 0)
    resolver.track(b"small", 0)
    assert resolver.resolve(30) == 30


@pytest.mark.parametrize("steps", SEQUENCES)
def test_resolve_sequences_of_locks_and_unlocks(steps: list[tuple[bytes | int, int]]) -> None:
    """TiKV's test_resolve: (key, start_ts) tracks, (key, 0) untracks, (min_ts, expected) resolves."""
    resolver = ready()
    for what, ts in steps:
        if isinstance(what, int):
            assert resolver.resolve(what) == ts
        else:
            resolver.track(what, ts)


def test_idempotent_track_and_untrack_of_ten_large_transactions() -> None:
    """TiKV's test_idempotent_track_and_untrack_lock."""
    resolver = ready()
    for _ in range(2):
        for txn in range(1, 11):
            for i in range(100):
                resolver.track(b"%d-%d" % (txn, i), txn)
        assert len(resolver) == 1000
        assert resolver.resolve(20) == 1
    for txn in range(1, 11):
        for _ in range(2):
            for i in range(100):
                resolver.track(b"%d-%d" % (txn, i), 0)
        assert resolver.resolve(20) == (txn + 1 if txn < 10 else 20)
    assert len(resolver) == 0


CHANGES = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 6)), max_size=30)


@given(CHANGES, CHANGES, st.integers(0, 30))
def test_the_tracked_locks_mirror_the_column_family(
    scanned: list[tuple[bytes, int]], live: list[tuple[bytes, int]], cut: int
) -> None:
    locks = {key: ts for key, ts in scanned if ts}
    resolver = Resolver()
    for key, ts in live[:cut]:
        resolver.track(key, ts)
    resolver.finish_scan(dict(locks))
    for key, ts in live[cut:]:
        resolver.track(key, ts)
    for key, ts in live:
        locks[key] = ts
    left = [ts for ts in locks.values() if ts]
    assert len(resolver) == len(left)
    assert resolver.resolve(50) == min([50, *left])
