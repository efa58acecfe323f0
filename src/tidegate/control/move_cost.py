"""The cost and the gain of a new division of a changefeed's key space, for a person who decides. Pure.

    moves, loads before and after, lag --> the changes that takers receive again, the pause, max / mean

The cost is an estimate from loads. Upstream also scans the regions of the ranges that move, which no figure
here contains, because an owner does not know how much data they have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.control.share import Move

GAP_S: Final = 1.0
"""The expected pause of the checkpoint if this owner has not divided the key space before."""
BEHIND_S: Final = 2.0
"""The changes of this time are received at least, because a taker is warm when it lacks so much."""


@dataclass(frozen=True, slots=True)
class Evenness:
    """How evenly a load is divided among captures."""

    most: float
    """The load of the busiest capture."""
    mean: float

    @classmethod
    def of(cls, loads: Mapping[str, float], captures: Collection[str]) -> Evenness:
        """`captures`: all that may get ranges. One without any has load 0."""
        names = {*captures, *loads}
        return cls(max(loads.values(), default=0.0), sum(loads.values()) / len(names) if names else 0.0)

    @property
    def ratio(self) -> float:
        """The greatest load by the mean; 1 is even. 1 if there is no load."""
        return self.most / self.mean if self.mean else 1.0


@dataclass(frozen=True, slots=True)
class MoveCost:
    """The cost and the gain of a division."""

    moves: int
    tables: int
    """The tables and partitions in the ranges that move."""
    received_again: int | None
    """Bytes of changes that takers receive from upstream, and that a giver has received already: those since
    the checkpoint. None: the changefeed has no load to speak of.
    """
    gap_s: float
    """The expected pause of the checkpoint, in seconds."""
    is_gap_measured: bool
    """Whether that is the pause of the last division; otherwise it is typical."""
    before: Evenness
    after: Evenness


def cost_of(
    moves: Sequence[Move],
    before: Mapping[str, float],
    after: Mapping[str, float],
    captures: Collection[str],
    *,
    tables: int,
    in_bytes: bool,
    lag_s: float,
    last_gap_s: float | None,
) -> MoveCost:
    """The cost of moves. `before`, `after`: the load of each capture. `lag_s`: of the checkpoint, from where
    takers receive. `last_gap_s`: the pause of the last division; None: there was none.
    """
    again = round(sum(move.weight for move in moves) * max(lag_s, BEHIND_S)) if in_bytes else None
    return MoveCost(
        moves=len(moves),
        tables=tables,
        received_again=again,
        gap_s=0.0 if not moves else GAP_S if last_gap_s is None else last_gap_s,
        is_gap_measured=last_gap_s is not None,
        before=Evenness.of(before, captures),
        after=Evenness.of(after, captures),
    )
