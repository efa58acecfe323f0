"""Asks PD for the regions of ranges, in its own thread, so a slow PD delays only these ranges.

When a store is evicted, tens of thousands of ranges need a new leader at once. The locator asks for them
together, at most `TASKS_PER_ROUND` in a round, which costs one PD call for every thousand regions. The queue
is bounded by the number of ranges.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tidegate.errors import DEFECT, Fatal, TidegateError
from tidegate.kvclient.pd import PdClient
from tidegate.puller.cover import Found, cover
from tidegate.puller.watched_span import Locate

TASKS_PER_ROUND: Final = 4096


class Locator:
    """Calls `report` from its thread with the parts of each task's range, in several calls if it is large.

    `fail` is called with an error that ends the thread.
    """

    def __init__(
        self,
        pd: PdClient,
        report: Callable[[list[tuple[Locate, list[Found]]]], None],
        fail: Callable[[TidegateError], None],
    ) -> None:
        self._pd, self._report, self._fail = pd, report, fail
        self._tasks: queue.SimpleQueue[Locate | None] = queue.SimpleQueue()

    def ask(self, task: Locate) -> None:
        """Find the regions of the task's range."""
        self._tasks.put(task)

    def close(self) -> None:
        """End the thread after the call under way."""
        self._tasks.put(None)

    def run(self, closing: threading.Event) -> None:
        """The body of the locator's thread; returns after `close` or when `closing` is set."""
        while not closing.is_set() and (task := self._tasks.get()) is not None:
            tasks: list[Locate] = [task]
            with suppress(queue.Empty):
                while len(tasks) < TASKS_PER_ROUND:
                    following = self._tasks.get_nowait()
                    if following is None:
                        return
                    tasks.append(following)
            try:
                self._find(tasks, closing)
            except TidegateError as error:
                self._fail(error)
                return
            except Exception as error:  # a defect must stop the puller with its reason, not hang it
                self._fail(Fatal("the puller's locator failed", why=repr(error), fix=DEFECT))
                return

    def _find(self, tasks: list[Locate], closing: threading.Event) -> None:
        # A span may have been given up since the task was put, and PD need not be asked for it.
        wanted = [task for task in tasks if not task.watched_span.gone and not task.watched_span.paused]
        found: list[tuple[Locate, list[Found]]] = []
        regions = 0
        for number, parts in cover(self._pd, [task.bounds for task in wanted]):
            if closing.is_set():
                return
            found.append((wanted[number], parts))
            regions += len(parts)
            # In portions, so that the first streams begin while PD is asked for the rest.
            if regions >= 256:
                self._report(found)
                found, regions = [], 0
        if found:
            self._report(found)
