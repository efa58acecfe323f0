"""Faults of what a capture has received: a table that does not advance, a catalogue that misses DDL."""

from __future__ import annotations

from typing import Final

from tidegate.simulator.capture import Capture
from tidegate.simulator.fault_draws import later
from tidegate.simulator.process_faults import ProcessFaults
from tidegate.simulator.upstream import at
from tidegate.simulator.world import World

LOSES_S: Final = 12.0
"""How long a catalogue misses DDL. Seconds."""


class DataFaults:
    """Holds back rows and DDL. Each fault returns what it has done; empty: it could do nothing."""

    def __init__(self, world: World, processes: ProcessFaults) -> None:
        self._world, self._time, self._rng = world, world.time, world.time.rng
        self._processes = processes

    def region_stalls(self) -> str:
        capture = self._rng.choice(list(self._world.captures.values()))
        table, view = self._rng.choice(self._world.upstream.there).id, capture.view
        # A second stall of the table must not raise the ts at which the first one holds it.
        view.stalled.setdefault(table, view.resolved_ts)
        lasts = later(self._world, 1.0, 15.0, lambda: view.stalled.pop(table, None))
        return f"{capture.name} receives nothing of {table} {lasts}"

    def ddl_lost(self) -> str:
        capture = self._rng.choice(list(self._world.captures.values()))
        if any(one.lost_ddl[1] for one in self._world.captures.values()):
            return ""
        now = self._time.now
        capture.lost_ddl = self._world.upstream.tso(now), at(now + LOSES_S)
        lasts = later(self._world, LOSES_S, 2 * LOSES_S, lambda: self.find_ddl(capture))
        return f"{capture.name}'s catalogue misses DDL of the next {LOSES_S:.0f} s; it is repaired {lasts}"

    def find_ddl(self, capture: Capture) -> None:
        """End the fault by killing the capture: its next process reads the catalogue again."""
        if capture.lost_ddl[1]:
            capture.lost_ddl = 0, 0
            self._processes.kill(capture)
