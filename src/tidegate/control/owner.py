"""The owner of one feed: how far each range is delivered, which Resolved may be sent, which DDL is due.

    reports (range, token, incarnation) --+
    DDL batches --------------------------+--> Owner --tick--> SendDdl | SendResolved | Persist | Finish
    what the sink has taken --------------+                    (one SendDdl or SendResolved at a time)

It knows ranges of keys and the captures to which they are granted, but no tables: the processors know which
tables a range has.

Promises, whatever the order of events:
 - the checkpoint is the least of the durable ts of all granted ranges, F - 1 of the next DDL F, and the ts up
   to which DDL is known; it never falls;
 - while a part of the wanted key space is granted to no capture, the checkpoint does not rise;
 - Resolved R is sent only when every range is durable up to R and every DDL <= R is durable;
 - DDL F is sent only when every range is durable up to F, and no range may pass F before the DDL is durable;
 - the number of partitions changes at a ts T only when every range is durable up to T, and no range may
   pass T before the next incarnation, which knows the new number (docs/repartition.md);
 - reports under another token or incarnation, or of another capture, change nothing;
 - while a capture knows other DDL than we do, the checkpoint does not rise and nothing is sent;
 - while a capture knows DDL up to a later ts than we do, reports count only up to the ts at which both
   agreed;
 - while an initial load holds the barrier, neither Resolved nor DDL is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.ddl_log import DdlLog, KnownDdl
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import RangeProgress
from tidegate.control.outlet import OUTLET, OnOutlet, Outlet
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX

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


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything up to the target ts is delivered, announced and durable."""


Effect = SendDdl | SendResolved | SendRepartition | Persist | Finish


@dataclass(slots=True)
class _Range:
    """The owner's knowledge of a granted range."""

    capture: str
    granted: GrantedRange
    incarnation: int
    checkpoint: int
    resolved: int = 0
    running: bool = False


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
    ) -> None:
        """`wanted`: the part of the key space that the feed follows, all of which must be granted.

        `resolved_interval_s`: between two Resolved while rows arrive; `quiet_interval_s`: while none do.
        """
        assert barrier.resolved >= checkpoint, "the DDL up to the checkpoint must be known"
        self.barrier, self.wanted = barrier, wanted
        self.checkpoint = checkpoint
        self.persisted_ts = checkpoint
        self.resolved_sent = 0
        self._ranges: dict[Span, _Range] = {}
        self._gap = self._find_gap()
        """The result of `hole`, cached because each tick needs it several times, for thousands of ranges."""
        self._least: int | None = None
        """The least checkpoint of all ranges, cached until the next report or grant."""
        self._log = DdlLog(checkpoint)
        self._said: dict[str, tuple[KnownDdl, KnownDdl]] = {}
        """For each capture that knows DDL further than we do, the first and the furthest of its messages that
        are not compared yet.
        """
        self._others: dict[str, KnownDdl] = {}
        """For each capture that knows other DDL than we do, what it knows."""
        self._agreed: dict[str, int] = {}
        """For each capture, the ts after which it was found to know the same DDL as we do."""
        self._agreed_to: dict[str, int] = {}
        """For each capture, the ts up to which it was, in its present incarnation."""
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
        before = self._ranges
        known = {one.id: before[one.id].checkpoint for one in ranges if one.id in before}
        assert all(
            (one.granted.token, one.incarnation) < (new.token, incarnation) or one.capture != capture
            for new in ranges
            if (one := before.get(new.id)) is not None
        ), "tokens and incarnations rise"
        # Other captures keep theirs: only this capture begins another incarnation.
        self._ranges = {span: one for span, one in before.items() if one.capture != capture}
        for new in ranges:
            # A range with other bounds begins at 0, until its processor reports. `checkpoint` does not fall
            # meanwhile.
            self._ranges[new.id] = _Range(capture, new, incarnation, known.get(new.id, 0))
        self._gap, self._least = self._find_gap(), None
        held = {one.capture for one in self._ranges.values()}
        self._said = {name: said for name, said in self._said.items() if name in held}
        self._others = {name: said for name, said in self._others.items() if name in held}
        self._agreed = {name: ts for name, ts in self._agreed.items() if name in held}
        # The new incarnation may have opened its catalogue again: what the old one knew proves nothing.
        self._agreed_to = {n: ts for n, ts in self._agreed_to.items() if n in held and n != capture}
        self._turn(OnOutlet.GRANTED)

    def learn(self, batches: Iterable[DdlBatch], known: int) -> None:
        """Learn DDL, in order; all DDL up to `known` is known afterwards."""
        found = list(batches)
        self.barrier.learn(found, known)
        self._log.learn(found, known)
        # We may know as much now as these captures did when they reported. Those that are still further come
        # back.
        waiting, self._said = self._said, {}
        for capture, (first, furthest) in waiting.items():
            self.receive_ddl(capture, first)
            # If it were left out, its reports would count without a comparison until its next message.
            self.receive_ddl(capture, furthest)

    def receive_ddl(self, capture: str, said: KnownDdl) -> None:
        """Compare what a capture knows of DDL with ours, once we know as much. Call it before `report`."""
        held = {one.capture for one in self._ranges.values()}
        if capture not in held:
            return  # it only prepares: none of its reports count
        if self._log.has_forgotten(said):
            return
        if self._log.is_behind(said):
            # The first one is compared next, the furthest one covers all that was reported.
            first, furthest = self._said.get(capture, (said, said))
            self._said[capture] = first, said if said.upto >= furthest.upto else furthest
            return
        if self._log.agrees(said):
            # A late message may be from before they differed; it does not end a disagreement.
            if (other := self._others.get(capture)) is not None and said.upto < other.upto:
                return
            self._others.pop(capture, None)
            # Other captures may still report earlier DDL: forget only what all of them have passed.
            self._agreed[capture] = max(said.after, self._agreed.get(capture, 0))
            self._agreed_to[capture] = max(said.upto, self._agreed_to.get(capture, 0))
            self._log.forget(min(self._agreed.get(name, 0) for name in held))
        else:
            self._others[capture] = said

    @property
    def disagreement(self) -> tuple[str, KnownDdl] | None:
        """A capture that knows other DDL than we do, and what it knows; None: there is none."""
        return next(iter(self._others.items()), None)

    @property
    def lags(self) -> bool:
        """Whether a capture knows DDL further than we do. If so, the caller reads DDL before the next tick,
        which may act on what that capture has reported.
        """
        return bool(self._said)

    @property
    def agreed_to(self) -> int:
        """The ts up to which reports count while a capture knows DDL further than we do.

        A capture that lacks a DDL reports its ranges without the tables that the DDL adds. Its DDL is
        compared as a whole once we know as much. Until then its reports prove nothing above the last
        agreement, although we know the DDL there. Each report contains the capture's DDL, so a capture
        without known DDL has reported nothing.
        """
        return min((self._agreed_to.get(capture, 0) for capture in self._said), default=MAX)

    def running(self, capture: str, incarnation: int, ranges: Iterable[GrantedRange]) -> None:
        """Note that a capture delivers these ranges now."""
        for one in ranges:
            if (known := self._of(capture, incarnation, one)) is not None:
                known.running = True

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

    def report(self, capture: str, incarnation: int, progress: Iterable[RangeProgress]) -> bool:
        """Take the progress of ranges. Ranges under an old grant, or another capture's, do not count: then
        False.
        """
        counts = True
        for one in progress:
            known = self._of(capture, incarnation, GrantedRange(one.id, one.token))
            if known is None:
                counts = False
                continue
            # A late report may be lower, but rows that were durable once stay durable.
            if one.checkpoint_ts > known.checkpoint:
                known.checkpoint, self._least = one.checkpoint_ts, None
            known.resolved = max(one.resolved_ts, known.resolved)
        return counts

    def _of(self, capture: str, incarnation: int, granted: GrantedRange) -> _Range | None:
        known = self._ranges.get(granted.id)
        mine = known is not None and (known.capture, known.incarnation) == (capture, incarnation)
        return known if mine and known is not None and known.granted == granted else None

    @property
    def is_running(self) -> bool:
        """Whether all of the wanted key space is granted, and all granted ranges are being delivered."""
        return self.hole() is None and all(one.running for one in self._ranges.values())

    def hole(self) -> Span | None:
        """The wanted key space from the first key that is granted to no capture; None: all is granted."""
        return self._gap

    def _find_gap(self) -> Span | None:
        at = self.wanted.start
        for span in sorted(self._ranges, key=lambda one: one.start):
            # A gap. Ranges are in order of their starts, so no later one can fill it.
            if span.start > at:
                break
            if span.end == b"" or (self.wanted.end and span.end >= self.wanted.end):
                return None
            at = max(at, span.end)
        return Span(at, self.wanted.end)

    @property
    def durable(self) -> int:
        """The ts up to which every wanted key is durable, by reports; 0 while a part is granted to no
        capture.
        """
        if self._gap is not None:
            return 0
        if self._least is None:
            self._least = min(one.checkpoint for one in self._ranges.values())
        return self._least

    @property
    def slowest(self) -> str:
        """The capture whose range has the least checkpoint; empty: nothing is granted."""
        found = min(self._ranges.values(), key=lambda one: one.checkpoint, default=None)
        return found.capture if found is not None else ""

    def progress(self) -> list[tuple[str, Span, bool, int, int]]:
        """For people, in key order: capture, range, whether it runs, checkpoint and resolved ts."""
        found = sorted(self._ranges.items(), key=lambda one: one[0].start)
        return [(one.capture, span, one.running, one.checkpoint, one.resolved) for span, one in found]

    @property
    def resolved(self) -> int:
        """The ts up to which all rows of the wanted key space were received."""
        return 0 if self.hole() is not None else min(one.resolved for one in self._ranges.values())

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
            self._persisting, self._persist_now, self._last_persist = True, False, now
            effects.append(Persist(self.checkpoint))
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
        # A DDL needs no entry here. It becomes due by a report, which is an event.
        if sends and self.checkpoint > self.resolved_sent:
            due = self._last_resolved + self._pause
        if self.checkpoint > self.persisted_ts and not self._persisting:
            due = min(due, self._last_persist + self._persist_pause)
        return max(0.0, due - now)

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
        if not self._others:
            self.checkpoint = max(self.checkpoint, min(self.durable, self.agreed_to, self.barrier.cap))

    def _turn(self, on: OnOutlet) -> None:
        after = OUTLET.after(self._outlet, on)
        assert after is not None, f"{on} while the outlet is {self._outlet}"
        self._outlet = after

    @property
    def _may_send(self) -> bool:
        ready = self._outlet is Outlet.FREE and not self.barrier.held_at and self.is_running
        return ready and not self._others

    def _hold_for_repartition(self) -> None:
        """Hold all ranges at one ts if the number of partitions must change.

        This waits until DDL is known beyond everything that was reported or sent: after a loss of the event
        store, or a takeover by another capture, a range may be further than DDL is known.
        """
        known = max((one.checkpoint for one in self._ranges.values()), default=0)
        known = max(known, self._out, self.resolved_sent)
        if self._partitions_asked and not self.barrier.switch_ts and self.barrier.resolved >= known:
            self.barrier.switch()

    def _send(self, now: float) -> SendDdl | SendResolved | SendRepartition | None:
        """The next operation for the sink, which takes one at a time."""
        if not self._may_send:
            return None
        batch, durable = self.barrier.next, min(self.durable, self.agreed_to)
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
