"""The gRPC face of the embedded upstream: PD, TiKV, ChangeData and Tidegate's own service on one address.

The only network edge of this folder. `EmbeddedUpstream` puts the parts together and owns their life.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from tidegate.clock import Clock, SystemClock
from tidegate.errors import InvalidInput
from tidegate.proto import (
    cdcpb_pb2,
    etcdserverpb_pb2,
    keyspacepb_pb2,
    pdpb_pb2,
    tidegate_pb2,
    tikvpb_pb2,
)
from tidegate.tikv.cdc.endpoint import Endpoint
from tidegate.tikv.collector import Collector
from tidegate.tikv.concurrency import ConcurrencyManager
from tidegate.tikv.deadlock import DeadlockDetector
from tidegate.tikv.engine import Engine
from tidegate.tikv.gc import SafePoints
from tidegate.tikv.keyspace import Keyspaces
from tidegate.tikv.lock_waiting import LockWaiting
from tidegate.tikv.pd import PlacementDriver, load_api_version, load_cluster_id, load_regions
from tidegate.tikv.raftstore import Raftstore
from tidegate.tikv.rawkv import RawKv
from tidegate.tikv.region import split_keys
from tidegate.tikv.scheduler import Scheduler
from tidegate.tikv.services import (
    ChangeDataService,
    EtcdService,
    KeyspaceService,
    PdService,
    TikvService,
    UpstreamService,
    health,
    service,
)
from tidegate.tikv.store import Parts, Store
from tidegate.tikv.tso import Tso, TsoMode

MESSAGE_BYTES_MAX: Final = 256 << 20
HANDLER_THREADS: Final = 256
"""Each open stream holds one; they are started when needed."""
SCHEDULER_THREADS: Final = 4
STOP_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the upstream listens, and which cluster it is."""

    pd: str
    store: str
    cluster_id: int


class EmbeddedUpstream:
    """An embedded PD and TiKV over one data directory.

    `pd_addr` is host:port, port 0 for a free one. `regions` (or explicit encoded `boundaries`) counts only
    at the first start of a data directory; later the stored ones are used. So does `api_version`, 1 or 2: 2
    is for RawKV with versions (and its capture), and for keyspaces, which `keyspaces` names; TiDB's keys are
    served by both. `start` returns when requests
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
        api_version: int | None = None,
        keyspaces: Sequence[str] = (),
    ) -> None:
        if regions < 1:
            raise InvalidInput(f"an upstream cannot have {regions} regions", fix="give --regions 1 or more")
        if api_version not in (None, 1, 2):
            raise InvalidInput(f"there is no API version {api_version}", fix="give --api-version 1 or 2")
        clock = clock or SystemClock()
        self._engine = Engine(Path(data_dir))
        try:
            self.api_version = load_api_version(self._engine, api_version)
            self._keyspaces = Keyspaces(self._engine, clock, keyspaces)
        except InvalidInput:
            self._engine.close()
            raise
        self._raftstore = Raftstore(self._engine)
        self._regions = load_regions(self._engine, split_keys(regions) if boundaries is None else boundaries)
        self._tso = Tso(self._engine, clock, TsoMode(tso))
        self._safe_points = SafePoints(self._engine)
        self._pool = ThreadPoolExecutor(SCHEDULER_THREADS, thread_name_prefix="scheduler")
        concurrency = ConcurrencyManager()
        concurrency.update_max_ts(self._tso.present())
        self._waiting = LockWaiting(DeadlockDetector())
        scheduler = Scheduler(self._raftstore, self._pool, concurrency, self._waiting)
        self._wanted_addr = pd_addr
        self._server: grpc.Server | None = None
        self._stopped = False
        self.cluster_id = load_cluster_id(self._engine)
        self.pd_addr = ""
        self._endpoint = Endpoint(
            self.cluster_id,
            self._regions,
            self._raftstore,
            self._tso.get,
            concurrency=concurrency,
            api_version=self.api_version,
        )
        next_ts = self._tso.get if self._tso.mode is TsoMode.SYSTEM and self.api_version == 2 else None
        raw = RawKv(self.api_version, self._raftstore, scheduler, concurrency, next_ts, clock)
        self.store = Store(
            Parts(
                self._regions,
                self._raftstore,
                scheduler,
                concurrency,
                self._waiting,
                self._endpoint.announced,
                raw,
                self._tso.get if self._tso.mode is TsoMode.SYSTEM else None,
            )
        )
        self._collector = Collector(self._raftstore, self._safe_points, self.api_version, clock)

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
        pd = PlacementDriver(
            self.cluster_id, self._regions, self._tso, self._safe_points, self.pd_addr, self._keyspaces
        )

        def of(file: Any, name: str, implementation: object) -> grpc.GenericRpcHandler:
            return service(file.DESCRIPTOR.services_by_name[name], implementation)

        server.add_generic_rpc_handlers(
            (
                of(pdpb_pb2, "PD", PdService(pd)),
                of(keyspacepb_pb2, "Keyspace", KeyspaceService(pd)),
                of(tikvpb_pb2, "Tikv", TikvService(self.store)),
                of(cdcpb_pb2, "ChangeData", ChangeDataService(self._endpoint)),
                of(tidegate_pb2, "Upstream", UpstreamService(pd)),
                of(etcdserverpb_pb2, "KV", EtcdService(pd)),
                of(etcdserverpb_pb2, "Cluster", EtcdService(pd)),
                health(),
            )
        )
        self._raftstore.start()
        self._endpoint.start()
        self._collector.start()
        server.start()
        self._server = server
        return Addresses(self.pd_addr, self.pd_addr, self.cluster_id)

    def stop(self) -> None:
        """Refuse new requests, apply what was accepted, close the store."""
        if self._stopped:
            return
        self._stopped = True
        ended = self._server.stop(STOP_GRACE_S) if self._server is not None else None
        self._waiting.stop()
        self._endpoint.stop()
        self._collector.stop()
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
