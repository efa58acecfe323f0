"""Transactions in flight: they run at the same time if they share no key, and land in the order of their
launch.

The loader and the bank workload use it. One thread launches and lands; the work runs in a small pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Flight(Generic[T]):
    """At most `window` pieces of work in flight, each with a set of keys and a tag.

    `landed(tag, result)` is called in launch order, in the launching thread, when the piece and all before it
    are done. An exception of a piece is raised by the call that lands it.
    """

    def __init__(self, threads: int, window: int, landed: Callable[[T, Any], None]) -> None:
        assert threads > 0
        assert window > 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="flight")
        self._window = window
        self._landed = landed
        self._pieces: deque[tuple[T, frozenset[bytes], Future[Any]]] = deque()
        self._busy: set[bytes] = set()

    def launch(self, keys: frozenset[bytes], tag: T, work: Callable[[], Any]) -> None:
        """Wait until no piece in flight has one of the keys and the window is not full, then start `work`."""
        while not keys.isdisjoint(self._busy):
            self.land(len(self._pieces) - 1)
        self.land(self._window - 1)
        self._busy |= keys
        self._pieces.append((tag, keys, self._pool.submit(work)))

    def land(self, most: int) -> None:
        """Wait until at most `most` pieces are in flight. Lands all that are done, in launch order."""
        while self._pieces and (len(self._pieces) > most or self._pieces[0][2].done()):
            tag, keys, future = self._pieces[0]
            result = future.result()
            self._pieces.popleft()
            self._busy -= keys
            self._landed(tag, result)

    def __enter__(self) -> Flight[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
