"""Runs writing commands: latches on their keys from read to apply, then the answer.

A command whose keys are free runs at once on the caller's thread; otherwise it waits in line, without a
thread, and runs on the pool when all commands before it that share a key have been applied. Order among
commands that share a key is order of arrival. (TiKV: storage/txn/scheduler.rs, latch.rs.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from typing import Any

from tidegate.tikv.mvcc import Reader
from tidegate.tikv.percolator import Outcome
from tidegate.tikv.raftstore import Command, Raftstore

Answer = Callable[[Any, Exception | None], None]
"""Called once with the response, or with the error that prevented one."""


class Task:
    """One command: the region, the raw keys it may write, what decides, and who wants the answer."""

    __slots__ = ("answer", "decide", "keys", "region_id")

    def __init__(
        self,
        region_id: int,
        keys: Collection[bytes],
        decide: Callable[[Reader], Outcome[Any]],
        answer: Answer,
    ) -> None:
        self.region_id = region_id
        self.keys = frozenset(keys)
        self.decide = decide
        self.answer = answer


class Latches:
    """Which keys are being written, and who waits for them, in order of arrival. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held: set[bytes] = set()
        self._waiting: list[Task] = []

    def acquire(self, task: Task) -> bool:
        """Whether the task may run now; if not, `release` will return it when it may."""
        with self._mutex:
            if self._held.isdisjoint(task.keys) and all(w.keys.isdisjoint(task.keys) for w in self._waiting):
                self._held |= task.keys
                return True
            self._waiting.append(task)
            return False

    def release(self, task: Task) -> list[Task]:
        """Free the task's keys; the tasks that may run now (their keys are taken already)."""
        with self._mutex:
            self._held -= task.keys
            if not self._waiting:
                return []
            ready, still, ahead = [], [], set[bytes]()
            for waiting in self._waiting:
                if self._held.isdisjoint(waiting.keys) and ahead.isdisjoint(waiting.keys):
                    self._held |= waiting.keys
                    ready.append(waiting)
                else:
                    ahead |= waiting.keys
                    still.append(waiting)
            self._waiting = still
            return ready


class Scheduler:
    """Latches, decisions and proposals in one place."""

    def __init__(self, raftstore: Raftstore, pool: Executor) -> None:
        self._raftstore = raftstore
        self._pool = pool
        self._latches = Latches()

    def submit(self, task: Task) -> None:
        """Run the task now or when its keys are free; its `answer` is called exactly once."""
        if self._latches.acquire(task):
            self._run(task)

    def later(self, work: Callable[[], None]) -> None:
        """Run `work` on the pool."""
        self._pool.submit(work)

    def _run(self, task: Task) -> None:
        try:
            outcome = task.decide(Reader(self._raftstore.engine))
        except Exception as error:
            self._finish(task, None, error)
            return
        if not outcome.changes:
            self._finish(task, outcome.response, None)
            return

        def applied(error: Exception | None) -> None:
            self._finish(task, outcome.response, error)

        self._raftstore.propose(Command(task.region_id, outcome.changes, outcome.old_values, applied))

    def _finish(self, task: Task, response: Any, error: Exception | None) -> None:
        for ready in self._latches.release(task):
            self._pool.submit(self._run, ready)
        task.answer(response, error)
