"""`tikvpb.Tikv` over gRPC, for one store: unary calls, and streams of batched commands.

`TikvService` hands each request to `Store.submit`, which answers from another thread. A unary call waits for
its answer on gRPC's thread; a `CommandStream` has many requests under way.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from tidegate.errors import InvalidInput
from tidegate.proto import kvrpcpb_pb2, tikvpb_pb2
from tidegate.tikv.raft.region_table import server_is_busy
from tidegate.tikv.rpc.handlers import abort
from tidegate.tikv.rpc.store import Store
from tidegate.tikv.txn.scheduler import Answer

ANSWERS_PER_MESSAGE: Final = 128
ANSWERS_BYTES_MAX: Final = 64 << 20
COMMANDS_MAX: Final = 1 << 16


class TikvService:
    """`tikvpb.Tikv` over gRPC: a unary call waits for its answer, a BatchCommands stream does not."""

    def __init__(self, store: Store, cluster_id: int) -> None:
        self._store = store
        self._cluster_id = cluster_id
        for name in _UNARY:
            setattr(self, name, self._call)

    def _call(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            check_cluster(request, self._cluster_id)
        except InvalidInput as error:
            abort(context, error)
        return _waited(lambda answer: self._store.submit(request, answer), context)

    def UnsafeDestroyRange(
        self, request: kvrpcpb_pb2.UnsafeDestroyRangeRequest, context: grpc.ServicerContext
    ) -> kvrpcpb_pb2.UnsafeDestroyRangeResponse:
        response: kvrpcpb_pb2.UnsafeDestroyRangeResponse = _waited(
            lambda answer: self._store.ranges.destroy(request, answer), context
        )
        return response

    def GetLockWaitInfo(
        self, request: kvrpcpb_pb2.GetLockWaitInfoRequest, context: grpc.ServicerContext
    ) -> kvrpcpb_pb2.GetLockWaitInfoResponse:
        return self._store.lock_wait_info()

    def GetStoreSafeTS(
        self, request: kvrpcpb_pb2.StoreSafeTSRequest, context: grpc.ServicerContext
    ) -> kvrpcpb_pb2.StoreSafeTSResponse:
        return kvrpcpb_pb2.StoreSafeTSResponse()

    def BatchCommands(
        self, requests: Iterator[tikvpb_pb2.BatchCommandsRequest], context: grpc.ServicerContext
    ) -> Iterator[tikvpb_pb2.BatchCommandsResponse]:
        return CommandStream(self._store, self._cluster_id, requests).responses(context)


def _waited(submit: Callable[[Answer], None], context: grpc.ServicerContext) -> Any:
    """Submit a request and wait for its answer on the thread of the call."""
    done = threading.Lock()
    done.acquire()
    answered: list[Any] = []

    def answer(response: Any, error: Exception | None) -> None:
        answered.extend((response, error))
        done.release()

    submit(answer)
    done.acquire()
    response, error = answered
    if error is not None:
        abort(context, error)
    return response


_UNARY: Final = (
    "KvGet",
    "KvScan",
    "KvPrewrite",
    "KvPessimisticLock",
    "KVPessimisticRollback",
    "KvTxnHeartBeat",
    "KvCheckTxnStatus",
    "KvCheckSecondaryLocks",
    "KvCommit",
    "KvCleanup",
    "KvBatchGet",
    "KvBatchRollback",
    "KvScanLock",
    "KvResolveLock",
    "KvFlush",
    "KvBufferBatchGet",
    "KvDeleteRange",
    "MvccGetByKey",
    "SplitRegion",
    "RawGet",
    "RawBatchGet",
    "RawGetKeyTTL",
    "RawPut",
    "RawBatchPut",
    "RawDelete",
    "RawBatchDelete",
    "RawScan",
    "RawBatchScan",
    "RawDeleteRange",
    "RawCompareAndSwap",
    "RawChecksum",
    "KvPrepareFlashbackToVersion",
    "KvFlashbackToVersion",
)

_Sized = tuple[int, tikvpb_pb2.BatchCommandsResponse.Response, int]
"""The number of a request, its answer, and the bytes of the answer."""


class CommandStream:
    """One BatchCommands stream: requests are submitted as they arrive, answers are sent as they are ready.

    Bounds: while more than `ANSWERS_BYTES_MAX` of answers wait for the client to read them, the stream reads
    no more requests. At most `COMMANDS_MAX` requests are under way (waiting for locks, for example); further
    ones are refused with "server is busy".
    """

    def __init__(
        self, store: Store, cluster_id: int, requests: Iterator[tikvpb_pb2.BatchCommandsRequest]
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._requests = requests
        self._answers: queue.SimpleQueue[_Sized | Exception | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._unsent = self._under_way = 0
        self._ended = False

    def responses(self, context: grpc.ServicerContext) -> Iterator[tikvpb_pb2.BatchCommandsResponse]:
        """Messages for the client, until it closes the stream."""
        # False: the call has already ended, and `_end` would never be called.
        if not context.add_callback(self._end):
            return
        threading.Thread(target=self._receive, name="batch-commands", daemon=True).start()
        while (first := self._answers.get()) is not None:
            message = tikvpb_pb2.BatchCommandsResponse()
            following: _Sized | Exception | None = first
            sent = 0
            while isinstance(following, tuple):
                number, response, size = following
                message.request_ids.append(number)
                message.responses.append(response)
                sent += size
                if len(message.request_ids) == ANSWERS_PER_MESSAGE or self._answers.empty():
                    break
                # This does not wait: the queue is not empty, and no other thread takes from it.
                following = self._answers.get()
            self._leave(sent)
            if message.request_ids:
                yield message
            if following is None:
                return
            if isinstance(following, Exception):
                abort(context, following)

    def _leave(self, size: int) -> None:
        with self._changed:
            # Only above the bound can the receiving thread be waiting.
            waits = self._unsent > ANSWERS_BYTES_MAX
            self._unsent -= size
            if waits:
                self._changed.notify_all()

    def _put(
        self, number: int, response: tikvpb_pb2.BatchCommandsResponse.Response, commands: int = 0
    ) -> None:
        size = response.ByteSize()
        with self._changed:
            self._unsent += size
            self._under_way -= commands
        self._answers.put((number, response, size))

    def _wait(self) -> None:
        with self._changed:
            while self._unsent > ANSWERS_BYTES_MAX and not self._ended:
                self._changed.wait()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _receive(self) -> None:
        ended: Exception | None = None
        try:
            for message in self._requests:
                # As TiKV does: a number without a request, or a request without a number, is ignored.
                for number, request in zip(message.request_ids, message.requests, strict=False):
                    # Read without the lock; `_wait` reads it again with the lock.
                    if self._unsent > ANSWERS_BYTES_MAX:
                        self._wait()
                    self._submit(number, request)
        except grpc.RpcError:
            return  # the client went away
        except InvalidInput as error:
            ended = error
        finally:
            self._answers.put(ended)

    def _submit(self, number: int, request: tikvpb_pb2.BatchCommandsRequest.Request) -> None:
        name = request.WhichOneof("cmd")
        wrap = tikvpb_pb2.BatchCommandsResponse.Response
        if name == "Empty":
            empty = tikvpb_pb2.BatchCommandsEmptyResponse(test_id=request.Empty.test_id)
            self._put(number, wrap(Empty=empty))
            return
        if name is None:
            self._put(number, wrap())
            return
        command = getattr(request, name)
        check_cluster(command, self._cluster_id)

        def answer(response: Any, error: Exception | None) -> None:
            if error is None:
                self._put(number, wrap(**{name: response}), 1)
            else:
                self._answers.put(None)  # end the stream: the client retries on a new one

        with self._changed:
            self._under_way += 1
            is_busy = self._under_way > COMMANDS_MAX
        if is_busy:
            self._store.refuse(command, server_is_busy("too many commands of one stream"), answer)
        else:
            self._store.submit(command, answer)


def check_cluster(request: Any, cluster_id: int) -> None:
    """Raise InvalidInput for a request to another cluster; the id 0 stands for any cluster."""
    if request.context.cluster_id not in (0, cluster_id):
        raise InvalidInput("the cluster id of the request does not match the TiKV cluster")
