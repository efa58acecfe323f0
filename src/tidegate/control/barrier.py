"""How far a feed's spans may be delivered: up to the next DDL, the target ts, and the resolved ts of DDL.

It also holds the spans while the number of partitions changes (docs/repartition.md).

If the next DDL finished at F, every span may be delivered up to F and no further. When all spans are
delivered up to F, the DDL is sent, and then the spans may continue. Until the DDL is durable, the checkpoint
is at most F - 1, so that a restart sends the DDL again. The bound is never above the ts up to which the DDL
span was read, because there may be a DDL above it that is not known yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.errors import TidegateError
from tidegate.model.ddl import DdlEvent
from tidegate.model.span import Span


@dataclass(frozen=True, slots=True)
class SpanTask:
    """One span that a feed must deliver, from `start_ts` (exclusive) on."""

    id: str
    span: Span
    physical_id: int
    """The id of its table; for a stripe, the first id that is wanted. For people."""
    start_ts: int
    wanted: int = 0
    """For a stripe: bit i is set if its i-th table id is wanted. 0: the whole span is wanted."""


@dataclass(frozen=True, slots=True)
class DdlBatch:
    """All DDL of one FinishedTS that concerns the feed: the events to send, and the spans to add
    and remove.
    """

    finished_ts: int
    events: tuple[DdlEvent, ...]
    """The events to send, in order. Empty if only spans change."""
    added: tuple[SpanTask, ...] = ()
    """The spans that are wanted from this ts on, and the stripes whose wanted tables change."""
    removed: frozenset[str] = frozenset()
    error: TidegateError | None = None
    """Why the feed cannot pass this DDL. All before it is delivered, then the feed fails with this error."""
    removed_tables: frozenset[int] = frozenset()
    """The physical ids of the tables that are no longer wanted."""
    topics: frozenset[str] = frozenset()
    """Topics that may get rows of wanted tables for the first time after this DDL."""


@dataclass(slots=True)
class Barrier:
    """The queue of DDLs that are not sent yet, and the bounds that follow from it."""

    resolved: int
    """Every DDL with FinishedTS <= resolved is known."""
    target_ts: int = 0
    """0: none."""
    held_at: int = 0
    """The ts of the initial load. Until the load is durable, nothing above it is delivered. 0: no load."""
    switch_ts: int = 0
    """The ts at which the number of partitions changes. Nothing above it is delivered with the old number. 0:
    it does not change."""
    waiting: deque[DdlBatch] = field(default_factory=deque)

    def learn(self, batches: Iterable[DdlBatch], upto: int) -> None:
        """Add DDLs in order; all DDL up to `upto` is known now. DDL above the target ts is ignored."""
        for batch in batches:
            last = self.waiting[-1].finished_ts if self.waiting else 0
            assert last < batch.finished_ts <= upto, f"DDL {batch.finished_ts} after {last}, known to {upto}"
            # A DDL above the target ts would hold the bound, but the feed ends before it.
            if not self.target_ts or batch.finished_ts <= self.target_ts:
                self.waiting.append(batch)
        assert upto >= self.resolved, "what is known about DDL never shrinks"
        self.resolved = upto

    def start_of(self, span: str) -> int | None:
        """The ts from which a waiting DDL wants a span. None: no waiting DDL adds it."""
        return next((t.start_ts for batch in self.waiting for t in batch.added if t.id == span), None)

    @property
    def next(self) -> DdlBatch | None:
        """The next DDL to send."""
        return self.waiting[0] if self.waiting else None

    @property
    def bound(self) -> int:
        """The ts up to which spans may be delivered."""
        # docs/guarantees.md#a-ddl-at-f-comes-after-all-rows-at-or-below-f-and-before-any-row-above-f
        # The first one only: the DDLs are in order, so the others are above it.
        bound = self.waiting[0].finished_ts if self.waiting else self.resolved
        return min([bound, *(ts for ts in (self.target_ts, self.held_at, self.switch_ts) if ts)])

    def switch(self) -> bool:
        """Hold all spans at the resolved ts of DDL, so that the number of partitions can change there.

        That ts is not below any earlier bound, so no row above it was delivered. Returns False, and holds
        nothing, in three cases: while a DDL waits, because the bound is at that DDL; during an initial load;
        and if the target ts comes first.
        """
        if self.waiting or self.held_at or (self.target_ts and self.resolved >= self.target_ts):
            return False
        # docs/guarantees.md#the-number-of-partitions-changes-at-one-ts-for-all-rows: every range stops here.
        self.switch_ts = self.resolved
        return True

    @property
    def cap(self) -> int:
        """The greatest value that the checkpoint may have."""
        return min(self.waiting[0].finished_ts - 1, self.bound) if self.waiting else self.bound

    def lift(self, finished_ts: int) -> DdlBatch:
        """The next DDL is durable downstream."""
        batch = self.waiting.popleft()
        assert batch.finished_ts == finished_ts
        return batch
