"""The DDL that a changefeed's owner knows: it opens the catalogue, and looks for new DDL when there is a
reason.

    open: a new owner machine --> read, if there is a reason --> the machine learns --> ... --> close

The owner does not look at each tick, because a higher bound is a message to every processor, and each answer
causes a tick. But it looks before it accepts progress of a processor that knows more DDL
(`DdlAgreement.lags`), because that progress counts only if both know the same DDL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from tidegate.control import trace
from tidegate.control.barrier import Barrier, SpanTask
from tidegate.control.owner import Owner
from tidegate.filter.tables import why_ineligible
from tidegate.log import event
from tidegate.model.ddl import DdlEvent
from tidegate.server.catalogue.schema_tracker import SchemaTracker
from tidegate.server.delivery import initial_load
from tidegate.server.feed_ddl import FeedDdl
from tidegate.server.node import Node
from tidegate.server.owner.record import FeedRecord
from tidegate.server.owner.words import words_of_disagreement
from tidegate.server.pulling.spans import OwnerOf

LOG: Final = logging.getLogger(__name__)

NAMES_MAX: Final = 10_000


class OwnerDdl:
    """The owner's DDL of one changefeed. Lives in one asyncio loop."""

    def __init__(self, node: Node, record: FeedRecord) -> None:
        self._node, self._record = node, record
        self._ddl: FeedDdl | None = None
        self.is_behind = False
        """Whether more DDL had arrived at the last look than the catalogue returned."""
        self._floors_moved = True
        """Whether the DDL span may have grown since the last look."""
        self._looked_at = float("-inf")
        self._disagrees = False
        """Whether it was logged that a processor knows other DDL."""
        self._names: dict[int, str] = {}
        """The names that `name_of` has found."""

    @property
    def is_open(self) -> bool:
        """Whether it was opened and the catalogue is not broken."""
        return self._ddl is not None and self._ddl.is_open

    def view(self) -> FeedDdl:
        """A new view, not opened yet. Raises Retryable until PD holds the history that it needs."""
        record = self._record
        ddl = FeedDdl(self._node, record.plan, record.filter, OwnerOf(record.id))
        # docs/guarantees.md#nothing-is-lost: upstream must not be read before PD holds its history, or
        # deletes may be missing.
        ddl.check_held(self._record.persisted)
        return ddl

    async def open(self, ddl: FeedDdl, waits: Callable[[str], None]) -> Owner:
        """Open a view at the stored checkpoint. Returns a new owner machine that knows the DDL since then."""
        node, record = self._node, self._record
        batches, known = await ddl.open(record.persisted, waits)
        self._ddl = ddl
        # docs/guarantees.md#an-initial-load-is-joined-exactly: nothing passes the load's ts until all of it
        # is durable.
        held_at = record.persisted if record.loading else 0
        owner = Owner(
            record.persisted,
            Barrier(record.persisted, record.info.target_ts, held_at=held_at),
            record.wanted,
            resolved_interval_s=record.config.tidegate.resolved_interval,
            quiet_interval_s=node.pulse.quiet_s(record.captured.store),
            spans=self.initial,
        )
        # Before it learns, because a record of its events must begin with the new machine.
        node.follow(trace.OWNER, str(record.id), owner)
        owner.learn(batches, known)
        return owner

    def has_passed_over(self, checkpoint: int) -> bool:
        """As `FeedDdl.has_passed_over`; it must be open."""
        assert self._ddl is not None
        return self._ddl.has_passed_over(checkpoint)

    def try_again(self) -> None:
        """Follow the DDL span from the stored checkpoint if its history from before is gone: the open
        catalogue knows the DDL up to there.
        """
        self._record.captured.spans.try_again(OwnerOf(self._record.id), self._record.persisted)

    def close(self, *, forget: bool) -> None:
        """Forget the view, and release the DDL span. `forget`: the changefeed is removed for good."""
        self._ddl = None
        self._record.captured.spans.release(OwnerOf(self._record.id), forget=forget)

    @property
    def initial(self) -> Sequence[SpanTask]:
        """The spans wanted at the stored checkpoint; it must be open."""
        assert self._ddl is not None
        return self._ddl.initial

    @property
    def topics(self) -> frozenset[str]:
        """The topics of its tables' rows by dispatch rules; it must be open."""
        assert self._ddl is not None
        return self._ddl.tracker.topics

    async def definitions(self) -> list[DdlEvent]:
        """The DDL to send before the rows of an initial load; keys have none."""
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
        """Note that the DDL span may have grown."""
        self._floors_moved = True

    def read(self, owner: Owner, now: float) -> None:
        """Let the owner learn new DDL, if there is a reason to look."""
        ddl = self._ddl
        assert ddl is not None
        rest_s = self._node.pulse.rest_s(self._record.captured.store)
        if self._floors_moved or self.is_behind or owner.agreement.lags or now - self._looked_at >= rest_s:
            self._floors_moved, self._looked_at = False, now
            resolved = ddl.resolved
            if resolved > owner.barrier.resolved:
                batches, known = ddl.look(resolved, len(owner.barrier.waiting))
                owner.learn(batches, known)
            # The catalogue takes a bounded number of batches, so the next tick must look again without a new
            # floor.
            self.is_behind = resolved > owner.barrier.resolved
        self._log_disagreement(owner)

    def _log_disagreement(self, owner: Owner) -> None:
        """Log a disagreement once. The changefeed shows it until it is over."""
        words = words_of_disagreement(owner.agreement.disagreement)
        if words and not self._disagrees:
            event(LOG, logging.ERROR, "checkpoint held", changefeed=str(self._record.id), why=words)
        self._disagrees = bool(words)

    def name_of(self, physical_id: int) -> str:
        """`schema.table` of a table or partition, also of one that is gone; empty if it is not known yet."""
        name = self._ddl.tracker.name_of(physical_id) if self._ddl is not None and self._ddl.is_open else ""
        if not name:
            # Usually another thread is using the catalogue now. The labels of metrics must not change for it.
            return self._names.get(physical_id, "")
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[physical_id] = name
        return name

    def left_out(self, limit: int) -> tuple[int, list[tuple[str, str]]]:
        """Tables that pass the rules but cannot be replicated: their number, and (name, reason) of some."""
        tables = self._ddl.tracker.left_out if self._ddl is not None and self._ddl.is_open else ()
        return len(tables), [(table.name, why_ineligible(table)) for table in tables[:limit]]
