"""Without a guard the simulator finds a violation within some seeds: it notices what the guards are for.

The guards of the machines are patched away in the same way as in `tests/control/sharing.py`, whose list is
longer: it tries every order of few events, and also finds what needs a rare coincidence here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from tests.control.sharing import PATCHES

from tidegate.control.barrier import Barrier
from tidegate.simulator.guards import GUARDS
from tidegate.simulator.run import Outcome, Simulation
from tidegate.simulator.scenarios import SCENARIOS

SEEDS = 200


class Case(NamedTuple):
    """Guards that are off together, where that shows, and a pattern of what is said."""

    guards: tuple[str, ...]
    scenario: str
    says: str


CASES = (
    Case(("owner_fence",), "storm", "the sink accepts"),
    Case(("sink_fence",), "storm", "the sink accepts"),
    Case(("owner_sink_fence",), "midst", "is sent after Resolved"),
    Case(("records",), "storm", "it is there already"),
    Case(("stored",), "storm", "it is there already"),
    Case(("journal",), "storm", "is sent after Resolved"),
    Case(("proof",), "zombie", "it is there already"),
    Case(("election_guard", "key_revisions"), "midst", "after owner|over those of owner|goes back"),
    Case(("ddl_cap",), "storm", "and a DDL below it is missing"),
    Case(("ddl_bound",), "storm", "below it is missing|before the DDL of"),
    Case(("ddl_agreement",), "storm", "below it is missing"),
)
WITHOUT: Mapping[str, tuple[type, str, Any]] = {
    **PATCHES,
    "ddl_bound": (Barrier, "bound", property(lambda self: self.resolved)),
}
"""The explorer's `ddl_bound` needs a target ts, which a simulation does not have."""


def without(case: Case) -> Outcome | None:
    """The first outcome with a violation."""
    with ExitStack() as patches:
        for where, name, instead in (WITHOUT[one] for one in case.guards if one not in GUARDS):
            patches.enter_context(patch.object(where, name, instead))
        for seed in range(SEEDS):
            scenario, off = SCENARIOS[case.scenario], frozenset(case.guards)
            outcome = Simulation(scenario, seed, name=case.scenario, off=off).run()
            if outcome.violation:
                return outcome
    return None


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.guards))
def test_without_a_guard_a_violation_is_found(case: Case) -> None:
    outcome = without(case)
    assert outcome is not None, f"{SEEDS} seeds of {case.scenario} do not show what {case.guards} is for"
    assert re.search(case.says, outcome.violation), outcome.violation
    assert any(outcome.violation in line for line in outcome.lines)
