"""Runs writing commands: holds latches on their keys from read to apply, then answers.

A command whose keys are free runs at once on the caller's thread. Otherwise it waits without a thread, and
runs on the pool when all earlier commands that share a key have been applied. Commands that share a key run
in the order of arrival. If a lock blocks a pessimistic lock request, the request may wait for it without
latches (`lock_waiting`), and is executed again when it is woken. (TiKV: storage/txn/scheduler.rs.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import mvcc
from tidegate.tikv.mvcc import Change
from tidegate.tikv.percolator.concurrency import ConcurrencyManager
from tidegate.tikv.percolator.outcome import CommandOutcome
from tidegate.tikv.raft.raftstore import Command, Raftstore
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_table import RegionError
from tidegate.tikv.reader import MvccReader
from tidegate.tikv.txn.latches import Latches
from tidegate.tikv.txn.lock_waiting import LockWaiting, Waiter

Answer = Callable[[Any, Exception | None], None]
"""Called once, with the response or with the error that prevented it."""
Decide = Callable[[MvccReader], CommandOutcome[Any]]


class Patience(NamedTuple):
    """How a command waits for locks: its transaction, its deadline, and its answer to a deadlock."""

    start_ts: int
    deadline: float
    deadlocked: Callable[[pb.Deadlock], pb.PessimisticLockResponse]


class Task:
    """One command: the region it was accepted for, the encoded keys it may write, the function that computes
    its outcome, and the callback for its answer.
    """

    __slots__ = ("answer", "decide", "keys", "patience", "region", "woken_by")

    def __init__(
        self,
        region: Region,
        keys: Sequence[bytes],
        decide: Decide,
        answer: Answer,
        patience: Patience | None = None,
    ) -> None:
        self.region = region
        self.keys = keys
        self.decide = decide
        self.answer = answer
        self.patience = patience
        self.woken_by: bytes | None = None


class Scheduler:
    """Runs the writing commands of one store."""

    def __init__(
        self, raftstore: Raftstore, pool: Executor, concurrency: ConcurrencyManager, waiting: LockWaiting
    ) -> None:
        self._raftstore = raftstore
        self._pool = pool
        self._concurrency = concurrency
        self._waiting = waiting
        self._regions = raftstore.regions
        self._latches = Latches[Task]()

    def submit(self, task: Task) -> None:
        """Run the task now or when its keys are free; its `answer` is called exactly once.

        If its region has changed when it runs, or when its write is applied, the answer is `RegionError`.
        """
        if self._latches.acquire(task):
            self._run(task)

    def later(self, work: Callable[[], None]) -> None:
        """Run `work` on the pool."""
        self._pool.submit(work)

    def _run(self, task: Task) -> None:
        region = task.region
        # Checked again, because the task may have waited for its latches since it was accepted.
        if region is not self._regions.by_id.get(region.id) or region.merging:
            refusal = self._regions.refusal(region)
            if refusal is not None:
                self._release(task)
                task.answer(None, RegionError(refusal))
                return
        try:
            outcome = task.decide(MvccReader(self._raftstore.engine))
        except Exception as error:
            self._release(task)
            task.answer(None, error)
            return
        if task.patience is not None:
            # Parked while the latches are held. The lock cannot be released in between, because that takes
            # the same latch.
            if outcome.blocked is not None and self._park(task, task.patience, outcome):
                self._release(task)
                return
            self._pass_on(task, outcome)
        if not outcome.changes:
            self._concurrency.release(outcome.published)
            self._release(task)
            task.answer(outcome.response, None)
            return

        def applied(error: Exception | None) -> None:
            # Only now: a reader must find the lock in memory until it can find what was written.
            if outcome.published:
                self._concurrency.release(outcome.published)
            self._release(task)
            # After the release, because a waiter that is woken needs the same latch.
            if self._waiting.is_busy and error is None:
                self._wake_waiters(task, outcome.changes)
            task.answer(outcome.response, error)

        self._raftstore.propose(
            Command(region.id, outcome.changes, outcome.old_values, applied, outcome.one_pc, region=region)
        )

    def _release(self, task: Task) -> None:
        for ready in self._latches.release(task):
            self._pool.submit(self._run, ready)

    # --- waiting for locks ---

    def _park(self, task: Task, patience: Patience, outcome: CommandOutcome[Any]) -> bool:
        blocked = outcome.blocked
        assert blocked is not None

        def resume() -> None:
            # Executed on the pool: this is called on the apply thread, which must not wait.
            task.woken_by = blocked.key
            self._pool.submit(self.submit, task)

        def give_up(deadlock: pb.Deadlock | None) -> None:
            response = outcome.response if deadlock is None else patience.deadlocked(deadlock)
            task.answer(response, None)

        return self._waiting.park(Waiter(patience.start_ts, blocked, patience.deadline, resume, give_up))

    def _pass_on(self, task: Task, outcome: CommandOutcome[Any]) -> None:
        """Wake the next waiter if a woken task neither takes the lock nor is blocked by another one."""
        key, task.woken_by = task.woken_by, None
        if key is None or (outcome.blocked is not None and outcome.blocked.key == key):
            return
        if all(cf != mvcc.LOCK or changed != key for cf, changed, _ in outcome.changes):
            self._pool.submit(self._waiting.released, [key])

    def _wake_waiters(self, task: Task, changes: Sequence[Change]) -> None:
        gone = [key for cf, key, value in changes if cf == mvcc.LOCK and value is None]
        self._waiting.released(gone)
        if task.patience is not None:
            for cf, key, value in changes:
                if cf == mvcc.LOCK and value is not None:
                    self._waiting.taken(key, task.patience.start_ts)
