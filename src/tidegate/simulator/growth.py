"""A changefeed whose captures become more and more, in virtual time and without faults: how long it takes.

    1 capture --> 3 --> 10 --> few tables become busy, then all --> 30 --> 100 --> one dies, then the owner

Captures, owner and processors are those of the other simulations, and all checks apply. An event is over when
exactly the captures that live have ranges, all of them deliver, their loads are as even as the division
promises, and a checkpoint above the time of the event is stored.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidegate.control.share import Piece, load_of, moved
from tidegate.model.span import Span
from tidegate.server.owner.sharing import UNEVEN
from tidegate.simulator.capture import Capture
from tidegate.simulator.owner_task import OwnerTask
from tidegate.simulator.run import Simulation
from tidegate.simulator.scenarios import Scenario
from tidegate.simulator.upstream import at
from tidegate.simulator.virtual_time import Process, Steps

LOOK_S: Final = 0.1
"""How often it looks whether an event is over."""
PATIENCE_S: Final = 300.0
"""How long an event may take."""
QUIET_S: Final = 10.0
"""The time between the end of an event and the next one. In it, loads are measured."""
ROW_LOAD: Final = 1 << 16
"""Bytes of changes per second of each table, until some become busy."""
BUSY: Final = 0.01
"""The share of tables that become busy."""
BUSY_LOAD: Final = 0.9
"""The share of all bytes that the busy tables have then."""
BUSY_AT: Final = 10
"""Tables become busy when there are so many captures. With more of them, one busy table would be more than a
capture's share."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change of the captures, and its consequences. Times are in virtual seconds."""

    what: str
    captures: int
    """The number of captures that live afterwards."""
    took_s: float
    halted_s: float
    """The longest time for which no higher checkpoint was stored."""
    rounds: int
    """How often the key space was divided, and all incarnations began."""
    ranges: int
    load_before: float
    """The greatest load as a multiple of the mean, right after the event."""
    load_after: float
    load_least: float
    """A bound below which `load_after` cannot be, because a table is never cut."""
    moved: float
    """Which share of the bytes moved to another capture."""
    messages_s: float
    """Messages per second between captures while nothing happened afterwards."""


class Unsettled(Exception):
    """An event was not over within `PATIENCE_S`."""


class Growth(Simulation):
    """One run. The same arguments give the same events."""

    def __init__(self, seed: int, *, tables: int, sizes: Sequence[int]) -> None:
        """`sizes`: rising numbers of captures."""
        scenario = Scenario("", captures=max(sizes), tables=tables, transactions_s=20.0)
        super().__init__(scenario, seed, name="growth")
        self._sizes, self.events = sizes, list[Event]()
        self._is_done = False
        self._pieces: list[Piece] = []
        """The tables and their loads, in key order."""
        self._alive: list[str] = []
        self._even()

    def grow(self, on_event: Callable[[Event], None] = lambda event: None) -> list[Event]:
        """Run all events. Raises Violation, Unsettled."""
        self._on_event, collects = on_event, gc.isenabled()
        gc.disable()
        nature = Process("nature")
        try:
            for steps in (self._write(), self._advance(), self._grow()):
                self.world.time.spawn(nature, steps)
            self.world.time.run(PATIENCE_S * (len(self._sizes) + 4), lambda: self._is_done)
        finally:
            self.world.time.end()
            if collects:
                gc.enable()
        return self.events

    def _grow(self) -> Steps[None]:
        captures = list(self.world.captures.values())
        for size in self._sizes:
            joining = captures[len(self._alive) : size]
            self._alive += [one.name for one in joining]
            words = "a capture starts" if len(joining) == 1 else f"{len(joining)} captures join"
            yield from self._after(words, partial(self._start, joining))
            if size == BUSY_AT:
                yield from self._after(
                    f"{BUSY:.0%} of the tables get {BUSY_LOAD:.0%} of the load", self._busy
                )
                yield from self._after("all tables have the same load", self._even)
        if len(self._alive) > 2:
            yield from self._after("a capture dies", lambda: self._kill(self._any_but_owner()))
            yield from self._after("the owner dies", lambda: self._kill(self._owner.capture))
        self._is_done = True

    # --- events --------------------------------------------------------------------------------------

    def _start(self, joining: Sequence[Capture]) -> None:
        for capture in joining:
            self.world.time.after(self.world.time.rng.uniform(0.0, 2.0), capture.start)

    def _even(self) -> None:
        self._set_loads([ROW_LOAD] * len(self.world.upstream.there))

    def _busy(self) -> None:
        """Neighbours become busy, which is the worst case. The sum of all loads stays the same."""
        count, busy = len(self._pieces), max(1, round(BUSY * len(self._pieces)))
        total = ROW_LOAD * count
        high, low = round(total * BUSY_LOAD / busy), round(total * (1 - BUSY_LOAD) / (count - busy))
        self._set_loads([high] * busy + [low] * (count - busy))

    def _set_loads(self, loads: Sequence[int]) -> None:
        tables = sorted(self.world.upstream.there, key=lambda table: table.span)
        for table, load in zip(tables, loads, strict=True):
            table.load = load
        self._pieces = [Piece(table.span, float(table.load)) for table in tables]

    def _any_but_owner(self) -> str:
        return next(name for name in reversed(self._alive) if name != self._owner.capture)

    def _kill(self, name: str) -> None:
        self._alive.remove(name)
        self.world.captures[name].kill(workers=True)

    # --- what follows --------------------------------------------------------------------------------

    def _after(self, what: str, happens: Callable[[], None]) -> Steps[None]:
        """Let an event happen, wait until it is over, and note what followed."""
        world, before = self.world, self._shares()
        began, rounds = world.time.now, world.timeline.counts["incarnations"]
        happens()
        load_before = self._load(before)
        halted_s, rose_at, checkpoint = 0.0, began, world.checks.checkpoint_ts
        while not self._is_over_since(began):
            yield LOOK_S
            if world.checks.checkpoint_ts > checkpoint:
                rose_at, checkpoint = world.time.now, world.checks.checkpoint_ts
            halted_s = max(halted_s, world.time.now - rose_at)
            if world.time.now - began > PATIENCE_S:
                raise Unsettled(f"{what}: not over within {PATIENCE_S:.0f} s")
        took_s, after = world.time.now - began, self._shares()
        sent = world.timeline.counts["messages received"]
        yield QUIET_S
        pieces = self._pieces
        moves = moved(before, after, pieces) if before else ()
        event = Event(
            what,
            len(self._alive),
            took_s,
            halted_s,
            world.timeline.counts["incarnations"] - rounds,
            sum(map(len, after.values())),
            load_before,
            self._load(after),
            self._least(),
            sum(one.weight for one in moves) / sum(one.weight for one in pieces),
            (world.timeline.counts["messages received"] - sent) / QUIET_S,
        )
        self.events.append(event)
        self._on_event(event)

    @property
    def _owner(self) -> OwnerTask:
        owner = self.world.owner
        assert owner is not None
        assert owner.control is not None
        assert owner.control.owner is not None
        return owner.control.owner

    def _shares(self) -> dict[str, list[Span]]:
        return self._owner.shares.sharing.now if self.world.owner is not None else {}

    def _is_over_since(self, began: float) -> bool:
        if self.world.owner is None or self.world.checks.checkpoint_ts <= at(began):
            return False
        task, shares = self._owner, self._shares()
        if task.owner is None or not task.owner.ranges.are_running or shares.keys() != set(self._alive):
            return False
        # Changed loads may stay so uneven. Captures that come or go leave them within a smaller tolerance.
        return self._load(shares) <= self._least() * (1 + UNEVEN)

    def _least(self) -> float:
        """A lower bound: the mean, the heaviest table, or the two that must share a capture."""
        loads, count = sorted((piece.weight for piece in self._pieces), reverse=True), len(self._alive)
        twins = sum(loads[count - 1 : count + 1]) if len(loads) > count else 0.0
        return max(1.0, max(loads[0], twins) * count / sum(loads))

    def _load(self, shares: dict[str, list[Span]]) -> float:
        """The greatest load as a multiple of the mean of all captures that live; 0: nobody has ranges."""
        pieces = self._pieces
        loads = [load for name, load in load_of(shares, pieces).items() if name in self._alive]
        mean = sum(piece.weight for piece in pieces) / max(1, len(self._alive))
        return max(loads, default=0.0) / mean
