"""Finds out whether the transaction of a blocking lock was committed or rolled back, and clears the lock.

Called by snapshots and transactions that met a lock, and by the puller for regions whose resolved ts does not
rise. The state of a transaction is decided at its primary key (CheckTxnStatus), that of an async-commit
transaction at all its keys (CheckSecondaryLocks). Locks of live transactions stay.

A **pessimistic** lock is a claim, not a write, and its transaction may still choose another primary. So if
the lock of its primary is missing or expired, this does not decide the transaction. A reader or writer that
waits for such a lock may only remove the claim (KvPessimisticRollback, which leaves no record and does
nothing once the key is prewritten). `resolve_span` never touches claims, because a change stream does not
track them. Resolving a claim like a prewritten lock would leave a rollback record, and then the prewrite of
its live transaction would fail.

(client-go: txnkv/txnlock/lock_resolver.go; the primary that moves: tidb#42937.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidegate.errors import Fatal, Retryable
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.kvclient.region_request import RegionMoved, RegionRequester
from tidegate.log import event
from tidegate.model import timestamp
from tidegate.model.span import Span
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.tidb.memcomparable import decode_bytes

LOG: Final = logging.getLogger(__name__)

SCAN_LOCK_LIMIT: Final = 1024
TRACKED: Final = (kvrpcpb.Put, kvrpcpb.Del)
"""The kinds of locks that hold a change stream's resolved ts back; an insert's is a Put."""
DETERMINED: Final = (kvrpcpb.NoAction, kvrpcpb.TTLExpireRollback, kvrpcpb.LockNotExistRollback)
"""Actions in CheckTxnStatus's answer after which the transaction can no longer be committed."""
TS_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Fate:
    """The state of a transaction: committed if `commit_ts` > 0, running if `live`, otherwise rolled back.

    If the state is not known for certain, it is `live`.
    """

    commit_ts: int = 0
    live: bool = False
    ttl_ms: int = 0
    """The longest that a live transaction's lock remains valid from now."""
    pushed: bool = False
    """The transaction is live, but can only commit above the caller's ts, so its lock may be ignored."""


class LiveTransactions(NamedTuple):
    """Prewritten keys of live transactions: their number, and their smallest start_ts (0: there are none).

    `locks_found`: the number of all locks in the range, of ended transactions too.
    """

    keys: int = 0
    oldest: int = 0
    locks_found: int = 0

    def __add__(self, other: object) -> LiveTransactions:
        """The sum of both."""
        if not isinstance(other, LiveTransactions):
            return NotImplemented
        stamps = [ts for ts in (self.oldest, other.oldest) if ts]
        locks_found = self.locks_found + other.locks_found
        return LiveTransactions(self.keys + other.keys, min(stamps, default=0), locks_found)


class LockResolver:
    """Resolves locks for one reader or writer."""

    def __init__(self, requester: RegionRequester) -> None:
        self._requester = requester
        self._pd: PdClient = requester.pd

    def resolve(
        self, locks: Iterable[kvrpcpb.LockInfo], caller_ts: int, backoff: Backoff
    ) -> tuple[list[int], int]:
        """Clear the locks of ended transactions.

        Returns the start_ts of live transactions whose locks a read at `caller_ts` may ignore, and the
        milliseconds to wait for the others (0: no lock blocks any more). `caller_ts` 0 pushes no transaction.
        """
        by_txn: dict[int, list[kvrpcpb.LockInfo]] = {}
        ignorable: list[int] = []
        wait_ms = 0
        for lock in locks:
            if lock.lock_type == kvrpcpb.PessimisticLock:
                wait_ms = max(wait_ms, self._take_claim(lock, backoff))
            else:
                by_txn.setdefault(lock.lock_version, []).append(lock)
        for start_ts, members in by_txn.items():
            # One lock is enough: the fate is that of the transaction.
            fate = self.fate(members[0], caller_ts, backoff)
            if fate.pushed:
                ignorable.append(start_ts)
            elif fate.live:
                # At least 1, because 0 means that no lock blocks any more.
                wait_ms = max(wait_ms, fate.ttl_ms, 1)
            else:
                self.clear(start_ts, fate.commit_ts, [m.key for m in members], backoff)
        return ignorable, wait_ms

    def fate(self, lock: kvrpcpb.LockInfo, caller_ts: int, backoff: Backoff, now: int = 0) -> Fate:
        """The state of a prewritten lock's transaction. If the transaction has expired, asking rolls it back.

        `now`: a current timestamp; 0: get one from PD. Raises Fatal if the keys contradict each other.
        """
        now = now or self._pd.tso()
        status = self._check(lock, caller_ts, now, backoff)
        if status is None:
            return Fate(live=True, ttl_ms=_left_ms(lock.lock_version, lock.lock_ttl, now))
        info = status.lock_info
        # Only after its TTL, because the check of secondaries writes a rollback where a lock is missing.
        # Before that, the transaction's own client may still be writing them.
        if status.lock_ttl and info.use_async_commit and _expired(info, now):
            fate = self._async_fate(info, backoff)
            if fate is not None:
                return fate
            # It fell back to two-phase commit: the primary alone decides, and its commit ts comes from PD.
            status = self._check(lock, caller_ts, now, backoff, force_sync_commit=True)
        if status is None or status.lock_ttl:
            pushed = status is not None and caller_ts > 0 and status.action == kvrpcpb.MinCommitTSPushed
            ttl_ms = lock.lock_ttl if status is None else status.lock_ttl
            return Fate(live=True, ttl_ms=_left_ms(lock.lock_version, ttl_ms, now), pushed=pushed)
        # Neither committed nor rolled back for certain. To call it live only costs another look; to clear
        # the lock could lose a write.
        if not status.commit_version and status.action not in DETERMINED:
            return Fate(live=True, ttl_ms=1)
        return Fate(commit_ts=status.commit_version)

    def clear(self, start_ts: int, commit_ts: int, keys: list[bytes], backoff: Backoff) -> None:
        """Commit (commit_ts > 0) or roll back the locks of one transaction on these keys."""

        def send(region: RegionInfo, members: list[bytes]) -> None:
            request = kvrpcpb.ResolveLockRequest(
                start_version=start_ts, commit_version=commit_ts, keys=members
            )
            response = self._requester.send(region, "KvResolveLock", request, backoff)
            if response.HasField("error"):
                raise Retryable(
                    "a lock could not be resolved", where=f"start_ts {start_ts}", why=str(response.error)
                )

        self._requester.by_region(keys, backoff, send)

    def resolve_span(self, span: Span, max_ts: int, backoff: Backoff, now: int = 0) -> LiveTransactions:
        """Clear the locks in `span` with start_ts <= max_ts that needlessly hold back a change stream.

        These are prewritten puts and deletes of ended transactions; all other locks stay. Returns the locks
        of live transactions that remain. A request reads at most SCAN_LOCK_LIMIT locks, and the state of an
        ended transaction is checked once, whatever the number of its locks. `now`: the timestamp that
        decides which locks have expired; 0: get one from PD.
        """
        now = now or self._pd.tso()
        at, live = span.start, LiveTransactions()
        ended: dict[int, Fate] = {}
        while span.end == b"" or at < span.end:
            region = self._pd.regions.locate_start(at)
            request = kvrpcpb.ScanLockRequest(
                max_version=max_ts, start_key=at, limit=SCAN_LOCK_LIMIT, end_key=span.end
            )
            try:
                response = self._requester.send(region, "KvScanLock", request, backoff)
            except RegionMoved:
                continue
            if response.HasField("error"):
                raise Retryable(
                    "locks cannot be read", where=f"region {region.id}", why=response.error.abort.strip()
                )
            locks = list(response.locks)
            # Only ended transactions are remembered: a live one may end before the next page.
            live += self._clear_ended(locks, ended, backoff, now)
            live += LiveTransactions(locks_found=len(locks))
            if len(locks) == SCAN_LOCK_LIMIT:
                # A full page may end inside the region, so the scan continues at the next possible key.
                at = locks[-1].key + b"\x00"
            elif region.end_key == b"":
                break
            else:
                at = decode_bytes(region.end_key)[0]
        return live

    def _clear_ended(
        self, locks: list[kvrpcpb.LockInfo], ended: dict[int, Fate], backoff: Backoff, now: int
    ) -> LiveTransactions:
        """Clear a page of locks, except those of live transactions, which it returns. Adds to `ended`."""
        by_txn: dict[int, list[kvrpcpb.LockInfo]] = {}
        for lock in locks:
            if lock.lock_type in TRACKED:
                by_txn.setdefault(lock.lock_version, []).append(lock)
        live = LiveTransactions()
        for start_ts, members in by_txn.items():
            fate = ended.get(start_ts) or self._fate_or_live(members[0], backoff, now)
            if fate.live:
                live += LiveTransactions(len(members), start_ts)
                continue
            # An end is final, so later pages need not ask again. A live transaction may have ended by then.
            ended[start_ts] = fate
            self.clear(start_ts, fate.commit_ts, [lock.key for lock in members], backoff)
        return live

    def _fate_or_live(self, lock: kvrpcpb.LockInfo, backoff: Backoff, now: int) -> Fate:
        """`fate`, but a transaction that contradicts itself counts as live: its locks stay, and the locks of
        other transactions can still be cleared.
        """
        try:
            return self.fate(lock, 0, backoff, now)
        except Fatal as error:
            event(LOG, logging.WARNING, "a lock is left alone", start_ts=lock.lock_version, why=str(error))
            return Fate(live=True)

    def _take_claim(self, lock: kvrpcpb.LockInfo, backoff: Backoff) -> int:
        """Remove an expired pessimistic lock. Returns the milliseconds to wait if it is alive,
        otherwise 0.
        """
        now = self._pd.tso()
        status = self._check(lock, 0, now, backoff)
        if status is None or status.lock_ttl:
            left = _left_ms(lock.lock_version, status.lock_ttl if status else lock.lock_ttl, now)
            # The primary's lock may live on although this claim has expired, or the other way round. Only
            # if both are over is the claim removed.
            if left > 1 or not _expired(lock, now):
                return left
        request = kvrpcpb.PessimisticRollbackRequest(
            start_version=lock.lock_version,
            # Only the claim that was read: TiKV keeps one with a larger for_update_ts (tikv
            # `src/storage/txn/commands/pessimistic_rollback.rs`).
            for_update_ts=lock.lock_for_update_ts or TS_MAX,
            keys=[lock.key],
        )
        self._requester.at_key(lock.key, "KVPessimisticRollback", request, backoff)
        return 0

    def _check(
        self,
        lock: kvrpcpb.LockInfo,
        caller_ts: int,
        now: int,
        backoff: Backoff,
        force_sync_commit: bool = False,
    ) -> kvrpcpb.CheckTxnStatusResponse | None:
        """The answer of CheckTxnStatus at the primary; None if it does not decide the transaction's state.

        This happens if the primary is not written yet (the transaction has just begun), or if the key that
        the lock names is no longer the transaction's primary.
        """
        # docs/guarantees.md#upstreams-transactions-are-not-harmed: `verify_is_primary`, because a pessimistic
        # transaction may have chosen another primary since this lock was written; the old one would show no
        # transaction, and the lock would be rolled back.
        request = kvrpcpb.CheckTxnStatusRequest(
            primary_key=lock.primary_lock,
            lock_ts=lock.lock_version,
            caller_start_ts=caller_ts,
            current_ts=now,
            # Only for an expired lock: a live transaction may not have written its primary yet.
            rollback_if_not_exist=_expired(lock, now),
            force_sync_commit=force_sync_commit,
            resolving_pessimistic_lock=lock.lock_type == kvrpcpb.PessimisticLock,
            verify_is_primary=True,
        )
        response: kvrpcpb.CheckTxnStatusResponse
        response = self._requester.at_key(lock.primary_lock, "KvCheckTxnStatus", request, backoff)
        if not response.HasField("error"):
            return response
        if response.error.HasField("txn_not_found") or response.error.HasField("primary_mismatch"):
            return None
        raise Retryable(
            "a transaction's status cannot be checked",
            where=f"start_ts {lock.lock_version}",
            why=str(response.error),
        )

    def _async_fate(self, info: kvrpcpb.LockInfo, backoff: Backoff) -> Fate | None:
        """The state of an async-commit transaction, from all its keys: committed if every lock exists.

        None: a key was prewritten for two-phase commit, so the transaction fell back to that.
        """
        locks: list[kvrpcpb.LockInfo] = []
        decided: list[int] = []

        def send(region: RegionInfo, members: list[bytes]) -> None:
            request = kvrpcpb.CheckSecondaryLocksRequest(keys=members, start_version=info.lock_version)
            response = self._requester.send(region, "KvCheckSecondaryLocks", request, backoff)
            if response.HasField("error"):
                raise Retryable(
                    "a transaction's locks cannot be checked",
                    where=f"start_ts {info.lock_version}",
                    why=str(response.error),
                )
            # A lock is missing, so this region knows how the transaction ended.
            if len(response.locks) < len(members):
                decided.append(response.commit_ts)
            locks.extend(response.locks)

        # TiKV writes a rollback where a lock is missing, so a late prewrite fails and the result cannot
        # change.
        secondaries = list(info.secondaries)
        self._requester.by_region(secondaries, backoff, send)
        if any(not lock.use_async_commit for lock in locks):
            return None
        commit_ts = _async_commit_ts(info, locks, decided)
        self.clear(info.lock_version, commit_ts, [info.primary_lock, *secondaries], backoff)
        return Fate(commit_ts=commit_ts)


def _async_commit_ts(info: kvrpcpb.LockInfo, locks: list[kvrpcpb.LockInfo], decided: list[int]) -> int:
    """The commit ts of an async-commit transaction; 0: rolled back. Raises Fatal if its keys contradict.

    `locks`: the existing locks of its secondary keys. `decided`: for regions where a lock is missing, the
    commit ts that the region knows (0: rolled back).
    """
    found = {lock.lock_version for lock in locks} - {info.lock_version}
    # An async commit commits at the largest min_commit_ts of its keys, so a commit below it is a
    # contradiction.
    least = max([info.min_commit_ts, *(lock.min_commit_ts for lock in locks)])
    below = [ts for ts in decided if 0 < ts < least]
    if not (found or below or len(set(decided)) > 1):
        return decided[0] if decided else least
    raise Fatal(
        "the keys of an async-commit transaction contradict each other",
        where=f"start_ts {info.lock_version}, primary {info.primary_lock.hex()}",
        why=f"locks of {sorted(found)}, commit ts {sorted(set(decided))}, min_commit_ts {least}",
        fix="find the program that wrote them; its locks are left as they are",
    )


def _expired(lock: kvrpcpb.LockInfo, now: int) -> bool:
    return timestamp.physical_ms(lock.lock_version) + int(lock.lock_ttl) < timestamp.physical_ms(now)


def _left_ms(start_ts: int, ttl_ms: int, now: int) -> int:
    # At least 1, because 0 would mean that no lock blocks any more.
    return max(1, timestamp.physical_ms(start_ts) + ttl_ms - timestamp.physical_ms(now))
