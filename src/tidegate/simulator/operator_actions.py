"""Actions of operators, which may come at any moment: resign, drain, rebalance; and loads that shift."""

from __future__ import annotations

from tidegate.control.metadata import Delete, Put
from tidegate.etcd.election import drained_prefix
from tidegate.simulator.capture import Capture
from tidegate.simulator.fault_draws import later
from tidegate.simulator.world import CLUSTER, World


class OperatorActions:
    """Does what operators do. Each action returns what it has done; empty: it could do nothing."""

    def __init__(self, world: World) -> None:
        self._world, self._rng = world, world.time.rng

    def resigned(self) -> str:
        owner = self._world.owner
        if owner is None or owner.control is None or owner.is_stopped:
            return ""
        owner.control.resign()
        return f"{owner.name} is asked to resign"

    def set_drained(self, capture: Capture, *, drained: bool) -> None:
        key = drained_prefix(CLUSTER) + capture.name
        self._world.etcd.transact((), [Put(key, b"") if drained else Delete(key)])

    def drained(self) -> str:
        capture = self._rng.choice(list(self._world.captures.values()))
        self.set_drained(capture, drained=True)
        lasts = later(self._world, 5.0, 30.0, lambda: self.set_drained(capture, drained=False))
        return f"{capture.name} is drained {lasts}"

    def rebalanced(self) -> str:
        owner = self._world.owner
        if owner is None or owner.control is None or owner.control.owner is None:
            return ""
        owner.control.owner.shares.sharing.ask()
        return "somebody asks for a rebalance"

    def loads_shift(self) -> str:
        self._world.upstream.shift_loads()
        return "other tables are busy now"
