"""Ticks: at each, downstreams advance to a timestamp, and clients get the resolved ts that have risen.

A thread takes the timestamp and queues the advance for the endpoint's thread. Every command that was applied
before the timestamp was taken is in the queue before it. The next tick waits until the advance is done. The
same thread queues the look at streams that are stuck.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate.errors import Retryable
from tidegate.proto import cdcpb_pb2 as pb
from tidegate.tikv.cdc import wire
from tidegate.tikv.cdc.registrations import Registrations
from tidegate.tikv.cdc.service import Connection
from tidegate.tikv.faults import Faults
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.precedence import SERVED
from tidegate.tikv.raft.raftstore import Raftstore

TICK_S: Final = 0.05
QUIET_S: Final = 2.0
QUIET_TICKS: Final = 4
"""If nothing was written for QUIET_S, ticks are this many times as far apart, unless TICK_SHARE has them so
far apart already: a tick then shows clients nothing but the time, and costs each of them work. TiKV itself
ticks once a second (6.5.0: five times)."""
TICK_SHARE: Final = 0.05
"""The share of a core that ticks of all stores may take: with many downstreams or stores they slow down."""
FREQUENT_SHARE: Final = 0.01
"""The same for ticks that are closer than FREQUENT_S."""
FREQUENT_S: Final = 0.2
"""Each mark of each downstream costs the client about as much again. A downstream takes some 5 us of a tick:
up to 100 are ticked as before, and from 400 on ticks are as far apart as those of TiKV 6.5.0."""
REPEAT_S: Final = 1.0
"""Seconds after which an unchanged resolved ts is sent again, so that clients know the stream is alive."""


@dataclass(frozen=True, slots=True)
class Watchdog:
    """Every `interval_s`, streams are ended that are full and have sent nothing for `idle_s`."""

    interval_s: float = 60.0
    idle_s: float = 300.0


class Ticker:
    """The ticks of one store."""

    def __init__(
        self,
        raftstore: Raftstore,
        registrations: Registrations,
        queue_task: Callable[[Callable[[], None]], None],
        stopping: threading.Event,
        next_ts: Callable[[], int],
        concurrency: ConcurrencyManager,
        faults: Faults,
        tick_s: float,
        watchdog: Watchdog,
    ) -> None:
        """`queue_task`: queues a task for the endpoint's thread. `stopping`: the endpoint's threads end."""
        self._raftstore, self._registrations = raftstore, registrations
        self._queue_task, self._stopping = queue_task, stopping
        self._next_ts, self._concurrency, self._faults = next_ts, concurrency, faults
        self._tick_s, self.watchdog = tick_s, watchdog
        self._cpu_s = 0.0
        """The CPU time of the last advance."""
        self._thread = threading.Thread(target=self._run, name="cdc-tick", daemon=True)

    def start(self) -> None:
        """Begin to tick."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end, after `stopping` is set."""
        self._thread.join()

    def _run(self) -> None:
        watched_at = time.monotonic()
        ticked_at = float("-inf")
        while True:
            stores = len(self._raftstore.observers)
            if self._stopping.wait(pause_s(self._tick_s, self._cpu_s, stores)):
                return
            # A client needs the resolved ts of all stores, so a write at any of them ends the rest of all.
            quiet = time.monotonic() - self._raftstore.active_at > QUIET_S
            # By the clock, not by the number of pauses: with 100,000 regions one pause lasts seconds, and
            # four of them would leave a quiet region without a mark for half a minute.
            if quiet and time.monotonic() - ticked_at < (QUIET_TICKS - 0.5) * self._tick_s:
                continue
            ticked_at = time.monotonic()
            if time.monotonic() - watched_at >= self.watchdog.interval_s:
                watched_at = time.monotonic()
                self._queue_task(lambda: self._registrations.end_stuck(self.watchdog.idle_s))
            # Without a registration nobody gets a mark, so no timestamp is drawn.
            if not self._registrations.delegates or self._faults.resolved_frozen:
                continue
            done = threading.Event()
            SERVED.mark()
            try:
                min_ts = self._next_ts()
            except Retryable:
                continue
            # From here on a transaction gets a commit ts above min_ts; one that has chosen before holds a
            # lock.
            self._concurrency.update_max_ts(min_ts)
            min_ts = self._concurrency.min_lock_ts(min_ts)
            self._queue_task(lambda: self._advance(min_ts, done))  # noqa: B023 - awaited before the next round
            while not done.wait(0.5):
                if self._stopping.is_set():
                    return

    # --- on the endpoint's thread ---

    def _advance(self, min_ts: int, done: threading.Event) -> None:
        """Advance every downstream whose scan is done, then send the new resolved ts."""
        began = time.thread_time()
        try:
            for delegate in self._registrations.delegates.values():
                delegate.resolve(min_ts)
            now = time.monotonic()
            for connection in self._registrations.connections.values():
                # Marks that still wait would be sent before newer ones, and delay them and the events: with
                # hundreds of subscriptions a client that is slow for a moment would never catch up.
                if not connection.channel.has_marks:
                    _report(connection, now)
        finally:
            self._cpu_s = time.thread_time() - began
            done.set()


def pause_s(tick_s: float, cpu_s: float, stores: int) -> float:
    """Seconds between two ticks of a store, if one takes `cpu_s`; all stores share one process here."""
    cpu_s *= stores
    return max(tick_s, min(FREQUENT_S, cpu_s / FREQUENT_SHARE), cpu_s / TICK_SHARE)


def _report(connection: Connection, now: float) -> None:
    """Send a message for each (request id, ts), with all regions that are exactly there; no ts falls."""
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for (request_id, region_id), downstream in connection.downstreams.items():
        ts = downstream.resolver.resolved_ts
        if ts > downstream.sent_ts or (ts and now - downstream.sent_at >= REPEAT_S):
            # Even if the channel is full and drops the mark: a later mark covers it.
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
