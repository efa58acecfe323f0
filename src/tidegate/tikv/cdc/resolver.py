"""The open locks of one downstream's range, and the resolved ts that they allow. Pure.

While the lock column family is scanned, live changes are kept in order; afterwards they are replayed over the
scan's result. From then on the resolver has exactly the data locks (Put, Delete) of the range: a lock is
added when it is put and removed when it is deleted, with or without a write record. (TiKV's CDC delegate
ignores lock deletes, so a lock that was rolled back silently holds the resolved ts back: tikv#18498, #19083.)

A lock limits the resolved ts to its start_ts. Locks of a large transaction, which is written in generations,
limit it only to below the known min_commit_ts of its primary (`txn_status`), as in TiKV's resolver of stale
reads. Each key counts until it is unlocked, because its commit has not been sent yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Final

LOCKS_BYTES_MAX: Final = 256 << 20
"""The most bytes of tracked locks of one downstream; beyond it, the downstream fails with Congested."""
LOCK_OVERHEAD: Final = 128
"""The bytes charged for each lock in addition to its key."""


class Resolver:
    """The locks and resolved ts of one downstream. Not thread-safe; owned by the endpoint's thread."""

    def __init__(self, min_commit_ts: Callable[[int], int] = int) -> None:
        """`min_commit_ts`: start_ts of a large transaction -> the smallest ts at which it may commit."""
        self.resolved_ts = 0
        """It only rises."""
        self._min_commit_ts = min_commit_ts
        self._large: set[int] = set()
        self._bytes = 0
        self._locks: dict[bytes, int] = {}
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self._replay: list[tuple[bytes, int, bool] | tuple[bytes, bytes, bool]] | None = []

    @property
    def is_ready(self) -> bool:
        """Whether the locks that existed at the start are known."""
        return self._replay is None

    @property
    def is_congested(self) -> bool:
        """Whether the tracked locks exceed LOCKS_BYTES_MAX."""
        return self._bytes > LOCKS_BYTES_MAX

    def __len__(self) -> int:
        return len(self._locks)

    def track(self, key: bytes, start_ts: int, is_large: bool = False) -> bool:
        """Set the data lock of a key to `start_ts`; 0: none. `is_large`: the lock has a generation.

        Returns False if the tracked locks exceed LOCKS_BYTES_MAX.
        """
        # All changes that come are newer than the scan's snapshot (`Scans._capture`). They wait for its
        # locks, on top of which they must be applied.
        if self._replay is not None:
            self._replay.append((key, start_ts, is_large))
            self._bytes += len(key) + LOCK_OVERHEAD
        else:
            self._set(key, start_ts, is_large)
        return self._bytes <= LOCKS_BYTES_MAX

    def locked_by(self, key: bytes) -> int:
        """The start_ts of the data lock on a key; 0 if there is none or it is not known yet."""
        return self._locks.get(key, 0)

    def forget(self, start: bytes, end: bytes) -> None:
        """Remove all locks of [start, end); an empty `end` is infinity."""
        if self._replay is not None:
            self._replay.append((start, end, False))
            return
        gone = [key for key in self._locks if start <= key and (not end or key < end)]
        for key in gone:
            self._set(key, 0)

    def finish_scan(self, scanned: dict[bytes, int], large: Collection[int] = ()) -> None:
        """Add the result of the scan, then replay live changes. Called once.

        `scanned`: the data locks at the snapshot, key -> start_ts. `large`: the start_ts of large
        transactions.
        """
        replay, self._replay = self._replay, None
        # The replayed changes were counted until now; `_set` counts the locks that remain.
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
        """Raise the resolved ts as far as the locks allow, at most to `min_ts`, and return it.

        Every later commit is above the returned ts if the commits of new locks are above `min_ts`.
        """
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
            # Once for each transaction, however many keys it locks.
            elif not count:
                heapq.heappush(self._heap, start_ts)

    def _oldest(self, otherwise: int) -> int:
        heap = self._heap
        # Removed here and not in `_set`, because only the smallest entry of a heap can be removed cheaply.
        while heap and (heap[0] not in self._counts or heap[0] in self._large):
            heapq.heappop(heap)
        oldest = heap[0] if heap else otherwise
        # It may commit at min_commit_ts itself, so the resolved ts stays below. A small transaction commits
        # above its start_ts.
        return min([oldest, *(self._min_commit_ts(ts) - 1 for ts in self._large)]) if self._large else oldest
