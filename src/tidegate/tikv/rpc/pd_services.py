"""The gRPC services that speak for PD: `PdService`, `KeyspaceService`, `EtcdService`, `MetaStorageService`.

They are thin: each call goes to the placement driver, which answers it. `upstream_service` has the calls that
only this upstream offers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

import grpc

from tidegate.errors import InvalidInput, Retryable
from tidegate.proto import etcdserverpb_pb2, keyspacepb_pb2, meta_storagepb_pb2, pdpb_pb2
from tidegate.tikv.pd.placement_driver import NO_KEYSPACE, PlacementDriver
from tidegate.tikv.rpc.handlers import abort

T = TypeVar("T")

FROZEN_POLL_S: Final = 0.2
"""How often a timestamp request that waits for a frozen TSO checks whether its client is still connected."""


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
        # A client that does not know the id yet sends 0.
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
            # A frozen TSO does not answer, as a PD without a leader. The client may give up meanwhile, so the
            # wait looks at it.
            while (response := self._timestamps(request.count, context)) is None:
                if not context.is_active():
                    return
            yield response

    def _timestamps(self, count: int, context: grpc.ServicerContext) -> pdpb_pb2.TsoResponse | None:
        """The answer; None if the TSO was frozen for all of `FROZEN_POLL_S`."""
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
    """The two etcd calls that TiKV clients make at PD's address: there are no keys, and one member."""

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
    """`meta_storagepb.MetaStorage`, where newer clients look for routers; it holds none."""

    def __init__(self, pd: PlacementDriver) -> None:
        self._pd = pd

    def Get(
        self, request: meta_storagepb_pb2.GetRequest, context: grpc.ServicerContext
    ) -> meta_storagepb_pb2.GetResponse:
        header = meta_storagepb_pb2.ResponseHeader(cluster_id=self._pd.cluster_id, revision=1)
        return meta_storagepb_pb2.GetResponse(header=header)
