"""The cost and the gain of a new division of a changefeed."""

from __future__ import annotations

import pytest

from tidegate.control.move_cost import BEHIND_S, GAP_S, Evenness, MoveCost, cost_of
from tidegate.control.share import Move
from tidegate.model.span import Span

MOVES = [Move(Span(b"a", b"b"), "x", "y", 3000.0), Move(Span(b"c", b"d"), "x", "z", 1000.0)]
BEFORE, AFTER = {"x": 9000.0, "y": 1000.0}, {"x": 5000.0, "y": 4000.0, "z": 1000.0}


def cost(lag_s: float = 5.0, *, in_bytes: bool = True, last_gap_s: float | None = None) -> MoveCost:
    return cost_of(
        MOVES,
        BEFORE,
        AFTER,
        ["x", "y", "z", "idle"],
        tables=7,
        in_bytes=in_bytes,
        lag_s=lag_s,
        last_gap_s=last_gap_s,
    )


def test_a_capture_without_work_counts_in_the_mean() -> None:
    found = cost()
    assert found.before == Evenness(9000.0, 2500.0)
    assert found.after == Evenness(5000.0, 2500.0)
    assert (found.before.ratio, found.after.ratio) == (3.6, 2.0)
    assert Evenness.of({}, ["a"]).ratio == 1.0, "no load is even"


def test_takers_receive_the_changes_since_the_checkpoint_again() -> None:
    assert cost(lag_s=5.0).received_again == 20_000
    assert cost(lag_s=0.1).received_again == round(4000 * BEHIND_S)
    assert cost(in_bytes=False).received_again is None, "loads are numbers of spans"


@pytest.mark.parametrize(("last", "expected"), [(None, (GAP_S, False)), (0.7, (0.7, True))])
def test_the_pause_is_that_of_the_last_division_if_there_was_one(
    last: float | None, expected: tuple[float, bool]
) -> None:
    found = cost(last_gap_s=last)
    assert (found.gap_s, found.is_gap_measured) == expected


def test_no_moves_pause_nothing() -> None:
    found = cost_of([], BEFORE, BEFORE, BEFORE, tables=0, in_bytes=True, lag_s=1, last_gap_s=None)
    assert (found.moves, found.gap_s, found.received_again) == (0, 0.0, 0)
