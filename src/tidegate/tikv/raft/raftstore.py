"""Applies commands in order and in groups, and notifies observers. The only log is that of the engine.

One thread applies the commands of all regions and stores. A round takes the proposed commands (bounded),
writes them as one batch, syncs the log once, notifies the observers, and then answers the proposers. So no
command is visible to observers or clients before it is durable, and observers see a region's commands in
apply order and before the client can act on them. `capture` runs between two rounds, so its snapshot holds
exactly the commands observed before it.

A write is applied only if its region has not changed since the write was accepted: same version, same term,
not merging. Otherwise it is refused with a region error and has no effect. An admin command has its own
round: durable -> observers -> the table of regions changes -> `Member.has_changed` -> the answer. So when a
new region appears in the table, all observers already know that the old one has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidegate.errors import Retryable
from tidegate.tikv.engine import Engine, EngineSnapshot, Range
from tidegate.tikv.faults import Faults
from tidegate.tikv.mvcc import Change
from tidegate.tikv.precedence import SERVED
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_change import RegionChange
from tidegate.tikv.raft.region_meta import rows
from tidegate.tikv.raft.region_table import RegionError, RegionTable

Decide = Callable[[RegionTable], RegionChange]
"""An admin command: computes the change from the current regions. Raises InvalidInput if it is impossible."""

ROUND_CHANGES_MAX: Final = 65536
"""A round takes commands until they hold this many changes; a larger command is still taken as a whole."""
Install = Callable[[EngineSnapshot | Exception], None]
"""Receives a snapshot, or the error if there is none."""

QUEUE_CHANGES_MAX: Final = 1 << 20
"""Proposers wait while more changes than this are queued."""


@dataclass(slots=True)
class Command:
    """A write batch for one region, with a callback for when it is applied.

    `region`: the region for which the write was accepted; None: apply it whatever the region is now (garbage
    collection). `one_pc`: the changes are a whole transaction. `ranges` are emptied before the changes.
    `index` is set at apply; it rises from command to command, also across restarts. An admin command has
    `admin` and no changes; `change` is set when it is applied.
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
        """Commands were applied, in order. On the apply thread: it must be quick and never raise."""
        ...


class Member(Protocol):
    """A store, which is notified when it begins to lead a region. Called on the apply thread."""

    def will_change(self, change: RegionChange) -> None:
        """The table will change next; no store has served the new regions yet."""
        ...

    def has_changed(self, change: RegionChange) -> None:
        """The table has changed."""
        ...


class Raftstore:
    """Ordered apply over an engine. `propose` and `capture` are thread-safe.

    `observers` and `members`, by store id, are added and removed when a store starts and stops.
    """

    def __init__(self, engine: Engine, regions: RegionTable, faults: Faults | None = None) -> None:
        self.engine = engine
        self.regions = regions
        self.observers: dict[int, Observer] = {}
        self.members: dict[int, Member] = {}
        self.active_at = time.monotonic()
        """When a command was last applied or a registration was added, in monotonic seconds."""
        self.written: dict[int, int] = {}
        """Approximate bytes written to each region since the splitter last removed its entry."""
        self._faults = faults
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
            # Without the lock, because the answer may propose the next command.
            command.on_applied(refusal)

    def capture(self, install: Install, scan: Range | None = None) -> None:
        """Call `install` between two rounds with a snapshot of all applied commands.

        `install` must neither block nor raise. `scan`: the range for the snapshot's `entries`.
        """
        with self._changed:
            self._captures.append((install, scan))
            self._changed.notify_all()

    def stop(self) -> None:
        """Apply the queued commands, then stop; later proposals are refused."""
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
            # Captures first: a snapshot has what earlier rounds have applied, and observers see all that
            # follows.
            if captures:
                self._capture(captures)
            if commands:
                if self._faults is not None:
                    self._faults.before_apply()
                if commands[0].admin is not None:
                    self._administer(commands[0], commands[0].admin)
                else:
                    self._apply(commands)

    def _capture(self, captures: list[tuple[Install, Range | None]]) -> None:
        for install, scan in captures:
            try:
                found: EngineSnapshot | Exception = self.engine.snapshot(scan)
            except Exception as failure:  # passed to this `install`; the other captures continue
                found = failure
            install(found)

    def _take(self) -> list[Command]:
        taken = total = 0
        for command in self._queue:
            if total and total + len(command.changes) > ROUND_CHANGES_MAX:
                break
            # An admin command is a round of its own, because it changes the table against which the others
            # are checked.
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
        """The commands whose region has not changed; the others are answered with a region error."""
        by_id = self.regions.by_id
        found = []
        for command in commands:
            was = command.region
            # By identity: a region that did not change is the same object, so the usual command costs one
            # comparison.
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
                # The engine counts each change and each range, so this is its sequence after the command.
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
                    # One by one, because a batch empties all its ranges before any of its changes.
                    for command in commands:
                        self._write([command])
                # Durable before observers see it: a client of CDC must not have a change that a crash can
                # undo.
                self.engine.sync()
                SERVED.mark()  # the disk may have taken longer than the last mark lasts
                self._observe(commands)
            except Exception as failure:
                # The engine may hold a part of the batch that observers have not seen. Nothing may be applied
                # on top of it.
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
            # Before the table changes, because from then on the new leader serves requests, and its max_ts
            # must have risen.
            for member in members:
                member.will_change(change)
            self.regions.replace(change.before, change.now)
            for member in members:
                member.has_changed(change)
        except Exception as failure:
            error = self._failure = failure
        _answer(command, error)

    def _observe(self, commands: list[Command]) -> None:
        self.active_at = time.monotonic()
        # A copy, because stores that start or stop change the dict in their own threads.
        for observer in list(self.observers.values()):
            observer.on_applied(commands)


def _answer(command: Command, error: Exception | None) -> None:
    if command.on_applied is not None:
        command.on_applied(error)
