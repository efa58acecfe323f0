"""Find out what became of a transaction whose lock is in the way, and clear the lock accordingly.

Called by snapshots and transactions that met a lock, and by the puller for regions whose resolved ts stands
still. A transaction's fate is decided at its primary key (CheckTxnStatus); an async-commit transaction's at
all its keys (CheckSecondaryLocks). A live transaction is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import Fatal, Retryable
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.kvclient.region_request import RegionMoved, RegionRequester
from tidegate.model import timestamp
from tidegate.model.span import Span
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.tidb.memcomparable import decode_bytes

SCAN_LOCK_LIMIT: Final = 1024


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a transaction: `commit_ts` > 0 committed; `live` still running; else rolled back."""

    commit_ts: int = 0
    live: bool = False
    ttl_ms: int = 0
    """How long a live transaction's lock holds at most."""
    pushed: bool = False
    """A live transaction that can only commit after the caller's ts: its lock may be ignored."""


class LockResolver:
    """Resolves locks for one reader or writer."""

    def __init__(self, requester: RegionRequester) -> None:
        self._requester = requester
        self._pd: PdClient = requester.pd

    def resolve(self, locks: Iterable[Any], caller_ts: int, backoff: Backoff) -> tuple[list[int], int]:
        """Clear the locks (kvrpcpb.LockInfo) of ended transactions.

        Returns the start_ts of live transactions whose locks a read at `caller_ts` may ignore, and how many
        milliseconds to wait for the others (0: nothing stands in the way). `caller_ts` 0 pushes nobody.
        """
        by_txn: dict[int, list[Any]] = {}
        for lock in locks:
            by_txn.setdefault(lock.lock_version, []).append(lock)
        ignorable: list[int] = []
        wait_ms = 0
        for start_ts, members in by_txn.items():
            fate = self.fate(members[0], caller_ts, backoff)
            if fate.pushed:
                ignorable.append(start_ts)
            elif fate.live:
                wait_ms = max(wait_ms, fate.ttl_ms, 1)
            else:
                self.clear(start_ts, fate.commit_ts, [m.key for m in members], backoff)
        return ignorable, wait_ms

    def fate(self, lock: Any, caller_ts: int, backoff: Backoff) -> Fate:
        """Ask the primary what became of the lock's transaction; an expired one is rolled back by asking."""
        now = self._pd.tso()
        status = self._check(lock, caller_ts, now, backoff, _expired(lock, now))
        if status is None:
            return Fate(live=True, ttl_ms=lock.lock_ttl)
        info = status.lock_info
        if status.lock_ttl and info.use_async_commit and _expired(info, now):
            return self._async_fate(info, backoff)
        if status.lock_ttl:
            pushed = caller_ts > 0 and status.action == kvrpcpb.MinCommitTSPushed
            return Fate(live=True, ttl_ms=_left_ms(lock.lock_version, status.lock_ttl, now), pushed=pushed)
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

    def resolve_span(self, span: Span, max_ts: int, backoff: Backoff) -> int:
        """Clear all locks in `span` with start_ts <= max_ts whose transactions have ended.

        Returns how many locks of live transactions remain. Reads at most SCAN_LOCK_LIMIT locks a request, and
        asks once what became of a transaction that has ended, however many locks it left.
        """
        at, live = span.start, 0
        ended: dict[tuple[int, bool], Fate] = {}
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
            live += self._clear_ended(locks, ended, backoff)
            if len(locks) == SCAN_LOCK_LIMIT:
                at = locks[-1].key + b"\x00"
            elif region.end_key == b"":
                break
            else:
                at = decode_bytes(region.end_key)[0]
        return live

    def _clear_ended(self, locks: list[Any], ended: dict[tuple[int, bool], Fate], backoff: Backoff) -> int:
        """Clear a page of locks but for those of live transactions; how many these are. Adds to `ended`."""
        by_txn: dict[tuple[int, bool], list[Any]] = {}
        for lock in locks:
            # A pessimistic lock is asked about in its own way: its primary may not be written yet.
            pessimistic = lock.lock_type == kvrpcpb.PessimisticLock
            by_txn.setdefault((lock.lock_version, pessimistic), []).append(lock)
        live = 0
        for txn, members in by_txn.items():
            fate = ended.get(txn) or self.fate(members[0], 0, backoff)
            if fate.live:
                live += len(members)
                continue
            ended[txn] = fate
            self.clear(txn[0], fate.commit_ts, [lock.key for lock in members], backoff)
        return live

    def _check(self, lock: Any, caller_ts: int, now: int, backoff: Backoff, expired: bool) -> Any:
        """CheckTxnStatus at the primary; None when the primary is not written yet (txn just begins)."""
        request = kvrpcpb.CheckTxnStatusRequest(
            primary_key=lock.primary_lock,
            lock_ts=lock.lock_version,
            caller_start_ts=caller_ts,
            current_ts=now,
            rollback_if_not_exist=expired,
            resolving_pessimistic_lock=lock.lock_type == kvrpcpb.PessimisticLock,
        )
        response = self._requester.at_key(lock.primary_lock, "KvCheckTxnStatus", request, backoff)
        if not response.HasField("error"):
            return response
        if response.error.HasField("txn_not_found"):
            return None
        raise Retryable(
            "a transaction's status cannot be checked",
            where=f"start_ts {lock.lock_version}",
            why=str(response.error),
        )

    def _async_fate(self, info: Any, backoff: Backoff) -> Fate:
        """All keys of an async-commit transaction decide: every lock present = committed."""
        locks: list[Any] = []
        decided: list[int] = []

        def send(region: RegionInfo, members: list[bytes]) -> None:
            request = kvrpcpb.CheckSecondaryLocksRequest(keys=members, start_version=info.lock_version)
            response = self._requester.send(region, "KvCheckSecondaryLocks", request, backoff)
            if len(response.locks) < len(members):
                decided.append(response.commit_ts)
            locks.extend(response.locks)

        secondaries = list(info.secondaries)
        self._requester.by_region(secondaries, backoff, send)
        if len(set(decided)) > 1:
            raise Fatal(
                "regions disagree about an async-commit transaction",
                where=f"start_ts {info.lock_version}",
                why=f"commit ts {sorted(set(decided))}",
            )
        commit_ts = (
            decided[0] if decided else max([info.min_commit_ts, *(lock.min_commit_ts for lock in locks)])
        )
        self.clear(info.lock_version, commit_ts, [info.primary_lock, *secondaries], backoff)
        return Fate(commit_ts=commit_ts)


def _expired(lock: Any, now: int) -> bool:
    return timestamp.physical_ms(lock.lock_version) + int(lock.lock_ttl) < timestamp.physical_ms(now)


def _left_ms(start_ts: int, ttl_ms: int, now: int) -> int:
    return max(1, timestamp.physical_ms(start_ts) + ttl_ms - timestamp.physical_ms(now))
