"""Virtual time: tasks that wait, in processes that may be stopped or killed.

    spawn(process, steps) --> [step] --yield seconds or Signal.wait(s)--> queue by time --> [step] --> ...

A task is a generator. It yields how long it waits, and everything between two yields takes no virtual time.
The queue is ordered by time, then by the order in which entries were added, so that the same program with the
same random numbers always gives the same run. Nothing here reads a clock.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")
TIMER_S: Final = 1e-9
"""The shortest wait that is not 0, as a kernel's timers count nanoseconds."""
STEPS_AT_ONCE: Final = 1_000_000
"""The most entries at one moment. A run has some thousands of entries a second."""


class Waiting(NamedTuple):
    """A wait for a signal, for at most `seconds`."""

    signal: Signal
    seconds: float


Steps = Generator[float | Waiting, bool, T]
"""The steps of a task. A yield returns whether the awaited signal was set; for a wait for time alone,
False."""


class Signal:
    """An event that tasks wait for. It stays set until it is cleared."""

    __slots__ = ("_time", "_waiting", "is_set")

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._waiting: list[tuple[Task, int]] = []
        self.is_set = False

    def set(self) -> None:
        """Resume all waiting tasks at this moment, in the order in which they began to wait."""
        self.is_set = True
        # They resume through the queue, so that the task that sets the signal ends its step first.
        waiting, self._waiting = self._waiting, []
        for task, turn in waiting:
            self._time.after(0.0, self._time.resume, task, turn, True)

    def clear(self) -> None:
        """Make later waits block again."""
        self.is_set = False

    def wait(self, seconds: float) -> Waiting:
        """The value that a task yields to wait for this signal."""
        return Waiting(self, seconds)

    def join(self, task: Task) -> None:
        """Add a waiting task."""
        if self.is_set:
            self._time.after(0.0, self._time.resume, task, task.turn, True)
        else:
            self._waiting.append((task, task.turn))


class Process:
    """A process of the operating system. While it is stopped, everything that is due for it is held back."""

    __slots__ = ("alive", "held", "name", "rate", "stopped", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.rate = 1.0
        """How fast its clock goes. All times for which its tasks wait are divided by it."""
        self.alive, self.stopped = True, False
        self.held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.tasks: list[Task] = []


class Task:
    """One task of a process."""

    __slots__ = ("done", "over", "process", "steps", "turn")

    def __init__(self, process: Process, steps: Steps[Any], done: Signal) -> None:
        self.process, self.steps, self.done = process, steps, done
        self.over = False
        self.turn = 0
        """Rises with each step. A queue entry for an earlier turn is ignored."""

    def cancel(self) -> None:
        """End the task. Requests that it has sent are still carried out."""
        self.over = True
        self.turn += 1
        self.steps.close()


class VirtualTime:
    """The virtual clock and the queue of coming events."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        """Seconds since the simulation began."""
        self.rng = rng
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self._processes: dict[Process, None] = {}
        self.steps = 0
        """The number of entries carried out."""

    def after(self, seconds: float, work: Callable[..., object], *args: Any) -> None:
        """Call `work` later, whether or not any process lives."""
        self._count += 1
        # A task that waits until a time of its own clock may lack 1e-15 s of it, which vanishes in the sum.
        # It would wait again and again at one moment.
        at = self.now + max(seconds, TIMER_S) if seconds > 0 else self.now
        heapq.heappush(self._queue, (at, self._count, work, args))

    def within(self, process: Process, seconds: float, work: Callable[..., None], *args: Any) -> None:
        """Call `work` later in a process: after it continues if it is stopped, and never if it is dead."""
        self.after(seconds, self._enter, process, work, args)

    def _enter(self, process: Process, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        if process.stopped:
            process.held.append((work, args))
        elif process.alive:
            work(*args)

    def spawn(self, process: Process, steps: Steps[Any]) -> Task:
        """Begin a task at this moment."""
        task = Task(process, steps, Signal(self))
        if len(process.tasks) > 64:
            # A long run spawns a task for each effect. Without this the list would keep every one until the
            # kill.
            process.tasks = [one for one in process.tasks if not one.over]
        process.tasks.append(task)
        self._processes[process] = None
        self.after(0.0, self.resume, task, 0, False)
        return task

    def resume(self, task: Task, turn: int, woken: bool) -> None:
        """Run the next step of a task, unless the task is over or another event has resumed it already."""
        process = task.process
        # A wait for a signal leaves two ways to resume: the signal and the timeout. The first one that comes
        # raises the turn, so the other one finds an old turn here and does nothing.
        if task.over or task.turn != turn or not process.alive:
            return
        if process.stopped:
            # The turn stays as it is. If both ways of one wait are held, the first that is released raises
            # it.
            process.held.append((self.resume, (task, turn, woken)))
            return
        task.turn = turn + 1
        try:
            wait = task.steps.send(woken) if turn else next(task.steps)
        except StopIteration:
            task.over = True
            task.done.set()
            return
        if isinstance(wait, Waiting):
            wait.signal.join(task)
            self.after(wait.seconds / process.rate, self.resume, task, task.turn, False)
        else:
            self.after(wait / process.rate, self.resume, task, task.turn, False)

    def kill(self, process: Process) -> None:
        """SIGKILL: none of its tasks takes another step."""
        process.alive = process.stopped = False
        process.held.clear()
        self._processes.pop(process, None)
        for task in process.tasks:
            task.cancel()
        process.tasks.clear()

    def end(self) -> None:
        """Kill every process that is left."""
        for process in list(self._processes):
            self.kill(process)

    def stop(self, process: Process) -> None:
        """SIGSTOP."""
        process.stopped = process.alive

    def continue_process(self, process: Process) -> None:
        """SIGCONT: everything that was due meanwhile happens now, in random order."""
        if not process.stopped:
            return
        process.stopped = False
        held, process.held = process.held, []
        # The operating system promises no order among the timers and sockets that are due after SIGCONT.
        self.rng.shuffle(held)
        for work, args in held:
            # Through the queue again: one of them may stop or kill the process before the others come.
            self.within(process, 0.0, work, *args)

    def run(self, until: float, ended: Callable[[], bool]) -> None:
        """Carry out entries up to a time, or until `ended` returns True after an entry.

        Raises AssertionError if no time passes.
        """
        queue, at_once = self._queue, 0
        while queue and queue[0][0] <= until:
            at, _, work, args = heapq.heappop(queue)
            at_once = at_once + 1 if at == self.now else 0
            if at_once > STEPS_AT_ONCE:
                raise AssertionError(f"no time passes at {at!r} s: {work} {args} is due again and again")
            self.now = at
            self.steps += 1
            work(*args)
            if ended():
                return
        if not queue or queue[0][0] > until:
            # Nothing is left before `until`, so time passes up to it. After `ended` it stays at the last
            # entry.
            self.now = max(self.now, until)
