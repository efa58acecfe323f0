"""A transition table as data: the machine looks up its next state, and a docs page is drawn from the same
rows.

    NORMAL, WARNING --fails--> PENDING      one row; the machine asks `after(state, event)`

The table only says which state follows. A guard that needs more than the state and the event, such as a
clock, belongs to the machine, which chooses the event accordingly. `guard` and `effect` describe in words
what the machine does.

`python -m tools.machines` writes the tables into the pages that docs/internals/machines.md lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Row(Generic[State, Event]):
    """In each of `states`, the event `on` leads to the state `to`."""

    states: tuple[State, ...]
    on: Event
    to: State
    guard: str = ""
    """The condition for the event, in words. Empty: there is none."""
    effect: str = ""
    """Other consequences, in words."""


class Transitions(Generic[State, Event]):
    """A table of rows. Each pair of state and event is in at most one row."""

    def __init__(self, *rows: Row[State, Event]) -> None:
        self.rows = rows
        self._to: dict[tuple[State, Event], State] = {}
        for row in rows:
            for state in row.states:
                assert (state, row.on) not in self._to, f"two rows for {state} on {row.on}"
                self._to[state, row.on] = row.to

    def after(self, state: State, on: Event) -> State | None:
        """The next state. None: the event changes nothing in this state, or is refused."""
        return self._to.get((state, on))

    def sources(self, on: Event) -> tuple[State, ...]:
        """The states that have a row for the event, in the order of the rows."""
        return tuple(state for state, event in self._to if event == on)
