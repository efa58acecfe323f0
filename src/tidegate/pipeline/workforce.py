"""The connected workers of an application: which there are, which are free, and which suits a piece of work.

    join --> release --> take --> ConnectedWorker.give --> release ... --> leave

Every call is made under the host's lock (`threads`). Nothing here waits, and nothing is sent to a worker
except the end of its thread. Which piece is given is decided by `placement`; a worker's thread, which speaks
with it, is in `conversation`.
"""

from __future__ import annotations

from tidegate.pipeline.connected_worker import ConnectedWorker, Work
from tidegate.pipeline.incarnation import Incarnation, Key


class Workforce:
    """The workers of one host. `len`: how many are connected."""

    def __init__(self) -> None:
        self._all: set[ConnectedWorker] = set()
        self._free: list[ConnectedWorker] = []
        self.came = 0
        """How many have connected so far."""
        self.came_at = float("-inf")
        """When the last one did (monotonic)."""

    def __len__(self) -> int:
        return len(self._all)

    def join(self, worker: ConnectedWorker, now: float) -> None:
        """It has connected. It gets no work before it is `release`d."""
        self._all.add(worker)
        self.came += 1
        self.came_at = now

    def release(self, worker: ConnectedWorker) -> None:
        """It has no piece and waits for one."""
        self._free.append(worker)

    def leave(self, worker: ConnectedWorker) -> None:
        """Its connection has ended."""
        self._all.discard(worker)

    @property
    def free(self) -> int:
        """How many wait for a piece, as of the last `any_free`: some of them may have died."""
        return len(self._free)

    def any_free(self) -> bool:
        """Whether a worker is free. The threads of those that have died while they were free are ended."""
        for each in [each for each in self._free if each.line.ended]:
            self._free.remove(each)
            each.pieces.put(None)
        return bool(self._free)

    def take(self, key: Key) -> ConnectedWorker:
        """The free worker that suits an incarnation best; it is not free any more. One must be free.

        A worker that has delivered for the incarnation has its schemas and its writer open, which takes
        longer than most pieces. Among the others the one with the fewest incarnations is taken, because each
        keeps a writer open.
        """
        worker = max(self._free, key=lambda each: (each.served.get(key, -1), -len(each.served)))
        self._free.remove(worker)
        return worker

    def busy(self) -> list[tuple[ConnectedWorker, Work]]:
        """Those that have a piece, each with it."""
        return [(each, each.work) for each in self._all if each.work is not None]

    def busy_with(self, one: Incarnation) -> list[ConnectedWorker]:
        """Those that have a piece of an incarnation."""
        return [each for each in self._all if each.work is not None and each.work.of is one]

    def homes(self, key: Key) -> list[ConnectedWorker]:
        """Those that have an incarnation's writer open."""
        return [each for each in self._all if key in each.served]

    def forget(self, key: Key) -> None:
        """An incarnation is over: no worker is preferred for it any more."""
        for each in self._all:
            each.served.pop(key, None)

    def slow(self) -> list[ConnectedWorker]:
        """Those that have been silent for longer than they may be while others wait."""
        return [each for each in self._all if each.silent_s]

    def stuck(self) -> int:
        """How many deliver to a sink that does not answer."""
        return sum(each.is_stuck and each.work is not None for each in self._all)

    def any_killed(self) -> bool:
        """Whether a worker was killed whose connection has not ended yet."""
        return any(each.killed for each in self._all)
