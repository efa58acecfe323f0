"""Injects faults into a simulation, and heals them.

Each kind is a method of one part, which injects one fault and schedules its end: `process_faults`,
`network_faults`, `data_faults`, `operator_actions`. `heal` ends all remaining faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidegate.simulator.data_faults import DataFaults
from tidegate.simulator.network_faults import NetworkFaults
from tidegate.simulator.operator_actions import OperatorActions
from tidegate.simulator.process_faults import ProcessFaults, processes_of
from tidegate.simulator.world import World


class Faults:
    """Injects single faults, each with its own end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.processes = ProcessFaults(world)
        self.network = NetworkFaults(world)
        self.data = DataFaults(world, self.processes)
        self.operators = OperatorActions(world)

    def inject(self, kind: str) -> None:
        """Inject one fault of a kind. Does nothing if the fault cannot happen now."""
        what = KINDS[kind](self)
        if what:
            self._world.timeline.faults[kind] += 1
            self._world.note("FAULT", what)

    def heal(self) -> None:
        """End all faults: every capture runs, and all connections work."""
        world = self._world
        self.network.heal()
        for capture in world.captures.values():
            capture.view.stalled.clear()
            capture.traps.clear()
            capture.set_clock(1.0)
            self.operators.set_drained(capture, drained=False)
            if capture.lost_ddl[1]:
                self.data.find_ddl(capture)
            for process in processes_of(capture):
                world.time.continue_process(process)
            # Last, because `find_ddl` may have just killed it. One that waits for its own start begins now
            # instead.
            capture.start()
        world.note("FAULT", "all faults are healed")

    def lose_one(self) -> None:
        """Make one capture unreachable for the others, for good."""
        self._world.note("FAULT", self.network.lose_one())


KINDS: Final[Mapping[str, Callable[[Faults], str]]] = {
    "capture killed": lambda faults: faults.processes.capture_killed(),
    "owner killed": lambda faults: faults.processes.owner_killed(),
    "control process killed": lambda faults: faults.processes.control_killed(),
    "worker killed": lambda faults: faults.processes.worker_killed(),
    "capture stopped": lambda faults: faults.processes.capture_stopped(),
    "control process stopped": lambda faults: faults.processes.control_stopped(),
    "worker stopped": lambda faults: faults.processes.worker_stopped(),
    "clock skewed": lambda faults: faults.processes.clock_skewed(),
    "stopped in the midst": lambda faults: faults.processes.stopped_in_midst(),
    "killed in the midst": lambda faults: faults.processes.killed_in_midst(),
    "network cut": lambda faults: faults.network.network_cut(),
    "capture isolated": lambda faults: faults.network.capture_isolated(),
    "cut off from etcd": lambda faults: faults.network.cut_from_etcd(),
    "cut off from the sink": lambda faults: faults.network.cut_from_sink(),
    "bad network": lambda faults: faults.network.bad_network(),
    "session lost": lambda faults: faults.network.session_lost(),
    "etcd restarted": lambda faults: faults.network.etcd_restarts(),
    "slow sink": lambda faults: faults.network.slow_sink(),
    "sink down": lambda faults: faults.network.sink_down(),
    "region stalled": lambda faults: faults.data.region_stalls(),
    "DDL lost": lambda faults: faults.data.ddl_lost(),
    "owner resigned": lambda faults: faults.operators.resigned(),
    "capture drained": lambda faults: faults.operators.drained(),
    "rebalance": lambda faults: faults.operators.rebalanced(),
    "loads shifted": lambda faults: faults.operators.loads_shift(),
}
"""Every kind of fault, by its name."""
EVERY_KIND: Final = tuple(KINDS)
