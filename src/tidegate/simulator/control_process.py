"""The control process of a simulated capture, from its start to the loss of its session or its death.

    session -> register -> campaign -> [processor] [elected: owner] -> session lost

It joins like `server.captures.membership`: its epoch is the revision of its key, and it trusts its lease as
`etcd.session.LocalLease` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tidegate.control.metadata import Compare, Delete, Put
from tidegate.errors import Fenced, Retryable
from tidegate.etcd.election import META, capture_prefix, drained_prefix, owner_prefix
from tidegate.etcd.session import RENEWALS, LocalLease
from tidegate.server.captures.message_router import MessageRouter
from tidegate.server.owner.sharing import CAPTURES_S
from tidegate.simulator.etcd import EtcdClient
from tidegate.simulator.owner_task import OwnerTask
from tidegate.simulator.processor_task import ProcessorTask
from tidegate.simulator.upstream import EPOCH_MS
from tidegate.simulator.virtual_time import Process, Signal, Steps, Task, VirtualTime
from tidegate.simulator.words import words
from tidegate.simulator.world import CLUSTER, World

if TYPE_CHECKING:
    from tidegate.simulator.capture import Capture

PAUSE_S: Final = 0.1
"""The pause after a renewal without an answer."""
META_PREFIX: Final = capture_prefix(CLUSTER).rpartition(META)[0] + META + "/"
"""The prefix of the keys of captures, candidates and drained captures."""


class Moment(StrEnum):
    """The moments at which a trap may act: those at which a stopped or killed process does the most harm."""

    WRITE = "as its owner writes to etcd"
    ANNOUNCE = "as its owner sends Resolved or DDL"
    COMMIT = "in the middle of a worker's transaction"


@dataclass(slots=True)
class SimulatedClock:
    """The `Clock` of the machines on one capture. It may go too fast or too slowly."""

    time: VirtualTime
    rate: float = 1.0
    """How fast it goes."""
    _set_at: float = 0.0
    _ahead_s: float = 0.0
    """By how much it was ahead of the true time when the rate was set, at `_set_at`."""

    def now_ms(self) -> int:
        """The wall clock time in ms."""
        return EPOCH_MS + int(self.time.now * 1000)

    def monotonic(self) -> float:
        """Seconds since the simulation began, by this clock."""
        return self._set_at + self._ahead_s + (self.time.now - self._set_at) * self.rate

    def set_rate(self, rate: float) -> None:
        """Let it go faster or more slowly from now on."""
        # First, with the old rate: the clock must not jump when its rate changes, since it is monotonic.
        self._ahead_s = self.monotonic() - self.time.now
        self._set_at, self.rate = self.time.now, rate


class Control:
    """One life of a capture's control process."""

    def __init__(self, world: World, machine: Capture) -> None:
        self.world, self.machine = world, machine
        self.capture = machine.name
        self.process = Process(machine.name)
        self.client = EtcdClient(world.etcd, world.network, self.process, machine.name, world.off)
        self.router = MessageRouter(self._begin_processor, machine.name, self._send)
        self.clock = machine.clock
        self.process.rate = machine.clock.rate
        self.epoch = self.owner_rev = 0
        self.owner_key = ""
        self.drained: set[str] = set()
        self.processor: ProcessorTask | None = None
        self.owner: OwnerTask | None = None
        self._owning: Task | None = None
        """The task of `owner`."""
        self.lease_id = 0
        self._lease = LocalLease()
        self._lost = Signal(world.time)
        self._there: tuple[str, ...] = ()
        self._next_grant = self._next_message = 1
        world.time.spawn(self.process, self._run())

    # --- the capture as the machines see it (`server.owner.able_captures.DividingCapture`) ------------------

    def others(self) -> Mapping[str, str]:
        """The other captures, as of the last look."""
        return {name: name for name in self._there if name != self.capture}

    def burdens(self) -> Mapping[str, int]:
        """Empty, because there is only one changefeed."""
        return {}

    def now_ms(self) -> int:
        """Upstream's time in ms."""
        return self.clock.now_ms()

    def token(self) -> tuple[int, int]:
        """A token above all earlier ones."""
        self._next_grant += 1
        return self.owner_rev, self._next_grant - 1

    def next_sequence(self) -> int:
        """A sequence for a message of the owner, above all earlier ones."""
        self._next_message += 1
        return self._next_message - 1

    # --- the session ---------------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether the session is certain to exist, so that no other capture can be the owner if we are."""
        return self._lease.holds(self.clock.monotonic())

    def _run(self) -> Steps[None]:
        yield from self._join()
        self.world.time.spawn(self.process, self._look())
        while self.holds and not self._lost.is_set:
            yield self._lost.wait(max(PAUSE_S, self._lease.until - self.clock.monotonic()))
        self.lose("its session has ended")

    def _join(self) -> Steps[None]:
        """Begin a session, register, and campaign; retry until all of it succeeds."""
        etcd, time, ttl_s = self.world.etcd, self.world.time, self.world.ttl_s
        while True:
            try:
                # A retry keeps a lease that is still certain. The capture's key of the earlier attempt has
                # that lease, and would block another one until it expires.
                if not self.lease_id or self._lease.gone or not self.holds:
                    self._lease, sent = LocalLease(), self.clock.monotonic()
                    # `sent` was read before: etcd counts the TTL from some moment after that, so our trust
                    # ends earlier.
                    self.lease_id = yield from self.client.ask(etcd.grant_lease, ttl_s)
                    self._lease.renewed(sent, ttl_s)
                    time.spawn(self.process, self._renew(self.lease_id))
                key = capture_prefix(CLUSTER) + self.capture
                # An earlier life still has the name. Its lease has to expire first.
                if not (yield from self._put_leased(key, f"{self.capture} {self.lease_id}")):
                    yield PAUSE_S * 5
                    continue
                found = yield from self.client.read(etcd.get, key)
                self.owner_key = f"{owner_prefix(CLUSTER)}{self.lease_id:x}"
                if found is not None and (yield from self._put_leased(self.owner_key, self.capture)):
                    # Set only when both keys are stored, because messages are received from then on.
                    self.epoch = found.mod_revision
                    break
            except Retryable:
                yield PAUSE_S * 5
        self.world.note(self.capture, f"joins, epoch {self.epoch}")

    def _put_leased(self, key: str, value: str) -> Steps[bool]:
        absent = Compare(key, mod_revision=0)
        done = yield from self.client.transact((absent,), (Put(key, value.encode()),), self.lease_id)
        return bool(done)

    def _renew(self, lease: int) -> Steps[None]:
        etcd, every_s = self.world.etcd, self.world.ttl_s / RENEWALS
        pause = every_s
        while lease == self.lease_id and not self._lease.gone:
            yield pause
            sent = self.clock.monotonic()
            try:
                found = yield from self.client.ask(etcd.keep_alive, lease, patience_s=every_s)
            except Retryable:
                # An answer may be lost although etcd is up. The pause is short, because the lease runs out
                # meanwhile.
                pause = PAUSE_S
                continue
            # The answer may come after `_join` has begun another session, whose lease it says nothing about.
            if lease == self.lease_id:
                self._lease.renewed(sent, found)
            pause = every_s
        if lease == self.lease_id:
            self._lost.set()

    def _look(self) -> Steps[None]:
        """Watch which captures exist, and which candidate is elected."""
        captures, owners, drained = capture_prefix(CLUSTER), owner_prefix(CLUSTER), drained_prefix(CLUSTER)
        while True:
            try:
                found = yield from self.client.ask(self.world.etcd.under, META_PREFIX)
            except Retryable:
                continue
            keys = [kv.key for kv in found]
            self._there = tuple(key.removeprefix(captures) for key in keys if key.startswith(captures))
            self.drained = {key.removeprefix(drained) for key in keys if key.startswith(drained)}
            candidates = [kv for kv in found if kv.key.startswith(owners)]
            least = min(candidates, key=lambda kv: kv.create_revision, default=None)
            # `holds` comes last and is asked now: the list may be old, and our key in it may have expired. It
            # may also be the key of a term from which we have resigned.
            if least is None or least.key != self.owner_key or least.create_revision <= self.owner_rev:
                yield CAPTURES_S
                continue
            if self.owner is None and self.holds:
                self._become_owner(least.create_revision)
            yield CAPTURES_S

    def _become_owner(self, revision: int) -> None:
        self.owner_rev = revision
        self.client.known.clear()  # since an earlier term of this process others have written
        self.world.note(self.capture, f"is elected, owner {revision}")
        self.world.timeline.counts["owners elected"] += 1
        self.owner = OwnerTask(self)
        self._owning = self.world.time.spawn(self.process, self.owner.run())

    def resign(self) -> None:
        """Let another capture be elected. Session, processor and workers stay (`server.tenure`)."""
        if self.owner is not None and self._owning is not None:
            self.world.time.spawn(self.process, self._step_down(self.owner, self._owning))

    def _step_down(self, owner: OwnerTask, owning: Task) -> Steps[None]:
        owning.cancel()
        owner.end()
        self.router.owners.clear()
        mine = Compare(self.owner_key, mod_revision=self.owner_rev)
        try:
            yield from self.client.transact((mine,), (Delete(self.owner_key),))
            # Also if an answer was lost and the key is there again.
            yield from self._put_leased(self.owner_key, self.capture)
        except Retryable as error:
            self.lose(f"it is asked to resign, and etcd does not answer ({error.what})")
            return
        self.owner = self._owning = None

    def lose(self, why: str) -> None:
        """Its state cannot be trusted any more: end all its work, and start again with a new session."""
        if self.machine.control is self:
            self.world.note(self.capture, f"starts again: {why}")
            # Not at once, because the task that loses the session belongs to the process that would be
            # killed.
            self.world.time.after(0.0, self.machine.restart, self)
            self.machine.control = None

    # --- writes --------------------------------------------------------------------------------------

    def write(
        self,
        *writes: Put | Delete,
        guards: tuple[Compare, ...] = (),
        stored: Callable[[], None] = lambda: None,
    ) -> Steps[bool]:
        """Write durably if we are the owner, otherwise raise Fenced. Returns False if another
        guard failed.
        """
        if not self.holds:
            self.lose("its session has ended")
            raise Fenced("the capture's session has ended")
        # Between the look at the session and the write: the time in which a stopped owner is replaced unseen.
        self.machine.spring(Moment.WRITE)
        yield self.world.time.rng.uniform(0.0, 0.002)
        mine = Compare(self.owner_key, mod_revision=self.owner_rev)
        own = () if "election_guard" in self.world.off else (mine,)
        try:
            done = yield from self.client.transact((*own, *guards), writes, stored=stored)
            if done:
                return True
            # A failed guard has two meanings. Only a lost election ends the capture. The caller acts on the
            # others.
            held = yield from self.client.read(self.world.etcd.holds, (mine,))
        except Retryable as error:
            # The machine would continue from a state that etcd may not have. The next life reads what is
            # stored.
            self.lose(f"it does not know what is stored ({error.what})")
            raise Fenced("it is not known what etcd has stored") from error
        if not held:
            self.lose("another is the owner")
            raise Fenced("another capture is the owner")
        return False

    def announces(self) -> None:
        """The owner is about to send Resolved or DDL."""
        self.machine.spring(Moment.ANNOUNCE)

    # --- messages ------------------------------------------------------------------------------------

    def _send(self, to: str, message: bytes) -> None:
        if to in self._there:
            self.world.network.send(self.capture, to, lambda: self.machine.post(self.capture, to, message))

    def receive(self, sender: str, message: bytes) -> None:
        """A message of another capture has arrived."""
        if not self.epoch:
            return  # it has not joined yet
        self.world.timeline.counts["messages received"] += 1
        if self.world.timeline.whole:
            self.world.note(self.capture, f"receives from {sender}: {words(message)}")
        self.router.deliver(sender, message)

    def _begin_processor(self, changefeed: str) -> None:
        self.processor = ProcessorTask(self)
        self.router.processors[changefeed] = self.processor.box
        self.world.time.spawn(self.process, self.processor.run())
