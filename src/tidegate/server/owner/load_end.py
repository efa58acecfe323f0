"""The end of a changefeed's initial load: it is stored before the stream continues."""

from __future__ import annotations

import logging
from typing import Final

from tidegate.control.owner import Owner
from tidegate.log import event
from tidegate.server.owner.processor_reports import ProcessorReports
from tidegate.server.owner.record import FeedRecord

LOG: Final = logging.getLogger(__name__)


class LoadEnd:
    """Stores the end of one changefeed's initial load. Lives in one asyncio loop."""

    def __init__(self, record: FeedRecord, reports: ProcessorReports) -> None:
        self._record, self._reports = record, reports
        self._is_storing = False

    def begin(self) -> bool:
        """Whether to `store` it now; False if that is under way, because it is reported more than once."""
        was, self._is_storing = self._is_storing, True
        return not was

    async def store(self, owner: Owner) -> None:
        """Store that the load is durable downstream, then let the stream continue."""
        record, ts = self._record, self._record.persisted
        try:
            # docs/guarantees.md#an-initial-load-is-joined-exactly:
            # Stored before the barrier is released. Once changes above the load are delivered, a restart must
            # not load again.
            await record.store(ts, loaded=True)
        finally:
            self._is_storing = False
        record.loading = False
        owner.load_done()
        feed, rows = str(record.id), self._reports.load.rows
        event(LOG, logging.INFO, "initial load done", changefeed=feed, ts=ts, rows=rows)
