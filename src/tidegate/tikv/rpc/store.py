"""The service `tikvpb.Tikv`: checks requests, and passes each to the handler of its type.

Called by the gRPC edge (`tikv_service`). `submit` never waits for an apply, so one BatchCommands stream can
have many commands in progress. The checks of a request, in order: region and epoch, API version, range of the
region. Then a read raises max_ts and checks the in-memory locks, and a write takes its latches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.errors import InvalidInput, Retryable
from tidegate.model import timestamp
from tidegate.proto import errorpb_pb2
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import api_version, keys
from tidegate.tikv.budget import Budget
from tidegate.tikv.faults import Faults
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.precedence import SERVED
from tidegate.tikv.raft.raftstore import Command, Raftstore
from tidegate.tikv.raft.region import STORE_ID, Region
from tidegate.tikv.raft.region_change import NewId, RegionChange
from tidegate.tikv.raft.region_change import split as split_region
from tidegate.tikv.raft.region_table import RegionError, RegionTable, key_not_in_region, server_is_busy
from tidegate.tikv.raw.rawkv import RawKv
from tidegate.tikv.txn.call import Call, RefusalError, refused
from tidegate.tikv.txn.lock_waiting import LockWaiting
from tidegate.tikv.txn.max_ts import MaxTsSync
from tidegate.tikv.txn.range_calls import TxnRanges
from tidegate.tikv.txn.read_calls import TxnReads
from tidegate.tikv.txn.scheduler import Answer, Scheduler
from tidegate.tikv.txn.status_cache import TxnStatusCache
from tidegate.tikv.txn.write_calls import FLUSHED, PREWRITTEN, Observation, TxnWrites

MAX_TS_DRIFT_MS: Final = 60_000
"""The furthest that a ts in a request may be ahead of PD's time (TiKV's storage.max-ts.max-drift)."""
REQUESTS_BYTES_MAX: Final = 1 << 30
"""The most bytes of all requests that wait for their answers; TiKV limits only writes
(storage.scheduler-pending-write-threshold)."""

_FLASHBACKS: Final = (pb.PrepareFlashbackToVersionRequest, pb.FlashbackToVersionRequest)
_CHOSEN: Final = frozenset((*PREWRITTEN, *FLUSHED, "commit_ts"))


@dataclass(frozen=True, slots=True)
class Parts:
    """The components that a store uses."""

    regions: RegionTable
    raftstore: Raftstore
    scheduler: Scheduler
    concurrency: ConcurrencyManager
    waiting: LockWaiting
    observation: Observation
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
        self._raftstore = parts.raftstore
        self._waiting = parts.waiting
        self._new_id = parts.new_id
        self._id = parts.store_id
        self._faults = parts.faults
        self._raw = parts.raw
        self._api_version = parts.raw.api_version
        self._pd_ts = parts.pd_ts
        self._ts_limit = 0
        self._unanswered = Budget(REQUESTS_BYTES_MAX)
        self.ranges = TxnRanges(parts.raftstore, parts.observation.announced, parts.scheduler.later)
        reads = TxnReads(parts.raftstore.engine, parts.concurrency)
        writes = TxnWrites(
            parts.raftstore.engine,
            parts.scheduler,
            parts.concurrency,
            parts.waiting,
            parts.max_ts,
            parts.txn_status,
            parts.observation,
        )
        self._calls = (
            parts.raw.calls()
            | reads.calls()
            | writes.calls()
            | self.ranges.calls()
            | {pb.SplitRegionRequest: Call(pb.SplitRegionResponse, self._split)}
        )

    def submit(self, request: Any, answer: Answer) -> None:
        """Serve one request of any type; `answer` is called once, possibly on another thread."""
        SERVED.mark()
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
        # Before it is served: the answer, which takes the size back, may come on another thread at once.
        self._unanswered.add(size)

        def served(response: Any, error: Exception | None) -> None:
            SERVED.mark()  # until the client has the answer and has sent its next request
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
        # Most requests of a V1 cluster carry no version, and need no check of their keys.
        if self._api_version != 1 or request.context.api_version:
            refusal = self._refusal(call, request, named)
            if refusal:
                answer(refused(call.response(), refusal), None)
                return
        for name in call.stamps:
            ts = getattr(request, name)
            # PD's time only grows: a ts within an earlier limit is within the present one, too.
            if ts > self._ts_limit and self._is_ahead(ts, name in _CHOSEN):
                text = f"{name} {ts} is more than {MAX_TS_DRIFT_MS // 1000} s ahead of PD's time"
                answer(refused(call.response(), text), None)
                return
        stored = [*map(self._raw.physical if call.raw else keys.encode, named)]
        if stored:
            # A region is one range: if the least and the greatest key are in it, all are.
            for key in (min(stored), max(stored)) if len(stored) > 1 else stored:
                if not region.contains(key):
                    outside = key_not_in_region(named[stored.index(key)], region)
                    answer(call.response(region_error=outside), None)
                    return
        try:
            call.serve(region, request, stored, answer)
        except RefusalError as refusal:
            answer(refused(call.response(), str(refusal)), None)
        # An answer in any case, because a stream of commands would wait for it for ever.
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
