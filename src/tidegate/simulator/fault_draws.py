"""Draws for all kinds of faults: which capture is hit, and how long the fault lasts."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.simulator.capture import Capture
from tidegate.simulator.world import World


def later(world: World, least_s: float, most_s: float, work: Callable[[], object]) -> str:
    """Schedule the end of a fault. Returns its duration in words."""
    seconds = world.time.rng.uniform(least_s, most_s)
    world.time.after(seconds, work)
    return f"for {seconds:.1f} s"


def any_capture(world: World) -> Capture | None:
    """A random capture whose control process runs; None if there is none."""
    found = [one for one in world.captures.values() if one.control and not one.is_stopped]
    return world.time.rng.choice(found) if found else None
