"""Registers and deregisters downstreams, turns applied commands into events, advances resolved ts.

One thread owns all state of CDC and works through one queue, first in first out. Correctness depends on that
order: a command is queued before its client gets an answer, a downstream is initialized after the commands
that its snapshot contains, and a resolved ts is queued after every command that was applied before its
timestamp was taken. Scans run on threads of their own. (TiKV: `components/cdc/src/endpoint.rs`.)

Bounds: the queue has at most `BACKLOG_CHANGES_MAX` applied changes (then the apply thread waits; the endpoint
itself never waits for a client) and `REQUESTS_MAX` requests of a connection (then its stream waits). Each
channel has a quota, and all of them a budget. There are at most `REGISTRATIONS_MAX` registrations; at most
`SCANS_MAX` scans wait or run, and these send a limited number of bytes a second (`limiter`).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tidegate.errors import Retryable, Undecodable
from tidegate.proto import cdcpb_pb2 as pb
from tidegate.proto import errorpb_pb2
from tidegate.tikv import keys
from tidegate.tikv.budget import Budget
from tidegate.tikv.cdc import initializer, wire
from tidegate.tikv.cdc.capture_errors import as_capture_error, ended_by
from tidegate.tikv.cdc.channel import QUOTA_BYTES, UNREAD_BYTES_MAX, Channel
from tidegate.tikv.cdc.delegate import Announced, Delegate, Downstream, State
from tidegate.tikv.cdc.limiter import SCAN_BYTES_S, Limiter
from tidegate.tikv.cdc.observer import CdcObserver
from tidegate.tikv.cdc.old_value import Counts, OldValues
from tidegate.tikv.cdc.resolver import Resolver
from tidegate.tikv.cdc.service import Connection
from tidegate.tikv.engine import EngineSnapshot
from tidegate.tikv.faults import Faults
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.raft.raftstore import Command, Raftstore
from tidegate.tikv.raft.region import STORE_ID, Region
from tidegate.tikv.raft.region_change import Kind, RegionChange
from tidegate.tikv.raft.region_table import RegionTable
from tidegate.tikv.txn.status_cache import TxnStatusCache

TICK_S: Final = 0.05
QUIET_S: Final = 2.0
QUIET_TICKS: Final = 4
"""If nothing was written for QUIET_S, only one tick in QUIET_TICKS is made: a tick then tells clients nothing
but the time, and costs each of them work. TiKV itself ticks once a second (6.5.0: five times)."""
TICK_SHARE: Final = 0.05
"""The share of a core that ticks of all stores may take: with many downstreams or stores they slow down."""
REPEAT_S: Final = 1.0
"""Seconds after which an unchanged resolved ts is sent again, so that clients know the stream is alive."""
BACKLOG_CHANGES_MAX: Final = 1 << 19
SCAN_THREADS: Final = 4
SCANS_MAX: Final = 10000
REGISTRATIONS_MAX: Final = 1 << 18
"""Registrations of all streams of a store: each takes some KB, even if nothing happens in its region."""
CAPTURE_POLL_S: Final = 0.2
"""How often a scan that waits for its snapshot checks whether it is still wanted."""
RAW_KV_VERSION: Final = "6.2.0"


@dataclass(frozen=True, slots=True)
class Watchdog:
    """Every `interval_s`, streams are ended that are full and have sent nothing for `idle_s`."""

    interval_s: float = 60.0
    idle_s: float = 300.0


_log = logging.getLogger(__name__)
Task = Callable[[], None]
_SILENCE: Final = Announced([b""], [[]])


class Endpoint:
    """The CDC module of one store. Public methods are thread-safe and only queue work."""

    def __init__(
        self,
        cluster_id: int,
        regions: RegionTable,
        raftstore: Raftstore,
        next_ts: Callable[[], int],
        tick_s: float = TICK_S,
        concurrency: ConcurrencyManager | None = None,
        api_version: int = 1,
        store_id: int = STORE_ID,
        faults: Faults | None = None,
        txn_status: TxnStatusCache | None = None,
        watchdog: Watchdog = Watchdog(),
        scan_bytes_s: float = SCAN_BYTES_S,
    ) -> None:
        self._watchdog = watchdog
        self._limiter = Limiter(scan_bytes_s)
        self._unread = Budget(UNREAD_BYTES_MAX)
        self._store_id = store_id
        self._faults = faults or Faults()
        self.old_values = Counts()
        self._txn_status = txn_status or TxnStatusCache()
        self._cluster_id = cluster_id
        self._regions = regions
        self._raftstore = raftstore
        self._next_ts = next_ts
        self._tick_s = tick_s
        self._concurrency = concurrency or ConcurrencyManager()
        self._api_version = api_version
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._delegates: dict[int, Delegate] = {}
        self._connections: dict[int, Connection] = {}
        self._tick_cpu_s = 0.0
        self._backlog = 0
        self._drained = threading.Condition()
        self._scanning = 0
        self._stopping = threading.Event()
        self._scans = ThreadPoolExecutor(SCAN_THREADS, thread_name_prefix="cdc-scan")
        self._thread = threading.Thread(target=self._run, name="cdc", daemon=True)
        self._ticker = threading.Thread(target=self._tick, name="cdc-tick", daemon=True)
        self.observer = CdcObserver(self._on_applied)
        raftstore.observers[store_id] = self.observer

    def start(self) -> None:
        """Begin to work through the queue and to tick."""
        self._thread.start()
        self._ticker.start()

    def stop(self) -> None:
        """Close every connection and end the threads."""
        self._stopping.set()
        if self._raftstore.observers.get(self._store_id) is self.observer:
            del self._raftstore.observers[self._store_id]
        self._tasks.put(self._close_all)
        self._tasks.put(None)
        with self._drained:
            self._drained.notify_all()
        if self._thread.is_alive():
            self._thread.join()
            self._ticker.join()
        self._scans.shutdown(cancel_futures=True)

    def announced(self, region_id: int) -> Announced:
        """What was sent to the region's present downstreams, by key."""
        delegate = self._delegates.get(region_id)
        return _SILENCE if delegate is None else delegate.announced

    # --- what the stream's threads call ---

    def new_channel(self) -> Channel:
        """A channel for a new stream."""
        return Channel(self._faults.quota_bytes or QUOTA_BYTES, budget=self._unread)

    def open(self, connection: Connection) -> None:
        """Add a stream; at a store that is stopping, the stream ends at once."""
        self._tasks.put(lambda: self._connections.update({connection.id: connection}))
        if self._stopping.is_set():  # a task queued after the end is never run
            connection.channel.close()

    def close(self, connection: Connection) -> None:
        """Remove a stream that has ended; its registrations end without an error."""
        connection.channel.close()
        self._tasks.put(lambda: self._close(connection))

    def request(self, connection: Connection, request: pb.ChangeDataRequest) -> None:
        """Register or deregister. Waits while too many requests of the connection are under way."""
        for _ in range(2 if self._faults.duplicates() else 1):
            if connection.channel.begin_request():
                self._tasks.put(lambda: self._request(connection, request))

    # --- faults on demand ---

    def cut(self) -> None:
        """End all streams."""
        self._tasks.put(self._close_all)

    def congest(self, region_id: int) -> None:
        """End all registrations of a region with Congested; 0: of all regions."""

        def end() -> None:
            for number, delegate in list(self._delegates.items()):
                if region_id in (0, number):
                    for downstream in list(delegate.downstreams):
                        self._congested(downstream)

        self._tasks.put(end)

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
                self._close_all()

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
            self._on_change(command.change)
            return
        delegate = self._delegates.get(command.region_id)
        if delegate is None:
            return
        old_values = OldValues(self._raftstore.engine, command.old_values, self.old_values)
        for downstream in delegate.on_command(command, old_values):
            self._congested(downstream)

    def _congested(self, downstream: Downstream) -> None:
        self._drop(downstream, pb.Error(congested=pb.Congested(region_id=downstream.region.id)))

    def _on_change(self, change: RegionChange) -> None:
        """A region has changed: end the downstreams of what it was, with an error."""
        for region in change.before:
            delegate = self._delegates.get(region.id)
            if delegate is not None and change.kind in (Kind.PREPARE_FLASHBACK, Kind.FINISH_FLASHBACK):
                delegate.flashback = change.now[0].flashback
            error = ended_by(change, region, self._store_id)
            if delegate is not None and error is not None:
                for downstream in list(delegate.downstreams):
                    self._drop(downstream, error)

    def _request(self, connection: Connection, request: pb.ChangeDataRequest) -> None:
        try:
            if request.WhichOneof("request") == "deregister":
                self._deregister(connection, request.request_id, request.region_id)
            elif request.WhichOneof("request") != "notify_txn_status":
                self._register(connection, request)
        finally:
            connection.channel.end_request()

    def _register(self, connection: Connection, request: pb.ChangeDataRequest) -> None:
        if connection.id not in self._connections:
            return
        connection.greet(request.header.ticdc_version)
        self._raftstore.stirred_at = time.monotonic()
        region = self._admit(connection, request)
        if isinstance(region, pb.Error):
            event = pb.Event(region_id=request.region_id, request_id=request.request_id, error=region)
            connection.channel.put_error(wire.framed(event))
            return
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
        downstream.home = connection.downstreams
        downstream.home[request.request_id, region.id] = downstream
        delegate = self._delegates.setdefault(region.id, Delegate(region, self._api_version == 2))
        delegate.add(downstream)
        self.observer.observe(region.id)
        self._scanning += 1
        self._scans.submit(self._initialize, connection, downstream)

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
        if self._scanning >= SCANS_MAX:
            return pb.Error(
                server_is_busy=errorpb_pb2.ServerIsBusy(reason="too many pending incremental scans")
            )
        if sum(len(one.downstreams) for one in self._connections.values()) >= REGISTRATIONS_MAX:
            return pb.Error(server_is_busy=errorpb_pb2.ServerIsBusy(reason="too many registrations"))
        if (request.request_id, request.region_id) in connection.downstreams:
            return pb.Error(duplicate_request=pb.DuplicateRequest(region_id=request.region_id))
        injected = self._faults.capture_error(request.region_id)
        return injected or self._leads(request.region_id, request.region_epoch.version)

    def _leads(self, region_id: int, version: int) -> Region | pb.Error:
        region = self._regions.check_capture(region_id, version, self._store_id)
        return region if isinstance(region, Region) else as_capture_error(region)

    def _deregister(self, connection: Connection, request_id: int, region_id: int) -> None:
        for (asked, region), downstream in list(connection.downstreams.items()):
            if asked == request_id and region_id in (0, region):
                missing = errorpb_pb2.RegionNotFound(region_id=region)
                self._drop(downstream, pb.Error(region_not_found=missing))

    def _drop(self, downstream: Downstream, error: pb.Error | None) -> None:
        """Forget a downstream; `error` is its last event."""
        downstream.channel.fail(downstream, None if error is None else downstream.error(error))
        region_id = downstream.region.id
        if downstream.home.get((downstream.request_id, region_id)) is downstream:
            del downstream.home[downstream.request_id, region_id]
        delegate = self._delegates.get(region_id)
        if delegate is not None and downstream in delegate.downstreams:
            delegate.remove(downstream)
            if not delegate.downstreams:
                del self._delegates[region_id]
                self.observer.ignore(region_id)

    def _close(self, connection: Connection) -> None:
        for downstream in list(connection.downstreams.values()):
            self._drop(downstream, None)
        self._connections.pop(connection.id, None)

    def _close_all(self) -> None:
        for connection in list(self._connections.values()):
            connection.channel.close()
            self._close(connection)

    def _watch(self) -> None:
        """End full streams whose clients read nothing."""
        for connection in list(self._connections.values()):
            if connection.channel.is_stuck(self._watchdog.idle_s):
                _log.warning("cdc stream is stuck, ending it", extra={"connection": connection.id})
                self._close(connection)
                connection.channel.cancel("connection cancelled")

    # --- scans, on their own threads ---

    def _initialize(self, connection: Connection, downstream: Downstream) -> None:
        failed = False
        try:
            if downstream.stopped:
                return
            self._faults.before_snapshot()
            snapshot = self._capture(downstream)
            if snapshot is None:
                return
            locks, large = initializer.scan_locks(downstream, snapshot, self._faults, self._limiter)
            self._tasks.put(lambda: self._locks_scanned(downstream, locks, large))
            initializer.scan_versions(downstream, snapshot, self._faults, self._limiter)
            self._tasks.put(lambda: _in_step(downstream))
        except initializer.StoppedError:
            return
        except initializer.CongestedError:
            self._tasks.put(lambda: self._congested(downstream))
        except Exception:
            failed = True
            _log.exception("incremental scan failed", extra={"region_id": downstream.region.id})
        finally:
            self._tasks.put(lambda: self._scan_ended(downstream, failed))

    def _locks_scanned(self, downstream: Downstream, locks: dict[bytes, int], large: set[int]) -> None:
        downstream.resolver.finish_scan(locks, large)
        if downstream.resolver.is_congested:
            self._congested(downstream)

    def _capture(self, downstream: Downstream) -> EngineSnapshot | None:
        """A snapshot, such that the downstream gets exactly the commands that are applied after it.

        None if the region has changed since the registration was accepted: its downstreams then end with an
        error, as when a change is observed. Raises the error that prevented the snapshot.
        """
        ready: queue.SimpleQueue[EngineSnapshot | Exception | None] = queue.SimpleQueue()

        def initializing(snapshot: EngineSnapshot) -> None:
            downstream.state = State.INITIALIZING
            ready.put(snapshot)

        def late(error: pb.Error) -> None:
            delegate = self._delegates.get(downstream.region.id)
            for each in list(delegate.downstreams) if delegate is not None else ():
                if each.region.version == downstream.region.version:
                    self._drop(each, error)
            ready.put(None)

        def captured(found: EngineSnapshot | Exception) -> None:
            if isinstance(found, Exception):
                ready.put(found)
                return
            region = self._leads(downstream.region.id, downstream.region.version)
            if isinstance(region, Region):
                self._tasks.put(lambda: initializing(found))
            else:
                self._tasks.put(lambda: late(region))

        self._raftstore.capture(captured, initializer.scanned(downstream))
        while not (self._stopping.is_set() or downstream.stopped):
            with contextlib.suppress(queue.Empty):
                found = ready.get(timeout=CAPTURE_POLL_S)
                if isinstance(found, Exception):
                    raise found
                return found
        raise initializer.StoppedError

    def _scan_ended(self, downstream: Downstream, failed: bool) -> None:
        self._scanning -= 1
        if failed:
            missing = errorpb_pb2.RegionNotFound(region_id=downstream.region.id)
            self._drop(downstream, pb.Error(region_not_found=missing))

    # --- resolved ts ---

    def _tick(self) -> None:
        watched_at = time.monotonic()
        skipped = 0
        while True:
            stores = len(self._raftstore.observers)
            if self._stopping.wait(pause_s(self._tick_s, self._tick_cpu_s, stores)):
                return
            # A client needs the resolved ts of all stores, so a write at any of them ends the rest of all.
            quiet = time.monotonic() - self._raftstore.stirred_at > QUIET_S
            skipped = (skipped + 1) % QUIET_TICKS if quiet else 0
            if skipped:
                continue
            if time.monotonic() - watched_at >= self._watchdog.interval_s:
                watched_at = time.monotonic()
                self._tasks.put(self._watch)
            if not self._delegates or self._faults.resolved_frozen:
                continue
            done = threading.Event()
            try:
                min_ts = self._next_ts()
            except Retryable:
                continue
            # From here on a transaction gets a commit ts above min_ts; one that has chosen before holds a
            # lock.
            self._concurrency.update_max_ts(min_ts)
            min_ts = self._concurrency.min_lock_ts(min_ts)
            self._tasks.put(lambda: self._advance(min_ts, done))  # noqa: B023 - awaited before the next round
            while not done.wait(0.5):
                if self._stopping.is_set():
                    return

    def _advance(self, min_ts: int, done: threading.Event) -> None:
        """Advance every downstream whose scan is done, then send the new resolved ts."""
        began = time.thread_time()
        try:
            for delegate in self._delegates.values():
                delegate.resolve(min_ts)
            now = time.monotonic()
            for connection in self._connections.values():
                self._report(connection, now)
        finally:
            self._tick_cpu_s = time.thread_time() - began
            done.set()

    def _report(self, connection: Connection, now: float) -> None:
        """Send a message for each (request id, ts), with all regions that are exactly there; no ts falls."""
        groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for (request_id, region_id), downstream in connection.downstreams.items():
            ts = downstream.resolver.resolved_ts
            if ts > downstream.sent_ts or (ts and now - downstream.sent_at >= REPEAT_S):
                downstream.sent_ts, downstream.sent_at = ts, now
                groups[request_id if connection.multiplexing else 0, ts].append(region_id)
        for (mark_id, ts), region_ids in groups.items():
            if connection.batches_resolved_ts:
                mark = pb.ResolvedTs(regions=region_ids, ts=ts, request_id=mark_id)
                connection.channel.put_resolved(wire.resolved(mark))
            else:
                for region_id in region_ids:
                    event = pb.Event(region_id=region_id, request_id=mark_id, resolved_ts=ts)
                    connection.channel.put_resolved(wire.framed(event), alone=False)


def pause_s(tick_s: float, cpu_s: float, stores: int) -> float:
    """Seconds between two ticks of a store, if one takes `cpu_s`; all stores share one process here."""
    return max(tick_s, cpu_s * stores / TICK_SHARE)


def _in_step(downstream: Downstream) -> None:
    downstream.state = State.NORMAL


def _observed(request: pb.ChangeDataRequest) -> tuple[bytes, bytes]:
    """The encoded range to observe; the whole region if a bound is not an encoded key."""
    try:
        for bound in (request.start_key, request.end_key):
            if bound:
                keys.decode(bound)
    except Undecodable:
        return b"", b""
    return request.start_key, request.end_key
