"""Up to where a changefeed needs nothing of this capture's event store any more.

    the bounds file's start ts moves up --DROP_AFTER_S--> segments below it may go

The order is the promise. A worker starts at the start ts of the bounds file, and it may have read the file a
moment before the file was replaced. Therefore a ts counts only after every batch that was planned by an
earlier file has ended.
"""

from __future__ import annotations

from typing import Final

FLOOR_S: Final = 10.0
"""How often the bounds file's start ts follows the checkpoint, so that segments can go."""
DROP_AFTER_S: Final = 60.0
"""Segments go this long after the bounds file has moved past them: no batch planned before still runs."""


class ReaderFloor:
    """Of one changefeed. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._moved_at = float("-inf")
        self._moves: list[tuple[float, int, int]] = []
        """When the bounds file moved, to which checkpoint, and from where DDL is read for that."""
        self._passed = 0, 0

    def is_due(self, now: float) -> bool:
        """Whether the bounds file's start ts is to move now; if so, it is not for `FLOOR_S`."""
        if now - self._moved_at < FLOOR_S:
            return False
        self._moved_at = now
        return True

    def move(self, now: float, rows_ts: int, ddl_ts: int) -> None:
        """The bounds file is written: readers start at `rows_ts`, with DDL from `ddl_ts` on."""
        self._moves.append((now, rows_ts, ddl_ts))
        while self._moves and now - self._moves[0][0] >= DROP_AFTER_S:
            _, *passed = self._moves.pop(0)
            self._passed = passed[0], passed[1]

    def passed(self, retained: int) -> tuple[int, int]:
        """Up to where rows, and DDL entries, may go: delivered, past every reader, and not retained.

        `retained`: how far behind that they are kept, as a difference of ts.
        """
        rows_ts, ddl_ts = self._passed
        return max(0, rows_ts - retained), max(0, ddl_ts - retained)

    def reset(self) -> None:
        """Nothing is known to be passed; the next move keeps its time."""
        self._moves, self._passed = [], (0, 0)
