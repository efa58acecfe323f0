"""Applies commands in order, in groups, and tells observers. One copy, so the log is the engine's own.

One thread applies for all regions of all stores. A round: take what was proposed (bounded), write it as one
batch, sync the log once, tell the observers, then answer the proposers. So a command is never known to
anybody before it is durable; observers see commands of a region in apply order and before the client can act
on them; and `capture` runs between two rounds: its snapshot holds exactly the commands observed before it.

A write is applied only when its region is still what it was when the write was accepted: same version, same
term, not merging; else it is refused with a region error and has never been. An admin command is a round of
its own: durable -> observers -> the table of regions changes -> `Member.has_changed` -> the answer. So
whoever finds a new region in the table finds all observers told of the old one's end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidegate.errors import Retryable
from tidegate.tikv.engine import Engine, EngineSnapshot, Range
from tidegate.tikv.mvcc import Change
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_change import RegionChange
from tidegate.tikv.raft.region_meta import rows
from tidegate.tikv.raft.region_table import RegionError, RegionTable

Decide = Callable[[RegionTable], RegionChange]
"""An admin command: what becomes of the present regions. Raises InvalidInput for what cannot be."""

ROUND_CHANGES_MAX: Final = 65536
"""A round takes commands until they hold this many changes; one larger command is still taken whole."""
Install = Callable[[EngineSnapshot | Exception], None]
"""Takes a snapshot, or why there is none."""

QUEUE_CHANGES_MAX: Final = 1 << 20
"""Proposers wait while more changes than this are queued."""


@dataclass(slots=True)
class Command:
    """A write batch for one region, and what happens when it is applied.

    `region` is the region as the write was accepted for it; None: whatever it is by now (collection of
    garbage). `one_pc`: the changes are a whole transaction. `ranges` are emptied before the changes. `index`
    is given at apply: it grows from command to command, also across restarts. An admin command has `admin`
    and no changes, and `change` when it is applied.
    """

    region_id: int
    changes: Sequence[Change]
    old_values: Mapping[bytes, bytes | None] = field(default_factory=dict)
    on_applied: Callable[[Exception | None], None] | None = None
    one_pc: bool = False
    ranges: Sequence[Range] = ()
    index: int = 0
    region: Region | None = None
    admin: Decide | None = None
    change: RegionChange | None = None


class Observer(Protocol):
    """Sees every applied command."""

    def on_applied(self, commands: Sequence[Command]) -> None:
        """Commands just applied, in order; called on the apply thread: it must be quick and never raise."""
        ...


class Member(Protocol):
    """A store, which must know when it begins to lead a region. Called on the apply thread."""

    def will_change(self, change: RegionChange) -> None:
        """The table will say so next; nobody has served the new regions yet."""
        ...

    def has_changed(self, change: RegionChange) -> None:
        """The table says so."""
        ...


class Gate(Protocol):
    """What may hold an apply back (`faults`)."""

    def before_apply(self) -> None:
        """Called before each round."""
        ...


class Raftstore:
    """Ordered apply over an engine. `propose` and `capture` are thread-safe.

    `observers` and `members` by store are put and taken away by whoever starts and stops a store.
    """

    def __init__(self, engine: Engine, regions: RegionTable, gate: Gate | None = None) -> None:
        self.engine = engine
        self.regions = regions
        self.observers: dict[int, Observer] = {}
        self.members: dict[int, Member] = {}
        self.stirred_at = time.monotonic()
        """When a command was last applied, or somebody began to follow what is."""
        self.written: dict[int, int] = {}
        """About how many bytes were written to a region since somebody took the entry out."""
        self._gate = gate
        self._queue: list[Command] = []
        self._captures: list[tuple[Install, Range | None]] = []
        self._queued = 0
        self._stopped = False
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="apply", daemon=True)

    def start(self) -> None:
        """Begin to apply."""
        self._thread.start()

    def propose(self, command: Command) -> None:
        """Queue a command; its `on_applied` is called once, on the apply thread."""
        with self._changed:
            while self._queued > QUEUE_CHANGES_MAX and not self._stopped and self._failure is None:
                self._changed.wait()
            refusal = self._refusal()
            if refusal is None:
                self._queue.append(command)
                self._queued += len(command.changes)
                self._changed.notify_all()
        if refusal is not None and command.on_applied is not None:
            command.on_applied(refusal)

    def capture(self, install: Install, scan: Range | None = None) -> None:
        """Call `install` between two rounds with a snapshot of all that is applied.

        It must neither block nor raise.

        `scan`: the range whose entries the snapshot shall walk.
        """
        with self._changed:
            self._captures.append((install, scan))
            self._changed.notify_all()

    def stop(self) -> None:
        """Apply what is queued, then end; later proposals are refused."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _refusal(self) -> Exception | None:
        if self._failure is not None:
            return self._failure
        return Retryable("the upstream is stopping") if self._stopped else None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._queue or self._captures or self._stopped):
                    self._changed.wait()
                captures, self._captures = self._captures, []
                commands = self._take()
                if not captures and not commands:
                    return
                self._changed.notify_all()
            if captures:
                self._capture(captures)
            if commands:
                if self._gate is not None:
                    self._gate.before_apply()
                if commands[0].admin is not None:
                    self._administer(commands[0], commands[0].admin)
                else:
                    self._apply(commands)

    def _capture(self, captures: list[tuple[Install, Range | None]]) -> None:
        for install, scan in captures:
            try:
                found: EngineSnapshot | Exception = self.engine.snapshot(scan)
            except Exception as failure:  # it is the taker's: all others go on
                found = failure
            install(found)

    def _take(self) -> list[Command]:
        taken = total = 0
        for command in self._queue:
            if total and total + len(command.changes) > ROUND_CHANGES_MAX:
                break
            if command.admin is not None and taken:
                break
            taken += 1
            total += len(command.changes)
            if command.admin is not None:
                break
        commands, self._queue = self._queue[:taken], self._queue[taken:]
        self._queued -= total
        return commands

    def _write(self, commands: list[Command]) -> None:
        ranges = [each for command in commands for each in command.ranges]
        self.engine.write([change for command in commands for change in command.changes], ranges)

    def _admitted(self, commands: list[Command]) -> list[Command]:
        """Those whose region is still the same; the others are answered."""
        by_id = self.regions.by_id
        found = []
        for command in commands:
            was = command.region
            if was is not None and (was is not by_id.get(was.id) or was.merging):
                refusal = self.regions.refusal(was)
                if refusal is not None:
                    _answer(command, RegionError(refusal))
                    continue
            found.append(command)
        return found

    def _apply(self, commands: list[Command]) -> None:
        commands = self._admitted(commands)
        if not commands:
            return
        error: Exception | None = self._failure
        if error is None:
            try:
                index = self.engine.sequence
                for command in commands:
                    index += len(command.changes) + len(command.ranges)
                    command.index = index
                    if command.changes:
                        _, key, value = command.changes[0]
                        size = len(command.changes) * (len(key) + len(value or b""))
                        self.written[command.region_id] = self.written.get(command.region_id, 0) + size
                if len(commands) == 1 or not any(command.ranges for command in commands):
                    self._write(commands)
                else:
                    for command in commands:
                        self._write([command])
                self.engine.sync()
                self._observe(commands)
            except Exception as failure:
                # The engine may hold a part that nobody was told of: nothing may be applied on top of it.
                error = self._failure = failure
        for command in commands:
            _answer(command, error)

    def _administer(self, command: Command, decide: Decide) -> None:
        if self._failure is not None:
            _answer(command, self._failure)
            return
        try:
            change = command.change = decide(self.regions)
        except Exception as refusal:  # nothing was changed yet
            _answer(command, refusal)
            return
        error: Exception | None = None
        try:
            command.index = self.engine.sequence + 1
            self.engine.write(rows(change))
            self.engine.sync()
            self._observe([command])
            members = list(self.members.values())
            for member in members:
                member.will_change(change)
            self.regions.replace(change.before, change.now)
            for member in members:
                member.has_changed(change)
        except Exception as failure:
            error = self._failure = failure
        _answer(command, error)

    def _observe(self, commands: list[Command]) -> None:
        self.stirred_at = time.monotonic()
        for observer in list(self.observers.values()):
            observer.on_applied(commands)


def _answer(command: Command, error: Exception | None) -> None:
    if command.on_applied is not None:
        command.on_applied(error)
