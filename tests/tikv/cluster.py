"""A store with its CDC endpoint, without gRPC; and a client of the promises, slow and plain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tikv.support import commit, prewrite, taken
from tidegate.clock import SystemClock
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.tikv import keys
from tidegate.tikv.cdc.channel import Channel
from tidegate.tikv.cdc.endpoint import Endpoint
from tidegate.tikv.cdc.service import Connection
from tidegate.tikv.concurrency import ConcurrencyManager
from tidegate.tikv.deadlock import DeadlockDetector
from tidegate.tikv.engine import Engine
from tidegate.tikv.lock_waiting import LockWaiting
from tidegate.tikv.raftstore import Raftstore
from tidegate.tikv.rawkv import RawKv
from tidegate.tikv.region import Region, RegionTable, split
from tidegate.tikv.scheduler import Scheduler
from tidegate.tikv.store import Parts, Store
from tidegate.tikv.tso import Tso, TsoMode

CLUSTER = 99
WAIT_S = 20.0


class Pending:
    """An answer that will come, once."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._answered: list[Any] = []

    def answer(self, response: Any, error: Exception | None) -> None:
        assert not self._answered, "answered twice"
        self._answered.extend((response, error))
        self._done.set()

    @property
    def is_there(self) -> bool:
        return self._done.is_set()

    def response(self) -> Any:
        assert self._done.wait(WAIT_S)
        response, error = self._answered
        assert error is None, error
        fields = response.DESCRIPTOR.fields_by_name
        assert "region_error" not in fields or not response.HasField("region_error"), response
        return response


class Cluster:
    """A store with its CDC endpoint, without gRPC."""

    def __init__(self, directory: Path, boundaries: list[bytes], mode: TsoMode, api_version: int = 1) -> None:
        self.engine = Engine(directory)
        self.raftstore = Raftstore(self.engine)
        self.regions = RegionTable(split([keys.encode(bound) for bound in boundaries]))
        self.clock = SystemClock()
        self.tso = Tso(self.engine, self.clock, mode)
        self.pool = ThreadPoolExecutor(2)
        self.concurrency = ConcurrencyManager()
        self.endpoint = Endpoint(
            CLUSTER,
            self.regions,
            self.raftstore,
            self.tso.get,
            tick_s=0.002,
            concurrency=self.concurrency,
            api_version=api_version,
        )
        self.waiting = waiting = LockWaiting(DeadlockDetector())
        scheduler = Scheduler(self.raftstore, self.pool, self.concurrency, waiting)
        next_ts = self.tso.get if mode is TsoMode.SYSTEM else None
        raw = RawKv(api_version, self.raftstore, scheduler, self.concurrency, next_ts, self.clock)
        parts = Parts(
            self.regions,
            self.raftstore,
            scheduler,
            self.concurrency,
            waiting,
            self.endpoint.announced,
            raw,
            next_ts,
        )
        self.store = Store(parts)
        self.raftstore.start()
        self.endpoint.start()

    def close(self) -> None:
        self.waiting.stop()
        self.endpoint.stop()
        self.raftstore.stop()
        self.pool.shutdown()
        self.engine.close()

    def call(self, request: Any, raw: bytes) -> Any:
        """One request to the region of `raw`, answered."""
        return self.begin(request, raw).response()

    def begin(self, request: Any, raw: bytes) -> Pending:
        """One request to the region of `raw`, under way."""
        region = self.regions.of_key(keys.encode(raw))
        request.context.region_id = region.id
        request.context.region_epoch.version = region.version
        pending = Pending()
        self.store.submit(request, pending.answer)
        return pending

    def txn(self, *mutations: Any, raw: bytes = b"", **more: Any) -> int:
        """A two-phase transaction of one region, committed; its commit_ts."""
        start_ts = self.tso.get()
        raw = raw or mutations[0].key
        assert not self.call(prewrite(start_ts, *mutations, **more), raw).errors
        commit_ts = self.tso.get()
        request = commit(start_ts, commit_ts, *(each.key for each in mutations))
        assert not self.call(request, raw).HasField("error")
        return commit_ts

    def each_region(self, raw: list[bytes]) -> list[list[bytes]]:
        """The keys, region by region."""
        groups: dict[int, list[bytes]] = {}
        for key in raw:
            groups.setdefault(self.regions.of_key(keys.encode(key)).id, []).append(key)
        return list(groups.values())


@dataclass
class Feed:
    """What one subscription received, checked as it comes: a client of the promises, slow and plain."""

    checkpoint_ts: int
    live_committed: bool = False
    """COMMITTED rows may come live: one-phase commits and raw writes."""
    rows: list[cdc.Event.Row] = field(default_factory=list)
    commits: dict[tuple[bytes, int], tuple[bytes, bytes, int]] = field(default_factory=dict)
    resolved_ts: int = 0
    initialized: bool = False
    error: cdc.Error | None = None
    open: dict[tuple[bytes, int], cdc.Event.Row] = field(default_factory=dict)
    early: list[cdc.Event.Row] = field(default_factory=list)

    def take_rows(self, rows: list[cdc.Event.Row]) -> None:
        assert self.error is None, "G4: nothing after an error"
        for row in rows:
            self.rows.append(row)
            if row.type == cdc.Event.INITIALIZED:
                assert not self.initialized, "G2: once"
                self.initialized = True
                for each in self.early:
                    self.match(each)
            elif row.type == cdc.Event.COMMITTED and self.live_committed:
                if row.commit_ts > self.checkpoint_ts:  # N6
                    self.commit(row, row.value, row.old_value)
            elif row.type == cdc.Event.COMMITTED:
                assert row.commit_ts > self.checkpoint_ts, "G5: the checkpoint is exclusive"
                self.commit(row, row.value, row.old_value)
                assert not self.initialized, "G2: no scan rows after INITIALIZED"
            elif row.type == cdc.Event.PREWRITE:
                self.open[row.key, row.start_ts] = row
            elif self.initialized:
                self.match(row)
            else:
                self.early.append(row)

    def match(self, row: cdc.Event.Row) -> None:
        before = self.open.pop((row.key, row.start_ts), None)
        if row.type == cdc.Event.COMMIT:
            assert before is not None, "G3: a prewrite comes before its commit"
            if row.commit_ts > self.checkpoint_ts:
                self.commit(row, before.value, before.old_value)

    def commit(self, row: cdc.Event.Row, value: bytes, old_value: bytes) -> None:
        assert row.commit_ts > self.resolved_ts, "G1: strictly above the resolved ts"
        assert (row.key, row.commit_ts) not in self.commits, "a commit comes once"
        self.commits[row.key, row.commit_ts] = (value, old_value, row.op_type)

    def take_resolved(self, ts: int) -> None:
        assert self.error is None, "G4: nothing after an error"
        assert self.initialized, "G2: no resolved ts before INITIALIZED"
        assert ts >= self.resolved_ts, "it never goes back"
        self.resolved_ts = ts


class Client:
    """One multiplexed connection and its feeds, read on a thread of its own."""

    def __init__(self, cluster: Cluster, channel: Channel | None = None, multiplexing: bool = True) -> None:
        self.cluster = cluster
        self.connection = Connection(multiplexing, channel)
        self.feeds: dict[tuple[int, int], Feed] = {}
        self.failure: BaseException | None = None
        self.messages: list[cdc.ChangeDataEvent] = []
        self._changed = threading.Condition()
        cluster.endpoint.open(self.connection)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def register(self, request_id: int, region: Region, checkpoint_ts: int = 0, **more: Any) -> Feed:
        feed = self.feeds[request_id, region.id] = Feed(checkpoint_ts, more.pop("live_committed", False))
        request = self.request(request_id, region, checkpoint_ts=checkpoint_ts, **more)
        self.cluster.endpoint.request(self.connection, request)
        return feed

    def request(self, request_id: int, region: Region, **more: Any) -> cdc.ChangeDataRequest:
        header = cdc.Header(cluster_id=more.pop("cluster_id", CLUSTER), ticdc_version="8.5.0")
        more.setdefault("region_epoch", region.message.region_epoch)
        return cdc.ChangeDataRequest(
            header=header,
            region_id=more.pop("region_id", region.id),
            request_id=request_id,
            register=cdc.ChangeDataRequest.Register(),
            **more,
        )

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.failure is not None or condition(), WAIT_S)
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self.cluster.endpoint.close(self.connection)
        self._thread.join(WAIT_S)
        if self.failure is not None:
            raise self.failure

    def _read(self) -> None:
        while (messages := taken(self.connection.channel)) is not None:
            with self._changed:
                try:
                    for message in messages:
                        self.messages.append(message)
                        self._take(message)
                except AssertionError as failure:
                    self.failure = failure
                self._changed.notify_all()

    def _take(self, message: cdc.ChangeDataEvent) -> None:
        for event in message.events:
            feed = self.feeds[event.request_id, event.region_id]
            if event.HasField("error"):
                assert feed.error is None
                feed.error = event.error
            else:
                feed.take_rows(list(event.entries.entries))
        for region_id in message.resolved_ts.regions:
            self.feeds[message.resolved_ts.request_id, region_id].take_resolved(message.resolved_ts.ts)
