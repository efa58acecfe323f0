"""Captures that share a changefeed under faults in virtual time: nothing is lost, and everything arrives.

`make simulate` is the long form.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Set
from itertools import pairwise
from pathlib import Path

import pytest

from tidegate.control.ddl_agreement import DdlAgreement
from tidegate.control.ddl_log import DdlLog, KnownDdl
from tidegate.simulator.faults import EVERY_KIND
from tidegate.simulator.run import HEAL_S, Simulation
from tidegate.simulator.scenarios import SCENARIOS, Scenario
from tidegate.simulator.summary import Summary, simulate

ROOT = Path(__file__).parents[2]
SEEDS = 80
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_in_a_storm_no_promise_is_broken_and_everything_arrives(part: int) -> None:
    each = SEEDS // PARTS
    for outcome in simulate("storm", range(part * each, (part + 1) * each)):
        assert not outcome.violation, f"seed {outcome.seed}: {outcome.violation}\n" + "\n".join(outcome.lines)
        assert 0 < outcome.healed_s < HEAL_S


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_keeps_its_promises(scenario: str) -> None:
    for outcome in simulate(scenario, range(5)):
        assert not outcome.violation, f"seed {outcome.seed}: {outcome.violation}\n" + "\n".join(outcome.lines)


def test_the_others_continue_without_a_capture_that_stays_unreachable() -> None:
    """It keeps its session, so it does not count as gone. If they waited for it, all would halt."""
    kinds: Counter[str] = Counter()
    for outcome in simulate("unreachable", range(12)):
        assert not outcome.violation, f"seed {outcome.seed}: {outcome.violation}\n" + "\n".join(outcome.lines)
        kinds.update(kind for kind in outcome.faults if kind.endswith(" for good"))
    assert len(kinds) == 3, kinds


def test_owners_that_resign_take_turns_and_end_no_session() -> None:
    scenario = Scenario("owners resign", ("owner resigned",), begin_s=12.0, every_s=6.0)
    for seed in range(3):
        outcome = Simulation(scenario, seed, whole=True).run()
        assert not outcome.violation, outcome.violation
        joined = [line for line in outcome.lines if " joins, epoch " in line]
        elected = [line.split()[1] for line in outcome.lines if " is elected, owner " in line]
        assert len(joined) == scenario.captures
        assert len(elected) > 2
        assert all(one != after for one, after in pairwise(elected)), "the last in the row is elected last"


def test_without_faults_everything_is_shared_and_delivered_at_once() -> None:
    (outcome,) = simulate("calm", [1])
    assert not outcome.faults
    assert outcome.counts["incarnations"] >= 2, "the captures share the ranges"
    assert outcome.healed_s < 5.0


def test_the_same_seed_gives_the_same_timeline_and_another_one_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, again, other = (
        Simulation(SCENARIOS["storm"], seed, name="storm", whole=True).run() for seed in (11, 11, 12)
    )
    assert first == again
    assert first.lines != other.lines
    assert not [line for line in caplog.messages if "gets no ranges" in line], "all have one version"


def test_a_timeline_does_not_depend_on_the_order_of_hashes() -> None:
    program = (
        "from tidegate.simulator.run import Simulation\n"
        "from tidegate.simulator.scenarios import SCENARIOS\n"
        "for seed in range(3):\n"
        "    print(*Simulation(SCENARIOS['storm'], seed, name='storm', whole=True).run().lines, sep='\\n')\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop().splitlines()) > 100


def test_every_kind_of_fault_happens() -> None:
    faults: Counter[str] = Counter()
    for outcome in simulate("storm", range(1000, 1030)):
        faults.update(outcome.faults)
    assert faults.keys() == set(EVERY_KIND)


def test_a_dead_owner_is_replaced_within_its_session_and_a_start() -> None:
    total = Summary()
    for outcome in simulate("owner-dies", range(8)):
        assert not outcome.violation
        total.add(outcome)
    assert len(total.owner_failovers_s) >= 8
    assert max(total.owner_failovers_s) < 45.0
    assert sorted(total.owner_failovers_s)[len(total.owner_failovers_s) // 2] < 16.0


def any_agreement_counts(self: DdlAgreement, capture: str, said: KnownDdl, captures: Set[str]) -> None:
    """As `DdlAgreement.receive` was: also a message from before they differed ends a disagreement."""
    if not self._log.has_forgotten(said) and not self._log.is_behind(said) and self._log.agrees(said):
        self._others.pop(capture, None)
    RECEIVE(self, capture, said, captures)


RECEIVE = DdlAgreement.receive
LOST_DDL = Scenario("", ("DDL lost", "bad network"), ddl_every_s=8.0, every_s=3.0, last_s=60.0)


def test_a_late_message_ends_no_disagreement_on_ddl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first defect that the simulator has found. With it, about one seed in 50 breaks a promise.

    Since then the spans that captures report show the missed DDL, too, so they are left out here. If this
    seed does not break a promise any more because something else draws other numbers, take another one.
    """
    monkeypatch.setattr(DdlLog, "_spans_at", lambda self, ts: 0)
    assert not Simulation(LOST_DDL, 29, name="late").run().violation
    monkeypatch.setattr(DdlAgreement, "receive", any_agreement_counts)
    assert "below it is missing" in Simulation(LOST_DDL, 29, name="late").run().violation


def test_ddl_that_a_capture_missed_while_it_prepared_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others deliver that DDL, so it is below the checkpoint when the capture begins to report.

    If this seed does not show it any more because something else draws other numbers, take another one.
    """
    assert not Simulation(LOST_DDL, 168, name="late").run().violation
    monkeypatch.setattr(DdlLog, "_spans_at", lambda self, ts: 0)
    assert "a row of t08 below it is missing" in Simulation(LOST_DDL, 168, name="late").run().violation
