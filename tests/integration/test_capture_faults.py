"""The plan of faults of `make captures`, and the table of what they cost."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.integration.capture_faults import ALL, CUTS, Fault, What, figures, plan


@pytest.mark.parametrize("seed", range(5))
def test_each_kind_happens_once_before_any_happens_again(seed: int) -> None:
    found = list(islice(plan(seed), 2 * len(ALL)))
    kinds = [(one.what, one.owner) for one in found]
    assert {what for what, _ in kinds[: len(What)]} == set(What)
    assert set(kinds[: len(ALL)]) == set(kinds[len(ALL) :]) == {(one.what, one.owner) for one in ALL}
    assert list(islice(plan(seed), 2 * len(ALL))) == found, "a seed is one plan"


@pytest.mark.parametrize("seed", range(5))
def test_each_kind_happens_within_ten_minutes(seed: int) -> None:
    """A third of the time is for the faults: the captures must deliver again after each of them."""
    assert sum(one.seconds for one in islice(plan(seed), len(What))) < 200


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
            What.DRAINED: [0.7, 1.3],
            What.NOTHING: [0.25],
            What.CUT_FROM_OWNER: [3.0],
        }
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "fault times median s max s goal s"
    assert sorted(line for line in lines[2:-1] if " 0 - - " not in line) == [
        "a cut from the owner of 1 to 12 s, from its end 1 3.00 3.00 -",
        "a table moved by hand, and back 1 0.50 0.50 1 met",
        "another capture killed 2 6.13 8.26 8 MISSED",
        "drained, and back 2 1.00 1.30 1 MISSED",
        "nothing happens 1 0.25 0.25 -",
        "the owner killed 3 4.40 5.04 5 MISSED",
    ]
    assert lines[-1] == "checkpoint gap of a move: median 0.70 s, max 1.30 s of 3; without a move max 0.25 s"
    assert "the owner asked to resign 0 - - 5" in lines, "a kind that did not happen is shown"
