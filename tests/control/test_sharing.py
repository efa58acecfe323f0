"""Captures share a changefeed's ranges in every order of events: `sharing` tries as many as time allows.

`make explore` is the long form, and `python -m tests.control.sharing --rewrite` writes the traces again.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
from tests.control.sharing import (
    CASES,
    CI_STATES,
    CLEAN,
    GUARDS,
    HARMLESS,
    OVERTAKEN,
    TRACES,
    explore,
    heading,
    heal,
    script,
    sections,
    without,
)
from tests.control.sharing_model import Model
from tests.control.sharing_world import Bounds

from tidegate.server.owner.peers import Peer


@pytest.mark.parametrize("name", CLEAN)
def test_all_guards_keep_every_promise_and_without_faults_reach_the_target(name: str) -> None:
    found = explore(CLEAN[name], limit=CI_STATES, every=CI_STATES // 20)
    assert found.violation == "", "\n".join(found.trace)
    print(f"{name}: {found.states:,} states, {found.transitions:,} transitions, {dict(found.events)}")
    budgeted = {what for what, count in CLEAN[name].budget._asdict().items() if count}
    assert budgeted <= found.events.keys(), "something that may happen never does"
    steps = [heal(Model(CLEAN[name]), world) for world in found.sample]
    assert min(steps) >= 0, "from one of the sampled states the target is not reached"


def test_a_capture_that_receives_nothing_would_be_waited_for_for_ever() -> None:
    """If its silence were not noticed (`Peer.is_deaf`), ranges would be given to it again and again."""
    bounds = CLEAN["a capture receives nothing"]
    sample = [one for one in explore(bounds, limit=CI_STATES // 3, every=20).sample if one.is_cut]
    with patch.object(Peer, "is_deaf", lambda self, now: False):
        assert min(heal(Model(bounds), world) for world in sample) < 0
    assert min(heal(Model(bounds), world) for world in sample) >= 0


@pytest.mark.parametrize("guard", CASES)
def test_without_a_guard_a_violation_is_found_and_is_the_one_on_file(guard: str) -> None:
    found = without(guard)
    assert found.violation, f"nothing shows that '{guard}' is needed"
    assert list(script(guard, found)) == sections(TRACES.read_text())[heading(guard)]


@pytest.mark.parametrize("bounds", {case.bounds: None for case in CASES.values()})
def test_with_all_guards_nothing_is_found_in_the_same_bounds(bounds: Bounds) -> None:
    found = explore(bounds, limit=CI_STATES)
    assert found.violation == "", "\n".join(found.trace)


@pytest.mark.parametrize("guard", [guard for guard, case in CASES.items() if case.behind])
def test_a_second_fence_holds_alone(guard: str) -> None:
    """With the guard off nothing is found while one of those that it is behind is on."""
    bounds, behind = CASES[guard]
    limit = 3 * without(guard).states
    for on in behind:
        off = (guard, *(one for one in behind if one != on))
        found = explore(bounds, off, limit)
        assert not found.violation, f"'{on}' makes no difference to '{guard}': {found.violation}"


def test_what_a_capture_reports_without_a_ddl_never_counts() -> None:
    found = explore(OVERTAKEN, limit=20_000)
    assert found.violation == "", "\n".join(found.trace)


@pytest.mark.parametrize("guard", HARMLESS)
def test_guards_that_nothing_depends_on_here_are_known(guard: str) -> None:
    assert not explore(HARMLESS[guard][0], (guard,), CI_STATES).violation, "now it is needed: make it a case"


def test_each_guard_is_accounted_for() -> None:
    assert GUARDS.keys() == CASES.keys() | HARMLESS.keys()
