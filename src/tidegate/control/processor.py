"""One feed on one capture: which spans it must deliver up to which ts, and how far it has delivered them.

    Announce, Dispatch ----------+
    DDL batches -----------------+--> Processor --tick--> Sync | DispatchResponse | Checkpoint
    reports of the pipeline -----+                 bound, spans: what the pipeline may do
    frontier, idle spans --------+

The owner grants key ranges. The processor knows which tables they have, and from which ts the feed wants
each, because it follows the same history of DDL. It is composed of the messages of owners that count
(`received`), the messages to the owner (`outbox`), the DDL that is known (`coming_ddl`), the progress of the
open spans (`open_spans`), and the records that are over (`ended_records`). Others read `ddl` and `spans`, and
only this machine changes them.

Promises, whatever the order of events:
 - a reported checkpoint of a range is durable for every table that the feed wants of it at any ts up to
   there; so it is never above the bound in force, because other tables may be wanted beyond;
 - a table that a DDL at F adds is delivered from F on, once the bound is above F;
 - reports of the pipeline under another token or incarnation change nothing;
 - a message of an earlier owner, or a late one, changes nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, assert_never

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.coming_ddl import ComingDdl
from tidegate.control.ddl_log import NOTHING, KnownDdl
from tidegate.control.ended_records import EndedRecords
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import (
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
from tidegate.control.open_spans import OpenSpans, Received
from tidegate.control.outbox import Outbox
from tidegate.control.received import USED, Inbox, Verdict
from tidegate.model.reports import Failed
from tidegate.model.span import Span
from tidegate.model.spans_in_order import SpansInOrder
from tidegate.model.timestamp import MAX


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


class Processor:
    """One feed on one capture, from the first Announce on. Not thread-safe, no I/O."""

    def __init__(self, header: Header, version: str = "", cores: int = 1) -> None:
        """`header`: for the messages it will send; owner and sequence are filled in."""
        self._version, self._cores = version, cores
        self._inbox, self.outbox = Inbox(header), Outbox(header)
        self.instance = header.instance
        """The instance of the feed in the last message of its owner."""
        self.dispatch: Dispatch | None = None
        """The owner's latest Dispatch; None: none has come yet."""
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
        self.loads: Mapping[str, int] = {}
        """The load of its spans, for the next Sync."""
        self.spans = OpenSpans()
        """The spans to deliver now."""
        self.ddl = ComingDdl()
        self._open_for: tuple[str, int, tuple[GrantedRange, ...]] | None = None
        """Instance, incarnation and ranges of the Dispatch for which the spans were opened."""
        self._running = 0
        """The incarnation that delivers; 0: none."""
        self._records = EndedRecords()

    # --- messages of the owner ------------------------------------------------------------------------

    def receive(self, message: FromOwner) -> bool:
        """Take a message. False if it is not for us, is older than what has come before, or was meant for an
        earlier process of this capture. Only the last has an effect: its owner is noted and gets a Sync.
        """
        verdict = self._inbox.judge(message)
        match verdict:
            case Verdict.DROP:
                return False
            case Verdict.TAKE:
                assert isinstance(message, Dispatch)
                self._take_up(message)
            case Verdict.SYNC | Verdict.MEET | Verdict.REFUSE:
                self.outbox.sync_soon()
            case _:
                assert_never(verdict)
        self.instance = message.header.instance
        return verdict in USED

    def _take_up(self, dispatch: Dispatch) -> None:
        """Follow a Dispatch from now on. If the last one had the same goal, repeat its response."""
        before, self.dispatch = self.dispatch, dispatch
        if before is None or Goal.of(before) != Goal.of(dispatch):
            # Reports of the last goal say nothing about the ranges of the new one, which the sink's own
            # records give.
            self.spans.forget_reports()
            self.outbox.begin_goal()
        else:
            self.outbox.answer_again(dispatch)

    # --- what is wanted -------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """The sequence of the last message sent."""
        return self.outbox.header.sequence

    @property
    def is_running(self) -> bool:
        """Whether an incarnation delivers now."""
        return self._running > 0

    def sync_soon(self) -> None:
        """Send a Sync at the next tick."""
        self.outbox.sync_soon()

    def raise_to(self, checkpoint: int) -> None:
        """Raise all spans to the stored checkpoint: they are durable up to it, by whichever capture."""
        self.spans.raise_to(checkpoint)

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
        return self.spans.is_open and dispatch is not None and self._open_for == self._wanted_of(dispatch)

    def open(
        self, checkpoint: int, initial: Iterable[SpanTask], batches: Iterable[DdlBatch], known: int
    ) -> None:
        """Begin with the spans that are wanted at a checkpoint, and with the known DDL above it.

        `initial`: those outside its ranges, too. The owner compares them with its own (`ddl_log`).
        """
        wanted = tuple(initial)
        held = SpansInOrder(one.id for one in self._ranges)
        self.spans.open(checkpoint, (task for task in wanted if held.met_by(task.span)))
        self.ddl.open(checkpoint, wanted)
        self.outbox.forget_ranges()
        self.learn(batches, known)
        # Last. From here on checkpoints are reported under this Dispatch, and must respect the DDL just
        # learned.
        self.confirm()

    def close(self) -> None:
        """Forget all spans and DDL."""
        self.spans.close()
        self._open_for = None
        self._running = 0
        self._records.forget()
        self.ddl.close()

    def holds(self, task: SpanTask) -> bool:
        """Whether a span is in a granted range."""
        return any(one.id.intersect(task.span) is not None for one in self._ranges)

    def learn(self, batches: Iterable[DdlBatch], known: int) -> None:
        """Learn DDL, in order; all DDL up to `known` is known afterwards."""
        self.ddl.learn(batches, known)

    @property
    def bound(self) -> int:
        """The ts up to which spans may be delivered."""
        return min(self.dispatch.bound, self.ddl.known) if self.dispatch is not None else 0

    @property
    def reach(self) -> int:
        """The ts up to which the present `spans` may be delivered: not beyond a DDL that is not `passed` yet,
        because other tables of them may be wanted from there on.
        """
        return min(self.bound, self.ddl.next_ts)

    def passed(self) -> list[DdlBatch]:
        """Add and remove spans for each DDL that the bound has passed since the last call; returns these."""
        found = []
        # Below the bound, not at it: while a DDL is not durable, the owner's bound is at that DDL.
        while self.spans.is_open and self.ddl.next_ts < self.bound:
            found.append(self.ddl.take())
        self.spans.change((batch.removed, filter(self.holds, batch.added)) for batch in found)
        return found

    # --- what is done ---------------------------------------------------------------------------------

    def started(
        self, incarnation: int, spans: Mapping[str, int], outlived: Mapping[str, int] | None = None
    ) -> bool:
        """The pipeline has fenced earlier ones, and begins at the progress that the sink has stored.

        `outlived`: records of progress of earlier rules or spans, each with the ts up to which it is needed.
        """
        if not self._is_current(incarnation):
            return False
        self._records.begin(outlived or {})
        assert self.dispatch is not None
        self.spans.take(spans)
        # Before the answer, whose states say whether the ranges run.
        self._running = incarnation
        self._answer()
        return True

    def report(self, token: tuple[int, int], incarnation: int, spans: Mapping[str, int]) -> bool:
        """Spans are durable downstream up to a ts. False, without effect, under an old grant."""
        if not self._is_current(incarnation) or not any(one.token == token for one in self._ranges):
            return False
        self.spans.take(spans)
        return True

    def _is_current(self, incarnation: int) -> bool:
        dispatch = self.dispatch
        return dispatch is not None and dispatch.wish is Wish.RUN and dispatch.incarnation == incarnation

    def idle(self, spans: Received) -> None:
        """Advance spans that have no row in (after, upto]."""
        self.spans.idle(spans)

    def resolve(self, frontier: Mapping[str, int], lacking: Container[str] = ()) -> None:
        """Raise the resolved ts to what was received. `lacking`: spans whose rows do not begin early enough
        yet.
        """
        if self.spans.is_open:
            self.spans.resolve(frontier, lacking, self.ddl.known)

    def checkpoints_of(self, ranges: Sequence[Span]) -> list[int]:
        """For each range, the ts up to which all of its wanted tables are durable; never above the bound, nor
        above a DDL whose spans we do not have yet (`passed`). The ranges do not overlap.
        """
        # docs/guarantees.md#after-resolved-r-no-row-at-or-below-r-appears-for-the-first-time:
        # beyond the bound other tables may be wanted.
        bound = self.reach
        return [min(bound, ts) for ts in self.spans.durable_in(ranges, otherwise=bound)]

    def over(self, records: Iterable[str]) -> None:
        """Report records of progress that are no longer needed: the owner deletes them."""
        self._records.end(records)

    def given_up(self) -> None:
        """Nothing of the feed is delivered here any more, whatever was dispatched; report that."""
        # Before the answer, which must not say any more that the ranges run.
        self._running = 0
        self._answer()

    def failed(self, error: Failed) -> None:
        """The dispatched incarnation has failed; report why."""
        self._running = 0
        self._answer(error)

    # --- messages to the owner ------------------------------------------------------------------------

    def tick(self, now: float) -> list[FromProcessor]:
        """The messages to send now; `now` in monotonic seconds."""
        if not self._inbox.last[0]:
            return []
        found: list[FromProcessor] = []
        if self.outbox.begins_sync(now):
            found.append(self._sync())
        found += self.outbox.take_response()
        if self._ranges:
            self._end_outlived()
            found += self._progress()
        owner_rev = self._inbox.last[0]
        return [self.outbox.stamped(message, owner_rev, self.instance) for message in found]

    def _end_outlived(self) -> None:
        """Report records of progress below the stored checkpoint, which is in the Dispatch, as no longer
        needed. While another incarnation is about to begin, nothing is reported: it may write the same
        records.
        """
        if self.dispatch is not None and self._running == self.dispatch.incarnation:
            self._records.end_below(self.dispatch.checkpoint)

    def _progress(self) -> list[FromProcessor]:
        assert self.dispatch is not None
        changed, over = self.outbox.changed(self._checkpoints(), self.status), self._records.take()
        if changed is None and not over:
            return []
        header, incarnation = self.outbox.header, self.dispatch.incarnation
        return [Checkpoint(header, incarnation, changed or [], self.status, over, self._ddl)]

    def _checkpoints(self) -> list[RangeProgress]:
        if not self._is_confirmed:
            return []
        found = zip(self._ranges, self.checkpoints_of([one.id for one in self._ranges]), strict=True)
        return [RangeProgress(one.id, one.token, ts, self.spans.resolved) for one, ts in found]

    @property
    def _ddl(self) -> KnownDdl:
        """The known DDL above the stored checkpoint, below which no incarnation begins."""
        if not self._is_confirmed or self.dispatch is None:
            return NOTHING
        return self.ddl.above(self.dispatch.checkpoint)

    def _answer(self, error: Failed | None = None) -> None:
        assert self.dispatch is not None
        incarnation, number = self.dispatch.incarnation, self.dispatch.header.sequence
        response = DispatchResponse(self.outbox.header, number, incarnation, self._states(), error)
        self.outbox.answer(response)

    def _sync(self) -> Sync:
        incarnation = self.dispatch.incarnation if self.dispatch is not None else 0
        states, known = self._states(), self._checkpoints()
        return Sync(
            self.outbox.header,
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
            self._inbox.latest,
            self.loads,
        )

    def _states(self) -> list[RangeStatus]:
        if not self.spans.is_open or self.dispatch is None:
            return []
        runs = 0 < self._running == self.dispatch.incarnation
        state = RangeState.RUNNING if runs else RangeState.PREPARING
        return [RangeStatus(one.id, one.token, state) for one in self._ranges]

    @property
    def _ranges(self) -> Sequence[GrantedRange]:
        return self.dispatch.ranges if self.dispatch is not None else ()
