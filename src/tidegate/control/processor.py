"""One feed on one capture: which spans it must deliver up to which ts, and how far it has delivered them.

    Announce, Dispatch ----------+
    DDL batches -----------------+--> Processor --tick--> Sync | DispatchResponse | Checkpoint
    reports of the pipeline -----+                 bound, spans: what the pipeline may do
    frontier, idle spans --------+

The owner grants key ranges. The processor knows which tables they have, and from which ts the feed wants
each, because it follows the same history of DDL. `received` says which messages of owners count.

Promises, whatever the order of events:
 - a reported checkpoint of a range is durable for every table that the feed wants of it at any ts up to
   there; so it is never above the bound in force, because other tables may be wanted beyond;
 - a table that a DDL at F adds is delivered from F on, once the bound is above F;
 - reports of the pipeline under another token or incarnation change nothing;
 - a message of an earlier owner, or a late one, changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
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
from tidegate.control.received import RECEIVED, USED, Sender, Verdict, Word
from tidegate.model.reports import Failed
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX
from tidegate.tidb.keys import stripe_ids

SYNC_S: Final = 5.0
"""Seconds between two Sync, which repeat everything, because a message may be lost."""


class Goal(NamedTuple):
    """The parts of a Dispatch that start something new if they change; bound and checkpoint do not."""

    wish: Wish
    instance: str
    incarnation: int
    ranges: tuple[GrantedRange, ...]

    @classmethod
    def of(cls, dispatch: Dispatch) -> Goal:
        """The goal of a Dispatch."""
        return cls(dispatch.wish, dispatch.header.instance, dispatch.incarnation, tuple(dispatch.ranges))


@dataclass(slots=True)
class _Progress:
    task: SpanTask
    checkpoint: int


class Processor:
    """One feed on one capture, from the first Announce on. Not thread-safe, no I/O."""

    def __init__(self, header: Header, version: str = "", cores: int = 1) -> None:
        """`header`: for the messages it will send; owner and sequence are filled in."""
        self._header, self._version, self._cores = header, version, cores
        self._last_sequence = (0, 0)
        """The owner revision and sequence of the last Dispatch that counted."""
        self._instance = header.instance
        self.dispatch: Dispatch | None = None
        """What the owner wants; None: no Dispatch has come yet."""
        self.status = ProcessorStatus()
        """The status for people in the next Checkpoint."""
        self.needs = MAX
        """The history of upstream that is needed, for the next Sync (`Sync.needs`)."""
        self.ready = True
        """Whether the application is ready, for the next Sync."""
        self.received = 0
        """How far rows of the ranges that may come were received, for the next Sync."""
        self.coming: Sequence[Span] = ()
        """The ranges that may come, for the next Sync."""
        self._latest = 0
        """The greatest sequence of this owner's messages, including those that did not count."""
        self.loads: Mapping[str, int] = {}
        """The load of its spans, for the next Sync."""
        self._spans: dict[str, _Progress] | None = None
        self._open_for: tuple[str, int, tuple[GrantedRange, ...]] | None = None
        """Instance, incarnation and ranges of the Dispatch for which the spans were opened."""
        self._reported: dict[str, int] = {}
        """The reports of this incarnation, also about spans that a DDL will add later."""
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
        """Records of progress that can be deleted once the stored checkpoint has reached a ts."""
        self._response: DispatchResponse | None = None
        """The response to send at the next tick."""
        self._answered: DispatchResponse | None = None
        """The last response to the present Dispatch."""
        self._sync_at = float("-inf")

    # --- messages of the owner ------------------------------------------------------------------------

    def receive(self, message: FromOwner) -> bool:
        """Take a message. False if it is not for us, is older than what has come before, or was meant for an
        earlier process of this capture. Only the last has an effect: its owner is noted and gets a Sync.
        """
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
        """Follow a Dispatch from now on. If the last one had the same goal, repeat its response."""
        before, self.dispatch = self.dispatch, dispatch
        if before is None or Goal.of(before) != Goal.of(dispatch):
            self._reported.clear()
            self._sent.clear()
            self._answered = None
        elif self._answered is not None and (
            self._answered.error is not None or dispatch.wish is not Wish.RUN
        ):
            # The response may have been lost. (Each Sync says whether a range runs.)
            self._response = replace(self._answered, answers=dispatch.header.sequence)

    # --- what is wanted -------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the spans at the checkpoint are known."""
        return self._spans is not None

    @property
    def instance(self) -> str:
        """The instance of the feed in the last message of its owner."""
        return self._instance

    @property
    def sequence(self) -> int:
        """The sequence of the last message sent."""
        return self._header.sequence

    @property
    def is_running(self) -> bool:
        """Whether an incarnation delivers now."""
        return self._running > 0

    def sync_soon(self) -> None:
        """Send a Sync at the next tick."""
        self._sync_at = float("-inf")

    def raise_to(self, checkpoint: int) -> None:
        """Raise all spans to the stored checkpoint: they are durable up to it, by whichever capture."""
        for progress in (self._spans or {}).values():
            progress.checkpoint = max(checkpoint, progress.checkpoint)

    def confirm(self) -> None:
        """The open spans belong to the present Dispatch: from now on they may be reported under it."""
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
        """Begin with the spans that are wanted at a checkpoint, and with the known DDL above it."""
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
        """Forget all spans and DDL."""
        self._spans = self._open_for = None
        self._running = 0
        self._outlived.clear()
        self._waiting.clear()
        self._known = self._resolved = 0

    def holds(self, task: SpanTask) -> bool:
        """Whether a span is in a granted range."""
        return any(one.id.intersect(task.span) is not None for one in self._ranges)

    def learn(self, batches: Iterable[DdlBatch], known: int) -> None:
        """Learn DDL, in order; all DDL up to `known` is known afterwards."""
        found = list(batches)
        self._waiting.extend(found)
        self._log.learn(found, known)
        self._known = max(self._known, known)

    @property
    def waiting(self) -> int:
        """The number of DDL batches that wait."""
        return len(self._waiting)

    @property
    def known(self) -> int:
        """Every DDL finished at or before it is known."""
        return self._known

    @property
    def bound(self) -> int:
        """The ts up to which spans may be delivered."""
        return min(self.dispatch.bound, self._known) if self.dispatch is not None else 0

    @property
    def reach(self) -> int:
        """The ts up to which the present `spans` may be delivered: not beyond a DDL that is not `passed` yet,
        because other tables of them may be wanted from there on.
        """
        return min(self.bound, self._waiting[0].finished_ts) if self._waiting else self.bound

    def passed(self) -> list[DdlBatch]:
        """Add and remove spans for each DDL that the bound has passed since the last call; returns these."""
        found = []
        while self._spans is not None and self._waiting and self._waiting[0].finished_ts < self.bound:
            batch = self._waiting.popleft()
            for name in batch.removed:
                self._spans.pop(name, None)
            for task in filter(self.holds, batch.added):
                held = self._spans.get(task.id)
                if held is not None:  # a stripe, of which other tables are wanted from now on
                    held.task = task
                    continue
                start = max(task.start_ts, self._reported.get(task.id, 0))
                self._spans[task.id] = _Progress(task, start)
            found.append(batch)
        return found

    def start_of(self, span: str) -> int | None:
        """The ts from which a waiting DDL wants a span; None: no waiting DDL does."""
        return next((t.start_ts for batch in self._waiting for t in batch.added if t.id == span), None)

    @property
    def span_ids(self) -> Set[str]:
        """The ids of `spans`, as a view."""
        return (self._spans or {}).keys()

    @property
    def spans(self) -> dict[str, SpanTask]:
        """The spans to deliver now; the `start_ts` of each is the ts up to which it is durable."""
        return {
            name: SpanTask(name, p.task.span, p.task.physical_id, p.checkpoint, p.task.wanted)
            for name, p in (self._spans or {}).items()
        }

    # --- what is done ---------------------------------------------------------------------------------

    def started(
        self, incarnation: int, spans: Mapping[str, int], outlived: Mapping[str, int] | None = None
    ) -> bool:
        """The pipeline has fenced earlier ones, and begins at the progress that the sink has stored.

        `outlived`: records of progress of earlier rules or spans, each with the ts up to which it is needed.
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
        """Spans are durable downstream up to a ts. False, without effect, under an old grant."""
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
        """(span, after, upto) of spans that advance without the pipeline if no row is in (after, upto]."""
        found = []
        bound = self.bound
        for name, progress in (self._spans or {}).items():
            upto = min(frontier.get(name, 0), bound)
            if upto > progress.checkpoint:
                found.append((name, progress.checkpoint, upto))
        return found

    def idle(self, name: str, after: int, upto: int) -> None:
        """Advance a span that has no row in (after, upto]."""
        progress = (self._spans or {}).get(name)
        if progress is not None and after <= progress.checkpoint:
            progress.checkpoint = max(upto, progress.checkpoint)

    def resolve(self, frontier: Mapping[str, int], lacking: Container[str] = ()) -> None:
        """Raise the resolved ts to what was received. `lacking`: spans whose rows do not begin early enough
        yet.
        """
        if self._spans is not None:
            reached = (
                one.checkpoint if name in lacking else frontier.get(name, 0)
                for name, one in self._spans.items()
            )
            found = min(reached, default=self._known)
            self._resolved = max(self._resolved, min(found, self._known))

    def wanted(self, span: str) -> tuple[Span, int]:
        """A span, and which of its tables are wanted (as in `SpanTask.wanted`)."""
        assert self._spans is not None
        task = self._spans[span].task
        return task.span, task.wanted

    @property
    def stripes(self) -> dict[str, tuple[int, int]]:
        """For each span of several tables its first id, and which tables are wanted (`SpanTask.wanted`)."""
        tasks = (one.task for one in (self._spans or {}).values() if one.task.wanted)
        return {task.id: (stripe_ids(task.span).start, task.wanted) for task in tasks}

    def durable(self, span: str) -> int:
        """The ts up to which a span is durable."""
        assert self._spans is not None
        return self._spans[span].checkpoint

    def slowest(self) -> SpanTask | None:
        """The span with the least checkpoint; None: there are no spans."""
        if not self._spans:
            return None
        return min(self._spans.values(), key=lambda p: p.checkpoint).task

    def checkpoint_of(self, granted: Span) -> int:
        """The ts up to which all wanted tables of a range are durable; never above the bound, nor above a DDL
        whose spans we do not have yet (`passed`).
        """
        bound = self.reach
        held = (p for p in (self._spans or {}).values() if granted.intersect(p.task.span) is not None)
        return min(bound, min((p.checkpoint for p in held), default=bound))

    def over(self, records: Iterable[str]) -> None:
        """Report records of progress that are no longer needed: the owner deletes them."""
        self._over += records

    def given_up(self) -> None:
        """Nothing of the feed is delivered here any more, whatever was dispatched; report that."""
        self._running = 0
        self._answer()

    def failed(self, error: Failed) -> None:
        """The dispatched incarnation has failed; report why."""
        self._running = 0
        self._answer(error)

    # --- messages to the owner ------------------------------------------------------------------------

    def tick(self, now: float) -> list[FromProcessor]:
        """The messages to send now; `now` in monotonic seconds."""
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
        """Report records of progress below the stored checkpoint, which is in the Dispatch, as no longer
        needed.

        No later incarnation begins below that checkpoint. While another incarnation is about to begin,
        nothing is reported: it may write the same records.
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
        """The known DDL above the stored checkpoint, below which no incarnation begins."""
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
