"""Pessimistic lock requests that wait for another transaction's lock: queues by key, time-outs, deadlocks.

    blocked -> park (edge in the detector) -> lock released: woken, executed again -> answer
                    |                      -> timeout: answered with the lock
                    |-> would close a cycle: answered with the deadlock

When a lock is released, the oldest transaction in the queue of its key is woken. If it does not take the lock
(because it found a newer commit), the next one is woken; if it does, the others wait for it from then on.
Requests are parked under the latch of the key and woken after an apply that held this latch, so no wake-up is
lost. At most `WAITERS_MAX` requests wait; further ones are answered at once. (TiKV:
storage/lock_manager/lock_waiting_queue.rs.)
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv.percolator.outcome import Blocked
from tidegate.tikv.txn.deadlock import DeadlockDetector, Edge

DEFAULT_WAIT_MS: Final = 1000
"""TiKV's pessimistic-txn.wait-for-lock-timeout, for requests without a timeout."""
WAITERS_MAX: Final = 10_000


class Waiter:
    """One parked request. `resume` executes it again; `give_up` answers it with an error."""

    __slots__ = ("blocked", "deadline", "edge", "give_up", "gone", "resume", "start_ts")

    def __init__(
        self,
        start_ts: int,
        blocked: Blocked,
        deadline: float,
        resume: Callable[[], None],
        give_up: Callable[[pb.Deadlock | None], None],
    ) -> None:
        self.start_ts = start_ts
        self.blocked = blocked
        self.deadline = deadline
        self.resume = resume
        self.give_up = give_up
        self.edge: Edge | None = None
        self.gone = False


class LockWaiting:
    """The queues of one store. Thread-safe; `resume` and `give_up` are called without its mutex."""

    def __init__(self, detector: DeadlockDetector) -> None:
        self.detector = detector
        self._changed = threading.Condition()
        self._queues: dict[bytes, list[Waiter]] = {}
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._numbers = itertools.count()
        self._waiting = 0
        self._stopped = False
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether any request waits."""
        return bool(self._queues)

    def deadline(self, request: pb.PessimisticLockRequest) -> float | None:
        """The time.monotonic() until which a request may wait; None if it does not wait."""
        if request.wait_timeout < 0:
            return None
        return time.monotonic() + (request.wait_timeout or DEFAULT_WAIT_MS) / 1000

    def park(self, waiter: Waiter) -> bool:
        """Park a request. False if the caller must answer it at once; a deadlock is answered here."""
        if waiter.deadline <= time.monotonic():
            return False
        # The detector gets the edge before the request is queued. Otherwise two requests could both be queued
        # before either sees the edge of the other.
        edge = _edge(waiter, waiter.blocked.lock.start_ts)
        deadlock = self.detector.wait(edge)
        if deadlock is not None:
            waiter.give_up(deadlock)
            return True
        with self._changed:
            if self._stopped or self._waiting >= WAITERS_MAX:
                # The caller answers the request now. An edge without a wait would close cycles that do not
                # exist.
                self.detector.done(edge)
                return False
            waiter.edge = edge
            self._waiting += 1
            self._queues.setdefault(waiter.blocked.key, []).append(waiter)
            # The number keeps the heap from comparing waiters, which have no order.
            heapq.heappush(self._deadlines, (waiter.deadline, next(self._numbers), waiter))
            if self._thread is None:
                self._thread = threading.Thread(target=self._time_out, name="lock-waiting", daemon=True)
                self._thread.start()
            # A waiter that is gone leaves the heap only here or at its deadline.
            if len(self._deadlines) > 2 * WAITERS_MAX:
                self._deadlines = [each for each in self._deadlines if not each[2].gone]
                heapq.heapify(self._deadlines)
            self._changed.notify_all()
        return True

    def released(self, keys: Iterable[bytes]) -> None:
        """Wake the oldest waiter of each of these encoded keys, because their locks were released."""
        if not self._queues:
            return
        for key in keys:
            with self._changed:
                queue = self._queues.get(key)
                if not queue:
                    continue
                # Only one, because only one can take the lock. `Scheduler._pass_on` wakes the next one if
                # this one does not take it.
                oldest = min(queue, key=lambda each: each.start_ts)
                self._remove(oldest)
            oldest.resume()

    def taken(self, key: bytes, holder: int) -> None:
        """The key has a new holder: from now on its waiters wait for that transaction."""
        if not self._queues:
            return
        victims = []
        with self._changed:
            for waiter in list(self._queues.get(key, ())):
                # The edge to the former holder goes first: with it, a cycle could be found that does not
                # exist any more.
                if waiter.edge is not None:
                    self.detector.done(waiter.edge)
                waiter.edge = _edge(waiter, holder)
                deadlock = self.detector.wait(waiter.edge)
                if deadlock is not None:
                    self._remove(waiter)
                    victims.append((waiter, deadlock))
        for waiter, deadlock in victims:
            waiter.give_up(deadlock)

    def leave(self, start: bytes, end: bytes) -> None:
        """The region of the encoded keys [start, end) has changed: its waiters are executed again."""
        if not self._queues:
            return
        with self._changed:
            found = [
                each
                for key, queue in self._queues.items()
                if start <= key and (not end or key < end)
                for each in queue
            ]
            for waiter in found:
                self._remove(waiter)
        for waiter in found:
            # Without the mutex, which the request takes when it has to wait once more.
            waiter.resume()

    def stop(self) -> None:
        """Answer all waiting requests; from now on none is parked."""
        with self._changed:
            self._stopped = True
            waiters = [each for queue in self._queues.values() for each in queue]
            for waiter in waiters:
                self._remove(waiter)
            self._changed.notify_all()
        for waiter in waiters:
            waiter.give_up(None)
        if self._thread is not None:
            self._thread.join()

    def _remove(self, waiter: Waiter) -> None:
        """Remove a waiter. The caller holds the mutex."""
        waiter.gone = True
        self._waiting -= 1
        queue = self._queues[waiter.blocked.key]
        queue.remove(waiter)
        if not queue:
            del self._queues[waiter.blocked.key]
        if waiter.edge is not None:
            self.detector.done(waiter.edge)
            waiter.edge = None

    def _time_out(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                late = self._late()
                if not late:
                    left = self._deadlines[0][0] - time.monotonic() if self._deadlines else None
                    self._changed.wait(left)
            for waiter in late:
                waiter.give_up(None)

    def _late(self) -> list[Waiter]:
        """Remove and return the waiters that timed out. The caller holds the mutex."""
        late, now = [], time.monotonic()
        while self._deadlines and (self._deadlines[0][2].gone or self._deadlines[0][0] <= now):
            _, _, waiter = heapq.heappop(self._deadlines)
            if not waiter.gone:
                self._remove(waiter)
                late.append(waiter)
        return late


def _edge(waiter: Waiter, holder: int) -> Edge:
    return Edge(waiter.start_ts, holder, waiter.blocked.raw, time.monotonic())
