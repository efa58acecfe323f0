"""Who gets what: pieces of work that are due go to workers that are free.

    Glance, Backlog --> Timetable --> a piece of work --> a worker

One thread, which calls `run`, decides. A range is with one worker at a time, and the next one of its span is
due when that one is durable. So no worker waits for another.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from tidegate.pipeline.connected_worker import Work
from tidegate.pipeline.failures import known
from tidegate.pipeline.glance import Glance
from tidegate.pipeline.incarnation import Incarnation, Key
from tidegate.pipeline.incarnations import Incarnations
from tidegate.pipeline.load_requests import LoadRequests
from tidegate.pipeline.signs_of_life import SignsOfLife
from tidegate.pipeline.threads import Threads
from tidegate.pipeline.timetable import Kind, Timetable
from tidegate.pipeline.work import Begin, Deliver
from tidegate.pipeline.workforce import Workforce

GLANCE_S: Final = 0.01
"""Between two glances at what may have become due."""
QUIET_S: Final = 2.0
QUIET_GLANCE_S: Final = 0.02
"""The same when nothing was due for QUIET_S."""
QUIET_GLANCES_A_S: Final = 5000.0
"""How many changefeeds are then glanced at in a second, at most: each costs some microseconds of every
glance. Beyond 100 changefeeds the pause grows with their number.
"""
REST_S: Final = 2.0
"""Between two looks at a changefeed of which no change was seen, with up to fifty changefeeds."""
RESTING_LOOKS_A_S: Final = 25.0
"""How many such looks there are in a second, of all changefeeds together. Beyond fifty the pause grows with
their number.
"""
REST_MAX_S: Final = 10.0
"""The longest such pause: nothing waits longer if a change was not seen."""
GATHER_S: Final = 0.1
"""Until the next look at rows that are left to be more."""
HOME_S: Final = 1.0
"""How long a worker that has a changefeed's writer may be busy while the changefeed's work waits for it."""


class Placement:
    """Gives out the work of all incarnations. For one thread."""

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
        self._glance = Glance()
        self._handed_at = float("-inf")

    def run(self) -> None:
        """Give out work until a thread of the host fails; raises that thread's error."""
        while True:
            self._hand_out()
            self._rest()

    def piece_bytes(self, one: Incarnation) -> int:
        """How large its next piece may be; 0: as the settings say, since it keeps nobody waiting."""
        return 0 if len(self._incarnations) == 1 else one.piece_bytes

    def _rest(self) -> None:
        """Until something may be due and a worker is free, or it is time for a glance."""
        quiet = time.monotonic() - self._handed_at > QUIET_S
        with self._changed:
            self._threads.check()
            if not (self._workforce.free and self._is_something_due()):
                quiet_s = max(QUIET_GLANCE_S, len(self._incarnations) / QUIET_GLANCES_A_S)
                self._changed.wait(quiet_s if quiet else GLANCE_S)

    def _is_something_due(self) -> bool:
        return self._is_begin_or_load_due() or bool(self._ready())

    def _is_begin_or_load_due(self) -> bool:
        return self._timetable.next_begin() is not None or self._timetable.next_load() is not None

    def _ready(self) -> list[Key]:
        """The changefeeds that are to be looked at, and may have another worker, in turn."""
        room = self._timetable.room
        stirred = [(one.key, one.at_once) for one in self._incarnations if one.stirred]
        found = [key for key, most in stirred if room(key, most) and not self._waits_for_home(key)]
        return self._timetable.in_turn(found) if found else found

    def _waits_for_home(self, key: Key) -> bool:
        """Whether all workers that have its writer are busy, and one not for long. To open another writer
        takes the broker and us longer than most pieces.
        """
        if len(self._incarnations) == 1:
            return False
        homes = self._workforce.homes(key)
        if not homes or any(each.work is None for each in homes):
            return False
        now = time.monotonic()
        return any(now - each.given_at < HOME_S for each in homes)

    def _hand_out(self) -> None:
        """Give work to those that are free, while there is both."""
        now = time.monotonic()
        with self._changed:
            running = [one for one in self._incarnations if one.backlog is not None and not one.over]
        stirred = self._glance.stirred(running, now)  # without the lock: it reads files
        with self._changed:
            for one in stirred:
                one.stirred = not one.over
            while self._workforce.any_free() and (work := self._next_begin_or_load()) is not None:
                self._give(work)
            ready, is_free = self._ready(), bool(self._workforce.free)
        if not is_free:
            self._signs.make_room(lambda: self._has_due(ready))
            return
        for key in ready:
            self._deliver(key)

    def _next_begin_or_load(self) -> Work | None:
        key = self._timetable.next_begin()
        if key is not None:
            one = self._incarnations.get(key)
            assert one is not None, "what is over asks for nothing"
            return Work(one, Begin(one.path), Kind.BEGIN, f"the start of {one.spec.changefeed}")
        key = self._timetable.next_load()
        return None if key is None else self._requests.next(key)

    def _deliver(self, key: Key) -> None:
        """Look what is due of one changefeed, and give it out."""
        with self._changed:
            one = self._incarnations.get(key)
            free = 0 if one is None or one.over else self._timetable.room(key, one.at_once)
            free = min(free, self._workforce.free)
            if one is None or not free:
                return  # it is looked at again when a worker is back
            # Before the look: a change that comes during it must stir the changefeed again.
            one.stirred = False
        assert one.backlog is not None
        rest_s = min(REST_MAX_S, max(REST_S, len(self._incarnations) / RESTING_LOOKS_A_S))
        one.looks_at = time.monotonic() + rest_s
        try:
            shares = one.backlog.take(free, self.piece_bytes(one) * free)
        except Exception as error:
            self._incarnations.fail(one, known(error, "What is due cannot be seen.", one.spec.changefeed))
            return
        if one.backlog.gathers:
            one.looks_at = time.monotonic() + GATHER_S
        with self._changed:
            for ranges, size in shares:
                words = ranges[0].span + (f" and {len(ranges) - 1} more" if len(ranges) > 1 else "")
                if not one.over and self._workforce.any_free():
                    self._give(Work(one, Deliver(one.path, tuple(ranges)), Kind.DELIVER, words, size))
                else:  # the worker that was to have them has died since
                    one.backlog.give_back(ranges)
                    one.stirred = not one.over

    def _give(self, work: Work) -> None:
        """To the free worker that suits it best, with a lease of the slot in which that one writes."""
        one = work.of
        worker = self._workforce.take(one.key)
        self._timetable.give(one.key, work.kind)
        if not isinstance(work.piece, Begin):
            lease = one.leases.lease(worker, self._workforce.busy_with(one))
            assert lease is not None, "no more pieces are out than there are slots"
            work = replace(work, piece=replace(work.piece, lease=lease))
        if worker.machine:
            work = replace(work, piece=replace(work.piece, spec=one.secret))
        self._handed_at = time.monotonic()
        worker.give(work, self._handed_at)

    def _has_due(self, ready: list[Key]) -> bool:
        """Whether there is work for a worker that makes room."""
        with self._changed:
            if self._is_begin_or_load_due():
                return True
        return any(self._has_rows_due(key) for key in ready)

    def _has_rows_due(self, key: Key) -> bool:
        one = self._incarnations.get(key)
        try:
            return one is not None and one.backlog is not None and bool(one.backlog.look()[0])
        except Exception:
            return True  # the look that gives it out says what is wrong
