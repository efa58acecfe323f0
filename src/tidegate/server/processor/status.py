"""Reports of a processor for people: what it waits for, and its totals.

It changes only the status of the machine (`control.processor`), which goes to the owner with the next
Checkpoint. Rows that were delivered are reported at once, everything else from time to time.
"""

from __future__ import annotations

from typing import Final

from tidegate.control.messages import ProcessorStatus
from tidegate.control.processor import Processor
from tidegate.server.delivery.initial_load import words_of_load
from tidegate.server.processor.openings import Openings
from tidegate.server.processor.pipeline import FeedPipeline
from tidegate.server.processor.words import words_of_slowest

REPORT_S: Final = 0.5
"""Seconds between two reports of status to the owner."""


class StatusReports:
    """The reports of status of one processor. Times are monotonic, in seconds."""

    def __init__(self, machine: Processor, pipeline: FeedPipeline, openings: Openings) -> None:
        self._machine, self._pipeline, self._openings = machine, pipeline, openings
        self._reported_at = float("-inf")

    def take(self, now: float) -> None:
        """Take the status for the next Checkpoint, if it is time or something has happened."""
        pipeline, totals = self._pipeline, self._pipeline.totals
        is_recent = now - self._reported_at < REPORT_S and not pipeline.has_news
        if is_recent and pipeline.loaded == self._machine.status.loaded:
            return
        self._reported_at, pipeline.has_news = now, False
        self._machine.status = ProcessorStatus(
            waits=self._words(),
            last_synced_ts=pipeline.last_synced_ts,
            rows=totals.rows,
            messages=totals.messages,
            bytes=totals.bytes,
            quarantined=totals.quarantined,
            matched=totals.matched,
            unchecked=totals.unchecked,
            excused=totals.excused,
            mismatched=totals.mismatched,
            misencoded=totals.misencoded,
            batches=totals.batches,
            batch_ms=totals.batch_ms,
            lag_ms=totals.lag_ms,
            load=pipeline.load,
            loaded=pipeline.loaded,
        )

    def _words(self) -> str:
        """Describe what the least checkpoint waits for."""
        waits = self._openings.waits or self._pipeline.waits
        if waits or not self._machine.spans.is_open:
            return waits
        if self._pipeline.load_plan is not None:
            return words_of_load(self._pipeline.load)
        return words_of_slowest(self._machine, self._openings.opened)
