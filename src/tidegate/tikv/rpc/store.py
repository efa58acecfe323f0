"""The service `tikvpb.Tikv`: checks requests, serves reads at once and writes through the scheduler.

Called by the gRPC edge (`tikv_service`). `submit` never waits for an apply, so one BatchCommands stream can
have many commands in progress. The checks of a request, in order: region and epoch, API version, range of the
region. Then a read raises max_ts and checks the in-memory locks, and a write takes its latches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import Message

from tidegate.errors import InvalidInput, Retryable
from tidegate.model import timestamp
from tidegate.proto import errorpb_pb2
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import api_version, keys, mvcc, percolator
from tidegate.tikv.budget import Budget
from tidegate.tikv.faults import Faults
from tidegate.tikv.percolator import Announced, Outcome
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.raft.raftstore import Command, Raftstore
from tidegate.tikv.raft.region import STORE_ID, Region
from tidegate.tikv.raft.region_change import NewId, RegionChange
from tidegate.tikv.raft.region_change import split as split_region
from tidegate.tikv.raft.region_table import (
    RegionError,
    RegionTable,
    key_not_in_region,
    max_ts_not_synced,
    server_is_busy,
)
from tidegate.tikv.raw.rawkv import RawKv
from tidegate.tikv.reader import Reader
from tidegate.tikv.txn import snapshot
from tidegate.tikv.txn.call import (
    Call,
    RefusalError,
    Serve,
    mutated,
    refused,
    scan_range,
    the_key,
    the_keys,
    the_range,
)
from tidegate.tikv.txn.flashback_requests import Flashback, Range
from tidegate.tikv.txn.lock_waiting import LockWaiting
from tidegate.tikv.txn.max_ts import MaxTsSync
from tidegate.tikv.txn.scheduler import Answer, Patience, Scheduler, Task
from tidegate.tikv.txn.status_cache import TxnStatusCache

MAX_TS_DRIFT_MS: Final = 60_000
"""The furthest that a ts in a request may be ahead of PD's time (TiKV's storage.max-ts.max-drift)."""
REQUESTS_BYTES_MAX: Final = 1 << 30
"""The most bytes of all requests that wait for their answers; TiKV limits only writes
(storage.scheduler-pending-write-threshold)."""
RESOLVE_LOCKS_MAX: Final = 4096
"""The most locks in one round of a ResolveLock over a whole region; rounds follow until none is left."""

_VERSION: Final = ("version",)
_PREWRITTEN: Final = ("start_version", "for_update_ts", "min_commit_ts")
_FLASHBACKS: Final = (pb.PrepareFlashbackToVersionRequest, pb.FlashbackToVersionRequest)
_FLUSHED: Final = ("start_ts", "min_commit_ts")
_CHOSEN: Final = frozenset((*_PREWRITTEN, *_FLUSHED, "commit_ts"))

Announcements = Callable[[int], Announced]
"""Region id -> the resolved ts that CDC has announced for its keys."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The components that a store uses."""

    regions: RegionTable
    raftstore: Raftstore
    scheduler: Scheduler
    concurrency: ConcurrencyManager
    waiting: LockWaiting
    announced: Announcements
    is_observed: Callable[[int], bool]
    """Region id -> whether CDC observes the region and needs old values."""
    raw: RawKv
    max_ts: MaxTsSync
    new_id: NewId
    pd_ts: Callable[[], int] | None = None
    """Returns PD's current ts; None in manual mode, where requests may use any ts."""
    store_id: int = STORE_ID
    faults: Faults = field(default_factory=Faults)
    txn_status: TxnStatusCache = field(default_factory=TxnStatusCache)


class Store:
    """The key-value requests of one store. Thread-safe."""

    def __init__(self, parts: Parts) -> None:
        self._regions = parts.regions
        self._engine = parts.raftstore.engine
        self._raftstore = parts.raftstore
        self._scheduler = parts.scheduler
        self._concurrency = parts.concurrency
        self._waiting = parts.waiting
        self._announced = parts.announced
        self._is_observed = parts.is_observed
        self._max_ts = parts.max_ts
        self._new_id = parts.new_id
        self._id = parts.store_id
        self._faults = parts.faults
        self._txn_status = parts.txn_status
        self._raw = parts.raw
        self._api_version = parts.raw.api_version
        self._pd_ts = parts.pd_ts
        self._ts_limit = 0
        self._flashback = Flashback(parts.raftstore, parts.announced, parts.scheduler.later)
        self._unanswered = Budget(REQUESTS_BYTES_MAX)
        self._calls = self._table()

    def submit(self, request: Any, answer: Answer) -> None:
        """Serve one request of any type; `answer` is called once, possibly on another thread."""
        call = self._calls[type(request)]
        region = self._regions.check(request.context, self._id, isinstance(request, _FLASHBACKS))
        if self._faults.kv_errors[0]:
            region = self._faults.kv_error() or region
        if isinstance(region, errorpb_pb2.Error):
            answer(call.response(region_error=region), None)
            return
        size = request.ByteSize()
        if not self._unanswered.has_room(size):
            self.refuse(request, server_is_busy("too many bytes of requests wait"), answer)
            return
        self._unanswered.add(size)

        def served(response: Any, error: Exception | None) -> None:
            self._unanswered.add(-size)
            if isinstance(error, RegionError):
                response, error = call.response(region_error=error.error), None
            answer(response, error)

        self._serve(call, region, request, served)

    def refuse(self, request: Any, error: errorpb_pb2.Error, answer: Answer) -> None:
        """Answer a request of any type with a region error."""
        answer(self._calls[type(request)].response(region_error=error), None)

    def _serve(self, call: Call, region: Region, request: Any, answer: Answer) -> None:
        named = call.keys(request) if call.keys is not None else ()
        if self._api_version != 1 or request.context.api_version:
            refusal = self._refusal(call, request, named)
            if refusal:
                answer(refused(call.response(), refusal), None)
                return
        for name in call.stamps:
            ts = getattr(request, name)
            if ts > self._ts_limit and self._is_ahead(ts, name in _CHOSEN):
                text = f"{name} {ts} is more than {MAX_TS_DRIFT_MS // 1000} s ahead of PD's time"
                answer(refused(call.response(), text), None)
                return
        stored = [*map(self._raw.physical if call.raw else keys.encode, named)]
        if stored:
            for key in (min(stored), max(stored)) if len(stored) > 1 else stored:
                if not region.contains(key):
                    outside = key_not_in_region(named[stored.index(key)], region)
                    answer(call.response(region_error=outside), None)
                    return
        try:
            call.serve(region, request, stored, answer)
        except RefusalError as refusal:
            answer(refused(call.response(), str(refusal)), None)
        except Exception as error:
            answer(None, error)

    def _refusal(self, call: Call, request: Any, named: Sequence[bytes]) -> str:
        modes = [(api_version.key_mode(key), key) for key in named]
        if call.range is not None:
            start, end = call.range(request)
            modes.append((api_version.range_mode(start, end), start))
        return api_version.refusal(self._api_version, request.context, call.raw, modes)

    def _is_ahead(self, ts: int, chosen: bool) -> bool:
        """Whether a ts is too far ahead of PD's time to raise max_ts to it.

        Otherwise one-phase and async commits would choose a ts above it, and readers at PD's timestamps would
        not see them for a long time. `chosen`: the field must be a real time, so TS_MAX is not allowed.
        """
        if ts == keys.TS_MAX:
            return chosen
        if self._pd_ts is None:
            return False
        try:
            self._ts_limit = self._pd_ts() + timestamp.compose(MAX_TS_DRIFT_MS)
        except Retryable:  # the TSO is frozen, so the ts cannot be checked
            return False
        return ts > self._ts_limit

    # --- kinds of handlers ---

    def _reads(self, read: Callable[[Region, Any], Any]) -> Serve:
        return lambda region, request, _, answer: answer(read(region, request), None)

    def _writes(self, decide: Callable[[Reader, Any, list[bytes]], Outcome[Any]]) -> Serve:
        def serve(region: Region, request: Any, stored: list[bytes], answer: Answer) -> None:
            self._scheduler.submit(
                Task(region, stored, lambda reader: decide(reader, request, stored), answer)
            )

        return serve

    def _reporting_primary(self, decide: Callable[[Reader, Any, list[bytes]], Outcome[Any]]) -> Serve:
        """Handlers of requests for a primary: when a changed primary lock of a large transaction is durable,
        its min_commit_ts goes to `txn_status`.
        """

        def serve(region: Region, request: Any, stored: list[bytes], answer: Answer) -> None:
            promised: list[tuple[int, int]] = []

            def decided(reader: Reader) -> Outcome[Any]:
                outcome = decide(reader, request, stored)
                for cf, key, value in outcome.changes:
                    lock = mvcc.decode_lock(value) if cf == mvcc.LOCK and value is not None else None
                    if lock is not None and lock.generation and keys.encode(lock.primary) == key:
                        promised.append((lock.start_ts, lock.min_commit_ts))
                return outcome

            def then(response: Any, error: Exception | None) -> None:
                if error is None:
                    for each in promised:
                        self._txn_status.update(*each)
                answer(response, error)

            self._scheduler.submit(Task(region, stored, decided, then))

        return serve

    def _flashes_back(self, phase: Callable[[Range, Any, Answer], None]) -> Serve:
        def serve(region: Region, request: Any, stored: list[bytes], answer: Answer) -> None:
            what = Range(region, *_clip(region, request.start_key, request.end_key))
            if what.end and what.start >= what.end:
                raise RefusalError("the range to flash back is not in the region")
            phase(what, request, answer)

        return serve

    # --- transactions ---

    def _prewrite(
        self, region: Region, request: pb.PrewriteRequest, stored: list[bytes], answer: Answer
    ) -> None:
        concurrency = self._concurrency
        chooses_ts = request.use_async_commit or request.try_one_pc
        if chooses_ts and not self._max_ts.is_synced(region.id):
            raise RegionError(max_ts_not_synced(region))

        def decide(reader: Reader) -> Outcome[pb.PrewriteResponse]:
            observed = self._is_observed(region.id)
            return percolator.prewrite(reader, request, observed, concurrency, stored)

        self._scheduler.submit(Task(region, stored, decide, answer))

    def _flush(self, region: Region, request: pb.FlushRequest, stored: list[bytes], answer: Answer) -> None:
        def decide(reader: Reader) -> Outcome[pb.FlushResponse]:
            return percolator.flush(reader, request, self._is_observed(region.id), stored)

        self._scheduler.submit(Task(region, stored, decide, answer))

    def _commit(self, region: Region, request: pb.CommitRequest, stored: list[bytes], answer: Answer) -> None:
        def decide(reader: Reader) -> Outcome[pb.CommitResponse]:
            return percolator.commit(reader, request, self._announced(region.id), stored)

        self._scheduler.submit(Task(region, stored, decide, answer))

    def _pessimistic_lock(
        self, region: Region, request: pb.PessimisticLockRequest, stored: list[bytes], answer: Answer
    ) -> None:
        def deadlocked(found: pb.Deadlock) -> pb.PessimisticLockResponse:
            return pb.PessimisticLockResponse(errors=[pb.KeyError(deadlock=found)])

        deadline = self._waiting.deadline(request)
        patience = None if deadline is None else Patience(request.start_version, deadline, deadlocked)

        def decide(reader: Reader) -> Outcome[pb.PessimisticLockResponse]:
            return percolator.pessimistic_lock(reader, request, stored)

        self._scheduler.submit(Task(region, stored, decide, answer, patience))

    def _resolve(
        self, region: Region, request: pb.ResolveLockRequest, stored: list[bytes], answer: Answer
    ) -> None:
        fates = _fates(request)
        if not request.keys:
            self._resolve_region(region, fates, answer)
            return

        def decide(reader: Reader) -> Outcome[pb.ResolveLockResponse]:
            return percolator.resolve_locks(reader, stored, fates, self._announced(region.id))

        self._scheduler.submit(Task(region, stored, decide, answer))

    def _resolve_region(self, region: Region, fates: dict[int, int], answer: Answer) -> None:
        """Resolve all locks of the given transactions in the region, in rounds of RESOLVE_LOCKS_MAX."""
        found = []
        for key, lock in snapshot.locks_in(self._engine, region.start, region.end):
            if lock.start_ts in fates:
                found.append(key)
                if len(found) == RESOLVE_LOCKS_MAX:
                    break
        if not found:
            answer(pb.ResolveLockResponse(), None)
            return

        def decide(reader: Reader) -> Outcome[pb.ResolveLockResponse]:
            return percolator.resolve_locks(reader, found, fates, self._announced(region.id))

        def then(response: pb.ResolveLockResponse | None, error: Exception | None) -> None:
            ended = error is not None or response is None or response.HasField("error")
            if ended or len(found) < RESOLVE_LOCKS_MAX:
                answer(response, error)
            else:
                self._scheduler.later(lambda: self._resolve_region(region, fates, answer))

        self._scheduler.submit(Task(region, found, decide, then))

    # --- reads ---

    def _get(self, region: Region, request: pb.GetRequest) -> pb.GetResponse:
        return snapshot.get(self._engine, request, self._concurrency)

    def _batch_get(self, region: Region, request: pb.BatchGetRequest) -> pb.BatchGetResponse:
        return snapshot.batch_get(self._engine, request, self._concurrency)

    def _buffer_batch_get(
        self, region: Region, request: pb.BufferBatchGetRequest
    ) -> pb.BufferBatchGetResponse:
        return percolator.buffer_batch_get(Reader(self._engine), request)

    def _scan(self, region: Region, request: pb.ScanRequest) -> pb.ScanResponse:
        start, end = _clip(region, *scan_range(request))
        return snapshot.scan(self._engine, request, start, end, self._concurrency)

    def _scan_locks(self, region: Region, request: pb.ScanLockRequest) -> pb.ScanLockResponse:
        start, end = _clip(region, request.start_key, request.end_key)
        return snapshot.scan_locks(self._engine, request, start, end, self._concurrency)

    def _mvcc_by_key(self, region: Region, request: pb.MvccGetByKeyRequest) -> pb.MvccGetByKeyResponse:
        return pb.MvccGetByKeyResponse(info=snapshot.mvcc_info(self._engine, request.key))

    # --- ranges ---

    def _delete_range(
        self, region: Region, request: pb.DeleteRangeRequest, stored: list[bytes], answer: Answer
    ) -> None:
        """Remove all versions and locks of a range without records. CDC only sees that the locks are gone."""
        if request.notify_only:
            answer(pb.DeleteRangeResponse(), None)
            return
        start, end = _clip(region, request.start_key, request.end_key)
        self._empty(region, start, end, lambda error: answer(pb.DeleteRangeResponse(), error))

    def unsafe_destroy_range(self, request: pb.UnsafeDestroyRangeRequest, answer: Answer) -> None:
        """Remove all data of a range on this store, whatever its regions; observers do not see it."""
        start, end = keys.encode(request.start_key), keys.encode(request.end_key) if request.end_key else b""
        self._empty(None, start, end, lambda error: answer(pb.UnsafeDestroyRangeResponse(), error))

    def _empty(
        self, region: Region | None, start: bytes, end: bytes, applied: Callable[[Exception | None], None]
    ) -> None:
        if end and start >= end:
            applied(None)
            return
        ranges = [(cf, start, end) for cf in (mvcc.DEFAULT, mvcc.LOCK, mvcc.WRITE)]
        region_id = 0 if region is None else region.id
        self._raftstore.propose(Command(region_id, (), on_applied=applied, ranges=ranges, region=region))

    # --- regions ---

    def _split(
        self, region: Region, request: pb.SplitRegionRequest, stored: list[bytes], answer: Answer
    ) -> None:
        """Split a region at a client's keys; the answer has the parts from left to right."""
        encode = self._raw.physical if request.is_raw_kv else keys.encode
        at = [encode(key) for key in (*request.split_keys, request.split_key) if key]

        def decide(table: RegionTable) -> RegionChange:
            refusal = table.refusal(region)
            if refusal is not None:
                raise RegionError(refusal)
            return split_region(region, at, self._new_id)

        def applied(error: Exception | None) -> None:
            if isinstance(error, InvalidInput):
                error = RegionError(errorpb_pb2.Error(message=str(error)))
            if error is not None:
                answer(None, error)
                return
            assert command.change is not None
            parts = [part.message for part in command.change.now]
            answer(pb.SplitRegionResponse(left=parts[0], right=parts[-1], regions=parts), None)

        command = Command(region.id, (), on_applied=applied, admin=decide)
        self._raftstore.propose(command)

    def lock_wait_info(self) -> pb.GetLockWaitInfoResponse:
        """The transactions that wait for locks, and the holders of these locks."""
        return pb.GetLockWaitInfoResponse(entries=self._waiting.detector.entries())

    def _table(self) -> dict[type[Message], Call]:
        concurrency = self._concurrency
        return self._raw.calls() | {
            pb.GetRequest: Call(pb.GetResponse, self._reads(self._get), the_key, stamps=_VERSION),
            pb.BatchGetRequest: Call(
                pb.BatchGetResponse, self._reads(self._batch_get), the_keys, stamps=_VERSION
            ),
            pb.BufferBatchGetRequest: Call(
                pb.BufferBatchGetResponse, self._reads(self._buffer_batch_get), the_keys
            ),
            pb.ScanRequest: Call(pb.ScanResponse, self._reads(self._scan), range=scan_range, stamps=_VERSION),
            pb.ScanLockRequest: Call(
                pb.ScanLockResponse, self._reads(self._scan_locks), stamps=("max_version",)
            ),
            pb.MvccGetByKeyRequest: Call(pb.MvccGetByKeyResponse, self._reads(self._mvcc_by_key), the_key),
            pb.PrewriteRequest: Call(pb.PrewriteResponse, self._prewrite, mutated, stamps=_PREWRITTEN),
            pb.FlushRequest: Call(pb.FlushResponse, self._flush, mutated, stamps=_FLUSHED),
            pb.CommitRequest: Call(pb.CommitResponse, self._commit, the_keys),
            pb.PessimisticLockRequest: Call(pb.PessimisticLockResponse, self._pessimistic_lock, mutated),
            pb.PessimisticRollbackRequest: Call(
                pb.PessimisticRollbackResponse, self._writes(percolator.pessimistic_rollback), the_keys
            ),
            pb.BatchRollbackRequest: Call(
                pb.BatchRollbackResponse, self._writes(percolator.batch_rollback), the_keys
            ),
            pb.CleanupRequest: Call(pb.CleanupResponse, self._writes(percolator.cleanup), the_key),
            pb.CheckTxnStatusRequest: Call(
                pb.CheckTxnStatusResponse,
                self._reporting_primary(
                    lambda r, q, keys: percolator.check_txn_status(r, q, keys, concurrency)
                ),
                _primary_key,
                stamps=("lock_ts", "caller_start_ts", "current_ts"),
            ),
            pb.CheckSecondaryLocksRequest: Call(
                pb.CheckSecondaryLocksResponse,
                self._writes(lambda r, q, keys: percolator.check_secondary_locks(r, q, keys, concurrency)),
                the_keys,
                stamps=("start_version",),
            ),
            pb.TxnHeartBeatRequest: Call(
                pb.TxnHeartBeatResponse, self._reporting_primary(percolator.heart_beat), _primary_lock
            ),
            pb.ResolveLockRequest: Call(pb.ResolveLockResponse, self._resolve, the_keys),
            pb.DeleteRangeRequest: Call(pb.DeleteRangeResponse, self._delete_range, range=the_range),
            pb.SplitRegionRequest: Call(pb.SplitRegionResponse, self._split),
            pb.PrepareFlashbackToVersionRequest: Call(
                pb.PrepareFlashbackToVersionResponse,
                self._flashes_back(self._flashback.prepare),
                range=the_range,
                stamps=("start_ts",),
            ),
            pb.FlashbackToVersionRequest: Call(
                pb.FlashbackToVersionResponse,
                self._flashes_back(self._flashback.flash_back),
                range=the_range,
                stamps=("start_ts", "commit_ts"),
            ),
        }


def _fates(request: pb.ResolveLockRequest) -> dict[int, int]:
    if request.txn_infos:
        return {info.txn: info.status for info in request.txn_infos}
    return {request.start_version: request.commit_version}


def _clip(region: Region, low: bytes, high: bytes) -> tuple[bytes, bytes]:
    """Encoded bounds of raw [low, high) inside the region; an empty `high` is infinity."""
    start = max(region.start, keys.encode(low)) if low else region.start
    if not high:
        return start, region.end
    end = keys.encode(high)
    return start, min(end, region.end) if region.end else end


def _primary_key(request: pb.CheckTxnStatusRequest) -> Sequence[bytes]:
    return (request.primary_key,)


def _primary_lock(request: pb.TxnHeartBeatRequest) -> Sequence[bytes]:
    return (request.primary_lock,)
