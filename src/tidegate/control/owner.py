"""The owner of one feed: who has delivered how far, what may be announced, which DDL is due.

    reports (token, incarnation) --+
    frontier, idle spans ----------+--> Owner --tick--> SendDdl | SendResolved | Persist | Finish
    DDL batches -------------------+                    (one SendDdl or SendResolved at a time)
    what the sink has taken -------+

Promises, whatever the order of events:
 - the checkpoint is the least of every wanted span's durable ts, F - 1 of the next DDL, and what is known
   about DDL; it never goes back;
 - Resolved R leaves only when every wanted span is durable up to R and every DDL <= R is;
 - DDL F leaves only when every span is durable up to F, and no span is let beyond F before it is durable;
 - reports under another token or incarnation change nothing;
 - while an initial load holds the barrier, neither Resolved nor DDL leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.control.barrier import Barrier, DdlBatch, SpanTask

PERSIST_S: Final = 0.5
"""Seconds between two durable writes of the checkpoint at least; a DDL's is written at once."""


@dataclass(frozen=True, slots=True)
class SendDdl:
    """Deliver the batch's events in order, then call `ddl_done`."""

    batch: DdlBatch


@dataclass(frozen=True, slots=True)
class SendResolved:
    """Broadcast Resolved, then call `resolved_done`."""

    ts: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the checkpoint durably, then call `persisted`."""

    ts: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything up to the target ts is delivered, announced and durable."""


Effect = SendDdl | SendResolved | Persist | Finish


@dataclass(slots=True)
class _Progress:
    task: SpanTask
    checkpoint: int


class Owner:
    """The state of one feed between two starts of the control process. Not thread-safe, no I/O."""

    def __init__(
        self,
        checkpoint: int,
        spans: Iterable[SpanTask],
        barrier: Barrier,
        *,
        resolved_interval_s: float = 0.1,
    ) -> None:
        assert barrier.resolved >= checkpoint, "the spans wanted at the checkpoint must be known"
        self.barrier = barrier
        self.checkpoint = checkpoint
        self.persisted_ts = checkpoint
        self.resolved_sent = 0
        self._spans = {task.id: _Progress(task, max(checkpoint, task.start_ts)) for task in spans}
        self._reported: dict[str, int] = {}
        """What this incarnation said about spans, also about those that a DDL yet to come will add."""
        self._grant: tuple[tuple[int, int], int] | None = None
        self._interval = resolved_interval_s
        self._busy = self._open = False
        self._persisting = False
        self._persist_now = False
        self._last_resolved = self._last_persist = float("-inf")

    @property
    def spans(self) -> dict[str, SpanTask]:
        """The spans that are to be delivered now, each with the ts it is durable to as `start_ts`."""
        return {
            name: SpanTask(name, p.task.span, p.task.physical_id, p.checkpoint)
            for name, p in self._spans.items()
        }

    def granted(self, token: tuple[int, int], incarnation: int) -> None:
        """A new incarnation is about to start: nothing older counts; the sink is not open yet."""
        assert self._grant is None or (token, incarnation) > self._grant
        self._grant = (token, incarnation)
        self._reported.clear()
        self._open = self._busy = False

    def sink_open(self, resolved_journal: int) -> None:
        """Pipeline and sink are up; what the sink's journal holds as Resolved is out already."""
        self.resolved_sent = max(self.resolved_sent, resolved_journal)
        self._open = True

    def sink_lost(self) -> None:
        """The sink failed: an operation under way may have happened or not; its journal will tell."""
        self._open = self._busy = self._persisting = False

    def report(self, token: tuple[int, int], incarnation: int, spans: Mapping[str, int]) -> bool:
        """Spans are durable downstream up to a ts. False, and no effect, under an old grant."""
        if self._grant != (token, incarnation):
            return False
        for name, ts in spans.items():
            self._reported[name] = max(ts, self._reported.get(name, 0))
            if name in self._spans:
                self._spans[name].checkpoint = max(ts, self._spans[name].checkpoint)
        return True

    def idle_ranges(self, frontier: Mapping[str, int]) -> list[tuple[str, int, int]]:
        """(span, after, upto) of spans that need no pipeline to advance, if no row lies in the range."""
        found = []
        for name, progress in self._spans.items():
            upto = min(frontier.get(name, 0), self.barrier.bound)
            if upto > progress.checkpoint:
                found.append((name, progress.checkpoint, upto))
        return found

    def idle(self, name: str, after: int, upto: int) -> None:
        """No row of the span lies in (after, upto]."""
        progress = self._spans.get(name)
        if progress is not None and after <= progress.checkpoint:
            progress.checkpoint = max(upto, progress.checkpoint)

    def durable(self, span: str) -> int:
        """How far a span is durable."""
        return self._spans[span].checkpoint

    def slowest(self) -> SpanTask | None:
        """The span that holds the checkpoint back, if there is any span."""
        if not self._spans:
            return None
        return min(self._spans.values(), key=lambda p: p.checkpoint).task

    def tick(self, now: float) -> list[Effect]:
        """What is to be done now; `now` in monotonic seconds."""
        self._advance()
        effects: list[Effect] = []
        send = self._send(now)
        if send is not None:
            self._busy = True
            effects.append(send)
        persist_due = self._persist_now or now - self._last_persist >= PERSIST_S or self._at_target
        if self.checkpoint > self.persisted_ts and not self._persisting and persist_due:
            self._persisting, self._persist_now, self._last_persist = True, False, now
            effects.append(Persist(self.checkpoint))
        if self._at_target and not self._busy and self.persisted_ts >= self.barrier.target_ts:
            effects.append(Finish())
        return effects

    @property
    def _at_target(self) -> bool:
        target = self.barrier.target_ts
        return bool(target) and self.checkpoint >= target and self.resolved_sent >= target

    def _advance(self) -> None:
        """Recompute the checkpoint; it never goes back."""
        least = min((p.checkpoint for p in self._spans.values()), default=self.barrier.cap)
        self.checkpoint = max(self.checkpoint, min(least, self.barrier.cap))

    def _send(self, now: float) -> SendDdl | SendResolved | None:
        """The next thing for the sink, which takes one at a time."""
        if self._busy or not self._open or self.barrier.held_at:
            return None
        batch = self.barrier.next
        if batch is not None and all(p.checkpoint >= batch.finished_ts for p in self._spans.values()):
            return SendDdl(batch)
        due = now - self._last_resolved >= self._interval or self.checkpoint == self.barrier.target_ts
        if self.checkpoint > self.resolved_sent and due:
            self._last_resolved = now
            return SendResolved(self.checkpoint)
        return None

    def ddl_done(self, finished_ts: int) -> tuple[tuple[SpanTask, ...], frozenset[str]]:
        """The DDL is durable downstream: spans change, the barrier is lifted. Returns (added, removed)."""
        batch = self.barrier.lift(finished_ts)
        self._busy = False
        self._persist_now = True
        self._last_resolved = float("-inf")
        for name in batch.removed:
            self._spans.pop(name, None)
        added = []
        for task in batch.added:
            start = max(task.start_ts, self._reported.get(task.id, 0))
            self._spans[task.id] = _Progress(task, start)
            added.append(SpanTask(task.id, task.span, task.physical_id, start))
        return tuple(added), batch.removed

    def resolved_done(self, ts: int) -> None:
        """Resolved `ts` is durable downstream."""
        self._busy = False
        self.resolved_sent = max(self.resolved_sent, ts)

    def load_done(self) -> None:
        """The initial load is durable downstream, and that it is, is stored: the stream may go on."""
        self.barrier.held_at = 0

    def persisted(self, ts: int) -> None:
        """The checkpoint `ts` is durable in the metadata store."""
        self._persisting = False
        self.persisted_ts = max(self.persisted_ts, ts)

    def persist_failed(self) -> None:
        """The write of the checkpoint did not happen; it is tried again."""
        self._persisting = False
