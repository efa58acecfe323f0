"""Records of progress in the sink that a feed needs no more, as its processor finds out.

outlived: needed up to a ts --stored checkpoint reaches it--> over --> in the next Checkpoint: delete it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class EndedRecords:
    """The ended records of one feed on one capture. Not thread-safe, no I/O."""

    def __init__(self) -> None:
        self._outlived: dict[str, int] = {}
        """Records of earlier rules or spans, each with the ts up to which it is needed."""
        self._over: list[str] = []
        """Records to report."""

    def begin(self, outlived: Mapping[str, int]) -> None:
        """An incarnation begins, and has found these records."""
        self._outlived = dict(outlived)

    def forget(self) -> None:
        """The incarnation has ended; the next one finds them again."""
        self._outlived.clear()

    def end(self, records: Iterable[str]) -> None:
        """Records that are not needed whatever the checkpoint is."""
        self._over += records

    def end_below(self, stored: int) -> None:
        """End those that are not needed above the stored checkpoint: no later incarnation begins below it."""
        gone = [key for key, ts in self._outlived.items() if ts <= stored]
        for key in gone:
            del self._outlived[key]
        self.end(gone)

    def take(self) -> tuple[str, ...]:
        """Those to report now."""
        found, self._over = tuple(self._over), []
        return found
