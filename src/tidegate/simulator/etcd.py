"""A model of etcd, with keys, revisions, leases and guarded transactions, and a client for captures.

    keys and leases (`Etcd`, the contract of `control.metadata.MetadataStore`) <--calls-- `EtcdClient`

Every call is linearizable. An answer may be lost, and etcd may be down for a while. After a restart every
lease gets its whole TTL again, as in etcd when a new leader begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.control.metadata import (
    Compare,
    Delete,
    GuardedWrites,
    KeyValue,
    Put,
    WriteResult,
)
from tidegate.errors import Retryable
from tidegate.simulator.network import ETCD, Network
from tidegate.simulator.virtual_time import Process, Steps, VirtualTime

ATTEMPT_S: Final = 1.0
"""How long the client waits for the answer to one request."""
ANSWER_S: Final = 4.0
"""How long a call is retried."""


@dataclass(slots=True)
class EtcdLease:
    """A lease. Its keys are deleted when it ends."""

    ttl_s: float
    until: float


class Etcd:
    """The state of etcd. Its calls take no virtual time."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.revision = 1
        self._keys: dict[str, KeyValue] = {}
        self._lease_of: dict[str, int] = {}
        self._leases: dict[int, EtcdLease] = {}
        self._next_lease = 100
        self.up = True

    def get(self, key: str) -> KeyValue | None:
        """The latest committed value of a key."""
        return self._keys.get(key)

    def under(self, prefix: str) -> Sequence[KeyValue]:
        """All keys that begin with `prefix`, in key order."""
        return [self._keys[key] for key in sorted(self._keys) if key.startswith(prefix)]

    def transact(
        self, guards: Sequence[Compare], writes: Sequence[Put | Delete], lease: int = 0
    ) -> WriteResult:
        """Apply all writes at one new revision if all guards are true, otherwise none. Written keys are
        attached to `lease`; 0: none.
        """
        if not self.holds(guards) or (lease and lease not in self._leases):
            return WriteResult(False, self.revision)
        self.revision += 1
        for write in writes:
            before = self._keys.pop(write.key, None)
            self._lease_of.pop(write.key, None)
            if isinstance(write, Put):
                # As in etcd, a Put over an existing key keeps its create revision. Elections compare that
                # one.
                created = before.create_revision if before is not None else self.revision
                self._keys[write.key] = KeyValue(write.key, write.value, created, self.revision)
                if lease:
                    self._lease_of[write.key] = lease
        return WriteResult(True, self.revision)

    def transact_all(self, asked: Sequence[GuardedWrites]) -> list[WriteResult]:
        """Apply transactions in order."""
        return [self.transact(one.guards, one.writes) for one in asked]

    def close(self) -> None:
        """Does nothing: there is no connection."""

    def holds(self, guards: Sequence[Compare]) -> bool:
        """Whether all guards are true now."""
        return all(map(self._holds, guards))

    def _holds(self, guard: Compare) -> bool:
        held = self._keys.get(guard.key)
        mod, created = (held.mod_revision, held.create_revision) if held is not None else (0, 0)
        return guard.mod_revision in (None, mod) and guard.create_revision in (None, created)

    # --- leases --------------------------------------------------------------------------------------

    def grant_lease(self, ttl_s: float) -> int:
        """A new lease."""
        self._next_lease += 1
        self._leases[self._next_lease] = EtcdLease(ttl_s, self._time.now + ttl_s)
        self._expire_later(self._next_lease)
        return self._next_lease

    def keep_alive(self, lease: int) -> int:
        """Renew a lease. Returns its TTL in seconds, 0 if it does not exist any more."""
        found = self._leases.get(lease)
        if found is None:
            return 0
        found.until = self._time.now + found.ttl_s
        return int(found.ttl_s)

    def revoke(self, lease: int) -> None:
        """End a lease and delete its keys."""
        if self._leases.pop(lease, None) is not None:
            gone = [key for key, held in self._lease_of.items() if held == lease]
            self.transact((), [Delete(key) for key in gone])

    def lease_of(self, key: str) -> int:
        """The lease of a key. 0: none."""
        return self._lease_of.get(key, 0)

    def _expire_later(self, lease: int) -> None:
        self._time.after(self._leases[lease].until - self._time.now, self._expire, lease)

    def _expire(self, lease: int) -> None:
        found = self._leases.get(lease)
        if found is None:
            return
        # While etcd is down, no lease may end: `restarted` will give each one its whole TTL again.
        if not self.up or found.until > self._time.now:
            self._time.after(max(found.until - self._time.now, 0.5), self._expire, lease)
        else:
            self.revoke(lease)

    def restarted(self) -> None:
        """The service answers again after a restart. All leases get their whole TTL again."""
        self.up = True
        for lease in self._leases.values():
            lease.until = self._time.now + lease.ttl_s


@dataclass(slots=True)
class EtcdClient:
    """The etcd client of one process. Its calls raise Retryable while etcd does not answer."""

    etcd: Etcd
    network: Network
    process: Process
    place: str
    off: frozenset[str] = frozenset()
    """Disabled guards."""
    known: dict[str, int] = field(default_factory=dict)
    """The revisions of keys when this process last read or wrote them."""

    def ask(self, work: Any, *args: Any, patience_s: float = ATTEMPT_S) -> Steps[Any]:
        """One attempt of a call."""
        found = yield from self.network.call(self.process, self.place, ETCD, lambda: work(*args), patience_s)
        return found

    def read(self, work: Any, *args: Any) -> Steps[Any]:
        """An idempotent call, retried for ANSWER_S."""
        until = self.network.time.now + ANSWER_S
        while True:
            try:
                found = yield from self.ask(work, *args)
            except Retryable:
                if self.network.time.now >= until:
                    raise
                continue
            return found

    def transact(
        self,
        guards: Sequence[Compare],
        writes: Sequence[Put | Delete],
        lease: int = 0,
        stored: Callable[[], None] = lambda: None,
    ) -> Steps[bool]:
        """A transaction, as in `etcd.metadata.EtcdMetadata`. Returns False if a guard failed.

        Each attempt compares every written key with the revision that was known before the first attempt. So
        the transaction is applied at most once, even if an earlier attempt arrives late. `stored`: called
        when etcd applies it. Raises Retryable if it is unknown whether it was applied.
        """
        keys = [write.key for write in writes]
        # The revisions must be from before the first attempt. If they were read between two attempts, the
        # second would compare with what the first has written, and the transaction could be applied twice.
        if not self.known.keys() >= set(keys):
            yield from self._look(keys)
        compares = list(guards)
        if "key_revisions" not in self.off:
            compares += (Compare(key, mod_revision=self.known[key]) for key in keys)

        def carry_out() -> WriteResult:
            outcome = self.etcd.transact(compares, writes, lease)
            if outcome.succeeded:
                stored()
            return outcome

        outcome = yield from self.read(carry_out)
        if outcome.succeeded:
            self.known |= {one.key: outcome.revision if isinstance(one, Put) else 0 for one in writes}
            return True
        # A failed compare may mean that an earlier attempt of this call was applied and its answer was lost.
        done = yield from self.read(self._is_done, writes)
        # The next transaction compares with what is stored now, whatever process has written it.
        yield from self._look(keys)
        if done:
            return True
        # False means that one of the caller's guards failed. If they hold, another writer has changed a key,
        # and whether an attempt was applied before that cannot be known any more.
        hold = yield from self.read(self.etcd.holds, guards)
        if hold:
            raise Retryable("a written key has changed meanwhile", where=", ".join(keys))
        return False

    def _look(self, keys: Sequence[str]) -> Steps[None]:
        found = yield from self.read(lambda: [self.etcd.get(key) for key in keys])
        for key, held in zip(keys, found, strict=True):
            self.known[key] = held.mod_revision if held is not None else 0

    def _is_done(self, writes: Sequence[Put | Delete]) -> bool:
        found = [(one, self.etcd.get(one.key)) for one in writes]
        return all((kv.value if kv else None) == getattr(one, "value", None) for one, kv in found)
