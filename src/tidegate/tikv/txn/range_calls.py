"""The requests that empty or flash back a range of keys, whatever transactions have written there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.percolator.outcome import Announced
from tidegate.tikv.raft.raftstore import Command, Raftstore
from tidegate.tikv.raft.region import Region
from tidegate.tikv.txn.call import Call, RefusalError, Serve, clip, the_range
from tidegate.tikv.txn.flashback_requests import Flashback, Range, Step
from tidegate.tikv.txn.scheduler import Answer


class TxnRanges:
    """The requests for ranges at one store. Thread-safe."""

    def __init__(
        self,
        raftstore: Raftstore,
        announced: Callable[[int], Announced],
        later: Callable[[Step], None],
    ) -> None:
        self._raftstore = raftstore
        self._flashback = Flashback(raftstore, announced, later)

    def calls(self) -> dict[type[Message], Call]:
        """The requests for ranges that this store serves; `destroy` has no region."""
        return {
            pb.DeleteRangeRequest: Call(pb.DeleteRangeResponse, self._delete_range, range=the_range),
            pb.PrepareFlashbackToVersionRequest: Call(
                pb.PrepareFlashbackToVersionResponse,
                _flashes_back(self._flashback.prepare),
                range=the_range,
                stamps=("start_ts",),
            ),
            pb.FlashbackToVersionRequest: Call(
                pb.FlashbackToVersionResponse,
                _flashes_back(self._flashback.flash_back),
                range=the_range,
                stamps=("start_ts", "commit_ts"),
            ),
        }

    def destroy(self, request: pb.UnsafeDestroyRangeRequest, answer: Answer) -> None:
        """Remove all data of a range on this store, whatever its regions; observers do not see it."""
        start, end = keys.encode(request.start_key), keys.encode(request.end_key) if request.end_key else b""
        self._empty(None, start, end, lambda error: answer(pb.UnsafeDestroyRangeResponse(), error))

    def _delete_range(
        self, region: Region, request: pb.DeleteRangeRequest, stored: list[bytes], answer: Answer
    ) -> None:
        """Remove all versions and locks of a range without records. CDC only sees that the locks are gone."""
        if request.notify_only:
            answer(pb.DeleteRangeResponse(), None)
            return
        start, end = clip(region, request.start_key, request.end_key)
        self._empty(region, start, end, lambda error: answer(pb.DeleteRangeResponse(), error))

    def _empty(
        self, region: Region | None, start: bytes, end: bytes, applied: Callable[[Exception | None], None]
    ) -> None:
        if end and start >= end:
            applied(None)
            return
        ranges = [(cf, start, end) for cf in (mvcc.DEFAULT, mvcc.LOCK, mvcc.WRITE)]
        region_id = 0 if region is None else region.id
        self._raftstore.propose(Command(region_id, (), on_applied=applied, ranges=ranges, region=region))


def _flashes_back(phase: Callable[[Range, Any, Answer], None]) -> Serve:
    def serve(region: Region, request: Any, stored: list[bytes], answer: Answer) -> None:
        what = Range(region, *clip(region, request.start_key, request.end_key))
        if what.end and what.start >= what.end:
            raise RefusalError("the range to flash back is not in the region")
        phase(what, request, answer)

    return serve
