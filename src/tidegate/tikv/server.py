"""The embedded upstream's gRPC servers: PD with Tidegate's own service, and TiKV with ChangeData per store.

`EmbeddedUpstream` puts the parts of this folder together, and starts and stops them. PD's members listen in
`rpc/`, the stores in `store_servers`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.clock import Clock, SystemClock
from tidegate.errors import InvalidInput
from tidegate.proto import etcdserverpb_pb2, keyspacepb_pb2, meta_storagepb_pb2, pdpb_pb2, tidegate_pb2
from tidegate.tikv.cdc.limiter import SCAN_BYTES_S
from tidegate.tikv.cdc.ticker import Watchdog
from tidegate.tikv.collector import Collector
from tidegate.tikv.engine import Engine
from tidegate.tikv.faults import Faults
from tidegate.tikv.node import Shared
from tidegate.tikv.pd.gc import SafePoints
from tidegate.tikv.pd.keyspace import Keyspaces
from tidegate.tikv.pd.operators import Operators
from tidegate.tikv.pd.placement_driver import PlacementDriver, load_api_version, load_cluster_id
from tidegate.tikv.pd.regions import PdRegions
from tidegate.tikv.pd.splitter import Splitter, middle
from tidegate.tikv.pd.stores import HEARTBEAT_S, StoreInfo, Stores
from tidegate.tikv.pd.tso import Tso, TsoMode
from tidegate.tikv.raft.raftstore import Raftstore
from tidegate.tikv.raft.region import split_keys
from tidegate.tikv.raft.region_change import present
from tidegate.tikv.raft.region_meta import Ids
from tidegate.tikv.raft.region_meta import load as load_regions
from tidegate.tikv.rpc.grpc_server import new_server
from tidegate.tikv.rpc.handlers import health, service
from tidegate.tikv.rpc.http_pages import StatusServer
from tidegate.tikv.rpc.listener import Listener
from tidegate.tikv.rpc.members import PdMembers
from tidegate.tikv.rpc.pd_services import EtcdService, KeyspaceService, MetaStorageService, PdService
from tidegate.tikv.rpc.status_pages import StatusPages
from tidegate.tikv.rpc.store import Store
from tidegate.tikv.rpc.upstream_service import UpstreamService
from tidegate.tikv.store_servers import StoreServers
from tidegate.tls import Tls

SCHEDULER_THREADS: Final = 4
STOP_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of the upstream and its cluster id. `store` is the first of `stores`."""

    pd: str
    store: str
    cluster_id: int
    stores: tuple[str, ...] = ()


class EmbeddedUpstream:
    """An embedded PD and its TiKV stores over one data directory.

    `pd_addr` is host:port, port 0 for a free one; it serves PD's gRPC and its HTTP pages. Each store has its
    own server and address, which stays the same: free ports, or the ports from `store_port` on. `regions` (or
    explicit encoded `boundaries`), `stores` and `api_version` count only at the first start of a data
    directory; later the stored ones are used. `api_version` is 1 or 2: 2 is for RawKV with versions (and its
    change streams) and for the keyspaces in `keyspaces`; both serve TiDB's keys. Regions that grow well
    beyond `split_bytes` are split; 0: never. `status_port` (0: a free one) serves `rpc.status_pages`. PD has
    `pd_members` members, the first at `pd_addr`, the others at free ports of its host. With `tls` only
    clients with a certificate of its CA can use gRPC. `watchdog` ends change streams whose client does not
    read; the incremental scans of a store send at most `scan_bytes_s`. `start` returns when requests are
    served; `stop` ends cleanly within a few seconds and may be called twice. Keep a reference, because the
    server ends when the object is freed.
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
        api_version: int | None = None,
        keyspaces: Sequence[str] = (),
        keyspace_configs: Mapping[str, Mapping[str, str]] | None = None,
        stores: int | None = None,
        store_port: int = 0,
        split_bytes: int = 0,
        status_port: int | None = None,
        pd_members: int = 1,
        tls: Tls | None = None,
        watchdog: Watchdog = Watchdog(),
        scan_bytes_s: float = SCAN_BYTES_S,
    ) -> None:
        if regions < 1:
            raise InvalidInput(f"an upstream cannot have {regions} regions", fix="give --regions 1 or more")
        if api_version not in (None, 1, 2):
            raise InvalidInput(f"there is no API version {api_version}", fix="give --api-version 1 or 2")
        if scan_bytes_s <= 0:
            raise InvalidInput(f"scans cannot send {scan_bytes_s:g} bytes a second", fix="give more than 0")
        self._clock = clock or SystemClock()
        self._engine = Engine(Path(data_dir))
        try:
            self.api_version = load_api_version(self._engine, api_version)
            self._keyspaces = Keyspaces(self._engine, self._clock, keyspaces, keyspace_configs)
            self.stores = Stores(self._engine, self._clock, stores)
        except InvalidInput:
            self._engine.close()
            raise
        # Only for a new data directory; otherwise the stored regions count, which may have split and merged.
        where = split_keys(regions) if boundaries is None else boundaries
        self.regions = load_regions(self._engine, where, len(self.stores))
        self.faults = Faults()
        self._raftstore = Raftstore(self._engine, self.regions, self.faults)
        ids = Ids(self._engine, self.regions)
        self.operators = Operators(self._raftstore, self.stores, ids.new)
        self.tso = Tso(self._engine, self._clock, TsoMode(tso))
        self._safe_points = SafePoints(self._engine)
        self.keyspace_points = {
            number: SafePoints(self._engine, b"/%d" % number) for number in self._keyspaces.collecting()
        }
        """The safepoints of keyspaces with their own GC; the collector ignores them."""
        self._pool = ThreadPoolExecutor(SCHEDULER_THREADS, thread_name_prefix="scheduler")
        self.cluster_id = load_cluster_id(self._engine)
        self._header = pdpb_pb2.ResponseHeader(cluster_id=self.cluster_id)
        self.pd_regions = PdRegions(self.regions, self.operators, self._header, self.faults)
        self._shared = Shared(
            self.cluster_id,
            self.regions,
            self._raftstore,
            self.tso,
            self._pool,
            self._clock,
            ids.new,
            self.api_version,
            watchdog=watchdog,
            scan_bytes_s=scan_bytes_s,
            faults=self.faults,
        )
        self._collector = Collector(self._raftstore, self._safe_points, self.api_version, self._clock)
        self._splitter = Splitter(self._raftstore, self.operators, split_bytes)
        self._host = pd_addr.rpartition(":")[0]
        self._status_port = status_port
        self._status: StatusServer | None = None
        listener = Listener(tls)
        self._store_servers = StoreServers(self._shared, self.stores, listener, self._host, store_port)
        self._life = threading.RLock()
        self._tls = tls
        self.pd_members = PdMembers(new_server, listener.bind, tls)
        self._pd_addresses = [pd_addr, *[f"{self._host}:0"] * (pd_members - 1)]
        self._stopping = threading.Event()
        self._heartbeats = threading.Thread(target=self._beat, name="heartbeats", daemon=True)
        self.pd_addr = ""

    # --- life ---

    def start(self) -> Addresses:
        """Listen and serve."""
        self.pd_members.bind(self._pd_addresses)
        self.pd_addr = self.pd_members.addresses[0]
        pd = PlacementDriver(
            self._header,
            self.tso,
            self._safe_points,
            self.keyspace_points,
            self.pd_members,
            "http" if self._tls is None else "https",
            self._keyspaces,
            self.stores,
            self.pd_regions,
            self.faults,
        )
        handlers = (
            service(pdpb_pb2, "PD", PdService(pd)),
            service(keyspacepb_pb2, "Keyspace", KeyspaceService(pd)),
            service(tidegate_pb2, "Upstream", UpstreamService(pd, self)),
            service(etcdserverpb_pb2, "KV", EtcdService(pd)),
            service(etcdserverpb_pb2, "Cluster", EtcdService(pd)),
            service(meta_storagepb_pb2, "MetaStorage", MetaStorageService(pd)),
            health(),
        )
        pages = StatusPages(pd)
        if self._status_port is not None:
            self._status = StatusServer(f"{self._host}:{self._status_port}")
            self._status.start(pages.get)
        self._raftstore.start()
        try:
            for store in self.stores.all():
                self.start_store(store.id, elect=False)
        except InvalidInput:
            self.stop()
            raise
        self.operators.resume()
        self._collector.start()
        self._splitter.start()
        self._heartbeats.start()
        # Last: a client that reaches PD must find stores that serve.
        self.pd_members.serve(handlers, pages.get)
        addresses = tuple(store.address for store in self.stores.all())
        return Addresses(self.pd_addr, addresses[0], self.cluster_id, addresses)

    def stop(self) -> None:
        """Refuse new requests, apply the accepted commands, close the engine."""
        with self._life:
            if self._stopping.is_set():
                return
            self._stopping.set()
        # Faults first: a request that waits because of one would keep its server from ending.
        self.faults.clear()
        self.faults.stopping.set()
        self.tso.thaw()
        self._splitter.stop()
        if self._status is not None:
            self._status.stop()
        ended = self._store_servers.refuse(STOP_GRACE_S)
        ended += self.pd_members.stop(STOP_GRACE_S)
        for node in list(self._shared.nodes.values()):
            node.stop()
        self._collector.stop()
        # Before the raftstore stops: the last requests still propose commands to it, and wait for them.
        for each in ended:
            each.wait()
        self._raftstore.stop()
        self._pool.shutdown()
        self._engine.close()

    def __enter__(self) -> EmbeddedUpstream:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def status_addr(self) -> str:
        """The address of the HTTP port; empty if there is none."""
        return "" if self._status is None else self._status.address

    @property
    def store(self) -> Store:
        """The first store."""
        return self._shared.nodes[self.stores.all()[0].id].store

    # --- stores ---

    def start_store(self, store_id: int, elect: bool = True) -> None:
        """Start a store that is down, at its address. It may become the leader of regions that have none."""
        with self._life:
            info = self._known(store_id)
            if info.is_up or self._stopping.is_set():
                return
            self._store_servers.start(info, self.status_addr)
            if elect:
                self.operators.resume()

    def stop_store(self, store_id: int) -> None:
        """Stop a store as if it were killed. Its regions elect other leaders if most peers are alive."""
        with self._life:
            info = self._known(store_id)
            if len(self.stores) == 1:
                raise InvalidInput(
                    "the only store cannot be stopped", fix="end the upstream, or run it with --stores 3"
                )
            if not info.is_up:
                return
            # First, so that no region elects a leader on it.
            self.stores.stopped(store_id)
            self._store_servers.kill(store_id)
            self.operators.elect(store_id)

    def cut_streams(self, store_id: int = 0) -> None:
        """End all change streams of a store; 0: of all stores."""
        if store_id:
            self._known(store_id)
        for node in list(self._shared.nodes.values()):
            if store_id in (0, node.id):
                node.endpoint.cut()

    def congest(self, region_id: int = 0) -> None:
        """End all registrations of a region with Congested; 0: of all regions."""
        if region_id:
            present(self.regions, region_id)
        for node in list(self._shared.nodes.values()):
            node.endpoint.congest(region_id)

    def split_key(self, region_id: int) -> bytes:
        """The key in the middle of a region. Raises InvalidInput if there is none."""
        found = middle(self._engine, present(self.regions, region_id))
        if found is None:
            raise InvalidInput(
                f"region {region_id} has too few keys to have a middle", fix="name a key to split at"
            )
        return found

    def neighbour(self, region_id: int) -> int:
        """The next region, or for the last region the one before it."""
        region = present(self.regions, region_id)
        # A region's end is the first key of the next one.
        other = self.regions.of_key(region.end) if region.end else self.regions.before(region.start)
        if other is None:
            raise InvalidInput("there is only one region", fix="split it first (`region split`)")
        return other.id

    # --- parts ---

    def _known(self, store_id: int) -> StoreInfo:
        info = self.stores.get(store_id)
        if info is None:
            known = ", ".join(str(each.id) for each in self.stores.all())
            raise InvalidInput(f"there is no store {store_id}", fix=f"name one of these: {known}")
        return info

    def _beat(self) -> None:
        while not self._stopping.wait(HEARTBEAT_S):
            # For all stores from one thread: the stores share a process, and only their reports have to look
            # separate.
            for store_id in self.stores.up():
                self.stores.heartbeat(store_id)
