"""The connected workers of an application: which are connected, which are free, which suits a piece of work.

    join --> release --> take --> ConnectedWorker.give --> release ... --> leave

Every call is made under the host's lock (`threads`), and none blocks or sends anything to a worker.
`placement` decides which piece is given out; the thread that talks with a worker is in `conversation`.
"""

from __future__ import annotations

from tidegate.pipeline.host.connected_worker import ConnectedWorker, Work
from tidegate.pipeline.host.incarnation import Incarnation, Key
from tidegate.pipeline.host.timetable import WorkKind


class Workforce:
    """The workers of one host. `len`: how many are connected."""

    def __init__(self) -> None:
        self._all: set[ConnectedWorker] = set()
        self._free: list[ConnectedWorker] = []
        self.came = 0
        """How many have connected so far."""
        self.came_at = float("-inf")
        """When the last one has connected (monotonic)."""

    def __len__(self) -> int:
        return len(self._all)

    def join(self, worker: ConnectedWorker, now: float) -> None:
        """A worker has connected. It gets no work before it is `release`d."""
        self._all.add(worker)
        self.came += 1
        self.came_at = now

    def release(self, worker: ConnectedWorker) -> None:
        """A worker has no piece and waits for one."""
        self._free.append(worker)

    def leave(self, worker: ConnectedWorker) -> None:
        """A worker's connection has ended."""
        self._all.discard(worker)

    @property
    def free(self) -> int:
        """How many workers waited for a piece at the last `any_free`. Some may have died since."""
        return len(self._free)

    def any_free(self) -> bool:
        """Whether a worker is free. Ends the threads of workers that have died while they were free."""
        for each in [each for each in self._free if each.line.ended]:
            self.retire(each)
        return bool(self._free)

    def retire(self, worker: ConnectedWorker) -> None:
        """A free worker gets no more work, because its process has ended or was killed."""
        self._free.remove(worker)
        # Its thread waits for a piece and does not watch its line. Only this wakes it, so that it ends.
        worker.pieces.put(None)

    def is_free(self, worker: ConnectedWorker) -> bool:
        """Whether it waits for a piece."""
        return worker in self._free

    def take(self, key: Key, *, in_doubt: bool = False) -> ConnectedWorker:
        """Take the free worker that suits an incarnation best. At least one must be free.

        A worker that has worked for the incarnation last is best: it has schemas and writer open, and opening
        them takes longer than most pieces. Otherwise the worker with the fewest incarnations is taken,
        because each of them keeps a writer open. `in_doubt`: the sink may not answer, and the worker may wait
        for long. Then as few others as possible should have to open their writers elsewhere.
        """

        def suits(each: ConnectedWorker) -> tuple[int, int]:
            return (-1 if in_doubt else each.served.get(key, -1)), -len(each.served)

        worker = max(self._free, key=suits)
        self._free.remove(worker)
        return worker

    def busy(self) -> list[tuple[ConnectedWorker, Work]]:
        """The workers that have a piece, each with its piece."""
        return [(each, each.work) for each in self._all if each.work is not None]

    def busy_with(self, one: Incarnation) -> list[ConnectedWorker]:
        """The workers that have a piece of an incarnation."""
        return [each for each in self._all if each.work is not None and each.work.of is one]

    def here(self) -> list[ConnectedWorker]:
        """The workers on this machine."""
        return [each for each in self._all if not each.machine]

    def live(self) -> list[int]:
        """The process ids of the workers on this machine that have no piece of a load."""
        loading = WorkKind.LOAD
        there = (each for each in self._all if not each.machine)
        return [each.process.pid for each in there if each.work is None or each.work.kind is not loading]

    def homes(self, key: Key) -> list[ConnectedWorker]:
        """The workers that have an incarnation's writer open."""
        return [each for each in self._all if key in each.served]

    def forget(self, key: Key) -> None:
        """An incarnation is over: no worker is preferred for it any more."""
        for each in self._all:
            each.served.pop(key, None)

    def slow(self) -> list[ConnectedWorker]:
        """The workers that are slow (`connected_worker`)."""
        return [each for each in self._all if each.silent_s]

    def stuck(self) -> int:
        """How many workers are stuck (`connected_worker`)."""
        return sum(each.is_stuck and each.work is not None for each in self._all)

    def moving(self) -> int:
        """How many workers are neither stuck nor slow."""
        waiting = sum(bool(each.silent_s or each.is_stuck) and each.work is not None for each in self._all)
        return len(self._all) - waiting

    def any_killed(self) -> bool:
        """Whether there is a killed worker whose connection has not ended yet."""
        return any(each.killed for each in self._all)

    def any_between(self) -> bool:
        """Whether a worker is free in a moment: it has just connected, or its result has come."""
        # While the result is passed on, which may make other work due, it still has the piece.
        between = (each for each in self._all if each.work is None or each.has_answered)
        return any(each not in self._free for each in between)
