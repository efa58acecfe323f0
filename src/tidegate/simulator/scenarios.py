"""Named scenarios: the size of a simulation, its duration, and the faults in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.errors import InvalidInput
from tidegate.simulator.faults import EVERY_KIND
from tidegate.simulator.world import TTL_S


@dataclass(frozen=True, slots=True)
class Scenario:
    """The parameters of a simulation. Times are in virtual seconds."""

    about: str
    """A description in one line."""
    faults: tuple[str, ...] = ()
    """Names in `faults.KINDS`. One is drawn for each fault."""
    captures: int = 3
    tables: int = 8
    begin_s: float = 9.0
    """When faults begin. By then the captures have joined and deliver."""
    last_s: float = 50.0
    """When all faults are healed."""
    every_s: float = 5.0
    """The average time between two faults."""
    transactions_s: float = 4.0
    """The average number of upstream transactions per second."""
    ddl_every_s: float = 12.0
    """The average time between two DDLs."""
    ttl_s: int = TTL_S
    """The TTL of a capture's session."""
    loses_one: bool = False
    """Whether one capture is unreachable for others from `last_s` on, for good: that is not healed."""


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "calm": Scenario("nothing goes wrong", last_s=25.0),
    "owner-dies": Scenario(
        "the owner is killed, or resigns, again and again",
        ("owner killed", "owner killed", "owner resigned"),
        every_s=20.0,
        last_s=70.0,
    ),
    "captures-die": Scenario(
        "captures and workers are killed",
        ("capture killed", "capture killed", "control process killed", "worker killed"),
        every_s=12.0,
        last_s=60.0,
    ),
    "zombie": Scenario(
        "processes are stopped, and wake up when others have their ranges",
        ("capture stopped", "control process stopped", "worker stopped", "control process killed"),
        every_s=8.0,
        last_s=70.0,
    ),
    "midst": Scenario(
        "owners and workers are stopped or killed in the middle of a write",
        ("stopped in the midst", "stopped in the midst", "stopped in the midst", "killed in the midst"),
        every_s=6.0,
        last_s=60.0,
    ),
    "cuts": Scenario(
        "captures do not reach one another, etcd or the sink; messages are lost, doubled and late",
        ("network cut", "capture isolated", "cut off from etcd", "cut off from the sink", "bad network"),
    ),
    "unreachable": Scenario(
        "one capture is cut off from the others for good, or receives nothing, and keeps its session",
        ("network cut", "bad network", "capture killed", "owner resigned"),
        every_s=8.0,
        last_s=30.0,
        loses_one=True,
    ),
    "etcd": Scenario(
        "etcd restarts, sessions end, captures are cut off from it",
        ("etcd restarted", "session lost", "cut off from etcd"),
        every_s=8.0,
    ),
    "drain": Scenario(
        "captures are drained, loads shift, somebody asks for a rebalance",
        ("capture drained", "loads shifted", "rebalance"),
        last_s=60.0,
    ),
    "slow-sink": Scenario(
        "the sink is slow or down, and regions do not advance, while workers die",
        ("slow sink", "sink down", "cut off from the sink", "region stalled", "worker killed"),
    ),
    "storm": Scenario(
        "everything, often two or three faults at a time",
        EVERY_KIND,
        last_s=44.0,
        every_s=3.0,
        transactions_s=3.0,
    ),
}
DEFAULT: Final = "storm"


def scenario_of(name: str) -> Scenario:
    """The scenario with a name. Raises InvalidInput for an unknown name; the error lists all names."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    known = "\n".join(f"  {one:<13} {scenario.about}" for one, scenario in SCENARIOS.items())
    raise InvalidInput(f"there is no scenario '{name}'", fix=f"use one of these:\n{known}")
