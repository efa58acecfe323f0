"""Bad requests get the error that TiKV gives and use bounded memory, and other clients are served."""

from __future__ import annotations

import itertools
import os
import queue
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor

from tests.tikv.cluster import Client, Cluster, Feed
from tests.tikv.support import commit, pessimistic_lock, prewrite, put
from tests.tikv.test_server import Wire
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.proto import pdpb_pb2, tikvpb_pb2
from tidegate.tikv.cdc import channel, scans
from tidegate.tikv.cdc.channel import Channel, Subscription
from tidegate.tikv.rpc import store, tikv_service
from tidegate.tikv.server import EmbeddedUpstream

WAIT_S = 120
"""Guards against what hangs, and costs nothing when all is well."""
MALFORMED = (b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05\x08", b"\x0b" * 200)
"""No field; a length of 4 GiB; a message that ends in its middle; groups without an end."""
Make = Callable[..., Cluster]


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream(tmp_path_factory.mktemp("bad")) as running:
        yield running


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def served_by(wire: Wire, method: str) -> grpc.Channel:
    """To PD or the store, whose method it is."""
    return wire.channel if method.startswith("pdpb.") else wire.store_channel


def served(wire: Wire, name: bytes) -> None:
    """A transaction and a subscription work."""
    start_ts = wire.tso()
    assert not wire.kv.KvPrewrite(wire.at(prewrite(start_ts, put(name)), b"")).errors
    assert not wire.kv.KvCommit(wire.at(commit(start_ts, wire.tso(), name), b"")).HasField("error")
    calls = stream(wire, iter([registration(wire, 1)]))
    assert next(calls).events[0].entries.entries
    calls.cancel()


def stream(wire: Wire, requests: Iterator[Any]) -> Any:
    """A ChangeData stream that stays open when the requests are at their end."""
    held = itertools.chain(requests, iter(threading.Event().wait, True))
    return wire.cdc.EventFeedV2(held, metadata=(("features", "stream-multiplexing"),))


def registration(wire: Wire, request_id: int, cluster_id: int | None = None) -> cdc.ChangeDataRequest:
    found = wire.pd.GetRegion(pdpb_pb2.GetRegionRequest(region_key=b""))
    mine = found.header.cluster_id if cluster_id is None else cluster_id
    return cdc.ChangeDataRequest(
        header=cdc.Header(cluster_id=mine, ticdc_version="8.5.0"),
        region_id=found.region.id,
        region_epoch=found.region.region_epoch,
        request_id=request_id,
        register=cdc.ChangeDataRequest.Register(),
    )


@pytest.mark.parametrize("data", MALFORMED)
@pytest.mark.parametrize(
    "method", ["pdpb.PD/GetRegion", "tikvpb.Tikv/KvGet", "tikvpb.Tikv/KvPrewrite", "tikvpb.Tikv/RawPut"]
)
def test_a_malformed_request_is_an_error(upstream: EmbeddedUpstream, method: str, data: bytes) -> None:
    wire = Wire(upstream.pd_addr)
    with pytest.raises(grpc.RpcError, match="deserializing") as refused:
        served_by(wire, method).unary_unary(f"/{method}")(data, timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    served(wire, b"after")


@pytest.mark.parametrize(
    "method",
    ["pdpb.PD/Tso", "pdpb.PD/QueryRegion", "tikvpb.Tikv/BatchCommands", "cdcpb.ChangeData/EventFeedV2"],
)
def test_a_malformed_message_ends_its_stream_and_no_other(upstream: EmbeddedUpstream, method: str) -> None:
    wire = Wire(upstream.pd_addr)
    other = stream(wire, iter([registration(wire, 1)]))
    assert next(other).events[0].entries.entries
    for data in MALFORMED:
        broken = served_by(wire, method).stream_stream(f"/{method}")(iter([data]), timeout=WAIT_S)
        with pytest.raises(grpc.RpcError, match="deserializing") as refused:
            list(broken)
        assert refused.value.code() is grpc.StatusCode.INTERNAL
    reached = wire.tso()
    while next(other).resolved_ts.ts < reached:
        continue
    other.cancel()


def test_a_message_that_claims_four_gibibytes_is_rejected_at_once(
    upstream: EmbeddedUpstream,
) -> None:
    """HTTP/2 by hand: gRPC's own clients would not send it."""
    before = resident_bytes()
    host, _, port = upstream.stores.all()[0].address.rpartition(":")

    def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
        return head + stream_id.to_bytes(4, "big") + payload

    def header(name: bytes, value: bytes) -> bytes:
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    headers = b"".join(
        header(*each)
        for each in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/tikvpb.Tikv/KvGet"),
            (b":authority", b"x"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as raw:
        raw.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(4, 0, 0, b"")
            + frame(1, 4, 1, headers)
            + frame(0, 0, 1, b"\0\xff\xff\xff\xff" + b"k" * 1000)
        )
        found = b""
        while b"grpc-status" not in found:
            data = raw.recv(4096)
            assert data, found
            found += data
    assert b"larger than max" in found
    assert resident_bytes() - before < 64 << 20
    served(Wire(upstream.pd_addr), b"after four gibibytes")


def test_a_request_for_another_cluster_is_refused_everywhere(upstream: EmbeddedUpstream) -> None:
    wire = Wire(upstream.pd_addr)
    request = wire.at(pb.GetRequest(key=b"k", version=1), b"")
    request.context.cluster_id = 1
    text = "the cluster id of the request does not match the TiKV cluster"
    with pytest.raises(grpc.RpcError, match=text) as refused:
        wire.kv.KvGet(request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    one = tikvpb_pb2.BatchCommandsRequest.Request(Get=request)
    with pytest.raises(grpc.RpcError, match=text) as refused:
        list(wire.kv.BatchCommands(iter([tikvpb_pb2.BatchCommandsRequest(requests=[one], request_ids=[1])])))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    calls = stream(wire, iter([registration(wire, 1, cluster_id=1)]))
    mismatch = next(calls).events[0].error.cluster_id_mismatch
    assert (mismatch.current, mismatch.request) == (upstream.cluster_id, 1)
    calls.cancel()


def test_an_unknown_region_is_not_found(upstream: EmbeddedUpstream) -> None:
    wire = Wire(upstream.pd_addr)
    request = pb.GetRequest(key=b"k", version=1, context=pb.Context(region_id=777))
    assert wire.kv.KvGet(request).region_error.region_not_found.region_id == 777
    unknown = registration(wire, 5)
    unknown.region_id = 777
    calls = stream(wire, iter([unknown]))
    event = next(calls).events[0]
    assert (event.request_id, event.error.region_not_found.region_id) == (5, 777)
    calls.cancel()


def test_unequal_numbers_of_ids_and_commands_are_paired_up_to_the_shorter(
    upstream: EmbeddedUpstream,
) -> None:
    wire = Wire(upstream.pd_addr)
    nothing = tikvpb_pb2.BatchCommandsRequest.Request()
    empty = tikvpb_pb2.BatchCommandsRequest.Request(Empty=tikvpb_pb2.BatchCommandsEmptyRequest(test_id=9))
    odd = tikvpb_pb2.BatchCommandsRequest(requests=[nothing, empty, empty], request_ids=[4, 5])
    found = dict[int, Any]()
    for message in wire.kv.BatchCommands(iter([odd])):
        found |= dict(zip(message.request_ids, message.responses, strict=True))
    assert {number: each.WhichOneof("cmd") for number, each in found.items()} == {4: None, 5: "Empty"}


def test_twenty_thousand_commands_in_one_message_are_all_answered(upstream: EmbeddedUpstream) -> None:
    wire = Wire(upstream.pd_addr)
    get = wire.at(pb.GetRequest(key=b"k", version=wire.tso()), b"")
    one = tikvpb_pb2.BatchCommandsRequest.Request(Get=get)
    count = 20_000
    huge = tikvpb_pb2.BatchCommandsRequest(requests=[one] * count, request_ids=range(count))
    closing = threading.Event()
    answers = wire.kv.BatchCommands(itertools.chain([huge], iter(lambda: closing.wait(WAIT_S), True)))
    found: set[int] = set()
    for message in answers:
        found.update(message.request_ids)
        if len(found) == count:
            closing.set()
            break
    assert len(found) == count
    answers.cancel()


class _Call:
    """As much of a gRPC call as a command stream asks for."""

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.end = callback
        return True

    def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise AssertionError((code, text))


def test_of_a_client_that_reads_no_answers_no_more_commands_are_read(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tikv_service, "ANSWERS_BYTES_MAX", 1 << 20)
    cluster = make()
    cluster.txn(put(b"k", bytes(100_000)))
    (region,) = cluster.regions.all
    get = pb.GetRequest(key=b"k", version=cluster.tso.get())
    get.context.region_id, get.context.region_epoch.version = region.id, region.version
    one = tikvpb_pb2.BatchCommandsRequest.Request(Get=get)
    read = 0

    def requests() -> Iterator[Any]:
        nonlocal read
        for read in range(1, 1001):
            yield tikvpb_pb2.BatchCommandsRequest(requests=[one], request_ids=[read])

    call = _Call()
    stream = tikv_service.CommandStream(cluster.store, 1, requests())
    answers = stream.responses(call)  # type: ignore[arg-type]
    first = next(answers)
    while stream._unsent <= 1 << 20:
        threading.Event().wait(0.001)
    assert read <= len(first.request_ids) + 12, "1 MiB of answers of 100 kB, and the one that waits"
    assert sum(len(message.request_ids) for message in answers) + len(first.request_ids) == 1000
    call.end()


def test_commands_beyond_those_that_may_be_under_way_find_the_server_busy(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tikv_service, "COMMANDS_MAX", 3)
    cluster = make()
    (region,) = cluster.regions.all
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"k"), lock_ttl=60_000), b"k")
    waits = []
    for i in range(5):
        ts = cluster.tso.get()
        wait = pessimistic_lock(ts, ts, b"k", wait_timeout=120_000)
        wait.context.region_id, wait.context.region_epoch.version = region.id, region.version
        one = tikvpb_pb2.BatchCommandsRequest.Request(PessimisticLock=wait)
        waits.append(tikvpb_pb2.BatchCommandsRequest(requests=[one], request_ids=[i]))
    closing = threading.Event()
    stream = tikv_service.CommandStream(
        cluster.store, 1, itertools.chain(waits, iter(lambda: closing.wait(WAIT_S), True))
    )
    answers = stream.responses(_Call())  # type: ignore[arg-type]
    busy = dict[int, Any]()
    while len(busy) < 2:
        message = next(answers)
        busy |= dict(zip(message.request_ids, message.responses, strict=True))
    assert sorted(busy) == [3, 4]
    text = "too many commands of one stream"
    assert all(each.PessimisticLock.region_error.server_is_busy.reason == text for each in busy.values())
    closing.set()
    cluster.waiting.stop()


def test_requests_above_the_byte_limit_get_server_is_busy_until_it_drains(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "REQUESTS_BYTES_MAX", 250_000)
    cluster = make()
    start_ts = cluster.tso.get()
    cluster.call(prewrite(start_ts, put(b"k"), lock_ttl=60_000), b"k")
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask(number: int) -> None:
        ts = cluster.tso.get()
        wait = pessimistic_lock(ts, ts, b"k", wait_timeout=120_000)
        wait.mutations[0].value = bytes(100_000)
        (region,) = cluster.regions.all
        wait.context.region_id, wait.context.region_epoch.version = region.id, region.version
        cluster.store.submit(wait, lambda response, error: answers.put((number, response)))

    for number in range(3):
        ask(number)
    number, response = answers.get(timeout=WAIT_S)
    assert number == 2
    assert response.region_error.server_is_busy.reason == "too many bytes of requests wait"
    cluster.call(commit(start_ts, cluster.tso.get(), b"k"), b"k")
    assert answers.get(timeout=WAIT_S)[0] in (0, 1)
    ask(3)
    while not answers.empty():  # a refusal would be there at once
        assert not answers.get()[1].region_error.HasField("server_is_busy")
    cluster.waiting.stop()


def test_100_000_registrations_on_one_stream_are_served_or_get_busy(
    make: Make,
) -> None:
    """So many that only `SCANS_MAX` may be scanned; the stream waits for the endpoint, not in memory."""
    cluster = make()
    (region,) = cluster.regions.all
    client = Client(cluster)
    cluster.faults.scan_delay_s = 3600.0  # none of them ends before all have come
    before = resident_bytes()
    count, text = 100_000, "too many pending incremental scans"
    request = client.request(0, region)
    refused = threading.Semaphore(0)

    class Counting(dict[tuple[int, int], Feed]):
        def __missing__(self, key: tuple[int, int]) -> Any:
            return self

        error = property(lambda self: None, lambda self, error: self.refuse(error))

        def refuse(self, error: cdc.Error) -> None:
            assert error.server_is_busy.reason == text
            refused.release()

    client.feeds = Counting()
    most = 0
    for number in range(count):
        each = cdc.ChangeDataRequest()
        each.CopyFrom(request)
        each.request_id = number
        client.endpoint.request(client.connection, each)
        most = max(most, client.endpoint._tasks.qsize())
        client.messages.clear()
    for _ in range(count - scans.SCANS_MAX):
        assert refused.acquire(timeout=WAIT_S)
    assert len(client.connection.downstreams) == scans.SCANS_MAX
    assert most <= channel.REQUESTS_MAX + 16
    assert resident_bytes() - before < 128 << 20
    client.close()
    cluster.faults.clear()
    cluster.faults.stopping.set()
    cluster.txn(put(b"after"))
    other = Client(cluster)
    feed = other.register(1, region)
    other.until(lambda: feed.initialized or feed.error is not None)
    other.close()


def test_of_a_client_that_reads_no_refusals_no_more_registrations_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "ERRORS_MAX", 2)
    mine = Channel()
    for _ in range(2):
        assert mine.begin_request()
        mine.put_error(b"e")
        mine.end_request()
    waiting = threading.Thread(target=mine.begin_request)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert mine.take() == [b"ee"]
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    mine.close()
    assert not mine.begin_request()
    mine.fail(Subscription(), b"nobody receives it")


NUMBERS = (0, 1, 2, 255, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
BYTES = (b"", b"k", b"r\0\0\0k", b"x\0\0\0k", b"t\x80", b"\xff" * 40, b"v" * 300)


class Hostile:
    """Requests whose every field is what nobody expects."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def fill(self, message: Any, depth: int = 0) -> Any:
        for field in message.DESCRIPTOR.fields:
            if field.name == "context" or self.rng.random() < 0.25:
                continue
            if field.message_type is not None:
                if field.is_repeated:
                    for _ in range(self.rng.randrange(3)):
                        self.fill(getattr(message, field.name).add(), depth + 1)
                elif depth < 2:
                    self.fill(getattr(message, field.name), depth + 1)
            elif field.is_repeated:
                getattr(message, field.name).extend(self.value(field) for _ in range(self.rng.randrange(4)))
            else:
                setattr(message, field.name, self.value(field))
        return message

    def value(self, field: FieldDescriptor) -> Any:
        choice = self.rng.choice
        match field.type:
            case FieldDescriptor.TYPE_BYTES:
                return choice(BYTES)
            case FieldDescriptor.TYPE_STRING:
                return choice(("", "default", "write", "x" * 50))
            case FieldDescriptor.TYPE_BOOL:
                return choice((False, True))
            case FieldDescriptor.TYPE_ENUM:
                return choice([*(each.number for each in field.enum_type.values), 77])
            case FieldDescriptor.TYPE_UINT64:
                return choice(NUMBERS)
            case FieldDescriptor.TYPE_UINT32:
                return choice(NUMBERS) & 0xFFFFFFFF
            case FieldDescriptor.TYPE_INT32:
                return choice(NUMBERS) & 0x7FFFFFFF
        return choice((1, -1)) * (choice(NUMBERS) & (1 << 63) - 1)


@pytest.mark.parametrize("api_version", [1, 2])
def test_any_request_is_answered_and_leaves_the_store_as_able_as_before(make: Make, api_version: int) -> None:
    cluster = make(api_version=api_version)
    hostile = Hostile(api_version)
    kinds = [kind for kind in cluster.store._calls if kind is not pb.PrepareFlashbackToVersionRequest]
    for _ in range(1500):
        request = hostile.fill(hostile.rng.choice(kinds)())
        for name in ("start_version", "version", "lock_ts", "start_ts", "for_update_ts", "max_version"):
            if name in request.DESCRIPTOR.fields_by_name and hostile.rng.random() < 0.6:
                setattr(request, name, cluster.tso.get() - hostile.rng.randrange(5))
        if "wait_timeout" in request.DESCRIPTOR.fields_by_name:
            request.wait_timeout = -1
        region = hostile.rng.choice(cluster.regions.all)
        pending = cluster.at(region, request, api_version=hostile.rng.choice((0, api_version - 1) * 2 + (1,)))
        assert pending._done.wait(WAIT_S), request
        _, error = pending._answered
        assert error is None, (request, error)
    now = cluster.tso.get()
    assert cluster.concurrency.min_lock_ts(now) == now, "nothing is left locked in memory"
    start_ts = cluster.tso.get()
    assert not cluster.call(prewrite(start_ts, put(b"t-free")), b"t-free").errors
    assert not cluster.call(commit(start_ts, cluster.tso.get(), b"t-free"), b"t-free").HasField("error")
