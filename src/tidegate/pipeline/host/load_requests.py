"""Shares of initial loads that wait for a worker. A thread of a load asks; a worker's thread answers.

    a load's thread: ask ---------------------------------------------------> blocks until the answer
    placement:       next_key, next --> a worker does it --> Work.answered --^
    incarnations:    drop --> Work.answered with Fenced --------------------^

Bound: a load has as many threads as it may have workers (`load.InitialLoad`), and each waits for one share.
While changefeeds have rows that are late, shares wait longer (`load_throttle`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from tidegate.pipeline.exchange.work import Load, LoadReport
from tidegate.pipeline.host.connected_worker import Work
from tidegate.pipeline.host.incarnation import Incarnation, Key
from tidegate.pipeline.host.load_throttle import PAUSE_MAX_S, LoadThrottle
from tidegate.pipeline.host.threads import Threads
from tidegate.pipeline.host.timetable import Timetable, WorkKind


class LoadRequests:
    """The requests of all incarnations. Each one is answered once: by a worker, or by `drop`."""

    def __init__(self, threads: Threads, timetable: Timetable[Key], cores: int) -> None:
        self._changed, self._timetable = threads.changed, timetable
        self.throttle = LoadThrottle(cores)
        """Under the lock."""
        self._waiting: dict[Key, deque[Work]] = {}
        self._given_at: dict[Future[Sequence[LoadReport]], float] = {}
        """When a worker got each of the pieces that are out (monotonic)."""

    def is_look_due(self, now: float) -> bool:
        """Whether there is a load, and it is time for a look (`LoadThrottle.look`). Under the lock."""
        return self.throttle.is_look_due(now) and (bool(self._given_at) or any(self._waiting.values()))

    def ask(self, one: Incarnation, piece: Load) -> Sequence[LoadReport]:
        """Have a worker do a share, and wait for its reports. Raises what the worker raised, and Fenced when
        the incarnation is over.
        """
        answer: Future[Sequence[LoadReport]] = Future()
        words = f"{len(piece.share)} ranges of the initial load"
        with self._changed:
            # Under the lock, because a share that is added after `drop` would never be answered.
            if one.over:
                raise one.fenced()
            work = Work(one, piece, WorkKind.LOAD, words, answer=answer)
            self._waiting.setdefault(one.key, deque()).append(work)
            self._timetable.ask_load(one.key)
            self._changed.notify_all()
        try:
            return answer.result()
        finally:
            with self._changed:
                now = time.monotonic()
                # It was dropped before a worker got it, if it is not there.
                if (given_at := self._given_at.pop(answer, None)) is not None:
                    self.throttle.ended(now, now - given_at)

    def next_key(self, now: float) -> Key | None:
        """The changefeed that may get a worker for its load now (monotonic); None: none. Under the lock."""
        # docs/guarantees.md#trouble-of-one-changefeed-does-not-spread-to-others: not while rows of others are
        # late because of loads.
        return self._timetable.next_load() if self.throttle.may_begin(now, self._out(now)) else None

    def next(self, key: Key, now: float) -> Work:
        """Take the oldest waiting share of an incarnation, for a worker. One must wait. Under the lock."""
        work = self._waiting[key].popleft()
        piece, answer = work.piece, work.answer
        assert isinstance(piece, Load), "`ask` has made it"
        assert answer is not None
        self._given_at[answer] = now
        return replace(work, piece=replace(piece, cpu_s=self.throttle.piece_s(now)))

    def _out(self, now: float) -> int:
        """How many pieces are out that may use a core."""
        # One that is out for longer has read all that it will read, and waits for its sink. If it counted, a
        # load at a sink that does not answer would stop all others.
        return sum(now - given_at < PAUSE_MAX_S for given_at in self._given_at.values())

    def drop(self, one: Incarnation) -> None:
        """An incarnation is over: answer its waiting shares with Fenced."""
        with self._changed:
            waiting = self._waiting.pop(one.key, ())
        for work in waiting:
            work.answered(one.fenced())
