"""Where the host's workers come from: Spark jobs of one task each, on this machine or on others.

Each worker is a job of its own, because when a task fails, Spark ends the other tasks of its job as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tidegate.pipeline.exchange.lines import Line
from tidegate.pipeline.exchange.work import Tasks
from tidegate.pipeline.worker.worker import serve

Serve: TypeAlias = Callable[[Iterator[int]], None]


class Jobs(Protocol):
    """`LocalJobs`, or `cluster.ClusterJobs`."""

    def size(self) -> int:
        """How many workers can run now."""
        ...

    def spares(self) -> int:
        """How many spare workers can run besides `size`, to replace those whose sink does not answer."""
        ...

    def run(self) -> None:
        """Run one worker from its start to its end. Raises when Spark reports that it has failed."""
        ...

    def trouble(self) -> str:
        """Why the last worker that connected was refused; empty if it was not."""
        ...


class WorkerProcess(Protocol):
    """`processes.Process` here, `RemoteProcess` on another machine."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalJobs:
    """Jobs on this machine. Their workers connect to the host's socket."""

    context: Any
    """The SparkContext."""
    work: Serve
    count: int
    more: int = 0
    """How many spare workers Spark has room for in addition."""

    @classmethod
    def at(cls, socket: Path, context: Any, tasks: Tasks, count: int, spares: int = 0) -> LocalJobs:
        """Jobs for `count` workers that do these tasks for the host with this socket."""
        return cls(context, partial(serve, str(socket), tasks), count, spares)

    def size(self) -> int:
        return self.count

    def spares(self) -> int:
        return self.more

    def run(self) -> None:
        self.context.parallelize([0], 1).foreachPartition(self.work)

    def trouble(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class RemoteProcess:
    """A worker process on another machine, which the host cannot kill for certain.

    Its later writes do no harm: the host forgets the secret of the incarnation, the next writer in its slot
    fences it, and the process kills itself when its line ends. The host also asks Spark to kill it.
    """

    pid: int
    line: Line
    end_job: Callable[[], None]

    def kill(self) -> None:
        """End its line."""
        self.line.close()

    def wait(self) -> None:
        """Does nothing: the host cannot know whether the process has ended."""

    def close(self) -> None:
        """Cancel its Spark job, which does nothing if the process has ended."""
        self.end_job()
