"""The DDL that a processor knows, and which of it is still to come for its spans.

learn --> waits until the bound has passed it --> next; and a digest of all of it for the owner (`DdlLog`)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.ddl_log import DdlLog, KnownDdl
from tidegate.model.timestamp import MAX


class ComingDdl:
    """The DDL of one feed on one capture. Not thread-safe, no I/O."""

    def __init__(self) -> None:
        self.known = 0
        """Every DDL finished at or before it is known."""
        self._waiting: deque[DdlBatch] = deque()
        self._log = DdlLog(0)

    def open(self, checkpoint: int, wanted: Iterable[SpanTask]) -> None:
        """Begin at a checkpoint, above which no DDL is known yet. `wanted`: all spans of the feed there."""
        self.close()
        self._log = DdlLog(checkpoint, wanted)

    def close(self) -> None:
        """Forget all DDL."""
        self._waiting.clear()
        self.known = 0

    def learn(self, batches: Iterable[DdlBatch], known: int) -> None:
        """Learn DDL, in order; all DDL up to `known` is known afterwards."""
        found = list(batches)
        self._waiting.extend(found)
        self._log.learn(found, known)
        self.known = max(self.known, known)

    @property
    def waiting(self) -> int:
        """The number of DDL batches that wait."""
        return len(self._waiting)

    @property
    def next_ts(self) -> int:
        """The ts at which the next waiting DDL finished; MAX: none waits."""
        return self._waiting[0].finished_ts if self._waiting else MAX

    def take(self) -> DdlBatch:
        """The next waiting DDL, which waits no more."""
        return self._waiting.popleft()

    def start_of(self, span: str) -> int | None:
        """The ts from which a waiting DDL wants a span; None: no waiting DDL does."""
        return next((t.start_ts for batch in self._waiting for t in batch.added if t.id == span), None)

    def above(self, checkpoint: int) -> KnownDdl:
        """The known DDL above the stored checkpoint, below which no incarnation begins."""
        self._log.forget(checkpoint)
        return self._log.said
