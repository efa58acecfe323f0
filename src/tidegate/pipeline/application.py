"""The application: a process of the capture that delivers all its changefeeds, with one Spark session.

    python -m tidegate.program tidegate.pipeline.application CONTROL_SOCKET WORK_DIR
        [MASTER [ADDRESS PYTHON NAMES]]

    event stores --> Backlog --> Host --> workers: read > mount > split > dispatch > encode > sink
                                    --> reports, a connection for each incarnation --> control process

Spark starts the workers, one job of one task each, and they stay. A worker asks the host for work
(`pipeline.host.host`) and gets descriptors of key ranges. It opens the segments, decodes, dispatches, encodes
and delivers; the application itself handles no rows. A streaming query, or a Spark job for each batch, would
cost tens of milliseconds a batch and add nothing: Tidegate itself keeps offsets, admission and restarts, and
the progress is in the sink.

Exactly-once: a new incarnation first fences every writer of earlier incarnations, then reads the progress
that was committed with the rows, and resumes there. The control process decides which incarnations run; with
Ended the application reports that no process works for one any more.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Final, assert_never

from pyspark.sql import SparkSession

from tidegate.errors import TidegateError
from tidegate.ipc import ControlClient
from tidegate.model.reports import TO_APPLICATION, ApplicationHello, End, Ended, PipelineHello, Run
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.work import Tasks
from tidegate.pipeline.host.failures import failure, known
from tidegate.pipeline.host.host import Host
from tidegate.pipeline.host.incarnation import Incarnation
from tidegate.pipeline.host.jobs import Jobs, LocalJobs
from tidegate.pipeline.host.supply import STARTS_S
from tidegate.pipeline.host.timetable import spares_for, workers_for
from tidegate.pipeline.remote.cluster import ClusterJobs, cluster_session
from tidegate.pipeline.remote.service import Service
from tidegate.pipeline.worker.kept import begin, deliver, rest
from tidegate.pipeline.worker.load_task import load
from tidegate.spark.session import open_session
from tidegate.tls import Tls

DAEMON: Final = "tidegate.pipeline.daemon"
TASKS: Final = Tasks(begin, deliver, load, rest)
LOCAL: Final = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:, *\d+)?\])?")


class Application:
    """Passes the commands of the control process to the host."""

    def __init__(
        self, socket: Path, control: ControlClient, folder: Path, cores: int, *, elsewhere: bool
    ) -> None:
        """`folder`: for the workers' socket. `elsewhere`: whether the workers will be on other machines."""
        self._socket, self._control = socket, control
        self.host = Host(folder, cores, self._ended, control.send, elsewhere=elsewhere)

    def listen(self) -> None:
        """Follow the commands of the control process until it is gone."""
        while (message := self._control.receive(TO_APPLICATION)) is not None:
            match message:
                case Run():
                    self._run(message)
                case End(changefeed, incarnation):
                    self.host.end((changefeed, incarnation))
                case _:
                    assert_never(message)

    def _run(self, wanted: Run) -> None:
        """Begin an incarnation. Incarnations begin one after another, so that an End is handled after its
        Run, and the control process never gets many connections at the same time.
        """
        client: ControlClient | None = None
        try:
            hello = PipelineHello(wanted.changefeed, wanted.incarnation, os.getpid())
            client = ControlClient(self._socket, hello)
            spec = FeedSpec.load(Path(wanted.spec))
            self.host.begin(Incarnation(spec, wanted.spec, client.send, client.close))
        except Exception as error:
            if client is not None:
                with suppress(TidegateError):
                    client.send(failure(known(error, "the changefeed cannot begin", wanted.spec)))
                client.close()
            # Also for one that has not begun: the control process waits for Ended before it begins the next.
            self._control.send(Ended(wanted.changefeed, wanted.incarnation))

    def _ended(self, one: Incarnation) -> None:
        one.close()
        self._control.send(Ended(*one.key))


def cores_of(master: str) -> int:
    """How many cores a master gives us, as far as that is known before Spark has started."""
    found = LOCAL.fullmatch(master)
    if found is not None and found["cores"] != "*":
        return int(found["cores"] or 1)
    # Not the machine's cores, because a container's set of cores or `taskset` may allow fewer.
    return len(os.sched_getaffinity(0))


def session(master: str, work_dir: Path, trial: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """A session with task slots for all workers, more than cores: a worker that waits uses no core."""
    if LOCAL.fullmatch(master):
        cores = cores_of(master)
        master = f"local[{workers_for(cores) + spares_for(cores)}]"
    return open_session("tidegate", master, work_dir, DAEMON, trial=trial)


@dataclass(frozen=True, slots=True)
class Workers:
    """How workers on other machines reach this one, and which are admitted."""

    address: str
    """host:port at which the service listens; port 0 takes a free one."""
    python: str
    """The interpreter on their machines."""
    names: tuple[str, ...] = ()
    """Common names that their certificates may have; empty: any certificate of the CA is accepted."""


def started(open_spark: Callable[[], SparkSession]) -> SparkSession:
    """Open a session. If that takes longer than `STARTS_S`, end this process: its supervisor restarts it."""
    # The start waits within PySpark for the JVM, where nothing else could interrupt it.
    late = threading.Timer(STARTS_S, os._exit, (1,))
    late.daemon = True
    late.start()
    try:
        return open_spark()
    finally:
        late.cancel()


def run(socket: Path, work_dir: Path, master: str = "local[*]", workers: Workers | None = None) -> None:
    """Run until SIGTERM, the end of the control process, or a failure of Spark. Ends the process."""
    signal.signal(signal.SIGTERM, _stop)
    control = ControlClient(socket, ApplicationHello(os.getpid()))
    shutil.rmtree(work_dir, ignore_errors=True)  # files of an earlier application
    # For this user alone: the socket in it hands out work.
    work_dir.mkdir(mode=0o700, parents=True)
    application = Application(socket, control, work_dir, cores_of(master), elsewhere=workers is not None)
    listening = threading.Thread(target=_listen, args=(application,), name="control", daemon=True)
    try:
        # Listen before Spark has started, which takes seconds: what begins meanwhile waits for workers.
        listening.start()
        application.host.run(_jobs(application.host, work_dir, master, workers))
    except Exception as error:
        with suppress(TidegateError):
            control.send(failure(known(error, "the application failed", master)))
        traceback.print_exc()
        # An ordinary exit would wait for the threads that serve workers.
        os._exit(1)


def _jobs(host: Host, work_dir: Path, master: str, workers: Workers | None) -> Jobs:
    """The jobs of the workers, here or on a cluster. Spark has started on return."""
    if workers is None:
        context = started(lambda: session(master, work_dir)).sparkContext
        cores = cores_of(master)
        return LocalJobs.at(host.socket, context, TASKS, workers_for(cores), spares_for(cores))
    service = Service(host, workers.address, Tls.from_environment(), workers.names)
    service.start()
    name = service.address.rpartition(":")[0]
    context = started(lambda: cluster_session(master, work_dir, DAEMON, name, workers.python)).sparkContext
    return ClusterJobs(context, service)


def _listen(application: Application) -> None:
    """Follow commands; when the control process is gone, end this process."""
    try:
        application.listen()
    finally:
        os._exit(1)


def _stop(number: int, frame: FrameType | None) -> None:
    # Exit at once: an orderly stop of Spark takes seconds and is not needed. The next incarnation writes
    # again what was not committed.
    os._exit(0)


def main() -> None:
    """Run the application with the arguments of the command line."""
    given = sys.argv[3:]
    elsewhere = Workers(given[1], given[2], tuple(filter(None, given[3].split(",")))) if given[1:] else None
    run(Path(sys.argv[1]), Path(sys.argv[2]), given[0] if given else "local[*]", elsewhere)
