"""One incarnation of one changefeed in an application of its own, for tests and benchmarks.

    python -m tidegate.pipeline.job SPEC_JSON [MASTER]

A capture has one application for all changefeeds instead (`pipeline.application`); the rest is the same.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, MappingProxyType

from tidegate.errors import TidegateError
from tidegate.ipc import ControlClient
from tidegate.model.reports import PipelineHello
from tidegate.pipeline.application import TASKS, cores_of, session
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.work import Tasks
from tidegate.pipeline.host.host import Host
from tidegate.pipeline.host.incarnation import Incarnation
from tidegate.pipeline.host.jobs import LocalJobs
from tidegate.pipeline.host.timetable import workers_for


def run(
    path: Path,
    master: str = "local[*]",
    tasks: Tasks = TASKS,
    trial: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run until the incarnation ends, then exit the process; the exit code is 1 after an error.

    `trial`: as in `open_session`.
    """
    signal.signal(signal.SIGTERM, _stop)
    spec = FeedSpec.load(path)
    spec.work_dir.mkdir(parents=True, exist_ok=True)
    client = ControlClient(spec.socket_path, PipelineHello(spec.changefeed, spec.incarnation, os.getpid()))
    over: list[TidegateError | None] = []
    ended = threading.Event()

    def on_over(one: Incarnation) -> None:
        over.append(one.error)
        ended.set()

    host = Host(spec.work_dir, cores_of(master), on_over)
    host.begin(Incarnation(spec, str(path), client.send, client.close))
    failed: list[Exception] = []

    context = session(master, spec.work_dir, trial).sparkContext

    def work() -> None:
        try:
            host.run(LocalJobs.at(host.socket, context, tasks, workers_for(cores_of(master))))
        except Exception as error:
            failed.append(error)
            ended.set()

    # Python runs handlers of signals in the main thread, so that thread only waits.
    threading.Thread(target=work, name="host", daemon=True).start()
    ended.wait()
    error = failed[0] if failed else over[0]
    if error is not None:
        print(error)
    os._exit(1 if error is not None else 0)  # an ordinary exit would wait for threads that serve workers


def _stop(number: int, frame: FrameType | None) -> None:
    os._exit(0)


if __name__ == "__main__":
    run(Path(sys.argv[1]), "".join(sys.argv[2:3]) or "local[*]")
