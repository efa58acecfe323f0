"""One request to one region, and the reaction if the region is not where the cache says.

Every transactional request of this package goes through this module. After a region error or if the store is
unreachable, it corrects the cache, waits as the error requires, and raises `RegionMoved`; the caller then
groups its keys again and retries. The waits come from the operation's own `Backoff`, so an operation ends
with Retryable when its budget is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc

from tidegate.errors import InvalidInput, Retryable
from tidegate.kvclient.backoff import Backoff, Cause
from tidegate.kvclient.channel import beginning, is_too_large, is_transient, unavailable
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.kvclient.stores import StoreGone
from tidegate.proto import errorpb_pb2 as errorpb
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.proto import metapb_pb2 as metapb
from tidegate.proto import tikvpb_pb2_grpc

NO_LEADER_MS: Final = 50
"""The least wait before PD is asked again for a region's leader; an election takes some seconds."""
STORE_TIMEOUT_S: Final = 10.0
"""The timeout of one request; a store that needs longer for 16,384 keys has a problem."""


class RegionMoved(Exception):
    """The caller must locate its keys again and retry. The cache is corrected and the wait is over."""


class TooLarge(Retryable):
    """An answer is larger than a message may be; the caller must ask for less."""


class RegionRequester:
    """Sends requests to regions. It has no state except the client, so it can be made wherever it is needed.

    `keyspace_id`: the keyspace (API V2) of the keys in requests; -1: keys of API V1 or TiDB's.
    """

    def __init__(self, pd: PdClient, keyspace_id: int = -1) -> None:
        self.pd = pd
        self._keyspace_id = keyspace_id

    def send(self, region: RegionInfo, method: str, request: Any, backoff: Backoff) -> Any:
        """The response, which has no region error. Raises RegionMoved, or Retryable if the budget is spent.

        Sets region, epoch, peer and cluster id of `request.context`; its other fields are the caller's.
        """
        address = self._address(region, method, backoff)
        self.fill_context(request.context, region)
        stub = self.pd.channels.stub(address, tikvpb_pb2_grpc.TikvStub)
        try:
            with beginning(address):
                response = getattr(stub, method)(request, timeout=STORE_TIMEOUT_S)
        except grpc.RpcError as error:
            # Before `_store_failed`: the store is healthy, and a retry would fail in the same way.
            if is_too_large(error):
                why = str(error.details()) if isinstance(error, grpc.Call) else ""
                raise TooLarge(f"an answer to {method} is too large", where=address, why=why) from error
            self._store_failed(region, method, address, error, backoff)
        if response.HasField("region_error"):
            self._region_failed(region, method, response.region_error, backoff)
        return response

    def _address(self, region: RegionInfo, method: str, backoff: Backoff) -> str:
        """The address of the region's leader. If it has none, drops the region from the cache, waits, and
        raises RegionMoved, so that the retry asks PD for it.
        """
        why = "it has no leader"
        if region.leader_store_id:
            try:
                return self.pd.store_address(region.leader_store_id)
            except StoreGone as error:
                why = f"{error.what}: {error.why}"
        self.pd.regions.invalidate(region.id)
        where = f"region {region.id}, {method}"
        self.pd.pause(backoff.next(Cause.NOT_LEADER, at_least_ms=NO_LEADER_MS, where=where, why=why))
        raise RegionMoved

    def fill_context(self, context: kvrpcpb.Context, region: RegionInfo) -> None:
        """Address a request to the region's leader, in the keyspace."""
        fill_context(context, region, self.pd.cluster_id)
        if self._keyspace_id >= 0:
            context.api_version = kvrpcpb.V2
            context.keyspace_id = self._keyspace_id

    def by_region(
        self, keys: Iterable[bytes], backoff: Backoff, send: Callable[[RegionInfo, list[bytes]], None]
    ) -> None:
        """Call `send(region, its keys)` until every key was sent once without RegionMoved."""
        pending = list(keys)
        while pending:
            groups = self.pd.regions.group(pending)
            # Regions may have been split or merged, so the keys that are left are grouped again.
            pending = []
            for region, members in groups:
                try:
                    send(region, members)
                except RegionMoved:
                    pending += members

    def at_key(self, key: bytes, method: str, request: Any, backoff: Backoff) -> Any:
        """Send to the region of one raw key; retry when the region has moved."""
        while True:
            try:
                return self.send(self.pd.regions.locate(key), method, request, backoff)
            except RegionMoved:
                continue

    def _store_failed(
        self, region: RegionInfo, method: str, address: str, error: grpc.RpcError, backoff: Backoff
    ) -> None:
        if not is_transient(error):
            details = error.details() if isinstance(error, grpc.Call) else str(error)
            raise InvalidInput(f"the store refused {method}", where=address, why=str(details)) from error
        failure = unavailable(f"store {region.leader_store_id} is unreachable ({method})", address, error)
        # The store may come back at another address, and the region may have another leader by now.
        self.pd.forget_store(region.leader_store_id)
        self.pd.regions.invalidate(region.id)
        try:
            wait = backoff.next(Cause.RPC)
        except Retryable:
            # The store's own error says more than that the budget is spent.
            raise failure from error
        self.pd.pause(wait)
        raise RegionMoved from error

    def _region_failed(self, region: RegionInfo, method: str, error: errorpb.Error, backoff: Backoff) -> None:
        cause, at_least_ms = correct(self.pd, region, error)
        where = f"region {region.id}, {method}"
        self.pd.pause(backoff.next(cause, at_least_ms=at_least_ms, where=where, why=error.message))
        raise RegionMoved


def fill_context(context: kvrpcpb.Context, region: RegionInfo, cluster_id: int) -> None:
    """Address a request to the region's leader."""
    context.region_id = region.id
    context.region_epoch.version = region.epoch_version
    context.region_epoch.conf_ver = region.conf_ver
    context.peer.id = region.leader_peer_id
    context.peer.store_id = region.leader_store_id
    context.cluster_id = cluster_id


def correct(pd: PdClient, region: RegionInfo, error: errorpb.Error) -> tuple[Cause, int]:
    """Correct the cache after a region error; returns how to wait: the cause and the least milliseconds.

    Public because the puller's region feeds get the same errors.
    """
    match _first_field(error):
        case "not_leader" if error.not_leader.leader.id:
            leader = error.not_leader.leader
            pd.regions.set_leader(region.id, leader.id, leader.store_id)
            return Cause.NOT_LEADER, 0
        case "not_leader":
            pd.regions.invalidate(region.id)
            return Cause.NOT_LEADER, NO_LEADER_MS
        case "epoch_not_match":
            pd.regions.invalidate(region.id)
            for current in error.epoch_not_match.current_regions:
                pd.regions.insert(_current_region(current, region.leader_store_id))
            return Cause.REGION_MISS, 0
        case "server_is_busy":
            # The region is where it was, so the cache stays as it is, here and in the next case.
            return Cause.BUSY, int(error.server_is_busy.backoff_ms)
        case "max_timestamp_not_synced" | "stale_command":
            return Cause.BUSY, 0
        case "raft_entry_too_large":
            raise InvalidInput("a request is larger than the store accepts", where=f"region {region.id}")
        case "store_not_match":
            pd.forget_store(region.leader_store_id)
            pd.regions.invalidate(region.id)
            return Cause.REGION_MISS, 0
        case _:
            pd.regions.invalidate(region.id)
            return Cause.REGION_MISS, 0


def _first_field(error: errorpb.Error) -> str:
    for descriptor, _ in error.ListFields():
        if descriptor.name != "message":
            return str(descriptor.name)
    return ""


def _current_region(region: metapb.Region, store_id: int) -> RegionInfo:
    """A region from EpochNotMatch, which names no leader: the peer on the answering store is assumed."""
    peer = next((p for p in region.peers if p.store_id == store_id), None)
    return RegionInfo(
        id=region.id,
        start_key=region.start_key,
        end_key=region.end_key,
        epoch_version=region.region_epoch.version,
        conf_ver=region.region_epoch.conf_ver,
        leader_peer_id=peer.id if peer is not None else 0,
        leader_store_id=peer.store_id if peer is not None else store_id,
    )
