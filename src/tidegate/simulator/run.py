"""One simulation from its seed to its verdict.

    build -> [workload and faults until `last_s`] -> heal -> [everything must arrive within HEAL_S] -> outcome

The same scenario, seed and guards always give the same outcome, with the same timeline.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.control.metadata import FeedStatus, Put, feed_key
from tidegate.model.timestamp import Timestamp
from tidegate.simulator.capture import Capture
from tidegate.simulator.checks import Checks, Violation
from tidegate.simulator.etcd import Etcd
from tidegate.simulator.faults import Faults
from tidegate.simulator.network import Network
from tidegate.simulator.scenarios import Scenario
from tidegate.simulator.sink import Sink
from tidegate.simulator.timeline import Timeline
from tidegate.simulator.upstream import TICK_S, Upstream, short
from tidegate.simulator.virtual_time import Process, Steps, VirtualTime
from tidegate.simulator.world import CLUSTER, FEED, World

HEAL_S: Final = 150.0
"""Virtual seconds after the last fault within which everything must be delivered. They cover the end of a
session by its TTL, the longest back-off of a changefeed, and a capture that gets no ranges after failures."""
QUIET_S: Final = 1.0
"""How long upstream continues to write after the heal."""
LAG_S: Final = (0.005, 0.25)
"""How long the resolved ts takes from upstream to a capture, at least and at most."""


def names(captures: int) -> list[str]:
    """The names of captures: letters, or numbers if there are many."""
    letters = "abcdefgh"
    return (
        [*letters[:captures]] if captures <= len(letters) else [f"c{n:03d}" for n in range(1, captures + 1)]
    )


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a simulation."""

    scenario: str
    seed: int
    virtual_s: float
    steps: int
    rows: int
    ddl: int
    counts: Mapping[str, int]
    faults: Mapping[str, int]
    checks: Mapping[str, int]
    owner_failovers_s: Sequence[float]
    capture_failovers_s: Sequence[float]
    healed_s: float
    """The time from the heal until everything was delivered."""
    violation: str
    """The promise that was broken, in words. Empty: none."""
    lines: Sequence[str]
    """The timeline: all lines if `whole` was given, otherwise the last ones."""


class Simulation:
    """One run."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        name: str = "",
        off: frozenset[str] = frozenset(),
        whole: bool = False,
    ) -> None:
        """`off`: guards to disable (`simulator.guards`). `whole`: keep the whole timeline."""
        self.scenario, self.seed, self.name = scenario, seed, name
        rng = random.Random(f"{name}/{seed}")
        time, timeline = VirtualTime(rng), Timeline(whole=whole)
        upstream = Upstream(rng, scenario.tables)
        checks = Checks(upstream)
        network, etcd = Network(time, timeline), Etcd(time)
        sink = Sink(time, checks, off)
        self.world = World(time, timeline, network, etcd, upstream, sink, checks, off, scenario.ttl_s)
        status = FeedStatus(upstream.start_ts)
        etcd.transact((), [Put(feed_key(CLUSTER, FEED, "status"), status.to_bytes())])
        for capture in names(scenario.captures):
            self.world.captures[capture] = Capture(self.world, capture)
        self._faults = Faults(self.world)
        self._target: Timestamp = 0
        """The last ts of upstream. 0: it still writes."""
        self._healed_at = 0.0

    def run(self) -> RunOutcome:
        """Run to the end, or to the first violation."""
        violation, collects = "", gc.isenabled()
        gc.disable()  # faster: a simulation makes few reference cycles, and is short
        try:
            self._begin()
            self.world.time.run(self.scenario.last_s + QUIET_S + HEAL_S, self._is_over)
            if not self._is_over():
                violation = self._words_of_stillness()
        except Violation as wrong:
            violation = str(wrong)
        except AssertionError as wrong:
            violation = f"a machine's own assertion failed: {wrong}"
        finally:
            self.world.time.end()
            if collects:
                gc.enable()
        return self._outcome(violation)

    def _begin(self) -> None:
        time, nature = self.world.time, Process("nature")
        for capture in self.world.captures.values():
            time.after(time.rng.uniform(0.0, 2.0), capture.start)
        time.spawn(nature, self._write())
        time.spawn(nature, self._change_tables())
        time.spawn(nature, self._advance())
        time.spawn(nature, self._trouble())

    # --- upstream ------------------------------------------------------------------------------------

    def _write(self) -> Steps[None]:
        """Commit transactions at random times."""
        world = self.world
        while not self._target:
            yield world.time.rng.expovariate(self.scenario.transactions_s)
            if not self._target:
                world.upstream.commit(world.time.now)

    def _change_tables(self) -> Steps[None]:
        """Create and drop tables at random times."""
        world = self.world
        while True:
            yield world.time.rng.expovariate(1 / self.scenario.ddl_every_s)
            if self._target:
                return
            change = world.time.rng.choice((world.upstream.create, world.upstream.drop))
            if table := change(world.time.now):
                world.note("upst", f"{change.__name__} table {table}")

    def _advance(self) -> Steps[None]:
        """Advance the resolved ts, and let it arrive at each capture after a random delay."""
        world = self.world
        while True:
            yield TICK_S
            ts = world.upstream.resolved_ts = world.upstream.tso(world.time.now)
            for capture in world.captures.values():
                world.time.after(world.time.rng.uniform(*LAG_S), self._receive, capture, ts)

    @staticmethod
    def _receive(capture: Capture, ts: Timestamp) -> None:
        """A capture's puller has received everything up to a ts."""
        capture.view.resolved_ts = max(ts, capture.view.resolved_ts)
        control = capture.control
        if control is not None:
            if control.processor is not None:
                control.processor.wake.set()
            if control.owner is not None:
                control.owner.wake.set()

    def _trouble(self) -> Steps[None]:
        """Inject faults, then heal them all."""
        scenario, time = self.scenario, self.world.time
        yield scenario.begin_s
        while scenario.faults:
            yield min(time.rng.expovariate(1 / scenario.every_s), scenario.last_s - time.now)
            if time.now >= scenario.last_s:
                break
            self._faults.inject(time.rng.choice(scenario.faults))
        yield max(0.0, scenario.last_s - time.now)
        self._faults.heal()
        if scenario.loses_one:
            self._faults.lose_one()
        self._healed_at = time.now
        yield QUIET_S
        self._target = self.world.upstream.tso(time.now)

    # --- the verdict ---------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Whether everything of upstream is downstream, the checkpoint is stored, and all ranges
        are running.
        """
        if not self._target or self.world.checks.checkpoint_ts < self._target:
            return False
        owner = self.world.owner
        task = owner.control.owner if owner is not None and owner.control is not None else None
        return task is not None and task.owner is not None and task.owner.ranges.are_running

    def _words_of_stillness(self) -> str:
        world = self.world
        stored = short(world.checks.checkpoint_ts)
        owner = world.owner
        return (
            f"{HEAL_S:.0f} s after all faults were healed the checkpoint is {stored}, "
            f"not {short(self._target)}; "
            f"{world.checks.behind(self._target)} rows are missing; "
            + (f"the owner is {owner.name}" if owner is not None else "there is no owner")
        )

    def _outcome(self, violation: str) -> RunOutcome:
        world = self.world
        if violation:
            world.note("CHECK", violation)
        return RunOutcome(
            self.name,
            self.seed,
            world.time.now,
            world.time.steps,
            world.checks.delivered,
            len(world.upstream.batches),
            dict(world.timeline.counts),
            dict(world.timeline.faults),
            dict(world.checks.counts),
            tuple(world.failovers.owner_s),
            tuple(world.failovers.capture_s),
            max(0.0, world.time.now - self._healed_at) if self._healed_at else 0.0,
            violation,
            tuple(world.timeline.lines),
        )
