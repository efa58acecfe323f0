"""The gRPC face of the embedded upstream: PD, TiKV, ChangeData and Tidegate's own service on one address.

The only network edge of this folder. `EmbeddedUpstream` puts the parts together and owns their life.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from tidegate.clock import Clock, SystemClock
from tidegate.errors import InvalidInput, Retryable
from tidegate.proto import cdcpb_pb2, etcdserverpb_pb2, kvrpcpb_pb2, pdpb_pb2, tidegate_pb2, tikvpb_pb2
from tidegate.tikv.cdc.endpoint import Endpoint
from tidegate.tikv.cdc.service import FEATURES_KEY, Connection, parse_features
from tidegate.tikv.engine import Engine
from tidegate.tikv.gc import SafePoints
from tidegate.tikv.pd import VERSION, PlacementDriver, load_cluster_id, load_regions
from tidegate.tikv.raftstore import Raftstore
from tidegate.tikv.region import split_keys
from tidegate.tikv.scheduler import Scheduler
from tidegate.tikv.store import Store
from tidegate.tikv.tso import Tso, TsoMode

MESSAGE_BYTES_MAX: Final = 256 << 20
HANDLER_THREADS: Final = 256
"""Each open stream holds one; they are started when needed."""
SCHEDULER_THREADS: Final = 4
ANSWERS_PER_MESSAGE: Final = 128
STOP_GRACE_S: Final = 2.0
_SERVING: Final = b"\x08\x01"
"""grpc.health.v1.HealthCheckResponse with status SERVING."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the upstream listens, and which cluster it is."""

    pd: str
    store: str
    cluster_id: int


class EmbeddedUpstream:
    """An embedded PD and TiKV over one data directory.

    `pd_addr` is host:port, port 0 for a free one. `regions` (or explicit encoded `boundaries`) counts only
    at the first start of a data directory; later the stored ones are used. `start` returns when requests
    are served; `stop` ends cleanly within a few seconds and may be called twice. Keep a reference: the
    server ends with the object.
    """

    def __init__(
        self,
        data_dir: Path | str,
        pd_addr: str = "127.0.0.1:0",
        regions: int = 1,
        tso: str = "system",
        *,
        boundaries: Sequence[bytes] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if regions < 1:
            raise InvalidInput(f"an upstream cannot have {regions} regions", fix="give --regions 1 or more")
        self._engine = Engine(Path(data_dir))
        self._raftstore = Raftstore(self._engine)
        self._regions = load_regions(self._engine, split_keys(regions) if boundaries is None else boundaries)
        self._tso = Tso(self._engine, clock or SystemClock(), TsoMode(tso))
        self._safe_points = SafePoints(self._engine)
        self._pool = ThreadPoolExecutor(SCHEDULER_THREADS, thread_name_prefix="scheduler")
        self._scheduler = Scheduler(self._raftstore, self._pool)
        self._wanted_addr = pd_addr
        self._server: grpc.Server | None = None
        self._stopped = False
        self.cluster_id = load_cluster_id(self._engine)
        self.pd_addr = ""
        self._endpoint = Endpoint(self.cluster_id, self._regions, self._raftstore, self._tso.get)
        self.store = Store(self._regions, self._raftstore, self._scheduler, self._endpoint.announced)

    def start(self) -> Addresses:
        """Listen and serve."""
        server = grpc.server(
            ThreadPoolExecutor(HANDLER_THREADS, thread_name_prefix="grpc"),
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
                ("grpc.http2.max_ping_strikes", 0),
            ],
        )
        host, _, _ = self._wanted_addr.rpartition(":")
        try:
            port = server.add_insecure_port(self._wanted_addr)
        except RuntimeError as error:
            raise InvalidInput(
                "the upstream cannot listen",
                where=self._wanted_addr,
                why=str(error),
                fix="choose a free --pd address",
            ) from error
        self.pd_addr = f"{host}:{port}"
        pd = PlacementDriver(self.cluster_id, self._regions, self._tso, self._safe_points, self.pd_addr)
        server.add_generic_rpc_handlers(
            (
                _service(pdpb_pb2.DESCRIPTOR.services_by_name["PD"], PdService(pd)),
                _service(tikvpb_pb2.DESCRIPTOR.services_by_name["Tikv"], TikvService(self.store)),
                _service(
                    cdcpb_pb2.DESCRIPTOR.services_by_name["ChangeData"], ChangeDataService(self._endpoint)
                ),
                _service(tidegate_pb2.DESCRIPTOR.services_by_name["Upstream"], UpstreamService(pd)),
                _service(etcdserverpb_pb2.DESCRIPTOR.services_by_name["KV"], EtcdService(pd)),
                _service(etcdserverpb_pb2.DESCRIPTOR.services_by_name["Cluster"], EtcdService(pd)),
                _health(),
            )
        )
        self._raftstore.start()
        self._endpoint.start()
        server.start()
        self._server = server
        return Addresses(self.pd_addr, self.pd_addr, self.cluster_id)

    def stop(self) -> None:
        """Refuse new requests, apply what was accepted, close the store."""
        if self._stopped:
            return
        self._stopped = True
        ended = self._server.stop(STOP_GRACE_S) if self._server is not None else None
        self._endpoint.stop()
        if ended is not None:
            ended.wait()
        self._raftstore.stop()
        self._pool.shutdown()
        self._engine.close()

    def __enter__(self) -> EmbeddedUpstream:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _service(descriptor: ServiceDescriptor, implementation: object) -> grpc.GenericRpcHandler:
    """Handlers for those methods of a service that `implementation` has; others are UNIMPLEMENTED."""
    handlers = {}
    for method in descriptor.methods:
        behaviour = getattr(implementation, method.name, None)
        if behaviour is None:
            continue
        streaming = method.client_streaming, method.server_streaming
        make = (
            grpc.stream_stream_rpc_method_handler if all(streaming) else grpc.unary_unary_rpc_method_handler
        )
        handlers[method.name] = make(
            behaviour,
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def _health() -> grpc.GenericRpcHandler:
    check = grpc.unary_unary_rpc_method_handler(lambda request, context: _SERVING)
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})


def _abort(context: grpc.ServicerContext, error: Exception) -> None:
    """End a call with the status that says what the caller should do."""
    code = grpc.StatusCode.INTERNAL
    if isinstance(error, InvalidInput):
        code = grpc.StatusCode.INVALID_ARGUMENT
    elif isinstance(error, Retryable):
        code = grpc.StatusCode.UNAVAILABLE
    context.abort(code, str(error) or type(error).__name__)


class PdService:
    """`pdpb.PD` over gRPC. A request for another cluster is refused."""

    def __init__(self, pd: PlacementDriver) -> None:
        self._pd = pd

    def _check(self, request: Any, context: grpc.ServicerContext) -> None:
        asked = request.header.cluster_id
        if asked not in (0, self._pd.cluster_id):
            text = f"mismatch cluster id, need {self._pd.cluster_id} but got {asked}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    def GetMembers(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._pd.members()

    def GetClusterInfo(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._pd.cluster_info()

    def IsBootstrapped(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._pd.is_bootstrapped()

    def Tso(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for request in requests:
            self._check(request, context)
            try:
                response = self._pd.timestamps(request.count)
            except InvalidInput as error:
                _abort(context, error)
            yield response

    def GetMinTS(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._pd.min_ts()

    def GetStore(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.store(request.store_id)

    def GetAllStores(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.stores()

    def GetRegion(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.region(request.region_key)

    def GetPrevRegion(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.previous_region(request.region_key)

    def GetRegionByID(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.region_by_id(request.region_id)

    def ScanRegions(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.scan_regions(request.start_key, request.end_key, request.limit)

    def BatchScanRegions(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.batch_scan_regions(request.ranges, request.limit)

    def GetGCSafePoint(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.gc_safe_point()

    def UpdateGCSafePoint(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.update_gc_safe_point(request.safe_point)

    def UpdateServiceGCSafePoint(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.update_service_gc_safe_point(request.service_id, request.TTL, request.safe_point)

    def GetGCState(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._check(request, context)
        return self._pd.gc_state()


class UpstreamService:
    """`tidegate.Upstream` over gRPC."""

    def __init__(self, pd: PlacementDriver) -> None:
        self._pd = pd

    def AdvanceTso(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return tidegate_pb2.AdvanceTsoResponse(ts=self._pd.tso.advance(request.ts))
        except InvalidInput as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    def Info(self, request: Any, context: grpc.ServicerContext) -> Any:
        manual = self._pd.tso.mode is TsoMode.MANUAL
        return tidegate_pb2.InfoResponse(
            cluster_id=self._pd.cluster_id,
            tso_mode=tidegate_pb2.MANUAL if manual else tidegate_pb2.SYSTEM,
            tso=self._pd.tso.present(),
            store_address=self._pd.stores().stores[0].address,
            regions=len(self._pd.regions.all),
            version=VERSION,
            gc_safe_point=self._pd.safe_points.safe_point,
        )


class EtcdService:
    """The two etcd calls that TiKV clients make on PD's address: no key exists, one member."""

    def __init__(self, pd: PlacementDriver) -> None:
        self._pd = pd

    def Range(self, request: Any, context: grpc.ServicerContext) -> Any:
        header = etcdserverpb_pb2.ResponseHeader(cluster_id=self._pd.cluster_id, member_id=1, revision=1)
        return etcdserverpb_pb2.RangeResponse(header=header)

    def MemberList(self, request: Any, context: grpc.ServicerContext) -> Any:
        me = self._pd.members().leader
        member = etcdserverpb_pb2.Member(ID=1, name=me.name, peerURLs=me.peer_urls, clientURLs=me.client_urls)
        header = etcdserverpb_pb2.ResponseHeader(cluster_id=self._pd.cluster_id, member_id=1)
        return etcdserverpb_pb2.MemberListResponse(header=header, members=[member])


class TikvService:
    """`tikvpb.Tikv` over gRPC: unary calls wait for their answer, BatchCommands has many under way."""

    def __init__(self, store: Store) -> None:
        self._store = store
        for name in _UNARY:
            setattr(self, name, self._call)

    def _call(self, request: Any, context: grpc.ServicerContext) -> Any:
        done = threading.Lock()
        done.acquire()
        answered: list[Any] = []

        def answer(response: Any, error: Exception | None) -> None:
            answered.extend((response, error))
            done.release()

        self._store.submit(request, answer)
        done.acquire()
        response, error = answered
        if error is not None:
            _abort(context, error)
        return response

    def GetStoreSafeTS(self, request: Any, context: grpc.ServicerContext) -> Any:
        return kvrpcpb_pb2.StoreSafeTSResponse()

    def BatchCommands(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        return CommandStream(self._store, requests).responses()


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
)


class CommandStream:
    """One BatchCommands stream: requests are submitted as they come, answers leave as they are ready."""

    def __init__(self, store: Store, requests: Iterator[Any]) -> None:
        self._store = store
        self._requests = requests
        self._answers: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()

    def responses(self) -> Iterator[Any]:
        """Messages for the client, until it closes the stream."""
        threading.Thread(target=self._receive, name="batch-commands", daemon=True).start()
        while (first := self._answers.get()) is not None:
            message = tikvpb_pb2.BatchCommandsResponse()
            self._add(message, first)
            while len(message.request_ids) < ANSWERS_PER_MESSAGE and not self._answers.empty():
                following = self._answers.get()
                if following is None:
                    yield message
                    return
                self._add(message, following)
            yield message

    def _add(self, message: Any, answer: tuple[int, Any]) -> None:
        number, response = answer
        message.request_ids.append(number)
        message.responses.append(response)

    def _receive(self) -> None:
        try:
            for message in self._requests:
                for number, request in zip(message.request_ids, message.requests, strict=True):
                    self._submit(number, request)
        except grpc.RpcError:
            return  # the client went away
        finally:
            self._answers.put(None)

    def _submit(self, number: int, request: Any) -> None:
        name = request.WhichOneof("cmd")
        wrap = tikvpb_pb2.BatchCommandsResponse.Response
        if name == "Empty":
            empty = tikvpb_pb2.BatchCommandsEmptyResponse(test_id=request.Empty.test_id)
            self._answers.put((number, wrap(Empty=empty)))
            return
        if name is None:
            self._answers.put((number, wrap()))
            return

        def answer(response: Any, error: Exception | None) -> None:
            if error is None:
                self._answers.put((number, wrap(**{name: response})))
            else:
                self._answers.put(None)  # end the stream: the client retries on a new one

        self._store.submit(getattr(request, name), answer)


class ChangeDataService:
    """`cdcpb.ChangeData` over gRPC: one connection per stream."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def EventFeed(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        return self._serve(requests, context, Connection(multiplexing=False))

    def EventFeedV2(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        try:
            multiplexing = parse_features(headers.get(FEATURES_KEY, ""))
        except InvalidInput as error:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
        return self._serve(requests, context, Connection(multiplexing=multiplexing))

    def _serve(
        self, requests: Iterator[Any], context: grpc.ServicerContext, connection: Connection
    ) -> Iterator[Any]:
        endpoint = self._endpoint
        if not context.add_callback(lambda: endpoint.close(connection)):
            return
        endpoint.open(connection)

        def receive() -> None:
            try:
                for request in requests:
                    endpoint.request(connection, request)
            except grpc.RpcError:
                return  # the client went away
            finally:
                endpoint.close(connection)

        threading.Thread(target=receive, name="event-feed", daemon=True).start()
        while (messages := connection.channel.take()) is not None:
            yield from messages
