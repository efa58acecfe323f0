"""The driver's end: workers that ask for work, and what waits of the feed, brought together.

    Backlog.take -> shares -> a worker each -> Reached, Delivered -> control process

The thread that calls `run` takes what is due and shares it among the workers that are free; each connection
has a thread, which hands the worker its share and passes on what it says. A range is with one worker at a
time, and the next one of its span is due when that one has said that it is durable. So no worker waits for
another.

Whatever fails ends `run`, and with it the process: the next incarnation fences all workers of this one and
reads what is durable. A worker that has work and gives no sign of life fails, too: the control process, which
looks for signs of life of the pipeline as a whole, does not miss one of several.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NoReturn, TypeAlias

from pyspark import SparkContext

from tidegate.control.watchdog import Watchdog
from tidegate.errors import Retryable, TidegateError
from tidegate.ipc import FramedSocket, framed, socket_name
from tidegate.model.reports import Durable, Failed
from tidegate.pipeline.backlog import Backlog
from tidegate.pipeline.beats import read_beats
from tidegate.pipeline.feed import FeedSpec
from tidegate.pipeline.ranges import Range
from tidegate.pipeline.work import (
    FROM_WORKER,
    Deliver,
    Delivered,
    Reached,
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
LOOK_S: Final = 0.5
"""Between two looks for signs of life."""


@dataclass(slots=True)
class ConnectedWorker:
    """What the driver knows of one."""

    line: FramedSocket
    pid: int = 0
    work: str = ""
    """What it has to do, in words."""
    said: int = 0
    """Messages."""
    has_delivered: bool = False
    dog: Watchdog = field(default_factory=Watchdog)

    @property
    def who(self) -> str:
        """For people."""
        return f"a worker ({self.pid})" if self.pid else "a worker that has not said who it is"


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
        self._workers: list[ConnectedWorker] = []

    def run(self, context: SparkContext, workers: int, spec_path: str, task: Task) -> NoReturn:
        """Deliver whatever comes with so many workers, until something fails: raises that."""
        path = self._spec.work_dir / "work.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            with socket_name(path) as name:
                listener.bind(name)
            path.chmod(0o600)  # nobody is answered before this
            listener.listen(workers)
            self._start("accept", partial(self._accept, listener))
            self._start("signs-of-life", self._watch)
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
        """A thread of the driver's. Whatever ends it early ends `run`: else its part would stay undone."""

        def guarded() -> None:
            try:
                target()
            except TidegateError as error:
                self._fail(error)
            except Exception as error:
                self._fail(
                    Retryable("A thread of the pipeline's driver failed.", where=name, why=repr(error))
                )

        threading.Thread(target=guarded, name=name, daemon=True).start()

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
            connected, _ = listener.accept()
            one = ConnectedWorker(FramedSocket(connected))
            self._workers.append(one)
            self._start("worker", partial(self._attend, one))

    def _watch(self) -> None:
        """Fail when one of several has work and does nothing: the others go on, and would hide it."""
        own = self._spec.config.tidegate
        while self._failure is None:
            time.sleep(LOOK_S)
            beats = read_beats(self._spec.beats_dir)
            for one in self._workers:
                patience = own.stall_timeout if one.has_delivered else own.start_timeout
                signs = one.said, beats.get(str(one.pid))
                hung = one.dog.step(time.monotonic(), one.work, signs, patience)
                if hung is not None:
                    self._fail(
                        Retryable(
                            "[CDC:ErrPipelineHung]a worker of the pipeline has work and has done nothing for "
                            f"{hung.silent_s:.0f} s.",
                            where=one.who,
                            why=f"it has to deliver {hung.work}",
                            fix="nothing: all processes of the pipeline are killed and started again, and "
                            "nothing is lost; on a machine that is only too slow raise stall-timeout, or "
                            "start-timeout, in [tidegate]",
                        )
                    )

    def _attend(self, one: ConnectedWorker) -> None:
        """Hand one worker share after share."""
        message = self._heard(one)
        if not isinstance(message, WorkerHello):
            raise Retryable("A worker of the pipeline does not say who it is.", why=repr(message))
        one.pid = message.pid
        share: list[Range] = []
        while True:
            with self._changed:
                self._waiting += 1
                self._changed.notify_all()
            self._backlog.done(share)
            share = self._shares.get()
            one.work = share[0].span + (f" and {len(share) - 1} more" if len(share) > 1 else "")
            self._attend_share(one, share)
            one.work, one.has_delivered = "", True

    def _attend_share(self, one: ConnectedWorker, share: Sequence[Range]) -> None:
        began = time.monotonic()
        try:
            one.line.send(framed(to_json(Deliver(tuple(share)))))
        except OSError as error:
            raise Retryable("A worker of the pipeline has died.", where=one.who, why=str(error)) from error
        while True:
            match self._heard(one):
                case Reached(spans):
                    self._send(Durable(self._spec.token, spans))
                case Delivered(spans, stats):
                    took = {"batch_ms": round((time.monotonic() - began) * 1000)}
                    self._send(Durable(self._spec.token, spans, {**stats, **took}))
                    return
                case message:
                    raise Retryable("A worker of the pipeline said what it must not.", why=repr(message))

    def _heard(self, one: ConnectedWorker) -> WorkerHello | Reached | Delivered:
        """What a worker says; raises it where that is an error."""
        try:
            found = one.line.receive()
            message = None if found is None else parse(found, FROM_WORKER)
        except ValueError as error:
            raise Retryable(
                "A worker of the pipeline sent what is no message.", where=one.who, why=str(error)
            ) from error
        if message is None:
            raise Retryable(
                "A worker of the pipeline has died.", where=one.who, why="its connection has ended"
            )
        if isinstance(message, Failed):
            raise message.error()
        one.said += 1
        return message

    def _fail(self, error: TidegateError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
        self._backlog.stir()
