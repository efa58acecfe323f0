"""The processors of a changefeed as its owner sees them: one on each capture that works for it, or may.

    unknown --Announce--> met --Dispatch(prepare)--> warm --Dispatch(run)--> runs --Dispatch(prepare)--> ...

A capture can get ranges while it has a session and its processor answers. A processor that has been silent
for `SILENT_S` counts as gone, even if its capture's session in etcd holds. It cannot be asked for anything,
and the next incarnation fences what it still writes.

If a capture that delivers is lost, the incarnation ends on all captures. So a capture that is lost again and
again gets no ranges for a time that doubles with each loss, like a capture whose part fails (`Peer.fails`).
For `FORGIVEN_S` the owner remembers these failures by the capture's name, although it forgets everything else
about a capture that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Protocol

from tidegate.control.grants import Grant
from tidegate.control.messages import Dispatch, ProcessorStatus, Wish
from tidegate.control.outbox import SYNC_S
from tidegate.control.owner import Owner
from tidegate.control.processor import Goal
from tidegate.model.reports import LoadState
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX

SILENT_S: Final = 4 * SYNC_S
"""A processor that has sent nothing for this time cannot be asked for anything. It repeats everything every
`SYNC_S`.
"""
ANNOUNCE_S: Final = 1.0
"""How often an owner announces itself to a processor that has not answered."""
JOIN_S: Final = 5.0
"""A capture gets ranges once its processor has answered for this time. Otherwise a capture that restarts
again and again would restart all the others as well.
"""
SHUN_S: Final = 10.0
"""A capture that has failed gets no ranges for this time while others can take them. The time doubles with
each further failure.
"""
SHUN_MAX_S: Final = 600.0
FAILURES_MAX: Final = 7
"""From this number of failures on, the time is `SHUN_MAX_S`."""
FORGIVEN_S: Final = 1200.0
"""After this time without a failure, the next failure counts as the first."""
WARM_S: Final = 2.0
"""A taker is warm if it had received everything up to this many seconds before its last report."""
WARM_MAX_S: Final = 600.0
"""A move waits at most this long for a taker to receive its ranges; it never happens before the taker's
application runs.
"""

CUT_OFF_S: Final = 300.0
"""A capture that owns or delivers the changefeed is cut off from upstream if the DDL that it knows does not
advance for this time while that of others does. Opening a catalogue of 100,000 tables takes less.
"""
STEP_MAX_S: Final = 10.0
"""The most that one advance of the others counts: if upstream stopped for long, no capture is behind."""

LAST: Final = ("lag_ms", "batch_ms")
"""Fields of `ProcessorStatus` that are no counts; the greatest of all processors is shown."""
COUNTED: Final = (
    "rows", "messages", "bytes", "quarantined", "matched", "unchecked", "excused", "mismatched",
    "misencoded", "batches",
)  # fmt: skip
"""Fields that processors count; the changefeed shows their sum."""


@dataclass(slots=True)
class Peer:
    """One processor."""

    capture: str
    met_rev: int = 0
    """The owner revision under which it has answered."""
    met_at: float = float("inf")
    """When it first answered, counted again after each silence."""
    received_at: float = float("-inf")
    announced_at: float = float("-inf")
    latest: tuple[int, int] = (0, 0)
    """Epoch and sequence of its last message about its state."""
    version: str = ""
    """The version of its program; empty: not known yet."""
    unconfirmed: tuple[int, float] | None = None
    """The first message to it that it has not confirmed: its sequence, and when it was sent."""
    known: int = 0
    """Up to which ts it knows DDL."""
    cores: int = 1
    needs: int = MAX
    """`Sync.needs`."""
    opens: tuple[int, int] | None = None
    """While it may be opening something new: the sequence of the last Dispatch that asked for it, and the ts
    from which history must be held until a Sync confirms that Dispatch; None: `needs` is up to date.
    """
    holds: bool = False
    """Whether it has reported that it has ranges."""
    ready: bool = False
    """`Sync.ready`."""
    received: int = 0
    """Up to which ts it has received its ranges since they were dispatched."""
    received_as_of: float = float("inf")
    """When it reported `received`."""
    asked: Dispatch | None = None
    """The last Dispatch to it."""
    asked_at: float = 0.0
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has given up what the last Dispatch asked it to give up."""
    grant: Grant | None = None
    """Its grant for the current incarnation, or for the last one."""
    failures: int = 0
    """The number of its failures in a row."""
    failed_at: float = float("-inf")
    coming: tuple[Span, ...] = ()
    """The ranges that it prepares."""
    warming_since: float = float("inf")
    """Since when it has been preparing without being ready and having received its ranges."""
    status: ProcessorStatus = field(default_factory=ProcessorStatus)

    @property
    def runs(self) -> bool:
        """Whether it is asked to deliver."""
        return self.asked is not None and self.asked.wish is Wish.RUN

    @property
    def rests(self) -> bool:
        """Whether it holds nothing, because it gave everything up or was never asked for anything."""
        return self.asked is None or (self.asked.wish is Wish.REST and self.given_up.is_set())

    @property
    def to_ask_again(self) -> Wish | None:
        """The wish to repeat, because the last Dispatch was to an earlier process of its capture and has no
        answer: a process ignores what was meant for its predecessor. None: nothing, or it was to deliver.
        """
        if self.asked is None or self.runs or self.given_up.is_set():
            return None
        return self.asked.wish if self.asked.header.capture_epoch < self.latest[0] else None

    def ask(self, dispatch: Dispatch, now: float) -> None:
        """Note a Dispatch to it.

        One that asks for anything new makes it open spans, from a ts that only it knows, but not below the
        history that the Dispatch says is held. Its first Sync after the Dispatch says which. Until that Sync
        has come nothing of this history may be released, or the spans might be registered where deletes are
        already missing. A Dispatch that is repeated with a later checkpoint changes nothing of this, because
        the first one may be under way.
        """
        before, self.asked, self.asked_at = self.asked, dispatch, now
        self.given_up.clear()
        # A processor that has taken a Dispatch needs something. One that has confirmed a later message and
        # needs nothing has never got it.
        is_lost = self.opens is None and self.needs == MAX
        is_new = before is None or is_lost or _opened_for(before) != _opened_for(dispatch)
        if is_new and dispatch.wish in (Wish.RUN, Wish.PREPARE):
            least = self.opens[1] if self.opens is not None else MAX
            needed = min(least, dispatch.needed, dispatch.checkpoint)
            self.opens = dispatch.header.sequence, needed

    def receive(self, now: float, epoch: int, sequence: int, *, is_state: bool) -> bool:
        """Note a message; False: it is about the state, and a later one has arrived before."""
        # It may come back and fall silent again and again: it gets ranges only after `JOIN_S` of answers.
        if now - self.received_at > SILENT_S:
            self.met_at = now
        self.received_at = now
        # Progress only rises, so a late Checkpoint does no harm. A late Sync would bring back an old state.
        if is_state:
            if (epoch, sequence) <= self.latest:
                return False
            self.latest = epoch, sequence
        return True

    def fails(self, now: float) -> None:
        """Note that its incarnation has failed, or that it was lost while it delivered."""
        self.failures = 1 if now - self.failed_at > FORGIVEN_S else self.failures + 1
        self.failed_at = now

    def fails_to_warm(self, now: float) -> None:
        """Note that it did not become ready. The long pause gives others time to prepare for its ranges."""
        # All at once and not step by step: each further try would hold up a move for `WARM_MAX_S`.
        self.failures, self.failed_at, self.warming_since = FAILURES_MAX, now, now

    def may_try(self, now: float) -> bool:
        """Whether it may get ranges again while others can take them."""
        return self.pause_s(now) <= 0

    def pause_s(self, now: float) -> float:
        """Seconds until it may get ranges again; negative or 0: it may now."""
        shunned_s = min(SHUN_MAX_S, SHUN_S * 2 ** min(self.failures - 1, 10)) if self.failures else 0.0
        return shunned_s - (now - self.failed_at)

    def history(self, now: float) -> tuple[int, ...]:
        """Each ts from which history must be held for it."""
        if self.opens is None or self._never_took_it(now):
            return (self.needs,)
        return self.needs, self.opens[1]

    def _never_took_it(self, now: float) -> bool:
        """Whether a Dispatch was withdrawn that was lost: none of our messages arrives, while its own do."""
        is_withdrawn = self.asked is not None and self.asked.wish is Wish.REST
        is_unconfirmed = self.unconfirmed is not None and now - self.unconfirmed[1] > 2 * SILENT_S
        return is_withdrawn and is_unconfirmed

    def may_read(self, now: float, *, is_here: bool = False) -> bool:
        """Whether it may still read upstream's history. `is_here`: it is on the owner's capture."""
        if self.runs:
            return True
        first_at = self.unconfirmed[1] if self.unconfirmed is not None else float("-inf")
        # One in our own process is never gone. If it is silent, it waits, while its puller reads on.
        is_silent = not is_here and now - max(self.received_at, first_at) > 2 * SILENT_S
        return not is_silent and (self.asked is None or not self.rests)

    def answers(self, owner_rev: int, now: float) -> bool:
        """Whether it can be asked for something: its messages reach us, and ours reach it."""
        return self.met_rev == owner_rev and now - self.received_at <= SILENT_S and not self.is_deaf(now)

    def is_deaf(self, now: float) -> bool:
        """Whether it does not confirm our messages."""
        return self.unconfirmed is not None and now - self.unconfirmed[1] > SILENT_S

    def sent(self, sequence: int, now: float) -> None:
        """Note a message to it."""
        # The first message that is not confirmed counts. Later ones must not put the end of the patience
        # off.
        if self.unconfirmed is None:
            self.unconfirmed = sequence, now

    def has(self, sequence: int) -> None:
        """Note that it has confirmed our messages up to `sequence`."""
        if self.unconfirmed is not None and sequence >= self.unconfirmed[0]:
            self.unconfirmed = None
        if self.opens is not None and sequence >= self.opens[0]:
            self.opens = None

    def receives(self, upto: int, now: float) -> None:
        """Note a report of how far it has received its ranges."""
        self.received, self.received_as_of = upto, now

    def unreported_s(self, now: float) -> float:
        """How long ago it reported `received`, within the time in which the next report must come."""
        # Bounded, or a capture that is silent would count as one that has kept receiving.
        return min(max(0.0, now - self.received_as_of), 2 * SYNC_S)

    def knows(self, upto: int) -> None:
        """Note up to which ts it knows DDL."""
        self.known = max(self.known, upto)


class Link(Protocol):
    """Reaches the processors, in the product (`processor_link`) and in the simulator."""

    def reachable(self) -> list[Peer]:
        """The processors that messages may be sent to."""

    def dispatch(self, peer: Peer, wish: Wish) -> None:
        """Send a processor all that is wanted of it."""

    def end_leftover(self, peer: Peer) -> None:
        """Let a processor release what an earlier owner gave it."""


class Peers:
    """The processors of one changefeed, by capture."""

    def __init__(self) -> None:
        self._all: dict[str, Peer] = {}
        self._first_at = 0.0
        """When the processor that knows the most DDL last advanced."""
        self._read: dict[str, int] = {}
        """Up to which ts each knew DDL then."""
        self._behind_s: dict[str, float] = {}
        """For how long the DDL of others has advanced while that of a capture has not."""
        self._failed: dict[str, tuple[int, float]] = {}
        """`Peer.failures` and `Peer.failed_at` of captures that were forgotten within `FORGIVEN_S`."""

    def __getitem__(self, capture: str) -> Peer:
        found = self._all.get(capture)
        if found is None:
            found = self._all[capture] = Peer(capture)
            if (failed := self._failed.pop(capture, None)) is not None:
                found.failures, found.failed_at = failed
        return found

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._all.values()))

    def get(self, capture: str) -> Peer | None:
        """A processor; None: nothing was ever sent to it."""
        return self._all.get(capture)

    def forget(self, captures: Iterable[str], now: float) -> None:
        """Forget captures that are gone and do not run. Their failures are kept for `FORGIVEN_S`."""
        for capture in captures:
            if (peer := self._all.pop(capture, None)) is not None and peer.failures:
                # A capture that restarts has no session for a moment. Its failures must outlive that, or it
                # would get ranges each time.
                self._failed[capture] = peer.failures, peer.failed_at
        self._failed = {name: one for name, one in self._failed.items() if now - one[1] <= FORGIVEN_S}

    def adopt(self, owner: Owner, grants: Mapping[str, Grant], link: Link) -> None:
        """Use the grants of a new round, which are stored. A capture without one must give up what it does.

        The owner machine forgets its ranges at once, so that no report of it counts. It may still write them,
        and the next capture writes them only after the fence.
        """
        reachable = link.reachable()
        for peer in self:
            peer.coming, peer.received = (), 0
            if peer.capture in grants:
                continue
            peer.grant = None
            owner.grant(peer.capture, 0, ())
            if peer not in reachable:
                peer.asked = None
            elif not peer.rests:
                link.dispatch(peer, Wish.REST)
            else:
                link.end_leftover(peer)
        for name, grant in grants.items():
            self[name].grant = grant
            owner.grant(name, grant.incarnation, grant.ranges)

    @property
    def running(self) -> list[Peer]:
        """The processors that are asked to deliver."""
        return [peer for peer in self if peer.runs]

    def cut_off(self, now: float, owner: str, owner_knows: int | None) -> list[str]:
        """The captures that receive nothing from upstream while others do; all that run, and the owner's.

        `owner_knows`: up to which ts the owner itself knows DDL, whether its capture delivers or not; None:
        it has not begun to read.
        """
        known = {peer.capture: peer.known for peer in self.running}
        if owner_knows is not None:
            known[owner] = max(known.get(owner, 0), owner_knows)
        first = max(known.values(), default=0)
        # While no capture advances, none is behind.
        if first > max(self._read.values(), default=0):
            # Counted by the advances of the others, not by the clock: while upstream itself is silent nobody
            # falls behind.
            step_s, self._first_at = min(now - self._first_at, STEP_MAX_S), now
            self._behind_s = {
                name: self._behind_s.get(name, 0.0) + step_s
                for name, upto in known.items()
                if upto <= self._read.get(name, 0) and upto < first
            }
            self._read = known
        return [name for name, behind_s in self._behind_s.items() if behind_s > CUT_OFF_S and name in known]

    def load(self) -> LoadState:
        """The progress of the initial load on all processors that run."""
        found = [peer.status.load for peer in self.running]
        return LoadState(*(sum(getattr(one, name.name) for one in found) for name in fields(LoadState)))

    @property
    def loaded(self) -> bool:
        """Whether the initial load is durable on all processors that run."""
        # docs/guarantees.md#an-initial-load-is-joined-exactly
        return all(peer.status.loaded for peer in self.running)

    def total(self, name: str) -> int:
        """The sum, or for LAST the maximum, of a status field over all processors."""
        values = [int(getattr(peer.status, name)) for peer in self]
        return max(values, default=0) if name in LAST else sum(values)

    def needs(self, now: float, here: str = "") -> int:
        """The least ts from which a processor may still register upstream; MAX: none needs any.

        A processor counts from its first Sync or the first Dispatch to it on, whichever comes first. One that
        has given everything up does not count; nor does one that does not run and has been silent for long,
        because it must open its spans again anyway. `here`: the owner's capture.
        """
        readers = (peer for peer in self if peer.may_read(now, is_here=peer.capture == here))
        return min((least for peer in readers for least in peer.history(now)), default=MAX)


def _opened_for(dispatch: Dispatch) -> tuple[Goal, int]:
    """The parts of a Dispatch that make a process open something new if they change. Coming ranges do not:
    they are taken from the last checkpoint on, and `Peer.needs` is never above that.
    """
    return Goal.of(dispatch), dispatch.header.capture_epoch
