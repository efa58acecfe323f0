"""The Tso stream: one gRPC stream over which PD gives a client all its timestamps."""

from __future__ import annotations

import queue
import threading
from typing import Any, Final, NamedTuple, cast

import grpc

from tidegate.errors import Retryable
from tidegate.kvclient.channel import Requests, at_end
from tidegate.kvclient.pd_calls import CALL_TIMEOUT_S
from tidegate.proto import pdpb_pb2 as pdpb
from tidegate.proto import pdpb_pb2_grpc

READER_S: Final = 1.0
"""How long the end of a timestamp stream waits for its reader."""


class TsoStream:
    """A Tso stream that stays open; the next caller reopens a broken one.

    Callers of `ask` take turns. `close` may come from another thread meanwhile, so each reads `_open` once.
    """

    def __init__(self) -> None:
        self._open: _OpenCall | None = None
        self._lock = threading.Lock()  # of `_open`; not held while anything is waited for

    def ask(self, stub: pdpb_pb2_grpc.PDStub, cluster_id: int, count: int) -> Any:
        """Send one request and wait for its answer, at most CALL_TIMEOUT_S.

        Raises grpc.RpcError or Retryable, and closes the stream: a late answer would belong to no request.
        """
        known = self._open
        # Another stub is that of another leader.
        if known is None or known.stub is not stub:
            known = _opened(stub)
            # The new stream is in place before the old one is ended, which may take seconds.
            self._end(self._swap(known))
        known.requests.put(pdpb.TsoRequest(header=pdpb.RequestHeader(cluster_id=cluster_id), count=count))
        try:
            answer = known.answers.get(timeout=CALL_TIMEOUT_S)
        # The stream ends with it: on the same one, the late answer would be taken for the next request's.
        except queue.Empty:
            self.close()
            raise Retryable(
                "PD did not answer a timestamp request", why=f"no answer in {CALL_TIMEOUT_S} s"
            ) from None
        if isinstance(answer, BaseException):
            self.close()
            raise answer
        return answer

    def close(self) -> None:
        """End the stream. On return nothing here refers to the call, and its threads have ended.

        Only a reader that gRPC itself keeps may still run (`channel.at_end`), and a stream that a caller is
        just opening.
        """
        self._end(self._swap(None))

    def _swap(self, new: _OpenCall | None) -> _OpenCall | None:
        with self._lock:
            old, self._open = self._open, new
        return old

    def _end(self, known: _OpenCall | None) -> None:
        if known is not None:
            known.requests.end()
            known.call.cancel()
            known.reader.join(READER_S)
            known.requests.join(CALL_TIMEOUT_S)


class _OpenCall(NamedTuple):
    stub: pdpb_pb2_grpc.PDStub
    requests: Requests
    answers: queue.SimpleQueue[Any]
    """Answers, and at the end why the call has ended."""
    call: Any
    reader: threading.Thread


def _opened(stub: pdpb_pb2_grpc.PDStub) -> _OpenCall:
    requests, answers = Requests(), queue.SimpleQueue[Any]()
    call = stub.Tso(requests)
    at_end(call, lambda: answers.put(_why_ended(call)))
    reader = threading.Thread(target=_pump, args=(call, answers), name="tso", daemon=True)
    reader.start()
    return _OpenCall(stub, requests, answers, call, reader)


def _pump(call: Any, answers: queue.SimpleQueue[Any]) -> None:
    """Move answers of a stream into a queue."""
    try:
        # `at_end` reports the end, even if gRPC never ends this loop.
        for answer in call:
            answers.put(answer)
    except grpc.RpcError as error:
        error.__traceback__ = None  # the error is the call itself, which would refer to itself


def _why_ended(call: Any) -> BaseException:
    """The error for callers of a stream that has ended: the call itself, unless it ended well."""
    if call.code() is grpc.StatusCode.OK:
        return Retryable("PD closed the timestamp stream")
    return cast("BaseException", call)
