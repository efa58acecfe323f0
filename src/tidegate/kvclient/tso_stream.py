"""The Tso stream: one gRPC stream over which PD gives a client all its timestamps."""

from __future__ import annotations

import queue
import threading
from typing import Any, Final, cast

import grpc

from tidegate.errors import Retryable
from tidegate.kvclient.channel import Requests, at_end
from tidegate.kvclient.pd_calls import CALL_TIMEOUT_S
from tidegate.proto import pdpb_pb2 as pdpb
from tidegate.proto import pdpb_pb2_grpc

READER_S: Final = 1.0
"""How long the end of a timestamp stream waits for its reader."""


class TsoStream:
    """A Tso stream that stays open; the next caller reopens a broken one. Callers take turns."""

    def __init__(self) -> None:
        self._requests: Requests | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call: Any = None
        self._stub: pdpb_pb2_grpc.PDStub | None = None
        self._reader: threading.Thread | None = None

    def ask(self, stub: pdpb_pb2_grpc.PDStub, cluster_id: int, count: int) -> Any:
        """Send one request and wait for its answer, at most CALL_TIMEOUT_S.

        Raises grpc.RpcError or Retryable, and closes the stream: a late answer would belong to no request.
        """
        if self._requests is None or stub is not self._stub:
            self._open(stub)
        assert self._requests is not None
        self._requests.put(pdpb.TsoRequest(header=pdpb.RequestHeader(cluster_id=cluster_id), count=count))
        try:
            answer = self._answers.get(timeout=CALL_TIMEOUT_S)
        except queue.Empty:
            self.close()
            raise Retryable(
                "PD did not answer a timestamp request", why=f"no answer in {CALL_TIMEOUT_S} s"
            ) from None
        if isinstance(answer, BaseException):
            self.close()
            raise answer
        return answer

    def _open(self, stub: pdpb_pb2_grpc.PDStub) -> None:
        self.close()
        requests, answers = Requests(), self._answers
        call = stub.Tso(requests)
        self._requests, self._call, self._stub = requests, call, stub
        at_end(call, lambda: answers.put(_why_ended(call)))
        self._reader = threading.Thread(target=_pump, args=(call, answers), name="tso", daemon=True)
        self._reader.start()

    def close(self) -> None:
        """End the stream. On return nothing here refers to the call, and its threads have ended.

        Only a reader that gRPC itself keeps may still run (`channel.at_end`).
        """
        if self._requests is not None and self._reader is not None:
            self._requests.end()
            self._call.cancel()
            self._reader.join(READER_S)
            self._requests.join(CALL_TIMEOUT_S)
        self._requests, self._call, self._stub, self._reader = None, None, None, None
        self._answers = queue.SimpleQueue()


def _pump(call: Any, answers: queue.SimpleQueue[Any]) -> None:
    """Move answers of a stream into a queue."""
    try:
        for answer in call:
            answers.put(answer)
    except grpc.RpcError as error:
        error.__traceback__ = None  # the error is the call itself, which would refer to itself


def _why_ended(call: Any) -> BaseException:
    """The error for callers of a stream that has ended: the call itself, unless it ended well."""
    if call.code() is grpc.StatusCode.OK:
        return Retryable("PD closed the timestamp stream")
    return cast("BaseException", call)
