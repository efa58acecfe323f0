"""The watchdog: scenarios as scripts, and any sequence of looks against a sum of its silent steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.control.watchdog_script import WatchdogScript
from tests.scripts import run_script, scripts

from tidegate.control.watchdog import STEP_MAX_S, Watchdog

N = 60.0


@pytest.mark.parametrize("path", scripts(Path(__file__).parent / "testdata" / "watchdog"))
def test_the_watchdog_does_what_the_script_says(path: Path, *, rewrite: bool) -> None:
    run_script(path, WatchdogScript().run, rewrite=rewrite)


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
