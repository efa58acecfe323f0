"""Open locks and the resolved ts they allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.tikv.cdc.resolver import Resolver


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
