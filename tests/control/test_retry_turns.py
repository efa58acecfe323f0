"""Turns of changefeeds without rows that try again after many have failed at once."""

from __future__ import annotations

import pytest

from tidegate.control.retry_turns import LATER_S, TURN_S, RetryTurns, had_rows_lately
from tidegate.model.timestamp import compose

NOW_S = 1_000


def ago(seconds: float) -> int:
    return compose(round((NOW_S - seconds) * 1000))


def test_a_changefeed_alone_has_its_turn_at_once() -> None:
    turns = RetryTurns()
    assert 11.1 <= turns.take(11.1, 10.0) < 11.1 + TURN_S
    assert 71.1 <= turns.take(71.1, 70.0) < 71.1 + TURN_S


def test_each_turn_belongs_to_one_and_they_follow_one_another() -> None:
    turns = RetryTurns()
    taken = [turns.take(11.0, 10.0) for _ in range(20)]
    assert taken == pytest.approx([11.0 + TURN_S * at for at in range(20)])


def test_a_turn_in_a_minute_delays_nobody_whose_back_off_is_short() -> None:
    turns = RetryTurns()
    for _ in range(5):
        turns.take(70.0, 10.0)
    assert turns.take(11.0, 10.0) == pytest.approx(11.0)


def test_no_turn_comes_later_than_half_a_minute() -> None:
    turns = RetryTurns()
    taken = [turns.take(11.0, 10.0) for _ in range(1_000)]
    assert max(taken) <= 11.0 + LATER_S + TURN_S
    # Those are over, and new ones are taken from the first on.
    assert turns.take(100.0, 99.0) == pytest.approx(100.0)
    assert len(turns._taken) == 1


@pytest.mark.parametrize(
    ("checkpoint", "resolved", "last_row", "had_rows"),
    [
        (ago(1), ago(1), ago(2), True),
        (ago(1), ago(1), ago(30), False),
        (ago(1), ago(1), 0, False),
        # Its target does not answer, so rows that have been received for long may wait.
        (ago(60), ago(1), ago(60), True),
        # Upstream's time does not advance: rows of its last seconds were delivered.
        (ago(600), ago(600), ago(605), True),
        # Nothing has been received since this process began.
        (ago(600), 0, 0, False),
    ],
)
def test_rows_that_wait_or_were_just_delivered_count(
    checkpoint: int, resolved: int, last_row: int, *, had_rows: bool
) -> None:
    assert had_rows_lately(checkpoint, resolved, last_row) is had_rows
