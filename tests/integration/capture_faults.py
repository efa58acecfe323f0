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
"""How long a stopped capture sleeps, and a line is away. An owner is away at least until another is elected.
"""
ETCD_AWAY_S = (5.0, 15.0)
"""Longer than a session lasts: etcd that comes back earlier costs nothing."""
BRIEF = 0.2
"""The share of these ranges that the first faults use, so that each kind happens within ten minutes."""


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
    What.ETCD_KILLED: ETCD_AWAY_S,
    What.CUT_FROM_OWNER: SHORT_CUT_S,
    What.LOST_TO_OWNER: LONG_CUT_S,
    What.CUT_BETWEEN_OTHERS: LONG_CUT_S,
}
CUTS = (What.CUT_FROM_OWNER, What.LOST_TO_OWNER)


def plan(seed: int) -> Iterator[Fault]:
    """Faults without end: each kind once in random order, then what is missing of `ALL`, then `ALL` again and
    again, each time in another order. Until all have happened once, they are brief.
    """
    chance = random.Random(seed)
    kinds = chance.sample(list(What), len(What))
    first = [chance.choice([one for one in ALL if one.what is what]) for what in kinds]
    missing = [one for one in ALL if one not in first]
    for one in (*first, *chance.sample(missing, len(missing))):
        yield _drawn(chance, one, BRIEF)
    while True:
        for one in chance.sample(ALL, len(ALL)):
            yield _drawn(chance, one)


def _drawn(chance: random.Random, kind: Fault, part: float = 1.0) -> Fault:
    """A fault of this kind, whose length is in the first `part` of its range."""
    least, most = LASTS.get(kind.what, (0.0, 0.0))
    seconds = chance.uniform(least, least + part * (most - least))
    return Fault(kind.what, kind.owner, seconds, kind.what in CUTS and chance.random() < 0.5)


def figures(taken: Mapping[str, Sequence[float]]) -> str:
    """The table, and the longest pause of the checkpoint while ranges move. `taken`: seconds by the name of
    the fault.
    """
    rows = [("fault", "times", "median s", "max s", "goal s", "")]
    for name, goal in {one.name: one.goal_s for one in ALL}.items():
        seconds, wanted = taken.get(name, ()), "-" if goal is None else f"{goal:.0f}"
        if not seconds:
            rows.append((name, "0", "-", "-", wanted, ""))
            continue
        median, longest = (f"{found:.2f}" for found in (statistics.median(seconds), max(seconds)))
        verdict = "" if goal is None else "met" if max(seconds) <= goal else "MISSED"
        rows.append((name, str(len(seconds)), median, longest, wanted, verdict))
    moves = [one for what in (What.DRAINED, What.MOVED) for one in taken.get(what, ())]
    if not moves:
        return table(rows)
    gap = f"median {statistics.median(moves):.2f} s, max {max(moves):.2f} s of {len(moves)}"
    still = [f"; without a move max {max(one):.2f} s" for one in [taken.get(What.NOTHING, ())] if one]
    return f"{table(rows)}\ncheckpoint gap of a move: {gap}{''.join(still)}"
