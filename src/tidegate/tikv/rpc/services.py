"""The gRPC services of the upstream: thin; each call is handed to the part that knows.

`PdService`, `KeyspaceService`, `EtcdService` and `MetaStorageService` speak for PD, `TikvService` for a
store, `ChangeDataService` for its CDC endpoint. What only this upstream has is in `upstream_service`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from tidegate.errors import InvalidInput, Retryable
from tidegate.proto import (
    cdcpb_pb2,
    etcdserverpb_pb2,
    keyspacepb_pb2,
    kvrpcpb_pb2,
    meta_storagepb_pb2,
    pdpb_pb2,
    tikvpb_pb2,
)
from tidegate.tikv.cdc.endpoint import Endpoint
from tidegate.tikv.cdc.service import FEATURES_KEY, Connection, parse_features
from tidegate.tikv.pd.placement_driver import NO_KEYSPACE, PlacementDriver
from tidegate.tikv.raft.region_table import server_is_busy
from tidegate.tikv.rpc.store import Store
from tidegate.tikv.txn.scheduler import Answer

T = TypeVar("T")
ANSWERS_PER_MESSAGE: Final = 128
ANSWERS_BYTES_MAX: Final = 64 << 20
COMMANDS_MAX: Final = 1 << 16
FROZEN_POLL_S: Final = 0.2
"""How often a timestamp request that waits for a frozen TSO looks whether its client is still there."""
_SERVING: Final = b"\x08\x01"
"""grpc.health.v1.HealthCheckResponse with status SERVING."""


_SERIALIZED: Final = frozenset({"cdcpb.ChangeData.EventFeed", "cdcpb.ChangeData.EventFeedV2"})
"""Methods whose answers are made as bytes."""


def _as_it_is(data: bytes) -> bytes:
    return data


def service(descriptor: ServiceDescriptor, implementation: object) -> grpc.GenericRpcHandler:
    """Handlers for those methods of a service that `implementation` has; others are UNIMPLEMENTED."""
    handlers = {}
    for method in descriptor.methods:
        behaviour = getattr(implementation, method.name, None)
        if behaviour is None:
            continue
        decode = GetMessageClass(method.input_type).FromString
        encode = GetMessageClass(method.output_type).SerializeToString
        if method.client_streaming:
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(
                _decoding(behaviour, decode),
                request_deserializer=_as_it_is,
                response_serializer=_as_it_is if method.full_name in _SERIALIZED else encode,
            )
        else:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                behaviour, request_deserializer=decode, response_serializer=encode
            )
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def _decoding(behaviour: Callable[..., Any], decode: Callable[[bytes], Any]) -> Callable[..., Any]:
    """A stream's messages are decoded here: of a call that gRPC itself ends for a malformed one it never
    forgets the state, and a server with such a call never stops.
    """

    def messages(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        for data in requests:
            try:
                message = decode(data)
            except DecodeError:
                context.set_code(grpc.StatusCode.INTERNAL)
                context.set_details("Exception deserializing request!")
                return
            yield message

    return lambda requests, context: behaviour(messages(requests, context), context)


def health() -> grpc.GenericRpcHandler:
    """`grpc.health.v1.Health`: always serving."""
    check = grpc.unary_unary_rpc_method_handler(lambda request, context: _SERVING)
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})


def abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End a call with the status that says what the caller should do: raises."""
    code = grpc.StatusCode.INTERNAL
    if isinstance(error, InvalidInput):
        code = grpc.StatusCode.INVALID_ARGUMENT
    elif isinstance(error, Retryable):
        code = grpc.StatusCode.UNAVAILABLE
    context.abort(code, str(error) or type(error).__name__)
    raise AssertionError("gRPC's abort raises")


class _Headed(Protocol):
    """A request to PD: its header names the cluster it is for."""

    @property
    def header(self) -> pdpb_pb2.RequestHeader: ...


_Scoped = pdpb_pb2.GetGCStateRequest | pdpb_pb2.SetGCBarrierRequest | pdpb_pb2.DeleteGCBarrierRequest


class PdService:
    """`pdpb.PD` over gRPC. A request for another cluster is refused."""

    def __init__(self, pd: PlacementDriver) -> None:
        self._pd = pd

    def _check(self, request: _Headed, context: grpc.ServicerContext) -> None:
        asked = request.header.cluster_id
        if asked not in (0, self._pd.cluster_id):
            text = f"mismatch cluster id, need {self._pd.cluster_id} but got {asked}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    def GetMembers(
        self, request: pdpb_pb2.GetMembersRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetMembersResponse:
        return self._pd.members()

    def GetClusterInfo(
        self, request: pdpb_pb2.GetClusterInfoRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetClusterInfoResponse:
        return self._pd.cluster_info()

    def IsBootstrapped(
        self, request: pdpb_pb2.IsBootstrappedRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.IsBootstrappedResponse:
        return self._pd.is_bootstrapped()

    def Tso(
        self, requests: Iterator[pdpb_pb2.TsoRequest], context: grpc.ServicerContext
    ) -> Iterator[pdpb_pb2.TsoResponse]:
        for request in requests:
            self._check(request, context)
            while (response := self._timestamps(request.count, context)) is None:
                if not context.is_active():
                    return
            yield response

    def _timestamps(self, count: int, context: grpc.ServicerContext) -> pdpb_pb2.TsoResponse | None:
        """The answer; None while the TSO is frozen, after a while."""
        try:
            return self._pd.timestamps(count)
        except InvalidInput as error:
            abort(context, error)
        except Retryable:
            self._pd.tso.wait_thawed(FROZEN_POLL_S)
        return None

    def GetMinTS(
        self, request: pdpb_pb2.GetMinTSRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetMinTSResponse:
        return self._pd.min_ts()

    def GetStore(
        self, request: pdpb_pb2.GetStoreRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetStoreResponse:
        self._check(request, context)
        return self._pd.store(request.store_id)

    def GetAllStores(
        self, request: pdpb_pb2.GetAllStoresRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetAllStoresResponse:
        self._check(request, context)
        return self._pd.all_stores(not request.exclude_tombstone_stores)

    def GetRegion(
        self, request: pdpb_pb2.GetRegionRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetRegionResponse:
        self._check(request, context)
        return self._pd.regions.at(request.region_key)

    def GetPrevRegion(
        self, request: pdpb_pb2.GetRegionRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetRegionResponse:
        self._check(request, context)
        return self._pd.regions.before(request.region_key)

    def GetRegionByID(
        self, request: pdpb_pb2.GetRegionByIDRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetRegionResponse:
        self._check(request, context)
        return self._pd.regions.by_id(request.region_id)

    def ScanRegions(
        self, request: pdpb_pb2.ScanRegionsRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.ScanRegionsResponse:
        self._check(request, context)
        return self._pd.regions.scan(request.start_key, request.end_key, request.limit)

    def BatchScanRegions(
        self, request: pdpb_pb2.BatchScanRegionsRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.BatchScanRegionsResponse:
        self._check(request, context)
        if not self._pd.knows("BatchScanRegions"):
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method BatchScanRegions")
        return self._pd.regions.batch_scan(request.ranges, request.limit)

    def QueryRegion(
        self, requests: Iterator[pdpb_pb2.QueryRegionRequest], context: grpc.ServicerContext
    ) -> Iterator[pdpb_pb2.QueryRegionResponse]:
        for request in requests:
            self._check(request, context)
            yield self._pd.regions.query(request)

    def StoreHeartbeat(
        self, request: pdpb_pb2.StoreHeartbeatRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.StoreHeartbeatResponse:
        self._check(request, context)
        return self._pd.store_heartbeat(request.stats.store_id)

    def SplitRegions(
        self, request: pdpb_pb2.SplitRegionsRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.SplitRegionsResponse:
        return self._ordered(lambda: self._pd.split_regions(request.split_keys), request, context)

    def SplitAndScatterRegions(
        self, request: pdpb_pb2.SplitAndScatterRegionsRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.SplitAndScatterRegionsResponse:
        return self._ordered(lambda: self._pd.split_and_scatter(request.split_keys), request, context)

    def ScatterRegion(
        self, request: pdpb_pb2.ScatterRegionRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.ScatterRegionResponse:
        wanted = request.regions_id or [request.region.id or request.region_id]
        return self._ordered(lambda: self._pd.scatter(wanted), request, context)

    def GetOperator(
        self, request: pdpb_pb2.GetOperatorRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetOperatorResponse:
        self._check(request, context)
        return self._pd.operator(request.region_id)

    def _ordered(self, order: Callable[[], T], request: _Headed, context: grpc.ServicerContext) -> T:
        self._check(request, context)
        try:
            return order()
        except (InvalidInput, Retryable) as error:
            abort(context, error)

    def GetGCSafePoint(
        self, request: pdpb_pb2.GetGCSafePointRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetGCSafePointResponse:
        self._check(request, context)
        return self._pd.gc_safe_point()

    def UpdateGCSafePoint(
        self, request: pdpb_pb2.UpdateGCSafePointRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.UpdateGCSafePointResponse:
        self._check(request, context)
        return self._pd.update_gc_safe_point(request.safe_point)

    def UpdateServiceGCSafePoint(
        self, request: pdpb_pb2.UpdateServiceGCSafePointRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.UpdateServiceGCSafePointResponse:
        self._check(request, context)
        return self._pd.update_service_gc_safe_point(request.service_id, request.TTL, request.safe_point)

    def GetGCState(
        self, request: pdpb_pb2.GetGCStateRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.GetGCStateResponse:
        self._check(request, context)
        return self._pd.gc_state(not request.exclude_gc_barriers, _scope(request))

    def SetGCBarrier(
        self, request: pdpb_pb2.SetGCBarrierRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.SetGCBarrierResponse:
        self._check(request, context)
        return self._pd.set_gc_barrier(
            request.barrier_id, request.barrier_ts, request.ttl_seconds, _scope(request)
        )

    def DeleteGCBarrier(
        self, request: pdpb_pb2.DeleteGCBarrierRequest, context: grpc.ServicerContext
    ) -> pdpb_pb2.DeleteGCBarrierResponse:
        self._check(request, context)
        return self._pd.delete_gc_barrier(request.barrier_id, _scope(request))


def _scope(request: _Scoped) -> int:
    return int(request.keyspace_scope.keyspace_id) if request.HasField("keyspace_scope") else NO_KEYSPACE


class KeyspaceService:
    """`keyspacepb.Keyspace` over gRPC."""

    def __init__(self, pd: PlacementDriver) -> None:
        self._pd = pd

    def LoadKeyspace(
        self, request: keyspacepb_pb2.LoadKeyspaceRequest, context: grpc.ServicerContext
    ) -> keyspacepb_pb2.LoadKeyspaceResponse:
        return self._pd.keyspace(request.name)

    def GetAllKeyspaces(
        self, request: keyspacepb_pb2.GetAllKeyspacesRequest, context: grpc.ServicerContext
    ) -> keyspacepb_pb2.GetAllKeyspacesResponse:
        return self._pd.all_keyspaces(request.start_id, request.limit)


class EtcdService:
    """The two etcd calls that TiKV clients make on PD's address: no key exists, one member."""

    def __init__(self, pd: PlacementDriver) -> None:
        self._pd = pd

    def Range(
        self, request: etcdserverpb_pb2.RangeRequest, context: grpc.ServicerContext
    ) -> etcdserverpb_pb2.RangeResponse:
        header = etcdserverpb_pb2.ResponseHeader(cluster_id=self._pd.cluster_id, member_id=1, revision=1)
        return etcdserverpb_pb2.RangeResponse(header=header)

    def MemberList(
        self, request: etcdserverpb_pb2.MemberListRequest, context: grpc.ServicerContext
    ) -> etcdserverpb_pb2.MemberListResponse:
        me = self._pd.members().leader
        member = etcdserverpb_pb2.Member(ID=1, name=me.name, peerURLs=me.peer_urls, clientURLs=me.client_urls)
        header = etcdserverpb_pb2.ResponseHeader(cluster_id=self._pd.cluster_id, member_id=1)
        return etcdserverpb_pb2.MemberListResponse(header=header, members=[member])


class MetaStorageService:
    """`meta_storagepb.MetaStorage`: newer clients look for routers in it; there are none."""

    def __init__(self, pd: PlacementDriver) -> None:
        self._pd = pd

    def Get(
        self, request: meta_storagepb_pb2.GetRequest, context: grpc.ServicerContext
    ) -> meta_storagepb_pb2.GetResponse:
        header = meta_storagepb_pb2.ResponseHeader(cluster_id=self._pd.cluster_id, revision=1)
        return meta_storagepb_pb2.GetResponse(header=header)


class TikvService:
    """`tikvpb.Tikv` over gRPC: unary calls wait for their answer, BatchCommands has many under way."""

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
            lambda answer: self._store.unsafe_destroy_range(request, answer), context
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
    """The answer of a request, waited for on the call's thread."""
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
"""The number of a request, its answer, and how many bytes that has."""


class CommandStream:
    """One BatchCommands stream: requests are submitted as they come, answers leave as they are ready.

    Bounds: while `ANSWERS_BYTES_MAX` of answers wait for the client to read them, no more of its requests are
    read; of those under way (waiting for locks, say) at most `COMMANDS_MAX`, the others are told that the
    server is busy.
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
                # As TiKV: what has no partner is passed over.
                for number, request in zip(message.request_ids, message.requests, strict=False):
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
    """Raises InvalidInput for a request to another cluster; 0 is any."""
    if request.context.cluster_id not in (0, cluster_id):
        raise InvalidInput("the cluster id of the request does not match the TiKV cluster")


class ChangeDataService:
    """`cdcpb.ChangeData` over gRPC: one connection per stream."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def EventFeed(
        self, requests: Iterator[cdcpb_pb2.ChangeDataRequest], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        return self._serve(requests, context, Connection(False, self._endpoint.new_channel()))

    def EventFeedV2(
        self, requests: Iterator[cdcpb_pb2.ChangeDataRequest], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        try:
            multiplexing = parse_features(headers.get(FEATURES_KEY, ""))
        except InvalidInput as error:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
        return self._serve(requests, context, Connection(multiplexing, self._endpoint.new_channel()))

    def _serve(
        self,
        requests: Iterator[cdcpb_pb2.ChangeDataRequest],
        context: grpc.ServicerContext,
        connection: Connection,
    ) -> Iterator[bytes]:
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
            for message in messages:
                yield message
                connection.channel.sent()
        if connection.channel.failure:
            context.abort(grpc.StatusCode.UNKNOWN, connection.channel.failure)
