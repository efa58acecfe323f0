"""The application's end: workers that ask for work, and what waits of all changefeeds, brought together.

    Glance, Backlog --> Timetable --> a piece of work --> a worker --> what became of it --> control process

One thread, which calls `run`, decides who gets what; each worker has a thread, which hands it its pieces one
after the other and passes on what it says. A range is with one worker at a time, and the next one of its span
is due when that one has said that it is durable. So no worker waits for another.

Whatever fails in a piece ends the incarnation of the changefeed that it is of, and no other. An incarnation
that ends takes along what its workers are doing: those that are not done with it within `GRACE_S` are killed,
and waited for. Only then `on_over` is called, and nobody can write for it any more. A worker does one piece
at a time, so nothing else is lost with it.

A worker that has work and gives no sign of life is killed after the changefeed's `stall-timeout`; after
`SLOW_S` already when there is work for which no worker is free.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from tidegate.errors import Fatal, Fenced, Retryable, TidegateError
from tidegate.ipc import FramedSocket, socket_name
from tidegate.model.reports import AtWork, Durable, Failed, Started, Working
from tidegate.pipeline.backlog import Backlog
from tidegate.pipeline.beats import read_beats
from tidegate.pipeline.connected_worker import ConnectedWorker, Dead, Work, hung, too_slow
from tidegate.pipeline.glance import Glance
from tidegate.pipeline.incarnation import Incarnation, Key
from tidegate.pipeline.jobs import Elsewhere, Jobs, WorkerProcess
from tidegate.pipeline.lines import Line
from tidegate.pipeline.load import InitialLoad
from tidegate.pipeline.processes import Process
from tidegate.pipeline.timetable import Kind, Timetable
from tidegate.pipeline.work import (
    Alive,
    Begin,
    Begun,
    Deliver,
    Delivered,
    ElsewhereHello,
    Lease,
    Load,
    LoadDone,
    LoadReport,
    Reached,
    WorkerHello,
    parse,
)
from tidegate.sink.base import Description

GLANCE_S: Final = 0.01
"""Between two glances at whether anything was told."""
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
GRACE_S: Final = 0.3
"""How long a worker may go on with a piece of an incarnation that is over."""
WATCH_S: Final = 0.5
"""Between two looks for signs of life."""
SPARE_S: Final = 2.0
"""After a spare worker was asked for, no slow one is killed for so long: the spare may be enough."""
HOME_S: Final = 1.0
"""So long a worker that has a changefeed's writer may be busy, and its work waits for it."""
ROOM_S: Final = 0.5
"""Between two looks at whether somebody waits for the worker of a slow one."""
PIECE_S: Final = 1.0
"""What a piece may take, by what the last ones took, while there are other changefeeds."""
PIECE_BYTES_MIN: Final = 1 << 20
"""But a piece may have so many bytes in any case, also while the pace of its changefeed is not known."""
FAILED_MAX: Final = 10_000
"""Changefeeds of which it is remembered that they have failed."""
PAUSE_MAX_S: Final = 5.0
"""Between two jobs that fail at once, at most."""
SHORT_S: Final = 5.0
"""A job that ends sooner, without a worker, has failed."""
FAILURES_MAX: Final = 3
"""So many in a row, and the application ends."""
FENCE_S: Final = 8.0
"""How long the end of an incarnation waits until a worker that was given up is fenced."""
SIZE_S: Final = 5.0
"""Between two looks at how many workers a cluster has room for."""
LISTEN_MAX: Final = 128
"""Connections of local workers that wait to be accepted: of `2 * cores + 2` workers, and as many spares."""
STARTS_S: Final = 600.0
"""Patience with the first worker: kernels may have to be compiled."""
STARTS_AGAIN_S: Final = 60.0
"""With one that takes the place of another: Spark's JVM or its daemon hangs, if none comes."""


Over: TypeAlias = Callable[[Incarnation], None]


class Host:
    """The workers of one application. `run` once."""

    def __init__(
        self,
        folder: Path,
        cores: int,
        on_over: Over,
        on_look: Callable[[Working], None] = lambda working: None,
        opened: Callable[[int], WorkerProcess] = Process,
        *,
        elsewhere: bool = False,
    ) -> None:
        """`folder`: for its socket. `on_over`: hears of each incarnation that has ended, once nobody works
        for it. `on_look`: hears what is being done, when that is another thing than before. `opened`: a
        handle of the process with a pid. `elsewhere`: whether its workers will be on other machines.
        """
        self.socket, self._cores, self._opened = folder / "work.sock", cores, opened
        """`socket`: where workers of this machine connect to."""
        self._jobs: Jobs | None = None
        self._elsewhere = elsewhere
        self._on_over, self._on_look = on_over, on_look
        self._changed = threading.Condition()
        self._timetable: Timetable[Key] = Timetable(cores)
        self._there: dict[Key, Incarnation] = {}
        self._stirred: set[Key] = set()
        """Of which something may be due."""
        self._loads: dict[Key, deque[Work]] = {}
        self._idle: list[ConnectedWorker] = []
        self._workers: set[ConnectedWorker] = set()
        self._failed: dict[str, int] = {}
        """How often in a row changefeeds have failed."""
        self._failure: TidegateError | None = None
        self._glance = Glance()
        self._handed_at = float("-inf")
        self._hellos = 0
        self._count = 0
        self._least = 0
        """So many workers there are to be at least, on this machine."""
        self._grown_at = float("-inf")
        """When a spare worker was asked for."""
        self._looked_for_room_at = float("-inf")
        self._short_since = 0.0
        """Since when there are fewer workers than there are to be, or since the last one came."""

    # --- incarnations -------------------------------------------------------------------------------------

    def begin(self, one: Incarnation) -> None:
        """Fence and read what an incarnation needs, and deliver from there on, until it is over."""
        with self._changed:
            one.failures = self._failed.get(one.spec.changefeed, 0)
            one.limit_writers(self._cores)
            self._there[one.key] = one
            self._timetable.ask_begin(one.key, one.address, one.failures)
            self._changed.notify_all()
            described = one.spec.sink.describe()
            if self._elsewhere and (described.here or not described.fenced_by):
                self.fail(one, _not_elsewhere(one, described))

    def end(self, key: Key) -> None:
        """End an incarnation; `on_over` hears when that is done. One that is not there has ended already."""
        with self._changed:
            one = self._there.get(key)
        if one is not None:
            self._end(one)

    def fail(self, one: Incarnation, error: TidegateError) -> None:
        """An incarnation has failed: its first error is what it ends with."""
        with self._changed:
            if one.over:
                return
            one.error = error
            name = one.spec.changefeed
            if len(self._failed) >= FAILED_MAX:
                self._failed.clear()
            self._failed[name] = self._failed.get(name, 0) + 1
        one.log(error.render())
        self._end(one)

    def _end(self, one: Incarnation) -> None:
        with self._changed:
            if one.over:
                return
            one.over = True
            self._timetable.over(one.key)
            self._stirred.discard(one.key)
            waiting = self._loads.pop(one.key, ())
            self._changed.notify_all()
        for work in waiting:
            self._answer(work, _over(one))
        if one.error is not None:
            self._tell(one, failure(one.error))
        self._start(f"end of {one.spec.changefeed}", partial(self._see_off, one))

    def _see_off(self, one: Incarnation) -> None:
        """Wait until no worker has a piece of it; kill those that do not end by themselves.

        `on_over` comes last. The control process takes it for the promise that nothing of this incarnation is
        written any more, and begins the next one. Killing keeps that promise for a process of this machine. A
        worker elsewhere may still commit, so its sink is fenced as well.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._timetable.has_out(one.key), GRACE_S)
            for each in self._workers:
                if each.work is not None and each.work.of is one:
                    each.kill()
            self._changed.wait_for(lambda: not self._timetable.has_out(one.key))
        if one.loading is not None:
            one.loading.join()
        if one.given_up:
            self._fence(one)
        with self._changed:
            self._timetable.forget(one.key)
            self._there.pop(one.key, None)
            if one.error is None:
                self._failed.pop(one.spec.changefeed, None)
            for each in self._workers:
                each.served.pop(one.key, None)
        self._on_over(one)

    def _fence(self, one: Incarnation) -> None:
        """Stop what a worker elsewhere may still commit: there may be no later incarnation to do so."""

        def fence() -> None:
            try:
                one.spec.sink.fence({one.spec.capture: one.spec.slots}, lambda: None)
            except Exception as error:
                why = known(error, "The sink cannot be fenced.", one.spec.changefeed).render()
                one.log(f"a worker that was given up could not be fenced: {why}")

        thread = self._start(f"fence of {one.spec.changefeed}", fence)
        thread.join(FENCE_S)
        if thread.is_alive():
            one.log(f"a worker that was given up could not be fenced within {FENCE_S:.0f} s")

    def _tell(self, one: Incarnation, report: Durable | Started | Failed) -> None:
        """To the control process. If that is gone, so is all of this in a moment."""
        try:
            one.send(report)
        except (TidegateError, ValueError) as error:  # ValueError: too long a message
            if not isinstance(report, Failed):
                self.fail(
                    one, known(error, "What became of a piece of work cannot be told.", one.spec.changefeed)
                )

    # --- who gets what ------------------------------------------------------------------------------------

    def run(self, jobs: Jobs) -> None:
        """Hand out work to the workers of these jobs until the application itself fails: raises that."""
        self._jobs = jobs
        self._short_since = time.monotonic()
        if self._elsewhere:
            self._start("size", partial(self._keep_size, jobs))
        else:
            self._listen()
            self._least = jobs.size()
            self._grow(jobs, self._least)
        self._start("signs-of-life", self._watch)
        while True:
            self._hand_out()
            self._rest()

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_name(self.socket) as name:
            listener.bind(name)
        self.socket.chmod(0o600)  # nobody is answered before this
        listener.listen(LISTEN_MAX)
        self._start("accept", partial(self._accept, listener))

    def _keep_size(self, jobs: Jobs) -> None:
        """A cluster grows and shrinks; as much as it has cores for is done at once."""
        while True:
            size = jobs.size()
            if size != self._cores or not self._count:
                with self._changed:
                    self._cores = size
                    self._timetable.resize(size)
                    for one in self._there.values():
                        one.limit_writers(size)
                self._grow(jobs, size)
            time.sleep(SIZE_S)

    def _grow(self, jobs: Jobs, size: int) -> None:
        for number in range(self._count, size):
            self._start(f"spark-{number}", partial(self._keep_job, jobs))
        self._count = max(self._count, size)

    def _rest(self) -> None:
        """Until something may be due and a worker is free, or it is time for a glance."""
        quiet = time.monotonic() - self._handed_at > QUIET_S
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if not (self._idle and self._is_something_due()):
                quiet_s = max(QUIET_GLANCE_S, len(self._there) / QUIET_GLANCES_A_S)
                self._changed.wait(quiet_s if quiet else GLANCE_S)

    def _is_something_due(self) -> bool:
        table = self._timetable
        return table.next_begin() is not None or table.next_load() is not None or bool(self._ready())

    def _ready(self) -> list[Key]:
        """The changefeeds that are to be looked at, and may have another worker, in turn."""
        there, room = self._there, self._timetable.room
        found = [
            key for key in self._stirred if room(key, there[key].at_once) and not self._waits_for_home(key)
        ]
        return self._timetable.in_turn(found) if found else found

    def _hand_out(self) -> None:
        """Give work to those that are free, for as long as there is both."""
        now = time.monotonic()
        with self._changed:
            running = [one for one in self._there.values() if one.backlog is not None and not one.over]
        stirred = self._glance.stirred(running, now)
        with self._changed:
            self._stirred |= {one.key for one in stirred if not one.over}
            while self._any_idle() and (work := self._next_begin_or_load()) is not None:
                self._give(work)
            ready, is_free = self._ready(), bool(self._idle)
        if not is_free:
            self._kill_a_slow_one(ready)
            return
        for key in ready:
            self._deliver(key)

    def _next_begin_or_load(self) -> Work | None:
        key = self._timetable.next_begin()
        if key is not None:
            one = self._there[key]
            return Work(one, Begin(one.path), Kind.BEGIN, f"the start of {one.spec.changefeed}")
        key = self._timetable.next_load()
        return None if key is None else self._loads[key].popleft()

    def _deliver(self, key: Key) -> None:
        """Look what is due of one changefeed, and give it out."""
        with self._changed:
            one = self._there.get(key)
            free = 0 if one is None or one.over else self._timetable.room(key, one.at_once)
            free = min(free, len(self._idle))
            if one is None or not free:
                return  # it is looked at again when a worker is back
            # Before the look: a change that comes during it must stir the changefeed again.
            self._stirred.discard(key)
        assert one.backlog is not None
        rest_s = min(REST_MAX_S, max(REST_S, len(self._there) / RESTING_LOOKS_A_S))
        one.looks_at = time.monotonic() + rest_s
        try:
            shares = one.backlog.take(free, self._piece_bytes(one) * free)
        except Exception as error:
            self.fail(one, known(error, "What is due cannot be seen.", one.spec.changefeed))
            return
        if one.backlog.gathers:
            one.looks_at = time.monotonic() + GATHER_S
        with self._changed:
            for ranges, size in shares:
                words = ranges[0].span + (f" and {len(ranges) - 1} more" if len(ranges) > 1 else "")
                if not one.over and self._any_idle():
                    self._give(Work(one, Deliver(one.path, tuple(ranges)), Kind.DELIVER, words, size))
                else:  # the worker that was to have them has died since
                    one.backlog.give_back(ranges)
                    self._stirred |= set() if one.over else {key}

    def _waits_for_home(self, key: Key) -> bool:
        """Whether all workers that have its writer are busy, and one not for long. To open another writer
        takes the broker and us longer than most pieces.
        """
        if len(self._there) == 1:
            return False
        homes = [each for each in self._workers if key in each.served]
        if not homes or any(each.work is None for each in homes):
            return False
        now = time.monotonic()
        return any(now - each.given_at < HOME_S for each in homes)

    def _piece_bytes(self, one: Incarnation) -> int:
        """How large its next piece may be; 0: as the settings say, since it keeps nobody waiting."""
        if len(self._there) == 1:
            return 0
        return max(PIECE_BYTES_MIN, round(one.bytes_per_s * PIECE_S))

    def _any_idle(self) -> bool:
        """Whether a worker is free; those that have died since they were are let go of."""
        for each in [each for each in self._idle if each.line.ended]:
            self._idle.remove(each)
            each.pieces.put(None)
        return bool(self._idle)

    def _give(self, work: Work) -> None:
        """To a worker that has delivered for that incarnation before, if one of those is free.

        That worker has its schemas and its writer open, which takes longer than most pieces. Among the
        others the one with the fewest incarnations is taken, because each keeps a writer open.
        """
        key = work.of.key
        worker = max(self._idle, key=lambda each: (each.served.get(key, -1), -len(each.served)))
        self._idle.remove(worker)
        self._timetable.give(key, work.kind)
        if not isinstance(work.piece, Begin):
            busy = [each for each in self._workers if each.work is not None and each.work.of is work.of]
            lease = work.of.leases.lease(worker, busy)
            assert lease is not None, "no more pieces are out than there are slots"
            work = replace(work, piece=replace(work.piece, lease=lease))
        if worker.machine:
            work = replace(work, piece=replace(work.piece, spec=work.of.secret))
        self._handed_at = time.monotonic()
        worker.give(work, self._handed_at)

    def _kill_a_slow_one(self, ready: Sequence[Key]) -> None:
        """When there is work and nobody to do it, whoever has been silent longest makes room."""
        now = time.monotonic()
        if now - self._looked_for_room_at < ROOM_S:
            return
        self._looked_for_room_at = now
        with self._changed:
            on_its_way = self._waits_for_more() or now - self._grown_at < SPARE_S
            if on_its_way or any(each.killed for each in self._workers):
                return
            slow = [each for each in self._workers if each.silent_s]
            waits = self._timetable.next_begin() is not None or self._timetable.next_load() is not None
        if not slow or not (waits or any(self._has_due(key) for key in ready)):
            return
        with self._changed:
            worst = max(slow, key=lambda each: each.silent_s)
            if worst.silent_s and worst.work is not None:
                self._kill(worst, worst.work, too_slow(worst.who, worst.work.words, worst.silent_s))

    def _kill(self, worker: ConnectedWorker, work: Work, why: TidegateError) -> None:
        """For its silence, under the lock.

        `answered` at once, and not when the process is gone: a later answer from the same address, to another
        changefeed, must not be overruled by this failure.
        """
        self._timetable.answered(work.of.key, well=False)
        worker.kill(why)

    def _has_due(self, key: Key) -> bool:
        one = self._there.get(key)
        try:
            return one is not None and one.backlog is not None and bool(one.backlog.look()[0])
        except Exception:
            return True  # whoever looks to give it out says what is wrong

    # --- workers ------------------------------------------------------------------------------------------

    def _waits_for_more(self) -> bool:
        """Whether a worker is missing that must come. On a cluster that has lost machines none must; nor must
        a spare one, or a machine without memory for one more would end the application.
        """
        return len(self._workers) < self._least and not self._elsewhere

    def _keep_job(self, jobs: Jobs) -> None:
        """A worker: a job of one task. When it has ended, another takes its place."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                jobs.run()
                why = "its task ended"
            except Exception as error:  # Py4J's, with the worker's trace as text
                why = _without_frames(str(error))
            failures = failures + 1 if time.monotonic() - began < SHORT_S else 0
            if failures >= FAILURES_MAX and not self._workers:
                raise Retryable("Spark starts no workers.", why=jobs.trouble() or why)
            if failures:
                time.sleep(min(PAUSE_MAX_S, 0.1 * 2**failures))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connected, _ = listener.accept()
            self._start("worker", partial(self._attend, FramedSocket(connected)))

    def _attend(self, line: FramedSocket) -> None:
        try:
            hello = parse(line.receive() or {}, [WorkerHello])
            worker = ConnectedWorker(line, self._opened(hello.pid))
        except (ValueError, OSError):
            line.close()  # whoever it was: its job ends with it, and is begun again
            return
        self._attend_worker(worker)

    def attend_elsewhere(self, line: Line, hello: ElsewhereHello, end_job: Callable[[], None]) -> None:
        """Hand a worker on another machine piece after piece, until it has ended or was given up."""
        process = Elsewhere(hello.pid, line, end_job)
        try:
            self._attend_worker(ConnectedWorker(line, process, machine=hello.machine or "?"))
        except Exception as error:  # as in threads of our own: its part would stay undone
            with self._changed:
                self._failure = self._failure or known(error, "A worker was lost.", hello.machine)
                self._changed.notify_all()

    def _attend_worker(self, worker: ConnectedWorker) -> None:
        """Hand one worker piece after piece."""
        with self._changed:
            self._hellos += 1
            self._short_since = time.monotonic()
            self._workers.add(worker)
        try:
            while True:
                with self._changed:
                    self._idle.append(worker)
                    self._changed.notify_all()
                work = worker.pieces.get()
                if work is None or not self._attend_piece(worker, work):
                    return
        finally:
            with self._changed:
                self._workers.discard(worker)
                for one in self._there.values():
                    one.leases.end(worker)
            worker.line.close()
            worker.process.close()

    def incarnation(self, secret: str) -> Incarnation:
        """The one with this secret, for a worker elsewhere. Raises Fenced when it is over."""
        with self._changed:
            for one in self._there.values():
                if one.secret == secret and not one.over:
                    return one
        raise Fenced("This incarnation of the changefeed is over.")

    def holds(self, one: Incarnation, lease: Lease) -> bool:
        """Whether that lease is the last one of its slot."""
        with self._changed:
            return one.leases.stands(lease)

    def _attend_piece(self, worker: ConnectedWorker, work: Work) -> bool:
        """See one piece through; whether the worker lives.

        `back` comes last: it lets `_see_off` end the incarnation. A process that was killed may write until
        it is gone, so it is waited for before. The failure is reported before that wait, so that nothing new
        is given out for the incarnation meanwhile.
        """
        one = work.of
        error: TidegateError | None = None
        try:
            self._do_piece(worker, work)
        except Dead as dead:
            with self._changed:
                worker.kill()
            error = worker.killed_for or Retryable(
                "A worker of the pipeline has died.", where=f"{worker.who}, with {work.words}", why=str(dead)
            )
        except Exception as raised:
            error = known(raised, "A piece of work failed.", one.spec.changefeed)
        with self._changed:
            killed = worker.killed
            one.given_up |= killed and bool(worker.machine)
            if not killed:
                self._timetable.answered(one.key, well=not isinstance(error, Retryable))
            worker.work = None
        if error is not None:
            self._answer(work, error)
            self.fail(one, error)
        if killed:
            worker.process.wait()
        with self._changed:
            worker.done += 1
            if error is None and not one.over:
                worker.served[one.key] = worker.done
                if one.backlog is not None:
                    self._stirred.add(one.key)
            else:
                worker.served.pop(one.key, None)
            self._timetable.back(one.key, work.kind)
            self._changed.notify_all()
        return not killed

    def _do_piece(self, worker: ConnectedWorker, work: Work) -> None:
        """Raises what the worker raised, and Dead when it did not say what became of the piece."""
        one, began = work.of, time.monotonic()
        worker.say(work.piece)
        while True:
            match (work.piece, worker.received()):
                case (Deliver(), Reached(spans)):
                    self._durable(one, Durable(one.spec.token, spans))
                case (Deliver(_, ranges), Delivered(spans, stats)):
                    assert one.backlog is not None
                    seconds = time.monotonic() - began
                    took = {"batch_ms": round(seconds * 1000)}
                    if work.bytes >= PIECE_BYTES_MIN:
                        one.bytes_per_s = work.bytes / seconds
                    one.backlog.done(ranges)
                    self._durable(one, Durable(one.spec.token, spans, {**stats, **took}))
                    return
                case (Begin(), Begun() as begun):
                    self._begun(one, begun)
                    return
                case (Load(), LoadDone(reports)):
                    self._answer(work, reports)
                    return
                case (_, Alive()):
                    one.beats.beat()
                case (_, Failed() as failed):
                    raise failed.error()
                case (_, message):
                    raise Dead(f"it said what it must not: {message!r:.200}")

    def _durable(self, one: Incarnation, report: Durable) -> None:
        if not one.over:
            self._failed.pop(one.spec.changefeed, None)
            self._tell(one, report)

    # --- what an incarnation does -------------------------------------------------------------------------

    def _begun(self, one: Incarnation, begun: Begun) -> None:
        if one.over:
            return
        self._tell(one, Started(begun.spans, begun.outlived))
        if one.spec.loads:
            one.loading = self._start(f"load of {one.spec.changefeed}", partial(self._load, one, begun))
        else:
            self._stream(one, begun)

    def _stream(self, one: Incarnation, begun: Begun) -> None:
        with self._changed:
            one.backlog = Backlog(one.spec, begun.spans)
            self._changed.notify_all()

    def _load(self, one: Incarnation, begun: Begun) -> None:
        """A thread of its own, for as long as the load takes."""
        try:
            ask, send = partial(self._ask, one), cast(Callable[[Any], None], one.send)
            InitialLoad(one.spec, self._cores, ask, send).run(begun.loaded)
            self._stream(one, begun)
        except Exception as error:
            self.fail(one, known(error, "The initial load failed.", one.spec.changefeed))

    def _ask(self, one: Incarnation, piece: Load) -> Sequence[LoadReport]:
        """Have a worker do a share of a load; waits for that."""
        answer: Future[Sequence[LoadReport]] = Future()
        words = f"{len(piece.share)} ranges of the initial load"
        with self._changed:
            if one.over:
                raise _over(one)
            self._loads.setdefault(one.key, deque()).append(Work(one, piece, Kind.LOAD, words, answer=answer))
            self._timetable.ask_load(one.key)
            self._changed.notify_all()
        return answer.result()

    def _answer(self, work: Work, found: Sequence[LoadReport] | TidegateError) -> None:
        if work.answer is None or work.answer.done():
            return
        if isinstance(found, TidegateError):
            work.answer.set_exception(found)
        else:
            work.answer.set_result(found)

    # --- signs of life ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Notice workers that have work and do nothing, idle ones that are gone, and jobs that bring none."""
        said: Working | None = None
        while True:
            time.sleep(WATCH_S)
            with self._changed:
                self._any_idle()
                busy = [(each, each.work) for each in self._workers if each.work is not None]
                out = {work.of.key for _, work in busy}
                waiting = [one for one in self._there.values() if self._waits(one, out)]
                working = self._working(busy, waiting)
                if self._workers and not self._waits_for_more():
                    self._short_since = time.monotonic()
            self._look_for_workers()
            if working != said:
                self._on_look(working)
                said = working
            for one in waiting:
                one.beats.beat()  # what it waits for is a worker
            for worker, work in busy:
                # A worker elsewhere says Alive on its line; its process id may be one of ours, too.
                beats = {} if worker.machine else read_beats(work.of.spec.beats_dir)
                self._watch_one(worker, work, beats.get(str(worker.process.pid)))
            self._replace_stuck()

    def _replace_stuck(self) -> None:
        """Start a spare worker for each that is stuck. It stays, so the next time it is there already."""
        jobs = self._jobs
        assert jobs is not None
        with self._changed:
            stuck = sum(each.is_stuck and each.work is not None for each in self._workers)
        wanted = self._least + min(stuck, jobs.spares())
        if not self._elsewhere and wanted > self._count:
            self._grown_at = time.monotonic()
            self._grow(jobs, wanted)

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
        return Working(len(self._workers), tuple(at_work), tuple(one.spec.changefeed for one in waiting))

    def _waits(self, one: Incarnation, out: Collection[Key]) -> bool:
        """Whether it waits for a worker, and for nothing that it has to do itself."""
        return not one.over and one.key not in out and (one.backlog is None or one.key in self._stirred)

    def _look_for_workers(self) -> None:
        silent = time.monotonic() - self._short_since
        if silent > (STARTS_AGAIN_S if self._hellos else STARTS_S):
            trouble = "" if self._jobs is None else self._jobs.trouble()
            raise Retryable(
                "Spark does not start a worker.", why=trouble or f"none has come for {silent:.0f} s"
            )

    def _watch_one(self, worker: ConnectedWorker, work: Work, beats: int | None) -> None:
        silence = worker.look(work, beats, time.monotonic())
        with self._changed:
            if worker.note(work, silence) and silence.is_hung and not worker.killed:
                self._kill(worker, work, hung(worker.who, work.words, silence.silent_s))

    def _start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """A thread. Whatever it raises ends `run`, and the application: else its part would stay undone."""

        def guarded() -> None:
            try:
                target()
            except Exception as error:
                with self._changed:
                    self._failure = self._failure or known(error, "A thread of the application failed.", name)
                    self._changed.notify_all()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread


def _without_frames(text: str) -> str:
    """What Java says, without where it says it, which is most of it."""
    kept = [line for line in text.splitlines() if not re.match(r"\s+at \S|\s+\.\.\. \d+ more", line)]
    return "\n".join(kept)[-1500:]


def _not_elsewhere(one: Incarnation, sink: Description) -> Fatal:
    return Fatal(
        "This changefeed cannot be delivered by a Spark cluster.",
        where=one.spec.changefeed,
        why="it writes to the capture's own disk" if sink.here else "nothing stops a writer of its sink",
        fix="run it on a capture with --spark-master local[*]",
    )


def failure(error: TidegateError) -> Failed:
    """As the control process wants it: only what is Fatal stops the changefeed."""
    said = Failed.of(error)
    return Failed(said.what, said.where, said.why, said.fix, retry=isinstance(error, Retryable | Fenced))


def known(error: Exception, what: str, where: str) -> TidegateError:
    """An error as one of ours; what nobody raised on purpose may go away."""
    if isinstance(error, TidegateError):
        return error
    return Retryable(what, where=where, why=repr(error)[:2000])


def _over(one: Incarnation) -> Fenced:
    return Fenced("This incarnation of the changefeed is over.", where=one.spec.changefeed)
