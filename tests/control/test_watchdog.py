"""The watchdog: silence is counted only with work, only without reports, only while the watcher is awake."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.watchdog import STEP_MAX_S, Hung, Watchdog

N = 60.0


def silent(dog: Watchdog, began: float, seconds: int, work: str = "rows", reports: int = 0) -> list[Hung]:
    """What a step every second says."""
    steps = (dog.step(began + second, work, reports, N) for second in range(seconds))
    return [hung for hung in steps if hung is not None]


def test_work_without_a_report_is_hung_after_the_patience_and_stays_hung() -> None:
    dog = Watchdog()
    assert silent(dog, 1000.0, 60) == []
    assert dog.step(1060.0, "rows of span a", 0, N) == Hung("rows of span a", N)
    assert dog.step(1061.0, "rows of span b", 0, N) == Hung("rows of span b", N + 1)


def test_any_report_begins_the_count_again() -> None:
    dog = Watchdog()
    for report in range(5):
        assert silent(dog, 1000.0 + 50 * report, 50, reports=report) == []
    assert silent(dog, 1250.0, 61, reports=4) != []


def test_nothing_to_do_is_no_silence() -> None:
    dog = Watchdog()
    assert silent(dog, 1000.0, 600, work="") == []
    assert silent(dog, 1600.0, 59) == []


def test_a_report_that_counts_backwards_is_one_too() -> None:
    """Process ids are used again, and a new process counts from one."""
    dog = Watchdog()
    silent(dog, 1000.0, 59, reports=7)
    assert silent(dog, 1059.0, 59, reports=1) == []


def test_time_in_which_the_watcher_stood_still_blames_nobody() -> None:
    dog = Watchdog()
    silent(dog, 1000.0, 10)
    # A laptop slept for a day, or the control process was stopped: the reports of that time are not read yet.
    assert dog.step(87_400.0, "rows", 0, N) is None
    assert silent(dog, 87_401.0, 40) == []
    assert silent(dog, 87_441.0, 20) != []


def test_a_clock_that_goes_back_adds_nothing() -> None:
    dog = Watchdog()
    dog.step(1000.0, "rows", 0, N)
    assert dog.step(10.0, "rows", 0, 0.1) is None


def test_the_patience_of_the_moment_decides() -> None:
    dog = Watchdog()
    for second in range(100):
        assert dog.step(float(second), "start of the pipeline", 0, 300.0) is None
    assert dog.step(100.0, "rows", 0, N) == Hung("rows", 100.0)


@given(
    st.lists(
        st.tuples(st.floats(-5, 100, allow_nan=False), st.booleans(), st.integers(0, 2)),
        min_size=1,
        max_size=60,
    )
)
def test_work_is_hung_if_steps_since_its_last_report_sum_to_the_patience(
    steps: list[tuple[float, bool, int]],
) -> None:
    dog, now, silence, last = Watchdog(), 0.0, 0.0, None
    for passed, work, reports in steps:
        now += passed
        hung = dog.step(now, "rows" if work else "", reports, N)
        quiet = work and reports == last
        silence = silence + min(max(passed, 0.0), STEP_MAX_S) if quiet else 0.0
        last = reports
        assert (hung is not None) == (quiet and silence >= N)
