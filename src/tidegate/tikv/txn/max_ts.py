"""A new leader asks PD for a timestamp before it lets a transaction choose its own.

Readers of the former leader raised that one's max_ts, which this store never saw; all of them read at a
timestamp of PD's that is below the next one. Until then async and one-phase commits get
MaxTimestampNotSynced. (TiKV: raftstore/src/store/txn_ext.rs, server/raftkv `max_ts_sync_status`.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidegate.errors import Retryable
from tidegate.tikv.percolator.concurrency import ConcurrencyManager


class MaxTsSync:
    """Which regions of a store still wait for it. Thread-safe."""

    def __init__(self, concurrency: ConcurrencyManager, pd_ts: Callable[[], int]) -> None:
        self._concurrency = concurrency
        self._pd_ts = pd_ts
        self._mutex = threading.Lock()
        self._waiting: dict[int, object] = {}

    def require(self, region_id: int) -> None:
        """The store begins to lead keys that another led."""
        with self._mutex:
            self._waiting[region_id] = object()

    def is_synced(self, region_id: int) -> bool:
        """Whether it is so; asks PD when it is not, and PD may be away."""
        mark = self._waiting.get(region_id)
        if mark is None:
            return True
        try:
            ts = self._pd_ts()
        except Retryable:
            return False
        self._concurrency.update_max_ts(ts)
        with self._mutex:
            if self._waiting.get(region_id) is mark:
                del self._waiting[region_id]
        return True
