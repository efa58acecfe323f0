"""Latches: the keys that are being written, and the commands that wait for them in order. Thread-safe.

There is one `Latches` for each store and not for each region, because a key may move to another region while
commands for it wait. (TiKV: storage/txn/latch.rs.)
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Generic, Protocol, TypeVar


class Holder(Protocol):
    """The part of a command that latches need."""

    @property
    def keys(self) -> Collection[bytes]: ...


T = TypeVar("T", bound=Holder)


class Latches(Generic[T]):
    """The latches of a store. A command whose keys are not free waits without a thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held: set[bytes] = set()
        self._waiting: list[T] = []

    def acquire(self, task: T) -> bool:
        """Whether the task may run now; otherwise a later `release` returns it when it may."""
        keys = task.keys
        with self._mutex:
            # Not past a waiting task that needs one of these keys. Otherwise a task with many keys could
            # wait for ever.
            if self._held.isdisjoint(keys) and (
                not self._waiting or all(frozenset(w.keys).isdisjoint(keys) for w in self._waiting)
            ):
                self._held.update(keys)
                return True
            self._waiting.append(task)
            return False

    def release(self, task: T) -> list[T]:
        """Free the task's keys; returns the tasks that may run now, with their keys already acquired."""
        with self._mutex:
            self._held.difference_update(task.keys)
            if not self._waiting:
                return []
            ready, still, ahead = list[T](), list[T](), set[bytes]()
            for waiting in self._waiting:
                # `ahead`: keys of tasks that still wait. A later task that shares one must not pass them,
                # because commands of a key run in the order of arrival.
                if self._held.isdisjoint(waiting.keys) and ahead.isdisjoint(waiting.keys):
                    self._held.update(waiting.keys)
                    ready.append(waiting)
                else:
                    ahead.update(waiting.keys)
                    still.append(waiting)
            self._waiting = still
            return ready
