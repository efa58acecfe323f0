"""How long a takeover takes at the shortest session, if nothing else goes wrong: one death in each seed."""

from __future__ import annotations

import pytest

from tidegate.etcd.session import LEAST_TTL_S
from tidegate.simulator import capture
from tidegate.simulator.capture import Capture
from tidegate.simulator.run import QUIET_S, Simulation
from tidegate.simulator.scenarios import Scenario
from tidegate.simulator.virtual_time import Steps

SEEDS = 10
OWNER_S, CAPTURE_S = 5.0, 8.0
DIES_S = (15.0, 25.0)
"""When a capture dies: all have joined by then, their applications run, and the ranges are even."""
AFTER_S = 15.0
"""How long the others deliver alone until the dead capture starts again."""
AT_ONCE_S = (0.0, LEAST_TTL_S + 0.5)
"""The same if something starts it again at once: it joins when its old session ends.
"""
SLOW_START_S = (8.0, 12.0)
"""How long an application takes to start on a machine with much else to do."""


class OneDeath(Simulation):
    """Three captures, of which one dies and stays dead for a while."""

    def __init__(self, seed: int, *, owner_dies: bool, at_once: bool) -> None:
        scenario = Scenario("", last_s=60.0, ttl_s=LEAST_TTL_S)
        super().__init__(scenario, seed, name="one death")
        self._owner_dies, self._at_once = owner_dies, at_once

    def _victims(self) -> list[Capture]:
        """The captures that may die, if the ranges are delivered by all of them now."""
        captures, owner = self.world.captures.values(), self.world.owner
        if owner is None or not all(one.delivers for one in captures):
            return []
        return [one for one in captures if (one is owner) == self._owner_dies]

    def _trouble(self) -> Steps[None]:
        time = self.world.time
        yield time.rng.uniform(*DIES_S)
        while not (victims := self._victims()):
            yield 0.1
        victim = time.rng.choice(victims)
        self.world.failovers.died(time.now, was_owner=self._owner_dies)
        self.world.note("FAULT", f"{victim.name} is killed with its workers")
        victim.kill(workers=True)
        yield time.rng.uniform(*AT_ONCE_S) if self._at_once else AFTER_S
        victim.start_again()
        yield AFTER_S if self._at_once else 0.0
        self._healed_at = time.now
        yield QUIET_S
        self._target = self.world.upstream.tso(time.now)


def failovers_s(*, owner_dies: bool, at_once: bool = False) -> list[float]:
    """The time from the death until a checkpoint above that moment is stored, of each seed, in order."""
    found = []
    for seed in range(SEEDS):
        outcome = OneDeath(seed, owner_dies=owner_dies, at_once=at_once).run()
        assert not outcome.violation, f"seed {seed}: {outcome.violation}\n" + "\n".join(outcome.lines)
        (took_s,) = outcome.owner_failovers_s if owner_dies else outcome.capture_failovers_s
        found.append(took_s)
    return sorted(found)


def test_a_dead_owner_is_replaced_within_5_s_at_the_shortest_session() -> None:
    found = failovers_s(owner_dies=True)
    assert found[-1] <= OWNER_S, f"seconds: {[round(one, 1) for one in found]}"
    assert found[0] > 1.0, "a session lasts that long at least: nothing was measured"


def test_a_dead_capture_is_replaced_within_8_s_at_the_shortest_session() -> None:
    found = failovers_s(owner_dies=False)
    assert found[-1] <= CAPTURE_S, f"seconds: {[round(one, 1) for one in found]}"
    assert found[0] > 1.0, "a session lasts that long at least: nothing was measured"


@pytest.fixture
def slow_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "WARM_UP_S", SLOW_START_S)


@pytest.mark.usefixtures("slow_start")
def test_a_next_owner_does_not_wait_for_the_application_of_the_dead_one() -> None:
    found = failovers_s(owner_dies=True, at_once=True)
    assert found[-1] <= OWNER_S, f"seconds: {[round(one, 1) for one in found]}"


@pytest.mark.usefixtures("slow_start")
def test_an_owner_does_not_wait_for_answers_of_a_process_that_was_killed() -> None:
    found = failovers_s(owner_dies=False, at_once=True)
    # One of them joins between two looks of the owner, which learns that by the answer to its next message,
    # up to 5 s later. If the owner waited for such answers, another one would take as long.
    assert found[-2] <= OWNER_S, f"seconds: {[round(one, 1) for one in found]}"
