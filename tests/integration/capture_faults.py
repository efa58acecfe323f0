"""The faults of `make captures`, the order in which they happen, and the table of what they cost."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.show import table

OWNER_S, CAPTURE_S, MOVE_S = 5.0, 8.0, 1.0
"""Goals: from the loss of the owner, or of another capture, until the checkpoint has passed the time of the
loss; and the longest pause of the checkpoint while ranges move.
"""
SHORT_CUT_S, LONG_CUT_S = (1.0, 12.0), (25.0, 35.0)
"""A capture that is cut off from the owner keeps its ranges for 20 s."""
AWAY_S = (1.0, 15.0)
"""How long a stopped capture sleeps, and etcd or a line is away."""


class What(StrEnum):
    """Kinds of faults. The value is the name in the table."""

    NOTHING = "nothing happens"
    KILLED = "killed"
    STOPPED = "stopped, and woken"
    ENDED = "ended by SIGTERM"
    RESIGNED = "asked to resign"
    ISOLATED = "cut off from all captures and etcd"
    NO_ETCD = "cut off from etcd"
    CUT_FROM_OWNER = "a cut from the owner of 1 to 12 s, from its end"
    LOST_TO_OWNER = "a cut from the owner of 25 s or more"
    CUT_BETWEEN_OTHERS = "a cut between others than the owner"
    ETCD_KILLED = "etcd killed, from its return"
    DRAINED = "drained, and back"
    MOVED = "a table moved by hand, and back"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `owner`: it strikes the owner, otherwise another capture; it does not matter to some."""

    what: What
    owner: bool = False
    seconds: float = 0.0
    """How long it lasts."""
    one_way: bool = False
    """A cut loses what is sent in one direction only."""

    @property
    def name(self) -> str:
        """As the table shows it."""
        if self.what in WHO_MATTERS:
            return f"{'the owner' if self.owner else 'another capture'} {self.what}"
        return str(self.what)

    @property
    def goal_s(self) -> float | None:
        """At most this many seconds. None: there is no goal."""
        if self.what in WHO_MATTERS:
            return OWNER_S if self.owner else CAPTURE_S
        return MOVE_S if self.what in (What.DRAINED, What.MOVED) else None


WHO_MATTERS = (What.KILLED, What.STOPPED, What.ENDED, What.RESIGNED, What.ISOLATED, What.NO_ETCD)
ALL = (
    *(Fault(what) for what in What if what not in WHO_MATTERS),
    *(Fault(what, owner=True) for what in WHO_MATTERS),
    *(Fault(what) for what in WHO_MATTERS if what is not What.RESIGNED),
)
LASTS = {
    What.NOTHING: (10.0, 10.0),
    What.STOPPED: AWAY_S,
    What.ISOLATED: AWAY_S,
    What.NO_ETCD: AWAY_S,
    What.ETCD_KILLED: AWAY_S,
    What.CUT_FROM_OWNER: SHORT_CUT_S,
    What.LOST_TO_OWNER: LONG_CUT_S,
    What.CUT_BETWEEN_OTHERS: LONG_CUT_S,
}
CUTS = (What.CUT_FROM_OWNER, What.LOST_TO_OWNER)


def plan(seed: int) -> Iterator[Fault]:
    """Faults without end: each kind once in random order, then each again in another order."""
    chance = random.Random(seed)
    while True:
        for one in chance.sample(ALL, len(ALL)):
            seconds = chance.uniform(*LASTS.get(one.what, (0.0, 0.0)))
            one_way = one.what in CUTS and chance.random() < 0.5
            yield Fault(one.what, one.owner, seconds, one_way)


def figures(taken: Mapping[str, Sequence[float]]) -> str:
    """The table. `taken`: seconds by the name of the fault; those that did not happen are left out."""
    rows = [("fault", "times", "p50 s", "max s", "goal s", "")]
    for name, goal in {one.name: one.goal_s for one in ALL}.items():
        seconds = taken.get(name, ())
        if not seconds:
            continue
        p50, longest = (f"{found:.2f}" for found in (statistics.median(seconds), max(seconds)))
        verdict = "" if goal is None else "met" if max(seconds) <= goal else "MISSED"
        rows.append((name, str(len(seconds)), p50, longest, "-" if goal is None else f"{goal:.0f}", verdict))
    return table(rows)
