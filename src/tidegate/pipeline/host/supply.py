"""Keeps the Spark jobs of workers running, and accepts their connections.

    Jobs.run (a thread for each) --> a process --> socket --> ConnectedWorker --> `serve_worker`
         ^-------- again, whenever it has ended

On this machine there are as many workers as `Jobs.size` says, and a spare one for each worker whose sink does
not answer, up to `Jobs.spares`. On a cluster the number of workers follows its size, and they connect through
`service`.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.errors import Retryable
from tidegate.ipc import FramedSocket, socket_name
from tidegate.pipeline.exchange.lines import Line
from tidegate.pipeline.exchange.work import ElsewhereHello, WorkerHello, parse
from tidegate.pipeline.host.connected_worker import ConnectedWorker
from tidegate.pipeline.host.failures import known
from tidegate.pipeline.host.jobs import Jobs, RemoteProcess, WorkerProcess
from tidegate.pipeline.host.threads import Threads
from tidegate.pipeline.host.workforce import Workforce

SPARE_S: Final = 2.0
"""For this time after the start of a spare worker no slow worker is killed: the spare may be enough."""
PAUSE_MAX_S: Final = 5.0
"""The longest pause between two jobs that fail at once."""
SHORT_S: Final = 5.0
"""A job that ends sooner counts as failed."""
FAILURES_MAX: Final = 3
"""After this number of consecutive failures, with no worker connected, the application ends."""
SIZE_S: Final = 5.0
"""The pause between two looks at how many workers a cluster has room for."""
LISTEN_MAX: Final = 128
"""How many connections of local workers may wait to be accepted: `2 * cores + 2` workers, and as many spares.
"""
STARTS_S: Final = 600.0
"""How long the first worker may take to connect: kernels may have to be compiled."""
STARTS_AGAIN_S: Final = 60.0
"""How long a later worker may take. If none connects, Spark's JVM or its daemon hangs."""


class Supply:
    """Keeps a host supplied with workers. Call `open` once; any thread may call the other methods."""

    def __init__(
        self,
        threads: Threads,
        workforce: Workforce,
        address: Path,
        opened: Callable[[int], WorkerProcess],
        serve_worker: Callable[[ConnectedWorker], None],
        resize: Callable[[int], None],
        *,
        elsewhere: bool,
    ) -> None:
        """`address`: the socket where workers of this machine connect. `opened`: opens a handle of the
        process with a pid. `serve_worker`: gives a worker pieces until it is gone. `resize`: called with the
        number of cores of a cluster, at first and whenever it has changed.
        """
        self._threads, self._changed, self._workforce = threads, threads.changed, workforce
        self._address, self._opened = address, opened
        self._serve_worker, self._resize, self._elsewhere = serve_worker, resize, elsewhere
        self._jobs: Jobs | None = None
        self._kept = 0
        """How many jobs are kept running."""
        self._least = 0
        """How many workers must be connected, without spares. 0 on a cluster."""
        self._spare_at = float("-inf")
        """When a spare worker was last started (monotonic)."""
        self._complete_at = 0.0
        """When no required worker was missing for the last time (monotonic)."""

    def open(self, jobs: Jobs) -> None:
        """Start the workers of these jobs, and start each one again whenever it has ended."""
        self._jobs = jobs
        self._complete_at = time.monotonic()
        if self._elsewhere:
            self._threads.start("size", partial(self._keep_size, jobs))
        else:
            self._listen()
            self._least = jobs.size()
            self._grow(jobs, self._least)

    def check(self) -> None:
        """Raise Retryable if a required worker, or on a cluster every worker, is missing for too long, and
        the host's error, if it has one.
        """
        with self._changed:
            self._threads.check()
            now = time.monotonic()
            if len(self._workforce) and not self._is_one_missing():
                self._complete_at = now
            # A worker that came lately shows that Spark still starts them, even if another one is missing.
            silent = now - max(self._complete_at, self._workforce.came_at)
            patience = STARTS_AGAIN_S if self._workforce.came else STARTS_S
        if silent > patience:
            trouble = "" if self._jobs is None else self._jobs.trouble()
            raise Retryable(
                "Spark does not start a worker", why=trouble or f"none has come for {silent:.0f} s"
            )

    def replace_stuck(self) -> None:
        """Start a spare worker for each stuck one. Spares stay, so they are there the next time."""
        jobs = self._jobs
        assert jobs is not None, "it is open"
        with self._changed:
            stuck = self._workforce.stuck()
        wanted = self._least + min(stuck, jobs.spares())
        # On a cluster a spare worker would take a core from another one.
        if not self._elsewhere and wanted > self._kept:
            self._spare_at = time.monotonic()
            self._grow(jobs, wanted)

    @property
    def enough(self) -> float:
        """As many moving workers are enough, although others wait for their sinks: half of those that are
        required, and one more. Infinite on a cluster, where none is required.
        """
        return self._least // 2 + 1 if self._least else float("inf")

    def is_one_coming(self, now: float) -> bool:
        """Whether a worker may connect in a moment, because a required one is missing or a spare one was just
        started. Under the lock.
        """
        return self._is_one_missing() or now - self._spare_at < SPARE_S

    def come_elsewhere(self, line: Line, hello: ElsewhereHello, end_job: Callable[[], None]) -> None:
        """Attend a worker on another machine until it has ended or was given up."""
        process = RemoteProcess(hello.pid, line, end_job)
        try:
            self._serve_worker(ConnectedWorker(line, process, machine=hello.machine or "?"))
        except Exception as error:  # as in `Threads.start`: an unexpected error ends the host
            self._threads.fail(known(error, "a worker was lost", hello.machine))

    def _is_one_missing(self) -> bool:
        """Whether a required worker is missing. On a cluster none is required, because it may have lost
        machines. A spare one is not required either: if a machine has no memory for a spare one, the
        application must not end.
        """
        return len(self._workforce) < self._least and not self._elsewhere

    def _keep_size(self, jobs: Jobs) -> None:
        """Keep a job running for each core of the cluster, whose number may change at any time."""
        before: int | None = None
        while True:
            self._threads.check()
            size = jobs.size()
            # Also while nothing is kept: the cluster may have had no core at the first look.
            if size != before or not self._kept:
                before = size
                self._resize(size)
                self._grow(jobs, size)
            time.sleep(SIZE_S)

    def _grow(self, jobs: Jobs, size: int) -> None:
        for number in range(self._kept, size):
            self._threads.start(f"spark-{number}", partial(self._keep_job, jobs))
        # Never fewer: jobs that run are not taken back.
        self._kept = max(self._kept, size)

    def _keep_job(self, jobs: Jobs) -> None:
        """Keep one worker, a job of one task, running: when it has ended, start another one."""
        failures = 0
        while True:
            self._threads.check()  # a host that has failed needs no worker
            began = time.monotonic()
            try:
                jobs.run()
                why = "its task ended"
            except Exception as error:  # Py4J's, with the worker's trace as text
                why = _without_frames(str(error))
            # A job that worked for a while has shown that workers can start.
            failures = failures + 1 if time.monotonic() - began < SHORT_S else 0
            # While another worker is connected the application can continue.
            if failures >= FAILURES_MAX and not len(self._workforce):
                raise Retryable("Spark starts no workers", why=jobs.trouble() or why)
            if failures:
                time.sleep(min(PAUSE_MAX_S, 0.1 * 2**failures))

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_name(self._address) as name:
            listener.bind(name)
        self._address.chmod(0o600)  # before `listen`: no other user may connect
        listener.listen(LISTEN_MAX)
        self._threads.start("accept", partial(self._accept, listener))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connected, _ = listener.accept()
            self._threads.start("worker", partial(self._come, FramedSocket(connected)))

    def _come(self, line: FramedSocket) -> None:
        try:
            hello = parse(line.receive() or {}, [WorkerHello])
            worker = ConnectedWorker(line, self._opened(hello.pid))
        except (ValueError, OSError):
            line.close()  # if it was a worker, its job ends now, and `_keep_job` starts another one
            return
        self._serve_worker(worker)


def _without_frames(text: str) -> str:
    """The text of a Java error without its stack frames, which are the longest part of it."""
    kept = [line for line in text.splitlines() if not re.match(r"\s+at \S|\s+\.\.\. \d+ more", line)]
    return "\n".join(kept)[-1500:]
