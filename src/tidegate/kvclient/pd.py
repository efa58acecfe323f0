"""The placement driver: timestamps, regions, stores, safepoints, keyspaces; the embedded one's manual TSO.

A `PdClient` is the root object of this package: it owns the channel pool and the region cache that
snapshots and transactions share. Thread-safe. Each call retries with back-off for at most `retry_s`
seconds, then raises Retryable ("PD is unreachable"). Of PD's members only the leader serves; the leader is
looked up at first use and again after every failure.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import grpc

from tidegate.errors import InvalidInput, Retryable, TidegateError
from tidegate.kvclient.backoff import Backoff, Cause
from tidegate.kvclient.channel import (
    ChannelPool,
    Requests,
    address_of,
    at_end,
    beginning,
    is_transient,
    unavailable,
)
from tidegate.kvclient.region_cache import RegionCache, RegionInfo
from tidegate.kvclient.stores import StoreGone, unfit
from tidegate.model import timestamp
from tidegate.proto import keyspacepb_pb2 as keyspacepb
from tidegate.proto import keyspacepb_pb2_grpc, pdpb_pb2_grpc, tidegate_pb2, tidegate_pb2_grpc
from tidegate.proto import metapb_pb2 as metapb
from tidegate.proto import pdpb_pb2 as pdpb
from tidegate.tls import Tls

T = TypeVar("T")

TSO_GROUP: Final = "tso_keyspace_group_id"
"""Of a keyspace's configuration."""
CALL_TIMEOUT_S: Final = 3.0
READER_S: Final = 1.0
"""How long the end of a timestamp stream waits for its reader."""
MEMBERS_MAX: Final = 16
"""PD addresses learned; a cluster has three to seven members."""
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
    """What the embedded upstream says about itself."""

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


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A keyspace of API V2, as PD keeps it."""

    id: int
    name: str
    tso_group: int
    """Which group of TSO servers gives it timestamps; 0: the one that PD itself speaks for."""


class PdClient:
    """A client of one PD cluster at `addr` = `host:port[,host:port...]`.

    Members that are not named there are learned from PD, and asked when those named do not answer. `tls`:
    the certificates, by default those of the environment (`tidegate.tls`).
    """

    def __init__(self, addr: str, *, retry_s: float = 10.0, tls: Tls | None = None) -> None:
        self._endpoints = [address_of(a) for a in addr.split(",") if a.strip()]
        if not self._endpoints:
            raise InvalidInput("no PD address given", fix="--pd HOST:PORT")
        tls = tls or Tls.from_environment()
        if tls is None and "https://" in addr:
            raise InvalidInput(
                "TLS needs the certificate of the cluster's CA",
                where=addr,
                fix="tidegate --ca CA.pem [--cert CERT.pem --key KEY.pem] COMMAND",
            )
        self._learned: list[str] = []
        self.channels = ChannelPool(tls)
        self.regions = RegionCache(self.scan_regions)
        self._retry_ms = int(retry_s * 1000)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._leader: str | None = None
        self._cluster_id = 0
        self._stores: dict[int, str] = {}
        self._scans_ranges = True
        self._tso = _TsoStream()
        self._tso_lock = threading.Lock()

    # --- who and where -------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The addresses as given, for messages."""
        return ",".join(self._endpoints)

    @property
    def leader_address(self) -> str:
        """`host:port` of the member that serves."""
        return self._call("GetMembers", lambda address: address)

    @property
    def cluster_id(self) -> int:
        """PD's cluster id; asked once."""
        if not self._cluster_id:
            self._call("GetMembers", lambda address: address)
        return self._cluster_id

    def known_address(self, store_id: int) -> str | None:
        """A store's address as `store_address` found it before; does not ask."""
        return self._stores.get(store_id)

    def store_address(self, store_id: int) -> str:
        """`host:port` of a TiKV store.

        Raises StoreGone, at once, when PD knows no such store, or one that is removed or TiFlash's.
        """
        known = self._stores.get(store_id)
        if known is not None:
            return known
        store = self._call("GetStore", lambda address: self._get_store(address, store_id))
        why = "PD does not know it" if store is None else unfit(store)
        if why:
            raise StoreGone(f"store {store_id} serves no regions", where=self.address, why=why)
        if len(self._stores) >= STORES_MAX:
            self._stores.clear()
        self._stores[store_id] = address_of(store.address)
        return self._stores[store_id]

    def _get_store(self, address: str, store_id: int) -> Any:
        """PD's answer; None when it has no such store, which it tells by words alone."""
        request = pdpb.GetStoreRequest(store_id=store_id)
        request.header.cluster_id = self._cluster_id
        stub = self.channels.stub(address, pdpb_pb2_grpc.PDStub)
        try:
            response = stub.GetStore(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and _says_unknown_store(error.details()):
                return None
            raise
        if _says_unknown_store(response.header.error.message):
            return None
        _raise_pd_error("GetStore", address, response.header)
        return response.store

    def stores(self) -> list[Any]:
        """All stores but removed ones, as metapb.Store; TiFlash's are among them."""
        return list(
            self._unary("GetAllStores", pdpb.GetAllStoresRequest(exclude_tombstone_stores=True)).stores
        )

    def forget_store(self, store_id: int) -> None:
        """Ask PD again for this store's address next time."""
        self._stores.pop(store_id, None)

    # --- timestamps ----------------------------------------------------------------------------------

    def tso(self, count: int = 1) -> int:
        """A new timestamp; with `count` > 1 the last of so many consecutive ones."""
        return self._call("Tso", lambda address: self._one_tso(address, count))

    def _one_tso(self, address: str, count: int) -> int:
        with self._tso_lock:
            response = self._tso.ask(
                self.channels.stub(address, pdpb_pb2_grpc.PDStub), self._cluster_id, count
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
        """A region by its number, straight from PD; raises InvalidInput when there is none."""
        response = self._unary("GetRegionByID", pdpb.GetRegionByIDRequest(region_id=region_id))
        if not response.HasField("region"):
            raise InvalidInput(
                f"PD knows no region {region_id}.", where=self.address, fix="ask PD for the regions there are"
            )
        return _region_info(response.region, response.leader)

    def scan_regions(self, start_encoded: bytes, end_encoded: bytes, limit: int) -> list[RegionInfo]:
        """The regions of [start, end) in key order, at most `limit`; an empty end is plus infinity."""
        found = self._scan_regions(start_encoded, end_encoded, limit)
        return [_region_info(region, leader) for region, leader in found]

    def scan_ranges(self, ranges: Sequence[tuple[bytes, bytes]], limit: int) -> list[RegionInfo]:
        """The regions of several ascending ranges that do not overlap, each once, in key order.

        At most `limit` or some more. An older PD knows no such call, and is asked for one range at a time.
        """
        if self._scans_ranges:
            request = pdpb.BatchScanRegionsRequest(limit=limit)
            for start, end in ranges:
                request.ranges.add(start_key=start, end_key=end)
            response = self._unary_if_known("BatchScanRegions", request)
            if response is not None:
                return [_region_info(r.region, r.leader) for r in response.regions]
            self._scans_ranges = False
        found: dict[bytes, RegionInfo] = {}
        for start, end in ranges:
            for region in self.scan_regions(start, end, limit):
                found.setdefault(region.start_key, region)
            if len(found) >= limit:
                break
        return list(found.values())

    def scan_peers(
        self, start_encoded: bytes, end_encoded: bytes, limit: int
    ) -> list[tuple[RegionInfo, tuple[PeerInfo, ...]]]:
        """The same with all peers, by store; of a region that nobody leads none does."""
        found = self._scan_regions(start_encoded, end_encoded, limit)
        return [(_region_info(region, leader), _peers(region, leader)) for region, leader in found]

    def _scan_regions(self, start_encoded: bytes, end_encoded: bytes, limit: int) -> list[tuple[Any, Any]]:
        request = pdpb.ScanRegionsRequest(start_key=start_encoded, end_key=end_encoded, limit=limit)
        response = self._unary("ScanRegions", request)
        if response.regions:
            return [(r.region, r.leader) for r in response.regions]
        return list(zip(response.region_metas, response.leaders, strict=True))

    # --- GC ------------------------------------------------------------------------------------------

    def update_service_gc_safepoint(self, service_id: str, ttl_s: int, safe_point: int) -> int:
        """Hold the GC safepoint at `safe_point` for `ttl_s` seconds; ttl_s <= 0 lets go.

        Returns the least safepoint of all services: when it is above `safe_point`, the wanted history is
        already gone and nothing was held.
        """
        request = pdpb.UpdateServiceGCSafePointRequest(
            service_id=service_id.encode(), TTL=ttl_s, safe_point=safe_point
        )
        return int(self._unary("UpdateServiceGCSafePoint", request).min_safe_point)

    def hold_history(self, service_id: str, ttl_s: int, safe_point: int, keyspace_id: int = -1) -> int:
        """The same of a keyspace, in whose scope its barriers are if its GC is its own.

        Elsewhere GC is that of the whole cluster, as is that of what is in no keyspace (-1).
        """
        if keyspace_id < 0:
            return self.update_service_gc_safepoint(service_id, ttl_s, safe_point)
        scope = pdpb.KeyspaceScope(keyspace_id=keyspace_id)
        if not self._collects_itself(scope):
            return self.update_service_gc_safepoint(service_id, ttl_s, safe_point)
        if ttl_s <= 0:
            self._unary(
                "DeleteGCBarrier", pdpb.DeleteGCBarrierRequest(keyspace_scope=scope, barrier_id=service_id)
            )
            return 0
        barrier = pdpb.SetGCBarrierRequest(
            keyspace_scope=scope, barrier_id=service_id, barrier_ts=safe_point, ttl_seconds=ttl_s
        )
        try:
            self._unary("SetGCBarrier", barrier)
        except TidegateError:
            # It says by words alone that the barrier comes too late.
            passed = self._gc_state(scope).txn_safe_point
            if passed > safe_point:
                return int(passed)
            raise
        return safe_point

    def _collects_itself(self, scope: Any) -> bool:
        state = self._gc_state(scope)
        return state is not None and bool(state.is_keyspace_level_gc)

    def _gc_state(self, scope: Any) -> Any:
        """The state of a scope's GC; None of an older PD, which has one GC."""
        request = pdpb.GetGCStateRequest(keyspace_scope=scope, exclude_gc_barriers=True)
        response = self._unary_if_known("GetGCState", request)
        return None if response is None else response.gc_state

    def gc_safe_point(self) -> int:
        """Versions below it may be gone."""
        return int(self._unary("GetGCSafePoint", pdpb.GetGCSafePointRequest()).safe_point)

    def keyspace(self, name: str) -> Keyspace:
        """A keyspace of API V2; InvalidInput when PD has none of that name, or it is shut."""
        request = keyspacepb.LoadKeyspaceRequest(name=name)

        def attempt(address: str) -> Any:
            request.header.cluster_id = self._cluster_id
            stub = self.channels.stub(address, keyspacepb_pb2_grpc.KeyspaceStub)
            response = stub.LoadKeyspace(request, timeout=CALL_TIMEOUT_S)
            if response.header.error.type == pdpb.ENTRY_NOT_FOUND:
                raise InvalidInput(
                    f"There is no keyspace '{name}'.",
                    where=f"PD at {address}",
                    why=response.header.error.message,
                    fix="check the name, or give --keyspace-id",
                )
            _raise_pd_error("LoadKeyspace", address, response.header)
            return response.keyspace

        found = self._call("LoadKeyspace", attempt)
        if found.state != keyspacepb.ENABLED:
            raise InvalidInput(
                f"Keyspace '{name}' is {keyspacepb.KeyspaceState.Name(found.state).lower()}.",
                where=f"PD at {self.address}",
                fix="enable it, or choose another keyspace",
            )
        return _keyspace(found)

    def keyspace_of_id(self, keyspace_id: int) -> Keyspace | None:
        """A keyspace by its id; None when PD has none, or knows no keyspaces."""
        request = keyspacepb.GetAllKeyspacesRequest(start_id=keyspace_id, limit=1)

        def attempt(address: str) -> Any:
            request.header.cluster_id = self._cluster_id
            stub = self.channels.stub(address, keyspacepb_pb2_grpc.KeyspaceStub)
            try:
                response = stub.GetAllKeyspaces(request, timeout=CALL_TIMEOUT_S)
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNIMPLEMENTED:
                    return keyspacepb.GetAllKeyspacesResponse()
                raise
            _raise_pd_error("GetAllKeyspaces", address, response.header)
            return response

        found = self._call("GetAllKeyspaces", attempt).keyspaces
        return next((_keyspace(each) for each in found if each.id == keyspace_id), None)

    # --- the embedded upstream only ------------------------------------------------------------------

    def advance_tso(self, ts: int) -> int:
        """Move a manual TSO forward to `ts`; never back. Returns the TSO's present value.

        Raises InvalidInput when the upstream is a real cluster or runs on system time.
        """
        request = tidegate_pb2.AdvanceTsoRequest(ts=ts)
        return self._call(
            "AdvanceTso", lambda a: int(self._upstream(a).AdvanceTso(request, timeout=CALL_TIMEOUT_S).ts)
        )

    def upstream_info(self) -> UpstreamInfo:
        """What the embedded upstream says about itself; InvalidInput on a real cluster."""
        request = tidegate_pb2.InfoRequest()
        info = self._call("Info", lambda a: self._upstream(a).Info(request, timeout=CALL_TIMEOUT_S))
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
        """Wait; raises Retryable at once when the client is closed meanwhile."""
        if self._closed.wait(seconds):
            raise Retryable("the client was closed while it waited", where=self.address)

    def close(self) -> None:
        """End all calls; waiting callers get Retryable."""
        self._closed.set()
        self._tso.close()
        self.channels.close()

    def __enter__(self) -> PdClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- calls ---------------------------------------------------------------------------------------

    def _unary(self, method: str, request: Any) -> Any:
        """One PD call with header, retries, and PD's own errors translated."""
        return self._call(method, lambda address: self._ask(address, method, request))

    def _ask(self, address: str, method: str, request: Any) -> Any:
        request.header.cluster_id = self._cluster_id
        stub = self.channels.stub(address, pdpb_pb2_grpc.PDStub)
        response = getattr(stub, method)(request, timeout=CALL_TIMEOUT_S)
        _raise_pd_error(method, address, response.header)
        return response

    def _unary_if_known(self, method: str, request: Any) -> Any:
        """The same of a call that an older PD may not know; None then."""

        def attempt(address: str) -> Any:
            try:
                return self._ask(address, method, request)
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNIMPLEMENTED:
                    return None
                raise

        return self._call(method, attempt)

    def _call(self, method: str, attempt: Callable[[str], T]) -> T:
        """Run `attempt(leader address)` with retries within the budget."""
        backoff = Backoff(self._retry_ms)
        while True:
            try:
                with beginning(self.address):
                    return attempt(self._leader_address())
            except grpc.RpcError as error:
                if not is_transient(error):
                    raise _refused(method, self.address, error) from error
                failure: TidegateError = unavailable(f"PD is unreachable ({method})", self.address, error)
            except Retryable as error:
                failure = error
            if self._closed.is_set():
                raise failure
            with self._lock:
                self._leader = None
            try:
                wait = backoff.next(Cause.PD)
            except Retryable:
                raise failure from None
            self.pause(wait)

    def _leader_address(self) -> str:
        with self._lock:
            if self._leader is not None:
                return self._leader
        last: grpc.RpcError | None = None
        for address in [*self._endpoints, *self._learned]:
            stub = self.channels.stub(address, pdpb_pb2_grpc.PDStub)
            try:
                response = stub.GetMembers(pdpb.GetMembersRequest(), timeout=CALL_TIMEOUT_S)
            except grpc.RpcError as error:
                last = error
                continue
            return self._adopt(address, response)
        assert last is not None
        raise last

    def _adopt(self, asked: str, response: Any) -> str:
        """Keep leader and cluster id of a GetMembers answer."""
        cluster_id = int(response.header.cluster_id)
        with self._lock:
            if self._cluster_id and cluster_id != self._cluster_id:
                raise InvalidInput(
                    "PD answers for another cluster than before",
                    where=asked,
                    why=f"cluster id {cluster_id}, before {self._cluster_id}",
                    fix="check the PD address",
                )
            self._cluster_id = cluster_id
            members = [address_of(url) for member in response.members for url in member.client_urls]
            self._learned = [each for each in members if each not in self._endpoints][:MEMBERS_MAX]
            urls = list(response.leader.client_urls)
            leader = address_of(urls[0]) if urls else asked
            self._leader = asked if asked in [address_of(u) for u in urls] else leader
            return self._leader


class _TsoStream:
    """One Tso stream, kept open; callers take turns. A broken one is reopened by the next caller."""

    def __init__(self) -> None:
        self._requests: Requests | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call: Any = None
        self._stub: pdpb_pb2_grpc.PDStub | None = None
        self._reader: threading.Thread | None = None

    def ask(self, stub: pdpb_pb2_grpc.PDStub, cluster_id: int, count: int) -> Any:
        """Send one request, wait for its answer at most CALL_TIMEOUT_S. Raises grpc.RpcError or Retryable."""
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
        """End the stream. On return nothing here refers to the call, and its threads have ended, but for a
        reader that gRPC keeps (`at_end`).
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
    """What callers of an ended timestamp stream get: the call is an RpcError unless it ended well."""
    if call.code() is grpc.StatusCode.OK:
        return Retryable("PD closed the timestamp stream")
    return cast("BaseException", call)


def _raise_pd_error(method: str, address: str, header: Any) -> None:
    if header.HasField("error") and header.error.type != pdpb.OK:
        raise Retryable(f"PD refused {method}", where=address, why=header.error.message)


def _says_unknown_store(message: str | None) -> bool:
    """As client-go tells it: PD has no code of its own for a store that was removed for good."""
    return message is not None and "invalid store ID" in message and "not found" in message


def _refused(method: str, address: str, error: grpc.RpcError) -> InvalidInput:
    code = error.code() if isinstance(error, grpc.Call) else None
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    if code == grpc.StatusCode.UNIMPLEMENTED and method == "LoadKeyspace":
        return InvalidInput(
            "this PD has no keyspaces", where=address, fix="leave --keyspace out; they come with API V2"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return InvalidInput(
            f"the upstream does not offer {method}",
            where=address,
            fix="only `tidegate upstream run` offers it",
        )
    if code == grpc.StatusCode.FAILED_PRECONDITION and method == "AdvanceTso":
        return InvalidInput(
            "this upstream's TSO follows the system's clock",
            where=address,
            fix="recorded logs need an upstream started with `--tso manual`",
        )
    return InvalidInput(f"PD refused {method}", where=address, why=f"{code}: {details}")


def _peers(region: Any, leader: Any) -> tuple[PeerInfo, ...]:
    return tuple(
        PeerInfo(
            peer.id,
            peer.store_id,
            _ROLES[peer.role],
            bool(leader.id) and peer.id == leader.id,
        )
        for peer in sorted(region.peers, key=lambda peer: int(peer.store_id))
    )


def _region_info(region: Any, leader: Any) -> RegionInfo:
    """Without a leader its store is 0: the first peer may be anybody's, and would only refuse."""
    return RegionInfo(
        id=region.id,
        start_key=region.start_key,
        end_key=region.end_key,
        epoch_version=region.region_epoch.version,
        conf_ver=region.region_epoch.conf_ver,
        leader_peer_id=leader.id,
        leader_store_id=leader.store_id if leader.id else 0,
    )


def _keyspace(found: Any) -> Keyspace:
    group = found.config.get(TSO_GROUP, "")
    return Keyspace(int(found.id), found.name, int(group) if group.isdigit() else 0)
