"""How far a feed's spans may run: up to the next DDL, the target ts, and what is known about DDLs.

The same holds them while the number of partitions changes (docs/repartition.md).

A DDL finished at F lets every span run to F and no further; once all have delivered up to F the DDL is
sent, and only then is F behind us. Until it is, the checkpoint stays at F - 1 at most, so that a restart
finds the DDL still to do. The bound never lies above what the DDL span has been read to, for a DDL nobody
has read yet could be hiding there.
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
    """Its table, or of a stripe the first that is wanted, for people."""
    start_ts: int
    wanted: int = 0
    """Of a stripe: bit i is set when its i-th table id is wanted. 0: the whole span is."""


@dataclass(frozen=True, slots=True)
class DdlBatch:
    """All DDL of one FinishedTS that concerns the feed: what to send, and which spans come and go."""

    finished_ts: int
    events: tuple[DdlEvent, ...]
    """Those that are sent, in order; may be empty when only spans change."""
    added: tuple[SpanTask, ...] = ()
    """Those that are wanted from here on; also stripes of which other tables are wanted than before."""
    removed: frozenset[str] = frozenset()
    error: TidegateError | None = None
    """Why the feed cannot get past it: all before it is delivered, then the feed fails with this."""
    removed_tables: frozenset[int] = frozenset()
    """The physical ids of the tables that are no longer wanted."""
    topics: frozenset[str] = frozenset()
    """To which rows of tables that are wanted go from here on, and may not have gone before."""


@dataclass(slots=True)
class Barrier:
    """The queue of DDLs to come and the bounds that follow from it."""

    resolved: int
    """Every DDL with FinishedTS <= it is known."""
    target_ts: int = 0
    """0: none."""
    held_at: int = 0
    """While the initial load at this ts is not durable, nothing above it is delivered; 0: none."""
    switch_ts: int = 0
    """Where the number of partitions changes: nothing above it is delivered by the old number; 0: nowhere."""
    waiting: deque[DdlBatch] = field(default_factory=deque)

    def learn(self, batches: Iterable[DdlBatch], upto: int) -> None:
        """Add DDLs in order; the DDL span is now known up to `upto`. Those beyond the target never happen."""
        for batch in batches:
            last = self.waiting[-1].finished_ts if self.waiting else 0
            assert last < batch.finished_ts <= upto, f"DDL {batch.finished_ts} after {last}, known to {upto}"
            if not self.target_ts or batch.finished_ts <= self.target_ts:
                self.waiting.append(batch)
        assert upto >= self.resolved, "what is known about DDL never shrinks"
        self.resolved = upto

    def start_of(self, span: str) -> int | None:
        """From where a span is wanted by a DDL that is still waiting; None: by none."""
        return next((t.start_ts for batch in self.waiting for t in batch.added if t.id == span), None)

    @property
    def next(self) -> DdlBatch | None:
        """The DDL that comes next."""
        return self.waiting[0] if self.waiting else None

    @property
    def bound(self) -> int:
        """How far spans may be delivered."""
        bound = self.waiting[0].finished_ts if self.waiting else self.resolved
        return min([bound, *(ts for ts in (self.target_ts, self.held_at, self.switch_ts) if ts)])

    def switch(self) -> bool:
        """Let nothing pass what is known now, so that the number of partitions can change there.

        That ts is no lower than any bound before, hence than any row that is delivered. False, and nothing is
        held: while DDL waits, since rows behind it have another bound, during an initial load, and where the
        target is reached first.
        """
        if self.waiting or self.held_at or (self.target_ts and self.resolved >= self.target_ts):
            return False
        self.switch_ts = self.resolved
        return True

    @property
    def cap(self) -> int:
        """How high the checkpoint may be."""
        return min(self.waiting[0].finished_ts - 1, self.bound) if self.waiting else self.bound

    def lift(self, finished_ts: int) -> DdlBatch:
        """The next DDL is durable downstream."""
        batch = self.waiting.popleft()
        assert batch.finished_ts == finished_ts
        return batch
