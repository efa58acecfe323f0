"""Gives the pieces of work that are due to the workers that are free.

    DueScan, Backlog --> Timetable --> a piece of work --> a worker

One thread decides, the one that calls `run`. At most one range of a span is with a worker, and the next range
of that span is given out only when this one is durable. So no worker waits for another.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from tidegate.pipeline.exchange.pace import Pace
from tidegate.pipeline.exchange.work import Begin, Deliver
from tidegate.pipeline.host.connected_worker import Work
from tidegate.pipeline.host.cpu_wait import CpuWait
from tidegate.pipeline.host.due_scan import DueScan
from tidegate.pipeline.host.failures import known
from tidegate.pipeline.host.incarnation import Incarnation, Key
from tidegate.pipeline.host.incarnations import Incarnations
from tidegate.pipeline.host.load_requests import LoadRequests
from tidegate.pipeline.host.signs_of_life import SignsOfLife
from tidegate.pipeline.host.threads import Threads
from tidegate.pipeline.host.timetable import Timetable, WorkKind
from tidegate.pipeline.host.workforce import Workforce

GLANCE_S: Final = 0.01
"""The pause between two glances at what may have become due."""
QUIET_S: Final = 2.0
QUIET_GLANCE_S: Final = 0.02
"""The same pause when nothing was due for QUIET_S."""
QUIET_GLANCES_A_S: Final = 5000.0
"""How many changefeeds are glanced at in a second when nothing is due, at most. Each costs some microseconds
of every scan, so beyond 100 changefeeds the pause grows with their number.
"""
REST_S: Final = 2.0
"""The pause between two looks at a changefeed of which no change was seen, with up to fifty changefeeds."""
RESTING_LOOKS_A_S: Final = 25.0
"""How many such looks there are in a second, for all changefeeds together. Beyond fifty changefeeds the pause
grows with their number.
"""
REST_MAX_S: Final = 10.0
"""The longest such pause. It bounds the delay if a scan misses a change."""
GATHER_S: Final = 0.1
"""The pause until the next look at rows that are left to wait for more (`Backlog.gathers`)."""
HOME_S: Final = 1.0
"""How long work of a changefeed waits for a busy worker that has its writer open."""


class Placement:
    """Gives out the work of all incarnations. All methods are for one thread."""

    def __init__(
        self,
        threads: Threads,
        timetable: Timetable[Key],
        workforce: Workforce,
        incarnations: Incarnations,
        requests: LoadRequests,
        signs: SignsOfLife,
    ) -> None:
        self._threads, self._changed = threads, threads.changed
        self._timetable, self._workforce, self._incarnations = timetable, workforce, incarnations
        self._requests, self._signs = requests, signs
        self._due_scan, self._pace, self._cpu_wait = DueScan(), Pace[Key](), CpuWait()
        self._handed_at = float("-inf")

    def run(self) -> None:
        """Give out work until a thread of the host fails; raises that thread's error."""
        while True:
            self._hand_out()
            self._rest()

    def piece_bytes(self, one: Incarnation) -> int:
        """How large its next piece may be. 0: as the settings say, because no other changefeed waits."""
        return 0 if len(self._incarnations) == 1 else one.piece_bytes

    def _rest(self) -> None:
        """Wait until something may be due and a worker is free, or until it is time for a scan."""
        quiet = time.monotonic() - self._handed_at > QUIET_S
        with self._changed:
            self._threads.check()
            if not (self._workforce.free and self._is_something_due()):
                quiet_s = max(QUIET_GLANCE_S, len(self._incarnations) / QUIET_GLANCES_A_S)
                self._changed.wait(quiet_s if quiet else GLANCE_S)

    def _is_something_due(self) -> bool:
        return self._is_begin_or_load_due() or bool(self._ready())

    def _is_begin_or_load_due(self) -> bool:
        if self._timetable.next_begin() is not None:
            return True
        return self._requests.next_key(time.monotonic()) is not None

    def _ready(self) -> list[Key]:
        """The changefeeds that must be looked at and may have another worker, in the order of their turns."""
        room, free, now = self._timetable.room, self._workforce.free, time.monotonic()
        self._timetable.tick(now)
        may_be_due = [(one.key, one.at_once) for one in self._incarnations if one.waits_at(now)]
        found = [key for key, most in may_be_due if room(key, most, free) and not self._waits_for_home(key)]
        return self._timetable.in_turn(found) if found else found

    def _waits_for_home(self, key: Key) -> bool:
        """Whether all workers with its writer are busy, at least one of them for less than `HOME_S`. Waiting
        for it is better than a new writer: to open one takes longer than most pieces.
        """
        # A single changefeed may use every worker, and each of them soon has its writer open.
        if len(self._incarnations) == 1:
            return False
        if self._avoids_homes(key):
            return False
        homes = self._workforce.homes(key)
        if not homes or any(each.work is None for each in homes):
            return False
        now = time.monotonic()
        return any(now - each.given_at < HOME_S for each in homes)

    def _avoids_homes(self, key: Key) -> bool:
        """Whether its next piece goes to a worker that few others need, wherever its writer is."""
        # If all changefeeds are at its address, they wait for this piece, so it goes where its writer is.
        return not self._timetable.is_proven(key) and self._timetable.others_answer(key)

    def _hand_out(self) -> None:
        """Give out work while something is due and a worker is free."""
        now = time.monotonic()
        with self._changed:
            running = [one for one in self._incarnations if one.backlog is not None and not one.over]
            live = self._workforce.live() if self._requests.is_look_due(now) else []
        if live:
            self._look_at_cores(live, now)
        may_be_due = self._due_scan.may_be_due(running, now)  # without the lock, because it reads files
        with self._changed:
            for one in may_be_due:
                # It may have ended while the files were read without the lock.
                one.may_be_due = not one.over
            while self._workforce.any_free() and (work := self._next_begin_or_load()) is not None:
                self._give(work)
            ready, is_free = self._ready(), bool(self._workforce.free)
        if not is_free:
            self._signs.make_room(lambda: self._has_due(ready))
            return
        for key in ready:
            self._deliver(key)

    def _look_at_cores(self, live: list[int], now: float) -> None:
        """Note how long those that deliver rows wait for cores. `live`: the process ids of such workers."""
        found = self._cpu_wait.look(live)  # without the lock, because it reads files
        with self._changed:
            # On a full machine a piece may take longer than until rows count as delivered.
            if any(self._is_live(work) for _, work in self._workforce.busy()):
                self._requests.throttle.delivers(now)
            self._requests.throttle.look(now, found)

    def _is_live(self, work: Work) -> bool:
        """Whether it delivers rows, at a sink that is not in doubt."""
        return work.kind is WorkKind.DELIVER and self._timetable.is_proven(work.of.key)

    def _next_begin_or_load(self) -> Work | None:
        key = self._timetable.next_begin()
        if key is not None:
            one = self._incarnations.get(key)
            assert one is not None, "what is over asks for nothing"
            return Work(one, Begin(one.path), WorkKind.BEGIN, f"the start of {one.spec.changefeed}")
        now = time.monotonic()
        key = self._requests.next_key(now)
        return None if key is None else self._requests.next(key, now)

    def _deliver(self, key: Key) -> None:
        """Look at what is due of one changefeed, and give it out."""
        with self._changed:
            one = self._incarnations.get(key)
            if one is None or one.over:
                return
            free = self._workforce.free
            self._timetable.tick(time.monotonic())  # files of others were read since the last one
            free = min(free, self._timetable.room(key, one.at_once, free))
            if not free:
                return  # it is looked at again when a worker becomes free
            # Reset this before the look: a change during the look must set it again.
            one.may_be_due = False
        assert one.backlog is not None
        rest_s = min(REST_MAX_S, max(REST_S, len(self._incarnations) / RESTING_LOOKS_A_S))
        one.looks_at = time.monotonic() + rest_s
        try:
            shares = one.backlog.take(free, self.piece_bytes(one) * free)
        except Exception as error:
            self._incarnations.fail(one, known(error, "pending work cannot be read", one.spec.changefeed))
            return
        if one.backlog.gathers:
            one.looks_at = time.monotonic() + GATHER_S
        with self._changed:
            is_given = False
            for ranges, size in shares:
                words = ranges[0].span + (f" and {len(ranges) - 1} more" if len(ranges) > 1 else "")
                if not one.over and self._workforce.any_free():
                    in_doubt = not self._timetable.is_proven(key)
                    piece = Deliver(one.path, tuple(ranges))
                    self._give(Work(one, piece, WorkKind.DELIVER, words, size, in_doubt=in_doubt))
                    is_given = True
                else:  # the free worker has died meanwhile, or the incarnation is over
                    one.backlog.give_back(ranges)
                    one.may_be_due = not one.over
            if is_given:
                one.rests_until = self._pace.next_at(key, time.monotonic(), is_cut=one.backlog.is_cut)

    def _give(self, work: Work) -> None:
        """Give a piece to the free worker that suits it best, with the lease of the slot for its writer."""
        one = work.of
        in_doubt = work.in_doubt and self._avoids_homes(one.key)
        worker = self._workforce.take(one.key, in_doubt=in_doubt)
        self._timetable.give(one.key, work.kind)
        # A begin fences all slots and writes no rows in any, so it has no lease.
        if not isinstance(work.piece, Begin):
            lease = one.leases.lease(worker, self._workforce.busy_with(one))
            assert lease is not None, "no more pieces are out than there are slots"
            work = replace(work, piece=replace(work.piece, lease=lease))
        # A worker elsewhere cannot open the path of the spec, so it gets the secret with which it asks for
        # the spec.
        if worker.machine:
            work = replace(work, piece=replace(work.piece, spec=one.secret))
        self._handed_at = time.monotonic()
        if self._is_live(work):
            self._requests.throttle.delivers(self._handed_at)
        worker.give(work, self._handed_at)

    def _has_due(self, ready: list[Key]) -> bool:
        """Whether work waits that a new worker could do."""
        with self._changed:
            if self._is_begin_or_load_due():
                return True
        return any(self._has_rows_due(key) for key in ready)

    def _has_rows_due(self, key: Key) -> bool:
        one = self._incarnations.get(key)
        try:
            return one is not None and one.backlog is not None and bool(one.backlog.look()[0])
        except Exception:
            return True  # `_deliver` looks again, and reports the error
