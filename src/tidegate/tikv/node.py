"""One store of the upstream: its own state, and its start and stop.

All stores share the engine, the apply thread and PD. Each store has its own max_ts and in-memory locks, its
own requests that wait for locks, latches, and CDC endpoint. This state lives from a start to the next stop,
like that of a process: after a stop only the applied commands remain.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from tidegate.clock import Clock
from tidegate.tikv.cdc.endpoint import Endpoint, EndpointSettings
from tidegate.tikv.cdc.limiter import SCAN_BYTES_S
from tidegate.tikv.cdc.ticker import TICK_S, Watchdog
from tidegate.tikv.faults import Faults
from tidegate.tikv.pd.tso import Tso, TsoMode
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.raft.raftstore import Raftstore
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_change import CommandKind, NewId, RegionChange
from tidegate.tikv.raft.region_table import RegionTable
from tidegate.tikv.raw.rawkv import RawKv
from tidegate.tikv.rpc.store import Parts, Store
from tidegate.tikv.txn.deadlock import DeadlockDetector
from tidegate.tikv.txn.lock_waiting import LockWaiting
from tidegate.tikv.txn.max_ts import MaxTsSync
from tidegate.tikv.txn.scheduler import Scheduler
from tidegate.tikv.txn.status_cache import TxnStatusCache
from tidegate.tikv.txn.write_calls import Observation


@dataclass(slots=True)
class Shared:
    """The parts that all stores of a cluster share."""

    cluster_id: int
    regions: RegionTable
    raftstore: Raftstore
    tso: Tso
    pool: Executor
    clock: Clock
    new_id: NewId
    api_version: int = 1
    tick_s: float = TICK_S
    watchdog: Watchdog = field(default_factory=Watchdog)
    scan_bytes_s: float = SCAN_BYTES_S
    faults: Faults = field(default_factory=Faults)
    detector: DeadlockDetector = field(default_factory=DeadlockDetector)
    txn_status: TxnStatusCache = field(default_factory=TxnStatusCache)
    nodes: dict[int, StoreNode] = field(default_factory=dict)
    """The running stores."""


class StoreNode:
    """A running store, without its network. `stop` may be called once."""

    def __init__(self, store_id: int, shared: Shared) -> None:
        self.id = store_id
        self._shared = shared
        tso = shared.tso
        moves = tso.mode is TsoMode.SYSTEM
        self.concurrency = ConcurrencyManager()
        # Reads before a restart may have seen any ts up to now. An async commit below such a ts would change
        # what they have read (tikv `concurrency_manager`).
        self.concurrency.update_max_ts(tso.present())
        self.max_ts = MaxTsSync(self.concurrency, tso.get)
        self.waiting = LockWaiting(shared.detector)
        settings = EndpointSettings(
            cluster_id=shared.cluster_id,
            store_id=store_id,
            api_version=shared.api_version,
            tick_s=shared.tick_s,
            watchdog=shared.watchdog,
            scan_bytes_s=shared.scan_bytes_s,
        )
        self.endpoint = Endpoint(
            settings,
            shared.regions,
            shared.raftstore,
            tso.get,
            self.concurrency,
            shared.faults,
            shared.txn_status,
        )
        scheduler = Scheduler(shared.raftstore, shared.pool, self.concurrency, self.waiting)
        raw_ts: Callable[[], int] | None = tso.get if moves and shared.api_version == 2 else None
        raw = RawKv(shared.api_version, shared.raftstore, scheduler, self.concurrency, raw_ts, shared.clock)
        self.store = Store(
            Parts(
                shared.regions,
                shared.raftstore,
                scheduler,
                self.concurrency,
                self.waiting,
                Observation(self.endpoint.announced, self.endpoint.observer.is_observing),
                raw,
                self.max_ts,
                shared.new_id,
                tso.get if moves else None,
                store_id,
                shared.faults,
                shared.txn_status,
            )
        )

    def start(self) -> None:
        """Begin to lead regions and to serve change streams."""
        for region in self._shared.regions.all:
            if region.leader == self.id:
                self.max_ts.require(region.id)
        self._shared.raftstore.members[self.id] = self
        self._shared.nodes[self.id] = self
        # Last: a change stream may begin as soon as it runs, and the store must be known by then.
        self.endpoint.start()

    def stop(self) -> None:
        """Answer all waiting requests, and end all change streams."""
        # First, so that nothing new arrives while waiting requests are answered.
        self._shared.raftstore.members.pop(self.id, None)
        self._shared.nodes.pop(self.id, None)
        self.waiting.stop()
        self.endpoint.stop()

    def will_change(self, change: RegionChange) -> None:
        """Called before a region change takes effect. If this store becomes the leader, its max_ts must rise
        to that of the other stores, and the region needs a timestamp from PD before it serves writes.
        """
        if change.kind not in (CommandKind.TRANSFER, CommandKind.COMMIT_MERGE):
            return
        (now,) = change.now
        if now.leader == self.id:
            for node in list(self._shared.nodes.values()):
                self.concurrency.update_max_ts(node.concurrency.max_ts)
            self.max_ts.require(now.id)

    def has_changed(self, change: RegionChange) -> None:
        """Called after a region change. Requests that wait for a lock in a changed region are woken; when
        they are executed again, they are refused with a region error.
        """
        # A change of peers moves no key and no leader, so lock waits stay valid.
        if change.kind is not CommandKind.CHANGE_PEERS:
            for region in change.before:
                self._wake(region)

    def _wake(self, region: Region) -> None:
        self.waiting.leave(region.start, region.end)
