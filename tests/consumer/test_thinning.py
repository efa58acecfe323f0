"""Which snapshots stay as they grow older."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.consumer.lakehouse.thinning import HOUR_MS, MINUTE_MS, forgotten
from tidegate.model.timestamp import compose, physical_ms

LIMITS = {"all_hours": 1.0, "minute_hours": 6.0, "hours": 24.0}
BEGIN_MS = 1_700_000_000_000


def left(snapshots: list[int]) -> list[int]:
    return sorted(set(snapshots) - set(forgotten(snapshots, **LIMITS)))


def test_all_of_an_hour_then_one_a_minute_then_one_an_hour() -> None:
    snapshots = [compose(BEGIN_MS + 2_000 * number) for number in range(30 * 1800)]
    kept = left(snapshots)
    ages = [physical_ms(snapshots[-1]) - physical_ms(ts) for ts in kept]
    counts = [
        sum(low < age <= high for age in ages)
        for low, high in ((-1, HOUR_MS), (HOUR_MS, 6 * HOUR_MS), (6 * HOUR_MS, 24 * HOUR_MS))
    ]
    assert counts == [1801, 300, 18]
    assert max(ages) <= 24 * HOUR_MS


def test_the_last_of_each_minute_and_of_each_hour_stays() -> None:
    def at(hours: float, minutes: float, seconds: float) -> int:
        start = BEGIN_MS - BEGIN_MS % HOUR_MS
        return compose(round(start + hours * HOUR_MS + minutes * MINUTE_MS + seconds * 1000))

    newest = at(20, 0, 0)
    assert left([at(17, 3, 1), at(17, 3, 58), at(17, 4, 0), newest]) == [at(17, 3, 58), at(17, 4, 0), newest]
    assert left([at(9, 3, 1), at(9, 59, 0), at(10, 0, 1), newest]) == [at(9, 59, 0), at(10, 0, 1), newest]


def test_the_newest_stays_however_old_and_alone() -> None:
    assert forgotten([], **LIMITS) == []
    assert forgotten([5], **LIMITS) == []
    assert forgotten([5, 7], all_hours=0, minute_hours=0, hours=0) == [], "the same moment"
    old, new = compose(BEGIN_MS), compose(BEGIN_MS + 1)
    assert forgotten([old, new], all_hours=0, minute_hours=0, hours=0) == [old]


@given(st.lists(st.integers(0, 40 * 3600), min_size=1, max_size=80, unique=True), st.integers(1, 80))
def test_rounds_in_between_change_nothing_about_what_stays(seconds: list[int], rounds: int) -> None:
    """Thinning often comes to the same as thinning once, and asking again forgets no more."""
    snapshots = sorted(compose(BEGIN_MS + 1000 * number) for number in seconds)
    held: list[int] = []
    for number, ts in enumerate(snapshots):
        held.append(ts)
        if number % rounds == 0:
            held = left(held)
    assert left(held) == left(snapshots)
    assert left(left(held)) == left(held)
