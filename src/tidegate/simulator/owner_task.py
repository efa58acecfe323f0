"""An owner's task: what `server.owner.replication` does around the machine `control.owner`, in virtual time.

    meet processors -> open -> [share -> grant -> fence -> sink -> dispatch -> tick ...] -> back-off -> [...]

The machine, the life (`control.changefeed`), the division of ranges (`server.owner.sharing`,
`control.share`), the state of processors (`server.owner.peers`) and the messages are the product's code. This
file performs the effects in the order of `server.owner.replication` and with its constants, so that the two
can be compared. `owner_link` has the messages to processors, `owner_grants` the grants in etcd, `owner_sink`
the sink.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, assert_never

from tidegate.control.barrier import Barrier
from tidegate.control.changefeed import Life, State
from tidegate.control.ddl_log import KnownDdl
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.messages import (
    Checkpoint,
    DispatchResponse,
    FromProcessor,
    RangeProgress,
    RangeState,
    RangeStatus,
    Sync,
    Wish,
)
from tidegate.control.metadata import (
    FeedError,
    FeedStatus,
    Put,
    feed_key,
)
from tidegate.control.owner import Effect, Finish, Owner, Persist, SendDdl, SendRepartition, SendResolved
from tidegate.errors import Fenced, Retryable, TidegateError
from tidegate.model.timestamp import Timestamp
from tidegate.server.owner.peers import Peer, Peers
from tidegate.server.owner.sharing import CAPTURES_S, Sharing
from tidegate.simulator.owner_grants import OwnerGrants
from tidegate.simulator.owner_link import ALL_KEYS, OwnerLink
from tidegate.simulator.owner_sink import OwnerSink
from tidegate.simulator.sink import RecordKind
from tidegate.simulator.virtual_time import Signal, Steps, Task
from tidegate.simulator.world import CLUSTER, FEED

if TYPE_CHECKING:
    from tidegate.simulator.capture import Control

JOBS_S: Final = 2.0
RESOLVED_S: Final = 0.5
"""Seconds between two Resolved."""


class OwnerTask:
    """The changefeed on the capture that owns it, from the election of this owner on."""

    def __init__(self, control: Control) -> None:
        self._control, self.capture = control, control.capture
        self._world, self._time = control.world, control.world.time
        self._off = control.world.off
        self.owner: Owner | None = None
        self.persisted: Timestamp = 0
        self.peers = Peers()
        self.wake = Signal(self._time)
        self._link = OwnerLink(control, self.peers, self.wake, self._terms, self._receive)
        self.sharing = Sharing(control, ALL_KEYS, self.peers, self._link.reachable)
        self.life = Life()
        self._jobs: list[Task] = []
        self._failure: TidegateError | None = None
        self._reshare = ""
        self._starting = False
        self._grants = OwnerGrants(control, self.peers)
        self._sink = OwnerSink(control, self._grants)

    @property
    def _now(self) -> float:
        """Seconds by the capture's own clock."""
        return self._control.clock.monotonic()

    # --- the life ------------------------------------------------------------------------------------

    def end(self) -> None:
        """End what `run` has begun. Processors continue, and requests that were sent are carried out."""
        for job in self._jobs:
            job.cancel()
        self._jobs.clear()

    def run(self) -> Steps[None]:
        """Replicate until another capture is the owner."""
        try:
            yield from self._read_status()
            while True:
                try:
                    yield from self._replicate()
                except Retryable as error:
                    self._log(f"the changefeed fails: {error.what}")
                    self._world.timeline.counts["failures of the changefeed"] += 1
                    yield from self._back_off(error)
        except Fenced:
            self._control.lose("another is the owner")

    def _back_off(self, error: TidegateError) -> Steps[None]:
        shown = FeedError(error.what, "CDC:ErrRetryable", self._control.now_ms())
        now, jitter = self._now, self._time.rng.random()
        # The time without progress has no limit here: the run itself decides whether the changefeed recovers
        # in time.
        self.life = self.life.failed(shown, retry=True, now=now, stuck_s=math.inf, jitter=jitter)
        while self.life.state is State.PENDING:
            yield max(0.0, self.life.retry_at - self._now)
            self.life = self.life.ticked(self._now)

    def _read_status(self) -> Steps[None]:
        key = feed_key(CLUSTER, FEED, "status")
        while True:
            try:
                found = yield from self._control.client.read(self._world.etcd.get, key)
            except Retryable:
                if not self._control.holds:
                    raise Fenced("the capture's session has ended") from None
                continue
            self.persisted = FeedStatus.from_bytes(found.value).checkpoint_ts
            return

    def _replicate(self) -> Steps[None]:
        self._failure = None
        yield from self._link.meet()
        if self.owner is None:
            yield from self._open()
        while True:
            try:
                yield from self._start_incarnation()
                yield from self._deliver()
            # The incarnation ends before the back-off begins, because a retry begins with processors that
            # deliver nothing.
            except Retryable:
                yield from self._end_incarnation()
                raise
            yield from self._end_incarnation()

    def _deliver(self) -> Steps[None]:
        """Deliver until the key space must be divided again. Raises the failure of the incarnation."""
        while not self._reshare:
            self._tick()
            self._check_shares()
            if self._failure is not None:
                raise self._failure
            yield self.wake.wait(CAPTURES_S)
            self.wake.clear()

    def _open(self) -> Steps[None]:
        """Make the machine at the stored checkpoint, once all DDL up to it is known."""
        view, upstream = self._control.machine.view, self._world.upstream
        # With other captures it is not known yet which one gets what.
        if not self._control.others():
            self._link.dispatch(self.peers[self._control.capture], Wish.PREPARE)
        while view.resolved_ts < self.persisted:
            yield CAPTURES_S
        tasks = upstream.tasks_at(self.persisted)
        self.sharing.begin(tasks)
        known = view.resolved_ts
        barrier = Barrier(self.persisted)
        self.owner = Owner(self.persisted, barrier, ALL_KEYS, resolved_interval_s=RESOLVED_S, spans=tasks)
        self.owner.learn(upstream.ddl(self.persisted, known), known)

    # --- an incarnation ------------------------------------------------------------------------------

    def _start_incarnation(self) -> Steps[None]:
        """Divide the shares, store grants, open the sink, dispatch to processors, in this order."""
        assert self.owner is not None
        self._failure, self._reshare = None, ""
        grants = yield from self._raise_grants(self.owner)
        name = self._control.capture
        lead = name if name in grants else min(grants)
        # A run without the guard: givers count as fenced before they are.
        if "fence_before_settled" in self._off and len(grants) > 1:
            yield from self._grants.settle(grants)
        yield from self._sink.fence_all(grants, grants[lead], lead)
        yield from self._sink.open(grants[lead], lead)
        self.owner.sink_open(self._sink.journal.resolved_ts, self._sink.journal.ddl_ts)
        self._starting = True
        self._world.timeline.counts["incarnations"] += 1
        self._log("dispatches to " + ", ".join(sorted(grants)))
        # Last. A processor that is asked to run must find its grant stored, and if others write as well, all
        # earlier writers fenced.
        for one in sorted(grants):
            self._link.dispatch(self.peers[one], Wish.RUN)

    def _end_incarnation(self) -> Steps[None]:
        """Stop processors and sink. A call of the sink that does not end in time is abandoned."""
        # First, so that the machine emits nothing more for a sink that is being given up.
        if self.owner is not None:
            self.owner.sink_lost()
        self._sink.is_open = False
        until = self._now + JOBS_S
        for job in self._jobs:
            if not job.over and self._now < until:
                yield job.done.wait(until - self._now)
            job.cancel()
        self._jobs.clear()
        yield from self._link.ask_to_end(Wish.PREPARE, [peer for peer in self._link.reachable() if peer.runs])

    def _raise_grants(self, owner: Owner) -> Steps[dict[str, Grant]]:
        """Divide the key space among the captures that answer, and store what each may write."""
        # Read again for each round. The write below compares these revisions, so it fails if another owner
        # has stored grants since.
        found = yield from self._grants.read()
        stored = {name: grant for name, (grant, _) in found.items()}
        before = {name: [one.id for one in grant.ranges] for name, grant in stored.items()}
        shares = self.sharing.divide(before, shared=True)
        token = self._control.token()
        grants = self._grants.shared_out(stored, token, shares)
        guards = tuple(seen for _, seen in found.values()) if "grants_guard" not in self._off else ()
        yield from self._grants.store(grants, guards)
        grants = {name: grants[name] for name in shares}
        self._adopt(owner, grants)
        return grants

    def _adopt(self, owner: Owner, grants: dict[str, Grant]) -> None:
        """Use the new grants from now on; a capture without one must give up what it does."""
        reachable = self._link.reachable()
        for peer in self.peers:
            peer.coming, peer.received = (), 0
            if peer.capture in grants:
                continue
            peer.grant = None
            owner.grant(peer.capture, 0, ())
            if peer not in reachable:
                peer.asked = None
            elif not peer.rests:
                self._link.dispatch(peer, Wish.REST)
            else:
                self._link.end_leftover(peer)
        for name, grant in grants.items():
            self.peers[name].grant = grant
            owner.grant(name, grant.incarnation, grant.ranges)

    # --- the processors ------------------------------------------------------------------------------

    def _terms(self) -> tuple[Timestamp, Timestamp]:
        bound = self.owner.barrier.bound if self.owner is not None else self.persisted
        return bound, self.persisted

    def _receive(self, peer: Peer, message: FromProcessor) -> None:
        """Handle a message. Only the latest one says what a processor does; each one says how far it is."""
        header, now = message.header, self._now
        is_state = not isinstance(message, Checkpoint)
        # Compared before `receive`, which raises `latest`.
        is_other_process = header.capture_epoch > peer.latest[0]
        if is_other_process:
            peer.met_at = now
        is_latest = peer.receive(now, header.capture_epoch, header.sequence, is_state=is_state)
        if not is_latest and "order" not in self._off:
            return
        asked = peer.asked
        restarted = asked is not None and header.capture_epoch > asked.header.capture_epoch
        # Checked before the message counts: the new process must not begin what its predecessor was granted.
        if peer.runs and restarted and "once" not in self._off:
            self._reshare = self._reshare or f"capture {peer.capture} has started again"
            if is_other_process:
                peer.fails(now)
            return
        match message:
            case Sync():
                self._receive_sync(peer, message)
            case DispatchResponse():
                self._receive_response(peer, message)
            case Checkpoint():
                self._receive_progress(peer, message.incarnation, message.ranges, message.ddl)
                if self.owner is not None:
                    self.owner.synced(message.status.last_synced_ts)
            case _:
                assert_never(message)

    def _receive_sync(self, peer: Peer, message: Sync) -> None:
        if peer.met_rev != message.header.owner_rev:
            peer.met_rev, peer.met_at = message.header.owner_rev, self._now
        peer.cores, peer.ready = message.cores, message.ready
        peer.has(message.last_sequence)
        if peer.runs:
            peer.receives(message.received if tuple(message.coming) == peer.coming else 0, self._now)
        self.sharing.loads[peer.capture] = message.loads
        # Before the running ranges: the DDL that a processor knows is compared before its progress counts.
        self._receive_progress(peer, message.incarnation, message.checkpoints, message.ddl)
        self._receive_running(peer.capture, message.incarnation, message.ranges)
        peer.holds = bool(message.ranges)
        # Until the sink is open, what the capture holds may belong to the grants of this round.
        if self._sink.is_open:
            self._link.end_leftover(peer)

    def _receive_progress(
        self, peer: Peer, incarnation: int, ranges: Sequence[RangeProgress], ddl: KnownDdl
    ) -> None:
        if self.owner is not None:
            self.owner.receive_ddl(peer.capture, ddl)
            self.owner.report(peer.capture, incarnation, ranges)
        if not peer.runs and {one.id for one in ranges} == set(peer.coming):
            peer.receives(min((one.resolved_ts for one in ranges), default=0), self._now)

    def _receive_response(self, peer: Peer, message: DispatchResponse) -> None:
        asked = peer.asked
        runs = any(one.state is RangeState.RUNNING for one in message.ranges)
        answers = asked is not None and message.answers >= asked.header.sequence
        # An answer to an earlier Dispatch may be late, and the capture may have begun something since it was
        # sent.
        if (answers or "answers" in self._off) and not runs:
            peer.given_up.set()
        if message.error is not None and not peer.runs and peer.coming:
            peer.fails(self._now)
            peer.coming = ()
            self._link.dispatch(peer, Wish.REST)
            return
        if asked is None or message.incarnation != asked.incarnation or not peer.runs:
            return
        if message.error is not None:
            peer.fails(self._now)
            self._fail(Retryable(f"capture {peer.capture}: {message.error.what}"))
        else:
            self._receive_running(peer.capture, message.incarnation, message.ranges)

    def _receive_running(self, capture: str, incarnation: int, ranges: Sequence[RangeStatus]) -> None:
        if self.owner is not None:
            found = [one for one in ranges if one.state is RangeState.RUNNING]
            self.owner.running(capture, incarnation, [GrantedRange(one.id, one.token) for one in found])
            if self._starting and self.owner.ranges.are_running:
                self._starting = False
                self._log("all ranges are delivered")

    # --- the tick ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Read new DDL, perform the effects of the machine, send processors their bound."""
        owner, view = self.owner, self._control.machine.view
        assert owner is not None
        if view.resolved_ts > owner.barrier.resolved:
            owner.learn(self._world.upstream.ddl(owner.barrier.resolved, view.resolved_ts), view.resolved_ts)
        for effect in owner.tick(self._now):
            self._jobs = [job for job in self._jobs if not job.over]
            self._jobs.append(self._time.spawn(self._control.process, self._perform(owner, effect)))
        self._link.follow_up()

    def _perform(self, owner: Owner, effect: Effect) -> Steps[None]:
        """Perform one effect and report it to the machine."""
        try:
            match effect:
                case SendDdl(batch):
                    # An earlier incarnation may have sent the DDL, although the stored checkpoint has not
                    # passed it. The journal shows this, and the DDL must not be sent twice.
                    if batch.finished_ts > self._sink.journal.ddl_ts:
                        yield from self._sink.commit(RecordKind.DDL, batch.finished_ts)
                    self.sharing.passed(owner.ddl_done(batch.finished_ts))
                    self._log(f"delivers the DDL: {batch.events[0].query}")
                case SendResolved(ts):
                    yield from self._sink.commit(RecordKind.RESOLVED, ts)
                    owner.resolved_done(ts)
                    self.life = self.life.progressed()
                case Persist(ts):
                    yield from self._store(ts)
                    owner.persisted(ts)
                case SendRepartition() | Finish():
                    raise AssertionError("nobody asks for that here")
            self.wake.set()
        except Fenced:
            # `Control.write` has ended the capture before it raised this.
            pass  # the capture starts again
        except TidegateError as error:
            self._fail(error)

    def _store(self, ts: Timestamp) -> Steps[None]:
        """Store the checkpoint."""
        rev, status = self._control.owner_rev, FeedStatus(max(ts, self.persisted), ts)
        put = Put(feed_key(CLUSTER, FEED, "status"), status.to_bytes())
        yield from self._control.write(put, stored=lambda: self._world.store(status.checkpoint_ts, rev))
        self.persisted = max(self.persisted, status.checkpoint_ts)

    def _fail(self, error: TidegateError) -> None:
        """Remember the first failure of an incarnation; later ones are its consequences."""
        if self._failure is None:
            self._failure = error
        self.wake.set()

    # --- who gets what -------------------------------------------------------------------------------

    def _check_shares(self) -> None:
        """Divide the key space again if captures come or go, or their loads differ too much."""
        now, sharing = self._now, self.sharing
        if not sharing.is_due(now):
            return
        self._link.announce()
        reachable = self._link.reachable()
        away = [peer for peer in self.peers if not peer.runs and peer not in reachable]
        for peer in away:
            peer.asked, peer.coming = None, ()
        gone = [peer.capture for peer in away]
        self.peers.forget(gone, now)
        sharing.forget(gone)
        known = self.owner.barrier.resolved if self.owner is not None else None
        self._reshare = self._reshare or sharing.captures.lost(now, known)
        if not self._reshare and not self._starting and self.owner is not None:
            self._reshare, prepare = sharing.better(now, self.owner.ranges.resolved, shared=True)
            if not self._reshare:
                for peer in prepare:
                    self._link.dispatch(peer, Wish.RUN if peer.runs else Wish.PREPARE)
                for peer in sharing.not_wanted():
                    self._link.dispatch(peer, Wish.RUN if peer.runs else Wish.REST)
        if self._reshare:
            self._world.timeline.counts["divided again"] += 1
            self._log(f"divides the key space again: {self._reshare}")

    def _log(self, what: str) -> None:
        self._world.note(self._control.capture, what)
