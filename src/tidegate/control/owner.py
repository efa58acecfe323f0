"""The owner of one feed: how far each range is delivered, which Resolved may be sent, which DDL is due.

    reports (range, token, incarnation) --+
    DDL batches --------------------------+--> Owner --tick--> SendDdl | SendResolved | Persist | Finish
    what the sink has taken --------------+                    (one SendDdl or SendResolved at a time)

It knows ranges of keys and the captures to which they are granted, but no tables: the processors know which
tables a range has. It is composed of the ranges with their progress (`granted_ranges`), the comparison of DDL
with the captures (`ddl_agreement`), the queue of DDL (`barrier`) and the state of its sink (`outlet`). Others
read these parts, and only this machine changes them.

Promises, whatever the order of events:
 - the checkpoint is the least of the durable ts of all granted ranges, F - 1 of the next DDL F, and the ts up
   to which DDL is known; it never falls;
 - while a part of the wanted key space is granted to no capture, the checkpoint does not rise;
 - Resolved R is sent only when every range is durable up to R and every DDL <= R is durable;
 - DDL F is sent only when every range is durable up to F, and no range may pass F before the DDL is durable;
 - the number of partitions changes at a ts T only when every range is durable up to T, and no range may
   pass T before the next incarnation, which knows the new number (docs/repartition.md);
 - reports under another token or incarnation, or of another capture, change nothing;
 - while a capture knows other DDL than we do, or other spans that it leaves, the checkpoint does not rise and
   nothing is sent;
 - while a capture knows DDL up to a later ts than we do, reports count only up to the ts at which both
   agreed;
 - while an initial load holds the barrier, neither Resolved nor DDL is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.control.barrier import Barrier, DdlBatch, SpanTask
from tidegate.control.ddl_agreement import DdlAgreement
from tidegate.control.ddl_log import KnownDdl
from tidegate.control.granted_ranges import GrantedRanges
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import RangeProgress
from tidegate.control.outlet import OUTLET, OnOutlet, Outlet
from tidegate.model.span import Span

PERSIST_S: Final = 0.5
"""The least seconds between two writes of the checkpoint; after a DDL it is written at once."""


@dataclass(frozen=True, slots=True)
class SendDdl:
    """Deliver the batch's events in order, then call `ddl_done`."""

    batch: DdlBatch


@dataclass(frozen=True, slots=True)
class SendResolved:
    """Broadcast Resolved, then call `resolved_done`."""

    ts: int


@dataclass(frozen=True, slots=True)
class SendRepartition:
    """Send rows above `ts` to `partitions` partitions, in one step with Resolved `ts`; then call
    `repartition_done`.
    """

    ts: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the checkpoint durably, then call `persisted`."""

    ts: int
    may_wait: bool = False
    """Whether the write may be put off a little, until there are others. Without rows an older checkpoint
    makes nothing be sent again.
    """


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything up to the target ts is delivered, announced and durable."""


Effect = SendDdl | SendResolved | SendRepartition | Persist | Finish


class Owner:
    """The state of one feed between two starts of the control process. Not thread-safe, no I/O."""

    def __init__(
        self,
        checkpoint: int,
        barrier: Barrier,
        wanted: Span,
        *,
        resolved_interval_s: float = 0.1,
        quiet_interval_s: float = 0.0,
        spans: Iterable[SpanTask] = (),
    ) -> None:
        """`wanted`: the part of the key space that the feed follows, all of which must be granted.
        `spans`: all that is wanted in it at the checkpoint. Captures must know the same.

        `resolved_interval_s`: between two Resolved while rows arrive; `quiet_interval_s`: while none do.
        """
        assert barrier.resolved >= checkpoint, "the DDL up to the checkpoint must be known"
        self.barrier = barrier
        self.ranges = GrantedRanges(wanted)
        """The granted ranges, and how far each is."""
        self.agreement = DdlAgreement(checkpoint, spans)
        """Whether the captures know the same DDL as we do."""
        self.checkpoint = checkpoint
        self.persisted_ts = checkpoint
        self.resolved_sent = 0
        self._interval = resolved_interval_s
        self.quiet_interval_s = quiet_interval_s
        """Seconds between two Resolved while no rows arrive, but at least `resolved_interval_s`; may change
        at any time.
        """
        self._synced = 0
        self._partitions_asked = 0
        """The number of partitions that is wanted instead of the present one; 0: no other."""
        self._out = 0
        """The ts up to which Resolved and DDL were sent, by the journal of the sink."""
        self._repartitions = False
        """Whether the sink is changing the number of partitions, or has changed it."""
        self._outlet = Outlet.CLOSED
        self._persisting = False
        self._persist_now = False
        self._last_resolved = self._last_persist = float("-inf")

    def grant(self, capture: str, incarnation: int, ranges: Sequence[GrantedRange]) -> None:
        """Grant a capture exactly these ranges for a new incarnation; its older reports no longer count.

        The sink is closed until it is opened again. The durable part of a range stays durable.
        """
        self.ranges.grant(capture, incarnation, ranges)
        self.agreement.begin(capture, self.ranges.captures)
        self._turn(OnOutlet.GRANTED)

    def learn(self, batches: Iterable[DdlBatch], known: int) -> None:
        """Learn DDL, in order; all DDL up to `known` is known afterwards."""
        # Both read it, and it may be an iterator.
        found = list(batches)
        self.barrier.learn(found, known)
        self.agreement.learn(found, known, self.ranges.captures)

    def receive_ddl(self, capture: str, said: KnownDdl) -> None:
        """Compare what a capture knows of DDL with ours, once we know as much. Call it before `report`."""
        self.agreement.receive(capture, said, self.ranges.captures)

    def running(self, capture: str, incarnation: int, ranges: Iterable[GrantedRange]) -> None:
        """Note that a capture delivers these ranges now."""
        self.ranges.running(capture, incarnation, ranges)

    def report(self, capture: str, incarnation: int, progress: Iterable[RangeProgress]) -> bool:
        """Take the progress of ranges. Ranges under an old grant, or another capture's, do not count: then
        False.
        """
        return self.ranges.report(capture, incarnation, progress)

    def sink_open(self, resolved_journal: int, ddl_journal: int = 0) -> None:
        """The owner's sink is open; Resolved and DDL in its journal were sent already.

        This incarnation delivers with the number of partitions that the sink has now, so ranges are no longer
        held for a change of it. That is not known earlier: only the sink knows whether an interrupted change
        took effect.
        """
        self.resolved_sent = max(self.resolved_sent, resolved_journal)
        # An interrupted operation may have happened. Only the journal says so, and it is read before
        # anything is sent.
        self._out = max(self._out, resolved_journal, ddl_journal)
        self.barrier.switch_ts = self._partitions_asked = 0
        self._repartitions = False
        self._turn(OnOutlet.OPENED)

    def ask_repartition(self, partitions: int) -> None:
        """Ask for another number of partitions. 0 keeps the present one; not allowed once `repartitions`."""
        assert partitions or not self._repartitions
        self._partitions_asked = partitions
        if not partitions:
            self.barrier.switch_ts = 0

    @property
    def repartitions(self) -> bool:
        """Whether the sink is changing the number of partitions or has changed it: there is no way back."""
        return self._repartitions

    def sink_lost(self) -> None:
        """The sink has failed; its next journal says whether the operation under way has happened."""
        self._turn(OnOutlet.LOST)
        # The task that stores it may be cancelled with the incarnation, and would then never report.
        self._persisting = False

    def tick(self, now: float) -> list[Effect]:
        """The effects to perform now; `now` in monotonic seconds."""
        self._hold_for_repartition()
        self._advance()
        effects: list[Effect] = []
        # After `_advance`: the checkpoint that may be announced must include the last reports.
        send = self._send(now)
        if send is not None:
            self._turn(OnOutlet.SENT)
            effects.append(send)
        persist_due = now >= self._last_persist + self._persist_pause or self._at_target
        if self.checkpoint > self.persisted_ts and not self._persisting and persist_due:
            # One write at a time: two under way could arrive in the other order, and the stored checkpoint
            # would fall.
            may_wait = not (self._persist_now or self._at_target or self._synced > self.persisted_ts)
            self._persisting, self._persist_now, self._last_persist = True, False, now
            effects.append(Persist(self.checkpoint, may_wait))
        if (
            self._at_target
            and self._outlet is not Outlet.BUSY
            and self.persisted_ts >= self.barrier.target_ts
        ):
            # Finish ends the incarnation, so nothing may be under way at the sink.
            effects.append(Finish())
        return effects

    def due_in(self, now: float) -> float:
        """Seconds until a tick has effects if no event happens before; infinite if only an event can cause
        one.
        """
        due = float("inf")
        sends = self._may_send
        # Without the sink, a DDL or a change of partitions becomes due when the sink is free, by an event.
        if sends and self._is_operation_due:
            return 0.0
        if sends and self.checkpoint > self.resolved_sent:
            due = self._last_resolved + self._pause
        if self.checkpoint > self.persisted_ts and not self._persisting:
            due = min(due, self._last_persist + self._persist_pause)
        return max(0.0, due - now)

    @property
    def _is_operation_due(self) -> bool:
        """Whether a DDL or a change of the number of partitions waits only for the sink."""
        batch, switch_ts = self.barrier.next, self.barrier.switch_ts
        found = [ts for ts in (batch.finished_ts if batch is not None else 0, switch_ts) if ts]
        return bool(found) and self._durable >= min(found)

    def synced(self, ts: int) -> None:
        """Note that rows up to `ts` were delivered: a Resolved that covers them is due soon."""
        self._synced = max(self._synced, ts)

    @property
    def _pause(self) -> float:
        """Seconds between two Resolved; each of them costs a transaction at the sink."""
        return self._interval if self._synced > self.resolved_sent else self._quiet_interval

    @property
    def _quiet_interval(self) -> float:
        return max(self._interval, self.quiet_interval_s)

    @property
    def _persist_pause(self) -> float:
        """Seconds between two writes of the checkpoint; without rows an older one makes nothing be sent
        again.
        """
        if self._persist_now:
            return 0.0
        return PERSIST_S if self._synced > self.persisted_ts else max(PERSIST_S, self._quiet_interval)

    @property
    def _at_target(self) -> bool:
        target = self.barrier.target_ts
        return bool(target) and self.checkpoint >= target and self.resolved_sent >= target

    def _advance(self) -> None:
        """Recompute the checkpoint; it never falls."""
        # docs/guarantees.md#after-resolved-r-no-row-at-or-below-r-appears-for-the-first-time: the least over
        # all keys. While a capture knows other DDL, its reports may leave out tables.
        if self.agreement.disagreement is None:
            self.checkpoint = max(self.checkpoint, min(self._durable, self.barrier.cap))

    @property
    def _durable(self) -> int:
        """The ts up to which every wanted key is durable, as far as reports count."""
        return min(self.ranges.durable, self.agreement.agreed_to)

    def _turn(self, on: OnOutlet) -> None:
        after = OUTLET.after(self._outlet, on)
        assert after is not None, f"{on} while the outlet is {self._outlet}"
        self._outlet = after

    @property
    def _may_send(self) -> bool:
        ready = self._outlet is Outlet.FREE and not self.barrier.held_at and self.ranges.are_running
        return ready and self.agreement.disagreement is None

    def _hold_for_repartition(self) -> None:
        """Hold all ranges at one ts if the number of partitions must change.

        This waits until DDL is known beyond everything that was reported or sent: after a loss of the event
        store, or a takeover by another capture, a range may be further than DDL is known.
        """
        # First, because it is so at nearly every tick, and `furthest` goes through all ranges.
        if not self._partitions_asked or self.barrier.switch_ts:
            return
        if self.barrier.resolved >= max(self.ranges.furthest, self._out, self.resolved_sent):
            self.barrier.switch()

    def _send(self, now: float) -> SendDdl | SendResolved | SendRepartition | None:
        """The next operation for the sink, which takes one at a time."""
        if not self._may_send:
            return None
        batch, durable = self.barrier.next, self._durable
        # DDL before Resolved: the cap keeps the checkpoint below this DDL until it is durable.
        if batch is not None and durable >= batch.finished_ts:
            return SendDdl(batch)
        switch_ts = self.barrier.switch_ts
        if switch_ts and durable >= switch_ts:
            # When it is sent, not when it is done: whether it has taken effect may stay unknown until the
            # next journal is read.
            self._repartitions = True
            return SendRepartition(switch_ts, self._partitions_asked)
        due = now >= self._last_resolved + self._pause or self.checkpoint == self.barrier.target_ts
        if self.checkpoint > self.resolved_sent and due:
            self._last_resolved = now
            return SendResolved(self.checkpoint)
        return None

    def ddl_done(self, finished_ts: int) -> DdlBatch:
        """The DDL is durable downstream: lift the barrier."""
        batch = self.barrier.lift(finished_ts)
        self._turn(OnOutlet.DONE)
        self._persist_now = True
        # The next Resolved is due at once, because readers wait for one that covers the DDL.
        self._last_resolved = float("-inf")
        return batch

    def resolved_done(self, ts: int) -> None:
        """Resolved `ts` is durable downstream."""
        self._turn(OnOutlet.DONE)
        self.resolved_sent = max(self.resolved_sent, ts)

    def repartition_done(self, ts: int) -> None:
        """The change is durable downstream. This incarnation knows only the old number, so it sends nothing
        more, and the next one must begin.
        """
        assert self._repartitions
        assert ts == self.barrier.switch_ts
        self.resolved_sent = max(self.resolved_sent, ts)

    @property
    def repartition_ts(self) -> int:
        """The ts at which ranges are held for a change of the number of partitions; 0: they are not held."""
        return self.barrier.switch_ts

    def load_done(self) -> None:
        """The initial load is durable downstream, and that is stored: release the barrier."""
        self.barrier.held_at = 0

    def persisted(self, ts: int) -> None:
        """The checkpoint `ts` is stored."""
        self._persisting = False
        self.persisted_ts = max(self.persisted_ts, ts)

    def persist_failed(self) -> None:
        """The checkpoint could not be stored; it is tried again."""
        self._persisting = False
