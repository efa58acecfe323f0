"""Without a guard the simulator finds a violation within some seeds: it notices what the guards are for.

The guards of the machines are patched away in the same way as in `tests/control/sharing.py`, whose list is
longer: it tries every order of few events, and also finds what needs a rare coincidence here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from tests.control.sharing import CASES as EXPLORED
from tests.control.sharing import HARMLESS as HARMLESS_IF_EXPLORED
from tests.control.sharing import PATCHES

from tidegate.control.barrier import Barrier
from tidegate.etcd import session
from tidegate.etcd.session import LocalLease
from tidegate.server.owner.peers import Peer
from tidegate.simulator.guards import GUARDS
from tidegate.simulator.run import RunOutcome, Simulation
from tidegate.simulator.scenarios import SCENARIOS, Scenario

SEEDS = 200
MARGIN_SEEDS = 16


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
    Case(("lease", "sink_fence"), "no etcd", "the sink accepts"),
    Case(("deaf",), "unreachable", "after all faults were healed"),
)
WITHOUT: Mapping[str, tuple[type, str, Any]] = {
    **PATCHES,
    "ddl_bound": (Barrier, "bound", property(lambda self: self.resolved)),
    "lease": (LocalLease, "holds", lambda self, now: not self.gone and self.until > 0),
    "deaf": (Peer, "is_deaf", lambda self, now: False),
}
"""The explorer's `ddl_bound` needs a target ts, which a simulation does not have. Without `lease` a capture
believes in its session until etcd says that it has ended. Without `deaf` an owner does not notice that a
capture receives nothing."""
OWN_SCENARIOS = {"no etcd": Scenario("", ("cut off from etcd",), every_s=8.0, last_s=60.0)}
HARMLESS = {
    "all_writers": "the owner does not open the sink behind an open transaction: the round fails instead",
}
"""Guards that neither the explorer nor a simulation needs alone, and why."""


def without(case: Case, seeds: Iterable[int] = range(SEEDS)) -> RunOutcome | None:
    """The first outcome with a violation."""
    with ExitStack() as patches:
        for where, name, instead in (WITHOUT[one] for one in case.guards if one not in GUARDS):
            patches.enter_context(patch.object(where, name, instead))
        for seed in seeds:
            scenario = {**SCENARIOS, **OWN_SCENARIOS}[case.scenario]
            outcome = Simulation(scenario, seed, name=case.scenario, off=frozenset(case.guards)).run()
            if outcome.violation:
                return outcome
    return None


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.guards))
def test_without_a_guard_a_violation_is_found(case: Case) -> None:
    outcome = without(case)
    assert outcome is not None, f"{SEEDS} seeds of {case.scenario} do not show what {case.guards} is for"
    assert re.search(case.says, outcome.violation), outcome.violation
    assert any(outcome.violation in line for line in outcome.lines)


@pytest.mark.parametrize("alone", ["lease", "sink_fence"])
def test_a_lease_and_a_fence_each_keep_writers_apart_while_etcd_is_cut_off(alone: str) -> None:
    """Safety does not depend on time: the fence is enough. The lease would be, for a sink without a fence."""
    assert without(Case((alone,), "no etcd", ""), range(12)) is None


class SlowClocks(Simulation):
    """The clocks of all captures lose a tenth."""

    def _begin(self) -> None:
        super()._begin()
        for capture in self.world.captures.values():
            capture.set_clock(0.9)


@pytest.mark.parametrize("margin", [session.MARGIN, 0.0])
def test_a_lease_needs_its_margin_to_keep_writers_with_slow_clocks_apart(
    monkeypatch: pytest.MonkeyPatch, margin: float
) -> None:
    """etcd ends a session after 10 s, and a capture whose clock is slow counts 9 s then."""
    monkeypatch.setattr(session, "MARGIN", margin)
    scenario, off = OWN_SCENARIOS["no etcd"], frozenset({"sink_fence"})
    outcomes = (SlowClocks(scenario, seed, name="slow clocks", off=off).run() for seed in range(MARGIN_SEEDS))
    violation = next((one.violation for one in outcomes if one.violation), "")
    assert "the sink accepts" in violation if margin == 0.0 else violation == ""


def test_each_guard_is_needed_in_the_explorer_or_here() -> None:
    shown = {one for case in CASES for one in case.guards} | EXPLORED.keys() | HARMLESS_IF_EXPLORED.keys()
    assert GUARDS.keys() - shown == HARMLESS.keys()
