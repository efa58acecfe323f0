"""A new leader gets a timestamp from PD before a transaction may choose its own commit ts.

Readers at the former leader raised the max_ts of that store, which this store does not know. They all read at
timestamps from PD, which are below the next one, so this store raises its max_ts to a new timestamp. Until
then async and one-phase commits get MaxTimestampNotSynced. (TiKV: raftstore/src/store/txn_ext.rs,
server/raftkv `max_ts_sync_status`.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidegate.errors import Retryable
from tidegate.tikv.percolator.concurrency import ConcurrencyManager


class MaxTsSync:
    """The regions of a store that still need a timestamp from PD. Thread-safe."""

    def __init__(self, concurrency: ConcurrencyManager, pd_ts: Callable[[], int]) -> None:
        self._concurrency = concurrency
        self._pd_ts = pd_ts
        self._mutex = threading.Lock()
        self._waiting: dict[int, object] = {}

    def require(self, region_id: int) -> None:
        """Record that the store begins to lead a region whose keys another store led."""
        with self._mutex:
            self._waiting[region_id] = object()

    def is_synced(self, region_id: int) -> bool:
        """Whether max_ts is valid for a region. If not yet, this asks PD; False if PD does not answer."""
        mark = self._waiting.get(region_id)
        if mark is None:
            return True
        try:
            ts = self._pd_ts()
        except Retryable:
            return False
        self._concurrency.update_max_ts(ts)
        with self._mutex:
            # Otherwise the region was lost and taken again in the meantime, and needs a newer ts.
            if self._waiting.get(region_id) is mark:
                del self._waiting[region_id]
        return True
