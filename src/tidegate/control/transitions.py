"""A transition table as data: the machine looks up its next state, and its page is drawn from the same rows.

    NORMAL, WARNING --fails--> PENDING      one row; the machine asks `after(state, event)`

The table says which state follows, and nothing else. A guard that needs more than the state and the event,
such as a clock, belongs to the machine, which chooses the event. `guard` and `effect` say in words what it
does.

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
    """From any of `states` the event leads to `to`."""

    states: tuple[State, ...]
    on: Event
    to: State
    guard: str = ""
    """When the machine gives this event, in words; empty: whenever it happens."""
    effect: str = ""
    """What else happens, in words."""


class Transitions(Generic[State, Event]):
    """Rows that leave no pair of state and event to two of them."""

    def __init__(self, *rows: Row[State, Event]) -> None:
        self.rows = rows
        self._to: dict[tuple[State, Event], State] = {}
        for row in rows:
            for state in row.states:
                assert (state, row.on) not in self._to, f"two rows for {state} on {row.on}"
                self._to[state, row.on] = row.to

    def after(self, state: State, on: Event) -> State | None:
        """The state that follows; None: the event changes nothing in this state, or is refused."""
        return self._to.get((state, on))

    def sources(self, on: Event) -> tuple[State, ...]:
        """The states in which the event leads somewhere, in the order of the rows."""
        return tuple(state for state, event in self._to if event == on)
