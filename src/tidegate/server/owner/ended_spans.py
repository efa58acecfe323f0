"""Spans of a changefeed that have ended, until the records of their progress are deleted at the sink.

    a DDL ends a span --> its record is kept --> the checkpoint has passed the DDL --> its record may go

A record must outlive the span: a restart begins at the stored checkpoint, and if that is below the DDL, it
reads the record again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.control.barrier import DdlBatch
from tidegate.model.progress import TableRules, span_key

FORGET_S: Final = 10.0
"""How often the records of spans that have ended are deleted."""


class EndedSpans:
    """The ended spans of one changefeed."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}
        """The ts at which each span ended, by the key of its record."""
        self._looked_at = 0.0

    def take(self, batch: DdlBatch, rules: TableRules | None, start_of: Callable[[str], int | None]) -> None:
        """Note a delivered DDL. `start_of`: where a span begins that a waiting DDL brings back, such as a
        recovered table, or None.

        Records of stripes stay, because any new table brings a stripe back, maybe by a DDL not known yet.
        """
        if rules is None or rules.width > 1:
            return
        for task in batch.added:
            # The span is back, so its record says again how far it is delivered.
            self._ended.pop(span_key(task.id, rules.digest), None)
        for name in batch.removed:
            if start_of(name) is None:
                self._ended[span_key(name, rules.digest)] = batch.finished_ts

    def over(self, now: float, persisted_ts: int) -> list[str]:
        """From time to time: the records that a restart at the stored checkpoint cannot need any more."""
        if now - self._looked_at < FORGET_S:
            return []
        self._looked_at = now
        gone = [key for key, ts in self._ended.items() if ts <= persisted_ts]
        for key in gone:
            del self._ended[key]
        return gone
