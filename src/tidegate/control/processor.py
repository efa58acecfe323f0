"""What one capture does for one feed: which spans it must deliver how far, and what of it it has done.

    Announce, Dispatch ----------+
    DDL batches -----------------+--> Processor --tick--> Sync | DispatchResponse | Checkpoint
    what the pipeline reports ---+                 bound, spans: what the pipeline may do
    frontier, idle spans --------+

The owner speaks of key ranges; which tables these hold, and since when the feed wants them, the processor
knows by itself, from the same history of DDL.

Promises, whatever the order of events:
 - what is reported of a range is durable for every table that the feed wants of it at any ts up to there;
   so it never lies above the bound in force: beyond that other tables may be wanted;
 - a table that a DDL at F adds is delivered from F on, once the bound lies above F;
 - reports of the pipeline under another token or incarnation change nothing;
 - what an earlier owner says, or said late, changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.ddl_log import NOTHING, DdlLog, KnownDdl
from tidegate.control.messages import (
    Announce,
    Checkpoint,
    Dispatch,
    DispatchResponse,
    FromOwner,
    FromProcessor,
    Header,
    ProcessorStatus,
    RangeProgress,
    RangeState,
    RangeStatus,
    Sync,
    Wish,
)
from tidegate.control.metadata import GrantedRange
from tidegate.model.reports import Failed
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX
from tidegate.tidb.keys import stripe_ids

SYNC_S: Final = 5.0
"""How often everything is said again, were a message lost."""


class Goal(NamedTuple):
    """What of a Dispatch makes something new to do; bound and checkpoint do not."""

    wish: Wish
    instance: str
    incarnation: int
    ranges: tuple[GrantedRange, ...]

    @classmethod
    def of(cls, dispatch: Dispatch) -> Goal:
        """Of two with the same goal the later asks for nothing that the earlier did not."""
        return cls(dispatch.wish, dispatch.header.instance, dispatch.incarnation, tuple(dispatch.ranges))


class Sender(StrEnum):
    """Who speaks, by owner revision."""

    EARLIER = "an earlier owner than the last one"
    SAME = "the owner that spoke last"
    LATER = "a later owner"


class Word(StrEnum):
    """What an owner says."""

    ANNOUNCE = "Announce"
    NEW = "Dispatch"
    OLD = "Dispatch that is not above the last one's sequence"
    MISDIRECTED = "Dispatch to another epoch of this capture"


class Verdict(StrEnum):
    """What a processor does with it."""

    DROP = "drop it"
    SYNC = "send Sync"
    MEET = "note the owner, send Sync"
    REFUSE = "note the owner, send Sync, do nothing else"
    TAKE = "note the owner, take it"


RECEIVED: Final = MappingProxyType(
    {
        (Sender.EARLIER, Word.ANNOUNCE): Verdict.DROP,
        (Sender.EARLIER, Word.NEW): Verdict.DROP,
        (Sender.EARLIER, Word.OLD): Verdict.DROP,
        (Sender.EARLIER, Word.MISDIRECTED): Verdict.DROP,
        (Sender.SAME, Word.ANNOUNCE): Verdict.SYNC,
        (Sender.SAME, Word.NEW): Verdict.TAKE,
        (Sender.SAME, Word.OLD): Verdict.DROP,
        (Sender.SAME, Word.MISDIRECTED): Verdict.DROP,
        (Sender.LATER, Word.ANNOUNCE): Verdict.MEET,
        (Sender.LATER, Word.NEW): Verdict.TAKE,
        (Sender.LATER, Word.MISDIRECTED): Verdict.REFUSE,
    }
)
"""Sequences count from owner to owner, so a later owner's is never old.

A Dispatch to another epoch was meant for the process that ran here before. That one may have left a worker
behind, which would prove itself by the same grant: so nothing of it begins here. From a later owner it is
answered with Sync, whose epoch tells the owner that another process runs here now.
"""
USED: Final = frozenset({Verdict.SYNC, Verdict.MEET, Verdict.TAKE})
"""The verdicts for which `receive` is true."""


@dataclass(slots=True)
class _Progress:
    task: SpanTask
    checkpoint: int


class Processor:
    """One feed on one capture, from its first Announce on. Not thread-safe, no I/O."""

    def __init__(self, header: Header, version: str = "", cores: int = 1) -> None:
        """`header`: of what it will send; owner and sequence are filled in."""
        self._header, self._version, self._cores = header, version, cores
        self._last_sequence = (0, 0)
        """Owner revision and sequence of the last Dispatch that counted."""
        self._instance = header.instance
        self.dispatch: Dispatch | None = None
        """What the owner wants; None: no owner has said anything yet."""
        self.status = ProcessorStatus()
        """What the next Checkpoint says for people."""
        self.needs = MAX
        """What the next Sync says of upstream's history (`Sync.needs`)."""
        self.ready = True
        """And of its application."""
        self.received = 0
        """And of the ranges that may come."""
        self.coming: Sequence[Span] = ()
        """And which these are."""
        self._latest = 0
        """The greatest sequence of this owner's messages, those that did not count included."""
        self.loads: Mapping[str, int] = {}
        """And of the load of its spans."""
        self._spans: dict[str, _Progress] | None = None
        self._open_for: tuple[str, int, tuple[GrantedRange, ...]] | None = None
        """Instance, incarnation and ranges of the Dispatch for which that holds."""
        self._reported: dict[str, int] = {}
        """What this incarnation said about spans, also about those that a DDL yet to come will add."""
        self._waiting: deque[DdlBatch] = deque()
        self._known = 0
        """Every DDL finished at or before it is known."""
        self._log = DdlLog(0)
        self._running = 0
        """The incarnation that delivers; 0: none."""
        self._resolved = 0
        self._sent: dict[Span, RangeProgress] = {}
        self._status_sent = ProcessorStatus()
        self._over: list[str] = []
        self._outlived: dict[str, int] = {}
        """Records that can go once the stored checkpoint has reached a ts."""
        self._response: DispatchResponse | None = None
        """What is still to be said."""
        self._answered: DispatchResponse | None = None
        """What was said last, of the Dispatch that holds."""
        self._sync_at = float("-inf")

    # --- what the owner says --------------------------------------------------------------------------

    def receive(self, message: FromOwner) -> bool:
        """False, and no effect, when it is not for us, or a later owner or Dispatch has come before."""
        header = message.header
        mine = self._header
        if (header.cluster, header.changefeed, header.capture) != (
            mine.cluster,
            mine.changefeed,
            mine.capture,
        ):
            return False
        sender = self._sender(header)
        verdict = RECEIVED[sender, self._word(message)]
        if sender is not Sender.EARLIER:
            is_new = sender is Sender.LATER
            self._latest = header.sequence if is_new else max(self._latest, header.sequence)
        if verdict is Verdict.DROP:
            return False
        if verdict in (Verdict.MEET, Verdict.REFUSE):
            self._last_sequence = (header.owner_rev, 0)
        if verdict is Verdict.TAKE:
            assert isinstance(message, Dispatch)
            self._last_sequence = (header.owner_rev, header.sequence)
            self._take_up(message)
        else:
            self._sync_at = float("-inf")
        self._instance = header.instance
        return verdict in USED

    def _sender(self, header: Header) -> Sender:
        if header.owner_rev == self._last_sequence[0]:
            return Sender.SAME
        return Sender.EARLIER if header.owner_rev < self._last_sequence[0] else Sender.LATER

    def _word(self, message: FromOwner) -> Word:
        header = message.header
        if isinstance(message, Announce):
            return Word.ANNOUNCE
        if header.owner_rev == self._last_sequence[0] and header.sequence <= self._last_sequence[1]:
            return Word.OLD
        return Word.NEW if header.capture_epoch == self._header.capture_epoch else Word.MISDIRECTED

    def _take_up(self, dispatch: Dispatch) -> None:
        """It holds from now on. What was answered to one with the same goal is answered again."""
        before, self.dispatch = self.dispatch, dispatch
        if before is None or Goal.of(before) != Goal.of(dispatch):
            self._reported.clear()
            self._sent.clear()
            self._answered = None
        elif self._answered is not None and (
            self._answered.error is not None or dispatch.wish is not Wish.RUN
        ):
            # It may have been lost; that a range runs, each Sync says.
            self._response = replace(self._answered, answers=dispatch.header.sequence)

    # --- what is wanted -------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the spans there are at the checkpoint are known."""
        return self._spans is not None

    @property
    def instance(self) -> str:
        """Of the feed, by what its owner has said last."""
        return self._instance

    @property
    def sequence(self) -> int:
        """Of the last message sent."""
        return self._header.sequence

    @property
    def is_running(self) -> bool:
        """Whether an incarnation delivers."""
        return self._running > 0

    def sync_soon(self) -> None:
        """Say everything at the next tick."""
        self._sync_at = float("-inf")

    def raise_to(self, checkpoint: int) -> None:
        """All that is wanted is durable up to the stored checkpoint, whoever has delivered it."""
        for progress in (self._spans or {}).values():
            progress.checkpoint = max(checkpoint, progress.checkpoint)

    def confirm(self) -> None:
        """What is open is what the Dispatch that holds now needs: what is known of it may be told."""
        assert self.dispatch is not None
        self._open_for = self._wanted_of(self.dispatch)

    @staticmethod
    def _wanted_of(dispatch: Dispatch) -> tuple[str, int, tuple[GrantedRange, ...]]:
        return dispatch.header.instance, dispatch.incarnation, tuple(dispatch.ranges)

    @property
    def _is_confirmed(self) -> bool:
        dispatch = self.dispatch
        return self.is_open and dispatch is not None and self._open_for == self._wanted_of(dispatch)

    def open(
        self, checkpoint: int, initial: Iterable[SpanTask], batches: Iterable[DdlBatch], known: int
    ) -> None:
        """The spans that are wanted at a checkpoint, and the DDL above it as far as it is known."""
        self._spans = {
            task.id: _Progress(task, max(checkpoint, task.start_ts)) for task in initial if self.holds(task)
        }
        self._waiting.clear()
        self._known = self._resolved = 0
        self._reported.clear()
        self._sent.clear()
        self._log = DdlLog(checkpoint)
        self.learn(batches, known)
        self.confirm()

    def close(self) -> None:
        """Nothing is held any more."""
        self._spans = self._open_for = None
        self._running = 0
        self._outlived.clear()
        self._waiting.clear()
        self._known = self._resolved = 0

    def holds(self, task: SpanTask) -> bool:
        """Whether a span lies in what was granted."""
        return any(one.id.intersect(task.span) is not None for one in self._ranges)

    def learn(self, batches: Iterable[DdlBatch], known: int) -> None:
        """DDL in order; all of it up to `known` is known now."""
        found = list(batches)
        self._waiting.extend(found)
        self._log.learn(found, known)
        self._known = max(self._known, known)

    @property
    def waiting(self) -> int:
        """How many DDL batches wait."""
        return len(self._waiting)

    @property
    def known(self) -> int:
        """Every DDL finished at or before it is known."""
        return self._known

    @property
    def bound(self) -> int:
        """How far spans may be delivered."""
        return min(self.dispatch.bound, self._known) if self.dispatch is not None else 0

    @property
    def reach(self) -> int:
        """How far spans may be delivered by who is told of `spans`: not beyond a DDL that is to be `passed`,
        since other tables may be wanted of them from there on.
        """
        return min(self.bound, self._waiting[0].finished_ts) if self._waiting else self.bound

    def passed(self) -> list[DdlBatch]:
        """The DDL that the bound has left behind since the last call: spans have come and gone."""
        found = []
        while self._spans is not None and self._waiting and self._waiting[0].finished_ts < self.bound:
            batch = self._waiting.popleft()
            for name in batch.removed:
                self._spans.pop(name, None)
            for task in filter(self.holds, batch.added):
                held = self._spans.get(task.id)
                if held is not None:  # a stripe: other tables of it are wanted from now on
                    held.task = task
                    continue
                start = max(task.start_ts, self._reported.get(task.id, 0))
                self._spans[task.id] = _Progress(task, start)
            found.append(batch)
        return found

    def start_of(self, span: str) -> int | None:
        """From where a span is wanted by a DDL that is still waiting; None: by none."""
        return next((t.start_ts for batch in self._waiting for t in batch.added if t.id == span), None)

    @property
    def span_ids(self) -> Set[str]:
        """The names of those; a view."""
        return (self._spans or {}).keys()

    @property
    def spans(self) -> dict[str, SpanTask]:
        """The spans that are to be delivered now, each with the ts it is durable to as `start_ts`."""
        return {
            name: SpanTask(name, p.task.span, p.task.physical_id, p.checkpoint, p.task.wanted)
            for name, p in (self._spans or {}).items()
        }

    # --- what is done ---------------------------------------------------------------------------------

    def started(
        self, incarnation: int, spans: Mapping[str, int], outlived: Mapping[str, int] | None = None
    ) -> bool:
        """The pipeline has fenced those before it, and begins where the sink's own progress says.

        `outlived`: records of earlier rules or spans, each with the ts up to which it matters.
        """
        if not self._is_current(incarnation):
            return False
        self._outlived = dict(outlived or {})
        assert self.dispatch is not None
        self._take(spans)
        self._running = incarnation
        self._answer()
        return True

    def report(self, token: tuple[int, int], incarnation: int, spans: Mapping[str, int]) -> bool:
        """Spans are durable downstream up to a ts. False, and no effect, under an old grant."""
        if not self._is_current(incarnation) or not any(one.token == token for one in self._ranges):
            return False
        self._take(spans)
        return True

    def _is_current(self, incarnation: int) -> bool:
        dispatch = self.dispatch
        return dispatch is not None and dispatch.wish is Wish.RUN and dispatch.incarnation == incarnation

    def _take(self, spans: Mapping[str, int]) -> None:
        for name, ts in spans.items():
            self._reported[name] = max(ts, self._reported.get(name, 0))
            if self._spans is not None and name in self._spans:
                self._spans[name].checkpoint = max(ts, self._spans[name].checkpoint)

    def idle_ranges(self, frontier: Mapping[str, int]) -> list[tuple[str, int, int]]:
        """(span, after, upto) of spans that need no pipeline to advance, if no row lies in the range."""
        found = []
        bound = self.bound
        for name, progress in (self._spans or {}).items():
            upto = min(frontier.get(name, 0), bound)
            if upto > progress.checkpoint:
                found.append((name, progress.checkpoint, upto))
        return found

    def idle(self, name: str, after: int, upto: int) -> None:
        """No row of the span lies in (after, upto]."""
        progress = (self._spans or {}).get(name)
        if progress is not None and after <= progress.checkpoint:
            progress.checkpoint = max(upto, progress.checkpoint)

    def resolve(self, frontier: Mapping[str, int], lacking: Container[str] = ()) -> None:
        """What has been received. `lacking`: spans that do not begin early enough yet."""
        if self._spans is not None:
            reached = (
                one.checkpoint if name in lacking else frontier.get(name, 0)
                for name, one in self._spans.items()
            )
            found = min(reached, default=self._known)
            self._resolved = max(self._resolved, min(found, self._known))

    def wanted(self, span: str) -> tuple[Span, int]:
        """A span, and which of its tables are wanted (`SpanTask.wanted`)."""
        assert self._spans is not None
        task = self._spans[span].task
        return task.span, task.wanted

    @property
    def stripes(self) -> dict[str, tuple[int, int]]:
        """Of each span of several tables its first id, and which are wanted (`SpanTask.wanted`)."""
        tasks = (one.task for one in (self._spans or {}).values() if one.task.wanted)
        return {task.id: (stripe_ids(task.span).start, task.wanted) for task in tasks}

    def durable(self, span: str) -> int:
        """How far a span is durable."""
        assert self._spans is not None
        return self._spans[span].checkpoint

    def slowest(self) -> SpanTask | None:
        """The span that holds the checkpoint back, if there is any span."""
        if not self._spans:
            return None
        return min(self._spans.values(), key=lambda p: p.checkpoint).task

    def checkpoint_of(self, granted: Span) -> int:
        """Up to where all that is wanted of a range is durable; never above the bound, nor above a DDL whose
        spans are not among ours yet (`passed`).
        """
        bound = self.reach
        held = (p for p in (self._spans or {}).values() if granted.intersect(p.task.span) is not None)
        return min(bound, min((p.checkpoint for p in held), default=bound))

    def over(self, records: Iterable[str]) -> None:
        """Records of progress that nobody needs any more: the owner deletes them."""
        self._over += records

    def given_up(self) -> None:
        """Nothing of the feed is delivered here any more, whatever was dispatched before."""
        self._running = 0
        self._answer()

    def failed(self, error: Failed) -> None:
        """The dispatched incarnation is over."""
        self._running = 0
        self._answer(error)

    # --- what the owner is told -----------------------------------------------------------------------

    def tick(self, now: float) -> list[FromProcessor]:
        """What is to be sent now; `now` in monotonic seconds."""
        if not self._last_sequence[0]:
            return []
        found: list[FromProcessor] = []
        if now - self._sync_at >= SYNC_S:
            self._sync_at = now
            found.append(self._sync())
        if self._response is not None:
            found.append(self._response)
            self._response = None
        if self._ranges:
            self._end_outlived()
            found += self._progress()
        return [replace(message, header=self._next()) for message in found]

    def _end_outlived(self) -> None:
        """The checkpoint in the Dispatch is the stored one: no later incarnation begins below it.

        While another incarnation is about to begin nothing is ended: it may write these very records.
        """
        if self.dispatch is None or self._running != self.dispatch.incarnation:
            return
        stored = self.dispatch.checkpoint
        gone = [key for key, ts in self._outlived.items() if ts <= stored]
        for key in gone:
            del self._outlived[key]
        self.over(gone)

    def _progress(self) -> list[FromProcessor]:
        assert self.dispatch is not None
        moved = [one for one in self._checkpoints() if self._sent.get(one.id) != one]
        if not moved and not self._over and self.status == self._status_sent:
            return []
        self._sent |= {one.id: one for one in moved}
        over, self._over, self._status_sent = tuple(self._over), [], self.status
        return [Checkpoint(self._header, self.dispatch.incarnation, moved, self.status, over, self._ddl)]

    def _checkpoints(self) -> list[RangeProgress]:
        if not self._is_confirmed:
            return []
        return [
            RangeProgress(one.id, one.token, self.checkpoint_of(one.id), self._resolved)
            for one in self._ranges
        ]

    @property
    def _ddl(self) -> KnownDdl:
        """Above the stored checkpoint: nobody goes back below it."""
        if not self._is_confirmed or self.dispatch is None:
            return NOTHING
        self._log.forget(self.dispatch.checkpoint)
        return self._log.said

    def _answer(self, error: Failed | None = None) -> None:
        assert self.dispatch is not None
        incarnation, number = self.dispatch.incarnation, self.dispatch.header.sequence
        self._response = DispatchResponse(self._header, number, incarnation, self._states(), error)
        self._answered = self._response

    def _sync(self) -> Sync:
        incarnation = self.dispatch.incarnation if self.dispatch is not None else 0
        states, known = self._states(), self._checkpoints()
        return Sync(
            self._header,
            self._version,
            self._cores,
            incarnation,
            states,
            known,
            self._ddl,
            self.needs,
            self.ready,
            self.received,
            self.coming,
            self._latest,
            self.loads,
        )

    def _states(self) -> list[RangeStatus]:
        if not self.is_open or self.dispatch is None:
            return []
        runs = 0 < self._running == self.dispatch.incarnation
        state = RangeState.RUNNING if runs else RangeState.PREPARING
        return [RangeStatus(one.id, one.token, state) for one in self._ranges]

    @property
    def _ranges(self) -> Sequence[GrantedRange]:
        return self.dispatch.ranges if self.dispatch is not None else ()

    def _next(self) -> Header:
        number, owner_rev = self._header.sequence + 1, self._last_sequence[0]
        self._header = replace(self._header, sequence=number, owner_rev=owner_rev, instance=self._instance)
        return self._header
