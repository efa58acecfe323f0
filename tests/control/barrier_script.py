"""Scripts of a barrier: `testdata/barrier/*.txt`. A command is a call of `Barrier`.

    barrier known=100 [target=] [load=]
    ddl ts=200 [alter ...] [adds=c] [drops=a] [known=200]; ddl known=300
    lift 200                  the DDL is durable downstream
    load-done
    switch                    another number of partitions is wanted
    wanted c                  whether a DDL that waits adds a span

Each prints where ranges and checkpoint may go then.
"""

from __future__ import annotations

from typing import Final

from tests.control.words import DDL_OPTIONS, check, ddl, known
from tests.scripts import Command

from tidegate.control.barrier import Barrier

OPTIONS: Final = {"barrier": "known target load", "ddl": DDL_OPTIONS}


class BarrierScript:
    """One barrier, and what is done to it."""

    def __init__(self) -> None:
        self._barrier: Barrier | None = None

    def run(self, command: Command) -> str:
        """Do one command; what it shows."""
        check(command, OPTIONS.get(command.name, "").split())
        if command.name == "barrier":
            self._barrier = Barrier(
                command.number("known"), command.number("target", 0), command.number("load", 0)
            )
            return self._state("barrier")
        assert self._barrier is not None, "a scenario begins with 'barrier'"
        barrier = self._barrier
        match command.name, command.words:
            case "ddl", _:
                try:
                    barrier.learn(ddl(command), known(command))
                except AssertionError as error:
                    return f"assertion: {error}"
            case "lift", (ts,):
                barrier.lift(int(ts))
            case "load-done", ():
                barrier.held_at = 0
            case "switch", ():
                return self._state("switch" if barrier.switch() else "switch refused")
            case "wanted", (span,):
                start = barrier.start_of(span)
                return f"{span}: {'by no DDL that waits' if start is None else f'wanted from {start} on'}"
            case _:
                raise ValueError(f"{command.where}: a barrier does not know '{command.name}'")
        return self._state(command.name)

    def _state(self, done: str) -> str:
        barrier = self._barrier
        assert barrier is not None
        waits = f"DDL {barrier.next.finished_ts} is next" if barrier.next is not None else "no DDL waits"
        return f"{done}: ranges may go to {barrier.bound}, the checkpoint to {barrier.cap}; {waits}"
