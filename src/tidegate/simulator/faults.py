"""Injects faults into a simulation, and heals them.

Each kind is a method of `Faults` that injects one fault and schedules its end. `heal` ends all remaining
faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidegate.control.metadata import Delete, Put
from tidegate.etcd.election import drained_prefix
from tidegate.simulator.capture import Capture, Moment
from tidegate.simulator.network import ETCD, SINK, Conditions
from tidegate.simulator.upstream import at
from tidegate.simulator.virtual_time import Process
from tidegate.simulator.worker import Worker
from tidegate.simulator.world import CLUSTER, World

CALM: Final = Conditions()
LOSES_S: Final = 12.0
"""How long a catalogue misses DDL. Seconds."""
BAD: Final = Conditions(lost=0.2, doubled=0.1, late=0.2)


class Faults:
    """Injects single faults, each with its own end."""

    def __init__(self, world: World) -> None:
        self._world, self._time, self._rng = world, world.time, world.time.rng

    def inject(self, kind: str) -> None:
        """Inject one fault of a kind. Does nothing if the fault cannot happen now."""
        what = KINDS[kind](self)
        if what:
            self._world.timeline.faults[kind] += 1
            self._world.note("FAULT", what)

    def heal(self) -> None:
        """End all faults: every capture runs, and all connections work."""
        world = self._world
        world.network.conditions = CALM
        world.network.cuts.clear()
        world.network.slow.clear()
        if ETCD in world.network.down:
            # The end that was scheduled for this fault may be far away, and leases must not expire at once
            # now.
            world.etcd.restarted()
        world.network.down.clear()
        for capture in world.captures.values():
            capture.view.stalled.clear()
            capture.traps.clear()
            capture.set_clock(1.0)
            self._set_drained(capture, drained=False)
            if capture.lost_ddl[1]:
                self._find_ddl(capture)
            for process in self._processes(capture):
                self._time.continue_process(process)
            # Last, because `_find_ddl` may have just killed it. One that waits for its own start begins now
            # instead.
            capture.start()
        world.note("FAULT", "all faults are healed")

    def lose_one(self) -> None:
        """Make one capture unreachable for the others, for good. It still reaches etcd and the sink, so that
        only the owner's patience ends what it does.
        """
        name = self._rng.choice(list(self._world.captures))
        others = [one for one in self._world.captures if one != name]
        to, of = [(other, name) for other in others], [(name, other) for other in others]
        words, ways = self._rng.choice(
            (("is cut off", to + of), ("receives nothing", to), ("reaches nobody", of))
        )
        self._world.network.cuts.update(ways)
        self._world.timeline.faults[f"{words} for good"] += 1
        self._world.note("FAULT", f"{name} {words} for good")

    def _later(self, least_s: float, most_s: float, work: Callable[[], object]) -> str:
        """Schedule the end of a fault. Returns its duration in words."""
        seconds = self._rng.uniform(least_s, most_s)
        self._time.after(seconds, work)
        return f"for {seconds:.1f} s"

    def _any(self) -> Capture | None:
        """A random capture whose control process runs; None if there is none."""
        found = [one for one in self._world.captures.values() if one.control and not one.is_stopped]
        return self._rng.choice(found) if found else None

    # --- processes that die --------------------------------------------------------------------------

    def capture_killed(self) -> str:
        return self._kill(self._any())

    def owner_killed(self) -> str:
        return self._kill(self._world.owner)

    def _kill(self, capture: Capture | None) -> str:
        if capture is None:
            return ""
        was_owner, delivered = capture is self._world.owner, capture.delivers
        # Asked before the kill, after which it has no worker. Without either there is nothing to take over.
        if was_owner or delivered:
            self._world.failovers.died(self._time.now, was_owner=was_owner)
        capture.kill(workers=True)
        return f"{capture.name} is killed with its workers, {self._later(0.5, 25.0, capture.start_again)}"

    def control_killed(self) -> str:
        capture = self._any()
        if capture is None:
            return ""
        capture.kill(workers=False)
        self._later(0.5, 5.0, capture.start_again)
        # Before the capture starts again: the workers of its next life are not part of this fault.
        old = list(capture.workers)
        lasts = self._later(0.0, 20.0, lambda: self._end_all(old))
        return f"{capture.name}'s control process is killed, and its workers continue {lasts}"

    def _end_all(self, workers: list[Worker]) -> None:
        for worker in workers:
            self._time.kill(worker.process)

    def worker_killed(self) -> str:
        capture = self._any()
        if capture is None:
            return ""
        capture.lose_worker()
        return f"{capture.name}'s application is killed"

    # --- processes that are stopped ------------------------------------------------------------------

    @staticmethod
    def _processes(capture: Capture) -> list[Process]:
        control = [capture.control.process] if capture.control is not None else []
        return [*control, *(one.process for one in capture.workers)]

    def _stop(self, processes: list[Process]) -> str:
        for process in processes:
            self._time.stop(process)

        def continue_process() -> None:
            for process in processes:
                self._time.continue_process(process)

        return self._later(1.0, 40.0, continue_process)

    def capture_stopped(self) -> str:
        capture = self._any()
        if capture is None:
            return ""
        return f"{capture.name} is stopped (SIGSTOP) {self._stop(self._processes(capture))}"

    def control_stopped(self) -> str:
        capture = self._any()
        if capture is None or capture.control is None:
            return ""
        return f"{capture.name}'s control process is stopped {self._stop([capture.control.process])}"

    def worker_stopped(self) -> str:
        capture = self._any()
        workers = [one.process for one in capture.workers if one.process.alive] if capture else []
        if capture is None or not workers:
            return ""
        return f"{capture.name}'s workers are stopped {self._stop(workers)}"

    # --- clocks ----------------------------------------------------------------------------------------

    def clock_skewed(self) -> str:
        capture = self._rng.choice(list(self._world.captures.values()))
        capture.set_clock(rate := self._rng.choice((0.5, 0.8, 1.25, 2.0)))
        lasts = self._later(5.0, 40.0, lambda: capture.set_clock(1.0))
        return f"{capture.name}'s clock goes {rate:g} times as fast {lasts}"

    # --- at the worst moment ---------------------------------------------------------------------------

    def stopped_in_midst(self) -> str:
        moment = self._rng.choice(tuple(Moment))
        # Every capture has workers with transactions. Only the owner comes to the other moments.
        capture = self._any() if moment is Moment.COMMIT else self._world.owner
        if capture is None:
            return ""

        def stop() -> None:
            lasts = self._stop(self._processes(capture))
            self._world.note("FAULT", f"{capture.name} is stopped {moment}, {lasts}")

        capture.traps[moment] = stop
        return f"{capture.name} will be stopped {moment}"

    def killed_in_midst(self) -> str:
        moment = self._rng.choice(tuple(Moment))
        capture = self._any() if moment is Moment.COMMIT else self._world.owner
        if capture is None:
            return ""

        def kill() -> None:
            # Not inside the trap: the task that springs it is running, and a running generator cannot be
            # closed.
            self._time.after(0.0, lambda: self._world.note("FAULT", self._kill(capture)))

        capture.traps[moment] = kill
        return f"{capture.name} will be killed {moment}"

    # --- the network ---------------------------------------------------------------------------------

    def _cut(self, cuts: list[tuple[str, str]], least_s: float, most_s: float) -> str:
        self._world.network.cuts.update(cuts)
        return self._later(least_s, most_s, lambda: self._world.network.cuts.difference_update(cuts))

    def network_cut(self) -> str:
        one, other = self._rng.sample(list(self._world.captures), k=2)
        if self._rng.random() < 0.5:
            return f"messages from {one} to {other} are cut off {self._cut([(one, other)], 1.0, 40.0)}"
        return f"{one} and {other} are cut off {self._cut([(one, other), (other, one)], 1.0, 40.0)}"

    def capture_isolated(self) -> str:
        name = self._rng.choice(list(self._world.captures))
        others = [one for one in self._world.captures if one != name]
        cuts = [way for other in others for way in ((name, other), (other, name))]
        return f"{name} is cut off from the other captures {self._cut(cuts, 1.0, 40.0)}"

    def cut_from_etcd(self) -> str:
        name = self._rng.choice(list(self._world.captures))
        ways = [(name, ETCD), (ETCD, name)]
        cuts = ways if self._rng.random() < 0.5 else [self._rng.choice(ways)]
        return f"{name} is cut off from etcd {self._cut(cuts, 0.5, 25.0)}"

    def cut_from_sink(self) -> str:
        name = self._rng.choice(list(self._world.captures))
        ways = [(name, SINK), (SINK, name)]
        cuts = ways if self._rng.random() < 0.5 else [self._rng.choice(ways)]
        return f"{name} is cut off from the sink {self._cut(cuts, 0.5, 20.0)}"

    def bad_network(self) -> str:
        network = self._world.network
        network.conditions = BAD

        def end() -> None:
            network.conditions = CALM

        return f"messages are lost, doubled and late {self._later(2.0, 20.0, end)}"

    # --- services ------------------------------------------------------------------------------------

    def session_lost(self) -> str:
        capture = self._any()
        if capture is None or capture.control is None or not capture.control.epoch:
            return ""
        # Straight at etcd, not through the network: the capture learns of it only when it renews or writes.
        self._world.etcd.revoke(capture.control.lease_id)
        return f"etcd ends the session of {capture.name}"

    def etcd_restarts(self) -> str:
        network, etcd = self._world.network, self._world.etcd
        if ETCD in network.down:
            return ""
        network.down.add(ETCD)
        etcd.up = False

        def end() -> None:
            network.down.discard(ETCD)
            etcd.restarted()

        return f"etcd is down {self._later(0.5, 12.0, end)}"

    def slow_sink(self) -> str:
        network = self._world.network
        network.slow[SINK] = self._rng.uniform(5.0, 100.0)
        lasts = self._later(2.0, 15.0, lambda: network.slow.pop(SINK, None))
        return f"the sink is slow {lasts}"

    def sink_down(self) -> str:
        network = self._world.network
        network.down.add(SINK)
        return f"the sink is down {self._later(0.5, 8.0, lambda: network.down.discard(SINK))}"

    def region_stalls(self) -> str:
        capture = self._rng.choice(list(self._world.captures.values()))
        table, view = self._rng.choice(self._world.upstream.there).id, capture.view
        # A second stall of the table must not raise the ts at which the first one holds it.
        view.stalled.setdefault(table, view.resolved_ts)
        lasts = self._later(1.0, 15.0, lambda: view.stalled.pop(table, None))
        return f"{capture.name} receives nothing of {table} {lasts}"

    def ddl_lost(self) -> str:
        capture = self._rng.choice(list(self._world.captures.values()))
        if any(one.lost_ddl[1] for one in self._world.captures.values()):
            return ""
        now = self._time.now
        capture.lost_ddl = self._world.upstream.tso(now), at(now + LOSES_S)
        lasts = self._later(LOSES_S, 2 * LOSES_S, lambda: self._find_ddl(capture))
        return f"{capture.name}'s catalogue misses DDL of the next {LOSES_S:.0f} s; it is repaired {lasts}"

    def _find_ddl(self, capture: Capture) -> None:
        """End the fault by killing the capture: its next process reads the catalogue again."""
        if capture.lost_ddl[1]:
            capture.lost_ddl = 0, 0
            self._kill(capture)

    # --- actions of operators ------------------------------------------------------------------------

    def resigned(self) -> str:
        owner = self._world.owner
        if owner is None or owner.control is None or owner.is_stopped:
            return ""
        owner.control.resign()
        return f"{owner.name} is asked to resign"

    def _set_drained(self, capture: Capture, *, drained: bool) -> None:
        key = drained_prefix(CLUSTER) + capture.name
        self._world.etcd.transact((), [Put(key, b"") if drained else Delete(key)])

    def drained(self) -> str:
        capture = self._rng.choice(list(self._world.captures.values()))
        self._set_drained(capture, drained=True)
        lasts = self._later(5.0, 30.0, lambda: self._set_drained(capture, drained=False))
        return f"{capture.name} is drained {lasts}"

    def rebalanced(self) -> str:
        owner = self._world.owner
        if owner is None or owner.control is None or owner.control.owner is None:
            return ""
        owner.control.owner.sharing.ask()
        return "somebody asks for a rebalance"

    def loads_shift(self) -> str:
        self._world.upstream.shift_loads()
        return "other tables are busy now"


KINDS: Final[Mapping[str, Callable[[Faults], str]]] = {
    "capture killed": Faults.capture_killed,
    "owner killed": Faults.owner_killed,
    "control process killed": Faults.control_killed,
    "worker killed": Faults.worker_killed,
    "capture stopped": Faults.capture_stopped,
    "control process stopped": Faults.control_stopped,
    "worker stopped": Faults.worker_stopped,
    "clock skewed": Faults.clock_skewed,
    "stopped in the midst": Faults.stopped_in_midst,
    "killed in the midst": Faults.killed_in_midst,
    "network cut": Faults.network_cut,
    "capture isolated": Faults.capture_isolated,
    "cut off from etcd": Faults.cut_from_etcd,
    "cut off from the sink": Faults.cut_from_sink,
    "bad network": Faults.bad_network,
    "session lost": Faults.session_lost,
    "etcd restarted": Faults.etcd_restarts,
    "slow sink": Faults.slow_sink,
    "sink down": Faults.sink_down,
    "region stalled": Faults.region_stalls,
    "DDL lost": Faults.ddl_lost,
    "owner resigned": Faults.resigned,
    "capture drained": Faults.drained,
    "rebalance": Faults.rebalanced,
    "loads shifted": Faults.loads_shift,
}
"""Every kind of fault, by its name."""
EVERY_KIND: Final = tuple(KINDS)
