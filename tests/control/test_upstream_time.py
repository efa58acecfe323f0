"""Each anomaly of PD's time is reported once, and its time is known between two answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.upstream_time import JUMP_MS, Advances, Differs, Halted, Jumped, Remark, UpstreamTime

HOUR = 3_600_000
T0 = 1_700_000_000_000


def remarks(time: UpstreamTime, *received: tuple[float, int, int]) -> list[Remark]:
    """Remarks on (second, PD's lead over T0 + second in ms, the wall clock's lead over PD in ms)."""
    found: list[Remark] = []
    for second, lead, wall in received:
        physical = T0 + round(second * 1000) + lead
        found += time.received(physical, physical + wall, second)
    return found


def test_a_time_that_runs_in_step_is_not_remarked_on_whatever_the_gaps() -> None:
    time = UpstreamTime()
    assert time.now_ms(0.0) is None
    assert remarks(time, (0, 0, 5), (5, 900, -20), (10, -3000, 0), (4000, 20, 0)) == []
    assert time.now_ms(4002.5) == T0 + 4_002_520


def test_a_jump_ahead_is_reported_with_its_size() -> None:
    time = UpstreamTime()
    assert remarks(time, (0, 0, 0), (5, 6 * HOUR, 0), (10, 6 * HOUR, 0)) == [Jumped(6 * HOUR)]


def test_a_time_that_does_not_advance_is_reported_once_and_so_is_its_end() -> None:
    """PD's clock is set back by 40 s: its timestamps rise, its physical time does not."""
    time = UpstreamTime()
    answers = [(float(second), -1000 * second, 0) for second in range(0, 45, 5)]
    assert remarks(time, *answers) == [Halted(15_000)]
    assert time.is_halted
    assert time.now_ms(43.0) == T0
    assert remarks(time, (45, -40_000, 0), (50, -40_000, 0)) == [Advances(40_000)]
    assert not time.is_halted


def test_a_clock_that_is_corrected_while_pds_time_is_stopped_is_a_jump() -> None:
    time = UpstreamTime()
    remarks(time, *[(float(second), -1000 * second, 0) for second in range(0, 25, 5)])
    assert remarks(time, (25, 0, 0)) == [Jumped(20_000)]
    assert not time.is_halted


def test_this_machines_clock_is_compared_with_pds() -> None:
    time = UpstreamTime()
    assert remarks(time, (0, 0, -HOUR), (5, 0, -HOUR - 3000)) == [Differs(-HOUR)]
    assert remarks(time, (10, 0, 2 * HOUR)) == [Differs(2 * HOUR)]
    assert remarks(time, (15, 0, 2000), (20, 0, 0)) == [Differs(0)]


@given(st.lists(st.tuples(st.floats(0.1, 60), st.integers(0, 2 * HOUR)), min_size=1, max_size=30))
def test_it_is_never_wrong_by_more_than_what_it_has_remarked_on(steps: list[tuple[float, int]]) -> None:
    time, now, physical = UpstreamTime(), 0.0, T0
    time.received(physical, physical, now)
    for passed, moved in steps:
        expected = time.now_ms(now + passed)
        was_stopped = time.is_halted
        now, physical = now + passed, physical + moved
        found = time.received(physical, physical, now)
        assert time.now_ms(now) == physical
        assert expected is not None
        jumped = any(isinstance(remark, Jumped) for remark in found)
        assert jumped == (moved - round(passed * 1000) > JUMP_MS) or was_stopped
        assert physical - expected <= JUMP_MS or jumped or was_stopped
