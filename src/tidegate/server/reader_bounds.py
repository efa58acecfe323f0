"""How far a changefeed's workers may read on this capture, and what all of them have read past.

    begin: a file for an incarnation --> write: bound, spans --> move: starts follow the checkpoint --> end

Workers read the bounds file (`server.feed_plan.BoundsFile`), and begin at the start ts in it. Segments below
it may be removed only some time after that ts has moved (`server.reader_floor`).
"""

from __future__ import annotations

from tidegate.control.grants import Grant
from tidegate.control.processor import Processor
from tidegate.disk import DiskFull
from tidegate.model.timestamp import compose
from tidegate.server.feed_plan import BoundsFile, FeedPlan
from tidegate.server.node import Node
from tidegate.server.opening import Opening
from tidegate.server.reader_floor import ReaderFloor


class ReaderBounds:
    """The bounds of one changefeed on one capture. Lives in one asyncio loop."""

    def __init__(self, node: Node, machine: Processor) -> None:
        self._node, self._machine = node, machine
        self._file: BoundsFile | None = None
        """The file of the current incarnation; None: there is none."""
        self._floor = ReaderFloor()

    def begin(self, plan: FeedPlan, grant: Grant, opening: Opening) -> None:
        """Write the file from which an incarnation starts. Raises DiskFull."""
        self._file = BoundsFile(plan.folder / "bounds.json", grant.token, opening.ddl.span_id)
        self.write(opening)

    def end(self) -> None:
        """Stop writing the file, because the incarnation ends."""
        self._file = None

    def reset(self) -> None:
        """The opening has ended, so nothing counts as passed any more."""
        self._file = None
        self._floor.reset()

    def write(self, opening: Opening | None, *, raise_starts: bool = False) -> None:
        """Write the bound and the spans for the workers, if there are any. Raises DiskFull; workers then keep
        to the earlier file.

        `raise_starts`: they start at the checkpoint from now on.
        """
        file, machine = self._file, self._machine
        if file is not None:
            bound, spans = machine.reach, machine.spans.tasks
            idle = opening is not None and opening.arrivals.all_idle
            self._node.ballast.small(lambda: file.write(bound, spans, raise_starts=raise_starts, idle=idle))

    def move_floor(self, opening: Opening, checkpoint: int) -> None:
        """From time to time, raise the workers' start, so that old segments can be dropped a while later."""
        now = self._node.clock.monotonic()
        if self._file is None or not self._floor.is_due(now):
            return
        try:
            self.write(opening, raise_starts=True)
        except DiskFull:
            return  # workers may still start from the old ts, so nothing may be dropped
        self._floor.move(now, checkpoint, opening.ddl.base_ts(checkpoint))

    def passed(self, plan: FeedPlan) -> tuple[int, int]:
        """The ts up to which rows, and DDL entries, may be dropped: every worker is past it, and it is not
        retained.
        """
        return self._floor.passed(compose(round(plan.config.tidegate.retention * 1000)))
