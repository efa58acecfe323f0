"""A store with its CDC endpoint, without gRPC; and a client of the promises, slow and plain."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tikv.support import commit, prewrite, taken
from tidegate.clock import SystemClock
from tidegate.proto import cdcpb_pb2 as cdc
from tidegate.proto import metapb_pb2 as pb
from tidegate.tikv import keys
from tidegate.tikv.cdc.channel import Channel
from tidegate.tikv.cdc.service import Connection
from tidegate.tikv.engine import Engine
from tidegate.tikv.faults import Faults
from tidegate.tikv.node import Shared, StoreNode
from tidegate.tikv.pd.operators import Operators
from tidegate.tikv.pd.stores import Stores
from tidegate.tikv.pd.tso import Tso, TsoMode
from tidegate.tikv.raft import region_meta
from tidegate.tikv.raft.raftstore import Raftstore
from tidegate.tikv.raft.region import Region

CLUSTER = 99
WAIT_S = 120.0
"""Guards against what hangs, and costs nothing when all is well."""


def wait_until(condition: Callable[[], bool]) -> None:
    """Until it holds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


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

    def __init__(
        self,
        directory: Path,
        boundaries: list[bytes],
        mode: TsoMode,
        api_version: int = 1,
        stores: int = 1,
    ) -> None:
        self.engine = Engine(directory)
        self.clock = SystemClock()
        self.regions = region_meta.load(self.engine, [keys.encode(bound) for bound in boundaries], stores)
        self.faults = Faults()
        self.raftstore = Raftstore(self.engine, self.regions, self.faults)
        self.tso = Tso(self.engine, self.clock, mode)
        self.pool = ThreadPoolExecutor(2)
        self.stores = Stores(self.engine, self.clock, stores)
        self.ids = region_meta.Ids(self.engine, self.regions)
        self.operators = Operators(self.raftstore, self.stores, self.ids.new)
        self.shared = Shared(
            CLUSTER,
            self.regions,
            self.raftstore,
            self.tso,
            self.pool,
            self.clock,
            self.ids.new,
            api_version,
            tick_s=0.002,
            faults=self.faults,
        )
        self.raftstore.start()
        for each in self.stores.all():
            self.start_store(each.id)
        self.node = self.shared.nodes[1]
        self.store, self.endpoint = self.node.store, self.node.endpoint
        self.concurrency, self.waiting = self.node.concurrency, self.node.waiting

    def start_store(self, store_id: int) -> None:
        node = StoreNode(store_id, self.shared)
        self.stores.started(store_id, f"store-{store_id}")
        node.start()

    def stop_store(self, store_id: int) -> None:
        self.stores.stopped(store_id)
        self.shared.nodes[store_id].stop()
        self.operators.elect(store_id)

    def close(self) -> None:
        self.faults.clear()
        self.faults.stopping.set()
        for node in list(self.shared.nodes.values()):
            node.stop()
        self.raftstore.stop()
        self.pool.shutdown()
        self.engine.close()

    def hold_scans(self, beginning_with: int) -> threading.Event:
        """Incremental scans pause before that event of all, and continue when the returned event is set.

        However long the test takes meanwhile, the scans are still under way.
        """
        proceed, number = threading.Event(), itertools.count()

        def before_scan_event() -> None:
            if next(number) >= beginning_with:
                while not proceed.wait(0.01) and not self.faults.stopping.is_set():
                    pass

        self.faults.before_scan_event = before_scan_event  # type: ignore[method-assign]
        return proceed

    def hold_applies(self) -> threading.Event:
        """Nothing is applied until what is returned is set."""
        proceed = threading.Event()

        def before_apply() -> None:
            while not proceed.wait(0.01) and not self.faults.stopping.is_set():
                pass

        self.faults.before_apply = before_apply  # type: ignore[method-assign]
        return proceed

    def call(self, request: Any, raw: bytes) -> Any:
        """One request to the region of `raw`, answered."""
        return self.begin(request, raw).response()

    def begin(self, request: Any, raw: bytes) -> Pending:
        """One request to the region of `raw`, under way."""
        return self.at(self.regions.of_key(keys.encode(raw)), request)

    def at(self, region: Region, request: Any, store_id: int = 0, **context: Any) -> Pending:
        """One request to a region as it was, at its leader or another store, under way."""
        store_id = store_id or region.leader
        request.context.region_id = region.id
        request.context.region_epoch.version = region.version
        request.context.peer.CopyFrom(pb.Peer(store_id=store_id))
        for name, value in context.items():
            setattr(request.context, name, value)
        pending = Pending()
        self.shared.nodes[store_id].store.submit(request, pending.answer)
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
    """The events of one subscription, checked on arrival: a client of the promises, slow and plain."""

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
        assert self.error is None, "promise 4: nothing after an error"
        for row in rows:
            self.rows.append(row)
            if row.type == cdc.Event.INITIALIZED:
                assert not self.initialized, "promise 2: once"
                self.initialized = True
                for each in self.early:
                    self.match(each)
            elif row.type == cdc.Event.COMMITTED and self.live_committed:
                if row.commit_ts > self.checkpoint_ts:  # unpromised 6
                    self.commit(row, row.value, row.old_value)
            elif row.type == cdc.Event.COMMITTED:
                assert row.commit_ts > self.checkpoint_ts, "promise 5: the checkpoint is exclusive"
                self.commit(row, row.value, row.old_value)
                assert not self.initialized, "promise 2: no scan rows after INITIALIZED"
            elif row.type == cdc.Event.PREWRITE:
                self.open[row.key, row.start_ts] = row
            elif self.initialized:
                self.match(row)
            else:
                self.early.append(row)

    def match(self, row: cdc.Event.Row) -> None:
        before = self.open.pop((row.key, row.start_ts), None)
        if row.type == cdc.Event.COMMIT:
            assert before is not None, "promise 3: a prewrite comes before its commit"
            if row.commit_ts > self.checkpoint_ts:
                self.commit(row, before.value, before.old_value)

    def commit(self, row: cdc.Event.Row, value: bytes, old_value: bytes) -> None:
        assert row.commit_ts > self.resolved_ts, "promise 1: strictly above the resolved ts"
        assert (row.key, row.commit_ts) not in self.commits, "a commit comes once"
        self.commits[row.key, row.commit_ts] = (value, old_value, row.op_type)

    def take_resolved(self, ts: int) -> None:
        assert self.error is None, "promise 4: nothing after an error"
        assert self.initialized, "promise 2: no resolved ts before INITIALIZED"
        assert ts >= self.resolved_ts, "it never goes back"
        self.resolved_ts = ts


class Client:
    """One multiplexed connection and its feeds, read on a thread of its own."""

    def __init__(
        self,
        cluster: Cluster,
        channel: Channel | None = None,
        multiplexing: bool = True,
        store_id: int = 1,
    ) -> None:
        self.endpoint = cluster.shared.nodes[store_id].endpoint
        self.connection = Connection(multiplexing, channel)
        self.feeds: dict[tuple[int, int], Feed] = {}
        self.failure: BaseException | None = None
        self.messages: list[cdc.ChangeDataEvent] = []
        self._changed = threading.Condition()
        self.endpoint.open(self.connection)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def register(self, request_id: int, region: Region, checkpoint_ts: int = 0, **more: Any) -> Feed:
        feed = self.feeds[request_id, region.id] = Feed(checkpoint_ts, more.pop("live_committed", False))
        request = self.request(request_id, region, checkpoint_ts=checkpoint_ts, **more)
        self.endpoint.request(self.connection, request)
        return feed

    def request(self, request_id: int, region: Region, **more: Any) -> cdc.ChangeDataRequest:
        header = cdc.Header(
            cluster_id=more.pop("cluster_id", CLUSTER), ticdc_version=more.pop("version", "8.5.0")
        )
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
            assert self._changed.wait_for(lambda: self.failure is not None or condition(), WAIT_S), (
                self.standing()
            )
        if self.failure is not None:
            raise self.failure

    def standing(self) -> str:
        """Return the state of the feeds and of the endpoint, for the message of a wait that failed."""
        feeds = [
            f"{key}: error {feed.error}, initialized {feed.initialized}, resolved {feed.resolved_ts}"
            for key, feed in self.feeds.items()
        ]
        own = self.endpoint
        alive = own._thread.is_alive(), own._ticker._thread.is_alive(), self._thread.is_alive()
        states = [(one.region.id, one.state, one.stopped) for one in self.connection.downstreams.values()]
        frozen = own._faults.resolved_frozen
        return f"{alive=} scanning={own._scans.count} {frozen=} downstreams={states}\n" + "\n".join(
            feeds[:200]
        )

    def close(self) -> None:
        self.endpoint.close(self.connection)
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
            elif event.WhichOneof("event") == "resolved_ts":
                feed.take_resolved(event.resolved_ts)
            else:
                feed.take_rows(list(event.entries.entries))
        for region_id in message.resolved_ts.regions:
            self.feeds[message.resolved_ts.request_id, region_id].take_resolved(message.resolved_ts.ts)
