"""Applies commands in order, in groups, and tells observers. One replica, so the log is the engine's own.

One thread applies for all regions. A round: take what was proposed (bounded), write it as one batch, sync
the log once, tell the observer, then answer the proposers. So a command is never known to anybody before
it is durable; observers see commands of a region in apply order and before the client can act on them; and
`capture` runs between two rounds: its snapshot holds exactly the commands observed before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidegate.errors import Retryable
from tidegate.tikv.engine import Engine, EngineSnapshot, Range
from tidegate.tikv.mvcc import Change

ROUND_CHANGES_MAX: Final = 65536
"""A round takes commands until they hold this many changes; one larger command is still taken whole."""
QUEUE_CHANGES_MAX: Final = 1 << 20
"""Proposers wait while more changes than this are queued."""


@dataclass(slots=True)
class Command:
    """A write batch for one region, and what happens when it is applied.

    `one_pc`: the changes are a whole transaction. `ranges` are emptied before the changes. `index` is given
    at apply: it grows from command to command, also across restarts.
    """

    region_id: int
    changes: Sequence[Change]
    old_values: Mapping[bytes, bytes | None] = field(default_factory=dict)
    on_applied: Callable[[Exception | None], None] | None = None
    one_pc: bool = False
    ranges: Sequence[Range] = ()
    index: int = 0


class Observer(Protocol):
    """Sees every applied command."""

    def is_observing(self, region_id: int) -> bool:
        """Whether commands of the region are looked at at all."""
        ...

    def on_applied(self, commands: Sequence[Command]) -> None:
        """Commands just applied, in order; called on the apply thread: it must be quick and never raise."""
        ...


class _Silent:
    def is_observing(self, region_id: int) -> bool:
        return False

    def on_applied(self, commands: Sequence[Command]) -> None:
        return


class Raftstore:
    """Ordered apply over an engine. `propose` and `capture` are thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.observer: Observer = _Silent()
        self._queue: list[Command] = []
        self._captures: list[tuple[Callable[[EngineSnapshot], None], Range | None]] = []
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

    def capture(self, install: Callable[[EngineSnapshot], None], scan: Range | None = None) -> None:
        """Call `install` between two rounds with a snapshot of everything applied; it must not block.

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
                self._apply(commands)

    def _capture(self, captures: list[tuple[Callable[[EngineSnapshot], None], Range | None]]) -> None:
        for install, scan in captures:
            install(self.engine.snapshot(scan))

    def _take(self) -> list[Command]:
        taken = total = 0
        for command in self._queue:
            if total and total + len(command.changes) > ROUND_CHANGES_MAX:
                break
            taken += 1
            total += len(command.changes)
        commands, self._queue = self._queue[:taken], self._queue[taken:]
        self._queued -= total
        return commands

    def _write(self, commands: list[Command]) -> None:
        ranges = [each for command in commands for each in command.ranges]
        self.engine.write([change for command in commands for change in command.changes], ranges)

    def _apply(self, commands: list[Command]) -> None:
        error: Exception | None = self._failure
        if error is None:
            try:
                index = self.engine.sequence
                for command in commands:
                    index += len(command.changes) + len(command.ranges)
                    command.index = index
                if len(commands) == 1 or not any(command.ranges for command in commands):
                    self._write(commands)
                else:
                    for command in commands:
                        self._write([command])
                self.engine.sync()
                self.observer.on_applied(commands)
            except Exception as failure:
                # The engine may hold a part that nobody was told of: nothing may be applied on top of it.
                error = self._failure = failure
        for command in commands:
            if command.on_applied is not None:
                command.on_applied(error)
