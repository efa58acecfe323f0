"""Locked and free ranges tile the span whatever happens to regions; progress is never lost or invented."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.puller.range_lock_script import RangeLockScript
from tests.scripts import run_script, scripts
from tidegate.model.span import Span
from tidegate.puller.range_lock import Locked, RangeLock

WHOLE = Span(b"\x00", b"")


def span(low: int, high: int) -> Span:
    return Span(bytes([low]), bytes([high]) if high < 16 else b"")


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "range_lock"))
def test_a_range_lock_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, RangeLockScript().run, rewrite=rewrite)


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
