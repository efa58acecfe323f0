"""Named scenarios: how large a simulation is, how long it lasts, and which faults happen in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.errors import InvalidInput
from tidegate.simulator.faults import EVERY_KIND


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a simulation is made of. Times in virtual seconds."""

    about: str
    """In one line."""
    faults: tuple[str, ...] = ()
    """Kinds of `faults.KINDS`, one of which is drawn each time."""
    captures: int = 3
    tables: int = 8
    begin_s: float = 9.0
    """When faults begin: the captures have joined and deliver by then."""
    last_s: float = 50.0
    """When all faults are healed."""
    every_s: float = 5.0
    """Between two faults, on average."""
    transactions_s: float = 4.0
    """Transactions of upstream per second, on average."""
    ddl_every_s: float = 12.0
    """Between two DDL, on average."""


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
        "processes stand still, and wake up when others have their ranges",
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
        "the sink is slow or down, and regions stand still, while workers die",
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
    """A scenario by its name. Raises InvalidInput, which lists them, when there is none."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    known = "\n".join(f"  {one:<13} {scenario.about}" for one, scenario in SCENARIOS.items())
    raise InvalidInput(f"There is no scenario '{name}'.", fix=f"use one of these:\n{known}")
