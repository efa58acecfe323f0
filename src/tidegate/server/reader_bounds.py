"""How far a changefeed's workers may read here, and what they have read past for ever.

    begin: a file for an incarnation --> write: bound, spans --> move: starts follow the checkpoint --> end

Workers read the bounds file (`server.feed_plan.BoundsFile`), and start at the start ts that it names. What
is below may go only a while after that has moved (`server.reader_floor`).
"""

from __future__ import annotations

from tidegate.control.metadata import Grant
from tidegate.control.processor import Processor
from tidegate.disk import DiskFull
from tidegate.model.timestamp import compose
from tidegate.server.feed_plan import BoundsFile, FeedPlan
from tidegate.server.node import Node
from tidegate.server.opening import Opening
from tidegate.server.reader_floor import ReaderFloor


class ReaderBounds:
    """Of one changefeed on one capture. One asyncio loop."""

    def __init__(self, node: Node, machine: Processor) -> None:
        self._node, self._machine = node, machine
        self._file: BoundsFile | None = None
        """None: no incarnation reads one."""
        self._floor = ReaderFloor()

    def begin(self, plan: FeedPlan, grant: Grant, opening: Opening) -> None:
        """Write the file that an incarnation is to start from. Raises DiskFull."""
        self._file = BoundsFile(plan.folder / "bounds.json", grant.token, opening.ddl.span_id)
        self.write(opening)

    def end(self) -> None:
        """Write it no more: the incarnation ends."""
        self._file = None

    def reset(self) -> None:
        """The opening has ended: nothing is known to be passed."""
        self._file = None
        self._floor.reset()

    def write(self, opening: Opening | None, *, raise_starts: bool = False) -> None:
        """Tell workers the bound and the spans, if there are workers. Raises DiskFull; then they keep to what
        they were told before.

        `raise_starts`: they are to start at the checkpoint from now on.
        """
        file, machine = self._file, self._machine
        if file is not None:
            bound, spans = machine.reach, machine.spans
            idle = opening is not None and opening.arrivals.all_idle
            self._node.ballast.small(lambda: file.write(bound, spans, raise_starts=raise_starts, idle=idle))

    def move_floor(self, opening: Opening, checkpoint: int) -> None:
        """Now and then move what workers start from, so that old segments can be dropped a while later."""
        now = self._node.clock.monotonic()
        if self._file is None or not self._floor.is_due(now):
            return
        try:
            self.write(opening, raise_starts=True)
        except DiskFull:
            return  # workers may still start from below: nothing is let go
        self._floor.move(now, checkpoint, opening.ddl.base_ts(checkpoint))

    def passed(self, plan: FeedPlan) -> tuple[int, int]:
        """Up to where rows, and DDL entries, may go: delivered, past every worker, not retained."""
        return self._floor.passed(compose(round(plan.config.tidegate.retention * 1000)))
