"""Tasks for one thread, handed in by others or by itself for later."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
from collections.abc import Callable

from tidegate.clock import Clock

Task = Callable[[], None]


class Inbox:
    """`put` from any thread; all else is the owner's. Holds what is put however much it is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self._is_turn_of_timers = True

    def put(self, task: Task | None) -> None:
        """To be done after what was put before; None: nothing more."""
        self._tasks.put(task)

    def after(self, seconds: float, task: Task) -> None:
        """To be done in a while, in turns with what was put."""
        heapq.heappush(self._timers, (self._clock.monotonic() + seconds, next(self._numbers), task))

    def take(self) -> Task | None:
        """The next thing to do, as soon as there is one; None when nothing more is to be done.

        Timers that are due and what was put take turns: a slow machine, on which a timer is due again as soon
        as it was served, would else see nothing but timers.
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
