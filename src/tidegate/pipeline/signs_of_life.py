"""Which workers get something done, which are killed because they do not, and what all of them do.

A worker that has work and gives no sign of life is killed after the changefeed's `stall-timeout`; after
`SLOW_S` already when there is work for which no worker is free (`connected_worker`: stuck, slow, hung).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from tidegate.errors import TidegateError
from tidegate.model.reports import AtWork, Working
from tidegate.pipeline.beats import read_beats
from tidegate.pipeline.connected_worker import ConnectedWorker, Work, hung, too_slow
from tidegate.pipeline.incarnation import Incarnation, Key
from tidegate.pipeline.incarnations import Incarnations
from tidegate.pipeline.supply import Supply
from tidegate.pipeline.threads import Threads
from tidegate.pipeline.timetable import Timetable
from tidegate.pipeline.workforce import Workforce

WATCH_S: Final = 0.5
"""Between two looks for signs of life."""
ROOM_S: Final = 0.5
"""Between two looks at whether work waits for the worker of a slow sink."""


class SignsOfLife:
    """Of all workers. `watch` is for a thread of its own, `make_room` for the one that gives out work."""

    def __init__(
        self,
        threads: Threads,
        timetable: Timetable[Key],
        workforce: Workforce,
        incarnations: Incarnations,
        supply: Supply,
        on_look: Callable[[Working], None],
    ) -> None:
        """`on_look`: called with what is being done, whenever that has changed."""
        self._changed, self._timetable, self._workforce = threads.changed, timetable, workforce
        self._incarnations, self._supply, self._on_look = incarnations, supply, on_look
        self._looked_for_room_at = float("-inf")

    def watch(self) -> None:
        """Notice workers that have work and do nothing, free ones that are gone, and jobs that bring none.

        Does not return. Raises Retryable when Spark does not start a worker that must be there.
        """
        said: Working | None = None
        while True:
            time.sleep(WATCH_S)
            with self._changed:
                self._workforce.any_free()
                busy = self._workforce.busy()
                out = {work.of.key for _, work in busy}
                waiting = [one for one in self._incarnations if _waits(one, out)]
                working = self._working(busy, waiting)
            self._supply.check()
            if working != said:
                self._on_look(working)
                said = working
            for one in waiting:
                one.beats.beat()  # what it waits for is a worker
            for worker, work in busy:
                # A worker elsewhere says Alive on its line; its process id may be one of ours, too.
                beats = {} if worker.machine else read_beats(work.of.spec.beats_dir)
                self._watch_one(worker, work, beats.get(str(worker.process.pid)))
            self._supply.replace_stuck()

    def make_room(self, is_wanted: Callable[[], bool]) -> None:
        """Kill the worker that has been silent longest, if it is slow and work waits: `is_wanted`, which is
        called without the lock because it may read files. One is killed at a time: no other before a new
        worker has taken its place, or while a spare one is on its way.
        """
        now = time.monotonic()
        if now - self._looked_for_room_at < ROOM_S:
            return
        self._looked_for_room_at = now
        with self._changed:
            if self._supply.is_one_coming(now) or self._workforce.any_killed():
                return
            slow = self._workforce.slow()
        if not slow or not is_wanted():
            return
        with self._changed:
            worst = max(slow, key=lambda each: each.silent_s)
            if worst.silent_s and worst.work is not None:
                self._kill(worst, worst.work, too_slow(worst.who, worst.work.words, worst.silent_s))

    def _watch_one(self, worker: ConnectedWorker, work: Work, beats: int | None) -> None:
        silence = worker.look(work, beats, time.monotonic())
        with self._changed:
            if worker.note(work, silence) and silence.is_hung and not worker.killed:
                self._kill(worker, work, hung(worker.who, work.words, silence.silent_s))

    def _kill(self, worker: ConnectedWorker, work: Work, why: TidegateError) -> None:
        """For its silence, under the lock.

        `answered` at once, and not when the process is gone: a later answer from the same address, to another
        changefeed, must not be overruled by this failure.
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


def _waits(one: Incarnation, out: Collection[Key]) -> bool:
    """Whether it waits for a worker, and for nothing that it has to do itself."""
    return not one.over and one.key not in out and (one.backlog is None or one.stirred)
