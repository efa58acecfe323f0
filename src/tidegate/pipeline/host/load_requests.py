"""Shares of initial loads that wait for a worker. A thread of a load asks; a worker's thread answers.

    a load's thread: ask -----------------------------------------> blocks until the answer
    placement:       next --> a worker does it --> Work.answered --^
    incarnations:    drop --> Work.answered with Fenced ----------^

Bound: a load has as many threads as it may have workers (`load.InitialLoad`), and each waits for one share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from tidegate.pipeline.exchange.work import Load, LoadReport
from tidegate.pipeline.host.connected_worker import Work
from tidegate.pipeline.host.incarnation import Incarnation, Key
from tidegate.pipeline.host.threads import Threads
from tidegate.pipeline.host.timetable import Timetable, WorkKind


class LoadRequests:
    """The requests of all incarnations. Each one is answered once: by a worker, or by `drop`."""

    def __init__(self, threads: Threads, timetable: Timetable[Key]) -> None:
        self._changed, self._timetable = threads.changed, timetable
        self._waiting: dict[Key, deque[Work]] = {}

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
        return answer.result()

    def next(self, key: Key) -> Work:
        """Take the oldest waiting share of an incarnation. One must be waiting. Under the lock."""
        return self._waiting[key].popleft()

    def drop(self, one: Incarnation) -> None:
        """An incarnation is over: answer its waiting shares with Fenced."""
        with self._changed:
            waiting = self._waiting.pop(one.key, ())
        for work in waiting:
            work.answered(one.fenced())
