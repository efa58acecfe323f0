"""Percolator two-phase commit across regions: prewrite every key, commit the primary, commit the rest.

`Transaction` is for a program that reads and writes now: optimistic by default, pessimistic with
`lock_keys`. `load_transaction` replays a recorded transaction with exactly its recorded timestamps.
Source of the protocol: TiKV `src/storage/txn` and client-go `txnkv/transaction`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.errors import Fatal, InvalidInput, Retryable, TidegateError
from tidegate.kvclient.backoff import DEFAULT_BUDGET_MS, Backoff, Cause
from tidegate.kvclient.lock_resolver import LockResolver
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.kvclient.region_request import RegionRequester
from tidegate.kvclient.snapshot import Snapshot
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb

LOCK_TTL_MS: Final = 20_000
BATCH_BYTES: Final = 8 << 20
"""The most bytes of keys and values in one prewrite request."""
BATCH_KEYS: Final = 16_384
LOCK_ROUNDS: Final = 64
"""The number of attempts to lock keys pessimistically, each at a newer for_update_ts."""

PUT: Final = kvrpcpb.Put
DEL: Final = kvrpcpb.Del
LOCK: Final = kvrpcpb.Lock
INSERT: Final = kvrpcpb.Insert
CHECK_NOT_EXISTS: Final = kvrpcpb.CheckNotExists


class WriteConflict(Retryable):
    """Another transaction wrote a key after this one's start; the caller must retry with a new start_ts."""


class AlreadyExists(InvalidInput):
    """An inserted key exists."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One key's change; `op` is PUT, DEL, LOCK, INSERT or CHECK_NOT_EXISTS."""

    op: kvrpcpb.Op
    key: bytes
    value: bytes = b""

    @property
    def commits(self) -> bool:
        """Whether the key is locked and committed (CHECK_NOT_EXISTS only checks it)."""
        return bool(self.op != CHECK_NOT_EXISTS)


class Transaction:
    """One transaction. Not thread-safe. It ends with `commit` or `rollback`.

    `pessimistic`: `lock_keys` locks keys at once, and writes to these cannot conflict at commit. `one_phase`:
    if one request to one region holds all keys, and none was locked before, it commits them, as TiDB does by
    default (`tidb_enable_1pc`); otherwise the transaction has two phases.
    """

    def __init__(
        self,
        pd: PdClient,
        *,
        pessimistic: bool = False,
        one_phase: bool = False,
        budget_ms: int = DEFAULT_BUDGET_MS,
    ) -> None:
        self.start_ts = pd.tso()
        self._pd = pd
        self._one_phase = one_phase
        self._pessimistic = pessimistic
        self._budget_ms = budget_ms
        self._snapshot = Snapshot(pd, self.start_ts, budget_ms=budget_ms)
        self._mutations: dict[bytes, Mutation] = {}
        self._locked: list[bytes] = []
        self._primary: bytes | None = None
        self._for_update_ts = self.start_ts if pessimistic else 0
        self._over = False

    def get(self, key: bytes) -> bytes | None:
        """The value that this transaction sees: its own write, otherwise the snapshot at start_ts."""
        mine = self._mutations.get(key)
        # A lock writes no value, so the key has the one of the snapshot.
        if mine is None or mine.op == LOCK:
            return self._snapshot.get(key)
        return None if mine.op == DEL else mine.value

    def put(self, key: bytes, value: bytes) -> None:
        """Set the key to a value; TiKV rejects empty values."""
        if not value:
            raise InvalidInput(
                "a transactional value is empty", where=key.hex(), fix="write one that is not empty"
            )
        self._mutations[key] = Mutation(PUT, key, value)

    def insert(self, key: bytes, value: bytes) -> None:
        """Like put, but the commit raises AlreadyExists if the key exists."""
        if not value:
            raise InvalidInput(
                "a transactional value is empty", where=key.hex(), fix="write one that is not empty"
            )
        self._mutations[key] = Mutation(INSERT, key, value)

    def delete(self, key: bytes) -> None:
        """Remove the key, which need not exist."""
        self._mutations[key] = Mutation(DEL, key)

    def write(self, mutations: Iterable[Mutation]) -> None:
        """Several changes at once; a later one of the same key replaces an earlier one."""
        self._mutations.update((m.key, m) for m in mutations)

    def lock_keys(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """SELECT ... FOR UPDATE: lock keys now, and return their newest values (of those that exist).

        The values may be newer than start_ts. Waits for live transactions within the budget.
        """
        assert self._pessimistic, "only a pessimistic transaction locks keys"
        wanted = [k for k in dict.fromkeys(keys) if k not in self._locked]
        if not wanted:
            return {}
        self._primary = self._primary or wanted[0]
        values: dict[bytes, bytes] = {}
        writer = self._writer()
        for _ in range(LOCK_ROUNDS):
            # A newer ts in each round, because the conflict was a commit above the last one.
            self._for_update_ts = max(self._for_update_ts, self._pd.tso())
            writer.for_update_ts = self._for_update_ts
            try:
                values = writer.pessimistic_lock(wanted, Backoff(self._budget_ms))
                break
            except WriteConflict:
                # Some of the keys may be locked at the earlier for_update_ts.
                writer.pessimistic_rollback(wanted, Backoff(self._budget_ms))
        else:
            raise Retryable("keys change faster than they can be locked", where=wanted[0].hex())
        self._locked += wanted
        for key in wanted:
            # A key that is locked and never written needs a mutation, too. Otherwise its lock would stay
            # until its TTL ends.
            self._mutations.setdefault(key, Mutation(LOCK, key))
        return values

    def commit(self) -> int:
        """Commit; returns commit_ts (0 if there was nothing to write, or only keys that were checked).

        Raises WriteConflict or AlreadyExists after rolling back; Retryable with "undetermined" in it if the
        request that commits the primary got no answer, so it is unknown whether the transaction is committed.
        """
        assert not self._over, "the transaction is over"
        # Before anything can fail: a second `commit` would take another commit_ts.
        self._over = True
        if not self._mutations:
            return 0
        writer = self._writer()
        try:
            if self._one_phase and not self._locked and self._keys():
                # The newest ts, because a reader that begins after the commit must see it.
                writer.one_phase_above = self._pd.tso()
            writer.prewrite(
                list(self._mutations.values()), Backoff(self._budget_ms), pessimistic=set(self._locked)
            )
            if writer.committed_ts:
                return writer.committed_ts
            if not self._keys():
                return 0  # a check locks nothing, so there is nothing to commit
            # After all prewrites: every read above this ts meets the locks or the commit.
            commit_ts = self._pd.tso()
        except TidegateError as error:
            if writer.tried_one_phase:
                return self._settled(error)
            with contextlib.suppress(Retryable):  # an unreachable store keeps the locks until their TTL ends
                writer.rollback(self._keys(), Backoff(self._budget_ms // 10))
            raise
        writer.commit(self._keys(), commit_ts, Backoff(self._budget_ms))
        return commit_ts

    def settle(self) -> int:
        """After a `commit` that raised Retryable, find out whether it was committed, or roll it back.

        Returns the commit_ts if it was committed; this also commits its other keys. Returns 0 if it is rolled
        back for good, so the caller may repeat it in a new transaction. Raises Retryable while the store
        is unreachable; then it may be called again.
        """
        writer = self._writer()
        # A second look, because a rollback is refused if the commit has arrived after the first one.
        for _ in range(2):
            commit_ts = writer.committed_at(Backoff(self._budget_ms))
            if commit_ts:
                writer.commit(self._keys(), commit_ts, Backoff(self._budget_ms))
                return commit_ts
            try:
                writer.rollback(self._keys(), Backoff(self._budget_ms))
            except WriteConflict:
                continue
            return 0
        raise Retryable("a transaction's fate is still unknown", where=f"start_ts {self.start_ts}")

    def _settled(self, error: TidegateError) -> int:
        """The commit_ts of a one-phase commit that failed with `error` and is done nevertheless; else raises.

        Its answer may be lost; and if the region has split since, the repetition meets its own records.
        """
        try:
            commit_ts = self.settle()
        except Retryable as unknown:
            raise _undetermined(unknown, f"start_ts {self.start_ts}") from error
        if commit_ts:
            return commit_ts
        raise error

    def _keys(self) -> list[bytes]:
        return [m.key for m in self._mutations.values() if m.commits]

    def rollback(self) -> None:
        """End the transaction without writing; releases its locks."""
        self._over = True
        if self._locked:
            self._writer().pessimistic_rollback(self._locked, Backoff(self._budget_ms))

    def _writer(self) -> TwoPhase:
        primary = self._primary
        if primary is None:
            # A transaction that only checks keys names one of these. No lock will point to it.
            primary = next(iter([*self._keys(), *self._mutations]))
        return TwoPhase(self._pd, self.start_ts, primary, for_update_ts=self._for_update_ts)


class TwoPhase:
    """The requests of one transaction's commit protocol, for given timestamps."""

    def __init__(
        self,
        pd: PdClient,
        start_ts: int,
        primary: bytes,
        *,
        for_update_ts: int = 0,
        ttl_ms: int = LOCK_TTL_MS,
    ) -> None:
        self.start_ts = start_ts
        self.primary = primary
        self.for_update_ts = for_update_ts
        self._pd = pd
        self._requester = RegionRequester(pd)
        self._resolver = LockResolver(self._requester)
        self._ttl_ms = ttl_ms
        self.one_phase_above = 0
        """`prewrite` may commit all keys at a ts above this one; 0: it only locks them."""
        self.tried_one_phase = False
        """Whether `prewrite` has sent a request that may commit; without an answer it may have done so."""
        self.committed_ts = 0
        """The commit_ts, if `prewrite` has committed them."""

    def prewrite(
        self, mutations: Sequence[Mutation], backoff: Backoff, *, pessimistic: Iterable[bytes] = ()
    ) -> None:
        """Lock every key with its new value; idempotent. `pessimistic`: keys that are already locked."""
        by_key = {m.key: m for m in mutations}
        held = frozenset(pessimistic)
        sent: set[bytes] = set()

        def send(region: RegionInfo, keys: list[bytes]) -> None:
            for batch in _batches([by_key[k] for k in keys]):
                again = not sent.isdisjoint(m.key for m in batch)
                sent.update(m.key for m in batch)
                self._prewrite_batch(region, batch, len(by_key), held, again, backoff)

        self._requester.by_region(by_key, backoff, send)

    def commit(self, keys: Sequence[bytes], commit_ts: int, backoff: Backoff) -> None:
        """Commit the primary's region first, then the others; idempotent."""
        # One request holds the primary and decides the transaction. If it has no answer, no other key may
        # be committed.
        home = next((ks for _, ks in self._pd.regions.group(keys) if self.primary in ks), [self.primary])
        try:
            # A group above BATCH_KEYS would be cut into several requests, and only that of the primary
            # decides.
            self._commit_keys(home if len(home) <= BATCH_KEYS else [self.primary], commit_ts, backoff)
        except Retryable as error:
            raise _undetermined(error, f"start_ts {self.start_ts}, commit_ts {commit_ts}") from error
        done = set(home if len(home) <= BATCH_KEYS else [self.primary])
        rest = [k for k in keys if k not in done]
        if rest:
            # The transaction is committed already. A failure here leaves locks that any reader resolves.
            self._commit_keys(rest, commit_ts, backoff)

    def rollback(self, keys: Sequence[bytes], backoff: Backoff) -> None:
        """Roll back: remove this transaction's locks and make late prewrites fail; idempotent.

        Raises WriteConflict if the transaction is committed.
        """

        def send(region: RegionInfo, members: list[bytes]) -> None:
            for at in range(0, len(members), BATCH_KEYS):
                request = kvrpcpb.BatchRollbackRequest(
                    start_version=self.start_ts, keys=members[at : at + BATCH_KEYS]
                )
                response = self._requester.send(region, "KvBatchRollback", request, backoff)
                if response.HasField("error"):
                    # It may be committed by now. `settle` then looks again, so this is not Fatal.
                    raise WriteConflict(
                        "TiKV refuses a rollback",
                        where=f"start_ts {self.start_ts}",
                        why=str(response.error),
                        fix="read the data to see whether it was committed",
                    )

        self._requester.by_region(keys, backoff, send)

    def pessimistic_lock(self, keys: Sequence[bytes], backoff: Backoff) -> dict[bytes, bytes]:
        """Take pessimistic locks at for_update_ts; returns the newest values of the keys that exist.

        Raises WriteConflict if a key has a commit above for_update_ts.
        """
        values: dict[bytes, bytes] = {}

        def send(region: RegionInfo, members: list[bytes]) -> None:
            for at in range(0, len(members), BATCH_KEYS):
                self._lock_batch(region, members[at : at + BATCH_KEYS], values, backoff)

        self._requester.by_region(keys, backoff, send)
        return values

    def pessimistic_rollback(self, keys: Sequence[bytes], backoff: Backoff) -> None:
        """Release pessimistic locks; idempotent."""

        def send(region: RegionInfo, members: list[bytes]) -> None:
            request = kvrpcpb.PessimisticRollbackRequest(
                start_version=self.start_ts, for_update_ts=self.for_update_ts, keys=members
            )
            self._requester.send(region, "KVPessimisticRollback", request, backoff)

        self._requester.by_region(keys, backoff, send)

    def committed_at(self, backoff: Backoff) -> int:
        """The primary's commit_ts; 0 if it is locked, rolled back or was never prewritten."""
        # Without `current_ts` no lock counts as expired, so this question rolls nothing back.
        request = kvrpcpb.CheckTxnStatusRequest(primary_key=self.primary, lock_ts=self.start_ts)
        response = self._requester.at_key(self.primary, "KvCheckTxnStatus", request, backoff)
        return 0 if response.HasField("error") else int(response.commit_version)

    def _prewrite_batch(
        self,
        region: RegionInfo,
        batch: list[Mutation],
        txn_size: int,
        held: frozenset[bytes],
        again: bool,
        backoff: Backoff,
    ) -> None:
        request = kvrpcpb.PrewriteRequest(
            # Otherwise a pessimistic transaction's keys that it has not locked are not checked. If an earlier
            # attempt has committed them in one phase, they would be locked and committed once more.
            context=kvrpcpb.Context(is_retry_request=again),
            mutations=[kvrpcpb.Mutation(op=m.op, key=m.key, value=m.value) for m in batch],
            primary_lock=self.primary,
            start_version=self.start_ts,
            lock_ttl=self._ttl_ms,
            txn_size=txn_size,
            for_update_ts=self.for_update_ts,
        )
        if self.for_update_ts:
            check = kvrpcpb.PrewriteRequest.DO_PESSIMISTIC_CHECK
            skip = kvrpcpb.PrewriteRequest.SKIP_PESSIMISTIC_CHECK
            # A key that should be locked and is not has lost its lock to another transaction, which must
            # fail the prewrite.
            request.pessimistic_actions.extend(check if m.key in held else skip for m in batch)
        # After a split of the region a request has a part of the keys, and must not commit it.
        if self.one_phase_above and len(batch) == txn_size:
            request.try_one_pc = self.tried_one_phase = True
            request.min_commit_ts = self.one_phase_above + 1
        while True:
            response = self._requester.send(region, "KvPrewrite", request, backoff)
            if not response.errors:
                self.committed_ts = int(response.one_pc_commit_ts)
                return
            self._resolve_locks(response.errors, backoff)

    def _lock_batch(
        self, region: RegionInfo, keys: list[bytes], values: dict[bytes, bytes], backoff: Backoff
    ) -> None:
        request = kvrpcpb.PessimisticLockRequest(
            mutations=[kvrpcpb.Mutation(op=kvrpcpb.PessimisticLock, key=k) for k in keys],
            primary_lock=self.primary,
            start_version=self.start_ts,
            lock_ttl=self._ttl_ms,
            for_update_ts=self.for_update_ts,
            # TiKV does not wait (client-go `LockNoWait`). We resolve the lock, or wait within our own budget.
            wait_timeout=-1,
            return_values=True,
        )
        while True:
            response = self._requester.send(region, "KvPessimisticLock", request, backoff)
            if not response.errors:
                break
            self._resolve_locks(response.errors, backoff)
        # An older TiKV sends no `not_founds`. A transactional value is never empty, so an empty one is a
        # missing key.
        absent = list(response.not_founds) or [not v for v in response.values]
        values.update(
            (k, bytes(v)) for k, v, gone in zip(keys, response.values, absent, strict=False) if not gone
        )

    def _commit_keys(self, keys: Sequence[bytes], commit_ts: int, backoff: Backoff) -> None:
        def send(region: RegionInfo, members: list[bytes]) -> None:
            for at in range(0, len(members), BATCH_KEYS):
                request = kvrpcpb.CommitRequest(
                    start_version=self.start_ts, keys=members[at : at + BATCH_KEYS], commit_version=commit_ts
                )
                response = self._requester.send(region, "KvCommit", request, backoff)
                if response.HasField("error"):
                    raise WriteConflict(
                        "a commit was refused",
                        where=f"start_ts {self.start_ts}",
                        why=str(response.error).strip(),
                    )

        self._requester.by_region(keys, backoff, send)

    def _resolve_locks(self, errors: Iterable[kvrpcpb.KeyError], backoff: Backoff) -> None:
        """Resolve the locks in `errors`, wait for live ones. Raises WriteConflict or AlreadyExists."""
        locks = []
        for error in errors:
            if error.HasField("locked"):
                locks.append(error.locked)
            elif error.HasField("already_exist"):
                raise AlreadyExists("an inserted key exists already", where=error.already_exist.key.hex())
            elif error.HasField("conflict"):
                raise WriteConflict(
                    "another transaction wrote a key first",
                    where=f"key {error.conflict.key.hex()}, start_ts {self.start_ts}",
                    why=f"committed at {error.conflict.conflict_commit_ts}",
                )
            elif error.retryable or error.abort:
                raise WriteConflict("the store refused a write", why=error.retryable or error.abort)
            else:
                raise WriteConflict(
                    "the store refused a write", where=f"start_ts {self.start_ts}", why=str(error)
                )
        # After the loop. A conflict ends the transaction, so its other locks need not be resolved, let alone
        # waited for.
        _, wait_ms = self._resolver.resolve(locks, 0, backoff)
        if wait_ms:
            where = f"key {locks[0].key.hex()}, held by start_ts {locks[0].lock_version}"
            self._pd.pause(backoff.next(Cause.LOCK, where=where))


def load_transaction(
    pd: PdClient,
    *,
    start_ts: int,
    commit_ts: int,
    primary: bytes,
    mutations: Sequence[Mutation],
    pessimistic: bool = False,
    budget_ms: int = DEFAULT_BUDGET_MS,
) -> bool:
    """Commit a recorded transaction with its own timestamps; False if it was already committed.

    `pessimistic`: a key has a commit above start_ts, so the keys are locked first at for_update_ts =
    commit_ts - 1. Every step is idempotent, so an interrupted load is completed by repeating it.
    """
    assert start_ts < commit_ts
    writer = TwoPhase(pd, start_ts, primary, for_update_ts=commit_ts - 1 if pessimistic else 0)
    keys = [m.key for m in mutations if m.commits]
    try:
        if pessimistic:
            writer.pessimistic_lock(keys, Backoff(budget_ms))
        writer.prewrite(mutations, Backoff(budget_ms), pessimistic=keys if pessimistic else ())
    except (WriteConflict, AlreadyExists):
        # A load that is repeated meets its own commits, which look like conflicts.
        if not is_loaded(pd, start_ts=start_ts, commit_ts=commit_ts, primary=primary, budget_ms=budget_ms):
            raise
        writer.commit(keys, commit_ts, Backoff(budget_ms))
        return False
    writer.commit(keys, commit_ts, Backoff(budget_ms))
    return True


def is_loaded(
    pd: PdClient, *, start_ts: int, commit_ts: int, primary: bytes, budget_ms: int = DEFAULT_BUDGET_MS
) -> bool:
    """Whether a recorded transaction's primary is committed. Raises Fatal if its commit ts is another one."""
    found = TwoPhase(pd, start_ts, primary).committed_at(Backoff(budget_ms))
    if found not in (0, commit_ts):
        raise Fatal(
            "a recorded transaction is in the upstream with another commit ts",
            where=f"start_ts {start_ts}",
            why=f"commit ts {found}, recorded {commit_ts}",
            fix="load into an upstream that holds nothing else",
        )
    return found == commit_ts


def _undetermined(error: Retryable, where: str) -> Retryable:
    return Retryable(
        "a commit is undetermined: the request that commits the primary got no answer",
        where=where,
        why=error.what + (f"; {error.why}" if error.why else ""),
        fix="read the data to see whether it was committed",
    )


def _batches(mutations: list[Mutation]) -> list[list[Mutation]]:
    """Split by BATCH_KEYS and BATCH_BYTES; a larger mutation gets its own batch."""
    batches: list[list[Mutation]] = []
    size = 0
    for mutation in mutations:
        weight = len(mutation.key) + len(mutation.value)
        if not batches or len(batches[-1]) >= BATCH_KEYS or size + weight > BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(mutation)
        size += weight
    return batches
