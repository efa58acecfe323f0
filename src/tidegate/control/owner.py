"""The owner of one feed: who has delivered how far, what may be announced, which DDL is due.

    reports (range, token, incarnation) --+
    DDL batches --------------------------+--> Owner --tick--> SendDdl | SendResolved | Persist | Finish
    what the sink has taken --------------+                    (one SendDdl or SendResolved at a time)

It knows ranges of keys and who was granted them, and no tables: which of these a range holds is the
processor's to know.

Promises, whatever the order of events:
 - the checkpoint is the least of every granted range's durable ts, F - 1 of the next DDL, and what is known
   about DDL; it never goes back;
 - while the granted ranges leave a part of the wanted key space to nobody, it does not move;
 - Resolved R leaves only when every range is durable up to R and every DDL <= R is;
 - DDL F leaves only when every range is durable up to F, and none is let beyond F before it is durable;
 - the number of partitions changes at a ts T only when every range is durable up to T, and none is let
   beyond T before the next incarnation, which knows the new number (docs/repartition.md);
 - reports under another token or incarnation, or of another capture, change nothing;
 - while a capture is known to know other DDL than we do, the checkpoint stands and nothing leaves;
 - while a capture knows DDL further than we do, nothing counts above what was found to be the same;
 - while an initial load holds the barrier, neither Resolved nor DDL leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.ddl_log import DdlLog, KnownDdl
from tidegate.control.messages import RangeProgress
from tidegate.control.metadata import GrantedRange
from tidegate.control.transitions import Row, Transitions
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX

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
class SendRepartition:
    """Let rows above `ts` go to so many partitions, in one step with Resolved `ts`; then call
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


class Outlet(StrEnum):
    """Whether the owner may give its side of the sink something to do."""

    CLOSED = "closed"
    FREE = "free"
    BUSY = "busy"
    """One operation is under way. There is never a second one."""


class OnOutlet(StrEnum):
    """What happens to it."""

    OPENED = "the sink is open"
    SENT = "an operation is given to it"
    DONE = "the operation is durable"
    LOST = "the sink failed"
    GRANTED = "a capture begins another incarnation"


_ANY: Final = tuple(Outlet)

OUTLET: Final = Transitions(
    Row((Outlet.CLOSED, Outlet.FREE), OnOutlet.OPENED, Outlet.FREE, effect="its journal says what is out"),
    Row((Outlet.BUSY,), OnOutlet.OPENED, Outlet.BUSY, effect="its journal says what is out"),
    Row(
        (Outlet.FREE,),
        OnOutlet.SENT,
        Outlet.BUSY,
        "all granted ranges run, no load holds the barrier, and no capture knows other DDL",
        "DDL, then a change of the number of partitions, then Resolved: the first that is due",
    ),
    Row(
        (Outlet.BUSY, Outlet.FREE),
        OnOutlet.DONE,
        Outlet.FREE,
        "not after a change of the number of partitions",
    ),
    Row((Outlet.CLOSED,), OnOutlet.DONE, Outlet.CLOSED, effect="a call that outlived its sink opens nothing"),
    Row(_ANY, OnOutlet.LOST, Outlet.CLOSED, effect="whether the operation happened, the next journal says"),
    Row(_ANY, OnOutlet.GRANTED, Outlet.CLOSED, effect="nothing leaves until the sink is opened again"),
)


@dataclass(slots=True)
class _Range:
    """What is known of a granted range."""

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

        `resolved_interval_s`: between two Resolved while rows come; `quiet_interval_s`: while none do.
        """
        assert barrier.resolved >= checkpoint, "the DDL up to the checkpoint must be known"
        self.barrier, self.wanted = barrier, wanted
        self.checkpoint = checkpoint
        self.persisted_ts = checkpoint
        self.resolved_sent = 0
        self._ranges: dict[Span, _Range] = {}
        self._gap = self._find_gap()
        """`hole`, kept because each tick asks for it several times, and there may be thousands of ranges."""
        self._least: int | None = None
        """The least checkpoint of all ranges, kept until the next report or grant."""
        self._log = DdlLog(checkpoint)
        self._said: dict[str, KnownDdl] = {}
        """By capture, what it knows of DDL, if we do not know as much yet."""
        self._others: dict[str, KnownDdl] = {}
        """By capture, what it knows that is not what we know."""
        self._agreed: dict[str, int] = {}
        """By capture, the ts after which it was found to know what we know."""
        self._agreed_to: dict[str, int] = {}
        """By capture, the ts up to which; of its present incarnation."""
        self._interval = resolved_interval_s
        self.quiet_interval_s = quiet_interval_s
        """Between two Resolved while no rows come; may be changed at any time. If it is less than
        `resolved_interval_s`, that counts.
        """
        self._synced = 0
        self._partitions_asked = 0
        """The number of partitions that is wanted instead of the present one; 0: it stays."""
        self._out = 0
        """Up to where Resolved and DDL are out, by the journal of the sink."""
        self._repartitions = False
        """Whether the change of that number is under way at the sink, or was made."""
        self._outlet = Outlet.CLOSED
        self._persisting = False
        self._persist_now = False
        self._last_resolved = self._last_persist = float("-inf")

    def grant(self, capture: str, incarnation: int, ranges: Sequence[GrantedRange]) -> None:
        """A capture is to begin an incarnation with these ranges, and no others: nothing older of it counts.

        The sink is not open yet. What was durable of a range stays so.
        """
        before = self._ranges
        known = {one.id: before[one.id].checkpoint for one in ranges if one.id in before}
        assert all(
            (one.granted.token, one.incarnation) < (new.token, incarnation) or one.capture != capture
            for new in ranges
            if (one := before.get(new.id)) is not None
        ), "tokens and incarnations rise"
        self._ranges = {span: one for span, one in before.items() if one.capture != capture}
        for new in ranges:
            self._ranges[new.id] = _Range(capture, new, incarnation, known.get(new.id, 0))
        self._gap, self._least = self._find_gap(), None
        held = {one.capture for one in self._ranges.values()}
        self._said = {name: said for name, said in self._said.items() if name in held}
        self._others = {name: said for name, said in self._others.items() if name in held}
        self._agreed = {name: ts for name, ts in self._agreed.items() if name in held}
        # It may have opened its catalogue anew: what the one before knew proves nothing.
        self._agreed_to = {n: ts for n, ts in self._agreed_to.items() if n in held and n != capture}
        self._turn(OnOutlet.GRANTED)

    def learn(self, batches: Iterable[DdlBatch], known: int) -> None:
        """DDL in order; all of it up to `known` is known now."""
        found = list(batches)
        self.barrier.learn(found, known)
        self._log.learn(found, known)
        for capture, said in list(self._said.items()):
            self.receive_ddl(capture, said)

    def receive_ddl(self, capture: str, said: KnownDdl) -> None:
        """What a capture knows of DDL: compared as soon as we know as much. Call it before `report`."""
        held = {one.capture for one in self._ranges.values()}
        if capture not in held:
            return  # it prepares: nothing that it reports counts
        if self._log.has_forgotten(said):
            if self._said.get(capture) == said:
                del self._said[capture]
            return
        if self._log.is_behind(said):
            self._said.setdefault(capture, said)  # the first, since that is the next to be compared
            return
        if self._said.get(capture) == said:
            del self._said[capture]
        if self._log.agrees(said):
            # A message that is late may say what was true before they differed: that ends no disagreement.
            if (other := self._others.get(capture)) is not None and said.upto < other.upto:
                return
            self._others.pop(capture, None)
            # Others may still speak of what came before: forget no more than the last of them has passed.
            self._agreed[capture] = max(said.after, self._agreed.get(capture, 0))
            self._agreed_to[capture] = max(said.upto, self._agreed_to.get(capture, 0))
            self._log.forget(min(self._agreed.get(name, 0) for name in held))
        else:
            self._others[capture] = said

    @property
    def disagreement(self) -> tuple[str, KnownDdl] | None:
        """A capture that knows other DDL than we do, and where; None: there is none."""
        return next(iter(self._others.items()), None)

    @property
    def lags(self) -> bool:
        """Whether a capture knows DDL further than we do: read on before the next tick, which may act on what
        it has reported.
        """
        return bool(self._said)

    @property
    def agreed_to(self) -> int:
        """Up to where reports count while a capture knows DDL further than we do.

        A capture that lacks a DDL reports ranges without the tables that it adds. What it knows is compared
        as a whole, once we know as much. Until then its reports prove nothing above the last agreement,
        although we know the DDL there. Each report says what is known, so one that has said nothing has
        reported nothing.
        """
        return min((self._agreed_to.get(capture, 0) for capture in self._said), default=MAX)

    def running(self, capture: str, incarnation: int, ranges: Iterable[GrantedRange]) -> None:
        """A capture delivers these ranges now."""
        for one in ranges:
            if (known := self._of(capture, incarnation, one)) is not None:
                known.running = True

    def sink_open(self, resolved_journal: int, ddl_journal: int = 0) -> None:
        """The owner's sink is up; what its journal holds as Resolved and as DDL is out already.

        This incarnation delivers by the number of partitions that the sink has now, so that nothing holds it
        where the number was to change. Not earlier: whether an interrupted change took effect is known
        only now.
        """
        self.resolved_sent = max(self.resolved_sent, resolved_journal)
        self._out = max(self._out, resolved_journal, ddl_journal)
        self.barrier.switch_ts = self._partitions_asked = 0
        self._repartitions = False
        self._turn(OnOutlet.OPENED)

    def ask_repartition(self, partitions: int) -> None:
        """Another number of partitions is wanted; 0: the present one after all. Not once `repartitions`."""
        assert partitions or not self._repartitions
        self._partitions_asked = partitions
        if not partitions:
            self.barrier.switch_ts = 0

    @property
    def repartitions(self) -> bool:
        """Whether a change of the number of partitions is under way at the sink, or was made: it stands."""
        return self._repartitions

    def sink_lost(self) -> None:
        """The sink failed: an operation under way may have happened or not; its journal will tell."""
        self._turn(OnOutlet.LOST)
        self._persisting = False

    def report(self, capture: str, incarnation: int, progress: Iterable[RangeProgress]) -> bool:
        """How far ranges are. False, and no effect on those, under an old grant or another's."""
        counts = True
        for one in progress:
            known = self._of(capture, incarnation, GrantedRange(one.id, one.token))
            if known is None:
                counts = False
                continue
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
        """Whether all that is granted is delivered by somebody."""
        return self.hole() is None and all(one.running for one in self._ranges.values())

    def hole(self) -> Span | None:
        """What of the wanted part nobody has been granted, from its first gap on; None: there is no gap."""
        return self._gap

    def _find_gap(self) -> Span | None:
        at = self.wanted.start
        for span in sorted(self._ranges, key=lambda one: one.start):
            if span.start > at:
                break
            if span.end == b"" or (self.wanted.end and span.end >= self.wanted.end):
                return None
            at = max(at, span.end)
        return Span(at, self.wanted.end)

    @property
    def durable(self) -> int:
        """Up to where every wanted key is durable, by what was reported; 0 while something is not granted."""
        if self._gap is not None:
            return 0
        if self._least is None:
            self._least = min(one.checkpoint for one in self._ranges.values())
        return self._least

    @property
    def slowest(self) -> str:
        """The capture whose range holds the checkpoint back; empty: nothing is granted."""
        found = min(self._ranges.values(), key=lambda one: one.checkpoint, default=None)
        return found.capture if found is not None else ""

    def progress(self) -> list[tuple[str, Span, bool, int, int]]:
        """For people, by key: capture, range, whether it runs, checkpoint and resolved ts."""
        found = sorted(self._ranges.items(), key=lambda one: one[0].start)
        return [(one.capture, span, one.running, one.checkpoint, one.resolved) for span, one in found]

    @property
    def resolved(self) -> int:
        """Up to where every wanted key was received."""
        return 0 if self.hole() is not None else min(one.resolved for one in self._ranges.values())

    def tick(self, now: float) -> list[Effect]:
        """What is to be done now; `now` in monotonic seconds."""
        self._hold_for_repartition()
        self._advance()
        effects: list[Effect] = []
        send = self._send(now)
        if send is not None:
            self._turn(OnOutlet.SENT)
            effects.append(send)
        persist_due = now >= self._last_persist + self._persist_pause or self._at_target
        if self.checkpoint > self.persisted_ts and not self._persisting and persist_due:
            self._persisting, self._persist_now, self._last_persist = True, False, now
            effects.append(Persist(self.checkpoint))
        if (
            self._at_target
            and self._outlet is not Outlet.BUSY
            and self.persisted_ts >= self.barrier.target_ts
        ):
            effects.append(Finish())
        return effects

    def due_in(self, now: float) -> float:
        """Seconds until a tick has something to do though nothing has happened since the last one; infinite
        when only an event can bring that.
        """
        due = float("inf")
        sends = self._may_send
        if sends and self.checkpoint > self.resolved_sent:
            due = self._last_resolved + self._pause
        if self.checkpoint > self.persisted_ts and not self._persisting:
            due = min(due, self._last_persist + self._persist_pause)
        return max(0.0, due - now)

    def synced(self, ts: int) -> None:
        """Rows up to `ts` were delivered: a Resolved that covers them is wanted soon."""
        self._synced = max(self._synced, ts)

    @property
    def _pause(self) -> float:
        """Between two Resolved: each is a transaction at the sink, for every changefeed."""
        return self._interval if self._synced > self.resolved_sent else self._quiet_interval

    @property
    def _quiet_interval(self) -> float:
        return max(self._interval, self.quiet_interval_s)

    @property
    def _persist_pause(self) -> float:
        """Between two writes of the checkpoint; without rows nothing is repeated from an earlier one."""
        if self._persist_now:
            return 0.0
        return PERSIST_S if self._synced > self.persisted_ts else max(PERSIST_S, self._quiet_interval)

    @property
    def _at_target(self) -> bool:
        target = self.barrier.target_ts
        return bool(target) and self.checkpoint >= target and self.resolved_sent >= target

    def _advance(self) -> None:
        """Recompute the checkpoint; it never goes back."""
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
        """Hold all ranges for a change of the number of partitions that is wanted.

        Only once what is known of DDL has passed all that was reported, and all that is out: after a loss of
        the event store, or a takeover by another capture, a range may be further than DDL is known.
        """
        known = max((one.checkpoint for one in self._ranges.values()), default=0)
        known = max(known, self._out, self.resolved_sent)
        if self._partitions_asked and not self.barrier.switch_ts and self.barrier.resolved >= known:
            self.barrier.switch()

    def _send(self, now: float) -> SendDdl | SendResolved | SendRepartition | None:
        """The next thing for the sink, which takes one at a time."""
        if not self._may_send:
            return None
        batch, durable = self.barrier.next, min(self.durable, self.agreed_to)
        if batch is not None and durable >= batch.finished_ts:
            return SendDdl(batch)
        switch_ts = self.barrier.switch_ts
        if switch_ts and durable >= switch_ts:
            self._repartitions = True
            return SendRepartition(switch_ts, self._partitions_asked)
        due = now >= self._last_resolved + self._pause or self.checkpoint == self.barrier.target_ts
        if self.checkpoint > self.resolved_sent and due:
            self._last_resolved = now
            return SendResolved(self.checkpoint)
        return None

    def ddl_done(self, finished_ts: int) -> DdlBatch:
        """The DDL is durable downstream: the barrier is lifted."""
        batch = self.barrier.lift(finished_ts)
        self._turn(OnOutlet.DONE)
        self._persist_now = True
        self._last_resolved = float("-inf")
        return batch

    def resolved_done(self, ts: int) -> None:
        """Resolved `ts` is durable downstream."""
        self._turn(OnOutlet.DONE)
        self.resolved_sent = max(self.resolved_sent, ts)

    def repartition_done(self, ts: int) -> None:
        """The change is durable downstream. The incarnation sends no more, since it knows the old number: the
        next one must begin.
        """
        assert self._repartitions
        assert ts == self.barrier.switch_ts
        self.resolved_sent = max(self.resolved_sent, ts)

    @property
    def repartition_ts(self) -> int:
        """Where the ranges are held for a change of the number of partitions; 0: nowhere."""
        return self.barrier.switch_ts

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
