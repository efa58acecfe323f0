"""Locked and free ranges tile the span whatever happens to regions; progress is never lost or invented."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.span import Span
from tidegate.puller.range_lock import Locked, RangeLock, Stale, Wait

WHOLE = Span(b"\x00", b"")


def span(low: int, high: int) -> Span:
    return Span(bytes([low]), bytes([high]) if high < 16 else b"")


def test_a_split_starts_at_the_parents_ts_and_a_merge_at_the_least_ts() -> None:
    lock = RangeLock(WHOLE, 5)
    assert lock.lock(span(0, 8), 1, 1) == Locked(5, span(0, 8))
    lock.unlock(span(0, 8), 1, 1, 50)
    assert lock.lock(span(0, 4), 1, 2) == Locked(50, span(0, 4))
    assert lock.lock(span(4, 8), 2, 2) == Locked(50, span(4, 8))
    lock.unlock(span(0, 4), 1, 2, 60)
    lock.unlock(span(4, 8), 2, 2, 70)
    assert lock.lock(span(0, 16), 1, 3) == Locked(5, span(0, 16))


def test_an_older_registration_gets_the_parts_left_and_a_newer_one_waits() -> None:
    lock = RangeLock(WHOLE, 5)
    lock.lock(span(4, 8), 1, 3)
    assert lock.lock(span(0, 16), 2, 3) == Stale((span(0, 4), span(8, 16)))
    assert lock.lock(span(5, 7), 2, 2) == Stale(())
    assert lock.lock(span(0, 16), 2, 4) == Wait()
    assert lock.lock(span(10, 12), 1, 4) == Locked(5, span(10, 12)), "two ranges of one region are two"


def test_after_a_merge_the_first_registration_takes_the_free_parts() -> None:
    lock = RangeLock(WHOLE, 5)
    for low, region in ((0, 1), (4, 2), (8, 3), (12, 4)):
        lock.lock(span(low, low + 4), region, 1)
    lock.unlock(span(4, 8), 2, 1, 60)
    lock.unlock(span(8, 12), 3, 1, 70)
    merged = span(4, 12)
    assert lock.lock(span(8, 12), 3, 3, merged) == Locked(60, merged)
    assert lock.lock(span(4, 8), 3, 3, merged) == Stale(())
    lock.unlock(merged, 3, 3, 80)
    lock.unlock(span(0, 4), 1, 1, 90)
    assert lock.lock(span(5, 6), 3, 4, span(3, 12)) == Locked(80, span(3, 12))
    assert lock.free == [(span(0, 3), 90)]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_ranges_always_tile_the_span_and_the_least_ts_never_falls(data: st.DataObject) -> None:
    lock = RangeLock(WHOLE, 10)
    held: dict[Span, tuple[int, int, int]] = {}
    least = 10
    for _ in range(data.draw(st.integers(1, 25))):
        if held and data.draw(st.booleans()):
            bounds = data.draw(st.sampled_from(sorted(held)))
            region, version, ts = held.pop(bounds)
            lock.unlock(bounds, region, version, ts + data.draw(st.integers(0, 9)))
        else:
            low = data.draw(st.integers(0, 15))
            bounds = span(low, data.draw(st.integers(low + 1, 16)))
            region, version = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
            limits = span(data.draw(st.integers(0, low)), 16) if data.draw(st.booleans()) else None
            answer = lock.lock(bounds, region, version, limits)
            if isinstance(answer, Locked):
                assert answer.bounds.intersect(bounds) == bounds
                assert limits is None or answer.bounds.intersect(limits) == answer.bounds
                held[answer.bounds] = region, version, answer.resolved
        pieces = sorted([*lock.held, *(s for s, _ in lock.free)])
        assert pieces[0].start == WHOLE.start
        assert pieces[-1].end == WHOLE.end
        assert all(a.end == b.start for a, b in pairwise(pieces))
        known = [ts for _, _, ts in held.values()] + ([lock.free_resolved] if lock.free_resolved else [])
        assert min(known) >= least
        least = min(known)
