"""A model of many sinks that go down together: the changefeeds at the others still get workers."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from tidegate.pipeline.host.timetable import Timetable, WorkKind, spares_for, workers_for

CORES = 2
FEEDS = 20
"""So many at addresses that answer, and as many at others that go down."""
EVERY_S = 0.9
"""Each has rows so often."""
PIECE_S = 0.05
DOWN_AT = 3.0
STUCK_S = 2.0
STUCK_FIRST_S = 3.5
FIRST = 0.3
"""The share of pieces that are the first ones of their worker."""
SPARE_S = 1.0
"""The time from when a worker is stuck until a spare one has come."""
FAIL_S = 10.0
"""The time after which a piece at a dead address fails."""


class Piece(NamedTuple):
    given: float
    ends: float
    is_first: bool


class Model:
    """`waited`: how long each piece at an answering address waited for a worker, in seconds."""

    def __init__(self, seed: int, answering: int, dead: int) -> None:
        self.random, self.table, self.free = Random(seed), Timetable[str](CORES), workers_for(CORES)
        places = {f"answers {n}": f"good {n % answering}" for n in range(FEEDS)}
        places |= {f"dies {n}": f"bad {n % dead}" for n in range(FEEDS)}
        for name, address in places.items():
            self.table.ask_begin(name, address, 0)
            self.table.give(name, WorkKind.BEGIN)
            self.table.answered(name, well=True)
            self.table.back(name, WorkKind.BEGIN)
        self.due = {name: self.random.random() * EVERY_S for name in places}
        self.out: dict[str, Piece] = {}
        self.stuck = set[str]()
        self.spares_at: list[float] = []
        self.waited: list[float] = []
        self.now = 0.0

    def run(self, seconds: float) -> float:
        """Let the time pass. Returns the longest wait since `DOWN_AT`."""
        while self.now < seconds:
            self.now = round(self.now + 0.01, 2)
            self.table.tick(self.now)
            self.free += self.spares_at.count(self.now)
            for name, piece in list(self.out.items()):
                if self.now >= DOWN_AT and name.startswith("dies"):
                    self._wait_in_vain(name, piece)
                elif self.now >= piece.ends:
                    self._back(name, well=True, due=piece.given + EVERY_S)
            self._give()
        # Those that still wait count, too.
        waiting = (seconds - self.due[name] for name in self.due if name[0] == "a" and name not in self.out)
        return max(*self.waited, *waiting)

    def _wait_in_vain(self, name: str, piece: Piece) -> None:
        silent_s = self.now - piece.given
        # As `ConnectedWorker.look`: a first piece counts only at an address in doubt.
        opens_s = float("inf") if self.table.is_proven(name) else STUCK_FIRST_S
        limit_s = opens_s if piece.is_first else STUCK_S
        if name not in self.stuck and silent_s >= limit_s:
            self.stuck.add(name)
            self.table.doubt(name)
            if len(self.stuck) > len(self.spares_at) < spares_for(CORES):
                self.spares_at.append(round(self.now + SPARE_S, 2))
        if silent_s >= FAIL_S:
            self.stuck.discard(name)
            self.table.over(name)
            self._back(name, well=False, due=float("inf"))

    def _back(self, name: str, *, well: bool, due: float) -> None:
        self.table.answered(name, well=well)
        self.table.back(name, WorkKind.DELIVER)
        del self.out[name]
        self.due[name] = due
        self.free += 1

    def _give(self) -> None:
        waiting = [name for name, due in self.due.items() if due <= self.now and name not in self.out]
        for name in self.table.in_turn(waiting):
            if self.free and self.table.room(name, 1, self.free):
                self.table.give(name, WorkKind.DELIVER)
                self.free -= 1
                took_s = PIECE_S * self.random.uniform(0.5, 2.0)
                self.out[name] = Piece(self.now, self.now + took_s, self.random.random() < FIRST)
                if self.now >= DOWN_AT and name.startswith("answers"):
                    self.waited.append(self.now - self.due[name])


@pytest.mark.parametrize(
    ("answering", "dead", "longest_s"),
    [(1, 1, 1.0), (1, 2, 1.0), (1, 10, 3.5), (1, 20, 3.5), (2, 2, 1.0), (2, 20, 3.5), (10, 2, 1.0)],
)
def test_changefeeds_at_other_addresses_still_get_workers(
    answering: int, dead: int, longest_s: float
) -> None:
    """Without the rules for addresses that are not trusted it takes up to 13 s."""
    assert max(Model(seed, answering, dead).run(DOWN_AT + 14.0) for seed in range(3)) < longest_s


@pytest.mark.parametrize(("cores", "workers"), [(1, 4), (2, 6), (8, 18)])
def test_sinks_that_are_only_slow_have_their_turns(cores: int, workers: int) -> None:
    """The bounds of addresses that are not trusted are for trouble: here they would leave workers idle."""
    table, random, free, now = Timetable[str](cores), Random(1), workers, 0.0
    names = [f"slow {number}" for number in range(workers + 4)]
    for name in names:
        table.ask_begin(name, name, 0)
        table.give(name, WorkKind.BEGIN)
        table.answered(name, well=True)
        table.back(name, WorkKind.BEGIN)
    ends = dict[str, float]()
    pieces = dict.fromkeys(names, 0)
    while now < 60.0:
        now += 0.01
        table.tick(now)
        for name in [name for name, at in ends.items() if at <= now]:
            table.answered(name, well=True)
            table.back(name, WorkKind.DELIVER)
            del ends[name]
            free += 1
        for name in table.in_turn([name for name in names if name not in ends]):
            if free and table.room(name, 1, free):
                table.give(name, WorkKind.DELIVER)
                free -= 1
                pieces[name] += 1
                ends[name] = now + random.uniform(2.0, 2.9)
        assert not free, "there is work for all"
    assert max(pieces.values()) - min(pieces.values()) <= 1
