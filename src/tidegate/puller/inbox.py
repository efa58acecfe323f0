"""Tasks for one thread, from other threads now or from itself for later."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
from collections.abc import Callable

from tidegate.clock import Clock

Task = Callable[[], None]


class Inbox:
    """A queue of tasks. Any thread may `put`; only the owner calls the other methods. It has no bound."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self._is_turn_of_timers = True

    def put(self, task: Task | None) -> None:
        """Add a task behind those put before; None: no more tasks will follow."""
        self._tasks.put(task)

    def after(self, seconds: float, task: Task) -> None:
        """Add a task that becomes due in `seconds`; due timers and put tasks alternate."""
        # The number keeps timers of one moment in order, and tasks are never compared.
        heapq.heappush(self._timers, (self._clock.monotonic() + seconds, next(self._numbers), task))

    def take(self) -> Task | None:
        """Wait for the next task and return it; None when no more will follow.

        Due timers and put tasks alternate. Otherwise a slow machine, on which a timer is due again as soon as
        it has run, would never run the put tasks.
        """
        while True:
            wait = None
            if self._timers:
                wait = max(0.0, self._timers[0][0] - self._clock.monotonic())
                if wait == 0 and self._is_turn_of_timers:
                    self._is_turn_of_timers = False
                    return heapq.heappop(self._timers)[2]
            self._is_turn_of_timers = True
            with contextlib.suppress(queue.Empty):
                return self._tasks.get(timeout=wait)
