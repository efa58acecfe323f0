"""How far a changefeed's workers may read on this capture, and what all of them have read past.

    begin: a file for an incarnation --> follow: bound, spans, starts are written, one file at a time --> end

Workers read the bounds file (`server.delivery.plan.BoundsFile`), and begin at the start ts in it. Segments
below it may be removed only some time after that ts has moved (`server.processor.reader_floor`).

Nothing waits for a file but the next one. A file only lets workers go further than before: until it is there
they keep to an earlier bound, and deliver less than they may. So no message of the processor depends on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from tidegate.control.grants import Grant
from tidegate.control.processor import Processor
from tidegate.disk import DiskFull
from tidegate.errors import TidegateError
from tidegate.model.timestamp import compose
from tidegate.server.delivery.plan import BoundsChange, BoundsFile, FeedPlan
from tidegate.server.node import Node
from tidegate.server.processor.opening import Opening
from tidegate.server.processor.reader_floor import ReaderFloor
from tidegate.server.supervision.jobs import unexpected

LOG: Final = logging.getLogger(__name__)


class ReaderBounds:
    """The bounds of one changefeed on one capture. Lives in one asyncio loop."""

    def __init__(
        self,
        node: Node,
        machine: Processor,
        fail: Callable[[TidegateError], None],
        wake: Callable[[], None],
    ) -> None:
        """`fail` gets why a file cannot be written. `wake`: the next file may be due."""
        self._node, self._machine, self._fail, self._wake = node, machine, fail, wake
        self._file: BoundsFile | None = None
        """The file of the current incarnation; None: there is none."""
        self.writing: asyncio.Task[None] | None = None
        """The write under way; None: there is none."""
        self._is_behind = False
        """Whether something may have changed since the write under way began."""
        self._floor = ReaderFloor()

    def begin(self, plan: FeedPlan, grant: Grant, opening: Opening) -> None:
        """Write the file from which an incarnation starts. Raises DiskFull."""
        self.end()
        self._file = file = BoundsFile(plan.folder / "bounds.json", grant.token, opening.ddl.span_id)
        # An earlier process may have died while it wrote, and its part would take disk space for good.
        file.remove_partial()
        if change := self._due(file, opening):
            self._node.ballast.small(partial(file.put, change))

    def end(self) -> None:
        """Stop writing the file, because the incarnation ends."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def reset(self) -> None:
        """The opening has ended, so nothing counts as passed any more."""
        self.end()
        self._floor.reset()

    async def written(self) -> None:
        """Wait until no write is under way."""
        if self.writing is not None:
            await asyncio.wait({self.writing})

    def follow(self, opening: Opening, checkpoint: int) -> None:
        """Have bound and spans written for the workers, if there are any and they need the change.

        From time to time their starts follow the checkpoint, too, so that old segments can be dropped a while
        later. One file is written at a time: if one is under way, `wake` is called at its end.
        """
        file = self._file
        if file is None or self.writing is not None:
            self._is_behind = file is not None
            return
        # As all that is done for changefeeds without rows, less often if there are many.
        stretch = self._node.pulse.calmer_s(opening.plan.paths.store) if opening.arrivals.all_idle else 1.0
        moves = self._floor.is_due(self._node.clock.monotonic(), stretch)
        floor = (checkpoint, opening.ddl.base_ts(checkpoint)) if moves else None
        change = self._due(file, opening, raise_starts=moves)
        if change is not None or floor is not None:
            self.writing = asyncio.create_task(self._write(file, change, floor))
            self.writing.add_done_callback(self._is_written)

    def _due(self, file: BoundsFile, opening: Opening, *, raise_starts: bool = False) -> BoundsChange | None:
        idle, machine = opening.arrivals.all_idle, self._machine
        return file.due(machine.reach, machine.spans, raise_starts=raise_starts, idle=idle)

    async def _write(
        self, file: BoundsFile, change: BoundsChange | None, floor: tuple[int, int] | None
    ) -> None:
        """Write a file, then note from where workers start by it."""
        try:
            if change is not None:
                put = partial(self._node.ballast.small, partial(file.put, change))
                # In another thread: the disk may take milliseconds, in which no changefeed would tick.
                await asyncio.get_running_loop().run_in_executor(self._node.files, put)
        except DiskFull:
            return  # workers may still start from the old ts, so nothing may be dropped
        except Exception as error:
            if not isinstance(error, TidegateError):
                LOG.exception("the bounds of an incarnation are not written: unexpected error")
            if self._file is file:  # otherwise it says nothing about the incarnation of now
                self._fail(error if isinstance(error, TidegateError) else unexpected(error))
            return
        # docs/guarantees.md#nothing-is-lost: rows may be dropped only once no worker can start below, by the
        # file that is on disk.
        if floor is not None and self._file is file:
            self._floor.move(self._node.clock.monotonic(), *floor)

    def _is_written(self, task: asyncio.Task[None]) -> None:
        self.writing = None
        if self._is_behind:
            self._is_behind = False
            self._wake()

    def passed(self, plan: FeedPlan) -> tuple[int, int]:
        """The ts up to which rows, and DDL entries, may be dropped: every worker is past it, and it is not
        retained.
        """
        return self._floor.passed(compose(round(plan.config.tidegate.retention * 1000)))
