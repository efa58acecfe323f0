"""Faults of processes: they die, are stopped, go by a wrong clock, or are hit in the middle of a step."""

from __future__ import annotations

from tidegate.simulator.capture import Capture
from tidegate.simulator.control_process import Moment
from tidegate.simulator.fault_draws import any_capture, later
from tidegate.simulator.virtual_time import Process
from tidegate.simulator.worker import Worker
from tidegate.simulator.world import World


def processes_of(capture: Capture) -> list[Process]:
    """The control process of a capture, if it runs, and its workers."""
    control = [capture.control.process] if capture.control is not None else []
    return [*control, *(one.process for one in capture.workers)]


class ProcessFaults:
    """Kills and stops processes of captures. Each fault returns what it has done; empty: it could do nothing.

    A process that is killed starts again, one that is stopped continues as a zombie.
    """

    def __init__(self, world: World) -> None:
        self._world, self._time, self._rng = world, world.time, world.time.rng

    # --- processes that die --------------------------------------------------------------------------

    def capture_killed(self) -> str:
        return self.kill(any_capture(self._world))

    def owner_killed(self) -> str:
        return self.kill(self._world.owner)

    def kill(self, capture: Capture | None) -> str:
        if capture is None:
            return ""
        was_owner, delivered = capture is self._world.owner, capture.delivers
        # Asked before the kill, after which it has no worker. Without either there is nothing to take over.
        if was_owner or delivered:
            self._world.failovers.died(self._time.now, was_owner=was_owner)
        capture.kill(workers=True)
        return (
            f"{capture.name} is killed with its workers, {later(self._world, 0.5, 25.0, capture.start_again)}"
        )

    def control_killed(self) -> str:
        capture = any_capture(self._world)
        if capture is None:
            return ""
        capture.kill(workers=False)
        later(self._world, 0.5, 5.0, capture.start_again)
        # Before the capture starts again: the workers of its next life are not part of this fault.
        old = list(capture.workers)
        lasts = later(self._world, 0.0, 20.0, lambda: self._end_all(old))
        return f"{capture.name}'s control process is killed, and its workers continue {lasts}"

    def _end_all(self, workers: list[Worker]) -> None:
        for worker in workers:
            self._time.kill(worker.process)

    def worker_killed(self) -> str:
        capture = any_capture(self._world)
        if capture is None:
            return ""
        capture.lose_worker()
        return f"{capture.name}'s application is killed"

    # --- processes that are stopped ------------------------------------------------------------------

    def _stop(self, processes: list[Process]) -> str:
        for process in processes:
            self._time.stop(process)

        def continue_process() -> None:
            for process in processes:
                self._time.continue_process(process)

        return later(self._world, 1.0, 40.0, continue_process)

    def capture_stopped(self) -> str:
        capture = any_capture(self._world)
        if capture is None:
            return ""
        return f"{capture.name} is stopped (SIGSTOP) {self._stop(processes_of(capture))}"

    def control_stopped(self) -> str:
        capture = any_capture(self._world)
        if capture is None or capture.control is None:
            return ""
        return f"{capture.name}'s control process is stopped {self._stop([capture.control.process])}"

    def worker_stopped(self) -> str:
        capture = any_capture(self._world)
        workers = [one.process for one in capture.workers if one.process.alive] if capture else []
        if capture is None or not workers:
            return ""
        return f"{capture.name}'s workers are stopped {self._stop(workers)}"

    # --- clocks ----------------------------------------------------------------------------------------

    def clock_skewed(self) -> str:
        capture = self._rng.choice(list(self._world.captures.values()))
        capture.set_clock(rate := self._rng.choice((0.5, 0.8, 1.25, 2.0)))
        lasts = later(self._world, 5.0, 40.0, lambda: capture.set_clock(1.0))
        return f"{capture.name}'s clock goes {rate:g} times as fast {lasts}"

    # --- at the worst moment ---------------------------------------------------------------------------

    def stopped_in_midst(self) -> str:
        moment = self._rng.choice(tuple(Moment))
        # Every capture has workers with transactions. Only the owner comes to the other moments.
        capture = any_capture(self._world) if moment is Moment.COMMIT else self._world.owner
        if capture is None:
            return ""

        def stop() -> None:
            lasts = self._stop(processes_of(capture))
            self._world.note("FAULT", f"{capture.name} is stopped {moment}, {lasts}")

        capture.traps[moment] = stop
        return f"{capture.name} will be stopped {moment}"

    def killed_in_midst(self) -> str:
        moment = self._rng.choice(tuple(Moment))
        capture = any_capture(self._world) if moment is Moment.COMMIT else self._world.owner
        if capture is None:
            return ""

        def kill() -> None:
            # Not inside the trap: the task that springs it is running, and a running generator cannot be
            # closed.
            self._time.after(0.0, lambda: self._world.note("FAULT", self.kill(capture)))

        capture.traps[moment] = kill
        return f"{capture.name} will be killed {moment}"
