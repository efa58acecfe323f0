"""Open locks of one downstream's range, and the resolved ts they allow. Pure.

While the scan of the lock column family runs, live changes are kept in order and replayed over its result.
From then on `locks` mirrors the data locks (Put, Delete) of the range exactly: a lock is tracked when it is
put and forgotten when it is deleted, with or without a write record. (TiKV's CDC delegate ignores lock
deletes, which pins the resolved ts at a lock that was rolled back silently: tikv#18498, #19083.)

A lock holds the resolved ts at its start_ts; those of a large transaction, written by generations, only below
the min_commit_ts that its primary is known to have (`txn_status`), as in TiKV's resolver of stale reads. Each
key counts until it is unlocked, for its commit is still to be told.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Final

LOCKS_BYTES_MAX: Final = 256 << 20
"""Of the tracked locks of one downstream; one with more fails with Congested."""
LOCK_OVERHEAD: Final = 128
"""Charged for each lock beside its key."""


class Resolver:
    """Not thread-safe: its owner is the endpoint's thread."""

    def __init__(self, min_commit_ts: Callable[[int], int] = int) -> None:
        """`min_commit_ts`: start_ts of a large transaction -> the least ts it may commit at."""
        self.resolved_ts = 0
        """Never goes back."""
        self._min_commit_ts = min_commit_ts
        self._large: set[int] = set()
        self._bytes = 0
        self._locks: dict[bytes, int] = {}
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self._replay: list[tuple[bytes, int, bool] | tuple[bytes, bytes, bool]] | None = []

    @property
    def is_ready(self) -> bool:
        """Whether the locks that were there at the start are known."""
        return self._replay is None

    @property
    def is_congested(self) -> bool:
        """Whether it remembers more than it may."""
        return self._bytes > LOCKS_BYTES_MAX

    def __len__(self) -> int:
        return len(self._locks)

    def track(self, key: bytes, start_ts: int, is_large: bool = False) -> bool:
        """The key has a data lock of `start_ts` now; 0: it has none. `is_large`: it has a generation.

        False when more is remembered than may be.
        """
        if self._replay is not None:
            self._replay.append((key, start_ts, is_large))
            self._bytes += len(key) + LOCK_OVERHEAD
        else:
            self._set(key, start_ts, is_large)
        return self._bytes <= LOCKS_BYTES_MAX

    def locked_by(self, key: bytes) -> int:
        """The start_ts of the data lock on a key; 0 when there is none or it is not known yet."""
        return self._locks.get(key, 0)

    def forget(self, start: bytes, end: bytes) -> None:
        """All locks of [start, end) are gone; an empty `end` is infinity."""
        if self._replay is not None:
            self._replay.append((start, end, False))
            return
        gone = [key for key in self._locks if start <= key and (not end or key < end)]
        for key in gone:
            self._set(key, 0)

    def finish_scan(self, scanned: dict[bytes, int], large: Collection[int] = ()) -> None:
        """`scanned`: the data locks at the snapshot, key -> start_ts; `large`: those that are of large
        transactions. Called once.
        """
        replay, self._replay = self._replay, None
        self._bytes = 0
        assert replay is not None
        for key, start_ts in scanned.items():
            self._set(key, start_ts, start_ts in large)
        for key, after, is_large in replay:
            if isinstance(after, bytes):
                self.forget(key, after)
            else:
                self._set(key, after, is_large)

    def resolve(self, min_ts: int) -> int:
        """Every commit from now on is above the returned ts, if those of new locks are above `min_ts`."""
        if self._replay is None:
            if self._heap or self._large:
                min_ts = min(min_ts, self._oldest(min_ts))
            if min_ts > self.resolved_ts:
                self.resolved_ts = min_ts
        return self.resolved_ts

    def _set(self, key: bytes, start_ts: int, is_large: bool = False) -> None:
        before = self._locks.pop(key, 0)
        if before:
            self._bytes -= len(key) + LOCK_OVERHEAD
            left = self._counts[before] - 1
            if left:
                self._counts[before] = left
            else:
                del self._counts[before]
                self._large.discard(before)
        if start_ts:
            self._locks[key] = start_ts
            self._bytes += len(key) + LOCK_OVERHEAD
            count = self._counts.get(start_ts, 0)
            self._counts[start_ts] = count + 1
            if is_large:
                self._large.add(start_ts)
            elif not count:
                heapq.heappush(self._heap, start_ts)

    def _oldest(self, otherwise: int) -> int:
        heap = self._heap
        while heap and (heap[0] not in self._counts or heap[0] in self._large):
            heapq.heappop(heap)
        oldest = heap[0] if heap else otherwise
        return min([oldest, *(self._min_commit_ts(ts) - 1 for ts in self._large)]) if self._large else oldest
