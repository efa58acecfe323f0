"""The host: gives the waiting work of all changefeeds to the workers of the application.

    Supply ----------> starts and replaces the processes of workers
    Incarnations ----> the changefeeds' work, from begin to end; reports to the control process
    Placement -------> decides which piece goes to which worker
    Conversation ----> a thread for each worker: sends its piece, and passes on the result
    SignsOfLife -----> notices workers that make no progress, and kills them
    Workforce -------> knows which workers are connected, and which are free

The parts share one lock (`threads`). Each file can be read alone; this one only puts them together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidegate.model.reports import Working
from tidegate.pipeline.exchange.lines import Line
from tidegate.pipeline.exchange.work import ElsewhereHello, Lease
from tidegate.pipeline.host.conversation import Conversation
from tidegate.pipeline.host.incarnation import Incarnation, Key
from tidegate.pipeline.host.incarnations import Incarnations, Over
from tidegate.pipeline.host.jobs import Jobs, WorkerProcess
from tidegate.pipeline.host.load_requests import LoadRequests
from tidegate.pipeline.host.placement import Placement
from tidegate.pipeline.host.processes import Process
from tidegate.pipeline.host.signs_of_life import SignsOfLife
from tidegate.pipeline.host.supply import Supply
from tidegate.pipeline.host.threads import Threads
from tidegate.pipeline.host.timetable import Timetable
from tidegate.pipeline.host.workforce import Workforce


class Host:
    """The workers of one application, and the incarnations that they work for. Call `run` once."""

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
        """`folder`: for its socket. `on_over`: called with each incarnation that has ended, once no process
        works for it. `on_look`: called with the current work of all workers, whenever that has changed.
        `opened`: opens a handle of the process with a pid. `elsewhere`: whether its workers will be on other
        machines.
        """
        self.socket = folder / "work.sock"
        """The socket to which workers on this machine connect."""
        self._threads = threads = Threads()
        timetable: Timetable[Key] = Timetable(cores)
        self._workforce = workforce = Workforce()
        self._requests = LoadRequests(threads, timetable, cores)
        self._incarnations = incarnations = Incarnations(
            threads, timetable, workforce, self._requests, cores, on_over, elsewhere=elsewhere
        )
        serve_worker = Conversation(threads, timetable, workforce, incarnations).serve_worker
        self._supply = Supply(
            threads, workforce, self.socket, opened, serve_worker, incarnations.resize, elsewhere=elsewhere
        )
        self._signs = SignsOfLife(threads, timetable, workforce, incarnations, self._supply, on_look)
        self._placement = Placement(threads, timetable, workforce, incarnations, self._requests, self._signs)

    def begin(self, one: Incarnation) -> None:
        """Have a worker fence earlier incarnations and read the progress, then deliver until it is over."""
        self._incarnations.begin(one)

    def end(self, key: Key) -> None:
        """End an incarnation; `on_over` is called when that is done. An unknown key has ended already."""
        self._incarnations.end(key)

    def run(self, jobs: Jobs) -> None:
        """Give work to the workers of these jobs until the application itself fails; raises its error."""
        self._supply.open(jobs)
        self._threads.start("signs-of-life", self._signs.watch)
        self._placement.run()

    # --- for workers elsewhere: `remote.service`

    def serve_elsewhere(self, line: Line, hello: ElsewhereHello, end_job: Callable[[], None]) -> None:
        """Give pieces of work to a worker on another machine, until it has ended or was given up."""
        self._supply.come_elsewhere(line, hello, end_job)

    def incarnation(self, secret: str) -> Incarnation:
        """The incarnation with this secret. Raises Fenced when it is over."""
        return self._incarnations.with_secret(secret)

    def holds(self, one: Incarnation, lease: Lease) -> bool:
        """Whether a worker still has this lease."""
        return self._incarnations.holds(one, lease)
