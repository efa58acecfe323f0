"""The requests that read transactional keys: `snapshot` reads, `calls` says how each request is served."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv.engine import Engine
from tidegate.tikv.percolator import prewrite
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.precedence import Pauses, pausing
from tidegate.tikv.raft.region import Region
from tidegate.tikv.reader import MvccReader
from tidegate.tikv.txn import snapshot
from tidegate.tikv.txn.call import Call, Serve, clip, scan_range, the_key, the_keys

_VERSION: Final = ("version",)
LONG_ROWS: Final = 512
"""A scan of more rows gives way to other requests (`tikv.precedence`). It is a page of a whole table, and no
statement that someone waits for.
"""


class TxnReads:
    """The reads of one store. Thread-safe; answered at once."""

    def __init__(self, engine: Engine, concurrency: ConcurrencyManager) -> None:
        self._engine, self._concurrency = engine, concurrency

    def calls(self) -> dict[type[Message], Call]:
        """The reads that this store serves."""
        return {
            pb.GetRequest: Call(pb.GetResponse, _at_once(self._get), the_key, stamps=_VERSION),
            pb.BatchGetRequest: Call(
                pb.BatchGetResponse, _at_once(self._batch_get), the_keys, stamps=_VERSION
            ),
            pb.BufferBatchGetRequest: Call(
                pb.BufferBatchGetResponse, _at_once(self._buffer_batch_get), the_keys
            ),
            pb.ScanRequest: Call(pb.ScanResponse, _at_once(self._scan), range=scan_range, stamps=_VERSION),
            pb.ScanLockRequest: Call(
                pb.ScanLockResponse, _at_once(self._scan_locks), stamps=("max_version",)
            ),
            pb.MvccGetByKeyRequest: Call(pb.MvccGetByKeyResponse, _at_once(self._mvcc_by_key), the_key),
        }

    def _get(self, region: Region, request: pb.GetRequest) -> pb.GetResponse:
        return snapshot.get(self._engine, request, self._concurrency)

    def _batch_get(self, region: Region, request: pb.BatchGetRequest) -> pb.BatchGetResponse:
        return snapshot.batch_get(self._engine, request, self._concurrency)

    def _buffer_batch_get(
        self, region: Region, request: pb.BufferBatchGetRequest
    ) -> pb.BufferBatchGetResponse:
        return prewrite.buffer_batch_get(MvccReader(self._engine), request)

    def _scan(self, region: Region, request: pb.ScanRequest) -> pb.ScanResponse:
        start, end = clip(region, *scan_range(request))
        paced = partial(pausing, pauses=Pauses()) if request.limit > LONG_ROWS else iter
        return snapshot.scan(self._engine, request, start, end, self._concurrency, paced)

    def _scan_locks(self, region: Region, request: pb.ScanLockRequest) -> pb.ScanLockResponse:
        start, end = clip(region, request.start_key, request.end_key)
        return snapshot.scan_locks(self._engine, request, start, end, self._concurrency)

    def _mvcc_by_key(self, region: Region, request: pb.MvccGetByKeyRequest) -> pb.MvccGetByKeyResponse:
        return pb.MvccGetByKeyResponse(info=snapshot.mvcc_info(self._engine, request.key))


def _at_once(read: Callable[[Region, Any], Any]) -> Serve:
    return lambda region, request, _, answer: answer(read(region, request), None)
