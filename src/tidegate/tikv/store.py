"""Answers to `tikvpb.Tikv`: region checks, reads at once, writes through the scheduler.

Called by the gRPC edge (`server`); `submit` never blocks on an apply, so that one BatchCommands stream can
have many commands under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tidegate.proto import errorpb_pb2
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, percolator, snapshot
from tidegate.tikv.engine import Engine
from tidegate.tikv.mvcc import Reader
from tidegate.tikv.percolator import Announced, Outcome
from tidegate.tikv.raftstore import Raftstore
from tidegate.tikv.region import Region, RegionTable, key_not_in_region
from tidegate.tikv.scheduler import Answer, Scheduler, Task

RESOLVE_LOCKS_MAX: Final = 4096
"""Locks that one round of a ResolveLock over a whole region takes; rounds follow until none is left."""

Announcements = Callable[[int], Announced]
"""Region id -> what CDC has announced for its keys."""


class Call(NamedTuple):
    """How one request type is served: the raw keys it names, its response type, and its handler."""

    keys: Callable[[Any], Sequence[bytes]]
    response: Callable[..., Any]
    read: Callable[[Region, Any], Any] | None = None
    decide: Callable[[Reader, Region, Any], Outcome[Any]] | None = None


class Store:
    """The transactional interface of one store. Thread-safe."""

    def __init__(
        self, regions: RegionTable, raftstore: Raftstore, scheduler: Scheduler, announced: Announcements
    ) -> None:
        self._regions = regions
        self._engine: Engine = raftstore.engine
        self._raftstore = raftstore
        self._scheduler = scheduler
        self._announced = announced
        self._calls = self._table()

    def submit(self, request: Any, answer: Answer) -> None:
        """Serve one request of any type; `answer` is called once, perhaps on another thread."""
        call = self._calls[type(request)]
        region = self._regions.check(request.context)
        if isinstance(region, errorpb_pb2.Error):
            answer(call.response(region_error=region), None)
            return
        named = call.keys(request)
        for raw in (min(named), max(named)) if len(named) > 1 else named:
            if not region.contains(keys.encode(raw)):
                answer(call.response(region_error=key_not_in_region(raw, region)), None)
                return
        if call.read is not None:
            self._read(call.read, region, request, answer)
        elif type(request) is pb.ResolveLockRequest and not request.keys:
            self._resolve_region(region, request, answer)
        else:
            self._write(region, request, named, answer)

    def _read(self, read: Callable[[Region, Any], Any], region: Region, request: Any, answer: Answer) -> None:
        try:
            response = read(region, request)
        except Exception as error:
            answer(None, error)
            return
        answer(response, None)

    def _write(self, region: Region, request: Any, named: Sequence[bytes], answer: Answer) -> None:
        decide = self._calls[type(request)].decide
        assert decide is not None
        self._scheduler.submit(Task(region.id, named, lambda reader: decide(reader, region, request), answer))

    def _resolve_region(self, region: Region, request: pb.ResolveLockRequest, answer: Answer) -> None:
        """Resolve all locks of the named transactions in the region, a bounded number at a time."""
        fates = _fates(request)
        found = []
        for key, lock in snapshot.locks_in(self._engine, region.start, region.end):
            if lock.start_ts in fates:
                found.append(keys.decode(key))
                if len(found) == RESOLVE_LOCKS_MAX:
                    break
        if not found:
            answer(pb.ResolveLockResponse(), None)
            return

        def decide(reader: Reader) -> Outcome[pb.ResolveLockResponse]:
            return percolator.resolve_locks(reader, found, fates, self._announced(region.id))

        def then(response: pb.ResolveLockResponse | None, error: Exception | None) -> None:
            if (
                error is not None
                or response is None
                or response.HasField("error")
                or len(found) < RESOLVE_LOCKS_MAX
            ):
                answer(response, error)
            else:
                self._scheduler.later(lambda: self._resolve_region(region, request, answer))

        self._scheduler.submit(Task(region.id, found, decide, then))

    def _table(self) -> dict[type[Any], Call]:
        engine, wanted, announced = self._engine, self._raftstore, self._announced
        return {
            pb.GetRequest: Call(_key, pb.GetResponse, lambda _, request: snapshot.get(engine, request)),
            pb.BatchGetRequest: Call(
                _keys, pb.BatchGetResponse, lambda _, request: snapshot.batch_get(engine, request)
            ),
            pb.ScanRequest: Call(_none, pb.ScanResponse, self._scan),
            pb.ScanLockRequest: Call(_none, pb.ScanLockResponse, self._scan_locks),
            pb.PrewriteRequest: Call(
                _mutated,
                pb.PrewriteResponse,
                decide=lambda reader, region, request: percolator.prewrite(
                    reader, request, wanted.observer.is_observing(region.id)
                ),
            ),
            pb.CommitRequest: Call(
                _keys,
                pb.CommitResponse,
                decide=lambda reader, region, request: percolator.commit(
                    reader, request, announced(region.id)
                ),
            ),
            pb.PessimisticLockRequest: Call(
                _mutated, pb.PessimisticLockResponse, decide=_plain(percolator.pessimistic_lock)
            ),
            pb.PessimisticRollbackRequest: Call(
                _keys, pb.PessimisticRollbackResponse, decide=_plain(percolator.pessimistic_rollback)
            ),
            pb.BatchRollbackRequest: Call(
                _keys, pb.BatchRollbackResponse, decide=_plain(percolator.batch_rollback)
            ),
            pb.CleanupRequest: Call(_key, pb.CleanupResponse, decide=_plain(percolator.cleanup)),
            pb.CheckTxnStatusRequest: Call(
                _primary_key, pb.CheckTxnStatusResponse, decide=_plain(percolator.check_txn_status)
            ),
            pb.CheckSecondaryLocksRequest: Call(
                _keys, pb.CheckSecondaryLocksResponse, decide=_plain(percolator.check_secondary_locks)
            ),
            pb.TxnHeartBeatRequest: Call(
                _primary_lock, pb.TxnHeartBeatResponse, decide=_plain(percolator.heart_beat)
            ),
            pb.ResolveLockRequest: Call(_keys, pb.ResolveLockResponse, decide=self._resolve),
        }

    def _resolve(self, reader: Reader, region: Region, request: pb.ResolveLockRequest) -> Outcome[Any]:
        return percolator.resolve_locks(reader, request.keys, _fates(request), self._announced(region.id))

    def _scan(self, region: Region, request: pb.ScanRequest) -> pb.ScanResponse:
        low, high = request.start_key, request.end_key
        if request.reverse:
            low, high = high, low
        start, end = _clip(region, low, high)
        return snapshot.scan(self._engine, request, start, end)

    def _scan_locks(self, region: Region, request: pb.ScanLockRequest) -> pb.ScanLockResponse:
        start, end = _clip(region, request.start_key, request.end_key)
        return snapshot.scan_locks(self._engine, request, start, end)


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


def _plain(function: Callable[[Reader, Any], Outcome[Any]]) -> Callable[[Reader, Region, Any], Outcome[Any]]:
    return lambda reader, _, request: function(reader, request)


def _none(request: Any) -> Sequence[bytes]:
    return ()


def _key(request: Any) -> Sequence[bytes]:
    return (request.key,)


def _keys(request: Any) -> Sequence[bytes]:
    found: Sequence[bytes] = request.keys
    return found


def _mutated(request: Any) -> Sequence[bytes]:
    return [mutation.key for mutation in request.mutations]


def _primary_key(request: Any) -> Sequence[bytes]:
    return (request.primary_key,)


def _primary_lock(request: Any) -> Sequence[bytes]:
    return (request.primary_lock,)
