"""Watches the workers: which make progress, which are killed because they do not, and what each one does.

A worker that has work and gives no sign of life is killed after the changefeed's `stall-timeout`. If work
waits, no worker is free and few others move, it is killed earlier, after `SLOW_S` (`connected_worker`: stuck,
slow, hung). One that a signal has stopped is killed after `STOPPED_S`, whether it has work or not: it would
hold the next start of a changefeed for the whole `start-timeout`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from tidegate.errors import TidegateError
from tidegate.model.reports import AtWork, Working
from tidegate.pipeline.exchange.beats import read_beats
from tidegate.pipeline.host.connected_worker import (
    ConnectedWorker,
    Work,
    hung,
    stopped_by_signal,
    too_slow,
)
from tidegate.pipeline.host.incarnation import Incarnation, Key
from tidegate.pipeline.host.incarnations import Incarnations
from tidegate.pipeline.host.processes import is_stopped
from tidegate.pipeline.host.supply import Supply
from tidegate.pipeline.host.threads import Threads
from tidegate.pipeline.host.timetable import Timetable
from tidegate.pipeline.host.workforce import Workforce

WATCH_S: Final = 0.5
"""The pause between two looks for signs of life."""
STOPPED_S: Final = 20.0
ROOM_S: Final = 0.5
"""The shortest time between two looks at whether a slow worker must be killed because work waits."""


class SignsOfLife:
    """Watches all workers. `watch` runs in a thread of its own; `make_room` is for the placement's thread."""

    def __init__(
        self,
        threads: Threads,
        timetable: Timetable[Key],
        workforce: Workforce,
        incarnations: Incarnations,
        supply: Supply,
        on_look: Callable[[Working], None],
    ) -> None:
        """`on_look`: called with the current work of all workers, whenever that has changed."""
        self._changed, self._timetable, self._workforce = threads.changed, timetable, workforce
        self._incarnations, self._supply, self._on_look = incarnations, supply, on_look
        self._looked_for_room_at = float("-inf")
        self._stopped_since: dict[ConnectedWorker, float] = {}
        """When a look first found a worker stopped by a signal (monotonic)."""

    def watch(self) -> None:
        """Notice workers that make no progress with their work, free workers that are gone, and missing ones.

        Does not return. Raises Retryable if Spark does not start a required worker, and the host's error, if
        it has one.
        """
        reported: Working | None = None
        while True:
            time.sleep(WATCH_S)
            with self._changed:
                # Ends the threads of workers that died while they were free, also when nothing is given out.
                self._workforce.any_free()
                busy = self._workforce.busy()
                out = {work.of.key for _, work in busy}
                now = time.monotonic()
                waiting = [one for one in self._incarnations if _waits(one, out, now)]
                working = self._working(busy, waiting)
            self._supply.check()
            if working != reported:
                self._on_look(working)
                reported = working
            for one in waiting:
                one.beats.beat()  # it waits only for a free worker, so it must not count as hung
            for worker, work in busy:
                # A worker elsewhere sends Alive on its line. Its process id may also be in use here.
                beats = {} if worker.machine else read_beats(work.of.spec.beats_dir)
                self._watch_one(worker, work, beats.get(str(worker.process.pid)))
            self._end_stopped(now)
            self._supply.replace_stuck()

    def make_room(self, is_wanted: Callable[[], bool]) -> None:
        """Kill the slow worker that has been silent longest, if work waits and few workers move.

        `is_wanted`: whether work waits; called without the lock, because it may read files. Only one worker
        is killed at a time: the next one not before a new worker has connected, nor while a spare one starts
        or one is between two pieces.
        """
        now = time.monotonic()
        if now - self._looked_for_room_at < ROOM_S:
            return
        self._looked_for_room_at = now
        workforce = self._workforce
        with self._changed:
            if self._supply.is_one_coming(now) or workforce.any_killed():
                return
            # A killed worker comes back after a second and has no writer open. That is worth it only if few
            # others are left, and not because all of them are busy for a moment.
            if workforce.moving() >= self._supply.enough:
                return
            slow = workforce.slow()
        if not slow or not is_wanted():
            return
        with self._changed:
            # The waiting piece gets a worker that has just become free, or does so in a moment.
            if workforce.free or workforce.any_between():
                return
            worst = max(slow, key=lambda each: each.silent_s)
            # It may have given a sign of life, or finished its piece, while the lock was free.
            if worst.silent_s and worst.work is not None:
                self._kill(worst, worst.work, too_slow(worst.who, worst.work.words, worst.silent_s))

    def _watch_one(self, worker: ConnectedWorker, work: Work, beats: int | None) -> None:
        with self._changed:
            if worker.work is not work:
                return
            in_doubt = not self._timetable.is_proven(work.of.key)
        silence = worker.look(work, beats, time.monotonic(), in_doubt=in_doubt)
        with self._changed:
            was_stuck = worker.is_stuck
            if not worker.note(work, silence):
                return
            if silence.is_moving:
                self._timetable.alive(work.of.key)
            # docs/guarantees.md#trouble-of-one-changefeed-does-not-spread-to-others: before a spare worker
            # comes, which must not go to the same address. Once for each silence, because rows that are
            # acknowledged there later show that the address answers.
            if worker.is_stuck and not was_stuck:
                self._timetable.doubt(work.of.key)
            if silence.is_hung and not worker.killed:
                self._kill(worker, work, hung(worker.who, work.words, silence.silent_s))

    def _end_stopped(self, now: float) -> None:
        """Kill workers on this machine that a signal stopped long ago."""
        with self._changed:
            here = self._workforce.here()
        stopped = [each for each in here if is_stopped(each.process.pid)]
        self._stopped_since = {each: self._stopped_since.get(each, now) for each in stopped}
        with self._changed:
            for each, since in self._stopped_since.items():
                if now - since < STOPPED_S or each.killed:
                    continue
                if each.work is not None:
                    self._kill(each, each.work, stopped_by_signal(each.who, each.work.words, now - since))
                elif self._workforce.is_free(each):
                    each.kill()
                    self._workforce.retire(each)

    def _kill(self, worker: ConnectedWorker, work: Work, why: TidegateError) -> None:
        """Kill a worker for its silence. Under the lock.

        `answered` is called now, not when the process has ended. Another changefeed may get an answer from
        the same address meanwhile, and this failure must not override that later answer.
        """
        self._timetable.answered(work.of.key, well=False)
        worker.kill(why)

    def _working(
        self, busy: Sequence[tuple[ConnectedWorker, Work]], waiting: Sequence[Incarnation]
    ) -> Working:
        now = time.monotonic()
        at_work = (
            AtWork(
                each.process.pid,
                work.of.spec.changefeed,
                work.shown,
                round(now - each.given_at),
                each.machine,
            )
            for each, work in busy
        )
        waits = tuple(one.spec.changefeed for one in waiting)
        return Working(len(self._workforce), tuple(at_work), waits)


def _waits(one: Incarnation, out: Collection[Key], now: float) -> bool:
    """Whether it waits for nothing but a free worker."""
    return not one.over and one.key not in out and (one.backlog is None or one.waits_at(now))
