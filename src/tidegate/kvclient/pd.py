"""The placement driver: timestamps, regions, stores, safepoints, keyspaces; the embedded one's manual TSO.

A `PdClient` is the root object of this package: it owns the channel pool and the region cache that
snapshots and transactions share. Thread-safe. `pd_calls` makes the calls: each retries with back-off for at
most `retry_s` seconds, then raises Retryable ("PD is unreachable").
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from tidegate.errors import InvalidInput, Retryable, TidegateError
from tidegate.kvclient.channel import address_of
from tidegate.kvclient.keyspaces import Keyspaces
from tidegate.kvclient.pd_calls import CALL_TIMEOUT_S, PdCalls, raise_pd_error
from tidegate.kvclient.region_cache import RegionCache, RegionInfo
from tidegate.kvclient.stores import StoreGone, unfit
from tidegate.kvclient.tso_stream import TsoStream
from tidegate.model import timestamp
from tidegate.proto import metapb_pb2 as metapb
from tidegate.proto import pdpb_pb2 as pdpb
from tidegate.proto import pdpb_pb2_grpc, tidegate_pb2, tidegate_pb2_grpc
from tidegate.tls import Tls

_ROLES: Final = {
    metapb.Voter: "voter",
    metapb.Learner: "learner",
    metapb.IncomingVoter: "incoming voter",
    metapb.DemotingVoter: "demoting voter",
}
STORES_MAX: Final = 4096
"""Store addresses remembered; a cluster never has more."""


@dataclass(frozen=True, slots=True)
class UpstreamInfo:
    """The embedded upstream's description of itself."""

    cluster_id: int
    manual_tso: bool
    tso: int
    store_address: str
    regions: int
    version: str


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A store's part in a region; `role`: voter, learner, incoming voter, demoting voter."""

    id: int
    store_id: int
    role: str
    leads: bool


class PdClient:
    """A client of one PD cluster at `addr` = `host:port[,host:port...]`.

    The client learns further members from PD and asks them if those of `addr` do not answer. `tls`: the
    certificates, by default those of the environment (`tidegate.tls`).
    """

    def __init__(self, addr: str, *, retry_s: float = 10.0, tls: Tls | None = None) -> None:
        self._calls = PdCalls(addr, retry_s, tls)
        self.channels = self._calls.channels
        self.regions = RegionCache(self.scan_regions)
        self.keyspaces = Keyspaces(self._calls)
        self._stores: dict[int, str] = {}
        self._scans_ranges = True
        self._tso = TsoStream()
        self._tso_lock = threading.Lock()

    # --- who and where -------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The addresses as given, for messages."""
        return self._calls.address

    @property
    def leader_address(self) -> str:
        """`host:port` of the member that serves."""
        return self._calls.leader_address

    @property
    def cluster_id(self) -> int:
        """PD's cluster id; asked once."""
        return self._calls.cluster_id

    def known_address(self, store_id: int) -> str | None:
        """A store's address if `store_address` has found it before; does not ask PD."""
        return self._stores.get(store_id)

    def store_address(self, store_id: int) -> str:
        """`host:port` of a TiKV store.

        Raises StoreGone, without retries, if PD knows no such store, or if it is removed or a TiFlash store.
        """
        known = self._stores.get(store_id)
        if known is not None:
            return known
        store = self._calls.call("GetStore", lambda address: self._get_store(address, store_id))
        why = "PD does not know it" if store is None else unfit(store)
        if store is None or why:
            raise StoreGone(f"store {store_id} serves no regions", where=self.address, why=why)
        if len(self._stores) >= STORES_MAX:
            # Only a cache: the next requests ask PD again.
            self._stores.clear()
        self._stores[store_id] = address_of(store.address)
        return self._stores[store_id]

    def _get_store(self, address: str, store_id: int) -> metapb.Store | None:
        """The store as PD describes it; None if PD has no such store."""
        request = pdpb.GetStoreRequest(store_id=store_id)
        request.header.cluster_id = self._calls.known_cluster_id
        stub = self.channels.stub(address, pdpb_pb2_grpc.PDStub)
        try:
            response = stub.GetStore(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and _says_unknown_store(error.details()):
                return None
            raise
        if _says_unknown_store(response.header.error.message):
            return None
        raise_pd_error("GetStore", address, response.header)
        found: metapb.Store = response.store
        return found

    def stores(self) -> list[metapb.Store]:
        """All stores except removed ones; includes TiFlash stores."""
        return list(
            self._calls.unary("GetAllStores", pdpb.GetAllStoresRequest(exclude_tombstone_stores=True)).stores
        )

    def forget_store(self, store_id: int) -> None:
        """Ask PD again for this store's address next time."""
        self._stores.pop(store_id, None)

    # --- timestamps ----------------------------------------------------------------------------------

    def tso(self, count: int = 1) -> int:
        """A new timestamp; with `count` > 1 the last of `count` consecutive ones."""
        return self._calls.call("Tso", lambda address: self._one_tso(address, count))

    def _one_tso(self, address: str, count: int) -> int:
        # The answers of a stream come in order and have no ids, so a caller takes its answer before the next
        # one asks.
        with self._tso_lock:
            response = self._tso.ask(
                self.channels.stub(address, pdpb_pb2_grpc.PDStub), self._calls.known_cluster_id, count
            )
        stamp = response.timestamp
        return timestamp.compose(stamp.physical, stamp.logical)

    # --- regions -------------------------------------------------------------------------------------

    def region_of(self, encoded_key: bytes) -> RegionInfo:
        """The region that holds the key, straight from PD."""
        found = self.scan_regions(encoded_key, b"", 1)
        if not found:
            raise Retryable("PD knows no region for a key", where=self.address, why=encoded_key.hex())
        return found[0]

    def region_by_id(self, region_id: int) -> RegionInfo:
        """A region by its id, straight from PD. Raises InvalidInput if there is none."""
        response = self._calls.unary("GetRegionByID", pdpb.GetRegionByIDRequest(region_id=region_id))
        if not response.HasField("region"):
            raise InvalidInput(
                f"PD knows no region {region_id}", where=self.address, fix="ask PD for the regions there are"
            )
        return _region_info(response.region, response.leader)

    def scan_regions(self, start_encoded: bytes, end_encoded: bytes, limit: int) -> list[RegionInfo]:
        """The regions of [start, end) in key order, at most `limit`; an empty end is plus infinity."""
        found = self._scan_regions(start_encoded, end_encoded, limit)
        return [_region_info(region, leader) for region, leader in found]

    def scan_ranges(self, ranges: Sequence[tuple[bytes, bytes]], limit: int) -> list[RegionInfo]:
        """The regions of several ascending ranges that do not overlap, each once, in key order.

        Returns at most `limit` regions or a few more. An older PD, which does not know this call, is asked
        for one range at a time.
        """
        if self._scans_ranges:
            request = pdpb.BatchScanRegionsRequest(limit=limit)
            for start, end in ranges:
                request.ranges.add(start_key=start, end_key=end)
            response = self._calls.unary_if_known("BatchScanRegions", request)
            if response is not None:
                return [_region_info(r.region, r.leader) for r in response.regions]
            # Remembered, because every later attempt at such a PD would only fail first.
            self._scans_ranges = False
        found: dict[bytes, RegionInfo] = {}
        for start, end in ranges:
            for region in self.scan_regions(start, end, limit):
                # One range may end, and the next one begin, in the same region.
                found.setdefault(region.start_key, region)
            if len(found) >= limit:
                break
        return list(found.values())

    def scan_peers(
        self, start_encoded: bytes, end_encoded: bytes, limit: int
    ) -> list[tuple[RegionInfo, tuple[PeerInfo, ...]]]:
        """As `scan_regions`, with the peers of each region in the order of stores.

        If a region has no leader, no peer has `leads` set.
        """
        found = self._scan_regions(start_encoded, end_encoded, limit)
        return [(_region_info(region, leader), _peers(region, leader)) for region, leader in found]

    def _scan_regions(
        self, start_encoded: bytes, end_encoded: bytes, limit: int
    ) -> list[tuple[metapb.Region, metapb.Peer]]:
        """The regions, each with its leader."""
        request = pdpb.ScanRegionsRequest(start_key=start_encoded, end_key=end_encoded, limit=limit)
        response = self._calls.unary("ScanRegions", request)
        if response.regions:
            return [(r.region, r.leader) for r in response.regions]
        # A PD that does not know `regions` yet fills only these two fields.
        return list(zip(response.region_metas, response.leaders, strict=True))

    # --- GC ------------------------------------------------------------------------------------------

    def update_service_gc_safepoint(self, service_id: str, ttl_s: int, safe_point: int) -> int:
        """Hold the GC safepoint at `safe_point` for `ttl_s` seconds; `ttl_s` <= 0 releases it.

        Returns the least safepoint of all services: if it is above `safe_point`, the wanted history is
        already gone and nothing is held.
        """
        request = pdpb.UpdateServiceGCSafePointRequest(
            service_id=service_id.encode(), TTL=ttl_s, safe_point=safe_point
        )
        return int(self._calls.unary("UpdateServiceGCSafePoint", request).min_safe_point)

    def hold_history(self, service_id: str, ttl_s: int, safe_point: int, keyspace_id: int = -1) -> int:
        """As `update_service_gc_safepoint`, for a keyspace; -1 stands for data in no keyspace.

        A keyspace with a GC of its own has barriers in its scope. Otherwise the GC of the whole cluster
        applies.
        """
        if keyspace_id < 0:
            return self.update_service_gc_safepoint(service_id, ttl_s, safe_point)
        scope = pdpb.KeyspaceScope(keyspace_id=keyspace_id)
        if not self._collects_itself(scope):
            return self.update_service_gc_safepoint(service_id, ttl_s, safe_point)
        if ttl_s <= 0:
            self._calls.unary(
                "DeleteGCBarrier", pdpb.DeleteGCBarrierRequest(keyspace_scope=scope, barrier_id=service_id)
            )
            return 0
        barrier = pdpb.SetGCBarrierRequest(
            keyspace_scope=scope, barrier_id=service_id, barrier_ts=safe_point, ttl_seconds=ttl_s
        )
        try:
            self._calls.unary("SetGCBarrier", barrier)
        except TidegateError:
            # Only the text of PD's error says that the barrier comes too late: compare the safe points.
            state = self._gc_state(scope)
            if state is not None and state.txn_safe_point > safe_point:
                return int(state.txn_safe_point)
            raise
        return safe_point

    def _collects_itself(self, scope: pdpb.KeyspaceScope) -> bool:
        state = self._gc_state(scope)
        return state is not None and bool(state.is_keyspace_level_gc)

    def _gc_state(self, scope: pdpb.KeyspaceScope) -> pdpb.GCState | None:
        """The state of a scope's GC; None if PD is older and has one GC for all."""
        request = pdpb.GetGCStateRequest(keyspace_scope=scope, exclude_gc_barriers=True)
        response = self._calls.unary_if_known("GetGCState", request)
        if response is None:
            return None
        found: pdpb.GCState = response.gc_state
        return found

    def gc_safe_point(self) -> int:
        """The ts below which old versions may be gone."""
        return int(self._calls.unary("GetGCSafePoint", pdpb.GetGCSafePointRequest()).safe_point)

    # --- the embedded upstream only ------------------------------------------------------------------

    def advance_tso(self, ts: int) -> int:
        """Move a manual TSO forward to `ts`, never back. Returns the TSO's present value.

        Raises InvalidInput if the upstream is a real cluster or its TSO follows the system's clock.
        """
        request = tidegate_pb2.AdvanceTsoRequest(ts=ts)
        return self._calls.call(
            "AdvanceTso", lambda a: int(self._upstream(a).AdvanceTso(request, timeout=CALL_TIMEOUT_S).ts)
        )

    def upstream_info(self) -> UpstreamInfo:
        """Return the embedded upstream's description of itself. Raises InvalidInput at a real cluster."""
        request = tidegate_pb2.InfoRequest()
        info = self._calls.call("Info", lambda a: self._upstream(a).Info(request, timeout=CALL_TIMEOUT_S))
        return UpstreamInfo(
            cluster_id=info.cluster_id,
            manual_tso=info.tso_mode == tidegate_pb2.MANUAL,
            tso=info.tso,
            store_address=info.store_address,
            regions=info.regions,
            version=info.version,
        )

    def _upstream(self, address: str) -> tidegate_pb2_grpc.UpstreamStub:
        return self.channels.stub(address, tidegate_pb2_grpc.UpstreamStub)

    # --- life ----------------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Wait. Raises Retryable as soon as the client is closed."""
        self._calls.pause(seconds)

    def close(self) -> None:
        """End all calls; callers that wait get Retryable."""
        self._calls.end()
        self._tso.close()
        self.channels.close()

    def __enter__(self) -> PdClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _says_unknown_store(message: str | None) -> bool:
    """Whether an error says that there is no such store: PD has no code for it, only this text."""
    return message is not None and "invalid store ID" in message and "not found" in message


def _peers(region: metapb.Region, leader: metapb.Peer) -> tuple[PeerInfo, ...]:
    return tuple(
        PeerInfo(
            peer.id,
            peer.store_id,
            _ROLES[peer.role],
            bool(leader.id) and peer.id == leader.id,
        )
        for peer in sorted(region.peers, key=lambda peer: int(peer.store_id))
    )


def _region_info(region: metapb.Region, leader: metapb.Peer) -> RegionInfo:
    """A region as we keep it. Without a leader the store is 0: the first peer would only refuse requests."""
    return RegionInfo(
        id=region.id,
        start_key=region.start_key,
        end_key=region.end_key,
        epoch_version=region.region_epoch.version,
        conf_ver=region.region_epoch.conf_ver,
        leader_peer_id=leader.id,
        leader_store_id=leader.store_id if leader.id else 0,
    )
