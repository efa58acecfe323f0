from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tidegate.kvclient import tso_stream
from tidegate.kvclient.tso_stream import TsoStream
from tidegate.proto import pdpb_pb2 as pdpb
from tidegate.proto import pdpb_pb2_grpc

CALLERS = 4


class Pd(pdpb_pb2_grpc.PDServicer):
    """Answers each request when it is allowed to."""

    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Semaphore(0), threading.Event()

    def Tso(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            self.asked.release()
            self.may_answer.wait(60)
            yield pdpb.TsoResponse(count=request.count)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Pd, pdpb_pb2_grpc.PDStub]]:
    monkeypatch.setattr(tso_stream, "CALL_TIMEOUT_S", 60.0)
    pd, server = Pd(), grpc.server(ThreadPoolExecutor(4))
    pdpb_pb2_grpc.add_PDServicer_to_server(pd, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield pd, pdpb_pb2_grpc.PDStub(channel)
    pd.may_answer.set()
    server.stop(0).wait()


def test_a_stream_is_used_again_until_it_is_closed(served: tuple[Pd, pdpb_pb2_grpc.PDStub]) -> None:
    pd, stub = served
    pd.may_answer.set()
    stream = TsoStream()
    assert [stream.ask(stub, 1, count).count for count in (1, 2)] == [1, 2]
    stream.close()
    assert stream.ask(stub, 1, 3).count == 3
    stream.close()


def test_a_caller_that_waits_gets_an_error_when_others_close(served: tuple[Pd, pdpb_pb2_grpc.PDStub]) -> None:
    pd, stub = served
    stream = TsoStream()
    with ThreadPoolExecutor(CALLERS + 1) as pool:
        answer = pool.submit(stream.ask, stub, 1, 1)
        assert pd.asked.acquire(timeout=60)
        closed = [pool.submit(stream.close) for _ in range(CALLERS)]
        error = answer.exception(timeout=60)
        assert isinstance(error, grpc.Call)
        assert error.code() is grpc.StatusCode.CANCELLED
        assert [one.result(timeout=60) for one in closed] == [None] * CALLERS
