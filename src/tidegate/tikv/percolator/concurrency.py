"""Keeps one-phase and async commits consistent with readers and with CDC: max_ts and the in-memory locks.

Such a commit chooses its own ts above `max_ts`, which is at least the ts of every read and every announced
resolved ts. From that choice until its write is applied, its keys are locked only in memory:

    publish (lock in memory, ts chosen) -> propose -> apply -> observers -> release -> client

A reader first raises max_ts and then checks the locks. A tick of the resolved ts first raises max_ts to its
timestamp and then takes the smallest start_ts of the locks. So if a read or tick comes before the choice, the
chosen ts is above it; if it comes after the choice, it sees the lock. In the opposite order a commit could
choose a ts below the read's between the two steps, and the read would miss it. (TiKV:
components/concurrency_manager.)
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import NamedTuple

from tidegate.tikv.keys import TS_MAX
from tidegate.tikv.mvcc import Lock


class Choice(NamedTuple):
    """The chosen ts, and the keys to release."""

    ts: int
    keys: Collection[bytes]


class ConcurrencyManager:
    """max_ts and the in-memory locks of one store. Thread-safe; every call is short."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._max_ts = 0
        self._locks: dict[bytes, Lock] = {}
        self._held: dict[int, int] = {}
        self._next_hold = 0

    @property
    def max_ts(self) -> int:
        """The highest ts of any read, or of an announced resolved ts."""
        return self._max_ts

    def update_max_ts(self, ts: int) -> None:
        """Raise max_ts: writes published later commit above `ts`. TS_MAX is no time and is ignored."""
        # Looked at without the mutex first, because max_ts only rises.
        if self._max_ts < ts != TS_MAX:
            with self._mutex:
                self._max_ts = max(self._max_ts, ts)

    def publish(self, locks: Iterable[tuple[bytes, Lock]], floor: int, ceiling: int) -> Choice | None:
        """Choose a ts >= floor above max_ts and lock the encoded keys in memory with it as min_commit_ts.

        Returns None, without locks, if the ts would be above `ceiling` (0: no ceiling). The caller holds the
        latches of the keys, and calls `release` when the write is applied or has failed.
        """
        with self._mutex:
            # In one critical section with the locks: a reader that has raised max_ts before gets a commit
            # above its ts, and one that raises it afterwards finds the locks.
            ts = max(self._max_ts + 1, floor)
            if ceiling and ts > ceiling:
                return None
            stamped: dict[int, Lock] = {}
            mine = {}
            for key, lock in locks:  # few different lock objects, each for many keys
                found = stamped.get(id(lock))
                if found is None:
                    found = stamped[id(lock)] = lock._replace(min_commit_ts=ts)
                mine[key] = found
            assert self._locks.keys().isdisjoint(mine), "latches keep two writers from one key"
            self._locks.update(mine)
            return Choice(ts, mine.keys())

    def release(self, keys: Iterable[bytes]) -> None:
        """Remove published locks."""
        with self._mutex:
            for key in keys:
                del self._locks[key]

    def hold(self, ts: int) -> int:
        """Keep the resolved ts at or below `ts`, for a raw write in progress, until `end_hold`.

        Returns the id for `end_hold`.
        """
        with self._mutex:
            self._next_hold += 1
            self._held[self._next_hold] = ts
            return self._next_hold

    def end_hold(self, hold: int) -> None:
        """End a hold."""
        with self._mutex:
            del self._held[hold]

    def min_lock_ts(self, otherwise: int) -> int:
        """The smallest start_ts of the writes in progress; `otherwise` if it is smaller or there are none."""
        # Without the mutex: the caller has raised max_ts, so locks that are published from now on commit
        # above it.
        if not self._locks and not self._held:
            return otherwise
        with self._mutex:
            starts = [lock.start_ts for lock in self._locks.values()]
            return min([otherwise, *starts, *self._held.values()])

    def lock(self, key: bytes) -> Lock | None:
        """The in-memory lock on an encoded key."""
        return self._locks.get(key) if self._locks else None

    def locks_in(self, start: bytes, end: bytes) -> list[tuple[bytes, Lock]]:
        """In-memory locks on encoded keys of [start, end), ascending; an empty `end` is infinity."""
        if not self._locks:
            return []
        with self._mutex:
            found = [each for each in self._locks.items() if start <= each[0] and (not end or each[0] < end)]
        return sorted(found)
