"""The driver's end: workers that ask for work, and what waits of the feed, brought together.

    Backlog.take -> shares -> a worker each -> Reached, Delivered -> control process

The thread that calls `run` takes what is due and shares it among the workers that are free; each connection
has a thread, which hands the worker its share and passes on what it says. A range is with one worker at a
time, and the next one of its span is due when that one has said that it is durable. So no worker waits for
another. Whatever fails ends `run`, and with it the process: the next incarnation fences all workers of this
one and reads what is durable.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn, TypeAlias

from pyspark import SparkContext

from tidegate.errors import Retryable, TidegateError
from tidegate.ipc import Line, framed, socket_name
from tidegate.metrics import INTEGRITY_OUTCOMES
from tidegate.model.reports import Durable, Failed
from tidegate.pipeline.backlog import Backlog
from tidegate.pipeline.feed import FeedSpec
from tidegate.pipeline.ranges import Range
from tidegate.pipeline.work import (
    FROM_WORKER,
    Deliver,
    Delivered,
    Reached,
    Report,
    Task,
    WorkerHello,
    parse,
    to_json,
)
from tidegate.pipeline.worker import serve

Send: TypeAlias = Callable[[Durable], None]
Run: TypeAlias = Callable[[], None]
Serve: TypeAlias = Callable[[Iterator[int]], None]

SAY_S: Final = 5.0
"""A worker that fails says so before its task does; so long the driver waits for that."""


class Host:
    """One incarnation's workers. `run` once."""

    def __init__(self, spec: FeedSpec, starts: Mapping[str, int], send: Send) -> None:
        """`starts`: up to where each span is durable. `send`: tells the control process."""
        self._spec, self._send = spec, send
        self._backlog = Backlog(spec, starts, self._free)
        self._shares: queue.SimpleQueue[list[Range]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._waiting = 0
        """Workers without work."""
        self._failure: TidegateError | None = None

    def run(self, context: SparkContext, workers: int, spec_path: str, task: Task) -> NoReturn:
        """Deliver whatever comes with so many workers, until something fails: raises that."""
        path = self._spec.work_dir / "work.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            with socket_name(path) as name:
                listener.bind(name)
            path.chmod(0o600)  # nobody is answered before this
            listener.listen(workers)
            self._start("accept", partial(self._accept, listener))
            work = partial(serve, str(path), spec_path, task)
            for number in range(workers):
                self._start(f"spark-{number}", partial(self._keep_job, context, work))
            while True:
                for share in self._backlog.take():
                    with self._changed:
                        self._waiting -= 1
                    self._shares.put(share)

    def _free(self) -> int:
        """How many workers have no work; waits until one has none. Raises what has failed."""
        with self._changed:
            while not self._waiting and self._failure is None:
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            return self._waiting

    def _start(self, name: str, target: Run) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()

    def _keep_job(self, context: SparkContext, work: Serve) -> None:
        """A worker: a job of one task, so that it has no neighbours, whom Spark would end with it."""
        try:
            context.parallelize([0], 1).foreachPartition(work)
            why = "its task ended"
        except Exception as error:  # Py4J's, with the worker's trace as text
            why = str(error)[-4000:]
        time.sleep(SAY_S)
        self._fail(Retryable("A worker of the pipeline ended.", where=self._spec.changefeed, why=why))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError as error:
                self._fail(Retryable("The pipeline's workers cannot connect.", why=str(error)))
                return
            self._start("worker", partial(self._attend, Line(connected)))

    def _attend(self, line: Line) -> None:
        """Hand one worker share after share."""
        who = "a worker that has not said who it is"
        try:
            message = self._heard(line, who)
            if not isinstance(message, WorkerHello):
                raise Retryable("A worker of the pipeline does not say who it is.", why=repr(message))
            who = f"process {message.pid}"
            while True:
                with self._changed:
                    self._waiting += 1
                    self._changed.notify_all()
                self._backlog.stir()
                self._attend_share(line, self._shares.get(), who)
        except TidegateError as error:
            self._fail(error)
        except Exception as error:  # a defect must end the process with its reason, not leave a worker idle
            self._fail(Retryable("The driver failed at a worker.", where=who, why=repr(error)))

    def _attend_share(self, line: Line, share: Sequence[Range], who: str) -> None:
        began = time.monotonic()
        try:
            line.send(framed(to_json(Deliver(tuple(share)))))
        except OSError as error:
            raise Retryable("A worker of the pipeline has died.", where=who, why=str(error)) from error
        while True:
            match self._heard(line, who):
                case Reached(spans):
                    self._send(Durable(self._spec.token, spans))
                case Delivered(reports):
                    self._send(durable(self._spec, reports, time.monotonic() - began))
                    self._backlog.done(share)
                    return
                case message:
                    raise Retryable("A worker of the pipeline said what it must not.", why=repr(message))

    def _heard(self, line: Line, who: str) -> WorkerHello | Reached | Delivered:
        """What a worker says; raises it where that is an error."""
        try:
            found = line.receive()
            message = None if found is None else parse(found, FROM_WORKER)
        except ValueError as error:
            raise Retryable(
                "A worker of the pipeline sent what is no message.", where=who, why=str(error)
            ) from error
        if message is None:
            raise Retryable("A worker of the pipeline has died.", where=who, why="its connection has ended")
        if isinstance(message, Failed):
            raise message.error()
        return message

    def _fail(self, error: TidegateError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
        self._backlog.stir()


def durable(spec: FeedSpec, reports: Sequence[Report], took_s: float) -> Durable:
    """What the control process hears of a piece of work: what is durable, and what was done."""
    names = ("rows", "messages", "bytes", "quarantined", *INTEGRITY_OUTCOMES, "misencoded")
    stats = {name: sum(getattr(one, name) for one in reports) for name in names}
    times = {"batch_ms": round(took_s * 1000), "lag_ms": max(one.lag_ms for one in reports)}
    return Durable(spec.token, {one.span: one.ts for one in reports}, stats | times)
