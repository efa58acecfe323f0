"""The plan of faults of `make captures`, and the table of what they cost."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.integration.capture_faults import ALL, CUTS, Fault, What, figures, plan


@pytest.mark.parametrize("seed", range(5))
def test_each_fault_happens_once_before_any_happens_again(seed: int) -> None:
    found = list(islice(plan(seed), 2 * len(ALL)))
    kinds = [(one.what, one.owner) for one in found]
    assert set(kinds[: len(ALL)]) == set(kinds[len(ALL) :]) == {(one.what, one.owner) for one in ALL}
    assert list(islice(plan(seed), 2 * len(ALL))) == found, "a seed is one plan"


def test_a_cut_is_short_or_longer_than_the_silence_that_costs_ranges() -> None:
    found = list(islice(plan(1), 20 * len(ALL)))
    assert all(one.seconds < 20 for one in found if one.what is What.CUT_FROM_OWNER)
    assert all(one.seconds > 20 for one in found if one.what is What.LOST_TO_OWNER)
    assert {one.one_way for one in found if one.what in CUTS} == {True, False}


def test_the_table_compares_the_longest_with_the_goal() -> None:
    killed, other, moved = Fault(What.KILLED, owner=True), Fault(What.KILLED), Fault(What.MOVED)
    text = figures(
        {
            killed.name: [4.0, 4.4, 5.04],
            other.name: [4.0, 8.26],
            moved.name: [0.5],
            What.CUT_FROM_OWNER: [3.0],
        }
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "fault times p50 s max s goal s"
    assert sorted(lines[2:]) == [
        "a cut from the owner of 1 to 12 s, from its end 1 3.00 3.00 -",
        "a table moved by hand, and back 1 0.50 0.50 1 met",
        "another capture killed 2 6.13 8.26 8 MISSED",
        "the owner killed 3 4.40 5.04 5 MISSED",
    ]
