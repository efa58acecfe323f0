"""Faults of the network, and of the services that captures reach over it: etcd and the sink."""

from __future__ import annotations

from typing import Final

from tidegate.simulator.fault_draws import any_capture, later
from tidegate.simulator.network import ETCD, SINK, Conditions
from tidegate.simulator.world import World

CALM: Final = Conditions()
BAD: Final = Conditions(lost=0.2, doubled=0.1, late=0.2)


class NetworkFaults:
    """Cuts connections, and makes messages and services slow or unreachable. Each fault returns what it has
    done; empty: it could do nothing.
    """

    def __init__(self, world: World) -> None:
        self._world, self._rng = world, world.time.rng

    def heal(self) -> None:
        """End all of them at once: every connection works, and every service answers."""
        network = self._world.network
        network.conditions = CALM
        network.cuts.clear()
        network.slow.clear()
        if ETCD in network.down:
            # The end that was scheduled for this fault may be far away, and leases must not expire at once
            # now.
            self._world.etcd.restarted()
        network.down.clear()

    def lose_one(self) -> str:
        """Cut off one capture from the others, for good. It still reaches etcd and the sink, so that only the
        owner's patience ends what it does.
        """
        name = self._rng.choice(list(self._world.captures))
        others = [one for one in self._world.captures if one != name]
        to, of = [(other, name) for other in others], [(name, other) for other in others]
        words, ways = self._rng.choice(
            (("is cut off", to + of), ("receives nothing", to), ("reaches nobody", of))
        )
        self._world.network.cuts.update(ways)
        self._world.timeline.faults[f"{words} for good"] += 1
        return f"{name} {words} for good"

    def _cut(self, cuts: list[tuple[str, str]], least_s: float, most_s: float) -> str:
        self._world.network.cuts.update(cuts)
        return later(self._world, least_s, most_s, lambda: self._world.network.cuts.difference_update(cuts))

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

        return f"messages are lost, doubled and late {later(self._world, 2.0, 20.0, end)}"

    # --- services ------------------------------------------------------------------------------------

    def session_lost(self) -> str:
        capture = any_capture(self._world)
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

        return f"etcd is down {later(self._world, 0.5, 12.0, end)}"

    def slow_sink(self) -> str:
        network = self._world.network
        network.slow[SINK] = self._rng.uniform(5.0, 100.0)
        lasts = later(self._world, 2.0, 15.0, lambda: network.slow.pop(SINK, None))
        return f"the sink is slow {lasts}"

    def sink_down(self) -> str:
        network = self._world.network
        network.down.add(SINK)
        return f"the sink is down {later(self._world, 0.5, 8.0, lambda: network.down.discard(SINK))}"
