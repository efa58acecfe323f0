"""The requests of transactions that write: `percolator` decides the records, the scheduler orders them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.engine import Engine
from tidegate.tikv.percolator import commit, pessimistic, prewrite, status
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.percolator.outcome import Announced, CommandOutcome
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_table import RegionError, max_ts_not_synced
from tidegate.tikv.reader import MvccReader
from tidegate.tikv.txn import snapshot
from tidegate.tikv.txn.call import Call, Serve, mutated, the_key, the_keys
from tidegate.tikv.txn.lock_waiting import LockWaiting
from tidegate.tikv.txn.max_ts import MaxTsSync
from tidegate.tikv.txn.scheduler import Answer, Patience, Scheduler, Task
from tidegate.tikv.txn.status_cache import TxnStatusCache

RESOLVE_LOCKS_MAX: Final = 4096
"""The most locks in one round of a ResolveLock over a whole region; rounds follow until none is left."""

PREWRITTEN: Final = ("start_version", "for_update_ts", "min_commit_ts")
FLUSHED: Final = ("start_ts", "min_commit_ts")


@dataclass(frozen=True, slots=True)
class Observation:
    """The facts of CDC that the writes of a region need, by region id."""

    announced: Callable[[int], Announced]
    """The resolved ts that CDC has announced for the region's keys."""
    is_observed: Callable[[int], bool]
    """Whether CDC observes the region and needs old values."""


class TxnWrites:
    """The writes of transactions at one store. Thread-safe; answered when the records are applied."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        concurrency: ConcurrencyManager,
        waiting: LockWaiting,
        max_ts: MaxTsSync,
        txn_status: TxnStatusCache,
        observation: Observation,
    ) -> None:
        self._engine, self._scheduler, self._concurrency = engine, scheduler, concurrency
        self._waiting, self._max_ts, self._txn_status = waiting, max_ts, txn_status
        self._announced, self._is_observed = observation.announced, observation.is_observed

    def calls(self) -> dict[type[Message], Call]:
        """The writes that this store serves."""
        concurrency = self._concurrency
        return {
            pb.PrewriteRequest: Call(pb.PrewriteResponse, self._prewrite, mutated, stamps=PREWRITTEN),
            pb.FlushRequest: Call(pb.FlushResponse, self._flush, mutated, stamps=FLUSHED),
            pb.CommitRequest: Call(pb.CommitResponse, self._commit, the_keys),
            pb.PessimisticLockRequest: Call(pb.PessimisticLockResponse, self._pessimistic_lock, mutated),
            pb.PessimisticRollbackRequest: Call(
                pb.PessimisticRollbackResponse, self._writes(pessimistic.pessimistic_rollback), the_keys
            ),
            pb.BatchRollbackRequest: Call(
                pb.BatchRollbackResponse, self._writes(commit.batch_rollback), the_keys
            ),
            pb.CleanupRequest: Call(pb.CleanupResponse, self._writes(commit.cleanup), the_key),
            pb.CheckTxnStatusRequest: Call(
                pb.CheckTxnStatusResponse,
                self._reporting_primary(lambda r, q, keys: status.check_txn_status(r, q, keys, concurrency)),
                _primary_key,
                stamps=("lock_ts", "caller_start_ts", "current_ts"),
            ),
            pb.CheckSecondaryLocksRequest: Call(
                pb.CheckSecondaryLocksResponse,
                self._writes(lambda r, q, keys: status.check_secondary_locks(r, q, keys, concurrency)),
                the_keys,
                stamps=("start_version",),
            ),
            pb.TxnHeartBeatRequest: Call(
                pb.TxnHeartBeatResponse, self._reporting_primary(status.heart_beat), _primary_lock
            ),
            pb.ResolveLockRequest: Call(pb.ResolveLockResponse, self._resolve, the_keys),
        }

    # --- kinds of handlers ---

    def _writes(self, decide: Callable[[MvccReader, Any, list[bytes]], CommandOutcome[Any]]) -> Serve:
        def serve(region: Region, request: Any, stored: list[bytes], answer: Answer) -> None:
            self._scheduler.submit(
                Task(region, stored, lambda reader: decide(reader, request, stored), answer)
            )

        return serve

    def _reporting_primary(
        self, decide: Callable[[MvccReader, Any, list[bytes]], CommandOutcome[Any]]
    ) -> Serve:
        """Handlers of requests for a primary: when a changed primary lock of a large transaction is durable,
        its min_commit_ts goes to `txn_status`.
        """

        def serve(region: Region, request: Any, stored: list[bytes], answer: Answer) -> None:
            promised: list[tuple[int, int]] = []

            def decided(reader: MvccReader) -> CommandOutcome[Any]:
                outcome = decide(reader, request, stored)
                for cf, key, value in outcome.changes:
                    lock = mvcc.decode_lock(value) if cf == mvcc.LOCK and value is not None else None
                    if lock is not None and lock.generation and keys.encode(lock.primary) == key:
                        promised.append((lock.start_ts, lock.min_commit_ts))
                return outcome

            def then(response: Any, error: Exception | None) -> None:
                # Only now is the lock durable. If the cache promised earlier and the write failed, the
                # resolved ts could pass a commit.
                if error is None:
                    for each in promised:
                        self._txn_status.update(*each)
                answer(response, error)

            self._scheduler.submit(Task(region, stored, decided, then))

        return serve

    # --- handlers ---

    def _prewrite(
        self, region: Region, request: pb.PrewriteRequest, stored: list[bytes], answer: Answer
    ) -> None:
        concurrency = self._concurrency
        chooses_ts = request.use_async_commit or request.try_one_pc
        # A new leader does not know yet at which ts the old one has served reads. A commit ts chosen below
        # one of them would change what a reader has seen already.
        if chooses_ts and not self._max_ts.is_synced(region.id):
            raise RegionError(max_ts_not_synced(region))

        def decide(reader: MvccReader) -> CommandOutcome[pb.PrewriteResponse]:
            # When the command runs, not when it arrives: an observation may begin while it waits for latches.
            observed = self._is_observed(region.id)
            return prewrite.prewrite(reader, request, observed, concurrency, stored)

        self._scheduler.submit(Task(region, stored, decide, answer))

    def _flush(self, region: Region, request: pb.FlushRequest, stored: list[bytes], answer: Answer) -> None:
        def decide(reader: MvccReader) -> CommandOutcome[pb.FlushResponse]:
            return prewrite.flush(reader, request, self._is_observed(region.id), stored)

        self._scheduler.submit(Task(region, stored, decide, answer))

    def _commit(self, region: Region, request: pb.CommitRequest, stored: list[bytes], answer: Answer) -> None:
        def decide(reader: MvccReader) -> CommandOutcome[pb.CommitResponse]:
            return commit.commit(reader, request, self._announced(region.id), stored)

        self._scheduler.submit(Task(region, stored, decide, answer))

    def _pessimistic_lock(
        self, region: Region, request: pb.PessimisticLockRequest, stored: list[bytes], answer: Answer
    ) -> None:
        def deadlocked(found: pb.Deadlock) -> pb.PessimisticLockResponse:
            return pb.PessimisticLockResponse(errors=[pb.KeyError(deadlock=found)])

        deadline = self._waiting.deadline(request)
        patience = None if deadline is None else Patience(request.start_version, deadline, deadlocked)

        def decide(reader: MvccReader) -> CommandOutcome[pb.PessimisticLockResponse]:
            return pessimistic.pessimistic_lock(reader, request, stored)

        self._scheduler.submit(Task(region, stored, decide, answer, patience))

    def _resolve(
        self, region: Region, request: pb.ResolveLockRequest, stored: list[bytes], answer: Answer
    ) -> None:
        txn_statuses = _txn_statuses(request)
        if not request.keys:
            self._resolve_region(region, txn_statuses, answer)
            return

        def decide(reader: MvccReader) -> CommandOutcome[pb.ResolveLockResponse]:
            return commit.resolve_locks(reader, stored, txn_statuses, self._announced(region.id))

        self._scheduler.submit(Task(region, stored, decide, answer))

    def _resolve_region(self, region: Region, txn_statuses: dict[int, int], answer: Answer) -> None:
        """Resolve all locks of the given transactions in the region, in rounds of RESOLVE_LOCKS_MAX."""
        # Collected without latches. `resolve_locks` looks at each key again under its latch, and leaves locks
        # of other transactions as they are.
        found = []
        for key, lock in snapshot.locks_in(self._engine, region.start, region.end):
            if lock.start_ts in txn_statuses:
                found.append(key)
                if len(found) == RESOLVE_LOCKS_MAX:
                    break
        if not found:
            answer(pb.ResolveLockResponse(), None)
            return

        def decide(reader: MvccReader) -> CommandOutcome[pb.ResolveLockResponse]:
            return commit.resolve_locks(reader, found, txn_statuses, self._announced(region.id))

        def then(response: pb.ResolveLockResponse | None, error: Exception | None) -> None:
            ended = error is not None or response is None or response.HasField("error")
            # Fewer than a whole round: there were no more locks of these transactions.
            if ended or len(found) < RESOLVE_LOCKS_MAX:
                answer(response, error)
            else:
                self._scheduler.later(lambda: self._resolve_region(region, txn_statuses, answer))

        self._scheduler.submit(Task(region, found, decide, then))


def _txn_statuses(request: pb.ResolveLockRequest) -> dict[int, int]:
    if request.txn_infos:
        return {info.txn: info.status for info in request.txn_infos}
    return {request.start_version: request.commit_version}


def _primary_key(request: pb.CheckTxnStatusRequest) -> Sequence[bytes]:
    return (request.primary_key,)


def _primary_lock(request: pb.TxnHeartBeatRequest) -> Sequence[bytes]:
    return (request.primary_lock,)
