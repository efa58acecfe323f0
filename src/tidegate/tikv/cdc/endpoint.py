"""Registers and deregisters downstreams, and turns applied commands into events.

One thread owns all state of CDC (`registrations`) and works through one queue, first in first out.
Correctness depends on that order: a command is queued before its client gets an answer, a downstream is
initialized after the commands that its snapshot contains (`scans`), and a resolved ts is queued after every
command that was applied before its timestamp was taken (`ticker`). (TiKV: `components/cdc/src/endpoint.rs`.)

Bounds: the queue has at most `BACKLOG_CHANGES_MAX` applied changes (then the apply thread waits; the endpoint
itself never waits for a client) and `REQUESTS_MAX` requests of a connection (then its stream waits). Each
channel has a quota, and all of them a budget. Registrations and scans have bounds of their own.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.errors import Retryable, Undecodable
from tidegate.proto import cdcpb_pb2 as pb
from tidegate.proto import errorpb_pb2
from tidegate.tikv import keys
from tidegate.tikv.budget import Budget
from tidegate.tikv.cdc import wire
from tidegate.tikv.cdc.channel import QUOTA_BYTES, UNREAD_BYTES_MAX, Channel
from tidegate.tikv.cdc.delegate import Announced, Downstream
from tidegate.tikv.cdc.limiter import Limiter
from tidegate.tikv.cdc.observer import CdcObserver
from tidegate.tikv.cdc.old_value import Counts, OldValues
from tidegate.tikv.cdc.registrations import Registrations
from tidegate.tikv.cdc.resolver import Resolver
from tidegate.tikv.cdc.scans import Scans
from tidegate.tikv.cdc.service import Connection
from tidegate.tikv.cdc.ticker import Ticker, Watchdog
from tidegate.tikv.faults import Faults
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.raft.raftstore import Command, Raftstore
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_table import RegionTable
from tidegate.tikv.txn.status_cache import TxnStatusCache

BACKLOG_CHANGES_MAX: Final = 1 << 19
RAW_KV_VERSION: Final = "6.2.0"

_log = logging.getLogger(__name__)
Task = Callable[[], None]


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The settings of one store's endpoint."""

    cluster_id: int
    store_id: int
    api_version: int
    tick_s: float
    """Seconds between two advances of the resolved ts."""
    watchdog: Watchdog
    scan_bytes_s: float
    """Bytes per second that the incremental scans of the store may send."""


class Endpoint:
    """The CDC module of one store. Public methods are thread-safe and only queue work."""

    def __init__(
        self,
        settings: EndpointSettings,
        regions: RegionTable,
        raftstore: Raftstore,
        next_ts: Callable[[], int],
        concurrency: ConcurrencyManager,
        faults: Faults,
        txn_status: TxnStatusCache,
    ) -> None:
        self._unread = Budget(UNREAD_BYTES_MAX)
        self._store_id, self._cluster_id = settings.store_id, settings.cluster_id
        self._api_version = settings.api_version
        self._faults = faults
        self.old_values = Counts()
        self._txn_status = txn_status
        self._raftstore = raftstore
        self._next_ts = next_ts
        self._concurrency = concurrency
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._backlog = 0
        self._drained = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cdc", daemon=True)
        self.observer = CdcObserver(self._on_applied)
        raw = settings.api_version == 2
        self._registrations = Registrations(regions, self.observer, settings.store_id, raw=raw)
        put, stopping = self._tasks.put, self._stopping
        limiter = Limiter(settings.scan_bytes_s)
        self._scans = Scans(raftstore, self._registrations, put, stopping, limiter, self._faults)
        self._ticker = Ticker(
            *(raftstore, self._registrations, put, stopping, next_ts, self._concurrency, self._faults),
            tick_s=settings.tick_s,
            watchdog=settings.watchdog,
        )
        raftstore.observers[settings.store_id] = self.observer

    def start(self) -> None:
        """Begin to work through the queue and to tick."""
        self._thread.start()
        self._ticker.start()

    def stop(self) -> None:
        """Close every connection and end the threads."""
        self._stopping.set()
        if self._raftstore.observers.get(self._store_id) is self.observer:
            del self._raftstore.observers[self._store_id]
        self._tasks.put(self._registrations.close_all)
        self._tasks.put(None)
        # The apply thread may wait here for room in the backlog, and must see that nobody makes room any
        # more.
        with self._drained:
            self._drained.notify_all()
        if self._thread.is_alive():
            self._thread.join()
            self._ticker.join()
        self._scans.shut_down()

    def announced(self, region_id: int) -> Announced:
        """The events sent to the region's present downstreams, by key."""
        return self._registrations.announced(region_id)

    # --- what the stream's threads call ---

    def new_channel(self) -> Channel:
        """A channel for a new stream."""
        return Channel(self._faults.quota_bytes or QUOTA_BYTES, budget=self._unread)

    def open(self, connection: Connection) -> None:
        """Add a stream; at a store that is stopping, the stream ends at once."""
        self._tasks.put(lambda: self._registrations.connections.update({connection.id: connection}))
        if self._stopping.is_set():  # a task queued after the end is never run
            connection.channel.close()

    def close(self, connection: Connection) -> None:
        """Remove a stream that has ended; its registrations end without an error."""
        connection.channel.close()
        self._tasks.put(lambda: self._registrations.close(connection))

    def request(self, connection: Connection, request: pb.ChangeDataRequest) -> None:
        """Register or deregister. Waits while too many requests of the connection are under way."""
        for _ in range(2 if self._faults.duplicates() else 1):
            if connection.channel.begin_request():
                self._tasks.put(lambda: self._request(connection, request))

    # --- faults on demand ---

    def cut(self) -> None:
        """End all streams."""
        self._tasks.put(self._registrations.close_all)

    def congest(self, region_id: int) -> None:
        """End all registrations of a region with Congested; 0: of all regions."""
        self._tasks.put(lambda: self._registrations.congest_region(region_id))

    # --- what the apply thread calls ---

    def _on_applied(self, commands: Sequence[Command]) -> None:
        size = sum(len(command.changes) for command in commands)
        with self._drained:
            while self._backlog > BACKLOG_CHANGES_MAX and not self._stopping.is_set():
                self._drained.wait()
            self._backlog += size
        self._tasks.put(lambda: self._on_batch(commands, size))

    # --- the endpoint's thread ---

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                # All state belongs to connections: closing them clears it, and the clients connect again.
                _log.exception("cdc task failed, closing all streams")
                self._registrations.close_all()

    def _on_batch(self, commands: Sequence[Command], size: int) -> None:
        try:
            for command in commands:
                self._on_command(command)
        finally:
            with self._drained:
                self._backlog -= size
                self._drained.notify_all()

    def _on_command(self, command: Command) -> None:
        if command.change is not None:
            self._registrations.change(command.change)
            return
        delegate = self._registrations.delegates.get(command.region_id)
        if delegate is None:
            return
        old_values = OldValues(self._raftstore.engine, command.old_values, self.old_values)
        for downstream in delegate.on_command(command, old_values):
            self._registrations.congest(downstream)

    def _request(self, connection: Connection, request: pb.ChangeDataRequest) -> None:
        try:
            if request.WhichOneof("request") == "deregister":
                self._registrations.deregister(connection, request.request_id, request.region_id)
            elif request.WhichOneof("request") != "notify_txn_status":
                self._register(connection, request)
        finally:
            connection.channel.end_request()

    def _register(self, connection: Connection, request: pb.ChangeDataRequest) -> None:
        # The stream has ended while the request was in the queue. Nobody would remove the downstream.
        if connection.id not in self._registrations.connections:
            return
        connection.set_client_version(request.header.ticdc_version)
        self._raftstore.active_at = time.monotonic()
        region = self._admit(connection, request)
        if isinstance(region, pb.Error):
            event = pb.Event(region_id=request.region_id, request_id=request.request_id, error=region)
            connection.channel.put_error(wire.framed(event))
            return
        # A checkpoint beyond PD's time is not believed: max_ts would rise to it, and with it every later
        # commit ts.
        if self._is_past(request.checkpoint_ts):
            # A transaction that chooses its commit ts from now on gets one above the client's checkpoint.
            self._concurrency.update_max_ts(request.checkpoint_ts)
        start, end = _observed(request)
        downstream = Downstream(
            connection.channel,
            request.request_id,
            region,
            start,
            end,
            request.checkpoint_ts,
            request.filter_loop,
            request.kv_api == pb.ChangeDataRequest.RawKV,
            Resolver(self._txn_status.min_commit_ts),
        )
        self._registrations.add(connection, downstream)
        self._scans.begin(downstream)

    def _is_past(self, ts: int) -> bool:
        try:
            return ts <= self._next_ts()
        except Retryable:
            return False

    def _admit(self, connection: Connection, request: pb.ChangeDataRequest) -> Region | pb.Error:
        """The region of a registration, or the error that refuses it."""
        if connection.checks_cluster_id and request.header.cluster_id != self._cluster_id:
            other = pb.ClusterIDMismatch(current=self._cluster_id, request=request.header.cluster_id)
            return pb.Error(cluster_id_mismatch=other)
        raw_is_captured = request.kv_api == pb.ChangeDataRequest.RawKV and self._api_version == 2
        if request.kv_api != pb.ChangeDataRequest.TiDB and not raw_is_captured:
            return pb.Error(compatibility=pb.Compatibility(required_version=RAW_KV_VERSION))
        if self._scans.are_full:
            return pb.Error(
                server_is_busy=errorpb_pb2.ServerIsBusy(reason="too many pending incremental scans")
            )
        if self._registrations.are_full:
            return pb.Error(server_is_busy=errorpb_pb2.ServerIsBusy(reason="too many registrations"))
        if (request.request_id, request.region_id) in connection.downstreams:
            return pb.Error(duplicate_request=pb.DuplicateRequest(region_id=request.region_id))
        injected = self._faults.capture_error(request.region_id)
        return injected or self._registrations.leads(request.region_id, request.region_epoch.version)


def _observed(request: pb.ChangeDataRequest) -> tuple[bytes, bytes]:
    """The encoded range to observe; the whole region if a bound is not an encoded key."""
    try:
        for bound in (request.start_key, request.end_key):
            if bound:
                keys.decode(bound)
    except Undecodable:
        return b"", b""
    return request.start_key, request.end_key
