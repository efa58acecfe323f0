"""An owner's task: what `server.owner.replication` does around the machine `control.owner`, in virtual time.

    meet processors -> open -> [share -> grant -> fence -> sink -> dispatch -> tick ...] -> back-off -> [...]

The machine, the life (`control.changefeed`), the division of ranges (`server.owner.sharing`,
`control.share`), the state of processors (`server.owner.peers`) and the messages are the product's code. This
file performs the effects in the order of `server.owner.replication` and with its constants, so that the two
can be compared. `owner_link` has the messages to processors, `owner_reports` those from them, `owner_shares`
the division, `owner_grants` the grants in etcd, `owner_sink` the sink.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tidegate.control.barrier import Barrier
from tidegate.control.changefeed import Life, State
from tidegate.control.grants import Grant
from tidegate.control.messages import FromProcessor, Wish
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
from tidegate.server.owner.sharing import CAPTURES_S
from tidegate.simulator.owner_grants import OwnerGrants
from tidegate.simulator.owner_link import ALL_KEYS, OwnerLink
from tidegate.simulator.owner_reports import OwnerReports
from tidegate.simulator.owner_shares import OwnerShares
from tidegate.simulator.owner_sink import OwnerSink
from tidegate.simulator.sink import RecordKind
from tidegate.simulator.virtual_time import Signal, Steps, Task
from tidegate.simulator.world import CLUSTER, FEED

if TYPE_CHECKING:
    from tidegate.simulator.control_process import Control

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
        self._link = OwnerLink(control, self.peers, self.wake, self._terms, self._take_message)
        self.life = Life()
        self._jobs: list[Task] = []
        self._failure: TidegateError | None = None
        self._grants = OwnerGrants(control, self.peers)
        self._sink = OwnerSink(control, self._grants)
        self.shares = OwnerShares(control, self.peers, self._link, self._grants)
        self._reports = OwnerReports(control, self._link, self.shares, self._sink, self._fail)

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
        while not self.shares.reason:
            self._tick()
            self.shares.check_shares(self.owner, is_starting=self._reports.is_starting)
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
        self.shares.sharing.begin(tasks)
        known = view.resolved_ts
        barrier = Barrier(self.persisted)
        self.owner = Owner(self.persisted, barrier, ALL_KEYS, resolved_interval_s=RESOLVED_S, spans=tasks)
        self.owner.learn(upstream.ddl(self.persisted, known), known)

    # --- an incarnation ------------------------------------------------------------------------------

    def _start_incarnation(self) -> Steps[None]:
        """Divide the shares, store grants, open the sink, dispatch to processors, in this order."""
        assert self.owner is not None
        self._failure, self.shares.reason = None, ""
        grants = yield from self.shares.raise_grants(self.owner)
        name = self._control.capture
        lead = name if name in grants else min(grants)
        # A run without the guard: givers count as fenced before they are.
        if "fence_before_settled" in self._off and len(grants) > 1:
            yield from self._grants.settle(grants)
        fenced = yield from self._sink.fence_all(grants, grants[lead], lead)
        settling = self._time.spawn(self._control.process, self._settle(fenced))
        self._jobs.append(settling)
        yield from self._sink.open(grants[lead], lead)
        while not settling.over and "settled_before_run" not in self._off:
            yield settling.done.wait(JOBS_S)
        if self._failure is not None:
            raise self._failure
        self.owner.sink_open(self._sink.journal.resolved_ts, self._sink.journal.ddl_ts)
        self._reports.is_starting = True
        self._world.timeline.counts["incarnations"] += 1
        self._log("dispatches to " + ", ".join(sorted(grants)))
        # Last. A processor that is asked to run must find its grant stored, and if others write as well, all
        # earlier writers fenced.
        for one in sorted(grants):
            self._link.dispatch(self.peers[one], Wish.RUN)

    def _settle(self, fenced: dict[str, Grant]) -> Steps[None]:
        """Store that writers are fenced; the sink opens meanwhile."""
        try:
            yield from self._grants.settle(fenced)
        except TidegateError as error:
            self._fail(error)

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

    def _terms(self) -> tuple[Timestamp, Timestamp]:
        bound = self.owner.barrier.bound if self.owner is not None else self.persisted
        return bound, self.persisted

    def _take_message(self, peer: Peer, message: FromProcessor) -> None:
        self._reports.take(peer, message, self.owner)

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
                    self.shares.sharing.spans.passed(owner.ddl_done(batch.finished_ts))
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

    def _log(self, what: str) -> None:
        self._world.note(self._control.capture, what)
