"""Runs the incremental scans of new downstreams on threads of their own, some at the same time.

A scan takes a snapshot such that its downstream gets exactly the commands that are applied after it, sends
locks and versions (`initializer`), and changes registrations only by tasks for the endpoint's thread. At most
`SCANS_MAX` wait or run, and these send a limited number of bytes a second (`limiter`).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tidegate.proto import cdcpb_pb2 as pb
from tidegate.proto import errorpb_pb2
from tidegate.tikv.cdc import initializer
from tidegate.tikv.cdc.delegate import Downstream, State
from tidegate.tikv.cdc.limiter import Limiter
from tidegate.tikv.cdc.registrations import Registrations
from tidegate.tikv.engine import EngineSnapshot
from tidegate.tikv.faults import Faults
from tidegate.tikv.raft.raftstore import Raftstore
from tidegate.tikv.raft.region import Region

SCAN_THREADS: Final = 4
SCANS_MAX: Final = 10000
CAPTURE_POLL_S: Final = 0.2
"""How often a scan that waits for its snapshot checks whether it is still wanted."""

_log = logging.getLogger(__name__)


class Scans:
    """The scans of one store. `begin` is called on the endpoint's thread."""

    def __init__(
        self,
        raftstore: Raftstore,
        registrations: Registrations,
        queue_task: Callable[[Callable[[], None]], None],
        stopping: threading.Event,
        limiter: Limiter,
        faults: Faults,
    ) -> None:
        """`queue_task`: queues a task for the endpoint's thread. `stopping`: the endpoint's threads end."""
        self._raftstore, self._registrations = raftstore, registrations
        self._queue_task, self._stopping = queue_task, stopping
        self.limiter, self._faults = limiter, faults
        self.count = 0
        """How many wait or run."""
        self._threads = ThreadPoolExecutor(SCAN_THREADS, thread_name_prefix="cdc-scan")

    @property
    def are_full(self) -> bool:
        """Whether no more scans may begin."""
        return self.count >= SCANS_MAX

    def begin(self, downstream: Downstream) -> None:
        """Scan for a registered downstream as soon as a thread is free."""
        self.count += 1
        self._threads.submit(self._scan, downstream)

    def shut_down(self) -> None:
        """Wait for the scans that run; those that wait do not run any more."""
        self._threads.shutdown(cancel_futures=True)

    # --- on the threads of scans ---

    def _scan(self, downstream: Downstream) -> None:
        failed = False
        try:
            if downstream.stopped:
                return
            self._faults.before_snapshot()
            snapshot = self._capture(downstream)
            if snapshot is None:
                return
            # Locks before versions, because until they are known the resolver must keep every live change in
            # memory.
            locks, large = initializer.scan_locks(downstream, snapshot, self._faults, self.limiter)
            self._queue_task(lambda: self._locks_scanned(downstream, locks, large))
            initializer.scan_versions(downstream, snapshot, self._faults, self.limiter)
            # After the last version is in the channel, so no resolved ts comes before the rows of the scan.
            self._queue_task(lambda: _in_step(downstream))
        except initializer.StoppedError:
            return
        except initializer.CongestedError:
            self._queue_task(lambda: self._registrations.congest(downstream))
        except Exception:
            # The client gets an error it knows, and registers again. Without one it would wait for
            # INITIALIZED for ever.
            failed = True
            _log.exception("incremental scan failed", extra={"region_id": downstream.region.id})
        finally:
            self._queue_task(lambda: self._ended(downstream, failed))

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
            self._registrations.end_version(downstream.region, error)
            ready.put(None)

        def captured(found: EngineSnapshot | Exception) -> None:
            if isinstance(found, Exception):
                ready.put(found)
                return
            region = self._registrations.leads(downstream.region.id, downstream.region.version)
            # Queued on the apply thread, between two rounds. So the endpoint has handled all earlier
            # commands when it runs this task, and no later one.
            if isinstance(region, Region):
                self._queue_task(lambda: initializing(found))
            else:
                self._queue_task(lambda: late(region))

        self._raftstore.capture(captured, initializer.scanned(downstream))
        while not (self._stopping.is_set() or downstream.stopped):
            with contextlib.suppress(queue.Empty):
                found = ready.get(timeout=CAPTURE_POLL_S)
                if isinstance(found, Exception):
                    raise found
                return found
        raise initializer.StoppedError

    # --- on the endpoint's thread ---

    def _locks_scanned(self, downstream: Downstream, locks: dict[bytes, int], large: set[int]) -> None:
        downstream.resolver.finish_scan(locks, large)
        if downstream.resolver.is_congested:
            self._registrations.congest(downstream)

    def _ended(self, downstream: Downstream, failed: bool) -> None:
        self.count -= 1
        if failed:
            missing = errorpb_pb2.RegionNotFound(region_id=downstream.region.id)
            self._registrations.drop(downstream, pb.Error(region_not_found=missing))


def _in_step(downstream: Downstream) -> None:
    downstream.state = State.NORMAL
