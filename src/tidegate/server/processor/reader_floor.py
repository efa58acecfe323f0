"""The ts up to which a changefeed needs nothing of this capture's event store any more.

    the bounds file's start ts moves up --DROP_AFTER_S--> segments below it may be removed

The order is the promise. A worker begins at the start ts in the bounds file, and it may have read the file a
moment before it was replaced. Therefore a start ts counts only after every batch planned by an earlier file
has ended.
"""

from __future__ import annotations

from typing import Final

FLOOR_S: Final = 10.0
"""How often the bounds file's start ts follows the checkpoint, so that segments can be removed."""
DROP_AFTER_S: Final = 60.0
"""How long after a move segments may be removed; by then no batch planned before the move is still
running.
"""


class ReaderFloor:
    """The floor of one changefeed. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._moved_at = float("-inf")
        self._moves: list[tuple[float, int, int]] = []
        """The moves of the bounds file: when, to which checkpoint, and from which ts DDL is read for it."""
        self._passed = 0, 0

    def is_due(self, now: float, stretch: float = 1.0) -> bool:
        """Whether the start ts should move now; if so, the next time is `stretch * FLOOR_S` later."""
        if now - self._moved_at < stretch * FLOOR_S:
            return False
        self._moved_at = now
        return True

    def move(self, now: float, rows_ts: int, ddl_ts: int) -> None:
        """Note a written bounds file: readers start at `rows_ts`, with DDL from `ddl_ts`."""
        self._moves.append((now, rows_ts, ddl_ts))
        # In order of time, and a later move has the higher ts.
        while self._moves and now - self._moves[0][0] >= DROP_AFTER_S:
            _, *passed = self._moves.pop(0)
            self._passed = passed[0], passed[1]

    def passed(self, retained: int) -> tuple[int, int]:
        """The ts up to which rows, and DDL entries, may be removed: every reader is past it, and it is not
        retained.

        `retained`: how far behind that changes are kept, as a difference of ts.
        """
        rows_ts, ddl_ts = self._passed
        return max(0, rows_ts - retained), max(0, ddl_ts - retained)

    def reset(self) -> None:
        """Nothing counts as passed any more; the time of the next move is unchanged."""
        self._moves, self._passed = [], (0, 0)
