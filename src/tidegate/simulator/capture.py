"""A capture: a machine with workers and a control process, which has a session in etcd.

A control process (`control_process`) that loses its session ends with its workers, and another one starts. A
worker belongs to one incarnation, and may outlive a control process that was killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.model.timestamp import Timestamp
from tidegate.simulator.control_process import Control, Moment, SimulatedClock
from tidegate.simulator.processor_task import REPORT_S
from tidegate.simulator.upstream import View
from tidegate.simulator.worker import Report, Worker
from tidegate.simulator.world import World

AGAIN_S: Final = 1.0
"""The pause before a capture that has lost its session starts again."""
WARM_UP_S: Final = (1.0, 3.0)
"""How long the application takes to start, at least and at most."""
WORKERS_KEPT: Final = 16
"""If there are more workers, dead ones are forgotten."""


class Capture:
    """One machine, with the lives of its control process and its workers."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.clock = SimulatedClock(world.time)
        self.view = View(world.upstream, world.upstream.start_ts)
        self.control: Control | None = None
        self.workers: list[Worker] = []
        self.application_at = float("inf")
        """The time from which on a worker can begin."""
        self.lost_ddl: tuple[Timestamp, Timestamp] = (0, 0)
        """Its catalogue has missed the DDL that finished in (after, upto]."""
        self.traps: dict[Moment, Callable[[], None]] = {}
        """Faults to inject at the next such moment."""
        self._waits = False
        """Whether it has ended and will start again."""
        self._keeps_application = False
        """Whether the next control process has the application of the last one
        (`server.captures.capture_process`).
        """

    def start(self) -> None:
        """Start a control process and its application, unless one runs."""
        if self.control is None:
            self._waits = False
            warm_up_s = self.world.time.rng.uniform(*WARM_UP_S)
            if not self._keeps_application:
                self.application_at = self.world.time.now + warm_up_s
            self.control = Control(self.world, self)

    @property
    def delivers(self) -> bool:
        """Whether it has a worker that may write."""
        return any(one.process.alive and one.writes is not None for one in self.workers)

    @property
    def is_stopped(self) -> bool:
        """Whether its control process is stopped."""
        return self.control is not None and self.control.process.stopped

    def spring(self, moment: Moment) -> None:
        """Such a moment has come: inject the fault that waits for it."""
        if (trap := self.traps.pop(moment, None)) is not None:
            trap()

    def set_clock(self, rate: float) -> None:
        """Let its clock go faster or more slowly."""
        self.clock.set_rate(rate)
        if self.control is not None:
            self.control.process.rate = rate

    # --- its end -------------------------------------------------------------------------------------

    def kill(self, *, workers: bool) -> None:
        """Kill the control process, and with `workers` its workers, which otherwise continue for a while."""
        if self.control is not None:
            control, self.control = self.control, None
            self.world.time.kill(control.process)
        if workers:
            self.kill_workers()
        self._waits, self._keeps_application = True, False

    def kill_workers(self) -> None:
        """Kill all workers. Their open transactions stay open."""
        for worker in self.workers:
            self._kill_worker(worker)

    def _kill_worker(self, worker: Worker) -> None:
        self.world.time.kill(worker.process)
        worker.writes = None

    def restart(self, control: Control) -> None:
        """The control process has ended its work and that of its workers, and its session if it reaches etcd.
        It keeps its application.
        """
        self.world.time.kill(control.process)
        self.kill_workers()
        if self.world.network.is_open(self.name, "etcd"):
            self.world.time.after(0.002, self.world.etcd.revoke, control.lease_id)
        self._waits = self._keeps_application = True
        self.world.time.after(AGAIN_S, self.start_again)

    def start_again(self) -> None:
        """Start it again, unless it has started already."""
        if self._waits:
            self.start()

    # --- its parts -----------------------------------------------------------------------------------

    def post(self, sender: str, to: str, message: bytes) -> None:
        """Deliver a message that has arrived at the machine `to`."""
        control = self.world.captures[to].control
        if control is not None:
            self.world.time.within(control.process, 0.0, control.receive, sender, message)

    def reported(self, control: Control) -> Callable[[int, Report], None]:
        """The function by which a worker reports to the control process that began it."""

        def say(incarnation: int, report: Report) -> None:
            if control.processor is not None:
                delay = self.world.time.rng.uniform(*REPORT_S)
                self.world.time.within(control.process, delay, control.processor.receive, incarnation, report)

        return say

    def in_transaction(self) -> None:
        """A worker has produced rows and has not committed them yet."""
        self.spring(Moment.COMMIT)

    def begin_worker(self, worker: Worker) -> None:
        """Begin a worker as soon as the application has started."""
        if len(self.workers) > WORKERS_KEPT:
            self.workers = [one for one in self.workers if one.process.alive]
        self.workers.append(worker)
        worker.start(max(0.01, self.application_at - self.world.time.now))

    def end_worker(self, worker: Worker) -> None:
        """End a worker. A stopped one does not end: it continues later, as a zombie."""
        if not worker.process.stopped:
            self._kill_worker(worker)

    def lose_worker(self) -> None:
        """Kill the application, which starts again."""
        self.kill_workers()
        self.application_at = self.world.time.now + self.world.time.rng.uniform(*WARM_UP_S)
        control = self.control
        if control is not None and control.processor is not None:
            for worker in self.workers:
                self.world.time.within(control.process, 0.05, control.processor.lost_worker, worker)
