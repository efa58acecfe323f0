"""RawKV: get, put, delete, scan, compare and swap, without transactions.

API V2: user keys begin with `r` and a keyspace. A write makes a new version under a causal timestamp. It
first holds the resolved ts at one timestamp, and then gets a second one for its version. So the resolved ts
is below every write in progress, and latches ensure that versions of one key rise in the order of their
writes. API V1 is as older clients expect: without expiry, versions and change data capture. `raw_pairs` has
the stored form of both.
(TiKV: storage/mod.rs raw_*, components/api_version/src/api_v2.rs, components/causal_ts.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from tidegate.clock import Clock
from tidegate.errors import Retryable
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.engine import Engine
from tidegate.tikv.mvcc import Change
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.percolator.outcome import CommandOutcome
from tidegate.tikv.raft.raftstore import Command, Raftstore
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_table import RegionError, max_ts_not_synced
from tidegate.tikv.raw.checksum import crc64
from tidegate.tikv.raw.raw_pairs import DELETED, RawPairs, encode_value
from tidegate.tikv.reader import View
from tidegate.tikv.txn.call import Call, RefusalError, Serve, scan_range, the_key, the_keys, the_range
from tidegate.tikv.txn.scheduler import Answer, Scheduler, Task

SCAN_BYTES_MAX: Final = 32 << 20
SCAN_LIMIT_MAX: Final = 10240
"""The MAX_RAW_KV_SCAN_LIMIT of TiKV's clients."""
_DELETE: Final = bytes([DELETED])


class RawKv:
    """The raw requests of one store. Thread-safe; the store has already checked region and API version."""

    def __init__(
        self,
        api_version: int,
        raftstore: Raftstore,
        scheduler: Scheduler,
        concurrency: ConcurrencyManager,
        next_ts: Callable[[], int] | None,
        clock: Clock,
    ) -> None:
        self.api_version = api_version
        self._engine: Engine = raftstore.engine
        self._raftstore = raftstore
        self._scheduler = scheduler
        self._concurrency = concurrency
        self._next_ts = next_ts
        self._pairs = RawPairs(raftstore.engine, api_version, clock)
        self.physical = self._pairs.physical
        """Returns the form of a key that is compared with region bounds."""

    # --- reads ---

    def _get(self, region: Region, request: pb.RawGetRequest, stored: list[bytes], answer: Answer) -> None:
        found = self._pairs.find(self._engine, stored[0])
        if found is None:
            answer(pb.RawGetResponse(not_found=True), None)
        else:
            answer(pb.RawGetResponse(value=found.value), None)

    def _ttl(
        self, region: Region, request: pb.RawGetKeyTTLRequest, stored: list[bytes], answer: Answer
    ) -> None:
        found = self._pairs.find(self._engine, stored[0])
        if found is None:
            answer(pb.RawGetKeyTTLResponse(not_found=True), None)
        else:
            answer(pb.RawGetKeyTTLResponse(ttl=max(0, found.expires - self._pairs.now_s())), None)

    def _batch_get(
        self, region: Region, request: pb.RawBatchGetRequest, stored: list[bytes], answer: Answer
    ) -> None:
        response = pb.RawBatchGetResponse()
        for raw, key in zip(request.keys, stored, strict=True):
            found = self._pairs.find(self._engine, key)
            if found is not None:
                response.pairs.add(key=raw, value=found.value)
        answer(response, None)

    def _scan(self, region: Region, request: pb.RawScanRequest, stored: list[bytes], answer: Answer) -> None:
        response = pb.RawScanResponse()
        low, high = scan_range(request)
        self._fill(region, response.kvs, low, high, request.limit, request)
        answer(response, None)

    def _batch_scan(
        self, region: Region, request: pb.RawBatchScanRequest, stored: list[bytes], answer: Answer
    ) -> None:
        response = pb.RawBatchScanResponse()
        for each in request.ranges:
            low, high = each.start_key, each.end_key
            if request.reverse:
                low, high = high, low
            self._fill(region, response.kvs, low, high, request.each_limit, request)
            if response.ByteSize() >= SCAN_BYTES_MAX:
                raise RefusalError(
                    f"a batch scan may answer with {SCAN_BYTES_MAX >> 20} MiB; ask for fewer pairs"
                )
        answer(response, None)

    def _checksum(
        self, region: Region, request: pb.RawChecksumRequest, stored: list[bytes], answer: Answer
    ) -> None:
        response = pb.RawChecksumResponse()
        for each in request.ranges:
            start, end = self._pairs.clipped(region, each.start_key, each.end_key)
            for raw, value in self._pairs.ascending(start, end):
                response.checksum ^= crc64(raw + value)
                response.total_kvs += 1
                response.total_bytes += len(raw) + len(value)
        answer(response, None)

    def _fill(self, region: Region, pairs: Any, low: bytes, high: bytes, limit: int, request: Any) -> None:
        start, end = self._pairs.clipped(region, low, high)
        size = 0
        walk = self._pairs.descending(start, end) if request.reverse else self._pairs.ascending(start, end)
        for found, (raw, value) in enumerate(walk):
            if found >= min(limit, SCAN_LIMIT_MAX) or size >= SCAN_BYTES_MAX:
                return
            pairs.add(key=raw, value=b"" if request.key_only else value)
            size += len(raw) + len(value)

    # --- writes ---

    def _write(
        self,
        region: Region,
        stored: list[bytes],
        make: Callable[[int], list[Change]],
        done: Any,
        answer: Answer,
    ) -> None:
        """Write the changes of `make(ts)` under the keys' latches; answer `done` when they are applied."""
        self._schedule(region, stored, lambda view, ts: CommandOutcome(done, make(ts)), answer)

    def _schedule(
        self,
        region: Region,
        stored: list[bytes],
        decide: Callable[[View, int], CommandOutcome[Any]],
        answer: Answer,
    ) -> None:
        next_ts = self._next_ts
        if self.api_version != 1 and next_ts is None:
            raise RefusalError("raw writes need a TSO that moves: start the upstream with --tso system")
        hold: list[int] = []

        def run(_: object) -> CommandOutcome[Any]:
            if next_ts is None:
                return decide(self._engine, 0)
            try:
                # Held before the version's ts is requested. A resolved ts above that ts is requested later
                # still, so it finds the hold.
                hold.append(self._concurrency.hold(next_ts()))
                ts = next_ts()
            except Retryable:
                raise RegionError(max_ts_not_synced(region)) from None
            return decide(self._engine, ts)

        def then(response: Any, error: Exception | None) -> None:
            # Not before the write is applied: a resolved ts above the version would reach CDC before the
            # version's row.
            for each in hold:
                self._concurrency.end_hold(each)
            answer(response, error)

        self._scheduler.submit(Task(region, stored, run, then))

    def _put_change(self, key: bytes, value: bytes, ttl: int, ts: int) -> Change:
        if self.api_version == 1:
            return mvcc.DEFAULT, key, value
        expires = self._pairs.now_s() + ttl if ttl else 0
        return mvcc.DEFAULT, keys.versioned(key, ts), encode_value(value, expires)

    def _delete_change(self, key: bytes, ts: int) -> Change:
        if self.api_version == 1:
            return mvcc.DEFAULT, key, None
        return mvcc.DEFAULT, keys.versioned(key, ts), _DELETE

    def _put(self, region: Region, request: pb.RawPutRequest, stored: list[bytes], answer: Answer) -> None:
        self._check_ttl([request.ttl])
        self._write(
            region,
            stored,
            lambda ts: [self._put_change(stored[0], request.value, request.ttl, ts)],
            pb.RawPutResponse(),
            answer,
        )

    def _batch_put(
        self, region: Region, request: pb.RawBatchPutRequest, stored: list[bytes], answer: Answer
    ) -> None:
        ttls: Sequence[int] = request.ttls or [request.ttl]
        if len(ttls) == 1:
            ttls = [ttls[0]] * len(stored)
        if len(ttls) != len(stored):
            raise RefusalError(f"{len(stored)} pairs with {len(request.ttls)} ttls")
        self._check_ttl(ttls)

        def make(ts: int) -> list[Change]:
            # The last pair of a key counts. All pairs get one ts, so two versions of a key would have one
            # stored key.
            pairs = dict(zip(stored, zip(request.pairs, ttls, strict=True), strict=True))
            return [self._put_change(key, pair.value, ttl, ts) for key, (pair, ttl) in pairs.items()]

        self._write(region, stored, make, pb.RawBatchPutResponse(), answer)

    def _delete(
        self, region: Region, request: pb.RawDeleteRequest, stored: list[bytes], answer: Answer
    ) -> None:
        self._write(
            region,
            stored,
            lambda ts: [self._delete_change(stored[0], ts)],
            pb.RawDeleteResponse(),
            answer,
        )

    def _batch_delete(
        self, region: Region, request: pb.RawBatchDeleteRequest, stored: list[bytes], answer: Answer
    ) -> None:
        self._write(
            region,
            stored,
            lambda ts: [self._delete_change(key, ts) for key in stored],
            pb.RawBatchDeleteResponse(),
            answer,
        )

    def _swap(self, region: Region, request: pb.RawCASRequest, stored: list[bytes], answer: Answer) -> None:
        self._check_ttl([request.ttl])
        key = stored[0]

        def decide(view: View, ts: int) -> CommandOutcome[pb.RawCASResponse]:
            found = self._pairs.find(view, key)
            response = pb.RawCASResponse()
            if found is None:
                response.previous_not_exist = True
            else:
                response.previous_value = found.value
            wanted = None if request.previous_not_exist else request.previous_value
            if wanted != (None if found is None else found.value):
                return CommandOutcome(response)
            response.succeed = True
            if request.delete:
                return CommandOutcome(response, [self._delete_change(key, ts)])
            return CommandOutcome(response, [self._put_change(key, request.value, request.ttl, ts)])

        self._schedule(region, stored, decide, answer)

    def _delete_range(
        self, region: Region, request: pb.RawDeleteRangeRequest, stored: list[bytes], answer: Answer
    ) -> None:
        """Remove all versions in the range, as in TiKV without tombstones, so CDC does not see it."""
        start = max(region.start, self.physical(request.start_key))
        end = self.physical(request.end_key) if request.end_key else region.end
        if region.end and (not end or end > region.end):
            end = region.end

        def applied(error: Exception | None) -> None:
            answer(pb.RawDeleteRangeResponse(), error)

        if end and start >= end:
            applied(None)
            return
        ranges = [(mvcc.DEFAULT, start, end)]
        command = Command(region.id, (), on_applied=applied, ranges=ranges, region=region)
        self._raftstore.propose(command)

    def _check_ttl(self, ttls: Sequence[int]) -> None:
        if self.api_version == 1 and any(ttls):
            raise RefusalError("ttl is not enabled, but was set")

    # --- the table ---

    def calls(self) -> dict[type[Message], Call]:
        """The raw requests this store serves."""

        def call(response: Any, serve: Serve, keys: Any = None, range: Any = None) -> Call:
            def checked(region: Region, request: Any, stored: list[bytes], answer: Answer) -> None:
                cf = getattr(request, "cf", "")
                if cf not in ("", "default"):
                    raise RefusalError(f"invalid column family '{cf}': raw keys are in 'default'")
                serve(region, request, stored, answer)

            return Call(response, checked, keys, range, raw=True)

        return {
            pb.RawGetRequest: call(pb.RawGetResponse, self._get, the_key),
            pb.RawBatchGetRequest: call(pb.RawBatchGetResponse, self._batch_get, the_keys),
            pb.RawGetKeyTTLRequest: call(pb.RawGetKeyTTLResponse, self._ttl, the_key),
            pb.RawScanRequest: call(pb.RawScanResponse, self._scan, range=scan_range),
            pb.RawBatchScanRequest: call(pb.RawBatchScanResponse, self._batch_scan),
            pb.RawChecksumRequest: call(pb.RawChecksumResponse, self._checksum),
            pb.RawPutRequest: call(pb.RawPutResponse, self._put, the_key),
            pb.RawBatchPutRequest: call(pb.RawBatchPutResponse, self._batch_put, _pair_keys),
            pb.RawDeleteRequest: call(pb.RawDeleteResponse, self._delete, the_key),
            pb.RawBatchDeleteRequest: call(pb.RawBatchDeleteResponse, self._batch_delete, the_keys),
            pb.RawCASRequest: call(pb.RawCASResponse, self._swap, the_key),
            pb.RawDeleteRangeRequest: call(pb.RawDeleteRangeResponse, self._delete_range, range=the_range),
        }


def _pair_keys(request: pb.RawBatchPutRequest) -> Sequence[bytes]:
    return [pair.key for pair in request.pairs]
