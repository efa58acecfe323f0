"""The combined results of many simulations."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tidegate.simulator.run import RunOutcome, Simulation
from tidegate.simulator.scenarios import scenario_of


@dataclass(slots=True)
class Summary:
    """Sums over outcomes."""

    seeds: int = 0
    virtual_s: float = 0.0
    steps: int = 0
    rows: int = 0
    ddl: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    owner_failovers_s: list[float] = field(default_factory=list)
    capture_failovers_s: list[float] = field(default_factory=list)
    healed_s: list[float] = field(default_factory=list)

    def add(self, outcome: RunOutcome) -> None:
        """Add an outcome."""
        self.seeds += 1
        self.virtual_s += outcome.virtual_s
        self.steps += outcome.steps
        self.rows += outcome.rows
        self.ddl += outcome.ddl
        self.counts.update(outcome.counts)
        self.faults.update(outcome.faults)
        self.checks.update(outcome.checks)
        self.owner_failovers_s += outcome.owner_failovers_s
        self.capture_failovers_s += outcome.capture_failovers_s
        if not outcome.violation:
            self.healed_s.append(outcome.healed_s)


def simulate(scenario: str, seeds: Sequence[int], *, whole: bool = False) -> Iterator[RunOutcome]:
    """The outcome of each seed. Raises InvalidInput for an unknown scenario."""
    scenario_of(scenario)
    for seed in seeds:
        yield outcome_of(scenario, seed, whole=whole)


def outcome_of(scenario: str, seed: int, *, whole: bool = False) -> RunOutcome:
    """The outcome of one seed. Raises as `simulate`."""
    with _without_log():
        return Simulation(scenario_of(scenario), seed, name=scenario, whole=whole).run()


@contextmanager
def _without_log() -> Iterator[None]:
    """Log nothing meanwhile: it has no virtual time, and of 10,000 seeds it would hide the result."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def distribution(seconds: Sequence[float]) -> str:
    """Median, 90th percentile and maximum, in words. Empty without values."""
    if not seconds:
        return ""
    ordered = sorted(seconds)
    median, most = ordered[len(ordered) // 2], ordered[-1]
    if len(ordered) == 1:
        return f"{median:.1f} s"
    ninth = ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
    return f"{len(ordered)} times: median {median:.1f} s, 90 % {ninth:.1f} s, most {most:.1f} s"
