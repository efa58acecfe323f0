"""The capture's application process: starts it when an incarnation first needs it, and restarts it.

    run ---> Run ---> the incarnation connects and sends its own reports (`model.reports`)
    end ---> End ---> Ended: no worker works for the incarnation any more
                      if Ended does not come within END_S: the application and all its children are killed

`Running.gone` is set whichever way an incarnation ends. The caller decides whether to start another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias, assert_never

from tidegate import metrics
from tidegate.clock import Clock
from tidegate.errors import TidegateError
from tidegate.log import event
from tidegate.model.reports import (
    ApplicationHello,
    ConnectionClosed,
    End,
    Ended,
    Failed,
    FromApplication,
    Run,
    Working,
)
from tidegate.server.supervision.supervisor import Child, Connection, Spawn, spawn

LOG: Final = logging.getLogger(__name__)

ApplicationCommand: TypeAlias = Callable[[Path, Path], Sequence[str]]
"""The command line of the application, given the control process's socket and a folder for Spark's files."""

END_S: Final = 15.0
"""How long the application may take to end an incarnation."""
STOP_S: Final = 2.0
"""Grace for the process; it has nothing to save."""
APART_S: Final = 1.0
"""The least time between two starts, because an application that fails at once fails for all changefeeds."""


LOG_MAX: Final = 16 << 20
"""Size of the log in bytes above which it is truncated; one copy of the previous content is kept."""
LOG_LOOK_S: Final = 60.0


NOTHING: Final = Working(0, (), ())


class Running:
    """An incarnation that the application is asked to run."""

    def __init__(self, changefeed: str, incarnation: int, spec: Path) -> None:
        self.message = Run(changefeed, incarnation, str(spec))
        self.reported = False
        """Whether the Run message was sent to a connected application."""
        self.gone = asyncio.Event()
        """Set when no worker works for the incarnation any more."""
        self.how = ""
        """Why the application ended, if that ended the incarnation; empty if it ended by itself."""

    @property
    def key(self) -> tuple[str, int]:
        return self.message.changefeed, self.message.incarnation


class Application:
    """The application of a capture. Lives in one asyncio loop."""

    def __init__(
        self, command: ApplicationCommand, socket: Path, folder: Path, clock: Clock, spawn: Spawn = spawn
    ) -> None:
        self._spawn = spawn
        self._command, self._socket, self._folder, self._clock = command, socket, folder, clock
        self._child: Child | None = None
        self._connection: Connection | None = None
        self._running: dict[tuple[str, int], Running] = {}
        self._supervisor: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._warm = False
        """Keep the application running even while there is no incarnation to run."""
        self.working = NOTHING
        """The last report of what the application and its workers are doing."""
        self._reported: TidegateError | None = None
        """The error that the application reported before it ended."""

    @property
    def log(self) -> Path:
        """The output of the application and Spark."""
        return self._folder.with_suffix(".log")

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its session; 0 if the application does not run."""
        return self._child.pid if self._child is not None and self._child.alive else 0

    def run(self, changefeed: str, incarnation: int, spec: Path) -> Running:
        """Run an incarnation in the current application, or in the next one if none is connected."""
        one = Running(changefeed, incarnation, spec)
        self._running[one.key] = one
        self._send_message(one)
        self._want()
        return one

    def warm(self) -> None:
        """Start it now and keep it running, so that a standby can deliver as soon as it is elected."""
        self._warm = True
        self._want()

    def _want(self) -> None:
        self._wanted.set()
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise(), name="application supervisor")

    async def end(self, one: Running) -> None:
        """End an incarnation; returns when no worker works for it any more."""
        # It was never sent, so no worker can work for it.
        if not one.reported:
            self._over(one.key)
        elif self._connection is not None:
            self._connection.send(End(*one.key))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await one.gone.wait()
        if not one.gone.is_set() and self._child is not None:
            # The next incarnation may replace the files of this one, so no worker may work for it any more.
            # The incarnations of other changefeeds end with the application, too, and begin again.
            event(LOG, logging.WARNING, "application does not end a changefeed", changefeed=one.key[0])
            metrics.restarts.labels("application").inc()
            await self._child.stop(0)
            await one.gone.wait()

    def _send_message(self, one: Running) -> None:
        if self._connection is not None:
            self._connection.send(one.message)
            one.reported = True

    def _over(self, key: tuple[str, int]) -> None:
        one = self._running.pop(key, None)
        if one is not None:
            one.gone.set()

    def receive(self, connection: Connection, report: FromApplication) -> None:
        """Take a report of the application."""
        match report:
            case ApplicationHello():
                # An error of the process before this one explains nothing any more.
                self._connection, self._reported = connection, None
                # These were asked for while no application was connected.
                for one in self._running.values():
                    self._send_message(one)
            case Working():
                self.working = report
            case Ended(changefeed, incarnation):
                self._over((changefeed, incarnation))
            case Failed():
                self._reported = report.error()
                event(LOG, logging.ERROR, "application failed", error=str(self._reported))
            case ConnectionClosed():
                # The end of the earlier process's connection may be noticed after the hello of the next one.
                if self._connection is connection:
                    self._connection = None
            case _:
                assert_never(report)

    async def _to_its_end(self, child: Child) -> int:
        """Wait for the process and return its exit code; meanwhile keep its log short."""
        ended = asyncio.create_task(child.wait())
        try:
            while True:
                cut(self.log)
                await asyncio.wait({ended}, timeout=LOG_LOOK_S)
                if ended.done():
                    return ended.result()
        finally:
            ended.cancel()

    async def stop(self) -> None:
        """End the process."""
        if self._supervisor is not None:
            # First, because it would start another process.
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        if self._child is not None:
            await self._child.stop(STOP_S)
        self._lose("the application was ended")

    def _lose(self, how: str) -> bool:
        """Mark every incarnation as gone, because the application that ran them has ended. Returns whether
        there were any.
        """
        self._connection, self.working = None, NOTHING
        lost, self._running = self._running, {}
        for one in lost.values():
            one.how = str(self._reported) if self._reported is not None else how
            one.gone.set()
        return bool(lost)

    async def _supervise(self) -> None:
        """Start the application whenever something must run and no application is running."""
        again = False
        while True:
            await self._wanted.wait()
            # Before anything is started: a request that comes meanwhile sets it again.
            self._wanted.clear()
            if not (self._running or self._warm or again):
                continue
            began = self._clock.monotonic()
            try:
                command = self._command(self._socket, self._folder)
                self._child = await self._spawn("application", command, self.log)
                code = await self._to_its_end(self._child)
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                event(LOG, logging.WARNING, "application ended", how=how)
                # The process may be dead while its workers still run. Kill them before the next one starts.
                await self._child.stop(0)
            except (OSError, TidegateError) as error:  # for example no disk space for the log
                how = str(error)
            # It begins at once what its changefeeds will ask for in a second or later: a JVM takes long to
            # start. Without incarnations to lose it waits for the next one, so it does not start for ever.
            again = self._lose(how)
            # Nobody else would start it: a standby has no incarnation that could ask for it.
            if self._warm or again:
                self._wanted.set()
            await asyncio.sleep(max(0.0, APART_S - (self._clock.monotonic() - began)))


def cut(log: Path) -> None:
    """Truncate a long log while it is being written. Its writers append, so they continue at its end."""
    with contextlib.suppress(OSError):  # without disk space for the copy the log grows until there is some
        if log.stat().st_size > LOG_MAX:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)
