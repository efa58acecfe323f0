"""The service `pdpb.PD`: the cluster's id, its stores, time and safepoints.

Called by the gRPC edge (`rpc.pd_services`), one method per call; the calls about regions are in `regions`.
PD's durable state is in the engine's meta column family, so a restarted upstream is the same cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from tidegate.errors import InvalidInput
from tidegate.model import timestamp
from tidegate.proto import keyspacepb_pb2, metapb_pb2
from tidegate.proto import pdpb_pb2 as pb
from tidegate.tikv.engine import META, Engine
from tidegate.tikv.faults import Faults
from tidegate.tikv.pd.gc import GC_WORKER, SafePoints, ServiceSafePoint
from tidegate.tikv.pd.keyspace import Keyspaces
from tidegate.tikv.pd.regions import PdRegions
from tidegate.tikv.pd.stores import VERSION, Stores
from tidegate.tikv.pd.tso import Tso
from tidegate.tikv.raft.region_meta import has_regions

API_VERSION_KEY: Final = b"pd/api_version"
CLUSTER_KEY: Final = b"pd/cluster_id"
NO_KEYSPACE: Final = 0xFFFFFFFF
"""The keyspace id that stands for no keyspace."""


def load_cluster_id(engine: Engine) -> int:
    """The cluster's id; chosen at random once per data directory."""
    stored = engine.get(META, CLUSTER_KEY)
    if stored is not None:
        return int.from_bytes(stored, "big")
    # Durable before anyone sees it: after a crash, another id would make every client refuse the cluster.
    drawn = secrets.randbits(62) | 1 << 62
    engine.write([(META, CLUSTER_KEY, drawn.to_bytes(8, "big"))])
    engine.sync()
    return drawn


def load_api_version(engine: Engine, wanted: int | None) -> int:
    """The API version of the data directory; at its first start `wanted`, or 1 if that is None.

    Raises InvalidInput if `wanted` differs from it, because the same bytes would get another meaning.
    """
    stored = engine.get(META, API_VERSION_KEY)
    if stored is None:
        version = wanted or 1
        # A directory from before versions were stored.
        if has_regions(engine) and version != 1:
            raise InvalidInput("this data directory is of API version 1", fix="give a new --data-dir")
        engine.write([(META, API_VERSION_KEY, bytes([version]))])
        engine.sync()
        return version
    if wanted not in (None, stored[0]):
        raise InvalidInput(
            f"this data directory is of API version {stored[0]}, not {wanted}", fix="give a new --data-dir"
        )
    return stored[0]


class Members(Protocol):
    """The members of PD, as its answers describe them; `rpc.members` has their servers."""

    addresses: list[str]
    """`host:port` of each member, in the order of their numbers."""
    leader: int
    """The number of the leading member, from 1."""


class PlacementDriver:
    """The service `pdpb.PD` without its network. Thread-safe."""

    def __init__(
        self,
        header: pb.ResponseHeader,
        tso: Tso,
        safe_points: SafePoints,
        own_points: Mapping[int, SafePoints],
        members: Members,
        scheme: str,
        keyspaces: Keyspaces,
        stores: Stores,
        regions: PdRegions,
        faults: Faults,
    ) -> None:
        self.cluster_id = int(header.cluster_id)
        self.regions = regions
        self.stores = stores
        self.tso = tso
        self.safe_points, self._own_points = safe_points, own_points
        self._keyspaces = keyspaces
        self._members, self._scheme = members, scheme
        self._faults = faults
        self._header = header

    def members(self) -> pb.GetMembersResponse:
        """All members, and which of them is the leader."""
        members = [
            pb.Member(
                name="pd-embedded" if number == 1 else f"pd-embedded-{number}",
                member_id=number,
                peer_urls=[f"{self._scheme}://{address}"],
                client_urls=[f"{self._scheme}://{address}"],
                binary_version=VERSION,
            )
            for number, address in enumerate(self._members.addresses, start=1)
        ]
        leader = members[self._members.leader - 1]
        return pb.GetMembersResponse(header=self._header, members=members, leader=leader, etcd_leader=leader)

    def cluster_info(self) -> pb.GetClusterInfoResponse:
        """The service mode: timestamps come from PD itself, not from a separate TSO service."""
        return pb.GetClusterInfoResponse(header=self._header, serviceModes=[pb.PD_SVC_MODE])

    def is_bootstrapped(self) -> pb.IsBootstrappedResponse:
        """Always true."""
        return pb.IsBootstrappedResponse(header=self._header, bootstrapped=True)

    def timestamps(self, count: int) -> pb.TsoResponse:
        """Allocate `count` timestamps; the answer holds the last one."""
        return pb.TsoResponse(
            header=self._header, count=count, timestamp=self._timestamp(self.tso.get(count))
        )

    def min_ts(self) -> pb.GetMinTSResponse:
        """A new timestamp: no later one is below it."""
        return pb.GetMinTSResponse(header=self._header, timestamp=self._timestamp(self.tso.get(1)))

    def knows(self, call: str) -> bool:
        """Whether PD supports a call; False if a fault makes it behave as an older version."""
        return call not in self._faults.unknown_calls

    def store(self, store_id: int) -> pb.GetStoreResponse:
        """A store, or an error in the header."""
        # A fault may name a store that exists or one that does not, so it comes first.
        reported = self._faults.stores.get(store_id)
        if reported is not None:
            return pb.GetStoreResponse(header=self._header, store=reported)
        found = self.stores.get(store_id)
        if found is None:
            return pb.GetStoreResponse(
                header=self._failure(pb.UNKNOWN, f"invalid store ID {store_id}, not found")
            )
        return pb.GetStoreResponse(header=self._header, store=found.message())

    def all_stores(self, removed: bool = True) -> pb.GetAllStoresResponse:
        """All stores; removed ones only if `removed`."""
        known = {each.id: each.message() for each in self.stores.all()} | self._faults.stores
        return pb.GetAllStoresResponse(
            header=self._header,
            stores=[s for s in known.values() if removed or s.state != metapb_pb2.Tombstone],
        )

    def store_heartbeat(self, store_id: int) -> pb.StoreHeartbeatResponse:
        """Record the heartbeat of a store."""
        if not self.stores.heartbeat(store_id):
            return pb.StoreHeartbeatResponse(
                header=self._failure(pb.UNKNOWN, f"invalid store ID {store_id}, not found")
            )
        return pb.StoreHeartbeatResponse(header=self._header, cluster_version=VERSION)

    def split_regions(self, at: Sequence[bytes]) -> pb.SplitRegionsResponse:
        """Split at encoded keys."""
        return pb.SplitRegionsResponse(
            header=self._header, finished_percentage=100, regions_id=self.regions.split(at)
        )

    def split_and_scatter(self, at: Sequence[bytes]) -> pb.SplitAndScatterRegionsResponse:
        """Split at encoded keys, and spread the leaders of the new regions over the stores."""
        ids = self.regions.split(at)
        return pb.SplitAndScatterRegionsResponse(
            header=self._header,
            split_finished_percentage=100,
            scatter_finished_percentage=self.regions.scatter(ids),
            regions_id=ids,
        )

    def scatter(self, region_ids: Sequence[int]) -> pb.ScatterRegionResponse:
        """Spread the leaders of regions over the stores."""
        return pb.ScatterRegionResponse(
            header=self._header, finished_percentage=self.regions.scatter(region_ids)
        )

    def operator(self, region_id: int) -> pb.GetOperatorResponse:
        """The operator that runs on a region: always a finished one, because calls wait for completion."""
        return pb.GetOperatorResponse(
            header=self._header, region_id=region_id, desc=b"scatter-region", status=pb.SUCCESS
        )

    def gc_safe_point(self) -> pb.GetGCSafePointResponse:
        """The cluster's safepoint."""
        return pb.GetGCSafePointResponse(header=self._header, safe_point=self.safe_points.safe_point)

    def update_gc_safe_point(self, safe_point: int) -> pb.UpdateGCSafePointResponse:
        """Raise the cluster's safepoint as far as the services allow."""
        new = self.safe_points.update(safe_point, self.tso.present())
        return pb.UpdateGCSafePointResponse(header=self._header, new_safe_point=new)

    def update_service_gc_safe_point(
        self, service_id: bytes, ttl_s: int, safe_point: int
    ) -> pb.UpdateServiceGCSafePointResponse:
        """Set, renew or remove a service's safepoint; answers with the smallest one."""
        now_ts = self.tso.get(1)
        least = self.safe_points.update_service(
            service_id.decode(errors="replace"), ttl_s, safe_point, now_ts
        )
        return pb.UpdateServiceGCSafePointResponse(
            header=self._header,
            service_id=least.service_id.encode(),
            TTL=least.ttl_s(now_ts),
            min_safe_point=least.safe_point,
        )

    def points_of(self, keyspace_id: int) -> SafePoints:
        """The safepoints of a keyspace with its own GC, otherwise those of the cluster."""
        return self._own_points.get(keyspace_id, self.safe_points)

    def gc_state(self, barriers: bool = True, keyspace_id: int = NO_KEYSPACE) -> pb.GetGCStateResponse:
        """The safepoints in the form for newer clients; the services' safepoints are GC barriers."""
        points = self.points_of(keyspace_id)
        own = points is not self.safe_points
        state = pb.GCState(
            keyspace_scope=pb.KeyspaceScope(keyspace_id=keyspace_id if own else NO_KEYSPACE),
            is_keyspace_level_gc=own,
            txn_safe_point=points.txn_safe_point,
            gc_safe_point=points.safe_point,
        )
        if barriers:
            now_ts = self.tso.present()
            services = points.services(now_ts)
            state.gc_barriers.extend(
                _barrier(each, now_ts) for each in services if each.service_id != GC_WORKER
            )
        return pb.GetGCStateResponse(header=self._header, gc_state=state)

    def set_gc_barrier(
        self, barrier_id: str, ts: int, ttl_s: int, keyspace_id: int = NO_KEYSPACE
    ) -> pb.SetGCBarrierResponse:
        """Set a service's safepoint for newer clients; refused if versions at `ts` may have been removed."""
        if not barrier_id or barrier_id == GC_WORKER or ttl_s <= 0 or ts <= 0:
            text = f"a barrier needs a name of its own, a ts and a ttl, not '{barrier_id}', {ts}, {ttl_s}"
            return pb.SetGCBarrierResponse(header=self._failure(pb.INVALID_VALUE, text))
        now_ts = self.tso.get(1)
        points = self.points_of(keyspace_id)
        held = points.set_barrier(barrier_id, ttl_s, ts, now_ts)
        if held is None:
            point = points.txn_safe_point
            # In PD's words, because this error has no code of its own.
            text = f"trying to set a GC barrier on ts {ts} which is already behind the txn safe point {point}"
            return pb.SetGCBarrierResponse(header=self._failure(pb.UNKNOWN, text))
        return pb.SetGCBarrierResponse(header=self._header, new_barrier_info=_barrier(held, now_ts))

    def delete_gc_barrier(
        self, barrier_id: str, keyspace_id: int = NO_KEYSPACE
    ) -> pb.DeleteGCBarrierResponse:
        """Remove a service's safepoint; answers with the removed one."""
        now_ts = self.tso.get(1)
        held = self.points_of(keyspace_id).delete_barrier(barrier_id, now_ts)
        gone = None if held is None else _barrier(held, now_ts)
        return pb.DeleteGCBarrierResponse(header=self._header, deleted_barrier_info=gone)

    def keyspace(self, name: str) -> keyspacepb_pb2.LoadKeyspaceResponse:
        """A keyspace by its name, or an error in the header."""
        found = self._keyspaces.by_name(name)
        if found is None:
            failure = self._failure(pb.ENTRY_NOT_FOUND, f"keyspace {name} does not exist")
            return keyspacepb_pb2.LoadKeyspaceResponse(header=failure)
        return keyspacepb_pb2.LoadKeyspaceResponse(header=self._header, keyspace=found)

    def all_keyspaces(self, start_id: int, limit: int) -> keyspacepb_pb2.GetAllKeyspacesResponse:
        """Keyspaces from `start_id` on, by id; at most `limit` of them if it is positive."""
        found = [each for each in self._keyspaces.all() if each.id >= start_id]
        return keyspacepb_pb2.GetAllKeyspacesResponse(
            header=self._header, keyspaces=found[: limit if limit > 0 else None]
        )

    def _timestamp(self, ts: int) -> pb.Timestamp:
        return pb.Timestamp(physical=timestamp.physical_ms(ts), logical=timestamp.logical(ts))

    def _failure(self, kind: pb.ErrorType, message: str) -> pb.ResponseHeader:
        return pb.ResponseHeader(cluster_id=self.cluster_id, error=pb.Error(type=kind, message=message))


def _barrier(held: ServiceSafePoint, now_ts: int) -> pb.GCBarrierInfo:
    return pb.GCBarrierInfo(
        barrier_id=held.service_id, barrier_ts=held.safe_point, ttl_seconds=held.ttl_s(now_ts)
    )
