"""Transition tables: one row for each pair, and machines that cannot be in a state without a row."""

from __future__ import annotations

from itertools import product

import pytest

from tidegate.control.changefeed import TRANSITIONS, Command, Life, On, State
from tidegate.control.metadata import FeedError
from tidegate.control.outlet import OUTLET, OnOutlet, Outlet
from tidegate.control.received import RECEIVED, Sender, Word
from tidegate.control.transitions import Row, Transitions

ERROR = FeedError("The broker does not answer.", "CDC:ErrRetryable", 0)


def test_two_rows_for_one_pair_are_refused() -> None:
    row = Row((State.NORMAL,), On.PAUSE, State.STOPPED)
    with pytest.raises(AssertionError, match="two rows"):
        Transitions(row, Row((State.WARNING, State.NORMAL), On.PAUSE, State.FAILED))


def test_every_command_is_an_event() -> None:
    assert [On(command) for command in Command] == [On.PAUSE, On.RESUME, On.REMOVE]


@pytest.mark.parametrize("state", State)
def test_a_life_goes_where_the_table_says(state: State) -> None:
    life = Life(state)
    found = {
        On.RESTART: Life.restored(state, None),
        On.MAY_PASS: life.failed(ERROR, retry=True, now=0.0, stuck_s=1.0),
        On.STAYS: life.failed(ERROR, retry=False, now=0.0, stuck_s=1.0),
        On.WARNING: life.warned(ERROR),
        On.BACKOFF_OVER: life.ticked(0.0),
        On.PROGRESS: life.progressed(),
        On.TARGET: life.finished(),
    }
    assert {on: one.state for on, one in found.items()} == {
        on: TRANSITIONS.after(state, on) or state for on in found
    }
    assert all(one is life for on, one in found.items() if on not in (On.RESTART, *_leading_from(state)))


def _leading_from(state: State) -> list[On]:
    return [on for on in On if TRANSITIONS.after(state, on) is not None]


def test_what_is_over_for_the_machine_is_ended_for_the_table() -> None:
    by_itself = set(On) - {On(command) for command in Command} - {On.RESTART}
    for state in State:
        leads = any(TRANSITIONS.after(state, on) is not None for on in by_itself)
        assert Life(state).ended is not leads
        assert not (Life(state).ended and Life(state).runs)


def test_an_outlet_has_a_row_for_all_but_a_second_operation() -> None:
    missing = {pair for pair in product(Outlet, OnOutlet) if OUTLET.after(*pair) is None}
    assert missing == {(Outlet.CLOSED, OnOutlet.SENT), (Outlet.BUSY, OnOutlet.SENT)}


def test_a_processor_has_a_verdict_for_all_that_can_come() -> None:
    assert set(product(Sender, Word)) - RECEIVED.keys() == {(Sender.LATER, Word.OLD)}
