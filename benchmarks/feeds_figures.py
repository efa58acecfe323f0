"""The figures of `benchmarks.feeds`: each is printed when it is found, and the file has those of all phases.

A phase that does not end within its limit is ended, and keeps the figures that it has found by then. So a run
on a slow machine takes as long as one on a quick machine, and says how far it came.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from benchmarks.show import short

Clock = Callable[[], float]
DONE: Final = "done"


class Late(TimeoutError):
    """A phase has not ended within its limit."""


class Limit:
    """The time that a phase has, in seconds."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self.seconds, self._clock = seconds, clock
        self._until = clock() + seconds

    @property
    def left_s(self) -> float:
        """The seconds left, never negative."""
        return max(0.0, self._until - self._clock())

    def sleep(self, seconds: float) -> None:
        """Sleep. Raises Late at the limit."""
        time.sleep(min(seconds, self.left_s))
        self.check()

    def check(self) -> None:
        """Raise Late at the limit."""
        if not self.left_s:
            raise Late(f"ended at its limit of {self.seconds:.0f} s")

    def wait(self, check: Callable[[], object], pause_s: float = 0.05) -> None:
        """Wait until `check` returns something true. Raises Late at the limit."""
        while not check():
            self.sleep(pause_s)


@dataclass(frozen=True, slots=True)
class Goal:
    """The largest value that a figure should have."""

    most: float
    unit: str


@dataclass(slots=True)
class Figures:
    """The figures that a run has found so far."""

    described: Mapping[str, Any]
    """The machine and the sizes of the run."""
    file: Path | None = None
    goals: Mapping[tuple[str, str], Goal] = field(default_factory=dict)
    """By phase and figure."""
    phases: dict[str, dict[str, Any]] = field(default_factory=dict)
    phase: str = ""
    """The phase that is under way."""

    def add(self, name: str, value: Any, text: str = "") -> None:
        """Add a figure to the present phase, and print it. `text`: what to print instead of the value."""
        self.phases.setdefault(self.phase, {})[name] = value
        goal = self.goals.get((self.phase, name))
        if goal is not None:
            verdict = "reached" if value <= goal.most else "missed"
            text = f"{text or _text(value)} {goal.unit}; goal {short(goal.most)}: {verdict}"
        print(f"{self.phase:8} {name.replace('_', ' ')}: {text or _text(value)}", flush=True)

    def get(self, phase: str, name: str) -> Any:
        """A figure that was found before; None if it was not."""
        return self.phases.get(phase, {}).get(name)

    def write(self) -> None:
        """Write everything found so far."""
        if self.file is not None:
            text = json.dumps({**self.described, "phases": self.phases}, indent=1)
            self.file.write_text(text + "\n")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return short(value) if isinstance(value, (int, float)) else str(value)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run with a limit of its own."""

    name: str
    run: Callable[[Limit], None]
    limit_s: float


def chosen(phases: Sequence[Phase], only: Collection[str], always: Collection[str]) -> list[Phase]:
    """The phases to run, in their order: all, or those in `only` and those that all others need."""
    unknown = set(only) - {one.name for one in phases}
    if unknown:
        raise ValueError(f"no such phase: {', '.join(sorted(unknown))}")
    return [one for one in phases if not only or one.name in only or one.name in always]


def run_phases(
    phases: Sequence[Phase], figures: Figures, total_s: float, clock: Clock = time.monotonic
) -> None:
    """Run phases one after another, for at most `total_s` together. The file is written after each."""
    until = clock() + total_s
    for phase in phases:
        figures.phase, began = phase.name, clock()
        limit = Limit(min(phase.limit_s, max(0.0, until - began)), clock)
        how = DONE
        try:
            limit.check()
            print(f"  {phase.name}, at most {limit.seconds:.0f} s", file=sys.stderr, flush=True)
            phase.run(limit)
        except (TimeoutError, httpx.TimeoutException) as error:
            how = str(error) or "a request was not answered in time"
        except Exception as error:
            how = f"failed: {error}"
            raise
        finally:
            figures.add("ended", how)
            figures.add("seconds", round(clock() - began, 1))
            figures.write()
