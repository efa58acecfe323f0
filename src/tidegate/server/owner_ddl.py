"""The DDL that a changefeed's owner knows: the catalogue it opens, and when it looks for what has come since.

    open --> read, if there is a reason --> the owner learns --> ... --> close

The owner does not look at each tick: a further bound is a message to every processor, and each answer is a
tick. But before progress of a processor counts, its DDL is compared with ours (`Owner.lags`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.owner import Owner
from tidegate.filter.tables import why_ineligible
from tidegate.log import event
from tidegate.model.ddl import DdlEvent
from tidegate.server import initial_load
from tidegate.server.feed_ddl import FeedDdl
from tidegate.server.feed_record import FeedRecord
from tidegate.server.feed_words import words_of_disagreement
from tidegate.server.node import Node
from tidegate.server.schema_tracker import SchemaTracker

LOG: Final = logging.getLogger(__name__)


class OwnerDdl:
    """Of one changefeed. One asyncio loop."""

    def __init__(self, node: Node, record: FeedRecord) -> None:
        self._node, self._record = node, record
        self._ddl: FeedDdl | None = None
        self.is_behind = False
        """Whether DDL has come that the catalogue did not hand out at the last look."""
        self._floors_moved = True
        """Whether more of the DDL span may have come than when it was looked at last."""
        self._looked_at = float("-inf")
        self._disagrees = False
        """Whether it was logged that a processor knows other DDL."""

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and its catalogue is whole."""
        return self._ddl is not None and self._ddl.is_open

    def view(self) -> FeedDdl:
        """A view that is to be opened. Raises Retryable until PD holds the history that it needs."""
        ddl = FeedDdl(self._node, self._record.plan, self._record.filter)
        ddl.check_held(self._record.persisted)
        return ddl

    async def open(self, ddl: FeedDdl, waits: Callable[[str], None]) -> tuple[list[DdlBatch], int]:
        """Open a view at the stored checkpoint: the DDL since then, and up to where that is all."""
        found = await ddl.open(self._record.persisted, waits)
        self._ddl = ddl
        return found

    def close(self) -> None:
        """Forget what is known."""
        self._ddl = None

    @property
    def initial(self) -> Sequence[SpanTask]:
        """The spans wanted at the stored checkpoint; it is open."""
        assert self._ddl is not None
        return self._ddl.initial

    @property
    def topics(self) -> frozenset[str]:
        """Where the rows of its tables go by dispatch rules; it is open."""
        assert self._ddl is not None
        return self._ddl.tracker.topics

    async def definitions(self) -> list[DdlEvent]:
        """What is sent of the tables before the rows of an initial load; keys have no definition."""
        assert self._ddl is not None
        return await self._ddl.run(self._definitions, self._ddl)

    def _definitions(self, ddl: FeedDdl) -> list[DdlEvent]:
        record = self._record
        if not isinstance(ddl.tracker, SchemaTracker):
            return []
        return initial_load.definitions(
            ddl.tracker.followed(record.persisted), record.filter, record.persisted
        )

    def floors_have_moved(self) -> None:
        """More of the DDL span may have come."""
        self._floors_moved = True

    def read(self, owner: Owner, now: float) -> None:
        """Let the owner learn what has come, if there is a reason to look."""
        ddl = self._ddl
        assert ddl is not None
        rest_s = self._node.pulse.rest_s(self._record.captured.store)
        if self._floors_moved or self.is_behind or owner.lags or now - self._looked_at >= rest_s:
            self._floors_moved, self._looked_at = False, now
            resolved = ddl.resolved
            if resolved > owner.barrier.resolved:
                batches, known = ddl.look(resolved, len(owner.barrier.waiting))
                owner.learn(batches, known)
            self.is_behind = resolved > owner.barrier.resolved
        self._log_disagreement(owner)

    def _log_disagreement(self, owner: Owner) -> None:
        """Log it once: the changefeed shows it until it is over."""
        words = words_of_disagreement(owner.disagreement)
        if words and not self._disagrees:
            event(LOG, logging.ERROR, "checkpoint held", changefeed=str(self._record.id), why=words)
        self._disagrees = bool(words)

    def left_out(self, limit: int) -> tuple[int, list[tuple[str, str]]]:
        """Tables that pass the rules and cannot be replicated: how many, and of some (name, reason)."""
        tables = self._ddl.tracker.left_out if self._ddl is not None and self._ddl.is_open else ()
        return len(tables), [(table.name, why_ineligible(table)) for table in tables[:limit]]
