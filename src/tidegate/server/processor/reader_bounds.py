"""How far a changefeed's workers may read on this capture, and what all of them have read past.

    begin: a file for an incarnation --> write: bound, spans --> move: starts follow the checkpoint --> end

Workers read the bounds file (`server.delivery.plan.BoundsFile`), and begin at the start ts in it. Segments
below it may be removed only some time after that ts has moved (`server.processor.reader_floor`).
"""

from __future__ import annotations

import asyncio
from functools import partial

from tidegate.control.grants import Grant
from tidegate.control.processor import Processor
from tidegate.disk import DiskFull
from tidegate.model.timestamp import compose
from tidegate.server.delivery.plan import BoundsChange, BoundsFile, FeedPlan
from tidegate.server.node import Node
from tidegate.server.processor.opening import Opening
from tidegate.server.processor.reader_floor import ReaderFloor
from tidegate.server.supervision.jobs import to_its_end


class ReaderBounds:
    """The bounds of one changefeed on one capture. Lives in one asyncio loop."""

    def __init__(self, node: Node, machine: Processor) -> None:
        self._node, self._machine = node, machine
        self._file: BoundsFile | None = None
        """The file of the current incarnation; None: there is none."""
        self._floor = ReaderFloor()

    def begin(self, plan: FeedPlan, grant: Grant, opening: Opening) -> None:
        """Write the file from which an incarnation starts. Raises DiskFull."""
        self.end()
        self._file = file = BoundsFile(plan.folder / "bounds.json", grant.token, opening.ddl.span_id)
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

    async def write(self, opening: Opening, *, raise_starts: bool = False) -> None:
        """Write the bound and the spans for the workers, if there are any. Raises DiskFull; workers then keep
        to the earlier file.

        `raise_starts`: they start at the checkpoint from now on. Only one call at a time, and none while
        another incarnation begins.
        """
        file = self._file
        if file is not None and (change := self._due(file, opening, raise_starts=raise_starts)):
            # In another thread, because the disk may take milliseconds, in which no changefeed would tick.
            # To its end: it must not replace the file of the next incarnation.
            await to_its_end(self._put(file, change))

    async def _put(self, file: BoundsFile, change: BoundsChange) -> None:
        put = partial(self._node.ballast.small, partial(file.put, change))
        await asyncio.get_running_loop().run_in_executor(self._node.files, put)

    def _due(self, file: BoundsFile, opening: Opening, *, raise_starts: bool = False) -> BoundsChange | None:
        idle, machine = opening.arrivals.all_idle, self._machine
        return file.due(machine.reach, machine.spans.tasks, raise_starts=raise_starts, idle=idle)

    async def move_floor(self, opening: Opening, checkpoint: int) -> None:
        """From time to time, raise the workers' start, so that old segments can be dropped a while later."""
        now, node = self._node.clock.monotonic(), self._node
        # As all that is done for changefeeds without rows, less often if there are many.
        stretch = node.pulse.calmer_s(opening.plan.paths.store) if opening.arrivals.all_idle else 1.0
        if self._file is None or not self._floor.is_due(now, stretch):
            return
        base_ts = opening.ddl.base_ts(checkpoint)
        try:
            await self.write(opening, raise_starts=True)
        except DiskFull:
            return  # workers may still start from the old ts, so nothing may be dropped
        self._floor.move(now, checkpoint, base_ts)

    def passed(self, plan: FeedPlan) -> tuple[int, int]:
        """The ts up to which rows, and DDL entries, may be dropped: every worker is past it, and it is not
        retained.
        """
        return self._floor.passed(compose(round(plan.config.tidegate.retention * 1000)))
