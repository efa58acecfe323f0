"""Where the host's workers come from: Spark jobs of one task each, on this machine or on others.

A job of one task has no neighbours, whom Spark would end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tidegate.pipeline.lines import Line
from tidegate.pipeline.work import Tasks
from tidegate.pipeline.worker import serve

Serve: TypeAlias = Callable[[Iterator[int]], None]


class Jobs(Protocol):
    """`LocalJobs`, or `cluster.ClusterJobs`."""

    def size(self) -> int:
        """How many workers there can be now."""
        ...

    def spares(self) -> int:
        """How many more there can be, in place of those whose sink does not answer."""
        ...

    def run(self) -> None:
        """One worker, from its start to its end. Raises when Spark says that it has failed."""
        ...

    def trouble(self) -> str:
        """Why workers that have come were sent away; empty: none was."""
        ...


class WorkerProcess(Protocol):
    """`processes.Process` here, `Elsewhere` on another machine."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalJobs:
    """Their workers connect to the host's socket."""

    context: Any
    """Spark's."""
    work: Serve
    count: int
    more: int = 0
    """For which Spark has room besides."""

    @classmethod
    def at(cls, socket: Path, context: Any, tasks: Tasks, count: int, spares: int = 0) -> LocalJobs:
        """So many workers that do these tasks for the host with this socket."""
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
class Elsewhere:
    """A process that nobody here can kill for certain.

    Nobody counts on what it still does: its secret is forgotten with its incarnation, the next writer in its
    slot fences it, and it ends itself when its line does. Spark is asked to kill it, too.
    """

    pid: int
    line: Line
    end_job: Callable[[], None]

    def kill(self) -> None:
        """End its line."""
        self.line.close()

    def wait(self) -> None:
        """Whether it has ended cannot be known."""

    def close(self) -> None:
        """Have Spark end its job, whether or not it has ended itself."""
        self.end_job()
