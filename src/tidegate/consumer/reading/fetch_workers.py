"""Fetches ranges in a few processes of our own, without Spark and a JVM.

A worker runs `main`: it reads requests from its standard input and writes answers to its standard output,
each a length and a pickle. No one else has these pipes. A worker ends when this process ends, also when it is
killed. Its own output goes to a log. A worker that died is restarted for its next range.

Why processes and not threads: decoding is compiled, but fetching and staging hold the interpreter's lock. Why
not `multiprocessing`: its children would import the user's own script once more.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue
from types import ModuleType
from typing import IO, Any, Final

import pyarrow as pa

from tidegate import program
from tidegate.consumer.engine.fetched import Fetched, Range
from tidegate.consumer.reading.fetch import fetch
from tidegate.consumer.reading.source import Topic
from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.launcher import bound

LOG: Final = "workers.log"
"""File name, in the consumer's folder, of what the workers print."""
_LENGTH: Final = struct.Struct("<Q")
_END_S: Final = 5.0


class Workers:
    """`count` processes, each started when it is first needed."""

    def __init__(self, count: int, log: Path) -> None:
        self._log = log
        self._all = [_Worker(log) for _ in range(count)]
        self._idle: Queue[_Worker] = Queue()
        for worker in self._all:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="ask")

    def fetch(self, topic: Topic, ranges: Sequence[Range], staging: Path) -> list[Fetched]:
        """Give each range to the next idle worker."""
        return list(self._threads.map(partial(self._one, topic, staging), ranges))

    def _one(self, topic: Topic, staging: Path, wanted: Range) -> Fetched:
        worker = self._idle.get()
        try:
            return worker.ask(topic, wanted, staging)
        finally:
            self._idle.put(worker)

    def cancel(self) -> None:
        """Kill the processes, so that running requests fail."""
        for worker in self._all:
            worker.end()

    def translated(self, error: Exception) -> TidegateError:
        """An error that a worker raised as one of ours."""
        if isinstance(error, TidegateError):
            return error
        return Fatal(
            "the topic cannot be read",
            where=f"the workers' log is {self._log}",
            why=f"{type(error).__name__}: {error}"[:500],
            fix="restart the consumer; it resumes from the target's position",
        )

    def close(self) -> None:
        """End processes and threads."""
        self.cancel()
        self._threads.shutdown()
        self.cancel()  # a thread may have restarted a process meanwhile


@dataclass(frozen=True, slots=True)
class _Raised:
    """An error as a worker returns it. Exceptions with keyword arguments lose them when they are pickled."""

    kind: type[Exception]
    what: str
    where: str = ""
    why: str = ""
    fix: str = ""

    @classmethod
    def of(cls, error: Exception) -> _Raised:
        if isinstance(error, TidegateError):
            return cls(type(error), error.what, error.where, error.why, error.fix)
        return cls(RuntimeError, f"{type(error).__name__}: {error}")

    def error(self) -> Exception:
        if issubclass(self.kind, TidegateError):
            return self.kind(self.what, where=self.where, why=self.why, fix=self.fix)
        return self.kind(self.what)


class _Worker:
    """One process; it gets one request at a time."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, topic: Topic, wanted: Range, staging: Path) -> Fetched:
        """The worker's answer. Raises the worker's error, or Retryable when its process has ended."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, (topic, wanted, staging))
            answer = _received(process.stdout)
        except (BrokenPipeError, EOFError):
            code = process.wait()
            raise Retryable(
                "a process that fetches from Kafka has ended",
                where=f"{topic.where(wanted.partition)}; its log is {self._log}",
                why=f"signal {-code}" if code < 0 else f"exit code {code}",
                fix="nothing: it is restarted; if it ends again and again, check the log and the machine's "
                "memory",
            ) from None
        if isinstance(answer, Fetched):
            return answer
        raise answer.error()

    def _running(self) -> subprocess.Popen[bytes]:
        # `end` runs in another thread, and must not miss a process that is just being started.
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                with self._log.open("ab") as log:
                    command = bound(program.command(__name__), signal.SIGKILL)
                    self._process = subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
                    )
            return self._process

    def end(self) -> None:
        """Kill the process."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait(_END_S)


@contextmanager
def workers(count: int, log: Path) -> Iterator[Workers]:
    """Workers until the end of the context."""
    made = Workers(count, log)
    try:
        yield made
    finally:
        made.close()


def _send(pipe: IO[bytes], what: Any) -> None:
    # The length first: a pipe may give any part of the bytes, and a worker that was killed in the middle
    # leaves a part.
    body = pickle.dumps(what)
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def _received(pipe: IO[bytes]) -> Any:
    """EOFError when the other side has ended."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    body = pipe.read(length)
    if len(body) < length:
        raise EOFError
    return pickle.loads(body)


def _leave_out_pandas() -> None:
    """Let Arrow find a pandas that is too old for it, if it has not looked for one yet.

    For the first array that it makes, Arrow imports pandas, if it is installed: 0.3 s of CPU in each process.
    A worker decodes with Arrow and numpy alone, and whatever imports pandas itself still gets it.
    """
    if "pandas" not in sys.modules:
        sys.modules["pandas"] = old = ModuleType("pandas")
        vars(old)["__version__"] = "0.0"
        with warnings.catch_warnings(action="ignore"):
            pa.array([0])
        del sys.modules["pandas"]


def main() -> None:
    """The main function of a worker; returns when its standard input ends."""
    from tidegate.spark.daemon import keep_freed_memory

    _leave_out_pandas()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the consumer, which ends its workers
    keep_freed_memory()
    while True:
        try:
            topic, wanted, staging = _received(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Fetched | _Raised = fetch(topic, wanted, staging)
        except Exception as error:
            traceback.print_exc()
            answer = _Raised.of(error)
        _send(answers, answer)
